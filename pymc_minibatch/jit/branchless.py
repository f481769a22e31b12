"""e^x, logarithms, log Γ, its derivative and what is made of them, without branches or calls.

A processor computes several numbers at once where code takes no branches and calls nothing; the
C library's functions do both. PyTensor's functions are replaced when a graph is compiled here, if
they are taken of arrays of doubles, or of whole numbers that become doubles. Matrices are gone
through entry by entry: several at once need a loop that is longer than the few columns that they
often have.
"""

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, register_jitable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.link.numba.dispatch.basic import (
    register_funcify_and_cache_key,
    register_funcify_default_op_cache_key,
)
from pytensor.link.numba.dispatch.scalar import numba_funcify_Composite, scalar_op_cache_key
from pytensor.scalar.basic import (
    Composite,
    Exp,
    Log,
    Log1p,
    Switch,
    UnaryScalarOp,
    upgrade_to_float,
)
from pytensor.scalar.math import GammaLn, Psi, Sigmoid, Softplus
from pytensor.tensor.basic import cast, switch
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import log
from scipy.special import expit, gammaln, psi

from pymc_minibatch.jit.reached import reached_number

__all__ = [
    "Entrywise",
    "digamma",
    "exponential",
    "local_branchless",
    "local_inlined",
    "local_one_logarithm",
    "log_gamma",
    "logarithm",
    "sigmoid",
    "softplus",
]

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""Their sum is log 2 to more digits than a float has."""

SHIFT = 1.5 * 2.0**52
"""Added to a number, it leaves the nearest whole one in the last bits."""

LEAST, MOST = -746.0, 710.0
"""Beyond, e^x is 0 or infinite."""

LEAST_NORMAL, RAISED = 2.0**-1022, 54
"""Smaller numbers have fewer digits; they are multiplied by 2^54 before their bits are read."""

ROOT_HALF = 0x3FE6A09E667F3BCD
"""The bits of the root of one half, above which the logarithm of what a power of two leaves is
taken."""


# PyTensor lets sums be reordered, which would undo the shift.
@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def exponential(x: float) -> float:
    """e^x, to the last digits.

    With k the whole number nearest to x / log 2, it is 2^k times e^r, whose Taylor series converges
    at once since abs(r) < 0.35. The bits of 2^k are written down, in two factors, each of which is
    a number even if the result is 0, infinite, or too small for all of its digits.
    """
    z = x if not x < LEAST else LEAST  # NaN stays
    z = z if not z > MOST else MOST
    shifted = z * LOG2_E + SHIFT
    whole = shifted - SHIFT
    r = (z - whole * LN2_HIGH) - whole * LN2_LOW
    tail = 1 / 40320 + r * (
        1 / 362880 + r * (1 / 3628800 + r * (1 / 39916800 + r * (1 / 479001600 + r / 6227020800)))
    )
    head = 1 / 24 + r * (1 / 120 + r * (1 / 720 + r * (1 / 5040 + r * tail)))
    series = 1 + r * (1 + r * (1 / 2 + r * (1 / 6 + r * head)))
    k: int = _bits_of_float(shifted) - _bits_of_float(SHIFT)  # type: ignore[call-arg]
    half = k >> 1
    first: float = _float_of_bits((half + 1023) << 52)
    second: float = _float_of_bits((k - half + 1023) << 52)
    return series * first * second


@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def sigmoid(x: float) -> float:
    """1 / (1 + e^(−x)), to the last digits unless it is below 1e-308."""
    return 1 / (1 + exponential(-x))


@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def softplus(x: float) -> float:
    """log(1 + e^x), to the last digits.

    It is max(x, 0) + log(1 + z) with z = e^(−|x|) ≤ 1.
    """
    z = exponential(-abs(x))
    return (x if x > 0.0 else 0.0) + _twice_atanh(z, 2.0 + z)


@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def logarithm(x: float) -> float:
    """Log x, to the last digits.

    With x = 2^k m and m between the roots of 1/2 and 2, it is k log 2 + log m.
    """
    is_small = x < LEAST_NORMAL
    y = x * 2.0**RAISED if is_small else x
    bits: int = _bits_of_float(y)  # type: ignore[call-arg]
    k = (bits - ROOT_HALF) >> 52
    m: float = _float_of_bits(bits - (k << 52))
    power = float(k - RAISED) if is_small else float(k)
    found = power * LN2_HIGH + (power * LN2_LOW + _twice_atanh(m - 1.0, m + 1.0))
    found = found if x > 0.0 else -np.inf
    found = found if x < np.inf else x
    return found if x >= 0.0 else np.nan


@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def logarithm_of_next(x: float) -> float:
    """log(1 + x), to the last digits: what rounding 1 + x leaves out is added."""
    y = 1.0 + x
    # The larger of the two comes first, so that nothing of the other is lost.
    left = x - (y - 1.0) if x < 1.0 else 1.0 - (y - x)
    inside = x > -1.0 and x < np.inf
    return logarithm(y) + (left / y if inside else 0.0)


@register_jitable(error_model="numpy", forceinline=True, fastmath={"contract"})
def _twice_atanh(a: float, b: float) -> float:
    """2 atanh(a / b) for |a| ≤ b / 3, by its series."""
    inverse = 1.0 / b
    ratio = a * inverse
    w = ratio * ratio
    rest = 1 / 25 + w * (1 / 27 + w * (1 / 29 + w * (1 / 31 + w / 33)))
    tail = 1 / 17 + w * (1 / 19 + w * (1 / 21 + w * (1 / 23 + w * rest)))
    head = 1 / 9 + w * (1 / 11 + w * (1 / 13 + w * (1 / 15 + w * tail)))
    series = w * (1 / 3 + w * (1 / 5 + w * (1 / 7 + w * head)))
    twice = (a + a) * inverse
    return twice + twice * series


FEW_TERMS = 8.0
"""From this number on, eight terms of Stirling's series give all digits of log Γ."""

