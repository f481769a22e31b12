"""Rows that stay where they are: in the partitions of a Dask collection or of files.

They look like arrays with rows along the first axis, of which some rows can be taken: these are
gathered in one job. Passes over all rows are jobs as well (:mod:`.passes`).
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pymc_minibatch.tall.cluster import Scheduler, run
from pymc_minibatch.tall.tables import Part
from pymc_minibatch.tall.temporary import announce_copy, new_array, reopened

__all__ = ["PartitionedArray", "Partitions"]

KEPT_ROWS = 50_000
"""Rows, drawn uniformly, that are gathered once for all trials."""

type Arrays = tuple[np.ndarray, ...]


class Partitions:
    """The parts of all sources, aligned.

    Parameters
    ----------
    names
        Of the sources.
    parts
        Each loads one array for each source.
    dtypes, trailing
        Of the arrays, their types and their shapes without the rows.

    Attributes
    ----------
    lengths : ndarray of int64
        Rows of each part, none of them empty.
    starts : ndarray of int64
        The first row of each, and after them N.

    Raises
    ------
    PartError
        If a part cannot be loaded or is of another shape or type.
    """

    def __init__(
        self,
        names: Sequence[str],
        parts: Sequence[Part],
        dtypes: Sequence[np.dtype],
        trailing: Sequence[tuple[int, ...]],
    ) -> None:
        self.names, self.dtypes, self.trailing = tuple(names), tuple(dtypes), tuple(trailing)
        self.scheduler = Scheduler()
        self.kept: tuple[np.ndarray, Arrays] | None = None
        if any(part.n_rows is None for part in parts):
            counts = run(count_rows, parts, title="Counting rows", scheduler=self.scheduler)
            parts = [replace(part, n_rows=n) for part, n in zip(parts, counts, strict=True)]
        self.parts = [part for part in parts if part.n_rows]
        self.lengths = np.array([part.n_rows for part in self.parts], dtype=np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def n_rows(self) -> int:
        """N."""
        return int(self.lengths.sum())

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of all sources."""
        sizes = [
            d.itemsize * int(np.prod(t)) for d, t in zip(self.dtypes, self.trailing, strict=True)
        ]
        return sum(sizes)

    def after(self, n_parts: int) -> "Partitions":
        """Return the parts that follow the first ones; their rows keep their numbers."""
        rest = copy(self)
        rest.parts, rest.kept = self.parts[n_parts:], None
        rest.lengths, rest.starts = self.lengths[n_parts:], self.starts[n_parts:]
        return rest

    def arrays(self) -> dict[str, "PartitionedArray"]:
        """Return the sources by name."""
        return {name: PartitionedArray(self, i) for i, name in enumerate(self.names)}

    def run(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]] | None = None,
        combine: Callable[[Any, Any], Any] | None = None,
        title: str | None = None,
        chosen: np.ndarray | None = None,
    ) -> Any:
        """Run a job on the parts, or on some that are chosen; see :func:`.cluster.run`."""
        parts = self.parts if chosen is None else [self.parts[i] for i in chosen]
        checked = _Checked(function, self.dtypes, self.trailing)
        expected = self.lengths if chosen is None else self.lengths[chosen]
        given = [()] * len(parts) if arguments is None else arguments
        given = [(int(n), *extra) for n, extra in zip(expected, given, strict=True)]
        return run(checked, parts, given, combine, title, self.scheduler)

    def take(self, rows: np.ndarray) -> Arrays:
        """Gather rows by their numbers, in one job."""
        if self.kept is not None:
            numbers, arrays = self.kept
            at = np.minimum(np.searchsorted(numbers, rows), numbers.size - 1)
            if np.array_equal(numbers[at], rows):
                return tuple(values[at] for values in arrays)
        where = np.searchsorted(self.starts, rows, side="right") - 1
        chosen = np.unique(where)
        local = [(rows[where == part] - self.starts[part],) for part in chosen]
        found = self.run(take_rows, local, chosen=chosen, title="Gathering rows")
        taken = tuple(
            np.empty((rows.size, *shape), dtype)
            for shape, dtype in zip(self.trailing, self.dtypes, strict=True)
        )
        for part, arrays in zip(chosen, found, strict=True):
            for values, of_part in zip(taken, arrays, strict=True):
                values[where == part] = of_part
        return taken

    def take_of(self, sources: Sequence[Any], rows: np.ndarray) -> Arrays:
        """Gather rows of some sources, in their order."""
        taken = self.take(rows)
        return tuple(taken[source.position] for source in sources)

    def random_rows(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw row numbers among those that are kept in memory."""
        rows = self.kept_rows()
        return rows[rng.integers(0, rows.size, size)]

    def kept_rows(self) -> np.ndarray:
        """Return the numbers of rows, drawn uniformly, that are gathered the first time."""
        if self.kept is None:
            n = self.n_rows
            own = np.random.default_rng(20170709)
            drawn = own.integers(0, n, KEPT_ROWS) if n > KEPT_ROWS else np.arange(n)
            rows = np.unique(drawn)
            self.kept = rows, self.take(rows)
        return self.kept[0]

    def copied(self) -> dict[str, np.ndarray]:
        """Copy all rows to memory maps on this machine, few parts at a time.

        Raises
        ------
        OSError
            If there is not enough space for the files.
        """
        announce_copy(self.n_rows * self.row_bytes)
        copies = [
            new_array((self.n_rows, *shape), dtype)
            for shape, dtype in zip(self.trailing, self.dtypes, strict=True)
        ]
        at_once = 2 * max(1, len(self.parts) // 1000)
        for first in range(0, len(self.parts), at_once):
            chosen = np.arange(first, min(first + at_once, len(self.parts)))
            for part, arrays in zip(chosen, self.run(as_they_are, chosen=chosen), strict=True):
                for written, values in zip(copies, arrays, strict=True):
                    written[self.starts[part] : self.starts[part + 1]] = values
        return {name: reopened(written) for name, written in zip(self.names, copies, strict=True)}


@dataclass(frozen=True)
class PartitionedArray:
    """One source of :class:`Partitions`, with rows along the first axis.

    Attributes
    ----------
    partitions
        Those of all sources.
    position
        Of this source among them.
    """

    partitions: Partitions
    position: int

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.partitions.n_rows, *self.partitions.trailing[self.position]

    @property
    def dtype(self) -> np.dtype:
        """As of an array."""
        return self.partitions.dtypes[self.position]

    @property
    def ndim(self) -> int:
        """As of an array."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """As of an array."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.partitions.n_rows

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Gather rows, by an array of their numbers or a slice."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        return self.partitions.take(np.asarray(rows))[self.position]


@dataclass(frozen=True)
class _Checked:
    """A function of a part that is what it was said to be."""

    function: Callable[..., Any]
    dtypes: tuple[np.dtype, ...]
    trailing: tuple[tuple[int, ...], ...]

    def __call__(self, arrays: Arrays, n_rows: int, *extra: Any) -> Any:
        given = []
        for values, dtype, shape in zip(arrays, self.dtypes, self.trailing, strict=True):
            values = np.asarray(values)
            if values.shape != (n_rows, *shape):
                raise ValueError(
                    f"it has shape {values.shape}, where {(n_rows, *shape)} is expected. "
                    "Partitions must be the same each time they are loaded"
                )
            if values.dtype != dtype:
                if not np.can_cast(values.dtype, dtype, "safe"):
                    raise ValueError(
                        f"it has dtype {values.dtype}, which does not convert safely to {dtype}, "
                        "that of the other partitions. Convert it"
                    )
                values = values.astype(dtype)
            given.append(values)
        return self.function(tuple(given), *extra)


def count_rows(arrays: Arrays) -> int:
    """Count the rows of a part."""
    lengths = {len(values) for values in arrays}
    if len(lengths) > 1:
        raise ValueError(f"its sources have different numbers of rows: {sorted(lengths)}")
    return lengths.pop()


def take_rows(arrays: Arrays, rows: np.ndarray) -> Arrays:
    """Take rows of a part."""
    return tuple(values[rows] for values in arrays)


def as_they_are(arrays: Arrays) -> Arrays:
    """Return a part."""
    return arrays
