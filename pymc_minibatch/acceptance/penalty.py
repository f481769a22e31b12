r"""The penalty test: nearly Metropolis's acceptance rate, from a few rows.

With z standard normal, accepting with probability

    min(1, exp(delta + sigma z - sigma² / 2))

leaves the posterior invariant whatever sigma is: the penalty of half the variance makes up exactly
for what normal noise adds to the ratio. The noise of a batch is a part of it, and the rest is
added::

    accept iff  log u < delta* + N(0, sigma² - s²) - sigma² / 2

At delta = 0 this accepts 2 Φ(−sigma / 2), 0.88 at sigma 0.3 and 0.62 at sigma 1, where Barker's
test accepts one half; it accepts more often than Barker's at every delta up to sigma = 1.3. That
the noise is a fixed sigma² and not the s² of each batch keeps the test smooth, as the bound on its
error needs.

References
----------
Ceperley and Dewing (1999), The penalty method for random walks with uncertain energies, J. Chem.
Phys. 110, section III. Nicholls, Fox and Muir Watt (2012), Coupled MCMC with a randomized
acceptance probability, section 3.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numba.extending import register_jitable
from scipy.special import ndtr

from pymc_minibatch.acceptance.decision import Acceptance, Decision, FirstBatchRule, RowReaders
from pymc_minibatch.acceptance.growing import Limits, build_growing

__all__ = ["Penalty"]

SIGMA_MIN, SIGMA_MAX = 0.02, 1.4

NODES = 97
"""Values of s² at which the smoothness is computed."""


@dataclass(frozen=True)
class Penalty(Acceptance):
    """The penalty test of Ceperley and Dewing on a growing batch.

    Parameters
    ----------
    sigma : float, default 0.3
        Standard deviation of all noise in the log ratio, from 0.02 to 1.4; batches grow until their
        own is below. A larger one needs fewer rows and accepts less often. With a control variate
        0.3 costs few rows; for a random walk without one, 1 is about best.
    test_error : float or None, default 1e-3
        Limit on the error of the acceptance probability of each decision, as in
        :class:`CorrectedBarker`. None sets no limit but s² < sigma².

    Raises
    ------
    ValueError
        If `sigma` is out of range or `test_error` is not positive.

    Notes
    -----
    Approximate as :class:`CorrectedBarker` is (a batch is not exactly normal, and s² is estimated),
    but without the error of a correction distribution: with normal noise of known variance it is
    exact.

    References
    ----------
    Ceperley and Dewing (1999), The penalty method for random walks with uncertain energies,
    section III.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> pmb.Penalty(sigma=0.5)
    Penalty(sigma=0.5, test_error=0.001)
    """

    sigma: float = 0.3
    test_error: float | None = 1e-3
    first_batch: ClassVar[FirstBatchRule] = "tuned"
    draws_by_size: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not SIGMA_MIN <= self.sigma <= SIGMA_MAX:
            raise ValueError(
                f"sigma must lie in [{SIGMA_MIN}, {SIGMA_MAX}], got {self.sigma}. Use 0.3 with a "
                "control variate, 1.0 without."
            )
        if self.test_error is not None and not 0 < self.test_error < 1:
            raise ValueError(
                "test_error must be positive and below 1, or None for no limit; got "
                f"{self.test_error}."
            )

    @property
    def most_accepted(self) -> float:
        """2 Φ(−σ / 2), the acceptance rate of moves that change nothing."""
        return float(2 * ndtr(-self.sigma / 2))

    @property
    def steepest(self) -> float:
        """exp(delta) Φ(σ/2 − delta/σ − σ) at its largest, 0.64 for the default."""
        delta = np.linspace(-8.0, 2.0, 10_001)
        slopes = np.exp(delta) * ndtr(-delta / self.sigma - self.sigma / 2)
        return float(slopes.max())

    def parameters(
        self, temperature: float, batch_size: np.ndarray, n_rows: int
    ) -> tuple[Any, ...]:
        """Return the parameters of the jitted test."""
        grid, smoothness = _smoothness(self.sigma)
        limits = Limits(
            temperature=float(temperature),
            batch_size=batch_size,
            variance=self.sigma**2,
            error=np.inf if self.test_error is None else float(self.test_error),
            own_error=0.0,
            variance_grid=grid,
            smoothness=smoothness,
        )
        return limits, (self.sigma**2,)

    def ideal(self, log_ratios: np.ndarray, by_all: np.ndarray) -> np.ndarray:
        """Return the probability at noise sigma, or that of Metropolis's test by all rows."""
        z = log_ratios / self.sigma - self.sigma / 2
        by_batch = ndtr(z) + np.exp(log_ratios) * ndtr(-z - self.sigma)
        return np.where(by_all, np.minimum(1.0, np.exp(log_ratios)), by_batch)

    def for_levels(self) -> tuple[Any, Any]:
        """Decide as on all rows."""
        return accept, metropolis

    def build(self, readers: RowReaders) -> Callable[..., Decision]:
        """Compose the test with the functions that read the data."""
        return build_growing(readers, accept, metropolis)


@register_jitable
def accept(rng: np.random.Generator, estimate: float, s2: float, details: tuple[float]) -> bool:
    """Complete the noise of the estimate to variance sigma², and subtract half of it."""
    sigma2 = details[0]
    normal = math.sqrt(sigma2 - s2) * rng.standard_normal()
    return -rng.standard_exponential() < estimate + normal - sigma2 / 2


@register_jitable
def metropolis(delta: float) -> float:
    """Return the acceptance probability of Metropolis's test."""
    return min(1.0, np.exp(delta))


@cache
def _smoothness(sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Bound |G'''| at values of s² from 0 to sigma².

    G is the acceptance probability as a function of delta with noise tau² = sigma² - s². With
    E = exp(y + tau²/2) Φ(−y/tau − tau) and y = delta − sigma²/2, its derivatives are E,
    E − φ(y/tau)/tau and E − φ(y/tau)/tau + (y/tau) φ(y/tau)/tau².
    """
    remaining = sigma * np.linspace(1.0, 0.0, NODES)
    z = np.linspace(-8, 8, 3201)
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    bounds = []
    for tau in remaining[:-1]:
        tail = np.exp(tau * z + tau**2 / 2) * ndtr(-z - tau)
        bounds.append(np.abs(tail - density / tau + z * density / tau**2).max())
    smoothness = np.maximum.accumulate([*bounds, np.inf])
    return sigma**2 - remaining**2, smoothness
