"""Steps of this package, as a user would run them: `pm.sample` with a step."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm

import pymc_minibatch as pmb
from benchmarks.data import Data
from benchmarks.models_pymc import build
from benchmarks.outcome import N_CHAINS, Clock, Draws, Outcome, Settings, peak_memory

__all__ = ["TimedFlyMC", "TimedMH", "draw", "sample_flymc", "sample_minibatch"]


class _Timed:
    """Notes the time at the end of each draw and of compiling."""

    def step(self, point: Any) -> tuple[Any, Any]:
        """Make a draw."""
        moved, [stats] = super().step(point)  # type: ignore[misc]
        return moved, [stats | {"clock": time.perf_counter()}]

    def _compile(self) -> None:
        start = time.perf_counter()
        super()._compile()  # type: ignore[misc]
        self.compile_seconds = time.perf_counter() - start


class TimedMH(_Timed, pmb.MinibatchMH):
    """MinibatchMH that notes the time."""

    stats_dtypes_shapes = pmb.MinibatchMH.stats_dtypes_shapes | {"clock": (np.float64, [])}


class TimedFlyMC(_Timed, pmb.FlyMC):
    """FlyMC that notes the time."""

    stats_dtypes_shapes = pmb.FlyMC.stats_dtypes_shapes | {"clock": (np.float64, [])}


def sample_minibatch(settings: Settings, data: Data, clock: Clock) -> Outcome:
    """Run MinibatchMH; `options` are its own."""
    return _sample(TimedMH, settings.options, settings, data, clock)


def sample_flymc(settings: Settings, data: Data, clock: Clock) -> Outcome:
    """Run FlyMC; `options` are its own."""
    return _sample(TimedFlyMC, settings.options, settings, data, clock)


def _sample(
    kind: type[Any], options: Mapping[str, Any], settings: Settings, data: Data, clock: Clock
) -> Outcome:
    with build(settings.model, data):
        clock.mark("model")
        step = kind(**options)
        clock.mark("split")
        first, tuned, drawn = draw(step, settings.tune, settings.draws, seed=1)
        clock.mark("tuning", until=tuned)
        clock.mark("draws", until=drawn)
        clock.mark("collect")
        memory = peak_memory()
        rate = None
        if settings.rate_draws:
            rate = draw(step, settings.tune, settings.rate_draws, seed=2)[0]
    reference = getattr(step, "reference", None)
    found = 0.0 if reference is None else reference.seconds
    phases = dict(clock.phases)
    phases["split"] -= found + step.compile_seconds
    phases |= {"reference": found, "kernel": step.compile_seconds}
    notes = {} if reference is None else {"passes of the search for the mode": reference.passes}
    return Outcome(phases, first, rate, memory, notes)


def draw(
    step: TimedMH | TimedFlyMC, tune: int, draws: int, seed: int, cores: int = N_CHAINS
) -> tuple[Draws, float, float]:
    """Sample; return the draws, when the first of them was made, and when the last."""
    idata = pm.sample(
        draws,
        tune=tune,
        step=step,
        chains=N_CHAINS,
        cores=cores,
        random_seed=seed,
        progressbar=False,
        compute_convergence_checks=False,
    )
    stats, posterior = idata["sample_stats"], idata["posterior"]
    times = stats["clock"].values
    seconds = float((times[:, -1] - times[:, 0]).max()) * draws / (draws - 1)
    evaluations = float(stats["n_likelihood"].sum() + stats["n_gradient"].sum())
    kept = {str(name): posterior[name].values for name in posterior.data_vars}
    return Draws(kept, seconds, evaluations), float(times[:, 0].min()), float(times[:, -1].max())
