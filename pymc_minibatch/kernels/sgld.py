"""Stochastic gradient Langevin dynamics.

    θ' = θ + (ε/2) M {∇log p₀(θ) + N ḡ} + N(0, ε M)

with a preconditioner M that is fixed, and a step size ε_t = a (b + t)^(−γ) or constant. At a
constant ε it is biased: for a Gaussian posterior with M its covariance, the covariance of the
draws is (1 + εq/4) / (1 − ε/4) times that of the posterior, where q is the variance of the batch's
gradient relative to the curvature.

References
----------
Welling and Teh (2011), Bayesian Learning via Stochastic Gradient Langevin Dynamics. Baker,
Fearnhead, Fox and Nemeth (2019), Control variates for stochastic gradient MCMC.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from pymc_minibatch.jit.triangular import multiply, multiply_transposed, squared_norm
from pymc_minibatch.kernels.gradient import (
    add_gradient,
    diverges,
    make_draw_gradients,
)
from pymc_minibatch.reference.source import Source

__all__ = ["Langevin", "LangevinState", "largest_ratio", "make_langevin", "stability"]


class Langevin(NamedTuple):
    """Settings.

    Attributes
    ----------
    factor : ndarray, shape (d, d)
        Cholesky factor of M.
    schedule : tuple of float
        a, b, γ; a constant step has γ = 0.
    n_before : int
        Steps of the chain before this draw.
    batch_size : int
        n.
    band : int
        d, or 1 where M is diagonal.
    """

    factor: np.ndarray
    schedule: tuple[float, float, float]
    n_before: int
    batch_size: int
    band: int


class LangevinState(NamedTuple):
    """What the loop changes besides the point.

    Attributes
    ----------
    limit : ndarray, shape (1,)
        Squared drift that counts as divergence; 0 before the first move.
    """

    limit: np.ndarray


def make_langevin(ndims: Sequence[int]) -> Callable[..., tuple[bool, float]]:
    """Assemble the loop; arguments and result are those of :func:`.sgfs.make_scoring`."""
    draw_gradients = make_draw_gradients(ndims)

    @njit
    def transitions(
        rng: np.random.Generator,
        point: np.ndarray,
        active: np.ndarray,
        source: Source,
        n_steps: int,
        tuning: bool,
        state: LangevinState,
        langevin: Langevin,
    ) -> tuple[bool, float]:
        dim, band = active.size, langevin.band
        a, b, gamma = langevin.schedule
        mean, step = np.empty(dim), np.empty(dim)
        rows = np.empty(langevin.batch_size, np.int64)
        gradients = np.empty((0, point.size))
        epsilon = 0.0
        for k in range(n_steps):
            epsilon = a * (b + langevin.n_before + k) ** -gamma
            gradients = draw_gradients(rng, point, source, rows)
            add_gradient(point, active, source, gradients, mean, step)
            multiply_transposed(langevin.factor, band, step)
            if diverges(epsilon / 4 * squared_norm(step), dim, state.limit):
                return True, 0.0
            for i in range(dim):
                step[i] = epsilon / 2 * step[i] + math.sqrt(epsilon) * rng.standard_normal()
            multiply(langevin.factor, band, step)
            for i in range(dim):
                point[active[i]] += step[i]
        if gradients.shape[0] == 0:
            return False, np.nan
        return False, batch_share(gradients, active, mean, source, epsilon, langevin)

    return transitions


@njit
def batch_share(
    gradients: np.ndarray,
    active: np.ndarray,
    mean: np.ndarray,
    source: Source,
    epsilon: float,
    langevin: Langevin,
) -> float:
    """Return ε/4 tr(M N²V/n) / (ε/4 tr(M N²V/n) + d)."""
    n, n_rows = gradients.shape[0], source.data[0].shape[0]
    column = np.empty(mean.size)
    batch = 0.0
    for i in range(n):
        for j in range(mean.size):
            column[j] = gradients[i, active[j]] - mean[j]
        multiply_transposed(langevin.factor, langevin.band, column)
        batch += squared_norm(column)
    batch *= epsilon / 4 * float(n_rows) ** 2 / n / (n - 1)
    return batch / (batch + mean.size)


def largest_ratio(matrix: np.ndarray, factor: np.ndarray) -> float:
    """Return the largest eigenvalue of a matrix in the coordinates in which M is the identity."""
    return float(np.linalg.eigvalsh(factor.T @ matrix @ factor)[-1])


def stability(
    factor: np.ndarray, precision: np.ndarray, noise: np.ndarray, step: float
) -> tuple[float, float]:
    """Return the step from which on draws spread without bound, and the bias of a shorter one.

    Along the eigenvectors of the curvature, in the coordinates in which M is the identity, the
    variance is (1 + εq/4) / (1 − εh/4) of the posterior's if that is normal; the bias is by how
    much the largest of these ratios exceeds 1.
    """
    curvature, vectors = np.linalg.eigh(factor.T @ precision @ factor)
    along = factor @ vectors
    noises = np.einsum("ij,ik,kj->j", along, noise, along)
    limit = 4 / curvature[-1]
    if step >= limit:
        return float(limit), np.inf
    ratios = (1 + step * noises / 4) / (1 - step * curvature / 4)
    return float(limit), float(ratios.max() - 1)
