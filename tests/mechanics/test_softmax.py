"""Softmax is put together again in the log-likelihood of categorical rows."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import ancestors
from pytensor.tensor.special import LogSoftmax
from scipy.special import log_softmax

import pymc_minibatch as pmb
from pymc_minibatch.tall.softmax import with_softmax


def operations(output):
    return {type(v.owner.op) for v in ancestors([output]) if v.owner}


def softmax_by_hand(x, axis):
    e = pt.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


@pytest.fixture(scope="module")
def tall():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(200, 2)), rng.integers(0, 3, 200)
    with pm.Model() as model:
        scores = X @ pm.Normal("beta", shape=(2, 3))
        pm.Categorical("y", logit_p=scores, observed=y)
    return pmb.TallModel(model), X, y


def test_rows_are_finite_where_a_probability_underflows(tall):
    tall, X, y = tall
    assert LogSoftmax in operations(tall.batch_graph[1][0])
    beta = np.random.default_rng(2).normal(0, 1000, (2, 3))
    found = tall.row_logp({"beta": beta}, np.arange(200))
    np.testing.assert_allclose(found, log_softmax(X @ beta, axis=1)[np.arange(200), y], rtol=1e-12)


@pytest.mark.parametrize("axis", [0, 1])
def test_found_along_either_axis(axis):
    x = pt.dmatrix("x")
    folded = with_softmax(pt.log(softmax_by_hand(x, axis)[1]), [x])
    assert LogSoftmax in operations(folded)
    values = np.random.default_rng(3).normal(size=(4, 5))
    np.testing.assert_allclose(folded.eval({x: values}), log_softmax(values, axis=axis)[1])


def test_what_only_resembles_it_is_left_alone():
    x, z = pt.dmatrix("x"), pt.dmatrix("z")
    e = pt.exp(x - x.max(axis=1, keepdims=True))
    others = [
        pt.log(e / e.sum(axis=0, keepdims=True)),
        pt.log(e / e.sum()),
        pt.log(pt.exp(x - z.max(axis=1, keepdims=True)) / e.sum(axis=1, keepdims=True)),
        pt.log(softmax_by_hand(x, 1).sum(axis=0)),
    ]
    for output in others:
        assert LogSoftmax not in operations(with_softmax(output, [x, z]))
