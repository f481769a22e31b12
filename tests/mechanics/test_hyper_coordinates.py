"""Factors of covariances: coordinates in which they have a mode, and trajectories along them."""

import numpy as np
import pymc as pm
import pytest

from pymc_minibatch.latent.choose import make_latent_sampler
from pymc_minibatch.latent.moves.centered_trajectory import CenteredTrajectory
from pymc_minibatch.latent.moves.decisions import MoveCounts
from pymc_minibatch.latent.moves.scan import step
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.tall import TallModel

SDS = np.array([0.6, 0.015, 0.4])
"""Of effects: of an intercept, of a price of 100 to 250, and of an attribute."""


DIAGONAL = [0, 2, 5]
"""Of a factor of three rows, in the vector of its entries."""

LONG = 0.7
"""Radians of the steps of trajectories, a fifth or so of which is rejected then."""


def choices(groups: int, rows: int = 20) -> pm.Model:
    """Correlated slopes of raw units: those of the price are hundred times smaller than others."""
    rng = np.random.default_rng(11)
    group = np.repeat(np.arange(groups), rows)
    columns = np.ones(group.size), rng.choice([99.0, 149.0, 249.0], group.size)
    X = np.stack([*columns, rng.integers(0, 2, group.size)], axis=1)
    effects = [1.0, -0.01, 0.5] + SDS * rng.normal(size=(groups, 3))
    y = rng.random(group.size) < 1 / (1 + np.exp(-np.sum(X * effects[group], axis=1)))
    with pm.Model() as model:
        scale = np.array([1.0, 0.05, 1.0])
        chol, *_ = pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=pm.HalfNormal.dist(scale, shape=3))
        mean = pm.Normal("mean", 0, scale, shape=3)
        beta = pm.MvNormal("beta", mean, chol=chol, shape=(groups, 3))
        pm.Bernoulli("y", logit_p=pm.math.sum(X * beta[group], axis=1), observed=y.astype(int))
    return model


def sampler_of(model: pm.Model) -> LatentSampler:
    return make_latent_sampler(TallModel(model), None, 1.0)


@pytest.fixture(scope="module")
def sampler() -> LatentSampler:
    return sampler_of(choices(200))


def test_rows_of_the_factor_are_in_units_of_their_diagonal(sampler: LatentSampler) -> None:
    coordinates = sampler.field.hyper_coordinates
    packed = np.array([0.3, -0.8, -1.1, 0.4, 2.0, -0.5])  # rows of one, two and three entries
    expected = [0.3, -0.8 * np.exp(1.1), -1.1, 0.4 * np.exp(0.5), 2.0 * np.exp(0.5), -0.5]
    v = coordinates.from_hyper(packed)
    np.testing.assert_allclose(v, expected)
    np.testing.assert_allclose(coordinates.to_hyper(v), packed)
    jacobian = np.array(
        [
            (coordinates.to_hyper(v + by) - coordinates.to_hyper(v - by)) / 2e-6
            for by in 1e-6 * np.eye(6)
        ]
    ).T
    assert coordinates.log_slope(v) == pytest.approx(np.linalg.slogdet(jacobian)[1], abs=1e-6)
    root = np.linalg.cholesky(np.cov(np.random.default_rng(3).normal(size=(6, 9))))
    there = coordinates.cholesky_of_hyper(v, root)
    np.testing.assert_allclose(there @ there.T, jacobian @ root @ root.T @ jacobian.T, rtol=1e-5)
    np.testing.assert_allclose(coordinates.cholesky_from_hyper(v, there), root, rtol=1e-9)


def test_the_mode_has_the_scale_of_effects(sampler: LatentSampler) -> None:
    """The log-density rises without end where three standard deviations go to zero together."""
    packed = sampler.reference.hyper
    rows = np.zeros((3, 3))
    rows[np.tril_indices(3)] = packed
    rows[np.diag_indices(3)] = np.exp(np.diagonal(rows))
    found = np.linalg.norm(rows, axis=1) / SDS
    assert np.all((found > 0.5) & (found < 1.6))


def test_a_trajectory_keeps_what_the_prior_says() -> None:
    """Draws of the prior stay draws of the prior, whatever the effects are."""
    model, n = choices(8, rows=5), 1500
    sampler, rng = sampler_of(model), np.random.default_rng(5)
    moves, state = sampler.moves, sampler.initial_state()
    move = moves.by_name["centered trajectory"]
    assert isinstance(move, CenteredTrajectory)
    assert move.positions.size == 9  # the factor, and means that no row reads
    state.tuners[move.name].log_angle[:] = np.log(LONG)
    run = moves.run(sampler.settings(state, tuning=False), MoveCounts())
    packed, *others = pm.draw([model["chol"], model["mean"], model["beta"]], n, random_seed=7)
    packed[:, DIAGONAL] = np.log(packed[:, DIAGONAL])
    names = "chol_cholesky-cov-packed__", "mean", "beta"
    before, after = [], []
    for values in zip(packed, *others, strict=True):
        point = sampler.tall.layout.flatten(dict(zip(names, values, strict=True)))
        made = moves.state_at(sampler.coordinates.from_model(point))
        for _ in range(3):
            made = step(rng, move, made, None, run)
        before.append(point[move.positions])
        after.append(sampler.coordinates.to_model(made.point)[move.positions])
    change = statistics(np.array(after)) - statistics(np.array(before))
    assert 0.4 < np.mean(run.counts.accepted[move.name]) < 0.95
    z = change.mean(axis=0) / (change.std(axis=0) / np.sqrt(n))
    assert np.abs(z).max() < 5.0


def statistics(hyper: np.ndarray) -> np.ndarray:
    """What is averaged: of logs and shares of the factor, and of means in their prior units."""
    packed, mean = hyper[:, :6], hyper[:, 6:] / [1.0, 0.05, 1.0]
    logs = packed[:, DIAGONAL]
    shares = np.arctan(packed[:, [1, 3, 4]] / np.exp(logs[:, [1, 2, 2]]))
    columns = np.hstack([logs, shares, mean])
    return np.hstack([columns, columns**2, np.abs(mean) / np.exp(logs / 2)])
