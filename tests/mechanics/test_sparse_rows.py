"""Products with sparse matrices of data are sums of what rows read."""

import bambi
import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.sparse as ps
import pytest
from scipy import sparse

import pymc_minibatch as pmb
from pymc_minibatch.tall.sparse_rows import without_sparse

N_ROWS = 300


def one_hot(rng, levels, present=1.0):
    """A grouping factor; some rows may have none of its levels."""
    rows = np.flatnonzero(rng.random(N_ROWS) < present)
    place = (rows, rng.integers(0, levels, rows.size))
    return sparse.csr_matrix((np.ones(rows.size), place), shape=(N_ROWS, levels))


def matrices():
    rng = np.random.default_rng(1)
    x = sparse.csr_matrix(rng.normal(size=(N_ROWS, 2)))
    factors = [one_hot(rng, 30), one_hot(rng, 12, present=0.7)]
    words = sparse.random(N_ROWS, 400, density=0.02, random_state=2, format="csr")
    words.data[:] = rng.integers(1, 4, words.nnz)
    twice = sparse.csr_matrix(
        (np.ones(2 * N_ROWS), np.repeat(rng.integers(0, 9, N_ROWS), 2), 2 * np.arange(N_ROWS + 1)),
        shape=(N_ROWS, 9),
    )  # each entry stored as 1 + 1
    return {
        "factors": sparse.hstack(factors, format="csr"),
        "with numbers": sparse.hstack([x, *factors, x], format="csr"),
        "words": words,
        "columns": sparse.hstack([words[:, :50], *factors], format="csc"),
        "stored twice": twice,
    }


def true_dot(matrix, columns):
    return ps.dense_from_sparse(ps.true_dot(matrix, columns))


PRODUCTS = [ps.dot, ps.structured_dot, true_dot]


@pytest.mark.parametrize("name", list(matrices()))
@pytest.mark.parametrize("product", PRODUCTS, ids=["dot", "structured", "true"])
@pytest.mark.parametrize("n_columns", [1, 3])
def test_products_are_the_same(name, product, n_columns):
    matrix = matrices()[name]
    w = pytensor.tensor.dvector("w")
    columns = w.reshape((matrix.shape[1], n_columns))
    whole = product(ps.as_sparse_variable(matrix), columns)
    [found] = without_sparse([whole])
    assert not any(isinstance(v.type, ps.SparseTensorType) for v in leaves(found))
    at = np.random.default_rng(3).normal(size=matrix.shape[1] * n_columns)
    value = pytensor.function([w], found, mode="FAST_COMPILE")(at)
    np.testing.assert_allclose(value, matrix @ at.reshape(-1, n_columns), rtol=1e-12, atol=1e-12)


def leaves(graph):
    return pytensor.graph.traversal.ancestors([graph])


def test_graphs_without_sparse_data_stay():
    w = pytensor.tensor.dvector("w")
    graph = 2.0 * w
    assert without_sparse([graph])[0] is graph
    uneven = sparse.lil_matrix((1000, 400))
    uneven[0] = 1.0
    product = ps.dot(ps.as_sparse_variable(uneven.tocsr()), w.reshape((400, 1)))
    assert without_sparse([product])[0] is product


def test_products_of_products():
    matrix = matrices()["factors"]
    square = sparse.random(42, 42, density=0.05, random_state=4, format="csr")
    w = pytensor.tensor.dvector("w")
    whole = ps.dot(ps.as_sparse_variable(matrix), ps.dot(ps.as_sparse_variable(square), w[:, None]))
    [found] = without_sparse([whole])
    at = np.random.default_rng(5).normal(size=42)
    value = pytensor.function([w], found, mode="FAST_COMPILE")(at)
    np.testing.assert_allclose(value[:, 0], matrix @ (square @ at), rtol=1e-12, atol=1e-12)


def logistic(matrix):
    rng = np.random.default_rng(6)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        w = pm.Normal("w", 0, 1, shape=matrix.shape[1])
        eta = intercept + ps.dot(ps.as_sparse_variable(matrix), w.reshape((-1, 1))).flatten()
        pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, N_ROWS))
    return model


def test_one_hot_columns_are_grouping_factors():
    model = logistic(matrices()["factors"])
    tall = pmb.TallModel(model)
    told = tall.describe()
    assert "(30 effects)" in told
    assert "(12 effects)" in told
    point = {"intercept": np.array(0.3), "w": np.random.default_rng(7).normal(size=42)}
    expected = model.compile_fn(model.logp(), mode="FAST_COMPILE")(point)
    assert tall.logp(point) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["with numbers", "words"])
def test_models_of_sparse_rows_are_tall(name):
    matrix = matrices()[name]
    model = logistic(matrix)
    tall = pmb.TallModel(model)
    point = {"intercept": np.array(0.3), "w": np.random.default_rng(8).normal(size=matrix.shape[1])}
    eta = 0.3 + matrix @ point["w"]
    y = model.rvs_to_values[model["y"]].eval()
    expected = -np.logaddexp(0, np.where(y == 1, -eta, eta))
    np.testing.assert_allclose(tall.row_logp(point, range(50)), expected[:50], rtol=1e-10)


def test_bambis_sparse_designs():
    rng = np.random.default_rng(9)
    frame = pd.DataFrame({"x": rng.normal(size=N_ROWS), "y": rng.integers(0, 2, N_ROWS)})
    frame["g"], frame["b"] = rng.choice(list("abcdef"), N_ROWS), rng.choice(list("pq"), N_ROWS)
    before = bambi.config["SPARSE_DOT"]
    logps = []
    for bambi.config["SPARSE_DOT"] in (True, False):
        model = bambi.Model("y ~ x + (1 + x | g) + (0 + b | g)", frame, family="bernoulli")
        model.build()
        tall = pmb.TallModel(model.backend.model)
        assert tall.structure is not None
        start = model.backend.model.initial_point()
        at = np.random.default_rng(10)
        point = {name: value + at.normal(0, 0.3, value.shape) for name, value in start.items()}
        logps.append(tall.row_logp(point, range(N_ROWS)))
    bambi.config["SPARSE_DOT"] = before
    np.testing.assert_allclose(*logps, rtol=1e-10)
