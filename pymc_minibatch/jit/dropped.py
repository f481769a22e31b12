"""Exceptions of signal handlers that Python drops: the handler is run again.

Python drops what is raised within a destructor, the callback of a weak reference or a callback of
the garbage collector: it has nobody to give the exception to. The handler of a signal may run just
there, and Ctrl-C is lost. Where graphs are made and let go this is one interrupt in ten. Such an
exception reaches ``sys.unraisablehook``, from where the signal is set off once more.
"""

import _thread
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import current_thread, main_thread
from types import CodeType, TracebackType
from typing import Any

__all__ = ["keep_interrupts"]

PAUSE = 5e-3
"""Seconds: a hook takes some µs."""

_before: Callable[[Any], Any] = sys.__unraisablehook__


def keep_interrupts() -> None:
    """See to it that an exception of a handler is not lost, from now on and in this process."""
    global _before
    if sys.unraisablehook is not _hook:
        _before = sys.unraisablehook
        sys.unraisablehook = _hook


def _hook(dropped: "sys.UnraisableHookArgs") -> None:
    number = _signal_of(dropped) if current_thread() is main_thread() else None
    if number is None:
        _before(dropped)
        return
    with suppress(RuntimeError):  # at the end of the process there are no new threads
        _thread.start_new_thread(_set_off, (number,))


def _set_off(number: int) -> None:
    """Set a signal off when the main thread has left the hook, which would drop it as well."""
    time.sleep(PAUSE)
    _thread.interrupt_main(number)  # type: ignore[arg-type]  # as documented


def _signal_of(dropped: "sys.UnraisableHookArgs") -> int | None:
    """Return the signal whose handler has raised an exception, if one has."""
    interrupt = signal.getsignal(signal.SIGINT)
    if dropped.exc_type is KeyboardInterrupt and interrupt is signal.default_int_handler:
        return int(signal.SIGINT)
    codes = set(_codes(dropped.exc_traceback))
    for number in signal.valid_signals():
        code = _code_of(signal.getsignal(number))
        if code is not None and code in codes:
            return int(number)
    return None


def _codes(traceback: TracebackType | None) -> Iterator[CodeType]:
    while traceback is not None:
        yield traceback.tb_frame.f_code
        traceback = traceback.tb_next


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a function, method, partial function or object that is called."""
    while hasattr(handler, "func"):
        handler = handler.func
    call = handler if hasattr(handler, "__code__") else getattr(handler, "__call__", None)  # noqa: B004
    code = getattr(call, "__code__", None)
    return code if isinstance(code, CodeType) else None
