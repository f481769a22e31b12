"""The covariance of the hyperparameters, from the curvature of their marginal at its mode."""

import math

import numpy as np

from pymc_minibatch.latent.surrogate import Surrogate

__all__ = ["covariance_cholesky", "curvature_of_marginal", "widths_of_marginal"]

MOST_PAIRED = 50
"""Of more hyperparameters correlations are left to tuning: each pair takes two evaluations."""

FIRST_LENGTH, LONGEST = 0.1, 2.0
"""Lengths of differences: the first where no width is known, and the longest."""

LEAST_CURVATURE = 0.25
"""The marginal of a hyperparameter counts as no wider than a standard deviation of 2."""


def covariance_cholesky(
    surrogate: Surrogate, hyper: np.ndarray, widths: np.ndarray | None = None
) -> np.ndarray:
    """Return the lower factor of the covariance of h about its mode."""
    coordinates = surrogate.field.hyper_coordinates
    v = coordinates.from_hyper(hyper)
    cholesky = np.linalg.cholesky(np.linalg.inv(curvature_of_marginal(surrogate, v, widths)))
    return coordinates.cholesky_of_hyper(v, cholesky)


def curvature_of_marginal(
    surrogate: Surrogate, v: np.ndarray, widths: np.ndarray | None = None
) -> np.ndarray:
    """Return minus the Hessian of the log marginal, by differences over a standard deviation.

    Parameters
    ----------
    surrogate, v
        The marginal, and its mode in the coordinates of h.
    widths : ndarray, shape (H,)
        About the standard deviation of each coordinate given the others, if it is known.

    Raises
    ------
    LinAlgError
        If there is no density beside the mode.
    """
    fall = _Fall(surrogate, v)
    lengths, curvature = _by_itself(fall, v.size, widths)
    if v.size > MOST_PAIRED:
        return np.diag(curvature)
    return _with_correlations(np.diag(curvature), lengths, fall)


def widths_of_marginal(
    surrogate: Surrogate, hyper: np.ndarray, widths: np.ndarray | None = None
) -> np.ndarray:
    """Return about the standard deviation of each coordinate of h given the others.

    Raises
    ------
    LinAlgError
        As :func:`curvature_of_marginal` does.
    """
    v = surrogate.field.hyper_coordinates.from_hyper(hyper)
    _, curvature = _by_itself(_Fall(surrogate, v), v.size, widths)
    return 1.0 / np.sqrt(curvature)


class _Fall:
    """By how much the log marginal falls from its mode."""

    def __init__(self, surrogate: Surrogate, v: np.ndarray) -> None:
        self.surrogate, self.v = surrogate, v
        self.peak = surrogate.log_marginal_in(v)

    def __call__(self, *steps: tuple[int, float]) -> float:
        moved = self.v.copy()
        for i, step in steps:
            moved[i] += step
        return max(self.peak - self.surrogate.log_marginal_in(moved), -1e3)


def _by_itself(fall: _Fall, size: int, widths: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return for each hyperparameter by itself the length of a difference, and the curvature."""
    lengths = np.full(size, FIRST_LENGTH) if widths is None else np.minimum(widths, LONGEST)
    curvature = np.zeros(size)
    for i in range(size):
        for _ in range(6):
            both = fall((i, lengths[i])) + fall((i, -lengths[i]))
            curvature[i] = max(both / lengths[i] ** 2, LEAST_CURVATURE)
            if 0.2 < both < 5.0 or (both <= 0.2 and lengths[i] > 1.0):
                break
            sd = 1 / math.sqrt(curvature[i])
            lengths[i] = min(max(sd, 0.05 * lengths[i]), 20 * lengths[i], LONGEST)
    if not np.isfinite(curvature).all():
        raise np.linalg.LinAlgError("The hyperparameters have no density beside their mode.")
    return lengths, curvature


def _with_correlations(curvature: np.ndarray, lengths: np.ndarray, fall: _Fall) -> np.ndarray:
    """Add what pairs give, shrunk until the matrix is positive definite.

    What either of a pair gives by itself is subtracted, so that two evaluations are enough.
    """
    size, half = lengths.size, lengths / 2
    alone = [fall((i, half[i])) + fall((i, -half[i])) for i in range(size if size > 1 else 0)]
    full = np.zeros_like(curvature)
    for i in range(size):
        for j in range(i):
            a, b = half[i], half[j]
            mixed = fall((i, a), (j, b)) + fall((i, -a), (j, -b)) - alone[i] - alone[j]
            full[i, j] = full[j, i] = mixed / (2 * a * b) if math.isfinite(mixed) else 0.0
    for shrink in (1.0, 0.7, 0.4, 0.0):
        candidate = curvature + shrink * full
        scale = np.sqrt(np.diagonal(candidate))
        if np.linalg.eigvalsh(candidate / np.outer(scale, scale)).min(initial=1.0) > 0.02:
            return candidate
    return curvature
