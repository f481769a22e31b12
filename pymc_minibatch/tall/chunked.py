"""Chunked stores of which a part is missing.

Zarr gives a fill value for chunks that are not there: those that an interrupted copy left out, and
those that were never written. Nothing tells the two apart, so both are refused.
"""

from collections.abc import Iterator
from typing import Any

__all__ = ["check_chunks"]


def check_chunks(name: str, source: Any) -> None:
    """Refuse a zarr array, or what is read from one, if chunks of it are missing.

    Raises
    ------
    ValueError
        Naming the array.
    """
    for array in _zarr_arrays(source):
        missing = array.nchunks - array.nchunks_initialized
        if missing <= 0:
            continue
        of_array = (array.name or "").strip("/") or name
        where = getattr(array, "store_path", None) or getattr(array.store, "path", array.store)
        raise ValueError(
            f"data[{name!r}]: {missing:,} of {array.nchunks:,} chunks of {of_array} in {where} "
            f"are missing, and zarr would give {array.fill_value!r} for their rows. Copy "
            "the store again. If that is what these rows hold, write it with "
            "write_empty_chunks=True, or pass the values as an array."
        )


def _zarr_arrays(source: Any) -> Iterator[Any]:
    """Find the zarr arrays behind a source: itself, or those that xarray or Dask read it from."""
    if hasattr(source, "variable"):  # xarray
        source = getattr(source.variable, "_data", None)
    if hasattr(source, "__dask_graph__") and not hasattr(source, "columns"):
        for key, task in dict(source.__dask_graph__()).items():
            if isinstance(key, str):  # blocks have tuples for keys
                yield from _zarr_arrays(getattr(task, "value", task))
        return
    for _ in range(10):  # wrappers of xarray
        if hasattr(source, "nchunks_initialized"):
            yield source
            return
        inner = getattr(source, "array", None)
        inner = getattr(source, "_array", None) if inner is None else inner
        if inner is None:
            return
        source = inner
