"""How far approximate posteriors are off, and how long they take.

    python -m benchmarks.approximate            # both tables, as Markdown

The first table compares the means and standard deviations of all variables with those of long
chains of :class:`MinibatchMH`. Errors are in posterior standard deviations; the last columns are
what the Monte Carlo errors of the chains alone would make of the largest of them. The second has
seconds and memory at a million rows, set-up and check included, when everything is compiled.
"""

import argparse
import platform
import resource
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import arviz as az
import numpy as np
import pymc as pm

import pymc_minibatch as pmb

N_ROWS, N_BIG = 20_000, 1_000_000
DRAWS, TUNE, CHAINS = 1500, 300, 3


def effects(name: str, n: int, sd: float = 1.0) -> Any:
    """Effects about zero, written non-centred."""
    return pm.HalfNormal(f"sd_{name}", sd) * pm.Normal(f"z_{name}", shape=n)


def grouped(family: str, n_groups: int, *, slopes: bool = False, n_rows: int = N_ROWS) -> pm.Model:
    """Build a model of groups with intercepts, and slopes if asked for."""
    rng = np.random.default_rng(1)
    group, x = rng.integers(0, n_groups, n_rows), rng.normal(size=n_rows)
    eta = -0.5 + 0.3 * x + 0.6 * rng.normal(size=n_groups)[group]
    if slopes:
        eta = eta + 0.3 * rng.normal(size=n_groups)[group] * x
    with pm.Model() as model:
        predictor = pm.Normal("mu", 0, 2) + pm.Normal("slope", 0, 1) * x
        predictor = predictor + effects("g", n_groups)[group]
        if slopes:
            predictor = predictor + effects("x", n_groups)[group] * x
        observe(family, predictor, eta, rng)
    return model


def crossed(family: str, sizes: tuple[int, int] = (200, 40)) -> pm.Model:
    """Build a model with two crossed factors."""
    rng = np.random.default_rng(2)
    one, other = (rng.integers(0, size, N_ROWS) for size in sizes)
    eta = -0.5 + 0.6 * rng.normal(size=sizes[0])[one] + 0.4 * rng.normal(size=sizes[1])[other]
    with pm.Model() as model:
        predictor = pm.Normal("mu", 0, 2) + effects("a", sizes[0])[one]
        observe(family, predictor + effects("b", sizes[1])[other], eta, rng)
    return model


def observe(family: str, predictor: object, eta: np.ndarray, rng: np.random.Generator) -> None:
    """Add rows of a family."""
    if family == "bernoulli":
        pm.Bernoulli("y", logit_p=predictor, observed=rng.binomial(1, 1 / (1 + np.exp(-eta))))
    elif family == "poisson":
        pm.Poisson("y", pm.math.exp(predictor), observed=rng.poisson(np.exp(eta)))
    elif family == "student":
        rows = eta + rng.standard_t(5, eta.size)
        pm.StudentT("y", nu=5, mu=predictor, sigma=pm.HalfNormal("sigma", 2), observed=rows)
    else:
        rows = eta + rng.normal(size=eta.size)
        pm.Normal("y", predictor, pm.HalfNormal("sigma", 2), observed=rows)


