"""Steps by the surrogate that few effects follow."""

import numpy as np
import pytest
from witnessed import STEPS

from pymc_minibatch.latent.moves.by_surrogate import BySurrogate, log_density_of
from pymc_minibatch.latent.moves.few_followers import FewFollowers, FollowerSteps
from pymc_minibatch.latent.moves.state import ChainState


@pytest.fixture(scope="module")
def made() -> tuple[FewFollowers, ChainState]:
    """The steps of a model with a scale for each coefficient, and a state away from the mode."""
    step = STEPS["own scales"]()
    step.setup_chain(np.random.default_rng(1), 20, 0)
    point = step.tall.model.initial_point()
    for _ in range(20):
        point, _ = step.step(point)
    move = step.latent.moves.by_name[BySurrogate.name]
    return move.few, step.latent.moves.last


def some_steps(few: FewFollowers, n_steps: int) -> FollowerSteps:
    rng = np.random.default_rng(2)
    axes = rng.choice(np.flatnonzero(few.are_few), n_steps)
    lengths = 0.7 * rng.standard_normal(n_steps)
    return FollowerSteps(axes, lengths, -rng.standard_exponential(n_steps), 150)


def test_ratios_add_up_to_the_change_of_the_density(made: tuple[FewFollowers, ChainState]) -> None:
    few, start = made
    steps = some_steps(few, 300)
    followed = few.steps(start, steps)
    accepted = steps.bars < followed.log_ratios
    assert 30 < accepted.sum() < 300
    change = log_density_of(followed.state) - log_density_of(start)
    by_ratios = np.sum((followed.log_ratios - followed.log_jacobians)[accepted])
    np.testing.assert_allclose(by_ratios, change, atol=1e-8)


def test_steps_one_by_one_are_those_of_a_run(made: tuple[FewFollowers, ChainState]) -> None:
    few, state = made
    steps = some_steps(few, 300)
    at_once = few.steps(state, steps)
    for t, (axis, length, bar) in enumerate(zip(*steps[:3], strict=True)):
        one = FollowerSteps(np.array([axis]), np.array([length]), np.array([bar]))
        if t == steps.watched:
            np.testing.assert_allclose(state.point, at_once.watched[0], rtol=1e-9, atol=1e-9)
        state = few.steps(state, one).state
    np.testing.assert_allclose(state.point, at_once.state.point, rtol=1e-9, atol=1e-9)


def test_followers_alone_move(made: tuple[FewFollowers, ChainState]) -> None:
    few, start = made
    [axis, *_] = np.flatnonzero(few.are_few)
    there = few.moved(start, axis, 0.5)
    assert there is not None
    moved = np.flatnonzero(there != start.point)
    own = [few.surrogate.field.hyper[axis], *few.effects[axis]]
    assert sorted(moved) == sorted(own)
    back = few.moved(ChainState(few.surrogate, there), axis, -0.5)
    np.testing.assert_allclose(back, start.point, atol=1e-10)
