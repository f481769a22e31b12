"""Special functions that PyTensor does not translate to Numba, or not to fast code.

Without a translation PyTensor calls back into Python, and the kernel cannot be kept on disk.
"""

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable
from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key
from pytensor.link.numba.dispatch.scalar import scalar_op_cache_key
from pytensor.scalar.math import Sigmoid, TriGamma

from pymc_minibatch.jit.cache import source_number

__all__ = ["sigmoid", "trigamma"]

SMALLEST = 1e-150
"""Numbers whose squares are not zero."""

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""Their sum is log 2 to more digits than a float has."""

SHIFT = 1.5 * 2.0**52
"""Added to a number, it leaves the nearest whole one in the last bits."""

LEAST, MOST = -708.0, 709.0
"""Between these, e^x is neither 0 nor infinite."""


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
    return trigamma, scalar_op_cache_key(op, source=source_number(__file__))


# PyTensor lets sums be reordered, which would undo the shift.
@register_jitable(error_model="numpy", fastmath=False)
def sigmoid(x: float) -> float:
    """1 / (1 + e^(−x)), to the last digits for x > -708.

    Without branches or calls, so that a processor computes several at once. With k the whole number
    nearest to −x / log 2, e^(−x) is 2^k times e^r, whose Taylor series converges at once since
    abs(r) < 0.35; the bits of 2^k are written down.
    """
    z = -float(x)
    z = z if not z < LEAST else LEAST  # NaN stays
    z = z if not z > MOST else MOST
    shifted = z * LOG2_E + SHIFT
    k = shifted - SHIFT
    r = (z - k * LN2_HIGH) - k * LN2_LOW
    tail = 1 / 40320 + r * (
        1 / 362880 + r * (1 / 3628800 + r * (1 / 39916800 + r * (1 / 479001600 + r / 6227020800)))
    )
    head = 1 / 24 + r * (1 / 120 + r * (1 / 720 + r * (1 / 5040 + r * tail)))
    exponential = 1 + r * (1 + r * (1 / 2 + r * (1 / 6 + r * head)))
    power: float = _float_of_bits((_bits_of_float(shifted) + 1023) << 52)  # type: ignore[call-arg]
    return 1 / (1 + power * exponential)


@intrinsic
def _bits_of_float(typing_context: Any, value: Any) -> Any:
    """Read the bits of a float as a whole number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def _float_of_bits(typing_context: Any, bits: Any) -> Any:
    """Read the bits of a whole number as a float."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), generate


@register_funcify_and_cache_key(Sigmoid)
def _funcify_sigmoid(op: Sigmoid, node: Any, **kwargs: Any) -> tuple[Any, str]:
    return sigmoid, scalar_op_cache_key(op, source=source_number(__file__))
