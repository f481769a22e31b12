"""Rows that stay where they are: in the partitions of a Dask collection or of files.

They look like arrays with rows along the first axis, of which some rows can be taken: these are
gathered in one job. Passes over all rows are jobs as well (:mod:`.passes`).
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from pymc_minibatch.tall.cluster import Scheduler, run
from pymc_minibatch.tall.tables import Part
from pymc_minibatch.tall.temporary import announce_copy, new_array, reopened

__all__ = ["PartitionedArray", "Partitions", "are_same"]

KEPT_ROWS = 50_000
"""Rows, drawn uniformly, that are gathered once for all trials."""

COMPARED_ROWS = 64
"""Rows of each part, at equal distances, by which a part is known that has changed; and blocks of
all of its rows, whose sums are compared in passes over it."""

SAME = 1e-6
"""Relative difference up to which numbers are the same: sums taken in threads differ by less."""

GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, fill the interval evenly: weights of rows."""

type Arrays = tuple[np.ndarray, ...]


class Seen(NamedTuple):
    """What a part was when it was loaded first.

    Attributes
    ----------
    rows
        Some of its rows.
    sums
        Of each array, weighted sums of blocks of its rows, and of their absolute values, shape
        (2, blocks, entries of a row). Of numbers that do not get rounded, a checksum.
    """

    rows: Arrays
    sums: tuple[np.ndarray | int, ...]

    @classmethod
    def of(cls, arrays: Arrays) -> "Seen":
        """Note what a part is."""
        return cls(some_rows(arrays), tuple(map(_block_sums, arrays)))

    def is_like(self, arrays: Arrays, whole: bool) -> bool:
        """Whether a part is still that, by some of its rows or by all of them."""
        if not all(map(are_same, self.rows, some_rows(arrays))):
            return False
        return not whole or all(map(_are_same_sums, self.sums, map(_block_sums, arrays)))


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
        self.seen: list[Seen | None] = []
        if any(part.n_rows is None for part in parts):
            counts = run(count_rows, parts, title="Counting rows", scheduler=self.scheduler)
            parts = [replace(part, n_rows=n) for part, n in zip(parts, counts, strict=True)]
        self.parts = [part for part in parts if part.n_rows]
        self.lengths = np.array([part.n_rows for part in self.parts], dtype=np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.seen = [None] * len(self.parts)

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
        rest.parts, rest.kept, rest.seen = self.parts[n_parts:], None, self.seen[n_parts:]
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
        """Run a job on the parts, or on some that are chosen; see :func:`.cluster.run`.

        Some rows and sums of each part are kept when it is loaded for the first time, and compared
        whenever it is loaded again: the sums if the job reads all rows.
        """
        numbers = np.arange(len(self.parts)) if chosen is None else chosen
        checked = _Checked(function, self.dtypes, self.trailing, function is not take_rows)
        given = [()] * numbers.size if arguments is None else arguments
        given = [
            (int(self.lengths[part]), self.seen[part], *extra)
            for part, extra in zip(numbers, given, strict=True)
        ]
        parts = [self.parts[part] for part in numbers]
        if all(self.seen[part] is not None for part in numbers):
            return run(checked, parts, given, combine, title, self.scheduler)
        noting = _Noting(checked)
        if combine is None:
            found = run(noting, parts, given, None, title, self.scheduler)
            seen, results = [some for (some,), _ in found], [result for _, result in found]
        else:
            joined = _JoinedParts(combine)
            seen, results = run(noting, parts, given, joined, title, self.scheduler)
        for part, some in zip(numbers, seen, strict=True):
            self.seen[part] = some
        return results

    def check_files(self) -> None:
        """Refuse files of the parts that were written again; those elsewhere when they are read.

        Raises
        ------
        RuntimeError
            Naming the file.
        """
        files = {load.path: load for load in (part.load for part in self.parts) if _has_file(load)}
        for load in files.values():
            load.check()

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
    """A function of a part, of all of its rows or a few, that is what it was said to be."""

    function: Callable[..., Any]
    dtypes: tuple[np.dtype, ...]
    trailing: tuple[tuple[int, ...], ...]
    reads_all: bool

    def __call__(self, arrays: Arrays, n_rows: int, seen: Seen | None, *extra: Any) -> Any:
        given = self.as_said(arrays, n_rows)
        if seen is not None and not seen.is_like(given, self.reads_all):
            raise ValueError(
                "it has other values than when it was loaded first. Partitions must be the same "
                "each time they are loaded: seed their random numbers, or persist them"
            )
        return self.function(given, *extra)

    def as_said(self, arrays: Arrays, n_rows: int) -> Arrays:
        """Return the arrays, of the shapes and types that are expected."""
        given = []
        for values, dtype, shape in zip(arrays, self.dtypes, self.trailing, strict=True):
            values = np.asarray(values)
            if values.shape != (n_rows, *shape):
                raise ValueError(
                    f"it has shape {values.shape} instead of {(n_rows, *shape)}. "
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
        return tuple(given)


@dataclass(frozen=True)
class _Noting:
    """Returns what a part is with what a function gives for it."""

    checked: _Checked

    def __call__(
        self, arrays: Arrays, n_rows: int, seen: Seen | None, *extra: Any
    ) -> tuple[list[Seen], Any]:
        given = self.checked.as_said(arrays, n_rows)
        return [Seen.of(given)], self.checked(given, n_rows, seen, *extra)


@dataclass(frozen=True)
class _JoinedParts:
    """Combines what two functions that note rows have given."""

    combine: Callable[[Any, Any], Any]

    def __call__(self, first: tuple[Any, Any], second: tuple[Any, Any]) -> tuple[Any, Any]:
        return first[0] + second[0], self.combine(first[1], second[1])


def some_rows(arrays: Arrays) -> Arrays:
    """Copy some rows of a part, at equal distances."""
    rows = np.unique(np.linspace(0, len(arrays[0]) - 1, COMPARED_ROWS).astype(np.int64))
    return take_rows(arrays, rows)


def are_same(before: np.ndarray, now: np.ndarray) -> bool:
    """Whether two arrays are the same up to the rounding of sums."""
    if before.shape != now.shape:
        return False
    if before.dtype.kind != "f":
        return np.array_equal(before, now)
    return bool(np.isclose(before, now, rtol=SAME, atol=0, equal_nan=True).all())


def _block_sums(values: np.ndarray) -> np.ndarray | int:
    """Sum blocks of rows, with weights that tell the rows apart."""
    if values.dtype.kind != "f":
        return crc32(np.ascontiguousarray(values))
    n = len(values)
    ends = np.unique(np.linspace(0, n, COMPARED_ROWS + 1).astype(np.int64))
    sums = np.empty((2, ends.size - 1, values[:1].size))
    for k, (first, end) in enumerate(pairwise(ends)):
        block = values[first:end].reshape(end - first, -1).astype(np.float64)
        weights = 1.0 + np.arange(first, end) * GOLDEN % 1.0
        sums[:, k] = weights @ block, weights @ np.abs(block, out=block)
    return sums


def _are_same_sums(before: np.ndarray | int, now: np.ndarray | int) -> bool:
    if isinstance(before, int) or isinstance(now, int):
        return before == now
    (sums, sizes), others = before, now[0]
    apart = np.abs(sums - others) > SAME * sizes
    return bool((~apart & (np.isfinite(sums) == np.isfinite(others))).all())


def _has_file(load: Any) -> bool:
    return hasattr(load, "check") and load.state is not None and load.is_local


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
