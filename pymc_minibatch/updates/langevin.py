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

from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.updates.update import (
    Context,
    State,
    Update,
    Whitening,
    decide,
    put_whitened,
    standard_normal,
    whitened,
    whitened_gradient,
)

__all__ = ["LANGEVIN"]


def build(evaluate: Callable[..., float]) -> Callable[..., tuple[bool, float]]:
    """Build the update."""

    @jit_part
    def langevin(
        rng: np.random.Generator,
        current: State,
        proposed: State,
        context: Context,
        whitening: Whitening,
        step: float,
    ) -> tuple[bool, float]:
        slope = whitened_gradient(current.gradient, whitening)
        y, noise = whitened(current.point, whitening), standard_normal(rng, slope.size)
        proposed.point[:] = current.point
        put_whitened(y + step * (0.5 * step * slope + noise), whitening, proposed.point)
        log_ratio = evaluate(proposed, context) - current.log_density[0]
        back = noise + 0.5 * step * (slope + whitened_gradient(proposed.gradient, whitening))
        log_ratio += 0.5 * ((noise * noise).sum() - (back * back).sum())
        return decide(rng, log_ratio, current, proposed, context.brightness)

    return langevin


LANGEVIN = Update(
    build=build,
    uses_gradient=True,
    target_signal=0.574,
    first_step=lambda dim: dim ** (-1 / 6),
    longest_step=2.0,
    z_cost=0.5,
)
