"""The stationary distribution of stochastic gradient Fisher scoring where it is known exactly.

The gradients of the rows have the Fisher information for covariance, so that the stationary
covariance of the algorithm is the posterior's at any alpha.
"""

import numpy as np
import pytest
from normal_rows import BATCH, FULL, N_ROWS, assert_moments, draw, normal_rows

from pymc_minibatch import SGFS

DIAGONAL = np.diag([1.0, 3.0, 0.3])
USERS_B = N_ROWS * np.array([[9.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 30.0]])


@pytest.fixture(scope="module")
def correlated():
    return normal_rows(FULL)


@pytest.mark.parametrize(
    ("alpha", "B", "thin", "n_draws"),
    [
        (0.0, None, 9, 20_000),
        (1.0, None, 18, 20_000),
        (6.0, None, 300, 4000),
        (1.5, USERS_B, 50, 8000),
    ],
)
def test_full(correlated, alpha, B, thin, n_draws):
    model, mean, precision = correlated
    step = SGFS(
        alpha=alpha,
        B=B,
        control_variate=0,
        batch_size=BATCH,
        steps_per_draw=thin,
        model=model,
        rng=1,
    )
    draws, stats = draw(step, 15_000 // thin, n_draws)
    assert_moments(draws, mean, np.linalg.inv(precision))
    if B is None:
        ratio = alpha**2 * (1 + BATCH / N_ROWS)  # of the added noise to that of the batch
        assert stats["gradient_noise"] == pytest.approx(1 / (1 + ratio), rel=0.5)


@pytest.mark.parametrize(("alpha", "thin", "n_draws"), [(0.0, 9, 20_000), (6.0, 300, 4000)])
def test_diagonal(alpha, thin, n_draws):
    model, mean, precision = normal_rows(DIAGONAL)
    step = SGFS(
        variant="diagonal",
        alpha=alpha,
        control_variate=0,
        batch_size=BATCH,
        steps_per_draw=thin,
        model=model,
        rng=2,
    )
    draws, _ = draw(step, 15_000 // thin, n_draws)
    assert_moments(draws, mean, np.linalg.inv(precision))


@pytest.mark.parametrize("order", [1, 2])
def test_control_variate(order):
    """The prior counts as much as the rows, and the batch adds no noise: the rows are Gaussian."""
    model, mean, precision = normal_rows(FULL, prior_sd=0.05)
    step = SGFS(
        alpha=1.2, control_variate=order, batch_size=20, steps_per_draw=6, model=model, rng=3
    )
    draws, stats = draw(step, 50, 20_000)
    assert_moments(draws, mean, np.linalg.inv(precision))
    assert stats["gradient_noise"] < 1e-6
    assert stats["step_size"] == pytest.approx(2 / (1 + 1.2**2))


@pytest.mark.parametrize("B", [None, USERS_B])
def test_steps_are_as_long_as_alpha_says(correlated, B):
    """The mean of the next point lies `step_size` of the way to the mode."""
    model, mean, precision = correlated
    step = SGFS(
        alpha=1.0, B=B, control_variate=0, batch_size=BATCH, model=model, rng=4, steps_per_draw=1
    )
    draws, stats = draw(step, 5000, 100_000)
    z = (draws - mean) @ np.linalg.cholesky(precision)
    kept = np.linalg.lstsq(z[:-1], z[1:])[0]
    assert stats["step_size"] == pytest.approx(1 - np.trace(kept) / 3, abs=0.01)
    if B is None:
        assert stats["step_size"] == pytest.approx(2 / (2 * (BATCH + N_ROWS) / BATCH))
        np.testing.assert_allclose(kept, np.eye(3) * (1 - 1 / 6), atol=0.012)
