"""Rows that were drawn by size before they are needed, and gathered to this machine.

With M rows drawn with probabilities p_n, the sum of any numbers r_n over all rows is estimated by
the mean of r / p over some of them. So kernels take the M rows for all there are, with weights
1 / (M p): they serve one after the other, each of them once, and nothing is approximated. Where
rows serve again, the mean over all M stands for the sum: it is off by an error with variance s² b /
M, with s² the variance of an estimate from b of them, which is the same at every decision.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.tall.mapped import RowFile, read_only
from pymc_minibatch.tall.sources import share
from pymc_minibatch.tall.weighted import SizedRows

__all__ = ["OUT_OF_ROWS", "ResidentTable", "Residents", "draw_residents"]

OUT_OF_ROWS = -2
"""What a decision returns in place of the number of an impossible row, where too few are left."""


class ResidentTable(NamedTuple):
    """What draws read.

    Attributes
    ----------
    weights : ndarray, shape (M,)
        1 / (M p) of each row.
    turn : ndarray of int64, shape (2,)
        The next row, and 1 if each row serves only once.
    """

    weights: np.ndarray
    turn: np.ndarray


@register_jitable
def draw_residents(
    rng: np.random.Generator, table: ResidentTable, drawn: np.ndarray, weights: np.ndarray
) -> bool:
    """Fill `drawn` with the next rows, or any where rows serve again; False if too few are left."""
    n_rows = table.weights.size
    if table.turn[1] and table.turn[0] + drawn.size > n_rows:
        return False
    for i in range(drawn.size):
        row = table.turn[0] + i if table.turn[1] else int(rng.random() * n_rows)
        drawn[i] = row
        weights[i] = table.weights[row]
    table.turn[0] += drawn.size
    return True


@dataclass(frozen=True)
class Residents:
    """Rows on this machine.

    Attributes
    ----------
    table : ResidentTable
        What kernels draw them by.
    data
        The rows themselves, from each array.
    numbers : ndarray of int64, shape (M,)
        Their numbers among all rows.
    noise : ndarray, shape (1,)
        The largest variance of a sum over all of them since it was last looked at.
    """

    table: ResidentTable
    data: tuple[np.ndarray, ...]
    numbers: np.ndarray
    noise: np.ndarray = field(default_factory=lambda: np.zeros(1))

    @classmethod
    def gather(cls, sized: SizedRows, n: int, rng: np.random.Generator, once: bool) -> "Residents":
        """Draw M = n rows and gather them; `once` if each is to serve once."""
        drawn = sized.draw(rng, n)
        weights = sized.total / (n * drawn.sizes)
        table = ResidentTable(weights, np.array([0, once], dtype=np.int64))
        return cls(table, tuple(map(read_only, drawn.data)), drawn.numbers)

    @classmethod
    def none(cls, sized: SizedRows) -> "Residents":
        """Return two rows that have served: the first decision that reads any asks for more."""
        partitions = sized.partitions
        rows = partitions.kept_rows()[:2]
        table = ResidentTable(np.zeros(2), np.array([2, 1], dtype=np.int64))
        return cls(table, tuple(map(read_only, partitions.take(rows))), rows)

    @property
    def drawn(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what :class:`.Density` holds of them."""
        return (np.empty(0) if self.table.turn[1] else self.table.weights), self.noise

    def fixed_error(
        self, log_ratio_var: float, batch_size: float, slope: float, temperature: float = 1.0
    ) -> float:
        """Return how far an acceptance probability is off, since rows serve again.

        One standard deviation of the log ratio's error, times the steepest slope of the test. It
        counts the decisions since the last call by which all of the rows were read.
        """
        if self.table.turn[1]:
            return 0.0
        of_sums, self.noise[0] = self.noise[0] / temperature**2, 0.0
        return slope * math.sqrt(max(log_ratio_var * batch_size / self.numbers.size, of_sums))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle large arrays by reference to files, so that processes share them."""
        shared = tuple(share(values) for values in self.data)
        return _restored, (self.table, shared, self.numbers)


def _restored(
    table: ResidentTable, data: tuple[np.ndarray | RowFile, ...], numbers: np.ndarray
) -> Residents:
    opened = (values.open() if isinstance(values, RowFile) else values for values in data)
    return Residents(table, tuple(map(read_only, opened)), numbers)
