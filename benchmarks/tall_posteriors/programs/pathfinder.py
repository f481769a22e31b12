"""Pathfinder of pymc-extras."""

from benchmarks.tall_posteriors.jobs import Job, Run, drawn

TITLE = "pymc-extras, Pathfinder"
SETTINGS = "`pmx.fit_pathfinder` with its defaults (four paths, PSIS), 1,000 draws."
EXACT = None
PACKAGES = ("pymc-extras",)


def run(job: Job) -> Run:
    """Follow L-BFGS to the mode."""
    import pymc_extras as pmx

    model = job.pymc_model()
    idata = pmx.fit_pathfinder(model=model, random_seed=job.seed, progressbar=False)
    return Run(drawn(idata, model))
