"""Each step beside other steps: joint distribution tests (Geweke, 2004) with 1,000 replications.

    python -m benchmarks.company [--steps MinibatchMH FlyMC] [--replications 1000] [--draws 10]

One coefficient is moved by a step of this package, and what else there is by a step of PyMC or a
second one of this package. Parameters are drawn from the prior and data given them; then
parameters from the posterior given these data, which is known by enumeration and on a grid, and
both steps move them, in turn, for some draws. If both leave the posterior as it is, they are draws
from it still: their probability integral transforms (Rosenblatt, 1952) are uniform and independent.
The least p of three tests is printed: two of Kolmogorov and Smirnov, of the other variable and of
the coefficient given it, and a chi-squared test of their independence, by quarters.

Steps that follow noisy gradients are biased by their step sizes. Of them the mean and the sd of the
transforms are judged, as normal scores: a mean within `SHIFT` of 0, and an sd within `STRETCH` of
1, beyond 4 standard errors.

Data are set anew, in a model that is compiled once: steps of this package set themselves up again.
"""

import argparse
import contextlib
import io
import logging
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import expit, ndtri
from scipy.stats import chisquare, kstest, norm
from scipy.stats import t as student_t

import pymc_minibatch as pmb

N_ROWS = 120
N_DATA_SETS = 10
TUNE = 150
QUARTERS = 4
SHIFT, STRETCH = 0.15, 0.15
"""In sds: the errors that gradient steps with their default step sizes may have on few rows."""

RNG = np.random.default_rng(20261126)
X, W = RNG.normal(size=(2, N_ROWS)) / 3
TIME = np.arange(N_ROWS) // (N_ROWS // 8)
GROUP = np.arange(N_ROWS) % 3
SDS = np.array([0.3, 2.0])
P_LABEL = 0.4
CENTERS = np.array([-0.7, 0.7])
GRID = np.linspace(-8.0, 8.0, 2001)
"""Of the coefficient."""
SPREAD = 0.4
"""Standard deviation of the logarithm of the scale, under its prior: all draws are on `SCALES`."""
SCALES = np.exp(np.linspace(np.log(0.1), np.log(10.0), 400))


class Truth(NamedTuple):
    """A posterior: of what the other step moves, and of coefficients given each value of it.

    Attributes
    ----------
    others : list of dict
        The values of the other variable.
    weights : ndarray
        Their probabilities, in an order in which neighbours are alike.
    of_coefficient : ndarray, shape (others, grid)
        Distribution functions on `GRID`.
    """

    others: list[dict[str, Any]]
    weights: np.ndarray
    of_coefficient: np.ndarray


@dataclass(frozen=True)
class Case:
    """A model: how it is built, drawn from, and solved.

    Attributes
    ----------
    build
        Of the kind of the other variable, the model.
    prior
        Draw a coefficient and the other variable.
    outcome
        Draw data given them.
    solve
        Of data, the posterior.
    coefficient, other
        Names.
    companions
        The steps that can move the other variable, with the kind that they need.
    """

    build: Callable[[str], pm.Model]
    prior: Callable[[np.random.Generator], dict[str, Any]]
    outcome: Callable[[np.random.Generator, Mapping[str, Any]], np.ndarray]
    solve: Callable[[np.ndarray], Truth]
    coefficient: str
    other: str
    companions: Mapping[str, str]


