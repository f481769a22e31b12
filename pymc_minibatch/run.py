"""Chains whose draws come in blocks: here or in processes, recorded in memory or on disk.

``pm.sample`` takes draws one by one, and passes on some 9,000 a second. Here a step makes as many
at a time as take a fraction of a second, and what becomes of them (values of the variables, stats,
progress) is worked out for all of them together. Seeds, starts and tuning are those of
``pm.sample``, and so are the draws.
"""

import logging
import multiprocessing
import pickle
import platform
import signal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple, cast

import numpy as np
from pymc.progress_bar import MCMCProgressBarManager
from pymc.stats.convergence import log_warning_stats

from pymc_minibatch.jit.memory import fits
from pymc_minibatch.messages import IdentifiedError
from pymc_minibatch.steps.common import Block, TallStep
from pymc_minibatch.store import restore

__all__ = ["Chain", "Made", "run_chains"]

_log = logging.getLogger("pymc.minibatch")

BLOCK_SECONDS = 0.3
"""What a block should take: the progress bar moves, and an interrupt loses no more than that."""

FIRST_BLOCK, MOST_DRAWS, MOST_BYTES = 8, 2**16, 2**25
"""Draws of the first block, and what no block exceeds."""


class Chain(NamedTuple):
    """A chain that is to be made, or continued.

    Attributes
    ----------
    number : int
        Which chain it is.
    rng : numpy.random.Generator
        Its random numbers.
    start : ndarray
        The flat point at which it starts or goes on.
    done : int
        Draws that it has made before, tuning included.
    state : dict, optional
        What the step needs to go on after them; None for a chain that begins.
    keep : callable or None
        Takes a block, the number of its first draw, and the step, to store them.
    """

    number: int
    rng: np.random.Generator
    start: np.ndarray
    done: int = 0
    state: dict[str, Any] | None = None
    keep: Callable[[Block, int, TallStep], None] | None = None


class Made(NamedTuple):
    """What chains have made.

    Attributes
    ----------
    blocks : list of list of Block
        Of each chain.
    interrupted : bool
        Whether the run was stopped before its end.
    memory_is_short : bool
        Whether it was stopped because the result of more draws would not fit into memory.
    """

    blocks: list[list[Block]]
    interrupted: bool
    memory_is_short: bool = False


