"""A point of a chain of effects and their scales, and what has been computed there."""

import math

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

    __slots__ = ("_conditional", "_log_density", "_log_prior", "_predictors", "point", "surrogate")

    def __init__(
        self, surrogate: Surrogate, point: np.ndarray, conditional: Conditional | None = None
    ) -> None:
        self.surrogate, self.point = surrogate, point
        self._conditional = conditional
        self._predictors: PredictorState | None = None
        self._log_prior: float | None = None
        self._log_density: float | None = None

    @property
    def hyper(self) -> np.ndarray:
        """A copy of the hyperparameters."""
        return self.point[self.surrogate.field.hyper]

    @property
    def conditional(self) -> Conditional:
        """The Gaussian of the latent field given h."""
        if self._conditional is None:
            self._conditional = self.surrogate.factored_later(self.hyper)
        return self._conditional

    @property
    def predictors(self) -> PredictorState:
        """What rows read here, and what the surrogate says of it."""
        if self._predictors is None:
            self._predictors = self.surrogate.read(self.point)
        return self._predictors

    @property
    def log_prior(self) -> float:
        """Log density of the prior."""
        if self._log_prior is None:
            self._log_prior = self.surrogate.field.derivatives.prior(self.point)
        return self._log_prior

    @property
    def log_density(self) -> float:
        """Log density of the surrogate, log π̃."""
        if self._log_density is None:
            self._log_density = self._surrogate_density()
        return self._log_density

    def _surrogate_density(self) -> float:
        log_prior = self.log_prior
        if not math.isfinite(log_prior):
            return -math.inf
        predictors = self.predictors
        log_likelihood = self.surrogate.log_likelihood(predictors)
        return float(log_prior + log_likelihood + predictors.higher.sum())

    def with_latent(self, point: np.ndarray) -> "ChainState":
        """Return the state at a point with the same hyperparameters."""
        return ChainState(self.surrogate, point, self._conditional)

    def at(self, point: np.ndarray) -> "ChainState":
        """Return the state at any point, with what is known of it here."""
        if np.array_equal(point, self.point):
            return self
        same = np.array_equal(point[self.surrogate.field.hyper], self.hyper)
        return self.with_latent(point) if same else ChainState(self.surrogate, point)