HALF_LOG_2PI = 0.91893853320467274178

SMALL, LOG_SMALL = 2.0**-80, 80 * 0.69314718055994530942
"""A factor, and minus its logarithm."""

MOST_HALVES = 2.0**51
"""Beyond, halves are rounded when SHIFT is added, so that all numbers are taken for whole ones."""


@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def log_gamma(x: float) -> float:
    """Log |Γ(x)|, up to 2e-14 of it, or of 1 if that is larger.

    With w = x, or 1 − x if x is negative, Stirling's series holds for z = w, or for z = w + 8 if
    that is small; Γ(z) = w (w + 1) ... (w + 7) Γ(w), where factors of the same sum come in pairs.
    And Γ(x) Γ(1 − x) = π / sin πx. There is one logarithm of all that is left.

    Reference: Abramowitz and Stegun (1964), Handbook of mathematical functions, 6.1.
    """
    is_negative = x < 0.0
    w = 1.0 - x if is_negative else x
    is_small = w < FEW_TERMS
    pairs = w * (w + 7.0)
    product = pairs * (pairs + 6.0) * (pairs + 10.0) * (pairs + 12.0) if is_small else 1.0
    z = w + 8.0 if is_small else w
    stirling = (z - 0.5) * (logarithm(z) - 1.0) + (HALF_LOG_2PI - 0.5 + _stirling_series(1.0 / z))
    away = abs(x - ((x + SHIFT) - SHIFT)) if x > -MOST_HALVES else 0.0
    small = product * SMALL / (away * _sinc(away))  # the quotient itself may be too large
    found = stirling - logarithm(small if is_negative else abs(product))
    found = LOG_SMALL - found if is_negative else found
    return found if x > -np.inf or x != x else np.inf


@register_jitable(error_model="numpy", forceinline=True, fastmath={"contract"})
def _stirling_series(inverse: float) -> float:
    """Return what log Γ(z) is beyond its asymptote, by 1 / z."""
    w = inverse * inverse
    tail = 1 / 1188 - w * (691 / 360360 - w * (1 / 156 - w * (3617 / 122400)))
    return inverse * (1 / 12 - w * (1 / 360 - w * (1 / 1260 - w * (1 / 1680 - w * tail))))


