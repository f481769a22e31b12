"""What is compared of a model with effects."""

from typing import Any

import numpy as np

from pymc_minibatch.latent.angles import Angles
from pymc_minibatch.latent.linear import LinearMoves
from pymc_minibatch.latent.modes import ModeSampler
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.tall.model_density import ModelDensity
from pymc_minibatch.witness.effects import MovesOfEffects
from pymc_minibatch.witness.linear import MovesOfLinearModels
from pymc_minibatch.witness.witness import Look

__all__ = ["moves_of"]


def moves_of(density: ModelDensity, sampler: LatentSampler, state: Any) -> Look:
    """Return what compares the moves of a sampler, with what it has tuned.

    Of several modes it is those about the one whose label the chain has.
    """
    if isinstance(sampler, ModeSampler):
        k = max(int(state[0][0]), 0)
        return moves_of(density, sampler.samplers[k], sampler.state_of(state, k))
    settings, angles = sampler.settings(state, False), sampler.field.derivatives.angles
    if angles.positions.size:
        density = _WithWeights(density, angles)
    if isinstance(sampler.moves, LinearMoves):
        return MovesOfLinearModels(density, sampler.moves, settings)
    return MovesOfEffects(density, sampler.moves, settings, sampler.presumes)


class _WithWeights(ModelDensity):
    """The model's own log-density with the weights of angles, by which one copy of each counts."""

    def __init__(self, density: ModelDensity, angles: Angles) -> None:
        super().__init__(density.tall, density.temperature)
        self.of_model, self.angles = density, angles

    def __call__(self, point: np.ndarray) -> float:
        """Return it at a flat point."""
        return self.of_model(point) + self.angles.log_weight(point)

    def noise(self) -> float:
        """Return how far rounding may put off the model's own."""
        return self.of_model.noise()
