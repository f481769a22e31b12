"""FlyMC of this package, where rows have bounds."""

from benchmarks.tall_posteriors.jobs import CannotError, Job, Run
from benchmarks.tall_posteriors.programs import minibatch

TITLE = "pymc_minibatch, FlyMC"
SETTINGS = '`pmb.sample(model, method="flymc")` with its defaults.'
EXACT = True
PACKAGES = ("pymc-minibatch",)


def run(job: Job) -> Run:
    """Sample, if the rows of the model have bounds."""
    import pymc_minibatch as pmb

    try:
        return minibatch.run(job, method="flymc")
    except (pmb.NoBoundError, pmb.NoPredictorError) as error:
        raise CannotError(f"cannot: {str(error).split('.')[0][:120]}") from error
