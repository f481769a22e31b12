"""Functions that PyTensor does not translate to Numba, or not well.

Without a translation PyTensor calls back into Python, and the kernel cannot be kept on disk.
"""

import math
from typing import Any

from numba.extending import register_jitable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key
from pytensor.link.numba.dispatch.scalar import scalar_op_cache_key
from pytensor.scalar.basic import Pow
from pytensor.scalar.math import TriGamma
from pytensor.tensor.basic import cast
from pytensor.tensor.elemwise import Elemwise

from pymc_minibatch.jit.reached import reached_number

__all__ = ["local_float_exponent", "trigamma"]

SMALLEST = 1e-150
"""Numbers whose squares are not zero."""


@register_jitable
def trigamma(x: float) -> float:
    """Second derivative of log Gamma, for x ≥ 0, to about 1e-15 relative; NaN for x < 0.

    The recurrence trigamma(x) = trigamma(x + 1) + 1/x² leads to where the asymptotic series
    (Abramowitz and Stegun 6.4.12) converges at once.
    """
    if x < SMALLEST:  # machine code raises where it divides by zero
        return math.inf if x >= 0.0 else math.nan
    total = 0.0
    while x < 12.0:
        total += 1 / x**2
        x += 1.0
    y = 1 / x**2
    series = y * (
        1 / 6 - y * (1 / 30 - y * (1 / 42 - y * (1 / 30 - y * (5 / 66 - y * 691 / 2730))))
    )
    return total + (1 + series) / x + y / 2


@register_funcify_and_cache_key(TriGamma)
def _funcify_trigamma(op: TriGamma, node: Any, **kwargs: Any) -> tuple[Any, str]:
    return trigamma, scalar_op_cache_key(op, source=reached_number(trigamma))


@node_rewriter([Elemwise])
def local_float_exponent(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Raise doubles to powers that are doubles, too.

    Numba raises an exception at 0.0 to the power of the whole number −1, as a derivative of powers
    of a number that has become zero has it.
    """
    op: Any = node.op
    base, exponent = node.inputs[0], node.inputs[-1]
    if not isinstance(op.scalar_op, Pow) or base.type.dtype != "float64":
        return None
    if exponent.type.dtype not in ("int8", "int16", "int32", "int64"):
        return None
    found: list[Variable] = op.make_node(base, cast(exponent, "float64")).outputs
    return found
