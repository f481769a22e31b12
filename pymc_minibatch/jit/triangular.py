"""Lower triangular matrices as loops, which compile fast where LAPACK does not.

Only the last `band` entries of each row up to the diagonal are read: all of them, or, with a band
of 1, the diagonal alone.
"""

import math

import numpy as np
from numba import njit

__all__ = [
    "add_noise",
    "cholesky",
    "multiply",
    "multiply_transposed",
    "solve_lower",
    "solve_upper",
    "squared_norm",
]

SINGULAR = 1e-10
"""A pivot so much smaller than its diagonal entry stands for zero."""


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
def multiply(lower: np.ndarray, band: int, vector: np.ndarray) -> None:
    """Overwrite a vector by ``L`` times it."""
    for i in range(vector.size - 1, -1, -1):
        vector[i] *= lower[i, i]
        for j in range(max(0, i - band + 1), i):
            vector[i] += lower[i, j] * vector[j]


@njit
def multiply_transposed(lower: np.ndarray, band: int, vector: np.ndarray) -> None:
    """Overwrite a vector by ``Lᵀ`` times it."""
    for j in range(vector.size):
        vector[j] *= lower[j, j]
        for i in range(j + 1, min(vector.size, j + band)):
            vector[j] += lower[i, j] * vector[i]


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
def add_noise(
    rng: np.random.Generator, scale: float, lower: np.ndarray, band: int, vector: np.ndarray
) -> None:
    """Add ``scale * L ξ``, ξ standard normal."""
    for j in range(vector.size):
        xi = scale * rng.standard_normal()
        for i in range(j, min(vector.size, j + band)):
            vector[i] += lower[i, j] * xi


@njit
def squared_norm(vector: np.ndarray) -> float:
    """Return |x|²."""
    total = 0.0
    for i in range(vector.size):
        total += vector[i] ** 2
    return total
