"""Logistic regression with the default settings against NUTS on the same model."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.special import expit

import pymc_minibatch as pmb

N_ROWS, N_COEFFICIENTS = 20_000, 10
MEAN_BAR, SD_BAR = 0.1, 0.05
"""Differences allowed, in posterior standard deviations."""


def build_model():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(N_ROWS, N_COEFFICIENTS))
    X[:, 0] = 1.0
    beta = rng.normal(0.0, 0.7, N_COEFFICIENTS)
    y = rng.binomial(1, expit(X @ beta))
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=N_COEFFICIENTS)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y)
    return model


def sample(**options):
    """Sample two chains."""
    return pm.sample(
        chains=2,
        cores=2,
        random_seed=7,
        progressbar=False,
        compute_convergence_checks=False,
        **options,
    )


def moments(draws):
    """Return mean and standard deviation of each coefficient, and their Monte Carlo errors."""
    mean, sd = draws.beta.mean(("chain", "draw")), draws.beta.std(("chain", "draw"))
    errors = az.mcse(draws).beta.values, az.mcse(draws, method="sd").beta.values
    return mean.values, sd.values, *errors


@pytest.mark.slow
def test_logistic_regression():
    """The chains are long enough for the bars to be four Monte Carlo errors."""
    with build_model():
        nuts = sample(draws=6000, tune=300, target_accept=0.6, nuts_sampler="pymc")
        minibatch = sample(draws=12_000, tune=300, step=pmb.MinibatchMH(steps_per_draw=20))
    assert minibatch.sample_stats.batch_size.mean() < 0.05 * N_ROWS
    exact_mean, exact_sd, *exact_errors = moments(nuts.posterior)
    mean, sd, *errors = moments(minibatch.posterior)
    mean_error, sd_error = np.hypot(exact_errors, errors)
    assert (4 * mean_error < MEAN_BAR * exact_sd).all()
    assert (4 * sd_error < SD_BAR * exact_sd).all()
    assert (abs(mean - exact_mean) < MEAN_BAR * exact_sd).all()
    assert (abs(sd - exact_sd) < SD_BAR * exact_sd).all()
