"""The cache of machine code on disk: what it is kept under, and what happens where it is broken.

PyTensor keeps the machine code of graphs under keys of the graphs, and Numba reads and writes the
files. A kernel of ours is kept there under a key of all code that it reaches, so that it is never
stale (:mod:`pymc_minibatch.jit.reached`). A cache only saves time: if its files cannot be read
or written, what they would hold is compiled, and the user is told once.
"""

import os
import pickle
import sys
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from typing import Any

from numba import __version__ as numba_version
from numba.core import caching
from pytensor import __version__ as pytensor_version
from pytensor.configdefaults import config
from pytensor.link.numba.cache import NUMBA_CACHE_PATH

from pymc_minibatch.jit.patches import PATCHED
from pymc_minibatch.jit.reached import PACKAGE, UnknownError, reached, source_of
from pymc_minibatch.warn import warn

__all__ = ["class_key", "compiler_key", "kernel_key"]

COMPILERS = ("jit/compiled.py", "jit/entry.py", "jit/linking.py")
"""The files that determine how functions are compiled, whatever they compute."""


def kernel_key(function: Any, *parts: str | None) -> str | None:
    """Return what a kernel is kept under, None if that is not to be.

    Parameters
    ----------
    function
        What is compiled.
    *parts
        What else tells it from others: keys of graphs, classes. If any is None, or if it cannot be
        told what the function reaches, its code is not known, and it must not be kept.
    """
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    try:
        code = reached(function)
    except UnknownError:
        return None
    fastmath = f"fastmath={config.numba__fastmath}"
    return sha256("\n".join([compiler_key(), code, fastmath, *known]).encode()).hexdigest()


def compiler_key() -> str:
    """Hash what compiles kernels."""
    tools = [str(PATCHED), sys.version, pytensor_version, numba_version, version("llvmlite")]
    return sha256("\n".join([*tools, *map(source_of, COMPILERS)]).encode()).hexdigest()


def class_key(part: Any) -> str | None:
    """Return the name of a part's class if it is of this package, else None.

    Code from elsewhere may call what we do not see, so it is compiled anew in each process.
    """
    ours = all(
        base.__module__.split(".")[0] in (PACKAGE, "builtins", "abc", "typing")
        for base in type(part).__mro__
    )
    return type(part).__qualname__ if ours else None


manner = ""
"""How functions are compiled now; code that was compiled in other ways is not loaded."""


class CacheFile(caching.IndexDataCacheFile):
    """The files of a compiled function; compiling goes on where PyTensor's cannot be used.

    Numba lets errors through: a file that was cut short, by a full disk or a killed process, would
    stop every run until somebody deletes it.
    """

    def load(self, key: Any) -> Any:
        """Load an entry; None if there is none that can be read."""
        try:
            return super().load((key, manner))
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
            super().save((key, manner), data)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            if not self._is_pytensors():
                raise
            warn_once("written", self._index_path, error)

    def _is_pytensors(self) -> bool:
        return os.fspath(self._cache_path) == os.fspath(NUMBA_CACHE_PATH)


if PATCHED:
    setattr(caching, "IndexDataCacheFile", CacheFile)  # noqa: B010 - for mypy, which sees a type

_warned: set[str] = set()


def warn_once(done: str, path: str, error: Exception) -> None:
    if done in _warned:
        return
    _warned.add(done)
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    warn(
        "PMB502",
        f"The file {path} of the compile cache cannot be {done} ({what}). Its code is compiled in "
        "this process instead, which takes longer. If this warning comes back, look at the free "
        f"space and the permissions of {NUMBA_CACHE_PATH}.",
    )
