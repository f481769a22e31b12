"""What is taken off the rows so that their sum can be estimated from a few."""

from typing import NamedTuple

import numpy as np

from pymc_minibatch.reference.find import Reference

__all__ = ["ControlVariate"]


class ControlVariate(NamedTuple):
    """The Taylor terms of the log-likelihood about a reference point, in a density at T.

    Attributes
    ----------
    reference : Reference
        The point and the sums over all rows there.
    order : int
        2 or 1, of the terms that are taken off; 0 if nothing is, and the reference serves moves and
        starts alone.
    temperature : float
        T; the likelihood counts with power 1/T.
    """

    reference: Reference
    order: int
    temperature: float

    @property
    def constants(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The reference point, and gradient and Hessian there of the terms that are taken off."""
        hessian = self.reference.hessian if self.order == 2 else 0.0 * self.reference.hessian
        gradient = self.reference.gradient
        return self.reference.flat, gradient / self.temperature, hessian / self.temperature

    def precision(self, active: np.ndarray) -> np.ndarray:
        """Precision of the Gaussian approximation, of some parameters given the others."""
        return self.reference.precision_at(self.temperature)[np.ix_(active, active)]
