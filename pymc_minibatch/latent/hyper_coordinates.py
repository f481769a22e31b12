"""Coordinates of hyperparameters in which a mode of theirs tells where they are.

PyMC keeps the factor of a covariance as the logs of its diagonal, and the entries beside it as they
are. Three standard deviations or more that go to zero together pull all of these to zero with them:
the density rises without end there, and has next to no mass, as that of effects and the log of
their scale does. With the entries of a row in units of its diagonal

    L_ij = u_ij exp(d_i),   j < i,

standard deviations go to zero by the d alone.
"""

import math
from dataclasses import dataclass

import numpy as np
from pymc.distributions.transforms import CholeskyCovPacked

from pymc_minibatch.tall import TallModel

__all__ = ["HyperCoordinates", "find_hyper_coordinates"]


@dataclass(frozen=True)
class HyperCoordinates:
    """A map of coordinates v of the hyperparameters h to these, h[scaled] = v[scaled] exp(v[by]).

    Attributes
    ----------
    size : int
        H.
    scaled, by : ndarray of int64
        Entries beside a diagonal, and the log of the diagonal of each one's row.
    """

    size: int
    scaled: np.ndarray
    by: np.ndarray

    @classmethod
    def none(cls, size: int) -> "HyperCoordinates":
        """Return those with which v is h."""
        nowhere = np.empty(0, dtype=np.int64)
        return cls(size, nowhere, nowhere)

    def to_hyper(self, v: np.ndarray) -> np.ndarray:
        """Return h."""
        hyper = v.copy()
        hyper[self.scaled] *= np.exp(v[self.by])
        return hyper

    def from_hyper(self, hyper: np.ndarray) -> np.ndarray:
        """Return v."""
        v = hyper.copy()
        v[self.scaled] *= np.exp(-hyper[self.by])
        return v

    def log_slope(self, v: np.ndarray) -> float:
        """Return log |∂h/∂v|."""
        return float(v[self.by].sum())

    def distance(self, one: np.ndarray, other: np.ndarray) -> float:
        """Return by how much the coordinates of two h differ at most; 0 if there are none."""
        away = self.from_hyper(one) - self.from_hyper(other)
        return float(np.abs(away).max(initial=0.0))

    def push(self, v: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Return the direction of h that one of v is."""
        pushed, unit = direction.copy(), np.exp(v[self.by])
        pushed[self.scaled] = unit * (direction[self.scaled] + v[self.scaled] * direction[self.by])
        return pushed

    def cholesky_of_hyper(self, v: np.ndarray, cholesky: np.ndarray) -> np.ndarray:
        """Return the lower factor of the covariance of h, given that of v about a point."""
        return self._factor(self._jacobian(v) @ cholesky) if self.scaled.size else cholesky

    def cholesky_from_hyper(self, v: np.ndarray, cholesky: np.ndarray) -> np.ndarray:
        """Undo :meth:`cholesky_of_hyper`."""
        if not self.scaled.size:
            return cholesky
        return self._factor(np.linalg.solve(self._jacobian(v), cholesky))

    def _jacobian(self, v: np.ndarray) -> np.ndarray:
        """Return ∂h/∂v."""
        jacobian, unit = np.eye(self.size), np.exp(v[self.by])
        jacobian[self.scaled, self.scaled] = unit
        jacobian[self.scaled, self.by] = v[self.scaled] * unit
        return jacobian

    @staticmethod
    def _factor(root: np.ndarray) -> np.ndarray:
        """Return the lower factor of root rootᵀ, with digits that its square would lose."""
        lower = np.linalg.qr(root.T, mode="r").T
        return np.asarray(lower * np.sign(np.diagonal(lower)))


def find_hyper_coordinates(tall: TallModel, hyper: np.ndarray) -> HyperCoordinates:
    """Find those of the factors of covariances among hyperparameters.

    Parameters
    ----------
    tall
        The model.
    hyper : ndarray of int64, shape (H,)
        Positions of the hyperparameters in a flat point.

    Returns
    -------
    HyperCoordinates
        Those; v is h if there are no such factors.
    """
    place = {int(position): i for i, position in enumerate(hyper)}
    scaled, by = list[int](), list[int]()
    for rv, transform in tall.model.rvs_to_transforms.items():
        name = tall.model.rvs_to_values[rv].name
        if not isinstance(transform, CholeskyCovPacked) or name not in tall.layout.slices:
            continue
        where = tall.layout.slices[name]
        last = where.start - 1
        for row in range(math.isqrt(2 * (where.stop - where.start))):
            first, last = last + 1, last + 1 + row  # the diagonal is the last of its row
            if last in place:
                beside = [place[k] for k in range(first, last) if k in place]
                scaled += beside
                by += [place[last]] * len(beside)
    return HyperCoordinates(hyper.size, np.array(scaled, np.int64), np.array(by, np.int64))
