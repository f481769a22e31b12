"""Steps beside steps of PyMC that move what their variables depend on.

What belongs to other variables is read anew: an indicator that chooses between a narrow and a wide
prior. The truth is known by enumeration.
"""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_minibatch as pmb

X = np.random.default_rng(1).normal(size=200)
X *= np.sqrt(1.0 / (X @ X))
"""So that rows tell a coefficient as exactly as a single one with sd 1 would."""

Y = 1.2 * X + np.random.default_rng(2).normal(size=200)
Y += X * (1.2 - X @ Y)
"""The estimate by least squares is 1.2."""

SDS = np.array([0.1, 2.0])
OURS = [
    (pmb.MinibatchMH, {}),
    (pmb.FlyMC, {}),
    (pmb.SGFS, {"steps_per_draw": 20, "alpha": 3.0}),
    (pmb.SGLD, {"steps_per_draw": 100}),
    (pmb.SGHMC, {"steps_per_draw": 60}),
]


def sample(steps, draws=6000):
    return pm.sample(
        draws,
        tune=1000,
        chains=1,
        cores=1,
        step=steps,
        random_seed=2,
        progressbar=False,
        compute_convergence_checks=False,
    ).posterior


def assert_moments(draws, mean, sd, bias):
    """Mean and sd are right within Monte Carlo errors and a share of the sd."""
    for found, true, scale in ((draws, mean, sd), ((draws - mean) ** 2, sd**2, 2 * sd**2)):
        error = found.std() / np.sqrt(float(az.ess(found[None])))
        assert abs(found.mean() - true) < 4.5 * error + bias * scale


@pytest.mark.parametrize(("kind", "options"), OURS)
def test_an_indicator_chooses_the_prior(kind, options):
    variances = 1 / (1 + SDS**-2.0)
    means = variances * 1.2
    log_weights = -0.5 * np.log(1 + SDS**2) - 0.5 * 1.2**2 / (1 + SDS**2)
    weights = np.exp(log_weights) / np.exp(log_weights).sum()
    mean = weights @ means
    sd = np.sqrt(weights @ (variances + means**2) - mean**2)
    with pm.Model():
        k = pm.Bernoulli("k", 0.5)
        b = pm.Normal("b", 0, pt.as_tensor(SDS)[k])
        pm.Normal("y", X * b, 1.0, observed=Y)
        posterior = sample([kind([b], **options), pm.BinaryGibbsMetropolis([k])])
    exact = kind in (pmb.MinibatchMH, pmb.FlyMC)
    draws, indicators = posterior["b"].values.ravel(), posterior["k"].values.ravel()
    assert_moments(draws, mean, sd, 0.0 if exact else 0.15)
    assert_moments(
        indicators.astype(float), weights[1], np.sqrt(weights.prod()), 0.0 if exact else 0.1
    )
    narrow = draws[indicators == 0]
    assert 0.7 < narrow.std() / np.sqrt(variances[0]) < 1.4


def test_one_step_for_the_coefficients_and_one_for_the_scale():
    """Each step sets its bounds up for what it moves: nothing of the predictor, here."""
    rng = np.random.default_rng(3)
    y = 1.2 * X * np.sqrt(200) + 0.7 * rng.standard_t(4, size=200)
    with pm.Model() as model:
        b, s = pm.Normal("b", 0, 2), pm.LogNormal("s", 0, 0.5)
        pm.StudentT("y", nu=4, mu=b * X * np.sqrt(200), sigma=s, observed=y)
        with pytest.warns(UserWarning, match="which other steps move"):
            steps = [pmb.FlyMC([b]), pmb.FlyMC([s])]
        posterior = sample(steps, draws=4000)
    logp = model.compile_logp()
    b_grid, log_s = np.linspace(0.7, 1.7, 81), np.linspace(-0.9, 0.2, 81)
    density = np.array([[logp({"b": at, "s_log__": to}) for to in log_s] for at in b_grid])
    density = np.exp(density - density.max())
    density /= density.sum()
    for name, at, weights in (
        ("b", b_grid, density.sum(axis=1)),
        ("s", np.exp(log_s), density.sum(axis=0)),
    ):
        mean = weights @ at
        sd = np.sqrt(weights @ (at - mean) ** 2)
        assert_moments(posterior[name].values.ravel(), mean, sd, 0.01)
