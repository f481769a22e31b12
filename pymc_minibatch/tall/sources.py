"""Sources of rows: arrays, memory maps, files, chunked stores, tables.

What is in memory or in a memory map is used as it is, without a copy. What is stored in parts
(Parquet, zarr, Dask, lazy xarray) is copied once, part by part, to a memory map of a temporary file
if it is not too large for that, and else stays where it is (:mod:`.partitions`). So rows are drawn
from all sources by the same code, uniformly and independently of the chain.

Processes share rows: an array that belongs to a file is pickled as a reference to it, and one in
memory is written to a temporary file the first time it is pickled.
"""

import itertools
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from pymc_minibatch.jit.cores import n_cores
from pymc_minibatch.tall import frames
from pymc_minibatch.tall.chunked import check_chunks
from pymc_minibatch.tall.columns import Columns, is_table, open_table
from pymc_minibatch.tall.labels import check_row_labels, columns_in_order
from pymc_minibatch.tall.mapped import RowFile, read_only
from pymc_minibatch.tall.partitions import PartitionedArray, Partitions, are_same
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.tall.tables import Part, Wanted, choose
from pymc_minibatch.tall.temporary import announce_copy, new_array, reopened

__all__ = [
    "ROWS_IN_MEMORY",
    "by_reference",
    "by_value",
    "check_dtype",
    "check_finite",
    "check_range",
    "chunks",
    "mapped_if_large",
    "open_sources",
    "referred_to",
    "share",
]

CHUNK_BYTES = 2**25
"""Copied at once."""

SHARED_BYTES = 2**16
"""Smaller arrays are pickled as they are."""


ROWS_IN_MEMORY = 2.0**30
"""Bytes of rows that are copied to this machine; stores of more stay where they are."""


def open_sources(
    data: Any,
    wanted: Mapping[str, Wanted] | None = None,
    rows_in_memory: float = ROWS_IN_MEMORY,
    argument: str = "data",
) -> Mapping[str, np.ndarray | PartitionedArray]:
    """Open what the user passed as ``data=``: sources by name, a Dataset, or a table.

    `wanted` are the variables of the model that need rows, which tables are searched for, and
    `argument` is what the user knows the data by.

    Raises
    ------
    ValueError
        If `data` is neither, or a source is none of those that are known.
    """
    if _is_zarr_path(data):
        data = _open_zarr("data", data)
    if isinstance(data, Columns) or is_table(data):
        return _of_table(data, wanted or {}, rows_in_memory)
    if not isinstance(data, Mapping):
        example = ", ".join(f"{name!r}: ..." for name in wanted or ("X", "y"))
        raise ValueError(
            f"{argument} must map names of the model's pm.Data and observed variables to arrays, "
            f"as in {{{example}}}, or be a table with such columns; got {type(data).__name__}."
        )
    wanted = wanted or {}
    named = {name: want for want in wanted.values() for name in want.names}
    given = {
        str(name): columns_in_order(str(name), source, named.get(str(name)), argument)
        for name, source in data.items()
    }
    check_row_labels(given, wanted, argument)
    sources = {name: _unwrapped(name, source) for name, source in given.items()}
    stored = sum(_bytes(source) for source in sources.values())
    if stored > rows_in_memory:
        return _stay(sources)
    announce_copy(stored)
    return {name: open_source(name, source) for name, source in sources.items()}


def _unwrapped(name: str, source: Any) -> Any:
    """Return a store of arrays as what can be cut into parts."""
    if _is_zarr_path(source):
        source = _open_zarr(name, source)
    check_chunks(name, source)
    if hasattr(source, "to_dask_array"):  # a Dask DataFrame or Series
        return source.to_dask_array(lengths=True)
    if _is_lazy(source) and any(n != n for n in source.shape):  # nan: Dask does not know it
        return copy(source).compute_chunk_sizes()
    return source


def _is_zarr_path(source: Any) -> bool:
    return isinstance(source, str | Path) and str(source).rstrip("/").endswith(".zarr")


def _open_zarr(name: str, path: str | Path) -> Any:
    try:
        import zarr
    except ImportError as error:
        raise ImportError(f"{path} is read through zarr: pip install zarr.") from error
    try:
        found = zarr.open(os.path.abspath(path), mode="r")  # whatever folder a chain runs in
    except Exception as error:  # of many kinds, by version and store
        raise ValueError(f"{name}: {path} cannot be opened ({error}).") from error
    if name != "data":
        return found
    if not hasattr(found, "arrays"):
        raise ValueError(
            f"{path} holds one array; pass it by the name of its variable, as in data={{'X': ...}}."
        )
    return dict(found.arrays())


