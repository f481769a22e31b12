"""The latent field given hyperparameters, as a Gaussian, and its coordinates η."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_minibatch.latent.arrowhead import ArrowheadFactor, ArrowheadMatrix, Matrix
from pymc_minibatch.latent.layout import ArrowheadLayout, BorderAndBlocks
from pymc_minibatch.latent.projector import Projector

__all__ = ["Conditional", "Frame"]


@dataclass(frozen=True)
class Frame:
    """Coordinates η of the latent field: z = m + L⁻ᵀ η.

    Attributes
    ----------
    layout : ArrowheadLayout
        Where the latent variables are in a point.
    origin : ndarray, shape (D,)
        m, with h in its place.
    factor : ArrowheadFactor
        L.
    """

    layout: ArrowheadLayout
    origin: np.ndarray
    factor: ArrowheadFactor

    def color(self, eta: BorderAndBlocks) -> np.ndarray:
        """Return the point with these coordinates."""
        point = self.origin.copy()
        dense, groups = self.factor.color(*eta)
        at = self.layout.split(point)
        self.layout.put(point, at[0] + dense, at[1] + groups)
        return point

    def whiten(self, point: np.ndarray) -> BorderAndBlocks:
        """Return the coordinates of a point."""
        return self.factor.whiten(*self.layout.split(point - self.origin))


@dataclass(frozen=True)
class Conditional:
    """The latent field given hyperparameters, as a Gaussian.

    It is factored when it is first asked for what needs the factor.

    Attributes
    ----------
    layout : ArrowheadLayout
        Where the latent variables are in a point.
    here : ndarray, shape (D,)
        h, and the latent variables of the center, about which all is expanded.
    blocks : ndarray, shape (G, q, q)
        The groups' blocks of Λ.
    dense_later, cross_later : callable
        ``() -> matrix``, the rest of it: the dense part, and what joins the groups with it.
    slope : tuple of ndarray
        Of the log density at `here`, dense part and groups.
    prior_slope, prior_precision
        Of the log prior there: its slope, and minus its curvature P.
    projector : Projector
        A(h).
    phi : ndarray, shape (P,)
        φ there.
    factor_of_rows : float
        By what scalars that all rows share multiply what these say.
    damping : float
        By how much the precision is raised before it is factored.
    by_products : bool
        Whether a large border may be left to products: not if decisions rest on its determinant.
    """

    layout: ArrowheadLayout
    here: np.ndarray
    blocks: np.ndarray
    dense_later: Callable[[], Matrix]
    cross_later: Callable[[], Matrix]
    slope: BorderAndBlocks
    prior_slope: BorderAndBlocks
    prior_precision: ArrowheadMatrix
    projector: Projector
    phi: np.ndarray
    factor_of_rows: float
    damping: float
    by_products: bool

    @cached_property
    def dense(self) -> Matrix:
        """The dense part of Λ."""
        return self.dense_later()

    @cached_property
    def precision(self) -> ArrowheadMatrix:
        """Λ."""
        return ArrowheadMatrix(self.dense, self.cross_later(), self.blocks)

    @cached_property
    def factor(self) -> ArrowheadFactor:
        """L(h); raises LinAlgError if the precision is not positive definite."""
        damped = self.precision.damped(self.damping) if self.damping else self.precision
        return damped.factor(self.by_products)

    @cached_property
    def is_proper(self) -> bool:
        """Whether the precision is positive definite."""
        try:
            return np.isfinite(self.log_determinant)
        except np.linalg.LinAlgError:
            return False

    @cached_property
    def log_determinant(self) -> float:
        """Half the log-determinant of the precision, log |L|."""
        return self.factor.log_determinant()

    @cached_property
    def point(self) -> np.ndarray:
        """The mode m(h), with h in its place, shape (D,)."""
        point, step = self.here.copy(), self.factor.solve(*self.slope)
        dense, groups = self.layout.split(self.here)
        self.layout.put(point, dense + step[0], groups + step[1])
        return point

    @property
    def frame(self) -> Frame:
        """Coordinates in which the field is standard normal."""
        return Frame(self.layout, self.point, self.factor)
