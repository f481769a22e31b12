"""What the elimination of groups leaves for the dense part of an arrow: S = A − WᵀW.

Levels that are nested, such as classes in schools, leave a matrix in which few unknowns meet: each
school meets itself and what all rows read. It is kept sparse if its factor is, whatever the number
of schools; entries that become zero by chance stay in the pattern, so that one order of elimination
serves all values of the hyperparameters. Crossed factors, such as students and lecturers, leave a
full matrix.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import sparse

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.latent.cholesky import has_sparse_factor

__all__ = ["minus_gram", "pattern_left", "sparse_minus_gram"]

Matrix = Any

SMALLEST = 1000
"""Unknowns below which LAPACK factors a full matrix in some 20 ms."""

MOST_SHARE, MOST_PRODUCTS = 0.1, 5e7
"""Share of entries, and products of two entries of W, above which S is not taken for sparse. So
many products take 0.1 s at each factorization, and a GB when the pattern is found."""

type _Compressed = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Where the rows, or columns, of a sparse matrix start, positions in them, and entries."""


def minus_gram(dense: Matrix, reduced: Matrix) -> np.ndarray:
    """Return ``A − WᵀW`` by columns; of a sparse W, in the lower triangle only."""
    if not sparse.issparse(reduced):
        whole = dense.toarray() if sparse.issparse(dense) else dense
        return np.asfortranarray(whole - reduced.T @ reduced)
    rest = dense.toarray() if sparse.issparse(dense) else dense.copy()
    by_column = reduced.tocsc()
    by_row = by_column.tocsr()  # with sorted columns
    subtract_gram(_compressed(by_row), _compressed(by_column), rest)
    return rest.T


def sparse_minus_gram(dense: Matrix, reduced: Matrix) -> sparse.csr_array | None:
    """Return ``A − WᵀW`` as a sparse matrix; None if it, or its factor, has too many entries."""
    if not sparse.issparse(dense):
        return None
    if not reduced.size:
        return dense
    if dense.shape[0] < SMALLEST:
        return None
    if not sparse.issparse(reduced):  # of few levels
        if np.count_nonzero(reduced) > MOST_SHARE * reduced.size:
            return None
        reduced = sparse.csr_array(reduced)
    found = pattern_left(*_places(dense), *_places(reduced))
    if found is None:
        return None
    (starts, columns), by_column = found, reduced.tocsc()
    entries = np.empty(columns.size)
    gram_by_row(
        _compressed(dense), _compressed(reduced), _compressed(by_column), starts, columns, entries
    )
    return sparse.csr_array((entries, columns, starts), dense.shape)


def _compressed(matrix: sparse.csr_array | sparse.csc_array) -> _Compressed:
    return matrix.indptr, matrix.indices, matrix.data


def _places(matrix: sparse.csr_array) -> list[bytes]:
    return [part.astype(np.int64).tobytes() for part in (matrix.indptr, matrix.indices)]


@lru_cache(maxsize=8)
def pattern_left(*places: bytes) -> tuple[np.ndarray, np.ndarray] | None:
    """Find where the entries of S are: the starts of its rows, and their columns.

    None if it, or its factor, has too many.

    Parameters
    ----------
    *places
        Where rows start in A and which columns its entries have, and the same of W, as bytes of
        int64.
    """
    size = len(places[0]) // 8 - 1
    dense, reduced = (_ones(places[i : i + 2], size) for i in (0, 2))
    n_products = np.sum(np.diff(reduced.indptr).astype(float) ** 2)
    if n_products > MOST_PRODUCTS:
        return None
    found = sparse.csr_array(dense + reduced.T @ reduced)
    if found.nnz > MOST_SHARE * size**2:
        return None
    found.sort_indices()
    if not has_sparse_factor(*_places(found)):
        return None
    return found.indptr.astype(np.int64), found.indices.astype(np.int64)


def _ones(places: Sequence[bytes], n_columns: int) -> sparse.csr_array:
    starts, columns = (np.frombuffer(each, dtype=np.int64) for each in places)
    entries = np.ones(columns.size, dtype=np.int32)
    return sparse.csr_array((entries, columns, starts), (starts.size - 1, n_columns))


@jit_kept
def subtract_gram(by_row: _Compressed, by_column: _Compressed, dense: np.ndarray) -> None:
    """Subtract ``WᵀW`` of a sparse W from the upper triangle of a matrix.

    It is written row by row, since a row of it stays in cache and the whole does not.
    """
    starts, columns, entries = by_row
    first, rows, entries_of_column = by_column
    place = starts.copy()  # of entries from column i on
    for i in range(dense.shape[0]):
        for k in range(first[i], first[i + 1]):
            g, entry = rows[k], entries_of_column[k]
            for m in range(place[g], starts[g + 1]):
                dense[i, columns[m]] -= entry * entries[m]
            place[g] += 1


@jit_kept
def gram_by_row(
    dense: _Compressed,
    by_row: _Compressed,
    by_column: _Compressed,
    starts: np.ndarray,
    columns: np.ndarray,
    entries: np.ndarray,
) -> None:
    """Write the entries of ``A − WᵀW`` of sparse A and W at their places in a pattern."""
    row_starts, row_columns, row_entries = by_row
    first, rows, entries_of_column = by_column
    own_starts, own_columns, own_entries = dense
    row = np.zeros(starts.size - 1)
    for i in range(starts.size - 1):
        for k in range(own_starts[i], own_starts[i + 1]):
            row[own_columns[k]] += own_entries[k]
        for k in range(first[i], first[i + 1]):
            g, entry = rows[k], entries_of_column[k]
            for m in range(row_starts[g], row_starts[g + 1]):
                row[row_columns[m]] -= entry * row_entries[m]
        for k in range(starts[i], starts[i + 1]):
            entries[k] = row[columns[k]]
            row[columns[k]] = 0.0
