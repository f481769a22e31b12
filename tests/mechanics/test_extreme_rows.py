"""Extreme rows are read at every decision, once, and the others are expanded without them."""

import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from scipy.special import expit
from scipy.stats import truncnorm

import pymc_minibatch as pmb
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.pinned import rows_to_pin, slice_draws
from pymc_minibatch.reference.taylor import make_target
from pymc_minibatch.steps.deciding import settle

N, EXTREME, T = 5000, [7, 11], 2.0


def two_walls(n_rows=N):
    """Two rows make walls near a slope of zero, which cut off most of what the others allow."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=n_rows)
    x[EXTREME] = 1e5, -3e3
    y = rng.random(n_rows) < expit(-0.05 * x)
    y[EXTREME] = 1, 0
    with pm.Model() as model:
        eta = pm.Normal("a", 0, 2.5) + pm.Normal("b", 0, 2.5) * x
        pm.Bernoulli("y", logit_p=eta, observed=y.astype(int))
    return model


@pytest.fixture(scope="module")
def walls():
    tall = pmb.TallModel(two_walls())
    return tall, pmb.find_reference(data=tall, temperature=T)


@pytest.fixture(scope="module")
def settled(walls):
    tall, reference = walls
    return settle(tall, ControlVariate(reference, 2, T), pmb.CorrectedBarker(), "size")


@pytest.fixture(scope="module")
def step(walls):
    tall, reference = walls
    return pmb.MinibatchMH(model=tall.model, reference=reference, temperature=T, rng=1)


def test_extreme_rows_are_found(walls, settled):
    assert settled.control.always_read.tolist() == EXTREME
    assert "2 extreme rows at every decision" in settled.reason
    assert not np.isin(EXTREME, settled.row_sizes.table.order).any()
    assert settled.row_sizes.table.order.size == N - 2
    assert settled.control.whole is walls[1]


def test_no_row_is_counted_twice_or_left_out(walls, settled):
    """At points where the rows are on their walls, so that each of them matters."""
    tall, target = walls[0], make_target(walls[0], settled.control)
    for here, there in np.random.default_rng(1).normal(0, 3e-5, (4, 2, 2)):
        terms = target.row(here, there, target.constants, (*tall.data, *target.columns))
        found = [target.base(point, target.constants) for point in (here, there)]
        expected = [
            tall.compiled_prior_logp(point) + tall.compiled_row_logp(point, *tall.data).sum() / T
            for point in (here, there)
        ]
        assert (terms[:, EXTREME] == 0).all()
        moved = found[1] - found[0] + (terms[1] - terms[0]).sum() / T
        assert moved == pytest.approx(expected[1] - expected[0], rel=1e-8)


def test_moves_follow_the_posterior(walls, settled):
    """Mean and sd of the slope beyond its walls; about the mode it is far too narrow."""
    tall, reference = walls
    gaussian = settled.control.gaussian
    mean, sd = gaussian.flat[1], np.sqrt(np.linalg.inv(gaussian.precision_at(T))[1, 1])
    slopes = np.linspace(-1e-3, 0.3, 3000)
    x, y = tall.data
    log_p = np.array([(y * b * x - np.logaddexp(0, b * x)).sum() / T for b in slopes])
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    expected = p @ slopes
    expected_sd = np.sqrt(p @ (slopes - expected) ** 2)
    assert mean == pytest.approx(expected, abs=0.15 * expected_sd)
    assert 1 < sd / expected_sd < 1.35
    assert np.sqrt(reference.covariance[1, 1]) < 0.3 * expected_sd


def test_the_step_says_and_counts_them(walls, step):
    assert isinstance(step.acceptance, pmb.Exact)
    assert step.reference is walls[1]
    assert "2 extreme rows" in step.choice
    assert "of all but 2 rows" in repr(step)
    _, [stats] = step.step(step.tall.model.initial_point())
    evaluated = 2 * stats["batch_size"] * step.steps_per_draw
    assert stats["n_likelihood"] == pytest.approx(evaluated + 2 * (step.steps_per_draw + 1))


def test_a_copy_continues(step):
    point = step.tall.model.initial_point()
    for _ in range(20):
        point, _ = step.step(point)
    state = pickle.dumps(step.sampling_state)
    expected = step.step(point)[0]
    other = cloudpickle.loads(cloudpickle.dumps(step))
    other.sampling_state = pickle.loads(state)
    assert other.step(point)[0] == expected


def test_ordinary_and_many_rows_are_left_to_batches(walls):
    tall, reference = walls
    control = ControlVariate(reference, 2, T)
    sizes = np.full(N, 0.4 * T, np.float32)
    assert rows_to_pin(tall, control, sizes).size == 0
    sizes[:101] = 0.6 * T  # more than one in fifty
    assert rows_to_pin(tall, control, sizes).size == 0
    sizes[100] = 0.4 * T
    assert rows_to_pin(tall, control, sizes).tolist() == list(range(100))
    assert rows_to_pin(tall, ControlVariate(reference, 1, T), sizes).size == 0


@pytest.mark.parametrize("wall", [-1.0, 1.0, 6.0])
def test_slices_draw_from_a_gaussian_beyond_a_wall(wall):
    def log_density(z):
        return -0.5 * z @ z if z[0] > wall else -np.inf

    draws = slice_draws(log_density, np.zeros(2), np.eye(2), np.array([wall + 0.5, 0]), 4000)
    expected = truncnorm(wall, np.inf)
    assert draws[:, 0].mean() == pytest.approx(expected.mean(), abs=0.2 * expected.std())
    assert draws[:, 0].std() == pytest.approx(expected.std(), rel=0.2)
    assert draws[:, 1].std() == pytest.approx(1, rel=0.1)


def test_check_looks_at_rows_that_are_always_read():
    rng = np.random.default_rng(4)
    X = (rng.random((20_000, 4)) < 0.2).astype(float)
    X[:, 0], X[:30, 0] = 0, 1  # a predictor that few rows have
    y = rng.random(len(X)) < 0.3
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=4)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y.astype(int))
    found = pmb.check(model)
    assert found.supported
    assert found.exact
    assert "at every decision" in found.reasons[0]
