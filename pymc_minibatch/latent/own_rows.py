"""A few levels of a factor, each moved by its own density: its prior, and all of its rows.

Given all else the levels of a factor are independent. So the density of a level is that of its
variables under the prior times what its rows say, and neither a surrogate nor a batch has a part in
it. Its steps are those of :mod:`.level_steps`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.pointers import call_graph
from pymc_minibatch.latent.arrowhead import blocks_of_dense
from pymc_minibatch.latent.batched import factored_blocks
from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.level_steps import LevelSteps, OwnRowMoves, draw_steps, log_t
from pymc_minibatch.latent.surrogate import Surrogate
from pymc_minibatch.reference.remainders import RowConstants
from pymc_minibatch.reference.rows import RowFunctions

__all__ = [
    "AboutPoint",
    "Elsewhere",
    "LevelRows",
    "OwnRows",
    "Walked",
    "rows_of_levels",
]


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

    def about(self, point: np.ndarray, values: np.ndarray | None = None) -> "AboutPoint":
        """Return what the levels are moved from, given what their rows say there, if known."""
        return AboutPoint(self, point, values)

    def walk(
        self,
        rng: np.random.Generator,
        point: np.ndarray,
        given: Conditional,
        moves: OwnRowMoves,
        values: np.ndarray | None = None,
    ) -> "Walked":
        """Make steps of all levels, given what their rows say at the point, if known."""
        here, steps = self.about(point, values), draw_steps(rng, self.factor(given), moves)
        bars = -rng.standard_exponential(steps.is_anew.shape)
        changes = here.step(steps, bars)
        return Walked(here.point, np.any(bars < changes, axis=0), here.state.values)


class Walked(NamedTuple):
    """Where levels are after some steps.

    Attributes
    ----------
    point : ndarray, shape (D,)
        The point.
    moved : ndarray of bool, shape (S,)
        Which of the levels have moved.
    values : ndarray, shape (R,)
        The log-likelihoods of their rows there, divided by T.
    """

    point: np.ndarray
    moved: np.ndarray
    values: np.ndarray


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
        propose_levels(steps, t, state, maps, step, proposed, log_ratio)
        if after.size:
            v = call_graph(constants.addresses[0], (proposed, *batch))[0]
            found = call_graph(constants.addresses[1], (v, *batch))[0][0]
            for n in range(after.size):
                value = found[n] / temperature
                after[n] = value if value < np.inf else -np.inf  # as where digits are lost
                log_ratio[maps.level[n]] += after[n] - state.values[n]
        for s in range(n_levels):
            of_prior = maps.curvature[s], state.slope[s]
            log_ratio[s] = with_prior(log_ratio[s], of_prior, step[s], curved[s])
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


@register_jitable
def propose_levels(
    steps: LevelSteps,
    t: int,
    state: LevelState,
    maps: LevelMaps,
    step: np.ndarray,
    proposed: np.ndarray,
    log_ratio: np.ndarray,
) -> None:
    """Write the steps of one time, what φ is after them, and add log ratios of their densities."""
    n_levels, width = step.shape
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


@register_jitable
def with_prior(
    log_ratio: float,
    of_prior: tuple[np.ndarray, np.ndarray],
    step: np.ndarray,
    curved: np.ndarray,
) -> float:
    """Add what a Gaussian prior says of a step; write the change of its slope to `curved`."""
    curvature, slope = of_prior
    for i in range(step.size):
        curved[i] = 0.0
        for j in range(step.size):
            curved[i] += curvature[i, j] * step[j]
        log_ratio += (slope[i] + 0.5 * curved[i]) * step[i]
    return log_ratio


class AboutPoint:
    """The levels at a point, and how their densities change along steps.

    φ is affine in the levels and, if they are Gaussian, their prior quadratic, as was found of the
    field.
    """

    def __init__(self, own: OwnRows, point: np.ndarray, values: np.ndarray | None = None) -> None:
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
        if values is None:
            values = own.of_rows(phi)
        self.state = LevelState(point[latent], phi, values, slope)
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
