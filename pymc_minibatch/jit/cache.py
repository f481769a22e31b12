"""The cache of machine code on disk: what it is kept under, and what happens where it is broken.

PyTensor keeps the machine code of graphs under keys of the graphs, and Numba reads and writes the
files. A kernel of ours is kept there under a key of all that it is made of, so that it is never
stale. A cache only saves time: where its files cannot be read or written, what they would hold is
compiled, and the user is told once.
"""

import os
import pickle
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from numba import __version__ as numba_version
from numba.core import caching
from pytensor import __version__ as pytensor_version
from pytensor.configdefaults import config
from pytensor.link.numba.cache import NUMBA_CACHE_PATH

from pymc_minibatch.warn import warn

__all__ = ["class_key", "kernel_key", "source_number"]

PACKAGE = "pymc_minibatch"

JITTED = (
    "acceptance",
    "bounds",
    "jit",
    "kernels",
    "latent",
    "multilevel",
    "proposals",
    "reference",
    "updates",
)
"""The subpackages whose functions are compiled into a kernel, or see to it."""


def kernel_key(*parts: str | None) -> str | None:
    """Return what a kernel is kept under, None if that is not to be.

    Parameters
    ----------
    *parts
        What tells it from others made of the same code: keys of the graphs and classes in it, its
        own source. If any is None its code is not known, and it must not be kept.
    """
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    fastmath = f"fastmath={config.numba__fastmath}"
    return sha256("\n".join([code_key(), fastmath, *known]).encode()).hexdigest()


@cache
def code_key() -> str:
    """Hash the source of everything a kernel is made of, and what compiles it."""
    digest = sha256(f"{version('pymc-minibatch')} {pytensor_version} {numba_version}".encode())
    package = files(PACKAGE)
    for folder in JITTED:
        sources = [path for path in (package / folder).iterdir() if path.name.endswith(".py")]
        for path in sorted(sources, key=lambda path: path.name):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def class_key(part: Any) -> str | None:
    """Return the name of a part's class if its source is in the key of the code, else None.

    Code from elsewhere may call what we do not see, so it is compiled anew in each process.
    """
    ours = all(
        base.__module__.split(".")[0] in (PACKAGE, "builtins", "abc", "typing")
        for base in type(part).__mro__
    )
    return type(part).__qualname__ if ours else None


def source_number(path: str) -> int:
    """Return a number that changes with a file: PyTensor wants one for the code of an operation."""
    with open(path, "rb") as source:
        return int.from_bytes(sha256(source.read()).digest()[:8], "big")


class CacheFile(caching.IndexDataCacheFile):
    """The files of a compiled function; compiling goes on where PyTensor's cannot be used.

    Numba lets errors through: a file that was cut short, by a full disk or a killed process, would
    stop every run until somebody deletes it.
    """

    def load(self, key: Any) -> Any:
        """Load an entry; None where there is none that can be read."""
        try:
            return super().load(key)
        except Exception as error:
            if not self._is_pytensors():
                raise
            warn_once("read", self._index_path, error)
            with suppress(OSError):
                os.unlink(self._index_path)  # to be written anew
            return None

    def save(self, key: Any, data: Any) -> None:
        """Save an entry, if that is possible."""
        try:
            super().save(key, data)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            if not self._is_pytensors():
                raise
            warn_once("written", self._index_path, error)

    def _is_pytensors(self) -> bool:
        return os.fspath(self._cache_path) == os.fspath(NUMBA_CACHE_PATH)


setattr(caching, "IndexDataCacheFile", CacheFile)  # noqa: B010 - for mypy, which sees a type

_warned: set[str] = set()


def warn_once(done: str, path: str, error: Exception) -> None:
    if done in _warned:
        return
    _warned.add(done)
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    warn(
        f"The file {path} of the compile cache cannot be {done} ({what}). Its code is compiled in "
        "this process instead, which takes longer. If this warning comes back, look at the free "
        f"space and the permissions of {NUMBA_CACHE_PATH}."
    )
