"""Blocks of groups that decide together.

A decision on one group needs a batch large enough to know its own variance, however little the
group has to say. A decision on many groups needs hardly more rows, but its log ratio varies with
all of them, and so do the rows that the batch must stand for. So neighbours are joined until the
standard deviation of the log ratio of a full-size move, or the sum of its absolute values over
rows, would exceed a limit; a group that exceeds it alone is a block of its own.
"""

from typing import Any

import numpy as np

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.kernels.by_group import GroupTable
from pymc_minibatch.kernels.sweep import Grouping
from pymc_minibatch.latent.arrow import solve_blocks_transposed
from pymc_minibatch.latent.factors import Factor
from pymc_minibatch.latent.field import Levels
from pymc_minibatch.latent.surrogate import Surrogate
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall.passes import over_chunks

__all__ = ["choose_blocks"]

LIMIT = 0.4
"""Standard deviation of the log ratio of a block."""

SPREAD = 0.7
"""Sum over the rows of a block of the absolute values of their log ratios."""

TRIALS = 3
PRIOR_WEIGHT = 1.0
"""The variance of a group is estimated from few trials, and drawn towards the mean of all."""


def choose_blocks(
    surrogate: Surrogate,
    hyper: np.ndarray,
    factor: Factor,
    levels: Levels,
    rows: RowFunctions,
    temperature: float,
    table: GroupTable,
) -> Grouping:
    """Join groups by what a few full-size moves give, in one pass over the rows for each."""
    rng = np.random.default_rng(3)
    at = surrogate.expansion.at
    given = surrogate.conditional(hyper)
    squares, spreads = np.zeros(factor.n_levels), np.zeros(factor.n_levels)
    for _ in range(TRIALS):
        point = given.frame.color(given.layout.noise(rng))
        proposed = point.copy()
        before = surrogate.read(point)
        mean_given, cholesky = surrogate.given_others(given, point, before, levels)
        noise = solve_blocks_transposed(cholesky, rng.standard_normal(levels.latent.shape))
        proposed[levels.latent] = mean_given + noise
        readings = before, surrogate.read_levels(proposed, before, levels)
        cubic = surrogate.cubic(levels.rows)
        seen = [surrogate.seen_by_rows(reading, cubic) for reading in readings]

        def change(*batch: np.ndarray, seen: Any = seen) -> np.ndarray:
            here, there = rows.remainders(seen[0], seen[1], at, batch)
            return there - here

        chunks = over_chunks(change, surrogate.tall.data, "Looking at groups")
        changes = np.concatenate([chunk for _, chunk in chunks])
        ratios = np.nan_to_num(changes, posinf=1e3, neginf=-1e3)
        sums = np.bincount(factor.row_levels, ratios, minlength=factor.n_levels)
        squares += (sums / temperature) ** 2
        spreads += np.bincount(factor.row_levels, np.abs(ratios), minlength=factor.n_levels)
    variances = _averaged(squares) / LIMIT**2
    spreads = _averaged(spreads / temperature) / SPREAD
    return Grouping(join(np.stack([variances, spreads], axis=1)), table)


def _averaged(sums: np.ndarray) -> np.ndarray:
    """Average sums of few trials, drawn towards the mean of all groups."""
    return (sums + PRIOR_WEIGHT * sums.mean() / TRIALS) / (TRIALS + PRIOR_WEIGHT)


@jit_kept
def join(shares: np.ndarray) -> np.ndarray:
    """Return where blocks begin, and the end: runs of groups whose shares add up to 1 at most."""
    first = [0]
    totals = np.zeros(shares.shape[1])
    for g in range(shares.shape[0]):
        if np.any(totals + shares[g] > 1.0) and g > first[-1]:
            first.append(g)
            totals[:] = 0.0
        totals += shares[g]
    first.append(shares.shape[0])
    return np.array(first)
