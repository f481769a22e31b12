"""Small matrices, one for each group: factors, solutions and products of all of them at once."""

import math

import numpy as np
from numba.extending import register_jitable
from scipy.linalg import LinAlgError

from pymc_minibatch.jit.compiled import jit_kept

__all__ = [
    "absolute",
    "factored_blocks",
    "inner_products",
    "log_diagonal",
    "multiply_blocks",
    "multiply_matrices",
    "multiply_transposed",
    "solve_blocks",
    "solve_blocks_transposed",
]

LEAST_PIVOT = 1e-10
"""A pivot as a share of its diagonal entry, below which its sign may be that of rounding."""


def factored_blocks(blocks: np.ndarray) -> np.ndarray:
    """Return the lower factor of each block.

    Raises
    ------
    LinAlgError
        If one is not positive definite.
    """
    cholesky = np.empty_like(blocks)
    if not factor_blocks(blocks, cholesky):
        raise LinAlgError("The block of a group is not positive definite.")
    return cholesky


@jit_kept
def factor_blocks(blocks: np.ndarray, cholesky: np.ndarray) -> bool:
    """Write the lower factor of each block; return whether all are positive definite."""
    n_groups, width, _ = blocks.shape
    cholesky[:] = 0.0
    for g in range(n_groups):
        for i in range(width):
            for j in range(i + 1):
                total = blocks[g, i, j]
                for k in range(j):
                    total -= cholesky[g, i, k] * cholesky[g, j, k]
                if i > j:
                    cholesky[g, i, j] = total / cholesky[g, j, j]
                elif total > 0.0:
                    cholesky[g, i, i] = math.sqrt(total)
                else:
                    return False
    return True


