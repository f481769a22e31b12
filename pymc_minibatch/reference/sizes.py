"""How much each row can tell a decision: the sizes by which rows are drawn.

The variance of an estimate from rows drawn with probabilities p is least where p_n is proportional
to the root mean square of what row n adds to the log ratio. If few rows hold most of it (a rare
category, an outlying predictor), uniform batches miss them, and cannot know that they do.

Rows that read few numbers are looked at at their own scale (:mod:`.reach`), others at points that
all of them share. The size of a row is a mean over the posterior. But a row that may change a
decision at four or six standard deviations, as one does that is flat at first and has a wall
behind, has the size of what it does there: it is read at every decision (:mod:`.pinned`), or if
there are too many of these, often.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.reach import LENGTHS, PROBABILITIES, RowReach, row_reach
from pymc_minibatch.reference.reference import Reference
from pymc_minibatch.reference.taylor import term_of_batches
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import in_chunks, over_chunks
from pymc_minibatch.tall.weighted import SizedRows

__all__ = ["Unevenness", "row_sizes"]

GAUSSIAN_POINTS = 8
"""Points of the posterior at which each row is looked at, half of them opposite to the others."""

AXIS_POINTS = {2.0: 4, 4.0: 4, 6.0: 4}
"""Standard deviations from the mode, along each axis, of points that all rows share, if these do
not read few numbers; and how many."""

KINKED_POINTS, KINKED_LENGTH = 64, 2.5
"""More of them where such rows have kinks: a row whose kink lies between those of all points and a
point of the chain would have hardly any size, and a large part of the log ratio."""

TELLING, FAR_TELLING = 0.5, 4.0
"""A row is told by its largest change, in nats at T = 1, if that is larger at up to 4 sds, or at 6.
A decision allows for noise with an sd of about one."""

PAIRS = 5
"""Pairs of points on which drawing by size is compared with drawing uniformly."""

LARGEST = 1e3
"""Nats at T = 1: a decision on which more depends is made by them alone."""

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
    uniform_kurtosis, kurtosis_by_size
        E X⁴ / (E X²)² of what a row that is drawn in either way adds to an estimate: the largest
        over pairs of posterior points.
    most
        s² of one row drawn uniformly if the log ratios of all rows were as large as their sizes, as
        they hardly are for most pairs, and may be for some.
    """

    uniform: float
    by_size: float
    kurtosis: float
    uniform_kurtosis: float
    kurtosis_by_size: float
    most: float


def row_sizes(
    tall: TallModel, control: ControlVariate
) -> tuple[np.ndarray | SizedRows, Unevenness]:
    """Find in one pass how far the term of each row varies over the posterior.

    The size of a row is the root mean square of the change of its term, the remainder where there
    is a control variate, over the posterior; if the change may tell in a decision, the largest.
    If the term of a row is not finite at a point that all rows share it does not count for it.

    Returns
    -------
    sizes : ndarray of float32, shape (N,), or SizedRows
        Positive, but 0 for rows that are read at every decision; all the same if no row varies.
        If rows are in partitions, how they are computed and their sums.
    unevenness : Unevenness
        How much they are worth, measured at other points.
    """
    reference, temperature = control.reference, control.temperature
    reach = row_reach(tall, control)
    points, pairs = _trial_points(control.gaussian, temperature, reference.has_kinks)
    if reach is not None:  # of several numbers together draws tell
        points = points[:GAUSSIAN_POINTS] if reach.reads.n_predictors > 1 else []
    term = term_of_batches(tall, control)
    look = _Look(term, reference.flat, points, pairs, reach, temperature)
    if tall.partitions is not None:
        return _in_partitions(tall, look, temperature)
    sums = partial(_ranges_and_sums, look)
    data = (*tall.data, *control.columns())
    parts = [part for _, part in over_chunks(sums, data, "Sizing the rows")]
    ranges = np.concatenate([part for part, _ in parts])
    mean = ranges.mean(dtype=float)
    if not mean > 0:
        return np.ones_like(ranges), Unevenness(0.0, 0.0, 1.0, 1.0, 1.0, 0.0)
    sizes = np.maximum(ranges, np.float32(FLOOR * mean))
    sizes[control.always_read] = 0.0
    of_ratios = np.sum([part for _, part in parts], axis=0)
    return sizes, _unevenness(_size_sums(sizes), of_ratios, temperature)


