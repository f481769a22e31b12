"""The search for where rows are expanded, by averages of the rows over the field."""

import numpy as np
import pymc as pm

import pymc_minibatch as pmb


def test_what_multiplies_effects_of_two_factors_is_found():
    """At the joint mode the scale of the product is far too large, and effects far too small."""
    rng, scale = np.random.default_rng(3), 0.4
    of_user, of_film = rng.normal(size=240), np.exp(0.4 * rng.normal(size=50))
    user, film = rng.integers(0, 240, 4000), rng.integers(0, 50, 4000)
    level = 0.3 * rng.normal(size=240)[user] + 0.3 * rng.normal(size=50)[film]
    y = level + scale * of_film[film] * of_user[user] + 0.8 * rng.normal(size=4000)
    with pm.Model():
        a = pm.Normal("a", 0, pm.HalfNormal("sd_a", 1), shape=240)
        b = pm.Normal("b", 0, pm.HalfNormal("sd_b", 1), shape=50)
        taste = pm.HalfNormal("scale", 0.5) * pm.Normal("taste", shape=240)[user]
        predictor = a[user] + b[film] + taste * pm.LogNormal("film", 0, 0.4, shape=50)[film]
        pm.Normal("y", predictor, pm.HalfNormal("sigma", 1), observed=y)
        step = pmb.MinibatchMH()
    center = step.latent.coordinates.to_model(step.latent.reference.surrogate.center)
    found = step.tall.layout.unflatten(center)["scale_log__"]
    assert abs(found - np.log(scale)) < 0.8


def test_a_narrow_mode_is_left():
    """At the joint mode skewness is infinite but for its prior, and rows fit half-normals."""
    rng = np.random.default_rng(4)
    group = np.repeat(np.arange(1000), rng.integers(1, 9, 1000))
    x = rng.normal(size=group.size)
    noise = 0.3 * np.abs(rng.normal(size=group.size)) + 0.2 * rng.normal(size=group.size)
    y = 1.0 + 0.1 * x + 0.4 * rng.normal(size=1000)[group] + noise
    with pm.Model():
        mean = pm.Normal("mean", 0, 3) + pm.Normal("slope") * x
        effect = pm.Normal("effect", 0, pm.HalfNormal("sd", 1), shape=1000)
        skewness = pm.Normal("skewness", 0, 3)
        sigma = pm.HalfNormal("sigma", 1)
        pm.SkewNormal("y", alpha=skewness, mu=mean + effect[group], sigma=sigma, observed=y)
        step = pmb.MinibatchMH()
    center = step.latent.coordinates.to_model(step.latent.reference.surrogate.center)
    assert 0.5 < step.tall.layout.unflatten(center)["skewness"] < 3.0
