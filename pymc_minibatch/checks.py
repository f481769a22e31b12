"""Checks of what users pass, where they can still act on it."""

import math
import numbers
from typing import Any

from pymc.model import Model, modelcontext

__all__ = ["checked_model", "checked_part", "checked_temperature", "checked_type"]


def checked_type(name: str, value: Any, kind: type, remedy: str) -> None:
    """Refuse a value that is not of a kind; None is fine.

    Raises
    ------
    TypeError
    """
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}; got {_shown(value)}. {remedy}")


def checked_part(name: str, value: Any, methods: tuple[str, ...], examples: str) -> None:
    """Refuse what lacks the methods of a part, such as an acceptance test; None is fine.

    Raises
    ------
    TypeError
    """
    if value is None or (
        not isinstance(value, type) and all(hasattr(value, method) for method in methods)
    ):
        return
    called = f" Call the class: {value.__name__}()." if isinstance(value, type) else ""
    raise TypeError(f"{name} must be one of {examples}; got {_shown(value)}.{called}")


def checked_model(model: Any) -> Model:
    """Return the model, or that of the context.

    Raises
    ------
    TypeError
        If there is none, or it is something else.
    """
    remedy = "Pass model=, or call this inside `with model:`."
    if model is None and Model.get_context(error_if_none=False) is None:
        raise TypeError(f"There is no model. {remedy}")
    checked_type("model", model, Model, f"{remedy} Of a Bambi model take backend.model.")
    found: Model = modelcontext(model)
    return found


def checked_temperature(temperature: Any) -> float:
    """Return a positive number.

    Raises
    ------
    ValueError
    """
    is_number = isinstance(temperature, numbers.Real) and not isinstance(temperature, bool)
    if not (is_number and math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature must be a positive, finite number; got {temperature!r}.")
    return float(temperature)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"an object of type {type(value).__name__}"
