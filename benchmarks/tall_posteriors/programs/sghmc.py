"""Stochastic gradient Hamiltonian Monte Carlo of blackjax."""

from benchmarks.tall_posteriors.jobs import Job, Run
from benchmarks.tall_posteriors.programs.sgld import follow

TITLE = "blackjax, SGHMC"
SETTINGS = (
    "`blackjax.sghmc` with control variates at the mode, 1,000 rows a batch, 10 steps of each, "
    "friction 0.01, the step 0.1 over the root of the largest curvature at the mode, 5,000 batches "
    "of each chain of which every 25th is kept."
)
EXACT = False
PACKAGES = ("blackjax", "jax")
STEPS, FRICTION, STEP = 10, 0.01, 0.1


def run(job: Job) -> Run:
    """Find the mode, then follow the gradients of batches."""
    import blackjax

    def algorithm(gradient: object) -> object:
        return blackjax.sghmc(gradient, num_integration_steps=STEPS, alpha=FRICTION)

    return follow(job, algorithm, lambda curvature: STEP / curvature**0.5, STEPS)
