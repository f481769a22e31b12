"""What one sampler reports from its own process."""

import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "N_CHAINS",
    "Clock",
    "Draws",
    "Outcome",
    "Settings",
    "caches_in",
    "peak_memory",
    "summarise",
]

N_CHAINS = 2


@dataclass(frozen=True)
class Settings:
    """What to run: draws and tuning draws are for each chain.

    Attributes
    ----------
    draws
        Draws of the run whose whole time is measured.
    rate_draws
        Further draws, from which seconds per draw are measured; 0 for none.
    options
        Further options of the sampler.
    """

    model: str
    rows: int
    tune: int
    draws: int
    rate_draws: int
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Draws:
    """Draws of all chains.

    Attributes
    ----------
    posterior
        Arrays of shape (chain, draw, ...), by name of the variable.
    seconds
        Time that drawing them took, with nothing else in it; None if it is not known.
    row_evaluations
        Rows at which the log-likelihood, its gradient or a directional derivative was evaluated, of
        all chains.
    """

    posterior: Mapping[str, np.ndarray]
    seconds: float | None = None
    row_evaluations: float = np.nan

    @property
    def per_chain(self) -> int:
        """Draws of each chain."""
        return next(iter(self.posterior.values())).shape[1]


@dataclass
class Outcome:
    """What was measured.

    Attributes
    ----------
    phases
        Seconds from the start of the process to the posterior in memory, by what they went into.
        Making up the data is left out.
    notes
        Numbers that explain the times.
    first
        Draws of the run whose phases were measured.
    rate
        Draws whose time is known.
    memory
        Peak resident memory of the largest process up to the end of the first run, in bytes.
    """

    phases: dict[str, float]
    first: Draws
    rate: Draws | None
    memory: float
    notes: dict[str, float] = field(default_factory=dict)


class Clock:
    """Splits the time since the process was started into phases.

    Parameters
    ----------
    started
        ``time.perf_counter()`` of the moment when another process started this one. (Both read the
        same clock of the system.)
    """

    def __init__(self, started: float | None = None) -> None:
        self._last = time.perf_counter() if started is None else started
        self.phases: dict[str, float] = {}

    def mark(self, phase: str, until: float | None = None) -> None:
        """End a phase, now or at an earlier moment."""
        now = time.perf_counter() if until is None else until
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._last
        self._last = now

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Leave out what is done within."""
        start = time.perf_counter()
        yield
        self._last += time.perf_counter() - start


def caches_in(folder: Path) -> dict[str, str]:
    """Return the environment of a process that keeps what it compiles in a folder."""
    flags = [os.environ.get("PYTENSOR_FLAGS", ""), f"base_compiledir={folder / 'pytensor'}"]
    return os.environ | {
        "PYTENSOR_FLAGS": ",".join(flag for flag in flags if flag),
        "NUMBA_CACHE_DIR": str(folder / "numba"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


def peak_memory() -> float:
    """Return the peak resident memory of the largest process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return float(unit * max(resource.getrusage(w).ru_maxrss for w in who))


def summarise(outcome: Outcome) -> dict[str, Any]:
    """Reduce an outcome to numbers that go into a file.

    Effective sample sizes are those of the worst parameter (bulk, all chains together).
    """
    every = [outcome.first, outcome.rate] if outcome.rate is not None else [outcome.first]
    timed = next((d for d in reversed(every) if d.seconds is not None), None)
    names = sorted(outcome.first.posterior)
    values = {
        name: np.concatenate([draws.posterior[name] for draws in every], axis=1) for name in names
    }
    flat = {name: v.reshape(-1, int(np.prod(v.shape[2:], dtype=int))) for name, v in values.items()}
    summary: dict[str, Any] = {
        "phases": outcome.phases,
        "notes": outcome.notes,
        "memory": outcome.memory,
        "draws": outcome.first.per_chain,
        "ess": worst_ess(outcome.first),
        "ess_of_mean": sum(worst_ess(draws, "mean") for draws in every),
        "ess_of_sd": sum(worst_ess(draws, "sd") for draws in every),
        "mean": {name: v.mean(axis=0).tolist() for name, v in flat.items()},
        "sd": {name: v.std(axis=0).tolist() for name, v in flat.items()},
    }
    if timed is not None:
        assert timed.seconds is not None
        summary |= {
            "seconds_per_draw": timed.seconds / timed.per_chain,
            "ess_per_second": worst_ess(timed) / timed.seconds,
            "row_evaluations_per_ess": timed.row_evaluations / worst_ess(timed),
        }
    return summary


def worst_ess(draws: Draws, method: str = "bulk") -> float:
    """Return the effective sample size of the worst parameter, by one of ArviZ's methods."""
    from arviz_stats.base import array_stats

    values = [v.reshape(*v.shape[:2], -1) for v in draws.posterior.values()]
    stacked = np.concatenate(values, axis=2)
    return float(np.min(array_stats.ess(stacked, chain_axis=0, draw_axis=1, method=method)))
