"""Slice sampling along a random direction, with stepping out and shrinkage.

The direction is root ξ with ξ standard normal and scaled to length 1; the width of the first
interval is tuned until intervals shrink as often as they grow.

References
----------
Neal (2003), Slice sampling, sections 4 and 5.
"""

from collections.abc import Callable

import numpy as np
from numba import njit

from pymc_minibatch.updates.update import (
    Context,
    Update,
    Whitening,
    accept_proposed,
    standard_normal,
    times,
)

__all__ = ["SLICE"]

MOST_STEPS = 50


def build(evaluate: Callable[..., float]) -> Callable[..., tuple[float, bool, float]]:
    """Build the update."""

    @njit
    def log_density_at(
        t: float,
        point: np.ndarray,
        direction: np.ndarray,
        proposed: np.ndarray,
        gradient: np.ndarray,
        context: Context,
        active: np.ndarray,
    ) -> float:
        for i in range(active.size):
            proposed[active[i]] = point[active[i]] + t * direction[i]
        return evaluate(proposed, gradient, context)

    @njit
    def slice_along_line(
        rng: np.random.Generator,
        point: np.ndarray,
        log_density: float,
        gradient: np.ndarray,
        context: Context,
        whitening: Whitening,
        step: float,
    ) -> tuple[float, bool, float]:
        active, proposed = whitening.active, point.copy()
        xi = standard_normal(rng, active.size)
        direction = times(whitening.root, xi / np.sqrt((xi * xi).sum()))
        level = log_density + np.log(rng.random())
        left = -step * rng.random()
        right = left + step
        grown, shrunk = np.int64(0), np.int64(0)
        # The steps are shared out at random between both ends, which keeps the update reversible.
        most_left = int(rng.random() * MOST_STEPS)
        for _ in range(most_left):
            value = log_density_at(left, point, direction, proposed, gradient, context, active)
            if value <= level:
                break
            left -= step
            grown += 1
        for _ in range(MOST_STEPS - 1 - most_left):
            value = log_density_at(right, point, direction, proposed, gradient, context, active)
            if value <= level:
                break
            right += step
            grown += 1
        while True:
            t = left + (right - left) * rng.random()
            value = log_density_at(t, point, direction, proposed, gradient, context, active)
            if value > level:
                break
            shrunk += 1
            if t < 0.0:
                left = t
            else:
                right = t
            if right - left < 1e-12 * step:
                return log_density, False, 0.0
        point[:] = proposed
        accept_proposed(context.flies)
        return value, True, (1.0 + grown) / (2.0 + grown + shrunk)

    return slice_along_line


SLICE = Update(build, False, 0.5, lambda dim: 2.0, 100.0, 1, 0.3)
