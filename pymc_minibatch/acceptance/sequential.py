"""Read rows until the mean log ratio is clearly above or below a threshold, then decide.

Metropolis's test accepts iff the mean of the log ratios of all rows exceeds a threshold that is
known before any row is read::

    mean > mu0 = T (log u - psi) / N

Rows are drawn without replacement, and after each look at those seen so far the test stops if their
mean is further from mu0 than some half width. The tests that do this differ in the half width and
in how many rows they add. When more than half of the rows would be needed, all are read and the
decision is exact.

References
----------
Korattikara, Chen and Welling (2014), Austerity in MCMC Land, section 4. Bardenet, Doucet and Holmes
(2014), Towards scaling up Markov chain Monte Carlo, section 3.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.acceptance.decision import (
    Decision,
    RowReaders,
    Rows,
    Scan,
    batch_variance,
    decided_by_all,
    decided_by_batch,
    rejected,
    takes_all,
)
from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.reference.density import Density

__all__ = ["build_sequential", "extend_moments"]


def build_sequential(
    readers: RowReaders, begin: Any, half_width: Any, extend: Any
) -> Callable[..., Decision]:
    """Compose a sequential test with the functions that read the data.

    Parameters
    ----------
    readers
        The functions that read the data.
    begin
        ``(mu0, scan, n_rows, details) -> (n, error, plan)``: rows of the first look, the error to
        report and whatever the two functions below need.
    half_width
        ``(n, look, sd, n_rows, scan, plan) -> float``, with `sd` that of the n log ratios seen.
    extend
        ``(n, plan) -> n``, the rows of the next look.

    Returns
    -------
    decide
        ``(rng, psi, current, proposed, density, rows, (temperature, scans, details)) -> Decision``,
        where `scans` tells whether all rows are scanned first.
    """
    draw_log_ratios, sum_log_ratios, scan_log_ratios = readers

    @jit_part
    def decide(
        rng: np.random.Generator,
        psi: float,
        current: np.ndarray,
        proposed: np.ndarray,
        density: Density,
        rows: Rows,
        parameters: tuple[float, bool, Any],
    ) -> Decision:
        temperature, scans, details = parameters
        n_rows = density.data[0].shape[0]
        mu0 = -temperature * (rng.standard_exponential() + psi) / n_rows
        scan, n_scanned = Scan(0.0, 0.0, 0.0, -1), 0
        if scans:
            scan, n_scanned = scan_log_ratios(current, proposed, density), n_rows
            if scan.mean == -np.inf:
                return rejected(0, False, scan.impossible_row, n_scanned)
        n, error, plan = begin(mu0, scan, n_rows, details)
        n_seen: Any = np.int64(0)
        look = np.int64(0)
        mean = squares = 0.0
        while not takes_all(n, n_rows):
            impossible = draw_log_ratios(rng, current, proposed, density, rows, n_seen, n)
            added = rows.log_ratios[n_seen:n]
            if impossible >= 0 or np.min(added) == -np.inf:
                return rejected(n, n_seen > 0, impossible, n_scanned)
            mean, squares = extend_moments(n_seen, mean, squares, added)
            look += 1
            sd = math.sqrt(squares / (n - 1))
            if abs(mean - mu0) >= half_width(n, look, sd, n_rows, scan, plan):
                s2 = batch_variance(n_rows / temperature, sd**2, n, n_rows)
                return decided_by_batch(mean > mu0, n, n, n_seen > 0, s2, error, n_scanned)
            n_seen, n = n, extend(n, plan)
        total, impossible = sum_log_ratios(current, proposed, density)
        return decided_by_all(total > n_rows * mu0, n_rows, n_seen, impossible, n_scanned)

    return decide


@register_jitable
def extend_moments(n: int, mean: float, squares: float, values: np.ndarray) -> tuple[float, float]:
    """Add values to n others: their mean, and the sum of squared deviations from it."""
    added = np.sum(values) / values.size
    for value in values:
        squares += (value - added) ** 2
    squares += (added - mean) ** 2 * n * values.size / (n + values.size)
    return mean + (added - mean) * values.size / (n + values.size), squares
