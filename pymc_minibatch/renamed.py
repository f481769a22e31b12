"""Arguments under the names of the last release, for one release."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from pymc_minibatch.warn import warn

__all__ = ["renamed", "with_new_names"]


def with_new_names(
    function: str, names: Mapping[str, str], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return keyword arguments under their new names, and warn of old ones.

    Raises
    ------
    TypeError
        If an argument is given under both names.
    """
    found = dict(arguments)
    for old, new in names.items():
        if old not in found:
            continue
        if found.get(new) is not None:
            raise TypeError(
                f"{function} got {old}= and {new}=, which mean the same. Leave out {old}=."
            )
        found[new] = found.pop(old)
        warn("PMB001", f"{old}= of {function} is now called {new}=. Write {new}=.")
    return found


def renamed[**P, R](**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function take keyword arguments under old names: ``renamed(old="new")``."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(*args, **with_new_names(function.__name__, names, kwargs))

        return called

    return decorate
