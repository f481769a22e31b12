"""Compiled functions as attributes that threads may ask for at the same time."""

from collections.abc import Callable
from functools import cached_property
from threading import RLock
from typing import Any

__all__ = ["made_once"]

_LOCK = RLock()
"""One for all: PyTensor rewrites graphs in one thread at a time."""


class made_once[T](cached_property[T]):  # noqa: N801 - a decorator, as what it extends
    """A cached property that one thread makes while others wait.

    Passes over all rows run in threads, and the first to ask for a function has it compiled. Two
    that rewrite one graph at a time would spoil it.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        super().__init__(make)

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        """Return the value; the instance holds it afterwards, and this is not called again."""
        with _LOCK:
            if instance is not None and self.attrname in vars(instance):
                return vars(instance)[self.attrname]
            return super().__get__(instance, owner)
