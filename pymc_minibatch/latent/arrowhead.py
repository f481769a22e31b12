"""Precision matrices with the shape of an arrow: groups that only a dense part joins.

A vector has a dense part of p entries and G groups of q entries. A symmetric matrix whose blocks
between different groups are zero,

    ⎡ A    Bᵀ ⎤        A: p × p,  B: G blocks of q × p,  D: G blocks of q × q on the diagonal
    ⎣ B    D  ⎦

is factored by eliminating the groups first, which fills nothing in: with C_g C_gᵀ = D_g and
W_g = C_g⁻¹ B_g, what is left for the dense part is S = A − Σ W_gᵀ W_g. Time is O(G(q³ + qp²) + p³)
and memory O(Gq(q + p)); nothing of the size of the whole is made. If the dense part holds the
levels of other factors, of which each group meets few, B and W are sparse, and time and memory are
those of the entries that are not zero; so are A and S (:mod:`.schur`) if few unknowns meet.

Reference
---------
Rue and Held (2005), Gaussian Markov Random Fields, section 2.4.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.latent.banded import BandedCholesky
from pymc_minibatch.latent.batched import (
    factored_blocks,
    log_diagonal,
    multiply_blocks,
    multiply_matrices,
    multiply_transposed,
    solve_blocks,
    solve_blocks_transposed,
)
from pymc_minibatch.latent.cholesky import (
    MOST_FULL,
    DenseCholesky,
    SparseCholesky,
    factor_dense,
    factor_sparse,
    refuse_large,
)
from pymc_minibatch.latent.krylov import KrylovRoot
from pymc_minibatch.latent.layout import ArrowheadLayout
from pymc_minibatch.latent.schur import minus_gram, sparse_minus_gram

__all__ = [
    "ArrowheadFactor",
    "ArrowheadMatrix",
    "Matrix",
    "added",
    "blocks_of_dense",
    "by_columns",
    "compact",
    "congruent",
    "denser",
    "is_empty",
    "is_summed_whole",
]

Matrix = Any
"""An array, or a sparse array of SciPy, which says nothing of types."""

SPARSE_SIZE, SPARSE_SHARE = 10**5, 0.2
"""From what size and below what share of entries that are not zero a matrix is kept sparse."""


MOST_FACTORED = 3000
"""A larger border beside groups is not factored if products do: it would take more than half a
second for each value of the hyperparameters, with the cube of the size."""

MOST_SUMMED = 1500
"""The sums over rows of a larger border are kept in parts: an array of 18 MB for each part of the
rows takes longer to clear and to add than 40,000 rows."""


@dataclass(frozen=True)
class ArrowheadMatrix:
    """A symmetric matrix with the shape of an arrow.

    Attributes
    ----------
    dense : ndarray or sparse array, shape (p, p)
        The block A of the dense part.
    cross : ndarray or sparse array, shape (G q, p)
        The blocks B of the groups with the dense part, one below the other.
    blocks : ndarray, shape (G, q, q)
        The block of each group.
    """

    dense: Matrix
    cross: Matrix
    blocks: np.ndarray

    def __add__(self, other: "ArrowheadMatrix") -> "ArrowheadMatrix":
        """Add two matrices of the same shape."""
        cross = added(self.cross, other.cross)
        return ArrowheadMatrix(self.dense + other.dense, cross, self.blocks + other.blocks)

    def scaled(self, by: float) -> "ArrowheadMatrix":
        """Multiply by a number."""
        return ArrowheadMatrix(by * self.dense, by * self.cross, by * self.blocks)

    def without(self, places: np.ndarray) -> "ArrowheadMatrix":
        """Leave out rows and columns of the dense part."""
        kept = np.setdiff1d(np.arange(self.dense.shape[0]), places)
        dense = self.dense[kept][:, kept]
        return ArrowheadMatrix(compact(dense), compact(self.cross[:, kept]), self.blocks)

    def blocks_of(self, layout: ArrowheadLayout, positions: np.ndarray) -> np.ndarray:
        """Return the blocks on the diagonal, (G, q, q), of positions that lie in one part."""
        if positions is layout.groups:
            return self.blocks
        return blocks_of_dense(self.dense, layout, positions)

    def columns_of(
        self, layout: ArrowheadLayout, positions: np.ndarray, dense: np.ndarray
    ) -> np.ndarray:
        """Return what is between positions in one part, (G, q), and (m,) of the dense part."""
        column = np.searchsorted(layout.dense, dense)
        if positions is layout.groups:
            return _whole(self.cross[:, column]).reshape(*positions.shape, dense.size)
        return _entries(
            self.dense, np.searchsorted(layout.dense, positions)[:, :, None], column[None, None]
        )

    def damped(self, damping: float) -> "ArrowheadMatrix":
        """Raise the diagonal by a share of its absolute value."""
        diagonal = np.abs(np.einsum("gqq->gq", self.blocks))
        of_dense = damping * np.abs(self.dense.diagonal())
        is_sparse = sparse.issparse(self.dense)
        return ArrowheadMatrix(
            self.dense + (sparse.diags_array(of_dense).tocsr() if is_sparse else np.diag(of_dense)),
            self.cross,
            self.blocks + damping * diagonal[:, :, None] * np.eye(self.blocks.shape[1]),
        )

    def product(self, dense: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Multiply a vector, given as its dense part (p,) and its groups (G, q)."""
        of_dense, of_groups = self.dense @ dense, multiply_blocks(self.blocks, groups)
        if _by_rows(self.cross):
            add_crossed(_compressed(self.cross), dense, groups.ravel(), of_dense, of_groups.ravel())
        else:
            of_groups += (self.cross @ dense).reshape(groups.shape)
            of_dense += self.cross.T @ groups.ravel()
        return of_dense, of_groups

    def factor(self, by_products: bool = True) -> "ArrowheadFactor":
        """Factor the matrix.

        Parameters
        ----------
        by_products
            Whether a large border may be left to products.

        Raises
        ------
        LinAlgError
            If it is not positive definite.
        """
        cholesky = factored_blocks(self.blocks)
        reduced = _solve_each(cholesky, self.cross)
        limit = math.inf if by_products else MOST_FULL
        if by_products and reduced.size and self.dense.shape[0] > MOST_FACTORED:
            root = KrylovRoot(self.dense, reduced)
            _ = root.scale
            return ArrowheadFactor(root, reduced, cholesky)
        rest = sparse_minus_gram(self.dense, reduced)
        if rest is not None:
            return ArrowheadFactor(factor_sparse(rest, limit), reduced, cholesky)
        refuse_large(self.dense.shape[0], limit)
        return ArrowheadFactor(factor_dense(minus_gram(self.dense, reduced)), reduced, cholesky)


