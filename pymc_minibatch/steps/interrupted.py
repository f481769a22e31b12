"""``pm.sample`` that is interrupted before there is a draw ends with KeyboardInterrupt.

PyMC takes the interrupt for the end of the run, finds no draws to return, and raises a ValueError
that does not say why ("Not enough samples to build a trace."). Runs of other steps are left alone.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from pymc.sampling import mcmc

__all__ = ["tell_interrupts"]

CHOOSES = "_choose_chains"
"""The function of PyMC that slices chains; it is not public, so it may be missing."""

RECORDED = "rows_checksum"
"""Steps of this package record it, and no other step does."""


def tell_interrupts() -> None:
    """See to it, from now on and in this process."""
    choose = getattr(mcmc, CHOOSES, None)
    if choose is not None and not hasattr(choose, "__wrapped__"):
        setattr(mcmc, CHOOSES, _telling(choose))


def _telling(choose: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(choose)
    def told(traces: Sequence[Any], tune: int) -> Any:
        try:
            return choose(traces, tune)
        except ValueError:
            if not any(_is_ours(trace) and _ended_early(trace) for trace in traces):
                raise
        raise KeyboardInterrupt("The run was interrupted before a chain had made a draw.")

    return told


def _is_ours(trace: Any) -> bool:
    """Whether a step of this package records in a trace."""
    return any(RECORDED in stats for stats in getattr(trace, "sampler_vars", None) or [])


def _ended_early(trace: Any) -> bool:
    """Whether a trace has less than was asked for, which may be no draws at all.

    A trace of no variables (``var_names=[]``) has the length 0 whatever was drawn.
    """
    return bool(getattr(trace, "varnames", ())) and len(trace) < getattr(trace, "draws", 0)
