"""One pass over rows in partitions that checks their values and finds the extreme ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.tall.partitions import Partitions

__all__ = ["Extremes", "Limits", "survey"]


class Limits(NamedTuple):
    """What values of a source are refused.

    Attributes
    ----------
    name
        Of the source, for errors.
    infinite
        Whether infinite values are allowed.
    least, most
        Of integers; infinite where all fit.
    """

    name: str
    infinite: bool
    least: float
    most: float


class Extremes(NamedTuple):
    """The smallest and largest value of each column of a source.

    Attributes
    ----------
    values, rows : ndarray, shape (2, columns)
        The values, and in which rows they are.
    """

    values: np.ndarray
    rows: np.ndarray


def survey(partitions: Partitions, limits: Sequence[Limits | None]) -> list[Extremes | None]:
    """Check all sources and find their extremes; booleans have none.

    Raises
    ------
    ValueError
        Naming the first row with a value that is missing, infinite or out of range.
    """
    starts = [(int(first),) for first in partitions.starts[:-1]]
    bad, extremes = partitions.run(
        _Look(tuple(limits)), starts, combine=_joined, title="Checking the rows"
    )
    if bad is not None:
        row, name, value, advice = bad
        part = int(np.searchsorted(partitions.starts, row, side="right")) - 1
        raise ValueError(
            f"{name} has {value} in row {row} (row {row - partitions.starts[part]} of "
            f"{partitions.parts[part].label}). {advice}"
        )
    return extremes


@dataclass(frozen=True)
class _Look:
    """Looks at one part."""

    limits: tuple[Limits | None, ...]

    def __call__(self, arrays: Sequence[np.ndarray], start: int) -> tuple[Any, list[Any]]:
        bads: list[tuple[Any, ...]] = []
        extremes: list[Extremes | None] = []
        for values, limit in zip(arrays, self.limits, strict=True):
            if limit is None:
                extremes.append(None)
                continue
            bad = _first_bad(values, limit)
            if bad is not None:
                bads.append((start + bad[0], limit.name, *bad[1:]))
            extremes.append(_extremes(values, start))
        return min(bads, key=lambda bad: bad[0], default=None), extremes


def _first_bad(values: np.ndarray, limit: Limits) -> tuple[int, Any, str] | None:
    advice = "Remove or replace missing and infinite values before sampling."
    if values.dtype.kind == "f":
        bad = np.isnan(values) if limit.infinite else ~np.isfinite(values)
    elif np.isfinite(limit.least):
        bad = (values < limit.least) | (values > limit.most)
        advice = "It does not fit into the type of the model's own data."
    else:
        return None
    if not bad.any():
        return None
    where = np.argwhere(bad)[0]
    return int(where[0]), values[tuple(where)], advice


def _extremes(values: np.ndarray, start: int) -> Extremes | None:
    if values.dtype.kind not in "iuf":
        return None
    flat = values.reshape(len(values), -1)
    where = np.array([flat.argmin(axis=0), flat.argmax(axis=0)])
    return Extremes(np.take_along_axis(flat, where, axis=0), where + start)


def _joined(first: tuple[Any, list[Any]], second: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
    pairs = zip(first[1], second[1], strict=True)
    return first[0] or second[0], [None if a is None else _outermost(a, b) for a, b in pairs]


def _outermost(a: Extremes, b: Extremes) -> Extremes:
    better = np.array([b.values[0] < a.values[0], b.values[1] > a.values[1]])
    return Extremes(np.where(better, b.values, a.values), np.where(better, b.rows, a.rows))
