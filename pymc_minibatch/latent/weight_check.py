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
from pymc_minibatch.latent.batched import multiply_transposed
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.moves.levels import beyond_typical
from pymc_minibatch.latent.surrogate import PredictorState, Surrogate
from pymc_minibatch.reference.rows import RowFunctions

__all__ = ["LOOK_EVERY", "Contradiction", "WeightCheck"]

LOOK_EVERY = 10
"""Draws between two looks."""

FAR = 4.0
"""So many standard deviations beyond the usual distance a level is looked at."""

MOST_ROWS = 2**17
"""Rows read by a look, or those of one level if it has more."""

IMPOSSIBLE = 20.0
"""So many nats beyond what the number of levels makes likely are no chance."""


class Contradiction(NamedTuple):
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


class WeightCheck(NamedTuple):
    """What is read to find such levels.

    Attributes
    ----------
    surrogate : Surrogate
        What batches correct.
    rows : RowFunctions
        What rows read.
    data : sequence of ndarray
        All of them.
    tables : sequence of GroupTable
        The rows of each factor that is swept.
    temperature : float
        T.
    """

    surrogate: Surrogate
    rows: RowFunctions
    data: Sequence[np.ndarray]
    tables: Sequence[GroupTable]
    temperature: float

    def look(self, point: np.ndarray) -> Contradiction | None:
        """Return the level that its rows object to most at a point, if that cannot be chance."""
        predictor, found = self.surrogate.read(point), []
        for levels, table in zip(self.surrogate.field.levels, self.tables, strict=True):
            try:
                expected, distances = self.expected(point, predictor, levels)
            except np.linalg.LinAlgError:  # where no sweep is made either
                continue
            some = farthest(distances, table)
            if some.size:
                nats = -self.gains((expected, predictor), levels, table, some)
                worst = int(np.argmax(nats))
                if nats[worst] > IMPOSSIBLE + math.log(distances.size):
                    position = int(levels.latent[some[worst], 0])
                    found.append(Contradiction(position, float(nats[worst])))
        return max(found, key=lambda contradicted: contradicted.nats, default=None)

    def expected(
        self, point: np.ndarray, predictor: PredictorState, levels: GroupEffects
    ) -> tuple[PredictorState, np.ndarray]:
        """Return what rows read of the levels where all else has them, and how far they are out."""
        surrogate, there = self.surrogate, point.copy()
        given = surrogate.factored_later(point[surrogate.field.hyper])
        mean, cholesky = surrogate.given_others(given, point, predictor, levels)
        there[levels.latent] = mean
        eta = multiply_transposed(cholesky, point[levels.latent] - mean)
        return surrogate.read_levels(there, predictor, levels), beyond_typical(eta)

    def gains(
        self,
        predictors: tuple[PredictorState, PredictorState],
        levels: GroupEffects,
        table: GroupTable,
        some: np.ndarray,
    ) -> np.ndarray:
        """Return r of some levels, from one reading to another."""
        surrogate, cubic = self.surrogate, self.surrogate.cubic(levels.rows)
        start, stop = (surrogate.seen_by_rows(predictor, cubic) for predictor in predictors)
        own = [table.rows[table.starts[g] : table.starts[g + 1]] for g in some]
        numbers = np.concatenate(own)
        batch = [np.ascontiguousarray(values[numbers]) for values in self.data]
        there, here = self.rows.remainders(start, stop, surrogate.expansion.at, batch)
        place = np.repeat(np.arange(some.size), [part.size for part in own])
        gains = np.bincount(place, here - there, minlength=some.size) / self.temperature
        return np.where(np.isnan(gains), -np.inf, gains)


def farthest(distances: np.ndarray, table: GroupTable) -> np.ndarray:
    """Return the levels that are far out; the farthest of them if all have too many rows."""
    far = np.flatnonzero(distances > FAR)
    far = far[np.argsort(-distances[far])]
    n_rows = np.cumsum(np.diff(table.starts)[far])
    return far[: max(1, int(np.searchsorted(n_rows, MOST_ROWS, side="right")))]
