"""Points and row numbers that people pass."""

from collections.abc import Mapping, Sequence

import numpy as np

from pymc_minibatch.tall.layout import PointLayout

__all__ = ["checked_point", "checked_rows"]


def checked_point(layout: PointLayout, point: Mapping[str, np.ndarray]) -> np.ndarray:
    """Ravel a point whose variables and shapes are those of a layout.

    Raises
    ------
    ValueError
        Naming the variable that is missing, or whose shape or type is another.
    """
    if not isinstance(point, Mapping):
        raise ValueError(
            "A point maps names of value variables to arrays, as model.initial_point() gives; got "
            f"{type(point).__name__}."
        )
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        if name not in point:
            raise ValueError(
                f"The point has no {name}. Its variables are those of model.initial_point(): "
                f"{list(layout.names)}."
            )
        value = np.asanyarray(point[name])
        if value.dtype.kind not in "biuf" or np.ma.is_masked(value):
            raise ValueError(f"{name} of the point must be numbers, none masked; got {value!r}.")
        if value.shape != shape:
            raise ValueError(
                f"{name} of the point has shape {value.shape}; the model needs {shape}."
            )
    return layout.flatten(point)


def checked_rows(rows: Sequence[int] | np.ndarray, n_rows: int, least: int = 0) -> np.ndarray:
    """Return row numbers as an array.

    Raises
    ------
    ValueError
        If they are no whole numbers from 0 to N − 1, or fewer than `least`.
    """
    given = np.asanyarray(rows)
    if given.dtype.kind == "b":
        raise ValueError("rows must be row numbers; of a mask, these are np.flatnonzero(mask).")
    whole = given.dtype.kind in "iu" or given.size == 0
    if given.ndim != 1 or not whole or np.ma.is_masked(given):
        raise ValueError(f"rows must be a list of whole numbers, none masked; got {rows!r}.")
    if given.size < least:
        raise ValueError("rows is empty. Pass at least one row number, or leave rows out.")
    outside = np.flatnonzero((given < 0) | (given >= n_rows))
    if outside.size:
        raise ValueError(
            f"rows must be numbers from 0 to {n_rows - 1}; there is {given[outside[0]]}."
        )
    return given.astype(np.int64)
