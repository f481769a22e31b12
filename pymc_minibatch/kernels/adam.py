"""Adam, by which chains start where no mode is known, and the noise where it ends.

    m ← β₁ m + (1 − β₁) g,   s ← β₂ s + (1 − β₂) g²,   θ ← θ + r m̂ / √ŝ

with m̂ and ŝ free of the zeros that they start from, and a rate r that falls to zero.

Reference
---------
Kingma and Ba (2015), Adam: A method for stochastic optimization, algorithm 1.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numba import njit

from pymc_minibatch.kernels.gradient import make_estimate, move_inside
from pymc_minibatch.reference.density import Density

__all__ = ["make_climb"]

BETA_1, BETA_2 = 0.9, 0.999
TINY = 1e-10
"""A gradient that changes the log-density by so little over a step makes none of full length."""


def make_climb(ndims: Sequence[int], bounded: bool = False) -> Callable[..., None]:
    """Assemble the search.

    Returns
    -------
    climb
        ``(rng, point, active, density, n_steps, rates, rows, noises)`` moves ``point[active]`` in
        place by steps of at most about `rates`, one for each parameter, with `rows` for work space;
        then writes the noise of a batch there to each row of `noises`.
    """
    estimate = make_estimate(ndims)

    @njit
    def climb(
        rng: np.random.Generator,
        point: np.ndarray,
        active: np.ndarray,
        density: Density,
        n_steps: int,
        rates: np.ndarray,
        rows: np.ndarray,
        noises: np.ndarray,
    ) -> None:
        dim = active.size
        gradient, mean, square = np.empty(dim), np.zeros(dim), np.zeros(dim)
        step, kept = np.zeros(dim), np.empty(dim)
        for t in range(1, n_steps + 1):
            estimate(rng, point, active, density, rows, gradient, gradient[:0])
            falling = 0.5 * (1.0 + math.cos(math.pi * t / n_steps))
            step[:] = 0.0
            for j in range(dim):
                if not math.isfinite(gradient[j]):
                    continue
                mean[j] += (1.0 - BETA_1) * (gradient[j] - mean[j])
                square[j] += (1.0 - BETA_2) * (gradient[j] ** 2 - square[j])
                root = math.sqrt(square[j] / (1.0 - BETA_2**t)) + TINY / rates[j]
                step[j] = falling * rates[j] * mean[j] / (1.0 - BETA_1**t) / root
            if bounded and move_inside(point, active, step, kept, density):
                mean[:] = 0.0
            if not bounded:
                for j in range(dim):
                    point[active[j]] += step[j]
        for i in range(noises.shape[0]):
            estimate(rng, point, active, density, rows, gradient, noises[i])

    return climb
