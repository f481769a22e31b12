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

from pymc_minibatch.latent.hyper_coordinates import HyperCoordinates

__all__ = ["SkewTransform", "find_tails"]

FALL = 3.0
"""By how much the log density falls where tails are measured."""

RISE = 0.25
"""If it rises by more than this, it has its mode elsewhere, and is not believed.

Laplace's approximation of the marginal can be off by many standard deviations where groups are
small and many, while the mode is that of better averages.
"""

FARTHEST = 2.0**4
"""Longer tails than so many times those of a Gaussian are taken for this long."""

BISECTIONS = 6


@dataclass(frozen=True)
class SkewTransform:
    """Coordinates w of h.

    Attributes
    ----------
    base : HyperCoordinates
        Coordinates v of h, of which these are coordinates.
    center : ndarray, shape (H,)
        c, of v.
    left, right : ndarray, shape (H,)
        b on both sides.
    """

    base: HyperCoordinates
    center: np.ndarray
    left: np.ndarray
    right: np.ndarray

    @classmethod
    def none(cls, base: HyperCoordinates, center: np.ndarray) -> "SkewTransform":
        """Return those with which w is v."""
        return cls(base, center, np.zeros(center.size), np.zeros(center.size))

    def moments(self, mode: np.ndarray, cholesky: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mode and the lower factor of the covariance of w, given those of h."""
        return self.from_hyper(mode), self.base.cholesky_from_hyper(
            self.base.from_hyper(mode), cholesky
        )

    def from_hyper(self, hyper: np.ndarray) -> np.ndarray:
        """Return w."""
        away = self.base.from_hyper(hyper) - self.center
        return self.center + 2.0 * away / (1.0 + np.sqrt(1.0 + 2.0 * self._skewness(away)))

    def to_hyper(self, w: np.ndarray) -> np.ndarray:
        """Return h."""
        return self.base.to_hyper(self._v(w))

    def _v(self, w: np.ndarray) -> np.ndarray:
        away = w - self.center
        return np.asarray(self.center + away * (1.0 + 0.5 * self._skewness(away)))

    def log_slope(self, w: np.ndarray) -> float:
        """Return log |∂h/∂w|."""
        of_skewness = float(np.log1p(self._skewness(w - self.center)).sum())
        return of_skewness + self.base.log_slope(self._v(w))

    def _skewness(self, away: np.ndarray) -> np.ndarray:
        return np.where(away < 0.0, self.left, self.right) * np.abs(away)


def find_tails(
    log_density: Callable[[np.ndarray], float],
    mode: np.ndarray,
    cholesky: np.ndarray,
    base: HyperCoordinates,
) -> SkewTransform:
    """Measure tails along each axis through the mode.

    Parameters
    ----------
    log_density
        Of v.
    mode
        c.
    cholesky : ndarray, shape (H, H)
        Lower factor of the covariance of v about it.
    base
        Coordinates v.
    """
    precision = np.linalg.inv(cholesky @ cholesky.T)
    gaussian = math.sqrt(2.0 * FALL) / np.sqrt(np.diagonal(precision))
    peak, bends = log_density(mode), np.zeros((2, mode.size))
    for i, own in enumerate(gaussian):

        def rise(away: float, i: int = i) -> float:
            moved = mode.copy()
            moved[i] += away
            return log_density(moved) - peak

        lengths = [_reach(rise, sign * float(own)) for sign in (-1.0, 1.0)]
        if np.isfinite(lengths).all():
            bends[:, i] = 2.0 * (np.abs(lengths) - own) / own**2
    return SkewTransform(base, mode, *bends)


def _reach(rise: Callable[[float], float], start: float) -> float:
    """Return where a density has fallen, from a start on; NaN if it has its mode elsewhere."""
    inside = outside = start
    while abs(outside) < FARTHEST * abs(start) and (there := rise(outside)) > -FALL:
        if there > RISE:
            return math.nan
        inside, outside = outside, 2.0 * outside
    if outside == start:
        return start
    for _ in range(BISECTIONS):
        middle = (inside + outside) / 2.0
        inside, outside = (middle, outside) if rise(middle) > -FALL else (inside, middle)
    return inside
