"""Temporary files that hold rows: one folder for each process, each file as long as it is used.

A process locks its folder. A folder that nobody has locked belongs to a process that was killed,
and is removed by the next one that needs space.
"""

import atexit
import errno
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from pymc_minibatch.warn import warn

try:
    import fcntl
except ImportError:  # Windows, where folders of killed processes are left
    fcntl = None  # type: ignore[assignment]

__all__ = ["announce_copy", "new_array", "reopened"]

LARGE_COPY = 2.0**30
"""Copies of more bytes are announced."""

PREFIX = "pymc_minibatch_"
LOCK = "lock"

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a file system says when there is no space, or not for this user, or not for one file."""


def announce_copy(n_bytes: float) -> None:
    """Warn before many rows are copied to this machine."""
    if n_bytes > LARGE_COPY:
        warn(
            "PMB501",
            f"{n_bytes / 1e9:,.1f} GB of rows are copied to temporary files in "
            f"{own_folder().parent}: FlyMC, steps by gradients, multilevel_sgld, "
            "row_sampling='uniform' and control_variate=0 read any row at any time. MinibatchMH "
            "leaves rows in partitions otherwise.",
        )


def new_array(shape: tuple[int, ...], dtype: np.dtype) -> np.memmap:
    """Map a new temporary file, for writing, with all of its space taken.

    Written to without the space, a map would end Python (SIGBUS) where the disk is full.

    Raises
    ------
    OSError
        If there is not enough space.
    """
    descriptor, path = tempfile.mkstemp(suffix=".npy", dir=own_folder())
    os.close(descriptor)
    try:
        array = np.lib.format.open_memmap(path, "w+", dtype, shape)
        _take_space(path)
    except OSError as error:
        _remove_file(path, os.getpid())
        if error.errno not in FULL:
            raise
        folder, need = own_folder().parent, int(np.prod(shape)) * np.dtype(dtype).itemsize
        raise OSError(
            error.errno,
            f"Rows have to be copied to a file of {need:,} bytes in {folder}, which has "
            f"{shutil.disk_usage(folder).free:,} free. Free some, or set TMPDIR to a folder on "
            "a larger disk before Python starts",
        ) from error
    return array


def reopened(array: np.memmap) -> np.memmap:
    """Map what was written to a temporary file for reading; the file is removed with the map."""
    array.flush()
    assert array.filename is not None
    opened = np.lib.format.open_memmap(array.filename, mode="r")
    weakref.finalize(opened, _remove_file, str(array.filename), os.getpid())
    return opened


def _take_space(path: str) -> None:
    if not hasattr(os, "posix_fallocate"):
        if os.path.getsize(path) > shutil.disk_usage(path).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))


def _remove_file(path: str, owner: int) -> None:
    """Remove a file in the process that made it, not in those forked from it.

    Windows removes no file that is still mapped: it goes with the folder, when the process ends.
    """
    if os.getpid() == owner:
        with suppress(PermissionError):
            Path(path).unlink(missing_ok=True)


@cache
def folder_of_process(process: int) -> Path:
    remove_left_behind()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{process}_"))
    atexit.register(remove_folder, folder, process)
    if _lock(folder / "new", os.O_CREAT) is not None:
        (folder / "new").rename(folder / LOCK)  # now that nobody else can lock it
    return folder


def own_folder() -> Path:
    """Return the folder of this process, which is removed when it ends."""
    return folder_of_process(os.getpid())


def remove_folder(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_behind() -> None:
    """Remove the folders of processes that did not come to do so."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        try:
            descriptor = _lock(lock)
        except OSError:  # in use, or somebody else's
            continue
        if descriptor is not None:
            shutil.rmtree(lock.parent, ignore_errors=True)
            os.close(descriptor)


def _lock(path: Path, flags: int = 0) -> int | None:
    """Lock a file as long as this process and those forked from it live; None if it cannot be.

    Raises
    ------
    BlockingIOError
        If another process has locked it.
    """
    if fcntl is None:
        return None
    descriptor = os.open(path, os.O_RDWR | flags)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
