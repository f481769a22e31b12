"""Which arrays of a graph are affine in data-free quantities: a rule for each operation."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor, indices_from_subtensor

from pymc_minibatch.tall.affine import Affine, Lengths, Summand

__all__ = ["AffineArrays"]

MAX_WIDTH = 64
"""Longest axis along which arrays are taken apart entry by entry."""


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
        self.indices: dict[tuple[Any, ...], Variable] = {}

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
            is_number = all(length == 1 for length in shape)  # of the smallest type that holds it
            weight = pt.cast(variable, "float64") if is_number else variable
            return Affine(shape, _with_shape(weight, shape))
        if not variable.type.dtype.startswith("float"):
            return None
        if variable not in self.reads_rows:
            return Affine(shape, None, (Summand(_with_shape(variable, shape)[..., None]),))
        node = variable.owner
        op = node.op.scalar_op if isinstance(node.op, Elemwise) else node.op
        rule = next((RULES[kind] for kind in RULES if isinstance(op, kind)), None)
        return None if rule is None else rule(self, node, shape)

    def each(self, variables: Sequence[Variable]) -> list[Affine] | None:
        """Write variables as affine; None if one is not."""
        found = [self(variable) for variable in variables]
        return None if None in found else [affine for affine in found if affine is not None]


def _add(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    parts = arrays.each(node.inputs)
    if parts is None:
        return None
    total = parts[0]
    for part in parts[1:]:
        total = total.plus(part, shape)
    return total


def _subtract(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    parts = arrays.each(node.inputs)
    return None if parts is None else parts[0].plus(parts[1].negative, shape)


def _negate(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    parts = arrays.each(node.inputs)
    return None if parts is None else parts[0].negative


def _keep(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    return arrays(node.inputs[0])


def _fill(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    found = arrays(node.inputs[1])
    return found and replace(found, shape=shape)


def _multiply(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    parts = arrays.each(node.inputs)
    return None if parts is None else _product_of(arrays, node.inputs, parts, shape)


def _product_of(
    arrays: AffineArrays, inputs: Sequence[Variable], parts: Sequence[Affine], shape: Lengths
) -> Affine | None:
    free = any(part.summands and part.is_free for part in parts)
    if free and any(variable in arrays.reads_observed for variable in inputs):
        return None
    of_parameters = [part for part in parts if part.summands]
    first, *others = [*of_parameters, *(part for part in parts if not part.summands)]
    product: Affine | None = first
    for part in others:
        product = product and product.times(part, shape)
    return product


def _divide(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    over, under = node.inputs
    if under in arrays.reads_rows and under in arrays.reads_parameters:
        return None
    inverse: Any = pt.reciprocal(pt.cast(under, "float64"))
    lengths = arrays.shapes[under]
    if under in arrays.reads_parameters:
        inverse = Affine(lengths, None, (Summand(_with_shape(inverse, lengths)[..., None]),))
    else:
        inverse = Affine(lengths, _with_shape(inverse, lengths))
    found = arrays(over)
    return found and _product_of(arrays, [over, under], [found, inverse], shape)


def _choose(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    condition, *either = node.inputs
    if condition in arrays.reads_parameters:
        return None
    parts = arrays.each(either)
    if parts is None:
        return None
    condition = _with_shape(condition, arrays.shapes[condition])
    return parts[0].chosen(condition, parts[1], shape)


def _transpose(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    found = arrays(node.inputs[0])
    return found and found.transposed(node.op.new_order)


def _reshape(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    found = arrays(node.inputs[0])
    return found and found.reshaped(shape)


def _broadcast(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    found = arrays(node.inputs[0])
    if found is None:
        return None
    new = len(shape) - len(found.shape)
    padded = found.transposed([*["x"] * new, *range(len(found.shape))])
    return replace(padded, shape=shape)


def _sum(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    found = arrays(node.inputs[0])
    if found is None:
        return None
    axes = node.op.axis
    return found.summed(range(len(found.shape)) if axes is None else axes)


def _matmul(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    core = node.op.core_op if isinstance(node.op, Blockwise) else node.op
    parts = arrays.each(node.inputs)
    if parts is None or not isinstance(core, Dot):
        return None
    n = len(shape)
    left = parts[0].transposed([*range(n), "x"])
    right = parts[1].transposed([*range(n - 2), "x", n - 2, n - 1])
    whole = _broadcast_shapes(left.shape, right.shape)
    if whole is None:
        return None
    product = _product_of(arrays, node.inputs, [left, right], whole)
    return None if product is None else product.summed([n - 1])


def _join(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    parts = arrays.each(node.inputs)
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


def _index(arrays: AffineArrays, node: Any, shape: Lengths) -> Affine | None:
    array, *given = node.inputs
    if any(i in arrays.reads_parameters for i in given):
        return None
    indices = indices_from_subtensor(given, node.op.idx_list)
    by_rows = [
        axis
        for axis, i in enumerate(indices)
        if not isinstance(i, slice) and i in arrays.reads_rows
    ]
    if sum(i in arrays.reads_rows for i in given) > len(by_rows):
        return None  # a slice whose ends are row data
    if not by_rows:
        found = arrays(array)
        return found and found.picked(indices, shape)
    return _gather(arrays, array, indices, by_rows, shape) if arrays.is_free(array) else None


def _gather(
    arrays: AffineArrays, array: Any, indices: Sequence[Any], by_rows: Sequence[int], shape: Lengths
) -> Affine | None:
    """Index a data-free array by row data: one group for each combination of indices."""
    vectors: list[Any] = [indices[axis] for axis in by_rows]
    others = [i for axis, i in enumerate(indices) if axis not in by_rows]
    if any(arrays.shapes.get(v) != (None,) or v.type.dtype == "bool" for v in vectors) or any(
        not isinstance(i, slice) and i.type.ndim for i in others
    ):
        return None
    lengths = [arrays.shapes[array][axis] or 0 for axis in by_rows]
    array = _with_shape(array, arrays.shapes[array])
    array = array[tuple(slice(None) if a in by_rows else i for a, i in enumerate(indices))]
    scalars = [a for a, i in enumerate(indices) if a not in by_rows and isinstance(i, Variable)]
    axes = [axis - sum(s < axis for s in scalars) for axis in by_rows]
    array = pt.moveaxis(array, axes, range(len(axes)))
    tail = [array.shape[a] for a in range(len(axes), array.type.ndim)]
    array = array.reshape([math.prod(lengths), *tail], ndim=1 + len(tail))
    key = (*vectors, *lengths)
    index = arrays.indices.setdefault(key, _flat_index(vectors, lengths))
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


def _broadcast_shapes(a: Lengths, b: Lengths) -> Lengths | None:
    if any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
        return None
    return tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))


def _with_shape(variable: Any, shape: Lengths) -> Any:
    """Write lengths that are known into the type of a variable, so that it broadcasts."""
    if all(a == b for a, b in zip(variable.type.shape, shape, strict=True) if b is not None):
        return variable
    return specify_shape(variable, shape)


RULES: dict[type, Callable[[AffineArrays, Apply, Lengths], Affine | None]] = {
    ps.Add: _add,
    ps.Sub: _subtract,
    ps.Neg: _negate,
    ps.Mul: _multiply,
    ps.TrueDiv: _divide,
    ps.Switch: _choose,
    ps.Second: _fill,
    ps.Identity: _keep,
    ps.Cast: _keep,
    DimShuffle: _transpose,
    Reshape: _reshape,
    SpecifyShape: _keep,
    Alloc: _broadcast,
    Sum: _sum,
    Dot: _matmul,
    Blockwise: _matmul,
    Join: _join,
    Subtensor: _index,
    AdvancedSubtensor: _index,
}
"""How each operation is written, elementwise ones by their scalar operation."""
