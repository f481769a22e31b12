"""Rows that are taken from what is computed for more of them are taken before."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.basic import Join
from pytensor.tensor.extra_ops import Repeat
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import AdvancedSubtensor

import pymc_minibatch as pmb
from pymc_minibatch.tall.slicing import data_leaves, leaf_value
from pymc_minibatch.tall.some_rows import taken_first

N, G, K = 500, 20, 3
RNG = np.random.default_rng(1)
X, MATRIX = RNG.normal(size=N), RNG.normal(size=(N, K))
GROUP, OTHER = RNG.integers(0, G, (2, N))
SEEN = RNG.random(N) < 0.4
NUMBERS = RNG.permutation(N)[:150]
BOTH = RNG.random((N, G)) < 0.3
OF_GROUPS = RNG.normal(size=G)

BETA, EFFECT, TABLE, OWN = (
    pt.vector("b", shape=(K,)),
    pt.vector("u", shape=(G,)),
    *(
        pt.matrix("t", shape=(G, G)),
        pt.vector("own", shape=(N,)),
    ),
)
PARAMETERS = [BETA, EFFECT, TABLE, OWN]
VALUES = [RNG.normal(size=variable.type.shape) for variable in PARAMETERS]

TAKEN = {
    "mask": lambda: (BETA[0] * X + EFFECT[GROUP])[SEEN],
    "numbers": lambda: pt.exp(BETA[0] * X)[NUMBERS],
    "numbers from the end": lambda: pt.exp(BETA[0] * X)[NUMBERS - N],
    "slice": lambda: (BETA[0] * X + EFFECT[GROUP])[7:-20],
    "slice backwards": lambda: (BETA[0] * X)[::-2],
    "product": lambda: (pt.dot(MATRIX, BETA) + 1.0)[SEEN],
    "product with a vector": lambda: (MATRIX @ BETA)[NUMBERS],
    "columns": lambda: (MATRIX * BETA)[SEEN].sum(axis=1),
    "sum": lambda: (MATRIX * BETA).sum(axis=1)[SEEN],
    "column": lambda: (MATRIX * BETA)[:, 1][NUMBERS],
    "cells": lambda: (TABLE[GROUP, OTHER] * X)[SEEN],
    "values of rows": lambda: (OWN * X)[NUMBERS],
    "cells of one column": lambda: (TABLE[GROUP, 1] * X)[SEEN],
    "cells of one row": lambda: (TABLE[2, GROUP] * X)[NUMBERS],
    "twice": lambda: (EFFECT[GROUP] * X)[NUMBERS][:70],
    "of a mask": lambda: (EFFECT[GROUP] * X)[SEEN][np.arange(40)],
    "entries": lambda: (OWN[:, None] * pt.exp(EFFECT) - X[:, None])[BOTH],
    "entries by numbers": lambda: (X[:, None] * EFFECT)[np.nonzero(BOTH)],
    "slice of rows of a matrix": lambda: (X[:, None] * BETA)[3:][:, 1:],
    "rows of a matrix": lambda: (X[:, None] * BETA)[SEEN],
}


def evaluated(graph):
    return pytensor.function(PARAMETERS, graph, on_unused_input="ignore")(*VALUES)


@pytest.mark.parametrize("make", TAKEN.values(), ids=TAKEN)
def test_rows_that_are_taken_first_are_the_same(make):
    graph = make()
    [found] = taken_first([graph])
    assert found is not graph
    np.testing.assert_allclose(evaluated(found), evaluated(graph), rtol=1e-13)
    assert N not in {n for leaf in data_leaves([found]) for n in leaf_value(leaf).shape}


LEFT = {
    "levels": lambda: pt.exp(EFFECT)[GROUP],
    "levels with data of their own": lambda: (EFFECT + BETA[0] * OF_GROUPS)[GROUP],
    "rows that come twice": lambda: (BETA[0] * X)[np.repeat(np.arange(N), 2)],
    "a sum over rows": lambda: pt.cumsum(EFFECT)[3:],
    "parameters": lambda: pt.exp(EFFECT)[:5],
    "columns": lambda: (X[:, None] * BETA)[:, 1:],
    "rows and columns": lambda: (X[:, None] * BETA)[3:, 1:],
    "rows in one column": lambda: (X[:, None] * BETA)[SEEN, 1:],
    "one column": lambda: (X[:, None] * BETA)[SEEN, 1],
    "one row": lambda: (BETA[0] * X)[3],
    "data": lambda: BETA[0] * pt.as_tensor(X)[SEEN],
}


@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_what_is_no_selection_of_rows_is_left_alone(make):
    graph = make()
    [found] = taken_first([graph])
    assert found is graph


def test_what_takes_rows_together_is_computed_before():
    graph = (pt.cumsum(BETA[0] * X) + X)[SEEN]
    [found] = taken_first([graph])
    np.testing.assert_allclose(evaluated(found), evaluated(graph), rtol=1e-13)


def two_parts():
    """Rows of two equations, each of which takes its own."""
    with pm.Model() as model:
        a, u = pm.Normal("a"), pm.Normal("u", shape=G)
        mu = pm.math.exp(0.1 * (a * pm.Data("x", X) + u[GROUP]))
        y = RNG.poisson(1.0, N)
        pm.Poisson("y", mu[SEEN], observed=y[SEEN])
    return model


def answers():
    """The entries of a matrix that were seen, one below the other."""
    with pm.Model() as model:
        ability, difficulty = pm.Normal("ability", shape=N), pm.Normal("difficulty", shape=G)
        p = pm.math.sigmoid(ability[:, None] - difficulty)
        pm.Bernoulli("y", p[BOTH], observed=RNG.integers(0, 2, BOTH.sum()))
    return model


@pytest.mark.parametrize("make", [two_parts, answers])
def test_a_batch_reads_its_own_rows(make):
    model = make()
    tall = pmb.TallModel(model)
    rng = np.random.default_rng(2)
    point = {name: rng.normal(size=np.shape(v)) for name, v in model.initial_point().items()}
    [own] = model.compile_logp(model.observed_RVs, sum=False)(point)
    np.testing.assert_allclose(tall.row_logp(point, np.arange(own.size)), own, rtol=1e-12)
    [term] = tall.batch_graph[1]
    assert not {N, N * G} & {n for leaf in data_leaves([term]) for n in leaf_value(leaf).shape}


def test_a_likelihood_of_some_rows_beside_that_of_all():
    """It is short, and belongs to the prior part, which computes its own rows only."""
    with pm.Model() as model:
        a, u = pm.Normal("a"), pm.Normal("u", shape=G)
        eta = a * pm.Data("x", X) + u[GROUP]
        pm.Normal("y", eta, 1.0, observed=RNG.normal(size=N))
        pm.Poisson("count", pm.math.exp(eta[NUMBERS]), observed=RNG.poisson(1.0, NUMBERS.size))
    tall = pmb.TallModel(model)
    assert tall.row_names == ["y"]
    rng, logp = np.random.default_rng(3), model.compile_logp()
    for _ in range(3):
        point = {name: rng.normal(size=np.shape(v)) for name, v in model.initial_point().items()}
        np.testing.assert_allclose(tall.logp(point), logp(point), rtol=1e-9)
    assert N not in {n for leaf in data_leaves([tall.prior_graph]) for n in leaf_value(leaf).shape}


FIRST = 180
OLD, NEW = slice(None, FIRST), slice(FIRST, None)
COUNTS = RNG.multinomial(N, np.ones(G) / G)
LONG = pt.vector("long", shape=(25,))
PARAMETERS.append(LONG)
VALUES.append(RNG.normal(size=25))


def parts(old, new):
    return lambda: pt.concatenate([old(OLD), new(NEW)])


PUT_TOGETHER = {
    "one array": (parts(lambda i: EFFECT[GROUP[i]], lambda i: EFFECT[OTHER[i]]), 1),
    "and more of one": (parts(lambda i: EFFECT[GROUP[i]] + BETA[0], lambda i: EFFECT[GROUP[i]]), 1),
    "alike": (parts(lambda i: pt.exp(EFFECT[GROUP[i]]), lambda i: pt.exp(EFFECT[GROUP[i]])), 1),
    "with factors": (
        parts(lambda i: BETA[0] * EFFECT[GROUP[i]], lambda i: X[i] * BETA[1] * EFFECT[OTHER[i]]),
        1,
    ),
    "squares": (
        parts(lambda i: EFFECT[GROUP[i]] * EFFECT[GROUP[i]], lambda i: EFFECT[GROUP[i]] * X[i]),
        2,
    ),
    "unlike": (parts(lambda i: pt.exp(EFFECT[GROUP[i]]), lambda i: X[i] * BETA[0]), 1),
    "numbers": (
        parts(lambda i: BETA[0] * np.ones(FIRST), lambda i: BETA[1] * np.ones(N - FIRST)),
        0,
    ),
    "spread": (
        parts(lambda i: pt.ones(FIRST) * BETA[0], lambda i: pt.alloc(BETA[1], N - FIRST)),
        0,
    ),
    "products": (parts(lambda i: pt.dot(MATRIX[i], BETA), lambda i: MATRIX[i] @ BETA), 0),
    "sums of one number": (
        parts(
            lambda i: pt.full((FIRST, 3), BETA[0]).sum(axis=1),
            lambda i: (pt.ones((N - FIRST, 2)) * BETA[1]).sum(axis=1),
        ),
        None,
    ),
    "columns of one number": (
        parts(lambda i: pt.full((FIRST, 5), BETA[0])[:, 3], lambda i: X[i] * BETA[1]),
        None,
    ),
    "rows of one number": (
        parts(lambda i: pt.full((FIRST, 3), BETA[0]), lambda i: pt.full((N - FIRST, 3), BETA[1])),
        None,
    ),
    "three": (
        lambda: pt.concatenate(
            [EFFECT[GROUP[:100]], BETA[:1], EFFECT[GROUP[101:300]] * X[101:300], OWN[300:]]
        ),
        3,
    ),
    "repeated": (lambda: pt.repeat(EFFECT, COUNTS) + X, 1),
    "repeated together": (lambda: pt.repeat(BETA[0] * EFFECT, N // G) + X, 1),
    "a grid": (lambda: (LONG[:, None] + EFFECT).flatten() * X, 2),
    "a grid across": (lambda: (LONG[:, None] * EFFECT + X.reshape(25, G)).T.ravel(), 2),
    "tiles": (lambda: pt.tile(EFFECT, 25) + X, 1),
    "rows of a matrix": (
        lambda: pt.concatenate([MATRIX[OLD] * BETA, MATRIX[NEW] + BETA]),
        0,
    ),
}


@pytest.mark.parametrize(("make", "n_gathers"), PUT_TOGETHER.values(), ids=PUT_TOGETHER)
def test_rows_that_are_put_together_are_the_same(make, n_gathers):
    """Each row reads its own entry; what several kinds of rows gather from is gathered once."""
    graph = make()
    [found] = taken_first([graph * X if graph.type.ndim == 1 else graph * X[:, None]])
    expected = evaluated(graph) * (X if graph.type.ndim == 1 else X[:, None])
    np.testing.assert_allclose(evaluated(found), expected, rtol=1e-13)
    nodes = io_toposort([], [found])
    if n_gathers is None:
        return  # they may stay as they are
    assert not any(isinstance(node.op, Join | Repeat | Reshape) for node in nodes)
    assert sum(isinstance(node.op, AdvancedSubtensor) for node in nodes) == n_gathers


def smooths_by_site(sizes, widths, rng):
    """Write a smooth for each site, the bases computed from the days of its rows."""
    days, parts = [rng.uniform(-1, 1, n) for n in sizes], []
    for i, (own, width) in enumerate(zip(days, widths, strict=True)):
        column = pt.as_tensor(own[None, :, None, None])[0, :, :, 0]
        basis = pt.sin(column * np.arange(1.0, width + 1))
        weights = pm.Normal(f"w{i}", 0, 1, shape=width)
        parts.append(pm.math.dot(basis, (weights * pt.exp(0.1 * weights[0]))[:, None])[:, 0])
    return pt.concatenate(parts)[rng.permutation(sum(sizes))]


@pytest.mark.parametrize("widths", [(4, 4, 4), (3, 4, 2)])
def test_products_that_are_put_together_read_the_coefficients_of_their_own_part(widths):
    rng, sizes = np.random.default_rng(5), (210, 120, 71)
    with pm.Model() as model:
        mean = smooths_by_site(sizes, widths, rng)
        pm.Normal("y", mean, 1.0, observed=rng.normal(size=sum(sizes)))
    tall, logp = pmb.TallModel(model), model.compile_logp()
    assert len(tall.structure.terms) == max(widths)
    assert all(term.index is not None for term in tall.structure.terms)
    for _ in range(3):
        point = {name: rng.normal(size=np.shape(v)) for name, v in model.initial_point().items()}
        np.testing.assert_allclose(tall.logp(point), logp(point), rtol=1e-9)


@pytest.mark.parametrize("as_column", [False, True])
def test_products_with_the_same_coefficients_stay_products(as_column):
    """Rows read one vector, however it is written."""
    rng, sizes = np.random.default_rng(6), (210, 120, 71)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        designs = [rng.normal(size=(n, 3)) for n in sizes]
        parts = [(x @ beta[:, None])[:, 0] if as_column else pt.dot(x, beta) for x in designs]
        pm.Normal("y", pt.concatenate(parts), 1.0, observed=rng.normal(size=sum(sizes)))
    terms = pmb.TallModel(model).structure.terms
    assert all(term.index is None for term in terms)


@pytest.mark.parametrize("width", [40, 3])
def test_wide_products_are_not_gathered(width):
    """Rows that are padded to many columns would take more memory than the data."""
    rng, sizes = np.random.default_rng(7), (300, 120, 71)
    widths = (2, 2, width) if width > 32 else (width, 40, 2)
    pairs = list(zip(sizes, widths, strict=True))
    coefficients = [pt.vector(f"w{i}", shape=(k,)) for i, (_, k) in enumerate(pairs)]
    parts = [pt.dot(rng.normal(size=pair), w) for pair, w in zip(pairs, coefficients, strict=True)]
    [found] = taken_first([pt.concatenate(parts) * rng.normal(size=sum(sizes))])
    nodes = io_toposort(coefficients, [found])
    assert not any(isinstance(node.op, AdvancedSubtensor | Join) for node in nodes)


@pytest.mark.parametrize("holds_data", [False, True])
def test_a_model_of_rows_that_are_put_together(holds_data):
    """Some rows have one more term, and there may be several columns of rows of data."""
    y = RNG.normal(size=N)
    with pm.Model() as model:
        keep = pm.Data if holds_data else lambda _, values: values
        old, new = keep("old", GROUP[OLD]), keep("new", GROUP[NEW])
        level = pm.Normal("level", pm.Normal("mu"), pm.HalfNormal("sd"), shape=G)
        mean = pt.concatenate([level[old] + pm.Normal("drift"), level[new]])
        pm.Normal("y", mean, 1, observed=y)
    description = str(pmb.TallModel(model).describe())
    assert description.count(f"({G} effects)") == 1
    assert pmb.MinibatchMH(model=model).latent is not None
