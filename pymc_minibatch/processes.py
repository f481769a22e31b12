"""Generators that run in processes of their own: what they yield comes back as it is made.

Processes start as those of ``pm.sample`` do. If they are forked, they share the memory of this one.
"""

import multiprocessing
import pickle
import platform
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any, cast

from pymc_minibatch.messages import IdentifiedError

__all__ = ["ProcessError", "forks", "in_processes"]


class ProcessError(IdentifiedError, RuntimeError):
    """A process has failed in a way that cannot be passed on."""

    id = "PMB610"


def forks(mp_ctx: Any = None) -> bool:
    """Whether processes are forked, so that they take no time to start and share memory."""
    return _context(mp_ctx).get_start_method() == "fork"


def in_processes(
    generate: Callable[..., Iterator[Any]],
    jobs: Sequence[tuple[Any, ...]],
    *,
    what: str,
    cores: int,
    mp_ctx: Any = None,
    blas_cores: int | None = None,
) -> Generator[tuple[int, Any]]:
    """Yield what each job generates, with the job's number, in the order in which it is made.

    Parameters
    ----------
    generate
        A function of a module, which is called with the arguments of a job.
    jobs
        Arguments of each job.
    what
        What a job is, for messages.
    cores
        How many jobs run at a time.
    mp_ctx
        How processes start, as for ``pm.sample``.
    blas_cores
        Threads that BLAS may use in each process; None leaves them as they are.

    Raises
    ------
    ProcessError
        If a process dies.
    """
    context = _context(mp_ctx)
    are_forked = forks(context)
    waiting = list(enumerate(jobs))
    running: dict[Connection, tuple[int, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < cores:
                k, job = waiting.pop(0)
                task: Any = (generate, job, blas_cores)
                ours, theirs = context.Pipe(duplex=False)
                args = (
                    (task, theirs, [ours, *running]) if are_forked else (_pickled(task), theirs, [])
                )
                process = context.Process(  # type: ignore[attr-defined]
                    target=_work, args=args, daemon=True
                )
                process.start()
                theirs.close()
                running[ours] = k, process
            for ready in wait(list(running)):
                pipe = cast(Connection, ready)
                k, process = running[pipe]
                kind, item = _received(pipe)
                if kind == "item":
                    yield k, item
                    continue
                del running[pipe]
                process.join()
                pipe.close()
                if kind == "error":
                    raise item
                if kind == "died":
                    raise ProcessError(
                        f"The process of {what} {k} ended with exit code {process.exitcode}. Often "
                        "the cause is a lack of memory: set cores=1, or a smaller number."
                    )
    finally:
        for _, process in running.values():
            process.terminate()
        for pipe, (_, process) in running.items():
            process.join()
            pipe.close()


def _received(pipe: Connection) -> tuple[str, Any]:
    try:
        kind, sent = pipe.recv()
    except EOFError:
        return "died", None
    return kind, sent


def _pickled(task: Any) -> bytes:
    import cloudpickle

    found: bytes = cloudpickle.dumps(task)
    return found


def _context(mp_ctx: Any) -> BaseContext:
    """Return how processes start: as ``pm.sample`` starts them."""
    if isinstance(mp_ctx, BaseContext):
        return mp_ctx
    if mp_ctx is None and platform.system() == "Darwin":
        mp_ctx = "fork" if platform.processor() == "arm" else "forkserver"
    return multiprocessing.get_context(mp_ctx)


def _work(task: Any, pipe: Connection, inherited: Sequence[Connection]) -> None:
    """Do a job in a process of its own, until nobody reads what it sends.

    A forked process closes the reading ends that it has inherited, or it would not notice that its
    parent was killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    for end in inherited:
        end.close()
    try:
        generate, job, blas_cores = pickle.loads(task) if isinstance(task, bytes) else task
        with _blas(blas_cores):
            for item in generate(*job):
                pipe.send(("item", item))
        pipe.send(("done", None))
    except BaseException as error:
        with suppress(BrokenPipeError):  # if it was killed
            pipe.send(("error", _portable(error)))
    finally:
        pipe.close()


def _blas(n: int | None) -> Any:
    if n is None:
        return nullcontext()
    from threadpoolctl import threadpool_limits

    return threadpool_limits(limits=n)


def _portable(error: BaseException) -> BaseException:
    """Return an error that can be passed between processes."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ProcessError(f"{type(error).__name__}: {error}")
    return error
