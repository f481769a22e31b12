"""Slice sampling along a random direction, with stepping out and shrinkage.

The direction is root ξ with ξ standard normal and scaled to length 1; the width of the first
interval is tuned until intervals shrink as often as they grow.

References
----------
Neal (2003), Slice sampling, sections 4 and 5.
"""

from collections.abc import Callable

import numpy as np

from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.updates.update import (
    Context,
    State,
    Update,
    Whitening,
    accept,
    standard_normal,
    times,
)

__all__ = ["SLICE"]

MOST_STEPS = 50


def build(evaluate: Callable[..., float]) -> Callable[..., tuple[bool, float]]:
    """Build the update."""

    @jit_part
    def log_density_at(
        t: float,
        current: State,
        direction: np.ndarray,
        proposed: State,
        context: Context,
        active: np.ndarray,
    ) -> float:
        for i in range(active.size):
            proposed.point[active[i]] = current.point[active[i]] + t * direction[i]
        return evaluate(proposed, context)

    @jit_part
    def slice_along_line(
        rng: np.random.Generator,
        current: State,
        proposed: State,
        context: Context,
        whitening: Whitening,
        step: float,
    ) -> tuple[bool, float]:
        active = whitening.active
        proposed.point[:] = current.point
        xi = standard_normal(rng, active.size)
        direction = times(whitening.root, xi / np.sqrt((xi * xi).sum()))
        level = current.log_density[0] + np.log(rng.random())
        left = -step * rng.random()
        right = left + step
        grown, shrunk = np.int64(0), np.int64(0)
        # The steps are shared out at random between both ends, which keeps the update reversible.
        most_left = int(rng.random() * MOST_STEPS)
        for _ in range(most_left):
            value = log_density_at(left, current, direction, proposed, context, active)
            if value <= level:
                break
            left -= step
            grown += 1
        for _ in range(MOST_STEPS - 1 - most_left):
            value = log_density_at(right, current, direction, proposed, context, active)
            if value <= level:
                break
            right += step
            grown += 1
        while True:
            t = left + (right - left) * rng.random()
            value = log_density_at(t, current, direction, proposed, context, active)
            if value > level:
                break
            shrunk += 1
            if t < 0.0:
                left = t
            else:
                right = t
            if right - left < 1e-12 * step:
                return False, 0.0
        accept(current, proposed, context.brightness)
        return True, (1.0 + grown) / (2.0 + grown + shrunk)

    return slice_along_line


SLICE = Update(
    build=build,
    uses_gradient=False,
    target_signal=0.5,
    first_step=lambda dim: 2.0,
    longest_step=100.0,
    z_cost=0.3,
)
