"""Hyperparameters move, and the whole latent field follows.

η = L(h)ᵀ (z − m(h)) stays where it is, and h moves in the whitened coordinates of w: so scales
carry their effects along, each by as much as its own rows allow (partial non-centering). Beside the
densities of the surrogate and of proposals the log ratio has

    log |L(h)| − log |L(h')| + log |∂h'/∂w'| − log |∂h/∂w|.

Reference
---------
Papaspiliopoulos, Roberts and Sköld (2007), A general framework for the parametrization of
hierarchical models.
"""

import numpy as np

from pymc_minibatch.latent.moves import kernels
from pymc_minibatch.latent.moves.kernels import whitened
from pymc_minibatch.latent.moves.protocol import (
    EffectsModel,
    Planned,
    Proposal,
    Setting,
    TurningMove,
)
from pymc_minibatch.latent.moves.state import ChainState

__all__ = ["Noncentered", "plan"]

TIMES = 2
"""How often in a scan; once if it is costly, or scales of single coefficients have own moves; and
more often if it is needed and reads no row (:mod:`.tuners`)."""

MOST_TIMES, PASSES = 4, 5.0
"""The same beside trajectories: as often as takes half of their time, which is that of so many
evaluations of all rows. Tuning may make fewer."""


class Noncentered(TurningMove):
    """Moves of all h with η held."""

    name, words, counts_as = "noncentered", "hyperparameters, effects following", "hyper"

    def __init__(self, model: EffectsModel) -> None:
        self.tails, self.overhead = model.tails, model.overhead

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: None, setting: Setting
    ) -> Proposal:
        """Turn or walk in the whitened coordinates of w."""
        scale, step_sizes = setting.scale, setting.tuners[self.name]
        w = self.tails.from_hyper(state.hyper)
        z = whitened(w, scale)
        z_then, log_kernel, walks = kernels.moved_together(rng, z, step_sizes.angle)
        w_then = scale.mean + scale.cholesky @ z_then
        given = state.conditional
        then = state.surrogate.factored_later(self.tails.to_hyper(w_then))
        proposed, log_jacobian = None, -np.inf
        if given.is_proper and then.is_proper:
            point = then.frame.color(given.frame.whiten(state.point))
            proposed = ChainState(state.surrogate, point, then)
            log_jacobian = given.log_determinant - then.log_determinant
            log_jacobian += self.tails.log_slope(w_then) - self.tails.log_slope(w)
        return Proposal(
            proposed, log_kernel, log_jacobian, step=z_then - z, learns=not walks, walks=walks
        )


def plan(model: EffectsModel) -> list[Planned]:
    """Return how it enters a scan: seldom where it is costly, not at all without determinants."""
    if not (model.field.hyper.size and model.has_determinant):
        return []
    if model.fixed_factor:
        return [Planned(Noncentered(model), share=model.factoring_share)]
    if model.has_slopes and not model.has_own_scales:
        n_rows = model.surrogate.tall.n_rows
        times = int(PASSES * n_rows / (n_rows + model.overhead))
        times = min(max(times, 1), MOST_TIMES)
        return [Planned(Noncentered(model), in_a_row=times, by_need=True)]
    once, by_sums = model.costly or model.has_own_scales, model.surrogate.expansion.is_exact
    times, by_need = 1 if once else TIMES, by_sums and not once
    return [Planned(Noncentered(model), in_a_row=times, by_need=by_need)]
