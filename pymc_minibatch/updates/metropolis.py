"""Random-walk Metropolis: θ' = θ + ε root ξ with ξ standard normal.

References
----------
Maclaurin and Adams (2014), Firefly Monte Carlo, algorithm 1. Roberts, Gelman and Gilks (1997), Weak
convergence and optimal scaling of random walk Metropolis algorithms: accept 0.234.
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

__all__ = ["METROPOLIS"]


def build(evaluate: Callable[..., float]) -> Callable[..., tuple[float, bool, float]]:
    """Build the update."""

    @njit
    def metropolis(
        rng: np.random.Generator,
        point: np.ndarray,
        log_density: float,
        gradient: np.ndarray,
        context: Context,
        whitening: Whitening,
        step: float,
    ) -> tuple[float, bool, float]:
        active, proposed = whitening.active, point.copy()
        change = times(whitening.root, standard_normal(rng, active.size))
        for i in range(active.size):
            proposed[active[i]] += step * change[i]
        proposed_log_density = evaluate(proposed, gradient, context)
        probability = np.exp(min(0.0, proposed_log_density - log_density))
        accepted = rng.random() < probability
        if accepted:
            point[:] = proposed
            log_density = proposed_log_density
            accept_proposed(context.flies)
        return log_density, accepted, probability

    return metropolis


METROPOLIS = Update(build, False, 0.234, lambda dim: 2.4 / dim**0.5, 10.0, 1, 0.5)
