"""Put softmax together again, which PyMC takes apart in the log-likelihood of a categorical row.

Taken apart, it is differentiated through the largest of the entries, which cancels; and the
logarithm of a probability of less than 1e-308 is not finite.
"""

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.scalar.basic import Exp, Log, Sub, TrueDiv
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Max, Sum
from pytensor.tensor.special import Softmax, log_softmax
from pytensor.tensor.special import softmax as softmax_of
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

__all__ = ["with_softmax"]

CHOOSING = (AdvancedSubtensor, Subtensor, DimShuffle)
"""Operations that pick entries, so that their logarithms may be taken before."""


def with_softmax(output: Any, inputs: Sequence[Variable]) -> Variable:
    """Write a graph with softmax, and with its logarithm as one operation."""
    graph = FunctionGraph(list(inputs), [output], clone=False)
    for rewriter in (local_softmax, local_log_softmax):
        in2out(rewriter).rewrite(graph)
    return graph.outputs[0]


@node_rewriter([Elemwise])
def local_softmax(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Find e / Σe with e = exp(x − max x) along one axis."""
    if not _is(node, TrueDiv):
        return None
    e, total = node.inputs
    axis = _reduced(total, Sum, e)
    if axis is None or not _is(e.owner, Exp) or not _is(e.owner.inputs[0].owner, Sub):
        return None
    x, largest = e.owner.inputs[0].owner.inputs
    return [softmax_of(x, axis=axis)] if _reduced(largest, Max, x) == axis else None


@node_rewriter([Elemwise])
def local_log_softmax(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Take the logarithm of a softmax before some of its entries are chosen."""
    if not _is(node, Log):
        return None
    chosen: list[Apply] = []
    inner: Any = node.inputs[0]
    while inner.owner and isinstance(inner.owner.op, CHOOSING):
        chosen.append(inner.owner)
        inner = inner.owner.inputs[0]
    if not inner.owner or not isinstance(inner.owner.op, Softmax):
        return None
    value: Any = log_softmax(inner.owner.inputs[0], axis=inner.owner.op.axis)
    for choice in reversed(chosen):
        value = choice.op(value, *choice.inputs[1:])
    return [value]


def _is(node: Any, scalar_op: type) -> bool:
    """Whether a node is this operation on each entry."""
    return (
        node is not None
        and isinstance(node.op, Elemwise)
        and isinstance(node.op.scalar_op, scalar_op)
    )


def _reduced(total: Any, op: type, values: Variable) -> int | None:
    """Return the one axis along which `total` reduces `values`, if it does and keeps the axis."""
    kept = total.owner
    if kept is None or not isinstance(kept.op, DimShuffle) or kept.inputs[0].owner is None:
        return None
    node: Any = kept.inputs[0].owner
    if not isinstance(node.op, op) or node.inputs[0] is not values:
        return None
    axes: Any = getattr(node.op, "axis", None)
    if axes is None or len(axes) != 1:
        return None
    [axis] = axes
    order: list[Any] = list(range(values.type.ndim - 1))
    order.insert(axis, "x")
    return axis if list(kept.op.new_order) == order else None
