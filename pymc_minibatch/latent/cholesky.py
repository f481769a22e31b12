"""Cholesky factors of dense matrices, and of sparse ones whose factors remain sparse.

The precision of a random walk, of areas and their neighbours or of a regression's coefficients
beside them is factored in time that grows with the entries of its factor, not with the cube of its
size. Unknowns with few neighbours are eliminated first, in an order that is found once for each
pattern of entries; large matrices that are banded are left to LAPACK (:mod:`.banded`).

References
----------
Davis (2005), Algorithm 849: a concise sparse Cholesky factorization package. George and Liu (1989),
The evolution of the minimum degree ordering algorithm.
"""

from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError
from scipy.linalg.blas import dtrmv
from scipy.linalg.lapack import dpotrf, dtrtrs

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.latent.banded import NOT_POSITIVE, BandedCholesky, find_band
from pymc_minibatch.latent.no_field import NoFieldError

__all__ = [
    "MOST_FULL",
    "DenseCholesky",
    "SparseCholesky",
    "factor_dense",
    "factor_sparse",
    "has_sparse_factor",
    "refuse_large",
]

LARGE, MOST_FULL = 3000, 6000
"""Unknowns from which on an order in which they are banded is looked for; and of which a matrix may
be full: factoring it takes about two seconds."""

MOST_FILLED = 0.2
"""With a larger share of entries in the factor, LAPACK is faster."""

MOST_WORK, MOST_WORK_OF_LARGE = 2e8, 1e9
"""Sum of the squares of neighbours above which no order is looked for any further: some seconds,
and half a minute if the matrix is too large to be full."""


@dataclass(frozen=True)
class DenseCholesky:
    """The factor L of a dense matrix, in lower triangular form.

    Attributes
    ----------
    lower : ndarray, shape (p, p)
        L.
    """

    lower: np.ndarray
    has_determinant = True

    @property
    def work(self) -> float:
        """About how many multiplications the factorization takes."""
        return self.lower.shape[0] ** 3 / 6

    def log_determinant(self) -> float:
        """Return log |L|."""
        return float(np.log(np.diagonal(self.lower)).sum())

    def solve(self, vector: np.ndarray) -> np.ndarray:
        """Return ``L⁻¹ x``."""
        return dtrtrs(self.lower, vector, lower=1)[0] if vector.size else vector

    def solve_transposed(self, vector: np.ndarray) -> np.ndarray:
        """Return ``L⁻ᵀ x``."""
        return dtrtrs(self.lower, vector, lower=1, trans=1)[0] if vector.size else vector

    def multiply_transposed(self, vector: np.ndarray) -> np.ndarray:
        """Return ``Lᵀ x``."""
        return dtrmv(self.lower, vector, lower=1, trans=1) if vector.size else vector


@dataclass(frozen=True)
class Elimination:
    """How a sparse matrix is factored, whatever its entries are.

    Attributes
    ----------
    order : ndarray of int64, shape (p,)
        The unknowns in the order in which they are eliminated.
    gather : ndarray of int64, shape (K,)
        Where the entries above and on the diagonal of the ordered matrix are, column by column,
        among those of the matrix.
    starts, rows : ndarray of int64, shapes (p + 1,) and (K,)
        Where columns start among them, and the row of each.
    parent : ndarray of int64, shape (p,)
        The elimination tree.
    columns : ndarray of int64, shape (p + 1,)
        Where columns of the factor start.
    """

    order: np.ndarray
    gather: np.ndarray
    starts: np.ndarray
    rows: np.ndarray
    parent: np.ndarray
    columns: np.ndarray