def regression() -> pm.Model:
    """Build a model of ten coefficients, without effects."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N_ROWS, 10))
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=10)
        rows = rng.binomial(1, 1 / (1 + np.exp(-X[:, 0] + 1)))
        pm.Bernoulli("y", logit_p=pm.Normal("mu") + X @ beta, observed=rows)
    return model


MODELS: dict[str, Callable[[], pm.Model]] = {
    "logistic regression": regression,
    "200 groups, Bernoulli": lambda: grouped("bernoulli", 200),
    "2,000 groups, Bernoulli": lambda: grouped("bernoulli", 2000),
    "200 groups with slopes, Bernoulli": lambda: grouped("bernoulli", 200, slopes=True),
    "200 groups, Poisson": lambda: grouped("poisson", 200),
    "2,000 groups, Poisson": lambda: grouped("poisson", 2000),
    "200 groups, normal": lambda: grouped("normal", 200),
    "200 groups with slopes, normal": lambda: grouped("normal", 200, slopes=True),
    "200 groups, Student t": lambda: grouped("student", 200),
    "200 × 40 crossed, Bernoulli": lambda: crossed("bernoulli"),
}

BIG: dict[str, Callable[[], pm.Model]] = {
    "1,000 groups": lambda: grouped("bernoulli", 1000, n_rows=N_BIG),
    "10,000 groups with slopes": lambda: grouped("bernoulli", 10_000, slopes=True, n_rows=N_BIG),
    "100,000 groups": lambda: grouped("bernoulli", 100_000, n_rows=N_BIG),
}


def accuracy() -> Iterator[str]:
    """Give the rows of the first table."""
    yield "| model | s | verdict | largest shift | k̂ | mean | sd | noise |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, build in MODELS.items():
        model = build()
        idata = pmb.approximate(model, random_seed=1)
        with model:
            chains = pm.sample(
                DRAWS,
                tune=TUNE,
                chains=CHAINS,
                cores=1,
                step=pmb.MinibatchMH(),
                random_seed=2,
                progressbar=False,
            )
        yield f"| {name} | {_cells(idata)} | {_errors(idata, chains)} |"


def speed() -> Iterator[str]:
    """Give the rows of the second table."""
    yield "| a million rows | s | set-up | verdict | GB at most, with the data |"
    yield "| --- | --- | --- | --- | --- |"
    for name, build in BIG.items():
        model = build()
        pmb.approximate(model, draws=10, random_seed=1)  # compiles
        started = time.perf_counter()
        idata = pmb.approximate(model, random_seed=1)
        seconds = time.perf_counter() - started
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        set_up = idata.attrs["setup_seconds"]
        verdict = idata.attrs["verdict"]
        yield f"| {name} | {seconds:.1f} | {set_up:.1f} | {verdict} | {memory:.1f} |"


def _cells(idata: object) -> str:
    attrs = idata.attrs  # type: ignore[attr-defined]
    shift = f"{attrs['largest_shift']:.2f} ± {attrs['largest_shift_error']:.2f}"
    verdict = attrs["verdict"] + (" (corrected)" if attrs["corrected"] else "")
    return f"{attrs['seconds']:.1f} | {verdict} | {shift} | {attrs['pareto_k']:.1f}"


def _errors(idata: object, chains: object) -> str:
    """Return the largest errors of a mean and of an sd, and the noise of the first."""
    of_mean, of_sd, noise = [], [], []
    for name in idata.posterior.data_vars:  # type: ignore[attr-defined]
        drawn = np.atleast_3d(idata.posterior[name].values)[0]  # type: ignore[attr-defined]
        long = chains.posterior[name]  # type: ignore[attr-defined]
        effective = np.ravel(az.ess(long.to_dataset())[name].values)
        values = long.values.reshape(long.shape[0] * long.shape[1], -1)
        drawn = drawn.reshape(len(drawn), -1)
        sd = values.std(axis=0)
        of_mean += list(np.abs(drawn.mean(axis=0) - values.mean(axis=0)) / sd)
        of_sd += list(np.abs(drawn.std(axis=0) / sd - 1))
        noise += list(np.abs(np.random.default_rng(1).normal(size=sd.size)) / np.sqrt(effective))
    return f"{max(of_mean):.3f} | {max(of_sd):.1%} | {max(noise):.3f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=["accuracy", "speed", "both"], nargs="?", default="both")
    chosen = parser.parse_args().table
    packages = [f"{each} {version(each)}" for each in ("pymc", "pytensor", "pymc-minibatch")]
    print(f"{', '.join(packages)}; {platform.processor() or platform.machine()}", flush=True)
    for table in (accuracy, speed):
        if chosen in (table.__name__, "both"):
            for line in table():
                print(line, flush=True)
