"""Angles on a line: the weights of their copies, and where these are part of the density."""

import numpy as np
import pymc as pm
import pytest

from pymc_minibatch.latent.angles import Angles
from pymc_minibatch.latent.choose import make_latent_sampler
from pymc_minibatch.latent.locate import locate
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.model_density import ModelDensity
from pymc_minibatch.witness.choose import moves_of
from pymc_minibatch.witness.effects import MovesOfEffects

G, N = 12, 600
RNG = np.random.default_rng(2)
GROUP, X = np.repeat(np.arange(G), N // G), RNG.uniform(-np.pi, np.pi, N)
Y = 0.5 * np.cos(X - 3.1) + RNG.normal(size=N)


def of_levels() -> pm.Model:
    """Few levels have angles of their own, and there is one that all rows read."""
    with pm.Model() as model:
        mean = pm.VonMises("mean", 0, 0.5)
        angle = pm.VonMises("angle", mean, 0.3, shape=G)
        shared = pm.VonMises("shared", 0, 0.3)
        eta = 0.5 * pm.math.cos(X - angle[GROUP]) + 0.3 * pm.math.sin(2 * X - shared)
        pm.Normal("y", eta + pm.Normal("b") * X, 1.0, observed=Y)
    return model


@pytest.fixture(scope="module")
def sampler() -> LatentSampler:
    return make_latent_sampler(TallModel(of_levels()), None, 1.0)


def angles_about(centers: np.ndarray) -> Angles:
    return Angles(np.arange(centers.size), centers)


def test_the_weights_of_all_copies_add_up_to_the_same() -> None:
    """So the angle keeps its law."""
    angles = angles_about(np.array([0.7]))
    copies = 2 * np.pi * np.arange(-4, 5)
    totals = [
        sum(np.exp(angles.log_weight(np.array([value + turn]))) for turn in copies)
        for value in np.linspace(-3, 5, 41)
    ]
    np.testing.assert_allclose(totals, totals[0], rtol=1e-12)


@pytest.mark.parametrize("away", [0.0, 1.0, 2.95, 3.1, 3.2, 3.5, -3.12, 3.1 + 4 * np.pi, -15.6])
def test_copies_are_drawn_in_proportion_to_their_weights(away: float) -> None:
    """Also from far away; and where a copy stays, all its digits do."""
    n_draws, center, turn = 20_000, 1.3, 2 * np.pi
    angles, value = angles_about(np.full(n_draws, center)), center + away
    point = np.append(np.full(n_draws, value), 0.25)
    angles.redraw_copies(np.random.default_rng(1), point)
    assert point[-1] == 0.25
    turns = np.rint((point[:-1] - value) / turn)
    assert np.all(point[:-1][turns == 0] == value)
    np.testing.assert_allclose(point[:-1], value + turn * turns, rtol=0, atol=1e-12)
    one = angles_about(np.array([center]))
    nearest = np.rint(-away / turn) + np.arange(-2, 3)
    weights = np.array([np.exp(one.log_weight(np.array([value + turn * k]))) for k in nearest])
    shares = weights / weights.sum()
    for k, share in zip(nearest, shares, strict=True):
        error = np.sqrt(share * (1 - share) / n_draws)
        assert (turns == k).mean() == pytest.approx(share, abs=5 * error + 1e-12)


def test_weights_are_about_the_mode_and_leave_it_alone(sampler: LatentSampler) -> None:
    """There they are 1, and their centers are those of the reference."""
    derivatives = sampler.field.derivatives
    mode = derivatives.coordinates.to_model(sampler.reference.surrogate.center)
    assert derivatives.angles.positions.size == G + 2
    np.testing.assert_array_equal(derivatives.angles.centers, mode[derivatives.angles.positions])
    assert abs(derivatives.angles.log_weight(mode)) < 1e-15


def test_the_prior_and_its_derivatives_have_the_weights(sampler: LatentSampler) -> None:
    """So do the priors of the levels, and the posterior of the reference."""
    field, tall = sampler.field, sampler.tall
    derivatives, angles = field.derivatives, field.derivatives.angles
    rng, mode = np.random.default_rng(3), sampler.reference.surrogate.center
    point = mode.copy()
    point[angles.positions] += rng.choice([-1.0, 1.0], G + 2) * rng.uniform(2.5, 3.6, G + 2)
    weight = angles.log_weight(point)
    assert weight < -1.0
    named = tall.layout.unflatten(point)
    assert derivatives.prior(point) == pytest.approx(tall.prior_logp(named) + weight, rel=1e-12)
    right = tall.logp(named) + weight
    assert sampler.reference.log_density(point) == pytest.approx(right, rel=1e-12)
    step, direction = 1e-5, rng.standard_normal(point.size)
    ends = [point + sign * step * direction for sign in (1.0, -1.0)]
    slope = (derivatives.prior(ends[0]) - derivatives.prior(ends[1])) / (2 * step)
    assert derivatives.prior_gradient(point) @ direction == pytest.approx(slope, rel=1e-5)
    slopes = [derivatives.prior_gradient(end) for end in ends]
    product = derivatives.prior_product(point, direction)
    np.testing.assert_allclose(product, (slopes[0] - slopes[1]) / (2 * step), rtol=1e-3, atol=1e-3)
    [levels] = field.levels
    assert levels.prior is not None
    there = point.copy()
    there[levels.latent] += 0.3
    change = levels.prior.logp(there) - levels.prior.logp(point)
    assert change.sum() == pytest.approx(derivatives.prior(there) - derivatives.prior(point))


def test_rows_read_values_on_the_line(sampler: LatentSampler) -> None:
    """However few there are: the angle jumps where it is half a turn, and an expansion would."""
    derivatives = sampler.field.derivatives
    where = sampler.tall.layout.slices
    point = sampler.tall.start.copy()
    for name in ("angle_circular__", "shared_circular__"):
        point[where[name]] = np.pi - 0.1
        moved = point.copy()
        moved[where[name]] += 0.2
        change = derivatives.phi(moved) - derivatives.phi(point)
        np.testing.assert_allclose(np.sort(np.abs(change))[-1], 0.2)
        assert np.abs(change).max() < 0.5


def test_a_model_of_one_angle_has_its_weight() -> None:
    """Though it has no effects."""
    with pm.Model() as model:
        pm.Normal("y", pm.math.cos(X - pm.VonMises("angle", 0, 0.1)), 1.0, observed=Y)
    found = locate(TallModel(model), 1.0).reference
    assert found.surrogate.field.derivatives.angles.positions.size == 1


def test_the_witness_compares_the_density_with_the_weights(sampler: LatentSampler) -> None:
    """Near the cut; without them it would find fault with right moves."""
    state, density = sampler.initial_state(), ModelDensity(sampler.tall)
    settings = sampler.settings(state, False)
    looks = {
        "with": moves_of(density, sampler, state),
        "without": MovesOfEffects(density, sampler.moves, settings, ""),
    }
    angles = sampler.field.derivatives.angles
    mode = sampler.coordinates.to_model(sampler.reference.surrogate.center)
    worst = dict.fromkeys(looks, 0.0)
    for seed in range(4):
        point = mode.copy()
        point[angles.positions] += np.random.default_rng(seed).uniform(2.8, 3.4, G + 2)
        for kind, look in looks.items():
            for each in look.look(np.random.default_rng(seed), point):
                if np.isfinite(each.expected) and abs(each.expected) < 1e3:
                    wrong = abs(each.log_ratio - each.expected) - each.rounding
                    worst[kind] = max(worst[kind], wrong)
    assert worst["with"] < 1e-5
    assert worst["without"] > 0.1
