"""Each step samples the same posterior whatever the units of the outcome and of a predictor are."""

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb

N = 500
RNG = np.random.default_rng(1)
X = RNG.normal(size=N)
Y = 2.5 + 0.4 * X + RNG.normal(size=N)
DESIGN = np.column_stack([np.ones(N), X])
COVARIANCE = np.linalg.inv(DESIGN.T @ DESIGN + np.eye(2) / 100)
MEAN, SD = COVARIANCE @ (DESIGN.T @ Y), np.sqrt(np.diag(COVARIANCE))

UNITS = [(9, 0), (-7, 5), (0, -9)]
"""Powers of ten, of the outcome and of the predictor."""


def _model(of_outcome: float, of_predictor: float) -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0, 10 * of_outcome)
        b = pm.Normal("b", 0, 10 * of_outcome / of_predictor)
        mu = a + b * (X * of_predictor)
        pm.Normal("y", mu, of_outcome, observed=Y * of_outcome)
    return model


@pytest.mark.parametrize(("of_outcome", "of_predictor"), UNITS)
@pytest.mark.parametrize(
    "make", [pmb.MinibatchMH, pmb.FlyMC, pmb.SGFS, pmb.SGLD, pmb.SGHMC, pmb.SGNHT]
)
def test_units_change_no_posterior(make, of_outcome, of_predictor):
    u, v = 10.0**of_outcome, 10.0**of_predictor
    with _model(u, v):
        idata = pm.sample(
            1500,
            tune=500,
            chains=1,
            cores=1,
            step=make(),
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    posterior = idata.posterior
    draws = np.array([posterior["a"].values[0] / u, posterior["b"].values[0] * v / u])
    assert np.abs((draws.mean(axis=1) - MEAN) / SD).max() < 0.4  # at least 200 effective draws
    assert np.abs(np.log(draws.std(axis=1) / SD)).max() < 0.3


@pytest.mark.parametrize(("of_outcome", "of_predictor"), UNITS)
def test_units_change_no_expectation(of_outcome, of_predictor):
    u, v = 10.0**of_outcome, 10.0**of_predictor
    with _model(u, v):
        result = pmb.multilevel_sgld(["a", "b"], rtol=0.1, random_seed=1)
    assert result.converged
    mean = result.estimate.sel(moment="mean")
    means = np.array([float(mean["a"]) / u, float(mean["b"]) * v / u])
    assert np.abs((means - MEAN) / SD).max() < 0.5  # five times the error that is asked for
