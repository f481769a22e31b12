"""A posterior in the words of programs that take design matrices instead of models.

GPBoost and pymhss have no way to read a model of PyMC. Posteriors whose rows depend on one linear
predictor say here what it is; variables are called alike in the PyMC model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

__all__ = ["Linear"]


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
    slopes
        A predictor of which each level of a factor has a slope of its own, by name of the factor.
    trials
        Of a binomial law.
    coefficients
        Name of the variable that holds the coefficients of X.
    deviations
        Name of the variable that holds the standard deviations of all effects, first those of the
        factors, then those of the slopes; ``sd_NAME`` each if it is None.
    """

    family: Literal["bernoulli", "binomial", "normal", "student_t"]
    y: np.ndarray
    X: np.ndarray
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    slopes: Mapping[str, np.ndarray] = field(default_factory=dict)
    trials: np.ndarray | None = None
    coefficients: str = "beta"
    deviations: str | None = None
