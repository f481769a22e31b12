"""Stochastic gradient Langevin dynamics.

    θ' = θ + (ε/2) M {∇log p₀(θ) + N ḡ} + N(0, ε M)

with a preconditioner M that is fixed, or found by RMSprop while the chain tunes and fixed after
that, so that the term Γ of pSGLD, the derivatives of M, is zero; and a step size that is constant
or follows a schedule. At a constant ε it is biased: for a Gaussian posterior with M its covariance,
the covariance of the draws is (1 + εq/4) / (1 − ε/4) times that of the posterior, where q is the
variance of the batch's gradient relative to the curvature.

References
----------
Welling and Teh (2011), Bayesian Learning via Stochastic Gradient Langevin Dynamics. Baker,
Fearnhead, Fox and Nemeth (2019), Control variates for stochastic gradient MCMC. Li, Chen, Carlson
and Carin (2016), Preconditioned stochastic gradient Langevin dynamics for deep neural networks.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numba.extending import register_jitable

from pymc_minibatch.jit.triangular import multiply, multiply_transposed, squared_norm
from pymc_minibatch.kernels.gradient import STRONGEST, diverges, make_estimate, move_inside, tame
from pymc_minibatch.reference.density import Density

__all__ = [
    "Langevin",
    "LangevinState",
    "largest_bias",
    "largest_ratio",
    "make_langevin",
    "stability",
]


MEASURED = 32
"""So many steps at the end of a draw tell of the noise of a batch."""

DECAY, REGULAR = 0.99, 1e-5
"""α and λ of pSGLD, as in the paper."""


class Langevin(NamedTuple):
    """Settings.

    Attributes
    ----------
    sizes : ndarray, shape (k,)
        ε of each step of this draw.
    noisy : ndarray of bool, shape (k,)
        Whether noise is added in the step; without, it climbs.
    batch_size : int
        n.
    learns : bool
        Whether M is learned by RMSprop while the chain tunes.
    """

    sizes: np.ndarray
    noisy: np.ndarray
    batch_size: int
    learns: bool


class LangevinState(NamedTuple):
    """What the loop changes in addition to the point.

    Attributes
    ----------
    factor : ndarray, shape (d, d) or (d, 1)
        Cholesky factor of M; one column if it is diagonal.
    square : ndarray, shape (d,)
        Average of the squares of the gradient, over N.
    seen : ndarray, shape (1,)
        Gradients in `square`.
    limit : ndarray, shape (1,)
        Squared drift that counts as divergence; 0 before the first move.
    """

    factor: np.ndarray
    square: np.ndarray
    seen: np.ndarray
    limit: np.ndarray


def make_langevin(ndims: Sequence[int], bounded: bool = False) -> Callable[..., tuple[bool, float]]:
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
        state: LangevinState,
        langevin: Langevin,
    ) -> tuple[bool, float]:
        dim, batch, epsilon = active.size, 0.0, 0.0
        step, noise, kept = np.empty(dim), np.empty(dim), np.empty(dim if bounded else 0)
        rows = np.empty(langevin.batch_size, np.int64)
        measured = min(n_steps, MEASURED)
        for k in range(n_steps):
            epsilon = langevin.sizes[k]
            is_measured = n_steps - k <= measured
            estimate(rng, point, active, density, rows, step, noise if is_measured else noise[:0])
            if tuning and langevin.learns:
                learn_scale(step, density.data[0].shape[0], state)
            if is_measured:
                multiply_transposed(state.factor, noise)
                batch += squared_norm(noise) / measured
            multiply_transposed(state.factor, step)
            if diverges(epsilon / 4 * squared_norm(step), dim, state.limit):
                return True, 0.0
            spread = math.sqrt(epsilon)
            if bounded and not tuning:
                tame(step, STRONGEST * math.sqrt(dim) * 2 / spread)
            for i in range(dim):
                moved = epsilon / 2 * step[i]
                if langevin.noisy[k]:
                    moved += spread * rng.standard_normal()
                step[i] = moved
            multiply(state.factor, step)
            if bounded:
                move_inside(point, active, step, kept, density)
                continue
            for i in range(dim):
                point[np.uint64(active[i])] += step[i]
        if n_steps == 0:
            return False, np.nan
        batch *= epsilon / 4
        return False, batch / (batch + dim)

    return transitions


@register_jitable
def learn_scale(gradient: np.ndarray, n_rows: int, state: LangevinState) -> None:
    """V ← α V + (1 − α) (g/N)², M = diag(1 / (λ + √V)), V free of the zeros it starts from."""
    state.seen[0] += 1.0
    weight = 1.0 - DECAY ** state.seen[0]
    for j in range(gradient.size):
        state.square[j] += (1.0 - DECAY) * ((gradient[j] / n_rows) ** 2 - state.square[j])
        state.factor[j, 0] = 1.0 / math.sqrt(REGULAR + math.sqrt(state.square[j] / weight))


def full(factor: np.ndarray) -> np.ndarray:
    """Return a factor as a square matrix."""
    return factor if factor.shape[1] > 1 else np.diag(factor[:, 0])


def largest_ratio(matrix: np.ndarray, factor: np.ndarray) -> float:
    """Return the largest eigenvalue of a matrix in the coordinates in which M is the identity."""
    lower = full(factor)
    return float(np.linalg.eigvalsh(lower.T @ matrix @ lower)[-1])


def stability(
    factor: np.ndarray, precision: np.ndarray, noise: np.ndarray, step: float
) -> tuple[float, float]:
    """Return the step from which on draws spread without bound, and the bias of a shorter one.

    Along the eigenvectors of the curvature, in the coordinates in which M is the identity.
    """
    lower = full(factor)
    curvature, vectors = np.linalg.eigh(lower.T @ precision @ lower)
    along = lower @ vectors
    noises = np.einsum("ij,ik,kj->j", along, noise, along)
    return largest_bias(curvature, noises, step)


def largest_bias(
    curvature: np.ndarray | float, noise: np.ndarray | float, step: float
) -> tuple[float, float]:
    """Return what :func:`stability` does, of directions in which both are known.

    For a normal posterior the variance is (1 + εq/4) / (1 − εh/4) of its own, with curvature h and
    noise q; the bias is by how much the largest of these ratios exceeds 1.
    """
    limit = 4 / np.max(curvature)
    if step >= limit:
        return float(limit), np.inf
    ratios = (1 + step * noise / 4) / (1 - step * curvature / 4)
    return float(limit), float(np.max(ratios) - 1)
