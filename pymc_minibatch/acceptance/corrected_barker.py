"""The corrected Barker test: accept or reject from a few rows.

Barker's test accepts with probability ``1 / (1 + exp(-delta))``, that is iff ``delta + X > 0`` with
X standard logistic. A batch of rows gives an estimate of delta with approximately normal error of
variance s². With ``X ~ N(0, sigma²) + X_corr`` that error takes the place of a part of X::

    accept iff  delta* + N(0, sigma² - s²) + X_corr > 0

The batch grows (:mod:`.growing`) until s² is below sigma² and the bound on the error below its
limit.

Reference
---------
Seita, Pan, Chen and Canny (2017), An Efficient Minibatch Acceptance Test for Metropolis-Hastings,
sections 3 to 5 and algorithm 1. The error bound is Lindeberg's replacement argument in place of the
paper's Corollary 1, which ignores that the noise that is added makes the test smooth.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.acceptance.correction import LARGEST_ERROR, checked_sigma, correction
from pymc_minibatch.acceptance.decision import (
    BARKER,
    Acceptance,
    Decision,
    FirstBatchRule,
    RowReaders,
)
from pymc_minibatch.acceptance.growing import Limits, build_growing

__all__ = ["CorrectedBarker"]


@dataclass(frozen=True)
class CorrectedBarker(Acceptance):
    """Barker's acceptance test with the correction distribution.

    Parameters
    ----------
    sigma : float, default 1.0
        Standard deviation of the normal part of the test, from 0.5 to 1.4. A larger value lets the
        batch be noisier, hence smaller, at a larger error of the test: 6e-8 in probability at 1.0,
        2e-6 at 1.1, 2e-5 at 1.2, 5e-4 at 1.4.
    test_error : float or None, default 1e-3
        Limit on the error of the acceptance probability of each decision. Batches grow until the
        estimated bound is below it. None sets no limit, as in the paper: only s² < sigma² is
        required, and the bound is still reported.

    Raises
    ------
    ValueError
        If `sigma` is out of range, or `test_error` is not above the error of the correction.

    Notes
    -----
    The test is approximate, in two ways that vanish as the batch grows: the sum over the batch is
    not exactly normal, and its variance s² is estimated from the same batch. The bound on the
    resulting error covers both to first order; it is estimated from the batch too, and derived for
    rows drawn independently (they are drawn without replacement). A batch and its estimates can
    miss rare rows with extreme log-likelihood ratios, for example if the support of the likelihood
    depends on the parameters.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> pmb.CorrectedBarker(sigma=1.1, test_error=1e-4)
    CorrectedBarker(sigma=1.1, test_error=0.0001)
    """

    sigma: float = 1.0
    test_error: float | None = 1e-3
    first_batch: ClassVar[FirstBatchRule] = "tuned"
    most_accepted: ClassVar[float] = 0.5
    draws_by_size: ClassVar[bool] = True
    efficiency: ClassVar[float] = BARKER
    steepest: ClassVar[float] = 0.25

    def __post_init__(self) -> None:
        sigma = checked_sigma(self.sigma)
        if self.test_error is None or LARGEST_ERROR <= self.test_error < 1:
            return  # without the correction, which another test may turn out not to need
        error = correction(sigma).cdf_error
        if not error < self.test_error < 1:
            raise ValueError(
                f"test_error must be above {error:.1e}, the error of the correction at "
                f"sigma={self.sigma}, and below 1, or None for no limit; got {self.test_error}. "
                "If it is too small, take a smaller sigma or a larger limit."
            )

    def ideal(self, log_ratios: np.ndarray, by_all: np.ndarray) -> np.ndarray:
        """Return the acceptance probability of Barker's test."""
        return 1 / (1 + np.exp(-log_ratios))

    def parameters(
        self, temperature: float, batch_size: np.ndarray, n_rows: int
    ) -> tuple[Any, ...]:
        """Return the parameters of the jitted test."""
        fitted = correction(self.sigma)
        limits = Limits(
            temperature=float(temperature),
            batch_size=batch_size,
            variance=self.sigma**2,
            error=np.inf if self.test_error is None else float(self.test_error),
            own_error=fitted.cdf_error,
            variance_grid=fitted.variance_grid,
            smoothness=fitted.smoothness,
        )
        return limits, (self.sigma**2, fitted.atoms, fitted.cumulative)

    def for_levels(self) -> tuple[Any, Any]:
        """Decide as on all rows."""
        return accept, barker

    def build(self, readers: RowReaders) -> Callable[..., Decision]:
        """Compose the test with the functions that read the data."""
        return build_growing(readers, accept, barker)


@register_jitable
def accept(
    rng: np.random.Generator,
    estimate: float,
    s2: float,
    details: tuple[float, np.ndarray, np.ndarray],
) -> bool:
    """Complete the noise of the estimate to a logistic variable."""
    sigma2, atoms, cumulative = details
    normal = math.sqrt(sigma2 - s2) * rng.standard_normal()
    corrected = atoms[np.searchsorted(cumulative, rng.random(), side="right")]
    return estimate + normal + corrected > 0


@register_jitable
def barker(delta: float) -> float:
    """Return the acceptance probability of Barker's test."""
    return 1 / (1 + np.exp(-delta))
