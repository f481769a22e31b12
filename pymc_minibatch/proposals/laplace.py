"""Moves that leave the Gaussian approximation of the posterior invariant.

With the mode θ̂ and L Lᵀ = C the covariance of the approximation, z = L⁻¹(θ − θ̂),

    z' = ρ z + √(1 − ρ²) ξ,   ξ standard normal,

is reversible for N(θ̂, C), so the acceptance test has to correct only for what is not Gaussian:
ψ gains log N(θ; θ̂, C) − log N(θ'; θ̂, C) = ½ (|z'|² − |z|²). Where C fits, ρ = 0 gives nearly
independent proposals. While tuning, √(1 − ρ²) shrinks until enough of them are accepted.

The tails of the target may be heavier than the Gaussian's, and a chain would stay in them for long.
So a share of the moves is a random walk with steps of widely varying length, which needs no
approximation.

References
----------
Neal (1998), Regression and classification using Gaussian process priors, section 5: the
autoregressive proposal. Tierney (1994), Markov chains for exploring posterior distributions,
section 2.4: mixtures of transitions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from scipy.linalg import solve_triangular

from pymc_minibatch.proposals.proposal import Approximation
from pymc_minibatch.proposals.random_walk import GAIN_EXPONENT, add_normal

__all__ = ["Laplace", "LaplaceState"]

SPREAD = 1.5
"""Standard deviation of the log length of a random-walk step."""


class LaplaceState(NamedTuple):
    """The approximation, and what tuning changes.

    Attributes
    ----------
    log_step : ndarray, shape (1,)
        Log of √(1 − ρ²), at most 0.
    counts : ndarray, shape (2,)
        Corrections of `log_step` so far; whether the last move was autoregressive.
    mode : ndarray, shape (D,)
        θ̂.
    cholesky, whiten : ndarray, shape (D, D)
        L and its inverse.
    """

    log_step: np.ndarray
    counts: np.ndarray
    mode: np.ndarray
    cholesky: np.ndarray
    whiten: np.ndarray


@dataclass(frozen=True)
class Laplace:
    """Autoregressive proposal about the posterior mode, mixed with a random walk.

    Parameters
    ----------
    target_accept : float, default 0.35
        Below this acceptance rate the moves are shortened while tuning. Barker's test accepts one
        half of perfect proposals.
    random_walk : float, default 0.1
        Share of random-walk moves, in (0, 1).

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> pmb.Laplace(random_walk=0.2)
    Laplace(target_accept=0.35, random_walk=0.2)
    """

    target_accept: float = 0.35
    random_walk: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.target_accept < 0.5:
            raise ValueError(f"target_accept must lie in (0, 0.5); got {self.target_accept}.")
        if not 0 < self.random_walk < 1:
            raise ValueError(f"random_walk must lie in (0, 1); got {self.random_walk}.")

    def initial_state(
        self, dim: int, default_variance: float, approximation: Approximation | None = None
    ) -> LaplaceState:
        """Return the state before tuning, for `dim` parameters."""
        if approximation is None:
            raise ValueError(
                "Laplace moves about a reference point, and there is none. Leave control_variate "
                "at 'auto', pass reference=pmb.find_reference(), or use RandomWalk()."
            )
        mode, precision = approximation
        upper = np.linalg.cholesky(precision[::-1, ::-1])[::-1, ::-1]  # precision = U Uᵀ
        cholesky = solve_triangular(upper.T, np.eye(dim), lower=True)
        return LaplaceState(
            log_step=np.zeros(1),
            counts=np.zeros(2),
            mode=mode.copy(),
            cholesky=np.ascontiguousarray(cholesky),
            whiten=np.ascontiguousarray(upper.T),
        )

    @property
    def jit_options(self) -> tuple[str, float, float]:
        """What the jitted functions depend on."""
        return (type(self).__name__, self.target_accept, self.random_walk)

    def scale(self, state: LaplaceState) -> float:
        """Return √(1 − ρ²), for the sample stats."""
        return math.exp(state.log_step[0])

    def end_draw(self, state: LaplaceState) -> None:
        """Nothing is left to do between draws."""

    def build(self) -> tuple[Callable[..., float], Callable[..., None]]:
        """Return the jitted ``propose`` and ``adapt``."""
        random_walk, target_accept = self.random_walk, self.target_accept

        @njit
        def propose(
            rng: np.random.Generator, theta: np.ndarray, proposal: np.ndarray, state: LaplaceState
        ) -> float:
            state.counts[1] = rng.random() >= random_walk
            if state.counts[1]:
                return autoregressive(rng, theta, proposal, state)
            length = 2.4 / math.sqrt(theta.size) * math.exp(SPREAD * rng.standard_normal())
            proposal[:] = theta
            add_normal(rng, length, state.cholesky, proposal)
            return 0.0

        @njit
        def adapt(theta: np.ndarray, accepted: bool, state: LaplaceState) -> None:
            if state.counts[1]:
                state.counts[0] += 1
                change = (accepted - target_accept) / state.counts[0] ** GAIN_EXPONENT
                state.log_step[0] = min(0.0, state.log_step[0] + change)

        return propose, adapt


@njit
def autoregressive(
    rng: np.random.Generator, theta: np.ndarray, proposal: np.ndarray, state: LaplaceState
) -> float:
    """Write ``θ̂ + ρ (θ − θ̂) + √(1 − ρ²) L ξ``; return the log ratio of the proposal densities."""
    step = math.exp(state.log_step[0])
    rho = math.sqrt(max(0.0, 1.0 - step**2))
    for i in range(theta.size):
        proposal[i] = state.mode[i] + rho * (theta[i] - state.mode[i])
    add_normal(rng, step, state.cholesky, proposal)
    return 0.5 * (distance(proposal, state) - distance(theta, state))


@njit
def distance(theta: np.ndarray, state: LaplaceState) -> float:
    """Return ``|L⁻¹ (θ − θ̂)|²``."""
    total = 0.0
    for i in range(theta.size):
        z = 0.0
        for j in range(i + 1):
            z += state.whiten[i, j] * (theta[j] - state.mode[j])
        total += z**2
    return total
