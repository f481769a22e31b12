"""Which draws were farthest out, in each variable."""

from collections.abc import Callable
from functools import cache

import numpy as np

from pymc_minibatch.jit.compiled import jit_kept

__all__ = ["farthest"]

LARGEST = np.finfo(np.float64).max
"""In place of an infinite distance."""


def look_at_draws(
    points: np.ndarray,
    n_before: int,
    mean: np.ndarray,
    squares: np.ndarray,
    ends: np.ndarray,
    settled: int,
    distances: np.ndarray,
    at: np.ndarray,
) -> None:
    """Update means and sums of squares (Welford) with draws, and note the farthest draws.

    Parameters
    ----------
    points : ndarray, shape (draws, size)
        The draws.
    n_before
        Draws that were seen before.
    mean, squares : ndarray, shape (size,)
        Of the draws so far.
    ends : ndarray of int64
        Where each variable ends in a point.
    settled
        Draws after which distances are measured.
    distances : ndarray
        The largest distance so far, of each variable.
    at : ndarray of int64
        The number of the draw that took its place, if one did.
    """
    for i in range(points.shape[0]):
        n = n_before + i + 1
        k = 0
        largest = 0.0
        for j in range(mean.size):
            while k < ends.size and j == ends[k]:
                k, largest = k + 1, 0.0
            away = points[i, j] - mean[j]
            mean[j] += away / n
            squares[j] += away * (points[i, j] - mean[j])
            if n < settled:
                continue
            variance = squares[j] / n
            if variance > 0.0:
                distance = abs(away) / np.sqrt(variance)
            else:
                distance = LARGEST if away != 0.0 else 0.0
            largest = max(largest, distance)
            if largest > distances[k]:
                distances[k], at[k] = largest, i


@cache
def farthest() -> Callable[..., None]:
    """Compile :func:`look_at_draws`."""
    return jit_kept(look_at_draws)
