"""How many transitions make a draw that is worth keeping, from the draws of tuning.

A ridge that only the prior bounds (an intercept beside all dummies, a spline beside its
interaction) or a tail takes many transitions, however cheap they are. Draws whose correlation is ½
are worth a third of an effective draw, if it decays as a power, so the transitions between such
draws of tuning are those of a draw. A few hundred draws of tuning do not show for how long a chain
may stay in a tail, so if they are correlated at all, all that takes a few seconds is taken.
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

UNRESOLVED = 1 / 6
"""Draws that drift seem correlated by ½ at this share of their number, whatever it is: their mean
is taken out."""

TRAJECTORY = 128.0
"""Passes over all rows that a trajectory takes, about: 32 gradients, each as dear as 4 values."""

BUDGET = 1e9
"""Rows that could be read in the time that the transitions of a chain may take: a minute or two. A
draw of the worst of some thousand levels is worth a fifth of an effective one or less where those
of most are worth one. Work is reckoned in rows, without a clock, so that runs can be repeated."""


CHEAP = 5e7
"""Rows that are read in some seconds: transitions that chains with correlated draws take anyway."""


class Mixing:
    """Some parameters of the draws of tuning, and the rows that these have read.

    Parameters
    ----------
    layout
        Positions of variables in a flat point.
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
        cost = self._cost(made)
        affordable, cheap = (
            int(min(MOST_TRANSITIONS, rows / (max(draws, 1) * cost))) for rows in (BUDGET, CHEAP)
        )
        lag = uncorrelated_after(np.array(self.draws[n // 2 :]))
        wanted = made * lag
        return max(1, min(affordable, wanted if lag == 1 else max(wanted, cheap)))

    def goes_nowhere(self, made: int, n_rows: int) -> bool:
        """Whether draws stay correlated although they take more work than a trajectory.

        It is asked after each `LEAST_DRAWS`, of the second half of all.

        Parameters
        ----------
        made : int
            Transitions of a draw of tuning.
        n_rows : int
            N.
        """
        n = len(self.draws)
        if not n or n % LEAST_DRAWS:
            return False
        followed = np.array(self.draws[n // 2 :])
        lag = uncorrelated_after(followed)
        dear = made * self._cost(made) * lag > TRAJECTORY * n_rows
        return bool(dear and lag >= UNRESOLVED * len(followed))

    def _cost(self, made: int) -> float:
        """Return the cost of a transition, in rows."""
        return self.fixed_cost + self.rows_read / (len(self.draws) * made)


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
