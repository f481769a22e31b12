"""Search for the mode: on some rows, by Newton's method or a trust region, then on all of them."""

import math
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from pymc_minibatch.reference.kinks import average_precision, climb
from pymc_minibatch.reference.reference import KINKED_LENGTH, TOLERANCE, NoReferenceError
from pymc_minibatch.reference.search_density import ELSEWHERE, Rows, SearchDensity
from pymc_minibatch.tall import TallModel

__all__ = ["FAR", "find_mode", "maximise", "sample_rows"]

ROWS_EACH = 100
"""Rows for each parameter, whose Hessian is for Newton steps on all rows."""

SEARCH_STEPS, NEWTON_STEPS = 100, 20
"""Most steps of a search on some rows, and of Newton's method on all of them."""

LONGEST, LONGER, LEAST_RISE = 3.0, 2.0, 0.1
"""How many units Newton's method goes in its first step, by what factor it may go further after a
step of that length, and the least rise, relative to the slope."""

HALVINGS = 10
"""How often a step is halved that does not rise so."""

SLOW = 0.5
"""A Newton step is expected to be shorter than the one before by this factor."""

IMPOSSIBLE = 1e300
"""What a search takes for minus the log-density where the model is impossible."""

SMALL = 1e-3
"""The jitter of a start, in units of the coordinates."""

LARGEST = 1e12
"""A search that leads further than so many units of a coordinate has run off to infinity."""

FAR, LEAST_FALL = 3.0, 0.1
"""At so many standard deviations the log-density must have fallen by so many nats (a Gaussian's:
4.5)."""


def sample_rows(
    tall: TallModel, size: int, rng: np.random.Generator, given: Rows | None = ()
) -> Rows | None:
    """Take some rows at random; None if that would be all of them.

    Those that are given suffice if they are as many.
    """
    if given is None or (len(given) and len(given[0]) >= size):
        return given
    if size >= tall.n_rows:
        return None
    if tall.partitions is None:
        return tall.batch(np.sort(rng.choice(tall.n_rows, size, replace=False)))
    return tall.batch(np.sort(tall.random_rows(rng, size)))


