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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Alloc, Join
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import Reshape, SpecifyShape, specify_shape
from pytensor.tensor.subtensor import (
    AdvancedSubtensor,
    Subtensor,
    indices_from_subtensor,
)

__all__ = ["Affine", "AffineArrays", "Lengths", "Summand"]

Lengths = tuple[int | None, ...]
"""Lengths of axes; None for that of the rows."""

MAX_WIDTH = 64
"""Longest axis along which arrays are taken apart entry by entry."""


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


class AffineArrays:
    """Finds out which arrays of a graph are affine in data-free quantities.

    Parameters
    ----------
    reads_parameters, reads_rows
        Variables of the graph whose values depend on the parameters, and on the row data.
    reads_observed
        Variables that depend on what is observed. A product of those with a parameter is left
        alone: ``(y - mu) / sigma`` is affine in ``mu / sigma`` and ``1 / sigma``, but ``mu`` and
        ``sigma`` by themselves say more.
    shapes
        Shapes of its variables.
    """

    def __init__(
        self,
        reads_parameters: set[Variable],
        reads_rows: set[Variable],
        reads_observed: set[Variable],
        shapes: Mapping[Variable, Lengths],
    ) -> None:
        self.reads_parameters = reads_parameters
        self.reads_rows = reads_rows
        self.reads_observed = reads_observed
        self.shapes = shapes
        self._found: dict[Variable, Affine | None] = {}
        self._indices: dict[tuple[Any, ...], Variable] = {}

    def is_free(self, variable: Variable) -> bool:
        """Whether it reads parameters and no row data."""
        return variable in self.reads_parameters and variable not in self.reads_rows

    def __call__(self, variable: Any) -> Affine | None:
        """Write a variable as affine; None if it is not."""
        if variable not in self._found:
            self._found[variable] = self._find(variable)
        return self._found[variable]

    def _find(self, variable: Any) -> Affine | None:
        shape = self.shapes.get(variable)
        if shape is None:
            return None
        if variable not in self.reads_parameters:
            return Affine(shape, _with_shape(variable, shape))
        if not variable.type.dtype.startswith("float"):
            return None
        if variable not in self.reads_rows:
            return Affine(shape, None, (Summand(_with_shape(variable, shape)[..., None]),))
        node = variable.owner
        for kind, rule in RULES.items():
            if isinstance(node.op, kind):
                return rule(self, node, shape)
        return None

    def _all(self, variables: Sequence[Variable]) -> list[Affine] | None:
        found = [self(variable) for variable in variables]
        return None if None in found else [affine for affine in found if affine is not None]

    def _elemwise(self, node: Any, shape: Lengths) -> Affine | None:
        operation = node.op.scalar_op
        for kind, rule in ELEMWISE.items():
            if isinstance(operation, kind):
                return rule(self, node, shape)
        return None

    def _add(self, node: Any, shape: Lengths) -> Affine | None:
        parts = self._all(node.inputs)
        if parts is None:
            return None
        total = parts[0]
        for part in parts[1:]:
            total = total.plus(part, shape)
        return total

    def _subtract(self, node: Any, shape: Lengths) -> Affine | None:
        parts = self._all(node.inputs)
        return None if parts is None else parts[0].plus(_negative(parts[1]), shape)

    def _negate(self, node: Any, shape: Lengths) -> Affine | None:
        parts = self._all(node.inputs)
        return None if parts is None else _negative(parts[0])

    def _keep(self, node: Any, shape: Lengths) -> Affine | None:
        return self(node.inputs[0])

    def _fill(self, node: Any, shape: Lengths) -> Affine | None:
        found = self(node.inputs[1])
        return found and replace(found, shape=shape)

    def _multiply(self, node: Any, shape: Lengths) -> Affine | None:
        parts = self._all(node.inputs)
        return None if parts is None else self._product(node.inputs, parts, shape)

    def _product(
        self, inputs: Sequence[Variable], parts: Sequence[Affine], shape: Lengths
    ) -> Affine | None:
        free = any(part.summands and part.is_free for part in parts)
        if free and any(variable in self.reads_observed for variable in inputs):
            return None
        total: Affine | None = parts[0]
        for part in parts[1:]:
            total = total and total.times(part, shape)
        return total

    def _divide(self, node: Any, shape: Lengths) -> Affine | None:
        over, under = node.inputs
        if under in self.reads_rows and under in self.reads_parameters:
            return None
        inverse: Any = 1.0 / pt.as_tensor_variable(under)
        lengths = self.shapes[under]
        if under in self.reads_parameters:
            inverse = Affine(lengths, None, (Summand(_with_shape(inverse, lengths)[..., None]),))
        else:
            inverse = Affine(lengths, _with_shape(inverse, lengths))
        found = self(over)
        return found and self._product([over, under], [found, inverse], shape)

    def _choose(self, node: Any, shape: Lengths) -> Affine | None:
        condition, *either = node.inputs
        if condition in self.reads_parameters:
            return None
        parts = self._all(either)
        if parts is None:
            return None
        condition = _with_shape(condition, self.shapes[condition])
        return parts[0].chosen(condition, parts[1], shape)

    def _transpose(self, node: Any, shape: Lengths) -> Affine | None:
        found = self(node.inputs[0])
        return found and found.transposed(node.op.new_order)

    def _reshape(self, node: Any, shape: Lengths) -> Affine | None:
        found = self(node.inputs[0])
        return found and found.reshaped(shape)

    def _broadcast(self, node: Any, shape: Lengths) -> Affine | None:
        found = self(node.inputs[0])
        if found is None:
            return None
        new = len(shape) - len(found.shape)
        padded = found.transposed([*["x"] * new, *range(len(found.shape))])
        return replace(padded, shape=shape)

    def _sum(self, node: Any, shape: Lengths) -> Affine | None:
        found = self(node.inputs[0])
        if found is None:
            return None
        axes = node.op.axis
        return found.summed(range(len(found.shape)) if axes is None else axes)

    def _matmul(self, node: Any, shape: Lengths) -> Affine | None:
        core = node.op.core_op if isinstance(node.op, Blockwise) else node.op
        parts = self._all(node.inputs)
        if parts is None or not isinstance(core, Dot):
            return None
        n = len(shape)
        left = parts[0].transposed([*range(n), "x"])
        right = parts[1].transposed([*range(n - 2), "x", n - 2, n - 1])
        whole = _broadcast_shapes(left.shape, right.shape)
        if whole is None:
            return None
        product = self._product(node.inputs, [left, right], whole)
        return None if product is None else product.summed([n - 1])

    def _join(self, node: Any, shape: Lengths) -> Affine | None:
        parts = self._all(node.inputs)
        axis = node.op.axis
        length = shape[axis]
        if parts is None or length is None or length > MAX_WIDTH:
            return None
        total, position = Affine(shape), 0
        for part in parts:
            for entry in range(part.shape[axis] or 0):
                where = [slice(None)] * axis + [slice(entry, entry + 1)]
                taken = part.picked(where, (*part.shape[:axis], 1, *part.shape[axis + 1 :]))
                if taken is None:
                    return None
                mark = np.zeros([length if a == axis else 1 for a in range(len(shape))])
                mark.flat[position] = 1.0
                total = total.plus(taken.scaled(pt.constant(mark), shape), shape)
                position += 1
        return total

    def _index(self, node: Any, shape: Lengths) -> Affine | None:
        array, *given = node.inputs
        if any(i in self.reads_parameters for i in given):
            return None
        indices = indices_from_subtensor(given, node.op.idx_list)
        by_rows = [
            axis
            for axis, i in enumerate(indices)
            if not isinstance(i, slice) and i in self.reads_rows
        ]
        if sum(i in self.reads_rows for i in given) > len(by_rows):
            return None  # a slice whose ends are row data
        if not by_rows:
            found = self(array)
            return found and found.picked(indices, shape)
        return self._gather(array, indices, by_rows, shape) if self.is_free(array) else None

    def _gather(
        self, array: Any, indices: Sequence[Any], by_rows: Sequence[int], shape: Lengths
    ) -> Affine | None:
        """Index a data-free array by row data: one group for each combination of indices."""
        vectors: list[Any] = [indices[axis] for axis in by_rows]
        others = [i for axis, i in enumerate(indices) if axis not in by_rows]
        if any(self.shapes.get(v) != (None,) or v.type.dtype == "bool" for v in vectors) or any(
            not isinstance(i, slice) and i.type.ndim for i in others
        ):
            return None
        lengths = [self.shapes[array][axis] or 0 for axis in by_rows]
        array = _with_shape(array, self.shapes[array])
        array = array[tuple(slice(None) if a in by_rows else i for a, i in enumerate(indices))]
        scalars = [a for a, i in enumerate(indices) if a not in by_rows and isinstance(i, Variable)]
        axes = [axis - sum(s < axis for s in scalars) for axis in by_rows]
        array = pt.moveaxis(array, axes, range(len(axes)))
        tail = [array.shape[a] for a in range(len(axes), array.type.ndim)]
        array = array.reshape([math.prod(lengths), *tail], ndim=1 + len(tail))
        key = (*vectors, *lengths)
        index = self._indices.setdefault(key, _flat_index(vectors, lengths))
        rows = shape.index(None)
        rest = tuple(n for n in shape if n is not None)
        array = specify_shape(array, (math.prod(lengths), *rest))
        return Affine(shape, None, (Summand(pt.moveaxis(array, 0, rows)[..., None], index),))


