"""Stochastic gradient Fisher scoring.

    θ' = θ + 2 [K + W]⁻¹ {∇log p₀(θ) + N ḡ + η},   η ~ N(0, W)

With K = γ N Î, γ = (n + N)/n and W = 4B/ε this is the update of the paper. Its K is the sum of the
curvature N Î of the log-density and the covariance N² Î/n of the noise in N ḡ: for a Gaussian
posterior with these, the stationary covariance is the posterior's whatever W. With a control
variate the two differ: the curvature is that at the reference, and only the noise is estimated.

Reference
---------
Ahn, Korattikara and Welling (2012), Bayesian Posterior Sampling via Stochastic Gradient Fisher
Scoring, algorithm 1.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numba.extending import register_jitable
from scipy.linalg import eigh

from pymc_minibatch.jit.triangular import (
    add_noise,
    cholesky,
    solve_lower,
    solve_upper,
    squared_norm,
)
from pymc_minibatch.kernels.gradient import (
    add_gradient,
    diverges,
    make_draw_gradients,
    make_estimate,
    move_inside,
)
from pymc_minibatch.reference.density import Density

__all__ = [
    "Scoring",
    "ScoringState",
    "least_known",
    "least_ratio",
    "make_scoring",
    "mean_step",
    "refactored",
    "scoring_state",
]

LATER = 1.02
"""The matrix is factored again when it rests on so many times as many batches as before."""

MEASURED = 32
"""So many steps at the end of a draw tell of the noise of a batch."""

FORGETTING = 3.0
"""Batch t has weight t² in the average of V. With the paper's κ = 1/t all weights are equal, and
a start far from the mode, where rows vary ten times as much, still shows after thousands of steps.
(Shamir and Zhang 2013, polynomial-decay averaging.)"""


class Scoring(NamedTuple):
    """Settings. Matrices have c columns: d, or 1 for the diagonals of diagonal ones.

    Attributes
    ----------
    curvature : ndarray, shape (d, c)
        What K contains in addition to the estimate: the precision at the reference with a control
        variate, else the diagonal of the prior's curvature.
    weight : float
        Factor of V in K: γN, or N²/n with a control variate.
    alpha : float
        α = 2/√ε where B = K, so that W = α² K.
    injected : ndarray, shape (d, c)
        W where it is the user's, else zero.
    is_users : bool
        Whether W is the user's.
    batch_size : int
        n.
    least_rows : int
        Rows that the first estimate must rest on.
    sums : Density
        Where the gradients of a batch are summed, which is enough where V is not estimated.
    """

    curvature: np.ndarray
    weight: float
    alpha: float
    injected: np.ndarray
    is_users: bool
    batch_size: int
    least_rows: int
    sums: Density


class ScoringState(NamedTuple):
    """What tuning changes.

    Attributes
    ----------
    fisher : ndarray, shape (d, c)
        Running average of V, the lower triangle.
    factor : ndarray, shape (d, c)
        Cholesky factor of K + W.
    noise : ndarray, shape (d, c)
        Cholesky factor of W.
    counts : ndarray, shape (3,)
        Batches in `fisher`; 1 if the factors are good, else 0: the chain waits; batches in
        `fisher` when they were made.
    limit : ndarray, shape (1,)
        Squared drift that counts as divergence; 0 before the first move.
    stopped : ndarray, shape (1,)
        Moves that were not made, because the density is zero where they led.
    """

    fisher: np.ndarray
    factor: np.ndarray
    noise: np.ndarray
    counts: np.ndarray
    limit: np.ndarray
    stopped: np.ndarray


def scoring_state(dim: int, columns: int) -> ScoringState:
    """Return the state before tuning."""
    shape = (dim, columns)
    matrices = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    return ScoringState(*matrices, np.zeros(3), np.zeros(1), np.zeros(1))


def make_scoring(ndims: Sequence[int], bounded: bool = False) -> Callable[..., tuple[bool, float]]:
    """Assemble the loop.

    Parameters
    ----------
    ndims
        Number of dimensions of each array of row data.
    bounded
        Whether the density is zero in places, where the loop does not go; see :mod:`.gradient`.

    Returns
    -------
    transitions
        ``(rng, point, active, density, n_steps, tuning, state, scoring)`` moves ``point[active]``
        in place; returns whether it diverged, and the batch's share of the noise in the last step.
    """
    draw_gradients, estimate = make_draw_gradients(ndims), make_estimate(ndims)

    @njit
    def transitions(
        rng: np.random.Generator,
        point: np.ndarray,
        active: np.ndarray,
        density: Density,
        n_steps: int,
        tuning: bool,
        state: ScoringState,
        scoring: Scoring,
    ) -> tuple[bool, float]:
        dim = active.size
        step, noise, mean = np.empty(dim), np.empty(dim), np.empty(dim if tuning else 0)
        rows, kept = np.empty(scoring.batch_size, np.int64), np.empty(dim if bounded else 0)
        batch, n_measured = 0.0, 0
        for k in range(n_steps):
            is_measured = n_steps - k <= MEASURED
            if tuning:
                gradients = draw_gradients(rng, point, density, rows)
                add_gradient(point, active, density, gradients, mean, step)
                average_covariance(gradients, active, mean, state)
                refactor(scoring, state)
                differ(gradients, active, density.data[0].shape[0], noise)
            else:
                sampled = noise if is_measured else noise[:0]
                estimate(rng, point, active, scoring.sums, rows, step, sampled)
            if state.counts[1] == 0.0:
                continue
            if is_measured:
                solve_lower(state.factor, noise)
                batch, n_measured = batch + squared_norm(noise), n_measured + 1
            add_noise(rng, 1.0, state.noise, step)
            solve_lower(state.factor, step)
            if diverges(squared_norm(step), dim, state.limit):
                return True, 0.0
            solve_upper(state.factor, step)
            if bounded:
                step *= 2.0
                state.stopped[0] += move_inside(point, active, step, kept, density)
                continue
            for i in range(dim):
                point[active[i]] += 2.0 * step[i]
        if n_measured == 0:
            return False, np.nan
        return False, batch_share(batch / n_measured, scoring, state)

    return transitions


@register_jitable
def average_covariance(
    gradients: np.ndarray, active: np.ndarray, mean: np.ndarray, state: ScoringState
) -> None:
    """Î ← (1 − κ) Î + κ V with κ = 3 / (t + 2)."""
    n = gradients.shape[0]
    state.counts[0] += 1.0
    kappa = FORGETTING / (state.counts[0] + FORGETTING - 1.0)
    centred = np.empty((mean.size, n))
    for j in range(mean.size):
        for i in range(n):
            centred[j, i] = gradients[i, active[j]] - mean[j]
    diagonal = state.fisher.shape[1] == 1
    for j in range(mean.size):
        for k in range(1 if diagonal else j + 1):
            total = inner_product(centred[j], centred[j if diagonal else k])
            state.fisher[j, k] += kappa * (total / (n - 1) - state.fisher[j, k])


@register_jitable(fastmath={"reassoc", "contract"})
def inner_product(a: np.ndarray, b: np.ndarray) -> float:
    """Return aᵀb."""
    total = 0.0
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@register_jitable
def refactor(scoring: Scoring, state: ScoringState) -> None:
    """Factor K + W; the chain waits while few rows have been seen or K is singular."""
    if state.counts[1] == 1.0 and state.counts[0] < LATER * state.counts[2]:
        return
    state.counts[1] = 0.0
    if state.counts[0] * scoring.batch_size < scoring.least_rows:
        return
    matrix = scoring.curvature + scoring.weight * state.fisher + scoring.injected
    if cholesky(matrix, state.factor) >= 0:
        return
    if not scoring.is_users:
        state.noise[:] = scoring.alpha * state.factor
        state.factor[:] *= math.sqrt(1.0 + scoring.alpha**2)
    state.counts[1], state.counts[2] = 1.0, state.counts[0]


def refactored(scoring: Scoring, state: ScoringState) -> None:
    """Factor K + W anew, where K has changed and not the information."""
    if state.counts[1] == 0.0:
        return
    matrix = scoring.curvature + scoring.weight * state.fisher + scoring.injected
    if matrix.shape[1] == 1:
        state.factor[:] = np.sqrt(matrix)
    else:
        state.factor[:] = np.linalg.cholesky(symmetric(matrix))
    if not scoring.is_users:
        state.noise[:] = scoring.alpha * state.factor
        state.factor[:] *= math.sqrt(1.0 + scoring.alpha**2)


@register_jitable
def differ(gradients: np.ndarray, active: np.ndarray, n_rows: int, noise: np.ndarray) -> None:
    """Write a vector with the covariance N²V/n: N √(n₁n₂)/n times the difference of two halves."""
    n = gradients.shape[0]
    first = n // 2
    for j in range(active.size):
        column = gradients[:, active[j]]
        noise[j] = column[:first].mean() - column[first:].mean()
        noise[j] *= n_rows * math.sqrt(first * (n - first)) / n


@register_jitable
def batch_share(batch: float, scoring: Scoring, state: ScoringState) -> float:
    """Return a / (a + tr(K + W)⁻¹W) for the share a = tr(K + W)⁻¹N²V/n of the batch."""
    dim = state.factor.shape[0]
    injected = dim * scoring.alpha**2 / (1.0 + scoring.alpha**2)  # where W = α² K
    if scoring.is_users and state.noise.shape[1] == 1:
        injected = squared_norm(state.noise[:, 0] / state.factor[:, 0])
    elif scoring.is_users:
        injected = 0.0
        for j in range(dim):
            column = state.noise[:, j].copy()
            solve_lower(state.factor, column)
            injected += squared_norm(column)
    return batch / (batch + injected) if batch > 0.0 else 0.0


def least_ratio(matrix: np.ndarray, precision: np.ndarray) -> float:
    """Return the smallest ratio of two quadratic forms, over all directions."""
    return float(eigh(matrix, precision, eigvals_only=True)[0])


def mean_step(curvature: np.ndarray, state: ScoringState) -> float:
    """Return tr(C H)/d, the share of the way to the mode that a step makes; H a lower triangle."""
    if curvature.shape[1] == 1:
        return float(2 * np.mean(curvature / state.factor**2))
    inverse = np.linalg.inv(state.factor)
    full = symmetric(curvature)
    return float(2 * np.einsum("ki,ij,kj->", inverse, full, inverse) / len(full))


def least_known(state: ScoringState) -> int:
    """Return the parameter that the Fisher information tells least about."""
    if state.fisher.shape[1] == 1:
        return int(np.argmin(state.fisher))
    information = symmetric(state.fisher)
    scale = np.sqrt(np.maximum(np.diag(information), np.finfo(float).tiny))
    _, vectors = np.linalg.eigh(information / np.outer(scale, scale))
    return int(np.argmax(np.abs(vectors[:, 0])))


def symmetric(lower: np.ndarray) -> np.ndarray:
    """Complete a lower triangle."""
    return np.tril(lower) + np.tril(lower, -1).T
