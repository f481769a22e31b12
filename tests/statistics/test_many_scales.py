"""A scale of its own for each of many coefficients, as in shrinkage priors."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import expit

import pymc_minibatch as pmb
from pymc_minibatch.latent.choose import make_latent_sampler
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.latent.recognition import MOST_HYPER
from pymc_minibatch.tall import TallModel

Z_MAX = 4.5
"""For 35 numbers."""


def test_shrunken_coefficients():
    """Against NUTS; hyperparameters are too many to move all of them at once."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(2000, MOST_HYPER + 1))
    y = X[:, :4] @ [1.0, -0.5, 0.2, 0.1] + rng.normal(size=2000)
    with pm.Model():
        tau = pm.HalfNormal("tau", 0.3)
        local = pm.HalfNormal("local", 1, shape=X.shape[1])
        z = pm.Normal("z", 0, 1, shape=X.shape[1])
        beta = pm.Deterministic("beta", z * local * tau)
        pm.Deterministic("log_local", pt.log(local).mean())
        pm.Normal("y", X @ beta, 1, observed=y)
        step = pmb.MinibatchMH()
        assert step.latent is not None
        settings = {"chains": 2, "cores": 1, "progressbar": False, "random_seed": 2}
        ours = pm.sample(2000, tune=1000, step=step, compute_convergence_checks=False, **settings)
        theirs = pm.sample(1000, tune=1000, target_accept=0.9, **settings)
    for name in ("beta", "tau", "log_local"):
        means, errors = [], []
        for idata in (ours, theirs):
            means.append(idata.posterior[name].mean(("chain", "draw")).values)
            errors.append(az.mcse(idata, var_names=[name])[name].values)
        sd = theirs.posterior[name].std(("chain", "draw")).values
        error = np.hypot(*errors)
        assert (error < 0.3 * sd).all()
        assert (abs(means[0] - means[1]) < Z_MAX * error).all()


def test_factors_of_a_product_are_no_scales():
    """No change of the others makes up for that of many numbers of one factor."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(500, 8)), rng.normal(size=(500, 5))
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1)
        left, right = pm.Normal("left", 0, sd, shape=(8, 8)), pm.Normal("right", shape=(8, 5))
        pm.Normal("y", X @ (left @ right), 1, observed=y)
    with pytest.raises(NoFieldError, match=r"41 variables.*change how the others enter"):
        make_latent_sampler(pmb.TallModel(model), None, 1.0, by_size=True)


def test_what_multiplies_effects_is_expanded_at_its_mean() -> None:
    """The joint mode of abilities and discriminations makes these more than twice as large."""
    rng = np.random.default_rng(15)
    person, item = np.repeat(np.arange(400), 30), np.tile(np.arange(30), 400)
    ability, difficulty = rng.normal(size=400), rng.normal(size=30)
    discrimination = rng.lognormal(0, 0.3, 30)
    p = expit(discrimination[item] * (ability[person] - difficulty[item]))
    with pm.Model() as model:
        theta, b = pm.Normal("theta", shape=400), pm.Normal("b", 0, 1.5, shape=30)
        a = pm.LogNormal("a", 0, 0.5, shape=30)
        log_odds = a[item] * (theta[person] - b[item])
        pm.Bernoulli("y", logit_p=log_odds, observed=rng.random(p.size) < p)
    tall = TallModel(model)
    sampler = make_latent_sampler(tall, None, 1.0)
    center = sampler.field.derivatives.coordinates.to_model(sampler.reference.surrogate.center)
    error = center[tall.layout.slices["a_log__"]] - np.log(discrimination)
    assert abs(error.mean()) < 0.15
    assert error.std() < 0.25
    draws, point, state = [], center.copy(), sampler.initial_state()
    for _ in range(300):
        sampler.draw(rng, point, 1, True, state)
        draws.append(point[tall.layout.slices["a_log__"]].mean())
    assert np.mean(draws[100:]) == pytest.approx(np.log(discrimination).mean(), abs=0.15)
