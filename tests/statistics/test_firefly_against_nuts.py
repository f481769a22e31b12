"""Firefly draws of three regressions with the default settings against NUTS on the same model."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import expit

import pymc_minibatch as pmb

N_ROWS, N_COVARIATES = 1500, 3
MEAN_BAR = 4.9
"""Monte Carlo errors allowed; one of 13 means is off by more in 80,000 runs."""

SD_BAR, SD_ERRORS = 0.05, 4.3
"""Largest relative difference of standard deviations, and how many errors it is at least."""


def logistic(X, rng):
    beta = pm.Normal("beta", shape=N_COVARIATES)
    y = rng.binomial(1, expit(X @ [0.5, -1.0, 0.7]))
    pm.Bernoulli("y", logit_p=X @ beta, observed=y)


def softmax(X, rng):
    """Three classes; the log-odds are relative to the first."""
    beta = pm.Normal("beta", shape=(N_COVARIATES, 2))
    truth = np.array([[0.0, 0.5, -0.5], [0.0, 1.0, 0.3], [0.0, -0.4, 0.8]])
    y = (X @ truth + rng.gumbel(size=(N_ROWS, 3))).argmax(axis=1)
    eta = pt.concatenate([pt.zeros((N_ROWS, 1)), X @ beta], axis=1)
    pm.Categorical("y", logit_p=eta, observed=y)


def student_t(X, rng):
    """The scale is unknown, too."""
    beta, sigma = pm.Normal("beta", shape=N_COVARIATES), pm.HalfNormal("sigma")
    y = X @ [0.5, -1.0, 0.7] + 0.6 * rng.standard_t(4, N_ROWS)
    pm.StudentT("y", nu=4, mu=X @ beta, sigma=sigma, observed=y)


def sample(draws, **options):
    return pm.sample(
        draws=draws,
        tune=500,
        chains=2,
        cores=2,
        random_seed=11,
        progressbar=False,
        compute_convergence_checks=False,
        **options,
    )


def moments(result):
    """Return mean and standard deviation of each parameter, and their Monte Carlo errors."""
    dims, posterior = ("chain", "draw"), result.posterior
    parts = (
        posterior.mean(dims),
        posterior.std(dims),
        az.mcse(posterior),
        az.mcse(posterior, method="sd"),
    )
    return [
        np.concatenate([part[name].values.ravel() for name in posterior.data_vars])
        for part in parts
    ]


@pytest.mark.slow
@pytest.mark.parametrize("build", [logistic, softmax, student_t])
def test_moments(build):
    rng = np.random.default_rng(6)
    X = rng.normal(size=(N_ROWS, N_COVARIATES))
    X[:, 0] = 1.0
    with pm.Model():
        build(X, rng)
        nuts = sample(6_000, nuts_sampler="pymc")
        firefly = sample(6_000, step=pmb.FlyMC(steps_per_draw=24))
    assert 0 < firefly.sample_stats.n_bright.mean() < 0.02 * N_ROWS
    exact_mean, exact_sd, exact_mean_error, exact_sd_error = moments(nuts)
    mean, sd, mean_error, sd_error = moments(firefly)
    assert (abs(mean - exact_mean) < MEAN_BAR * np.hypot(exact_mean_error, mean_error)).all()
    assert (SD_ERRORS * np.hypot(exact_sd_error, sd_error) < SD_BAR * exact_sd).all()
    assert (abs(sd - exact_sd) < SD_BAR * exact_sd).all()
