"""Arrays that lie in files: references to them, and a watch on their files.

Sums over all rows are taken once, so a file must stay what it was then. One that is replaced or
written to would be sampled with the sums of other rows, and reading beyond the end of one that has
been cut short ends Python without a word (SIGBUS).
"""

import mmap
import os
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

__all__ = ["FileWatch", "RowFile", "read_only"]

BLOCK_BYTES = 2**15
"""Bytes of a file that are compared at once, in some ten microseconds."""

SETTLED_SECONDS = 60
"""Older files have been written back to their disk, so that a write through a map changes their
time (Linux does so after 30 seconds by default)."""

TIMELESS = ("tmpfs", "ramfs", "hugetlbfs", "9p", "fuse", "nfs", "cifs", "smb")
"""File systems in memory or on other machines, where a write through a map may leave times."""

OWN = "pymc_minibatch_"
"""Beginning of the names of folders with files that nobody else writes."""

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
    blocks
        Checksums of the blocks of the file, where its time does not tell of every change.
    """

    path: str
    identity: Identity
    start: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    blocks: np.ndarray | None = field(default=None, compare=False, repr=False)

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
        path = str(base.filename)
        return cls(
            path=path,
            blocks=None if _time_tells(path, status) else _block_sums(base._mmap),
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
        raise self.changed(change)

    def changed(self, change: str) -> RuntimeError:
        """Return the error that says what has happened to the file."""
        return RuntimeError(
            f"{self.path} {change} since its rows were bound to the model, so that sums over them "
            "no longer hold. Do not change the file while it is sampled from. To sample from its "
            "present contents, make the step again."
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
        self._compared: list[tuple[RowFile, mmap.mmap, np.ndarray]] = []
        self._turn = 0
        weakref.finalize(self, _close, self._watched)
        for file in {file.path: file for file in files}.values():
            descriptor = os.open(file.path, os.O_RDONLY)
            self._watched.append((descriptor, *file.identity[2:], file))
            file.check(descriptor)
            if file.blocks is not None:
                content = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
                self._compared.append((file, content, file.blocks))

    def check(self) -> None:
        """Compare all files with what they were, in a few microseconds each.

        Of those whose time does not tell, another block each time.
        """
        for descriptor, size, time_ns, file in self._watched:
            status = os.fstat(descriptor)
            if status.st_size != size or status.st_mtime_ns != time_ns:
                file.check(descriptor)
        if self._compared:
            self._turn += 1
            for file, content, sums in self._compared:
                _compare(file, content, sums, self._turn * STRIDE % sums.size)

    def check_all(self) -> None:
        """Compare all that is known of the files; those that were replaced by name, too."""
        self.check()
        for *_, file in self._watched:
            try:
                found = _identity(os.stat(file.path))
            except FileNotFoundError:
                continue  # what was mapped is still there
            if found != file.identity:
                raise file.changed("was replaced")
        for file, content, sums in self._compared:
            for block in range(sums.size):
                _compare(file, content, sums, block)


STRIDE = 7919
"""Blocks that follow each other are this far apart: a prime, so that all are looked at."""


def _compare(file: RowFile, content: mmap.mmap, sums: np.ndarray, block: int) -> None:
    start = block * BLOCK_BYTES
    if crc32(content[start : start + BLOCK_BYTES]) != sums[block]:
        raise file.changed("was written to")


def _block_sums(content: mmap.mmap) -> np.ndarray:
    """Take the checksum of each block of a file."""
    view = memoryview(content)
    starts = range(0, len(view), BLOCK_BYTES)
    return np.array([crc32(view[s : s + BLOCK_BYTES]) for s in starts], dtype=np.uint32)


def _time_tells(path: str, status: os.stat_result) -> bool:
    """Whether the time of a file tells of every change to come."""
    if any(part.startswith(OWN) for part in Path(path).parts):
        return True
    is_settled = time.time() - status.st_mtime > SETTLED_SECONDS
    return is_settled and not _file_system(status.st_dev).startswith(TIMELESS)


@cache
def _file_system(device: int) -> str:
    """Return the kind of a device's file system; nothing if the system does not say."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for _, folder, kind, *_ in (mount.split() for mount in reversed(mounts)):
        try:
            if os.stat(folder.replace("\\040", " ")).st_dev == device:
                return kind
        except OSError:  # not for us to see
            continue
    return ""


def _close(watched: list[tuple[int, int, int, RowFile]]) -> None:
    for descriptor, *_ in watched:
        os.close(descriptor)


def read_only(values: np.ndarray) -> np.ndarray:
    """View an array as those in files are, so that the same machine code reads both."""
    view = values.view(np.ndarray)
    view.flags.writeable = False
    return view
