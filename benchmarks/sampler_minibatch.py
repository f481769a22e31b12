"""MinibatchMH, as a user would run it: `pm.sample` with a step."""

import time
from typing import Any

import numpy as np
import pymc as pm

import pymc_minibatch as pmb
from benchmarks.data import Data
from benchmarks.models_pymc import build
from benchmarks.outcome import N_CHAINS, Clock, Draws, Outcome, Settings, peak_memory

__all__ = ["TimedMH", "draw", "sample"]


class TimedMH(pmb.MinibatchMH):
    """MinibatchMH that notes the time: at the end of each draw and of compiling."""

    stats_dtypes_shapes = pmb.MinibatchMH.stats_dtypes_shapes | {"clock": (np.float64, [])}

    def step(self, point: Any) -> tuple[Any, Any]:
        """Make a draw."""
        moved, [stats] = super().step(point)
        return moved, [stats | {"clock": time.perf_counter()}]

    def _compile(self) -> None:
        start = time.perf_counter()
        super()._compile()
        self.compile_seconds = time.perf_counter() - start


def sample(settings: Settings, data: Data, clock: Clock) -> Outcome:
    """Run MinibatchMH; `options` are its own, with the acceptance test by name."""
    options = dict(settings.options)
    acceptance = getattr(pmb, options.pop("acceptance", "CorrectedBarker"))()
    with build(settings.model, data):
        clock.mark("model")
        step = TimedMH(acceptance=acceptance, **options)
        clock.mark("split")
        first, tuned, drawn = draw(step, settings.tune, settings.draws, seed=1)
        clock.mark("tuning", until=tuned)
        clock.mark("draws", until=drawn)
        clock.mark("collect")
        memory = peak_memory()
        rate = None
        if settings.rate_draws:
            rate = draw(step, settings.tune, settings.rate_draws, seed=2)[0]
    reference = step.reference
    found = 0.0 if reference is None else reference.seconds
    phases = dict(clock.phases)
    phases["split"] -= found + step.compile_seconds
    phases |= {"reference": found, "kernel": step.compile_seconds}
    notes = {
        "passes of the search for the mode": 0.0 if reference is None else reference.passes,
        "control variate": float(step.control_variate),
    }
    return Outcome(phases, first, rate, memory, notes)


def draw(
    step: TimedMH, tune: int, draws: int, seed: int, cores: int = N_CHAINS
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
