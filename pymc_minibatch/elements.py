"""Elements of variables of two results, matched by their labels."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

__all__ = ["Layout", "layout_of", "matched", "shown"]

SAMPLE = ("chain", "draw")

MOST_SHOWN = 5
"""So many labels stand in a message."""


class Layout(NamedTuple):
    """Dimensions of a variable, beside chain and draw, and the labels that are known of them."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    labels: Mapping[str, pd.Index | None]
    owner: str


def layout_of(values: xr.DataArray, owner: str) -> Layout:
    """Return the layout of draws."""
    dims = tuple(str(dim) for dim in values.dims if dim not in SAMPLE)
    shape = tuple(values.sizes[dim] for dim in dims)
    return Layout(dims, shape, {dim: values.indexes.get(dim) for dim in dims}, owner)


def matched(name: str, values: xr.DataArray, layout: Layout, remedy: str) -> xr.DataArray:
    """Bring draws of a variable to a layout: dimensions by name, elements by label.

    Positions are taken only where one of both has no labels.

    Raises
    ------
    ValueError
        If shapes or labels do not match.
    """
    own = [str(dim) for dim in values.dims if dim not in SAMPLE]
    shape = tuple(values.sizes[dim] for dim in own)
    pairs = _paired(name, values, own, layout) if len(own) == len(layout.dims) else None
    if pairs is None or any(
        values.sizes[dim] != size for dim, size in zip(pairs, layout.shape, strict=True)
    ):
        raise ValueError(
            f"{name} has shape {shape} in the posterior and {layout.shape} in {layout.owner}. "
            f"{remedy}"
        )
    values = values.transpose(*SAMPLE, *pairs)
    for dim, target in zip(pairs, layout.dims, strict=True):
        order = _order(name, values.indexes.get(dim), dim, layout.labels.get(target), target)
        if isinstance(order, str):
            raise ValueError(
                f"{name} has other labels along {target} in the posterior than in {layout.owner}: "
                f"{order}. {remedy}"
            )
        if order is not None:
            values = values.isel({dim: order})
    renamed = {dim: target for dim, target in zip(pairs, layout.dims, strict=True) if dim != target}
    if renamed:
        values = values.drop_vars([dim for dim in renamed if dim in values.coords])
        values = values.rename(renamed)
    return values


def shown(labels: Sequence[Any]) -> str:
    """Show a few labels."""
    more = f" and {len(labels) - MOST_SHOWN} more" if len(labels) > MOST_SHOWN else ""
    return ", ".join(str(label) for label in labels[:MOST_SHOWN]) + more


def _paired(name: str, values: xr.DataArray, own: list[str], layout: Layout) -> list[str] | None:
    """For each dimension of the layout find that of the draws; None if they cannot be told."""
    targets = list(layout.dims)
    pairs = {dim: dim for dim in targets if dim in own}
    left = [dim for dim in own if dim not in pairs]
    open_targets = [dim for dim in targets if dim not in pairs]
    for dim in list(left):
        labels = values.indexes.get(dim)
        if labels is None or _is_range(labels):
            continue
        same = [t for t in open_targets if _same_labels(labels, layout.labels.get(t))]
        if len(same) == 1:
            pairs[same[0]] = dim
            left.remove(dim)
            open_targets.remove(same[0])
    left.sort(key=lambda dim: _number(name, dim, own.index(dim)))
    pairs |= dict(zip(open_targets, left, strict=True))
    return [pairs[target] for target in targets]


def _number(name: str, dim: str, position: int) -> int:
    """Return the number of a dimension that was named by default."""
    tail = dim.removeprefix(f"{name}_dim_")
    return int(tail) if tail != dim and tail.isdigit() else position


def _is_default(name: str, dim: str) -> bool:
    tail = dim.removeprefix(f"{name}_dim_")
    return tail != dim and tail.isdigit()


def _is_range(labels: pd.Index) -> bool:
    """Whether labels are 0 to n − 1 in any order: numbers of positions."""
    return labels.dtype.kind in "iu" and bool(
        np.array_equal(np.sort(labels.to_numpy()), np.arange(len(labels)))
    )


def _order(
    name: str, own: pd.Index | None, dim: str, wanted: pd.Index | None, target: str
) -> np.ndarray | str | None:
    """Return how to reorder elements, None if they need not be, or what does not match."""
    if own is None:
        return None
    if wanted is None:
        return _numbers(own, np.arange(len(own))) if _is_range(own) else None
    # Numbers that nobody gave say no more than positions, also if labels are such numbers.
    if dim != target and _is_default(name, dim) and _is_range(own):
        return _numbers(own, np.arange(len(own)))
    if dim != target and _is_default(name, target) and _is_range(wanted):
        return _numbers(pd.RangeIndex(len(own)), wanted.to_numpy())
    positions = _positions(own, wanted)
    if positions is not None:
        return None if np.array_equal(positions, np.arange(len(own))) else positions
    here = [label for label in own if label not in wanted]
    there = [label for label in wanted if label not in own]
    if not here and not there:
        return "labels occur more than once, in another order"
    parts = [f"{shown(here)} only in the posterior"] if here else []
    parts += [f"{shown(there)} only in the other"] if there else []
    return ", ".join(parts)


def _numbers(own: pd.Index, wanted: np.ndarray) -> np.ndarray | None:
    order = own.get_indexer(wanted)
    return None if np.array_equal(order, np.arange(len(own))) else order


def _same_labels(own: pd.Index, wanted: pd.Index | None) -> bool:
    return wanted is not None and _positions(own, wanted) is not None


def _positions(own: pd.Index, wanted: pd.Index) -> np.ndarray | None:
    """Find the wanted labels among one's own; None if they are not the same."""
    if len(own) != len(wanted):
        return None
    for kind in (lambda labels: labels, _as_dates, lambda labels: labels.map(str)):
        try:
            mine, theirs = kind(own), kind(wanted)
            if mine.equals(theirs):
                return np.arange(len(own))
            if not (mine.is_unique and theirs.is_unique):
                continue
            found = mine.get_indexer(theirs)
        except (TypeError, ValueError):
            continue
        if (found >= 0).all():
            return np.asarray(found)
    return None


def _as_dates(labels: pd.Index) -> pd.Index:
    """Read labels as dates, which stores turn into times."""
    if labels.dtype.kind in "biuf":
        raise TypeError
    return pd.DatetimeIndex(labels.map(pd.Timestamp)).as_unit("ns")
