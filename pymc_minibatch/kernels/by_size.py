"""Draw rows in proportion to their size, with replacement, in constant time.

With sizes c and p_n = c_n / Σ c, the sum of any numbers r_n over all rows is estimated without bias
by the mean of r / p over b draws, with variance ``var(r / p) / b``. It is smallest where the sizes
are proportional to the absolute values of r, and finite where no row with r_n ≠ 0 has size 0.

Sizes are rounded up to powers of 2^(1/16), and rows sorted by them into bins: a bin is drawn from
an alias table, which is small and stays in cache, and a row of the bin uniformly. Within a bin all
rows have the same p_n, so rounding costs no bias, and next to no variance; and sizes that are upper
bounds stay such. The table takes four bytes a row.

References
----------
Walker (1977), An efficient method for generating discrete random variables with general
distributions, for the alias table. Matias, Vitter and Ni (2003), Dynamic generation of discrete
random variates, for bins of similar weight.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.tall.mapped import RowFile, read_only
from pymc_minibatch.tall.sources import by_reference, mapped_if_large, referred_to

__all__ = ["NO_SIZES", "RowSizes", "SizeTable", "draw_by_size"]

BINS_PER_OCTAVE = 16
MOST_BINS = 1024
"""Sizes below the largest by a factor of more than 2**64 are taken for that."""

MAPPED_BYTES = 2**28
"""The numbers of the rows are put into a memory map where they take more than this."""


class SizeTable(NamedTuple):
    """What draws read.

    Attributes
    ----------
    order : ndarray of uint32 or int64
        Row numbers, sorted by bin. Rows of size 0 are left out.
    starts : ndarray of int64, shape (bins + 1,)
        Where in `order` each bin begins.
    weights : ndarray, shape (bins,)
        1 / (N p) of a row of each bin, N the number of all rows.
    cut : ndarray, shape (bins,)
        Probability that a bin keeps a draw that falls on it.
    alias : ndarray of int64, shape (bins,)
        The bin that has the draw otherwise.
    """

    order: np.ndarray
    starts: np.ndarray
    weights: np.ndarray
    cut: np.ndarray
    alias: np.ndarray


NO_SIZES = SizeTable(
    order=read_only(np.empty(0, dtype=np.uint32)),
    starts=np.zeros(1, dtype=np.int64),
    weights=np.empty(0),
    cut=np.empty(0),
    alias=np.empty(0, dtype=np.int64),
)
"""Of the same types where rows are drawn uniformly."""


@dataclass(frozen=True)
class RowSizes:
    """Rows with the sizes by which they are drawn; large tables are pickled by reference to a file.

    Attributes
    ----------
    table : SizeTable
        What draws read.
    total : float
        Sum of all sizes, as rounded.
    """

    table: SizeTable
    total: float

    @classmethod
    def of(cls, sizes: np.ndarray) -> "RowSizes":
        """Sort rows by size; sizes are finite, not negative, and not all of them zero."""
        with np.errstate(divide="ignore"):
            depth = np.log2(sizes.max()) - np.log2(sizes)
        # The small number keeps rounding of the logarithms from making a size smaller.
        bins = np.clip(BINS_PER_OCTAVE * depth - 1e-3, 0, MOST_BINS - 1).astype(np.uint16)
        bins[sizes == 0] = MOST_BINS
        counts = np.bincount(bins, minlength=MOST_BINS + 1)[:MOST_BINS]
        used = np.flatnonzero(counts)
        tops = float(sizes.max()) * 2.0 ** (-used / BINS_PER_OCTAVE)
        starts = np.concatenate([[0], np.cumsum(counts[used])])
        order = np.argsort(bins, kind="stable")[: starts[-1]]
        order = order.astype(np.uint32 if sizes.size < 2**32 else np.int64)
        total = float(tops @ counts[used])
        cut, alias = _alias_table(tops * counts[used] / total)
        order = mapped_if_large(order, MAPPED_BYTES)
        table = SizeTable(order, starts, total / (sizes.size * tops), cut, alias)
        return cls(table, total)

    def drawn(self, n_rows: int) -> np.ndarray:
        """Return which rows are ever drawn, shape (N,)."""
        found = np.zeros(n_rows, dtype=np.bool_)
        found[self.table.order] = True
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the numbers of the rows by reference, so that processes share them."""
        return _restored, (by_reference(self.table.order), self.table[1:], self.total)


def _restored(order: np.ndarray | RowFile, rest: tuple[np.ndarray, ...], total: float) -> RowSizes:
    return RowSizes(SizeTable(referred_to(order), *rest), total)


def _alias_table(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split unequal probabilities among equal cells of at most two each."""
    size = probabilities.size
    cut, alias = size * probabilities, np.arange(size)
    small = [i for i in range(size) if cut[i] < 1]
    large = [i for i in range(size) if cut[i] >= 1]
    while small and large:
        needy, donor = small.pop(), large[-1]
        alias[needy] = donor
        cut[donor] -= 1 - cut[needy]
        if cut[donor] < 1:
            small.append(large.pop())
    cut[small + large] = 1.0  # but for rounding
    return cut, alias


@register_jitable
def draw_by_size(
    rng: np.random.Generator, table: SizeTable, drawn: np.ndarray, weights: np.ndarray
) -> None:
    """Fill `drawn` with row numbers, and `weights` with 1 / (N p) of each."""
    n_bins = table.cut.size
    for i in range(drawn.size):
        place = rng.random() * n_bins
        k = int(place)
        if place - k >= table.cut[k]:
            k = table.alias[k]
        first, last = table.starts[k], table.starts[k + 1]
        drawn[i] = table.order[first + int(rng.random() * (last - first))]
        weights[i] = table.weights[k]
