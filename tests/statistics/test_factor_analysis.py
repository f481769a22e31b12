"""Factors, loadings and the scale of each item: where factors are on average these bend upwards."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.convergence import convergence
from pymc_minibatch.latent.locate import locate

PERSONS, ITEMS, DRAWS = 300, 6, 700
QUIET = {"cores": 1, "progressbar": False, "compute_convergence_checks": False}


def model() -> pm.Model:
    """Two correlated factors, by which three items each are explained."""
    rng = np.random.default_rng(2)
    factor, loadings = np.arange(ITEMS) // 3, rng.uniform(0.6, 1.3, ITEMS)
    scores = rng.multivariate_normal(np.zeros(2), [[1.0, 0.4], [0.4, 1.0]], PERSONS)
    answers = loadings * scores[:, factor] + 0.6 * rng.normal(size=(PERSONS, ITEMS))
    person, item = (each.ravel() for each in np.indices((PERSONS, ITEMS)))
    free = np.flatnonzero(np.arange(ITEMS) % 3)
    with pm.Model() as made:
        root, _, _ = pm.LKJCholeskyCov(
            "root", n=2, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=2), compute_corr=True
        )
        scores = pt.dot(pm.Normal("z", 0, 1, shape=(PERSONS, 2)), root.T)
        level = pm.Normal("level", 0, 1, shape=ITEMS)
        loading = pt.set_subtensor(
            pt.ones(ITEMS)[free], pm.Normal("loading", 1, 0.3, shape=free.size)
        )
        scale = pm.HalfNormal("scale", 1, shape=ITEMS)
        mean = level[item] + loading[item] * scores[person, factor[item]]
        pm.Normal("y", mean, scale[item], observed=answers.ravel())
    return made


@pytest.mark.slow
def test_confirmatory_factor_analysis() -> None:
    """Proposals have the average curvature of loadings and scales, and means agree with NUTS."""
    with model() as made:
        found = locate(pmb.TallModel(made), 1.0).reference
        assert found.surrogate.expansion.dense_shift is not None
        step = pmb.MinibatchMH()
        ours = pm.sample(DRAWS, tune=400, chains=2, step=step, random_seed=1, **QUIET)
        nuts = pm.sample(DRAWS, tune=800, chains=2, random_seed=2, **QUIET)
    for name in ("root", "level", "loading", "scale", "z"):
        draws = [each.posterior[name].values.reshape(2, DRAWS, -1) for each in (ours, nuts)]
        errors = [x.std(axis=(0, 1)) / np.sqrt(convergence(x).ess_bulk) for x in draws]
        away = np.abs(draws[0].mean(axis=(0, 1)) - draws[1].mean(axis=(0, 1)))
        assert np.all(away <= 5.5 * np.hypot(*errors)), name
        if name in ("root", "loading", "scale"):
            assert convergence(draws[0]).ess_bulk.min() > 100, name
