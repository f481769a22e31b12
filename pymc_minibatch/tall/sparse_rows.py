"""Products with sparse matrices of data, as sums of what each row reads.

A row of a sparse matrix has few entries, so its product with coefficients reads few of them. The
columns are cut into blocks next to one another, as few as possible such that no row has two entries
in one block. With each block a row then reads at most one coefficient: an index, and a weight where
the entries are not all 1. One-hot columns, as of grouping factors, are such a block.

What is made has the entries of the matrix, all of them: that is compared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import io_toposort
from pytensor.sparse.basic import DenseFromSparse
from pytensor.sparse.math import Dot, StructuredDot, TrueDot
from pytensor.sparse.type import SparseTensorType
from scipy.sparse import coo_matrix, csr_matrix

__all__ = ["without_sparse"]

MAX_BLOCKS = 16
"""Blocks of columns; with more, a row reads its entries one by one instead."""

PADDED = 4
"""How many times the stored entries may be filled up, so that all rows have the same number."""


@dataclass(frozen=True)
class _Block:
    """Columns of which each row has one entry at most.

    Attributes
    ----------
    first, last
        The columns, `last` not included.
    index
        For each row which of them it has; 0 if none.
    weight
        The entries of the rows; None if they are all 1.
    """

    first: int
    last: int
    index: np.ndarray
    weight: np.ndarray | None


def without_sparse(graphs: Sequence[Variable]) -> list[Variable]:
    """Replace products of sparse data with coefficients by what each row reads.

    Parameters
    ----------
    graphs
        Graphs of a model. Matrices that are not data, or of which rows have too many and too uneven
        entries, stay as they are.

    Returns
    -------
    list of Variable
        The same graphs; the very same if there is no sparse matrix.
    """
    replaced: dict[Variable, Variable] = {}
    for product, matrix, others in _products(graphs):
        [others] = graph_replace([others], replaced, strict=False) if replaced else [others]
        dense = _product(_stored(matrix), others)
        if dense is not None:
            replaced[product] = pt.cast(dense, product.type.dtype)
    if not replaced:
        return list(graphs)
    found: list[Variable] = graph_replace(list(graphs), replaced, strict=False)
    return found


def _products(graphs: Sequence[Variable]) -> Iterator[tuple[Variable, Variable, Any]]:
    """List products of a sparse matrix of data with dense columns, each after those it reads."""
    for node in io_toposort([], list(graphs)):
        [variable, *_], inner = node.outputs, node
        if isinstance(node.op, DenseFromSparse) and node.inputs[0].owner is not None:
            inner = node.inputs[0].owner  # true_dot, whose product is sparse
            if not isinstance(inner.op, TrueDot):
                continue
        elif not isinstance(node.op, Dot | StructuredDot):
            continue
        matrix, others = inner.inputs
        kinds = [isinstance(each.type, SparseTensorType) for each in (matrix, others)]
        if isinstance(matrix, Constant | SharedVariable) and kinds == [True, False]:
            yield variable, matrix, others


def _stored(matrix: Variable) -> Any:
    """Return the SciPy matrix behind a variable."""
    if isinstance(matrix, SharedVariable):
        return matrix.get_value(borrow=True)
    assert isinstance(matrix, Constant)
    return matrix.data


def _product(stored: Any, others: Any) -> Variable | None:
    """Write a product as sums over blocks of columns; None if rows are not that sparse."""
    single = others.type.shape[1] == 1
    coefficients = others[:, 0] if single else others
    blocks = _blocks_of(_Same(stored))
    total: Any = None
    if blocks is None:
        padded = _padded_of(_Same(stored))
        if padded is None:
            return None
        index, weight = (pt.constant(values) for values in padded)
        read: Any = coefficients[index]
        total = ((weight if single else weight[:, :, None]) * read).sum(axis=1)
    for block in blocks or ():
        if block.last - block.first == 1 and block.weight is not None:
            part = coefficients[block.first]  # all rows read the same one
        else:
            part = coefficients[block.first : block.last][pt.constant(block.index)]
        if block.weight is not None:
            weight = pt.constant(block.weight)
            part = (weight if single else weight[:, None]) * part
        total = part if total is None else total + part
    found: Variable = total[:, None] if single else total
    return found


class _Same:
    """A matrix as a key, equal to itself alone."""

    def __init__(self, stored: Any) -> None:
        self.stored = stored

    def __hash__(self) -> int:
        return id(self.stored)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.stored is other.stored


def _rows(stored: Any) -> csr_matrix:
    """Return a matrix by rows, entries in the order of columns, none twice and none zero."""
    rows = csr_matrix(stored, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    return rows


@lru_cache(maxsize=4)
def _blocks_of(key: _Same) -> list[_Block] | None:
    """Cut the columns into blocks; None if there would be too many."""
    rows = _rows(key.stored)
    starts = _cuts(rows)
    if not rows.nnz or starts is None:
        return None
    number = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    of_block = np.searchsorted(starts, rows.indices, side="right") - 1
    order = np.argsort(of_block, kind="stable")
    bounds = np.searchsorted(of_block[order], np.arange(len(starts) + 1))
    found = []
    for k, first in enumerate(starts):
        entries = order[bounds[k] : bounds[k + 1]]
        if not entries.size:
            continue
        last = starts[k + 1] if k + 1 < len(starts) else rows.shape[1]
        found.append(_block(rows, int(first), int(last), number[entries], entries))
    _check_same(rows, found)
    return found


def _cuts(rows: csr_matrix) -> list[int] | None:
    """Find the first columns of the fewest blocks without two entries of a row in one of them.

    Between two entries of a row there must be a cut; going from the left, a cut is made as late as
    one is needed.
    """
    later = np.ones(rows.nnz, dtype=bool)
    later[rows.indptr[:-1][np.diff(rows.indptr) > 0]] = False
    ends = np.flatnonzero(later)
    latest = np.full(rows.shape[1], -1)
    np.maximum.at(latest, rows.indices[ends], rows.indices[ends - 1])
    starts = [0]
    for column in np.flatnonzero(latest >= 0):
        if latest[column] >= starts[-1]:
            starts.append(int(column))
            if len(starts) > MAX_BLOCKS:
                return None
    return starts


def _block(
    rows: csr_matrix, first: int, last: int, number: np.ndarray, entries: np.ndarray
) -> _Block:
    """Collect the entries of a block."""
    index = np.zeros(rows.shape[0], dtype=np.min_scalar_type(-(last - first)))
    index[number] = rows.indices[entries] - first
    values = rows.data[entries]
    if number.size == rows.shape[0] and (values == 1).all():
        return _Block(first, last, index, None)
    weight = np.zeros(rows.shape[0])
    weight[number] = values
    return _Block(first, last, index, weight)


def _check_same(rows: csr_matrix, blocks: list[_Block]) -> None:
    """Compare all entries with those of the matrix."""
    number = np.arange(rows.shape[0])
    again = csr_matrix(rows.shape, dtype=np.float64)
    for block in blocks:
        weight = np.ones(number.size) if block.weight is None else block.weight
        place = (number, block.first + block.index.astype(np.int64))
        again = again + coo_matrix((weight, place), shape=rows.shape).tocsr()
    assert abs(again - rows).nnz == 0, "blocks of a sparse matrix do not add up to it"


@lru_cache(maxsize=4)
def _padded_of(key: _Same) -> tuple[np.ndarray, np.ndarray] | None:
    """Return columns and entries of rows, filled up to the longest; None if that is too much."""
    rows = _rows(key.stored)
    lengths = np.diff(rows.indptr)
    n_rows, longest = len(lengths), int(lengths.max(initial=0))
    if not rows.nnz or n_rows * longest > PADDED * (rows.nnz + n_rows):
        return None
    index = np.zeros((n_rows, longest), dtype=np.int32)
    weight = np.zeros((n_rows, longest))
    here = np.arange(longest) < lengths[:, None]
    index[here], weight[here] = rows.indices, rows.data
    return index, weight