@dataclass(frozen=True)
class _Look:
    """How far the terms of rows vary over the posterior, and their log ratios for each pair."""

    term: Callable[..., np.ndarray]
    reference: np.ndarray
    points: Sequence[tuple[float, float, np.ndarray]]
    pairs: np.ndarray
    reach: RowReach | None
    temperature: float

    def __call__(self, *batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look at a batch, which ends with the columns that a control variate adds."""
        at_mode = self.term(self.reference, batch)
        square, inner, outer = np.zeros((3, at_mode.size))
        with np.errstate(all="ignore"):
            if self.reach is not None:
                square, inner, outer = self.reach(batch[: self.reach.n_arrays])
            shared = np.zeros(at_mode.size)
            for length, weight, point in self.points:
                change = np.abs(self.term(point, batch) - at_mode)
                change[~np.isfinite(change)] = 0.0
                shared += weight * change**2
                kept = outer if length > 4.0 else inner
                np.maximum(kept, change, out=kept)
            telling = (inner > TELLING * self.temperature) | (
                outer > FAR_TELLING * self.temperature
            )
            typical = np.sqrt(2 * np.maximum(square, shared))  # of the difference of two points
            sizes = np.where(telling, np.maximum(inner, outer), typical)
            sizes = np.minimum(np.nan_to_num(sizes), LARGEST * self.temperature)
            ratios = [
                self.term(there, batch) - self.term(here, batch) for here, there in self.pairs
            ]
            return sizes.astype(np.float32), np.array(ratios, dtype=float)


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
    """Sum r, r², r²/c, r⁴ and r⁴/c³ over rows with sizes c, for the log ratios r of each pair."""
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = ratios**2 / sizes
        sums = ratios, ratios**2, scaled, ratios**4, scaled**2 / sizes
        return np.array([values.sum(axis=1) for values in sums])


def _unevenness(of_sizes: np.ndarray, of_ratios: np.ndarray, temperature: float) -> Unevenness:
    """Compare the variance of r / p for both ways to draw, with r at points of their own."""
    n, size, squares, fourth = map(float, of_sizes)
    kurtosis = n * fourth / squares**2
    total, r_squares, scaled, fourths, scaled_fourths = of_ratios
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        by_size = scaled * size - total**2
        uniform = n * r_squares - total**2
        rounding = ROUNDING * n * r_squares
        uniform, by_size = (np.where(v < rounding, 0.0, v) for v in (uniform, by_size))
        kurtoses = n * fourths / r_squares**2, size * scaled_fourths / scaled**2
    tails = [max(float(np.nan_to_num(k, nan=1.0).max()), 1.0) for k in kurtoses]
    possible = np.isfinite(uniform).all() and np.isfinite(by_size).all()
    rows = [float(np.median(way)) if possible else np.inf for way in (uniform, by_size)]
    t2 = temperature**2
    return Unevenness(rows[0] / t2, rows[1] / t2, kurtosis, tails[0], tails[1], n * squares / t2)


def _trial_points(
    reference: Reference, temperature: float, kinked: bool
) -> tuple[list[tuple[float, float, np.ndarray]], np.ndarray]:
    """Return points about the mode with their lengths and weights, and pairs of posterior points.

    Some of the points are draws from the Gaussian approximation, of length 0. The others go along
    all axes at once, in one sense or the other, so that each lies as far out as is wanted along
    every axis. The axes are uncorrelated and as near to the parameters as such axes can be: the
    symmetric root of their correlations leads from one to the other.
    """
    rng = np.random.default_rng(1)
    covariance = np.linalg.inv(reference.precision_at(temperature))
    sd = np.sqrt(np.diag(covariance))
    values, vectors = eigh(covariance / np.outer(sd, sd))
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T * sd
    dim, center = sd.size, reference.center
    probability = dict(zip(LENGTHS, PROBABILITIES, strict=True))
    counts = AXIS_POINTS | ({KINKED_LENGTH: KINKED_POINTS} if kinked else {})
    drawn = rng.standard_normal((GAUSSIAN_POINTS // 2, dim))
    points = [(0.0, 1 / GAUSSIAN_POINTS, center + z @ root) for z in (*drawn, *-drawn)]
    for length, n in counts.items():
        weight = probability.get(length, probability[2.0]) / n
        half = length * rng.choice([-1.0, 1.0], (n // 2, dim))
        points += [(length, weight, center + z @ root) for z in (*half, *-half)]
    pairs = rng.standard_normal((PAIRS, 2, dim))
    return points, center + pairs @ root
