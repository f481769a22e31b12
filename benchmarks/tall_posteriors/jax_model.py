"""A model of PyMC as functions of JAX, for programs that take log-densities of rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from benchmarks.tall_posteriors.jobs import CannotError, Job

__all__ = ["JaxModel", "jax_model"]


@dataclass(frozen=True)
class JaxModel:
    """A posterior over one vector, in which all variables are unconstrained.

    Attributes
    ----------
    start
        The initial point of the PyMC model.
    data
        Arrays of JAX whose first axis is the row.
    log_prior
        Log-density of the prior, with Jacobians, of the vector.
    log_rows
        Log-likelihood of each row, of the vector and of arrays like `data`, or some rows of them.
    constrain
        The variables of the model by name, of an array of shape (chain, draw, vector).
    """

    start: np.ndarray
    data: tuple[Any, ...]
    log_prior: Callable[[Any], Any]
    log_rows: Callable[[Any, tuple[Any, ...]], Any]
    constrain: Callable[[np.ndarray], dict[str, np.ndarray]]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.data[0])

    def log_density(self, vector: Any, data: tuple[Any, ...]) -> Any:
        """Return the unnormalised log-density of the posterior; `data` are all rows."""
        return self.log_prior(vector) + self.log_rows(vector, data).sum()

    def mode(self) -> np.ndarray:
        """Find the mode by L-BFGS, on all rows."""
        import jax

        @jax.jit
        def loss(vector: Any, data: tuple[Any, ...]) -> Any:
            return jax.value_and_grad(lambda v: -self.log_density(v, data) / self.n_rows)(vector)

        found = minimize(
            lambda vector: [np.asarray(value) for value in loss(vector, self.data)],
            self.start,
            jac=True,
            method="L-BFGS-B",
            options={"ftol": 0.0, "gtol": 1e-8, "maxiter": 1000},
        )
        return found.x


def jax_model(job: Job) -> JaxModel:
    """Translate the model of a job.

    Raises
    ------
    CannotError
        For a model of Bambi, which cannot be built on some rows of its data.
    """
    if getattr(job.posterior, "BAMBI", False):
        raise CannotError("cannot express: models of Bambi take no minibatches")
    import jax
    import pytensor.tensor as pt
    from pymc.sampling.jax import get_jaxified_graph

    batch = {
        name: pt.tensor(name, dtype=values.dtype, shape=(None, *values.shape[1:]))
        for name, values in job.table.rows.items()
    }
    model = job.posterior.model(job.table, batch)
    free = model.free_RVs
    inputs = [model.rvs_to_values[rv] for rv in free]
    point = model.initial_point()
    shapes = [np.shape(point[value.name]) for value in inputs]
    ends = np.cumsum([int(np.prod(shape, dtype=int)) for shape in shapes])

    def split(vector: Any) -> list[Any]:
        parts = jax.numpy.split(vector, ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    n_rows = next(iter(batch.values())).shape[0]
    # PyMC counts each row of a batch total_size / batch times; here it counts once.
    terms = sum(model.logp(vars=model.observed_RVs, sum=False)) * (n_rows / job.table.n_rows)
    prior = get_jaxified_graph(inputs, [model.logp(vars=free)])
    rows = get_jaxified_graph([*inputs, *batch.values()], [terms])
    variables = get_jaxified_graph(inputs, model.replace_rvs_by_values(free))
    job.clock.mark("model")

    def constrain(draws: np.ndarray) -> dict[str, np.ndarray]:
        each = jax.jit(jax.vmap(jax.vmap(lambda vector: variables(*split(vector)))))
        found = each(jax.numpy.asarray(draws))
        return {rv.name: np.asarray(v) for rv, v in zip(free, found, strict=True)}

    return JaxModel(
        start=np.concatenate([np.ravel(point[value.name]) for value in inputs]).astype(float),
        data=tuple(jax.numpy.asarray(values) for values in job.table.rows.values()),
        log_prior=lambda vector: prior(*split(vector))[0],
        log_rows=lambda vector, data: rows(*split(vector), *data)[0],
        constrain=constrain,
    )
