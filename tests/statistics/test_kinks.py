"""Draws from posteriors of rows with kinks, against quadrature."""

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb

N_ROWS = 5000
Q = 0.2
Z_MAX = 4.5


@pytest.mark.slow
@pytest.mark.filterwarnings("error::UserWarning:pymc_minibatch")
def test_a_quantile():
    """The posterior of a quantile of 5000 numbers is piecewise exponential, and known on a grid."""
    y = np.random.default_rng(1).gamma(2.0, size=N_ROWS)
    with pm.Model():
        mu = pm.Normal("mu", 0, 10)
        pm.AsymmetricLaplace("y", q=Q, mu=mu, b=1.0, observed=y)
        idata = pm.sample(
            3000,
            tune=500,
            chains=2,
            cores=1,
            step=pmb.MinibatchMH(),
            random_seed=2,
            progressbar=False,
            compute_convergence_checks=False,
        )
    draws = idata.posterior["mu"].values
    grid = np.linspace(draws.min() - 0.1, draws.max() + 0.1, 4001)
    residual = y[:, None] - grid
    loss = np.where(residual > 0, Q * residual, (Q - 1) * residual).sum(0)
    log_p = -loss / np.sqrt(Q * (1 - Q)) - grid**2 / 200
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = p @ grid
    sd = np.sqrt(p @ (grid - mean) ** 2)
    error = sd / np.sqrt(float(az.ess(draws)))
    assert error < 0.03 * sd
    assert abs(draws.mean() - mean) < Z_MAX * error
    assert abs(draws.std() - sd) < Z_MAX * float(az.mcse(draws, method="sd"))
    assert float(idata.sample_stats["batch_size"].mean()) < N_ROWS / 4
