"""The Metropolis-adjusted Langevin algorithm.

In coordinates y with θ = center + root y, y' = y + (ε²/2) ∇ log p(y) + ε ξ, and the proposal
density enters the acceptance probability.

References
----------
Roberts and Rosenthal (1998), Optimal scaling of discrete approximations to Langevin diffusions:
accept 0.574.
"""

from collections.abc import Callable

import numpy as np
from numba import njit

from pymc_minibatch.updates.update import (
    Context,
    Update,
    Whitening,
    accept_proposed,
    put_whitened,
    standard_normal,
    whitened,
    whitened_gradient,
)

__all__ = ["LANGEVIN"]


def build(evaluate: Callable[..., float]) -> Callable[..., tuple[float, bool, float]]:
    """Build the update."""

    @njit
    def langevin(
        rng: np.random.Generator,
        point: np.ndarray,
        log_density: float,
        gradient: np.ndarray,
        context: Context,
        whitening: Whitening,
        step: float,
    ) -> tuple[float, bool, float]:
        y, slope = whitened(point, whitening), whitened_gradient(gradient, whitening)
        noise = standard_normal(rng, y.size)
        proposed, proposed_gradient = point.copy(), np.empty(point.size)
        y = y + step * (0.5 * step * slope + noise)
        put_whitened(y, whitening, proposed)
        proposed_log_density = evaluate(proposed, proposed_gradient, context)
        back = noise + 0.5 * step * (slope + whitened_gradient(proposed_gradient, whitening))
        log_ratio = proposed_log_density - log_density
        log_ratio += 0.5 * ((noise * noise).sum() - (back * back).sum())
        probability = np.exp(min(0.0, log_ratio)) if np.isfinite(log_ratio) else 0.0
        accepted = rng.random() < probability
        if accepted:
            point[:], gradient[:] = proposed, proposed_gradient
            log_density = proposed_log_density
            accept_proposed(context.flies)
        return log_density, accepted, probability

    return langevin


LANGEVIN = Update(build, True, 0.574, lambda dim: dim ** (-1 / 6), 2.0, 1, 0.5)
