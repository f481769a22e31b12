"""The package with its defaults: ``pmb.sample(model)``."""

from typing import Any

import numpy as np
import pymc as pm

from benchmarks.tall_posteriors.jobs import CHAINS, Job, Run, drawn

TITLE = "pymc_minibatch"
SETTINGS = "`pmb.sample(model)` with its defaults: 500 draws to tune and 1,000 kept in each chain."
EXACT = True
PACKAGES = ("pymc-minibatch",)
TUNE, DRAWS = 500, 1000


def run(job: Job, method: Any = "auto") -> Run:
    """Sample with the defaults."""
    import pymc_minibatch as pmb

    model = job.model()
    draws = round(DRAWS * job.length)
    idata = pmb.sample(
        model,
        draws,
        tune=TUNE,
        chains=CHAINS,
        method=method,
        random_seed=job.seed,
        progressbar=False,
        compute_convergence_checks=False,
    )
    pymc_model = model if isinstance(model, pm.Model) else model.backend.model
    stats = idata["sample_stats"]
    seconds = float(idata["posterior"].attrs.get("sampling_time", np.nan))
    counts = [float(stats[c].sum()) for c in ("n_likelihood", "n_gradient") if c in stats]
    return Run(
        drawn(idata, pymc_model),
        sampling=seconds * draws / (draws + TUNE) if np.isfinite(seconds) else None,
        rows_read=sum(counts) if counts else None,
        notes={"step": "minibatch" if counts else "NUTS, which the package chose"},
    )
