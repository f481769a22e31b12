"""Coordinates in which hyperparameters and effects together are about standard normal.

With the Gaussian of the field at the mode ĥ of the hyperparameters, z | ĥ ~ N(m, (L Lᵀ)⁻¹), and the
covariance C Cᵀ of h,

    h = ĥ + C y₀,   z = m + J C y₀ + L⁻ᵀ y₁,   J = ∂m/∂h,

is a linear map: nothing of it changes along a chain, and nothing is factored. It holds where h is
known well; farther out scales and their effects bend away from it.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.surrogate import Surrogate

__all__ = ["JointFrame"]

DIFFERENCE = 0.3
"""Standard deviations of h over which the mean of the field is differenced."""


@dataclass(frozen=True)
class JointFrame:
    """The map of y to points in the coordinates of the field.

    Attributes
    ----------
    given : Conditional
        The Gaussian of the field at ĥ.
    hyper : ndarray of int64, shape (H,)
        Positions of h.
    cholesky : ndarray, shape (H, H)
        C.
    along : ndarray, shape (D, H)
        J C, with C itself in the rows of h.
    """

    given: Conditional
    hyper: np.ndarray
    cholesky: np.ndarray
    along: np.ndarray

    @classmethod
    def about(
        cls, surrogate: Surrogate, hyper: np.ndarray, hyper_cholesky: np.ndarray
    ) -> "JointFrame":
        """Make it about a mode of h with a factor of its covariance.

        Along a direction of h that leads to where the field has no Gaussian, its mean stays.

        Raises
        ------
        LinAlgError
            If the field has no Gaussian there.
        """
        given = surrogate.conditional(hyper)
        along = np.zeros((given.here.size, hyper.size))
        for j, direction in enumerate(hyper_cholesky.T):
            step = DIFFERENCE * direction
            ends = [surrogate.factored_later(hyper + sign * step) for sign in (1.0, -1.0)]
            if all(end.is_proper for end in ends):
                along[:, j] = (ends[0].point - ends[1].point) / (2.0 * DIFFERENCE)
        along[surrogate.field.hyper] = hyper_cholesky
        return cls(given, surrogate.field.hyper, hyper_cholesky, along)

    @classmethod
    def of_field(cls, given: Conditional) -> "JointFrame":
        """Make that of the field alone, with h where it is."""
        none = np.empty(0, dtype=np.int64)
        return cls(given, none, np.empty((0, 0)), np.empty((given.here.size, 0)))

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        latent = self.given.layout
        return self.hyper.size + latent.dense.size + latent.groups.size

    def point(self, y: np.ndarray) -> np.ndarray:
        """Return the point with these coordinates."""
        point, (of_hyper, *of_field) = self.given.point.copy(), self._split(y)
        latent = self.given.layout
        dense, groups = self.given.factor.color(*of_field)
        point[latent.dense] += dense
        point[latent.groups] += groups
        return np.asarray(point + self.along @ of_hyper)

    def coordinates(self, point: np.ndarray) -> np.ndarray:
        """Undo :meth:`point`."""
        away = point - self.given.point
        of_hyper = self._of_hyper(away[self.hyper])
        away -= self.along @ of_hyper
        return self._joined(of_hyper, *self.given.factor.whiten(*self.given.layout.split(away)))

    def slope(self, slope: np.ndarray) -> np.ndarray:
        """Return the gradient by y, given that by points."""
        of_field = self.given.factor.solve_lower(*self.given.layout.split(slope))
        return self._joined(self.along.T @ slope, *of_field)

    def _of_hyper(self, away: np.ndarray) -> np.ndarray:
        solved: np.ndarray = solve_triangular(self.cholesky, away, lower=True)
        return solved

    def _split(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        latent, n = self.given.layout, self.hyper.size
        end = n + latent.dense.size
        return y[:n], y[n:end], y[end:].reshape(latent.groups.shape)

    def _joined(self, hyper: np.ndarray, dense: np.ndarray, groups: np.ndarray) -> np.ndarray:
        return np.concatenate([hyper, dense, groups.ravel()])
