"""Chains whose draws come in blocks: here or in processes, recorded in memory or on disk.

``pm.sample`` takes draws one by one, and passes on some 9,000 a second. Here a step makes as many
at a time as take a fraction of a second, and what becomes of them (values of the variables, stats,
progress) is worked out for all of them together. Seeds, starts and tuning are those of
``pm.sample``, and so are the draws.
"""

import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from pymc.progress_bar import MCMCProgressBarManager
from pymc.stats.convergence import log_warning_stats

from pymc_minibatch.jit.memory import fits
from pymc_minibatch.processes import in_processes
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
        in_processes(
            blocks_of,
            [(step, chain, tune, draws) for chain in chains],
            what="chain",
            cores=cores,
            mp_ctx=mp_ctx,
            blas_cores=blas_cores,
        )
        if parallel
        else _one_by_one(step, chains, tune, draws)
    )
    interrupted = memory_is_short = False
    n_kept = sum(max(0, chain.done - tune) for chain in chains)
    with progress:
        for k, chain in enumerate(chains):
            progress.moved(k, chain.done, chain.done, tune, draws, None)
        try:
            for k, (first, block) in events:
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
) -> Generator[tuple[int, tuple[int, Block]]]:
    before = step.sampling_state
    for k, chain in enumerate(chains):
        step.sampling_state = before
        for made in blocks_of(step, chain, tune, draws):
            yield k, made
