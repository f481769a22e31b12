"""Labels of sources: columns are matched to those of the model, rows to those of each other.

Frames and labelled arrays may hold the same columns or rows in another order. What has labels on
both sides is bound by them; numbers counted from zero, as pandas gives where nobody named anything,
are no labels.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from pymc_minibatch.tall.tables import Wanted, repeated

__all__ = ["check_row_labels", "columns_in_order"]

UNNAMED = re.compile(r"column_\d+")
"""Names that polars gives to columns without one."""


def columns_in_order(name: str, source: Any, wanted: Wanted | None, argument: str) -> Any:
    """Return a frame with the columns that the model has labels for, in the order of these.

    Raises
    ------
    ValueError
        If a column is missing, or several have its name.
    """
    is_frame = hasattr(source, "columns") and hasattr(source, "dtypes")
    if not is_frame or wanted is None or wanted.ndim != 2 or not wanted.labels:
        return source
    named = {str(column): column for column in source.columns}
    as_it_is = _are_unnamed(list(source.columns)) or list(named) == list(wanted.labels)
    if as_it_is and len(named) == len(source.columns):
        return source
    several = repeated(source.columns)
    for label in wanted.labels:
        problem = "has several columns" if label in several else "has no column"
        if label in several or label not in named:
            raise ValueError(
                f"{argument}[{name!r}] {problem} named {label!r}; the model labels the columns of "
                f"{name} {_shown(wanted.labels)}, and those of the frame are "
                f"{_shown(source.columns)}. Rename them, or pass an array whose columns are in the "
                "order of the model."
            )
    return source[[named[label] for label in wanted.labels]]


def check_row_labels(
    sources: Mapping[str, Any], wanted: Mapping[str, Wanted], argument: str
) -> None:
    """Refuse sources whose rows are labelled differently, so that they would be paired wrongly.

    Raises
    ------
    ValueError
        Naming two of them.
    """
    axes = {name: want.axis for want in wanted.values() for name in want.names}
    indexes = {name: _row_index(source, axes.get(name, 0)) for name, source in sources.items()}
    known = {name: index for name, index in indexes.items() if index is not None}
    for (one, first), (other, second) in zip(known.items(), list(known.items())[1:], strict=False):
        if len(first) != len(second) or first.equals(second):
            continue
        is_permuted = first.is_unique and len(first.difference(second)) == 0
        if not is_permuted and (_counts(first) or _counts(second)):
            continue  # numbers from zero are no labels, unless the others are the same numbers
        row = int(np.argmax(np.asarray(first != second)))
        order = "in another order than" if is_permuted else "otherwise than"
        raise ValueError(
            f"The rows of {argument}[{other!r}] are labelled {order} those of "
            f"{argument}[{one!r}]: row {row} is {second[row]!r} in {other} and {first[row]!r} in "
            f"{one}. Bring them into one order, as in {other}.loc[{one}.index]; or, if they belong "
            "together by position, pass arrays, as in "
            f"{other}.to_numpy()."
        )


def _row_index(source: Any, axis: int) -> Any:
    """Return the labels of the rows, a pandas Index; None if there are none in memory."""
    if hasattr(source, "dask") or hasattr(source, "to_delayed"):
        return None
    if hasattr(source, "indexes") and hasattr(source, "dims"):  # xarray
        return source.indexes.get(source.dims[axis]) if axis < len(source.dims) else None
    index = getattr(source, "index", None)
    return index if hasattr(index, "equals") and hasattr(index, "is_unique") else None


def _counts(index: Any) -> bool:
    """Whether labels are the numbers from zero."""
    return index.dtype.kind in "iu" and np.array_equal(index, np.arange(len(index)))


def _are_unnamed(columns: list[Any]) -> bool:
    """Whether nobody has named the columns."""
    return columns == list(range(len(columns))) or all(
        isinstance(column, str) and UNNAMED.fullmatch(column) for column in columns
    )


def _shown(labels: Any) -> str:
    return str([str(label) for label in labels][:8])
