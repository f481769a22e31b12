"""Blocks of groups that decide together.

A decision on one group needs a batch large enough to know its own variance, however little the
group has to say. A decision on many groups needs hardly more rows, but its log ratio varies with
all of them. So neighbours are joined until the standard deviation of the log ratio of a full-size
move would exceed a limit; a group that exceeds it alone is a block of its own.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_minibatch.latent.arrow import solve_blocks_transposed
from pymc_minibatch.latent.factors import Factor
from pymc_minibatch.latent.field import Levels
from pymc_minibatch.latent.surrogate import Surrogate
from pymc_minibatch.tall.passes import over_chunks

__all__ = ["Blocks", "choose_blocks"]

LIMIT = 0.4
"""Standard deviation of the log ratio of a block."""

TRIALS = 3
PRIOR_WEIGHT = 1.0
"""The variance of a group is estimated from few trials, and drawn towards the mean of all."""


class Blocks(NamedTuple):
    """Runs of groups.

    Attributes
    ----------
    first : ndarray of int64, shape (n_blocks + 1,)
        The first group of each block.
    rows : ndarray, shape (N,)
        Row numbers sorted by group.
    starts : ndarray of int64, shape (n_blocks + 1,)
        Where the rows of each block start among them.
    """

    first: np.ndarray
    rows: np.ndarray
    starts: np.ndarray


def choose_blocks(
    surrogate: Surrogate,
    hyper: np.ndarray,
    factor: Factor,
    levels: Levels,
    remainder: Callable[..., np.ndarray],
    temperature: float,
) -> Blocks:
    """Join groups by what a few full-size moves give, in one pass over the rows for each."""
    rng = np.random.default_rng(3)
    field, at = surrogate.field, surrogate.expansion.at
    given = surrogate.conditional(hyper)
    squares = np.zeros(factor.n_levels)
    for _ in range(TRIALS):
        point, proposed = given.point.copy(), given.point.copy()
        dense, groups = given.factor.color(
            rng.standard_normal(given.dense.size), rng.standard_normal(given.groups.shape)
        )
        field.latent.put(point, given.dense + dense, given.groups + groups)
        proposed[:] = point
        mean_given, cholesky = surrogate.given_others(given, point, levels)
        noise = solve_blocks_transposed(cholesky, rng.standard_normal(levels.latent.shape))
        proposed[levels.latent] = mean_given + noise
        phis = surrogate.phi(point), surrogate.phi(proposed)
        differences = [
            chunk
            for _, chunk in over_chunks(
                lambda *batch, phis=phis: (
                    remainder(phis[1], at, *batch) - remainder(phis[0], at, *batch)
                ),
                surrogate.tall.data,
                "Looking at groups",
            )
        ]
        ratios = np.nan_to_num(np.concatenate(differences), posinf=1e3, neginf=-1e3)
        sums = np.bincount(factor.row_levels, ratios, minlength=factor.n_levels)
        squares += (sums / temperature) ** 2
    mean = squares.mean() / TRIALS
    variances = (squares + PRIOR_WEIGHT * mean) / (TRIALS + PRIOR_WEIGHT)
    rows, starts = factor.by_level()
    first = [0]
    total = 0.0
    for g, variance in enumerate(variances):
        if total + variance > LIMIT**2 and g > first[-1]:
            first.append(g)
            total = 0.0
        total += variance
    blocks = np.array([*first, variances.size], dtype=np.int64)
    return Blocks(blocks, rows, starts[blocks])
