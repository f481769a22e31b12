"""Products of matrices that are loops, and functions called by address."""

import numpy as np
import pytensor.tensor as pt
import pytest
from numba import njit
from pymc.pytensorf import compile as pymc_compile

from pymc_minibatch.jit.compiled import NUMBA_MODE, compile_numba
from pymc_minibatch.jit.matvec import MatVec
from pymc_minibatch.jit.pointers import (
    address_of,
    address_of_graph,
    call_array,
    call_graph,
    call_scalar,
)

SHAPES = {
    "matrix @ vector": ((None, 4), (4,)),
    "matrix @ column": ((None, 4), (4, 1)),
    "row @ matrix": ((1, 4), (4, None)),
    "vector @ matrix": ((4,), (4, None)),
    "matrix @ matrix": ((None, 4), (4, 3)),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_products_are_those_of_numpy(shapes, transposed, dtype):
    rng = np.random.default_rng(1)
    left, right = (
        rng.normal(size=[7 if n is None else n for n in shape]).astype(dtype) for shape in shapes
    )
    if transposed:
        a, b = (
            pt.tensor(dtype=dtype, shape=shapes[0][::-1]),
            pt.tensor(dtype=dtype, shape=shapes[1]),
        )
        product, arguments = a.T @ b, (np.ascontiguousarray(left.T), right)
    else:
        a, b = (pt.tensor(dtype=dtype, shape=shape) for shape in shapes)
        product, arguments = a @ b, (left, right)
    actual = compile_numba([a, b], [product])(*arguments)
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual, left @ right, rtol=1e-5 if dtype == "float32" else 1e-13)


def test_python_gives_the_same():
    a, x = np.arange(6.0).reshape(2, 3), np.array([1.0, -1.0, 2.0])
    product = MatVec()(pt.constant(a), pt.constant(x))
    np.testing.assert_array_equal(product.eval(mode="FAST_COMPILE"), a @ x)


@njit
def scaled(values, factor):
    if factor < 0:
        raise ValueError("negative")
    return values * factor


@njit
def total(values):
    return values.sum()


@njit
def scaled_by_address(address, values, factor):
    return call_array(address, (values, factor))


def test_a_function_is_called_by_address():
    values = np.arange(4.0)
    address = address_of(scaled, values, 2.0)
    np.testing.assert_array_equal(scaled_by_address(address, values, 2.0), 2.0 * values)

    @njit
    def total_by_address(address, values):
        return call_scalar(address, (values,))

    assert total_by_address(address_of(total, values), values) == 6.0


def test_errors_come_through():
    values = np.arange(4.0)
    with pytest.raises(ValueError, match="negative"):
        scaled_by_address(address_of(scaled, values, 2.0), values, -1.0)


def test_memory_is_given_back():
    """A result that is not released would keep 8 MB each time."""
    import resource

    values = np.zeros(1_000_000)
    address = address_of(scaled, values, 2.0)
    scaled_by_address(address, values, 2.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        scaled_by_address(address, values, 2.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_results_that_are_not_contiguous_are_copied():
    """Read by their address they would be taken for contiguous ones."""

    @njit
    def graph(*arguments):
        return (arguments[0].T,)

    @njit
    def of_vectors(*arguments):
        return (arguments[0][0],)

    matrix = np.arange(6.0).reshape(2, 3)
    address, _kept_alive = address_of_graph(graph, matrix)
    call = njit(lambda address, matrix: call_graph(address, (matrix,))[0])
    np.testing.assert_array_equal(call(address, matrix), matrix.T)
    with pytest.raises(TypeError, match="The graph returns"):
        address_of_graph(of_vectors, matrix)


@pytest.mark.parametrize("shapes", [((None, 3, 4), (None, 4, 2)), ((None, 1, 5), (None, 5, 5))])
def test_products_of_many_small_matrices_call_nothing(shapes):
    rng = np.random.default_rng(1)
    symbols = [pt.tensor3(shape=shape) for shape in shapes]
    values = [rng.normal(size=(7, *shape[1:])) for shape in shapes]
    function = compile_numba(symbols, [pt.matmul(*symbols)])
    np.testing.assert_allclose(function(*values), values[0] @ values[1], rtol=1e-13)
    ops = {type(node.op).__name__ for node in rewritten(symbols, pt.matmul(*symbols))}
    assert "BatchedDot" not in ops


def rewritten(inputs, output):
    """Return the nodes of a graph as it is compiled."""
    compiled = pymc_compile(inputs, [output], mode=NUMBA_MODE)
    return compiled.maker.fgraph.apply_nodes
