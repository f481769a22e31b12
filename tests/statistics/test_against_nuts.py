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
    """Sample two chains; return the draws, shape (chains, draws, coefficients)."""
    idata = pm.sample(
        chains=2,
        cores=2,
        random_seed=7,
        progressbar=False,
        compute_convergence_checks=False,
        **options,
    )
    return idata.posterior


@pytest.mark.slow
def test_logistic_regression():
    with build_model():
        nuts = sample(draws=8000, tune=300, target_accept=0.6)
        minibatch = sample(draws=6000, tune=300, step=pmb.MinibatchMH(steps_per_draw=20))
    sd = nuts.beta.std(("chain", "draw")).values
    mcse_mean = np.hypot(*[az.mcse(draws).beta.values for draws in (nuts, minibatch)])
    mcse_sd = np.hypot(*[az.mcse(draws, method="sd").beta.values for draws in (nuts, minibatch)])
    assert (4 * mcse_mean < MEAN_BAR * sd).all()
    assert (4 * mcse_sd < SD_BAR * sd).all()
    means = [draws.beta.mean(("chain", "draw")).values for draws in (nuts, minibatch)]
    assert (abs(means[1] - means[0]) < MEAN_BAR * sd).all()
    assert (abs(minibatch.beta.std(("chain", "draw")).values / sd - 1) < SD_BAR).all()
