"""Arguments of the user, checked where they can still be put right."""

import math
import numbers
from collections.abc import Collection
from typing import Any

import numpy as np
from pymc.model import Model, modelcontext

__all__ = [
    "checked_choice",
    "checked_count",
    "checked_covariance",
    "checked_model",
    "checked_share",
    "checked_temperature",
    "checked_type",
]

LARGEST_COUNT = 10**9
"""Larger counts, of steps in a draw say, are taken for mistakes."""


def checked_type(name: str, value: Any, kind: type, remedy: str) -> None:
    """Refuse a value that is not of a kind; None is fine.

    Raises
    ------
    TypeError
    """
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}; got {_shown(value)}. {remedy}")


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


def checked_count(name: str, value: int, least: int, most: int | None = None) -> int:
    """Return a whole number in a range; `most` is the number of rows."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if whole and least <= value <= (LARGEST_COUNT if most is None else most):
        return int(value)
    upper = (
        f" and at most {LARGEST_COUNT:,}"
        if most is None
        else f" and at most {most}, the number of rows"
    )
    raise ValueError(f"{name} must be a whole number, at least {least}{upper}; got {value!r}.")


def checked_choice(name: str, value: str, choices: Collection[str]) -> str:
    """Return one of some strings."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")
    return value


def checked_share(name: str, value: float, most: float) -> float:
    """Return a number over 0, and at most 1 or a little less."""
    if not isinstance(value, numbers.Real) or not 0 < value <= most:
        upper = "at most 1" if most == 1.0 else "below 1"
        raise ValueError(f"{name} must be over 0 and {upper}; got {value!r}.")
    return float(value)


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


def checked_covariance(name: str, values: Any, dim: int) -> np.ndarray:
    """Return a matrix that is symmetric and positive definite."""
    matrix = np.array(values, dtype=np.float64)
    if matrix.shape != (dim, dim):
        raise ValueError(
            f"{name} has shape {matrix.shape}, but the sampled variables have {dim} unconstrained "
            f"parameters: give a {dim} x {dim} matrix."
        )
    if not (np.isfinite(matrix).all() and np.allclose(matrix, matrix.T)):
        raise ValueError(f"{name} must be symmetric and finite.")
    if np.linalg.eigvalsh(matrix).min() <= 0:
        raise ValueError(f"{name} must be positive definite.")
    return matrix


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"an object of type {type(value).__name__}"
