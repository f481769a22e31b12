"""What is claimed of effects and their priors, and the points at which it is decided.

Points are draws from the prior of the model, which knows the scale of each variable, and steps are
counted in its standard deviations or in those of the levels given all else. Each entry is compared
with its own size. What is claimed of the prior of levels is decided by values and gradients, of all
levels, and not by curvature, which kinks, hinges and lines do not have (:mod:`..tall.verify`).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.probes import prior_points
from pymc_minibatch.tall.verify import LENGTHS, compare, quadratic, rounding

__all__ = [
    "ROUNDING",
    "STRETCHES",
    "Probes",
    "add_up",
    "are_gaussian",
    "find_probes",
    "spread_of",
]

N_DRAWS, N_PROBES = 12, 6
"""Draws from the prior, and at how many of them claims are decided."""

FARTHER = 6.0
"""Every third of these is so many times farther from their median: what a bound of a scale does,
such as a slab, may be seen only far out."""

STRETCHES = (1.0, -2.0, 10.0, 0.1, -5.0, 3.0)
"""How far variables move from one of the points to the next, as a multiple of their distance."""

ROUNDING = 1e-13
"""Entries that are smaller than what is natural for them by this factor are rounding errors."""

HALVINGS = 8
"""A point at which the prior is not finite is moved half of the way to the start, so often."""

TO_SD = 1.4826
"""Standard deviation of a Gaussian by its median absolute deviation."""

VALUES_AT = (0.1, 1.0, 10.0)
"""Standard deviations at which the total of the priors is compared with a parabola. The slopes of
single levels are at all of LENGTHS."""

MOST_SDS = 10.0
"""A level has no larger standard deviation given all else than so many of its prior."""

RTOL = 1e-7
"""Relative difference of slopes that are to be the same."""

RTOL_OF_SUM = 1e-9
"""Relative difference of totals over levels that are to be the same."""

ALONE = 64
"""Elements of a variable whose curvature is looked at one by one."""


class Probes(NamedTuple):
    """Points at which claims are decided.

    Attributes
    ----------
    points : ndarray, shape (n, D)
        Draws from the prior, some of them stretched.
    spread : ndarray, shape (D,)
        Standard deviation of each variable a priori.
    """

    points: np.ndarray
    spread: np.ndarray

    def steps(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield each point with one that lies some way to the next, or beyond it."""
        following = [*self.points[1:], self.points[0]]
        for here, there, stretch in zip(self.points, following, STRETCHES, strict=False):
            yield here, here + stretch * (there - here)