@dataclass(frozen=True)
class SparseCholesky:
    """The factor L of a sparse matrix with its unknowns in another order.

    Attributes
    ----------
    order : ndarray of int64, shape (p,)
        The unknowns in the order in which they are eliminated.
    starts, rows, entries : ndarray, shapes (p + 1,), (K,) and (K,)
        What is below the diagonal, column by column, in units of the diagonal.
    diagonal : ndarray, shape (p,)
        The diagonal.
    """

    order: np.ndarray
    starts: np.ndarray
    rows: np.ndarray
    entries: np.ndarray
    diagonal: np.ndarray
    has_determinant = True

    @property
    def work(self) -> float:
        """About how many multiplications the factorization takes."""
        return float(np.sum(np.diff(self.starts) ** 2)) / 2

    def log_determinant(self) -> float:
        """Return log |L|."""
        return float(np.log(self.diagonal).sum())

    def solve(self, vector: np.ndarray) -> np.ndarray:
        """Return ``L⁻¹ x``."""
        halfway = vector[self.order]
        solve_columns(self.starts, self.rows, self.entries, halfway)
        return halfway / self.diagonal

    def solve_transposed(self, vector: np.ndarray) -> np.ndarray:
        """Return ``L⁻ᵀ x``."""
        solved = vector / self.diagonal
        solve_columns_transposed(self.starts, self.rows, self.entries, solved)
        ordered = np.empty_like(solved)
        ordered[self.order] = solved
        return ordered

    def multiply_transposed(self, vector: np.ndarray) -> np.ndarray:
        """Return ``Lᵀ x``."""
        ordered = vector[self.order]
        return self.diagonal * multiply_columns(self.starts, self.rows, self.entries, ordered)


def factor_dense(matrix: np.ndarray) -> DenseCholesky:
    """Factor a matrix of which the lower triangle is read.

    Raises
    ------
    LinAlgError
        If it is not positive definite.
    """
    lower, failed = dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
    if failed:
        raise LinAlgError(NOT_POSITIVE)
    return DenseCholesky(lower)


def refuse_large(size: int, limit: float) -> None:
    """Refuse a full matrix of too many unknowns.

    Raises
    ------
    NoFieldError
    """
    if size > limit:
        raise NoFieldError(
            f"{size:,} coefficients and effects are read together by too many rows "
            f"(limit {limit:,}, if no grouping factor and no walk keeps them apart)."
        )


def factor_sparse(
    matrix: sparse.csr_array, limit: float = MOST_FULL
) -> DenseCholesky | SparseCholesky | BandedCholesky:
    """Factor a symmetric sparse matrix, of at most `limit` unknowns if its factor is full.

    Raises
    ------
    LinAlgError
        If it is not positive definite.
    NoFieldError
        If its factor would be full, and too large.
    """
    matrix.sort_indices()
    pattern = [part.astype(np.int64).tobytes() for part in (matrix.indptr, matrix.indices)]
    size = matrix.shape[0]
    band = find_band(*pattern) if size > LARGE else None
    if band is not None:
        return band.factor(matrix)
    found = _elimination(*pattern)
    if found is None:
        refuse_large(size, limit)
        return factor_dense(np.asfortranarray(matrix.toarray()))
    n = found.columns[-1]
    rows, entries = np.empty(n, dtype=np.int64), np.empty(n)
    diagonal = np.empty(found.order.size)
    of_matrix = matrix.data[found.gather]
    if not eliminate(
        found.starts, found.rows, of_matrix, found.parent, found.columns, rows, entries, diagonal
    ):
        raise LinAlgError(NOT_POSITIVE)
    return SparseCholesky(found.order, found.columns, rows, entries, np.sqrt(diagonal))


def has_sparse_factor(starts_bytes: bytes, columns_bytes: bytes) -> bool:
    """Whether the factor of a pattern of entries is sparse: where rows start, and the columns."""
    size = len(starts_bytes) // 8 - 1
    if size > LARGE and find_band(starts_bytes, columns_bytes) is not None:
        return True
    return _elimination(starts_bytes, columns_bytes) is not None


@lru_cache(maxsize=8)
def _elimination(starts_bytes: bytes, columns_bytes: bytes) -> Elimination | None:
    """Find the order for a pattern of entries; None if the factor would be nearly full."""
    starts, columns = (np.frombuffer(b, dtype=np.int64) for b in (starts_bytes, columns_bytes))
    size = starts.size - 1
    numbers = np.arange(1, columns.size + 1)
    order = _few_neighbours_first(starts, columns)
    if order is None:
        return None
    pattern = sparse.csr_array((numbers, columns, starts), (size, size))
    upper = sparse.csc_array(sparse.triu(pattern[order][:, order]))
    upper.sort_indices()
    first, rows = upper.indptr.astype(np.int64), upper.indices.astype(np.int64)
    parent, counts = elimination_tree(first, rows)
    ends = np.concatenate([[0], np.cumsum(counts)])
    return Elimination(order, upper.data - 1, first, rows, parent, ends)


