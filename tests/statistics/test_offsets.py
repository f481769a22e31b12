"""Outcomes far from zero in units of their spread: dates, altitudes, amounts of money."""

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb

N = 12_000

OUTCOMES = {
    "altitudes in m": (3e4, 5.0),
    "Julian dates": (2_459_000.0, 50.0),
    "seconds since 1970": (1.6e9, 1e5),
}


def posterior_of(offset: float, spread: float) -> tuple[pm.Model, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=N)
    y = offset + spread * (0.3 * x + rng.normal(size=N))
    design = np.column_stack([np.ones(N), x])
    mean = np.linalg.lstsq(design, y - offset, rcond=None)[0]
    sd = spread * np.sqrt(np.diag(np.linalg.inv(design.T @ design)))
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 10 * offset), pm.Normal("b", 0, 10 * offset)
        pm.Normal("y", a + b * x, pm.HalfNormal("sigma", 2 * spread), observed=y)
    return model, mean + np.array([offset, 0.0]), sd


@pytest.mark.parametrize("of", OUTCOMES)
@pytest.mark.parametrize("method", ["minibatch", "sghmc", "sgnht"])
def test_an_offset_of_the_outcome_changes_nothing(of: str, method: str):
    model, mean, sd = posterior_of(*OUTCOMES[of])
    idata = pmb.sample(model, 500, 500, 2, method=method, random_seed=1, progressbar=False)
    for k, name in enumerate("ab"):
        draws = idata.posterior[name].values
        assert abs(draws.mean() - mean[k]) < 0.5 * sd[k]
        assert 0.75 < draws.std() / sd[k] < 1.35
    assert abs(float(idata.posterior["sigma"].mean()) / OUTCOMES[of][1] - 1) < 0.05


@pytest.mark.parametrize("offset", [1e4, 1e6, 1e8])
def test_the_mode_of_a_parabola_far_away_is_found(offset: float):
    y = offset + np.random.default_rng(2).normal(size=N)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a", 0, 10 * offset), 1.0, observed=y)
    found = pmb.find_reference(model, progressbar=False)
    assert abs(float(found.mode["a"]) - y.mean()) < 1e-3 / np.sqrt(N)
