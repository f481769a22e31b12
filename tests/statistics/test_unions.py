"""Likelihoods of different lengths that share parameters, sampled, and their exact posterior."""

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.tall import observed


@pytest.fixture(autouse=True, scope="module")
def few():
    """Let short likelihoods be long enough to be joined."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observed, "FEW_ROWS", 1000)
        yield


def two_lengths():
    """Two normal likelihoods with an intercept each and a slope in common."""
    rng = np.random.default_rng(1)
    designs, seen = [], []
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=3)
        for k, (n, sd) in enumerate([(4000, 1.0), (1500, 0.5)]):
            x = rng.normal(size=n)
            y = k + 0.5 * x + sd * rng.normal(size=n)
            pm.Normal(f"y_{k}", theta[k] + theta[2] * x, sd, observed=y)
            design = np.zeros((n, 3))
            design[:, k], design[:, 2] = 1.0, x
            designs.append(design / sd)
            seen.append(y / sd)
    return model, np.concatenate(designs), np.concatenate(seen), np.eye(3)


def thirty_devices():
    """Thirty likelihoods in a loop: an effect each about a mean, and a slope in common."""
    rng = np.random.default_rng(2)
    designs, seen = [], []
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, np.r_[np.full(30, 0.5), 1.0], shape=31)
        for k in range(30):
            n = int(rng.integers(100, 300))
            x = rng.normal(size=n)
            y = 0.03 * k + 0.3 * x + rng.normal(size=n)
            pm.Normal(f"y_{k}", theta[k] + theta[30] * x, 1.0, observed=y)
            design = np.zeros((n, 31))
            design[:, k], design[:, 30] = 1.0, x
            designs.append(design)
            seen.append(y)
    prior = np.diag(np.r_[np.full(30, 4.0), 1.0])
    return model, np.concatenate(designs), np.concatenate(seen), prior


@pytest.mark.parametrize("make", [two_lengths, thirty_devices])
def test_joined_rows_are_sampled_rightly(make):
    model, design, seen, prior = make()
    precision = design.T @ design + prior
    mean, sd = (
        np.linalg.solve(precision, design.T @ seen),
        np.sqrt(np.diag(np.linalg.inv(precision))),
    )
    options = {"draws": 1500, "tune": 500, "chains": 2, "cores": 1, "progressbar": False}
    idata = pmb.sample(model, fallback="error", random_seed=3, **options)
    drawn = idata["posterior"]["theta"].values.reshape(-1, mean.size)
    assert np.abs((drawn.mean(axis=0) - mean) / sd).max() < 0.3
    assert np.abs(np.log(drawn.std(axis=0) / sd)).max() < 0.25
    assert (
        idata["sample_stats"]["n_rows"].min() > 5000
    )  # those of equal length have theirs together
