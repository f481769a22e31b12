"""What the built-in bounds have in common: they are quadratic in the predictor."""

from typing import NamedTuple, Protocol

import numpy as np
from pytensor.tensor.variable import TensorVariable

from pymc_minibatch.bounds.likelihood import Likelihood

__all__ = ["Quadratic", "QuadraticBound"]


class Quadratic(NamedTuple):
    """A log bound of each row, quadratic in its predictor, expanded about a reference point.

    ``log Bₙ = levelₙ + κ (constantₙ + linearₙᵀε + ½ curvatureₙ εᵀAε) + ½ log κ``, where ε is η less
    its value at the reference point, and κ = (σ at the reference point / σ)², or 1 where the
    likelihood has no scale σ. Expanding there keeps digits where η is large and varies little.

    Attributes
    ----------
    level, constant, curvature : TensorVariable, shape (b,)
        Coefficients.
    linear : TensorVariable, shape (b,) or (b, K)
        Shaped as the predictor.
    """

    level: TensorVariable
    constant: TensorVariable
    linear: TensorVariable
    curvature: TensorVariable


class QuadraticBound(Protocol):
    """A bound that has sufficient statistics.

    Attributes
    ----------
    family
        The likelihood it bounds, as :class:`Likelihood` names it.
    """

    @property
    def family(self) -> str: ...  # noqa: D102

    def gap(self, rows: Likelihood, tangent: Likelihood, tuned: bool) -> TensorVariable:
        """Return log L − log B of each row, of the bound that touches at `tangent` or untuned."""

    def quadratic(self, rows: Likelihood, tuned: bool) -> Quadratic:
        """Coefficients about the point of `rows`, of the bound that touches there or untuned."""

    def metric(self, n_classes: int) -> np.ndarray:
        """Return the matrix A, shape (K, K); (1, 1) where the predictor is one number."""
