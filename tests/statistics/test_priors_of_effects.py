"""Effects whose priors are no Gaussians, in raw units, against quadrature level by level."""

from collections.abc import Callable
from typing import Any

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


def sampled(model: pm.Model, *, draws: int, tune: int) -> Any:
    """Return two chains of a model."""
    return pm.sample(
        draws=draws,
        tune=tune,
        chains=2,
        cores=1,
        model=model,
        step=pmb.MinibatchMH(model=model),
        random_seed=3,
        progressbar=False,
        compute_convergence_checks=False,
    )


def test_a_uniform_prior_with_an_unknown_end_against_quadrature() -> None:
    """Rates under a top: given that, Poisson rows leave incomplete gamma functions of it."""
    rng, shape, end = np.random.default_rng(7), (50, 3), 2.5
    counts = rng.poisson(rng.uniform(0, end, shape[0])[:, None], shape)
    with pm.Model() as model:
        top = pm.HalfNormal("top", 5)
        rate = pm.Uniform("rate", 0, top, shape=shape[0])
        group = np.repeat(np.arange(shape[0]), shape[1])
        pm.Poisson("y", rate[group], observed=counts.ravel())
    idata = sampled(model, draws=2000, tune=600)
    a = counts.sum(axis=1)[:, None] + 1
    grid = np.linspace(0.02, 12.0, 6000)
    below = stats.gamma.cdf(grid, a, scale=1 / shape[1])
    log_density = np.log(below).sum(axis=0) - shape[0] * np.log(grid) - grid**2 / 50
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    right = density @ grid
    sd = np.sqrt(density @ grid**2 - right**2)
    draws = idata.posterior["top"].values
    assert abs(draws.mean() - right) < 0.15 * sd
    assert abs(np.log(draws.std() / sd)) < 0.15
    above = stats.gamma.cdf(grid, a + 1, scale=1 / shape[1]) / below * a / shape[1]
    rates = idata.posterior["rate"].values.reshape(-1, shape[0])
    away = (rates.mean(axis=0) - above @ density) / rates.std(axis=0)
    assert np.abs(away).max() < 0.15


def chain_moments(
    alone: np.ndarray, between: np.ndarray, grid: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of a Markov chain of effects, by passes to and fro."""
    own, steps = np.exp(alone - alone.max(axis=1, keepdims=True)), np.exp(between)
    n = len(alone)
    forth, back = np.ones_like(own), np.ones_like(own)
    for k in range(1, n):
        forth[k] = steps @ (forth[k - 1] * own[k - 1])
        forth[k] /= forth[k].sum()
        back[n - 1 - k] = steps @ (back[n - k] * own[n - k])
        back[n - 1 - k] /= back[n - 1 - k].sum()
    density = forth * own * back
    density /= density.sum(axis=1, keepdims=True)
    mean = density @ grid
    return mean, np.sqrt(density @ grid**2 - mean**2)


@pytest.mark.parametrize("family", ["normal", "logistic"])
def test_a_fused_lasso_against_passes_along_the_chain(family: str) -> None:
    """Its kinks have no curvature, and tie 60 effects."""
    n_levels, n, rate = 60, 10, 5.0
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(n_levels), n)
    truth = np.where(group < n_levels // 2, 0.0, 1.0)
    with pm.Model() as model:
        u = pm.Normal("u", 0, 2, shape=n_levels)
        pm.Potential("fused", -rate * pt.sum(pt.abs(u[1:] - u[:-1])))
        if family == "normal":
            y = rng.normal(truth, 1.0)
            pm.Normal("y", u[group], 1.0, observed=y)
        else:
            y = rng.binomial(1, 1 / (1 + np.exp(-truth)))
            pm.Bernoulli("y", logit_p=u[group], observed=y)
    idata = sampled(model, draws=1500, tune=600)
    grid = np.linspace(-3.0, 4.0, 1401)
    total = np.bincount(group, y)[:, None]
    if family == "normal":
        rows = total * grid - n * grid**2 / 2
    else:
        rows = total * grid - n * np.logaddexp(0, grid)
    between = -rate * np.abs(grid[:, None] - grid)
    right, sd = chain_moments(rows - grid**2 / 8, between, grid)
    draws = idata.posterior["u"].values.reshape(-1, n_levels)
    away = (draws.mean(axis=0) - right) / sd
    assert np.sqrt(np.mean(away**2)) < 0.2
    assert np.abs(away).max() < 0.5
    ratio = draws.std(axis=0) / sd
    assert np.abs(np.log(ratio)).mean() < 0.15
