"""Deterministics with one value per row, which make every draw cost N, and the memory of draws."""

import inspect
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

from pymc_minibatch.jit.memory import free_bytes, require_memory
from pymc_minibatch.tall import TallModel
from pymc_minibatch.warn import warn

__all__ = ["require_memory_for_draws", "warn_of_row_deterministics", "will_record"]

DRAWS_OF_A_CHAIN = 1000
"""Draws for which memory is estimated: what pm.sample takes if nothing is said."""

NOTABLE_BYTES = 1e9
"""Memory that is told of."""

_recorded: ContextVar[Collection[str] | None] = ContextVar("recorded", default=None)
"""The variables that a run keeps; None if that is not known, as `pm.sample` does not tell."""


@contextmanager
def will_record(names: Collection[str] | None) -> Iterator[None]:
    """Let steps that are made within know which variables their run keeps."""
    token = _recorded.set(names)
    try:
        yield
    finally:
        _recorded.reset(token)


def _bambi_fits() -> bool:
    """Whether a step is made in Bambi's ``fit``, which leaves out what has one value per row."""
    return any(_module(frame).startswith("bambi.") for frame in _callers())


def _callers() -> Iterator[FrameType]:
    """Yield the frames of those who call, the nearest first."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _locals_of(function: str) -> Mapping[str, Any]:
    """Return the local variables of a function of PyMC that is being called; none if it is not."""
    for frame in _callers():
        if frame.f_code.co_name == function and _module(frame).startswith("pymc.sampling."):
            return frame.f_locals
    return {}


def require_memory_for_draws(tall: TallModel, tune: int, draws: int) -> None:
    """Raise before the first chain if all draws of a run of ``pm.sample`` do not fit into memory.

    It does not tell steps how many chains there are, nor what is kept of them: that is read where
    it is being called, which processes that are not forked do not see.

    Raises
    ------
    NotEnoughMemoryError
        If they do not.
    """
    run = _locals_of("sample")
    if not run or run.get("trace") is not None or _locals_of("_sample_many").get("i"):
        return  # draws go elsewhere, or some are already there
    kept = run.get("trace_vars")
    sizes = {
        name: size
        for name, size in tall.sizes_of_row_deterministics().items()
        if kept is None or any(variable.name == name for variable in kept)
    }
    n_chains = int(run.get("chains", 1))
    values = tall.layout.size + sum(sizes.values())
    of_result = draws if run.get("discard_tuned_samples", True) else tune + draws
    if not run.get("return_inferencedata", True):
        of_result = 0
    advice = "Take fewer draws or chains."
    if sizes:
        advice = (
            f"Deterministics {list(sizes)} have one value for each row: pass pm.sample the "
            "var_names to keep, and compute them afterwards with pm.compute_deterministics."
        )
    require_memory(
        8.0 * n_chains * (tune + draws + of_result) * values,
        f"What pm.sample keeps of {tune + draws:,} draws of {values:,} numbers in each of "
        f"{n_chains} chains, with its result,",
        advice,
    )


def warn_of_row_deterministics(tall: TallModel) -> None:
    """Warn of Deterministics that make every draw cost N, and say what their draws would take."""
    recorded = _recorded.get()
    sizes = {
        name: size
        for name, size in tall.sizes_of_row_deterministics().items()
        if recorded is None or name in recorded
    }
    if not sizes or _bambi_fits():
        return
    needed, free = 8.0 * DRAWS_OF_A_CHAIN * sum(sizes.values()), free_bytes()
    memory = f", and {DRAWS_OF_A_CHAIN:,} draws of one chain take {needed / 1e9:.1f} GB of memory"
    memory += f" where {free / 1e9:.1f} GB are free" if needed > free else ""
    switch = [name for name in tall.row_names if f"{name}_probs" in sizes]
    advice = "".join(f"give {name} compute_p=False, or " for name in switch)
    n_rows = min(tall.n_rows, max(sizes.values()))  # of the likelihood that has the most
    warn(
        "PMB101",
        f"Deterministics {list(sizes)} have one value for each of the {n_rows:,} rows, so "
        "computing and storing them at every draw costs a full pass over the data"
        f"{memory if needed > NOTABLE_BYTES else ''}. To leave them out, {advice}pass pm.sample "
        "the var_names to keep, and compute them afterwards with pm.compute_deterministics.",
    )
