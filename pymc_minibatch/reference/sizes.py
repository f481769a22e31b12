"""How much each row can tell a decision: the sizes by which rows are drawn.

The variance of an estimate from rows drawn with probabilities p is least where p_n is proportional
to the root mean square of what row n adds to the log ratio. Where few rows hold most of it (a rare
category, an outlying predictor), uniform batches miss them, and cannot know that they do.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.find import Reference
from pymc_minibatch.reference.taylor import term_of_batches
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import in_chunks, over_chunks
from pymc_minibatch.tall.weighted import SizedRows

__all__ = ["Unevenness", "row_sizes"]

GAUSSIAN_POINTS, AXIS_POINTS = 8, 8
"""Points at which each row is looked at, half of them opposite to the others."""

AXIS_LENGTH = 2.0
"""Standard deviations from the mode, along each axis, of an axis point."""

KINKED_POINTS, KINKED_LENGTH = 64, 2.5
"""The same of axis points where rows have kinks: a row whose kink lies between those of all points
and a point of the chain would have hardly any size, and a large part of the log ratio."""

PAIRS = 5
"""Pairs of points on which drawing by size is compared with drawing uniformly."""

RANGE_SHARE = 0.05
"""Of the size of a row with kinks: so much of the range is added to the mean distance."""

FLOOR = 0.03
"""No size is below this share of the mean, so that no row is starved."""

ROUNDING = 1e-9
"""A variance that is a smaller share of the squares it is the difference of is none."""


class Unevenness(NamedTuple):
    """What rows of different sizes mean for batches.

    Attributes
    ----------
    uniform, by_size
        Rows at which s² = 1, drawn in either way: the median over pairs of posterior points.
        Infinite where a row is impossible there.
    kurtosis
        N Σ c⁴ / (Σ c²)² of the sizes c: a uniform batch of fewer rows than this is expected to hold
        less than one that tells.
    most
        s² of one row drawn uniformly if the log ratios of all rows were as large as their sizes, as
        they hardly are for most pairs, and may be for some.
    """

    uniform: float
    by_size: float
    kurtosis: float
    most: float


def row_sizes(
    tall: TallModel, control: ControlVariate
) -> tuple[np.ndarray | SizedRows, Unevenness]:
    """Find in one pass how far the term of each row varies over the posterior.

    The size of a row is the range of its term, the remainder where there is a control variate, over
    points about the mode, which lie on both sides of it along every axis. Where the term of a row
    is not finite the point does not count for it. Where rows have kinks the size is the mean
    distance from the term at the mode, and a small share of the range: the range alone would draw
    rows whose kinks are far off too often.

    Returns
    -------
    sizes : ndarray of float32, shape (N,), or SizedRows
        Positive, but 0 for rows that are read at every decision; all the same where no row varies.
        Where rows are in partitions, how they are computed and their sums.
    unevenness : Unevenness
        How much they are worth, measured at other points.
    """
    reference, temperature = control.reference, control.temperature
    kinked = reference.has_kinks
    axes = (KINKED_POINTS, KINKED_LENGTH) if kinked else (AXIS_POINTS, AXIS_LENGTH)
    points, pairs = _trial_points(control.gaussian, temperature, *axes)
    term = term_of_batches(tall, control)
    look = partial(_look, term, reference.flat, points, pairs, kinked)
    if tall.partitions is not None:
        return _in_partitions(tall, look, temperature)
    sums = partial(_ranges_and_sums, look)
    data = (*tall.data, *control.columns())
    parts = [part for _, part in over_chunks(sums, data, "Sizing the rows")]
    ranges = np.concatenate([part for part, _ in parts])
    mean = ranges.mean(dtype=float)
    if not mean > 0:
        return np.ones_like(ranges), Unevenness(0.0, 0.0, 1.0, 0.0)
    sizes = np.maximum(ranges, np.float32(FLOOR * mean))
    sizes[control.always_read] = 0.0
    of_ratios = np.sum([part for _, part in parts], axis=0)
    return sizes, _unevenness(_size_sums(sizes), of_ratios, temperature)


def _look(
    term: Callable[..., np.ndarray],
    reference: np.ndarray,
    points: np.ndarray,
    pairs: np.ndarray,
    kinked: bool,
    *batch: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return how far the terms of rows vary over points, and their log ratios for each pair."""
    at_mode = term(reference, batch)
    lowest = highest = at_mode
    distance = np.zeros_like(at_mode)
    with np.errstate(invalid="ignore", over="ignore"):
        for point in points:
            terms = term(point, batch)
            finite = np.isfinite(terms)
            lowest = np.where(finite, np.minimum(lowest, terms), lowest)
            highest = np.where(finite, np.maximum(highest, terms), highest)
            if kinked:
                distance += np.where(finite, np.abs(terms - at_mode), 0.0) / len(points)
        ranges = highest - lowest
        if kinked:
            ranges = distance + RANGE_SHARE * ranges
        ratios = [term(there, batch) - term(here, batch) for here, there in pairs]
        return np.nan_to_num(ranges.astype(np.float32)), np.array(ratios, dtype=float)


