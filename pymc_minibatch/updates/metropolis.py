"""Random-walk Metropolis: θ' = θ + ε root ξ with ξ standard normal.

References
----------
Maclaurin and Adams (2014), Firefly Monte Carlo, algorithm 1. Roberts, Gelman and Gilks (1997), Weak
convergence and optimal scaling of random walk Metropolis algorithms: accept 0.234.
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
    standard_normal,
    times,
)

__all__ = ["METROPOLIS"]


def build(evaluate: Callable[..., float]) -> Callable[..., tuple[bool, float]]:
    """Build the update."""

    @jit_part
    def metropolis(
        rng: np.random.Generator,
        current: State,
        proposed: State,
        context: Context,
        whitening: Whitening,
        step: float,
    ) -> tuple[bool, float]:
        active = whitening.active
        change = times(whitening.root, standard_normal(rng, active.size))
        proposed.point[:] = current.point
        for i in range(active.size):
            proposed.point[active[i]] += step * change[i]
        log_ratio = evaluate(proposed, context) - current.log_density[0]
        return decide(rng, log_ratio, current, proposed, context.brightness)

    return metropolis


METROPOLIS = Update(
    build=build,
    uses_gradient=False,
    target_signal=0.234,
    first_step=lambda dim: 2.4 / dim**0.5,
    longest_step=10.0,
    z_cost=0.5,
)
