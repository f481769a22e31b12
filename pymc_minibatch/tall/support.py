"""Where the prior has no finite log-density: hard constraints, and priors with an end.

``pm.Potential`` of a switch to −inf, or a prior on an interval without a transform, makes points
impossible that are as real as others, and a gradient tells nothing of that. Whether there can be
such points is decided by the ranges of what comparisons compare: a value that is an exponential is
never negative. What is not decided so counts as a constraint, which costs time and changes nothing.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from pymc.logprob.utils import CheckParameterValue
from pytensor import scalar as ps
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.math import Log1mexp, Sigmoid, Softplus
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import All, Dot
from pytensor.tensor.math import Any as AnyOf
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)

__all__ = ["may_be_impossible"]

SHAPED = (
    Alloc,
    DimShuffle,
    Reshape,
    ScalarFromTensor,
    SpecifyShape,
    Subtensor,
    TensorFromScalar,
    AdvancedSubtensor,
)
"""Whose entries are those of the first input."""

FINITE = (
    AdvancedIncSubtensor,
    CAReduce,
    CumOp,
    Dot,
    IncSubtensor,
    Join,
    LogSoftmax,
    MakeVector,
    Shape,
    Shape_i,
    Softmax,
)
"""Of finite numbers they make finite ones."""

LIMITED = (ps.ArcCos, ps.ArcCosh, ps.ArcSin, ps.ArcTanh, Log1mexp)
"""Functions with a domain of which nothing is known here."""

EVERYWHERE = -math.inf, math.inf
type Range = tuple[float, float]


def may_be_impossible(graph: Variable) -> bool:
    """Whether a log-density may be infinite, or no number, on a set of points with a volume."""
    ranges = _Ranges()
    return not ranges.is_finite(graph)


class _Ranges:
    """What is known of the entries of the variables of a graph, each looked at once."""

    def __init__(self) -> None:
        self._ranges: dict[Variable, Range] = {}
        self._truths: dict[Variable, bool | None] = {}
        self._finite: dict[Variable, bool] = {}

    # --- Whether all entries are finite --------------------------------------------------------

    def is_finite(self, x: Any) -> bool:
        return self._once(self._finite, x, self._is_finite)

    def _is_finite(self, x: Any) -> bool:
        if isinstance(x, Constant):
            return (
                bool(np.isfinite(x.data).all()) if np.asarray(x.data).dtype.kind in "fc" else True
            )
        node = x.owner
        if node is None:
            return True
        op = node.op
        if isinstance(op, CheckParameterValue):
            conditions = all(self.truth(condition) for condition in node.inputs[1:])
            return conditions and self.is_finite(node.inputs[0])
        if isinstance(op, Blockwise):
            op = op.core_op
        if isinstance(op, Elemwise):
            return self._elementwise_is_finite(op.scalar_op, node.inputs)
        if isinstance(op, SHAPED):
            return self.is_finite(node.inputs[0])
        return isinstance(op, FINITE) and all(self.is_finite(i) for i in node.inputs)

    def _elementwise_is_finite(self, op: Any, inputs: list[Any]) -> bool:
        if isinstance(op, ps.Switch):
            truth = self.truth(inputs[0])
            taken = inputs[1:] if truth is None else [inputs[1] if truth else inputs[2]]
            return all(self.is_finite(branch) for branch in taken)
        if isinstance(op, ps.Second):
            return self.is_finite(inputs[1])
        if not all(self.is_finite(i) for i in inputs):
            return False
        if isinstance(op, ps.Log | ps.Log2 | ps.Log10):
            return self.is_positive(inputs[0])
        if isinstance(op, ps.Log1p):
            return self.range(inputs[0])[0] >= -1
        if isinstance(op, ps.Sqrt):
            return self.range(inputs[0])[0] >= 0
        if isinstance(op, ps.Pow):
            exponent = self.range(inputs[1])
            whole = exponent[0] == exponent[1] and float(exponent[0]).is_integer()
            return whole or self.is_positive(inputs[0])
        return not isinstance(op, LIMITED)

    def is_positive(self, x: Any) -> bool:
        """Whether no entry is negative, or 0 but at single points."""
        least = self.range(x)[0]
        if least > 0:
            return True
        node = x.owner
        if node is None or least < 0:
            return False
        if isinstance(node.op, SHAPED):
            return self.is_positive(node.inputs[0])
        if isinstance(node.op, Softmax):
            return True
        if isinstance(node.op, CAReduce):
            return self.is_positive(node.inputs[0])
        if not isinstance(node.op, Elemwise):
            return False
        op = node.op.scalar_op
        if isinstance(op, ps.Exp | Sigmoid | Softplus):
            return True
        if isinstance(op, ps.Abs | ps.Sqr):
            return not isinstance(node.inputs[0], Constant)
        if isinstance(op, ps.Sub):
            return isinstance(node.inputs[0], Constant) and self.is_positive_below(*node.inputs)
        if isinstance(op, ps.Switch):
            truth = self.truth(node.inputs[0])
            taken = node.inputs[1:] if truth is None else [node.inputs[1 if truth else 2]]
            return all(map(self.is_positive, taken))
        if isinstance(op, ps.Mul | ps.TrueDiv | ps.Sqrt | ps.Pow | ps.Reciprocal):
            return all(
                map(self.is_positive, node.inputs[:1] if isinstance(op, ps.Pow) else node.inputs)
            )
        return isinstance(op, ps.Add) and any(map(self.is_positive, node.inputs))

    def is_positive_below(self, limit: Any, x: Any) -> bool:
        """Whether a limit is larger than what comes near it without reaching it."""
        node = x.owner
        while node is not None and isinstance(node.op, SHAPED):
            node = node.inputs[0].owner
        open_ended = node is not None and isinstance(node.op, Elemwise)
        open_ended = open_ended and isinstance(node.op.scalar_op, Sigmoid)
        least, most = self.range(limit)[0], self.range(x)[1]
        return least > most or (open_ended and least >= most)

    # --- Whether a condition holds -------------------------------------------------------------

    def truth(self, x: Any) -> bool | None:
        """Whether all entries of a condition are true, or all false; None if neither is known."""
        return self._once(self._truths, x, self._truth)

    def _truth(self, x: Any) -> bool | None:
        if isinstance(x, Constant):
            values = np.asarray(x.data).astype(bool)
            return True if values.all() else False if not values.any() else None
        node = x.owner
        if node is None:
            return None
        op, inputs = node.op, node.inputs
        if isinstance(op, SHAPED):
            return self.truth(inputs[0])
        if isinstance(op, All | AnyOf | MakeVector):
            return self._common([self.truth(i) for i in inputs])
        return self._of_comparison(op.scalar_op, inputs) if isinstance(op, Elemwise) else None

    def _of_comparison(self, op: Any, inputs: list[Any]) -> bool | None:
        if isinstance(op, ps.Second | ps.Cast | ps.Identity):
            return self.truth(inputs[-1])
        if isinstance(op, ps.Invert):
            inner = self.truth(inputs[0])
            return None if inner is None else not inner
        if isinstance(op, ps.AND | ps.OR):
            truths, decisive = [self.truth(i) for i in inputs], isinstance(op, ps.OR)
            return decisive if decisive in truths else self._common(truths)
        if isinstance(op, ps.IsInf | ps.IsNan):
            return False if self.is_finite(inputs[0]) else None
        if isinstance(op, ps.EQ | ps.NEQ):
            apart = self._apart(*inputs)
            return isinstance(op, ps.NEQ) if apart else None
        if isinstance(op, ps.LE | ps.LT):
            inputs = inputs[::-1]
        elif not isinstance(op, ps.GE | ps.GT):
            return None
        (least, most), (other_least, other_most) = map(self.range, inputs)
        if least >= other_most:
            return True
        closed = isinstance(op, ps.GE | ps.LE)
        return False if (most < other_least or (most == other_least and not closed)) else None

    def _apart(self, a: Any, b: Any) -> bool:
        """Whether two values are never equal."""
        (least, most), (other_least, other_most) = self.range(a), self.range(b)
        if least > other_most or most < other_least:
            return True
        infinite = [
            math.isinf(self.range(x)[0]) and self.range(x)[0] == self.range(x)[1] for x in (a, b)
        ]
        return (infinite[0] and self.is_finite(b)) or (infinite[1] and self.is_finite(a))

    @staticmethod
    def _common(truths: list[bool | None]) -> bool | None:
        return truths[0] if len(set(truths)) == 1 else None

    # --- Between which numbers entries are -----------------------------------------------------

    def range(self, x: Any) -> Range:
        """Return numbers between which all entries are."""
        return self._once(self._ranges, x, self._range)

    def _range(self, x: Any) -> Range:
        if isinstance(x, Constant):
            values = np.asarray(x.data)
            if not values.size or values.dtype.kind not in "buif" or np.isnan(values).any():
                return EVERYWHERE
            return float(values.min()), float(values.max())
        node = x.owner
        if node is None:
            return EVERYWHERE
        op, inputs = node.op, node.inputs
        if isinstance(op, SHAPED):
            return self.range(inputs[0])
        if isinstance(op, MakeVector):
            return self._hull(inputs)
        if isinstance(op, Softmax):
            return 0.0, 1.0
        if isinstance(op, Shape | Shape_i):
            return 0.0, math.inf
        if isinstance(op, CAReduce) and isinstance(op.scalar_op, ps.Add | ps.Mul):
            return (0.0, math.inf) if self.range(inputs[0])[0] >= 0 else EVERYWHERE
        return self._of_function(op.scalar_op, inputs) if isinstance(op, Elemwise) else EVERYWHERE

    def _of_function(self, op: Any, inputs: list[Any]) -> Range:
        if isinstance(op, ps.Switch):
            truth = self.truth(inputs[0])
            return self._hull(inputs[1:] if truth is None else [inputs[1 if truth else 2]])
        if isinstance(op, ps.Second | ps.Cast | ps.Identity):
            return self.range(inputs[-1])
        if isinstance(op, Sigmoid):
            return 0.0, 1.0
        if isinstance(op, ps.Exp | ps.Abs | ps.Sqr | ps.Sqrt | Softplus | ps.Cosh):
            return 0.0, math.inf
        if isinstance(op, ps.Add):
            return mixture if (mixture := self._of_mixture(inputs)) else self._sum(inputs)
        ranges = [self.range(i) for i in inputs]
        if isinstance(op, ps.Neg):
            return -ranges[0][1], -ranges[0][0]
        if isinstance(op, ps.Sub):
            return _number(ranges[0][0] - ranges[1][1], -math.inf), _number(
                ranges[0][1] - ranges[1][0], math.inf
            )
        if isinstance(op, ps.Mul):
            return _product(ranges)
        if isinstance(op, ps.TrueDiv | ps.Reciprocal | ps.Pow):
            base_only = ranges[:1] if isinstance(op, ps.Pow) else ranges
            if isinstance(op, ps.Pow) and ranges[1] == (2.0, 2.0):
                return 0.0, math.inf
            return (0.0, math.inf) if min(r[0] for r in base_only) >= 0 else EVERYWHERE
        return EVERYWHERE

    def _sum(self, inputs: list[Any]) -> Range:
        ranges = [self.range(i) for i in inputs]
        return _number(sum(r[0] for r in ranges), -math.inf), _number(
            sum(r[1] for r in ranges), math.inf
        )

    def _of_mixture(self, inputs: list[Any]) -> Range | None:
        """Range of s b + (1 − s) a with s between 0 and 1, as the transform of an interval has."""
        products = [i.owner.inputs for i in inputs if _is(i, ps.Mul) and len(i.owner.inputs) == 2]
        if len(inputs) != 2 or len(products) != 2:
            return None
        for one, other in (products, products[::-1]):
            for s in one:
                for rest in other:
                    if not (_is(rest, ps.Sub) and self.range(rest.owner.inputs[0]) == (1.0, 1.0)):
                        continue
                    if rest.owner.inputs[1] is s and self.range(s) == (0.0, 1.0):
                        ends = [
                            i for p, part in ((one, s), (other, rest)) for i in p if i is not part
                        ]
                        return self._hull(ends) if len(ends) == 2 else None
        return None

    def _hull(self, inputs: list[Any]) -> Range:
        leasts, mosts = zip(*map(self.range, inputs), strict=True)
        return min(leasts), max(mosts)

    @staticmethod
    def _once[T](known: dict[Variable, T], x: Variable, look: Callable[[Any], T]) -> T:
        if x not in known:
            known[x] = look(x)
        return known[x]


def _is(x: Any, kind: type) -> bool:
    node = x.owner
    return (
        node is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, kind)
    )


def _number(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value


def _product(ranges: list[Range]) -> Range:
    least, most = 1.0, 1.0
    for a, b in ranges:
        ends = [0.0 if 0.0 in (x, y) else x * y for x in (least, most) for y in (a, b)]
        least, most = min(ends), max(ends)
    return least, most
