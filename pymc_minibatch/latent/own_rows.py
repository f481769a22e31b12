"""A few levels of a factor, each moved by its own density: its prior, and all of its rows.

Given all else the levels of a factor are independent. So the density of a level is that of its
variables under the prior times what its rows say, and neither a surrogate nor a batch has a part in
it. Some steps are symmetric, and as long as the next mode may be away: an outlying row is taken for
one or not, and a level of few rows has a mode for each. Others rest on where levels have been while
tuning. Differences of two such values (differential evolution; ter Braak and Vrugt 2008) follow the
ridge of a level, or are as long as levels differ. And half of all steps draw a level anew, from a
Student t with the mean and covariance that it had (an independence sampler with the moments of
adaptive Metropolis; Haario, Saksman and Tamminen 2001).
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.pointers import call_graph
from pymc_minibatch.latent.arrowhead import blocks_of_dense
from pymc_minibatch.latent.batched import factored_blocks, solve_blocks_transposed
from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.surrogate import Surrogate
from pymc_minibatch.reference.remainders import RowConstants
from pymc_minibatch.reference.rows import RowFunctions

__all__ = [
    "AboutPoint",
    "Elsewhere",
    "LevelRows",
    "LevelSteps",
    "OwnRowMoves",
    "OwnRows",
    "rows_of_levels",
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


def rows_of_levels(
    rows: np.ndarray, starts: np.ndarray, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the rows of some levels, and the position of each one's level.

    Parameters
    ----------
    rows, starts
        Row numbers sorted by level, and where each level starts.
    chosen : ndarray of int64, shape (S,)
        The levels.
    """
    lengths = starts[chosen + 1] - starts[chosen]
    level = np.repeat(np.arange(chosen.size), lengths)
    within = np.arange(level.size) - (np.cumsum(lengths) - lengths)[level]
    return rows[starts[chosen][level] + within], level


