"""Failures of hard drives.

52,422 drives, most of them still at work when last seen (hdfail, from SurvSet): times to failure
by a Weibull regression that is censored on the right, with effects of the
make, which are not centred. Times are in hundreds of the units of the data set.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.tall_posteriors.tables import Table, coded, find_package, standardised

TITLE = "Drive failures, censored Weibull"
PACKAGES = ("SurvSet",)


def table() -> Table:
    """Read the drives."""
    survset = find_package("SurvSet")
    t = (
        importlib.import_module(f"{survset.__name__}.data")
        .SurvLoader()
        .load_dataset("hdfail")["df"]
    )
    t = t[t["time"] > 0].dropna()
    kind, n = coded(t["fac_type"].astype(str))
    flags = t[["fac_rsc", "fac_rer", "fac_psc"]].astype(float)
    X = np.column_stack([standardised(t["num_temp"]), flags])
    time = t["time"].to_numpy(dtype=float) / 100
    limit = np.where(t["event"] == 1, np.inf, time)
    return Table({"X": X, "time": time, "limit": limit, "kind": kind}, {"kind": n})


def model(table: Table, batch: Mapping[str, Any] | None = None) -> pm.Model:
    """Build the model, on a minibatch if one is given."""
    rows = table.rows if batch is None else batch
    total = None if batch is None else table.n_rows
    with pm.Model() as built:
        sd = pm.HalfNormal("sd", 1)
        z = pm.Normal("z", 0, 1, shape=table.sizes["kind"])
        eta = pm.Normal("intercept", 5, 2) + rows["X"] @ pm.Normal("beta", 0, 1, shape=4)
        shape = pm.LogNormal("shape", 0, 0.5)
        latent = pm.Weibull.dist(alpha=shape, beta=pm.math.exp(eta + (sd * z)[rows["kind"]]))
        pm.Censored(
            "time",
            latent,
            lower=None,
            upper=rows["limit"],
            observed=rows["time"],
            total_size=total,
        )
    return built
