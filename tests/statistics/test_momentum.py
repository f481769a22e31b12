"""The stationary distribution of the steps with momentum, their bias included.

For Gaussian rows the gradient is linear and its noise does not depend on the point. So the position
and the momentum of SGHMC, in coordinates in which the preconditioner is the identity, are a linear
recursion with normal noise, whose covariance solves a discrete Lyapunov equation.
"""

import numpy as np
import pytest
from normal_rows import BATCH, FULL, N_ROWS, Noiseless, assert_moments, draw, normal_rows
from scipy.linalg import solve_discrete_lyapunov

from pymc_minibatch import SGHMC, SGNHT, find_reference


@pytest.fixture(scope="module")
def correlated():
    return normal_rows(FULL)


def stationary(step, H, Q):
    """Covariance of the positions, given what the step has learned."""
    state, keep = step.tuned, 1 - step.friction
    L = state.factor if state.factor.shape[1] > 1 else np.diag(state.factor[:, 0])
    epsilon, eye = state.size[0], np.eye(3)
    h, hessian, noise = np.sqrt(epsilon), L.T @ H @ L, epsilon * L.T @ Q @ L
    added = np.diag(np.maximum(0, 1 - keep**2 - (1 + keep) ** 2 / 4 * epsilon * state.noise))
    by_batch = np.vstack([h / 2 * (1 + keep) * eye, keep * eye])
    by_step = np.vstack([h / 2 * eye, eye])
    recursion = np.hstack([np.vstack([eye, 0 * eye]), by_batch])
    recursion[:, :3] -= h * by_batch @ hessian
    covariance = solve_discrete_lyapunov(
        recursion, by_batch @ noise @ by_batch.T + by_step @ added @ by_step.T
    )
    return L @ covariance[:3, :3] @ L.T


def excess(covariance, H):
    """By how much the largest ratio of variances exceeds 1."""
    return np.linalg.eigvals(H @ covariance).real.max() - 1


@pytest.mark.parametrize(
    ("preconditioner", "friction", "epsilon", "thin", "least", "most"),
    [
        ("fisher", 0.3, 0.125, 30, 0.0, 0.25),
        ("fisher", 1.0, 0.3, 30, 0.0, 0.25),
        ("diagonal", 0.2, 0.05, 60, 0.15, 1.0),
        ("identity", 0.2, 5e-5, 90, 0.1, 1.0),
    ],
)
def test_sghmc_has_the_covariance_of_its_recursion(
    correlated, preconditioner, friction, epsilon, thin, least, most
):
    model, mean, H = correlated
    Q = N_ROWS / BATCH * H
    step = SGHMC(
        step_size=epsilon,
        friction=friction,
        preconditioner=preconditioner,
        batch_size=BATCH,
        steps_per_draw=thin,
        model=model,
        rng=1,
    )
    draws, stats = draw(step, 300, 8000)
    expected = stationary(step, H, Q)
    assert least < excess(expected, H) < most
    assert_moments(draws, mean, expected)
    L = step.tuned.factor if step.tuned.factor.shape[1] > 1 else np.diag(step.tuned.factor[:, 0])
    np.testing.assert_allclose(step.tuned.noise, np.diag(L.T @ Q @ L), rtol=0.1)
    share = (1 - friction / 2) ** 2 * epsilon * step.tuned.noise.mean()
    share /= 1 - (1 - friction) ** 2
    assert stats["gradient_noise"] == pytest.approx(share)


@pytest.mark.parametrize("kind", [SGHMC, SGNHT])
def test_control_variate_leaves_no_bias(correlated, kind):
    """The gradient is exact then, and so are the variances, at any step size."""
    model, mean, H = correlated
    step = kind(
        step_size=0.5 if kind is SGHMC else 0.1,
        friction=0.3,
        reference=find_reference(model),
        control_variate=1,
        batch_size=20,
        steps_per_draw=20 if kind is SGHMC else 40,
        model=model,
        rng=2,
    )
    draws, stats = draw(step, 100, 10_000)
    assert_moments(draws, mean, np.linalg.inv(H))
    if kind is SGHMC:
        assert stats["gradient_noise"] < 1e-10


@pytest.mark.parametrize("preconditioner", ["fisher", "diagonal"])
def test_steps_without_noise(correlated, preconditioner):
    """With a control variate the gradient of normal rows is exact, and so is each step."""
    model, mean, H = correlated
    step = SGHMC(
        step_size=0.4,
        friction=0.3,
        schedule=Noiseless(),
        preconditioner=preconditioner,
        reference=find_reference(model),
        control_variate=1,
        batch_size=20,
        steps_per_draw=3,
        model=model,
        rng=1,
    )
    start = {"mu": mean + np.array([0.1, -0.2, 0.05])}
    step.step(start)
    step.stop_tuning()
    step.tuned.momentum[:] = p = np.array([1.0, 0.5, -2.0])
    L = step.tuned.factor if step.tuned.factor.shape[1] > 1 else np.diag(step.tuned.factor[:, 0])
    h, away = np.sqrt(0.4), start["mu"] - mean
    for _ in range(3):
        p = p - h * L.T @ H @ away
        away = away + h / 2 * L @ p
        p = 0.7 * p
        away = away + h / 2 * L @ p
    reached, _ = step.step(start)
    np.testing.assert_allclose(reached["mu"] - mean, away, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(step.tuned.momentum, p, rtol=1e-5, atol=1e-9)


def test_sgnht_finds_the_noise(correlated):
    """It is told of none, and its friction rises by half of what the batch adds in a step."""
    model, mean, H = correlated
    step = SGNHT(
        step_size=0.015, friction=0.1, batch_size=BATCH, steps_per_draw=60, model=model, rng=1
    )
    point, frictions = model.initial_point(), []
    for _ in range(200):
        point, _ = step.step(point)
    step.stop_tuning()
    step.tuned.noise[:] = np.nan  # which is for the stats alone
    draws = np.empty((8000, 3))
    for i in range(8000):
        point, _ = step.step(point)
        draws[i] = point["mu"]
        frictions.append(step.tuned.thermostat[0] * np.sqrt(0.015))
    assert_moments(draws, mean, np.linalg.inv(H))
    noise = 0.015 * N_ROWS / BATCH
    assert np.mean(frictions) == pytest.approx(0.1 + noise / 2, rel=0.06)


def test_default_step_size(correlated):
    """The batch brings a fifth of the noise where M makes it the same in all directions."""
    model, _, _ = correlated
    step = SGHMC(model=model, batch_size=BATCH, rng=1)
    step.step(model.initial_point())
    noise = (1 - step.friction / 2) ** 2 * step.tuned.size[0] * N_ROWS / BATCH
    assert noise / (1 - (1 - step.friction) ** 2) == pytest.approx(0.2, rel=0.2)
