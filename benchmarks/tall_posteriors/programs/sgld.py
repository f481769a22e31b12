"""Stochastic gradient Langevin dynamics of blackjax."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.tall_posteriors.jax_model import JaxModel, jax_model
from benchmarks.tall_posteriors.jobs import CHAINS, Job, Run

TITLE = "blackjax, SGLD"
SETTINGS = (
    "`blackjax.sgld` with control variates at the mode, 1,000 rows a step, the step 0.2 over the "
    "largest curvature at the mode, 50,000 steps of each chain of which every 25th is kept."
)
EXACT = False
PACKAGES = ("blackjax", "jax")
ROWS, STEPS, THIN = 1000, 50_000, 25
STEP = 0.2
"""Of the inverse of the largest curvature."""
TURNS = 50
"""Of the power iteration that finds it."""


def run(job: Job) -> Run:
    """Find the mode, then follow the gradients of batches."""
    import blackjax

    return follow(job, lambda gradient: blackjax.sgld(gradient), lambda c: STEP / c, 1)


def follow(
    job: Job,
    algorithm: Callable[[Any], Any],
    step_of: Callable[[float], float],
    gradients: int,
) -> Run:
    """Run one of blackjax's algorithms that take gradients of batches.

    Parameters
    ----------
    algorithm
        Makes it from an estimate of the gradient.
    step_of
        The step, given the largest curvature at the mode.
    gradients
        How many each step takes, on one batch.
    """
    import jax
    import jax.numpy as jnp

    model = jax_model(job)
    mode = jnp.asarray(model.mode())
    job.clock.mark("mode")
    gradient, curvature = _at_mode(model, mode)
    job.clock.mark("curvature")
    kernel, size = algorithm(gradient), step_of(curvature)
    kept = round(STEPS * job.length / gradients) // THIN

    def chain(key: Any, data: Any) -> Any:
        def one(position: Any, key: Any) -> tuple[Any, None]:
            rows, noise = jax.random.split(key)
            chosen = jax.random.randint(rows, (ROWS,), 0, model.n_rows)
            batch = tuple(values[chosen] for values in data)
            return kernel.step(noise, position, batch, size), None

        def some(position: Any, key: Any) -> tuple[Any, Any]:
            position, _ = jax.lax.scan(one, position, jax.random.split(key, THIN))
            return position, position

        return jax.lax.scan(some, kernel.init(mode), jax.random.split(key, kept))[1]

    keys = jax.random.split(jax.random.key(job.seed), CHAINS)
    before = sum(job.clock.phases.values())
    found = np.asarray(jax.pmap(chain, in_axes=(0, None))(keys, model.data))
    job.clock.mark("sampling")
    seconds = sum(job.clock.phases.values()) - before
    rows = float(CHAINS * kept * THIN * gradients * ROWS)
    return Run(model.constrain(found), sampling=seconds, rows_read=rows)


def _at_mode(model: JaxModel, mode: Any) -> tuple[Callable[[Any, Any], Any], float]:
    """Return the estimate of the gradient with control variates, and the largest curvature."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def full(vector: Any, data: Any) -> Any:
        return jax.grad(model.log_density)(vector, data)

    @jax.jit
    def product(vector: Any, data: Any) -> Any:
        return jax.jvp(lambda v: jax.grad(model.log_density)(v, data), (mode,), (vector,))[1]

    direction = jax.random.normal(jax.random.key(0), mode.shape)
    largest = 0.0
    for _ in range(TURNS):
        direction = product(direction / jnp.linalg.norm(direction), model.data)
        largest = float(jnp.linalg.norm(direction))
    at_mode = full(mode, model.data)
    prior = jax.grad(model.log_prior)
    rows = jax.grad(lambda vector, batch: model.log_rows(vector, batch).mean())

    def gradient(vector: Any, batch: Any) -> Any:
        moved = rows(vector, batch) - rows(mode, batch)
        return at_mode + prior(vector) - prior(mode) + model.n_rows * moved

    return gradient, largest
