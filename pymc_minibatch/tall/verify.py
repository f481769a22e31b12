"""Whether two functions agree at points, and whether a function is quadratic along a line.

Work is saved by claims about a model: that a split gives its log-density, that a prior is Gaussian,
that rows are parabolas. A claim is decided here, by four rules.

- *Values and not curvature.* A kink, a hinge and a line have no second derivative: only values tell
  them from a Gaussian. The third difference p(2s) − 3 p(s) + 3 p(0) − p(−s) of a quadratic function
  vanishes for every s, and p(s) − p(0) is what its slope and curvature say.
- *Scale-free.* Lengths are counted in standard deviations, and an entry is compared with its own
  size, never with another entry, and never with a number in units of the data. What rounding adds
  is estimated: by how much a value changes if the point at which it is computed, or each operation,
  is rounded otherwise.
- *Every entry.* Each entry of each array counts.
- *Undecided is false.* What is finite in one of two functions has to be finite in the other.

Points come from the prior (:mod:`.probes`) and from a Gaussian approximation, if one is known.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Variable

from pymc_minibatch.jit.interpreted import evaluator, shaken_outputs

__all__ = [
    "LENGTHS",
    "RTOL",
    "Violation",
    "agree",
    "compare",
    "quadratic",
    "rounding",
    "rounding_of_rows",
    "uneven",
]

type Function = Callable[[np.ndarray], Any]
"""``point -> array`` of any shape; of the same shape at every point."""

RTOL = 1e-7
"""Relative difference of two values that are computed in two ways, apart from rounding."""

UNIT = float(np.finfo(float).eps)
"""Relative distance of neighbouring float64 numbers."""

OPERATIONS = 32
"""So many operations, each with half a unit of rounding, are allowed for in an entry."""

SHAKEN = 8
"""Units by which a point is moved to see what rounding of it does."""

LENGTHS = (0.1, 0.5, 1.0, 3.0, 5.0, 10.0)
"""Standard deviations, to both sides, at which a function is compared with a parabola; at twice as
many, too."""


RADII = (1.0, 3.0, 6.0)
"""Standard deviations from the mean of a Gaussian approximation at which functions are compared."""


class Violation(NamedTuple):
    """A row in which two things differ that should be the same.

    Attributes
    ----------
    point : int
        The number of the point.
    entry : int
        The number of the entry of the raveled array, or of the row if rows were named.
    found, expected : float
        What is there.
    allowed : float
        The difference that would have been taken for rounding.
    """

    point: int
    entry: int
    found: float
    expected: float
    allowed: float

    def __str__(self) -> str:
        return (
            f"entry {self.entry} is {self.found:.6g} where {self.expected:.6g} is expected (they "
            f"differ by {abs(self.found - self.expected):.2g}, and {self.allowed:.2g} is rounding) "
            f"at point {self.point}"
        )


def agree(
    first: Function,
    second: Function,
    points: Iterable[np.ndarray],
    *,
    rows: np.ndarray | None = None,
    rtol: float = RTOL,
) -> Violation | None:
    """Compare two functions at points; return the worst entry of the first point that differs.

    Parameters
    ----------
    first, second
        What should be the same; the first is named in words as what was found.
    points
        Points at which they are evaluated.
    rows : ndarray of int, optional
        What the entries stand for, to name one.
    rtol : float, default 1e-7
        Relative to the size of each entry.

    Returns
    -------
    Violation or None
    """
    with np.errstate(all="ignore"):
        for number, point in enumerate(points):
            found, expected = first(point), second(point)
            allowed = np.maximum(rounding(first, point, found), rounding(second, point, expected))
            worst = compare(found, expected, rtol=rtol, allowed=allowed, rows=rows)
            if worst is not None:
                return worst._replace(point=number)
    return None


def compare(
    found: Any,
    expected: Any,
    *,
    rtol: float = RTOL,
    allowed: Any = 0.0,
    rows: np.ndarray | None = None,
) -> Violation | None:
    """Compare two arrays; return the entry that differs most, measured by what is allowed there.

    Each entry may differ by `rtol` of its own size, by some units of rounding, and by `allowed`.
    What is not finite in one array must not be in the other.
    """
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    if found.shape != expected.shape:
        return Violation(0, 0, float(found.size), float(expected.size), 0.0)
    if not found.size:
        return None
    finite = np.isfinite(found), np.isfinite(expected)
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(found), np.abs(expected))
        most = (rtol + OPERATIONS * UNIT) * size + allowed
        excess = np.abs(found - expected) / np.maximum(most, np.finfo(float).tiny)
    excess = np.where(finite[0] & finite[1], excess, np.where(finite[0] == finite[1], 0.0, np.inf))
    most, excess = np.ravel(most), np.ravel(np.nan_to_num(excess, nan=np.inf))
    worst = int(np.argmax(excess))
    if not excess[worst] > 1.0:
        return None
    entry = worst if rows is None else int(np.asarray(rows).ravel()[worst])
    values = (float(np.ravel(array)[worst]) for array in (found, expected, most))
    return Violation(0, entry, *values)


def rounding(function: Function, point: np.ndarray, value: Any = None) -> np.ndarray:
    """Estimate what rounding does to each entry: what follows if the point is rounded otherwise.

    A row −(y − η)²/2 with η = 10⁸ has lost eight digits before it begins; such errors are seen by
    moving each coordinate by a few units in the last place, some up and the others down.
    """
    value = np.asarray(function(point) if value is None else value, float)
    signs = np.where(np.arange(point.size) % 2, 1.0, -1.0).reshape(point.shape)
    error = OPERATIONS * UNIT * np.abs(value)
    for way in (signs, np.ones_like(signs)):
        moved = np.asarray(function(point * (1.0 + SHAKEN * UNIT * way)), float)
        error = np.maximum(error, 4.0 * np.nan_to_num(np.abs(moved - value), nan=0.0, posinf=0.0))
    return error


def rounding_of_rows(
    graph: tuple[Sequence[Variable], Sequence[Variable]],
    points: Iterable[np.ndarray],
    batch: Sequence[np.ndarray],
) -> np.ndarray:
    """Estimate what rounding does to rows, summed over points: operations are rounded otherwise.

    A row y η − eᵞ with a count of 10⁹ has lost ten digits, however the point is rounded.
    """
    rows, shaken = evaluator(*graph), shaken_outputs(*graph)
    total: Any = 0.0
    with np.errstate(all="ignore"):
        for point in points:
            away = np.abs(shaken(point, *batch)[0] - rows(point, *batch))
            total = total + np.nan_to_num(away, nan=0.0, posinf=0.0)
    return np.asarray(total)


def quadratic(
    along: Callable[[float], Any],
    *,
    lengths: Sequence[float] = LENGTHS,
    slope: Any = None,
    curvature: Any = None,
    rtol: float = RTOL,
    rows: np.ndarray | None = None,
) -> Violation | None:
    """Whether each entry of a function of one number is a parabola, by its values.

    Parameters
    ----------
    along
        ``s -> array``; s counts standard deviations from where a claim was found.
    lengths
        Values of s, taken with both signs; twice as much is looked at, too.
    slope, curvature
        First and second derivatives by s at 0. If given, p(s) − p(0) has to be what they say.
    rtol
        Relative to how far the values of an entry lie apart.
    rows
        What the entries stand for, to name one.

    Returns
    -------
    Violation or None
        Its `point` counts the lengths, those with negative sign after the others; `found` is the
        value, `expected` that of the parabola.
    """

    def at(s: float) -> np.ndarray:
        return np.asarray(along(s), float)

    def error(s: float, value: np.ndarray) -> np.ndarray:
        return np.asarray(rounding(lambda t: at(float(t)), np.array(s), value))

    with np.errstate(all="ignore"):
        middle = at(0.0)
        for number, s in enumerate([*lengths, *(-s for s in lengths)]):
            one, two, back = at(s), at(2 * s), at(-s)
            spread = sum(np.abs(value - middle) for value in (one, two, back))
            most = rtol * spread + error(2 * s, two) + 3 * error(s, one) + error(-s, back)
            most += 3 * OPERATIONS * UNIT * np.abs(middle)
            parabola = 3 * one - 3 * middle + back
            worst = compare(two, parabola, rtol=0.0, allowed=most, rows=rows)
            if worst is None and slope is not None and curvature is not None:
                said = middle + s * np.asarray(slope) + s**2 / 2 * np.asarray(curvature)
                worst = compare(one, said, rtol=0.0, allowed=most, rows=rows)
            if worst is not None:
                return worst._replace(point=number)
    return None


def uneven(arrays: Sequence[np.ndarray], rtol: float = RTOL) -> Violation | None:
    """Say which array differs from the first, entry by entry; None if they are all the same."""
    for number, array in enumerate(arrays[1:]):
        worst = compare(array, arrays[0], rtol=rtol)
        if worst is not None:
            return worst._replace(point=number + 1)
    return None
