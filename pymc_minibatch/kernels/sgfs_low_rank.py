"""Stochastic gradient Fisher scoring with a Fisher matrix that is diagonal plus low rank.

    θ' = θ + 2 [(1 + α²) K]⁻¹ {∇log p₀(θ) + N ḡ + η},   η ~ N(0, α² K),   K = S + UUᵀ

K is (1 + n/N) times the covariance of the noise in N ḡ, that is γ N Î, and the curvature of the
prior, which is there for parameters of which rows tell little. S is diagonal and U has few columns,
so that a step takes a time in proportion to D (Sherman, Morrison and Woodbury):

    K⁻¹ = S⁻¹ − PPᵀ,   P = S⁻¹U chol(I + UᵀS⁻¹U)⁻ᵀ.

U holds the frequent directions of the noise: few rows B with BᵀB below the covariance in every
direction, from which new vectors, one for each step, push the least one out. S has the rest of the
diagonal, so that K has the diagonal it should have.

References
----------
Ahn, Korattikara and Welling (2012), Bayesian Posterior Sampling via Stochastic Gradient Fisher
Scoring, section 4. Ghashami, Liberty, Phillips and Woodruff (2016), Frequent directions.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numba.extending import register_jitable
from scipy.linalg import solve_triangular

from pymc_minibatch.kernels.gradient import diverges, make_estimate, move_inside
from pymc_minibatch.kernels.sgfs import FORGETTING
from pymc_minibatch.reference.density import Density

__all__ = ["LowRank", "LowRankState", "learn", "low_rank_state", "make_low_rank_scoring"]

LEAST = 32
"""Vectors of noise that the first matrix must rest on."""

KEPT = 64
"""Vectors of noise of a draw that are learned from."""

FLATTEST = 1e-6
"""S of a parameter is at least this share of its information, whatever B says of it."""


class LowRank(NamedTuple):
    """Settings.

    Attributes
    ----------
    alpha : float
        α.
    batch_size : int
        n.
    """

    alpha: float
    batch_size: int


class LowRankState(NamedTuple):
    """What tuning changes.

    Attributes
    ----------
    directions : ndarray, shape (r, d)
        B.
    variances : ndarray, shape (d,)
        Running average of the squares of the noise.
    diagonal : ndarray, shape (d,)
        S.
    columns, solved : ndarray, shape (d, r)
        U and P.
    noises : ndarray, shape (k, d)
        Vectors of noise of the last draw.
    counts : ndarray, shape (2,)
        Draws that were learned from; 1 if S, U and P are good, else 0: the chain waits.
    limit : ndarray, shape (1,)
        Squared drift that counts as divergence; 0 before the first move.
    stopped : ndarray, shape (1,)
        Moves that were not made, because the density is zero where they led.
    """

    directions: np.ndarray
    variances: np.ndarray
    diagonal: np.ndarray
    columns: np.ndarray
    solved: np.ndarray
    noises: np.ndarray
    counts: np.ndarray
    limit: np.ndarray
    stopped: np.ndarray


def low_rank_state(dim: int, rank: int, steps_per_draw: int) -> LowRankState:
    """Return the state before tuning."""
    return LowRankState(
        directions=np.zeros((rank, dim)),
        variances=np.zeros(dim),
        diagonal=np.zeros(dim),
        columns=np.zeros((dim, rank)),
        solved=np.zeros((dim, rank)),
        noises=np.zeros((min(steps_per_draw, KEPT), dim)),
        counts=np.zeros(2),
        limit=np.zeros(1),
        stopped=np.zeros(1),
    )


def make_low_rank_scoring(
    ndims: Sequence[int], bounded: bool = False
) -> Callable[..., tuple[bool, float]]:
    """Assemble the loop; arguments and result are those of :func:`.sgfs.make_scoring`."""
    estimate = make_estimate(ndims)

    @njit
    def transitions(
        rng: np.random.Generator,
        point: np.ndarray,
        active: np.ndarray,
        density: Density,
        n_steps: int,
        tuning: bool,
        state: LowRankState,
        settings: LowRank,
    ) -> tuple[bool, float]:
        dim, alpha = active.size, settings.alpha
        force, step, kept = np.empty(dim), np.empty(dim), np.empty(dim if bounded else 0)
        rows = np.empty(settings.batch_size, np.int64)
        for k in range(n_steps):
            noise = state.noises[k % state.noises.shape[0]] if tuning else force[:0]
            estimate(rng, point, active, density, rows, force, noise)
            if state.counts[1] == 0.0:
                continue
            for j in range(dim):
                force[j] += alpha * math.sqrt(state.diagonal[j]) * rng.standard_normal()
            for i in range(state.columns.shape[1]):
                xi = alpha * rng.standard_normal()
                for j in range(dim):
                    force[j] += state.columns[j, i] * xi
            solve(force, state, step)
            squared = 0.0
            for j in range(dim):
                squared += force[j] * step[j]
            if diverges(squared, dim, state.limit):
                return True, 0.0
            for j in range(dim):
                step[j] *= 2.0 / (1.0 + alpha**2)
            if bounded:
                state.stopped[0] += move_inside(point, active, step, kept, density)
                continue
            for j in range(dim):
                point[active[j]] += step[j]
        if n_steps == 0 or state.counts[1] == 0.0:
            return False, np.nan
        return False, batch_share(alpha, state)

    return transitions


@register_jitable
def solve(force: np.ndarray, state: LowRankState, step: np.ndarray) -> None:
    """Write K⁻¹ force."""
    for j in range(force.size):
        step[j] = force[j] / state.diagonal[j]
    for i in range(state.solved.shape[1]):
        along = 0.0
        for j in range(force.size):
            along += state.solved[j, i] * force[j]
        for j in range(force.size):
            step[j] -= state.solved[j, i] * along


@register_jitable
def batch_share(alpha: float, state: LowRankState) -> float:
    """Return the batch's share in the variance of the noise, by the diagonals."""
    batch = 0.0
    for j in range(state.variances.size):
        total = state.diagonal[j]
        for i in range(state.columns.shape[1]):
            total += state.columns[j, i] ** 2
        batch += state.variances[j] / total
    return batch / (batch + alpha**2 * state.variances.size)


