"""The corrected Barker test: accept or reject from a few rows.

Barker's test accepts with probability ``1 / (1 + exp(-delta))``, that is iff ``delta + X > 0`` with
X standard logistic. A batch of b rows gives an estimate of delta with approximately normal error of
variance s². With ``X ~ N(0, sigma²) + X_corr`` that error takes the place of a part of X::

    accept iff  delta* + N(0, sigma² - s²) + X_corr > 0

While s² is not below sigma², or the bound on the error is above its limit, rows are added to the
batch. When more than half of the rows would be needed, all are read and the test is exact.

Reference
---------
Seita, Pan, Chen and Canny (2017), An Efficient Minibatch Acceptance Test for Metropolis-Hastings,
sections 3 to 5 and algorithm 1. The error bound is Lindeberg's replacement argument in place of the
paper's Corollary 1, which ignores that the noise that is added makes the test smooth.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from pymc_minibatch.acceptance.correction import correction
from pymc_minibatch.acceptance.decision import Decision, Rows, Source

__all__ = ["CorrectedBarker"]

HEADROOM = 0.9
"""Share of sigma² that a grown batch aims at, since s² is itself an estimate."""

GROWTH = 1.1
"""Resolution of the search for the batch that should do."""

NORMAL_THIRD_MOMENT = 1.6
"""E|Z|³ of a standard normal, rounded up."""


@dataclass(frozen=True)
class CorrectedBarker:
    """Barker's acceptance test with the correction distribution.

    Parameters
    ----------
    sigma : float, default 1.0
        Standard deviation of the normal part of the test, from 0.5 to 1.4. A larger value lets the
        batch be noisier, hence smaller, at a larger error of the test: 6e-8 in probability at 1.0,
        2e-6 at 1.1, 2e-5 at 1.2, 5e-4 at 1.4.
    test_error : float or None, default 1e-3
        Limit on the error of the acceptance probability of each decision. Batches grow until the
        estimated bound is below it. None sets no limit, as in the paper: only s² < sigma² is asked
        for, and the bound is still reported.

    Raises
    ------
    ValueError
        If `sigma` is out of range, or `test_error` is not above the error of the correction.

    Notes
    -----
    The test is approximate, in two ways that vanish as the batch grows. The sum over the batch is
    not exactly normal; the bound on the resulting error uses the third absolute moment, estimated
    from the same batch, and is derived for rows drawn independently (they are drawn without
    replacement). And s² is an estimate. Rows whose log-likelihood ratio is rare and extreme can
    escape a batch and its estimates; a likelihood whose support depends on the parameters is such
    a case.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> pmb.CorrectedBarker(sigma=1.1, test_error=1e-4)
    CorrectedBarker(sigma=1.1, test_error=0.0001)
    """

    sigma: float = 1.0
    test_error: float | None = 1e-3

    def __post_init__(self) -> None:
        error = correction(self.sigma).cdf_error
        if self.test_error is not None and not self.test_error > error:
            raise ValueError(
                f"test_error must be above {error:.1e}, the error of the correction at "
                f"sigma={self.sigma}; got {self.test_error}. Take a smaller sigma or a larger "
                "limit."
            )

    def parameters(self, temperature: float, batch_size: int) -> tuple[Any, ...]:
        """Return what the jitted test reads at every decision."""
        fitted = correction(self.sigma)
        limit = np.inf if self.test_error is None else self.test_error
        return (
            float(temperature),
            int(batch_size),
            self.sigma**2,
            float(limit),
            fitted.atoms,
            fitted.cumulative,
            fitted.cdf_error,
            fitted.variance_grid,
            fitted.smoothness,
        )

    def build(
        self, draw_log_ratios: Callable[..., int], sum_log_ratios: Callable[..., tuple[float, int]]
    ) -> Callable[..., Decision]:
        """Compose the test with the functions that read the data."""

        @njit
        def decide(
            rng: np.random.Generator,
            psi: float,
            current: np.ndarray,
            proposed: np.ndarray,
            source: Source,
            rows: Rows,
            parameters: tuple[Any, ...],
        ) -> Decision:
            (
                temperature,
                batch_size,
                sigma2,
                limit,
                atoms,
                cumulative,
                cdf_error,
                grid,
                smoothness,
            ) = parameters
            n_rows = source.data[0].shape[0]
            scale = n_rows / temperature
            n_seen, n = np.int64(0), batch_size  # a literal 0 would be compiled on its own
            while 2 * n <= n_rows:
                impossible = draw_log_ratios(rng, current, proposed, source, rows, n_seen, n)
                mean, variance, third = moments(rows.log_ratios[:n])
                if impossible >= 0 or mean == -np.inf:
                    return Decision(False, n, n, 0.0, 0.0, impossible)
                s2, bound = noise(n, n_rows, scale, variance, third, grid, smoothness)
                if s2 < sigma2 and cdf_error + bound <= limit:
                    normal = math.sqrt(sigma2 - s2) * rng.standard_normal()
                    corrected = atoms[np.searchsorted(cumulative, rng.random(), side="right")]
                    accepted = psi + scale * mean + normal + corrected > 0
                    return Decision(accepted, n, n, s2, min(1.0, cdf_error + bound), -1)
                n_seen = n
                while 2 * n <= n_rows:  # find the batch that should do
                    n = math.ceil(GROWTH * n)
                    s2, bound = noise(n, n_rows, scale, variance, third, grid, smoothness)
                    if s2 <= HEADROOM * sigma2 and cdf_error + bound <= limit:
                        break
            total, impossible = sum_log_ratios(current, proposed, source)
            delta = psi + total / temperature
            accepted = rng.random() < 1 / (1 + np.exp(-delta))
            return Decision(accepted, n_rows, n_seen + n_rows, 0.0, 0.0, impossible)

        return decide


@njit
def moments(x: np.ndarray) -> tuple[float, float, float]:
    """Mean, variance (ddof 1) and third absolute central moment."""
    mean = np.sum(x) / x.size
    squares = cubes = 0.0
    for value in x:
        deviation = abs(value - mean)
        squares += deviation**2
        cubes += deviation**3
    return mean, squares / (x.size - 1), cubes / x.size


@njit
def noise(
    n: int,
    n_rows: int,
    scale: float,
    variance: float,
    third: float,
    grid: np.ndarray,
    smoothness: np.ndarray,
) -> tuple[float, float]:
    """Return s², the variance of ``scale * mean of n rows``, and bound the effect of its shape.

    In Lindeberg's argument each of the n terms, of size scale / n, is exchanged for a normal one in
    turn; the expectation of a function with third derivative at most m changes by at most m / 6
    times the third absolute moments of the two.
    """
    s2 = scale**2 * variance / n * (1 - n / n_rows)
    third_moments = scale**3 / n**2 * (third + NORMAL_THIRD_MOMENT * variance**1.5)
    if third_moments == 0.0:  # smoothness may be infinite
        return s2, 0.0
    return s2, upper_smoothness(s2, grid, smoothness) / 6 * third_moments


@njit
def upper_smoothness(s2: float, grid: np.ndarray, smoothness: np.ndarray) -> float:
    """Bound the third derivative of the test's distribution function when the batch has s²."""
    above = np.searchsorted(grid, s2)
    return smoothness[above] if above < grid.size else np.inf