def _flat_index(vectors: Sequence[Any], lengths: Sequence[int]) -> Any:
    """Give each combination of indices a number; a negative one counts from the end."""
    flat: Any = None
    for vector, length in zip(vectors, lengths, strict=True):
        entry = pt.cast(vector, "int64")
        if not vector.type.dtype.startswith("u"):
            entry = pt.switch(entry < 0, entry + length, entry)
        flat = entry if flat is None else flat * length + entry
    return flat


def _negative(affine: Affine) -> Affine:
    return affine.scaled(pt.constant(np.full([1] * len(affine.shape), -1.0)), affine.shape)


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


def _with_shape(variable: Any, shape: Lengths) -> Any:
    """Write lengths that are known into the type of a variable, so that it broadcasts."""
    if all(a == b for a, b in zip(variable.type.shape, shape, strict=True) if b is not None):
        return variable
    return specify_shape(variable, shape)


def _broadcast_shapes(a: Lengths, b: Lengths) -> Lengths | None:
    if any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
        return None
    return tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))


def _is_everything(index: Any) -> bool:
    return isinstance(index, slice) and index == slice(None)


ELEMWISE: dict[type, Callable[[AffineArrays, Apply, Lengths], Affine | None]] = {
    ps.Add: AffineArrays._add,
    ps.Sub: AffineArrays._subtract,
    ps.Neg: AffineArrays._negate,
    ps.Mul: AffineArrays._multiply,
    ps.TrueDiv: AffineArrays._divide,
    ps.Switch: AffineArrays._choose,
    ps.Second: AffineArrays._fill,
    ps.Identity: AffineArrays._keep,
    ps.Cast: AffineArrays._keep,
}

RULES: dict[type, Callable[[AffineArrays, Apply, Lengths], Affine | None]] = {
    Elemwise: AffineArrays._elemwise,
    DimShuffle: AffineArrays._transpose,
    Reshape: AffineArrays._reshape,
    SpecifyShape: AffineArrays._keep,
    Alloc: AffineArrays._broadcast,
    Sum: AffineArrays._sum,
    Dot: AffineArrays._matmul,
    Blockwise: AffineArrays._matmul,
    Join: AffineArrays._join,
    Subtensor: AffineArrays._index,
    AdvancedSubtensor: AffineArrays._index,
}
