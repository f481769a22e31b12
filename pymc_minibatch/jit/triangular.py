"""Vectors and lower triangular matrices as loops, which compile fast where LAPACK does not.

A matrix of one column holds the diagonal of one that is diagonal, so that it takes D numbers.
"""

import math

import numpy as np
from numba.extending import register_jitable

__all__ = [
    "add_noise",
    "cholesky",
    "multiply",
    "multiply_transposed",
    "overwrite",
    "solve_lower",
    "solve_upper",
    "squared_norm",
]

SINGULAR = 1e-10
"""A pivot so much smaller than its diagonal entry stands for zero."""


@register_jitable
def cholesky(matrix: np.ndarray, lower: np.ndarray) -> int:
    """Factor a matrix; return the position of a pivot that is not positive, or -1."""
    full = matrix.shape[1] > 1
    for i in range(matrix.shape[0]):
        diagonal = i if full else 0
        for j in range(diagonal):
            entry = matrix[i, j]
            for k in range(j):
                entry -= lower[i, k] * lower[j, k]
            lower[i, j] = entry / lower[j, j]
        entry = matrix[i, diagonal]
        for k in range(diagonal):
            entry -= lower[i, k] ** 2
        if not entry > SINGULAR * matrix[i, diagonal]:
            return i
        lower[i, diagonal] = math.sqrt(entry)
    return -1


@register_jitable
def multiply(lower: np.ndarray, vector: np.ndarray) -> None:
    """Overwrite a vector by ``L`` times it."""
    if lower.shape[1] == 1:
        for i in range(vector.size):
            vector[i] *= lower[i, 0]
        return
    for i in range(vector.size - 1, -1, -1):
        vector[i] *= lower[i, i]
        for j in range(i):
            vector[i] += lower[i, j] * vector[j]


@register_jitable
def multiply_transposed(lower: np.ndarray, vector: np.ndarray) -> None:
    """Overwrite a vector by ``Lᵀ`` times it."""
    if lower.shape[1] == 1:
        for i in range(vector.size):
            vector[i] *= lower[i, 0]
        return
    for j in range(vector.size):
        vector[j] *= lower[j, j]
        for i in range(j + 1, vector.size):
            vector[j] += lower[i, j] * vector[i]


@register_jitable
def solve_lower(lower: np.ndarray, vector: np.ndarray) -> None:
    """Overwrite a vector by ``L⁻¹`` times it."""
    if lower.shape[1] == 1:
        for i in range(vector.size):
            vector[i] /= lower[i, 0]
        return
    for i in range(vector.size):
        for j in range(i):
            vector[i] -= lower[i, j] * vector[j]
        vector[i] /= lower[i, i]


@register_jitable
def solve_upper(lower: np.ndarray, vector: np.ndarray) -> None:
    """Overwrite a vector by ``L⁻ᵀ`` times it."""
    if lower.shape[1] == 1:
        for i in range(vector.size):
            vector[i] /= lower[i, 0]
        return
    for i in range(vector.size - 1, -1, -1):
        vector[i] /= lower[i, i]
        for j in range(i):
            vector[j] -= lower[i, j] * vector[i]


@register_jitable
def overwrite(vector: np.ndarray, values: np.ndarray) -> None:
    """Write values into a vector of the same length.

    If a slice is assigned to, Numba spends a second on the message that lengths differ.
    """
    for i in range(vector.size):
        vector[i] = values[i]


@register_jitable
def add_noise(
    rng: np.random.Generator, scale: float, lower: np.ndarray, vector: np.ndarray
) -> None:
    """Add ``scale * L ξ``, ξ standard normal."""
    full = lower.shape[1] > 1
    for j in range(vector.size):
        xi = scale * rng.standard_normal()
        if full:
            for i in range(j, vector.size):
                vector[i] += lower[i, j] * xi
        else:
            vector[j] += lower[j, 0] * xi


@register_jitable(fastmath={"reassoc", "contract"})
def squared_norm(vector: np.ndarray) -> float:
    """Return |x|², summed in the order in which it is fastest."""
    total = 0.0
    for i in range(vector.size):
        total += vector[i] ** 2
    return total
