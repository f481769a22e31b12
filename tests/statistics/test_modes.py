"""Models with effects and several modes: each of them gets its share."""

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb

N, G = 4000, 20


def groups(seed: int = 5) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    """Draw groups and a predictor."""
    rng = np.random.default_rng(seed)
    return rng, rng.integers(0, G, N), rng.normal(size=N)


def shares(model: pm.Model, name: str, draws: int = 800) -> np.ndarray:
    """Return, by chain, how often a variable is negative."""
    with pytest.warns(UserWarning, match=rf"modes, which differ in .*{name}"):
        step = pmb.MinibatchMH(model=model)
    found = pm.sample(
        draws=draws,
        tune=200,
        chains=2,
        cores=1,
        step=step,
        model=model,
        random_seed=3,
        progressbar=False,
    )
    return found.posterior[name]


def test_both_signs_of_a_square():
    rng, g, x = groups()
    eta = (0.5 * rng.normal(size=G))[g] + 0.64 * x
    y = (rng.random(N) < 1 / (1 + np.exp(-eta))).astype(int)
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1)
        a = pm.Normal("a", 0, sd, shape=G)
        theta = pm.Normal("theta", 0.3, 1.0)
        pm.Bernoulli("y", logit_p=a[g] + theta**2 * x, observed=y)
    theta = shares(model, "theta").values
    right = (1 / (1 + np.exp(2 * 0.3 * np.abs(theta)))).mean()
    assert abs((theta < 0).mean() - right) < 0.08


def test_both_signs_of_a_factor_of_effects():
    """Sums say everything of the rows, and chains jump all the same, about once in 15 draws."""
    rng, g, _ = groups()
    y = rng.normal(size=G)[g] + rng.normal(size=N)
    with pm.Model() as model:
        w, z = pm.Normal("w", 0.5, 1), pm.Normal("z", shape=G)
        pm.Normal("y", w * z[g], 1.0, observed=y)
    w = shares(model, "w", draws=10_000).values
    right = (1 / (1 + np.exp(2 * 0.5 * np.abs(w)))).mean()
    assert abs((w < 0).mean() - right) < 0.08


def test_one_mode_is_searched_once():
    """Where nothing bends upwards no other search is made."""
    rng, g, x = groups()
    y = (rng.random(N) < 1 / (1 + np.exp(-0.5 * x))).astype(int)
    with pm.Model() as model:
        sd, b = pm.HalfNormal("sd", 1), pm.Normal("b", 0, 1)
        z = pm.Normal("z", shape=G)
        pm.Bernoulli("y", logit_p=b * x + (sd * z)[g], observed=y)
    step = pmb.MinibatchMH(model=model)
    assert "modes" not in step.choice


def test_outlying_predictors_do_not_lead_the_search_away():
    """Rows with sentinels cut the slope off at zero: a truncated normal distribution."""
    rng, g, x = groups(7)
    y = (rng.random(N) < 1 / (1 + np.exp(-(0.2 + 0.02 * x)))).astype(int)
    with pm.Model() as without:
        b, z = pm.Normal("b"), pm.Normal("z", shape=G)
        pm.Bernoulli("y", logit_p=b * x + 0.3 * z[g], observed=y)
    at = pmb.find_reference(without)
    mean, sd = float(at.mode["b"]), float(np.sqrt(at.covariance[0, 0]))
    sign = int(mean > 0)
    g1, x1, y1 = np.r_[g, 0, 1], np.r_[x, 99_999.0, 88_888.0], np.r_[y, sign, sign]
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 0.3)
        b, z = pm.Normal("b"), pm.Normal("z", shape=G)
        pm.Bernoulli("y", logit_p=b * x1 + (tau * z)[g1], observed=y1)
    step = pmb.MinibatchMH(model=model)
    found = pm.sample(
        draws=600,
        tune=300,
        chains=2,
        cores=1,
        step=step,
        model=model,
        random_seed=1,
        progressbar=False,
    )
    draws = found.posterior["b"].values * (2 * sign - 1)
    z = np.random.default_rng(0).normal(abs(mean), sd, 10**6)
    right = z[z > 0]
    assert abs(draws.mean() - right.mean()) < 0.25 * right.std()
    assert draws.min() > -1e-3


def test_amplitude_and_phase_without_groups():
    """The modes of a model without effects get their shares as well."""
    rng, _, _ = groups()
    t = rng.uniform(0, 2 * np.pi, N)
    y = 0.8 * np.cos(t - 1.0) + rng.normal(size=N)
    with pm.Model() as model:
        size, phase = pm.Normal("size", 0.3, 1), pm.Normal("phase", 1.0, 2.0)
        pm.Normal("y", size * pm.math.cos(t - phase), 1.0, observed=y)
    found = shares(model, "size").values
    turns = 2 * np.pi * np.arange(-3, 4)
    plus = np.exp(-0.5 * (0.8 - 0.3) ** 2) * np.exp(-(turns**2) / 8).sum()
    minus = np.exp(-0.5 * (0.8 + 0.3) ** 2) * np.exp(-((np.pi + turns) ** 2) / 8).sum()
    assert abs((found < 0).mean() - minus / (plus + minus)) < 0.08


@pytest.mark.parametrize("label", [0, 1])
def test_chains_far_from_the_mode_of_their_label_jump(label):
    """Moves may carry a chain past zero: it stayed there for hundreds of draws."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=1000)
    y = 0.3 * x + rng.normal(size=1000)
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.2, 1.0)
        pm.Normal("y", theta**2 * x, 1.0, observed=y)
    with pytest.warns(UserWarning, match="modes"):
        latent = pmb.MinibatchMH(model=model).latent
    state, point = latent.initial_state(), np.array([0.5])
    state[0][0] = label  # of either mode, so once of the other
    signs = []
    for _ in range(300):
        latent.draw(rng, point, 1, False, state)
        signs.append(point[0] > 0)
    right = 1 / (1 + np.exp(-2 * 0.2 * 0.508))
    assert abs(np.mean(signs) - right) < 0.15
    assert np.sum(np.diff(signs)) > 40
