"""Steps of levels, and the density from which those are drawn that do not begin where a level is.

Some steps are symmetric, and as long as the next mode may be away: an outlying row is taken for one
or not, and a level of few rows has a mode for each. Others rest on where levels have been while
tuning. Differences of two such values (differential evolution; ter Braak and Vrugt 2008) follow the
ridge of a level, or are as long as levels differ. And half of all steps draw a level anew, from a
Student t with the mean and covariance that it had (an independence sampler with the moments of
adaptive Metropolis; Haario, Saksman and Tamminen 2001).
"""

import math
from typing import NamedTuple

import numpy as np

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.latent.batched import solve_blocks_transposed

__all__ = [
    "DEGREES",
    "LEAST_DRAWN_FROM",
    "LevelSteps",
    "OwnRowMoves",
    "directions",
    "draw_steps",
    "log_t",
    "some_axes",
]

TYPICAL_LENGTH, LENGTH_SPREAD = 2.0, 1.0
"""Median length of a step in standard deviations of the Gaussian of a level, and the standard
deviation of its logarithm: one step in six is longer than 5."""

DEGREES, LEAST_DRAWN_FROM, PSEUDO_VALUES = 3.0, 10, 2.0
"""Degrees of freedom of the t from which values are drawn; values seen that it needs; and with how
many values more than a level has variables its correlations are shrunk."""

LEAST_VARIANCE = 0.01
"""Of the values of a level, relative to the median of other levels."""

ANEW, DIFFERENCES, OF_ITS_OWN, WHOLE, SCALE_SPREAD = 0.5, 0.5, 0.5, 0.5, 0.5
"""Shares of the steps that draw a level anew, of the others that are differences of what was seen,
of these that are between values of the level itself, and of these that are taken whole; and the
standard deviation of the logarithm of what others are multiplied by."""

JUMPS = 0.25
"""Share of the steps of a level with another mode that lead there, or as far the other way."""

LEAST_SEEN = 4
"""Values of each level from which differences are taken."""


class OwnRowMoves(NamedTuple):
    """Steps of a few levels.

    Attributes
    ----------
    name : str
        That of the move.
    factor : int
        Their factor.
    chosen : ndarray of int64, shape (S,)
        Which levels.
    times : int
        Steps of each.
    again : bool
        Whether the next scan moves the same levels.
    learns : bool
        Whether a tuner learns from them.
    seen : ndarray or None, shape (A, G, q)
        Values of all levels of the factor while tuning.
    jumps : ndarray or None, shape (M, S, q)
        From one mode of each of these levels to others, or zero.
    """

    name: str
    factor: int
    chosen: np.ndarray
    times: int
    again: bool
    learns: bool = False
    seen: np.ndarray | None = None
    jumps: np.ndarray | None = None


class LevelSteps(NamedTuple):
    """Steps of levels, one after another.

    Attributes
    ----------
    by : ndarray, shape (times, S, q)
        By how much they go; from the mean, if a level is drawn anew.
    is_anew : ndarray of bool, shape (times, S)
        Which draw a level from a t, wherever it is.
    mean, precision : ndarray, shapes (S, q) and (S, q, q)
        Of these.
    """

    by: np.ndarray
    is_anew: np.ndarray
    mean: np.ndarray
    precision: np.ndarray

    @classmethod
    def symmetric(cls, by: np.ndarray) -> "LevelSteps":
        """Take steps that are as likely as their opposites."""
        _, n_levels, width = by.shape
        mean, precision = np.zeros((n_levels, width)), np.zeros((n_levels, width, width))
        return cls(by, np.zeros(by.shape[:2], dtype=np.bool_), mean, precision)

    def at(self, t: int) -> "LevelSteps":
        """Return one of the steps."""
        return self._replace(by=self.by[t : t + 1], is_anew=self.is_anew[t : t + 1])

    def from_levels(self, levels: np.ndarray) -> np.ndarray:
        """Return by how much the first step goes from where levels are, shape (S, q)."""
        return self.by[0] + self.is_anew[0][:, None] * (self.mean - levels)

    def log_q(self, levels: np.ndarray) -> np.ndarray:
        """Return the log-density from which the first step draws levels; 0 if it draws none."""
        away = levels - self.mean
        squares = np.einsum("si,sij,sj->s", away, self.precision, away)
        power = -0.5 * (DEGREES + levels.shape[1])
        return np.asarray(self.is_anew[0] * power * np.log1p(squares / DEGREES))


