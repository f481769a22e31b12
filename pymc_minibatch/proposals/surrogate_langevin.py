"""Langevin moves under the surrogate: one step of its Hamiltonian dynamics.

With the exact rotation of :mod:`.surrogate_hamiltonian` for the Gaussian part, the move is

    z' = cos(φ) z + sin(φ) (ξ + φ/2 ∇u(z)),

which is Langevin's for small φ and remains right up to independent draws.

References
----------
Roberts and Tweedie (1996), Exponential convergence of Langevin distributions. Cotter, Roberts,
Stuart and White (2013), MCMC methods for functions, section 4.3: the form about a Gaussian.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from pymc_minibatch.proposals.surrogate_hamiltonian import SurrogateHamiltonian

__all__ = ["SurrogateLangevin"]


@dataclass(frozen=True)
class SurrogateLangevin(SurrogateHamiltonian):
    """Langevin moves under prior and Taylor likelihood, mixed with a random walk.

    Cheaper than :class:`SurrogateHamiltonian` and shorter if the posterior is not Gaussian. The
    length of the moves is tuned towards the longest squared jumps for the rows read.

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
    >>> pmb.SurrogateLangevin()
    SurrogateLangevin(random_walk=0.1)
    """

    settings: ClassVar = [(2, math.pi / 2 * 2.0 ** (-k / 2)) for k in range(10)]
