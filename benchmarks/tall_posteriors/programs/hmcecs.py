"""NumPyro's HMCECS on the rows of PyMC's model."""

from typing import Any

import numpy as np

from benchmarks.tall_posteriors.jax_model import JaxModel, jax_model
from benchmarks.tall_posteriors.jobs import CHAINS, CannotError, Job, Run

TITLE = "NumPyro, HMCECS"
SETTINGS = (
    "Energy-conserving subsampling over NUTS with a dense mass matrix, Taylor's proxy of second "
    "order at the mode, 1,000 rows in 100 blocks, 500 draws to tune and 2,000 kept in each chain."
)
EXACT = False
PACKAGES = ("numpyro", "jax")
TUNE, DRAWS, ROWS, BLOCKS = 500, 2000, 1000, 100
LARGEST = 2e9
"""Bytes of the Hessians of a subsample's rows, which the proxy makes."""


def run(job: Job) -> Run:
    """Find the mode, expand about it, and sample."""
    import jax
    import numpyro
    from numpyro.infer import HMCECS, MCMC, NUTS, init_to_value

    numpyro.set_host_device_count(CHAINS)
    model = jax_model(job)
    size = len(model.start)
    if 8.0 * ROWS * size**2 > LARGEST:
        raise CannotError(f"cannot: its proxy makes a Hessian for each row, of {size:,} variables")
    mode = {"vector": jax.numpy.asarray(model.mode())}
    job.clock.mark("mode")
    inner = NUTS(
        lambda data: _sites(model, data), dense_mass=True, init_strategy=init_to_value(values=mode)
    )
    kernel = HMCECS(inner, num_blocks=BLOCKS, proxy=HMCECS.taylor_proxy(mode))
    draws = round(DRAWS * job.length)
    sampler = MCMC(
        kernel,
        num_warmup=TUNE,
        num_samples=draws,
        num_chains=CHAINS,
        progress_bar=False,
        jit_model_args=True,
    )
    before = sum(job.clock.phases.values())
    field = "hmc_state.num_steps"
    sampler.run(jax.random.key(job.seed), data=model.data, extra_fields=(field,))
    found = np.asarray(sampler.get_samples(group_by_chain=True)["vector"])
    steps = float(np.asarray(sampler.get_extra_fields()[field]).sum())
    job.clock.mark("sampling")
    seconds = sum(job.clock.phases.values()) - before
    return Run(
        model.constrain(found),
        sampling=seconds * draws / (draws + TUNE),
        rows_read=steps * (draws + TUNE) / draws * ROWS,
    )


def _sites(model: JaxModel, data: Any) -> None:
    import numpyro
    import numpyro.distributions as dist

    real = dist.constraints.real_vector
    vector = numpyro.sample("vector", dist.ImproperUniform(real, (), (len(model.start),)))
    numpyro.factor("prior", model.log_prior(vector))
    with numpyro.plate("rows", model.n_rows, subsample_size=ROWS):
        batch = tuple(numpyro.subsample(values, event_dim=values.ndim - 1) for values in data)
        numpyro.factor("likelihood", model.log_rows(vector, batch))
