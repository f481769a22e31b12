"""Read rows: draw a batch, or pass over all of them.

Batches are drawn uniformly without replacement, or by size with replacement (:mod:`.by_size`,
:mod:`.by_group`).
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.acceptance.decision import RowReaders, Rows, Scan
from pymc_minibatch.acceptance.sequential import extend_moments
from pymc_minibatch.jit.entry import answer_signals
from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.jit.pointers import call_matrix
from pymc_minibatch.jit.prefetch import prefetch_row, rows_ahead
from pymc_minibatch.kernels.by_group import draw_from_groups
from pymc_minibatch.kernels.by_size import SizeTable, draw_by_size
from pymc_minibatch.kernels.residents import OUT_OF_ROWS, draw_residents
from pymc_minibatch.reference.density import Density

__all__ = ["Drawing", "clear", "make_readers", "put"]

type Drawing = bool | Literal["residents", "groups"]

CHUNK_ROWS = 2048
"""Rows evaluated at once, so that what is computed from them stays in cache."""


def make_take(ndims: Sequence[int]) -> Callable[..., tuple[np.ndarray, ...]]:
    """Make a function that gathers rows from arrays with these numbers of dimensions.

    Without any it gives their numbers, for rows that are read by a function of their number. Numba
    types a tuple of different arrays only if each element is written out.
    """
    if not ndims:
        return _jit_source("def take(data, rows): return (rows,)", "take")
    names = {1: "take_entries", 2: "take_matrix_rows"}
    takers = [names.get(ndim, "take_rows") for ndim in ndims]
    elements = "".join(f"{taker}(data[{i}], rows), " for i, taker in enumerate(takers))
    return _jit_source(f"def take(data, rows): return ({elements})", "take")


@register_jitable
def take_rows(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Gather rows of an array."""
    return values[rows]