@dataclass(frozen=True)
class ArrowheadFactor:
    """The factor L of an arrow, groups before the dense part: L Lᵀ is the matrix.

    Attributes
    ----------
    schur : DenseCholesky, SparseCholesky, BandedCholesky or KrylovRoot
        Factor, or another root, of what elimination of the groups leaves for the dense part.
    reduced : ndarray or sparse array, shape (G q, p)
        ``W_g = C_g⁻¹ B_g``, one below the other.
    cholesky : ndarray, shape (G, q, q)
        Lower factors C_g of the groups' blocks.
    """

    schur: DenseCholesky | SparseCholesky | BandedCholesky | KrylovRoot
    reduced: Matrix
    cholesky: np.ndarray

    def log_determinant(self) -> float:
        """Return log |L|, half the log-determinant of the matrix."""
        return self.schur.log_determinant() + log_diagonal(self.cholesky)

    def color(self, dense: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``L⁻ᵀ η``: of standard normal η, a draw with the matrix as its precision."""
        z_dense = self.schur.solve_transposed(dense)
        return z_dense, self.color_groups(z_dense, groups)

    def color_groups(self, z_dense: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Return the groups' part of ``L⁻ᵀ η`` where the dense part of the result is known."""
        rest = groups - (self.reduced @ z_dense).reshape(groups.shape)
        return solve_blocks_transposed(self.cholesky, rest)

    def whiten(self, dense: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Undo :meth:`color`: return ``Lᵀ z``."""
        of_groups = multiply_transposed(self.cholesky, groups)
        of_groups += (self.reduced @ dense).reshape(groups.shape)
        return self.schur.multiply_transposed(dense), of_groups

    def solve(self, dense: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Solve for the vector whose product with the matrix is given."""
        return self.color(*self.solve_lower(dense, groups))

    def solve_lower(self, dense: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``L⁻¹ x``."""
        halfway = solve_blocks(self.cholesky, groups[:, :, None])[:, :, 0]
        rest = dense - self.reduced.T @ halfway.ravel()
        return self.schur.solve(rest), halfway


def is_summed_whole(n_dense: int) -> bool:
    """Whether sums over rows of a border of so many unknowns are kept as an array."""
    return n_dense <= min(MOST_SUMMED, MOST_FACTORED)


def added(first: Matrix, second: Matrix) -> Matrix:
    """Add two matrices, of which one may be empty."""
    return first if is_empty(second) else second if is_empty(first) else first + second


def blocks_of_dense(dense: Matrix, layout: ArrowheadLayout, positions: np.ndarray) -> np.ndarray:
    """Return the blocks on the diagonal, (G, q, q), of positions in the dense part of an arrow."""
    place = np.searchsorted(layout.dense, positions)
    if positions.shape[1] == 1:
        return dense.diagonal()[place][:, :, None]
    return _entries(dense, place[:, :, None], place[:, None, :])


def compact(matrix: Matrix) -> Matrix:
    """Return a matrix as a sparse one if it is large and mostly zero, else as an array."""
    size = math.prod(matrix.shape)
    if size < SPARSE_SIZE:
        return _whole(matrix)
    return sparse.csr_array(matrix) if _is_mostly_zero(matrix) else _whole(matrix)


def _is_mostly_zero(matrix: Matrix) -> bool:
    n_entries = matrix.nnz if sparse.issparse(matrix) else np.count_nonzero(matrix)
    return bool(n_entries < SPARSE_SHARE * math.prod(matrix.shape))


def congruent(matrix: Matrix, a: Matrix) -> Matrix:
    """Return ``Aᵀ M A``.

    It is fast if both are sparse and each row of A has one entry, or both are arrays and A permutes
    and scales.
    """
    if not (sparse.issparse(matrix) or sparse.issparse(a)) and _permutes(a):
        rows, columns = np.nonzero(a)
        permuted, scale = np.empty_like(matrix), a[rows, columns]
        permuted[columns[:, None], columns] = matrix * scale[:, None] * scale
        return permuted
    if not _picks(matrix, a):
        return a.T @ matrix @ a
    rows = np.repeat(np.arange(a.shape[0]), np.diff(matrix.indptr))
    entries = matrix.data * a.data[rows] * a.data[matrix.indices]
    shape = a.shape[1], a.shape[1]
    if _is_diagonal(a):
        return sparse.csr_array((entries, matrix.indices, matrix.indptr), shape)
    places = a.indices[rows], a.indices[matrix.indices]
    return sparse.csr_array(sparse.coo_array((entries, places), shape))


def by_columns(matrix: Matrix, a: Matrix) -> Matrix:
    """Return ``M A``, fast where both are sparse and A is diagonal; sparse if that pays."""
    if sparse.issparse(matrix) and not sparse.issparse(a) and _is_mostly_zero(a):
        a = sparse.csr_array(a)
    if not (_picks(matrix, a) and _is_diagonal(a)):
        return matrix @ a
    entries = matrix.data * a.data[matrix.indices]
    return sparse.csr_array((entries, matrix.indices, matrix.indptr), matrix.shape)


def _picks(matrix: Matrix, a: Matrix) -> bool:
    """Whether both are sparse and each row of A has one entry."""
    both = sparse.issparse(matrix) and sparse.issparse(a)
    return bool(both and np.all(np.diff(a.indptr) == 1))


def _permutes(a: np.ndarray) -> bool:
    """Whether each row and each column of an array has one entry."""
    if a.shape[0] != a.shape[1] or np.count_nonzero(a) != a.shape[0]:
        return False
    return all(bool(np.all(a.any(axis=axis))) for axis in (0, 1))


def _is_diagonal(a: Matrix) -> bool:
    return a.shape[0] == a.shape[1] and np.array_equal(a.indices, np.arange(a.shape[0]))


def denser(matrix: Matrix) -> Matrix:
    """Return an array where a sparse matrix has become too full; arrays as they are."""
    return compact(matrix) if sparse.issparse(matrix) else matrix


def is_empty(matrix: Matrix) -> bool:
    """Whether a matrix is kept sparse and has no entries."""
    return sparse.issparse(matrix) and matrix.nnz == 0


def _whole(matrix: Matrix) -> np.ndarray:
    return matrix.toarray() if sparse.issparse(matrix) else matrix


def _entries(matrix: Matrix, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return entries of a matrix, of the shape that rows and columns have together."""
    rows, columns = np.broadcast_arrays(rows, columns)
    # SciPy gives no array where it is asked for no entry.
    return _whole(matrix[rows.flatten(), columns.flatten()]).reshape(rows.shape)


def _block_diagonal(blocks: np.ndarray) -> sparse.csr_array:
    n_groups, height, width = blocks.shape
    columns = np.arange(n_groups * width).reshape(n_groups, 1, width)
    starts = np.arange(0, blocks.size + 1, width)
    every = np.broadcast_to(columns, blocks.shape).ravel()
    shape = (n_groups * height, n_groups * width)
    return sparse.csr_array((blocks.ravel(), every, starts), shape)


def _by_rows(matrix: Matrix) -> bool:
    return sparse.issparse(matrix) and matrix.format == "csr"


def _scaled_rows(scale: np.ndarray, matrix: Matrix) -> Matrix:
    entries = matrix.data * np.repeat(scale, np.diff(matrix.indptr))
    return sparse.csr_array((entries, matrix.indices, matrix.indptr), matrix.shape)


def multiply_each(blocks: np.ndarray, matrix: Matrix) -> Matrix:
    """Multiply each group's block, (G, m, q), with its rows of a matrix, (G q, n)."""
    if _by_rows(matrix) and blocks.shape[1:] == (1, 1):
        return _scaled_rows(blocks.ravel(), matrix)
    if sparse.issparse(matrix):
        return _block_diagonal(blocks) @ matrix
    n_groups, height, width = blocks.shape
    parts = matrix.reshape(n_groups, width, matrix.shape[1])
    return multiply_matrices(blocks, parts).reshape(n_groups * height, matrix.shape[1])


def _solve_each(cholesky: np.ndarray, matrix: Matrix) -> Matrix:
    """Solve ``C_g X_g = B_g`` for each group's rows B_g of a matrix, (G q, n)."""
    if _by_rows(matrix) and cholesky.shape[1] == 1:
        return _scaled_rows(1.0 / cholesky.ravel(), matrix)
    if sparse.issparse(matrix):
        identity = np.broadcast_to(np.eye(cholesky.shape[1]), cholesky.shape)
        return _block_diagonal(solve_blocks(cholesky, identity)) @ matrix
    parts = matrix.reshape(*cholesky.shape[:2], matrix.shape[1])
    return solve_blocks(cholesky, parts).reshape(matrix.shape)


type _Compressed = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Where the rows, or columns, of a sparse matrix start, positions in them, and entries."""


def _compressed(matrix: sparse.csr_array | sparse.csc_array) -> _Compressed:
    return matrix.indptr, matrix.indices, matrix.data


@jit_kept
def add_crossed(
    by_row: _Compressed,
    dense: np.ndarray,
    groups: np.ndarray,
    of_dense: np.ndarray,
    of_groups: np.ndarray,
) -> None:
    """Add the products of B with the dense part and of Bᵀ with the groups, in one pass."""
    starts, columns, entries = by_row
    for i in range(groups.size):
        total = 0.0
        for k in range(starts[i], starts[i + 1]):
            j, entry = columns[k], entries[k]
            total += entry * dense[j]
            of_dense[j] += entry * groups[i]
        of_groups[i] += total
