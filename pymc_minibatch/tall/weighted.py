"""Rows drawn by size from partitions: the numbers first, then the rows, in one job.

Sizes are computed where the rows are, and only their sum in each partition is kept. A partition is
drawn in proportion to it, and a row of it in proportion to its size, which is computed again; so
nothing of the size of the data is ever stored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.tall.cluster import elsewhere
from pymc_minibatch.tall.partitions import Partitions
from pymc_minibatch.tall.passes import in_chunks

__all__ = ["DrawnRows", "SizedRows", "size_rows"]


class DrawnRows(NamedTuple):
    """Rows that were drawn independently, with replacement.

    Attributes
    ----------
    numbers : ndarray of int64, shape (M,)
        Their numbers among all rows.
    sizes : ndarray, shape (M,)
        Their sizes.
    data
        The rows themselves, from each array.
    """

    numbers: np.ndarray
    sizes: np.ndarray
    data: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class SizedRows:
    """Sizes of rows in partitions.

    Attributes
    ----------
    partitions
        Location of the rows.
    sizer
        ``(*batch) -> sizes``, not negative; the same each time. It can be pickled.
    totals : ndarray, shape (parts,)
        Sums of the sizes.
    """

    partitions: Partitions
    sizer: Callable[..., np.ndarray]
    totals: np.ndarray

    @classmethod
    def alike(cls, partitions: Partitions) -> "SizedRows":
        """Give all rows the size 1."""
        return cls(partitions, _ones, partitions.lengths.astype(float))

    @property
    def total(self) -> float:
        """Sum of all sizes."""
        return float(self.totals.sum())

    def draw(self, rng: np.random.Generator, n: int) -> DrawnRows:
        """Draw n rows in proportion to their sizes, and gather them."""
        if self.partitions.scheduler.needs_own_process:
            return elsewhere(partial(self.draw, rng, n))
        counts = rng.multinomial(n, self.totals / self.total)
        chosen = np.flatnonzero(counts)
        seeds = rng.integers(2**63, size=chosen.size)
        drawn = self.partitions.run(
            partial(_drawn, self.sizer),
            [(int(counts[part]), int(seed)) for part, seed in zip(chosen, seeds, strict=True)],
            title="Gathering rows",
            chosen=chosen,
        )
        numbers = [
            rows + self.partitions.starts[part]
            for part, (rows, *_) in zip(chosen, drawn, strict=True)
        ]
        # Parts come one after the other; rows that are used in turn must be in random order.
        order = rng.permutation(n)
        return DrawnRows(
            np.concatenate(numbers)[order],
            np.concatenate([sizes for _, sizes, _ in drawn])[order],
            tuple(
                np.concatenate([arrays[i] for *_, arrays in drawn])[order]
                for i in range(len(self.partitions.names))
            ),
        )


def size_rows(partitions: Partitions, sizer: Callable[..., np.ndarray], title: str) -> SizedRows:
    """Sum sizes in each partition."""
    totals = partitions.run(partial(_total, sizer), title=title)
    return SizedRows(partitions, sizer, np.array(totals))


def _ones(*batch: np.ndarray) -> np.ndarray:
    return np.ones(len(batch[0]))


def _total(sizer: Callable[..., np.ndarray], arrays: Sequence[np.ndarray]) -> float:
    return sum(float(part.sum(dtype=float)) for _, part in in_chunks(sizer, arrays))


def _drawn(
    sizer: Callable[..., np.ndarray], arrays: Sequence[np.ndarray], n: int, seed: int
) -> tuple[np.ndarray, np.ndarray, tuple[Any, ...]]:
    sizes = np.concatenate([part for _, part in in_chunks(sizer, arrays)]).astype(float)
    ends = np.cumsum(sizes)
    u = ends[-1] * np.random.default_rng(seed).random(n)
    # Rounding may lead beyond the last row, or to one of size 0 that follows.
    rows = np.minimum(np.searchsorted(ends, u, side="right"), np.flatnonzero(sizes)[-1])
    return rows, sizes[rows], tuple(values[rows] for values in arrays)
