"""Hamiltonian Monte Carlo whose Gaussian part is exact.

In coordinates y in which the Gaussian approximation of prior and bounds is standard normal,

    H(y, p) = ½ |y|² + ½ |p|² + V(y),

where V holds the bright rows and what is not Gaussian of the prior. Without V the motion is a
rotation in (y, p), and a quarter turn makes y independent of where it was. So a step is a kick by
−∇V for half its time, a rotation, and another half kick; the steps make up about a quarter turn.
With few bright rows, one or two suffice.

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

__all__ = ["HAMILTONIAN"]

QUARTER_TURN = np.pi / 2
JITTER = 0.2
"""Times vary by this share, so that no orbit closes."""


def build(evaluate: Callable[..., float]) -> Callable[..., tuple[float, bool, float]]:
    """Build the update."""

    @njit
    def hamiltonian(
        rng: np.random.Generator,
        point: np.ndarray,
        log_density: float,
        gradient: np.ndarray,
        context: Context,
        whitening: Whitening,
        step: float,
    ) -> tuple[float, bool, float]:
        n_steps = max(1, int(np.round(QUARTER_TURN / step)))
        time = step * (1.0 + JITTER * (2.0 * rng.random() - 1.0))
        cos, sin = np.cos(time), np.sin(time)
        y, p = whitened(point, whitening), standard_normal(rng, whitening.active.size)
        kick = whitened_gradient(gradient, whitening) + y
        proposed, proposed_gradient = point.copy(), np.empty(point.size)
        proposed_log_density = log_density
        kinetic = 0.5 * (p * p).sum()
        for _ in range(n_steps):
            p += 0.5 * time * kick
            y, p = cos * y + sin * p, cos * p - sin * y
            put_whitened(y, whitening, proposed)
            proposed_log_density = evaluate(proposed, proposed_gradient, context)
            if not np.isfinite(proposed_log_density):
                break
            kick = whitened_gradient(proposed_gradient, whitening) + y
            p += 0.5 * time * kick
        log_ratio = proposed_log_density - log_density + kinetic - 0.5 * (p * p).sum()
        probability = np.exp(min(0.0, log_ratio)) if np.isfinite(log_ratio) else 0.0
        accepted = rng.random() < probability
        if accepted:
            point[:], gradient[:] = proposed, proposed_gradient
            accept_proposed(context.flies)
            log_density = proposed_log_density
        if rng.random() < 0.5:
            put_whitened(-whitened(point, whitening), whitening, proposed)
            proposed_log_density = evaluate(proposed, proposed_gradient, context)
            if np.log(rng.random()) < proposed_log_density - log_density:
                point[:], gradient[:] = proposed, proposed_gradient
                accept_proposed(context.flies)
                log_density = proposed_log_density
        return log_density, accepted, probability

    return hamiltonian


HAMILTONIAN = Update(build, True, 0.85, lambda dim: 0.5, QUARTER_TURN, 1, 0.7)
