"""Coordinates in which hyperparameters with long tails are more nearly Gaussian.

The log of a standard deviation that may be zero has a density that falls like eʰ to the left: an
exponential tail, which a Gaussian proposal of any width hardly reaches and hardly leaves. A square
of a Gaussian has such a tail, hence the coordinates w of h, one by one:

    h = c + u + ½ b u|u|,   u = w − c,   b = b₋ where u < 0 and b₊ where u > 0.

b is found where the marginal of h under the surrogate has fallen by a fixed factor, so that there w
has fallen like a Gaussian. Tails that are no longer than those of a Gaussian have b = 0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["Tails", "find_tails"]

FALL = 3.0
"""By how much the log density falls where tails are measured."""

FARTHEST = 2.0**7
"""Longer tails than so many times those of a Gaussian are taken for this long."""

BISECTIONS = 6


@dataclass(frozen=True)
class Tails:
    """Coordinates w of h.

    Attributes
    ----------
    center : ndarray, shape (H,)
        c.
    left, right : ndarray, shape (H,)
        b on both sides.
    """

    center: np.ndarray
    left: np.ndarray
    right: np.ndarray

    @classmethod
    def none(cls, center: np.ndarray) -> "Tails":
        """Return those with which w is h."""
        return cls(center, np.zeros(center.size), np.zeros(center.size))

    def from_hyper(self, hyper: np.ndarray) -> np.ndarray:
        """Return w."""
        away = hyper - self.center
        return self.center + 2.0 * away / (1.0 + np.sqrt(1.0 + 2.0 * self._bend(away)))

    def to_hyper(self, w: np.ndarray) -> np.ndarray:
        """Return h."""
        away = w - self.center
        return self.center + away * (1.0 + 0.5 * self._bend(away))

    def log_slope(self, w: np.ndarray) -> float:
        """Return log |∂h/∂w|."""
        return float(np.log1p(self._bend(w - self.center)).sum())

    def _bend(self, away: np.ndarray) -> np.ndarray:
        return np.where(away < 0.0, self.left, self.right) * np.abs(away)


def find_tails(
    log_density: Callable[[np.ndarray], float], mode: np.ndarray, cholesky: np.ndarray
) -> Tails:
    """Measure tails along each axis through the mode.

    Parameters
    ----------
    log_density
        Of h.
    mode
        c.
    cholesky : ndarray, shape (H, H)
        Lower factor of the covariance of h about it.
    """
    precision = np.linalg.inv(cholesky @ cholesky.T)
    gaussian = math.sqrt(2.0 * FALL) / np.sqrt(np.diagonal(precision))
    lowest = log_density(mode) - FALL
    bends = np.zeros((2, mode.size))
    for side, sign in enumerate((-1.0, 1.0)):
        for i, own in enumerate(gaussian):

            def is_above(length: float, i: int = i, sign: float = sign) -> bool:
                moved = mode.copy()
                moved[i] += sign * length
                return log_density(moved) > lowest

            length = _last(is_above, float(own))
            bends[side, i] = 2.0 * (length - own) / own**2
    return Tails(mode, *bends)


def _last(is_above: Callable[[float], bool], start: float) -> float:
    """Return where something ends that may hold beyond a start, the start if it does not."""
    if not is_above(start):
        return start
    inside, outside = start, 2.0 * start
    while outside < FARTHEST * start and is_above(outside):
        inside, outside = outside, 2.0 * outside
    for _ in range(BISECTIONS):
        middle = (inside + outside) / 2.0
        inside, outside = (middle, outside) if is_above(middle) else (inside, middle)
    return inside
