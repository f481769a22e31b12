"""Operations that PyTensor differentiates once, replaced by others with two derivatives.

These are the product of the entries of an array, the distribution functions of gamma and beta
variables by their shapes, which censored and truncated rows read, the Bessel functions of von
Mises's and Rice's distributions, powers of data that may be 0, the logarithm of one less an
exponential that is nearly 0, that of one less an error function, whose derivatives are NaN where it
is below 10⁻³⁰⁸, and that of a sum of two exponentials: its derivatives have the square of the sum
as denominator, which is 0 where the sum is below 10⁻¹⁶². NUTS needs no more than one derivative; an
expansion of the log-likelihood does.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.scalar
import pytensor.tensor as pt
from pymc.distributions.dist_math import I0e, I1e
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.scalar.basic import ScalarOp, upgrade_to_float, upgrade_to_float_no_complex
from pytensor.scalar.math import BetaInc, Erf, Erfc, GammaInc, GammaIncC, Log1mexp
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Prod

from pymc_minibatch.jit.branchless import LOG_ERFC, DifferentiableLog1mexp
from pymc_minibatch.tall.slicing import data_leaves, leaf_value, reads_data_only

__all__ = ["twice_differentiable"]

ps: Any = pytensor.scalar

STEP = 0.005
"""Of differences, relative to the distance over which a shape changes a probability."""

LARGE = 100.0
"""Arguments from which on derivatives of Bessel functions are those of their asymptotic series, to
1e-9 relative: differences of Bessel functions lose as many digits as the argument has, and as many
again each time that they are differentiated."""

OF_LOG_I0E = (-1 / 2, -1 / 8, -1 / 8, -25 / 128, -13 / 32)
OF_LOG_I1E = (-1 / 2, 3 / 8, 3 / 8, 63 / 128, 27 / 32)
"""Derivatives of log e^(−x) I₀(x) and log e^(−x) I₁(x) in powers of 1 / x, from Abramowitz and
Stegun 9.7.1."""

TINY = 1e-100
"""In place of an argument of 0, by which nothing can be divided."""

LONGEST = 64
"""Products of at most so many entries are written out."""


def twice_differentiable(term: Any) -> Any:
    """Return a graph with the same values, whose operations have two derivatives.

    Derivatives by shapes become differences of fourth order, to about 1e-10 relative.
    """
    graph = FunctionGraph(outputs=[term], copy_inputs=False)
    for rewriter in (
        local_product,
        local_special_function,
        local_log_of_erfc,
        local_log_of_sum,
        local_power_of_zero,
    ):
        in2out(rewriter).rewrite(graph)
    return graph.outputs[0]


@node_rewriter([Elemwise])
def local_special_function(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Take distribution and Bessel functions that have all derivatives."""
    op: Any = node.op
    with_derivatives = DIFFERENTIABLE.get(type(op.scalar_op))
    if with_derivatives is None:
        return None
    replaced: Any = Elemwise(with_derivatives)(*node.inputs)
    return [replaced]