def _bytes(source: Any) -> int:
    """Bytes of a source that is stored in parts; nothing of others."""
    if not _is_lazy(source):
        return 0
    return int(np.prod(source.shape, dtype=float)) * source.dtype.itemsize


def _of_table(
    data: Any, wanted: Mapping[str, Wanted], rows_in_memory: float
) -> Mapping[str, np.ndarray | PartitionedArray]:
    source, columns = (data.source, data.columns) if isinstance(data, Columns) else (data, {})
    table = open_table(source)
    chosen = choose(table, columns, wanted)
    for name, (_, dtype, _) in chosen.items():
        check_dtype(f"data[{name!r}]", dtype)
    parts = table.chosen(tuple(chosen.values()))
    dtypes = [dtype for _, dtype, _ in chosen.values()]
    trailing = [(len(names),) if is_matrix else () for names, _, is_matrix in chosen.values()]
    if all(part.n_rows is not None and not hasattr(part.load, "dask") for part in parts):
        row_bytes = sum(d.itemsize * int(np.prod(t)) for d, t in zip(dtypes, trailing, strict=True))
        stored = sum(part.n_rows or 0 for part in parts) * row_bytes
        if stored <= rows_in_memory:
            announce_copy(stored)
            return dict(zip(chosen, copied_parts(parts, dtypes, trailing), strict=True))
    partitions = Partitions(list(chosen), parts, dtypes, trailing)
    if partitions.n_rows * partitions.row_bytes <= rows_in_memory:
        return partitions.copied()
    return partitions.arrays()


def copied_parts(
    parts: Sequence[Part], dtypes: Sequence[np.dtype], trailing: Sequence[tuple[int, ...]]
) -> list[np.ndarray]:
    """Copy parts of known length to memory maps, several at a time."""
    ends = list(itertools.accumulate(part.n_rows or 0 for part in parts))
    copies = [
        new_array((ends[-1], *shape), dtype) for shape, dtype in zip(trailing, dtypes, strict=True)
    ]

    def read(part: Part, end: int) -> None:
        for values, of_part in zip(copies, part.load(), strict=True):
            values[end - len(of_part) : end] = of_part

    with ThreadPoolExecutor(n_cores()) as pool:
        reading = list(pool.map(read, parts, ends))
    assert len(reading) == len(parts)
    return [reopened(values) for values in copies]


