"""Moves that follow the Gaussian approximation of the posterior, mixed with a random walk.

With the mode θ̂ and L Lᵀ = C the covariance of the approximation, moves are made in the
coordinates z = L⁻¹(θ − θ̂), in which the approximation is a standard normal. Their settings are
tuned towards the longest squared jumps for the rows read (:mod:`.bandit`).

The tails of the target may be heavier than the Gaussian's, and a chain would stay in them for long.
So a share w(z) of the moves is a random walk with steps of varying length, which needs no
approximation. Half of these go along one axis, by a length that grows with the distance from the
mode, for tails like those of a Cauchy prior. The share is small where the approximation has its
mass, and grows with the distance from there. Moves of either kind return by the same kind, so ψ
gains log w(z') − log w(z) for a step of the walk, and log (1 − w(z')) − log (1 − w(z)) for another
move.

Reference
---------
Tierney (1994), Markov chains for exploring posterior distributions, section 2.4: mixtures of
transitions. Green (1995), Reversible jump Markov chain Monte Carlo computation, section 3: choosing
the kind of a move by where the chain is.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numba.extending import register_jitable
from scipy.linalg import solve_triangular

from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.jit.triangular import overwrite, squared_norm
from pymc_minibatch.proposals.bandit import StepBandit, chosen, keep_best, make_bandit, record
from pymc_minibatch.proposals.proposal import Approximation, ProposalContext

__all__ = ["Guide", "Guided", "colored", "walk_share", "walk_share_beyond", "whitened"]

SPREAD = 0.7
"""Standard deviation of the log length of a random-walk step. Steps ten times as long as usual are
rare: they are hardly ever accepted, and to find that out takes many rows."""

ALONG_AXES = 0.5
"""Share of the random walk that goes along single axes, whose tails may be those of a prior."""

MOST_ARSINH = 14.0
"""Half a million standard deviations: beyond, the quadratic terms of an expansion cancel with those
of the rows to fewer digits than a decision needs."""

ATYPICAL = 2.0
"""So far beyond the usual distance √d the approximation has a few thousandths of its mass: nearer,
the change of the share would reject good moves."""

FARTHEST = 20.0
"""From so far beyond that on the share of other moves falls no more: it must not be zero, so that
there is a way back."""

SUMS = {"reassoc", "contract"}
"""Lets the compiler sum in the order that is fastest."""

OVERHEAD_ROWS = 20
"""What a transition costs apart from its rows and gradients, measured in rows."""


class Guide(NamedTuple):
    """The approximation in the form that moves need.

    Attributes
    ----------
    mode : ndarray, shape (d,)
        θ̂.
    cholesky, whiten : ndarray, shape (d, d)
        L and its inverse.
    reference, slope, curvature
        As in :class:`~pymc_minibatch.proposals.proposal.Approximation`.
    prior_gradient : int
        Address of the gradient of the prior part.
    axes : ndarray of int64
        Of which one is chosen for a walk along it.
    """

    mode: np.ndarray
    cholesky: np.ndarray
    whiten: np.ndarray
    reference: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray
    prior_gradient: int
    axes: np.ndarray


@dataclass(frozen=True)
class Guided(ABC):
    """What these proposals share.

    Parameters
    ----------
    random_walk : float, default 0.1
        Share of random-walk moves near the mode, in (0, 1). Far from it there are more.

    Raises
    ------
    ValueError
        If `random_walk` is out of range.
    """

    random_walk: float = 0.1
    settings: ClassVar[list[tuple[float, float]]]
    """Number of gradients and length of each kind of move; the first is where tuning starts."""
    needs_prior_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.random_walk < 1:
            raise ValueError(f"random_walk must lie in (0, 1); got {self.random_walk}.")

    @property
    @abstractmethod
    def move(self) -> Callable[..., float]:
        """A jitted function.

        ``move(rng, z, setting, place, scratch)`` overwrites z and returns the log ratio of the
        proposal densities. It may overwrite `scratch`, which has the length of z.
        """

    def initial_state(
        self, dim: int, default_variance: float, approximation: Approximation | None = None
    ) -> StepBandit:
        """Return the state before tuning."""
        if approximation is None:
            raise ValueError(
                f"{type(self).__name__} moves about a reference point, and there is none. Leave "
                "control_variate at 'auto', pass reference=pmb.find_reference(), or use "
                "RandomWalk()."
            )
        return make_bandit(self.settings)

    def guide(
        self, approximation: Approximation | None, prior_gradient: int = 0
    ) -> tuple[Any, ...]:
        """Factor the approximation."""
        assert approximation is not None
        mode, precision, reference, slope, curvature, heavy = approximation
        upper = np.linalg.cholesky(precision[::-1, ::-1])[::-1, ::-1]  # precision = U Uᵀ
        cholesky = solve_triangular(upper.T, np.eye(mode.size), lower=True)
        return Guide(
            mode=mode,
            cholesky=np.ascontiguousarray(cholesky),
            whiten=np.ascontiguousarray(upper.T),
            reference=reference,
            slope=slope,
            curvature=curvature,
            prior_gradient=prior_gradient,
            axes=np.array(heavy, dtype=np.int64),
        )

    @property
    def jit_options(self) -> tuple[Any, ...]:
        """What the jitted functions depend on."""
        return (type(self).__name__, self.random_walk)

    def scale(self, state: StepBandit) -> float:
        """Return the sine of the angle of a move, √(1 − ρ²), for the sample stats."""
        return math.sin(state.settings[state.current[0], 1])

    def end_draw(self, state: StepBandit) -> None:  # noqa: B027 - empty on purpose
        """Nothing is left to do between draws."""

    def end_tuning(self, state: StepBandit) -> None:
        """Take the setting that did best, with shorter ones if it is often rejected."""
        keep_best(state)

    def build(self) -> tuple[Callable[..., float], Callable[..., None]]:
        """Return the jitted ``propose`` and ``adapt``."""
        random_walk, move = self.random_walk, self.move

        @jit_part
        def propose(
            rng: np.random.Generator,
            theta: np.ndarray,
            candidate: np.ndarray,
            state: StepBandit,
            place: ProposalContext,
        ) -> float:
            z, moved = np.empty(theta.size), np.empty(theta.size)
            whitened(theta, place.guide, z)
            overwrite(moved, z)
            share = walk_share(z, random_walk)
            if rng.random() < share:
                state.jump[0] = -1.0
                if place.guide.axes.size > 0 and rng.random() < ALONG_AXES:
                    log_q = walk_along_axis(rng, theta, place.guide, candidate)
                    whitened(candidate, place.guide, moved)
                    return log_q + math.log(walk_share(moved, random_walk) / share)
                walk(rng, moved)
                log_q = math.log(walk_share(moved, random_walk) / share)
            else:
                setting = state.settings[chosen(rng, state)]
                log_q = move(rng, moved, setting, place, candidate)
                log_q += math.log((1.0 - walk_share(moved, random_walk)) / (1.0 - share))
                state.jump[0] = squared_distance(z, moved)
            colored(moved, place.guide, candidate)
            return log_q

        @jit_part
        def adapt(
            rng: np.random.Generator,
            theta: np.ndarray,
            accepted: bool,
            cost: float,
            state: StepBandit,
        ) -> None:
            gradients = state.settings[state.current[0], 0]
            gradient_rows = 5.0 + theta.size**2 / 100.0
            record(rng, accepted, OVERHEAD_ROWS + cost + gradients * gradient_rows, state)

        return propose, adapt


@register_jitable(fastmath=SUMS)
def whitened(theta: np.ndarray, guide: Guide, z: np.ndarray) -> None:
    """Write ``z = L⁻¹ (θ − θ̂)``."""
    for i in range(theta.size):
        total = 0.0
        for j in range(i + 1):
            total += guide.whiten[i, j] * (theta[j] - guide.mode[j])
        z[i] = total


@register_jitable(fastmath=SUMS)
def colored(z: np.ndarray, guide: Guide, theta: np.ndarray) -> None:
    """Write ``θ = θ̂ + L z``."""
    for i in range(theta.size):
        total = guide.mode[i]
        for j in range(i + 1):
            total += guide.cholesky[i, j] * z[j]
        theta[i] = total


@register_jitable
def walk(rng: np.random.Generator, z: np.ndarray) -> None:
    """Take a step of the random walk."""
    length = 2.4 / math.sqrt(z.size) * math.exp(SPREAD * rng.standard_normal())
    for i in range(z.size):
        z[i] += length * rng.standard_normal()


@register_jitable
def walk_along_axis(
    rng: np.random.Generator, theta: np.ndarray, guide: Guide, candidate: np.ndarray
) -> float:
    """Step along one axis with a length that grows in the tails; return the log ratio of densities.

    With s the standard deviation of the parameter, arsinh((θ − θ̂) / s) takes a step: near the mode
    one of s, far from it one of the distance, so that a tail like that of a Cauchy distribution is
    crossed in a few steps. The ratio is that of dθ = s cosh(t) dt.
    """
    overwrite(candidate, theta)
    i = guide.axes[int(rng.random() * guide.axes.size)]
    variance = 0.0
    for j in range(i + 1):
        variance += guide.cholesky[i, j] ** 2
    sd = math.sqrt(variance)
    t = math.asinh((theta[i] - guide.mode[i]) / sd)
    moved = t + math.exp(SPREAD * rng.standard_normal()) * rng.standard_normal()
    if abs(moved) > MOST_ARSINH:
        return -math.inf
    candidate[i] = guide.mode[i] + sd * math.sinh(moved)
    return math.log(math.cosh(moved) / math.cosh(t))


@register_jitable
def walk_share_beyond(beyond: Any, random_walk: Any, atypical: float, farthest: float) -> Any:
    """Return w of points that are so far beyond the usual distance, a number or an array."""
    unlikely = np.minimum(np.maximum(beyond - atypical, 0.0), farthest)
    return 1.0 - (1.0 - random_walk) * np.exp(-unlikely)


@register_jitable
def walk_share(
    z: np.ndarray, random_walk: float, atypical: float = ATYPICAL, farthest: float = FARTHEST
) -> float:
    """Return w(z). That of other moves falls by e with each unit of z beyond what is atypical."""
    beyond = math.sqrt(squared_norm(z)) - math.sqrt(z.size)
    return float(walk_share_beyond(beyond, random_walk, atypical, farthest))


@register_jitable(fastmath=SUMS)
def squared_distance(z: np.ndarray, moved: np.ndarray) -> float:
    """Return ``|z' − z|²``."""
    total = 0.0
    for i in range(z.size):
        total += (moved[i] - z[i]) ** 2
    return total
