"""Moves that leave the Gaussian approximation of the posterior invariant.

In the coordinates z of :mod:`.guided`,

    z' = cos(φ) z + sin(φ) ξ,   ξ standard normal,

is reversible for the approximation, so the acceptance test has to correct only for what is not
Gaussian: ψ gains log N(θ; θ̂, C) − log N(θ'; θ̂, C) = ½ (|z'|² − |z|²). If C fits, the right
angle gives nearly independent proposals. The autoregressive form is usually written with
ρ = cos(φ).

Reference
---------
Neal (1998), Regression and classification using Gaussian process priors, section 5.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.proposals.guided import Guided
from pymc_minibatch.proposals.proposal import ProposalContext

__all__ = ["Laplace"]


@dataclass(frozen=True)
class Laplace(Guided):
    """Autoregressive proposal about the posterior mode, mixed with a random walk.

    The length of its moves is tuned towards the longest squared jumps for the rows read.

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
    >>> pmb.Laplace(random_walk=0.2)
    Laplace(random_walk=0.2)
    """

    settings: ClassVar = [(0, math.pi / 2 * 2.0 ** (-k / 2)) for k in range(10)]
    needs_prior_gradient: ClassVar[bool] = False

    @property
    def move(self) -> Callable[..., float]:
        """The jitted move."""
        return rotate


@register_jitable
def rotate(
    rng: np.random.Generator,
    z: np.ndarray,
    setting: np.ndarray,
    place: ProposalContext,
    scratch: np.ndarray,
) -> float:
    """Overwrite z by ``cos(φ) z + sin(φ) ξ``; return the log ratio of the proposal densities."""
    cosine, sine = math.cos(setting[1]), math.sin(setting[1])
    log_q = 0.0
    for i in range(z.size):
        log_q -= 0.5 * z[i] ** 2
        z[i] = cosine * z[i] + sine * rng.standard_normal()
        log_q += 0.5 * z[i] ** 2
    return log_q
