"""Arrays of a graph that are affine in data-free quantities, with their coefficients.

Every array that reads both parameters and rows is written, if it can be, as

    A[o] = offset[o] + Σ over summands, Σ over s:  weight[o, s] · base[o, s],

where offsets and weights read only row data and a base reads only parameters. Along the axis of
the rows a base has length 1, or has one entry for each group; then an index, which is row data,
says to which group a row belongs. The rules below are those of sums, products with data, matrix
products, indexing and shapes. A product of two parts that both read parameters is still affine in
the product of their bases (``sd * z[group]`` in ``sd * z``).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

__all__ = ["Affine", "Lengths", "Summand"]

Lengths = tuple[int | None, ...]
"""Lengths of axes; None for that of the rows."""


@dataclass(frozen=True)
class Summand:
    """Coefficients times data-free entries.

    Attributes
    ----------
    base
        The axes of the array, and one more to sum over. Reads no row data. It has length 1 or the
        number of groups along the rows, and may have length 1 along any axis.
    index
        The group of each row, shape (b,), non-negative; None if the base has no groups.
    weight
        Row data, with the axes of `base`; None for 1.
    """

    base: Any
    index: Variable | None = None
    weight: Any = None

    @property
    def is_plain(self) -> bool:
        """Whether it reads no row data."""
        return self.index is None and self.weight is None

    def mapped(self, change: Callable[[Any], Any]) -> "Summand":
        """Change base and weight alike."""
        weight = None if self.weight is None else change(self.weight)
        return replace(self, base=change(self.base), weight=weight)


@dataclass(frozen=True)
class Affine:
    """An array that is affine in data-free quantities.

    Attributes
    ----------
    shape
        Lengths of its axes, None for the rows.
    offset
        The part that reads only row data; None for 0.
    summands
        The other parts.
    """

    shape: Lengths
    offset: Any = None
    summands: tuple[Summand, ...] = ()

    @property
    def rows(self) -> int | None:
        """The axis of the rows."""
        return self.shape.index(None) if None in self.shape else None

    @property
    def is_free(self) -> bool:
        """Whether it reads no row data."""
        return self.offset is None and all(summand.is_plain for summand in self.summands)

    def mapped(self, shape: Lengths, change: Callable[[Any], Any]) -> "Affine":
        """Change the shape of all parts; `change` must leave a trailing axis alone."""
        offset = self.offset
        if offset is not None:
            offset = change(offset[..., None])[..., 0]
        return Affine(shape, offset, tuple(s.mapped(change) for s in self.summands))

    # --- Sums and products --------------------------------------------------------------------

    def plus(self, other: "Affine", shape: Lengths) -> "Affine":
        """Add an array of the same number of axes."""
        offsets = [o for o in (self.offset, other.offset) if o is not None]
        offset = offsets[0] + offsets[1] if len(offsets) == 2 else (offsets or [None])[0]
        return Affine(shape, offset, self.summands + other.summands)

    @property
    def negative(self) -> "Affine":
        """The array times −1."""
        return self.scaled(pt.constant(np.full([1] * len(self.shape), -1.0)), self.shape)

    def scaled(self, factor: Any, shape: Lengths) -> "Affine":
        """Multiply by row data of the same number of axes."""
        offset = None if self.offset is None else self.offset * factor
        return Affine(shape, offset, tuple(_weighted(s, factor) for s in self.summands))

    def times(self, other: "Affine", shape: Lengths) -> "Affine | None":
        """Multiply; None if the product is not affine in products of bases."""
        if not self.summands:
            return other.scaled(self.offset, shape)
        if not other.summands:
            return self.scaled(other.offset, shape)
        products = [_product(a, b) for a in self.summands for b in other.summands]
        if None in products or not (self.is_free or other.is_free or self._same_groups(other)):
            return None
        summands = [product for product in products if product is not None]
        for one, two in ((self, other), (other, self)):
            if one.offset is not None:
                summands += [_weighted(s, one.offset) for s in two.summands]
        both = self.offset is not None and other.offset is not None
        return Affine(shape, self.offset * other.offset if both else None, tuple(summands))

    def _same_groups(self, other: "Affine") -> bool:
        """Whether both are gathered by the same index and nothing else."""
        parts = [*self.summands, *other.summands]
        return (
            self.offset is None
            and other.offset is None
            and len({s.index for s in parts}) == 1
            and all(s.weight is None for s in parts)
        )

    def chosen(self, condition: Any, other: "Affine", shape: Lengths) -> "Affine":
        """Take from this array where a condition on row data holds, from the other elsewhere."""
        offset = None
        if self.offset is not None or other.offset is not None:
            zero = pt.zeros([1] * len(shape))
            offset = pt.switch(
                condition,
                zero if self.offset is None else self.offset,
                zero if other.offset is None else other.offset,
            )
        holds = pt.cast(condition, "float64")
        summands = [_weighted(s, holds) for s in self.summands]
        summands += [_weighted(s, 1.0 - holds) for s in other.summands]
        return Affine(shape, offset, tuple(summands))

    # --- Shapes -------------------------------------------------------------------------------

    def transposed(self, order: Sequence[Any]) -> "Affine":
        """Reorder, drop and insert axes as DimShuffle does."""
        kept = [axis for axis in order if axis != "x"]
        shape = tuple(1 if axis == "x" else self.shape[axis] for axis in order)

        def change(t: Any) -> Any:
            last = len(self.shape)
            dropped = tuple(0 if a not in kept and a != last else slice(None) for a in range(last))
            t = t[dropped] if dropped else t
            position = {axis: i for i, axis in enumerate(sorted([*kept, last]))}
            return t.dimshuffle(*["x" if a == "x" else position[a] for a in order], position[last])

        return self.mapped(shape, change)

    def stretched(self, axes: Sequence[int]) -> "Affine":
        """Give all parts the full length along some axes that hold no rows."""
        return self.mapped(self.shape, lambda t: _stretch(t, self.shape, axes))

    def picked(self, indices: Sequence[Any], shape: Lengths) -> "Affine | None":
        """Index axes that hold no rows; None if the axis of the rows is indexed."""
        touched = [axis for axis, index in enumerate(indices) if not _is_everything(index)]
        arrays = [i for i in indices if not isinstance(i, slice) and getattr(i, "ndim", 0) > 0]
        if self.rows in touched or len(arrays) > 1:
            return None
        everything = [slice(None)] * (len(self.shape) - len(indices))
        where = (*indices, *everything, slice(None))
        return self.stretched(touched).mapped(shape, lambda t: t[where])

    def reshaped(self, shape: Lengths) -> "Affine | None":
        """Reshape; None if rows and other axes are mixed."""
        lengths = [length for length in shape if length is not None]
        if self.rows is None:
            if None in shape:
                return None
        else:
            if None not in shape:
                return None
            before = math.prod(_known(self.shape[: self.rows]))
            if before != math.prod(_known(shape[: shape.index(None)])):
                return None
        others = [axis for axis in range(len(self.shape)) if axis != self.rows]
        if math.prod(lengths) != math.prod(_known(self.shape)):
            return None

        def change(t: Any) -> Any:
            rows = 1 if self.rows is None else _length(t, self.rows)
            new = [rows if length is None else length for length in shape]
            return t.reshape([*new, _length(t, len(self.shape))])

        return self.stretched(others).mapped(shape, change)

    def summed(self, axes: Sequence[int]) -> "Affine | None":
        """Sum over axes that hold no rows; None if one of them does."""
        if self.rows in axes:
            return None
        shape = tuple(length for axis, length in enumerate(self.shape) if axis not in axes)
        offset = self.offset
        if offset is not None:
            offset = _stretch(offset[..., None], self.shape, axes)[..., 0].sum(axis=tuple(axes))
        return Affine(shape, offset, tuple(_summed(s, self.shape, axes) for s in self.summands))


def _weighted(summand: Summand, factor: Any) -> Summand:
    factor = pt.cast(factor, "float64")[..., None]
    return replace(summand, weight=factor if summand.weight is None else summand.weight * factor)


def _product(a: Summand, b: Summand) -> Summand | None:
    """Multiply summands; None if both have groups of their own, or both sum over several."""
    indices = {s.index for s in (a, b) if s.index is not None}
    if len(indices) > 1 or (a.base.type.shape[-1] != 1 and b.base.type.shape[-1] != 1):
        return None
    weights = [s.weight for s in (a, b) if s.weight is not None]
    weight = weights[0] * weights[1] if len(weights) == 2 else (weights or [None])[0]
    return Summand(a.base * b.base, next(iter(indices), None), weight)


def _summed(summand: Summand, shape: Lengths, axes: Sequence[int]) -> Summand:
    """Sum where only base or only weight varies; otherwise move axes to the last."""
    axes = tuple(axes)
    weight = summand.weight
    if weight is None or all(weight.type.shape[axis] == 1 for axis in axes):
        base = _stretch(summand.base, shape, axes).sum(axis=axes)
        return replace(summand, base=base, weight=None if weight is None else _first(weight, axes))
    if all(summand.base.type.shape[axis] == 1 for axis in axes):
        weight = _stretch(weight, shape, axes).sum(axis=axes)
        return replace(summand, base=_first(summand.base, axes), weight=weight)

    def change(t: Any) -> Any:
        t = _stretch(t, shape, axes)
        last = t.type.ndim - 1
        kept = [axis for axis in range(last) if axis not in axes]
        t = t.dimshuffle(*kept, *axes, last)
        merged = math.prod(int(n) for n in t.type.shape[len(kept) :])
        return t.reshape([*(_length(t, a) for a in range(len(kept))), merged])

    return summand.mapped(change)


def _first(t: Any, axes: Sequence[int]) -> Any:
    return t[tuple(0 if axis in axes else slice(None) for axis in range(t.type.ndim))]


def _stretch(t: Any, shape: Lengths, axes: Sequence[int]) -> Any:
    """Repeat an array, whose axes are those of `shape` and one more, along some of them."""
    short = [a for a in axes if t.type.shape[a] == 1 and shape[a] not in (1, None)]
    if not short:
        return t
    lengths: list[Any] = [shape[a] if a in short else _length(t, a) for a in range(t.type.ndim)]
    return pt.broadcast_to(t, lengths)


def _length(t: Any, axis: int) -> Any:
    static = t.type.shape[axis]
    return t.shape[axis] if static is None else static


def _known(lengths: Sequence[int | None]) -> list[int]:
    return [length for length in lengths if length is not None]


def _is_everything(index: Any) -> bool:
    return isinstance(index, slice) and index == slice(None)
