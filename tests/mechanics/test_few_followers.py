"""Steps by the surrogate that few effects follow."""

from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from witnessed import STEPS

import pymc_minibatch as pmb
from pymc_minibatch.latent.moves.by_surrogate import BySurrogate, log_density_of
from pymc_minibatch.latent.moves.few_followers import FewFollowers, FollowerSteps
from pymc_minibatch.latent.moves.state import ChainState


def pairs() -> pm.Model:
    """Two correlated coefficients for each scale, normal rows with an unknown scale, groups."""
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(800, 24)) + rng.normal(size=(800, 1)), rng.integers(0, 10, 800)
    with pm.Model() as model:
        own = pm.HalfCauchy("own", 1.0, shape=12)
        noncentered, centered = pm.Normal("z", shape=12) * own, pm.Normal("b", 0.0, own, shape=12)
        eta = pm.math.dot(x[:, :12], noncentered) + pm.math.dot(x[:, 12:], centered)
        eta += pm.Normal("u", shape=10)[g]
        pm.Normal("y", eta, pm.HalfNormal("s"), observed=rng.normal(size=800))
    return model


def of_groups() -> pm.Model:
    """Coefficients that each change what the rows of all groups read."""
    rng = np.random.default_rng(1)
    w, g = rng.normal(size=(80, 12)), rng.integers(0, 80, 1600)
    with pm.Model() as model:
        own = pm.HalfCauchy("own", 1.0, shape=12)
        u = pm.math.dot(w, own * pm.Normal("z", shape=12)) + 0.3 * pm.Normal("e", shape=80)
        pm.Bernoulli("y", logit_p=u[g], observed=rng.integers(0, 2, 1600))
    return model


def apart() -> pm.Model:
    """Each variable by itself, as a number."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(500, 12))
    with pm.Model() as model:
        z = [pm.Normal(f"z{j}") * pm.HalfNormal(f"own{j}") for j in range(x.shape[1])]
        eta = pm.math.dot(x, pm.math.stack(z))
        pm.Poisson("y", pm.math.exp(eta), observed=rng.poisson(1.0, 500))
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "own scales": STEPS["own scales"],
    "pairs": lambda: pmb.MinibatchMH(model=pairs()),
    "of groups": lambda: pmb.MinibatchMH(model=of_groups()),
    "apart": lambda: pmb.MinibatchMH(model=apart()),
}


@pytest.fixture(scope="module", params=MODELS)
def made(request: pytest.FixtureRequest) -> tuple[FewFollowers, ChainState]:
    """The steps of a model with a scale for each coefficient, and a state away from the mode."""
    step = MODELS[request.param]()
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
    assert few.are_few.sum() >= 12
    [axis, *_] = np.flatnonzero(few.are_few)
    there = few.moved(start, axis, 0.5)
    assert there is not None
    moved = np.flatnonzero(there != start.point)
    own = [few.surrogate.field.hyper[axis], *few.followers[axis]]
    assert sorted(moved) == sorted(own)
    back = few.moved(ChainState(few.surrogate, there), axis, -0.5)
    np.testing.assert_allclose(back, start.point, atol=1e-10)


def test_jacobian_is_that_of_differences(made: tuple[FewFollowers, ChainState]) -> None:
    few, start = made
    steps = some_steps(few, 20)
    for axis, length in zip(steps.axes, steps.lengths, strict=True):
        own, columns = few.followers[axis], []
        one = FollowerSteps(np.array([axis]), np.array([length]), np.array([np.inf]))
        followed = few.steps(start, one)
        for position in own:
            ends = []
            for sign in (1.0, -1.0):
                point = start.point.copy()
                point[position] += sign * 1e-3
                there = few.moved(ChainState(few.surrogate, point), axis, length)
                assert there is not None
                ends.append(there[own])
            columns.append((ends[0] - ends[1]) / 2e-3)
        expected = np.linalg.slogdet(np.reshape(columns, (own.size, own.size)))[1]
        np.testing.assert_allclose(followed.log_jacobians[0], expected, atol=1e-7)


def test_machine_addresses_are_made_anew_in_another_process(
    made: tuple[FewFollowers, ChainState],
) -> None:
    few, start = made
    again = cloudpickle.loads(cloudpickle.dumps(few))
    [axis, *_] = np.flatnonzero(few.are_few)
    np.testing.assert_array_equal(again.are_few, few.are_few)
    state = ChainState(again.surrogate, start.point)
    np.testing.assert_allclose(again.moved(state, axis, 0.3), few.moved(start, axis, 0.3))
