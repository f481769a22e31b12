"""One hyperparameter moves, the levels of one factor follow it, and other effects stay as read.

The levels keep their places in the Gaussian that all else leaves them, as if they were integrated
out (partial collapsing). The hyperparameter is drawn from what is known of it, or walks.

Reference
---------
van Dyk and Park (2008), Partially collapsed Gibbs samplers.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc_minibatch.latent.batched import (
    log_diagonal,
    multiply_transposed,
    solve_blocks_transposed,
)
from pymc_minibatch.latent.field import CenteredPoint, LatentField
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.moves import kernels
from pymc_minibatch.latent.moves.protocol import (
    EffectsModel,
    Move,
    Outcome,
    Planned,
    Proposal,
    Setting,
)
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.tuners import Walks
from pymc_minibatch.latent.surrogate import Surrogate

__all__ = ["Collapsed", "collapsed_pairs", "followed", "following", "plan"]

TIMES = 3
"""Moves of single hyperparameters in a scan."""

NEARBY = 0.1
"""From h to another one, to see whether effects can be held."""

SAME = 1e-5
"""Relative difference of what levels that do not follow h keep."""


class Collapsed(Move):
    """Moves of a hyperparameter that one factor follows."""

    name, words, counts_as = "collapsed", "a hyperparameter, one factor following", "hyper"

    def __init__(self, model: EffectsModel) -> None:
        self.pairs = list(model.collapsed or ())
        self.levels = model.field.levels
        self.log_lengths = model.log_lengths

    def initial(self) -> Walks:
        """Return a walk for each pair of a hyperparameter and a factor."""
        return Walks.of(self.log_lengths[[axis for axis, _ in self.pairs]])

    def targets(self, rng: np.random.Generator, tuner: Walks) -> Sequence[int]:
        """Return the numbers of pairs in random order."""
        return [int(i) for i in rng.permutation(len(self.pairs))]

    def propose(
        self, rng: np.random.Generator, state: Any, target: int, setting: Setting
    ) -> Proposal:
        """Draw a hyperparameter, and let the levels follow."""
        hyper, log_kernel, walks = kernels.moved_alone(
            rng,
            state.hyper,
            self.pairs[target][0],
            setting.scale,
            setting.tuners[self.name].log_length[target],
        )
        proposed, log_jacobian = self.follow(state, hyper, target)
        return Proposal(proposed, log_kernel, log_jacobian, learns=walks, walks=walks)

    def follow(self, state: Any, hyper: np.ndarray, target: int) -> tuple[Any, float]:
        """Return the state with another h, which the factor follows, and log |∂z'/∂z|."""
        proposed, log_jacobian = followed(state, hyper, self.levels[self.pairs[target][1]])
        return proposed if math.isfinite(log_jacobian) else None, log_jacobian

    def learn(
        self,
        rng: np.random.Generator,
        tuner: Walks,
        target: int,
        proposal: Proposal,
        outcome: Outcome,
    ) -> None:
        """Change the length of walks, by whether they are accepted."""
        tuner.tune(target, float(outcome.accepted))


def followed(
    state: ChainState, hyper: np.ndarray, levels: GroupEffects
) -> tuple[ChainState | None, float]:
    """Return a point with another h that some levels follow, and log |∂z'/∂z|.

    If that is not finite, there is no such point.
    """
    surrogate, point = state.surrogate, state.point
    centered = surrogate.field.with_effects_held(point, hyper)
    if centered is None:
        return None, -np.inf
    given, then = state.conditional, surrogate.factored_later(hyper)
    predictor, given_others = state.predictors, surrogate.given_others
    try:
        mean, cholesky = given_others(given, point, predictor, levels)
        mean_then, cholesky_then = given_others(then, centered.point, predictor, levels)
    except np.linalg.LinAlgError:
        return None, -np.inf
    eta = multiply_transposed(cholesky, point[levels.latent] - mean)
    centered.point[levels.latent] = mean_then + solve_blocks_transposed(cholesky_then, eta)
    of_levels = log_diagonal(cholesky) - log_diagonal(cholesky_then)
    log_jacobian = of_levels + _of_others(surrogate.field, centered, levels)
    return ChainState(surrogate, centered.point, then), log_jacobian


def _of_others(field: LatentField, centered: CenteredPoint, levels: GroupEffects) -> float:
    """Return log |∂z'/∂z| of all but some levels."""
    layout = field.latent
    if levels.latent is layout.groups:
        return float(centered.of_dense.sum())
    others = np.delete(centered.of_dense, np.searchsorted(layout.dense, levels.latent.ravel()))
    return float(others.sum()) + centered.of_groups


def collapsed_pairs(surrogate: Surrogate) -> list[tuple[int, int]] | None:
    """List hyperparameters with the factors whose levels follow them.

    Returns
    -------
    list of (int, int) or None
        A hyperparameter and a factor, by number; None where effects cannot be held.
    """
    found = following(surrogate)
    if found is None:
        return None
    return [
        (axis, k)
        for axis, positions in enumerate(found)
        for k, levels in enumerate(surrogate.field.levels)
        if np.isin(levels.latent, positions).any()
    ]


def following(surrogate: Surrogate) -> list[np.ndarray] | None:
    """Find the latent variables that follow each hyperparameter.

    Returns
    -------
    list of ndarray of int64, or None
        Their positions in a point, ascending; None where effects cannot be held.
    """
    field = surrogate.field
    point = surrogate.conditional(surrogate.center[field.hyper]).point
    gradient = field.derivatives.prior_gradient
    is_latent = np.ones(point.size, dtype=np.bool_)
    is_latent[field.hyper] = False
    found = []
    for axis in range(field.hyper.size):
        hyper = point[field.hyper]
        hyper[axis] += NEARBY
        centered = field.with_effects_held(point, hyper)
        if centered is None:
            return None
        same = _same(centered.point, point) & _same(gradient(centered.point), gradient(point))
        found.append(np.flatnonzero(~same & is_latent))
    return found


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Say which entries of two vectors are the same, relative to their own size."""
    return np.asarray(np.abs(one - other) <= SAME * (np.abs(one) + np.abs(other)))


def plan(model: EffectsModel) -> list[Planned]:
    """Return how it enters a scan: where effects can be held, and h is costly."""
    return [Planned(Collapsed(model), at_most=TIMES)] if model.collapsed else []
