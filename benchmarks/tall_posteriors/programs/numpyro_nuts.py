"""NumPyro's NUTS on PyMC's model."""

from benchmarks.tall_posteriors.jobs import CHAINS, Job, Run, drawn

TITLE = "NumPyro, NUTS"
SETTINGS = (
    '`pm.sample(nuts_sampler="numpyro")` in double precision, a core for each chain, 400 draws to '
    "tune and 500 kept, everything else the default."
)
EXACT = True
PACKAGES = ("numpyro", "jax")
TUNE, DRAWS = 400, 500


def run(job: Job) -> Run:
    """Sample; the time of the draws is their share of all draws."""
    import pymc as pm

    model = job.pymc_model()
    draws = round(DRAWS * job.length)
    with model:
        idata = pm.sample(
            draws,
            tune=TUNE,
            chains=CHAINS,
            nuts_sampler="numpyro",
            random_seed=job.seed,
            progressbar=False,
            compute_convergence_checks=False,
        )
    seconds = float(idata["posterior"].attrs["sampling_time"])
    steps = float(idata["sample_stats"]["n_steps"].sum())
    return Run(
        drawn(idata, model),
        sampling=seconds * draws / (draws + TUNE),
        rows_read=steps * (draws + TUNE) / draws * job.table.n_rows,
        notes={"leapfrog steps per draw": steps / CHAINS / draws},
    )
