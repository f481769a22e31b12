"""How much each row can tell a decision: the sizes by which rows are drawn.

The variance of an estimate from rows drawn with probabilities p is least where p_n is proportional
to the root mean square of what row n adds to the log ratio. Where few rows hold most of it (a rare
category, an outlying predictor), uniform batches miss them, and cannot know that they do.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.find import Reference
from pymc_minibatch.reference.taylor import compile_remainder
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import over_chunks

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


def row_sizes(tall: TallModel, control: ControlVariate) -> tuple[np.ndarray, Unevenness]:
    """Find in one pass how far the term of each row varies over the posterior.

    The size of a row is the range of its term, the remainder where there is a control variate, over
    points about the mode, which lie on both sides of it along every axis. Where the term of a row
    is not finite the point does not count for it.

    Returns
    -------
    sizes : ndarray of float32, shape (N,)
        Positive; all the same where no row varies.
    unevenness : Unevenness
        How much they are worth, measured at two other points.
    """
    reference, order, temperature = control
    points, pair = _trial_points(reference, temperature)
    term = _row_term(tall, reference, order)

    def look(*batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lowest = highest = term(reference.flat, batch)
        with np.errstate(invalid="ignore", over="ignore"):
            for point in points:
                terms = term(point, batch)
                finite = np.isfinite(terms)
                lowest = np.where(finite, np.minimum(lowest, terms), lowest)
                highest = np.where(finite, np.maximum(highest, terms), highest)
            log_ratio = term(pair[1], batch) - term(pair[0], batch)
            return (highest - lowest).astype(np.float32), log_ratio.astype(np.float32)

    parts = [part for _, part in over_chunks(look, tall.data, "Sizing the rows")]
    ranges, log_ratios = (np.concatenate(part) for part in zip(*parts, strict=True))
    ranges = np.nan_to_num(ranges)
    mean = ranges.mean(dtype=float)
    if not mean > 0:
        return np.ones_like(ranges), Unevenness(0.0, 0.0, 1.0)
    sizes = np.maximum(ranges, np.float32(FLOOR * mean))
    return sizes, _unevenness(sizes, log_ratios, temperature)


def _unevenness(sizes: np.ndarray, log_ratios: np.ndarray, temperature: float) -> Unevenness:
    """Compare the variance of r / p for both ways to draw, with r at points of their own."""
    squares = sizes.astype(float) ** 2
    kurtosis = sizes.size * float((squares**2).sum()) / float(squares.sum()) ** 2
    r = log_ratios.astype(float)
    if not np.isfinite(r).all():
        return Unevenness(np.inf, np.inf, kurtosis)
    total = float(r.sum())
    by_size = float((r**2 / sizes).sum()) * float(sizes.sum(dtype=float)) - total**2
    uniform = r.size * float((r**2).sum()) - total**2
    return Unevenness(uniform / temperature**2, by_size / temperature**2, kurtosis)


def _row_term(
    tall: TallModel, reference: Reference, order: int
) -> Callable[[np.ndarray, tuple[np.ndarray, ...]], np.ndarray]:
    if order == 0:
        return lambda point, batch: tall.compiled_row_logp(point, *batch)
    remainder = compile_remainder(tall, order)
    return lambda point, batch: remainder(point, reference.flat, *batch)


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
