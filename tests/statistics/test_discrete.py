"""Beside discrete variables that rows do not read, few rows decide about the continuous ones."""

from itertools import product

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.special import logsumexp

import pymc_minibatch as pmb

N_ROWS = 20_000
SPIKE, SLAB, INCLUDED = 0.02, 0.5, 0.3
Z_MAX = 4.5


def spike_and_slab():
    """Return a model, and means and standard deviations of its parameters by enumeration.

    Given the indicators and sigma the coefficients are normal; sigma is summed over a grid.
    """
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N_ROWS, 3))
    X[:, 1] += 0.7 * X[:, 0]
    y = X @ [0.4, 0.012, 0.03] + rng.normal(size=N_ROWS)
    with pm.Model() as model:
        included = pm.Bernoulli("included", INCLUDED, shape=3)
        beta = pm.Normal("beta", 0, pm.math.switch(included, SLAB, SPIKE))
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", X @ beta, sigma, observed=y)
    squares, products = X.T @ X, X.T @ y
    log_weights, values, variances = [], [], []
    grid = np.std(y - X @ np.linalg.solve(squares, products)) * np.linspace(0.97, 1.03, 61)
    for *indicators, sigma in product([0, 1], [0, 1], [0, 1], grid):
        chosen = np.array(indicators)
        sd = np.where(chosen, SLAB, SPIKE)
        precision = squares / sigma**2 + np.diag(sd**-2.0)
        mean = np.linalg.solve(precision, products / sigma**2)
        log_prior = np.log(np.where(chosen, INCLUDED, 1 - INCLUDED) / sd).sum() - sigma**2 / 2
        log_rows = -N_ROWS * np.log(sigma) - y @ y / (2 * sigma**2)
        log_rows += (products @ mean / sigma**2 - np.linalg.slogdet(precision)[1]) / 2
        log_weights.append(log_prior + log_rows)
        values.append([*mean, *chosen, sigma])
        variances.append([*np.diag(np.linalg.inv(precision)), 0, 0, 0, 0])
    weights = np.exp(log_weights - logsumexp(log_weights))
    mean = weights @ values
    sd = np.sqrt(weights @ (np.array(variances) + (values - mean) ** 2))
    return model, mean, sd


@pytest.mark.slow
def test_coefficients_beside_their_indicators():
    model, mean, sd = spike_and_slab()
    with model:
        step = pmb.MinibatchMH(["beta", "sigma"])
        others = pm.BinaryGibbsMetropolis([model["included"]])
        idata = pm.sample(
            1000,
            tune=300,
            step=[step, others],
            chains=2,
            cores=1,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    assert step.control_variate == 2
    assert idata["sample_stats"]["batch_size"].mean() < 0.03 * N_ROWS
    posterior = idata["posterior"]
    draws = [posterior["beta"], posterior["included"], posterior["sigma"].expand_dims("one", -1)]
    draws = np.concatenate([values.values for values in draws], axis=-1)
    for i in np.flatnonzero(sd > 1e-3):
        error = sd[i] / np.sqrt(float(az.ess(draws[..., i])))
        assert error < 0.1 * sd[i]
        assert abs(draws[..., i].mean() - mean[i]) < Z_MAX * error
        assert draws[..., i].std() == pytest.approx(sd[i], rel=0.2)
