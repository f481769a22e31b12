"""Laplace's approximation of pymc-extras."""

from benchmarks.tall_posteriors.jobs import Job, Run, drawn

TITLE = "pymc-extras, Laplace"
SETTINGS = "`pmx.fit_laplace` with its defaults, 1,000 draws."
EXACT = None
PACKAGES = ("pymc-extras",)


def run(job: Job) -> Run:
    """Find the mode and the Hessian."""
    import pymc_extras as pmx

    model = job.pymc_model()
    with model:
        idata = pmx.fit_laplace(draws=1000, random_seed=job.seed, progressbar=False)
    return Run(drawn(idata, model))
