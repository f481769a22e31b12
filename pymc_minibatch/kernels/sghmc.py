"""Stochastic gradient Hamiltonian Monte Carlo.

In the coordinates of :mod:`.momentum`, after the kick by the gradient of a batch,

    p ← (1 − a) p + N(0, 1 − (1 − a)² − (1 − a/2)² ε b)

where b are the variances of the batch's gradient. What the batch adds to the momentum is left out
of the noise: β̂ of the paper, with the factor by which a kick goes as far as noise that is added
after it. Where the noise of the batch is correlated in these coordinates, only
its variances are made up for.

Reference
---------
Chen, Fox and Guestrin (2014), Stochastic gradient Hamiltonian Monte Carlo, equation 15; the
order of the updates, and the exact friction, are those of BAOAB (:mod:`.momentum`).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numba import njit

from pymc_minibatch.kernels.gradient import diverges, make_estimate
from pymc_minibatch.kernels.momentum import Momentum, MomentumState, kick, learn_noise, move
from pymc_minibatch.reference.source import Source

__all__ = ["make_hamiltonian"]


def make_hamiltonian(ndims: Sequence[int]) -> Callable[..., tuple[bool, float]]:
    """Assemble the loop; arguments and result are those of :func:`.sgfs.make_scoring`."""
    estimate = make_estimate(ndims)

    @njit
    def transitions(
        rng: np.random.Generator,
        point: np.ndarray,
        active: np.ndarray,
        source: Source,
        n_steps: int,
        tuning: bool,
        state: MomentumState,
        settings: Momentum,
    ) -> tuple[bool, float]:
        dim, keep = active.size, 1.0 - settings.friction
        farther = (1.0 - settings.friction / 2) ** 2
        gradient, before = np.empty(dim), np.empty(dim)
        rows = np.empty(settings.batch_size, np.int64)
        noise = np.empty(dim if tuning else 0)
        share = np.nan
        for k in range(n_steps):
            epsilon = state.size[0] * settings.sizes[k]
            estimate(rng, point, active, source, rows, gradient, noise)
            if tuning:
                learn_noise(noise, state)
            if diverges(kick(gradient, epsilon, state), dim, state.limit):
                return True, 0.0
            before[:] = state.momentum
            share = 0.0
            for j in range(dim):
                wanted, batch = 1.0 - keep**2, farther * epsilon * state.noise[j]
                share += batch / wanted / dim
                state.momentum[j] *= keep
                if settings.noisy[k] and batch < wanted:
                    state.momentum[j] += math.sqrt(wanted - batch) * rng.standard_normal()
            move(point, active, epsilon, before, state)
        return False, share

    return transitions
