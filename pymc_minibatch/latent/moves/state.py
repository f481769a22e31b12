"""A point of a chain of effects and their scales, and what has been computed there."""

from functools import cached_property

import numpy as np

from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.surrogate import PredictorState, Surrogate

__all__ = ["ChainState"]


class ChainState:
    """A point, and what is known there. It is computed when it is first asked for, and kept.

    Parameters
    ----------
    surrogate
        The density that moves follow.
    point : ndarray, shape (D,)
        The hyperparameters h and the latent variables z; nobody changes it.
    conditional
        The Gaussian of the latent field given h, if it is known.
    """

    def __init__(
        self, surrogate: Surrogate, point: np.ndarray, conditional: Conditional | None = None
    ) -> None:
        self.surrogate, self.point = surrogate, point
        if conditional is not None:
            self.__dict__["conditional"] = conditional

    @property
    def hyper(self) -> np.ndarray:
        """A copy of the hyperparameters."""
        return self.point[self.surrogate.field.hyper]

    @cached_property
    def conditional(self) -> Conditional:
        """The Gaussian of the latent field given h."""
        return self.surrogate.factored_later(self.hyper)

    @cached_property
    def predictors(self) -> PredictorState:
        """What rows read here, and what the surrogate says of it."""
        return self.surrogate.read(self.point)

    @cached_property
    def log_prior(self) -> float:
        """Log density of the prior."""
        return self.surrogate.field.derivatives.prior(self.point)

    @cached_property
    def log_density(self) -> float:
        """Log density of the surrogate, log π̃."""
        if not np.isfinite(self.log_prior):
            return -np.inf
        predictors = self.predictors
        log_likelihood = self.surrogate.log_likelihood(predictors)
        return float(self.log_prior + log_likelihood + predictors.higher.sum())

    def with_latent(self, point: np.ndarray) -> "ChainState":
        """Return the state at a point with the same hyperparameters."""
        return ChainState(self.surrogate, point, self.__dict__.get("conditional"))

    def at(self, point: np.ndarray) -> "ChainState":
        """Return the state at any point, with what is known of it here."""
        if np.array_equal(point, self.point):
            return self
        same = np.array_equal(point[self.surrogate.field.hyper], self.hyper)
        return self.with_latent(point) if same else ChainState(self.surrogate, point)
