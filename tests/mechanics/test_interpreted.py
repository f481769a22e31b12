"""Graphs in NumPy give what machine code gives; machine code that is linked is as right."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import sleep

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numba import njit
from scipy.linalg import solve_triangular

import pymc_minibatch as pmb
from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba, jit_kept
from pymc_minibatch.jit.interpreted import Interpreted, evaluator
from pymc_minibatch.jit.made_once import made_once
from pymc_minibatch.reference import taylor
from pymc_minibatch.tall import NotTallError

X, Y = pt.dvector("x"), pt.dvector("y")
N = pt.lvector("n")

GRAPHS = {
    "sums": X + Y + 1.5 + N,
    "products": X * Y * N / 3.0,
    "softplus": pt.softplus(X),
    "log1mexp": pt.log1mexp(-pt.abs(X) - 1e-8),
    "sigmoid": pt.sigmoid(X) ** 3,
    "switch": pt.switch(X > Y, pt.exp(X), pt.log(pt.abs(Y) + 1.0)),
    "logic": pt.cast(pt.or_(pt.and_(X > 0, Y > 0), pt.invert(pt.isnan(X))), "float64"),
    "clip": pt.clip(X, -0.5, 0.5) + pt.sign(Y) + pt.sqr(X) + pt.reciprocal(Y),
    "gamma": pt.gammaln(pt.abs(X) + 1) + pt.digamma(pt.abs(Y) + 1) + pt.tri_gamma(pt.abs(X) + 1),
    "erf": pt.erf(X) + pt.erfc(Y) + pt.erfcx(pt.abs(X)),
    "whole_numbers": N // 2 + N % 3,
    "narrow": pt.cast(X, "float32") * pt.cast(0.1, "float32"),
    "gathered": X[N % 3] * Y,
    "reduced": X - pt.logsumexp(pt.stack([X, Y], axis=1), axis=1) + pt.max(Y) + pt.sum(X),
    "product": pt.outer(X, Y) @ Y,
    "compositions": (X**3 + X**2 + Y**-2) * pt.sqrt(pt.abs(X)),
}


@pytest.fixture(scope="module")
def values():
    rng = np.random.default_rng(1)
    return rng.normal(0, 2, 100), rng.normal(0, 2, 100), rng.integers(1, 20, 100)


@pytest.mark.parametrize("name", GRAPHS)
def test_numpy_does_what_machine_code_does(name, values):
    found = evaluator([X, Y, N], [GRAPHS[name]])
    assert isinstance(found, Interpreted)
    expected = compile_numba([X, Y, N], [GRAPHS[name]])(*values)
    actual = found(*values)
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-6 if name == "narrow" else 1e-12)


def test_log1mexp_keeps_its_digits():
    x = -np.array([1e-12, 1e-3, 0.69, 0.7, 40.0])
    found = evaluator([X], [pt.log1mexp(X)])(x)
    expected = np.where(x > -1, np.log(-np.expm1(x)), np.log1p(-np.exp(x)))
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_it_is_called_by_threads_and_sent(values):
    found = evaluator([X, Y, N], [pt.sum(pt.exp(-X * Y) * N), X + 1])
    sent = pickle.loads(pickle.dumps(found))
    with ThreadPoolExecutor(4) as pool:
        totals = list(pool.map(lambda shift: found(values[0] + shift, *values[1:]), range(50)))
    again = [sent.outputs(values[0] + shift, *values[1:])[0] for shift in range(50)]
    np.testing.assert_array_equal(totals, again)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("b_ndim", [1, 2])
@pytest.mark.parametrize("unit_diagonal", [True, False])
def test_triangular_systems_of_rows(lower, b_ndim, unit_diagonal):
    """Threads solve those of different rows at once, with one matrix or one for each row."""
    rng = np.random.default_rng(3)
    right = pt.tensor("b", shape=(None, 3) if b_ndim == 1 else (None, 3, 2), dtype="float64")
    of_all, of_each = pt.dmatrix("a"), pt.dtensor3("c")
    solve = {"lower": lower, "b_ndim": b_ndim, "unit_diagonal": unit_diagonal}
    graphs = [pt.linalg.solve_triangular(a, right, **solve) for a in (of_all, of_each)]
    found = evaluator([of_all, of_each, right], graphs)
    assert isinstance(found, Interpreted)
    n = 8000
    b = rng.normal(size=(n, 3) if b_ndim == 1 else (n, 3, 2))
    matrices = rng.normal(size=(n, 3, 3)) + 3 * np.eye(3)

    def of_rows(rows):
        return found.outputs(matrices[0], matrices[rows], b[rows])

    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(of_rows, np.split(np.arange(n), 8)))
    scipys = partial(solve_triangular, lower=lower, unit_diagonal=unit_diagonal)
    expected = [[scipys(matrices[0], row) for row in b], list(map(scipys, matrices, b))]
    for k in range(2):
        actual = np.concatenate([part[k] for part in parts])
        np.testing.assert_allclose(actual, expected[k], rtol=1e-9, atol=1e-12)


def test_loops_over_rows_that_threads_would_share_are_compiled():
    """PyTensor's own loop keeps the row at hand where all threads write it."""
    of_each = pt.dtensor3("c")
    graph = pt.linalg.cholesky(of_each)
    assert not isinstance(evaluator([of_each], [graph]), Interpreted)


