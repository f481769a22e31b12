"""Log-likelihoods with kinks: their mode and their curvature at the scale of the posterior.

Rows such as −|y − η| have no curvature anywhere, but their sum has: its gradient changes where rows
go over their kinks, as that of a smooth function does on average. With C the covariance of the
posterior and L Lᵀ = C, central differences of the gradient g over one standard deviation ::

    −Lᵀ H L ≈ ½ Lᵀ [g(θ + L eⱼ) − g(θ − L eⱼ)]ⱼ

tell it, whichever part comes from kinks. C is not known before: the outer product of the slopes of
the rows stands for H first (the information equality), and a second round settles it.

Reference
---------
Hjort and Pollard (1993), Asymptotics for minimisers of convex processes, section 3: the sum is
quadratic at the scale of the posterior, with the average curvature. Lewis and Overton (2013),
Nonsmooth optimization via quasi-Newton methods.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize

__all__ = ["average_precision", "climb", "has_kinks", "outer_precision"]

type Slopes = Callable[[np.ndarray], np.ndarray]
"""Gradient of the log-density at a point."""

SLOPE_STEP = 1e-4
"""Of the differences by which rows tell their slopes, in units of the coordinates."""

LONGEST_STEP = 100.0
"""Coordinates that are larger than their units have longer differences, by at most this factor."""

RIDGE = 1e-8
"""Share of the diagonal that is added to an outer product, which may be singular."""

SEEN = 1e-3
"""Curvature below this share of that of the outer product may be rounding."""

DIFFERENT = 0.5
"""Curvatures at a point and about it that differ by a larger share are those of kinks."""

ROUNDS = 4
CLOSE = 0.2
"""Standard deviations at which curvature is compared."""

LEAST_CURVATURE = 0.02
"""No axis is taken for flatter than this share of what it was before."""

HALVINGS = 20
"""How often a step is halved that leads where the gradient is not finite."""

CLIMB_STEPS = 500


def outer_precision(
    row_logp: Callable[[np.ndarray], np.ndarray],
    theta: np.ndarray,
    units: np.ndarray,
    scale: float,
    prior_hessian: np.ndarray,
) -> np.ndarray:
    """Precision by the information equality: `scale` times the outer products of slopes, and prior.

    Slopes are differences of the log-likelihoods of some rows.
    """
    slopes = []
    lengths = SLOPE_STEP * units * np.clip(np.abs(theta / units), 1.0, LONGEST_STEP)
    for i in range(theta.size):
        step = np.zeros_like(theta)
        step[i] = lengths[i]
        with np.errstate(invalid="ignore", over="ignore"):  # where a row is impossible
            difference = row_logp(theta + step) - row_logp(theta - step)
        slopes.append(np.nan_to_num(difference / (2 * step[i]), posinf=0.0, neginf=0.0))
    precision = scale * np.array(slopes) @ np.array(slopes).T
    precision -= np.diag(np.minimum(0.0, np.diag(prior_hessian)))
    diagonal = np.diag(precision)
    floor = np.where(diagonal > 0, RIDGE * diagonal, units**-2.0)
    return np.asarray(precision + np.diag(floor))


def has_kinks(
    gradient: Slopes,
    product: Callable[[np.ndarray], np.ndarray],
    theta: np.ndarray,
    precision: np.ndarray,
    blocks: Sequence[slice],
) -> bool:
    """Compare curvature at a point with that close to it, along one direction for each variable.

    If rows are smooth, both agree ever better on shorter ways, and where they have kinks they do
    not. `product` multiplies a vector with the Hessian at the point, and `precision` guesses the
    scale; a way on which the log-density falls by more is shortened first.
    """
    rng = np.random.default_rng(0)

    def about(step: np.ndarray) -> float:
        return float(step @ (gradient(theta - step) - gradient(theta + step)) / 2)

    sds = 1 / np.sqrt(np.diag(precision))
    for block in blocks:
        step, dim = np.zeros_like(theta), block.stop - block.start
        direction = rng.standard_normal(dim)
        step[block] = sds[block] * direction * math.sqrt(dim) / np.linalg.norm(direction)
        with np.errstate(all="ignore"):
            for _ in range(ROUNDS):
                step *= math.sqrt(dim / max(1, dim, np.nan_to_num(about(step))))
            step *= CLOSE
            found, here = about(step), float(-step @ product(step))
        largest = max(abs(found), abs(here))
        if largest > SEEN * CLOSE**2 * dim and abs(found - here) > DIFFERENT * largest:
            return True
    return False


def average_precision(gradient: Slopes, theta: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Average curvature over one standard deviation to either side, by a guess of the precision.

    Or over less, where a point so far out is impossible.

    Raises
    ------
    LinAlgError
        If the gradient is finite nowhere about the point.
    """
    lower = cholesky(precision, lower=True)
    axes = solve_triangular(lower, np.eye(theta.size), lower=True)
    changes = np.array([_change(gradient, theta, axis) for axis in axes])
    curvature = axes @ changes.T / 2
    values, vectors = np.linalg.eigh((curvature + curvature.T) / 2)
    curvature = (vectors * np.maximum(values, LEAST_CURVATURE)) @ vectors.T
    return np.asarray(lower @ curvature @ lower.T)


def _change(gradient: Slopes, theta: np.ndarray, axis: np.ndarray) -> np.ndarray:
    """Return how the gradient changes from one end of an axis to the other.

    What is seen between points closer by is taken for the same curvature.
    """
    for halvings in range(HALVINGS):
        share = 0.5**halvings
        with np.errstate(all="ignore"):
            change = gradient(theta - share * axis) - gradient(theta + share * axis)
        if np.isfinite(change).all():
            return np.asarray(change / share)
    raise np.linalg.LinAlgError("the gradient is not finite about the mode")


def climb(
    value_gradient: Callable[[np.ndarray], tuple[float, np.ndarray]],
    theta: np.ndarray,
    precision: np.ndarray,
) -> np.ndarray:
    """Find a mode by a quasi-Newton method, which copes with kinks, in units of the precision."""
    lower = cholesky(precision, lower=True)

    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_gradient(theta + solve_triangular(lower.T, z))
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return 1e300, np.zeros_like(z)
        return -value, -solve_triangular(lower, gradient, lower=True)

    options = {"maxiter": CLIMB_STEPS, "maxcor": 20}
    found = minimize(loss, np.zeros_like(theta), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(theta + solve_triangular(lower.T, found.x))
