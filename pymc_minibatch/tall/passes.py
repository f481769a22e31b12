"""Passes over all rows: in chunks, on all cores, with a progress bar if they take long.

If rows lie in partitions a pass is a job of Dask: each partition is cut into chunks where it is.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from rich.progress import track

from pymc_minibatch.jit.cores import n_cores, one_blas_thread
from pymc_minibatch.jit.held_locks import release_held_locks
from pymc_minibatch.tall.partitions import PartitionedArray

__all__ = ["in_chunks", "in_order", "over_chunks", "sum_over_chunks"]

CHUNK_ROWS = 2**14
CHUNK_BYTES = 2**22
"""Rows of a chunk: few enough to stay in cache, enough that Python's share is small."""

SHOWN_BYTES = 2**29
"""Passes over less than this show no progress bar."""


def over_chunks[T](
    function: Callable[..., T],
    data: Sequence[Any],
    title: str | None = None,
    step: int | None = None,
    numbered: bool = False,
) -> Iterator[tuple[int, T]]:
    """Apply a function to all rows, chunk by chunk, several at a time.

    Parameters
    ----------
    function
        Takes a chunk of each array, writable and contiguous. It runs in threads, so what it calls
        should let go of the interpreter's lock; functions of `compile_numba` do. If rows lie in
        partitions it is pickled for workers, with the least that it needs.
    data
        Arrays with rows along the first axis.
    title
        Shown with a progress bar if there is much to read; None for no bar.
    step
        Rows of a chunk; if not given, so many that they stay in cache.
    numbered
        Whether the function takes the number of the first row of the chunk before all else.

    Yields
    ------
    (int, T)
        First row and result of each chunk, in the order of the rows, so that sums of them do not
        depend on the number of cores.
    """
    if isinstance(data[0], PartitionedArray):
        return _over_partitions(function, data, title, step)
    length = step or _length(data)

    def apply(first: int) -> T:
        batch = [np.array(values[first : first + length]) for values in data]
        return function(first, *batch) if numbered else function(*batch)

    starts = range(0, len(data[0]), length)
    results = zip(starts, in_order(apply, starts), strict=True)
    if title is None or sum(values.nbytes for values in data) < SHOWN_BYTES:
        return results
    return iter(track(results, title, total=len(starts), transient=True))


def sum_over_chunks(
    function: Callable[..., Sequence[Any]], data: Sequence[Any], title: str | None = None
) -> Sequence[Any]:
    """Add up what a function gives for the chunks, a sequence of numbers or arrays.

    If rows lie in partitions sums are taken there, and added in a tree.
    """
    if not isinstance(data[0], PartitionedArray):
        return reduce(_added, (part for _, part in over_chunks(function, data, title)))
    partitions = data[0].partitions
    look = _Summed(function, _positions(data))
    return partitions.run(look, combine=_added, title=title)


def _over_partitions[T](
    function: Callable[..., T], data: Sequence[Any], title: str | None, step: int | None
) -> Iterator[tuple[int, T]]:
    partitions = data[0].partitions
    results = partitions.run(_InChunks(function, _positions(data), step), title=title)
    for start, found in zip(partitions.starts, results, strict=False):
        for first, result in found:
            yield int(start) + first, result


def _positions(data: Sequence[PartitionedArray]) -> tuple[int, ...]:
    return tuple(values.position for values in data)


def in_chunks[T](
    function: Callable[..., T], data: Sequence[np.ndarray], step: int | None = None
) -> Iterator[tuple[int, T]]:
    """Do what :func:`over_chunks` does with arrays in this thread."""
    length = step or _length(data)
    for first in range(0, len(data[0]), length):
        yield first, function(*[np.array(values[first : first + length]) for values in data])


@dataclass(frozen=True)
class _InChunks:
    """Applies a function to a part, chunk by chunk."""

    function: Callable[..., Any]
    positions: tuple[int, ...]
    step: int | None = None

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[tuple[int, Any]]:
        data = [arrays[position] for position in self.positions]
        return list(in_chunks(self.function, data, self.step))


class _Summed(_InChunks):
    """The same, summed."""

    def __call__(self, arrays: Sequence[np.ndarray]) -> Any:
        return reduce(_added, (result for _, result in super().__call__(arrays)))


def _added(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    return [a + b for a, b in zip(first, second, strict=True)]


def _length(data: Sequence[np.ndarray]) -> int:
    """Rows of a chunk that stays in cache."""
    row_bytes = max(1, sum(values[:1].nbytes for values in data))
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes))


def in_order[T](apply: Callable[[int], T], starts: range) -> Iterator[T]:
    """Map in threads, with few results waiting at any time.

    BLAS is kept from starting threads of its own in each of them: more threads than cores wait for
    each other, on a busy machine for minutes. Two chunks or three are not worth the threads. Those
    say of numbers that are not finite what this thread does.
    """
    n_threads = min(n_cores(), len(starts) // 2)
    if n_threads <= 1:
        with one_blas_thread():
            yield from map(apply, starts)
        return
    release_held_locks()
    waiting: deque[Future[T]] = deque()
    with one_blas_thread(), ThreadPoolExecutor(n_threads) as pool:
        for first in starts:
            waiting.append(pool.submit(copy_context().run, apply, first))
            if len(waiting) > 2 * n_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
