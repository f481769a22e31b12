"""Products of a stack of matrices and a vector or matrix, as PyTensor writes them.

``pt.dot(X, beta)`` of an X with three axes, such as the attributes of what each row chose from,
merges all but the last axis of X, multiplies, and parts the axes again. With the first axis merged
the rows are no longer to be seen. :func:`unmerge` writes the same product without merging.
"""

import math
from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape_i

from pymc_minibatch.tall.slicing import constant_length

__all__ = ["unmerge"]


def unmerge(term: Any) -> Any:
    """Return a graph in which products of stacks keep their axes."""
    found: dict[Any, Any] = {}
    for node in io_toposort([], [term]):
        if isinstance(node.op, Reshape) and (product := _product(node)) is not None:
            found[node.outputs[0]] = product
    if not found:
        return term
    [unmerged] = graph_replace([term], found, strict=False)
    return unmerged


def _product(parted: Apply) -> Variable | None:
    """Return ``A @ B`` if a node parts the axes of a product in which those of A were merged."""
    product: Any = parted.inputs[0]
    result: Any = parted.outputs[0]
    is_vector = _is_squeeze(product)
    dot = product.owner.inputs[0].owner if is_vector else product.owner
    if dot is None or not isinstance(dot.op, Dot):
        return None
    merged, right = dot.inputs
    stack = _stack(merged, _lengths(parted.inputs[1]), result.ndim - (not is_vector))
    if stack is None:
        return None
    return pt.matmul(stack, right.dimshuffle(0) if is_vector else right)


def _stack(merged: Variable, parts: Sequence[Any], n_leading: int) -> Any:
    """Return the array whose leading axes were merged and are parted again, if there is one."""
    if n_leading < 2 or len(parts) < n_leading:
        return None
    parts = parts[:n_leading]
    if isinstance(merged, Constant):
        lengths = [constant_length(length) or 0 for length in parts]
        if math.prod(lengths) != len(merged.data):
            return None
        return pt.constant(merged.data.reshape(*lengths, merged.data.shape[1]))
    if merged.owner is None or not isinstance(merged.owner.op, Reshape):
        return None
    stack, shape = merged.owner.inputs
    ends = _lengths(shape)[1:]
    if len(ends) != 1 or stack.ndim != n_leading + 1:
        return None
    are_kept = all(_is_length(n, stack, axis) for axis, n in enumerate([*parts, *ends]))
    return stack if are_kept else None


def _is_squeeze(variable: Variable) -> bool:
    """Whether a column was made a vector."""
    node = variable.owner
    return node is not None and isinstance(node.op, DimShuffle) and node.op.new_order == (0,)


def _lengths(shape: Variable) -> list[Any]:
    """List the entries of a shape, none if they are not known one by one."""
    if isinstance(shape, Constant):
        return [pt.constant(n) for n in shape.data]
    made = shape.owner is not None and isinstance(shape.owner.op, MakeVector)
    return list(shape.owner.inputs) if made else []


def _is_length(length: Variable, array: Variable, axis: int) -> bool:
    """Whether a number is known to be the length of an axis of an array."""
    node = length.owner
    if node is not None and isinstance(node.op, Shape_i):
        return node.op.i == axis and node.inputs[0] is array
    known = array.type.shape[axis]
    return known is not None and constant_length(length) == known
