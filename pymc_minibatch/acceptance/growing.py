"""Grow a batch until its noise is known to be small enough, then decide.

A batch of b rows, drawn uniformly without replacement or by size with replacement, gives an
estimate of the log ratio delta with approximately normal error of variance s². The tests that use
it make up a smooth distribution function G of which that error is a part, so two things are asked
of a batch: s² must be below the variance that the test has room for, and the bound on the error of
the acceptance probability below its limit. When more than half as many rows as there are would be
needed, all are read and the test is exact.

The bound has two parts, both of first order in s³ / √b, with X what a row adds to the estimate, b
times (by size: r / (N p)), and c the factor on the sum over the batch:

- the batch is not exactly normal. In Lindeberg's argument each of its terms is exchanged for a
  normal one in turn, and the expectation of G changes by at most
  ``sup|G'''| / 6 * b c³ (E|X|³ + E|Z|³ sd³)`` in all;
- s² is estimated from the same batch, and for skewed rows its error goes with that of the mean.
  Since dG/ds² = -G''/2, this changes the expectation by ``sup|G'''| / 2 * b c³ |E X³|``.

The moments are those of rows that were drawn, so what is reported is an estimate of the bound.

A batch must not choose itself
------------------------------
A batch of skewed rows with a small s² also errs in its mean, always to the same side. A rule that
decides whenever s² happens to be small enough, and draws further rows otherwise, keeps the batches
that err: acceptance probabilities were off by up to 0.05 where the bound said 0.001. So other rows
say whether a batch is large enough, as in Stein's two-stage procedure:

1. Draw the first batch. If its noise would do even if the variance of rows were larger by the
   factor 1 + `SURE` ε + `SKEWED` ε², with ε the relative standard error of the variance, decide.
   Nearly all decisions end here.
2. If not, a pilot of other rows is drawn. If the first batch does by what the pilot says of rows,
   the first batch decides.
3. If not, the pilot says how many rows do, with a margin again. The first batch is filled up with
   new rows and decides, unless its s² leaves no room; then it is the first batch of step 2.

Let T say that the first batch is sure of itself in step 1, and let q be the probability that the
pilot lets it decide in step 2. The pilot is independent of the batch, so the acceptance probability
is off by ``(1 - q) E[(G1 - G3) T]``, with G1 and G3 what the batches of steps 1 and 3 make of G.
If q is not nearly 1 the variance is so large that T is hardly ever true.

A batch must not miss the rows that matter
------------------------------------------
If few rows hold most of the variance, more than half of all small batches hold none of them and see
none of it. Rows drawn by size make the most of this: r / p is about constant but for its sign, and
all of the variance is in the rare rows of the other sign. So margins and sizes rest on the mean of
the squares of r / p, not of their deviations: it is never smaller than the variance, and any batch
sees it. How far it is off in a batch depends on the kurtosis E X⁴ / (E X²)², which set-up finds at
moves about the mode where it can (:mod:`~pymc_minibatch.reference.sizes`).

References
----------
Seita, Pan, Chen and Canny (2017), An Efficient Minibatch Acceptance Test for Metropolis-Hastings,
algorithm 1, for the growing batch. Lindeberg (1922), Eine neue Herleitung des
Exponentialgesetzes in der Wahrscheinlichkeitsrechnung, for the exchange. Stein (1945), A Two-Sample
Test for a Linear Hypothesis Whose Power is Independent of the Variance, for a size that rows decide
on which are not part of the estimate.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.acceptance.decision import (
    Decision,
    RowReaders,
    Rows,
    batch_variance,
    decided_by_all,
    decided_by_batch,
    rejected,
    takes_all,
)
from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.reference.density import Density

__all__ = [
    "LEAST_BATCH",
    "NORMAL_UNEVENNESS",
    "UNKNOWN_KURTOSIS",
    "FirstBatch",
    "Limits",
    "Moments",
    "build_growing",
    "does",
    "is_sure",
    "larger_batch",
    "moments",
    "new_first_batch",
    "pilot_rows",
    "rows_wanted",
    "tune_first_batch",
    "upper_smoothness",
    "with_kurtosis",
]

SURE, SKEWED = 3.0, 2.0
"""How far a batch must be within its limits to decide by itself, in relative standard errors of the
variance and in squares of them: from few rows it comes out too small more often than too large."""

AIMED = 2.0
"""Relative standard errors by which a larger batch is within its limits, by what a pilot says."""

PILOT_SHARE, PILOT_ROWS = 0.5, 3.0
"""Rows of a pilot: relative to those of the batch, and at least so many times the kurtosis."""

UNKNOWN_KURTOSIS = 9.0
"""That of exponential variables, if nothing is known of the rows before they are drawn."""

NORMAL_KURTOSIS = 3.0
"""E Z⁴ of a standard normal: no kurtosis is taken to be less."""

GROWTH = 1.1
"""Resolution of the search for the batch that should do."""

NORMAL_THIRD_MOMENT = 1.6
"""E|Z|³ of a standard normal, rounded up."""

NORMAL_UNEVENNESS = NORMAL_THIRD_MOMENT / 3
"""What normal rows of variance 1 add to the bound on the error, less a factor that others share."""

LEAST_BATCH = 16
"""A tuned first batch is never smaller: fewer rows tell too little about their own variance."""

GROWN_SHARE = 0.1
"""Share of decisions for which a tuned first batch may be too small."""

GAIN_EXPONENT = 0.6
"""The k-th correction of the log of the first batch has size k ** -0.6."""


class Limits(NamedTuple):
    """What a batch must satisfy.

    Attributes
    ----------
    temperature : float
        T.
    batch_size : ndarray of int64, shape (1,)
        Rows of the first batch.
    variance : float
        s² must be below it.
    error : float
        The bound on the error must not be above it.
    own_error : float
        Error of the test where a batch has no noise.
    variance_grid, smoothness : ndarray, shape (M,)
        Increasing values of s², and sup |G'''| at each of them, which does not decrease.
    kurtosis : float
        E X⁴ / (E X²)² of what rows add to an estimate, as far as it is known before any is drawn.
    """

    temperature: float
    batch_size: np.ndarray
    variance: float
    error: float
    own_error: float
    variance_grid: np.ndarray
    smoothness: np.ndarray
    kurtosis: float = UNKNOWN_KURTOSIS


class Moments(NamedTuple):
    """What a batch says of the log ratios of rows.

    Attributes
    ----------
    n : int
        Rows of the batch.
    mean, variance : float
        Mean, and variance with ddof 1.
    square, fourth : float
        Means of squares and of fourth powers.
    third : float
        Mean of absolute third powers.
    skew : float
        Mean of third powers, of the values or of their deviations: the larger absolute value.
    """

    n: int
    mean: float
    variance: float
    square: float
    fourth: float
    third: float
    skew: float


class FirstBatch(NamedTuple):
    """The size of the first batch and its tuning.

    Attributes
    ----------
    size : ndarray of int64, shape (1,)
        Rows of the first batch of each decision.
    tuning : ndarray of float64, shape (2,)
        The log of the size, and the number of corrections so far.
    """

    size: np.ndarray
    tuning: np.ndarray


def new_first_batch(size: int) -> FirstBatch:
    """Return the state before tuning."""
    return FirstBatch(np.array([size], dtype=np.int64), np.array([math.log(size), 0.0]))


def tune_first_batch(
    state: FirstBatch, n_grown: int, n_decisions: int, n_rows: int, least: int = LEAST_BATCH
) -> None:
    """Move the first batch towards the size that does for all but `GROWN_SHARE` of decisions."""
    state.tuning[1] += 1
    excess = n_grown / max(n_decisions, 1) - GROWN_SHARE
    log_size = state.tuning[0] + excess / state.tuning[1] ** GAIN_EXPONENT
    log_least = math.log(min(least, n_rows))
    state.tuning[0] = min(max(log_size, log_least), math.log(n_rows))
    state.size[0] = min(math.ceil(math.exp(state.tuning[0]) - 1e-9), n_rows)


def with_kurtosis(parameters: tuple[Any, ...], kurtosis: float) -> tuple[Any, ...]:
    """Let the limits of a growing batch, if a test has them, know the kurtosis of rows."""
    if parameters and isinstance(parameters[0], Limits):
        known = max(NORMAL_KURTOSIS, float(kurtosis))
        return (parameters[0]._replace(kurtosis=known), *parameters[1:])
    return parameters


def build_growing(
    readers: RowReaders, accept: Any, exact_probability: Any
) -> Callable[..., Decision]:
    """Compose a test with the functions that read the data.

    Parameters
    ----------
    readers
        The functions that read the data.
    accept
        ``(rng, estimate, s2, details) -> bool`` decides from an estimate of delta with variance s².
    exact_probability
        ``(delta,) -> float``, the acceptance probability where all rows are read.

    Returns
    -------
    decide
        ``(rng, psi, current, proposed, density, rows, (limits, details)) -> Decision``.
    """
    draw_log_ratios, sum_log_ratios, _ = readers

    @jit_part
    def decide(
        rng: np.random.Generator,
        psi: float,
        current: np.ndarray,
        proposed: np.ndarray,
        density: Density,
        rows: Rows,
        parameters: tuple[Limits, Any],
    ) -> Decision:
        limits, details = parameters
        n_rows = density.data[0].shape[0]
        scale = n_rows / limits.temperature
        n_seen, n = np.int64(0), limits.batch_size[0]  # a literal 0 would be compiled on its own
        n_read, asked, error = n_seen, False, 0.0
        while not takes_all(n_read + n - n_seen, n_rows):
            n_drawn, n_read = n_read, n_read + n - n_seen
            impossible = draw_log_ratios(rng, current, proposed, density, rows, n_drawn, n_read)
            put_first(rows, n_seen, n_drawn, n_read)
            seen = moments(rows.log_ratios[:n])
            if impossible >= 0 or seen.mean == -np.inf:
                return rejected(n_read, asked, impossible, 0)
            s2 = batch_variance(scale, seen.variance, n, rows.population)
            decides = s2 < limits.variance
            if not asked:
                decides, error = is_sure(n, rows.population, scale, seen, limits)
            if not decides:
                n_drawn, n_read = n_read, n_read + pilot_rows(n, limits)
                if takes_all(n_read, n_rows):
                    n_read = n_drawn
                    break
                impossible = draw_log_ratios(rng, current, proposed, density, rows, n_drawn, n_read)
                pilot = moments(rows.log_ratios[n_drawn:n_read])
                if impossible >= 0 or pilot.mean == -np.inf:
                    return rejected(n_read, True, impossible, 0)
                decides, error = does(n, rows.population, scale, pilot, 1.0, limits)
                s2, asked = min(s2, limits.variance), True
            if decides:
                accepted = accept(rng, psi + scale * seen.mean, s2, details)
                return decided_by_batch(accepted, n, n_read, asked, s2, min(1.0, error), 0)
            n_seen = n
            n, error = larger_batch(n, n_rows, rows.population, scale, pilot, limits)
        total, impossible = sum_log_ratios(current, proposed, density)
        accepted = rng.random() < exact_probability(psi + total / limits.temperature)
        return decided_by_all(accepted, n_rows, n_read, impossible, 0)

    return decide


def rows_wanted(
    limits: Limits, variance: float, n_rows: int, unevenness: float = NORMAL_UNEVENNESS
) -> int:
    """Say how large a batch has to be; all rows if more than half are.

    `variance` is s² of a batch of one row, and `unevenness` that of :func:`noise` for rows with a
    variance of 1, by default where log ratios are normal.
    """
    steps = math.ceil(math.log(max(2.0, n_rows / LEAST_BATCH)) / math.log(GROWTH))
    n = np.ceil(LEAST_BATCH * GROWTH ** np.arange(steps + 1))
    s2 = variance / n
    smoothness = np.append(limits.smoothness, np.inf)[np.searchsorted(limits.variance_grid, s2)]
    third = unevenness * variance**1.5
    with np.errstate(invalid="ignore"):  # infinity times nothing
        error = limits.own_error + np.nan_to_num(smoothness * third / n**2, posinf=np.inf)
    do = (s2 < limits.variance) & (error <= limits.error) & (2 * n <= n_rows)
    return int(n[np.argmax(do)]) if do.any() else n_rows


@register_jitable
def put_first(rows: Rows, n_seen: Any, first: Any, last: Any) -> None:
    """Move rows that were drawn last, from `first` on, before others that follow a batch."""
    n_others = first - n_seen
    if n_others == 0:
        return
    drawn, log_ratios = rows.drawn[n_seen:first].copy(), rows.log_ratios[n_seen:first].copy()
    for i in range(n_seen, last - n_others):
        rows.drawn[i], rows.log_ratios[i] = rows.drawn[i + n_others], rows.log_ratios[i + n_others]
    rows.drawn[last - n_others : last] = drawn
    rows.log_ratios[last - n_others : last] = log_ratios


@register_jitable
def moments(x: np.ndarray) -> Moments:
    """Return what a batch says of the log ratios of rows."""
    n = x.size
    mean = np.sum(x) / n
    deviations = cubes_of_deviations = squares = cubes = absolute_cubes = fourths = 0.0
    for value in x:
        deviation, square = value - mean, value * value
        deviations += deviation * deviation
        cubes_of_deviations += deviation * deviation * deviation
        squares += square
        cubes += square * value
        absolute_cubes += square * abs(value)
        fourths += square * square
    skew = max(abs(cubes_of_deviations), abs(cubes)) / n
    return Moments(
        n, mean, deviations / (n - 1), squares / n, fourths / n, absolute_cubes / n, skew
    )


@register_jitable
def noise(
    n: int, population: float, scale: float, seen: Moments, factor: float, limits: Limits
) -> tuple[float, float]:
    """Return a bound on s², the variance of ``scale * mean of n rows``, and on the test's error.

    `population` is as in :class:`~pymc_minibatch.acceptance.decision.Rows`. The squares of rows are
    taken to be larger by a factor than those seen.
    """
    square, root = factor * seen.square, factor * math.sqrt(factor)
    s2 = batch_variance(scale, square, n, population)
    third = root * seen.third + NORMAL_THIRD_MOMENT * square * math.sqrt(square)
    unevenness = third / 6 + root * seen.skew / 2
    if unevenness == 0.0:  # smoothness may be infinite
        return s2, limits.own_error
    return s2, limits.own_error + upper_smoothness(s2, limits) * scale**3 / n**2 * unevenness


@register_jitable
def does(
    n: int, population: float, scale: float, seen: Moments, factor: float, limits: Limits
) -> tuple[bool, float]:
    """Whether n rows do if squares are larger by a factor than those seen; and the error."""
    s2, error = noise(n, population, scale, seen, factor, limits)
    return s2 < limits.variance and error <= limits.error, error


@register_jitable
def is_sure(
    n: int, population: float, scale: float, seen: Moments, limits: Limits
) -> tuple[bool, float]:
    """Whether a batch is so far within its limits that it decides by itself; and the error."""
    error = relative_error(seen, limits)
    return does(n, population, scale, seen, 1.0 + SURE * error + SKEWED * error**2, limits)


@register_jitable
def larger_batch(
    n: int, n_rows: int, population: float, scale: float, pilot: Moments, limits: Limits
) -> tuple[int, float]:
    """Return how many rows do by what a pilot says, more than n; and the error."""
    factor, sufficient, error = 1.0 + AIMED * relative_error(pilot, limits), False, 0.0
    while not (sufficient or takes_all(n, n_rows)):
        n = math.ceil(GROWTH * n)
        sufficient, error = does(n, population, scale, pilot, factor, limits)
    return n, error


@register_jitable
def pilot_rows(n: int, limits: Limits) -> int:
    """Return the rows of a pilot that judges a batch of n rows."""
    return math.ceil(max(PILOT_SHARE * n, PILOT_ROWS * limits.kurtosis))


@register_jitable
def relative_error(seen: Moments, limits: Limits) -> float:
    """Return the relative standard error of the mean square of rows."""
    if seen.square == 0.0:
        return 0.0
    kurtosis = max(limits.kurtosis, seen.fourth / seen.square / seen.square)  # square² may be zero
    return math.sqrt((kurtosis - 1.0) / seen.n)


@register_jitable
def upper_smoothness(s2: float, limits: Limits) -> float:
    """Bound the third derivative of G when the batch has s²."""
    above = np.searchsorted(limits.variance_grid, s2)
    return limits.smoothness[above] if above < limits.variance_grid.size else np.inf
