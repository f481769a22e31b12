"""Batches of rows, as decisions draw them, compared with the rows that they stand for.

With p_n the probability that a draw takes row n, and r_n what it adds to a log ratio, decisions
estimate the sum of all r by the mean of r / p over a batch. This is right whatever the rows are if

- p is a distribution: its sum is 1;
- rows are drawn by it: how often, by ranges of their number and of their size, or by groups, as a
  chi-square test sees it;
- a row that was drawn counts 1 / (N p) times: compared row by row, without chance;
- s², the noise that a decision reckons with, is that of its batch.

A mean of estimates beside the sum of all rows would show the same with much less power: the sum is
often next to nothing, as rows of either sign cancel. The batches are made by the kernel of the
chain, at moves that it proposes, and are larger than its own so that errors of 10 % are seen.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import chdtri

from pymc_minibatch.kernels.by_group import GroupTable
from pymc_minibatch.witness.comparison import Comparison

__all__ = [
    "MOST_ROWS",
    "Batch",
    "Probabilities",
    "compare_batches",
    "expected_rows",
    "first_batch",
    "n_batches",
    "probabilities",
]

MOST_ROWS = 2**25
"""Of more rows no probabilities are computed (0.3 GB), and no batches compared."""

DRAWN_ROWS, BATCH_ROWS, MOST_BATCHES = 2**14, 2**12, 64
"""Rows to draw in all, in a batch, and batches. Of 16,000 rows, a stratum with a tenth of the draws
that is drawn by a quarter too often is off by 10 standard errors, and is found."""

FALSE_ALARMS = 1e-10
"""Probability with which right draws are taken for wrong ones, in one comparison."""

SIGMAS = 6.5
"""The same in standard deviations of a normal distribution, for both sides."""

LEAST_EXPECTED = 30.0
"""Draws that a stratum must expect to be tested by itself."""

RANGES = 64
"""Strata by number of the row."""

MOST_BLOCKS = 512
"""Groups that are strata by themselves; of more, some together are one."""

SAME, SAME_TERMS, ROUNDED = 1e-6, 1e-3, 1e-12
"""Relative differences of numbers and of terms of rows, whose predictors may be products in single
precision, and an absolute one for rows that are next to nothing: a remainder is what is left of
terms about 1."""


class Batch(NamedTuple):
    """What one decision has read.

    Attributes
    ----------
    drawn : ndarray of int64, shape (b,)
        Numbers of its rows.
    terms : ndarray, shape (b,)
        What the kernel made of them: r / (N p).
    changes : ndarray, shape (b,)
        r of each, computed anew.
    noise : (float, float)
        s² as the decision reports it and as it follows from `terms`; not a number if it tells none.
    rows : (float, float, float)
        Rows that were drawn, as many as are expected and the variance of that; not a number if
        their number is not random.
    """

    drawn: np.ndarray
    terms: np.ndarray
    changes: np.ndarray
    noise: tuple[float, float] = (np.nan, np.nan)
    rows: tuple[float, float, float] = (np.nan, np.nan, np.nan)


class Probabilities(NamedTuple):
    """With which rows are drawn.

    Attributes
    ----------
    p : ndarray, shape (N,)
        The probability of each.
    parts : ndarray of int64, shape (N,)
        To which part of what they are drawn by each belongs: a range of sizes, or a group.
    """

    p: np.ndarray
    parts: np.ndarray


def first_batch(n_rows: int) -> int:
    """Return the rows of a batch that is looked at: decisions read all if it has more than half."""
    return max(2, min(BATCH_ROWS, n_rows // 3))


def n_batches(n_rows: int) -> int:
    """Return how many batches are looked at."""
    return min(MOST_BATCHES, -(-DRAWN_ROWS // first_batch(n_rows)))


def expected_rows(total: float, factor: float, temperature: float) -> float:
    """Return the mean number of rows of an exact decision, C M / T; see :class:`.Exact`."""
    return total * factor / temperature


def probabilities(table: Any, n_rows: int) -> Probabilities | None:
    """Return the probabilities of rows, as a table says; None if they are drawn uniformly."""
    if len(table) == 0 or len(table[0]) == 0:
        return None
    if isinstance(table, GroupTable):
        return _of_groups(table)
    p, parts, counts = np.zeros(n_rows), np.zeros(n_rows, dtype=np.int64), np.diff(table.starts)
    with np.errstate(divide="ignore"):
        p[table.order] = np.repeat(1.0 / (n_rows * table.weights), counts)
    parts[table.order] = np.repeat(np.arange(counts.size), counts)
    return Probabilities(p, parts)


def _of_groups(table: GroupTable) -> Probabilities:
    """Return those of rows that are drawn by group, as they were at the last decision."""
    counts = np.diff(table.starts)
    sizes = np.diff(table.sums, prepend=0.0)
    firsts = table.starts[:-1][counts > 0]
    sizes[firsts] = table.sums[firsts]
    group = np.repeat(np.arange(counts.size), counts)
    p, parts = np.empty(group.size), np.empty(group.size, dtype=np.int64)
    p[table.rows] = sizes * table.factors[group] / table.shares[-1]
    parts[table.rows] = group * min(counts.size, MOST_BLOCKS) // counts.size
    return Probabilities(p, parts)


def compare_batches(
    batches: Sequence[Batch],
    probabilities: Probabilities | None,
    n_rows: int,
    names: tuple[str, ...],
) -> Iterator[Comparison]:
    """Compare batches that were drawn with the same probabilities.

    Parameters
    ----------
    batches
        What decisions have read.
    probabilities : Probabilities or None
        Those of rows; None for all the same.
    n_rows : int
        N.
    names
        The variables that the moves change.
    """
    p = None if probabilities is None else probabilities.p
    if p is not None:
        yield _comparison("probabilities of rows", names, float(p.sum()), 1.0, SAME)
    made = [batch for batch in batches if batch.drawn.size]
    if made:
        yield _of_terms(made, p, n_rows, names)
        drawn = np.concatenate([batch.drawn for batch in made])
        yield from _of_counts(drawn, probabilities, n_rows, names)
    for batch in made:
        found, right = batch.noise
        if np.isfinite(found + right) and abs(found - right) > SAME * right + ROUNDED:
            yield _comparison("noise of a batch", names, found, right, ROUNDED)
            break
    rows = np.array([batch.rows for batch in batches]).reshape(-1, 3)
    rows = rows[np.isfinite(rows).all(axis=1)]
    if rows.size:
        found, right, variance = rows.sum(axis=0)
        yield _comparison(
            "number of rows of a decision", names, found, right, SIGMAS * float(variance) ** 0.5
        )


def _comparison(
    what: str, names: tuple[str, ...], found: float, right: float, allowed: float
) -> Comparison:
    """Compare two numbers in units of their difference that is allowed."""
    unit = max(allowed, SAME * abs(right), np.finfo(float).tiny)
    return Comparison(
        move=what,
        names=names,
        rests_on="batches stand for all rows",
        log_ratio=found / unit,
        expected=right / unit,
        rounding=1.0,
        says=f"Batches of rows do not represent all rows: a decision has {found:.6g} for {what}, "
        f"but {right:.6g} is correct. Its estimates of log ratios are biased",
    )


def _of_terms(
    batches: Sequence[Batch], p: np.ndarray | None, n_rows: int, names: tuple[str, ...]
) -> Comparison:
    """Compare what rows count, at the worst row."""
    worst: tuple[float, float, float, float] = (-np.inf, 0.0, 0.0, 1.0)
    for batch in batches:
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = np.ones(batch.drawn.size) if p is None else 1.0 / (n_rows * p[batch.drawn])
            right = batch.changes * weights
            bank = np.sqrt(np.sum(right[np.isfinite(right)] ** 2) / right.size)
            allowed = SAME_TERMS * (np.abs(right) + bank) + ROUNDED * weights
            excess = np.abs(batch.terms - right) / allowed
        excess[(batch.terms == right) | ~np.isfinite(batch.changes)] = 0.0
        i = int(np.argmax(np.nan_to_num(excess, nan=np.inf)))
        if excess[i] > worst[0]:
            worst = float(excess[i]), float(batch.terms[i]), float(right[i]), float(allowed[i])
    return _comparison("the weight of a row", names, *worst[1:])


def _of_counts(
    drawn: np.ndarray, probabilities: Probabilities | None, n_rows: int, names: tuple[str, ...]
) -> Iterator[Comparison]:
    """Compare how often rows are drawn, by their numbers and by what they are drawn by."""
    edges = -(-np.arange(RANGES + 1) * n_rows // RANGES)
    if probabilities is None:
        shares = np.diff(edges) / n_rows
    else:
        shares = np.diff(np.concatenate([[0.0], np.cumsum(probabilities.p)])[edges])
    yield _of_strata("rows by number", RANGES * drawn // n_rows, shares, drawn.size, names)
    if probabilities is not None:
        p, parts = probabilities
        shares = np.bincount(parts, p)
        yield _of_strata("rows by size or group", parts[drawn], shares, drawn.size, names)


def _of_strata(
    what: str, seen: np.ndarray, shares: np.ndarray, n: int, names: tuple[str, ...]
) -> Comparison:
    """Compare the counts in strata with what is expected, by a chi-square statistic."""
    counts = np.bincount(seen, minlength=shares.size).astype(float)
    expected = n * shares
    few = expected < LEAST_EXPECTED
    counts = np.append(counts[~few], counts[few].sum())
    expected = np.append(expected[~few], expected[few].sum())
    tested = expected >= LEAST_EXPECTED
    if counts[~tested].sum() > LEAST_EXPECTED * 3:  # next to never, by their probabilities
        return _comparison(f"{what}: rare ones", names, counts[~tested].sum(), 0.0, LEAST_EXPECTED)
    counts, expected = counts[tested], expected[tested]
    squares = (counts - expected) ** 2 / np.maximum(expected, 1.0)
    most = float(chdtri(max(counts.size - 1, 1), FALSE_ALARMS))
    worst = int(np.argmax(squares)) if squares.size else 0
    if not squares.size or float(squares.sum()) <= most:
        return _comparison(f"draws of {what}", names, 0.0, 0.0, 1.0)
    allowed = float(np.sqrt(most * expected[worst] / counts.size)) / SIGMAS
    return _comparison(f"draws of {what}", names, counts[worst], expected[worst], allowed)
