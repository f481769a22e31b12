"""PyMC's model sampled by nutpie's NUTS."""

import nutpie

from benchmarks.data import Data
from benchmarks.models_pymc import build
from benchmarks.outcome import N_CHAINS, Clock, Draws, Outcome, Settings, peak_memory

__all__ = ["sample"]


def sample(settings: Settings, data: Data, clock: Clock) -> Outcome:
    """Run nutpie; the option `backend` is "jax" or "numba".

    Leapfrog steps cost the same before and after tuning, so the time of the draws is their share of
    the steps.
    """
    backend = settings.options.get("backend", "jax")
    more = {"gradient_backend": "jax"} if backend == "jax" else {}
    model = build(settings.model, data)
    clock.mark("model")
    compiled = nutpie.compile_pymc_model(model, backend=backend, **more)
    clock.mark("compile")
    trace = nutpie.sample(
        compiled,
        draws=settings.draws,
        tune=settings.tune,
        chains=N_CHAINS,
        cores=N_CHAINS,
        seed=1,
        progress_bar=False,
    )
    clock.mark("sampling")
    tuning = float(trace["warmup_sample_stats"]["n_steps"].sum())
    drawing = float(trace["sample_stats"]["n_steps"].sum())
    names = [variable.name for variable in model.free_RVs]
    seconds = clock.phases.pop("sampling")
    share = drawing / (tuning + drawing)
    phases = clock.phases | {"tuning": (1 - share) * seconds, "draws": share * seconds}
    draws = Draws(
        {name: trace["posterior"][name].values for name in names},
        seconds=share * seconds,
        row_evaluations=drawing * settings.rows,
    )
    notes = {"leapfrog steps per draw": drawing / N_CHAINS / settings.draws}
    return Outcome(phases, draws, None, peak_memory(), notes)
