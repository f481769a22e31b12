"""Draw rows of groups with replacement: a group, then a row of it in proportion to its size.

Sizes say how far the term of a row varies over the posterior. What a term is at two points of a
decision depends mostly on how far out its group is at them, which is known before any row is read:
groups are drawn in proportion to the sum of the sizes of their rows times a factor that says how
far out they are now. Far out, terms of high order grow steeply, so that fixed probabilities would
leave the estimate with heavy tails.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.tall.mapped import RowFile
from pymc_minibatch.tall.sources import by_reference, mapped_if_large, referred_to

__all__ = ["GroupTable", "draw_from_groups", "draw_of_groups", "weigh"]

MAPPED_BYTES = 2**28
"""What has an entry for each row is put into a file where it takes more than this."""

FLOOR = 0.2
"""Share of its size with which a row is drawn at least, however near its group is."""


class GroupTable(NamedTuple):
    """What draws read.

    Attributes
    ----------
    rows : ndarray of int32 or int64, shape (N,)
        Row numbers sorted by group.
    starts : ndarray of int64, shape (G + 1,)
        Where each group starts among them.
    sums : ndarray of float64, shape (N,)
        Running sums of the sizes of the rows of a group, from its first row on.
    farthest : ndarray of float64, shape (G,)
        How far out a group was at most where the sizes were found, not zero.
    factors : ndarray of float64, shape (G,)
        The factors on the sizes, for the next draws.
    shares : ndarray of float64, shape (G,)
        Running sums of the sums of the sizes of groups, times their factors.
    """

    rows: np.ndarray
    starts: np.ndarray
    sums: np.ndarray
    farthest: np.ndarray
    factors: np.ndarray
    shares: np.ndarray

    @classmethod
    def of(
        cls, rows: np.ndarray, starts: np.ndarray, sizes: np.ndarray, farthest: np.ndarray
    ) -> "GroupTable":
        """Sum the sizes of rows, which are positive, by groups.

        What has an entry for each row is put into files where it is large.
        """
        n_groups = starts.size - 1
        sums = mapped_if_large(running_sums(sizes, rows, starts), MAPPED_BYTES)
        rows = mapped_if_large(rows, MAPPED_BYTES)
        farthest = np.where(farthest > 0.0, farthest, 1.0)
        table = cls(rows, starts, sums, farthest, np.empty(n_groups), np.empty(n_groups))
        weigh(table, np.zeros(n_groups), np.zeros(n_groups))
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what has an entry for each row by reference, so that processes share it."""
        of_rows = by_reference(self.rows), by_reference(self.sums)
        return _restored, (*of_rows, self.starts, *self[3:])


def _restored(
    rows: np.ndarray | RowFile, sums: np.ndarray | RowFile, starts: np.ndarray, *rest: np.ndarray
) -> GroupTable:
    return GroupTable(referred_to(rows), starts, referred_to(sums), *rest)


@jit_kept
def running_sums(sizes: np.ndarray, rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Sum the sizes of the rows of each group."""
    sums = np.empty(rows.size)
    for g in range(starts.size - 1):
        total = 0.0
        for i in range(starts[g], starts[g + 1]):
            total += sizes[rows[i]]
            sums[i] = total
    return sums


@jit_kept
def weigh(table: GroupTable, before: np.ndarray, after: np.ndarray) -> None:
    """Draw groups by how far out they are at two points, in squares of a distance.

    What the expansion leaves of a row is of fifth order, and what changes of it with another
    variable of fourth. But how far out groups were where sizes were found is a noisy measure, and
    with higher powers than this a few rows would have most of the weight.
    """
    total = 0.0
    for g in range(table.factors.size):
        table.factors[g] = FLOOR + (before[g] + after[g]) / table.farthest[g]
        if table.starts[g + 1] > table.starts[g]:
            total += table.sums[table.starts[g + 1] - 1] * table.factors[g]
        table.shares[g] = total


@register_jitable
def draw_of_groups(
    rng: np.random.Generator,
    table: GroupTable,
    first: int,
    last: int,
    drawn: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Draw rows of the groups from first to last, without the last one.

    Fills `drawn` with row numbers, and `weights` with 1 / (n p) of each, n the number of rows of
    these groups.
    """
    starts, shares = table.starts, table.shares
    n = starts[last] - starts[first]
    below = shares[first - 1] if first > 0 else 0.0
    total = shares[last - 1] - below
    for i in range(drawn.size):
        place = below + rng.random() * total
        g = first + np.searchsorted(shares[first:last], place, side="right")
        g = min(g, last - 1)
        while starts[g + 1] == starts[g]:  # rounded to a group without rows at the end
            g -= 1
        own = table.sums[starts[g] : starts[g + 1]]
        at = np.searchsorted(own, rng.random() * own[-1], side="right")
        at = min(at, own.size - 1)
        size = own[at] - own[at - 1] if at > 0 else own[0]
        drawn[i] = table.rows[starts[g] + at]
        weights[i] = total / (n * size * table.factors[g])


@register_jitable
def draw_from_groups(
    rng: np.random.Generator, table: GroupTable, drawn: np.ndarray, weights: np.ndarray
) -> bool:
    """Draw rows of all groups; there are always enough."""
    draw_of_groups(rng, table, 0, table.factors.size, drawn, weights)
    return True
