"""Grow a batch until its noise is known to be small enough, then decide.

A batch of b rows, drawn uniformly without replacement or by size with replacement, gives an
estimate of the log ratio delta with approximately normal error of variance s². The tests that use
it make up a smooth distribution function G of which that error is a part, so two things are asked
of a batch: s² must be below the variance that the test has room for, and the bound on the error of
the acceptance probability below its limit. When more than half as many rows as there are would be
needed, all are read and the test is exact.

The bound has two parts, both of first order in s³ / √b, with X the deviation of a row's log ratio
from the mean (by size: of r / (N p)) and c the factor on the sum over the batch:

- the batch is not exactly normal. In Lindeberg's argument each of its terms is exchanged for a
  normal one in turn, and the expectation of G changes by at most
  ``sup|G'''| / 6 * b c³ (E|X|³ + E|Z|³ sd³)`` in all;
- s² is estimated from the same batch, and for skewed rows its error goes with that of the mean.
  Since dG/ds² = -G''/2, this changes the expectation by ``sup|G'''| / 2 * b c³ |E X³|``.

The moments are those of the batch, so what is reported is an estimate of the bound.

References
----------
Seita, Pan, Chen and Canny (2017), An Efficient Minibatch Acceptance Test for Metropolis-Hastings,
algorithm 1, for the growing batch. Lindeberg (1922), Eine neue Herleitung des
Exponentialgesetzes in der Wahrscheinlichkeitsrechnung, for the exchange.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.acceptance.decision import (
    Decision,
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
    "FirstBatch",
    "Limits",
    "build_growing",
    "new_first_batch",
    "rows_wanted",
    "tune_first_batch",
    "upper_smoothness",
]

HEADROOM = 0.9
"""Share of the variance limit that a grown batch aims at, since s² is itself an estimate."""

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
    """

    temperature: float
    batch_size: np.ndarray
    variance: float
    error: float
    own_error: float
    variance_grid: np.ndarray
    smoothness: np.ndarray


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


def build_growing(
    draw_log_ratios: Callable[..., int],
    sum_log_ratios: Callable[..., tuple[float, int]],
    accept: Any,
    exact_probability: Any,
) -> Callable[..., Decision]:
    """Compose a test with the functions that read the data.

    Parameters
    ----------
    draw_log_ratios, sum_log_ratios
        See :func:`pymc_minibatch.kernels.rows.make_readers`.
    accept
        ``(rng, estimate, s2, details) -> bool`` decides from an estimate of delta with variance s².
    exact_probability
        ``(delta,) -> float``, the acceptance probability where all rows are read.

    Returns
    -------
    decide
        ``(rng, psi, current, proposed, density, rows, (limits, details)) -> Decision``.
    """

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
        while not takes_all(n, n_rows):
            impossible = draw_log_ratios(rng, current, proposed, density, rows, n_seen, n)
            mean, variance, skew, third = moments(rows.log_ratios[:n])
            if impossible >= 0 or mean == -np.inf:
                return rejected(n, n_seen > 0, impossible, 0)
            s2, error = noise(n, rows.population, scale, variance, skew, third, limits)
            if s2 < limits.variance and error <= limits.error:
                accepted = accept(rng, psi + scale * mean, s2, details)
                return decided_by_batch(accepted, n, n_seen > 0, s2, min(1.0, error), 0)
            n_seen = n
            while not takes_all(n, n_rows):  # find the batch that should do
                n = math.ceil(GROWTH * n)
                s2, error = noise(n, rows.population, scale, variance, skew, third, limits)
                if s2 <= HEADROOM * limits.variance and error <= limits.error:
                    break
        total, impossible = sum_log_ratios(current, proposed, density)
        accepted = rng.random() < exact_probability(psi + total / limits.temperature)
        return decided_by_all(accepted, n_rows, n_seen, impossible, 0)

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
def moments(x: np.ndarray) -> tuple[float, float, float, float]:
    """Mean, variance (ddof 1), third central moment and third absolute central moment."""
    mean = np.sum(x) / x.size
    squares = cubes = absolute_cubes = 0.0
    for value in x:
        deviation = value - mean
        square = deviation**2
        squares += square
        cubes += square * deviation
        absolute_cubes += square * abs(deviation)
    return mean, squares / (x.size - 1), cubes / x.size, absolute_cubes / x.size


@register_jitable
def noise(
    n: int,
    population: float,
    scale: float,
    variance: float,
    skew: float,
    third: float,
    limits: Limits,
) -> tuple[float, float]:
    """Return s², the variance of ``scale * mean of n rows``, and the bound on the test's error.

    `population` is as in :class:`~pymc_minibatch.acceptance.decision.Rows`.
    """
    s2 = batch_variance(scale, variance, n, population)
    unevenness = (third + NORMAL_THIRD_MOMENT * variance**1.5) / 6 + abs(skew) / 2
    if unevenness == 0.0:  # smoothness may be infinite
        return s2, limits.own_error
    return s2, limits.own_error + upper_smoothness(s2, limits) * scale**3 / n**2 * unevenness


@register_jitable
def upper_smoothness(s2: float, limits: Limits) -> float:
    """Bound the third derivative of G when the batch has s²."""
    above = np.searchsorted(limits.variance_grid, s2)
    return limits.smoothness[above] if above < limits.variance_grid.size else np.inf
