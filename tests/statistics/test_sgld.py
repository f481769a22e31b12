"""The stationary distribution of stochastic gradient Langevin dynamics, its bias included.

For Gaussian rows the gradient is linear and its noise does not depend on the point, so that the
covariance S of the draws solves S = (I − εMH/2) S (I − εMH/2)ᵀ + εM + ε²/4 M Q M, with H the
precision of the posterior and Q the covariance of the batch's gradient.
"""

import numpy as np
import pytest
from normal_rows import BATCH, FULL, N_ROWS, Noiseless, assert_moments, draw, normal_rows
from scipy.linalg import solve_discrete_lyapunov

from pymc_minibatch import SGLD, find_reference

MATRIX = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.2], [0.0, 0.2, 1.0]])


@pytest.fixture(scope="module")
def correlated():
    return normal_rows(FULL)


def stationary(epsilon, M, H, Q):
    drift = np.eye(3) - epsilon / 2 * M @ H
    return solve_discrete_lyapunov(drift, epsilon * M + epsilon**2 / 4 * M @ Q @ M)


@pytest.mark.filterwarnings("ignore:.*step_size of:UserWarning")
@pytest.mark.parametrize(
    ("preconditioner", "epsilon", "thin", "n_draws"),
    [
        ("reference", 0.2, 30, 10_000),
        ("identity", 3e-4, 80, 5000),
        (MATRIX, 3e-4, 60, 5000),
        ("fisher", 0.2, 30, 5000),
        ("diagonal", 0.2, 40, 5000),
    ],
)
def test_bias_is_as_in_theory(correlated, preconditioner, epsilon, thin, n_draws):
    model, mean, H = correlated
    Q = N_ROWS / BATCH * H
    M = {
        "reference": np.linalg.inv(H),
        "identity": np.eye(3),
        "fisher": np.linalg.inv(H),
        "diagonal": np.diag(1 / np.diag(H)),
    }.get(str(preconditioner), MATRIX)
    expected = stationary(epsilon, M, H, Q)
    posterior = np.linalg.inv(H)
    excess = np.linalg.eigvals(np.linalg.solve(posterior, expected)) - 1
    assert excess.max() > 0.3  # far more than what is allowed below
    step = SGLD(
        step_size=epsilon,
        preconditioner=preconditioner,
        control_variate=0,
        batch_size=BATCH,
        steps_per_draw=thin,
        model=model,
        rng=1,
    )
    draws, stats = draw(step, 200, n_draws)
    assert_moments(draws, mean, expected)
    ratio = epsilon / 4 * np.trace(M @ Q) / 3
    assert stats["gradient_noise"] == pytest.approx(ratio / (1 + ratio), rel=0.5)


def test_control_variate_leaves_the_bias_of_the_step(correlated):
    model, mean, H = correlated
    step = SGLD(
        step_size=0.5, control_variate=1, batch_size=20, steps_per_draw=15, model=model, rng=2
    )
    draws, _ = draw(step, 20, 10_000)
    assert_moments(draws, mean, np.linalg.inv(H) / (1 - 0.5 / 4))


@pytest.mark.parametrize(
    ("preconditioner", "order"), [("reference", 0), ("identity", 0), ("reference", 2)]
)
def test_default_step_is_biased_by_a_tenth(correlated, preconditioner, order):
    model, _, H = correlated
    step = SGLD(
        preconditioner=preconditioner,
        control_variate=order,
        batch_size=BATCH,
        reference=find_reference(model),
        model=model,
    )
    M = np.eye(3) if preconditioner == "identity" else np.linalg.inv(H)
    Q = (N_ROWS / BATCH if order == 0 else 0.0) * H
    biased = stationary(step.step_size, M, H, Q)
    assert np.linalg.eigvals(H @ biased).real.max() == pytest.approx(1.1, abs=0.015)


def test_decreasing_steps(correlated):
    """Weighted by the step size, the moments come near the posterior's."""
    model, mean, H = correlated
    step = SGLD(step_size=(40.0, 100.0, 0.8), control_variate=1, batch_size=20, model=model, rng=3)
    point, draws, weights = step.tall.model.initial_point(), [], []
    step.stop_tuning()
    for t in range(40_000):
        point, [stats] = step.step(point)
        assert stats["step_size"] == pytest.approx(40.0 * (100 + t) ** -0.8)
        draws.append(point["mu"])
        weights.append(stats["step_size"])
    draws, weights = np.array(draws[1000:]), np.array(weights[1000:])
    assert weights[-1] < 0.01
    z = (draws - mean) @ np.linalg.cholesky(H)
    variance = np.average(z**2, axis=0, weights=weights)
    assert np.allclose(variance, 1.0, atol=0.35)


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize(
    ("preconditioner", "epsilon"), [("reference", 0.3), ("identity", 3e-4), (MATRIX, 3e-4)]
)
def test_steps_without_noise(correlated, preconditioner, epsilon, n_steps):
    """With a control variate the gradient of normal rows is exact, and so is each step."""
    model, mean, H = correlated
    step = SGLD(
        step_size=epsilon,
        schedule=Noiseless(),
        preconditioner=preconditioner,
        reference=find_reference(model),
        control_variate=1,
        batch_size=20,
        steps_per_draw=n_steps,
        model=model,
        rng=1,
    )
    step.stop_tuning()
    named = {"reference": np.linalg.inv(H), "identity": np.eye(3)}
    M = named[preconditioner] if isinstance(preconditioner, str) else preconditioner
    away = np.array([0.1, -0.2, 0.05])
    reached, _ = step.step({"mu": mean + away})
    expected = np.linalg.matrix_power(np.eye(3) - epsilon / 2 * M @ H, n_steps) @ away
    np.testing.assert_allclose(reached["mu"] - mean, expected, rtol=1e-5, atol=1e-9)
