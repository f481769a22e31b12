"""Rows kept elsewhere than in memory, as kinds of sources: ``(data, folder) -> sources``."""

import numpy as np
import pytest


def as_memory_maps(data, folder):
    maps = {}
    for name, values in data.items():
        maps[name] = np.memmap(folder / name, values.dtype, "w+", shape=values.shape)
        maps[name][:] = values
    return maps


def as_paths(data, folder):
    for name, values in data.items():
        np.save(folder / f"{name}.npy", values)
    return {name: str(folder / f"{name}.npy") for name in data}


def as_zarr(data, folder):
    """Eight chunks, the last one shorter."""
    zarr = pytest.importorskip("zarr", reason="zarr is an extra")
    return {
        name: zarr.array(
            values,
            store=str(folder / f"{name}.zarr"),
            chunks=(len(values) // 8 + 1, *values.shape[1:]),
        )
        for name, values in data.items()
    }