@node_rewriter([Elemwise])
def local_log_of_erfc(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Take log(1 − erf(x)) and log(1 + erf(x)), of which skew-normal rows read one, as a whole."""
    op: Any = node.op
    if not isinstance(op.scalar_op, ps.Log):
        return None
    array: Any = node.inputs[0]
    x = _of_erfc(array)
    if x is None or x.type.broadcastable != array.type.broadcastable:
        return None
    return [pt.cast(Elemwise(LOG_ERFC)(x), array.type.dtype)]


def _of_erfc(array: Any) -> Any:
    """Return x if an array is one less the error function of x; None of anything else."""
    node = array.owner
    if _is(node, Erfc):
        return node.inputs[0]
    if not (_is(node, ps.Add) or _is(node, ps.Sub)) or len(node.inputs) != 2:
        return None
    one, other = node.inputs
    if _is(node, ps.Add) and _is(one.owner, Erf):
        one, other = other, one
    if not _is(other.owner, Erf) or not _is_one(one):
        return None
    x = other.owner.inputs[0]
    return -x if _is(node, ps.Add) else x


def _is_one(array: Any) -> bool:
    """Whether an array is the number 1, of whatever shape."""
    value = pt.get_underlying_scalar_constant_value(array, raise_not_constant=False)
    return isinstance(value, np.ndarray | np.generic) and bool(value == 1)


@node_rewriter([Elemwise])
def local_log_of_sum(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Write ``log(exp(a) + exp(b))`` as ``a + softplus(b - a)``.

    One of them may be absent from some rows: ``switch(bought, exp(b), 0)``.
    """
    op: Any = node.op
    of_sum: Any = node.inputs[0].owner
    if not isinstance(op.scalar_op, ps.Log) or not _is(of_sum, ps.Add):
        return None
    if len(of_sum.inputs) != 2:
        return None
    first, second = map(_log, of_sum.inputs)
    if not _is(of_sum.inputs[0].owner, ps.Exp):
        first, second = second, first
    if first is None or second is None or not any(_is(i.owner, ps.Exp) for i in of_sum.inputs):
        return None
    return [pt.cast(first + pt.softplus(second - first), node.outputs[0].type.dtype)]


@node_rewriter([Elemwise])
def local_power_of_zero(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Take powers of data that are 0 as constants, as those of intervals that begin at 0.

    Their second derivative by the exponent would be ``0 * log(0) ** 2``.
    """
    op: Any = node.op
    if not isinstance(op.scalar_op, ps.Pow):
        return None
    base, exponent = node.inputs
    zeros = None if reads_data_only(exponent) else _factor_with_zeros(base)
    if zeros is None:
        return None
    is_zero = pt.eq(zeros, 0)
    of_others = pt.switch(is_zero, 1.0, base) ** exponent
    of_zero = pt.switch(pt.gt(exponent, 0.0), 0.0, pt.switch(pt.eq(exponent, 0.0), 1.0, np.inf))
    return [pt.cast(pt.switch(is_zero, of_zero, of_others), node.outputs[0].type.dtype)]


def _factor_with_zeros(base: Any) -> Any:
    """Return data that a base is a multiple of, if some of them may be 0; None otherwise."""
    node = base.owner
    if reads_data_only(base):
        is_replaced = _is(node, ps.Switch)
        has_zeros = any(not np.all(leaf_value(leaf)) for leaf in data_leaves([base]))
        return base if has_zeros and not is_replaced else None
    if _is(node, ps.Mul) or _is(node, ps.TrueDiv):
        factors = node.inputs if _is(node, ps.Mul) else node.inputs[:1]
        found = (_factor_with_zeros(factor) for factor in factors)
        return next((factor for factor in found if factor is not None), None)
    return None


def _is(node: Any, kind: type) -> bool:
    """Whether a node applies an operation to each entry."""
    return (
        node is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, kind)
    )


def _log(array: Any) -> Any:
    """Return the logarithm of an exponential, or of one or 0 by rows; None of anything else."""
    node = array.owner
    if _is(node, ps.Exp):
        return node.inputs[0]
    if _is(node, ps.Switch):
        condition, *either = node.inputs
        logs = [_log(each) for each in either]
        return None if None in logs else pt.switch(condition, *logs)
    return pt.full_like(array, -np.inf, dtype="float64") if _is_zero(array) else None


def _is_zero(array: Any) -> bool:
    """Whether an array is a constant 0 of some shape."""
    node = array.owner
    if node is None:
        return isinstance(array, Constant) and not np.any(array.data)
    if isinstance(node.op, DimShuffle | Alloc) or _is(node, ps.Cast):
        return _is_zero(node.inputs[0])
    return _is(node, ps.Second) and _is_zero(node.inputs[1])


@node_rewriter([Prod])
def local_product(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Write a product along axes of known lengths as multiplications."""
    op: Any = node.op
    value: Any = node.inputs[0]
    axes = sorted(range(value.ndim) if op.axis is None else op.axis, reverse=True)
    lengths = [value.type.shape[axis] for axis in axes]
    whole = value.dtype not in ("float32", "float64")
    if whole or {None, 0}.intersection(lengths) or math.prod(lengths) > LONGEST:
        return None
    for axis, length in zip(axes, lengths, strict=True):
        along = value.dimshuffle(axis, *(i for i in range(value.ndim) if i != axis))
        value = math.prod([along[i] for i in range(1, length)], start=along[0])
    return [value]


class _ByDifferences:
    """A distribution function whose derivatives by its shapes are differences of itself.

    It has the shapes as its first arguments and what it is evaluated at as its last.
    """

    def pullback(self: Any, inputs: Any, outputs: Any, grads: Any) -> list[Any]:
        """Return the derivatives times `grads`."""
        by_shape = [self._difference(inputs, i) for i in range(len(inputs) - 1)]
        return [grads[0] * slope for slope in (*by_shape, self._density(*inputs))]

    def _difference(self: Any, inputs: Any, i: int) -> Any:
        shape = inputs[i]
        # The distributions are about ps.sqrt(shape) wide, and shape where that is below 1.
        step = STEP * shape / (1 + ps.sqrt(shape))

        def shifted(steps: int) -> Any:
            return self(*inputs[:i], shape + steps * step, *inputs[i + 1 :])

        return (8 * (shifted(1) - shifted(-1)) - (shifted(2) - shifted(-2))) / (12 * step)


class GammaIncByDifferences(_ByDifferences, GammaInc):
    """Distribution function of a gamma variable."""

    def _density(self, k: Any, x: Any) -> Any:
        return ps.exp((k - 1) * ps.log(x) - x - ps.gammaln(k))


class GammaIncCByDifferences(_ByDifferences, GammaIncC):
    """Probability that a gamma variable is larger."""

    def _density(self, k: Any, x: Any) -> Any:
        return -ps.exp((k - 1) * ps.log(x) - x - ps.gammaln(k))


class BetaIncByDifferences(_ByDifferences, BetaInc):
    """Distribution function of a beta variable."""

    def _density(self, a: Any, b: Any, x: Any) -> Any:
        scale = ps.gammaln(a) + ps.gammaln(b) - ps.gammaln(a + b)
        return ps.exp((a - 1) * ps.log(x) + (b - 1) * ps.log1p(-x) - scale)


class DifferentiableI0e(I0e):
    """e^(−|x|) I₀(x)."""

    def pullback(self, inputs: Any, outputs: Any, grads: Any) -> list[Any]:
        """Return the derivative times `grads`."""
        [x] = inputs
        derivative = _I1E(x) - ps.sign(x) * self(x)
        return [grads[0] * _or_of_series(self, x, OF_LOG_I0E, derivative)]


class DifferentiableI1e(I1e):
    """e^(−|x|) I₁(x)."""

    def pullback(self, inputs: Any, outputs: Any, grads: Any) -> list[Any]:
        """Return the derivative times `grads`."""
        [x] = inputs
        # I₁(x) / x is even, and ½ at 0.
        nonzero = ps.switch(ps.eq(x, 0.0), TINY, x)
        derivative = _I0E(x) - self(nonzero) / nonzero - ps.sign(x) * self(x)
        return [grads[0] * _or_of_series(self, x, OF_LOG_I1E, derivative)]


def _or_of_series(function: Any, x: Any, series: Sequence[float], derivative: Any) -> Any:
    """Return a derivative; of large arguments that by the series of the logarithm's."""
    size = ps.scalar_maximum(ps.abs(x), LARGE)
    total: Any = 0.0
    for coefficient in reversed(series):
        total = (coefficient + total) / size
    return ps.switch(ps.gt(ps.abs(x), LARGE), ps.sign(x) * function(x) * total, derivative)


_I0E: Any = DifferentiableI0e(upgrade_to_float_no_complex, name="differentiable_i0e")
_I1E: Any = DifferentiableI1e(upgrade_to_float_no_complex, name="differentiable_i1e")

DIFFERENTIABLE: dict[type, ScalarOp] = {
    GammaInc: GammaIncByDifferences(upgrade_to_float, name="gammainc_by_differences"),
    GammaIncC: GammaIncCByDifferences(upgrade_to_float, name="gammaincc_by_differences"),
    BetaInc: BetaIncByDifferences(upgrade_to_float, name="betainc_by_differences"),
    I0e: _I0E,
    I1e: _I1E,
    Log1mexp: DifferentiableLog1mexp(upgrade_to_float, name="differentiable_log1mexp"),
}
