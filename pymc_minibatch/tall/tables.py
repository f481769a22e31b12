"""Tables whose columns become rows of a model: Parquet files, Dask and other DataFrames.

A table is a number of parts, each of which is read by itself: row groups of files, partitions of a
Dask DataFrame. What is made of columns is settled from the names and types alone, before any part
is read.
"""

import numbers
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.tall.stored import FileState, is_local

__all__ = [
    "Columns",
    "Part",
    "Table",
    "Wanted",
    "choose",
    "is_table",
    "loads_of",
    "open_table",
    "read_columns",
    "repeated",
]

type Arrays = tuple[np.ndarray, ...]

FILES_AT_ONCE = 16
"""Footers of Parquet files that are read at a time: in object stores each is a journey."""


GLOB = "*?["
"""Signs that make a path a pattern."""


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
    >>> import pandas as pd, pymc_minibatch as pmb
    >>> table = pd.DataFrame({"age": [31.0, 44.0], "income": [2.5, 3.1], "bought": [0, 1]})
    >>> data = pmb.Columns(table, {"X": ["age", "income"], "y": "bought"})
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


def is_table(source: Any) -> bool:
    """Whether it is the path of Parquet files, or a DataFrame."""
    if isinstance(source, str | Path):
        return Path(source).suffix not in (".npy", ".zarr")
    return hasattr(source, "columns") and hasattr(source, "dtypes")


def open_table(source: Any) -> Table:
    """Open files or a DataFrame; no rows are read."""
    if isinstance(source, str | Path):
        return _open_parquet(str(source))
    if hasattr(source, "to_delayed"):
        return _open_dask(source)
    return _open_frame(source)


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
        found: list[np.dtype] = []
        for n in names:
            if n in table.repeated:
                raise ValueError(
                    f"The table has several columns named {n!r}, and {name} could be any of them. "
                    "Give each a name of its own, and leave out what is not needed."
                )
            dtype = table.dtypes[n]
            if dtype is None:
                where = f" in {table.odd[n]}" if n in table.odd else ""
                raise ValueError(
                    f"Column {n!r} holds no numbers{where}. Code labels as integers before "
                    "sampling, and give numbers a numeric type."
                )
            found.append(dtype)
        chosen[name] = (names, np.result_type(*found), want.ndim > 1 or not is_one)
    return chosen


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


