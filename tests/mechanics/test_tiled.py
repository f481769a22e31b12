"""A graph on tiles of rows gives what the whole graph gives, and takes little memory."""

import tracemalloc

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from gallery import GALLERY

from pymc_minibatch import NotTallError, TallModel
from pymc_minibatch.jit.compiled import compile_python
from pymc_minibatch.tall import check, passes, tiled
from pymc_minibatch.tall.tiled import TiledGraph

N, D = 30, 4
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, D)).astype(np.float32)
STACK = RNG.normal(size=(3, N, D))
GROUP = RNG.integers(0, D, N)
POINT = RNG.normal(size=D)

BY_ROW = {
    "product": lambda x, z, g, b: x @ b,
    "dot": lambda x, z, g, b: pt.dot(x, b),
    "product_from_the_left": lambda x, z, g, b: b @ x.T,
    "product_of_a_stack": lambda x, z, g, b: (z @ b).sum(axis=0),
    "stacks": lambda x, z, g, b: pt.matmul(z.transpose(1, 0, 2), pt.outer(b, b)).sum(axis=(1, 2)),
    "gather": lambda x, z, g, b: (x * pt.outer(b, b)[g]).sum(axis=1),
    "gather_of_numbers": lambda x, z, g, b: b[g],
    "columns": lambda x, z, g, b: x[:, 0] * b[0] + z[1, :, 2] - x[:, 1:3].max(axis=1),
    "powers": lambda x, z, g, b: (pt.exp(x) ** 2 + b).sum(axis=1),
}
ALL_ROWS = {
    "mean": lambda x, z, g, b: (x - x.mean(axis=0)) @ b,
    "mean_of_some": lambda x, z, g, b: x @ b - (x @ b)[3:].mean(),
    "length": lambda x, z, g, b: x @ b / x.shape[0],
    "reversed": lambda x, z, g, b: x[::-1] @ b,
    "shuffled": lambda x, z, g, b: x[pt.argsort(x[:, 0])] @ b,
    "of_every_row": lambda x, z, g, b: x @ b + pt.arange(N),
    "sorted": lambda x, z, g, b: pt.sort(x @ b),
    "cumulated": lambda x, z, g, b: pt.cumsum(x @ b),
    "gram": lambda x, z, g, b: x @ (x.T @ x @ b),
    "pairs": lambda x, z, g, b: (x[:, 0][:, None] * x[:, 0]).sum(axis=1),
    "chosen_by_truth": lambda x, z, g, b: (pt.arange(N) * b[0])[g > 1],
    "indexed_by_truth": lambda x, z, g, b: pt.concatenate([x[:, 0][g > 1], x[:, 0][g <= 1]]) * b[0],
}


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiled, "TILE_BYTES", 1000)


def inputs_and(build):
    point = pt.dvector("point")
    arrays = pt.fmatrix("x"), pt.dtensor3("z"), pt.lvector("g")
    return [point, *arrays], build(*arrays, point)


@pytest.mark.parametrize("name", BY_ROW | ALL_ROWS)
@pytest.mark.usefixtures("small_tiles")
def test_tiles_give_what_the_whole_graph_gives(name):
    inputs, output = inputs_and((BY_ROW | ALL_ROWS)[name])
    expected = compile_python(inputs, [output])(POINT, X, STACK, GROUP)
    actual = TiledGraph(inputs, output, [0, 1, 0])(POINT, [X, STACK, GROUP])
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("name", BY_ROW)
def test_what_is_by_row_reads_no_whole_array(name):
    inputs, output = inputs_and(BY_ROW[name])
    assert TiledGraph(inputs, output, [0, 1, 0]).read_whole == []


@pytest.mark.parametrize("name", GALLERY)
@pytest.mark.usefixtures("small_tiles")
def test_models_are_split_on_small_tiles(name):
    assert TallModel(GALLERY[name]()).n_rows == 40


def wide(dtype, centred=False):
    x = RNG.normal(size=(20_000, 200)).astype(dtype)
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=200)
        eta = pt.as_tensor(x) @ beta
        eta = eta - eta.mean() if centred else eta
        pm.Bernoulli("y", logit_p=eta, observed=RNG.random(20_000) < 0.5)
    return model, x.nbytes


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_splitting_makes_no_copy_of_the_data(dtype, monkeypatch):
    monkeypatch.setattr(tiled, "TILE_BYTES", 2**20)
    monkeypatch.setattr(check, "CHUNK_BYTES", 2**20)
    monkeypatch.setattr(passes, "CHUNK_BYTES", 2**18)
    model, n_bytes = wide(dtype)
    tracemalloc.start()
    tall = TallModel(model)
    tall.verify_at(tall.start)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.2 * n_bytes


def test_wide_rows_that_depend_on_each_other_are_refused():
    model, _ = wide("float32", centred=True)
    with pytest.raises(NotTallError, match="changes with the rows"):
        TallModel(model)
