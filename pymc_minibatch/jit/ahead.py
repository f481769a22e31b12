"""Compile a kernel in a second process, while this one is busy with something else.

Compiling holds Python's global lock, so that a thread would not do. The second process leaves its
machine code in the cache on disk, where this one finds it. Whatever goes wrong there costs nothing
but time: what is not in the cache is compiled here.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import typeof
from pytensor.configdefaults import config
from pytensor.link.numba.cache import CACHED_SRC_FUNCTIONS, NUMBA_CACHE_PATH

from pymc_minibatch.jit.cores import n_cores

__all__ = ["CompiledAhead"]


class CompiledAhead:
    """A second process that compiles a kernel while the block runs.

    Parameters
    ----------
    build : callable
        Returns the kernel, made by :func:`~pymc_minibatch.jit.compiled.jit_cached`; a function of
        a module.
    options : tuple
        What to call `build` with; pickled.
    arguments : tuple
        Arguments of the kernel, of which the types count.

    Attributes
    ----------
    process : subprocess.Popen or None
        The second process; None where there is nothing to compile, or nobody to do it.
    """

    def __init__(
        self,
        build: Callable[..., Callable[..., Any]],
        options: tuple[Any, ...],
        arguments: tuple[Any, ...],
    ) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        if n_cores() < 2 or not _is_python() or _on_disk(build(*options)):
            return
        try:
            task = pickle.dumps((build, options, tuple(typeof(a) for a in arguments)))
            self.process = _start(task)
        except (OSError, pickle.PicklingError, AttributeError, TypeError):
            pass  # compiled where it is wanted

    def __enter__(self) -> "CompiledAhead":
        """Go on."""
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """Wait until the kernel is on disk; after an error stop."""
        if self.process is None:
            return
        if error is not None:
            self.process.kill()
        self.process.wait()


def _start(task: bytes) -> "subprocess.Popen[bytes]":
    flags = [os.environ.get("PYTENSOR_FLAGS", ""), f"base_compiledir={config.base_compiledir}"]
    environment = os.environ | {
        "PYTENSOR_FLAGS": ",".join(flag for flag in flags if flag),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(task)
    return process


def _is_python() -> bool:
    """Whether the program that runs is Python, and not one that has Python inside."""
    return Path(sys.executable or "").stem.lower().startswith("python")


def _on_disk(kernel: Any) -> bool:
    """Whether the kernel is in the cache, or cannot be."""
    key = _key(kernel)
    return key is None or any(NUMBA_CACHE_PATH.glob(f"*{key}*.nbi"))


def _key(kernel: Any) -> str | None:
    """Return what the kernel is kept under; None if it is not kept."""
    return CACHED_SRC_FUNCTIONS.get(kernel.py_func) if config.numba__cache else None


def main() -> None:
    """Compile what the first process asks for."""
    build, options, signature = pickle.load(sys.stdin.buffer)
    build(*options).compile(signature)


if __name__ == "__main__":
    main()