@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def digamma(x: float) -> float:
    """ψ(x), the derivative of log |Γ(x)|, up to 1e-14 of it, or of 1 if that is larger.

    As there with w and z; ψ(w) is ψ(w + 8) less the sum of 1 / (w + k), where terms of which the
    numbers have the same sum come in pairs. And ψ(x) = ψ(1 − x) − π cot πx.

    Reference: Abramowitz and Stegun (1964), Handbook of mathematical functions, 6.3.
    """
    is_negative = x < 0.0
    w = 1.0 - x if is_negative else x
    is_small = w < FEW_TERMS
    small = w if is_small else 1.0  # products of large numbers are infinite
    first = small * (small + 7.0)
    second, third, fourth = first + 6.0, first + 10.0, first + 12.0
    outer, inner = first * second, third * fourth
    inverses = ((first + second) * inner + (third + fourth) * outer) / (outer * inner)
    z = w + 8.0 if is_small else w
    found = logarithm(z) - _digamma_series(1.0 / z)
    found = found - (small + small + 7.0) * inverses if is_small else found
    away = x - ((x + SHIFT) - SHIFT) if x > -MOST_HALVES else 0.0
    to_half = 0.5 - abs(away)
    cotangent = to_half * _sinc(to_half) / (away * _sinc(away))
    found = found - np.pi * cotangent if is_negative else found
    return np.nan if is_negative and away == 0.0 else found


@register_jitable(error_model="numpy", forceinline=True, fastmath={"contract"})
def _digamma_series(inverse: float) -> float:
    """Return log z less ψ(z), by 1 / z."""
    w = inverse * inverse
    tail = 1 / 132 - w * (691 / 32760 - w * (1 / 12 - w * (3617 / 8160)))
    series = w * (1 / 12 - w * (1 / 120 - w * (1 / 252 - w * (1 / 240 - w * tail))))
    return 0.5 * inverse + series


@register_jitable(error_model="numpy", forceinline=True, fastmath={"contract"})
def _sinc(r: float) -> float:
    """sin(πr) / πr, for r up to 1/2."""
    w = (np.pi * r) * (np.pi * r)
    tail = 1 - w / 210 * (1 - w / 272 * (1 - w / 342 * (1 - w / 420)))
    return 1 - w / 6 * (
        1 - w / 20 * (1 - w / 42 * (1 - w / 72 * (1 - w / 110 * (1 - w / 156 * tail))))
    )


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


# --- In the graphs of PyTensor ------------------------------------------------------------------


class BranchlessExp(Exp):
    """e^x of doubles."""


class BranchlessSigmoid(Sigmoid):
    """1 / (1 + e^(−x)) of doubles."""


class BranchlessSoftplus(Softplus):
    """log(1 + e^x) of doubles."""


class BranchlessLog(Log):
    """Log x of doubles."""


class BranchlessLog1p(Log1p):
    """log(1 + x) of doubles."""


class BranchlessGammaLn(GammaLn):
    """log |Γ(x)| of doubles."""


class BranchlessPsi(Psi):
    """The derivative of log |Γ(x)| of doubles."""


BRANCHLESS: dict[type, UnaryScalarOp] = {
    Exp: BranchlessExp(upgrade_to_float),
    Sigmoid: BranchlessSigmoid(upgrade_to_float),
    Softplus: BranchlessSoftplus(upgrade_to_float),
    Log: BranchlessLog(upgrade_to_float),
    Log1p: BranchlessLog1p(upgrade_to_float),
    GammaLn: BranchlessGammaLn(upgrade_to_float),
    Psi: BranchlessPsi(upgrade_to_float),
}
FUNCTIONS: dict[type, tuple[Any, Any]] = {
    BranchlessExp: (exponential, np.exp),
    BranchlessSigmoid: (sigmoid, expit),
    BranchlessSoftplus: (softplus, partial(np.logaddexp, 0.0)),
    BranchlessLog: (logarithm, np.log),
    BranchlessLog1p: (logarithm_of_next, np.log1p),
    BranchlessGammaLn: (log_gamma, gammaln),
    BranchlessPsi: (digamma, psi),
}
"""In Numba and in NumPy."""