def find_probes(
    tall: TallModel,
    is_possible: Callable[[np.ndarray], bool],
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Probes:
    """Draw points from the prior of a model.

    Parameters
    ----------
    tall
        The model.
    is_possible
        Whether all that is looked at is finite at a point.
    product
        ``(point, vector) -> ndarray``, the Hessian of the log prior times a vector. If the prior
        cannot be drawn from, it gives the scale of variables.
    """
    start, rng = tall.layout.flatten(tall.model.initial_point()), np.random.default_rng(20090401)
    try:
        draws = prior_points(tall.model, tall.layout, N_DRAWS, seed=20090401)
    except (ArithmeticError, NotImplementedError, TypeError, ValueError, np.linalg.LinAlgError):
        draws = start + _scale_at(start, product, tall.layout.sizes) * rng.standard_normal(
            (N_DRAWS, start.size)
        )
    draws = np.where(tall.layout.is_continuous & np.isfinite(draws), draws, start)
    spread = spread_of(draws)
    middle = np.median(draws, axis=0)
    found = []
    for number, draw in enumerate(draws):
        point = middle + FARTHER * (draw - middle) if number % 3 == 2 else draw
        for _ in range(HALVINGS):
            if is_possible(point):
                found.append(point)
                break
            point = start + 0.5 * (point - start)
        if len(found) == N_PROBES:
            break
    while len(found) < N_PROBES:  # as near as it may be where little is possible
        found.append(start + 1e-3 * spread * rng.standard_normal(start.size))
    return Probes(np.array(found), spread)


def spread_of(draws: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each column, or its size where it does not vary."""
    middle = np.median(draws, axis=0)
    spread = TO_SD * np.median(np.abs(draws - middle), axis=0)
    spread = np.where(spread > 0.0, spread, np.abs(draws - middle).max(axis=0))
    spread = np.where(spread > 0.0, spread, np.abs(middle))
    return np.where(spread > 0.0, spread, 1.0)


def _scale_at(
    start: np.ndarray,
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
    sizes: Sequence[int],
) -> np.ndarray:
    """Return 1/√|H| of each variable at a point, from the diagonal of the Hessian H of the prior.

    That of variables with many elements is estimated with random signs (Hutchinson).
    """
    diagonal, rng = np.zeros(start.size), np.random.default_rng(7)
    for first, end in pairwise(np.cumsum([0, *sizes])):
        if end - first <= ALONE:
            for position in range(first, end):
                seed = np.zeros(start.size)
                seed[position] = 1.0
                diagonal[position] = product(start, seed)[position]
            continue
        for _ in range(8):
            seed = np.zeros(start.size)
            seed[first:end] = rng.choice([-1.0, 1.0], end - first)
            diagonal[first:end] += (seed * product(start, seed))[first:end] / 8
    with np.errstate(all="ignore"):
        scale = 1.0 / np.sqrt(np.abs(diagonal))
    return np.where(np.isfinite(scale), scale, np.maximum(np.abs(start), 1.0))


def are_gaussian(
    prior: Callable[[np.ndarray], float],
    gradient: Callable[[np.ndarray], np.ndarray],
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
    probes: Probes,
    levels: np.ndarray,
) -> bool:
    """Whether the prior of all levels is Gaussian given all else, by slopes and values.

    Parameters
    ----------
    prior, gradient, product
        The log prior, its gradient, and its Hessian times a vector.
    probes
        Where it is looked at.
    levels : ndarray of int64, shape (G, q)
        Positions of the variables of each level; no level's depend on another's.
    """
    rng = np.random.default_rng(20090402)
    for point in probes.points:
        step = _steps_of_levels(rng, product, point, probes.spread, levels)
        slope, curvature_product = gradient(point), product(point, step)
        for length in (sign * length for length in LENGTHS for sign in (1.0, -1.0)):
            moved = point + length * step
            found, expected = gradient(moved)[levels], (slope + length * curvature_product)[levels]
            allowed = np.maximum(
                rounding(gradient, moved)[levels], np.abs(curvature_product[levels]) * RTOL
            )
            if compare(found, expected, rtol=RTOL, allowed=allowed) is not None:
                return False
        along = quadratic(
            lambda s, point=point, step=step: prior(point + s * step),  # type: ignore[misc]
            lengths=VALUES_AT,
            slope=float(slope @ step),
            curvature=float(curvature_product @ step),
            rtol=RTOL_OF_SUM,
        )
        if along is not None:
            return False
    return True


def add_up(
    prior: Callable[[np.ndarray], float],
    of_levels: Callable[[np.ndarray], np.ndarray],
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
    probes: Probes,
    levels: np.ndarray,
) -> bool:
    """Whether the log prior of each level changes with its own variables alone, and they add up.

    Parameters
    ----------
    prior
        The log prior of the model.
    of_levels
        ``point -> ndarray``, shape (G,), those of the levels.
    product, probes, levels
        As of :func:`are_gaussian`.
    """
    rng = np.random.default_rng(20090403)
    for point in probes.points:
        step = _steps_of_levels(rng, product, point, probes.spread, levels)
        before = of_levels(point)
        for stretch in STRETCHES:
            moving = rng.random(len(levels)) < 0.5
            moved = point.copy()
            moved[levels[moving]] += stretch * step[levels[moving]]
            after = of_levels(moved)
            if np.any(after[~moving] != before[~moving]):
                return False
            total, each = prior(moved) - prior(point), after - before
            allowed = RTOL_OF_SUM * float(np.abs(each).sum()) + sum(
                float(rounding(prior, p)) for p in (point, moved)
            )
            if compare(total, each.sum(), rtol=0.0, allowed=allowed) is not None:
                return False
    return True


def _steps_of_levels(
    rng: np.random.Generator,
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
    point: np.ndarray,
    spread: np.ndarray,
    levels: np.ndarray,
) -> np.ndarray:
    """Return a step of all levels of about one standard deviation given all else."""
    step = np.zeros(point.size)
    for own in levels.T:
        seed = np.zeros(point.size)
        seed[own] = 1.0
        precision = -product(point, seed)[own]
        with np.errstate(all="ignore"):
            sd = np.where(precision > 0.0, 1.0 / np.sqrt(precision), np.inf)
        sd = np.minimum(sd, MOST_SDS * spread[own])
        step[own] = sd * rng.choice([-1.0, 1.0], own.size) * rng.uniform(0.5, 1.5, own.size)
    return step
