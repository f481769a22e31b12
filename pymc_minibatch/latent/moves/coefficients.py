"""Coefficients move, and the effects of all groups stay.

Thousands of groups that follow coefficients follow them a little wrong each, if their effects are
not normal, and together so much that moves have to be short. Groups that stay make no such error.
So these moves are made where the others are short. Beside a border of many effects, a few
coefficients that are levels of no factor move by themselves: its random blocks change them little.
"""

import numpy as np
from scipy import sparse

from pymc_minibatch.latent.cholesky import factor_dense
from pymc_minibatch.latent.moves import kernels
from pymc_minibatch.latent.moves.costs import LARGE
from pymc_minibatch.latent.moves.protocol import (
    EffectsModel,
    Planned,
    Proposal,
    Setting,
    TurningMove,
)
from pymc_minibatch.latent.moves.state import ChainState

__all__ = ["Coefficients", "plan"]

IN_A_ROW = 4
"""Moves in a scan."""

SHORT = 0.5
"""Angle of moves that groups follow, in radians, below which these are made: draws by moves of ½
are correlated by about cos ½ = 0.88."""


class Coefficients(TurningMove):
    """Moves of the border with the groups as they are."""

    name, words, counts_as = "coefficients", "coefficients, effects as they are", "dense"

    def __init__(self, model: EffectsModel) -> None:
        self.overhead = model.overhead
        dense = model.field.latent.dense
        self.beside_effects = dense.size > LARGE
        self.own = np.arange(dense.size)
        if self.beside_effects:
            self.own = np.flatnonzero(~np.isin(dense, _of_levels(model)))

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: None, setting: Setting
    ) -> Proposal | None:
        """Turn the coefficients about their mean given all else; None if others move them far."""
        short = setting.tuners["border"].step_sizes.angle < SHORT
        surrogate = state.surrogate
        if surrogate.kinks is not None or not (short or self.beside_effects):
            return None
        given, layout = state.conditional, surrogate.field.latent
        dense = given.dense.toarray() if sparse.issparse(given.dense) else given.dense
        try:
            factor = factor_dense(np.array(dense[np.ix_(self.own, self.own)], order="F"))
        except np.linalg.LinAlgError:
            return None
        slope = surrogate.slope_at(given, state.point, state.predictors)[0]
        eta = -factor.solve(slope[self.own])
        angle, is_set = setting.tuners[self.name].chosen(rng)
        turned, log_kernel = kernels.rotated(rng, eta, angle)
        point = state.point.copy()
        point[layout.dense[self.own]] += factor.solve_transposed(turned - eta)
        return Proposal(
            state.with_latent(point),
            log_kernel,
            step=turned - eta,
            learns=is_set,
            conditional=given,
        )


def _of_levels(model: EffectsModel) -> np.ndarray:
    """Return the positions of the levels of all factors."""
    none = np.empty(0, dtype=np.int64)
    return np.concatenate([none, *(levels.latent.ravel() for levels in model.field.levels)])


def plan(model: EffectsModel) -> list[Planned]:
    """Return how it enters a scan: for few coefficients beside groups, without trajectories."""
    if model.has_slopes:
        return []
    move = Coefficients(model)
    few = 0 < move.own.size <= LARGE and model.field.latent.groups.size
    return [Planned(move, in_a_row=IN_A_ROW)] if few else []
