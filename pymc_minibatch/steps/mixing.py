"""How many transitions make a draw that is worth keeping, from the draws of tuning.

A ridge that only the prior bounds (an intercept beside all dummies, a spline beside its
interaction) or a tail takes many transitions, however cheap they are. Draws whose correlation is ½
are worth a third of an effective draw, if it decays as a power, so the transitions between such
draws of tuning are those of a draw.
"""

import numpy as np

from pymc_minibatch.tall.layout import PointLayout

__all__ = ["Mixing"]

CORRELATED = 0.5
"""Draws are to be correlated by no more: (1 − ½) / (1 + ½) = ⅓."""

LEAST_DRAWS = 100
"""Draws of tuning, of which the first half is left out; correlations of fewer tell nothing."""

MOST_FOLLOWED = 200
"""Parameters that are followed; of large variables some, evenly spaced."""

MOST_TRANSITIONS = 50
"""For a draw."""

BUDGET = 1e8
"""Rows that could be read in the time that the transitions of a chain may take: some five seconds,
as set-up does. Work is reckoned in rows, without a clock, so that runs can be repeated."""


class Mixing:
    """Some parameters of the draws of tuning, and the rows that these have read.

    Parameters
    ----------
    layout
        Where variables are in a flat point.
    fixed_cost : float
        What a transition costs besides the rows that it reads, in rows.
    """

    def __init__(self, layout: PointLayout, fixed_cost: float) -> None:
        self.fixed_cost, self.rows_read = fixed_cost, 0.0
        self.draws: list[np.ndarray] = []
        share = max(1, MOST_FOLLOWED // max(1, len(layout.slices)))
        followed = [
            np.linspace(at.start, at.stop - 1, min(at.stop - at.start, share)).astype(int)
            for at in layout.slices.values()
        ]
        self.followed = np.unique(np.concatenate([np.empty(0, dtype=int), *followed]))

    def add(self, point: np.ndarray, n_read: float) -> None:
        """Take note of a draw, and of how many rows it has read."""
        self.draws.append(point[self.followed])
        self.rows_read += n_read

    def transitions(self, made: int, draws: int) -> int:
        """Return how many transitions make a draw, at least one.

        Parameters
        ----------
        made : int
            Transitions of a draw of tuning.
        draws : int
            Draws that are to be made.
        """
        n = len(self.draws)
        if n < LEAST_DRAWS:
            return 1
        cost = self.fixed_cost + self.rows_read / (n * made)
        affordable = int(min(MOST_TRANSITIONS, BUDGET / (max(draws, 1) * cost)))
        return max(1, min(affordable, made * uncorrelated_after(np.array(self.draws[n // 2 :]))))


def uncorrelated_after(draws: np.ndarray) -> int:
    """Return the lag at which no column is correlated by more than ½, at most a quarter of all.

    Parameters
    ----------
    draws : ndarray, shape (n, D)
        Successive draws.
    """
    away = draws - draws.mean(axis=0)
    size = np.abs(away).max(axis=0)
    away = away[:, size > 0] / size[size > 0]
    most = max(1, len(draws) // 4)
    total = np.sum(away**2, axis=0)
    for lag in range(1, most):
        if np.all(np.sum(away[lag:] * away[:-lag], axis=0) <= CORRELATED * total):
            return lag
    return most
