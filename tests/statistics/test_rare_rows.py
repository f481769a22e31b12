"""Coefficients that few rows tell are right, from few rows for each decision."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.special import expit, logsumexp

import pymc_minibatch as pmb
from benchmarks.rare_rows import measure as measured
from benchmarks.rare_rows import poisson, separation

Z_MAX = 4.5


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", ["auto", "corrected_barker"])
def test_a_category_of_28_rows(acceptance):
    """Uniform batches of 100 rows put the coefficient a tenth of a standard deviation off."""
    found = measured(poisson(2), 3000, seed=1, acceptance=acceptance)
    assert found.noise < 0.03
    assert abs(found.error) < Z_MAX * found.noise
    assert found.rows < 500
    assert found.warnings == 0


@pytest.mark.slow
def test_a_chain_leaves_the_long_tail_of_a_dummy_that_separates():
    """One that stays there for hundreds of transitions has few effective draws, mostly."""
    found = measured(separation(1), 20_000, seed=2)
    assert found.test == "Exact"
    assert abs(found.error) < Z_MAX * found.noise
    assert found.ess > 5000
    assert found.warnings == 0


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "extreme"), [(1, 1e5), (3, 1e5), (3, 2e3)])
def test_one_extreme_predictor(seed, extreme):
    """Its row cuts the posterior off near zero, and is flat at most pairs of points.

    Uniform batches do not see it: the mean was a third of an sd off without a warning. With the
    second data set the mode lies where the row bends, and is many times narrower than the
    posterior; less extreme, the row would not keep the exact test from reading few rows.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=50_000)
    x[7] = 1e5
    y = (rng.random(x.size) < expit(np.clip(0.01 * x, -30, 30))).astype(int)
    x[7] = extreme
    slopes = np.linspace(-20 / extreme, 0.05, 800)
    a = np.log(y.mean() / (1 - y.mean()))  # the intercept is independent of the slope
    log_p = np.array([y @ (a + b * x) - np.logaddexp(0, a + b * x).sum() for b in slopes])
    log_p -= (slopes / 2.5) ** 2 / 2
    p = np.exp(log_p - logsumexp(log_p))
    mean = p @ slopes
    sd = np.sqrt(p @ (slopes - mean) ** 2)
    with pm.Model():
        eta = pm.Normal("a", 0, 2.5) + pm.Normal("b", 0, 2.5) * x
        pm.Bernoulli("y", logit_p=eta, observed=y)
        step = pmb.MinibatchMH()
        idata = pm.sample(
            2000, tune=500, step=step, chains=2, cores=1, random_seed=1, progressbar=False
        )
    assert step.rows == "size"
    draws = idata["posterior"]["b"].values
    ess = float(az.ess(draws))
    assert ess > 500
    assert abs(draws.mean() - mean) < Z_MAX * sd / np.sqrt(ess)
    assert draws.std() == pytest.approx(sd, rel=0.15)
