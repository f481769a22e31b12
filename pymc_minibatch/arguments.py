"""Arguments of the user, checked where they can still be put right."""

from collections.abc import Collection
from typing import Any

import numpy as np

__all__ = [
    "checked_choice",
    "checked_count",
    "checked_covariance",
    "checked_share",
    "checked_temperature",
]


def checked_count(name: str, value: int, least: int, most: int | None = None) -> int:
    """Return a whole number in a range; `most` is the number of rows."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if whole and least <= value and (most is None or value <= most):
        return int(value)
    upper = "" if most is None else f" and at most {most}, the number of rows"
    raise ValueError(f"{name} must be a whole number, at least {least}{upper}; got {value!r}.")


def checked_choice(name: str, value: str, choices: Collection[str]) -> str:
    """Return one of some strings."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")
    return value


def checked_share(name: str, value: float, most: float) -> float:
    """Return a number over 0, and at most 1 or a little less."""
    if not 0 < value <= most:
        upper = "at most 1" if most == 1.0 else "below 1"
        raise ValueError(f"{name} must be over 0 and {upper}; got {value}.")
    return float(value)


def checked_temperature(temperature: float) -> float:
    """Return a temperature."""
    if not (np.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature must be positive and finite; got {temperature}.")
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
