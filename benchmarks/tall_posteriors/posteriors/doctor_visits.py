"""Visits to a doctor.

20,190 years of persons in the RAND health insurance experiment (randhie, from statsmodels): counts
that vary more than those of Poisson, by a negative binomial regression on nine predictors.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.tall_posteriors.tables import Table, find_package, standardised

TITLE = "Doctor visits, negative binomial"
PACKAGES = ("statsmodels",)


def table() -> Table:
    """Read the years."""
    find_package("statsmodels")
    randhie = importlib.import_module("statsmodels.datasets.randhie")
    t = randhie.load_pandas().data
    X = standardised(t.drop(columns="mdvis"))
    return Table({"X": X, "visits": t["mdvis"].to_numpy(dtype=np.int32)}, noisy=("X",))


def model(table: Table, batch: Mapping[str, Any] | None = None) -> pm.Model:
    """Build the model, on a minibatch if one is given."""
    rows = table.rows if batch is None else batch
    total = None if batch is None else table.n_rows
    with pm.Model() as built:
        intercept = pm.Normal("intercept", 0, 5)
        beta = pm.Normal("beta", 0, 1, shape=table.rows["X"].shape[1])
        alpha = pm.HalfNormal("alpha", 2)
        mu = pm.math.exp(intercept + rows["X"] @ beta)
        pm.NegativeBinomial("visits", mu=mu, alpha=alpha, observed=rows["visits"], total_size=total)
    return built
