"""Posteriors whose tail is that of the prior: chains reach it."""

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.heavy import heavy_axes


def separated(prior: str, n: int = 4000, ones: int = 20) -> pm.Model:
    """A rare category whose rows are all ones, and an intercept."""
    y = np.r_[np.ones(ones), np.tile([0, 1], (n - ones) // 2)].astype(int)
    d = (np.arange(n) < ones).astype(float)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        kinds = {
            "cauchy": lambda: pm.Cauchy("c", 0, 2.5),
            "student": lambda: pm.StudentT("c", nu=2, mu=0, sigma=2.0),
        }
        pm.Bernoulli("y", logit_p=a + kinds[prior]() * d, observed=y)
    return model


@pytest.mark.parametrize("prior", ["cauchy", "student"])
def test_axes_with_a_heavy_tail_are_found(prior):
    tall = pmb.TallModel(separated(prior))
    control = ControlVariate(pmb.find_reference(data=tall, model=tall.model), 2, 1.0)
    assert heavy_axes(tall, control).tolist() == [1]


@pytest.mark.parametrize("prior", ["cauchy", "student"])
def test_quantiles_of_a_separated_coefficient(prior):
    model = separated(prior)
    found = pm.sample(
        draws=2500,
        tune=500,
        chains=2,
        cores=1,
        step=pmb.MinibatchMH(model=model),
        model=model,
        random_seed=2,
        progressbar=False,
    )
    draws = found.posterior["c"].values
    assert np.abs(draws).max() < 1e7
    grid = np.sinh(np.linspace(-2, 12, 100_001))
    power, scale = {"cauchy": (2.0, 2.5**2), "student": (3.0, 2 * 2.0**2)}[prior]
    log_density = -power / 2 * np.log1p(grid**2 / scale) + 0.5 * np.log1p(grid**2)
    log_density -= 20 * np.logaddexp(0, -grid)
    cdf = np.cumsum(np.exp(log_density - log_density.max()))
    for p in (0.25, 0.5, 0.75, 0.95):
        quantile = grid[np.searchsorted(cdf, p * cdf[-1])]
        assert abs((draws < quantile).mean() - p) < 0.25 * min(p, 1 - p) + 0.02


def test_quantiles_of_separated_levels():
    """Of 60 levels with ν = 1.5, whose posteriors are independent, ten have rows of one kind."""
    n_levels, n, nu = 60, 12, 1.5
    rng = np.random.default_rng(4)
    group = np.repeat(np.arange(n_levels), n)
    y = rng.binomial(1, 0.5, group.size)
    y[group < 5], y[(group >= 5) & (group < 10)] = 1, 0
    with pm.Model() as model:
        u = pm.StudentT("u", nu=nu, mu=0, sigma=1.0, shape=n_levels)
        pm.Bernoulli("y", logit_p=u[group], observed=y)
    found = pm.sample(
        draws=2000,
        tune=400,
        chains=2,
        cores=1,
        step=pmb.MinibatchMH(model=model),
        model=model,
        random_seed=2,
        progressbar=False,
    )
    draws = found.posterior["u"].values
    grid = np.sinh(np.linspace(-10, 10, 50_001))
    log_prior = -(nu + 1) / 2 * np.log1p(grid**2 / nu) + 0.5 * np.log1p(grid**2)
    for sign, levels in ((1, range(5)), (-1, range(5, 10))):
        log_density = log_prior - n * np.logaddexp(0, -grid)
        cdf = np.cumsum(np.exp(log_density - log_density.max()))
        for p in (0.25, 0.5, 0.75, 0.95):
            quantile = grid[np.searchsorted(cdf, p * cdf[-1])]
            below = (sign * draws[..., levels] < quantile).mean()
            assert abs(below - p) < 0.2 * min(p, 1 - p) + 0.01
