"""A few levels of a factor, each moved by its own density: its prior, and all of its rows.

Given all else the levels of a factor are independent. So the density of a level is that of its
variables under the prior times what its rows say, and neither a surrogate nor a batch has a part in
it. Steps are symmetric, and as long as the next mode may be away: an outlying row is taken for one
or not, and a level of few rows has a mode for each.
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

__all__ = ["AboutPoint", "LevelRows", "OwnRowMoves", "OwnRows", "rows_of_levels"]

TYPICAL_LENGTH, LENGTH_SPREAD = 2.0, 1.0
"""Median length of a step in standard deviations of the Gaussian of a level, and the standard
deviation of its logarithm: one step in six is longer than 5."""

NEAREST, FARTHEST, APART = 3.5, 10.5, 1.0
"""Standard deviations from the center of a level at which another mode is looked for, and between
two looks."""

VARIES = 0.5
"""Nats by which the remainder of a row varies over the posterior of a level that may have mass
elsewhere."""


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
    """

    name: str
    factor: int
    chosen: np.ndarray
    times: int
    again: bool
    learns: bool = False


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
        self, rng: np.random.Generator, point: np.ndarray, given: Conditional, times: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Make steps of all levels; return the point after them, and which levels have moved."""
        here, cholesky = self.about(point), self.factor(given)
        bars = -rng.standard_exponential((times, self.chosen.size))
        steps = [
            solve_blocks_transposed(cholesky, whitened)
            for whitened in self.whitened_steps(rng, times)
        ]
        changes = here.step(np.array(steps), bars)
        return here.point, np.any(bars < changes, axis=0)

    def whitened_steps(self, rng: np.random.Generator, times: int) -> np.ndarray:
        """Draw steps along one axis, or along any direction, shape (times, S, q)."""
        n_levels, n_effects = self.latent.shape
        lengths = TYPICAL_LENGTH * np.exp(LENGTH_SPREAD * rng.standard_normal((times, n_levels, 1)))
        directions = rng.standard_normal((times, n_levels, n_effects))
        axis = rng.integers(n_effects, size=(times, n_levels, 1))
        is_along = (rng.random((times, n_levels, 1)) >= 0.5) | (np.arange(n_effects) == axis)
        directions *= is_along
        return lengths * directions / np.linalg.norm(directions, axis=-1, keepdims=True)


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


@partial(jit_kept, nogil=True)
def make_steps(
    steps: np.ndarray,
    bars: np.ndarray,
    state: LevelState,
    maps: LevelMaps,
    temperature: float,
    constants: RowConstants,
    batch: Any,
) -> np.ndarray:
    """Make steps one after another, of those levels whose log-density changes by more than a bar.

    Parameters
    ----------
    steps, bars : ndarray, shapes (times, S, q) and (times, S)
        Of all levels.
    state, maps, temperature, constants, batch
        Where they are, what they are read by, T, and their rows.

    Returns
    -------
    ndarray, shape (times, S)
        How the log-density of each level changes.
    """
    changes, proposed = np.zeros(bars.shape), state.phi.copy()
    n_levels, width = state.levels.shape
    accepted, curved = np.empty(n_levels, np.bool_), np.empty((n_levels, width))
    after = np.empty(state.values.size)
    for t in range(changes.shape[0]):
        change = changes[t]
        for s in range(n_levels):
            for r in range(maps.entries.shape[1]):
                for i in range(width):
                    proposed[maps.entries[s, r]] += maps.jacobian[s, r, i] * steps[t, s, i]
        if after.size:
            v = call_graph(constants.addresses[0], (proposed, *batch))[0]
            found = call_graph(constants.addresses[1], (v, *batch))[0][0]
            for n in range(after.size):
                value = found[n] / temperature
                after[n] = value if value < np.inf else -np.inf  # as where digits are lost
                change[maps.level[n]] += after[n] - state.values[n]
        for s in range(n_levels):
            for i in range(width):
                curved[s, i] = 0.0
                for j in range(width):
                    curved[s, i] += maps.curvature[s, i, j] * steps[t, s, j]
                change[s] += (state.slope[s, i] + 0.5 * curved[s, i]) * steps[t, s, i]
            accepted[s] = bars[t, s] < change[s]
            if accepted[s]:
                state.levels[s] += steps[t, s]
                state.slope[s] += curved[s]
            for entry in maps.entries[s]:
                if accepted[s]:
                    state.phi[entry] = proposed[entry]
                else:
                    proposed[entry] = state.phi[entry]
        for n in range(after.size):
            if accepted[maps.level[n]]:
                state.values[n] = after[n]
    return changes


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

    def change(self, steps: np.ndarray) -> np.ndarray:
        """Return how the log-density of each level would change, shape (S,)."""
        return self.step(steps[None], np.full((1, len(steps)), np.inf))[0]

    def step(self, steps: np.ndarray, bars: np.ndarray) -> np.ndarray:
        """Make steps of those levels whose log-density changes by more than a bar.

        Parameters
        ----------
        steps, bars : ndarray, shapes (times, S, q) and (times, S)
            One after another.

        Returns
        -------
        ndarray, shape (times, S)
            How the log-density of each level changes.
        """
        if self.own.prior is None:
            return self._by_rows(steps, bars)
        changes, prior = np.empty(bars.shape), self._prior(self.state.levels)
        for t in range(len(steps)):
            proposed = self._prior(self.state.levels + steps[t])
            bar = bars[t] - (proposed - prior)
            of_rows = self._by_rows(steps[t : t + 1], bar[None])[0]
            with np.errstate(invalid="ignore"):
                changes[t] = proposed - prior + of_rows
            prior = np.where(bar < of_rows, proposed, prior)
        return changes

    def _by_rows(self, steps: np.ndarray, bars: np.ndarray) -> np.ndarray:
        """Step with what rows, and a Gaussian prior, say."""
        own = self.own
        changes: np.ndarray = make_steps(
            steps, bars, self.state, self.maps, own.temperature, own.constants, tuple(own.batch)
        )
        return changes

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
    far : sequence of ndarray, shape (G,)
        For each what :meth:`look_elsewhere` has found.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        functions: RowFunctions,
        temperature: float,
        tables: Sequence[tuple[np.ndarray, np.ndarray]],
        far: Sequence[np.ndarray] = (),
    ) -> None:
        self.surrogate, self.functions, self.temperature = surrogate, functions, temperature
        self.tables, self.far = tables, far
        self._kept: dict[str, OwnRows] = {}

    def counted(self, factor: int) -> np.ndarray:
        """Return the number of rows of each level, shape (G,)."""
        return np.diff(self.tables[factor][1])

    def of(self, moves: OwnRowMoves) -> OwnRows:
        """Return the densities of some levels; kept if they are of interest again."""
        kept = self._kept.get(moves.name)
        if kept is None or not np.array_equal(kept.chosen, moves.chosen):
            kept = self._of(moves.factor, moves.chosen)
            if moves.again:
                self._kept[moves.name] = kept
        return kept

    def _of(self, factor: int, chosen: np.ndarray) -> OwnRows:
        return OwnRows(
            self.surrogate,
            self.functions,
            self.temperature,
            self.surrogate.field.levels[factor],
            chosen,
            rows_of_levels(*self.tables[factor], chosen),
        )

    def look_elsewhere(self, hyper: np.ndarray, factor: int, ranges: np.ndarray) -> np.ndarray:
        """Return the highest log-density of each level far from its center, less that there, (G,).

        It is looked at along its axes, both ways, with all levels at their centers. Levels none of
        whose rows has a remainder that varies are nearly normal: they are not looked at, and −∞.

        Parameters
        ----------
        hyper
            The hyperparameters.
        factor
            Which one.
        ranges : ndarray, shape (N,)
            By how many nats the remainder of each row varies.
        """
        (rows, starts), levels = self.tables[factor], self.surrogate.field.levels[factor]
        found = np.full(len(levels.latent), -math.inf)
        varying = np.concatenate([[0], np.cumsum(ranges[rows] > VARIES)])[starts]
        chosen = np.flatnonzero(np.diff(varying))
        if not chosen.size:
            return found
        given = self.surrogate.conditional(hyper)
        point = given.frame.origin.copy()
        before = self.surrogate.read(point)
        point[levels.latent], _ = self.surrogate.given_others(given, point, before, levels)
        with np.errstate(all="ignore"):
            found[chosen] = _highest(self._of(factor, chosen), point, given)
        return found


def _highest(own: OwnRows, point: np.ndarray, given: Conditional) -> np.ndarray:
    """Return the highest log-density of each level far from a point, less that there, (S,)."""
    here, cholesky = own.about(point), own.factor(given)
    highest = np.full(own.chosen.size, -math.inf)
    for slot in range(own.latent.shape[1]):
        for distance in np.arange(NEAREST, FARTHEST, APART):
            for sign in (-1.0, 1.0):
                steps = np.zeros(own.latent.shape)
                steps[:, slot] = sign * distance
                change = here.change(solve_blocks_transposed(cholesky, steps))
                highest = np.fmax(highest, change)
    return highest
