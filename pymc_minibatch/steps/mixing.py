"""How many transitions make a draw that is worth keeping, from the draws of tuning.

A ridge that only the prior bounds (an intercept beside all dummies, a spline beside its
interaction) or a tail takes many transitions, however cheap they are. Draws whose correlation is ½
are worth a third of an effective draw, if it decays as a power, so the transitions between such
draws of tuning are those of a draw. A few hundred draws of tuning do not show for how long a chain
may stay in a tail, so if they are correlated at all, all that takes a few seconds is taken.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pymc_minibatch.tall.layout import PointLayout

__all__ = ["Mixing"]

CORRELATED = 0.5
"""Draws are to be correlated by no more: (1 − ½) / (1 + ½) = ⅓."""

APART = 0.25
"""Draws of one transition each that are surely correlated by more take two transitions. Correlated
by ¼ they are worth (1 − ¼) / (1 + ¼) = 0.6 of an effective draw, and by 0.4, which the doubt about
a thousand parameters lets pass, 0.43. A second transition doubles the work, and adds less."""

RESOLVED = 0.3
"""The largest correlation that chance may make if draws are to be known as hardly correlated, which
takes some 200 draws of 10⁴ parameters. With more doubt, more draws are asked for."""

LATER, LATER_LAGS = 0.1, range(2, 10)
"""So much those of these lags may be correlated on average: a part of the variance that moves
slowly hardly shows at once."""

LEAST_DRAWS = 100
"""Draws of tuning, of which at first a half is left out; correlations of fewer tell nothing."""

MOST_FOLLOWED = 200
"""Parameters that are followed; of large variables some, evenly spaced."""

MOST_TRANSITIONS = 50
"""For a draw."""

UNRESOLVED = 1 / 6
"""Draws that drift seem correlated by ½ at this share of their number, whatever it is: their mean
is taken out."""

TRAJECTORY, BLIND_TRAJECTORY = 128.0, 1024.0
"""Passes over all rows that a trajectory takes, about: 32 gradients, each as dear as 4 values, if
the covariance is known about a mode; if it is not, as that of thousands of effects, 256."""

BUDGET = 1e9
"""Rows that could be read in the time that the transitions of a chain may take: a minute or two. A
draw of the worst of some thousand levels is worth a fifth of an effective one or less where those
of most are worth one. Work is reckoned in rows, without a clock, so that runs can be repeated."""


MORE = 4
"""How many times as many transitions a draw of tuning has if draws stay correlated for too long to
say how long, as far as that is affordable."""

TOO_FEW = 2.0
"""Draws that are correlated by ½ for so many times as many transitions as they may have are worth a
sixth of an effective draw, if it is not more."""

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
        self.fixed_cost, self.rows_read, self.n_made = fixed_cost, 0.0, 0
        self.are_first = True
        self.draws: list[np.ndarray] = []
        share = max(1, MOST_FOLLOWED // max(1, len(layout.slices)))
        followed = [
            np.linspace(at.start, at.stop - 1, min(at.stop - at.start, share)).astype(int)
            for at in layout.slices.values()
        ]
        self.followed = np.unique(np.concatenate([np.empty(0, dtype=int), *followed]))
        size = sum(at.stop - at.start for at in layout.slices.values())
        self.all, self.later = Successive(size), Successive(size)

    def add(self, point: np.ndarray, n_read: float, made: int) -> None:
        """Take note of a draw, of how many rows it has read, and of its transitions."""
        self.draws.append(point[self.followed])
        if self.are_first and _is_doubled(len(self.draws)):
            self.all, self.later = self.later, Successive(self.all.size)
        self.all.add(point)
        self.later.add(point)
        self.rows_read += n_read
        self.n_made += made

    def clear(self) -> None:
        """Forget the draws; those to come are not the first ones of a chain."""
        self.draws.clear()
        self.all, self.later = Successive(self.all.size), Successive(self.all.size)
        self.rows_read, self.n_made, self.are_first = 0.0, 0, False

    @property
    def state(self) -> dict[str, Any]:
        """What is known of the draws, to continue a chain."""
        known = {name: getattr(self, name) for name in ("rows_read", "n_made", "are_first")}
        sums = {name: vars(getattr(self, name)).copy() for name in ("all", "later")}
        return known | sums | {"draws": np.array(self.draws)}

    @state.setter
    def state(self, stored: Mapping[str, Any]) -> None:
        self.rows_read, self.n_made = stored["rows_read"], stored["n_made"]
        self.are_first, self.draws = stored["are_first"], list(stored["draws"])
        for name in ("all", "later"):
            vars(getattr(self, name)).update(stored[name])

    def transitions(self, made: int, draws: int) -> int:
        """Return how many transitions make a draw, at least one.

        Parameters
        ----------
        made : int
            Transitions of a draw of tuning.
        draws : int
            Draws that are to be made.
        """
        if len(self.draws) < LEAST_DRAWS:
            return 1 if self.are_first else made
        wanted = made * self.longest_lag
        if wanted == made:
            return made
        return max(1, min(self._affordable(draws), max(wanted, self._within(CHEAP, draws))))

    def while_tuning(self, made: int, draws: int) -> int:
        """Return how many transitions the next draws of tuning have.

        They are more if draws are correlated for too long to tell for how long. Then what is known
        of these is forgotten.

        Parameters
        ----------
        made, draws : int
            As :meth:`transitions` takes them.
        """
        if not self.draws or len(self.draws) % LEAST_DRAWS or not self._is_unresolved:
            return made
        more = min(MORE * made, self._affordable(draws))
        if more <= made:
            return made
        self.clear()
        return more

    def goes_nowhere(self, made: int, n_rows: int, passes: float = TRAJECTORY) -> bool:
        """Whether draws stay correlated although they take more work than a trajectory.

        It is asked after each `LEAST_DRAWS`.

        Parameters
        ----------
        made : int
            Transitions of a draw of tuning.
        n_rows : int
            N.
        passes : float
            Over all rows, that a trajectory takes.
        """
        n = len(self.draws)
        if not n or n % LEAST_DRAWS or not self._is_unresolved:
            return False
        return made * self.cost * self.lag > passes * n_rows

    def is_hopeless(self, made: int, draws: int) -> bool:
        """Whether the transitions that a draw may have are far from enough, however cheap they are.

        Parameters
        ----------
        made, draws : int
            As :meth:`transitions` takes them.
        """
        if len(self.draws) < LEAST_DRAWS // 2 or not self._is_unresolved:
            return False
        return made * self.lag > TOO_FEW * max(made, self._affordable(draws))

    @property
    def are_apart(self) -> bool:
        """Whether draws of tuning are hardly correlated, as far as is known."""
        if len(self.draws) < LEAST_DRAWS or not self.all.are_apart:
            return False
        away = self._late - self._late.mean(axis=0)
        later = sum(np.sum(away[lag:] * away[:-lag], axis=0) for lag in LATER_LAGS)
        total = np.sum(away**2, axis=0)
        return bool(np.all(later <= LATER * len(LATER_LAGS) * total))

    @property
    def _late(self) -> np.ndarray:
        """The draws, but the first half of those with which a chain begins."""
        return np.array(self.draws[len(self.draws) // 2 if self.are_first else 0 :])

    @property
    def lag(self) -> int:
        """The lag from which on none of the followed parameters is correlated by more than ½."""
        return uncorrelated_after(self._late)

    @property
    def longest_lag(self) -> int:
        """The lag from which on no parameter is, beyond doubt."""
        return max(self.lag, self.all.lag)

    @property
    def _is_unresolved(self) -> bool:
        late = self._late
        return uncorrelated_after(late) >= UNRESOLVED * len(late)

    @property
    def cost(self) -> float:
        """The cost of a transition, in rows."""
        return self.fixed_cost + self.rows_read / max(self.n_made, 1)

    def _affordable(self, draws: int) -> int:
        """Return how many transitions a draw may have."""
        return self._within(BUDGET, draws)

    def _within(self, rows: float, draws: int) -> int:
        return int(min(MOST_TRANSITIONS, rows / (max(draws, 1) * self.cost)))


def _is_doubled(n: int) -> bool:
    """Whether a number of draws is 50, or twice such a one.

    With each the sums of :class:`Mixing` start later: at a quarter of all draws, or after.
    """
    halves, rest = divmod(n, LEAST_DRAWS // 2)
    return not rest and halves.bit_count() == 1


class Successive:
    """Sums over draws that tell how the successive values of each parameter are correlated.

    Parameters
    ----------
    size : int
        D.
    """

    def __init__(self, size: int) -> None:
        self.size, self.n = size, 0
        self.first, self.last = np.zeros(size), np.zeros(size)
        self.sums = np.zeros((3, size))

    def add(self, point: np.ndarray) -> None:
        """Take note of a draw."""
        if not self.n:
            self.first = point.copy()
        away = point - self.first
        self.sums = self.sums + np.array([away, away**2, away * self.last])
        self.last, self.n = away, self.n + 1

    @property
    def lag(self) -> int:
        """The lag from which on no parameter is correlated by more than ½.

        Those of which this is in doubt do not count. Correlations are taken to decay as powers.
        """
        if self.n < LEAST_DRAWS // 2:
            return 1
        of_next, doubt = self._of_next()
        most = float(np.max(of_next[of_next - doubt > CORRELATED], initial=CORRELATED))
        return min(max(1, self.n // 4), math.ceil(math.log(CORRELATED) / math.log(most)))

    @property
    def are_apart(self) -> bool:
        """Whether no parameter's successive draws are surely correlated by more than ¼.

        So much is known if the largest correlation that chance makes is small.
        """
        if self.n < LEAST_DRAWS // 2:
            return False
        of_next, doubt = self._of_next()
        is_known = of_next.size > 0 and self._noise <= RESOLVED
        return bool(is_known and np.all(of_next - doubt <= APART))

    def _of_next(self) -> tuple[np.ndarray, np.ndarray]:
        """Return correlations of successive draws of parameters that moved, and their doubt."""
        mean, square, product = self.sums / self.n
        variance = square - mean**2
        moved = variance > 0
        with np.errstate(all="ignore"):
            of_next = np.clip((product - mean**2)[moved] / variance[moved], 0.0, 1.0 - 1e-9)
        return of_next, self._noise * np.sqrt(1.0 - of_next**2)

    @property
    def _noise(self) -> float:
        """The largest correlation, about, that chance makes of draws without any."""
        return math.sqrt(2.0 * math.log(max(self.size, 2)) / self.n)


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
