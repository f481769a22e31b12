"""e^x, logarithms, powers, log Γ, ψ and error functions, without branches or calls.

A processor computes several numbers at once where code takes no branches and calls nothing; the
C library's functions do both. Where PyTensor's are replaced by these: :mod:`.branchless`.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

__all__ = [
    "digamma",
    "erf",
    "erfc",
    "exponential",
    "exponential_less_one",
    "inverse_scaled_erfc",
    "log_gamma",
    "logarithm",
    "logarithm_of_erfc",
    "logarithm_of_next",
    "logarithm_of_one_less_exponential",
    "power",
    "scaled_erfc",
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
def exponential_less_one(x: float) -> float:
    """e^x − 1, to the last digits: by its series for small x."""
    r = x if abs(x) < 0.5 else 0.5
    last = 1 + r / 12 * (1 + r / 13 * (1 + r / 14 * (1 + r / 15)))
    tail = 1 / 5040 * (1 + r / 8 * (1 + r / 9 * (1 + r / 10 * (1 + r / 11 * last))))
    head = 1 / 6 + r * (1 / 24 + r * (1 / 120 + r * (1 / 720 + r * tail)))
    return r + r * r * (1 / 2 + r * head) if abs(x) < 0.5 else exponential(x) - 1.0


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


@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def logarithm_of_one_less_exponential(x: float) -> float:
    """log(1 − e^x), to the last digits."""
    near = logarithm(-exponential_less_one(x))
    return near if x > -(LN2_HIGH + LN2_LOW) else logarithm_of_next(-exponential(x))


@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def power(x: float, y: float) -> float:
    """x^y, as e^(y log x): to as many digits less as y log x has before the point."""
    size = exponential(y * logarithm(abs(x)))
    is_whole, is_even = np.floor(y) == y, np.floor(0.5 * y) == 0.5 * y
    of_negative = (size if is_even else -size) if is_whole else np.nan
    found = of_negative if x < 0.0 else size
    return 1.0 if y == 0.0 or x == 1.0 else found


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


SPLIT = 2.0**27 + 1
"""Times a number, it leaves the upper half of its digits when what was added is taken away."""

MOST_ERFC = 40.0
"""Beyond, e^(−x²) is 0."""

MOST_SCALED = 1e300
"""A number whose successors have the same s."""

TURNING = 3.75
"""Where the series of the scaled error function has its middle (Shepherd and Laframboise)."""


@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def erfc(x: float) -> float:
    """Return 1 − erf(x), up to 1e-15 of it.

    For x ≥ 0 that is e^(−x²) times the scaled function, where x² has twice the digits of a float.
    """
    away = abs(x)
    found = _inverse_exponential_of_square(away) * _scaled_erfc(away)
    return 2.0 - found if x < 0.0 else found


@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def scaled_erfc(x: float) -> float:
    """e^x² erfc(x), up to 1e-15 of it for x below 1e300."""
    away = abs(x)
    found = _scaled_erfc(away)
    return 2.0 / _inverse_exponential_of_square(away) - found if x < 0.0 else found


@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def logarithm_of_erfc(x: float) -> float:
    """Return log(1 − erf(x)), up to 1e-15 of it or of 1."""
    away = abs(x)
    scaled = _scaled_erfc(away)
    found = 2.0 - _inverse_exponential_of_square(away) * scaled if x < 0.0 else scaled
    return logarithm(found) - (0.0 if x < 0.0 else away * away)


@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def inverse_scaled_erfc(x: float) -> float:
    """Return 1 / (e^x² erfc(x)), up to 1e-15 of it."""
    away = abs(x)
    scaled = _scaled_erfc(away)
    small = _inverse_exponential_of_square(away)
    return small / (2.0 - small * scaled) if x < 0.0 else 1.0 / scaled


@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def erf(x: float) -> float:
    """Return the error function, up to 1e-15 of it: by its series for small x, else by erfc."""
    w = x * x if abs(x) < 0.5 else 0.25
    last = 1 / 685440 - w * (1 / 6894720 - w * (1 / 76204800 - w / 918086400))
    tail = 1 / 1320 - w * (1 / 9360 - w * (1 / 75600 - w * last))
    series = 1 - w * (1 / 3 - w * (1 / 10 - w * (1 / 42 - w * (1 / 216 - w * tail))))
    near = 2.0 / np.sqrt(np.pi) * x * series
    far = 1.0 - erfc(abs(x))
    return near if abs(x) < 0.5 else (-far if x < 0.0 else far)


@register_jitable(error_model="numpy", forceinline=True, fastmath=False)
def _inverse_exponential_of_square(x: float) -> float:
    """e^(−x²), with what rounding leaves out of x², for x ≥ 0."""
    x = MOST_ERFC if x > MOST_ERFC else x
    square = x * x
    shifted = x * SPLIT
    upper = shifted - (shifted - x)
    lower = x - upper
    left = ((upper * upper - square) + 2.0 * upper * lower) + lower * lower
    return exponential(-square) * (1.0 - left)


@register_jitable(error_model="numpy", forceinline=True, fastmath={"contract"})
def _scaled_erfc(x: float) -> float:
    """e^x² erfc(x) for x ≥ 0: a series in (x − 3.75) / (x + 3.75), over 1 + 2x.

    Its coefficients were computed with fifty digits, from a series of Chebyshev polynomials with 26
    terms, of which the last is below 1e-17.

    Reference: Shepherd and Laframboise (1981), Chebyshev approximation of (1 + 2x) exp(x²) erfc(x)
    in 0 ≤ x < ∞.
    """
    x = MOST_SCALED if x > MOST_SCALED else x
    s = (x - TURNING) / (x + TURNING)
    t = 4.2514714447963895e-10 - s * 3.75315827795962e-11
    t = -5.1739902140113095e-09 + s * (5.457157304704688e-10 + s * t)
    t = 3.8675334242222354e-08 + s * (-4.389284159986328e-09 + s * t)
    t = -2.5866850716155884e-07 + s * (2.4289762925488707e-08 + s * t)
    t = 1.751637648849062e-06 + s * (-5.826281078800777e-08 + s * t)
    t = -1.1444146237700524e-05 + s * (-9.72849582211122e-07 + s * t)
    t = 5.164909889268241e-05 + s * (2.2383912036550678e-05 + s * t)
    t = 0.0002937136655913448 + s * (-0.00029015397928986765 + s * t)
    t = -0.009746579558029276 + s * (0.0017556258324217529 + s * t)
    t = -0.05869339858963677 + s * (0.0283622774215156 + s * t)
    t = -0.10880393014174886 + s * (0.09230432116019834 + s * t)
    t = 0.0035854154854644293 + s * (0.08227673849015102 + s * t)
    return (1.2375126308378275 + s * (-0.14024059858554702 + s * t)) / (1.0 + 2.0 * x)
