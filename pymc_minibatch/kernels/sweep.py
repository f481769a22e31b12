"""A sweep over groups: each block of them decides by itself, from its own rows.

Given everything else, the effects of different groups are independent. So all are proposed at once,
the rows of many blocks are evaluated by one call, and each block accepts or rejects. A block of few
rows is read whole, which makes its decision exact. Of a larger one a batch is drawn, with
replacement and in proportion to the sizes of its rows, and grows until the test is sure enough or
half of the block would be read; then it is read whole.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from pymc_minibatch.acceptance.decision import batch_variance, takes_all
from pymc_minibatch.acceptance.growing import (
    Limits,
    does,
    is_sure,
    larger_batch,
    moments,
    pilot_rows,
)
from pymc_minibatch.jit.entry import answer_signals
from pymc_minibatch.kernels.by_group import GroupTable, draw_of_groups
from pymc_minibatch.kernels.rows import log_ratios_of, make_take
from pymc_minibatch.reference.density import Density

__all__ = ["Grouping", "make_sweep"]

CHUNK_ROWS = 2048
"""Rows evaluated at once."""


class Grouping(NamedTuple):
    """Which rows a block has.

    Attributes
    ----------
    first : ndarray of int64, shape (n_blocks + 1,)
        The first group of each block, and the end.
    table : GroupTable
        The rows of the groups.
    """

    first: np.ndarray
    table: GroupTable


def make_sweep(ndims: Sequence[int], accept: Any, exact_probability: Any) -> Callable[..., Any]:
    """Assemble a sweep.

    Parameters
    ----------
    ndims
        Number of dimensions of each array of row data.
    accept, exact_probability
        The test on an estimate, and on a log ratio that is known, as for
        :func:`~pymc_minibatch.acceptance.growing.build_growing`.

    Returns
    -------
    sweep
        ``(rng, current, proposed, grouping, density, (limits, details), accepted)`` decides on each
        block by its rows alone; writes `accepted` and returns rows evaluated, the mean of s², the
        largest error bound, decisions read whole, and a row that is impossible at the current
        point, or -1.
    """
    take = make_take(ndims)

    @njit
    def sweep(
        rng: np.random.Generator,
        current: np.ndarray,
        proposed: np.ndarray,
        grouping: Grouping,
        density: Density,
        parameters: tuple[Limits, Any],
        accepted: np.ndarray,
    ) -> tuple[int, float, float, int, int]:
        limits, details = parameters
        bounds, table = grouping
        rows, starts = table.rows, table.starts[bounds]
        n_blocks, first_batch = starts.size - 1, limits.batch_size[0]
        capacity = max(CHUNK_ROWS, 2 * first_batch)
        chosen = np.empty(capacity, np.int64)
        weights, ratios = np.empty(capacity), np.empty(capacity)
        n_evaluated = n_whole = 0
        variance_sum = worst = 0.0
        first = 0
        while first < n_blocks:
            answer_signals()
            # Gather the first batches of as many blocks as one chunk holds.
            n, last = 0, first
            while last < n_blocks:
                size = starts[last + 1] - starts[last]
                whole = size <= 2 * first_batch
                count = size if whole else first_batch
                if n + count > capacity:
                    break
                if whole:
                    chosen[n : n + count] = rows[starts[last] : starts[last + 1]]
                    weights[n : n + count] = 1.0
                else:
                    draw_of_groups(
                        rng, table, bounds[last], bounds[last + 1],
                        chosen[n : n + count], weights[n : n + count],
                    )  # fmt: skip
                n += count
                last += 1
            batch = take(density.data, chosen[:n])
            bad = log_ratios_of(current, proposed, density, batch, ratios[:n])
            if bad >= 0:
                return n_evaluated, 0.0, 0.0, n_whole, chosen[bad]
            ratios[:n] *= weights[:n]
            n_evaluated += n
            n = 0
            for g in range(first, last):
                size = starts[g + 1] - starts[g]
                if size <= 2 * first_batch:
                    total = np.sum(ratios[n : n + size]) / limits.temperature
                    accepted[g] = math.log(rng.random()) < total
                    n_whole += 1
                    n += size
                    continue
                outcome = decide(
                    rng, current, proposed, density, table, bounds[g], bounds[g + 1],
                    ratios[n : n + first_batch], limits, details,
                )  # fmt: skip
                accepted[g], read, s2, error, whole_read, impossible = outcome
                if impossible >= 0:
                    return n_evaluated, 0.0, 0.0, n_whole, impossible
                n_evaluated += read
                n_whole += whole_read
                variance_sum += s2
                worst = max(worst, error)
                n += first_batch
            first = last
        return n_evaluated, variance_sum / max(n_blocks, 1), worst, n_whole, -1

    @njit
    def decide(
        rng: np.random.Generator,
        current: np.ndarray,
        proposed: np.ndarray,
        density: Density,
        table: GroupTable,
        first: int,
        last: int,
        first_ratios: np.ndarray,
        limits: Limits,
        details: Any,
    ) -> tuple[bool, int, float, float, bool, int]:
        """Grow the batch of one block until the test is sure; return the further rows read."""
        members = table.rows[table.starts[first] : table.starts[last]]
        size, scale = members.size, members.size / limits.temperature
        values, n, read = first_ratios, first_ratios.size, 0
        seen, error, asked = moments(values), 0.0, False
        while seen.mean != -np.inf:
            answer_signals()
            s2 = batch_variance(scale, seen.variance, n, np.inf)
            decides = s2 < limits.variance
            if not asked:
                decides, error = is_sure(n, np.inf, scale, seen, limits)
            if not decides:
                size_of_pilot = pilot_rows(n, limits)
                if takes_all(n + size_of_pilot, size):
                    break
                others, bad = drawn(
                    rng, current, proposed, density, table, first, last, size_of_pilot
                )
                read += size_of_pilot
                pilot = moments(others)
                if bad >= 0 or pilot.mean == -np.inf:
                    return False, read, 0.0, 0.0, False, bad
                decides, error = does(n, np.inf, scale, pilot, 1.0, limits)
                s2, asked = min(s2, limits.variance), True
            if decides:
                taken = accept(rng, scale * seen.mean, s2, details)
                return taken, read, s2, min(1.0, error), False, -1
            n, error = larger_batch(n, size, np.inf, scale, pilot, limits)
            if takes_all(n, size):
                break
            more, bad = drawn(rng, current, proposed, density, table, first, last, n - values.size)
            read += more.size
            if bad >= 0:
                return False, read, 0.0, 0.0, False, bad
            values = np.concatenate((values, more))
            seen = moments(values)
        if seen.mean == -np.inf:
            return False, read, 0.0, 0.0, False, -1
        total = 0.0
        for start in range(0, size, CHUNK_ROWS):
            answer_signals()
            chosen = members[start : start + CHUNK_ROWS].astype(np.int64)
            added = np.empty(chosen.size)
            bad = log_ratios_of(current, proposed, density, take(density.data, chosen), added)
            if bad >= 0:
                return False, read, 0.0, 0.0, True, chosen[bad]
            total += np.sum(added)
        accepted = rng.random() < exact_probability(total / limits.temperature)
        return accepted, read + size, 0.0, 0.0, True, -1

    @njit
    def drawn(
        rng: np.random.Generator,
        current: np.ndarray,
        proposed: np.ndarray,
        density: Density,
        table: GroupTable,
        first: int,
        last: int,
        n: int,
    ) -> tuple[np.ndarray, int]:
        """Return the log ratios of n rows of a block, and a row that is impossible, or -1."""
        chosen, weights, values = np.empty(n, np.int64), np.empty(n), np.empty(n)
        draw_of_groups(rng, table, first, last, chosen, weights)
        bad = log_ratios_of(current, proposed, density, take(density.data, chosen), values)
        values *= weights
        return values, chosen[bad] if bad >= 0 else -1

    return sweep