def _stay(sources: Mapping[str, Any]) -> Mapping[str, PartitionedArray]:
    """Cut all sources along the rows as the widest one that is stored in parts.

    Parts of a narrow one, such as labels of a byte each, may hold more rows than fit into memory.
    """
    try:
        from dask import array
    except ImportError as error:
        raise ImportError(
            "Rows that are not copied to this machine are read through Dask: install this "
            "package with its extra [dask], or let them be copied with rows_in_memory=np.inf."
        ) from error
    arrays: dict[str, Any] = {}
    for name, source in sources.items():
        if hasattr(source, "variable"):
            source = source.chunk().data if _is_lazy(source) else source
        elif not _is_lazy(source):
            source = open_source(name, source)
        check_dtype(f"data[{name!r}]", source.dtype)
        arrays[name] = source if hasattr(source, "to_delayed") else array.asarray(source)
    lengths = {name: len(values) for name, values in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The sources must have the same number of rows; got {lengths}.")
    stored = [arrays[name] for name, source in sources.items() if _is_lazy(source)]
    rows = max(stored, key=lambda values: values.nbytes).chunks[0]
    aligned = [
        values.rechunk({0: rows} | dict.fromkeys(range(1, values.ndim), -1))
        for values in arrays.values()
    ]
    # If results are held on a cluster, optimisation leaves out the references to them.
    blocks = [values.to_delayed(optimize_graph=False).ravel() for values in aligned]
    parts = [
        Part(f"partition {i} of {', '.join(arrays)}", load, n)
        for i, (n, load) in enumerate(zip(rows, frames.loads_of(blocks), strict=True))
    ]
    dtypes = [values.dtype for values in arrays.values()]
    return Partitions(
        list(arrays), parts, dtypes, [values.shape[1:] for values in arrays.values()]
    ).arrays()


def open_source(name: str, source: Any) -> np.ndarray:
    """Return a source as an array, without reading it if that is possible."""
    if isinstance(source, str | Path):
        if Path(source).suffix != ".npy":
            raise ValueError(
                f"data[{name!r}] is the path {source}; paths by name must end in .npy or .zarr. "
                "Pass Parquet files as the data itself, as in "
                f"data=pmb.Columns(path, {{{name!r}: [...]}}), and other files as what their "
                "library returns."
            )
        return _open_npy(name, source)
    if _is_lazy(source):
        return _copied_to_file(name, source)
    array = source.to_numpy() if hasattr(source, "to_numpy") else source
    if isinstance(array, np.ma.MaskedArray):
        array = _without_mask(name, array)
    if not isinstance(array, np.ndarray):
        raise ValueError(
            f"data[{name!r}] is a {type(source).__name__}. Pass a NumPy array or memory map, the "
            "path of a .npy or .zarr file, or a zarr, dask, xarray, pandas or polars object."
        )
    check_dtype(f"data[{name!r}]", array.dtype)
    return array


def check_dtype(what: str, dtype: np.dtype) -> None:
    """Refuse types that machine code does not read.

    Raises
    ------
    ValueError
    """
    if dtype.kind not in "biuf":
        raise ValueError(f"{what} has dtype {dtype}; rows must be numbers.")
    if dtype.kind == "f" and dtype.itemsize not in (4, 8):
        raise ValueError(f"{what} has dtype {dtype}; convert it to float32 or float64.")


def _open_npy(name: str, path: str | Path) -> np.ndarray:
    """Map a ``.npy`` file."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"data[{name!r}]: there is no file {Path(path).absolute()}. Pass the path of a .npy "
            "file."
        ) from error
    except ValueError as error:
        raise ValueError(
            f"data[{name!r}]: {path} is not a complete .npy file of numbers ({error}). Write it "
            "again with np.save."
        ) from error


def _without_mask(name: str, array: np.ma.MaskedArray) -> np.ndarray:
    """Return the values of a masked array of which nothing is masked."""
    masked = np.argwhere(np.ma.getmaskarray(array))
    if masked.size:
        raise ValueError(
            f"data[{name!r}] has masked values, the first in row {masked[0][0]}. Remove or replace "
            "missing values before sampling."
        )
    return np.asarray(array.data)


def _is_lazy(source: Any) -> bool:
    """Whether a source has to be read before it is an array."""
    if isinstance(source, np.ndarray):
        return False
    if hasattr(source, "variable"):  # xarray; lazily opened files are not in memory
        return not source.variable._in_memory
    stored = all(hasattr(source, attribute) for attribute in ("shape", "dtype", "chunks"))
    return stored and not hasattr(source, "to_numpy")


_copies: dict[str, weakref.ref[np.memmap]] = {}
"""Copies of stores that are in use, by path."""


def _copied_to_file(name: str, source: Any) -> np.ndarray:
    """Copy a chunked store to a memory map, one row of its chunks at a time.

    If there is a copy of the same rows, made for another step, it is shared.
    """
    stored = getattr(source, "chunks", None)
    first = stored[0] if stored else None
    step = int(first[0] if isinstance(first, tuple) else first or 0)
    check_dtype(f"data[{name!r}]", source.dtype)
    for reference in list(_copies.values()):
        known = reference()
        if known is not None and _holds(known, source, step):
            return known
    written = new_array(tuple(source.shape), source.dtype)
    for rows in chunks(written, step, description=f"Copying {name} to {written.filename}"):
        try:
            written[rows] = np.asarray(source[rows])
        except Exception as error:  # of many kinds, by store and compression
            raise ValueError(
                f"data[{name!r}] cannot be read from row {rows.start} on "
                f"({type(error).__name__}: {error}). Write or copy it again."
            ) from error
    _check_same_again(name, source, written, step)
    opened = reopened(written)
    _copies[str(opened.filename)] = weakref.ref(opened)
    weakref.finalize(opened, _copies.pop, str(opened.filename), None)
    return opened


def _check_same_again(name: str, source: Any, copied: np.ndarray, step: int) -> None:
    """Refuse what Dask computes otherwise a second time: sources are computed one by one."""
    graph = getattr(source, "__dask_graph__", None)
    if graph is None or graph() is None:
        return
    first = slice(0, step or len(copied))
    if not are_same(copied[first], np.asarray(source[first])):
        raise ValueError(
            f"data[{name!r}] has other values when it is computed again, so that its rows would "
            "not be those of other sources. Seed its random numbers, or persist it."
        )


def _holds(known: np.ndarray, source: Any, step: int) -> bool:
    """Whether a copy holds what is stored now, which may have changed since."""
    if known.shape != tuple(source.shape) or known.dtype != source.dtype:
        return False
    return all(
        np.array_equal(known[rows], np.asarray(source[rows])) for rows in chunks(known, step)
    )


def chunks(array: np.ndarray, step: int = 0, description: str | None = None) -> Iterator[slice]:
    """Cut an array along its first axis into slices of about `CHUNK_BYTES`, or of `step` rows.

    If there are many a progress bar is shown.
    """
    row_bytes = max(1, array.nbytes // max(1, len(array)))
    step = step or max(1, CHUNK_BYTES // row_bytes)
    starts = range(0, len(array), step)
    shown = starts if description is None or len(starts) < 50 else track(starts, description)
    for start in shown:
        yield slice(start, start + step)


def check_finite(name: str, rows: np.ndarray, infinite: bool = False) -> None:
    """Refuse values that are missing or infinite; `rows` has rows along the first axis.

    With `infinite`, only missing ones are refused.

    Raises
    ------
    ValueError
        Naming the first such row.
    """
    if not np.issubdtype(rows.dtype, np.floating):
        return
    _refuse(
        np.isnan if infinite else lambda chunk: ~np.isfinite(chunk),
        name,
        rows,
        "Remove or replace missing and infinite values before sampling.",
    )


def check_range(name: str, rows: np.ndarray, dtype: np.dtype) -> None:
    """Refuse integers that do not fit a smaller type.

    Raises
    ------
    ValueError
        Naming the first such row.
    """
    if rows.dtype.kind not in "iu" or np.can_cast(rows.dtype, dtype, "safe"):
        return
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    _refuse(
        lambda chunk: (chunk < least) | (chunk > most),
        name,
        rows,
        f"It does not fit into {dtype}, the type of the model's own data.",
    )


def _refuse(
    is_bad: Callable[[np.ndarray], np.ndarray], name: str, rows: np.ndarray, advice: str
) -> None:
    """Raise ValueError for the first row with an entry that is bad."""

    def first_bad(chunk: np.ndarray) -> tuple[int, Any] | None:
        bad = is_bad(chunk)
        if not bad.any():
            return None
        where = np.argwhere(bad)[0]
        return int(where[0]), chunk[tuple(where)]

    for first, found in over_chunks(first_bad, [rows], f"Checking {name}"):
        if found is not None:
            row, value = found
            raise ValueError(f"{name} has {value} in row {first + row}. {advice}")


_by_value: ContextVar[bool] = ContextVar("by_value", default=False)


@contextmanager
def by_value() -> Iterator[None]:
    """Pickle arrays in memory as they are, for machines that do not see files of this one."""
    token = _by_value.set(True)
    try:
        yield
    finally:
        _by_value.reset(token)


_shared: dict[int, np.memmap] = {}
"""Copies in files of arrays in memory, by the number of the array that Python knows it by."""


def mapped_if_large(values: np.ndarray, limit: int) -> np.ndarray:
    """Put an array that nobody changes into a temporary file if it takes `limit` bytes."""
    if values.nbytes < limit:
        return read_only(values)
    mapped = new_array(values.shape, values.dtype)
    mapped[:] = values
    return read_only(reopened(mapped))


def by_reference(values: np.ndarray) -> "np.ndarray | RowFile":
    """Return what to pickle in place of such an array, so that processes share it."""
    return RowFile.of(values) or share(values)


def referred_to(values: "np.ndarray | RowFile") -> np.ndarray:
    """Return the array."""
    return read_only(values.open() if isinstance(values, RowFile) else values)


def share(values: np.ndarray) -> "np.ndarray | RowFile":
    """Return what to pickle in place of an array in memory: a reference to a file, if it is large.

    The array is written to a temporary file the first time; the file lives as long as the array.

    Raises
    ------
    OSError
        If there is not enough space for the file.
    """
    if values.nbytes < SHARED_BYTES or _by_value.get():
        return values
    if id(values) not in _shared:
        written = new_array(values.shape, values.dtype)
        for rows in chunks(values):
            written[rows] = values[rows]
        _shared[id(values)] = reopened(written)
        weakref.finalize(values, _shared.pop, id(values), None)
    found = RowFile.of(_shared[id(values)])
    assert found is not None
    return found
