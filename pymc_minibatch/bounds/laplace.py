"""Where bounds touch, and a Gaussian approximation of prior and bounds.

Both read the collapsed bounds only, so that they cost no more data than the passes that collapse
them.
"""

import logging

import numpy as np
from scipy.linalg import LinAlgError
from scipy.optimize import minimize

from pymc_minibatch.bounds.target import FireflyTarget, trial_rows

__all__ = ["approximate", "climb"]

_log = logging.getLogger("pymc_minibatch")

MOST_ROUNDS = 60
SUBSAMPLE = 20_000
CLOSE = 0.2
"""Standard deviations; bounds that touch so near to the mode are as good as at it."""

FLATTEST = 1e-4
"""Smallest curvature in use, relative to the largest of the same variable's prior or 1."""


def approximate(
    target: FireflyTarget, constants: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the mode of prior and bounds, and a root of the covariance there.

    Where there is no mode to be found (a prior without one) the reference point takes its place,
    and where the density is not concave curvatures count by their size: what is sampled does not
    depend on the approximation.

    Returns
    -------
    center : ndarray, shape (A,)
    root, inverse : ndarray, shape (A, A)
    """
    active, point = target.active, constants[0].copy()

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        moved = point.copy()
        moved[active] = theta
        value, gradient = target.base(moved, constants)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return 1e300, np.zeros(active.size)
        return -value, -gradient[active]

    def hessian(theta: np.ndarray) -> np.ndarray:
        return _difference_hessian(lambda t: loss(t)[1], theta)

    start = point[active]
    center, curvature = start, hessian(start)
    try:
        found = minimize(loss, start, jac=True, hess=hessian, method="trust-exact").x
        at_mode = hessian(found)
        if np.isfinite(found).all() and np.abs(found).max() < 1e6:
            np.linalg.cholesky(at_mode)
            center, curvature = found, at_mode
    except (LinAlgError, ValueError):
        _log.info("Prior and bounds have no mode; moves are made about the reference point.")
    values, vectors = np.linalg.eigh(np.nan_to_num(curvature))
    values = np.maximum(np.abs(values), FLATTEST)
    return center, vectors / np.sqrt(values), (vectors * np.sqrt(values)).T


def _difference_hessian(gradient: object, theta: np.ndarray) -> np.ndarray:
    columns = []
    for i in range(theta.size):
        step = np.zeros(theta.size)
        step[i] = 1e-5 * max(1.0, abs(theta[i]))
        columns.append((gradient(theta + step) - gradient(theta - step)) / (2 * step[i]))  # type: ignore[operator]
    hessian = np.array(columns)
    return (hessian + hessian.T) / 2


def climb(target: FireflyTarget, start: np.ndarray) -> np.ndarray:
    """Climb to the mode of the posterior in the sampled variables.

    Each round puts bounds that touch at the current point below the likelihood and goes to the mode
    of prior and bounds, where the posterior is at least as high: a minorise-maximise algorithm. The
    first rounds read a subsample.
    """
    n_rows, point = target.tall.n_rows, start.copy()
    samples = [trial_rows(n_rows, SUBSAMPLE)] if n_rows > 2 * SUBSAMPLE else []
    for rows in [*samples, None]:
        for _ in range(MOST_ROUNDS):
            center, _, inverse = approximate(target, target.constants(point, rows))
            distance = np.abs(inverse @ (center - point[target.active])).max()
            point[target.active] = center
            if distance < CLOSE:
                break
    return point
