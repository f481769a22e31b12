"""The normal likelihood, which is its own bound: all rows stay dark."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_minibatch.bounds.likelihood import Likelihood
from pymc_minibatch.bounds.quadratic import Quadratic

__all__ = ["Normal"]


@dataclass(frozen=True)
class Normal:
    """The normal likelihood as its own bound."""

    family: ClassVar[str] = "normal"

    def gap(self, rows: Likelihood, tangent: Likelihood, tuned: bool) -> Variable:
        """None."""
        return pt.zeros_like(rows.observed)

    def quadratic(self, rows: Likelihood, tuned: bool) -> Quadratic:
        """Coefficients of the log-likelihood itself."""
        residual, weight = rows.observed - rows.predictor, rows.scale**-2
        none = pt.zeros_like(weight)
        return Quadratic(none, -weight * residual**2 / 2, weight * residual, -weight)

    def metric(self, n_classes: int) -> np.ndarray:
        """One: the predictor is a single number."""
        return np.ones((1, 1))
