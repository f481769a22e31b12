"""Blocks of groups that decide together.

A decision on one group needs a batch large enough to know its own variance, however little the
group has to say. A decision on many groups needs hardly more rows, but its log ratio varies with
all of them, and so do the rows that the batch must stand for. So neighbours are joined until the
standard deviation of the log ratio of a full-size move, or the sum of its absolute values over
rows, would exceed a limit; a group that exceeds it alone is a block of its own.
"""

import numpy as np

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.kernels.by_group import GroupTable
from pymc_minibatch.kernels.sweep import Grouping
from pymc_minibatch.latent.batched import solve_blocks_transposed
from pymc_minibatch.latent.factors import Factor
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.moves.decisions import LevelWalks
from pymc_minibatch.latent.surrogate import PredictorState, Surrogate
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall.passes import over_chunks

__all__ = ["choose_blocks", "choose_walks"]

LIMIT = 0.4
"""Standard deviation of the log ratio of a block."""

SPREAD = 0.7
"""Sum over the rows of a block of the absolute values of their log ratios."""

AWAY = 2.5
"""Standard deviations from its center at which the density of a level is compared with a
Gaussian's."""

LEAST_WALKS, MOST_WALKS, SLIGHT, WALKS_A_NAT = 0.002, 0.5, 0.3, 0.5
"""How often levels walk in a sweep, and how much more often for each nat by which their
density exceeds the Gaussian's out there by more than is slight. All of their rows decide then."""

ATYPICAL = 2.5
"""Standard deviations beyond the usual distance from which on all levels do so more often."""

TRIALS = 3
PRIOR_WEIGHT = 1.0
"""The variance of a group is estimated from few trials, and drawn towards the mean of all."""


def choose_blocks(
    surrogate: Surrogate,
    hyper: np.ndarray,
    factor: Factor,
    levels: GroupEffects,
    rows: RowFunctions,
    temperature: float,
    table: GroupTable,
) -> Grouping:
    """Join groups by what a few full-size moves give, in one pass over the rows for each."""
    rng = np.random.default_rng(3)
    given = surrogate.conditional(hyper)
    squares, spreads = np.zeros(factor.n_levels), np.zeros(factor.n_levels)
    for _ in range(TRIALS):
        point = given.frame.color(given.layout.noise(rng))
        proposed = point.copy()
        before = surrogate.read(point)
        mean_given, cholesky = surrogate.given_others(given, point, before, levels)
        noise = solve_blocks_transposed(cholesky, rng.standard_normal(levels.latent.shape))
        proposed[levels.latent] = mean_given + noise
        predictors = before, surrogate.read_levels(proposed, before, levels)
        ratios = _changes(surrogate, rows, levels, predictors)
        sums = np.bincount(factor.row_levels, ratios, minlength=factor.n_levels)
        squares += (sums / temperature) ** 2
        spreads += np.bincount(factor.row_levels, np.abs(ratios), minlength=factor.n_levels)
    variances = _averaged(squares) / LIMIT**2
    spreads = _averaged(spreads / temperature) / SPREAD
    return Grouping(join(np.stack([variances, spreads], axis=1)), table)


def choose_walks(
    surrogate: Surrogate,
    hyper: np.ndarray,
    factor: Factor,
    levels: GroupEffects,
    rows: RowFunctions,
    temperature: float,
) -> LevelWalks:
    """Return how often each level is to walk, by how heavy its tails are.

    The density of each is compared with a Gaussian's to both sides of its center, in one pass over
    the rows for each.
    """
    rng = np.random.default_rng(4)
    given = surrogate.conditional(hyper)
    point = given.frame.origin.copy()
    predictor = surrogate.read(point)
    mean, cholesky = surrogate.given_others(given, point, predictor, levels)
    point[levels.latent] = mean
    before = surrogate.read(point)
    directions = rng.standard_normal(levels.latent.shape)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    heavier = np.zeros(factor.n_levels)
    for away in (AWAY, -AWAY):
        proposed = point.copy()
        proposed[levels.latent] = mean + solve_blocks_transposed(cholesky, away * directions)
        predictors = before, surrogate.read_levels(proposed, before, levels)
        of_rows = _changes(surrogate, rows, levels, predictors)
        ratio = np.bincount(factor.row_levels, of_rows, minlength=factor.n_levels) / temperature
        ratio += surrogate.level_ratios(given, (point, proposed), predictors, levels)
        heavier = np.maximum(heavier, np.nan_to_num(ratio, nan=0.0, posinf=0.0))
    share = WALKS_A_NAT * (heavier - SLIGHT)
    return LevelWalks(np.clip(share, LEAST_WALKS, MOST_WALKS), ATYPICAL)


def _changes(
    surrogate: Surrogate,
    rows: RowFunctions,
    levels: GroupEffects,
    predictors: tuple[PredictorState, PredictorState],
) -> np.ndarray:
    """Return how the remainder of each row changes, shape (N,)."""
    at, cubic = surrogate.expansion.at, surrogate.cubic(levels.rows)
    first, second = (surrogate.seen_by_rows(predictor, cubic) for predictor in predictors)

    def change(*batch: np.ndarray) -> np.ndarray:
        here, there = rows.remainders(first, second, at, batch)
        return there - here

    chunks = over_chunks(change, surrogate.tall.data, "Looking at groups")
    changes = np.concatenate([chunk for _, chunk in chunks])
    return np.nan_to_num(changes, posinf=1e3, neginf=-1e3)


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
