"""Tables whose columns become rows of a model, wherever they are stored.

A table is a number of parts, each of which is read by itself: row groups of files, partitions of a
Dask DataFrame. What is made of columns is settled from the names and types alone, before any part
is read.
"""

import numbers
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

__all__ = [
    "Arrays",
    "Chosen",
    "Part",
    "Table",
    "Wanted",
    "choose",
    "number_of_dtype",
    "read_columns",
    "repeated",
]

type Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Wanted:
    """A variable of the model that needs rows.

    Attributes
    ----------
    names
        By which it may be called.
    ndim
        Dimensions of its array.
    labels
        Of its second axis, if the model has them.
    optional
        Whether it may be missing.
    axis
        Along which its rows lie in the model.
    """

    names: tuple[str, ...]
    ndim: int
    labels: tuple[str, ...] | None = None
    optional: bool = False
    axis: int = 0


@dataclass(frozen=True)
class Part:
    """A part of the rows, which is read by itself.

    Attributes
    ----------
    label
        What it is called in errors.
    load
        Takes nothing and returns one array for each source; or a ``Delayed`` of that.
    n_rows
        Its number of rows; None where nobody knows before it is read.
    """

    label: str
    load: Any
    n_rows: int | None = None


@dataclass(frozen=True)
class Table:
    """A table that was opened.

    Attributes
    ----------
    dtypes
        Of each column; None for what is no number.
    parts
        Each loads, once `columns` are settled, ``read(columns)``.
    read
        ``(part, columns) -> load`` of a :class:`Part`; `columns` as in :func:`read_columns`.
    odd
        Of columns that hold numbers in some files only, the first file in which they do not.
    repeated
        Names that several columns have, so that none of them can be meant.
    """

    dtypes: Mapping[str, np.dtype | None]
    parts: Sequence[Part]
    read: Callable[[Part, "Chosen"], Any]
    odd: Mapping[str, str] = field(default_factory=dict)
    repeated: frozenset[str] = frozenset()

    def chosen(self, columns: "Chosen") -> list[Part]:
        """Return the parts with what loads these columns."""
        return [replace(part, load=self.read(part, columns)) for part in self.parts]


type Chosen = tuple[tuple[tuple[str, ...], np.dtype, bool], ...]
"""For each source its columns, its type, and whether it is a matrix."""


def choose(table: Table, columns: Mapping[str, Any], wanted: Mapping[str, Wanted]) -> Any:
    """Settle which columns make up the variables that the model wants.

    Returns
    -------
    dict of str to tuple
        By the name of each variable an entry of `Chosen`.

    Raises
    ------
    ValueError
        If a column is missing or holds no numbers, or `columns` names a variable without rows.
    """
    known = {name for want in wanted.values() for name in want.names}
    if unknown := sorted(set(columns) - known):
        raise ValueError(
            f"columns names {unknown}, which hold no rows in the model; those that do are "
            f"{sorted(known)}."
        )
    chosen = {}
    for want in wanted.values():
        given = [name for name in want.names if name in columns]
        name = given[0] if given else want.names[0]
        of_name = columns[given[0]] if given else _by_name(table, want)
        is_one = isinstance(of_name, str | numbers.Number)
        names = tuple(map(str, [of_name] if is_one else of_name))
        missing = [n for n in names if n not in table.dtypes]
        if missing and want.optional and not given:
            continue
        if missing:
            raise ValueError(
                f"The table has no column {missing[0]!r} for {name}. Its columns are "
                f"{list(table.dtypes)}; say which make up {name} with "
                f"pmb.Columns(..., {{{name!r}: [...]}})."
            )
        dtypes = [_dtype_of_column(table, n, name) for n in names]
        chosen[name] = (names, np.result_type(*dtypes), want.ndim > 1 or not is_one)
    return chosen


def _dtype_of_column(table: Table, column: str, variable: str) -> np.dtype:
    if column in table.repeated:
        raise ValueError(
            f"The table has several columns named {column!r}, and {variable} could be any of "
            "them. Give each a name of its own, and leave out the others."
        )
    dtype = table.dtypes[column]
    if dtype is None:
        where = f" in {table.odd[column]}" if column in table.odd else ""
        raise ValueError(
            f"Column {column!r} holds no numbers{where}. Code labels as integers before "
            "sampling, and give numbers a numeric type."
        )
    return dtype


def _by_name(table: Table, want: Wanted) -> str | tuple[str, ...]:
    for name in want.names:
        if name in table.dtypes:
            return name
    if want.ndim == 2 and want.labels and all(label in table.dtypes for label in want.labels):
        return want.labels
    return want.names[0]


def read_columns(
    get: Callable[[str], np.ndarray], n_rows: int, chosen: Chosen, label: str
) -> Arrays:
    """Put the columns of a part together.

    Raises
    ------
    ValueError
        Naming the part, if a column is missing there, or has a type that does not convert.
    """
    arrays = []
    for names, dtype, is_matrix in chosen:
        values = np.empty((n_rows, len(names)) if is_matrix else n_rows, dtype)
        for j, name in enumerate(names):
            try:
                column = get(name)
            except KeyError:
                raise ValueError(f"Column {name!r} is missing in {label}.") from None
            if column.dtype != dtype and not np.can_cast(column.dtype, dtype, "safe"):
                raise ValueError(
                    f"Column {name!r} has dtype {column.dtype} in {label}, which does not convert "
                    f"safely to {dtype}, that of the other parts. Convert it."
                )
            values[(slice(None), j) if is_matrix else slice(None)] = column
        arrays.append(values)
    return tuple(arrays)


def repeated(names: Iterable[Any]) -> frozenset[str]:
    """Return the names that occur more than once, as after a join that kept both columns."""
    return frozenset(name for name, n in Counter(map(str, names)).items() if n > 1)


def number_of_dtype(dtype: Any) -> np.dtype | None:
    """Return the NumPy type of a column; None if that is no number."""
    found = getattr(dtype, "numpy_dtype", dtype)  # of pandas' own types that may be missing
    return found if isinstance(found, np.dtype) and found.kind in "biuf" else None
