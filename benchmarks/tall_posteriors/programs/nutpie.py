"""nutpie's NUTS on PyMC's model."""

from benchmarks.tall_posteriors.jobs import CHAINS, Job, Run, drawn

TITLE = "nutpie"
SETTINGS = (
    "NUTS, gradients by Numba, 400 draws to tune and 500 kept in each chain, everything else the "
    "default."
)
EXACT = True
PACKAGES = ("nutpie",)
TUNE, DRAWS = 400, 500


def run(job: Job) -> Run:
    """Sample; the time of the draws is their share of the leapfrog steps."""
    import nutpie

    model = job.pymc_model()
    compiled = nutpie.compile_pymc_model(model, backend="numba")
    job.clock.mark("compile")
    before = sum(job.clock.phases.values())
    idata = nutpie.sample(
        compiled,
        draws=round(DRAWS * job.length),
        tune=TUNE,
        chains=CHAINS,
        cores=CHAINS,
        seed=job.seed,
        progress_bar=False,
    )
    job.clock.mark("sampling")
    seconds = sum(job.clock.phases.values()) - before
    tuning = float(idata["warmup_sample_stats"]["n_steps"].sum())
    drawing = float(idata["sample_stats"]["n_steps"].sum())
    return Run(
        drawn(idata, model),
        sampling=seconds * drawing / (tuning + drawing),
        rows_read=(tuning + drawing) * job.table.n_rows,
        notes={"leapfrog steps per draw": drawing / CHAINS / round(DRAWS * job.length)},
    )
