"""Effects whose priors are no Gaussians, in raw units, against quadrature level by level."""

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_minibatch as pmb

N, G, UNIT = 6000, 60, 1e6
RNG = np.random.default_rng(1)
SIZES = np.repeat([8, 280], [40, 20])
GROUP = np.repeat(np.arange(G), np.append(SIZES[:-1], N - SIZES[:-1].sum()))
Y = 0.3 * RNG.normal(size=G)[GROUP] + RNG.normal(size=N)
X = RNG.choice([-1.0, 1.0], N)
GRID = np.linspace(-4.0, 4.0, 16_001)
PENALIZED = slice(5, 25)
RATE = 6.0


def some_penalized() -> tuple[np.ndarray, float]:
    """Normal effects; those of some levels also have a Laplace penalty."""
    u = pm.Normal("u", shape=G)
    pm.Potential("lasso", -RATE * pt.sum(pt.abs(u[PENALIZED])))
    pm.Normal("y", u[GROUP], 1.0, observed=Y)
    rates = np.zeros((G, 1))
    rates[PENALIZED] = RATE
    return -0.5 * GRID**2 - rates * np.abs(GRID), 1.0


def hinge() -> tuple[np.ndarray, float]:
    """Effects that had better not be positive, in large units."""
    u = pm.Normal("u", 0, UNIT, shape=G)
    pm.Potential("hinge", -RATE / UNIT * pt.sum(pt.maximum(u, 0)))
    pm.Normal("y", u[GROUP], UNIT, observed=UNIT * Y)
    return -0.5 * GRID**2 - RATE * np.maximum(GRID, 0.0), UNIT


def long_tailed_slopes() -> tuple[np.ndarray, float]:
    """Slopes of a predictor in raw units, with long tails."""
    u = pm.StudentT("u", nu=2, mu=0, sigma=0.2 / UNIT, shape=G)
    pm.Normal("y", u[GROUP] * (UNIT * X), 1.0, observed=X * Y)
    return stats.t.logpdf(GRID / 0.2, 2), 1 / UNIT


@pytest.mark.parametrize("declare", [some_penalized, hinge, long_tailed_slopes])
def test_effects_against_quadrature(declare: Callable[[], tuple[np.ndarray, float]]) -> None:
    with pm.Model() as model:
        log_prior, unit = declare()
    with model:
        idata = pm.sample(
            draws=1500,
            tune=500,
            chains=2,
            cores=1,
            step=pmb.MinibatchMH(),
            random_seed=3,
            progressbar=False,
            compute_convergence_checks=False,
        )
    count, mean = np.bincount(GROUP), np.bincount(GROUP, Y) / np.bincount(GROUP)
    log_density = log_prior - 0.5 * count[:, None] * (GRID - mean[:, None]) ** 2
    density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    density /= density.sum(axis=1, keepdims=True)
    right = density @ GRID
    sd = np.sqrt(density @ GRID**2 - right**2)
    draws = idata.posterior["u"].values.reshape(-1, G) / unit
    away = (draws.mean(axis=0) - right) / sd
    assert np.sqrt(np.mean(away**2)) < 0.15
    assert np.abs(away).max() < 0.6
    ratio = draws.std(axis=0) / sd
    assert np.abs(np.log(ratio)).mean() < 0.15