class Entrywise(Op):
    """One of these functions of each entry of an array."""

    __props__ = ("scalar_op",)

    def __init__(self, scalar_op: UnaryScalarOp) -> None:
        self.scalar_op = scalar_op

    def make_node(self, *inputs: Variable) -> Apply:
        """Take an array of doubles, give one of the same shape."""
        values: Any = inputs[0]
        return Apply(self, [values], [values.type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Compute in NumPy."""
        outputs[0][0] = FUNCTIONS[type(self.scalar_op)][1](inputs[0])


@node_rewriter([Elemwise])
def local_branchless(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace functions of arrays whose results are doubles."""
    op: Any = node.op
    found: Any = node.outputs[0]
    scalar_op = BRANCHLESS.get(type(op.scalar_op))
    if scalar_op is None or found.type.dtype != "float64" or found.type.ndim == 0:
        return None
    values: Any = cast(node.inputs[0], "float64")
    is_one_loop = all(values.type.broadcastable[:-1])
    replacement: Any = Elemwise(scalar_op) if is_one_loop else Entrywise(scalar_op)
    return [replacement(values)]


@node_rewriter([Elemwise])
def local_one_logarithm(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Take the logarithm of what is chosen, if one of two is: both cost more than anything else.

    What log(1 + x) has to say of an x below 1e-16 is lost, which is nothing in a sum of rows.
    """
    op: Any = node.op
    if not isinstance(op.scalar_op, Switch):
        return None
    condition, *logarithms = node.inputs
    arguments = [_argument(values) for values in logarithms]
    if None in arguments:
        return None
    return [log(switch(condition, *arguments))]


def _argument(logarithm: Variable) -> Variable | None:
    """Return that of which it is the logarithm, if it is one of doubles."""
    node: Any = logarithm.owner
    scalar_op = getattr(node and node.op, "scalar_op", None)
    if not isinstance(scalar_op, Log | Log1p) or node.inputs[0].type.dtype != "float64":
        return None
    argument: Any = node.inputs[0]
    found: Variable = argument if isinstance(scalar_op, Log) else 1.0 + argument
    return found


def _funcify(op: UnaryScalarOp, node: Any, **kwargs: Any) -> tuple[Any, str]:
    function = FUNCTIONS[type(op)][0]
    return function, scalar_op_cache_key(op, source=reached_number(function))


for _op in FUNCTIONS:
    register_funcify_and_cache_key(_op)(_funcify)


@register_funcify_default_op_cache_key(Entrywise)
def _funcify_entrywise(op: Entrywise, node: Apply, **kwargs: Any) -> tuple[Any, int]:
    function = FUNCTIONS[type(op.scalar_op)][0]

    @njit(error_model="numpy")
    def entrywise(values: Any) -> Any:
        flat = np.ascontiguousarray(values).reshape(-1)
        out = np.empty(flat.size)
        for i in range(flat.size):
            out[i] = function(flat[i])
        return out.reshape(values.shape)

    return entrywise, reached_number(entrywise)


class InlinedComposite(Composite):
    """Several operations on numbers, all in the loop over the entries of an array.

    A call there would keep the processor from computing several entries at once.
    """


@node_rewriter([Elemwise])
def local_inlined(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Have operations that were fused written into the loop."""
    op: Any = node.op
    inner = op.scalar_op
    if type(inner) is not Composite or node.outputs[0].type.ndim == 0:
        return None
    inlined: Any = Elemwise(InlinedComposite(inner.inputs, inner.outputs))
    found: list[Variable] = inlined.make_node(*node.inputs).outputs
    return found


@register_funcify_and_cache_key(InlinedComposite)
def _funcify_inlined(op: InlinedComposite, node: Any, **kwargs: Any) -> tuple[Any, str | None]:
    function, key = numba_funcify_Composite(op, node=node, **kwargs)
    function.targetoptions["forceinline"] = True
    return function, key and f"{key}-inlined"
