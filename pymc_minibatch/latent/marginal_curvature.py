"""The covariance of the hyperparameters, from the curvature of their marginal at its mode."""

import math

import numpy as np

from pymc_minibatch.latent.surrogate import Surrogate

__all__ = ["covariance_cholesky", "curvature_of_marginal"]

MOST_PAIRED = 50
"""Of more hyperparameters correlations are left to tuning: each pair takes four evaluations."""

LEAST_CURVATURE = 0.25
"""The marginal of a hyperparameter counts as no wider than a standard deviation of 2."""


def covariance_cholesky(surrogate: Surrogate, hyper: np.ndarray) -> np.ndarray:
    """Return the lower factor of the covariance of h about its mode."""
    return np.linalg.cholesky(np.linalg.inv(curvature_of_marginal(surrogate, hyper)))


def curvature_of_marginal(surrogate: Surrogate, hyper: np.ndarray) -> np.ndarray:
    """Return minus the Hessian of the log marginal, by differences over a standard deviation."""
    size = hyper.size
    peak = surrogate.log_marginal(hyper)

    def fall(*steps: tuple[int, float]) -> float:
        moved = hyper.copy()
        for i, step in steps:
            moved[i] += step
        return max(peak - surrogate.log_marginal(moved), -1e3)

    lengths, curvature = np.full(size, 0.1), np.zeros((size, size))
    for i in range(size):
        for _ in range(6):
            curvature_product = fall((i, lengths[i])) + fall((i, -lengths[i]))
            curvature[i, i] = max(curvature_product / lengths[i] ** 2, LEAST_CURVATURE)
            if 0.2 < curvature_product < 5.0 or (curvature_product <= 0.2 and lengths[i] > 1.0):
                break
            sd = 1 / math.sqrt(curvature[i, i])
            lengths[i] = min(max(sd, 0.05 * lengths[i]), 20 * lengths[i], 2.0)
    return curvature if size > MOST_PAIRED else _with_correlations(curvature, lengths, fall)


def _with_correlations(curvature: np.ndarray, lengths: np.ndarray, fall: object) -> np.ndarray:
    """Add what pairs give, shrunk until the matrix is positive definite."""
    size = lengths.size
    full = np.zeros_like(curvature)
    for i in range(size):
        for j in range(i):
            a, b = lengths[i] / 2, lengths[j] / 2
            mixed = fall((i, a), (j, b)) + fall((i, -a), (j, -b))  # type: ignore[operator]
            mixed -= fall((i, a), (j, -b)) + fall((i, -a), (j, b))  # type: ignore[operator]
            full[i, j] = full[j, i] = mixed / (4 * a * b) if math.isfinite(mixed) else 0.0
    for shrink in (1.0, 0.7, 0.4, 0.0):
        candidate = curvature + shrink * full
        scale = np.sqrt(np.diagonal(candidate))
        if np.linalg.eigvalsh(candidate / np.outer(scale, scale)).min(initial=1.0) > 0.02:
            return candidate
    return curvature
