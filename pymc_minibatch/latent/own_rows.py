"""A few levels of a factor, each moved by its own density: its prior, and all of its rows.

Given all else the levels of a factor are independent. So the density of a level is that of its
variables under the prior times what its rows say, and neither a surrogate nor a batch has a part in
it. Steps are symmetric, and as long as the next mode may be away: an outlying row is taken for one
or not, and a level of few rows has a mode for each.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pymc_minibatch.latent.arrowhead import blocks_of_dense
from pymc_minibatch.latent.batched import (
    factored_blocks,
    inner_products,
    multiply_blocks,
    solve_blocks_transposed,
)
from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.surrogate import Surrogate
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
        self.batch = [values[self.numbers] for values in surrogate.tall.data]

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
        moved = np.zeros(self.chosen.size, dtype=np.bool_)
        bars = -rng.standard_exponential((times, self.chosen.size))
        for whitened, bar in zip(self.whitened_steps(rng, times), bars, strict=True):
            change, take = here.change(solve_blocks_transposed(cholesky, whitened))
            accepted = bar < change
            take(accepted)
            moved |= accepted
        return here.point, moved

    def whitened_steps(self, rng: np.random.Generator, times: int) -> np.ndarray:
        """Draw steps along one axis, or along any direction, shape (times, S, q)."""
        n_levels, n_effects = self.latent.shape
        lengths = TYPICAL_LENGTH * np.exp(LENGTH_SPREAD * rng.standard_normal((times, n_levels, 1)))
        directions = rng.standard_normal((times, n_levels, n_effects))
        axis = rng.integers(n_effects, size=(times, n_levels, 1))
        is_along = (rng.random((times, n_levels, 1)) >= 0.5) | (np.arange(n_effects) == axis)
        directions *= is_along
        return lengths * directions / np.linalg.norm(directions, axis=-1, keepdims=True)


class AboutPoint:
    """The levels at a point, and how their densities change along steps.

    φ is affine in the levels and, if they are Gaussian, their prior quadratic, as was found of the
    field.

    Attributes
    ----------
    point : ndarray, shape (D,)
        Where they are.
    """

    def __init__(self, own: OwnRows, point: np.ndarray) -> None:
        self.own, self.point = own, point.copy()
        derivatives, latent = own.surrogate.field.derivatives, own.latent
        self.phi = own.surrogate.phi(point)
        self.values = own.of_rows(self.phi)
        self.jacobian = np.empty((*own.entries.shape, latent.shape[1]))
        self.curvature = np.empty((*latent.shape, latent.shape[1]))
        for slot in range(latent.shape[1]):
            seed = np.zeros(point.size)
            seed[latent[:, slot]] = 1.0
            self.jacobian[:, :, slot] = derivatives.push(point, seed)[own.entries]
            if own.prior is None:
                self.curvature[:, :, slot] = derivatives.prior_product(point, seed)[latent]
        if own.prior is None:
            self.slope = derivatives.prior_gradient(point)[latent]
        else:
            self.prior = self._prior(point)

    def _prior(self, point: np.ndarray) -> np.ndarray:
        """Return the log-density of each level under a prior that is not Gaussian, shape (S,)."""
        own = self.own
        assert own.prior is not None
        to_model = own.surrogate.field.derivatives.coordinates.to_model
        return np.asarray(own.prior.logp(to_model(point)))[own.chosen]

    def change(self, steps: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], None]]:
        """Return how the log-density of each level changes, and what makes the steps of some."""
        own = self.own
        proposed, phi = self.point.copy(), self.phi.copy()
        proposed[own.latent] += steps
        phi[own.entries] += np.einsum("srq,sq->sr", self.jacobian, steps)
        values = own.of_rows(phi)
        with np.errstate(invalid="ignore"):
            change = np.bincount(own.level, values - self.values, minlength=own.chosen.size)
        curved = prior = None
        if own.prior is None:
            curved = multiply_blocks(self.curvature, steps)
            change += inner_products(self.slope + 0.5 * curved, steps)
        else:
            prior = self._prior(proposed)
            change += prior - self.prior

        def take(accepted: np.ndarray) -> None:
            latent, entries = own.latent[accepted], own.entries[accepted]
            self.point[latent], self.phi[entries] = proposed[latent], phi[entries]
            self.values = np.where(accepted[own.level], values, self.values)
            if curved is not None:
                self.slope[accepted] += curved[accepted]
            if prior is not None:
                self.prior = np.where(accepted, prior, self.prior)

        return change, take


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
                change, _ = here.change(solve_blocks_transposed(cholesky, steps))
                highest = np.fmax(highest, change)
    return highest