def density(log_density: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the distribution function on the grid, and the log of the integral."""
    top = log_density.max()
    values = np.exp(log_density - top)
    steps = np.concatenate([[0.0], np.cumsum((values[1:] + values[:-1]) / 2)])
    total = steps[-1]
    return steps / total, top + float(np.log(total))


def truth(others: list[dict[str, Any]], log_densities: Sequence[np.ndarray]) -> Truth:
    """Return a posterior, given its log-density at each value of the other and on the grid."""
    found = [density(each) for each in log_densities]
    logs = np.array([log for _, log in found])
    weights = np.exp(logs - logs.max())
    return Truth(others, weights / weights.sum(), np.array([each for each, _ in found]))


def log_bernoulli(y: np.ndarray, eta: np.ndarray) -> np.ndarray:
    """Log-likelihood of rows, summed over the last axis."""
    signed = np.where(y > 0, eta, -eta)
    return -np.logaddexp(0, -signed).sum(axis=-1)


# --- A scale ----------------------------------------------------------------------------------


def build_scale(_: str) -> pm.Model:
    """Rows of a Student-t distribution with an unknown scale."""
    with pm.Model() as model:
        b, s = pm.Normal("b", 0, 2), pm.LogNormal("s", 0, SPREAD)
        pm.StudentT("y", nu=4, mu=b * X, sigma=s, observed=pm.Data("data", np.zeros(N_ROWS)))
    return model


def solve_scale(y: np.ndarray) -> Truth:
    """Solve it on a grid of scales that is even in their logarithm."""
    logs = []
    for s in SCALES:
        rows = student_t.logpdf(y, 4, loc=GRID[:, None] * X, scale=s).sum(axis=1)
        logs.append(rows + norm.logpdf(GRID, 0, 2) + norm.logpdf(np.log(s), 0, SPREAD))
    return truth([{"s": s} for s in SCALES], logs)


# --- An indicator -------------------------------------------------------------------------------


def build_indicator(kind: str) -> pm.Model:
    """Build a logistic regression whose indicator chooses a prior and adds a column."""
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.5) if kind == "binary" else pm.Categorical("k", [0.5, 0.5])
        b = pm.Normal("b", 0, pt.as_tensor(SDS)[k])
        data = pm.Data("data", np.zeros(N_ROWS, dtype=int))
        pm.Bernoulli("y", logit_p=b * X + k * W, observed=data)
    return model


def solve_indicator(y: np.ndarray) -> Truth:
    """Solve it for each value of the indicator."""
    logs = [
        log_bernoulli(y, GRID[:, None] * X + k * W) + norm.logpdf(GRID, 0, SDS[k]) for k in (0, 1)
    ]
    return truth([{"k": k} for k in (0, 1)], logs)


# --- A change point -----------------------------------------------------------------------------


def build_change(kind: str) -> pm.Model:
    """Build rows whose log odds change at an unknown time."""
    with pm.Model() as model:
        c = pm.DiscreteUniform("c", 0, 7) if kind == "count" else pm.Categorical("c", [1 / 8] * 8)
        b = pm.Normal("b", 0, 1)
        data = pm.Data("data", np.zeros(N_ROWS, dtype=int))
        pm.Bernoulli("y", logit_p=b * pt.ge(pm.Data("time", TIME), c), observed=data)
    return model


def solve_change(y: np.ndarray) -> Truth:
    """Solve it for each time."""
    logs = [
        log_bernoulli(y, GRID[:, None] * (c <= TIME)) + norm.logpdf(GRID, 0, 1) for c in range(8)
    ]
    return truth([{"c": c} for c in range(8)], logs)


# --- A label of a mixture -----------------------------------------------------------------------


def build_label(kind: str) -> pm.Model:
    """Build three groups of rows, each of one of two components; one of them is known."""
    with pm.Model() as model:
        if kind == "binary":
            z = pm.Bernoulli("z", P_LABEL, shape=3)
        else:
            z = pm.Categorical("z", [1 - P_LABEL, P_LABEL], shape=3)
        b = pm.Normal("b", CENTERS[1], 1)
        eta = pt.switch(pt.eq(z, 1), b, CENTERS[0])[pm.Data("group", GROUP)]
        pm.Bernoulli("y", logit_p=eta, observed=pm.Data("data", np.zeros(N_ROWS, dtype=int)))
    return model


def solve_label(y: np.ndarray) -> Truth:
    """Solve it for all labels."""
    others, logs = [], []
    for labels in product((0, 1), repeat=3):
        z = np.array(labels)
        eta = np.where(z[GROUP] == 1, GRID[:, None], CENTERS[0])
        prior = np.log(np.where(z == 1, P_LABEL, 1 - P_LABEL)).sum()
        logs.append(log_bernoulli(y, eta) + norm.logpdf(GRID, CENTERS[1], 1) + prior)
        others.append({"z": z})
    return truth(others, logs)


CONTINUOUS = dict.fromkeys(("Metropolis", "Slice", "NUTS", "a second step"), "any")

CASES = {
    "scale": Case(
        build_scale,
        lambda rng: {"b": rng.normal(0, 2), "s": rng.lognormal(0, SPREAD)},
        lambda rng, at: at["b"] * X + at["s"] * rng.standard_t(4, size=N_ROWS),
        solve_scale,
        "b",
        "s",
        CONTINUOUS,
    ),
    "indicator": Case(
        build_indicator,
        lambda rng: {"k": (k := rng.integers(2)), "b": rng.normal(0, SDS[k])},
        lambda rng, at: rng.binomial(1, expit(at["b"] * X + at["k"] * W)),
        solve_indicator,
        "b",
        "k",
        {
            "Metropolis": "binary",
            "BinaryGibbsMetropolis": "binary",
            "CategoricalGibbsMetropolis": "label",
        },
    ),
    "change point": Case(
        build_change,
        lambda rng: {"c": rng.integers(8), "b": rng.normal()},
        lambda rng, at: rng.binomial(1, expit(at["b"] * (at["c"] <= TIME))),
        solve_change,
        "b",
        "c",
        {"Metropolis": "count", "CategoricalGibbsMetropolis": "label"},
    ),
    "label": Case(
        build_label,
        lambda rng: {"z": rng.binomial(1, P_LABEL, 3), "b": rng.normal(CENTERS[1], 1)},
        lambda rng, at: rng.binomial(1, expit(np.where(at["z"][GROUP] == 1, at["b"], CENTERS[0]))),
        solve_label,
        "b",
        "z",
        {
            "Metropolis": "binary",
            "BinaryGibbsMetropolis": "binary",
            "CategoricalGibbsMetropolis": "label",
        },
    ),
}

STEPS: dict[str, tuple[type, dict[str, Any]]] = {
    "MinibatchMH": (pmb.MinibatchMH, {"steps_per_draw": 5, "witness": False}),
    "FlyMC": (pmb.FlyMC, {"steps_per_draw": 5, "witness": False}),
    "SGFS": (pmb.SGFS, {"steps_per_draw": 20}),
    "SGLD": (pmb.SGLD, {"steps_per_draw": 20}),
    "SGHMC": (pmb.SGHMC, {"steps_per_draw": 20}),
    "SGNHT": (pmb.SGNHT, {"steps_per_draw": 20}),
}
EXACT = ("MinibatchMH", "FlyMC")


def companion(name: str, step: str, case: Case, model: pm.Model) -> Any:
    """Make the step that moves the other variable."""
    variable = model[case.other]
    if name == "a second step":
        kind, options = STEPS[step]
        return kind([variable], model=model, **options)
    if name == "Metropolis" and model.rvs_to_values[variable].dtype == "int64":
        kinds = {"z": pm.BinaryMetropolis, "k": pm.BinaryMetropolis}
        return kinds.get(case.other, pm.Metropolis)([variable], model=model)
    return getattr(pm, name)([variable], model=model)


@cache
def data_sets(name: str) -> list[tuple[np.ndarray, Truth]]:
    """Draw data and solve them."""
    case, rng = CASES[name], np.random.default_rng(len(name))
    made = [case.outcome(rng, case.prior(rng)) for _ in range(N_DATA_SETS)]
    return [(y, case.solve(y)) for y in made]


class Found(NamedTuple):
    """What a cell of the table shows."""

    least_p: float
    mean: float
    sd: float
    seconds: float

    def is_right(self, exact: bool, n: int) -> bool:
        """Whether it is what the step promises."""
        if exact:
            return self.least_p > 1e-3 / 3
        error = 4 / np.sqrt(n)
        return abs(self.mean) < SHIFT + error and abs(self.sd - 1) < STRETCH + error


def run(step: str, name: str, other: str, *, replications: int = 1000, draws: int = 10) -> Found:
    """Fill a cell of the table.

    Raises
    ------
    ValueError
        If the combination is refused.
    """
    case, started = CASES[name], time.perf_counter()
    kind, options = STEPS[step]
    model = case.build(case.companions[other])
    rng = np.random.default_rng(7)
    transforms: list[tuple[float, float]] = []
    with model:
        ours, theirs = None, None
        for y, posterior in data_sets(name):
            pm.set_data({"data": y})
            if ours is None:
                # Made on data, as a user does.
                theirs = companion(other, step, case, model)
                ours = kind([model[case.coefficient]], model=model, **options)
            steps = (ours, theirs)
            ready(steps, model, rng)
            n = replications // N_DATA_SETS
            transforms += [moved(steps, case, posterior, rng, draws) for _ in range(n)]
    u = np.array(transforms)
    quarters = np.minimum((u * QUARTERS).astype(int), QUARTERS - 1)
    table = np.bincount(quarters @ [QUARTERS, 1], minlength=QUARTERS**2)
    p = [kstest(u[:, 0], "uniform").pvalue, kstest(u[:, 1], "uniform").pvalue]
    p.append(chisquare(table).pvalue)
    scores = ndtri(np.clip(u[:, 1], 1e-6, 1 - 1e-6))
    return Found(min(p), scores.mean(), scores.std(), time.perf_counter() - started)


def ready(steps: Sequence[Any], model: pm.Model, rng: np.random.Generator) -> None:
    """Tune both steps on the data as they are."""
    for step in steps:
        _ = step.vars  # those of this package are set up again
        step.setup_chain(rng.spawn(1)[0], TUNE, 0)
        step.tune = True
    point = model.initial_point()
    for _ in range(TUNE):
        for step in steps:
            point, _ = step.step(point)
    for step in steps:
        step.stop_tuning()


def moved(
    steps: Sequence[Any], case: Case, posterior: Truth, rng: np.random.Generator, draws: int
) -> tuple[float, float]:
    """Move a draw of the posterior; return its transforms."""
    k = rng.choice(posterior.weights.size, p=posterior.weights)
    b = np.interp(rng.random(), posterior.of_coefficient[k], GRID)
    point = {case.coefficient: np.array(b)}
    if case.other == "s":
        point["s_log__"] = np.log(posterior.others[k]["s"]) + spacing() * (rng.random() - 0.5)
        point["s_log__"] = np.array(point["s_log__"])
    else:
        point |= {name: np.array(value) for name, value in posterior.others[k].items()}
    for step in steps:
        if isinstance(step, pmb.MinibatchMH | pmb.FlyMC | pmb.SGLD | pmb.SGFS | pmb.SGHMC):
            step.setup_chain(rng.spawn(1)[0], 0, draws)
            step._start_is_checked = step._split_is_verified = True
    for _ in range(draws):
        for step in steps:
            point, _ = step.step(point)
    return transformed(point, case, posterior, rng)


def spacing() -> float:
    """Return the distance of scales that follow each other, in their logarithm."""
    return float(np.log(SCALES[1] / SCALES[0]))


def transformed(
    point: Mapping[str, Any], case: Case, posterior: Truth, rng: np.random.Generator
) -> tuple[float, float]:
    """Transform the other variable, and the coefficient given it."""
    cumulated = np.concatenate([[0.0], np.cumsum(posterior.weights)])
    if case.other == "s":
        at = (float(point["s_log__"]) - np.log(SCALES[0])) / spacing()
        k, within = int(np.clip(round(at), 0, SCALES.size - 1)), np.clip(at - round(at) + 0.5, 0, 1)
    else:
        values = [np.atleast_1d(other[case.other]) for other in posterior.others]
        value = np.atleast_1d(point[case.other])
        k = next(i for i, each in enumerate(values) if np.array_equal(each, value))
        within = rng.random()
    of_other = cumulated[k] + within * posterior.weights[k]
    of_coefficient = np.interp(point[case.coefficient], GRID, posterior.of_coefficient[k])
    return float(of_other), float(of_coefficient)


def cells(steps: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Give the cells of the table."""
    for step in steps:
        for name, case in CASES.items():
            for other in case.companions:
                yield step, name, other


def main() -> None:
    """Print a line for each cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--replications", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=10)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print(f"PyMC {pm.__version__}, Python {platform.python_version()}, {platform.machine()}\n")
    print("| step | on a | beside | least p | mean | sd | right | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for step, name, other in cells(args.steps):
        if name not in args.cases:
            continue
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            try:
                found = run(step, name, other, replications=args.replications, draws=args.draws)
            except (ValueError, TypeError) as error:
                print(f"| {step} | {name} | {other} | refused: {error} | | | | |", flush=True)
                continue
        right = found.is_right(step in EXACT, args.replications)
        print(
            f"| {step} | {name} | {other} | {found.least_p:.2g} | {found.mean:.2f} | "
            f"{found.sd:.2f} | {'yes' if right else '**no**'} | {found.seconds:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