type _Look = Callable[..., tuple[np.ndarray, np.ndarray]]


def _ranges_and_sums(look: _Look, *batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranges of a chunk, and sums of its log ratios for sizes with a floor of its own.

    The mean of all rows is not known yet, and to keep the log ratios until it is takes memory.
    """
    ranges, ratios = look(*batch)
    floor = max(FLOOR * float(ranges.mean(dtype=float)), float(np.finfo(np.float32).tiny))
    return ranges, _ratio_sums(np.maximum(ranges, floor), ratios)


def _in_partitions(
    tall: TallModel, look: _Look, temperature: float
) -> tuple[SizedRows, Unevenness]:
    """Do the same where the rows are; the mean comes from a sample of them."""
    partitions = tall.partitions
    assert partitions is not None
    mean = float(look(*tall.batch(partitions.kept_rows()))[0].mean(dtype=float))
    floor = FLOOR * mean if mean > 0 else 1.0
    sums = partitions.run(partial(_sums_of_part, look, floor), title="Sizing the rows")
    of_sizes, of_ratios = map(np.array, zip(*sums, strict=True))
    sized = SizedRows(partitions, partial(_sizes, look, floor), of_sizes[:, 1])
    return sized, _unevenness(of_sizes.sum(axis=0), of_ratios.sum(axis=0), temperature)


def _sizes(look: _Look, floor: float, *batch: np.ndarray) -> np.ndarray:
    return np.maximum(look(*batch)[0], np.float32(floor))


def _sums_of_part(
    look: _Look, floor: float, arrays: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    def sums(*batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ranges, ratios = look(*batch)
        sizes = np.maximum(ranges, np.float32(floor))
        return _size_sums(sizes), _ratio_sums(sizes, ratios)

    of_sizes, of_ratios = zip(*(part for _, part in in_chunks(sums, arrays)), strict=True)
    return np.sum(of_sizes, axis=0), np.sum(of_ratios, axis=0)


def _size_sums(sizes: np.ndarray) -> np.ndarray:
    """Sum 1, c, c² and c⁴ over rows with sizes c."""
    c = sizes.astype(float)
    with np.errstate(over="ignore"):
        return np.array([c.size, c.sum(), (c**2).sum(), (c**4).sum()])


def _ratio_sums(sizes: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """Sum r, r² and r²/c over rows with sizes c, for the log ratios r of each pair."""
    with np.errstate(invalid="ignore", over="ignore"):
        squares = ratios**2
        return np.array([ratios.sum(axis=1), squares.sum(axis=1), (squares / sizes).sum(axis=1)])


def _unevenness(of_sizes: np.ndarray, of_ratios: np.ndarray, temperature: float) -> Unevenness:
    """Compare the variance of r / p for both ways to draw, with r at points of their own."""
    n, size, squares, fourth = map(float, of_sizes)
    kurtosis = n * fourth / squares**2
    total, r_squares, scaled = of_ratios
    by_size = scaled * size - total**2
    uniform = n * r_squares - total**2
    with np.errstate(invalid="ignore"):
        rounding = ROUNDING * n * r_squares
        uniform, by_size = (np.where(v < rounding, 0.0, v) for v in (uniform, by_size))
    possible = np.isfinite(uniform).all() and np.isfinite(by_size).all()
    rows = [float(np.median(way)) if possible else np.inf for way in (uniform, by_size)]
    t2 = temperature**2
    return Unevenness(rows[0] / t2, rows[1] / t2, kurtosis, n * squares / t2)


def _trial_points(
    reference: Reference, temperature: float, n_axes: int, length: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return points about the mode, and pairs of posterior points.

    Some of the points are draws from the Gaussian approximation. The others go along all axes at
    once, in one sense or the other, so that each lies as far out as is wanted along every axis. The
    axes are uncorrelated and as near to the parameters as such axes can be: the symmetric root of
    their correlations leads from one to the other.
    """
    rng = np.random.default_rng(1)
    covariance = np.linalg.inv(reference.precision_at(temperature))
    sd = np.sqrt(np.diag(covariance))
    values, vectors = eigh(covariance / np.outer(sd, sd))
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T * sd
    dim = sd.size
    gaussian = rng.standard_normal((GAUSSIAN_POINTS // 2, dim))
    axes = length * rng.choice([-1.0, 1.0], (n_axes // 2, dim))
    z = np.concatenate([gaussian, -gaussian, axes, -axes])
    pairs = rng.standard_normal((PAIRS, 2, dim))
    return reference.center + z @ root, reference.center + pairs @ root
