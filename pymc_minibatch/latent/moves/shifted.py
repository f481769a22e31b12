"""Coefficients shift, and levels below them shift back, so that rows read the same.

The prior decides, and no row is read. Where many rows say what the sum of a coefficient and a level
is, each of the two by itself can only creep; their difference is what the prior alone speaks of
(generalised Gibbs). Each variable goes where the prior along its own shift is thought to be normal.

Reference
---------
Liu and Sabatti (2000), Generalised Gibbs sampler and multigrid Monte Carlo for Bayesian
computation.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.moves.border import RandomBlocks
from pymc_minibatch.latent.moves.protocol import (
    EffectsModel,
    Move,
    Outcome,
    Planned,
    Proposal,
    Setting,
)
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.shifts import Shift

__all__ = ["Shifted", "log_kernel_of", "plan"]


class Slopes(NamedTuple):
    """The log prior along a shift, to second order.

    Attributes
    ----------
    slope, precision : ndarray, shape (m,)
        Of each variable, the others held.
    """

    slope: np.ndarray
    precision: np.ndarray

    def log_density(self, step: np.ndarray) -> float:
        """Return the log density of a step, where the precision is positive."""
        away = step - self.slope / self.precision
        return float(np.sum(0.5 * np.log(self.precision) - 0.5 * self.precision * away**2))


class Shifted(Move):
    """Shifts of the coefficients of one variable against the levels of a factor."""

    words, scope = "coefficients, levels the other way", "prior"

    def __init__(self, model: EffectsModel, number: int) -> None:
        self.name, self.shift = f"shift {number}", model.field.shifts[number]
        self.size = self.shift.variables.size

    def initial(self) -> RandomBlocks:
        """Return one block."""
        return RandomBlocks(np.zeros(1), np.zeros(1))

    def targets(self, rng: np.random.Generator, tuner: RandomBlocks) -> Sequence[np.ndarray]:
        """Return which variables shift together, for each of the moves."""
        return tuner.split(rng, self.size)

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: np.ndarray, setting: Setting
    ) -> Proposal | None:
        """Draw steps from the normal distribution that the prior is along the shift."""
        field, shift = state.surrogate.field, self.shift
        direction = shift.direction(field, state.point)
        if direction is None:
            return None
        here = slopes_along(field, shift, direction, state.point)
        chosen = np.zeros(self.size, dtype=bool)
        chosen[target] = here.precision[target] > 0.0
        if not chosen.any():
            return None
        step = np.zeros(self.size)
        own = here.precision[chosen]
        step[chosen] = here.slope[chosen] / own + rng.standard_normal(own.size) / np.sqrt(own)
        point = shift.along(direction, state.point, step)
        there = slopes_along(field, shift, direction, point)
        return Proposal(state.with_latent(point), _log_kernel((here, there), step, chosen))

    def learn(
        self,
        rng: np.random.Generator,
        tuner: RandomBlocks,
        target: np.ndarray,
        proposal: Proposal,
        outcome: Outcome,
    ) -> None:
        """Change the number of blocks."""
        tuner.tune(outcome.accepted, self.size)


def slopes_along(
    field: LatentField, shift: Shift, direction: np.ndarray, point: np.ndarray
) -> Slopes:
    """Return slope and curvature of the log prior along a shift."""
    gradient = field.derivatives.prior_gradient(point)
    seed = np.zeros(point.size)
    seed[shift.variables] = 1.0
    seed[shift.levels.latent] = direction
    product = field.derivatives.prior_product(point, seed)
    slope, curvature = (_pulled_back(shift, direction, each) for each in (gradient, product))
    return Slopes(slope, -curvature)


def _pulled_back(shift: Shift, direction: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return the sum over each variable and the levels below it, times what these move."""
    of_levels = np.sum(direction * vector[shift.levels.latent], axis=1)
    below = shift.parent >= 0
    n = shift.variables.size
    sums = np.bincount(shift.parent[below], weights=of_levels[below], minlength=n)
    return np.asarray(vector[shift.variables] + sums)


def log_kernel_of(
    field: LatentField,
    shift: Shift,
    points: tuple[np.ndarray, np.ndarray],
    chosen: np.ndarray,
) -> float:
    """Return log k(x | x') − log k(x' | x) of a shift of chosen variables; −∞ without return."""
    direction = shift.direction(field, points[0])
    if direction is None:
        return -np.inf
    here, there = (slopes_along(field, shift, direction, point) for point in points)
    return _log_kernel((here, there), (points[1] - points[0])[shift.variables], chosen)


def _log_kernel(ends: tuple[Slopes, Slopes], step: np.ndarray, chosen: np.ndarray) -> float:
    there, back = (Slopes(s.slope[chosen], s.precision[chosen]) for s in ends)
    if not np.all(back.precision > 0.0):
        return -np.inf
    return back.log_density(-step[chosen]) - there.log_density(step[chosen])


def plan(model: EffectsModel) -> list[Planned]:
    """Return how it enters a scan: once for each variable that can be shifted."""
    return [Planned(Shifted(model, number)) for number in range(len(model.field.shifts))]
