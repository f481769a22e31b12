"""The approximation of this package, with its check."""

from benchmarks.tall_posteriors.jobs import Job, Run, drawn

TITLE = "pymc_minibatch, approximate"
SETTINGS = (
    "`pmb.approximate(model)` with its defaults: 1,000 draws, checked and corrected if needed."
)
EXACT = None
PACKAGES = ("pymc-minibatch",)


def run(job: Job) -> Run:
    """Approximate."""
    import pymc_minibatch as pmb

    model = job.model()
    idata = pmb.approximate(model, draws=round(1000 * job.length), random_seed=job.seed)
    pymc_model = model.backend.model if hasattr(model, "backend") else model
    kept = ("verdict", "corrected", "largest_shift")
    notes = {key: idata.attrs[key] for key in kept if key in idata.attrs}
    return Run(drawn(idata, pymc_model), notes=notes)