@jit_kept
def solve_blocks(cholesky: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve ``C_g x_g = b_g`` for columns b_g, shape (G, q, n)."""
    n_groups, width, n = right.shape
    x = np.empty((n_groups, width, n))
    for g in range(n_groups):
        for i in range(width):
            for k in range(n):
                x[g, i, k] = right[g, i, k]
            for j in range(i):
                for k in range(n):
                    x[g, i, k] -= cholesky[g, i, j] * x[g, j, k]
            for k in range(n):
                x[g, i, k] /= cholesky[g, i, i]
    return x


@jit_kept
def solve_blocks_transposed(cholesky: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve ``C_gᵀ x_g = b_g`` for vectors b_g, shape (G, q)."""
    n_groups, width = right.shape
    x = np.empty((n_groups, width))
    for g in range(n_groups):
        for i in range(width - 1, -1, -1):
            total = right[g, i]
            for j in range(i + 1, width):
                total -= cholesky[g, j, i] * x[g, j]
            x[g, i] = total / cholesky[g, i, i]
    return x


@jit_kept
def solve_square(matrices: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, float]:
    """Solve ``M_g x_g = b_g`` for vectors b_g, shape (G, q); also return Σ log |det M_g|.

    If a matrix is singular, that is −∞.
    """
    n_groups, width = right.shape
    x, log_determinant = right.copy(), 0.0
    if width == 1:
        for g in range(n_groups):
            if not abs(matrices[g, 0, 0]) > 0.0:
                return x, -np.inf
            log_determinant += math.log(abs(matrices[g, 0, 0]))
            x[g, 0] /= matrices[g, 0, 0]
        return x, log_determinant
    if width == 2:
        for g in range(n_groups):
            a, b, c, d = matrices[g, 0, 0], matrices[g, 0, 1], matrices[g, 1, 0], matrices[g, 1, 1]
            determinant = a * d - b * c
            if not abs(determinant) > 0.0:
                return x, -np.inf
            log_determinant += math.log(abs(determinant))
            x[g, 0] = (d * right[g, 0] - b * right[g, 1]) / determinant
            x[g, 1] = (a * right[g, 1] - c * right[g, 0]) / determinant
        return x, log_determinant
    work = np.empty((width, width))
    for g in range(n_groups):
        work[:] = matrices[g]
        log_determinant = eliminate(work, x[g], log_determinant)
        if log_determinant == -np.inf:
            return x, log_determinant
        for i in range(width - 1, -1, -1):
            for c in range(i + 1, width):
                x[g, i] -= work[i, c] * x[g, c]
            x[g, i] /= work[i, i]
    return x, log_determinant


@register_jitable
def eliminate(matrix: np.ndarray, right: np.ndarray, log_determinant: float) -> float:
    """Make a matrix upper triangular, with partial pivoting, and change the right side as it needs.

    Returns
    -------
    float
        What is passed, with log |det M| added; −∞ if the matrix is singular.
    """
    width = right.size
    for i in range(width):
        largest = i
        for r in range(i + 1, width):
            if abs(matrix[r, i]) > abs(matrix[largest, i]):
                largest = r
        if not abs(matrix[largest, i]) > 0.0:
            return -np.inf
        log_determinant += math.log(abs(matrix[largest, i]))
        for c in range(width):
            matrix[i, c], matrix[largest, c] = matrix[largest, c], matrix[i, c]
        right[i], right[largest] = right[largest], right[i]
        for r in range(i + 1, width):
            factor = matrix[r, i] / matrix[i, i]
            for c in range(i, width):
                matrix[r, c] -= factor * matrix[i, c]
            right[r] -= factor * right[i]
    return log_determinant


@jit_kept
def multiply_transposed(cholesky: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return ``C_gᵀ z_g`` for vectors z_g, shape (G, q)."""
    n_groups, width = vectors.shape
    product = np.zeros((n_groups, width))
    for g in range(n_groups):
        for i in range(width):
            for j in range(i, width):
                product[g, i] += cholesky[g, j, i] * vectors[g, j]
    return product


@jit_kept
def multiply_blocks(blocks: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return ``M_g z_g`` for vectors z_g, shape (G, q)."""
    n_groups, width = vectors.shape
    height = blocks.shape[1]
    product = np.zeros((n_groups, height))
    for g in range(n_groups):
        for i in range(height):
            for j in range(width):
                product[g, i] += blocks[g, i, j] * vectors[g, j]
    return product


@jit_kept
def multiply_matrices(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Multiply the matrices of each group, shapes (G, m, q) and (G, q, n)."""
    n_groups, m, width = left.shape
    n = right.shape[2]
    product = np.zeros((n_groups, m, n))
    for g in range(n_groups):
        for i in range(m):
            for j in range(width):
                factor = left[g, i, j]
                if factor != 0.0:
                    for k in range(n):
                        product[g, i, k] += factor * right[g, j, k]
    return product


def absolute(matrices: np.ndarray) -> np.ndarray:
    """Return symmetric matrices with the absolute values of their eigenvalues, shape (n, k, k).

    Two by two matrices have them in closed form: |S| is the root of S², which by Cayley and
    Hamilton is ``(tr S) S − (det S) I``. Of larger ones, LAPACK takes those that are not definite.
    Matrices that are not finite stay so.
    """
    k = matrices.shape[1]
    if k == 1:
        return np.abs(matrices)
    if k == 2:
        return _absolute_pairs(matrices)
    found = np.where((_trace(matrices) < 0.0)[:, None, None], -matrices, matrices)
    are_finite = np.isfinite(found).all(axis=(1, 2))  # LAPACK does not return from others
    (others,) = np.nonzero(are_finite & ~_are_definite(found))
    if others.size:
        values, vectors = np.linalg.eigh(matrices[others])
        found[others] = (vectors * np.abs(values)[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    return found


def _trace(matrices: np.ndarray) -> np.ndarray:
    return np.einsum("nii->n", matrices)


def _absolute_pairs(matrices: np.ndarray) -> np.ndarray:
    unit = np.abs(matrices).max(axis=(1, 2), initial=0.0)
    scaled = matrices / np.where(unit == 0.0, 1.0, unit)[:, None, None]
    trace = _trace(scaled)
    determinant = scaled[:, 0, 0] * scaled[:, 1, 1] - scaled[:, 0, 1] * scaled[:, 1, 0]
    added = 2.0 * np.maximum(-determinant, 0.0)
    root = np.sqrt(trace**2 + 2.0 * added)
    root[root == 0.0] = 1.0
    of_signs = (trace[:, None, None] * scaled + added[:, None, None] * np.eye(2)) / root[
        :, None, None
    ]
    of_one = np.where((trace < 0.0)[:, None, None], -matrices, matrices)
    return np.where((added == 0.0)[:, None, None], of_one, unit[:, None, None] * of_signs)


@np.errstate(over="ignore", invalid="ignore")  # once a pivot is not positive
def _are_definite(matrices: np.ndarray) -> np.ndarray:
    """Whether all pivots are positive, and not by rounding."""
    left = matrices.copy()
    least = LEAST_PIVOT * np.einsum("nii->ni", matrices)
    definite = np.full(len(matrices), True)
    for i in range(left.shape[1]):
        pivot = left[:, i, i]
        definite &= pivot > np.abs(least[:, i])
        column = left[:, i + 1 :, i] / np.where(definite, pivot, 1.0)[:, None]
        left[:, i + 1 :, i + 1 :] -= column[:, :, None] * left[:, None, i, i + 1 :]
    return definite


def inner_products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the inner product of each group's two vectors, shape (G,)."""
    products: np.ndarray = np.einsum("gq,gq->g", left, right)
    return products


@jit_kept
def log_diagonal(cholesky: np.ndarray) -> float:
    """Sum the logs of the diagonals of all blocks."""
    total = 0.0
    for g in range(cholesky.shape[0]):
        for i in range(cholesky.shape[1]):
            total += math.log(cholesky[g, i, i])
    return total
