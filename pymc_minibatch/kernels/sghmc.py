"""Stochastic gradient Hamiltonian Monte Carlo.

In the coordinates of :mod:`.momentum`, after the kick by the gradient of a batch,

    p ← (1 − a) p + N(0, 1 − (1 − a)² − (1 − a/2)² ε b)

where b are the variances of the batch's gradient. What the batch adds to the momentum is left out
of the noise: β̂ of the paper, with the factor by which a kick goes as far as noise that is added
after it. If the noise of the batch is correlated in these coordinates, only
its variances are made up for.

Reference
---------
Chen, Fox and Guestrin (2014), Stochastic gradient Hamiltonian Monte Carlo, equation 15; the
order of the updates, and the exact friction, are those of BAOAB (:mod:`.momentum`).
"""

import math

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.kernels.momentum import Momentum, MomentumState

__all__ = ["bath"]


@register_jitable
def bath(
    rng: np.random.Generator, epsilon: float, noisy: bool, state: MomentumState, settings: Momentum
) -> float:
    """Take friction away, and add the noise that the batch has not brought."""
    dim, keep = state.momentum.size, 1.0 - settings.friction
    wanted = 1.0 - keep**2
    farther = epsilon * (1.0 - settings.friction / 2) ** 2
    of_batches = 0.0
    for j in range(dim):
        batch = farther * state.noise[j]
        of_batches += batch
        kept = keep * state.momentum[j]
        if noisy and batch < wanted:
            kept += math.sqrt(wanted - batch) * rng.standard_normal()
        state.momentum[j] = kept
    return of_batches / wanted / dim
