"""Parts of graphs that never change a result, and take long to compile or to run.

PyMC checks the parameters of each distribution, such as 0 ≤ p ≤ 1, also where p is a logistic
function of something and cannot be anything else; axes are added that are removed again; and what
two loops do faster is done in one.
"""

import math
from typing import Any

from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key
from pytensor.scalar.math import Erfc, Sigmoid
from pytensor.tensor.basic import constant as tensor_constant
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.math import All
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.subtensor import AdvancedIncSubtensor

from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.jit.reached import reached_number

__all__ = [
    "apart",
    "local_added_axes",
    "local_added_up_apart",
    "local_true_checks",
    "local_unchecked",
    "range_of",
]

EVERYWHERE = -math.inf, math.inf

RANGES = {Sigmoid: (0.0, 1.0), Erfc: (0.0, 2.0)}
"""Between which numbers the values of a function are."""


@node_rewriter([All])
def local_true_checks(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Leave out a check that all entries of an array are in a range that has no others.

    What is not a number fails the check; it leads to a result that is none either way.
    """
    if node.outputs[0].type.ndim == 0 and _always_true(node.inputs[0]):
        return [tensor_constant(True, dtype="bool")]
    return None


def _always_true(condition: Variable) -> bool:
    node: Any = condition.owner
    if node is None or not isinstance(node.op, Elemwise):
        return False
    if isinstance(node.op.scalar_op, ps.GE | ps.LE):
        larger, smaller = node.inputs if isinstance(node.op.scalar_op, ps.GE) else node.inputs[::-1]
        return range_of(larger)[0] >= range_of(smaller)[1]
    return False


def range_of(values: Variable) -> tuple[float, float]:
    """Return numbers between which all entries are."""
    node: Any = values.owner
    if node is None or not isinstance(node.op, DimShuffle | Elemwise):
        return _constant(values)
    if isinstance(node.op, DimShuffle):
        return range_of(node.inputs[0])
    scalar_op = node.op.scalar_op
    if isinstance(scalar_op, ps.Mul):
        leasts, mosts = zip(*map(range_of, node.inputs), strict=True)
        return (math.prod(leasts), math.prod(mosts)) if min(leasts) >= 0 else EVERYWHERE
    if isinstance(scalar_op, ps.Switch):
        leasts, mosts = zip(*map(range_of, node.inputs[1:]), strict=True)
        return min(leasts), max(mosts)
    least = 0.0 if getattr(scalar_op, "non_negative", False) else -math.inf
    return RANGES.get(type(scalar_op), (least, math.inf))


def _constant(values: Variable) -> tuple[float, float]:
    try:
        number = float(get_underlying_scalar_constant_value(values))
    except NotScalarConstantError:
        return EVERYWHERE
    return number, number


class Unchecked(Op):
    """An array whose lengths are known, without a look at them."""

    __props__ = ("lengths",)

    def __init__(self, lengths: tuple[int | None, ...]) -> None:
        self.lengths, self.view_map = lengths, {0: [0]}

    def make_node(self, *inputs: Variable) -> Apply:
        """Take an array, give the same."""
        values: Any = inputs[0]
        return Apply(self, [values], [values.type.clone(shape=self.lengths)()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Do nothing."""
        outputs[0][0] = inputs[0]


def apart(values: Any) -> Any:
    """Return an array that is computed in a loop of its own, before what is made of it."""
    return Unchecked(values.type.shape)(values)


@node_rewriter([SpecifyShape])
def local_unchecked(fgraph: Any, node: Apply) -> list[Variable]:
    """Leave out checks of lengths, which compile slowly and were made on the whole graph."""
    found: Any = Unchecked(node.outputs[0].type.shape)(node.inputs[0])
    return [found]


@register_funcify_default_op_cache_key(Unchecked)
def _funcify_unchecked(op: Unchecked, node: Apply, **kwargs: Any) -> tuple[Any, int]:
    @jit_part
    def unchecked(values: Any) -> Any:
        return values

    return unchecked, reached_number(unchecked)


@node_rewriter([AdvancedIncSubtensor])
def local_added_up_apart(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Add up what rows give to each group in a loop of its own.

    PyTensor does it in the loop that computes what rows give, where the processor then computes one
    row at a time: of the slope of a logistic regression with effects, 20 ns a row instead of 8.
    """
    op: Any = node.op
    target, values, *index = node.inputs
    source: Any = values
    if source.owner is not None and isinstance(source.owner.op, DimShuffle):
        source = source.owner.inputs[0]
    if source.owner is None or not isinstance(source.owner.op, Elemwise):
        return None
    return [op(target, apart(values), *index)]


@node_rewriter([DimShuffle])
def local_added_axes(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Join two operations on axes, of which the second often removes what the first has added."""
    outer: Any = node.op
    inner: Any = node.inputs[0].owner
    if inner is None or not isinstance(inner.op, DimShuffle):
        return None
    order = ["x" if axis == "x" else inner.op.new_order[axis] for axis in outer.new_order]
    source: Any = inner.inputs[0]
    if order == list(range(source.type.ndim)):
        return [source]
    return [source.dimshuffle(order)]
