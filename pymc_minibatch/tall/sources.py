"""Where rows live: arrays, memory maps, files, chunked stores.

Every source becomes one array that can be read at random: what is in memory or in a memory map is
used as it is, without a copy, and what is stored in compressed chunks (zarr, dask, lazy xarray) is
copied once, chunk by chunk, to a memory map of a temporary file. So rows are drawn from all sources
by the same code, uniformly and independently of the chain.

Processes share rows: an array that belongs to a file is pickled as a reference to it, and one in
memory is written to a temporary file the first time it is pickled.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from pymc_minibatch.tall.mapped import RowFile
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.tall.temporary import new_array, reopened

__all__ = ["check_finite", "check_range", "chunks", "open_sources", "share"]

CHUNK_BYTES = 2**25
"""Copied at once."""

SHARED_BYTES = 2**16
"""Smaller arrays are pickled as they are."""


def open_sources(data: Any) -> dict[str, np.ndarray]:
    """Open what the user passed as ``data=``: a mapping of names to sources, or a Dataset.

    Raises
    ------
    ValueError
        If `data` is not a mapping, or a source is none of those that are known.
    """
    if not isinstance(data, Mapping):
        raise ValueError(
            "data must map names of the model's pm.Data and observed variables to arrays; got "
            f"{type(data).__name__}."
        )
    return {str(name): open_source(str(name), source) for name, source in data.items()}


def open_source(name: str, source: Any) -> np.ndarray:
    """Return a source as an array, without reading it where that is possible."""
    if isinstance(source, str | Path):
        if Path(source).suffix != ".npy":
            raise ValueError(
                f"data[{name!r}] is the path {source}; paths must end in .npy. Open other files "
                "with their library and pass what it returns."
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
            "path of a .npy file, or a zarr, dask, xarray, pandas or polars object."
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

    Where there is a copy of the same rows, made for another step, it is shared.
    """
    stored = getattr(source, "chunks", None)
    first = stored[0] if stored else None
    step = int(first[0] if isinstance(first, tuple) else first or 0)
    check_dtype(f"data[{name!r}]", source.dtype)
    for reference in list(_copies.values()):
        known = reference()
        if known is not None and _holds(known, source, step):
            return known
    copy = new_array(tuple(source.shape), source.dtype)
    for rows in chunks(copy, step, description=f"Copying {name} to {copy.filename}"):
        copy[rows] = np.asarray(source[rows])
    opened = reopened(copy)
    _copies[str(opened.filename)] = weakref.ref(opened)
    weakref.finalize(opened, _copies.pop, str(opened.filename), None)
    return opened


def _holds(copy: np.ndarray, source: Any, step: int) -> bool:
    """Whether a copy holds what is stored now, which may have changed since."""
    if copy.shape != tuple(source.shape) or copy.dtype != source.dtype:
        return False
    return all(np.array_equal(copy[rows], np.asarray(source[rows])) for rows in chunks(copy, step))


def chunks(array: np.ndarray, step: int = 0, description: str | None = None) -> Iterator[slice]:
    """Cut an array along its first axis into slices of about `CHUNK_BYTES`, or of `step` rows.

    Where there are many a progress bar is shown.
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


_shared: dict[int, np.memmap] = {}
"""Copies in files of arrays in memory, by the number of the array that Python knows it by."""


def share(values: np.ndarray) -> "np.ndarray | RowFile":
    """Return what to pickle in place of an array in memory: a reference to a file, if it is large.

    The array is written to a temporary file the first time; the file lives as long as the array.

    Raises
    ------
    OSError
        If there is not enough space for the file.
    """
    if values.nbytes < SHARED_BYTES:
        return values
    if id(values) not in _shared:
        copy = new_array(values.shape, values.dtype)
        for rows in chunks(values):
            copy[rows] = values[rows]
        _shared[id(values)] = reopened(copy)
        weakref.finalize(values, _shared.pop, id(values), None)
    found = RowFile.of(_shared[id(values)])
    assert found is not None
    return found
