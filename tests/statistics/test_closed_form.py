"""Draws against posteriors known in closed form, where decisions rest on a part of the rows.

The mean of normal rows with known standard deviations has a normal posterior, at any temperature.
The prior, which is not tempered, and the data have about the same weight.
"""

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb

SD_ROWS = np.array([1.0, 2.0, 0.5])
TRUE_MEAN = np.array([0.5, -3.0, 0.0])
Z_MAX = 4.8
"""Passed by one of 12 comparisons in less than one run in 10^4."""


def simulate(n_rows, prior_weight, temperature):
    """Return rows, and the mean and standard deviations of a prior as informative as the data."""
    y = np.random.default_rng(3).normal(TRUE_MEAN, SD_ROWS, (n_rows, 3))
    prior_sd = SD_ROWS * np.sqrt(temperature / n_rows / prior_weight)
    return y, TRUE_MEAN + 2 * prior_sd, prior_sd


def posterior(y, prior_mean, prior_sd, temperature):
    """Return posterior means and standard deviations."""
    from_prior, from_rows = prior_sd**-2, len(y) / (temperature * SD_ROWS**2)
    precision = from_prior + from_rows
    mean = (from_prior * prior_mean + from_rows * y.mean(axis=0)) / precision
    return mean, precision**-0.5


def sample(y, prior_mean, prior_sd, draws, tune, **options):
    with pm.Model():
        mu = pm.Normal("mu", prior_mean, prior_sd, shape=3)
        pm.Normal("y", mu, SD_ROWS, observed=y)
        return pm.sample(
            draws=draws,
            tune=tune,
            chains=2,
            cores=2,
            step=pmb.MinibatchMH(control_variate=0, **options),
            random_seed=5,
            progressbar=False,
            compute_convergence_checks=False,
        )


def assert_moments(draws, mean, sd):
    """Compare within the Monte Carlo error, which must be small."""
    mcse = az.mcse(draws).mu.values
    mcse_sd = az.mcse(draws, method="sd").mu.values
    assert (mcse < 0.02 * sd).all()
    assert (mcse_sd < 0.015 * sd).all()
    values = draws.mu.values.reshape(-1, 3)
    assert (abs(values.mean(axis=0) - mean) < Z_MAX * mcse).all()
    assert (abs(values.std(axis=0) - sd) < Z_MAX * mcse_sd).all()


@pytest.mark.slow
def test_high_temperature():
    """Full-size steps, adapted, at a temperature at which they need few of the rows."""
    temperature = 1000.0
    data = simulate(100_000, 1.0, temperature)
    idata = sample(
        *data, draws=10_000, tune=300, batch_size=400, temperature=temperature, steps_per_draw=20
    )
    assert idata.sample_stats.batch_size.mean() < 1300
    assert 0.2 < idata.sample_stats.log_ratio_var.mean() < 0.9
    assert_moments(idata.posterior, *posterior(*data, temperature))


@pytest.mark.slow
def test_small_steps():
    """Temperature 1 and fixed small steps, which need a third of the rows."""
    data = simulate(2000, 1.0, 1.0)
    mean, sd = posterior(*data, 1.0)
    idata = sample(
        *data,
        draws=10_000,
        tune=50,
        acceptance=pmb.CorrectedBarker(sigma=1.0, test_error=None),
        proposal=pmb.RandomWalk(cov=0.2 * sd**2, adapt=False),
        batch_size=700,
        steps_per_draw=40,
    )
    assert idata.sample_stats.batch_size.mean() < 0.6 * len(data[0])
    assert 0.2 < idata.sample_stats.log_ratio_var.mean() < 0.9
    assert_moments(idata.posterior, mean, sd)
