"""The Gaussian random walk, with a covariance learned while tuning.

``theta' = theta + scale * L xi``, xi standard normal. While the chain tunes, the scale follows the
acceptance rate by stochastic approximation. At the first draw after the end of each window (every
one twice as long as the one before) L becomes the Cholesky factor of the covariance of the window's
draws. After tuning nothing changes, so the chain is Markov.

References
----------
Haario, Saksman and Tamminen (2001), An adaptive Metropolis algorithm.
Andrieu and Thoms (2008), A tutorial on adaptive MCMC, algorithm 4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numba import njit
from numba.extending import register_jitable

from pymc_minibatch.jit.triangular import add_noise, overwrite
from pymc_minibatch.proposals.proposal import Approximation, ProposalContext

__all__ = ["RandomWalk", "RandomWalkState"]

GAIN_EXPONENT = 0.6
"""The k-th correction of the log scale has size k ** -0.6."""

FIRST_WINDOW = 100
GAIN_RESTART = 10.0
"""A new covariance needs a new scale: the gain returns to that of the 10th correction."""


class RandomWalkState(NamedTuple):
    """What tuning changes.

    Attributes
    ----------
    log_scale : ndarray, shape (1,)
        Log of the factor on `cholesky`.
    counts : ndarray, shape (3,)
        Corrections of the scale so far, transitions in the window, length of the window.
    cholesky : ndarray, shape (D, D)
        Lower factor L of the covariance of the steps.
    mean, scatter : ndarray, shapes (D,) and (D, D)
        Mean of the window's draws, and the lower triangle of the sum of outer products about it.
    """

    log_scale: np.ndarray
    counts: np.ndarray
    cholesky: np.ndarray
    mean: np.ndarray
    scatter: np.ndarray


class FixedSteps(NamedTuple):
    """What is known of steps that are independent in each parameter and not tuned.

    Attributes
    ----------
    sd : ndarray, shape (D,)
        Standard deviations.
    """

    sd: np.ndarray


@dataclass(frozen=True, eq=False)
class RandomWalk:
    """Gaussian random-walk proposal.

    Parameters
    ----------
    cov : float or array_like of shape (D,) or (D, D), optional
        Covariance of a step in the unconstrained space; D is the number of elements of the
        sampled variables in the order of the model: one variance for all, one for each, or a
        matrix. With ``adapt=True`` it is where tuning starts; the default is the covariance at the
        reference point or, without one, temperature / N, the order of magnitude of a posterior
        variance.
    adapt : bool, default True
        Whether scale and covariance are tuned. If False the steps are N(0, cov) throughout, and
        `cov` is required.
    target_accept : float, default 0.25
        Acceptance rate that the scale is tuned to, below the largest of the test: one half for
        Barker's, 0.88 for :class:`Penalty` with its default sigma.

    Raises
    ------
    ValueError
        If `cov` is not positive definite or missing, or `target_accept` is not in (0, 1).

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> pmb.RandomWalk(cov=0.15, adapt=False)
    RandomWalk(cov=0.15, adapt=False, target_accept=0.25)
    """

    cov: Any = None
    adapt: bool = True
    target_accept: float = 0.25
    needs_prior_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.target_accept < 1:
            raise ValueError(f"target_accept must lie in (0, 1); got {self.target_accept}.")
        if self.cov is None and not self.adapt:
            raise ValueError("RandomWalk(adapt=False) needs cov, the covariance of its steps.")

    def initial_state(
        self, dim: int, default_variance: float, approximation: Approximation | None = None
    ) -> RandomWalkState | FixedSteps:
        """Return the state before tuning, for `dim` parameters."""
        if self.cov is not None:
            cov = np.asarray(self.cov, dtype=np.float64)
        elif approximation is not None:
            cov = 2.4**2 / dim * np.linalg.inv(approximation.precision)
        else:
            cov = np.array(default_variance)
        if cov.shape not in ((), (dim,), (dim, dim)):
            raise ValueError(
                f"cov has shape {cov.shape}, but the sampled variables have {dim} unconstrained "
                f"parameters: give a number, {dim} variances or a {dim} x {dim} matrix."
            )
        if self._independent:
            if not (np.isfinite(cov).all() and (cov > 0).all()):
                raise ValueError("cov must be positive and finite.")
            return FixedSteps(np.sqrt(np.broadcast_to(cov, dim)))
        if cov.ndim < 2:
            cov = np.diag(np.broadcast_to(cov, dim))
        if not (np.isfinite(cov).all() and np.allclose(cov, cov.T)):
            raise ValueError("cov must be symmetric and finite.")
        try:
            cholesky = np.linalg.cholesky(cov)
        except np.linalg.LinAlgError:
            raise ValueError("cov must be positive definite.") from None
        return RandomWalkState(
            log_scale=np.zeros(1),
            counts=np.array([0.0, 0.0, max(FIRST_WINDOW, 10 * dim)]),
            cholesky=np.ascontiguousarray(cholesky),
            mean=np.zeros(dim),
            scatter=np.zeros((dim, dim)),
        )

    @property
    def _independent(self) -> bool:
        """Whether no matrix is needed, which thousands of parameters are too many for."""
        return not self.adapt and np.ndim(self.cov) < 2

    @property
    def jit_options(self) -> tuple[str, bool, float, bool]:
        """What the jitted functions depend on."""
        return (type(self).__name__, self.adapt, self.target_accept, self._independent)

    def scale(self, state: RandomWalkState | FixedSteps) -> float:
        """Return the factor on the standard deviations, for the sample stats."""
        return 1.0 if isinstance(state, FixedSteps) else math.exp(state.log_scale[0])

    def end_draw(self, state: RandomWalkState | FixedSteps) -> None:
        """If a window is full, take its covariance for the steps and open the next one."""
        if isinstance(state, FixedSteps):
            return
        n = state.counts[1]
        if n < state.counts[2]:
            return
        dim = state.mean.size
        covariance = (state.scatter + np.tril(state.scatter, -1).T) / (n - 1)
        variances = np.diag(covariance)
        if variances.min() > 0:
            # Shrunk towards its diagonal, it is positive definite however few draws there are.
            shrunk = (n * covariance + dim * np.diag(variances)) / (n + dim)
            state.cholesky[:] = np.linalg.cholesky(shrunk)
            state.log_scale[0] = math.log(2.4 / math.sqrt(dim))
            state.counts[0] = GAIN_RESTART
        state.counts[1] = 0
        state.counts[2] *= 2
        state.mean[:] = 0
        state.scatter[:] = 0

    def end_tuning(self, state: RandomWalkState | FixedSteps) -> None:
        """Nothing is left to do: scale and covariance stay as they are."""

    def guide(
        self, approximation: Approximation | None, prior_gradient: int = 0
    ) -> tuple[Any, ...]:
        """Return nothing: a random walk needs no guide."""
        return ()

    def build(self) -> tuple[Callable[..., float], Callable[..., None]]:
        """Return the jitted ``propose`` and ``adapt``."""
        return propose_independent if self._independent else propose, _adapter(
            self.adapt, self.target_accept
        )


@njit
def propose(
    rng: np.random.Generator,
    theta: np.ndarray,
    candidate: np.ndarray,
    state: RandomWalkState,
    place: ProposalContext,
) -> float:
    """Write a candidate; return log q(theta | candidate) - log q(candidate | theta), here 0."""
    overwrite(candidate, theta)
    add_noise(rng, math.exp(state.log_scale[0]), state.cholesky, candidate)
    return 0.0


@njit
def propose_independent(
    rng: np.random.Generator,
    theta: np.ndarray,
    candidate: np.ndarray,
    state: FixedSteps,
    place: ProposalContext,
) -> float:
    """Write a candidate whose parameters move by themselves; return as :func:`propose`."""
    for i in range(theta.size):
        candidate[i] = theta[i] + state.sd[i] * rng.standard_normal()
    return 0.0


def _adapter(adaptive: bool, target_accept: float) -> Callable[..., None]:
    if not adaptive:

        @njit
        def keep(
            rng: np.random.Generator,
            theta: np.ndarray,
            accepted: bool,
            cost: float,
            state: RandomWalkState,
        ) -> None:
            pass

        return keep

    @njit
    def adapt(
        rng: np.random.Generator,
        theta: np.ndarray,
        accepted: bool,
        cost: float,
        state: RandomWalkState,
    ) -> None:
        adapt_scale(accepted, target_accept, state)
        observe(theta, state)

    return adapt


@register_jitable
def adapt_scale(accepted: bool, target_accept: float, state: RandomWalkState) -> None:
    """Move the log scale towards the target acceptance rate (Robbins and Monro)."""
    state.counts[0] += 1
    state.log_scale[0] += (accepted - target_accept) / state.counts[0] ** GAIN_EXPONENT


@register_jitable
def observe(theta: np.ndarray, state: RandomWalkState) -> None:
    """Add a draw to the window's mean and scatter (Welford)."""
    state.counts[1] += 1
    n = state.counts[1]
    for i in range(theta.size):
        for j in range(i + 1):
            before = (theta[i] - state.mean[i]) * (theta[j] - state.mean[j])
            state.scatter[i, j] += (n - 1) / n * before
    for i in range(theta.size):
        state.mean[i] += (theta[i] - state.mean[i]) / n
