"""e^x and the logistic function as they are compiled here, against NumPy and SciPy."""

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.tensor.elemwise import Elemwise
from scipy.special import expit

from pymc_minibatch.jit.branchless import BRANCHLESS, Entrywise
from pymc_minibatch.jit.compiled import compile_numba

FUNCTIONS = {"exp": (pt.exp, np.exp), "sigmoid": (pt.sigmoid, expit)}


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
    expected = numeric(values.astype(found.dtype))
    np.testing.assert_allclose(found, expected, rtol=4 * epsilon)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_matrices(name):
    """Whatever their layout in memory; a row is an array of one dimension in all but name."""
    symbolic, numeric = FUNCTIONS[name]
    x, row = pt.dmatrix("x"), pt.drow("row")
    compiled = compile_numba([x, row], [symbolic(x.T), symbolic(row)])
    values = np.random.default_rng(1).normal(size=(30, 7))
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
    values = np.append(values, np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = numeric(values)
    found = compile_numba([x], [symbolic(x)])(values)
    np.testing.assert_allclose(found, expected, rtol=1e-15, atol=5e-309)


def test_in_python():
    """Where a graph that has been rewritten is evaluated without Numba."""
    x = pt.dmatrix("x")
    values = np.random.default_rng(2).normal(size=(3, 2))
    mode = Mode(linker="py", optimizer=None)
    for scalar_op in BRANCHLESS.values():
        found = Entrywise(scalar_op)(x).eval({x: values}, mode=mode)
        np.testing.assert_allclose(found, Elemwise(scalar_op)(x).eval({x: values}, mode=mode))
