"""Where rows live: arrays, memory maps, files, chunked stores.

Every source becomes one array that can be read at random: what is in memory or in a memory map is
used as it is, without a copy, and what is stored in compressed chunks (zarr, dask, lazy xarray) is
copied once, chunk by chunk, to a memory map in a temporary folder. So rows are drawn from all
sources by the same code, uniformly and independently of the chain.

Processes share rows: an array that belongs to a file is pickled as a reference to it, and one in
memory is written to a temporary file the first time it is pickled.
"""

import atexit
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from pymc_minibatch.tall.passes import over_chunks

__all__ = ["RowFile", "check_finite", "check_range", "chunks", "open_sources", "share"]

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
        return np.load(source, mmap_mode="r")
    if _is_lazy(source):
        return _copied_to_file(name, source)
    array = source.to_numpy() if hasattr(source, "to_numpy") else source
    if not isinstance(array, np.ndarray):
        raise ValueError(
            f"data[{name!r}] is a {type(source).__name__}. Pass a NumPy array or memory map, the "
            "path of a .npy file, or a zarr, dask, xarray, pandas or polars object."
        )
    if array.dtype.kind not in "biuf":
        raise ValueError(f"data[{name!r}] has dtype {array.dtype}; rows must be numbers.")
    return array


def _is_lazy(source: Any) -> bool:
    """Whether a source has to be read before it is an array."""
    if isinstance(source, np.ndarray):
        return False
    if hasattr(source, "variable"):  # xarray; lazily opened files are not in memory
        return not source.variable._in_memory
    stored = all(hasattr(source, attribute) for attribute in ("shape", "dtype", "chunks"))
    return stored and not hasattr(source, "to_numpy")


def _copied_to_file(name: str, source: Any) -> np.ndarray:
    """Copy a chunked store to a memory map, one row of its chunks at a time."""
    stored = getattr(source, "chunks", None)
    first = stored[0] if stored else None
    step = int(first[0] if isinstance(first, tuple) else first or 0)
    file = _temporary_file()
    copy = np.lib.format.open_memmap(file, "w+", source.dtype, tuple(source.shape))
    for rows in chunks(copy, step, description=f"Copying {name} to {file}"):
        copy[rows] = np.asarray(source[rows])
    copy.flush()
    return np.load(file, mmap_mode="r")


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


_folders: list[str] = []


def _temporary_file() -> Path:
    """Name a file in a folder that is removed when this process ends."""
    if not _folders:
        _folders.append(tempfile.mkdtemp(prefix="pymc_minibatch_"))
        atexit.register(_remove, _folders[0], os.getpid())
    return Path(tempfile.mkstemp(suffix=".npy", dir=_folders[0])[1])


def _remove(folder: str, owner: int) -> None:
    """Remove the folder in the process that made it, not in those forked from it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class RowFile:
    """An array in a file, by reference.

    Attributes
    ----------
    path
        The file.
    start, offset
        Where in the file the map starts, and where in the map the array does, in bytes.
    shape, strides, dtype
        Of the array.
    """

    path: str
    start: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    def open(self) -> np.ndarray:
        """Map the file."""
        with open(self.path, "rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, offset=self.start)
        dtype = np.dtype(self.dtype)
        return np.ndarray(self.shape, dtype, buffer, self.offset, self.strides)


_shared: dict[int, tuple[weakref.ref, np.ndarray]] = {}


def share(values: np.ndarray) -> "np.ndarray | RowFile":
    """Return what to pickle in place of an array: a reference to its file, where it is large.

    An array in memory is written to a temporary file the first time.
    """
    if values.nbytes < SHARED_BYTES:
        return values
    reference = _reference(values)
    if reference is not None:
        return reference
    known = _shared.get(id(values))
    if known is None or known[0]() is not values:
        file = _temporary_file()
        copy = np.lib.format.open_memmap(file, "w+", values.dtype, values.shape)
        for rows in chunks(values):
            copy[rows] = values[rows]
        copy.flush()
        known = weakref.ref(values), np.load(file, mmap_mode="r")
        _shared[id(values)] = known
    found = _reference(known[1])
    assert found is not None
    return found


def _reference(values: np.ndarray) -> RowFile | None:
    """Describe an array that is a view of a memory map; None where it is not."""
    view: Any = values
    while isinstance(view, np.ndarray) and not isinstance(view, np.memmap):
        view = view.base
    if not isinstance(view, np.memmap) or view.filename is None or view.mode == "c":
        return None
    base: Any = view
    start_of_map = np.frombuffer(base._mmap, np.uint8).__array_interface__["data"][0]
    return RowFile(
        path=str(base.filename),
        start=base.offset - base.offset % mmap.ALLOCATIONGRANULARITY,
        offset=values.__array_interface__["data"][0] - start_of_map,
        shape=values.shape,
        strides=values.strides,
        dtype=values.dtype.str,
    )
