"""Run a function on each part of the rows, where the part is, with Dask's active scheduler.

That is threads of this process, or the workers of the ``dask.distributed.Client`` that is active.
Parts stay where they are loaded; results are combined in a tree, also there. There is no engine of
our own: a worker that dies is replaced, and its parts loaded again, by Dask.
"""

import ctypes
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from rich.progress import Progress
from threadpoolctl import threadpool_limits

from pymc_minibatch.jit.cores import n_cores
from pymc_minibatch.messages import IdentifiedError
from pymc_minibatch.tall.tables import Part

__all__ = ["PartError", "Scheduler", "elsewhere", "help_with", "run"]

FAN_IN = 16
"""Results that are combined at once."""

SHOWN_PARTS = 50
"""Jobs on fewer parts show no progress bar."""

MAPPED_BYTES, TRIMMED_BYTES = 2**25, 2**26
"""Up to which glibc, left alone, keeps memory that is freed: larger arrays, and at the top."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


class PartError(IdentifiedError, RuntimeError):
    """A part of the rows could not be read or worked on; the message says which, and why.

    Examples
    --------
    >>> import dask.dataframe as dd, numpy as np, pandas as pd, pymc as pm, pymc_minibatch as pmb
    >>> def unreadable(part):
    ...     raise OSError("the disk is gone")
    >>> table = dd.from_pandas(pd.DataFrame({"y": np.zeros(100)}), npartitions=1)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=np.zeros(2))
    ...     try:
    ...         tall = pmb.TallModel(data=table.map_partitions(unreadable, meta=table))
    ...     except pmb.PartError as error:
    ...         print(error)
    partition 0: OSError: the disk is gone
    """

    id = "PMB607"


class Scheduler:
    """Where jobs run: found when it is made, and reached from processes that are handed it.

    A process that was forked has neither the threads nor the connection of the one it came from.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        client = _active_client()
        self._address = None if client is None else client.scheduler.address

    @property
    def needs_own_process(self) -> bool:
        """Whether this is a process of a chain, which cannot connect to the cluster itself."""
        forked = os.getpid() != self._process and not _is_helper
        return forked and self._address is not None and not _is_worker()

    @contextmanager
    def client(self) -> Iterator[Any]:
        """Give the client of the cluster; None for threads."""
        if _is_worker():
            from distributed import worker_client

            with worker_client(separate_thread=False) as client:
                yield client
        elif os.getpid() == self._process:
            yield _active_client()
        elif self._address is None:
            yield None
        else:
            from distributed import Client

            with Client(self._address, set_as_default=False) as client:
                yield client


_is_helper = False
"""Whether this process was started to run one job for a chain."""


