"""Measure the error of coefficients that few rows tell, and the rows of a decision.

    python -m benchmarks.rare_rows --seeds 10
    python -m benchmarks.rare_rows --only separation outliers --seeds 1 --nuts

Each case is sampled with the default settings. The coefficient of the rare rows is compared with a
Gaussian importance sampler on all rows, whose own error is small against that of the draws; the
z-scores of ten data sets say whether anything is wrong.
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
from scipy.special import expit, logsumexp

import pymc_minibatch as pmb
from benchmarks.report import machine, table, versions

CHAINS = 2
TUNE = 500
IMPORTANCE_DRAWS = 4000
STAGES, DEGREES = 2, 8
"""How often importance samples are drawn, and degrees of freedom of the Student-t distribution from
which they are."""


class Case(NamedTuple):
    """A model, and the elements of ``beta`` that rare rows tell."""

    model: pm.Model
    watched: list[int]


def _model(
    family: str, X: np.ndarray, truth: np.ndarray, rng: np.random.Generator, sd: float
) -> pm.Model:
    eta = X @ truth
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, sd, shape=X.shape[1])
        if family == "logistic":
            y = (rng.random(len(X)) < expit(eta)).astype(int)
            pm.Bernoulli("y", logit_p=X @ beta, observed=y)
        else:
            pm.Poisson("y", pm.math.exp(X @ beta), observed=rng.poisson(np.exp(eta)))
    return model


def _dummy(n: int, ones: int, rng: np.random.Generator) -> np.ndarray:
    column = np.zeros(n)
    column[rng.choice(n, ones, replace=False)] = 1.0
    return column


def logistic(seed: int) -> Case:
    """18 of 50,000 rows in a category."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(50_000), rng.normal(size=(50_000, 3)), _dummy(50_000, 18, rng)])
    return Case(_model("logistic", X, np.array([-1.5, 0.5, -0.5, 0.3, 0.8]), rng, 2.5), [4])


def poisson(seed: int) -> Case:
    """28 of 100,000 rows in a category, four normal predictors."""
    rng = np.random.default_rng(seed)
    n = 100_000
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 4)), _dummy(n, 28, rng)])
    truth = np.array([-1.5, 0.3, -0.3, 0.2, 0.1, 0.5])
    return Case(_model("poisson", X, truth, rng, 2.5), [5])


def interaction(seed: int) -> Case:
    """Two rare dummies, each 1 in 400 of 50,000 rows, and their interaction in 20 of them."""
    rng = np.random.default_rng(seed)
    n = 50_000
    chosen = rng.permutation(n)
    first, second = np.zeros(n), np.zeros(n)
    first[chosen[:400]], second[chosen[380:780]] = 1.0, 1.0
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 2)), first, second, first * second])
    truth = np.array([-1.0, 0.5, -0.3, 0.5, -0.5, 0.8])
    return Case(_model("logistic", X, truth, rng, 2.5), [3, 4, 5])


def separation(seed: int) -> Case:
    """Separation by a dummy for 30 of 100,000 rows, all of which are successes."""
    rng = np.random.default_rng(seed)
    n = 100_000
    dummy = _dummy(n, 30, rng)
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 3)), dummy])
    return Case(_model("logistic", X, np.array([-1.0, 0.5, -0.5, 0.3, 50.0]), rng, 2.5), [4])


def heavy(seed: int) -> Case:
    """One log-normal predictor with sd 2, as it is."""
    rng = np.random.default_rng(seed)
    n = 100_000
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 3)), rng.lognormal(0, 2, n)])
    return Case(_model("logistic", X, np.array([-1.0, 0.5, -0.5, 0.3, 0.02]), rng, 2.5), [4])


def outliers(seed: int) -> Case:
    """Ten gross outliers in a predictor, in 100,000 rows."""
    rng = np.random.default_rng(seed)
    n = 100_000
    x = rng.normal(size=n)
    x[rng.choice(n, 10, replace=False)] *= 100
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 3)), x])
    return Case(_model("logistic", X, np.array([-1.0, 0.5, -0.5, 0.3, 0.2]), rng, 2.5), [4])


CASES: dict[str, Callable[[int], Case]] = {
    "logistic": logistic,
    "poisson": poisson,
    "interaction": interaction,
    "separation": separation,
    "heavy": heavy,
    "outliers": outliers,
}