def blocks_of(step: TallStep, chain: Chain, tune: int, draws: int) -> Generator[tuple[int, Block]]:
    """Make a chain, and yield its blocks with the number of their first draw."""
    total, first, size = tune + draws, chain.done, FIRST_BLOCK
    step.setup_chain(chain.rng, tune, draws)
    if chain.state is not None:
        restore(step, chain.state)
    flat = chain.start
    most = max(1, min(MOST_DRAWS, MOST_BYTES // max(1, flat.nbytes)))
    while first < total:
        if first == tune:
            step.stop_tuning()
        n = min(size, (tune if first < tune else total) - first)
        started = time.perf_counter()
        block = step.make_draws(flat, n)
        seconds = max(time.perf_counter() - started, 1e-6)
        size = int(np.clip(n * BLOCK_SECONDS / seconds, 1, min(4 * n, most)))
        if chain.keep is not None:
            chain.keep(block, first, step)
        yield first, block
        flat, first = block.points[-1].copy(), first + n


def run_chains(
    step: TallStep,
    chains: Sequence[Chain],
    tune: int,
    draws: int,
    *,
    cores: int,
    mp_ctx: Any = None,
    blas_cores: int | None = None,
    progressbar: Any = True,
    progressbar_theme: Any = None,
    bytes_of_draw: float = 0.0,
) -> Made:
    """Make chains, until they are done, somebody interrupts, or their result just fits into memory.

    The result of a draw after tuning takes `bytes_of_draw` beside what the chains have made.
    """
    theme = {} if progressbar_theme is None else {"progressbar_theme": progressbar_theme}
    progress = Progress(
        step_method=step,
        chains=len(chains),
        draws=draws,
        tune=tune,
        progressbar=progressbar,
        **theme,
    )
    made: list[list[Block]] = [[] for _ in chains]
    parallel = cores > 1 and len(chains) > 1
    events = (
        _in_processes(step, chains, tune, draws, min(cores, len(chains)), mp_ctx, blas_cores)
        if parallel
        else _one_by_one(step, chains, tune, draws)
    )
    interrupted = memory_is_short = False
    n_kept = sum(max(0, chain.done - tune) for chain in chains)
    with progress:
        for k, chain in enumerate(chains):
            progress.moved(k, chain.done, chain.done, tune, draws, None)
        try:
            for k, first, block in events:
                made[k].append(block)
                log_warning_stats([{"warning": warning} for warning in block.warnings])
                done = first + len(block.points)
                progress.moved(k, len(block.points), done, tune, draws, block)
                n_kept += max(0, done - max(first, tune))
                if not fits(n_kept * bytes_of_draw):
                    memory_is_short = True
                    break
        except KeyboardInterrupt:
            interrupted = True
        finally:
            with suppress(KeyboardInterrupt):
                events.close()
    return Made(made, interrupted, memory_is_short)


class Progress(MCMCProgressBarManager):
    """The progress bar of ``pm.sample``, which a block moves at once."""

    def moved(
        self, chain: int, made: int, done: int, tune: int, draws: int, block: Block | None
    ) -> None:
        """Show that a chain has made draws, `done` of them so far."""
        if not self._show_progress or not made:
            return
        self.completed_draws += made
        count = self.completed_draws if self.combined_progress else done
        failing, shown = False, {}
        if block is not None:
            last = {name: values[-1] for name, values in block.stats.items()}
            failing, shown = self._extract_stats([last])
        shown["draw"] = count if count <= self._tune_total else count - self._tune_total
        n_all = (tune + draws) * (self.chains if self.combined_progress else 1)
        self._backend.update(
            task_id=0 if self.combined_progress else chain,
            advance=made,
            failing=failing,
            stats=shown,
            is_last=count >= n_all,
            total=self.total_draws,
        )


def _one_by_one(
    step: TallStep, chains: Sequence[Chain], tune: int, draws: int
) -> Generator[tuple[int, int, Block]]:
    before = step.sampling_state
    for k, chain in enumerate(chains):
        step.sampling_state = before
        for first, block in blocks_of(step, chain, tune, draws):
            yield k, first, block


# --- Processes ------------------------------------------------------------------------------------


class ChainError(IdentifiedError, RuntimeError):
    """A chain has failed in its process, in a way that cannot be passed on."""

    id = "PMB610"


def _in_processes(
    step: TallStep,
    chains: Sequence[Chain],
    tune: int,
    draws: int,
    cores: int,
    mp_ctx: Any,
    blas_cores: int | None,
) -> Generator[tuple[int, int, Block]]:
    """Yield blocks of chains, of which so many run at a time as there are cores."""
    context = _context(mp_ctx)
    forks = context.get_start_method() == "fork"
    waiting = list(enumerate(chains))
    running: dict[Connection, tuple[int, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < cores:
                k, chain = waiting.pop(0)
                job: Any = (step, chain, tune, draws, blas_cores)
                ours, theirs = context.Pipe(duplex=False)
                args = (job, theirs, [ours, *running]) if forks else (_pickled(job), theirs, [])
                process = context.Process(  # type: ignore[attr-defined]
                    target=_work, args=args, daemon=True
                )
                process.start()
                theirs.close()
                running[ours] = k, process
            for ready in wait(list(running)):
                pipe = cast(Connection, ready)
                k, process = running[pipe]
                message = _received(pipe)
                if message[0] == "block":
                    yield k, message[1], message[2]
                    continue
                del running[pipe]
                process.join()
                pipe.close()
                if message[0] == "error":
                    raise message[1]
                if message[0] == "died":
                    raise ChainError(
                        f"The process of chain {k} ended with exit code {process.exitcode}, as it "
                        "does if memory runs out. Set cores=1, or sample fewer chains at a time."
                    )
    finally:
        for _, process in running.values():
            process.terminate()
        for pipe, (_, process) in running.items():
            process.join()
            pipe.close()


def _received(pipe: Connection) -> tuple[Any, ...]:
    try:
        message: tuple[Any, ...] = pipe.recv()
    except EOFError:
        return ("died",)
    return message


def _pickled(job: Any) -> bytes:
    import cloudpickle

    found: bytes = cloudpickle.dumps(job)
    return found


def _context(mp_ctx: Any) -> BaseContext:
    """Return how processes start: as ``pm.sample`` starts them."""
    if isinstance(mp_ctx, BaseContext):
        return mp_ctx
    if mp_ctx is None and platform.system() == "Darwin":
        mp_ctx = "fork" if platform.processor() == "arm" else "forkserver"
    return multiprocessing.get_context(mp_ctx)


def _work(job: Any, pipe: Connection, inherited: Sequence[Connection]) -> None:
    """Make a chain in a process of its own, until nobody reads what it sends.

    A forked process closes the reading ends that it has inherited, or it would not notice that its
    parent was killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    for end in inherited:
        end.close()
    try:
        if isinstance(job, bytes):
            job = pickle.loads(job)
        step, chain, tune, draws, blas_cores = job
        with _blas(blas_cores):
            for first, block in blocks_of(step, chain, tune, draws):
                pipe.send(("block", first, block))
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
        return ChainError(f"{type(error).__name__}: {error}")
    return error
