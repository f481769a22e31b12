"""Parquet files whose columns become rows: a file, a folder or a pattern, here or in a store."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.tall.stored import FileState, is_local
from pymc_minibatch.tall.tables import (
    Arrays,
    Chosen,
    Part,
    Table,
    number_of_dtype,
    read_columns,
    repeated,
)

__all__ = ["is_source", "open_table"]

FILES_AT_ONCE = 16
"""Footers of Parquet files that are read at a time: in object stores each is a journey."""


GLOB = "*?["
"""Signs that make a path a pattern."""


def is_source(source: Any) -> bool:
    """Whether it is a path, of no array."""
    return isinstance(source, str | Path) and Path(source).suffix not in (".npy", ".zarr")


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
        """Whether the file is on this machine, if a look at it is cheap."""
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


def open_table(source: Any) -> Table:
    """Open files; no rows are read."""
    path = str(source)
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
            f"{path} is read through pyarrow and fsspec: install this package with its extra "
            "[parquet]."
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
        return number_of_dtype(np.dtype(arrow_type.to_pandas_dtype()))
    except (NotImplementedError, TypeError):
        return None


def _wider(one: np.dtype | None, other: np.dtype | None) -> np.dtype | None:
    return None if one is None or other is None else np.result_type(one, other)
