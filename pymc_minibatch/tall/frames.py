"""DataFrames whose columns become rows: of Dask, pandas or polars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_minibatch.tall.tables import (
    Arrays,
    Chosen,
    Part,
    Table,
    number_of_dtype,
    read_columns,
    repeated,
)

__all__ = ["is_source", "loads_of", "open_table"]


def is_source(source: Any) -> bool:
    """Whether it is a DataFrame."""
    return hasattr(source, "columns") and hasattr(source, "dtypes")


def open_table(source: Any) -> Table:
    """Open a DataFrame; no rows are read."""
    return _open_dask(source) if hasattr(source, "to_delayed") else _open_frame(source)


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
        is_remote = any(_is_on_cluster(task) for task in needed.values())
        keys = tuple(block.key for block in blocks)
        found.append(together(*blocks) if is_remote else Block(needed, keys))
    return found


def _together(*arrays: Any) -> tuple[Any, ...]:
    return arrays


def _is_on_cluster(task: Any) -> bool:
    value = getattr(task, "value", task)
    return type(value).__module__.startswith("distributed")


def _open_dask(frame: Any) -> Table:
    from dask.delayed import delayed

    dtypes = {str(name): number_of_dtype(dtype) for name, dtype in frame.dtypes.items()}
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


def _number_of(column: Any) -> np.dtype | None:
    if isinstance(column.dtype, np.dtype) or hasattr(column.dtype, "numpy_dtype"):
        return number_of_dtype(column.dtype)
    return number_of_dtype(column[:0].to_numpy().dtype)  # polars