def draw_steps(rng: np.random.Generator, cholesky: np.ndarray, moves: OwnRowMoves) -> LevelSteps:
    """Draw steps, of which none depends on where the levels are.

    Parameters
    ----------
    rng
        Random numbers.
    cholesky : ndarray, shape (S, q, q)
        Factors of the precisions of the levels given all else.
    moves
        Which levels, how often, and what was seen of them.
    """
    shape = (moves.times, len(cholesky), 1)
    along = some_axes(rng, (*shape[:2], cholesky.shape[1]))
    lengths = TYPICAL_LENGTH * np.exp(LENGTH_SPREAD * rng.standard_normal(shape))
    by = lengths * directions(rng, along, cholesky)
    n_seen = 0 if moves.seen is None else len(moves.seen)
    if n_seen >= LEAST_SEEN:
        is_difference = rng.random(shape) < DIFFERENCES
        by = np.where(is_difference, along * _differences(rng, moves), by)
    if moves.jumps is not None:
        is_jump = (rng.random(shape) < JUMPS) & moves.jumps[0].any(axis=1, keepdims=True)
        by = np.where(is_jump, _jumps(rng, moves), by)
    symmetric = LevelSteps.symmetric(by)
    return _some_anew(rng, symmetric, moves) if n_seen >= LEAST_DRAWN_FROM else symmetric


def some_axes(rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    """Choose one axis of a level, or all of them, for each step, shape (times, S, q)."""
    each = (*shape[:2], 1)
    is_along: np.ndarray = np.arange(shape[2]) == rng.integers(shape[2], size=each)
    return is_along | (rng.random(each) >= 0.5)


def directions(rng: np.random.Generator, along: np.ndarray, cholesky: np.ndarray) -> np.ndarray:
    """Draw steps one standard deviation long, along some axes of whitened coordinates."""
    whitened = along * rng.standard_normal(along.shape)
    whitened /= np.linalg.norm(whitened, axis=-1, keepdims=True)
    return np.array([solve_blocks_transposed(cholesky, step) for step in whitened])


def _jumps(rng: np.random.Generator, moves: OwnRowMoves) -> np.ndarray:
    """Draw jumps from one mode to another, or as far the other way."""
    assert moves.jumps is not None
    shape = (moves.times, moves.chosen.size)
    n_jumps = moves.jumps.any(axis=2).sum(axis=0)  # the first ones
    which = (rng.random(shape) * n_jumps).astype(np.int64)
    signs = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
    return signs[..., None] * moves.jumps[which, np.arange(moves.chosen.size)]


def _differences(rng: np.random.Generator, moves: OwnRowMoves) -> np.ndarray:
    """Draw differences of two values that a level, or two levels, had while tuning."""
    assert moves.seen is not None
    n_seen, n_levels, _ = moves.seen.shape
    shape = (moves.times, moves.chosen.size)
    is_own, is_whole = rng.random(shape) < OF_ITS_OWN, rng.random(shape) < WHOLE
    when = rng.integers(n_seen, size=shape)
    ends = [
        moves.seen[at, np.where(is_own, moves.chosen, rng.integers(n_levels, size=shape))]
        for at in (when, (when + rng.integers(1, n_seen, size=shape)) % n_seen)
    ]
    scale = np.where(is_whole, 1.0, np.exp(SCALE_SPREAD * rng.standard_normal(shape)))
    return scale[..., None] * (ends[1] - ends[0])


def _some_anew(rng: np.random.Generator, steps: LevelSteps, moves: OwnRowMoves) -> LevelSteps:
    """Let some steps draw levels anew from what was seen of them."""
    assert moves.seen is not None
    typical = np.median(moves.seen.var(axis=0), axis=0)
    if not np.all(typical > 0.0):
        return steps
    mean, covariance = _moments(moves.seen[:, moves.chosen], LEAST_VARIANCE * typical)
    shape = steps.by.shape
    shrink = np.sqrt(rng.chisquare(DEGREES, shape[:2]) / DEGREES)
    normal = rng.standard_normal(shape) / shrink[..., None]
    drawn = np.einsum("sij,tsj->tsi", np.linalg.cholesky(covariance), normal)
    is_anew = rng.random(shape[:2]) < ANEW
    by = np.where(is_anew[..., None], drawn, steps.by)
    return LevelSteps(by, is_anew, mean, np.linalg.inv(covariance))


def _moments(seen: np.ndarray, least: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means (S, q) and covariances (S, q, q) of what was seen of levels, (A, S, q).

    Correlations are shrunk, and variances are at least those of shape (q,).
    """
    n_seen, _, width = seen.shape
    mean = seen.mean(axis=0)
    products = np.einsum("asi,asj->sij", seen - mean, seen - mean)
    variances = np.maximum(np.einsum("sii->si", products) / n_seen, least)
    n_pseudo = width + PSEUDO_VALUES
    added = n_pseudo * variances[..., None] * np.eye(width)
    return mean, (products + added) / (n_seen + n_pseudo)


@jit_kept
def log_t(level: np.ndarray, mean: np.ndarray, precision: np.ndarray) -> float:
    """Return the log-density of the t from which a level is drawn anew, but for a constant."""
    square = 0.0
    for i in range(level.size):
        for j in range(level.size):
            square += (level[i] - mean[i]) * precision[i, j] * (level[j] - mean[j])
    return -0.5 * (DEGREES + level.size) * math.log1p(square / DEGREES)