def learn(state: LowRankState, weight: float, prior: np.ndarray) -> None:
    """Take the noise of a draw in, and set S, U and P; `weight` is 1 + n/N."""
    state.counts[0] += 1
    kappa = FORGETTING / (state.counts[0] + FORGETTING - 1)
    state.variances[:] += kappa * (np.mean(state.noises**2, axis=0) - state.variances)
    rank = len(state.directions)
    new = math.sqrt(kappa / len(state.noises)) * state.noises
    stacked = np.vstack([math.sqrt(1 - kappa) * state.directions, new])
    squares, vectors = np.linalg.eigh(stacked @ stacked.T)
    squares, vectors = squares[::-1].clip(0), vectors[:, ::-1]
    least = squares[rank] if rank < len(squares) else 0.0
    kept = np.sqrt((1 - least / np.maximum(squares[:rank], least + 1e-300)).clip(0))
    state.directions[: len(kept)] = kept[:, None] * (vectors[:, :rank].T @ stacked)
    rest = np.maximum(state.variances - np.sum(state.directions**2, axis=0), 0)
    information = weight * state.variances + prior
    least = np.where(information > 0, FLATTEST * information, 1.0)
    state.diagonal[:] = np.maximum(weight * rest + prior, least)
    state.columns[:] = math.sqrt(weight) * state.directions.T
    scaled = state.columns / state.diagonal[:, None]
    lower = np.linalg.cholesky(np.eye(rank) + state.columns.T @ scaled)
    state.solved[:] = solve_triangular(lower, scaled.T, lower=True).T
    state.counts[1] = float(state.counts[0] * len(state.noises) >= LEAST)
