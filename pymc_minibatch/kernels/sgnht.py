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

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.jit.triangular import squared_norm
from pymc_minibatch.kernels.momentum import Momentum, MomentumState

__all__ = ["bath"]

SMALL = 1e-8
"""Below, (1 − e^(−2ξh)) / ξ is 2h."""


@register_jitable
def bath(
    rng: np.random.Generator, epsilon: float, noisy: bool, state: MomentumState, settings: Momentum
) -> float:
    """Move the thermostat by half a step, friction and noise by one, the thermostat by the rest."""
    dim, h = state.momentum.size, math.sqrt(epsilon)
    state.thermostat[0] += h / 2 * (squared_norm(state.momentum) / dim - 1.0)
    lost = state.thermostat[0] * h
    time = 2.0 if abs(lost) < SMALL else (1.0 - math.exp(-2.0 * lost)) / lost
    keep, spread = math.exp(-lost), math.sqrt(settings.friction * time)
    squares = 0.0
    for j in range(dim):
        kept = keep * state.momentum[j] + spread * rng.standard_normal()
        squares += kept**2
        state.momentum[j] = kept
    state.thermostat[0] += h / 2 * (squares / dim - 1.0)
    return 1.0 - settings.friction / lost if lost > settings.friction else 0.0
