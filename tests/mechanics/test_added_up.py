"""What rows give to groups is added up in a loop of its own."""

import numpy as np
import pytensor.tensor as pt
import pytest
from pymc.pytensorf import compile as pymc_compile
from pytensor.tensor.rewriting.fused_elemwise import FusedElemwise

from pymc_minibatch.jit.compiled import IN_PYTHON, NUMBA_MODE, compile_numba
from pymc_minibatch.jit.lean import Unchecked


def slope(kind):
    """The slope of a log-likelihood by effects of groups, and its arguments."""
    effects, x, group = pt.dvector("effects"), pt.dvector("x"), pt.lvector("group")
    eta = effects[group] * x
    f = {"logistic": pt.log(pt.sigmoid(eta)), "poisson": x * eta - pt.exp(eta)}[kind]
    rng = np.random.default_rng(1)
    values = rng.normal(size=20), rng.normal(size=300), rng.integers(-20, 20, 300)
    return [effects, x, group], [pt.grad(f.sum(), effects)], values


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
def test_sums_by_group_are_the_same(kind):
    inputs, outputs, values = slope(kind)
    [expected] = pymc_compile(inputs, outputs, mode=IN_PYTHON)(*values)
    np.testing.assert_allclose(compile_numba(inputs, outputs)(*values), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
def test_no_loop_computes_and_adds_up(kind):
    inputs, outputs, _ = slope(kind)
    nodes = pymc_compile(inputs, outputs, mode=NUMBA_MODE).maker.fgraph.toposort()
    fused = [node.op for node in nodes if isinstance(node.op, FusedElemwise)]
    assert fused
    assert not any(entry for op in fused for entry in op.indexed_outputs)
    assert any(isinstance(node.op, Unchecked) for node in nodes)
