"""Stochastic gradient Nosé-Hoover thermostat.

In the coordinates of :mod:`.momentum`, with h = √ε, after the kick by the gradient of a batch,

    ξ ← ξ + h/2 (pᵀp/d − 1)
    p ← e^(−ξh) p + N(0, A (1 − e^(−2ξh)) / ξ)
    ξ ← ξ + h/2 (pᵀp/d − 1)

so that the friction ξ rises until it takes away what the batch and the added noise bring in: its
mean is A plus half the mean variance of what a batch adds in a unit of time. Nothing need be known
of the noise, but one thermostat holds the mean temperature alone: where noise differs from one
direction to another, so do the temperatures.

References
----------
Ding, Fang, Babbush, Chen, Skeel and Neven (2014), Bayesian sampling using stochastic gradient
thermostats. The order of the updates (BADODAB) is that of Leimkuhler and Shang (2016), Adaptive
thermostats for noisy gradient systems.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numba import njit

from pymc_minibatch.jit.triangular import squared_norm
from pymc_minibatch.kernels.gradient import diverges, make_estimate
from pymc_minibatch.kernels.momentum import Momentum, MomentumState, kick, learn_noise, move
from pymc_minibatch.reference.source import Source

__all__ = ["make_thermostat"]

SMALL = 1e-8
"""Below, (1 − e^(−2ξh)) / ξ is 2h."""


def make_thermostat(ndims: Sequence[int]) -> Callable[..., tuple[bool, float]]:
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
        dim = active.size
        gradient, before = np.empty(dim), np.empty(dim)
        rows = np.empty(settings.batch_size, np.int64)
        noise = np.empty(dim if tuning else 0)
        share = np.nan
        for k in range(n_steps):
            epsilon = state.size[0] * settings.sizes[k]
            h = math.sqrt(epsilon)
            estimate(rng, point, active, source, rows, gradient, noise)
            if tuning:
                learn_noise(noise, state)
            if diverges(kick(gradient, epsilon, state), dim, state.limit):
                return True, 0.0
            before[:] = state.momentum
            state.thermostat[0] += h / 2 * (squared_norm(state.momentum) / dim - 1.0)
            lost = state.thermostat[0] * h
            time = 2.0 if abs(lost) < SMALL else (1.0 - math.exp(-2.0 * lost)) / lost
            spread = math.sqrt(settings.friction * time)
            for j in range(dim):
                state.momentum[j] *= math.exp(-lost)
                state.momentum[j] += spread * rng.standard_normal()
            state.thermostat[0] += h / 2 * (squared_norm(state.momentum) / dim - 1.0)
            move(point, active, epsilon, before, state)
            share = 1.0 - settings.friction / lost if lost > settings.friction else 0.0
        return False, share

    return transitions
