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

from pymc_minibatch.jit.compiled import CompiledFunction
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.find import Reference
from pymc_minibatch.reference.taylor import compile_remainder
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import in_chunks, over_chunks
from pymc_minibatch.tall.weighted import SizedRows

__all__ = ["Unevenness", "row_sizes"]

GAUSSIAN_POINTS, AXIS_POINTS = 8, 8
"""Points at which each row is looked at, half of them opposite to the others."""

AXIS_LENGTH = 2.0
"""Standard deviations from the mode, along each axis, of an axis point."""

FLOOR = 0.03
"""No size is below this share of the mean, so that no row is starved."""


class Unevenness(NamedTuple):
    """What rows of different sizes mean for batches.

    Attributes
    ----------
    uniform, by_size
        Rows at which s² = 1, for a pair of posterior points, drawn in either way. Infinite where a
        row is impossible there.
    kurtosis
        N Σ c⁴ / (Σ c²)² of the sizes c: a uniform batch of fewer rows than this is expected to hold
        less than one that tells.
    """

    uniform: float
    by_size: float
    kurtosis: float


def row_sizes(
    tall: TallModel, control: ControlVariate
) -> tuple[np.ndarray | SizedRows, Unevenness]:
    """Find in one pass how far the term of each row varies over the posterior.

    The size of a row is the range of its term, the remainder where there is a control variate, over
    points about the mode, which lie on both sides of it along every axis. Where the term of a row
    is not finite the point does not count for it.

    Returns
    -------
    sizes : ndarray of float32, shape (N,), or SizedRows
        Positive; all the same where no row varies. Where rows are in partitions, how they are
        computed and their sums.
    unevenness : Unevenness
        How much they are worth, measured at two other points.
    """
    reference, order, temperature = control
    points, pair = _trial_points(reference, temperature)
    term = _row_term(tall, reference, order)
    look = partial(_look, term, reference.flat, points, pair)
    if tall.partitions is not None:
        return _in_partitions(tall, look, temperature)
    parts = [part for _, part in over_chunks(look, tall.data, "Sizing the rows")]
    ranges, log_ratios = (np.concatenate(part) for part in zip(*parts, strict=True))
    ranges = np.nan_to_num(ranges)
    mean = ranges.mean(dtype=float)
    if not mean > 0:
        return np.ones_like(ranges), Unevenness(0.0, 0.0, 1.0)
    sizes = np.maximum(ranges, np.float32(FLOOR * mean))
    return sizes, _unevenness(_sums(sizes, log_ratios), temperature)


def _look(
    term: Callable[..., np.ndarray],
    reference: np.ndarray,
    points: np.ndarray,
    pair: np.ndarray,
    *batch: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return how far the terms of rows range over points, and their log ratios for a pair."""
    lowest = highest = term(reference, batch)
    with np.errstate(invalid="ignore", over="ignore"):
        for point in points:
            terms = term(point, batch)
            finite = np.isfinite(terms)
            lowest = np.where(finite, np.minimum(lowest, terms), lowest)
            highest = np.where(finite, np.maximum(highest, terms), highest)
        log_ratio = term(pair[1], batch) - term(pair[0], batch)
        return (highest - lowest).astype(np.float32), log_ratio.astype(np.float32)


type _Look = Callable[..., tuple[np.ndarray, np.ndarray]]


def _in_partitions(
    tall: TallModel, look: _Look, temperature: float
) -> tuple[SizedRows, Unevenness]:
    """Do the same where the rows are; the mean comes from a sample of them."""
    partitions = tall.partitions
    assert partitions is not None
    ranges = np.nan_to_num(look(*tall.batch(partitions.kept_rows()))[0])
    mean = float(ranges.mean(dtype=float))
    floor = FLOOR * mean if mean > 0 else 1.0
    sums = partitions.run(partial(_sums_of_part, look, floor), title="Sizing the rows")
    of_parts = np.array(sums)
    sized = SizedRows(partitions, partial(_sizes, look, floor), of_parts[:, 1])
    return sized, _unevenness(of_parts.sum(axis=0), temperature)


def _sizes(look: _Look, floor: float, *batch: np.ndarray) -> np.ndarray:
    return np.maximum(np.nan_to_num(look(*batch)[0]), np.float32(floor))


def _sums_of_part(look: _Look, floor: float, arrays: Sequence[np.ndarray]) -> np.ndarray:
    def sums(*batch: np.ndarray) -> np.ndarray:
        ranges, log_ratios = look(*batch)
        return _sums(np.maximum(np.nan_to_num(ranges), np.float32(floor)), log_ratios)

    return sum((part for _, part in in_chunks(sums, arrays)), np.zeros(7))


def _sums(sizes: np.ndarray, log_ratios: np.ndarray) -> np.ndarray:
    """Sum 1, c, c², c⁴, r, r² and r²/c over rows with sizes c and log ratios r."""
    c, r = sizes.astype(float), log_ratios.astype(float)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = [c.sum(), (c**2).sum(), (c**4).sum(), r.sum(), (r**2).sum(), (r**2 / c).sum()]
    return np.array([c.size, *sums])


def _unevenness(sums: np.ndarray, temperature: float) -> Unevenness:
    """Compare the variance of r / p for both ways to draw, with r at points of their own."""
    n, size, squares, fourth, total, r_squares, scaled = map(float, sums)
    kurtosis = n * fourth / squares**2
    if not np.isfinite(sums).all():
        return Unevenness(np.inf, np.inf, kurtosis)
    by_size, uniform = scaled * size - total**2, n * r_squares - total**2
    return Unevenness(uniform / temperature**2, by_size / temperature**2, kurtosis)


def _row_term(tall: TallModel, reference: Reference, order: int) -> Callable[..., np.ndarray]:
    """Return ``(point, batch) -> terms``, which can be pickled."""
    if order == 0:
        return partial(_plain, tall.compiled_row_logp)
    return partial(_less_taylor, compile_remainder(tall, order), reference.flat)


def _plain(
    row_logp: CompiledFunction, point: np.ndarray, batch: Sequence[np.ndarray]
) -> np.ndarray:
    return row_logp(point, *batch)


def _less_taylor(
    remainder: CompiledFunction,
    reference: np.ndarray,
    point: np.ndarray,
    batch: Sequence[np.ndarray],
) -> np.ndarray:
    return remainder(point, reference, *batch)


def _trial_points(reference: Reference, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Return points about the mode, and a pair of posterior points besides.

    Half of the points are draws from the Gaussian approximation. The others go along all axes at
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
    axes = AXIS_LENGTH * rng.choice([-1.0, 1.0], (AXIS_POINTS // 2, dim))
    z = np.concatenate([gaussian, -gaussian, axes, -axes])
    pair = rng.standard_normal((2, dim))
    return reference.flat + z @ root, reference.flat + pair @ root
