"""NumPyro's NUTS and HMCECS, in double precision."""

from functools import partial
from typing import Any

import jax
import numpy as np
import numpyro
from jax import random
from jax.flatten_util import ravel_pytree
from numpyro.infer import HMCECS, MCMC, NUTS, init_to_value
from numpyro.infer.util import initialize_model
from scipy.optimize import minimize

from benchmarks.data import Data
from benchmarks.models_numpyro import MODELS
from benchmarks.outcome import N_CHAINS, Clock, Draws, Outcome, Settings, peak_memory

__all__ = ["sample_hmcecs", "sample_nuts"]

FEW = 10
"""Draws of the run that shows what starting a run costs."""

SHORT = 60.0
"""Seconds below which compilation would count."""


def sample_nuts(settings: Settings, data: Data, clock: Clock) -> Outcome:
    """Run NUTS on all rows."""
    arrays = _on_device(data)
    clock.mark("model")
    kernel = NUTS(MODELS[settings.model])
    run = _Runs(kernel, "num_steps", settings, arrays)
    return run.outcome(clock, rows_per_step=settings.rows, rows_per_draw=0)


def sample_hmcecs(settings: Settings, data: Data, clock: Clock) -> Outcome:
    """Run HMCECS over NUTS with the Taylor proxy of second order about the posterior mode.

    Options are `subsample_size` and `num_blocks`.
    """
    size = settings.options.get("subsample_size", 1000)
    blocks = settings.options.get("num_blocks", 100)
    arrays = _on_device(data)
    clock.mark("model")
    model = MODELS[settings.model]
    mode = _find_mode(model, arrays)
    clock.mark("reference")
    inner = NUTS(
        partial(model, subsample_size=size),
        dense_mass=True,
        init_strategy=init_to_value(values=mode),
    )
    kernel = HMCECS(inner, num_blocks=blocks, proxy=HMCECS.taylor_proxy(mode))
    run = _Runs(kernel, "hmc_state.num_steps", settings, arrays)
    # An update of a block evaluates the estimate at all rows of the subsample, and the expansion at
    # the new ones.
    return run.outcome(clock, rows_per_step=size, rows_per_draw=size + size // blocks)


def prepare() -> None:
    """Set up JAX; before anything else uses it."""
    numpyro.set_host_device_count(N_CHAINS)
    numpyro.enable_x64()


def _on_device(data: Data) -> dict[str, jax.Array]:
    return {name: jax.block_until_ready(jax.numpy.asarray(v)) for name, v in data.items()}


def _find_mode(model: Any, arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Minimise the mean potential energy by L-BFGS, from NumPyro's usual start.

    (NumPyro's own BFGS stops early where there are many rows, and HMCECS then sticks.)
    """
    info = initialize_model(random.key(0), model, model_kwargs=arrays, dynamic_args=True)
    start, restore = ravel_pytree(info.param_info.z)

    @jax.jit
    def loss(theta: jax.Array, arrays: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        def energy(t: jax.Array) -> jax.Array:
            return info.potential_fn(**arrays)(restore(t)) / len(arrays["y"])

        return jax.value_and_grad(energy)(theta)

    found = minimize(
        lambda theta: [np.asarray(value) for value in loss(theta, arrays)],
        start,
        jac=True,
        method="L-BFGS-B",
        options={"ftol": 0.0, "gtol": 1e-8, "maxiter": 1000},
    )
    return jax.block_until_ready(info.postprocess_fn(**arrays)(restore(found.x)))


class _Runs:
    """A first run with tuning, and runs that go on from it."""

    def __init__(
        self, kernel: Any, steps: str, settings: Settings, arrays: dict[str, jax.Array]
    ) -> None:
        self.settings, self.arrays, self.steps = settings, arrays, steps
        self.mcmc = MCMC(
            kernel,
            num_warmup=settings.tune,
            num_samples=settings.draws,
            num_chains=N_CHAINS,
            progress_bar=False,
            jit_model_args=True,
        )

    def outcome(self, clock: Clock, rows_per_step: int, rows_per_draw: int) -> Outcome:
        """Run, and count rows: for each leapfrog step and for each draw."""

        def draws(steps: np.ndarray, seconds: float | None) -> Draws:
            rows = steps.sum() * rows_per_step + steps.size * rows_per_draw
            samples = self.mcmc.get_samples(group_by_chain=True)
            posterior = {name: np.asarray(v) for name, v in samples.items() if name != "rows"}
            return Draws(posterior, seconds, float(rows))

        steps = self._run(1)
        clock.mark("compile, tuning and draws")
        first, memory = draws(steps, None), peak_memory()
        rate, notes = None, {"leapfrog steps per draw": float(steps.mean())}
        if self.settings.rate_draws:
            # What a run costs before its first draw, tracing mostly, is taken off.
            self._continue(FEW, seed=2)  # compiles
            start = float(np.median([self._continue(FEW, seed)[1] for seed in (3, 4, 5)]))
            steps, seconds = self._continue(self.settings.rate_draws, seed=6)
            if seconds < SHORT:  # do it again, without the compilation
                steps, seconds = self._continue(self.settings.rate_draws, seed=7)
            n = self.settings.rate_draws
            rate = draws(steps, (seconds - start) * n / (n - FEW))
            notes["seconds to start a run"] = start
        return Outcome(clock.phases, first, rate, memory, notes)

    def _run(self, seed: int) -> np.ndarray:
        self.mcmc.run(random.key(seed), extra_fields=(self.steps,), **self.arrays)
        return np.asarray(self.mcmc.get_extra_fields(group_by_chain=True)[self.steps])

    def _continue(self, draws: int, seed: int) -> tuple[np.ndarray, float]:
        self.mcmc.num_samples = draws
        self.mcmc.post_warmup_state = self.mcmc.last_state
        # HMCECS keeps values of the traced run, which the next one must not see.
        self.mcmc.sampler.init(random.key(seed), 0, None, (), self.arrays)
        clock = Clock()
        keys = random.split(random.key(seed), N_CHAINS)
        self.mcmc.run(keys, extra_fields=(self.steps,), **self.arrays)
        steps = np.asarray(self.mcmc.get_extra_fields(group_by_chain=True)[self.steps])
        clock.mark("run")
        return steps, clock.phases["run"]