def elsewhere(job: Callable[[], Any]) -> Any:
    """Run a job in a new process, for one that cannot connect to the cluster."""
    import cloudpickle

    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "job", Path(folder) / "result"
        given.write_bytes(cloudpickle.dumps(job))
        command = [sys.executable, "-m", "pymc_minibatch.tall.helper", str(given), str(found)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PartError(f"A job for a chain failed: {done.stderr.strip()[-2000:]}")
        return pickle.loads(found.read_bytes())


def help_with(given: Path, found: Path) -> None:
    """Run a job that was handed over by :func:`elsewhere`."""
    global _is_helper
    _is_helper = True
    found.write_bytes(pickle.dumps(pickle.loads(given.read_bytes())()))


def _is_worker() -> bool:
    if "distributed" not in sys.modules:
        return False
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return False
    return True


def _active_client() -> Any:
    import dask

    get = dask.base.get_scheduler()
    owner = getattr(get, "__self__", None)
    return owner if hasattr(owner, "scheduler_info") else None


def run(
    function: Callable[..., Any],
    parts: Sequence[Part],
    arguments: Sequence[tuple[Any, ...]] | None = None,
    combine: Callable[[Any, Any], Any] | None = None,
    title: str | None = None,
    scheduler: Scheduler | None = None,
) -> Any:
    """Apply a function to the arrays of each part.

    Parameters
    ----------
    function
        Takes the arrays of a part, a tuple, and the arguments for it. Workers get it pickled.
    parts
        The parts.
    arguments
        For each part, the further arguments of the function.
    combine
        Takes two results, that of the earlier part first, and returns one. It must be associative.
    title
        Shown with a progress bar if there are many parts.
    scheduler
        Where; whatever is active if not given.

    Returns
    -------
    list, or one result if `combine` is given
        In the order of the parts.

    Raises
    ------
    PartError
        Naming the first part that failed.
    """
    from dask.delayed import delayed

    given = [()] * len(parts) if arguments is None else arguments
    job = delayed(_Job(function), pure=False, traverse=False)
    leaves = [
        delayed(_apply, pure=False)(job, _loading(part), *extra)
        for part, extra in zip(parts, given, strict=True)
    ]
    tasks = leaves
    if combine is not None:
        how = delayed(_Job(combine), pure=False, traverse=False)
        while len(tasks) > 1:
            groups = [tasks[i : i + FAN_IN] for i in range(0, len(tasks), FAN_IN)]
            tasks = [delayed(_combine, pure=False)(how, *group) for group in groups]
    with (scheduler or Scheduler()).client() as client:
        compute = _on_threads if client is None else partial(_on_cluster, client)
        try:
            with _bar(title, len(parts)) as advance:
                results = compute(tasks, leaves, advance)
        except Exception as error:
            failed = _first_failing(error, leaves, parts, compute)
            if failed is None:
                raise
            label, cause = failed
            told = _told(cause)
            raise PartError(told if label in told else f"{label}: {told}") from error
    return results if combine is None else results[0]


def _loading(part: Part) -> Any:
    """Return what loads a part: a task, or a function that is called where it is wanted.

    Results of a task can be sent to another worker; what a function returns cannot.
    """
    return part.load if hasattr(part.load, "dask") else _Job(part.load)


class _Job:
    """A function, which Dask would call by itself if it saw one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


def _apply(job: _Job, arrays: Any, *extra: Any) -> Any:
    _keep_freed_memory()
    return job.function(arrays.function() if isinstance(arrays, _Job) else arrays, *extra)


@cache
def _keep_freed_memory() -> None:
    """Let a worker use memory again that it has freed, as other processes do.

    Dask starts workers with MALLOC_TRIM_THRESHOLD_, with which glibc maps each array of 128 kB anew
    and gives it back: passes in chunks spend most of their time on page faults.
    """
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ or not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(M_TRIM_THRESHOLD, TRIMMED_BYTES)


def _combine(how: _Job, *results: Any) -> Any:
    total, *rest = results
    for result in rest:
        total = how.function(total, result)
    return total


def _on_threads(tasks: Sequence[Any], leaves: Sequence[Any], advance: Callable[[], None]) -> Any:
    import dask
    from dask.base import compute
    from dask.callbacks import Callback

    keys = {leaf.key for leaf in leaves}

    def done(key: Any, *_: Any) -> None:
        if key in keys:
            advance()

    is_chosen = dask.config.get("scheduler", None) is not None  # one thread, say, to find a bug
    # The pool is new: that of a process which was forked has no threads. And threads of BLAS
    # beside those of Dask would wait for each other.
    with (
        threadpool_limits(1, user_api="blas"),
        ThreadPoolExecutor(n_cores()) as pool,
        Callback(posttask=done),
    ):
        options = {} if is_chosen else {"scheduler": "threads", "pool": pool}
        return list(compute(*tasks, **options))


def _on_cluster(
    client: Any, tasks: Sequence[Any], leaves: Sequence[Any], advance: Callable[[], None]
) -> Any:
    from distributed import as_completed

    futures = client.compute(list(tasks))
    watched = futures if tasks is leaves else client.compute(list(leaves))
    for future in as_completed(watched, loop=client.loop):
        if future.status == "error":
            number, cause = watched.index(future), future.exception()
            client.cancel([*futures, *watched])
            raise _LeafError(number, cause)
        advance()
    return client.gather(futures, direct=_is_here(client))


def _is_here(client: Any) -> bool:
    """Whether all workers are on this machine: their results need not pass the scheduler then."""
    return "//127.0.0.1:" in client.scheduler.address


class _LeafError(Exception):
    """A leaf of a job failed; its arguments are its number and why."""


def _first_failing(
    error: Exception, leaves: Sequence[Any], parts: Sequence[Part], compute: Callable[..., Any]
) -> tuple[str, Exception] | None:
    """Find the first part that fails, by trying them again; None if all are well."""
    if isinstance(error, _LeafError):  # which knows
        number, cause = error.args
        return parts[number].label, cause
    for leaf, part in zip(leaves, parts, strict=True):
        try:
            compute([leaf], [leaf], lambda: None)
        except Exception as again:
            return part.label, again
    return None


def _told(error: Exception) -> str:
    """Say what went wrong; an error of a worker that died names its task, which tells nothing."""
    if type(error).__name__ == "KilledWorker":
        return (
            "every worker that loaded it died, most often for want of memory. Make partitions "
            "smaller, or give workers more memory"
        )
    first = (str(error).strip() or "no message").split("\n")[0]
    return first if isinstance(error, ValueError) else f"{type(error).__name__}: {first}"


@contextmanager
def _bar(title: str | None, total: int) -> Iterator[Callable[[], None]]:
    """Show how many parts are done."""
    if title is None or total < SHOWN_PARTS:
        yield lambda: None
        return
    with Progress(transient=True) as progress:
        bar = progress.add_task(title, total=total)
        yield lambda: progress.advance(bar)
