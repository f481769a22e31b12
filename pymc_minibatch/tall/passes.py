"""Passes over all rows: in chunks, on all cores, with a progress bar where they take long."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from rich.progress import track
from threadpoolctl import threadpool_limits

from pymc_minibatch.jit.cores import n_cores

__all__ = ["over_chunks"]

CHUNK_ROWS = 2**14
CHUNK_BYTES = 2**22
"""Rows of a chunk: few enough to stay in cache, enough that Python's share is small."""

SHOWN_BYTES = 2**29
"""Passes over less than this show no progress bar."""


def over_chunks[T](
    function: Callable[..., T],
    data: Sequence[np.ndarray],
    title: str | None = None,
    step: int | None = None,
    numbered: bool = False,
) -> Iterator[tuple[int, T]]:
    """Apply a function to all rows, chunk by chunk, several at a time.

    Parameters
    ----------
    function
        Takes a chunk of each array, writable and contiguous. It runs in threads, so what it calls
        should let go of the interpreter's lock; functions of `compile_numba` do.
    data
        Arrays with rows along the first axis.
    title
        Shown with a progress bar where there is much to read; None for no bar.
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
    row_bytes = max(1, sum(values[:1].nbytes for values in data))
    length = step or max(1, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes))

    def apply(first: int) -> T:
        batch = [np.array(values[first : first + length]) for values in data]
        return function(first, *batch) if numbered else function(*batch)

    starts = range(0, len(data[0]), length)
    results = zip(starts, _in_order(apply, starts), strict=True)
    if title is None or sum(values.nbytes for values in data) < SHOWN_BYTES:
        return results
    return iter(track(results, title, total=len(starts), transient=True))


def _in_order[T](apply: Callable[[int], T], starts: range) -> Iterator[T]:
    """Map in threads, with few results waiting at any time.

    BLAS is kept from starting threads of its own in each of them: more threads than cores wait for
    each other, on a busy machine for minutes.
    """
    n_threads = min(n_cores(), len(starts))
    if n_threads == 1:
        yield from map(apply, starts)
        return
    waiting: deque[Future[T]] = deque()
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(n_threads) as pool:
        for first in starts:
            waiting.append(pool.submit(apply, first))
            if len(waiting) > 2 * n_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