@register_jitable
def take_entries(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Gather entries of a vector, by a loop that compiles faster than fancy indexing."""
    taken = np.empty(rows.size, values.dtype)
    for i in range(rows.size):
        taken[i] = values[rows[i]]
    return taken


@register_jitable
def take_matrix_rows(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Gather rows of a matrix, much faster than by fancy indexing.

    Unsigned numbers are never counted from the end, so that a row is copied without a look at each
    of its entries, in half the time.
    """
    taken = np.empty((rows.size, values.shape[1]), values.dtype)
    width = np.uint64(values.shape[1])
    ahead = rows_ahead(values)
    for i in range(min(ahead, rows.size)):
        prefetch_row(values, rows[i])
    for i in range(rows.size):
        if i + ahead < rows.size:
            prefetch_row(values, rows[i + ahead])
        to, row = np.uint64(i), np.uint64(rows[i])
        for j in range(width):
            taken[to, j] = values[row, j]
    return taken


def make_copy(n_inputs: int) -> Callable[..., tuple[np.ndarray, ...]]:
    """Make a function that copies a range of rows of each of `n_inputs` arrays.

    Copies have the same type as gathered rows, whatever the layout of the data. Without any it
    gives the numbers of the rows.
    """
    if not n_inputs:
        return _jit_source("def copy(data, first, last): return (np.arange(first, last),)", "copy")
    elements = "".join(f"data[{i}][first:last].copy(), " for i in range(n_inputs))
    return _jit_source(f"def copy(data, first, last): return ({elements})", "copy")


def _jit_source(source: str, name: str) -> Callable[..., tuple[np.ndarray, ...]]:
    namespace: dict[str, Any] = dict(globals())
    exec(source, namespace)
    return jit_part(namespace[name])


@register_jitable
def draw_rows(rng: np.random.Generator, n_rows: int, rows: Rows, n_seen: int, n: int) -> None:
    """Extend a uniform sample without replacement from `n_seen` to `n` row numbers.

    A row that is in the sample already is drawn again: since at most half of the rows are taken,
    that is two attempts at the worst. ``random() * N`` is uniform up to N / 2**53.
    """
    if n_seen == 0:
        forget(rows)
    for i in range(n_seen, n):
        row = int(rng.random() * n_rows)
        while contains(rows, row):
            row = int(rng.random() * n_rows)
        rows.seen[row >> 6] |= np.uint64(1) << np.uint64(row & 63)
        rows.drawn[i] = row
    rows.n_drawn[0] = n


@register_jitable
def contains(rows: Rows, row: int) -> bool:
    """Whether a row is in the sample."""
    return (rows.seen[row >> 6] >> np.uint64(row & 63)) & np.uint64(1) != 0


@register_jitable
def forget(rows: Rows) -> None:
    """Empty the sample, in time proportional to its size."""
    for row in rows.drawn[: rows.n_drawn[0]]:
        rows.seen[row >> 6] = 0
    rows.n_drawn[0] = 0


def clear(rows: Rows) -> None:
    """Empty the sample, whatever a kernel that was interrupted has made of it."""
    rows.seen[:] = 0
    rows.n_drawn[0] = 0


def make_readers(ndims: Sequence[int], by_size: Drawing = False) -> RowReaders:
    """Make the functions that read the data for an acceptance test.

    Parameters
    ----------
    ndims
        Number of dimensions of each array of row data.
    by_size
        Whether batches are drawn by size, from the table in `rows`, unless that is
        :data:`.by_size.NO_SIZES`, so that one kernel serves both; or "residents", where all the
        rows there are were drawn by size before; or "groups", by the table of groups in `rows`.

    Returns
    -------
    draw_log_ratios
        ``(rng, current, proposed, density, rows, n_seen, n)`` extends the batch from `n_seen` to
        `n` rows and fills ``rows.log_ratios[n_seen:n]``. By size, these are divided by N p, so that
        their mean is that of the log ratios of all rows in expectation either way.
    sum_log_ratios
        ``(current, proposed, density)`` sums the log ratios of all rows.
    scan_log_ratios
        ``(current, proposed, density)`` summarises them as a
        :class:`~pymc_minibatch.acceptance.decision.Scan`.

    Notes
    -----
    All return the number of a row that is impossible at the current point (its log-likelihood is
    not finite), or -1; or :data:`.residents.OUT_OF_ROWS`. A row that is impossible at the proposal
    has log ratio -inf.
    """
    take, copy = make_take(ndims), make_copy(len(ndims))
    draw, is_uniform = WAYS_TO_DRAW[by_size]

    @jit_part
    def draw_log_ratios(
        rng: np.random.Generator,
        current: np.ndarray,
        proposed: np.ndarray,
        density: Density,
        rows: Rows,
        n_seen: int,
        n: int,
    ) -> int:
        uniform = is_uniform(rows.table)
        if uniform:
            draw_rows(rng, density.data[0].shape[0], rows, n_seen, n)
        impossible = -1
        for first in range(n_seen, n, CHUNK_ROWS):
            answer_signals()
            last = min(first + CHUNK_ROWS, n)
            drawn, log_ratios = rows.drawn[first:last], rows.log_ratios[first:last]
            weights = np.empty(0 if uniform else last - first)
            if not (uniform or draw(rng, rows.table, drawn, weights)):
                return OUT_OF_ROWS
            batch = take(density.data, drawn)
            bad = log_ratios_of(current, proposed, density, batch, log_ratios)
            if bad >= 0:
                impossible = drawn[bad]
            for i in range(weights.size):
                log_ratios[i] *= weights[i]
        rows.n_drawn[0] = n
        return impossible

    @jit_part
    def sum_log_ratios(
        current: np.ndarray, proposed: np.ndarray, density: Density
    ) -> tuple[float, int]:
        n_rows = density.data[0].shape[0]
        log_ratios = np.empty(CHUNK_ROWS)
        total = 0.0
        for first in range(0, n_rows, CHUNK_ROWS):
            answer_signals()
            last = min(first + CHUNK_ROWS, n_rows)
            batch = copy(density.data, first, last)
            bad = log_ratios_of(current, proposed, density, batch, log_ratios)
            if bad >= 0:
                return -np.inf, first + bad
            for i in range(last - first):
                total += log_ratios[i]
            if total == -np.inf:
                break
        return total, -1

    @jit_part
    def sum_drawn(current: np.ndarray, proposed: np.ndarray, density: Density) -> tuple[float, int]:
        weights, noise = density.drawn
        n_rows = weights.size
        if n_rows == 0:
            return -np.inf, OUT_OF_ROWS
        log_ratios = np.empty(CHUNK_ROWS)
        mean = squares = 0.0
        for first in range(0, n_rows, CHUNK_ROWS):
            answer_signals()
            last = min(first + CHUNK_ROWS, n_rows)
            batch = copy(density.data, first, last)
            bad = log_ratios_of(current, proposed, density, batch, log_ratios)
            values = log_ratios[: last - first] * weights[first:last]
            if bad >= 0 or values.min() == -np.inf:
                return -np.inf, first + bad if bad >= 0 else -1
            mean, squares = extend_moments(first, mean, squares, values)
        noise[0] = max(noise[0], squares)
        return n_rows * mean, -1

    @jit_part
    def scan_log_ratios(current: np.ndarray, proposed: np.ndarray, density: Density) -> Scan:
        n_rows = density.data[0].shape[0]
        log_ratios = np.empty(CHUNK_ROWS)
        mean = squares = 0.0
        lowest, highest = np.inf, -np.inf
        for first in range(0, n_rows, CHUNK_ROWS):
            answer_signals()
            last = min(first + CHUNK_ROWS, n_rows)
            batch = copy(density.data, first, last)
            bad = log_ratios_of(current, proposed, density, batch, log_ratios)
            values = log_ratios[: last - first]
            if bad >= 0 or values.min() == -np.inf:
                return Scan(-np.inf, 0.0, np.inf, first + bad if bad >= 0 else -1)
            mean, squares = extend_moments(first, mean, squares, values)
            lowest, highest = min(lowest, values.min()), max(highest, values.max())
        return Scan(mean, np.sqrt(squares / n_rows), highest - lowest, -1)

    summing = sum_drawn if by_size == "residents" else sum_log_ratios
    return RowReaders(draw_log_ratios, summing, scan_log_ratios)


@register_jitable
def draw_from_table(
    rng: np.random.Generator, table: SizeTable, drawn: np.ndarray, weights: np.ndarray
) -> bool:
    """Draw by size; there are always enough rows."""
    draw_by_size(rng, table, drawn, weights)
    return True


@register_jitable
def draw_from_none(
    rng: np.random.Generator, table: Any, drawn: np.ndarray, weights: np.ndarray
) -> bool:
    """Draw nothing, where all rows are drawn uniformly."""
    return True


@register_jitable
def pinned(table: Any) -> bool:
    """Rows are drawn uniformly."""
    return True


@register_jitable
def never(table: Any) -> bool:
    """Rows are drawn by a table."""
    return False


@register_jitable
def without_sizes(table: SizeTable) -> bool:
    """Rows are drawn uniformly where the table is empty."""
    return table.order.size == 0


WAYS_TO_DRAW: dict[Drawing, tuple[Callable[..., bool], Callable[..., bool]]] = {
    False: (draw_from_none, pinned),
    True: (draw_from_table, without_sizes),
    "residents": (draw_residents, never),
    "groups": (draw_from_groups, never),
}
"""How to fill a batch from a table, and whether it is drawn uniformly instead."""


@register_jitable
def log_ratios_of(
    current: np.ndarray,
    proposed: np.ndarray,
    density: Density,
    batch: tuple[np.ndarray, ...],
    log_ratios: np.ndarray,
) -> int:
    """Evaluate rows at both points; return as :func:`subtract`."""
    terms = call_matrix(density.row, (current, proposed, density.constants, batch))
    return subtract(terms[1], terms[0], log_ratios)


@register_jitable
def subtract(proposed: np.ndarray, current: np.ndarray, log_ratios: np.ndarray) -> int:
    """Write log ratios; return the position of a row impossible at the current point, or -1.

    What is not a number is impossible; so is +∞, a density of which all digits were lost.
    """
    impossible = -1
    for i in range(proposed.size):
        log_ratios[i] = proposed[i] - current[i]
        if not np.isfinite(current[i]):
            impossible = i
        elif not proposed[i] < np.inf:
            log_ratios[i] = -np.inf
    return impossible


@register_jitable
def put(values: np.ndarray, positions: np.ndarray, target: np.ndarray) -> None:
    """Write values at positions of a vector."""
    for i in range(positions.size):
        target[positions[i]] = values[i]
