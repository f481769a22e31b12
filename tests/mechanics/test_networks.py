"""Models with interchangeable units: no search, a start that climbs, a matrix of full rank."""

import tracemalloc

import numpy as np
import pymc as pm
import pytest
from models import grouped_model, logistic_model, normal_model
from pymc.exceptions import SamplingError

from pymc_minibatch import SGFS, SGHMC, SGLD, NoReferenceError, TallModel
from pymc_minibatch.kernels.sgfs_low_rank import learn, low_rank_state, solve
from pymc_minibatch.reference.exchange import interchangeable
from pymc_minibatch.steps.ascent import RATE

N_ROWS = 500


def network(units=3, inputs=3):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N_ROWS, inputs))
    with pm.Model() as model:
        W, b = pm.Normal("W", shape=(inputs, units)), pm.Normal("b", shape=units)
        hidden = pm.math.tanh(X @ W + b)
        mu = hidden @ pm.Normal("v", shape=units)
        pm.Normal("y", mu, 0.1, observed=np.tanh(2 * X[:, 0]) + 0.1 * rng.normal(size=N_ROWS))
    return model


@pytest.fixture(scope="module")
def tanh_units():
    return network()


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (network, ["W", "b", "v"]),
        (lambda: network(inputs=4), ["W", "b", "v"]),
        (normal_model, []),
        (grouped_model, []),
        (lambda: logistic_model(40), []),
    ],
)
def test_interchangeable_units(make, names):
    """With as many inputs as units, inputs are not exchanged for units."""
    assert interchangeable(TallModel(make())) == names


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (SGFS, {"alpha": 3.0}),
        (SGFS, {"alpha": 3.0, "variant": "diagonal"}),
        (SGFS, {"alpha": 3.0, "variant": "low rank", "rank": 4}),
        (SGLD, {"step_size": 1e-7, "preconditioner": "rmsprop"}),
        (SGHMC, {}),
    ],
)
def test_a_network_is_sampled_without_a_search(tanh_units, kind, changes, monkeypatch):
    """The chain starts near a mode: residuals are as small as the noise, not as the data."""
    monkeypatch.setattr("pymc_minibatch.reference.decide.search", None)
    step = kind(model=tanh_units, batch_size=100, steps_per_draw=20, rng=1, **changes)
    assert step.reference is None
    point = tanh_units.initial_point()
    for _ in range(30):
        point, _ = step.step(point)
    step.stop_tuning()
    before = point
    for _ in range(5):
        point, _ = step.step(point)
    assert all((point[name] != before[name]).all() for name in point)
    per_row = np.mean(step.tall.row_logp(point, np.arange(N_ROWS)))
    assert per_row > 0.5  # 0.88 where all is known, -50 at the initial point


def test_a_chain_that_diverges_while_it_tunes_takes_shorter_steps(tanh_units, monkeypatch):
    """Curvature away from the start can be far larger; after tuning nothing is mended."""
    monkeypatch.setattr(SGHMC, "_default_size", lambda *_: 3.0)
    step = SGHMC(model=tanh_units, batch_size=100, rng=1)
    point = tanh_units.initial_point()
    for _ in range(30):
        point, _ = step.step(point)
    assert 0.0 < step.tuned.shorter[0] < 1.0
    step.stop_tuning()
    for _ in range(20):
        point, _ = step.step(point)
    assert np.mean(step.tall.row_logp(point, np.arange(N_ROWS))) > 0.5
    step.tuned.size[:], step.steps_per_draw = 3.0, 500
    with pytest.raises(SamplingError, match="diverges at draw"):
        step.step(point)


def test_a_climb_starts_with_steps_of_the_lengths_of_parameters(tanh_units):
    """Adam's averages are free of the zeros they start from. The last step has no length."""
    step = SGHMC(model=tanh_units, batch_size=100, rng=1)
    start = step.tall.layout.flatten(tanh_units.initial_point()) + 0.1
    flat = start.copy()
    step.ascent.climb(step.rng, flat, 2)
    np.testing.assert_allclose(abs(flat - start), RATE / 2 * step.ascent.lengths(start), rtol=1e-6)


def test_sgld_needs_a_step_size_for_a_network(tanh_units):
    with pytest.raises(NoReferenceError, match=r"units of .* can be exchanged.*'rmsprop'"):
        SGLD(model=tanh_units)


# --- A diagonal plus low rank -----------------------------------------------------------------


def test_low_rank_matrix():
    """The diagonal is as it should be, the rest below, and the inverse is that of the matrix."""
    rng = np.random.default_rng(1)
    dim, rank, weight = 12, 3, 1.5
    prior = rng.uniform(0.5, 2, dim)
    factors = rng.normal(size=(2, dim)) * 5
    state = low_rank_state(dim, rank, 10)
    for _ in range(300):
        state.noises[:] = rng.normal(size=(10, 2)) @ factors + 0.3 * rng.normal(size=(10, dim))
        learn(state, weight, prior)
    K = np.diag(state.diagonal) + state.columns @ state.columns.T
    np.testing.assert_allclose(np.diag(K), weight * state.variances + prior)
    expected = weight * (factors.T @ factors + 0.09 * np.eye(dim)) + np.diag(prior)
    np.testing.assert_allclose(K, expected, atol=0.15 * expected.max())
    force, step = rng.normal(size=dim), np.empty(dim)
    solve(force, state, step)
    np.testing.assert_allclose(step, np.linalg.solve(K, force))


def test_nothing_of_the_size_of_the_square():
    """Of 3,000 parameters a square would take 72 MB."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 3000))
    with pm.Model() as model:
        pm.Normal("y", X @ pm.Normal("beta", shape=3000), 1.0, observed=X[:, 0])
    options = {"model": model, "batch_size": 20, "rng": 1}
    steps = [
        SGHMC(**options),
        SGFS(variant="low rank", **options),
        SGLD(step_size=1e-5, preconditioner="rmsprop", **options),
    ]
    tracemalloc.start()
    for step in steps:
        step.step(model.initial_point())
        if isinstance(step, SGLD):
            step.stop_tuning()
            step.step(model.initial_point())  # which judges the step size
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6
