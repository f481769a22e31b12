"""What the kernels with momentum share: p is kicked by the gradient and moves the point.

In coordinates in which the preconditioner M = LLᵀ is the identity, with h = √ε,

    p ← p + h Lᵀ{∇log p₀(θ) + N ḡ},   θ ← θ + h/2 L p,   friction and noise on p,   θ ← θ + h/2 L p.

This is BAOAB with the two half kicks of successive steps in one. For a Gaussian posterior and exact
gradients the positions have the posterior's covariance at every step size up to h² = 4 over the
largest curvature; the update of Chen, Fox and Guestrin has not.

Reference
---------
Leimkuhler and Matthews (2013), Rational construction of stochastic numerical methods for molecular
sampling.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numba.extending import register_jitable

from pymc_minibatch.jit.triangular import multiply, multiply_transposed, squared_norm
from pymc_minibatch.kernels.gradient import STRONGEST, diverges, make_estimate, move_inside, tame
from pymc_minibatch.reference.density import Density

__all__ = ["Momentum", "MomentumState", "make_momentum", "momentum_state"]

FORGETTING = 3.0
"""Estimate t of the noise has weight t² in the average, as batches have in Fisher scoring."""


class Momentum(NamedTuple):
    """Settings.

    Attributes
    ----------
    sizes : ndarray, shape (k,)
        ε of each step of this draw, relative to that of the state.
    noisy : ndarray of bool, shape (k,)
        Whether noise is added in the step; without, it climbs.
    friction : float
        a, the share of the momentum that a step takes away.
    batch_size : int
        n.
    """

    sizes: np.ndarray
    noisy: np.ndarray
    friction: float
    batch_size: int


class MomentumState(NamedTuple):
    """What the loop changes in addition to the point.

    Attributes
    ----------
    factor : ndarray, shape (d, d) or (d, 1)
        L; one column if it is diagonal. Set when the chain starts.
    size : ndarray, shape (1,)
        ε; 0 before the chain starts.
    momentum : ndarray, shape (d,)
        p.
    noise : ndarray, shape (d,)
        Variances b of Lᵀ times the gradient of a batch, averaged while the chain tunes.
    thermostat : ndarray, shape (1,)
        Friction that a thermostat has found, for each unit of time.
    seen : ndarray, shape (1,)
        Batches in `noise`.
    limit : ndarray, shape (1,)
        Squared drift that counts as divergence; 0 before the first move.
    shorter : ndarray, shape (1,)
        Share of the default step size that is taken: less than 1 if the chain has diverged.
    scale, prior : ndarray, shapes of factor and (d,)
        L where it was found, and the prior's curvature there if others move what it depends on.
    """

    factor: np.ndarray
    size: np.ndarray
    momentum: np.ndarray
    noise: np.ndarray
    thermostat: np.ndarray
    seen: np.ndarray
    limit: np.ndarray
    shorter: np.ndarray
    scale: np.ndarray
    prior: np.ndarray


def momentum_state(dim: int, columns: int) -> MomentumState:
    """Return the state before the chain starts."""
    return MomentumState(
        factor=np.zeros((dim, columns)),
        size=np.zeros(1),
        momentum=np.zeros(dim),
        noise=np.zeros(dim),
        thermostat=np.zeros(1),
        seen=np.zeros(1),
        limit=np.zeros(1),
        shorter=np.ones(1),
        scale=np.zeros((dim, columns)),
        prior=np.zeros(dim),
    )


def make_momentum(
    ndims: Sequence[int], bounded: bool, bath: Callable[..., float]
) -> Callable[..., tuple[bool, float]]:
    """Assemble the loop; its arguments and result are those of :func:`.sgfs.make_scoring`.

    Parameters
    ----------
    ndims
        Number of dimensions of each array of row data.
    bounded
        Whether the density is zero in places, where the loop does not go; see :mod:`.gradient`.
    bath
        ``(rng, epsilon, noisy, state, settings)`` is the friction and the noise of one step, on the
        momentum in place; returns the share of the batch in them.
    """
    estimate = make_estimate(ndims)

    @njit
    def transitions(
        rng: np.random.Generator,
        point: np.ndarray,
        active: np.ndarray,
        density: Density,
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
            estimate(rng, point, active, density, rows, gradient, noise)
            if tuning:
                learn_noise(noise, state)
            multiply_transposed(state.factor, gradient)
            if diverges(epsilon * squared_norm(gradient), dim, state.limit):
                return True, 0.0
            if bounded and not tuning:
                tame(gradient, STRONGEST * math.sqrt(dim / epsilon))
            kick(gradient, epsilon, state)
            if bounded:
                drift(point, active, epsilon, density, state, before, gradient)
                share = bath(rng, epsilon, settings.noisy[k], state, settings)
                drift(point, active, epsilon, density, state, before, gradient)
                continue
            before[:] = state.momentum
            share = bath(rng, epsilon, settings.noisy[k], state, settings)
            move(point, active, epsilon, before, state)
        return False, share

    return transitions


@register_jitable
def learn_noise(noise: np.ndarray, state: MomentumState) -> None:
    """B ← (1 − κ) b + κ (Lᵀ noise)² with κ = 3 / (t + 2)."""
    multiply_transposed(state.factor, noise)
    state.seen[0] += 1.0
    kappa = FORGETTING / (state.seen[0] + FORGETTING - 1.0)
    for j in range(noise.size):
        state.noise[j] += kappa * (noise[j] ** 2 - state.noise[j])


@register_jitable
def kick(gradient: np.ndarray, epsilon: float, state: MomentumState) -> None:
    """P ← p + h g, with g = Lᵀ gradient."""
    h = math.sqrt(epsilon)
    for j in range(gradient.size):
        state.momentum[j] += h * gradient[j]


@register_jitable
def move(
    point: np.ndarray,
    active: np.ndarray,
    epsilon: float,
    before: np.ndarray,
    state: MomentumState,
) -> None:
    """θ ← θ + h/2 L (p before friction and noise + p after); overwrites `before`."""
    h = math.sqrt(epsilon)
    for j in range(before.size):
        before[j] = h / 2 * (before[j] + state.momentum[j])
    multiply(state.factor, before)
    for j in range(before.size):
        point[np.uint64(active[j])] += before[j]


@register_jitable
def drift(
    point: np.ndarray,
    active: np.ndarray,
    epsilon: float,
    density: Density,
    state: MomentumState,
    step: np.ndarray,
    kept: np.ndarray,
) -> None:
    """θ ← θ + h/2 L p, or p ← −p where the density is zero there; overwrites `step` and `kept`."""
    h = math.sqrt(epsilon)
    for j in range(step.size):
        step[j] = h / 2 * state.momentum[j]
    multiply(state.factor, step)
    if move_inside(point, active, step, kept, density):
        for j in range(step.size):
            state.momentum[j] = -state.momentum[j]