def find_mode(
    density: SearchDensity, initial: np.ndarray, sample: Rows | None, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return a mode, and the precision there.

    Raises
    ------
    NoReferenceError
        If none is found.
    """
    # The jitter leaves saddle points, on which symmetric models start.
    start = initial + SMALL * density.units * rng.standard_normal(initial.size)
    density.look_for_kinks(start, sample)
    theta = maximise(density, start, sample)
    if not density.kinked:
        density.look_for_kinks(theta, sample)
    more = sample_rows(density.tall, ROWS_EACH * theta.size, rng, sample)
    try:
        return polish(density, theta, sample, more)
    except np.linalg.LinAlgError as error:
        raise NoReferenceError(
            f"the log-density has no finite curvature at its apparent mode ({error}): it may "
            "have a wall there, or no mode"
        ) from error


def maximise(density: SearchDensity, theta: np.ndarray, rows: Rows | None) -> np.ndarray:
    """Find the mode on some rows, or all.

    Raises
    ------
    NoReferenceError
        If the search runs off, or derivatives are not finite.
    """
    if density.kinked:
        precision = density.outer_precision(theta, rows)
        density.factor(theta, precision)  # refuses what has no scale
        found = climb(lambda t: density.value_gradient(t, rows), theta, precision)
        _check_bounded(density, found)
        return found

    theta, arrived = _climbed(density, theta, rows)
    if arrived:
        _check_bounded(density, theta)
        return theta
    theta = _by_trust_region(density, theta, rows)
    _check_bounded(density, theta)
    return theta


def _by_trust_region(density: SearchDensity, theta: np.ndarray, rows: Rows | None) -> np.ndarray:
    """Search even if the log-density is not concave, in units of the coordinates."""
    units = density.units

    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = density.value_gradient(units * z, rows)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return IMPOSSIBLE, np.zeros(density.dim)
        return -value, -units * gradient

    def precision_there(z: np.ndarray) -> np.ndarray:
        found = -density.hessian(units * z, rows)
        if not np.isfinite(found).all() and loss(z)[0] == IMPOSSIBLE:  # the search turns back
            return np.eye(density.dim)
        density.check_finite(units * z, found)
        return units[:, None] * found * units

    if density.rows.by_reading is None:
        how: dict[str, Any] = {
            "method": "trust-krylov",
            "hessp": lambda z, vector: -units * density.product(units * z, units * vector, rows),
        }
    else:
        how = {"method": "trust-exact", "hess": precision_there}
    try:
        found = minimize(
            loss,
            theta / units,
            jac=True,
            **how,
            options={
                "maxiter": SEARCH_STEPS,
                "initial_trust_radius": 1.0,
                "max_trust_radius": LARGEST,
            },
        )
    except (ValueError, LinAlgError) as error:  # derivatives that are not finite
        raise NoReferenceError(
            "derivatives of the log-density are not finite at a point that the search for its mode "
            f"has reached ({error}). {ELSEWHERE}"
        ) from error
    return units * found.x


def _climbed(
    density: SearchDensity, theta: np.ndarray, rows: Rows | None
) -> tuple[np.ndarray, bool]:
    """Newton's method, as long as the density is concave and rises; also say if that is enough.

    If it is, and parameters are many, this is much faster than a method for all cases.
    """
    if density.rows.by_reading is None:
        return theta, False
    value, gradient = density.value_gradient(theta, rows)
    longest = LONGEST
    for _ in range(SEARCH_STEPS):
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            break
        try:
            step = cho_solve(cho_factor(-density.hessian(theta, rows)), gradient)
        except (LinAlgError, ValueError):
            break
        rise = float(step @ gradient)
        if rise < TOLERANCE**2 * density.dim:
            # A mode on a wall may lie beyond it by rounding.
            return (theta + step if density.is_possible(theta + step) else theta), True
        share = min(1.0, longest / np.abs(step / density.units).max())
        longest *= LONGER if share < 1.0 else 1.0
        for _ in range(HALVINGS):
            moved = density.value_gradient(theta + share * step, rows)
            if moved[0] > value + LEAST_RISE * share * rise:
                break
            share /= 2
            longest = LONGEST
        else:
            break
        theta, (value, gradient) = theta + share * step, moved
    return theta, False


def _check_bounded(density: SearchDensity, found: np.ndarray) -> None:
    lengths = np.abs(found / density.units)
    if not np.isfinite(found).all() or lengths.max() > LARGEST:
        blamed = density.tall.layout.name_of(int(np.argmax(np.nan_to_num(lengths))))
        raise NoReferenceError(
            f"no posterior mode was found, because {blamed} diverged: neither the data nor the "
            "prior determine it, as with separated classes and a flat prior. Use a proper prior"
        )


def _check_falls_off(
    density: SearchDensity, theta: np.ndarray, precision: np.ndarray, rows: Rows | None
) -> None:
    """Refuse a mode at infinity, which looks like one where the log-density is just flat."""
    directions = solve_triangular(cholesky(precision, lower=True), np.eye(density.dim), lower=True)
    both = np.vstack([directions, -directions])
    peak, *values = density.values(np.vstack([theta, theta + FAR * both]), rows)
    flat = np.flatnonzero(peak - np.array(values) < LEAST_FALL)
    if flat.size:
        blamed = density.tall.layout.name_of(int(np.argmax(np.abs(both[flat[0]]))))
        raise NoReferenceError(
            f"the log-density is flat about its mode, mostly along {blamed}: neither the data nor "
            "the prior determine it, as with separated classes and a flat prior"
        )


def polish(
    density: SearchDensity, theta: np.ndarray, rows: Rows | None, more: Rows | None
) -> tuple[np.ndarray, np.ndarray]:
    """Move from the mode of some rows to that of all, by Newton steps with the Hessian of more.

    If these steps do not shorten fast the search goes on with the Hessian of all rows.

    Returns
    -------
    theta
        The mode.
    precision
        That of these; if rows have kinks, that of all rows.
    """
    precision = density.precision(theta, rows)
    factor = density.factor(theta, precision)
    _check_falls_off(density, theta, precision, rows)
    if density.kinked:
        return _polish_kinked(density, theta, precision)
    if more is not rows:
        precision = density.precision(theta, more)
        factor = density.factor(theta, precision)
    start, last = theta, np.inf
    for _ in range(NEWTON_STEPS):
        _, gradient = density.value_gradient(theta, None)
        if not np.isfinite(gradient).all():  # a step too far, or rows that some do not tell of
            break
        step = cho_solve(factor, gradient)
        length = math.sqrt(step @ gradient)
        if length > SLOW * last:
            break
        theta, last = theta + step, length
        if length < TOLERANCE * math.sqrt(density.dim):
            return theta, precision
    return maximise(density, start, None), precision


def _polish_kinked(
    density: SearchDensity, theta: np.ndarray, precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Newton steps with the average curvature of all rows, while they bring something."""
    gradient = density.gradient(theta, None)
    for _ in range(NEWTON_STEPS):
        precision = average_precision(lambda t: density.gradient(t, None), theta, precision)
        step = cho_solve(density.factor(theta, precision), gradient)
        length = step @ gradient
        value, gradient = density.value_gradient(theta + step, None)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):  # a step beyond a wall
            break
        theta = theta + step
        if length < KINKED_LENGTH**2:
            break
    _check_bounded(density, theta)
    return theta, precision