def test_what_numpy_cannot_do_is_compiled(values):
    total, _ = pytensor.scan(
        lambda x, total: 0.5 * total + x, [X], [pt.constant(0.0, dtype="float64")]
    )
    found = evaluator([X], [total])
    assert isinstance(found, CompiledFunction)
    assert found(values[0]).shape == (100,)


def test_a_shared_variable_is_refused():
    with pytest.raises(ValueError, match="shared variables"):
        evaluator([X], [X + pytensor.shared(1.0)])


def test_remainders_compiled_wrongly_are_refused(monkeypatch):
    rng = np.random.default_rng(2)
    x = rng.normal(size=500)
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(0.1 * pm.Normal("b") * x), observed=rng.poisson(1.0, 500))

    def wrong(inputs, outputs):
        return compile_numba(inputs, [graph * (1 + 1e-7) for graph in outputs])

    tall = pmb.TallModel(model)
    monkeypatch.setattr(taylor, "for_few_rows", wrong)
    with pytest.raises(NotTallError, match="compiled wrongly"):
        taylor.compile_remainder(tall, 2)


PROGRAM = """
import numpy as np
from numba.extending import register_jitable
from pymc_minibatch.jit.compiled import jit_kept

@register_jitable
def deepest(x):
    if x[0] < 0:
        raise ValueError("negative")
    return np.sqrt(x)

@register_jitable
def inner(x):
    return deepest(x) + np.linalg.norm(x)

def outer(x):
    return inner(x).sum()

outer.__module__ = "pymc_minibatch.jit.compiled"
kept = jit_kept(outer, ["a test"])
print(kept(np.array([1.0, 4.0])), kept.stats.cache_hits)
for _ in range(2):
    try:
        kept(np.array([-1.0]))
    except ValueError as error:
        print(error)
"""


def test_linked_code_is_kept_and_raises(tmp_path):
    """Functions that are only linked have errors and allocate memory; in a second process too."""
    runs = [
        subprocess.run(
            [sys.executable, "-W", "error", "-c", PROGRAM],
            env={"PYTENSOR_FLAGS": f"base_compiledir={tmp_path}", "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        for _ in range(2)
    ]
    total = 3 + 2 * np.sqrt(17)
    for hits, run in enumerate(runs):
        assert run.stdout.split("\n")[1:3] == ["negative", "negative"], run.stderr
        printed, found = run.stdout.split("\n")[0].split(" ", 1)
        assert float(printed) == pytest.approx(total)
        assert ("Counter()" not in found) == bool(hits)


def test_code_linked_here_can_be_called_by_others():
    """A function compiled by Numba as usual calls one whose parts were only linked."""
    linked = compile_numba([X], [pt.exp(X) * pt.sum(X)]).jitted
    jit_kept(lambda x: linked(x)[0].sum(), [None])(np.ones(2))

    @njit
    def usual(x):
        return linked(x)[0]

    np.testing.assert_allclose(usual(np.ones(2)), 2 * np.exp([1, 1]))


def test_threads_wait_for_what_one_of_them_makes():
    made = []

    class Holder:
        @made_once
        def value(self):
            made.append(1)
            sleep(0.05)
            return object()

    holder = Holder()
    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(lambda _: holder.value, range(8)))
    assert len(made) == 1
    assert all(value is values[0] for value in values)
