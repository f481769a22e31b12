"""Barker's minibatch test without a correction: normal noise stands in for the logistic.

The logistic distribution is within 0.0095 of a normal one with standard deviation 1.702. A batch
brings normal noise of variance s², which is topped up to that::

    accept iff  delta* + N(0, max(0, 1.702² - s²)) > 0

Two errors are left: that of the normal distribution, which no batch removes, and the noise in
excess where s² is above 1.702².

Reference
---------
Bardenet, Doucet and Holmes (2017), On Markov chain Monte Carlo methods for tall data, section 6.3.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.acceptance.corrected_barker import barker
from pymc_minibatch.acceptance.decision import (
    BARKER,
    Acceptance,
    Decision,
    FirstBatchRule,
    RowReaders,
)
from pymc_minibatch.acceptance.growing import Limits, build_growing

__all__ = ["Barker"]

NORMAL_SD = 1.702
"""The normal distribution nearest to the standard logistic has this standard deviation."""

NORMAL_ERROR = 0.0095
"""Largest distance between the two distribution functions, rounded up."""

NODES = 97
"""Values of s² at which the smoothness is computed."""


@dataclass(frozen=True)
class Barker(Acceptance):
    """Barker's test with normal noise instead of logistic noise, uncorrected.

    Biased, and meant for comparison. :class:`CorrectedBarker` removes the error of the normal
    distribution and reads more rows if s² is too large.

    Notes
    -----
    The batch has the same size at each decision, ``batch_size`` of :class:`MinibatchMH` (100 if not
    given), and is not tuned. Beyond half of the rows all are read, and Barker's exact test is made.

    ``test_error`` in the sample stats is at least 0.0095, the distance between the logistic and the
    normal distribution function, and 1 if s² is 1.702² or more.

    References
    ----------
    Bardenet, Doucet and Holmes (2017), On Markov chain Monte Carlo methods for tall data,
    section 6.3.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> pmb.Barker()
    Barker()
    """

    first_batch: ClassVar[FirstBatchRule] = "fixed"
    most_accepted: ClassVar[float] = 0.5
    draws_by_size: ClassVar[bool] = True
    efficiency: ClassVar[float] = BARKER
    steepest: ClassVar[float] = 0.25

    def ideal(self, log_ratios: np.ndarray, by_all: np.ndarray) -> np.ndarray:
        """Return the acceptance probability of Barker's test."""
        return 1 / (1 + np.exp(-log_ratios))

    def parameters(
        self, temperature: float, batch_size: np.ndarray, n_rows: int
    ) -> tuple[Any, ...]:
        """Return the parameters of the jitted test."""
        # |G'''| of a normal distribution function is largest at its centre.
        remaining = NORMAL_SD * np.linspace(1.0, 0.0, NODES)[:-1]
        limits = Limits(
            temperature=float(temperature),
            batch_size=batch_size,
            variance=np.inf,
            error=np.inf,
            own_error=NORMAL_ERROR,
            variance_grid=NORMAL_SD**2 - remaining**2,
            smoothness=1 / (math.sqrt(2 * math.pi) * remaining**3),
        )
        return limits, (NORMAL_SD**2,)

    def build(self, readers: RowReaders) -> Callable[..., Decision]:
        """Compose the test with the functions that read the data."""
        return build_growing(readers, accept, barker)


@register_jitable
def accept(rng: np.random.Generator, estimate: float, s2: float, details: tuple[float]) -> bool:
    """Complete the noise of the estimate to the normal variable nearest to the logistic."""
    return estimate + math.sqrt(max(0.0, details[0] - s2)) * rng.standard_normal() > 0
