"""e^x, logarithms and the like as they are compiled here, against NumPy and SciPy."""

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.pytensorf import compile as pymc_compile
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import All
from scipy.special import erf, erfc, erfcx, expit, gammaln, psi

from pymc_minibatch.jit.branchless import (
    BRANCHLESS,
    BranchlessLog,
    BranchlessLog1p,
    Entrywise,
    InlinedComposite,
)
from pymc_minibatch.jit.compiled import NUMBA_MODE, compile_numba


def log1mexp(x):
    return np.where(x > -np.log(2), np.log(-np.expm1(x)), np.log1p(-np.exp(x)))


FUNCTIONS = {
    "exp": (pt.exp, np.exp),
    "expm1": (pt.expm1, np.expm1),
    "erf": (pt.erf, erf),
    "sigmoid": (pt.sigmoid, expit),
    "softplus": (pt.softplus, partial(np.logaddexp, 0.0)),
    "log": (pt.log, np.log),
    "log1p": (pt.log1p, np.log1p),
    "log1mexp": (pt.log1mexp, log1mexp),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint8"])
def test_vectors(name, dtype):
    """To the last digits, where PyTensor may reorder sums."""
    symbolic, numeric = FUNCTIONS[name]
    x = pt.vector("x", dtype=dtype)
    compiled = compile_numba([x], [symbolic(x)])
    values = np.linspace(0 if dtype == "uint8" else -80, 88, 10_001).astype(dtype)
    found = compiled(values)
    epsilon = np.finfo(found.dtype).eps
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = numeric(values.astype(found.dtype))
    np.testing.assert_allclose(found, expected, rtol=4 * epsilon)


def test_log1mexp_of_all_sizes():
    x, values = pt.vector("x"), -(2.0 ** np.random.default_rng(3).uniform(-1070, 11, 10_000))
    found = compile_numba([x], [pt.log1mexp(x)])(values)
    np.testing.assert_allclose(found, log1mexp(values), rtol=1e-15)


def test_powers():
    """As close as the logarithm of the result allows; of negative numbers if y is whole."""
    x, y = pt.vectors("x", "y")
    rng = np.random.default_rng(3)
    bases = np.concatenate([rng.normal(size=5000), 2.0 ** rng.uniform(-300, 300, 5000)])
    powers = np.concatenate([rng.integers(-9, 10, 2500), 3 * rng.normal(size=7500)])
    special = np.array([0.0, 1.0, -1.0, np.inf, np.nan, -2.0, 0.5])
    bases = np.concatenate([bases, np.repeat(special, special.size)])
    powers = np.concatenate([powers, np.tile(np.array([0.0, 1.0, -1.0, 2.0, 0.5, -3, 1e3]), 7)])
    found = compile_numba([x, y], [x**y])(bases, powers)
    with np.errstate(all="ignore"):
        expected = bases**powers
        digits = 1 + np.abs(powers * np.log(np.abs(bases)))
        error = np.abs(found / expected - 1) / digits
    apart = ~((found == expected) | (np.isnan(found) & np.isnan(expected)) | (error < 1e-15))
    assert not apart.any(), (bases[apart], powers[apart], found[apart], expected[apart])


@pytest.mark.parametrize("name", ["log", "log1p"])
def test_logarithms_of_all_sizes(name):
    """From the least number to the largest, and near those whose logarithm is zero."""
    symbolic, numeric = FUNCTIONS[name]
    x = pt.vector("x")
    rng = np.random.default_rng(3)
    near = rng.normal(0, 10.0 ** rng.uniform(-15, -1, 10_000)) + (name == "log")
    values = np.concatenate([2.0 ** rng.uniform(-1074, 1024, 10_000), near])
    found = compile_numba([x], [symbolic(x)])(values)
    np.testing.assert_allclose(found, numeric(values), rtol=5e-16)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint8"])
def test_log_gamma(dtype):
    """To 2e-14 of its size, or of 1 if that is smaller; poles included."""
    x = pt.vector("x", dtype=dtype)
    rng = np.random.default_rng(3)
    whole, small = np.arange(0.0, 256.0), rng.uniform(0, 20, 10_000)
    large = 2.0 ** rng.uniform(-1022, 1000, 10_000)
    near = 1.0 + rng.normal(0, 10.0 ** rng.uniform(-15, -1, 10_000))
    values = whole if dtype == "uint8" else np.concatenate([whole, -whole, 1000 * whole])
    if dtype == "float64":
        ends = [np.inf, np.nan, -0.0, -1e17, 1e-308, -1e-304, -1e-308]
        values = np.concatenate([values, small, -small, large, near, near + 1.0, ends])
    found = compile_numba([x], [pt.gammaln(x)])(values.astype(dtype))
    expected = gammaln(values)
    rtol = 2e-14 if found.dtype == np.float64 else 1e-6
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize(
    ("symbolic", "numeric"),
    [(pt.erf, erf), (pt.erfc, erfc), (pt.erfcx, erfcx), (pt.expm1, np.expm1)],
)
def test_error_functions(symbolic, numeric):
    """To 1e-15 within a few standard deviations; SciPy loses digits of e^(−x²) beyond."""
    x = pt.vector("x")
    compiled, rng = compile_numba([x], [symbolic(x)]), np.random.default_rng(3)
    near = np.concatenate([rng.uniform(-2, 2, 10_000), rng.normal(0, 1e-5, 1000)])
    np.testing.assert_allclose(compiled(near), numeric(near), rtol=2e-15)
    ends = [0.0, 30.0, -30.0, 1e4, -1e4, 1e200, -1e200, np.inf, -np.inf, np.nan]
    far = np.concatenate([rng.uniform(-26, 26, 10_000), ends])
    np.testing.assert_allclose(compiled(far), numeric(far), rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_digamma(dtype):
    """To 1e-14 of its size, or of 1 if that is smaller; SciPy loses digits beside poles."""
    x = pt.vector("x", dtype=dtype)
    rng = np.random.default_rng(3)
    whole, small = np.arange(1.0, 256.0), rng.uniform(0, 20, 10_000)
    values = np.concatenate([[0.0], whole, -whole, 1000 * whole])
    if dtype == "float64":
        large = 2.0 ** rng.uniform(-1000, 1000, 10_000)
        root = 1.4616321449683623 + rng.normal(0, 1e-3, 1000)
        beside = -np.rint(small) - rng.uniform(0.1, 0.9, small.size)
        ends = [np.inf, -np.inf, np.nan, 1e308]
        values = np.concatenate([values, small, beside, large, root, ends])
    found = compile_numba([x], [pt.psi(x)])(values.astype(dtype))
    np.testing.assert_allclose(found, psi(values), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    "likelihood",
    [
        lambda x, y: pm.logp(pm.Binomial.dist(y + 3, logit_p=x), y),
        lambda x, y: pm.logp(pm.Poisson.dist(pt.exp(x)), y),
        lambda x, y: pm.logp(pm.NegativeBinomial.dist(mu=pt.exp(x), alpha=2.5), y),
        lambda x, y: pm.logp(pm.Gamma.dist(alpha=pt.exp(x), beta=2.5), 1.0 + y),
        lambda x, y: pm.logp(pm.Censored.dist(pm.Normal.dist(x), lower=2, upper=None), 2.0 + y),
        lambda x, y: pm.logp(pm.SkewNormal.dist(mu=x, sigma=1.0, alpha=2.0), 1.0 * y),
    ],
    ids=["binomial", "poisson", "negative binomial", "gamma", "censored normal", "skew normal"],
)
def test_likelihoods_are_one_loop_without_calls(likelihood):
    """A call in the loop over rows keeps the processor from computing several at once."""
    x, y = pt.vector("x"), pt.lvector("y")
    graph = pymc_compile([x, y], [likelihood(x, y)], mode=NUMBA_MODE).maker.fgraph
    of_rows = graph.outputs[0].owner.op
    assert isinstance(of_rows, Elemwise)
    assert isinstance(of_rows.scalar_op, InlinedComposite)
    rng = np.random.default_rng(4)
    values, counts = rng.normal(size=100), rng.integers(0, 9, 100)
    expected = likelihood(pt.constant(values), pt.constant(counts)).eval()
    found = compile_numba([x, y], [likelihood(x, y)])(values, counts)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_matrices(name):
    """Whatever their layout in memory; a row is an array of one dimension in all but name."""
    symbolic, numeric = FUNCTIONS[name]
    x, row = pt.dmatrix("x"), pt.drow("row")
    compiled = compile_numba([x, row], [symbolic(x.T), symbolic(row)])
    values = np.random.default_rng(1).exponential(size=(30, 7))
    for array in (values, np.asfortranarray(values), values[::2], values[:0]):
        found, found_row = compiled.outputs(array, values[:1])
        np.testing.assert_allclose(found, numeric(array.T), rtol=1e-15)
        np.testing.assert_allclose(found_row, numeric(values[:1]), rtol=1e-15)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_extremes(name):
    """Results may be too small for all digits of a double, or too large for any."""
    symbolic, numeric = FUNCTIONS[name]
    x = pt.vector("x")
    values = np.array([-np.inf, -1e4, -745.2, -744.4, -720, -708, -0.0, 708, 709.7, 1e4, np.inf])
    values = np.concatenate([values, [np.nan, 0.0, -1.0, 5e-324, 1e300]])
    with np.errstate(all="ignore"):
        expected = numeric(values)
    found = compile_numba([x], [symbolic(x)])(values)
    np.testing.assert_allclose(found, expected, rtol=1e-15, atol=5e-309)


def test_fused_with_other_operations():
    """A condition between two of them is a choice between results, in the loop over entries."""
    x, y = pt.vector("x"), pt.vector("y")
    chosen = pt.switch(pt.gt(y, 0), -pt.softplus(-x), x - pt.log1p(x**2) * pt.exp(-x))
    values, signs = np.random.default_rng(4).normal(size=(2, 1000))
    expected = np.where(
        signs > 0, -np.logaddexp(0, -values), values - np.log1p(values**2) * np.exp(-values)
    )
    found = compile_numba([x, y], [chosen])
    np.testing.assert_allclose(found(values, signs), expected, rtol=1e-13)
    graph = pymc_compile([x, y], [chosen], mode=NUMBA_MODE).maker.fgraph
    assert [type(node.op.scalar_op) for node in graph.apply_nodes] == [InlinedComposite]


def test_checks_that_cannot_fail():
    """They are left out; others, and results that are no numbers, stay what they are."""
    eta, p = pt.vector("eta"), pt.vector("p")
    y = np.array([1.0, 0.0, 1.0])
    of_eta = pm.logp(pm.Bernoulli.dist(logit_p=eta), y)
    of_p = pm.logp(pm.Bernoulli.dist(p=p), y)
    graph = pymc_compile([eta], [of_eta], mode=NUMBA_MODE).maker.fgraph
    assert not any(isinstance(node.op, All) for node in graph.apply_nodes)
    found = compile_numba([eta], [of_eta])(np.array([-800.0, 0.3, np.nan]))
    np.testing.assert_allclose(found[:2], [-800.0, -np.logaddexp(0, 0.3)])
    assert not np.isfinite(found[2])
    checked = compile_numba([p], [of_p])
    assert np.isinf(checked(np.array([0.5, 1.5, 0.5]))).all()
    assert np.isinf(checked(np.array([0.5, -0.1, 0.5]))).all()


@pytest.mark.parametrize("is_clipped", [False, True])
def test_one_logarithm_of_two(is_clipped):
    """What is chosen has one taken of it; so do probabilities that are kept from 0 and 1."""
    p, y = pt.vector("p"), pt.lvector("y")
    inside = pt.switch(pt.eq(p, 0), 1e-16, pt.switch(pt.eq(p, 1), 1 - 1e-16, p))
    inside = inside if is_clipped else p
    chosen = pt.switch(y, pt.log(inside), pt.log1p(-inside))
    kinds = [*_scalar_kinds(pymc_compile([p, y], [chosen], mode=NUMBA_MODE).maker.fgraph)]
    assert kinds.count(BranchlessLog) == 1
    assert BranchlessLog1p not in kinds
    values = np.random.default_rng(4).uniform(size=1000)
    values = np.concatenate([values, 10.0 ** -np.arange(1, 20), [-0.5, 1.5, np.nan]])
    compiled = compile_numba([p, y], [chosen])
    with np.errstate(invalid="ignore"):
        expected = np.log(values), np.log1p(-values)
    for each, of_each in zip((1, 0), expected, strict=True):
        found = compiled(values, np.full(values.size, each))
        np.testing.assert_allclose(found, of_each, rtol=1e-14, atol=2e-16)


def _scalar_kinds(graph):
    """List the kinds of operations on numbers, those within others included."""
    for node in graph.apply_nodes:
        scalar_op = getattr(node.op, "scalar_op", node.op)
        inner = getattr(scalar_op, "fgraph", None)
        yield from [type(scalar_op)] if inner is None else _scalar_kinds(inner)


@pytest.mark.parametrize(
    ("condition", "is_true"),
    [
        (lambda x: pt.ge(pt.exp(x), 0), True),
        (lambda x: pt.le(-1, pt.softplus(x)), True),
        (lambda x: pt.le(pt.sigmoid(x), 1), True),
        (lambda x: pt.ge(1, pt.sigmoid(x)[:, None]), True),
        (lambda x: pt.le(0.5 * pt.erfc(x), 1), True),
        (lambda x: pt.ge(2.0 * pt.exp(x), 0), True),
        (lambda x: pt.le(pt.switch(pt.eq(pt.sigmoid(x), 0), 1e-16, pt.sigmoid(x)), 1), True),
        (lambda x: pt.le(pt.switch(pt.eq(x, 0), 2.0, pt.sigmoid(x)), 1), False),
        (lambda x: pt.ge(pt.switch(pt.eq(x, 0), pt.sigmoid(x), x), 0), False),
        (lambda x: pt.ge(-2.0 * pt.exp(x), 0), False),
        (lambda x: pt.le(2.0 * pt.sigmoid(x), 1), False),
        (lambda x: pt.ge(x + 1.0, 0), False),
        (lambda x: pt.ge(x, 0), False),
        (lambda x: pt.gt(pt.exp(x), 0), False),
        (lambda x: pt.ge(pt.exp(x), 0.5), False),
        (lambda x: pt.le(pt.sigmoid(x), 0.5), False),
        (lambda x: pt.le(pt.exp(x), 1), False),
        (lambda x: pt.ge(0, pt.exp(x)), False),
    ],
)
def test_which_checks_cannot_fail(condition, is_true):
    x = pt.vector("x")
    graph = pymc_compile([x], [pt.all(condition(x))], mode=NUMBA_MODE).maker.fgraph
    read = graph.outputs[0].owner.inputs  # of a copy, where the output is a constant
    assert isinstance(read[0], Constant) == is_true


def test_in_python():
    """Where a graph that has been rewritten is evaluated without Numba."""
    x = pt.dmatrix("x")
    values = np.random.default_rng(2).normal(size=(3, 2))
    mode = Mode(linker="py", optimizer=None)
    for scalar_op in BRANCHLESS.values():
        found = Entrywise(scalar_op)(x).eval({x: values}, mode=mode)
        np.testing.assert_allclose(found, Elemwise(scalar_op)(x).eval({x: values}, mode=mode))


@pytest.mark.parametrize("powers", [-1, [0, -1, 2], [[0, -1, 2], [1, -2, 0]]])
def test_zero_to_whole_powers(powers):
    """Numba raises an exception if the power is negative, and a whole number."""
    powers = np.array(powers)
    x = pt.tensor("x", shape=powers.shape, dtype="float64")
    n = pt.tensor("n", shape=powers.shape, dtype="int64")
    found = compile_numba([x, n], [x**n])(np.zeros(powers.shape), powers)
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(found, np.zeros(powers.shape) ** powers)