def _few_neighbours_first(starts: np.ndarray, columns: np.ndarray) -> np.ndarray | None:
    """Order unknowns by how many neighbours they have when their turn comes."""
    size = starts.size - 1
    neighbours = [set(columns[starts[i] : starts[i + 1]].tolist()) - {i} for i in range(size)]
    waiting = [(len(own), i) for i, own in enumerate(neighbours)]
    heapify(waiting)
    done, order, filled, work = np.zeros(size, dtype=np.bool_), list[int](), 0, 0
    most_work = MOST_WORK if size <= MOST_FULL else MOST_WORK_OF_LARGE
    while waiting:
        n, i = heappop(waiting)
        if done[i] or n != len(neighbours[i]):  # has changed since, and waits again
            continue
        filled, work = filled + n, work + n**2
        if filled > MOST_FILLED * size**2 / 2 or work > most_work:
            return None
        for j in neighbours[i]:
            neighbours[j] |= neighbours[i]
            neighbours[j] -= {i, j}
            heappush(waiting, (len(neighbours[j]), j))
        done[i] = True
        order.append(i)
    return np.array(order, dtype=np.int64)


@jit_kept
def elimination_tree(starts: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the parent of each column, and how many entries it has below the diagonal."""
    size = starts.size - 1
    parent, counts = np.full(size, -1), np.zeros(size, dtype=np.int64)
    seen = np.full(size, -1)
    for k in range(size):
        seen[k] = k
        for p in range(starts[k], starts[k + 1]):
            i = rows[p]
            while seen[i] != k:
                if parent[i] == -1:
                    parent[i] = k
                counts[i] += 1
                seen[i] = k
                i = parent[i]
    return parent, counts


@jit_kept
def eliminate(
    starts: np.ndarray,
    rows: np.ndarray,
    matrix: np.ndarray,
    parent: np.ndarray,
    columns: np.ndarray,
    factor_rows: np.ndarray,
    factor: np.ndarray,
    squares: np.ndarray,
) -> bool:
    """Write the factor row by row; return whether the matrix is positive definite.

    Its diagonal is one, and `squares` are those of the true one.
    """
    size = starts.size - 1
    work, ends = np.zeros(size), columns[:-1].copy()
    path, reached = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    seen = np.full(size, -1)
    for k in range(size):
        seen[k], first = k, size
        for p in range(starts[k], starts[k + 1]):
            i, length = rows[p], 0
            work[i] += matrix[p]
            while seen[i] != k:
                path[length] = i
                length += 1
                seen[i] = k
                i = parent[i]
            while length > 0:
                first, length = first - 1, length - 1
                reached[first] = path[length]
        squares[k], work[k] = work[k], 0.0
        for r in range(first, size):
            i = reached[r]
            entry, work[i] = work[i], 0.0
            for p in range(columns[i], ends[i]):
                work[factor_rows[p]] -= factor[p] * entry
            factor_rows[ends[i]], factor[ends[i]] = k, entry / squares[i]
            squares[k] -= factor[ends[i]] * entry
            ends[i] += 1
        if not squares[k] > 0.0:
            return False
    return True


@jit_kept
def solve_columns(
    starts: np.ndarray, rows: np.ndarray, entries: np.ndarray, vector: np.ndarray
) -> None:
    """Solve with a unit lower triangular matrix, in place."""
    for k in range(vector.size):
        for p in range(starts[k], starts[k + 1]):
            vector[rows[p]] -= entries[p] * vector[k]


@jit_kept
def solve_columns_transposed(
    starts: np.ndarray, rows: np.ndarray, entries: np.ndarray, vector: np.ndarray
) -> None:
    """Solve with the transpose of a unit lower triangular matrix, in place."""
    for k in range(vector.size - 1, -1, -1):
        for p in range(starts[k], starts[k + 1]):
            vector[k] -= entries[p] * vector[rows[p]]


@jit_kept
def multiply_columns(
    starts: np.ndarray, rows: np.ndarray, entries: np.ndarray, vector: np.ndarray
) -> np.ndarray:
    """Multiply the transpose of a unit lower triangular matrix with a vector."""
    product = vector.copy()
    for k in range(vector.size):
        for p in range(starts[k], starts[k + 1]):
            product[k] += entries[p] * vector[rows[p]]
    return product