# --- DataFrames -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Blocks of Dask collections, computed where they are wanted as one task.

    The tasks of a graph can be moved from worker to worker, and rows with them.
    """

    graph: Mapping[Any, Any]
    keys: tuple[Any, ...]

    def __call__(self) -> tuple[Any, ...]:
        """Compute them in this thread."""
        from dask.local import get_sync

        return tuple(get_sync(dict(self.graph), list(self.keys)))


def loads_of(delayed: Sequence[Sequence[Any]]) -> list[Any]:
    """Return what loads each part, given the blocks of each source as Delayed objects.

    If a cluster holds what a block is made of it must be a task of that cluster: a Delayed.
    """
    from dask.delayed import delayed as lazily
    from dask.optimization import cull
    from dask.utils import ensure_dict

    graphs = [ensure_dict(blocks[0].__dask_graph__()) for blocks in delayed]
    together = lazily(_together, pure=False)
    found: list[Any] = []
    for blocks in zip(*delayed, strict=True):
        culled = [cull(graph, [b.key])[0] for graph, b in zip(graphs, blocks, strict=True)]
        needed = {key: task for graph in culled for key, task in graph.items()}
        held = any(_is_on_cluster(task) for task in needed.values())
        keys = tuple(block.key for block in blocks)
        found.append(together(*blocks) if held else Block(needed, keys))
    return found


def _together(*arrays: Any) -> tuple[Any, ...]:
    return arrays


def _is_on_cluster(task: Any) -> bool:
    held = getattr(task, "value", task)
    return type(held).__module__.startswith("distributed")


def repeated(names: Iterable[Any]) -> frozenset[str]:
    """Return the names that occur more than once, as after a join that kept both columns."""
    return frozenset(name for name, n in Counter(map(str, names)).items() if n > 1)


def _open_dask(frame: Any) -> Table:
    from dask.delayed import delayed

    dtypes = {str(name): _number(dtype) for name, dtype in frame.dtypes.items()}
    loads = loads_of([frame.to_delayed(optimize_graph=True)])
    parts = [Part(f"partition {i}", load) for i, load in enumerate(loads)]

    def read(part: Part, chosen: Chosen) -> Any:
        if isinstance(part.load, Block):
            return FrameBlock(part.load, chosen, part.label)
        return delayed(_read_held, pure=False)(part.load, chosen, part.label)

    return Table(dtypes, parts, read, repeated=repeated(frame.columns))


def _open_frame(frame: Any) -> Table:
    if hasattr(frame, "collect"):
        raise ValueError(
            f"A {type(frame).__name__} has no rows yet. Pass frame.collect(), or the Parquet files "
            "that it reads."
        )
    several = repeated(frame.columns)
    dtypes = {
        str(name): None if str(name) in several else _number_of(frame[name])
        for name in frame.columns
    }

    def read(part: Part, chosen: Chosen) -> Any:
        return lambda: _read_frame(frame, chosen, part.label)

    return Table(dtypes, [Part("the table", None, len(frame))], read, repeated=several)


@dataclass(frozen=True)
class FrameBlock:
    """A partition of a Dask DataFrame."""

    block: Block
    chosen: Chosen
    label: str

    def __call__(self) -> Arrays:
        """Compute it, and read its columns."""
        return _read_held(self.block(), self.chosen, self.label)


def _read_held(frames: Sequence[Any], chosen: Chosen, label: str) -> Arrays:
    return _read_frame(frames[0], chosen, label)


def _read_frame(frame: Any, chosen: Chosen, label: str) -> Arrays:
    named = {str(name): name for name in frame.columns}  # pandas takes numbers for names, too

    def get(name: str) -> np.ndarray:
        column = frame[named[name]]
        values = column.to_numpy()
        if values.dtype.kind not in "biuf":
            raise ValueError(
                f"Column {name!r} has values in {label} that are no numbers: dtype "
                f"{getattr(column, 'dtype', values.dtype)}."
            )
        return values

    return read_columns(get, len(frame), chosen, label)


def _number(dtype: Any) -> np.dtype | None:
    """Return the NumPy type of a column; None if that is no number."""
    found = getattr(dtype, "numpy_dtype", dtype)  # of pandas' own types that may be missing
    return found if isinstance(found, np.dtype) and found.kind in "biuf" else None


def _number_of(column: Any) -> np.dtype | None:
    if isinstance(column.dtype, np.dtype) or hasattr(column.dtype, "numpy_dtype"):
        return _number(column.dtype)
    return _number(column[:0].to_numpy().dtype)  # polars


# --- Parquet ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file; it is pickled by name."""

    filesystem: Any
    path: str
    group: int
    chosen: Chosen
    label: str
    state: FileState | None = None

    @property
    def is_local(self) -> bool:
        """Whether the file is on this machine, where a look at it is cheap."""
        return is_local(self.filesystem)

    def check(self) -> None:
        """Refuse a file that was written again since its footer was read.

        Raises
        ------
        RuntimeError
        """
        if self.state is not None:
            self.state.check(self.filesystem, self.path)

    def __call__(self) -> Arrays:
        """Read it.

        Raises
        ------
        RuntimeError
            If the file is not the one whose footer was read.
        ValueError
            If it cannot be read, or is not what the footer of the file says.
        """
        import pyarrow

        self.check()
        names = sorted({name for columns, *_ in self.chosen for name in columns})
        try:
            with _open(self.filesystem, self.path) as file:
                table = file.read_row_group(self.group, columns=names, use_threads=False)
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(
                f"{self.label} cannot be read ({_first_line(error)}). Write the file again."
            ) from error
        if self.is_local:  # it may have been written while it was read
            self.check()

        def get(name: str) -> np.ndarray:
            column = table[name]
            if column.null_count and not pyarrow.types.is_floating(column.type):
                row = column.is_null().to_numpy().argmax()
                raise ValueError(
                    f"Column {name!r} has a missing value in row {row} of {self.label}. Remove or "
                    "replace missing values before sampling."
                )
            return column.to_numpy()

        return read_columns(get, table.num_rows, self.chosen, self.label)


def _open_parquet(path: str) -> Table:
    filesystem, paths = _files(path)
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        footers = list(pool.map(lambda path: _footer(filesystem, path), paths))
    first, types = paths[0], footers[0].types
    odd: dict[str, str] = {}
    for path, (found, _, _, _) in zip(paths, footers, strict=True):
        if missing := sorted(set(types) - set(found)):
            raise ValueError(f"Column {missing[0]!r} of {first} is missing in {path}.")
        for name, dtype in types.items():
            if dtype is not None and found[name] is None:
                odd[name] = path
        types = {name: _wider(dtype, found[name]) for name, dtype in types.items()}
    parts = [
        Part(f"row group {group} of {path}", (path, group, footer.state), n)
        for path, footer in zip(paths, footers, strict=True)
        for group, n in enumerate(footer.lengths)
    ]

    def read(part: Part, chosen: Chosen) -> Any:
        path, group, state = part.load
        return RowGroup(filesystem, path, group, chosen, part.label, state)

    several = frozenset[str]().union(*(footer.repeated for footer in footers))
    return Table(types, parts, read, odd, several)


