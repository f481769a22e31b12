"""What is compared of a model with effects."""

from pymc_minibatch.latent.linear import LinearMoves
from pymc_minibatch.latent.sampler import LatentSampler, LatentState
from pymc_minibatch.tall.model_density import ModelDensity
from pymc_minibatch.witness.effects import MovesOfEffects
from pymc_minibatch.witness.linear import MovesOfLinearModels
from pymc_minibatch.witness.witness import Look

__all__ = ["moves_of"]


def moves_of(density: ModelDensity, sampler: LatentSampler, state: LatentState) -> Look:
    """Return what compares the moves of a sampler, with what it has tuned."""
    settings = sampler.settings(state, False)
    if isinstance(sampler.moves, LinearMoves):
        return MovesOfLinearModels(density, sampler.moves, settings)
    return MovesOfEffects(density, sampler.moves, settings, sampler.presumes)
