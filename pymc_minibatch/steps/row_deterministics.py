"""Deterministics with one value per row, which make every draw cost N: a warning."""

import inspect
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pymc_minibatch.jit.memory import free_bytes
from pymc_minibatch.tall import TallModel
from pymc_minibatch.warn import warn

__all__ = ["warn_of_row_deterministics", "will_record"]

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
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("bambi."):
            return True
        frame = frame.f_back
    return False


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
