"""Labels of rows: the dimension along which they lie, and their coordinates."""

from typing import Any

import numpy as np
import pandas as pd

from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.predictive import observed_input

__all__ = ["other_axes", "row_axis", "row_coords"]


def row_axis(tall: TallModel, name: str | None = None) -> tuple[str, np.ndarray | None]:
    """Return name and labels of the axis of rows, as the result of `pm.sample` has them.

    Rows of other data than the model's own have no labels. They are those of a variable, of the
    first if none is named. Likelihoods of different lengths have theirs one below the other.
    """
    if tall.union is not None:  # the rows of several variables, which have axes of their own
        return "row", None
    name = tall.row_names[0] if name is None else name
    axis = 0 if name in tall.row_potentials else observed_input(tall, name).axis
    dim = _dim(tall, name, axis)
    labels = None if tall.is_bound else tall.model.coords.get(dim)
    return dim, None if labels is None else _array_of(labels)


def other_axes(tall: TallModel, name: str) -> dict[str, np.ndarray | None]:
    """Return names and labels of the axes of an observed variable beside that of the rows."""
    own = observed_input(tall, name)
    dims = [_dim(tall, name, axis) for axis in range(own.values.ndim) if axis != own.axis]
    known = {dim: tall.model.coords.get(dim) for dim in dims}
    return {dim: None if labels is None else _array_of(labels) for dim, labels in known.items()}


def _dim(tall: TallModel, name: str, axis: int) -> str:
    dims = tall.model.named_vars_to_dims.get(name)
    named = None if dims is None else dims[axis]
    return f"{name}_dim_{axis}" if named is None else str(named)


def _array_of(labels: Any) -> np.ndarray:
    """Return labels as an array; those that are tuples stay whole."""
    return np.asarray(pd.Index(list(labels), tupleize_cols=False))


def row_coords(tall: TallModel, rows: np.ndarray) -> tuple[str, np.ndarray]:
    """Return name of the axis of rows, and labels of some rows; their numbers if there are none."""
    dim, labels = row_axis(tall)
    return dim, rows if labels is None else labels[rows]
