"""What the stochastic-gradient kernels share: the gradient of a batch, and triangular matrices.

Rows are drawn with replacement, so that the gradient N ḡ of a batch of n has covariance N² V / n.
Matrices are lower triangular, of which only the last `band` entries of each row up to the diagonal
are read: all of them, or, with a band of 1, the diagonal alone.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numba import njit

from pymc_minibatch.jit.pointers import call_array, call_matrix
from pymc_minibatch.kernels.rows import make_take
from pymc_minibatch.reference.source import Source

__all__ = [
    "DIVERGED",
    "add_gradient",
    "add_noise",
    "cholesky",
    "diverges",
    "make_draw_gradients",
    "solve_lower",
    "solve_upper",
    "squared_norm",
]

DIVERGED = 1e6
"""A squared drift so many times that of the first step is the mark of a step that diverges."""

SINGULAR = 1e-10
"""A pivot so much smaller than its diagonal entry stands for zero."""


def make_draw_gradients(ndims: Sequence[int]) -> Callable[..., np.ndarray]:
    """Make ``(rng, point, source, rows) -> row gradients``, which draws the rows afresh."""
    take = make_take(ndims)

    @njit
    def draw_gradients(
        rng: np.random.Generator, point: np.ndarray, source: Source, rows: np.ndarray
    ) -> np.ndarray:
        n_rows = source.data[0].shape[0]
        for i in range(rows.size):
            rows[i] = int(rng.random() * n_rows)
        return call_matrix(source.row, (point, source.constants, take(source.data, rows)))

    return draw_gradients


@njit
def add_gradient(
    point: np.ndarray,
    active: np.ndarray,
    source: Source,
    gradients: np.ndarray,
    mean: np.ndarray,
    total: np.ndarray,
) -> None:
    """Write ḡ and the whole gradient, base + N ḡ, of the active parameters."""
    base = call_array(source.base, (point, source.constants))
    n, n_rows = gradients.shape[0], source.data[0].shape[0]
    mean[:] = 0.0
    for i in range(n):
        for j in range(active.size):
            mean[j] += gradients[i, active[j]]
    for j in range(active.size):
        mean[j] /= n
        total[j] = base[active[j]] + n_rows * mean[j]


@njit
def add_noise(
    rng: np.random.Generator, scale: float, lower: np.ndarray, band: int, vector: np.ndarray
) -> None:
    """Add ``scale * L ξ``, ξ standard normal."""
    for j in range(vector.size):
        xi = scale * rng.standard_normal()
        for i in range(j, min(vector.size, j + band)):
            vector[i] += lower[i, j] * xi


@njit
def solve_lower(lower: np.ndarray, band: int, vector: np.ndarray) -> None:
    """Overwrite a vector by ``L⁻¹`` times it."""
    for i in range(vector.size):
        for j in range(max(0, i - band + 1), i):
            vector[i] -= lower[i, j] * vector[j]
        vector[i] /= lower[i, i]


@njit
def solve_upper(lower: np.ndarray, band: int, vector: np.ndarray) -> None:
    """Overwrite a vector by ``L⁻ᵀ`` times it."""
    for i in range(vector.size - 1, -1, -1):
        vector[i] /= lower[i, i]
        for j in range(max(0, i - band + 1), i):
            vector[j] -= lower[i, j] * vector[i]


@njit
def cholesky(matrix: np.ndarray, band: int, lower: np.ndarray) -> int:
    """Factor a matrix; return the position of a pivot that is not positive, or -1."""
    for i in range(matrix.shape[0]):
        first = max(0, i - band + 1)
        for j in range(first, i + 1):
            entry = matrix[i, j]
            for k in range(first, j):
                entry -= lower[i, k] * lower[j, k]
            if j < i:
                lower[i, j] = entry / lower[j, j]
            elif entry > SINGULAR * matrix[i, i]:
                lower[i, i] = math.sqrt(entry)
            else:
                return i
    return -1


@njit
def squared_norm(vector: np.ndarray) -> float:
    """Return |x|²."""
    total = 0.0
    for i in range(vector.size):
        total += vector[i] ** 2
    return total


@njit
def diverges(squared_drift: float, dim: int, limit: np.ndarray) -> bool:
    """Whether a step is far longer than the first one, to which `limit` is set."""
    if limit[0] == 0.0:
        limit[0] = DIVERGED * max(squared_drift, float(dim))
    return not squared_drift < limit[0]
