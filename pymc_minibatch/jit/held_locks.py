"""Locks of Numba and LLVM that an interrupt has left held.

Both are acquired by Python code. An exception that the handler of a signal raises right after that
leaves the lock held, as the block that releases it is not entered yet. The thread that holds it
goes on, since the locks are reentrant; every other thread that compiles, or loads what is compiled,
waits for ever.
"""

from typing import Any

from llvmlite.binding import ffi
from numba.core.compiler_lock import global_compiler_lock

__all__ = ["locks_of_compilers", "release_held_locks"]


def release_held_locks() -> None:
    """Release the locks that this thread holds. Nothing may be compiled in it meanwhile.

    It is called before this thread waits for others.
    """
    for lock in locks_of_compilers():
        while lock._is_owned():
            lock.release()


def locks_of_compilers() -> list[Any]:
    """Return them; none that a version of these libraries has not."""
    owners = getattr(ffi.lib, "_lock", None), global_compiler_lock
    locks = [getattr(owner, "_lock", None) for owner in owners]
    return [lock for lock in locks if hasattr(lock, "_is_owned")]
