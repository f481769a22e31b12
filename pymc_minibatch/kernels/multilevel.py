"""Coupled paths of stochastic gradient Langevin dynamics at two step sizes.

Paths start from the Gaussian approximation N(mode, L Lᵀ). The fine path runs alone for a while.
Beside it, with the same noise, runs a stationary Gaussian chain, Langevin dynamics of the
approximation, which costs no gradients; the coarse path starts where that ends, and so not far from
the fine one. Then both run together: fine steps of length h with noise ξᵢ and batches τᵢ, and one
coarse step over the same time with the scaled sum of the ξᵢ. The batch of the coarse step is drawn
from the union of the τᵢ (plain), or there are two coarse paths, one on τ₁ and one on τ₂, whose
values are averaged (antithetic). Either way a coarse path has the same law as the fine path of the
level below.

In the paper all paths start at the mode. Coupled paths are then far apart to begin with, and the
lowest levels are biased by the start as well as by the step size.

References
----------
Giles, Nagapetyan, Szpruch, Vollmer and Zygalakis (2016), Multilevel Monte Carlo for scalable
Bayesian computations, algorithms 1 and 2.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numba.extending import register_jitable

from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.jit.pointers import call_array, call_matrix
from pymc_minibatch.jit.triangular import multiply, multiply_transposed, squared_norm
from pymc_minibatch.kernels.gradient import DIVERGED, add_gradient
from pymc_minibatch.kernels.rows import make_take
from pymc_minibatch.reference.density import Density

__all__ = ["Coupling", "make_paths"]


class Coupling(NamedTuple):
    """How the paths of a level run.

    Attributes
    ----------
    step_size : float
        h of the fine path.
    n_alone : int
        Fine steps before the coarse paths start.
    n_joint : int
        Coarse steps.
    n_fine : int
        Fine steps for each coarse step: 2, or 1 if there is no coarse path.
    n_coarse : int
        Coarse paths: 2 (antithetic), 1 (plain) or 0 (the lowest level).
    every : int
        Coarse steps between two values of f.
    n_values : int
        Values of f whose mean is taken, the last one at the end of the path.
    batch_size : int
        Rows of each gradient.
    """

    step_size: float
    n_alone: int
    n_joint: int
    n_fine: int
    n_coarse: int
    every: int
    n_values: int
    batch_size: int


class Workspace(NamedTuple):
    """What a move of d parameters needs: their positions, M = L Lᵀ, and room."""

    active: np.ndarray
    factor: np.ndarray
    mean: np.ndarray
    step: np.ndarray


def make_paths(ndims: Sequence[int]) -> Callable[..., bool]:
    """Assemble the loop over paths.

    Parameters
    ----------
    ndims
        Number of dimensions of each array of row data.

    Returns
    -------
    paths
        ``(rng, starts, mode, factor, density, function, coupling, fine, coarse, stop)`` returns
        whether a path diverged. It runs a fine path and a Gaussian one from each pair of points in
        `starts`, shape (n, 2, d), in whitened coordinates, and adds the values of f, a
        function called by address, to arrays of shape (n, k). Once ``stop[0]`` is not 0 it ends.
    """
    take = make_take(ndims)

    @jit_part
    def move(
        point: np.ndarray,
        step_size: float,
        xi: np.ndarray,
        rows: np.ndarray,
        density: Density,
        work: Workspace,
    ) -> bool:
        """θ ← θ + (h/2) M {∇log p₀ + N ḡ} + √h L ξ; return whether that is sane."""
        step, dim = work.step, point.size
        gradients = call_matrix(density.row, (point, density.constants, take(density.data, rows)))
        add_gradient(point, work.active, density, gradients, work.mean, step)
        multiply_transposed(work.factor, step)
        if not step_size / 4 * squared_norm(step) < DIVERGED * dim:
            return False
        for i in range(dim):
            step[i] = step_size / 2 * step[i] + math.sqrt(step_size) * xi[i]
        multiply(work.factor, step)
        for i in range(dim):
            point[i] += step[i]
        return True

    @njit
    def paths(
        rng: np.random.Generator,
        starts: np.ndarray,
        mode: np.ndarray,
        factor: np.ndarray,
        density: Density,
        function: int,
        coupling: Coupling,
        fine_values: np.ndarray,
        coarse_values: np.ndarray,
        stop: np.ndarray,
    ) -> bool:
        n_rows, dim = density.data[0].shape[0], starts.shape[2]
        h, n_fine, n_coarse = coupling.step_size, coupling.n_fine, coupling.n_coarse
        work = Workspace(np.arange(dim), factor, np.empty(dim), np.empty(dim))
        fine, coarse = np.empty(dim), np.empty((n_coarse, dim))
        gauss, xi, summed = np.empty(dim), np.empty(dim), np.empty(dim)
        rows = np.empty((n_fine, coupling.batch_size), np.int64)
        sane = True
        for k in range(starts.shape[0]):
            place(starts[k, 0], mode, factor, fine)
            gauss[:] = starts[k, 1]
            for _ in range(coupling.n_alone):
                if stop[0]:
                    return True
                draw(rng, n_rows, rows[0], xi)
                sane &= move(fine, h, xi, rows[0], density, work)
                move_gaussian(gauss, h, xi)
            for i in range(n_coarse):
                place(gauss, mode, factor, coarse[i])
            for j in range(coupling.n_joint):
                if stop[0]:
                    return True
                summed[:] = 0.0
                for i in range(n_fine):
                    draw(rng, n_rows, rows[i], xi)
                    sane &= move(fine, h, xi, rows[i], density, work)
                    add_noise(summed, xi, n_fine)
                if n_coarse == 1:
                    choose(rng, rows)
                for i in range(n_coarse):
                    sane &= move(coarse[i], n_fine * h, summed, rows[i], density, work)
                if not sane:
                    return True
                left = coupling.n_joint - 1 - j
                if left % coupling.every == 0 and left // coupling.every < coupling.n_values:
                    fine_values[k] += call_array(function, (fine,)) / coupling.n_values
                    for i in range(n_coarse):
                        share = 1.0 / (n_coarse * coupling.n_values)
                        coarse_values[k] += share * call_array(function, (coarse[i],))
        return False

    return paths


@register_jitable
def move_gaussian(z: np.ndarray, step_size: float, xi: np.ndarray) -> None:
    """Make a step of the same length with a standard normal density, in whitened coordinates."""
    for d in range(z.size):
        z[d] = (1 - step_size / 2) * z[d] + math.sqrt(step_size - step_size**2 / 4) * xi[d]


@register_jitable
def add_noise(summed: np.ndarray, xi: np.ndarray, n_steps: int) -> None:
    """Add the noise of one of a number of steps to that of a step as long as all of them."""
    for d in range(summed.size):
        summed[d] += xi[d] / math.sqrt(n_steps)


@register_jitable
def place(z: np.ndarray, mode: np.ndarray, factor: np.ndarray, point: np.ndarray) -> None:
    """θ = mode + L z."""
    point[:] = z
    multiply(factor, point)
    point += mode


@register_jitable
def draw(rng: np.random.Generator, n_rows: int, rows: np.ndarray, xi: np.ndarray) -> None:
    """Draw a batch with replacement, and the noise of a step."""
    for i in range(rows.size):
        rows[i] = int(rng.random() * n_rows)
    for d in range(xi.size):
        xi[d] = rng.standard_normal()


@register_jitable
def choose(rng: np.random.Generator, rows: np.ndarray) -> None:
    """Put a sample of all entries, without replacement, into the first row of a matrix."""
    entries = rows.reshape(-1)
    for i in range(rows.shape[1] if rows.shape[0] > 1 else 0):
        other = i + int(rng.random() * (entries.size - i))
        entries[i], entries[other] = entries[other], entries[i]
