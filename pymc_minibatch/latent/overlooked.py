"""Levels that batches let go where their own rows object.

A batch is sized for the places where the surrogate is good. Far from these a few rows can say
everything, and a batch that misses them lets a level go there. So, now and then, all rows of those
levels are read that are far from where the surrogate expects them. With r the sum of what rows add
to the surrogate's log-likelihood, from where it expects a level to where the level is, exp(−r) is
the ratio of two densities of the level given all else, up to a constant near one: the surrogate's,
and the posterior's. Its posterior mean is the ratio of their masses, about one, so that r < −t has
a probability of about e^(−t) at most (Markov).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_minibatch.kernels.by_group import GroupTable
from pymc_minibatch.latent.arrow import inner_products, multiply_transposed
from pymc_minibatch.latent.field import Levels
from pymc_minibatch.latent.surrogate import Surrogate
from pymc_minibatch.reference.rows import RowFunctions

__all__ = ["LOOK_EVERY", "Lookout", "Overlooked"]

LOOK_EVERY = 10
"""Draws between two looks."""

FAR = 4.0
"""So many standard deviations beyond the usual distance a level is looked at."""

MOST_ROWS = 2**17
"""Rows read by a look, or those of one level if it has more."""

IMPOSSIBLE = 20.0
"""So many nats beyond what the number of levels makes likely are no chance."""


class Overlooked(NamedTuple):
    """A level that is where its rows object.

    Attributes
    ----------
    position : int
        Of its first latent variable in a flat point.
    nats : float
        How much less likely its rows are than the surrogate takes them to be.
    """

    position: int
    nats: float


class Lookout:
    """Looks at levels that are far out.

    Parameters
    ----------
    surrogate
        What batches correct.
    rows, data
        What rows read, and all of them.
    tables
        The rows of each factor that is swept.
    temperature
        T.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        rows: RowFunctions,
        data: Sequence[np.ndarray],
        tables: Sequence[GroupTable],
        temperature: float,
    ) -> None:
        self.surrogate, self.rows, self.data = surrogate, rows, data
        self.tables, self.temperature = tables, temperature

    def look(self, point: np.ndarray) -> Overlooked | None:
        """Return the level that its rows object to most at a point, if that cannot be chance."""
        found = []
        for levels, table in zip(self.surrogate.field.levels, self.tables, strict=True):
            try:
                expected, distances = self._expected(point, levels)
            except np.linalg.LinAlgError:  # where no sweep is made either
                continue
            some = self._farthest(distances, table)
            if some.size:
                nats = -self.gains(expected, point, levels, table, some)
                worst = int(np.argmax(nats))
                if nats[worst] > IMPOSSIBLE + math.log(distances.size):
                    position = int(levels.latent[some[worst], 0])
                    found.append(Overlooked(position, float(nats[worst])))
        return max(found, key=lambda overlooked: overlooked.nats, default=None)

    def _expected(self, point: np.ndarray, levels: Levels) -> tuple[np.ndarray, np.ndarray]:
        """Return a point with the levels where all else has them, and how far beyond they are."""
        surrogate, expected = self.surrogate, point.copy()
        hyper, reading = point[surrogate.field.hyper], surrogate.read(point)
        given = surrogate.factored_later(hyper)
        mean, cholesky = surrogate.given_others(given, point, reading, levels)
        expected[levels.latent] = mean
        eta = multiply_transposed(cholesky, point[levels.latent] - mean)
        return expected, np.sqrt(inner_products(eta, eta)) - math.sqrt(eta.shape[1])

    @staticmethod
    def _farthest(distances: np.ndarray, table: GroupTable) -> np.ndarray:
        """Return the levels that are far out, the farthest first, if all are too many to read."""
        far = np.flatnonzero(distances > FAR)
        far = far[np.argsort(-distances[far])]
        n_rows = np.cumsum(np.diff(table.starts)[far])
        return far[: max(1, int(np.searchsorted(n_rows, MOST_ROWS, side="right")))]

    def gains(
        self,
        expected: np.ndarray,
        point: np.ndarray,
        levels: Levels,
        table: GroupTable,
        some: np.ndarray,
    ) -> np.ndarray:
        """Return r of some levels, from the point where they are expected to where they are."""
        surrogate, before = self.surrogate, self.surrogate.read(point)
        cubic, at = surrogate.cubic(levels.rows), surrogate.expansion.at
        readings = surrogate.read_levels(expected, before, levels), before
        start, stop = (surrogate.seen_by_rows(reading, cubic) for reading in readings)
        own = [table.rows[table.starts[g] : table.starts[g + 1]] for g in some]
        numbers = np.concatenate(own)
        batch = [np.ascontiguousarray(values[numbers]) for values in self.data]
        there, here = self.rows.remainders(start, stop, at, batch)
        place = np.repeat(np.arange(some.size), [part.size for part in own])
        gains = np.bincount(place, here - there, minlength=some.size) / self.temperature
        return np.where(np.isnan(gains), -np.inf, gains)
