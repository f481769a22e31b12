"""Rewritten graphs are read from disk where nothing has changed, and only there."""

import pickle
import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.scalar.basic import Composite

from pymc_minibatch.jit import cache, kept
from pymc_minibatch.jit.interpreted import evaluator
from pymc_minibatch.reference.rows import simplified


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "NUMBA_CACHE_PATH", tmp_path)
    monkeypatch.setattr(cache, "_warned", set())
    return tmp_path


@pytest.fixture
def rewritten():
    """Rewrite a graph, unless it is on disk; note the graphs that were rewritten."""
    note.noted = []  # attributes of a function are not code
    return lambda inputs, outputs: kept.kept_rewrite(note, (inputs, outputs)), note.noted


def note(graph):
    note.noted.append(graph)
    return graph


def graph(name="x", power=2.0, shape=(None,), dtype="float64"):
    x = pt.tensor(name, shape=shape, dtype=dtype)
    shared_by_two = pt.exp(x)
    return [x], [shared_by_two**power + shared_by_two]


def test_names_do_not_matter(rewritten):
    rewrite, noted = rewritten
    inputs, outputs = rewrite(*graph())
    again, known = rewrite(*graph(name="other"))
    assert len(noted) == 1
    x = np.arange(3.0)
    np.testing.assert_array_equal(known[0].eval({again[0]: x}), outputs[0].eval({inputs[0]: x}))


@pytest.mark.parametrize(
    "changed",
    [{"power": 2.5}, {"shape": (3,)}, {"dtype": "float32"}],
    ids=["power", "shape", "type"],
)
def test_all_else_matters(rewritten, changed):
    rewrite, noted = rewritten
    rewrite(*graph())
    rewrite(*graph(**changed))
    assert len(noted) == 2


def test_which_inputs_are_which_matters(rewritten):
    rewrite, noted = rewritten
    x, y = pt.dvectors("x", "y")
    for inputs, outputs in [([x, y], [x - y]), ([y, x], [x - y]), ([x, y], [x - y, x])]:
        rewrite(inputs, outputs)
    assert len(noted) == 3
    rewrite([y, x], [y - x])
    assert len(noted) == 3


def fused(constant=2.0, name="x"):
    """A graph with an operation that has a graph inside, as PyTensor fuses operations."""
    x = pt.dvector(name)
    function = pytensor.function([x], pt.exp(x * constant) + pt.log(x), mode="FAST_RUN")
    [output] = function.maker.fgraph.outputs
    assert any(isinstance(n.op.scalar_op, Composite) for n in function.maker.fgraph.apply_nodes)
    return list(function.maker.fgraph.inputs), [output]


def test_graphs_of_fused_operations(rewritten):
    rewrite, noted = rewritten
    for _ in range(2):
        rewrite(*fused())
    assert len(noted) == 1
    rewrite(*fused(constant=3.0))
    assert len(noted) == 2


def test_it_does_not_matter_which_parts_are_one_object(rewritten):
    """What is made of a graph that was read is found by later runs under the same key."""
    rewrite, noted = rewritten
    x = pt.dvector("x")
    logp = pm.logp(pm.Bernoulli.dist(p=pm.math.invprobit(x)), np.ones(3))
    hash(pt.mul)  # which it remembers
    rewrite([x], [logp])
    inputs, outputs = pickle.loads(pickle.dumps(([x], [logp])))
    rewrite(inputs, outputs)
    rewrite([x], [pm.logp(pm.Bernoulli.dist(p=pm.math.invprobit(x)), np.ones(3))])
    assert len(noted) == 1


def test_settings_and_versions_matter(rewritten, monkeypatch):
    rewrite, noted = rewritten
    rewrite(*graph())
    with pm.Model(check_bounds=False):
        rewrite(*graph())
    with pm.Model():
        rewrite(*graph())
    assert len(noted) == 2
    monkeypatch.setattr(kept, "_versions", lambda: "others")
    rewrite(*graph())
    assert len(noted) == 3
    monkeypatch.setattr(
        note, "__code__", (lambda graph: note.noted.append(graph) or graph).__code__
    )
    rewrite(*graph())
    assert len(noted) == 4


def test_check_bounds_is_obeyed():
    """What was kept for a model that checks bounds does not serve one that does not."""
    x, sigma = pt.dvector("x"), pt.dscalar("sigma")
    logp = [pm.logp(pm.Normal.dist(0, sigma), x)]
    values = np.zeros(2), np.float64(-1.0)
    for _ in range(2):
        assert (evaluator([x, sigma], logp)(*values) == -np.inf).all()
        with pm.Model(check_bounds=False):
            assert np.isnan(evaluator([x, sigma], logp)(*values)).all()


class Twice(Op):
    """An operation that may be edited between two runs."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = 2 * inputs[0]


def test_what_may_change_is_not_kept(rewritten, folder):
    rewrite, noted = rewritten
    x = pt.dvector("x")
    value = pytensor.shared(np.ones(2), "value")
    for output in (Twice()(x), x + value):
        for _ in range(2):
            rewrite([x], [output])
    assert len(noted) == 4
    rewrite([x], [x + pt.constant(np.random.default_rng(0).normal(size=kept.LARGEST))])
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("length", [0, 10, -10])
def test_files_that_were_cut_short(rewritten, folder, length):
    rewrite, noted = rewritten
    rewrite(*graph())
    [path] = folder.iterdir()
    path.write_bytes(path.read_bytes()[:length])
    with pytest.warns(UserWarning, match=f"{path.name} of the compile cache cannot be read"):
        rewrite(*graph())
    with warnings.catch_warnings(action="error"):
        rewrite(*graph())
    assert len(noted) == 2


def test_folders_that_cannot_be_written(rewritten, monkeypatch, tmp_path):
    rewrite, noted = rewritten
    monkeypatch.setattr(kept, "NUMBA_CACHE_PATH", tmp_path / "missing")
    with pytest.warns(UserWarning, match=r"cannot be written \(FileNotFoundError"):
        rewrite(*graph())
    assert len(noted) == 1


def test_simplifying_leaves_a_graph_as_it_was():
    x = pt.dvector("x")
    output = pt.log(pt.exp(x)) + 0.0
    before = pytensor.dprint(output, file="str")
    simplified([output])
    assert pytensor.dprint(output, file="str") == before


def test_simplified_graphs_are_of_the_inputs_given(folder):
    for _ in range(2):  # from disk the second time
        x, y = pt.dvectors("x", "y")
        [found] = simplified([pt.log(pt.exp(x)) + y * 1.0])
        assert found.eval({x: [1.0], y: [2.0]}) == [3.0]
        assert len(list(folder.iterdir())) == 1
