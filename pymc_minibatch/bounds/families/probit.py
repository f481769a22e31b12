r"""Rows f = log Φ(u), u = k η, with k = ± 1 or another number.

Since Φ(u) = φ(u) ∫ exp(u t − t²/2) dt over t > 0, f''' is the third cumulant of a normal variable
N(u, 1) that is truncated to t > 0, and f'''' its fourth. That law is log-concave with a variance of
at most 1, so its excess kurtosis is at most 6 (that of the exponential distribution), and at least
−2 as any: \|f''''\| ≤ 6. On a grid with spacing 10⁻³ from −12 to 12 the largest \|f'''\| is below
0.2958, so that it is below 0.2958 + 6 · 10⁻³/2 < 0.2989 between; beyond, \|f'''\| ≤ 2 var^(3/2)
(log-concave laws have a skewness of at most 2), where the variance is at most 1/u² for u < 0, and
\|f'''\| ≤ φ(u)/Φ(u) · (u + 1)(u + 2) for u > 12: below 0.002. K = 0.3.
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr

from pymc_minibatch.bounds.families.family import (
    Family,
    OfSteps,
    Taylor,
    Third,
    Trial,
    rows_agree,
)

__all__ = ["LARGEST", "PROBIT"]

LARGEST = 0.3
"""K."""

SINGLE = float(np.sqrt(2) / np.sqrt(np.float32(2)))
"""``pm.math.invprobit`` divides by √2 in single precision."""


def third(trial: Trial) -> tuple[Third, np.ndarray]:
    """Tell k of each row, and how √2 is rounded, from its derivatives at 0."""
    derivatives = trial.derivatives

    def scale_of(batch: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the factor on η, and whether rows may be of the family."""
        second, third = derivatives(np.zeros(len(batch[0])), *batch)
        size = np.sqrt(np.abs(second) * np.pi / 2)
        near = np.where(np.abs(size - SINGLE) < np.abs(size - 1.0), SINGLE, 1.0)
        size = np.where(rows_agree(size, near), near, size)
        return np.where(third < 0, -size, size), np.isfinite(size)

    scale, may = scale_of(trial.batch)

    def second(eta: np.ndarray) -> np.ndarray:
        u = scale * eta
        ratio = np.exp(-(u**2) / 2 - log_ndtr(u)) / np.sqrt(2 * np.pi)
        curvature: np.ndarray = -(scale**2) * ratio * (u + ratio)
        return curvature

    def bound(lowest: np.ndarray, highest: np.ndarray, batch: Sequence[np.ndarray]) -> np.ndarray:
        size: np.ndarray = LARGEST * np.abs(scale_of(batch)[0]) ** 3
        return size

    def remainder(eta: np.ndarray, taylor: Taylor, batch: Sequence[np.ndarray]) -> OfSteps:
        _, slope, curvature = taylor
        scale = scale_of(batch)[0]

        def of_steps(t: np.ndarray) -> np.ndarray:
            rise = log_ndtr(scale * (eta + t)) - log_ndtr(scale * eta)
            return np.asarray(rise - slope * t - curvature * t**2 / 2)

        return of_steps

    return Third(bound, remainder), may & trial.fits(2, second)


PROBIT = Family(name="probit", rows=("Bernoulli (probit)",), third=third)
