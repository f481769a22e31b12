"""Points at which bounds touch, and a Gaussian approximation of prior and bounds.

Both read the collapsed bounds only, so that they cost no more data than the passes that collapse
them.
"""

import logging
from collections.abc import Callable

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize

from pymc_minibatch.bounds.target import FireflyTarget, trial_rows

__all__ = ["approximate", "climb"]

_log = logging.getLogger("pymc_minibatch")

type Slope = Callable[[np.ndarray], np.ndarray]

MOST_ROUNDS = 60
SUBSAMPLE = 20_000
CLOSE = 0.2
"""Standard deviations; bounds that touch so near to the mode are as good as at it."""

FLATTEST = 1e-8
"""Smallest curvature in use, where each parameter has the unit in which its own curvature is 1."""

MOST_LENGTHS = 1e6
"""A search that goes farther, in these units, has run off."""

NEWTON_STEPS, HALVINGS = 30, 10
ARRIVED = 1e-6
"""Squared length of a Newton step, in standard deviations, that is the last."""

DIFFERENCE, WIDER, TRIES = 1e-4, 1e3, 12
"""Standard deviations of the way on which curvature is taken; how many times longer or shorter it
may be; and how often it is taken anew."""


def approximate(
    target: FireflyTarget, constants: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the mode of prior and bounds, and a root of the covariance there.

    If there is no mode to be found (a prior without one) the reference point takes its place,
    and where the density is not concave curvatures count by their size: what is sampled does not
    depend on the approximation.

    Returns
    -------
    center : ndarray, shape (A,)
    root, inverse : ndarray, shape (A, A)
    """
    active, point = target.active, constants[0].copy()

    def slope(theta: np.ndarray) -> np.ndarray:
        """Gradient, also beyond a hard constraint, where that of the rest goes on."""
        moved = point.copy()
        moved[active] = theta
        return target.base(moved, constants)[1][active]

    center, curvature = _newton(slope, point[active])
    if center is None:
        center, curvature = _search(target, constants, curvature)
    lengths = _lengths(curvature)
    correlations = np.nan_to_num(curvature * np.outer(lengths, lengths))
    values, vectors = np.linalg.eigh((correlations + correlations.T) / 2)
    values = np.maximum(np.abs(values), FLATTEST)
    root = lengths[:, None] * vectors / np.sqrt(values)
    return center, root, (vectors * np.sqrt(values)).T / lengths


def _newton(slope: Slope, start: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """Go to the mode of a concave density, and return its curvature there.

    None takes the place of the mode where the density is not concave on the way, or steps do not
    become shorter; the curvature is that at the start then. Gradients alone are read, so that a
    hard constraint is not in the way: the Gaussian is that of the density without it.
    """
    theta, at_start = start, None
    with np.errstate(all="ignore"):
        gradient = slope(theta)
        for _ in range(NEWTON_STEPS):
            curvature = _difference_hessian(slope, theta)
            at_start = curvature if at_start is None else at_start
            step = _solved(curvature, gradient)
            if step is None:
                break
            lengths, squared = _lengths(curvature), float(step @ gradient)
            if squared < ARRIVED:
                return theta, curvature
            for _ in range(HALVINGS):
                moved = slope(theta + step)
                if (lengths * np.abs(moved)).max() < (lengths * np.abs(gradient)).max():
                    break
                step = step / 2
            else:
                break
            theta, gradient = theta + step, moved
    assert at_start is not None
    return None, at_start


def _solved(curvature: np.ndarray, gradient: np.ndarray) -> np.ndarray | None:
    """Return the Newton step; None if the curvature is no precision."""
    if not (np.isfinite(curvature).all() and np.isfinite(gradient).all()):
        return None
    lengths = _lengths(curvature)
    try:
        factor = cho_factor(curvature * np.outer(lengths, lengths))
    except LinAlgError:
        return None
    return np.asarray(lengths * cho_solve(factor, lengths * gradient))


def _lengths(curvature: np.ndarray) -> np.ndarray:
    """Return the unit of each parameter in which its curvature is 1; 1 if it has none."""
    diagonal = np.abs(np.nan_to_num(np.diag(curvature)))
    return np.where(diagonal > 0, diagonal, 1.0) ** -0.5


def _search(
    target: FireflyTarget, constants: tuple[np.ndarray, ...], at_start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the mode by a method that needs no concave density, with the units of the start."""
    active, point, lengths = target.active, constants[0].copy(), _lengths(at_start)
    start = point[active]

    def loss(u: np.ndarray) -> tuple[float, np.ndarray]:
        moved = point.copy()
        moved[active] = start + lengths * u
        value, gradient = target.base(moved, constants)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return 1e300, np.zeros(active.size)
        return -value, -lengths * gradient[active]

    def hessian(u: np.ndarray) -> np.ndarray:
        return _difference_hessian(lambda other: -loss(other)[1], u)

    try:
        zero = np.zeros(active.size)
        found = minimize(loss, zero, jac=True, hess=hessian, method="trust-exact").x
        at_mode = hessian(found)
        if np.isfinite(found).all() and np.abs(found).max() < MOST_LENGTHS:
            np.linalg.cholesky(at_mode)
            return start + lengths * found, at_mode / np.outer(lengths, lengths)
    except (LinAlgError, ValueError):
        _log.info("Prior and bounds have no mode; moves are made about the reference point.")
    return start, at_start


def _difference_hessian(slope: Slope, theta: np.ndarray) -> np.ndarray:
    """Curvature by differences of gradients, on ways that fit the curvature that they find."""
    columns = []
    for i in range(theta.size):
        way = DIFFERENCE / 10 * max(1.0, abs(theta[i]))
        for _ in range(TRIES):
            step = np.zeros(theta.size)
            step[i] = way
            column = (slope(theta - step) - slope(theta + step)) / (2 * way)
            own = abs(column[i])
            wanted = DIFFERENCE / np.sqrt(own) if own > 0 else way
            if not np.isfinite(wanted) or way / WIDER <= wanted <= way * WIDER:
                break
            way = min(max(wanted, way / WIDER**2), way * WIDER**2)
        columns.append(column)
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
