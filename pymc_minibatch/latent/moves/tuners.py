"""What moves of effects are tuned by: step sizes, lengths of walks, and the scale of h.

Each tuner is a named tuple of arrays that tuning changes in place; a move has its own, by name.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

__all__ = [
    "PCN_ANGLES",
    "SHORTER",
    "HyperFrequency",
    "HyperScale",
    "StepSizes",
    "Walks",
    "shares_by_rate",
]

PCN_ANGLES = 0.6 * math.pi * 2.0 ** (-0.5 * np.arange(12))
"""Lengths of moves that are tried. A right angle is an independent draw; the longest goes a little
beyond, which makes up for moves that are rejected (over-relaxation)."""

EXPLORE = 0.15
"""Share of moves after which a length is chosen at random."""

MEMORY = 0.99
"""What a move counts for relative to the one after it."""

SHORTER = 0.15
"""Share of moves of the field that are shorter than the length tuning has found."""

ONE_AT_A_TIME = 0.44
"""Best share of accepted moves of a walk in one dimension."""

WINDOW = 100
"""Draws after which the moves of h are first made to fit what was seen; windows then double."""

LOOK_EVERY, REMEMBERED = 100, 400
"""Scans after each of which it is settled how often h moves, by so many of the last ones."""

HARDLY, MUCH = 0.4, 0.6
"""Correlations of h at successive scans, of each up to which h moves half as often, and of one from
which it moves twice as often. Two scans of correlation 0.4 each make draws that are worth
(1 - 0.4²) / (1 + 0.4²) = 0.7 of an effective draw."""

HARDLY_LATER, MUCH_LATER, LATER_LAGS = 0.1, 0.15, range(2, 10)
"""The same, on average over these lags: a part of the variance that moves slowly hardly shows at
once."""

HARDLY_PAYS, SHARE_OF_WORSE = 0.25, 0.25
"""If a kind of moves of all hyperparameters has so small a share of the squared jumps that another
kind has at the same cost, so large a share of its moves is made."""

SELDOM, OFTEN = 0.125, 4.0
"""The smallest share of the planned moves of h that are made, if each reads all rows; and the
largest, if none does."""


class StepSizes(NamedTuple):
    """The angle of an autoregressive (pCN) move, chosen by a bandit.

    Attributes
    ----------
    current : ndarray of int64, shape (1,)
        The setting in use.
    gains, costs : ndarray, shape (K,)
        Sums of the squared jumps and of what they cost.
    """

    current: np.ndarray
    gains: np.ndarray
    costs: np.ndarray

    @classmethod
    def untuned(cls) -> "StepSizes":
        """Return the longest, of which nothing is known yet."""
        zeros = np.zeros(PCN_ANGLES.size)
        return cls(np.zeros(1, dtype=np.int64), zeros, zeros.copy())

    @property
    def angle(self) -> float:
        """The angle in use."""
        return float(PCN_ANGLES[self.current[0]])

    def chosen(
        self, rng: np.random.Generator, share: float = SHORTER, mirrors: bool = False
    ) -> tuple[float, bool]:
        """Return the angle in use, or for a share of moves a shorter one.

        These leave heavy tails sooner. Half of them may be mirrored. Also return whether it is the
        one in use.
        """
        shorter = rng.random() < share
        setting = self.current[0] + (rng.integers(1, 7) if shorter else 0)
        angle = float(PCN_ANGLES[min(setting, PCN_ANGLES.size - 1)])
        if shorter and mirrors and rng.random() < 0.5:
            angle = math.pi - angle
        return angle, not shorter

    def record(self, rng: np.random.Generator, jump: float, cost: float) -> None:
        """Credit a squared jump to its setting, and choose the next one."""
        self.gains[:] *= MEMORY
        self.costs[:] *= MEMORY
        self.gains[self.current[0]] += jump
        self.costs[self.current[0]] += cost
        untried = np.flatnonzero(self.costs == 0)
        if rng.random() < EXPLORE:
            self.current[0] = rng.integers(PCN_ANGLES.size)
        elif untried.size:
            self.current[0] = untried[0]
        else:
            self.take_best()

    @property
    def rate(self) -> float:
        """Squared jumps for their cost, with the best setting; NaN before the first move."""
        best = float(self._rates.max())
        return best if best >= 0.0 else math.nan

    @property
    def _rates(self) -> np.ndarray:
        """Those of all settings, shape (K,); −1 before the first move of one."""
        tried = self.costs > 0
        return np.where(tried, self.gains / np.where(tried, self.costs, 1.0), -1.0)

    def take_best(self) -> None:
        """Take the setting with the largest jumps for their cost."""
        if not math.isnan(self.rate):
            self.current[0] = int(np.argmax(self._rates))


class Walks(NamedTuple):
    """Random walks along single directions of h.

    Attributes
    ----------
    log_length : ndarray, shape (K,)
        Log of the standard deviation of a step.
    n_moves : ndarray, shape (K,)
        Moves while tuning.
    """

    log_length: np.ndarray
    n_moves: np.ndarray

    @classmethod
    def of(cls, log_length: np.ndarray) -> "Walks":
        """Return walks of these lengths, not tuned."""
        return cls(log_length, np.zeros(log_length.size))

    def tune(self, i: int, rate: float) -> None:
        """Change a step so that it is accepted as often as is best."""
        self.n_moves[i] += 1
        self.log_length[i] += (rate - ONE_AT_A_TIME) / self.n_moves[i] ** 0.6

    def learn(self, i: int, log_ratio: float) -> None:
        """Tune by a move with this log ratio."""
        self.tune(i, 0.0 if math.isnan(log_ratio) else math.exp(min(log_ratio, 0.0)))


class HyperScale(NamedTuple):
    """Where the hyperparameters are thought to be, in coordinates w (:mod:`..skew_transform`).

    Attributes
    ----------
    mean, cholesky : ndarray, shapes (H,) and (H, H)
        Mean and a factor of the covariance.
    seen : ndarray, shape (2 + H + H * H,)
        Draws in the window, its length, their mean, and the sums of squares about it.
    """

    mean: np.ndarray
    cholesky: np.ndarray
    seen: np.ndarray

    @classmethod
    def of(cls, mean: np.ndarray, cholesky: np.ndarray) -> "HyperScale":
        """Return these, before anything was seen."""
        seen = np.zeros(2 + mean.size + mean.size**2)
        seen[1] = WINDOW
        return cls(mean.copy(), cholesky.copy(), seen)

    def observe(self, w: np.ndarray) -> None:
        """Fit the moves of h to the draws of a window, at its end."""
        size, seen = w.size, self.seen
        seen[0] += 1
        n, mean, squares = seen[0], seen[2 : 2 + size], seen[2 + size :]
        away = w - mean
        mean += away / n
        squares += (1 - 1 / n) * np.outer(away, away).ravel()  # Welford: no cancellation
        if not size or n < seen[1]:
            return
        covariance = squares.reshape(size, size) / n
        weight = n / (n + 10.0 * (size + 1))
        prior = self.cholesky @ self.cholesky.T
        self.mean[:] = weight * mean + (1 - weight) * self.mean
        self.cholesky[:] = np.linalg.cholesky(weight * covariance + (1 - weight) * prior)
        seen[0], seen[1], seen[2:] = 0.0, 2 * seen[1], 0.0


def shares_by_rate(rates: Mapping[str, float]) -> dict[str, float]:
    """Return the share of the planned moves of each kind, given its squared jumps at a cost."""
    best = max(rates.values(), default=math.nan)
    return {
        kind: SHARE_OF_WORSE if rate < HARDLY_PAYS * best else 1.0 for kind, rate in rates.items()
    }


class HyperFrequency(NamedTuple):
    """How many of the planned moves of all hyperparameters are made.

    If each of them evaluates all rows, and trajectories move h as well, h moves only as often as
    keeps its values at successive scans hardly correlated. If sums say everything of the rows, it
    moves more often than planned if these are correlated.

    Attributes
    ----------
    share, least, most : ndarray, shape (1,)
        Of the moves that are planned, and its limits.
    n_seen : ndarray of int64, shape (1,)
        Scans so far.
    seen : ndarray, shape (REMEMBERED, H)
        The last h, in coordinates w; that of scan k in row k modulo `REMEMBERED`.
    """

    share: np.ndarray
    least: np.ndarray
    most: np.ndarray
    n_seen: np.ndarray
    seen: np.ndarray

    @classmethod
    def of(cls, n_hyper: int, by_sums: bool = False) -> "HyperFrequency":
        """Return that of all planned moves."""
        least, most = (1.0, OFTEN) if by_sums else (SELDOM, 1.0)
        limits = np.array([least]), np.array([most])
        seen = np.zeros((REMEMBERED, n_hyper))
        return cls(np.ones(1), *limits, np.zeros(1, dtype=np.int64), seen)

    def observe(self, w: np.ndarray) -> None:
        """Take note of a scan; now and then change the share."""
        self.seen[self.n_seen[0] % REMEMBERED] = w
        self.n_seen[0] += 1
        if self.n_seen[0] % LOOK_EVERY:
            return
        following, later = self._correlations()
        if following > MUCH or later > MUCH_LATER:
            self.share[:] = np.minimum(2.0 * self.share, self.most)
        elif following <= HARDLY and later <= HARDLY_LATER:
            self.share[:] = np.maximum(self.share / 2.0, self.least)

    def _correlations(self) -> tuple[float, float]:
        """Return the largest correlation at lag 1, and the largest average of the later ones.

        Those of a hyperparameter that stands still are 1.
        """
        n = int(self.n_seen[0])
        last = self.seen[:n] if n < REMEMBERED else np.roll(self.seen, -n, axis=0)
        if np.any(np.ptp(last, axis=0) == 0.0):
            return 1.0, 1.0
        away = last - last.mean(axis=0)
        total = np.sum(away**2, axis=0)
        by_lag = [np.sum(away[lag:] * away[:-lag], axis=0) / total for lag in (1, *LATER_LAGS)]
        following, later = by_lag[0], np.mean(by_lag[1:], axis=0)
        return float(following.max(initial=0.0)), float(later.max(initial=0.0))

    def times(self, rng: np.random.Generator, planned: int, share: float = 1.0) -> int:
        """Return how often a move is made of which so many are planned, or a share of them."""
        wanted = self.share[0] * share * planned
        if wanted == planned:
            return planned
        return int(wanted) + int(rng.random() < wanted % 1.0)


class Sweeping(NamedTuple):
    """How factors are swept.

    Attributes
    ----------
    times : int
        Sweeps over a factor in a scan.
    shorter : float
        Share of sweeps whose moves are shorter than the length tuning has found.
    mirrors : bool
        Whether half of these move levels near to where they are mirrored in their mean.
    """

    times: int = 1
    shorter: float = SHORTER
    mirrors: bool = False
