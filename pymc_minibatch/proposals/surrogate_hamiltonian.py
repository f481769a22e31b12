"""Hamiltonian trajectories under the surrogate: the exact prior times the Taylor likelihood.

The surrogate reads no data, so its trajectories are proposals like any other, and the acceptance
test corrects for the difference from the posterior. In the coordinates z of :mod:`.guided` its
log-density is −½|z|² + u(z), where u holds what is not Gaussian: of the standard normal part the
flow is a rotation of position and momentum, which is exact, and only ∇u is integrated in steps::

    p ← p + h/2 ∇u(z);   (z, p) ← rotation by h;   p ← p + h/2 ∇u(z)

A right angle in all is an independent draw where the surrogate is Gaussian. The trajectory is
reversible and keeps volume, so ψ gains ½|p|² − ½|p'|².

References
----------
Neal (2011), MCMC using Hamiltonian dynamics, section 5.1: splitting the Hamiltonian. Shahbaba, Lan,
Johnson and Neal (2014), Split Hamiltonian Monte Carlo, section 2.1: the Gaussian part analytically.
Seita, Pan, Chen and Canny (2017), section 7, names minibatch Hamiltonian moves as future work.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.jit.pointers import call_array
from pymc_minibatch.proposals.guided import Guided, colored
from pymc_minibatch.proposals.proposal import ProposalContext

__all__ = ["SurrogateHamiltonian"]


@dataclass(frozen=True)
class SurrogateHamiltonian(Guided):
    """Hamiltonian trajectories under prior and Taylor likelihood, mixed with a random walk.

    Useful if the prior makes the posterior far from Gaussian, as in hierarchical models. A
    gradient costs O(D²) and reads no data. Number of steps and length are tuned towards the longest
    squared jumps for the rows read.

    Parameters
    ----------
    random_walk : float, default 0.1
        Share of random-walk moves near the mode, in (0, 1). Far from it there are more.

    Raises
    ------
    ValueError
        If `random_walk` is out of range.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> pmb.SurrogateHamiltonian()
    SurrogateHamiltonian(random_walk=0.1)
    """

    settings: ClassVar = [
        (n_steps + 1, n_steps * step)
        for step in (math.pi / 2, math.pi / 4, math.pi / 8, math.pi / 16, math.pi / 32)
        for n_steps in (1, 2, 4, 8, 16)
        if n_steps * step <= math.pi / 2
    ]

    @property
    def move(self) -> Callable[..., float]:
        """The jitted move."""
        return trajectory


@register_jitable
def trajectory(
    rng: np.random.Generator,
    z: np.ndarray,
    setting: np.ndarray,
    place: ProposalContext,
    scratch: np.ndarray,
) -> float:
    """Move along ``setting[0] - 1`` steps of length ``setting[1]`` in all."""
    p = np.empty(z.size)
    log_q = 0.0
    for i in range(p.size):
        p[i] = rng.standard_normal()
        log_q += 0.5 * p[i] ** 2
    n_steps = int(setting[0]) - 1
    h = setting[1] / n_steps
    cosine, sine = math.cos(h), math.sin(h)
    kick(0.5 * h, z, p, scratch, place)
    for step in range(n_steps):
        for i in range(p.size):
            z[i], p[i] = cosine * z[i] + sine * p[i], cosine * p[i] - sine * z[i]
        kick(h if step < n_steps - 1 else 0.5 * h, z, p, scratch, place)
    for i in range(p.size):
        log_q -= 0.5 * p[i] ** 2
    return log_q


@register_jitable
def kick(h: float, z: np.ndarray, p: np.ndarray, theta: np.ndarray, place: ProposalContext) -> None:
    """Add ``h ∇u(z)`` to p, where ``∇u = Lᵀ ∇θ + z``."""
    guide = place.guide
    colored(z, guide, theta)
    for i in range(theta.size):
        place.point[place.active[i]] = theta[i]
    prior = call_array(guide.prior_gradient, (place.point,))
    delta = place.point - guide.reference
    for i in range(theta.size):
        gradient = prior[place.active[i]] + guide.slope[i]
        for j in range(delta.size):
            gradient += guide.curvature[i, j] * delta[j]
        for j in range(i + 1):
            p[j] += h * guide.cholesky[i, j] * gradient
        p[i] += h * z[i]
