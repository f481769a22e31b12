"""A table that is passed as data, of any kind, and which of its columns make which variable."""

from collections.abc import Mapping, Sequence
from typing import Any

from pymc_minibatch.tall import frames, parquet
from pymc_minibatch.tall.tables import Table

__all__ = ["TABLES", "Columns", "is_table", "open_table"]

TABLES = (parquet, frames)
"""Kinds of tables, a module each, with ``is_source`` and ``open_table``; the first that fits."""


def is_table(source: Any) -> bool:
    """Whether it is a table of a kind that is known."""
    return any(kind.is_source(source) for kind in TABLES)


def open_table(source: Any) -> Table:
    """Open a table; no rows are read."""
    return next(kind for kind in TABLES if kind.is_source(source)).open_table(source)


class Columns:
    """A table, and which of its columns make up which variable of the model.

    Parameters
    ----------
    source
        A Parquet file, folder or glob, as a path or a URL that fsspec knows (``s3://``, ``gs://``,
        ``file://``, ``memory://``); or a Dask, pandas or polars DataFrame.
    columns : mapping of str to str or list of str, optional
        For each variable of the model with rows, by name, its column, or its columns in order, by
        their names, which may be numbers. A variable that is not named has the column of its own
        name, or, if the model gives its second axis labels, the columns of these names.

    Examples
    --------
    >>> import numpy as np, pandas as pd, pymc as pm, pymc_minibatch as pmb
    >>> table = pd.DataFrame({"age": [31.0, 44.0], "income": [2.5, 3.1], "bought": [0, 1]})
    >>> data = pmb.Columns(table, {"X": ["age", "income"], "y": "bought"})
    >>> with pm.Model():
    ...     beta = pm.Normal("beta", shape=2)
    ...     X = pm.Data("X", np.zeros((2, 2)))
    ...     y = pm.Bernoulli("y", logit_p=X @ beta, observed=np.zeros(2, dtype=int))
    ...     tall = pmb.TallModel(data=data)
    >>> tall.row_logp({"beta": np.array([0.1, -1.0])}, [0, 1]).round(3)
    array([-1.037, -0.241])
    """

    def __init__(
        self, source: Any, columns: Mapping[str, str | Sequence[str]] | None = None
    ) -> None:
        if not is_table(source):
            raise TypeError(
                "Columns takes a path or URL of Parquet files, or a DataFrame; got "
                f"{type(source).__name__}."
            )
        self.source = source
        self.columns = dict(columns or {})