def moments(
    tall: pmb.TallModel, reference: pmb.Reference, seed: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Posterior means and sds by importance sampling on all rows, and its effective draws.

    It is repeated about the mean and covariance that it has found: a posterior may be skewed.
    """
    rng, half = np.random.default_rng(seed), IMPORTANCE_DRAWS // 2
    mean, covariance = reference.flat, reference.covariance
    dim = mean.size
    for _ in range(STAGES):
        z = rng.standard_normal((half, dim))
        t = z * np.sqrt(DEGREES / rng.chisquare(DEGREES, half))[:, None]
        t = np.concatenate([t, -t])  # opposite points, whose mean is nearly right
        points = mean + t @ np.linalg.cholesky(covariance).T
        log_q = -(DEGREES + dim) / 2 * np.log1p((t**2).sum(1) / DEGREES)
        log_p = np.array([tall.logp(tall.layout.unflatten(point)) for point in points])
        weights = np.exp(log_p - log_q - logsumexp(log_p - log_q))
        mean = weights @ points
        covariance = (points - mean).T @ (weights[:, None] * (points - mean))
    return mean, np.sqrt(covariance.diagonal()), float(1 / (weights**2).sum())


class Found(NamedTuple):
    """What a run found of the coefficient that is furthest off.

    Attributes
    ----------
    test
        The acceptance test that the step took.
    error, noise
        Of its mean, and the standard error of that, in posterior standard deviations.
    ess
        Its effective samples.
    rows
        Mean rows of a decision.
    seconds
        Of set-up and sampling.
    warnings
        How many there were.
    """

    test: str
    error: float
    noise: float
    ess: float
    rows: float
    seconds: float
    warnings: int


def measure(case: Case, draws: int, seed: int, **options: Any) -> Found:
    """Sample a data set; the options are those of the step."""
    with case.model, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        started = time.perf_counter()
        step = pmb.MinibatchMH(**options)
        idata = _sample(draws, seed, step=step)
        seconds = time.perf_counter() - started
    mean, sd, effective = moments(step.tall, step.reference, seed)
    values = idata["posterior"]["beta"].values
    errors = []
    for i in case.watched:
        ess = float(az.ess(values[..., i]))
        noise = math.sqrt(1 / ess + 1 / effective)
        errors.append(((values[..., i].mean() - mean[i]) / sd[i], noise, ess))
    worst = max(errors, key=lambda found: abs(found[0] / found[1]))
    rows = float(idata["sample_stats"]["batch_size"].mean())
    n_warnings = sum(issubclass(w.category, UserWarning) for w in caught)
    return Found(type(step.acceptance).__name__, *worst, rows, seconds, n_warnings)


def line(name: str, seed: int, draws: int, nuts: bool) -> list[str]:
    """Sample a data set with the defaults; return a line of the table."""
    case = CASES[name](seed)
    found = measure(case, draws, seed)
    speed = f"{found.ess / found.seconds * _nuts_seconds(case.model):.1f}" if nuts else ""
    return [
        name,
        str(seed),
        found.test,
        f"{found.error:+.3f} ± {found.noise:.3f}",
        f"{found.ess:,.0f}",
        f"{found.rows:,.0f}",
        f"{found.seconds:.1f}",
        speed,
        str(found.warnings),
    ]


def _sample(draws: int, seed: int, **options: Any) -> Any:
    return pm.sample(
        draws,
        tune=TUNE,
        chains=CHAINS,
        cores=1,
        random_seed=seed,
        progressbar=False,
        compute_convergence_checks=False,
        **options,
    )


def _nuts_seconds(model: pm.Model) -> float:
    """Seconds for one effective draw of the slowest coefficient, by nutpie."""
    with model:
        started = time.perf_counter()
        idata = _sample(500, 1, nuts_sampler="nutpie")
        seconds = time.perf_counter() - started
    return seconds / float(az.ess(idata["posterior"]["beta"]).min())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", type=int, default=10, help="data sets of each case")
    parser.add_argument("--first", type=int, default=1, help="seed of the first of them")
    parser.add_argument("--draws", type=int, default=4000, help="of each of two chains")
    parser.add_argument("--nuts", action="store_true", help="compare speed with nutpie")
    options = parser.parse_args()
    print(machine(), versions(), sep="\n\n")
    header = [
        "case",
        "data set",
        "test",
        "error, sds",
        "effective",
        "rows",
        "s",
        "× NUTS",
        "warnings",
    ]
    lines = []
    for name in options.only:
        for seed in range(options.first, options.first + options.seeds):
            lines.append(line(name, seed, options.draws, options.nuts))
            print(*lines[-1], flush=True)
    print("\n" + table(header, lines))


if __name__ == "__main__":
    main()