def some_rows_of_levels(
    rows: np.ndarray, starts: np.ndarray, chosen: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return what :func:`rows_of_levels` does, of at most so many rows of each, evenly spaced."""
    lengths = np.diff(starts)[chosen]
    few = np.minimum(lengths, most)
    level = np.repeat(np.arange(chosen.size), few)
    within = np.arange(level.size) - (np.cumsum(few) - few)[level]
    return rows[starts[chosen][level] + within * lengths[level] // few[level]], level


class Elsewhere(NamedTuple):
    """What was found of the levels of a factor far from their centers.

    Attributes
    ----------
    highest : ndarray, shape (G,)
        The highest log-density of each there, less that at its center; −∞ if nobody looked, since
        it is nearly normal.
    jumps : ndarray, shape (M, G, q)
        From the center to other modes; zero if fewer were found.
    """

    highest: np.ndarray
    jumps: np.ndarray


class OwnRows:
    """The densities of a few levels.

    Parameters
    ----------
    surrogate
        Whose field the levels are of.
    functions, temperature
        What rows read, and T.
    levels
        The effects of the factor.
    chosen : ndarray of int64, shape (S,)
        Which levels.
    rows : (ndarray, ndarray), shapes (R,)
        The numbers of their rows, and the position of the level of each.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        functions: RowFunctions,
        temperature: float,
        levels: GroupEffects,
        chosen: np.ndarray,
        rows: tuple[np.ndarray, np.ndarray],
    ) -> None:
        self.surrogate, self.functions, self.temperature = surrogate, functions, temperature
        self.chosen, (self.numbers, self.level) = chosen, rows
        self.latent, self.entries = levels.latent[chosen], levels.rows[chosen]
        self.prior = levels.prior
        self.in_groups = np.array_equal(levels.latent, surrogate.field.latent.groups)
        # Numbers pick rows out of an array of any layout; code called by address takes one.
        self.batch = [np.ascontiguousarray(v[self.numbers]) for v in surrogate.tall.data]
        self.constants = functions.constants(np.empty(0), self.batch)

    def of_rows(self, phi: np.ndarray) -> np.ndarray:
        """Return the log-likelihoods of the rows at φ, divided by T, shape (R,)."""
        if not self.numbers.size:
            return np.empty(0)
        v = self.functions.predictors_at(phi, *self.batch)
        values = self.functions.row(v, *self.batch)[0] / self.temperature
        return np.where(values < np.inf, values, -np.inf)

    def factor(self, given: Conditional) -> np.ndarray:
        """Return Cholesky factors of the precisions of the levels given all else, (S, q, q).

        Raises
        ------
        LinAlgError
            If one is not positive definite.
        """
        layout = self.surrogate.field.latent
        if self.in_groups:
            return factored_blocks(given.blocks[self.chosen])
        return factored_blocks(blocks_of_dense(given.dense, layout, self.latent))

    def about(self, point: np.ndarray) -> "AboutPoint":
        """Return what the levels are moved from."""
        return AboutPoint(self, point)

    def walk(
        self, rng: np.random.Generator, point: np.ndarray, given: Conditional, moves: OwnRowMoves
    ) -> tuple[np.ndarray, np.ndarray]:
        """Make steps of all levels; return the point after them, and which levels have moved."""
        here, steps = self.about(point), self.steps(rng, given, moves)
        bars = -rng.standard_exponential(steps.is_anew.shape)
        changes = here.step(steps, bars)
        return here.point, np.any(bars < changes, axis=0)

    def steps(self, rng: np.random.Generator, given: Conditional, moves: OwnRowMoves) -> np.ndarray:
        """Draw steps, shape (times, S, q); how likely they are does not depend on the levels.

        Raises
        ------
        LinAlgError
            If the precision of a level given all else is not positive definite.
        """
        cholesky, along = self.factor(given), self.some_axes(rng, moves.times)
        shape = (*along.shape[:2], 1)
        lengths = TYPICAL_LENGTH * np.exp(LENGTH_SPREAD * rng.standard_normal(shape))
        by = lengths * self.directions(rng, along, cholesky)
        if moves.seen is not None and len(moves.seen) >= LEAST_SEEN:
            is_difference = rng.random(shape) < DIFFERENCES
            by = np.where(is_difference, along * self._differences(rng, moves), by)
        if moves.jumps is not None:
            is_jump = (rng.random(shape) < JUMPS) & moves.jumps[0].any(axis=1, keepdims=True)
            by = np.where(is_jump, self._jumps(rng, moves), by)
        steps = LevelSteps.symmetric(by)
        if moves.seen is not None and len(moves.seen) >= LEAST_DRAWN_FROM:
            steps = self._drawn_anew(rng, steps, moves.seen[:, self.chosen])
        return steps

    def _drawn_anew(
        self, rng: np.random.Generator, steps: "LevelSteps", seen: np.ndarray
    ) -> "LevelSteps":
        """Let some steps draw levels from what was seen of them, shape (A, S, q)."""
        mean, covariance = moments(seen)
        shape = steps.by.shape
        chi = np.sqrt(rng.chisquare(DEGREES, shape[:2]) / DEGREES)
        normal = rng.standard_normal(shape) / chi[..., None]
        drawn = np.einsum("sij,tsj->tsi", np.linalg.cholesky(covariance), normal)
        is_anew = rng.random(shape[:2]) < ANEW
        by = np.where(is_anew[..., None], drawn, steps.by)
        return LevelSteps(by, is_anew, mean, np.linalg.inv(covariance))

    def some_axes(self, rng: np.random.Generator, times: int) -> np.ndarray:
        """Choose one axis of a level, or all of them, for each step, shape (times, S, q)."""
        n_levels, n_effects = self.latent.shape
        axis = rng.integers(n_effects, size=(times, n_levels, 1))
        is_along: np.ndarray = np.arange(n_effects) == axis
        return is_along | (rng.random((times, n_levels, 1)) >= 0.5)

    def directions(
        self, rng: np.random.Generator, along: np.ndarray, cholesky: np.ndarray
    ) -> np.ndarray:
        """Draw steps one standard deviation long, along some axes of whitened coordinates."""
        whitened = along * rng.standard_normal(along.shape)
        whitened /= np.linalg.norm(whitened, axis=-1, keepdims=True)
        return np.array([solve_blocks_transposed(cholesky, step) for step in whitened])

    def _jumps(self, rng: np.random.Generator, moves: OwnRowMoves) -> np.ndarray:
        """Draw jumps from one mode to another, or as far the other way."""
        assert moves.jumps is not None
        shape = (moves.times, self.chosen.size)
        n_jumps = moves.jumps.any(axis=2).sum(axis=0)  # the first ones
        which = (rng.random(shape) * n_jumps).astype(np.int64)
        signs = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
        return signs[..., None] * moves.jumps[which, np.arange(self.chosen.size)]

    def _differences(self, rng: np.random.Generator, moves: OwnRowMoves) -> np.ndarray:
        """Draw differences of two values that a level, or two levels, had while tuning."""
        assert moves.seen is not None
        n_seen, n_levels, _ = moves.seen.shape
        shape = (moves.times, self.chosen.size)
        is_own, is_whole = rng.random(shape) < OF_ITS_OWN, rng.random(shape) < WHOLE
        ends = [
            moves.seen[
                rng.integers(n_seen, size=shape),
                np.where(is_own, self.chosen, rng.integers(n_levels, size=shape)),
            ]
            for _ in range(2)
        ]
        scale = np.where(is_whole, 1.0, np.exp(SCALE_SPREAD * rng.standard_normal(shape)))
        return scale[..., None] * (ends[1] - ends[0])


