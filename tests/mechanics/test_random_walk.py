"""The random walk's steps and what tuning makes of them, driven without a model."""

import numpy as np
import pytest
from numba import njit
from scipy.stats import chi2

from pymc_minibatch import RandomWalk
from pymc_minibatch.proposals.proposal import ProposalContext
from pymc_minibatch.proposals.random_walk import FIRST_WINDOW, GAIN_RESTART

RNG = np.random.default_rng(0)
PLACE = ProposalContext((), np.empty(0), np.empty(0, dtype=np.int64))

MATRIX = np.array([[2.0, 0.9, 0.0], [0.9, 1.0, -0.3], [0.0, -0.3, 0.5]])
FULL = {
    "scalar": (0.15, 0.15 * np.eye(3)),
    "vector": ([0.1, 1.0, 4.0], np.diag([0.1, 1.0, 4.0])),
    "matrix": (MATRIX, MATRIX),
}


@pytest.mark.parametrize("cov", FULL)
def test_fixed_steps_have_the_covariance_that_was_given(cov):
    """The scatter of the whitened steps is Wishart; its trace and each mean are chi-squared."""
    given, expected = FULL[cov]
    walk = RandomWalk(cov=given, adapt=False)
    propose, adapt = walk.build()
    state = walk.initial_state(3, 1.0)
    rng, theta, proposal = np.random.default_rng(1), np.array([1.0, -2.0, 3.0]), np.empty(3)
    n = 20_000
    steps = np.empty((n, 3))
    for i in range(n):
        assert propose(rng, theta, proposal, state, PLACE) == 0.0
        adapt(RNG, proposal, i % 2 == 0, 0.0, state)
        steps[i] = proposal - theta
    np.testing.assert_array_equal(theta, [1.0, -2.0, 3.0])
    white = np.linalg.solve(np.linalg.cholesky(expected), steps.T)
    scatter = white @ white.T
    assert 1e-4 < chi2.cdf(np.trace(scatter), 3 * n) < 1 - 1e-4
    np.testing.assert_allclose(scatter / n, np.eye(3), atol=5 / np.sqrt(n / 2))
    np.testing.assert_allclose(white.mean(axis=1), 0.0, atol=5 / np.sqrt(n))


def test_a_step_is_the_scaled_factor_times_a_normal_vector():
    walk = RandomWalk(cov=MATRIX)
    propose, _ = walk.build()
    state = walk.initial_state(3, 1.0)
    state.log_scale[0] = np.log(0.5)
    theta, proposal = np.array([1.0, -2.0, 3.0]), np.empty(3)
    propose(np.random.default_rng(2), theta, proposal, state, PLACE)
    xi = np.random.default_rng(2).standard_normal(3)
    np.testing.assert_allclose(proposal, theta + 0.5 * np.linalg.cholesky(MATRIX) @ xi, rtol=1e-12)
    assert walk.scale(state) == pytest.approx(0.5)


def test_tuning_starts_from_the_default_variance():
    state = RandomWalk().initial_state(4, 0.09)
    np.testing.assert_allclose(state.cholesky, 0.3 * np.eye(4))
    assert RandomWalk().scale(state) == 1.0


def test_a_full_window_gives_its_covariance():
    walk = RandomWalk()
    _, adapt = walk.build()
    state = walk.initial_state(3, 1.0)
    draws = np.random.default_rng(3).multivariate_normal([5.0, 0.0, -5.0], MATRIX, FIRST_WINDOW)
    for theta in draws[:-1]:
        adapt(RNG, theta, True, 0.0, state)
        walk.end_draw(state)
    np.testing.assert_array_equal(state.cholesky, np.eye(3))
    adapt(RNG, draws[-1], True, 0.0, state)
    walk.end_draw(state)
    covariance = np.cov(draws.T)
    shrunk = (100 * covariance + 3 * np.diag(np.diag(covariance))) / 103
    np.testing.assert_allclose(state.cholesky @ state.cholesky.T, shrunk, rtol=1e-10)
    assert walk.scale(state) == pytest.approx(2.4 / np.sqrt(3))
    assert state.counts.tolist() == [GAIN_RESTART, 0, 2 * FIRST_WINDOW]
    assert not state.mean.any()
    assert not state.scatter.any()


def test_a_window_without_a_move_changes_nothing():
    walk = RandomWalk(cov=MATRIX)
    _, adapt = walk.build()
    state = walk.initial_state(3, 1.0)
    for _ in range(FIRST_WINDOW):
        adapt(RNG, np.ones(3), False, 0.0, state)
    walk.end_draw(state)
    np.testing.assert_allclose(state.cholesky @ state.cholesky.T, MATRIX)


