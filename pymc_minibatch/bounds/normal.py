"""The normal likelihood, which is its own bound: all rows stay dark."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_minibatch.bounds.likelihood import Likelihood
from pymc_minibatch.bounds.quadratic import Quadratic

__all__ = ["Normal"]


@dataclass(frozen=True)
class Normal:
    """The normal likelihood as its own bound."""

    family: ClassVar[str] = "normal"

    def gap(self, rows: Likelihood, tangent: Likelihood, tuned: bool) -> TensorVariable:
        """Return zeros."""
        return pt.zeros_like(rows.observed)

    def quadratic(self, rows: Likelihood, tuned: bool) -> Quadratic:
        """Coefficients of the log-likelihood itself."""
        scale: Any = rows.scale
        residual, weight = rows.observed - rows.predictor, scale**-2
        none = pt.zeros_like(weight)
        return Quadratic(none, -weight * residual**2 / 2, weight * residual, -weight)

    def metric(self, n_classes: int) -> np.ndarray:
        """One: the predictor is a single number."""
        return np.ones((1, 1))
