"""Arrays that lie in files: references to them, and a watch on their files.

Sums over all rows are taken once, so a file must stay what it was then. One that is replaced or
written to would be sampled with the sums of other rows, and reading beyond the end of one that has
been cut short ends Python without a word (SIGBUS).
"""

import mmap
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["FileWatch", "RowFile", "read_only"]

Identity = tuple[int, int, int, int]
"""Device, inode, size in bytes, and time of the last change in nanoseconds."""


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class RowFile:
    """An array in a file, by reference.

    Attributes
    ----------
    path
        The file.
    identity
        Device, inode, size and time of its last change when the array was first seen.
    start, offset
        Where in the file the map starts, and where in the map the array does, in bytes.
    shape, strides, dtype
        Of the array.
    """

    path: str
    identity: Identity
    start: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, values: np.ndarray) -> "RowFile | None":
        """Describe a view of a memory map; None for what has no file that can be opened again."""
        view: Any = values
        while isinstance(view, np.ndarray) and not isinstance(view, np.memmap):
            view = view.base
        if not isinstance(view, np.memmap) or view.filename is None or view.mode == "c":
            return None
        base: Any = view
        if base.mode != "r":
            base._mmap.flush()  # what is written later would look like a change
        try:
            status = os.stat(base.filename)
        except OSError:  # removed since
            return None
        if status.st_size != base._mmap.size():  # another file has its name now
            return None
        start_of_map = np.frombuffer(base._mmap, np.uint8).__array_interface__["data"][0]
        return cls(
            path=str(base.filename),
            identity=_identity(status),
            start=base.offset - base.offset % mmap.ALLOCATIONGRANULARITY,
            offset=values.__array_interface__["data"][0] - start_of_map,
            shape=values.shape,
            strides=values.strides,
            dtype=values.dtype.str,
        )

    def open(self) -> np.ndarray:
        """Map the file.

        Raises
        ------
        RuntimeError
            If it is not the file that it was.
        """
        with open(self.path, "rb") as file:
            self.check(file.fileno())
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, offset=self.start)
        dtype = np.dtype(self.dtype)
        return np.ndarray(self.shape, dtype, buffer, self.offset, self.strides)

    def check(self, descriptor: int) -> None:
        """Refuse a file that was replaced, written to or cut short.

        Raises
        ------
        RuntimeError
        """
        found = _identity(os.fstat(descriptor))
        if found == self.identity:
            return
        if found[2] != self.identity[2]:
            change = f"had {self.identity[2]:,} bytes and has {found[2]:,}"
        else:
            change = "was " + ("replaced" if found[:2] != self.identity[:2] else "written to")
        raise RuntimeError(
            f"{self.path} {change} since its rows were bound to the model, so that sums over them "
            "no longer hold. Leave the file alone while it is sampled from; make the step again "
            "to sample from what it holds now."
        )


class FileWatch:
    """Open files of mapped arrays, which can be looked at before each draw.

    Raises
    ------
    RuntimeError
        If one of them is not the file that it was.
    """

    def __init__(self, files: Iterable[RowFile]) -> None:
        self._watched: list[tuple[int, int, int, RowFile]] = []
        weakref.finalize(self, _close, self._watched)
        for file in {file.path: file for file in files}.values():
            descriptor = os.open(file.path, os.O_RDONLY)
            self._watched.append((descriptor, *file.identity[2:], file))
            file.check(descriptor)

    def check(self) -> None:
        """Compare all files with what they were, in a few microseconds each."""
        for descriptor, size, time, file in self._watched:
            status = os.fstat(descriptor)
            if status.st_size != size or status.st_mtime_ns != time:
                file.check(descriptor)


def _close(watched: list[tuple[int, int, int, RowFile]]) -> None:
    for descriptor, *_ in watched:
        os.close(descriptor)


def read_only(values: np.ndarray) -> np.ndarray:
    """View an array as those in files are, so that the same machine code reads both."""
    view = values.view(np.ndarray)
    view.flags.writeable = False
    return view
