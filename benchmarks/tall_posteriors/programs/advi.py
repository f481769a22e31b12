"""ADVI of PyMC with minibatches."""

from benchmarks.tall_posteriors.jobs import CannotError, Job, Run, drawn

TITLE = "PyMC ADVI, minibatches"
SETTINGS = (
    "`pm.fit` with `pm.Minibatch` of 1,000 rows, 20,000 steps of Adam with learning rate 0.01, "
    "1,000 draws."
)
EXACT = None
PACKAGES = ()
BATCH, STEPS, RATE = 1000, 20_000, 0.01


def run(job: Job) -> Run:
    """Fit a mean-field Gaussian."""
    import pymc as pm

    if getattr(job.posterior, "BAMBI", False):
        raise CannotError("cannot express: models of Bambi take no minibatches")
    names = list(job.table.rows)
    size = min(BATCH, job.table.n_rows)
    batch = pm.Minibatch(*[job.table.rows[name] for name in names], batch_size=size)
    model = job.posterior.model(job.table, dict(zip(names, batch, strict=True)))
    job.clock.mark("model")
    with model:
        fitted = pm.fit(
            STEPS,
            method="advi",
            obj_optimizer=pm.adam(learning_rate=RATE),
            random_seed=job.seed,
            progressbar=False,
        )
        job.clock.mark("fit")
        idata = fitted.sample(1000, random_seed=job.seed)
    return Run(drawn(idata, model), rows_read=float(STEPS * size))