def _files(path: str) -> tuple[Any, list[str]]:
    """Find the files of a path, folder or glob, sorted by name.

    What Spark, Dask and pyarrow leave out is left out: files and folders below the path whose names
    begin with "_" or ".", such as those of a job that failed. A path that exists is no pattern,
    though it may look like one.
    """
    try:
        import pyarrow.parquet  # noqa: F401
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ImportError(
            f"{path} is read through pyarrow and fsspec: pip install 'pymc-minibatch[parquet]'."
        ) from error
    filesystem, root = url_to_fs(path)
    if filesystem.isdir(root):
        found = [f for f in filesystem.find(root) if f.endswith((".parquet", ".parq"))]
        found = [f for f in found if not _is_hidden(f, root)]
    elif filesystem.isfile(root):
        found = [root]
    elif any(sign in root for sign in GLOB):
        found = _matching(filesystem, root)
    else:
        found = []
    found = sorted(set(found))
    if not found:
        raise ValueError(
            f"There is no Parquet file at {path}. Pass a file, a folder of .parquet files or a "
            "glob; arrays in .npy or .zarr are passed by the name of the variable they are."
        )
    return filesystem, found


def _matching(filesystem: Any, pattern: str) -> list[str]:
    """Return the files of a pattern; of a folder that it matches, those below it.

    Folders that exist by the name that the pattern begins with are taken literally.
    """
    folders, rest = "", pattern
    while "/" in rest:
        first, rest_of_it = rest.split("/", 1)
        if any(sign in first for sign in GLOB) and not filesystem.isdir(folders + first):
            break
        folders, rest = f"{folders}{first}/", rest_of_it
    escaped = "".join(f"[{c}]" if c in GLOB else c for c in folders)
    found: list[str] = []
    for path, info in filesystem.glob(escaped + rest, detail=True).items():
        is_folder = info["type"] == "directory"
        files = filesystem.find(path) if is_folder else [path]
        suffixes = (".parquet", ".parq") if is_folder else ("",)
        found += [f for f in files if f.endswith(suffixes) and not _is_hidden(f, folders)]
    return found


def _is_hidden(path: str, root: str) -> bool:
    """Whether a part of the path below a folder says that the file is no data.

    Folders of a Hive partition, such as ``_year=2020``, are data.
    """
    below = path.removeprefix(root).strip("/").split("/")
    return any(
        name.startswith((".", "_")) and ("=" not in name or name is below[-1]) for name in below
    )


def _open(filesystem: Any, path: str) -> Any:
    from pyarrow import parquet

    if "file" in np.atleast_1d(filesystem.protocol):
        return parquet.ParquetFile(path, memory_map=True)
    return parquet.ParquetFile(filesystem.open(path, "rb"))


class _Footer(NamedTuple):
    """What the end of a file says."""

    types: dict[str, np.dtype | None]
    """Of the columns."""

    lengths: list[int]
    """Of the row groups."""

    repeated: frozenset[str]
    """Names of several columns."""

    state: FileState
    """Of the file when this was read."""


def _footer(filesystem: Any, path: str) -> _Footer:
    import pyarrow

    try:
        state = FileState.of(filesystem, path)
        with _open(filesystem, path) as file:
            types = {field.name: _arrow_number(field.type) for field in file.schema_arrow}
            groups = range(file.metadata.num_row_groups)
            lengths = [file.metadata.row_group(i).num_rows for i in groups]
            return _Footer(types, lengths, repeated(file.schema_arrow.names), state)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is not a complete Parquet file ({_first_line(error)}). Write it again; if it "
            "is of another kind, such as CSV, read it with pandas or polars and pass the table."
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")


def _arrow_number(arrow_type: Any) -> np.dtype | None:
    try:
        return _number(np.dtype(arrow_type.to_pandas_dtype()))
    except (NotImplementedError, TypeError):
        return None


def _wider(one: np.dtype | None, other: np.dtype | None) -> np.dtype | None:
    return None if one is None or other is None else np.result_type(one, other)