def test_the_scale_rises_with_acceptance_and_falls_without():
    walk = RandomWalk(target_accept=0.4)
    _, adapt = walk.build()
    state = walk.initial_state(2, 1.0)
    adapt(RNG, np.zeros(2), True, 0.0, state)
    assert walk.scale(state) == pytest.approx(np.exp(0.6))
    adapt(RNG, np.zeros(2), False, 0.0, state)
    assert walk.scale(state) == pytest.approx(np.exp(0.6 - 0.4 / 2**0.6))


@njit
def barker_chain(rng, propose, adapt, precision, theta, n_steps, state):
    """Move by Barker's rule on a centred Gaussian; return the number of moves."""
    proposal = np.empty_like(theta)
    n_accepted = 0
    for _ in range(n_steps):
        propose(rng, theta, proposal, state, PLACE)
        delta = 0.5 * (theta @ precision @ theta - proposal @ precision @ proposal)
        accepted = rng.random() < 1 / (1 + np.exp(-delta))
        if accepted:
            theta[:] = proposal
            n_accepted += 1
        adapt(rng, theta, accepted, 0.0, state)
    return n_accepted


@pytest.mark.parametrize("target_accept", [0.15, 0.3])
def test_tuning_learns_the_covariance_and_the_scale(target_accept):
    """From steps a thousand times too small, on a target with correlations up to 0.98."""
    covariance = np.array([[4.0, 1.96, 0.0], [1.96, 1.0, 0.1], [0.0, 0.1, 9.0]])
    walk = RandomWalk(cov=1e-6, target_accept=target_accept)
    propose, adapt = walk.build()
    state = walk.initial_state(3, 1.0)
    rng, theta = np.random.default_rng(4), np.zeros(3)
    precision = np.linalg.inv(covariance)
    for _ in range(4000):
        barker_chain(rng, propose, adapt, precision, theta, 10, state)
        walk.end_draw(state)
    learned = np.linalg.solve(np.linalg.cholesky(covariance), state.cholesky)
    eigenvalues = np.linalg.svd(learned, compute_uv=False) ** 2
    assert eigenvalues.min() > 0.7
    assert eigenvalues.max() < 1.5
    fixed = RandomWalk(cov=1.0, adapt=False).build()[1]
    accepted = barker_chain(rng, propose, fixed, precision, theta, 20_000, state) / 20_000
    assert accepted == pytest.approx(target_accept, abs=0.03)


@pytest.mark.parametrize("target_accept", [0.0, 1.0, -0.1, np.nan])
def test_refuses_target_accept(target_accept):
    with pytest.raises(ValueError, match=r"target_accept must lie in \(0, 1\)"):
        RandomWalk(target_accept=target_accept)


def test_fixed_steps_need_a_covariance():
    with pytest.raises(ValueError, match="needs cov"):
        RandomWalk(adapt=False)


@pytest.mark.parametrize("cov", [np.ones(2), np.eye(2), np.ones((3, 1)), np.ones((1, 3, 3))])
def test_refuses_a_covariance_of_another_shape(cov):
    with pytest.raises(ValueError, match="3 unconstrained parameters: give a number, 3 variances"):
        RandomWalk(cov=cov).initial_state(3, 1.0)


@pytest.mark.parametrize("cov", [0.0, -1.0, [1.0, 0.0, 1.0], MATRIX - 2 * np.eye(3)])
def test_refuses_a_covariance_that_is_not_positive_definite(cov):
    with pytest.raises(ValueError, match="positive definite"):
        RandomWalk(cov=cov).initial_state(3, 1.0)


@pytest.mark.parametrize("cov", [np.nan, [1.0, np.inf, 1.0], np.triu(MATRIX)])
def test_refuses_a_covariance_that_is_not_symmetric_and_finite(cov):
    with pytest.raises(ValueError, match="symmetric and finite"):
        RandomWalk(cov=cov).initial_state(3, 1.0)


def test_fixed_independent_steps_take_no_matrix():
    """Thousands of parameters would need gigabytes, and each move a product with them."""
    walk = RandomWalk(cov=0.25, adapt=False)
    propose, _ = walk.build()
    state = walk.initial_state(5000, 1.0)
    assert sum(array.size for array in state) == 5000
    proposal = np.empty(5000)
    propose(np.random.default_rng(2), np.zeros(5000), proposal, state, PLACE)
    np.testing.assert_allclose(proposal, 0.5 * np.random.default_rng(2).standard_normal(5000))
    walk.end_draw(state)
    walk.end_tuning(state)
    assert walk.scale(state) == 1.0


@pytest.mark.parametrize("cov", [-1.0, [1.0, 0.0, 1.0], np.nan])
def test_fixed_independent_steps_need_positive_variances(cov):
    with pytest.raises(ValueError, match="positive"):
        RandomWalk(cov=cov, adapt=False).initial_state(3, 1.0)
