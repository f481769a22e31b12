"""Operations that PyTensor differentiates once are replaced by others with two derivatives."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions.dist_math import i0e
from pytensor.gradient import grad
from pytensor.graph.basic import equal_computations
from pytensor.tensor.math import Prod
from scipy import special

import pymc_minibatch as pmb
from pymc_minibatch.jit.compiled import CompiledFunction, compile_all, compile_numba
from pymc_minibatch.tall.twice import LONGEST, twice_differentiable

# First derivatives by each argument, and second derivatives by each pair of them, row by row,
# which mpmath computes at 40 digits.
EXACT = [
    (
        pt.gammainc, (0.3, 5.1),
        (-0.0030776846544897, 0.00065147836324302),
        (-0.0091464441219991, 0.0033432337076506, -0.00074089696211951),
    ),
    (
        pt.gammainc, (3000.0, 3100.0),
        (-0.0014031076087079, 0.0013802764846875),
        (-4.6008914923739e-5, 4.5489080240762e-5, -4.4970298372075e-5),
    ),
    (
        pt.gammaincc, (3.0, 60.0),
        (5.1959295826873e-23, -1.5761719372854e-23),
        (1.5924070227279e-22, -4.9989242274027e-23, 1.5236328727092e-23),
    ),
    (
        pt.betainc, (40.0, 0.5, 0.9),
        (-0.0004406298793083, 0.013389632740758, 0.18473781068818),
        (
            5.1965625143166e-5, -0.001470614413563, -0.01714041684774,
            0.028600210540412, 0.61884033906862, 8.9289941832621,
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("function", "at", "first", "second"), EXACT)
def test_distribution_functions(
    function: Callable[..., Any],
    at: tuple[float, ...],
    first: tuple[float, ...],
    second: tuple[float, ...],
) -> None:
    x: Any = pt.dvector("x")
    plain = function(*(x[i] for i in range(len(at))))
    value = twice_differentiable(plain)
    slopes: Any = grad(value, x)
    bends: list[Any] = [grad(slopes[i], x)[i:] for i in range(len(at))]
    together = pt.concatenate([plain[None], value[None], slopes, *bends])
    found = compile_numba([x], [together])(np.array(at))
    assert found[0] == found[1]
    np.testing.assert_allclose(found[2:], [*first, *second], rtol=2e-8)


def of_large_arguments(x: float) -> list[float]:
    """Return derivatives of the first terms of log e^(−x) I₀(x) (A&S 9.7.1), which suffice."""
    powers = {1: 1 / 8, 2: 1 / 16, 3: 25 / 384, 4: 13 / 128, 5: 1073 / 5120}
    found = []
    for order in (1, 2, 3):
        of_log = -0.5 * (-1) ** (order - 1) * math.factorial(order - 1) * x**-order
        rest = [
            c * (-1) ** order * math.prod(range(k, k + order)) * x ** -(k + order)
            for k, c in powers.items()
        ]
        found.append(of_log + math.fsum(rest))
    return found


# The first three derivatives of log e^(−x) I₀(x), which mpmath computes at 40 digits.
BESSEL = [
    (0.001, -0.9995000000625, 0.4999998125000521, -0.00037499979166674),
    (0.3, -0.8516625730591247, 0.48353791796564294, -0.10705296836782768),
    (2.0, -0.302225342035992, 0.1642231977212077, -0.13684950560894454),
    (30.0, -0.01681044463466391, 0.0005653130416681776, -3.803068492071065e-05),
    *((x, *of_large_arguments(x)) for x in (95.0, 105.0, 1e4, 1e8, 1e12)),
]


@pytest.mark.parametrize(("at", "first", "second", "third"), BESSEL)
def test_bessel_functions(at: float, first: float, second: float, third: float) -> None:
    x: Any = pt.dvector("x")
    slope: Any = grad(pt.sum(twice_differentiable(pt.log(i0e(x)))), x)
    bend: Any = grad(pt.sum(slope), x)
    found = compile_numba([x], [pt.concatenate([slope, bend, grad(pt.sum(bend), x)])])
    np.testing.assert_allclose(found(np.array([at])), [first, second, third], rtol=1e-8)
    np.testing.assert_allclose(found(np.zeros(1))[:2], [0.0, 0.5], atol=1e-12)


def test_rows_on_a_circle() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=3000)
    with pm.Model():
        slope, kappa = pm.Normal("slope"), pm.Gamma("kappa", 2, 0.5)
        pm.VonMises("y", 2 * pt.arctan(slope * x), kappa, observed=rng.vonmises(0.8 * x, 3.0))
        step = pmb.MinibatchMH()
    assert step.control_variate == 2


@pytest.mark.parametrize("at", [-1e-3, -0.5, -3.0, -40.0, -400.0, -705.0, -800.0, -1e5])
@pytest.mark.parametrize("compiled", [compile_all, compile_numba])
def test_the_logarithm_of_one_less_an_exponential(at: float, compiled: Callable[..., Any]) -> None:
    """Derivatives are -1 / (e^-x - 1), and that times -1 / (1 - e^x)."""
    x: Any = pt.dvector("x")
    value = twice_differentiable(pt.log1mexp(x))
    slope: Any = grad(value.sum(), x)
    function = compiled([x], [value, slope, grad(slope.sum(), x)])
    evaluate = function.outputs if isinstance(function, CompiledFunction) else function
    found = np.concatenate(evaluate(np.array([at])))
    first = -np.exp(at) / -np.expm1(at)
    expected = np.log1p(-np.exp(at)), first, first / -np.expm1(at)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("at", [-40.0, -3.0, 0.0, 0.5, 8.0, 40.0, 1e3])
@pytest.mark.parametrize("compiled", [compile_all, compile_numba])
@pytest.mark.parametrize(
    "written",
    [
        lambda x: pt.log(pt.erfc(x)),
        lambda x: pt.log(1 + pt.erf(-x)),
        lambda x: pt.log(1 - pt.erf(x)),
    ],
)
def test_the_logarithm_of_one_less_an_error_function(
    at: float, compiled: Callable[..., Any], written: Callable[[Any], Any]
) -> None:
    x: Any = pt.dvector("x")
    value = twice_differentiable(written(x))
    slope: Any = grad(value.sum(), x)
    function = compiled([x], [value, slope, grad(slope.sum(), x)])
    evaluate = function.outputs if isinstance(function, CompiledFunction) else function
    found = np.concatenate(evaluate(np.array([at])))
    apart = np.array([-1e-4, 1e-4]) * max(abs(at), 1.0)
    slopes = -2 / np.sqrt(np.pi) / special.erfcx(np.array([at, *(at + apart)]))
    second = (slopes[2] - slopes[1]) / np.ptp(apart)
    expected = np.log(2) + special.log_ndtr(-np.sqrt(2) * at), slopes[0], second
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("begins", [np.array([0.0, 0.0, 1.5, 4.0]), np.array([0, 0, 1, 4])])
def test_powers_of_data_that_may_be_zero(begins: np.ndarray) -> None:
    """All derivatives by scale and exponent are 0 where data are, and those of powers elsewhere."""
    x: Any = pt.dvector("x", shape=(2,))
    power = (pt.constant(begins) / x[0]) ** x[1]
    plain = (pt.constant(begins[2:]) / x[0]) ** x[1]
    for at in ([2.0, 1.4], [0.3, 0.6]):
        found, expected = (
            compile_numba([x], [pt.concatenate([rows, *_two_derivatives(rows, x)])])(np.array(at))
            for rows in (twice_differentiable(power), plain)
        )
        np.testing.assert_array_equal(found[:2], 0.0)
        np.testing.assert_allclose(found[2:], expected, rtol=1e-12)
    assert equal_computations([twice_differentiable(plain)], [plain])
    at_zero = compile_numba([x], [twice_differentiable(power)])
    assert at_zero(np.array([2.0, 0.0])).tolist() == [1.0] * 4
    assert np.isinf(at_zero(np.array([2.0, -1.0]))).tolist() == [True, True, False, False]
    of_sum = (pt.constant(begins) + x[0]) ** x[1]  # no multiple of the data: kept as it is
    assert equal_computations([twice_differentiable(of_sum)], [of_sum])


def _two_derivatives(rows: Any, x: Any) -> list[Any]:
    slope: Any = grad(pt.sum(rows), x)
    return [slope, *(grad(slope[i], x) for i in range(2))]


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
def test_products(axis: int | tuple[int, ...] | None) -> None:
    at = np.array([[1.5, -0.5, 2.0], [0.3, 1.1, -0.7]])
    flat = pt.dvector("flat", shape=(6,))
    x: Any = flat.reshape((2, 3))
    along = pt.dvector("along")
    value: Any = pt.sum(pt.prod(x, axis=axis) ** 2)
    slope: Any = grad(twice_differentiable(value), flat)
    bend: Any = grad(pt.sum(slope * along), flat)
    direction, step = np.random.default_rng(1).normal(size=at.size), 1e-5
    evaluate = compile_numba([flat, along], [pt.concatenate([slope, bend])])
    slope_here, bend_here = np.split(evaluate(at.ravel(), direction), 2)
    once = compile_numba([flat], [grad(value, flat)])
    np.testing.assert_allclose(slope_here, once(at.ravel()), rtol=1e-12)
    differences = once(at.ravel() + step * direction) - once(at.ravel() - step * direction)
    np.testing.assert_allclose(bend_here, differences / (2 * step), rtol=1e-7, atol=1e-9)


def test_products_that_stay() -> None:
    whole, long = pt.lmatrix("whole"), pt.dvector("long", shape=(LONGEST + 1,))
    for value in (pt.prod(whole), pt.prod(long), pt.prod(pt.dvector("unknown"))):
        assert isinstance(twice_differentiable(value).owner.op, Prod)


def test_a_model_with_both() -> None:
    rng = np.random.default_rng(2)
    group, time = rng.integers(0, 60, 3000), rng.gamma(2.0, 1.0, 3000)
    with pm.Model():
        shape = pm.Gamma("shape", 2, 1)
        scales = pm.HalfNormal("scales", 1, shape=2)
        effect = pt.prod(scales) * pm.Normal("z", shape=60)
        row = pm.Gamma.dist(alpha=shape, beta=shape / pt.exp(effect[group]))
        pm.Censored("y", row, lower=None, upper=3.0, observed=np.minimum(time, 3.0))
        step = pmb.MinibatchMH()
    assert step.latent is not None  # groups are moved one by one


BOUGHT = np.array([True, True, False, False])


@pytest.mark.parametrize(
    "log_of_sum",
    [
        lambda a, b: pt.log(pt.exp(a) + pt.switch(BOUGHT, pt.exp(b), 0)),
        lambda a, b: pt.log(pt.switch(BOUGHT, pt.exp(b), 0.0) + pt.exp(a)),
        lambda a, b: pt.log(pt.exp(a) + pt.switch(~BOUGHT, pt.zeros_like(b), pt.exp(b))),
    ],
)
@pytest.mark.parametrize("size", [0.0, 370.0, 500.0, 2000.0])
def test_the_logarithm_of_two_tiny_exponentials(log_of_sum, size):
    """The square of their sum is denormal or 0: its curvature had three digits, or none."""
    a, b = pt.dvector("a"), pt.dvector("b")
    term = twice_differentiable(log_of_sum(a, b))
    slopes = grad(term.sum(), [a, b])
    second = [grad(slopes[0].sum(), a), grad(slopes[0].sum(), b), grad(slopes[1].sum(), b)]
    evaluate = compile_all([a, b], [term, *slopes, *second])
    away = np.array([0.3, -2.0, 0.3, 1.0])
    found = evaluate(np.full(4, -size), away - size)
    share = np.where(BOUGHT, 1 / (1 + np.exp(-away)), 0.0)
    total = np.where(BOUGHT, np.log1p(np.exp(away)), 0.0) - size
    curvature = share * (1 - share)
    for own, right in zip(
        found, [total, 1 - share, share, curvature, -curvature, curvature], strict=True
    ):
        np.testing.assert_allclose(own, right, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize(
    "term",
    [
        lambda a, b: pt.log(pt.exp(a) + b),
        lambda a, b: pt.log(pt.exp(a) + pt.switch(BOUGHT, pt.exp(b), 1.0)),
        lambda a, b: pt.log(pt.switch(BOUGHT, pt.exp(a), 0) + pt.switch(BOUGHT, pt.exp(b), 0)),
        lambda a, b: pt.log(pt.exp(a) + pt.exp(b) + 1.0),
    ],
)
def test_other_logarithms_are_left_alone(term):
    graph = term(pt.dvector("a"), pt.dvector("b"))
    assert equal_computations([twice_differentiable(graph)], [graph])