def moments(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means (S, q) and covariances (S, q, q) of what was seen of levels, (A, S, q).

    Correlations are shrunk, and no variance is much smaller than that of other levels.
    """
    n_seen, _, width = seen.shape
    mean = seen.mean(axis=0)
    products = np.einsum("asi,asj->sij", seen - mean, seen - mean)
    variances = np.einsum("sii->si", products) / n_seen
    least = LEAST_VARIANCE * np.median(variances, axis=0) + np.finfo(np.float64).tiny
    n_pseudo = width + PSEUDO_VALUES
    added = n_pseudo * np.maximum(variances, least)[..., None] * np.eye(width)
    return mean, (products + added) / (n_seen + n_pseudo)


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


class LevelState(NamedTuple):
    """Where levels are, changed in place by :func:`make_steps`.

    Attributes
    ----------
    levels : ndarray, shape (S, q)
        The variables of the levels.
    phi : ndarray, shape (P,)
        What rows read.
    values : ndarray, shape (R,)
        The log-likelihoods of their rows, divided by T.
    slope : ndarray, shape (S, q)
        Of a Gaussian prior; zero if the prior is another one.
    """

    levels: np.ndarray
    phi: np.ndarray
    values: np.ndarray
    slope: np.ndarray


class LevelMaps(NamedTuple):
    """What is the same wherever the levels are.

    Attributes
    ----------
    level : ndarray of int64, shape (R,)
        The position of the level of each row.
    entries : ndarray of int64, shape (S, r)
        The entries of φ that belong to each level.
    jacobian : ndarray, shape (S, r, q)
        Of these by the variables of the level.
    curvature : ndarray, shape (S, q, q)
        Of a Gaussian prior; zero if the prior is another one.
    """

    level: np.ndarray
    entries: np.ndarray
    jacobian: np.ndarray
    curvature: np.ndarray


@jit_kept
def log_t(level: np.ndarray, mean: np.ndarray, precision: np.ndarray) -> float:
    """Return the log-density of the t from which a level is drawn anew, but for a constant."""
    square = 0.0
    for i in range(level.size):
        for j in range(level.size):
            square += (level[i] - mean[i]) * precision[i, j] * (level[j] - mean[j])
    return -0.5 * (DEGREES + level.size) * math.log1p(square / DEGREES)


@partial(jit_kept, nogil=True)
def make_steps(
    steps: LevelSteps,
    bars: np.ndarray,
    state: LevelState,
    maps: LevelMaps,
    temperature: float,
    constants: RowConstants,
    batch: Any,
) -> np.ndarray:
    """Make steps one after another, of those levels whose log ratio is above a bar.

    Parameters
    ----------
    steps : LevelSteps
        Of all levels.
    bars : ndarray, shape (times, S)
        Their bars.
    state, maps, temperature, constants, batch
        Where they are, what they are read by, T, and their rows.

    Returns
    -------
    ndarray, shape (times, S)
        The log ratio of each step of each level.
    """
    log_ratios, proposed = np.zeros(bars.shape), state.phi.copy()
    n_levels, width = state.levels.shape
    accepted, curved = np.empty(n_levels, np.bool_), np.empty((n_levels, width))
    step, after = np.empty((n_levels, width)), np.empty(state.values.size)
    for t in range(log_ratios.shape[0]):
        log_ratio = log_ratios[t]
        for s in range(n_levels):
            for i in range(width):
                step[s, i] = steps.by[t, s, i]
            if steps.is_anew[t, s]:
                mean, precision = steps.mean[s], steps.precision[s]
                log_ratio[s] += log_t(state.levels[s], mean, precision)
                log_ratio[s] -= log_t(mean + step[s], mean, precision)
                step[s] += mean - state.levels[s]
            for r in range(maps.entries.shape[1]):
                for i in range(width):
                    proposed[maps.entries[s, r]] += maps.jacobian[s, r, i] * step[s, i]
        if after.size:
            v = call_graph(constants.addresses[0], (proposed, *batch))[0]
            found = call_graph(constants.addresses[1], (v, *batch))[0][0]
            for n in range(after.size):
                value = found[n] / temperature
                after[n] = value if value < np.inf else -np.inf  # as where digits are lost
                log_ratio[maps.level[n]] += after[n] - state.values[n]
        for s in range(n_levels):
            for i in range(width):
                curved[s, i] = 0.0
                for j in range(width):
                    curved[s, i] += maps.curvature[s, i, j] * step[s, j]
                log_ratio[s] += (state.slope[s, i] + 0.5 * curved[s, i]) * step[s, i]
            accepted[s] = bars[t, s] < log_ratio[s]
            if accepted[s]:
                state.levels[s] += step[s]
                state.slope[s] += curved[s]
            for entry in maps.entries[s]:
                if accepted[s]:
                    state.phi[entry] = proposed[entry]
                else:
                    proposed[entry] = state.phi[entry]
        for n in range(after.size):
            if accepted[maps.level[n]]:
                state.values[n] = after[n]
    return log_ratios


class AboutPoint:
    """The levels at a point, and how their densities change along steps.

    φ is affine in the levels and, if they are Gaussian, their prior quadratic, as was found of the
    field.
    """

    def __init__(self, own: OwnRows, point: np.ndarray) -> None:
        self.own, self.start = own, point
        derivatives, latent = own.surrogate.field.derivatives, own.latent
        phi, slope = own.surrogate.phi(point), np.zeros(latent.shape)
        jacobian = np.empty((*own.entries.shape, latent.shape[1]))
        curvature = np.zeros((*latent.shape, latent.shape[1]))
        for slot in range(latent.shape[1]):
            seed = np.zeros(point.size)
            seed[latent[:, slot]] = 1.0
            jacobian[:, :, slot] = derivatives.push(point, seed)[own.entries]
            if own.prior is None:
                curvature[:, :, slot] = derivatives.prior_product(point, seed)[latent]
        if own.prior is None:
            slope = derivatives.prior_gradient(point)[latent]
        self.state = LevelState(point[latent], phi, own.of_rows(phi), slope)
        self.maps = LevelMaps(own.level, own.entries, jacobian, curvature)

    @property
    def point(self) -> np.ndarray:
        """Where they are, with all else as it was, shape (D,)."""
        found = self.start.copy()
        found[self.own.latent] = self.state.levels
        return found

    def change(self, by: np.ndarray) -> np.ndarray:
        """Return how the log-density of each level would change by a step, shape (S,)."""
        return self.step(LevelSteps.symmetric(by[None]), np.full((1, len(by)), np.inf))[0]

    def step(self, steps: LevelSteps, bars: np.ndarray) -> np.ndarray:
        """Make steps, one after another, of those levels whose log ratio is above a bar.

        Parameters
        ----------
        steps : LevelSteps
            Of all levels.
        bars : ndarray, shape (times, S)
            Their bars.

        Returns
        -------
        ndarray, shape (times, S)
            The log ratio of each step of each level: by how much its log-density changes, and, if
            it is drawn anew, the log ratio of the densities of both proposals.
        """
        if self.own.prior is None:
            return self._by_rows(steps, bars)
        log_ratios, prior = np.empty(bars.shape), self._prior(self.state.levels)
        for t in range(len(bars)):
            one = steps.at(t)
            proposed = self._prior(self.state.levels + one.from_levels(self.state.levels))
            bar = bars[t] - (proposed - prior)
            of_rows = self._by_rows(one, bar[None])[0]
            with np.errstate(invalid="ignore"):
                log_ratios[t] = proposed - prior + of_rows
            prior = np.where(bar < of_rows, proposed, prior)
        return log_ratios

    def _by_rows(self, steps: LevelSteps, bars: np.ndarray) -> np.ndarray:
        """Step with what rows, and a Gaussian prior, say."""
        own = self.own
        log_ratios: np.ndarray = make_steps(
            steps, bars, self.state, self.maps, own.temperature, own.constants, tuple(own.batch)
        )
        return log_ratios

    def _prior(self, levels: np.ndarray) -> np.ndarray:
        """Return the log-density of each level under a prior that is not Gaussian, shape (S,)."""
        own, point = self.own, self.start.copy()
        assert own.prior is not None
        point[own.latent] = levels
        to_model = own.surrogate.field.derivatives.coordinates.to_model
        return np.asarray(own.prior.logp(to_model(point)))[own.chosen]


class LevelRows:
    """The rows of the levels of all factors.

    Parameters
    ----------
    surrogate
        Whose field the levels are of.
    functions, temperature
        What rows read, and T.
    tables
        For each factor row numbers sorted by level, and where each level starts.
    elsewhere : sequence of Elsewhere
        For each what was found far from its levels' centers.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        functions: RowFunctions,
        temperature: float,
        tables: Sequence[tuple[np.ndarray, np.ndarray]],
        elsewhere: Sequence[Elsewhere] = (),
    ) -> None:
        self.surrogate, self.functions, self.temperature = surrogate, functions, temperature
        self.tables, self.elsewhere = tables, elsewhere
        self._kept: dict[str, OwnRows] = {}

    def counted(self, factor: int) -> np.ndarray:
        """Return the number of rows of each level, shape (G,)."""
        return np.diff(self.tables[factor][1])

    def of(self, moves: OwnRowMoves) -> OwnRows:
        """Return the densities of some levels; kept if they are of interest again."""
        kept = self._kept.get(moves.name)
        if kept is None or not np.array_equal(kept.chosen, moves.chosen):
            kept = self.of_chosen(moves.factor, moves.chosen)
            if moves.again:
                self._kept[moves.name] = kept
        return kept

    def of_chosen(self, factor: int, chosen: np.ndarray, most: int | None = None) -> OwnRows:
        """Return the densities of some levels, by at most so many rows of each."""
        rows, starts = self.tables[factor]
        if most is None:
            own = rows_of_levels(rows, starts, chosen)
        else:
            own = some_rows_of_levels(rows, starts, chosen, most)
        levels = self.surrogate.field.levels[factor]
        return OwnRows(self.surrogate, self.functions, self.temperature, levels, chosen, own)
