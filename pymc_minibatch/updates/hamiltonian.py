"""Hamiltonian Monte Carlo whose Gaussian part is exact.

In coordinates y in which the Gaussian approximation of prior and bounds is standard normal,

    H(y, p) = ½ |y|² + ½ |p|² + V(y),

where V holds the bright rows and what is not Gaussian of the prior. Without V the motion is a
rotation in (y, p), and a quarter turn makes y independent of where it was. So a step is a kick by
−∇V for half its time, a rotation, and another half kick; the steps make up about a quarter turn.
With few bright rows, one or two suffice.

A rotation that leads to where the density is zero, beyond a hard constraint, is not made: p is
turned round instead. Like the rotation, that is its own inverse once p is turned round again, so
the trajectory can be reversed and keeps volumes; it goes back the way it came, and is accepted or
rejected as any other.

A tuned bound touches at the mode, so that L̃ₙ grows with (xₙᵀy)²: a bright row keeps y on its side
of the plane where it would vanish, and chains turn round slowly though |y| varies fast. L̃ₙ is about
the same at −y. So half of the updates propose to go there, too, which is nearly always accepted.

References
----------
Shahbaba, Lan, Johnson and Neal (2014), Split Hamiltonian Monte Carlo, section 3.1. Neal (2011),
MCMC using Hamiltonian dynamics.
"""

from collections.abc import Callable

import numpy as np

from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.updates.update import (
    Context,
    State,
    Update,
    Whitening,
    accept,
    decide,
    put_whitened,
    standard_normal,
    whitened,
    whitened_gradient,
)

__all__ = ["HAMILTONIAN"]

QUARTER_TURN = np.pi / 2
JITTER = 0.2
"""Times vary by this share, so that no orbit closes."""

MOST_STEPS = 64
"""If steps must be short, a trajectory ends after so many of them."""


def build(evaluate: Callable[..., float]) -> Callable[..., tuple[bool, float]]:
    """Build the update."""

    @jit_part
    def hamiltonian(
        rng: np.random.Generator,
        current: State,
        proposed: State,
        context: Context,
        whitening: Whitening,
        step: float,
    ) -> tuple[bool, float]:
        n_steps = min(MOST_STEPS, max(1, int(np.round(QUARTER_TURN / step))))
        time = step * (1.0 + JITTER * (2.0 * rng.random() - 1.0))
        cos, sin = np.cos(time), np.sin(time)
        y, p = whitened(current.point, whitening), standard_normal(rng, whitening.active.size)
        kick = whitened_gradient(current.gradient, whitening) + y
        proposed.point[:] = current.point
        log_density = current.log_density[0]
        kinetic, n_turned = 0.5 * (p * p).sum(), 0
        for _ in range(n_steps):
            p += 0.5 * time * kick
            moved = cos * y + sin * p
            put_whitened(moved, whitening, proposed.point)
            log_density = evaluate(proposed, context)
            if np.isfinite(log_density):
                y, p = moved, cos * p - sin * y
            else:
                p, n_turned = -p, n_turned + 1
                put_whitened(y, whitening, proposed.point)
                log_density = evaluate(proposed, context)
                if not np.isfinite(log_density):
                    break
            kick = whitened_gradient(proposed.gradient, whitening) + y
            p += 0.5 * time * kick
        log_ratio = log_density - current.log_density[0] + kinetic - 0.5 * (p * p).sum()
        accepted, probability = decide(rng, log_ratio, current, proposed, context.brightness)
        if rng.random() < 0.5:
            put_whitened(-whitened(current.point, whitening), whitening, proposed.point)
            log_ratio = evaluate(proposed, context) - current.log_density[0]
            if np.log(rng.random()) < log_ratio:
                accept(current, proposed, context.brightness)
        return accepted, probability * (1.0 - n_turned / n_steps)

    return hamiltonian


HAMILTONIAN = Update(
    build=build,
    uses_gradient=True,
    target_signal=0.85,
    first_step=lambda dim: 0.5,
    longest_step=QUARTER_TURN,
    z_cost=0.7,
)
