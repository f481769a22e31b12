"""The cores that this process may use, and who uses them."""

import os
from contextlib import AbstractContextManager
from functools import cache
from multiprocessing import current_process
from threading import current_thread, main_thread
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["n_cores", "n_idle_cores", "one_blas_thread"]


def n_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def n_idle_cores() -> int:
    """Count the cores for this thread: one if others run beside it, as chains or threads do."""
    is_alone = current_thread() is main_thread() and not current_process().daemon
    return n_cores() if is_alone else 1


def one_blas_thread() -> AbstractContextManager[Any]:
    """Keep BLAS from starting threads of its own, if there are as many as cores already."""
    return _libraries().limit(limits=1, user_api="blas")


@cache
def _libraries() -> ThreadpoolController:
    """Look for the libraries once, which takes 5 ms, as long as a pass over few rows."""
    return ThreadpoolController()
