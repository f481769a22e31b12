"""Special functions that PyTensor does not translate to Numba.

Without a translation PyTensor calls back into Python, and the kernel cannot be kept on disk.
"""

import math
from typing import Any

from numba.extending import register_jitable
from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key
from pytensor.link.numba.dispatch.scalar import scalar_op_cache_key
from pytensor.scalar.math import TriGamma

from pymc_minibatch.jit.reached import reached_number

__all__ = ["trigamma"]

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
