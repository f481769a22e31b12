"""Integer arguments, computed without overflow.

``HalfStudentT("s", nu=3, sigma=10)`` has ``nu * sigma**2`` in its log-density. Each number is kept
in eight bits, and the product, 300, would be too: it becomes 44. PyMC's own functions mostly
compute it in floating point, because of how PyTensor rewrites them. Arrays of integers are left as
they are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.type import TensorType

__all__ = ["with_wide_integers"]

ARITHMETIC = (ps.Add, ps.Mul, ps.Neg, ps.Pow, ps.Sqr, ps.Sub)


def with_wide_integers(graphs: Sequence[Variable]) -> list[Any]:
    """Return graphs in which single integers that do not fit their type are kept in 64 bits."""
    numbers, wide = dict[Variable, int](), dict[Variable, Any]()
    for node in io_toposort([], list(graphs)):
        [*_, last] = node.outputs
        number = _number_made(node, numbers)
        if number is not None:
            numbers[last] = number
            if _fits(number, "int64") and not _fits(number, last.type.dtype):
                wide[last] = pt.constant(np.full((1,) * last.type.ndim, number), dtype="int64")
                continue
        if wide.keys().isdisjoint(node.inputs):
            continue
        computes = isinstance(node.op, Elemwise | DimShuffle)
        inputs = [_as_read(each, wide, keeps_type=not computes) for each in node.inputs]
        made = node.clone_with_new_inputs(inputs, strict=False)
        wide.update(zip(node.outputs, made.outputs, strict=True))
    return [wide.get(graph, graph) for graph in graphs]


def _fits(number: int, dtype: str) -> bool:
    limits = np.iinfo(dtype)
    return bool(limits.min <= number <= limits.max)


def _as_read(variable: Any, wide: Mapping[Variable, Any], *, keeps_type: bool) -> Any:
    found = wide.get(variable, variable)
    return pt.cast(found, variable.dtype) if keeps_type and variable in wide else found


def _number_made(node: Apply, numbers: Mapping[Variable, int]) -> int | None:
    """Return the integer that an operation makes of integers; None if it does not."""
    op: Any = node.op
    read = [numbers.get(each, _number(each)) for each in node.inputs]
    if not read or None in read:
        return None
    if isinstance(op, DimShuffle):
        return read[0]
    if not isinstance(op, Elemwise) or not isinstance(op.scalar_op, ARITHMETIC):
        return None
    found = op.scalar_op.impl(*read)
    return int(found) if isinstance(found, int | np.integer) else None


def _number(variable: Any) -> int | None:
    """Return the value of a single constant integer."""
    is_array = isinstance(variable, Constant) and isinstance(variable.type, TensorType)
    if not is_array or variable.data.size != 1:
        return None
    return int(variable.data.item()) if variable.data.dtype.kind == "i" else None
