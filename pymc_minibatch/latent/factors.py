"""Grouping factors: which entries of φ belong to a level, and which rows read it.

Entries of φ that are gathered by row data belong to levels of a factor. Effects of shape (levels,),
(levels, q) or (q, levels) are raveled into φ, so that the entry a row reads is its level times a
stride, or its level plus a multiple of their number. Gathered terms whose levels agree in every row
are of one factor. All rows are looked at.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall.passes import over_chunks

__all__ = ["Factor", "find_factors", "is_same_block", "with_joined_levels"]

WIDEST = 32
"""Entries of a level that are joined at most: its block of the curvature is a full matrix."""


@dataclass(frozen=True)
class Factor:
    """A grouping factor.

    Attributes
    ----------
    entries : ndarray of int64, shape (levels, q')
        Positions in φ of the entries of each level.
    row_levels : ndarray of int32, shape (N,)
        The level of each row.
    share : float
        Which share of a level's entries a row reads.
    """

    entries: np.ndarray
    row_levels: np.ndarray
    share: float = 1.0

    @property
    def n_levels(self) -> int:
        """Number of levels, those without rows included."""
        return self.entries.shape[0]

    def by_level(self) -> tuple[np.ndarray, np.ndarray]:
        """Return row numbers sorted by level, and where each level starts, shape (levels + 1,)."""
        small = self.row_levels.size < 2**31
        rows = np.empty(self.row_levels.size, dtype=np.int32 if small else np.int64)
        return rows, sort_by_level(self.row_levels, self.n_levels, rows)


@jit_kept
def sort_by_level(levels: np.ndarray, n_levels: int, rows: np.ndarray) -> np.ndarray:
    """Write row numbers sorted by level, by counting; return where each level starts."""
    starts = np.zeros(n_levels + 1, dtype=np.int64)
    for level in levels:
        starts[level + 1] += 1
    for g in range(n_levels):
        starts[g + 1] += starts[g]
    place = starts[:-1].copy()
    for n in range(levels.size):
        rows[place[levels[n]]] = n
        place[levels[n]] += 1
    return starts


def find_factors(rows: RowFunctions, data: Sequence[np.ndarray]) -> list[Factor]:
    """Find the grouping factors, the one with most levels first."""
    gathered = [term for term in rows.structure.terms if term.columns is None]
    if not gathered:
        return []
    entries = np.concatenate(
        [
            chunk
            for _, chunk in over_chunks(
                lambda *batch: rows.arrays.jitted(*batch)[1].astype(np.int32), data
            )
        ]
    ).T
    blocks = [(term.block.start, term.block.stop) for term in gathered]
    levels: list[tuple[int, np.ndarray, np.ndarray]] = []
    for block, own in zip(blocks, entries, strict=True):
        n_levels, level, positions = _levels(own - block[0], block, blocks.count(block))
        levels.append((n_levels, level, positions))
    merged: list[tuple[np.ndarray, dict[tuple[int, int], np.ndarray]]] = []
    for block, (n_levels, level, positions) in zip(blocks, levels, strict=True):
        for known, own_blocks in merged:
            same_size = next(iter(own_blocks.values())).shape[0] == n_levels
            if same_size and np.array_equal(known, level):
                own_blocks[block] = positions
                break
        else:
            merged.append((level, {block: positions}))
    # A block that two factors read, such as the strengths of teams at home and away, is of neither.
    uses = [block for _, own in merged for block in own]
    factors = [
        Factor(np.concatenate(list(own.values()), axis=1), level.astype(np.int32))
        for level, own in merged
        if all(uses.count(block) == 1 for block in own)
    ]
    return sorted(factors, key=lambda factor: -factor.n_levels)


def with_joined_levels(
    factors: Sequence[Factor], shapes: Sequence[tuple[int, ...]]
) -> list[Factor]:
    """Return factors, and after each of them its levels joined, as variables may have them.

    Of effects ``u[person, trait]`` a row reads one entry. If traits are correlated, those of a
    person are one level, whichever of them a row reads.

    Parameters
    ----------
    factors
        What rows read.
    shapes
        Those of the model's variables.
    """
    return [each for factor in factors for each in (factor, *_joined(factor, shapes))]


def is_same_block(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether levels have the same entries of φ, however they are joined."""
    return one.size == other.size and np.array_equal(np.sort(one, None), np.sort(other, None))


def _joined(factor: Factor, shapes: Sequence[tuple[int, ...]]) -> Iterator[Factor]:
    size = factor.n_levels
    lengths = {n for shape in shapes if len(shape) > 1 and math.prod(shape) == size for n in shape}
    for n_levels in sorted(lengths):
        width = size // n_levels
        if factor.entries.shape[1] == 1 and 1 < width <= WIDEST and n_levels > 1:
            entries = factor.entries.ravel()
            along = entries.reshape(n_levels, width)
            yield Factor(along, factor.row_levels // width, 1.0 / width)
            across = np.ascontiguousarray(entries.reshape(width, n_levels).T)
            yield Factor(across, factor.row_levels % n_levels, 1.0 / width)


def _levels(
    entry: np.ndarray, block: tuple[int, int], n_terms: int
) -> tuple[int, np.ndarray, np.ndarray]:
    """Return the number of levels, the level of each row and the entries of φ of each level."""
    first, size = block[0], block[1] - block[0]
    stride = int(np.gcd.reduce(entry - entry.min())) or 1
    every = np.arange(first, block[1])
    if n_terms > 1 and stride > 1 and size % stride == 0:
        return size // stride, entry // stride, every.reshape(-1, stride)
    if n_terms > 1 and size % n_terms == 0:
        n_levels = size // n_terms
        if entry.min() // n_levels == entry.max() // n_levels:
            return n_levels, entry % n_levels, every.reshape(-1, n_levels).T
    return size, entry, every[:, None]
