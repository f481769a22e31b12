"""A posterior in the words of programs that take design matrices instead of models.

HMCECS, SGLD, GPBoost, PyINLA and pymhss have no way to read a model of PyMC. Posteriors whose rows
depend on one linear predictor say here what it is; variables are called alike in the PyMC model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

__all__ = ["Linear", "Prior"]


@dataclass(frozen=True)
class Prior:
    """Scales of the priors: normal for coefficients, half-normal for scales."""

    intercept: float
    beta: float
    sd: float = 1.0
    sigma: float = 1.0
    centre: float = 0.0


@dataclass(frozen=True)
class Linear:
    """One linear predictor: ``intercept + X @ beta`` and an effect of each group.

    Attributes
    ----------
    family
        Law of a row; its link is the canonical one.
    X
        Predictors without the constant; their coefficients are the variable ``beta``.
    groups
        Codes of each factor of groups by name; the standard deviation of its effects is
        ``sd_NAME``.
    trials
        Of a binomial law.
    """

    family: Literal["bernoulli", "binomial", "poisson", "normal"]
    y: np.ndarray
    X: np.ndarray
    prior: Prior
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    trials: np.ndarray | None = None
