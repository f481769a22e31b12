"""Integer arguments, computed without overflow.

``HalfStudentT("s", nu=3, sigma=10)`` has ``nu * sigma**2`` in its log-density. Each number is kept
in eight bits, and the product, 300, would be too: it becomes 44. PyMC's own functions mostly
compute it in floating point, because of how PyTensor rewrites them. Arrays of integers are left as
they are.
"""

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.type import TensorType

__all__ = ["with_wide_integers"]

NARROW = ("int8", "int16", "int32")
ARITHMETIC = (ps.Abs, ps.Add, ps.Mul, ps.Neg, ps.Pow, ps.Sqr, ps.Sub)


def with_wide_integers(graphs: Sequence[Variable]) -> list[Any]:
    """Return graphs in which single constant integers are computed in 64 bits."""
    single, wide = set[Variable](), dict[Variable, Any]()
    for node in io_toposort([], list(graphs)):
        computes = isinstance(node.op, Elemwise | DimShuffle)
        if computes and all(each in single or _is_number(each) for each in node.inputs):
            single.update(node.outputs)
        if node.outputs[0] in single and _is_narrow(node):
            inputs: list[Any] = [pt.cast(wide.get(each, each), "int64") for each in node.inputs]
        elif wide.keys().isdisjoint(node.inputs):
            continue
        elif computes:
            inputs = [wide.get(each, each) for each in node.inputs]
        else:
            inputs = [
                pt.cast(wide[each], each.type.dtype) if each in wide else each
                for each in node.inputs
            ]
        made = node.clone_with_new_inputs(inputs, strict=False)
        wide.update(zip(node.outputs, made.outputs, strict=True))
    return [wide.get(graph, graph) for graph in graphs]


def _is_narrow(node: Apply) -> bool:
    """Whether it does arithmetic in few bits."""
    op = node.op
    return (
        isinstance(op, Elemwise)
        and isinstance(op.scalar_op, ARITHMETIC)
        and node.outputs[0].type.dtype in NARROW
    )


def _is_number(variable: Variable) -> bool:
    return (
        isinstance(variable, Constant)
        and isinstance(variable.type, TensorType)
        and variable.data.size == 1
    )
