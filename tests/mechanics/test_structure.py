"""What a row reads, against the graph of the model and against automatic differentiation."""

from dataclasses import replace
from typing import NamedTuple

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from gallery import GALLERY
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from models import grouped_model
from pytensor.gradient import grad
from zoo import ZOO

import pymc_minibatch as pmb
from pymc_minibatch import TallModel
from pymc_minibatch.tall.cut import compile_all
from pymc_minibatch.tall.structure import (
    NoStructureError,
    _check_indices,
    _verify,
    structure_of,
)

REFUSED = {
    "Interpolated": "read no parameters",
    "DiscreteUniform": "read no parameters",
    "HyperGeometric": "read no parameters",
    "network": "24 numbers",
}
"""Models of the gallery without a structure, and why."""

NO_GRADIENT = {"SkewStudentT", "discrete_parameter"}
"""Models whose log-likelihood has no gradient in PyTensor."""


class RowArrays(NamedTuple):
    """Offsets, and for each term columns, index and weight, of the rows of a batch."""

    terms: list
    offsets: np.ndarray
    coefficients: list


def arrays_of(structure, batch):
    """Evaluate offsets and coefficients without compiling them."""
    graphs = [o for o in structure.offsets if o is not None]
    graphs += [g for t in structure.terms for g in (t.columns, t.index, t.weight) if g is not None]
    values = iter(compile_all(structure.batch, graphs)(*batch))
    zeros = np.zeros(len(batch[0]))
    offsets = [zeros if o is None else next(values) for o in structure.offsets]
    coefficients = [
        tuple(None if g is None else next(values) for g in (t.columns, t.index, t.weight))
        for t in structure.terms
    ]
    return RowArrays(structure.terms, np.stack(offsets, axis=1), coefficients)


def jacobian(arrays, size):
    """Write the coefficients as a dense array, shape (b, k, P)."""
    b, k = arrays.offsets.shape
    dense, rows = np.zeros((b, k, size)), np.arange(b)
    for term, (columns, index, weight) in zip(arrays.terms, arrays.coefficients, strict=True):
        if columns is None:
            at = term.block.start + index
            np.add.at(dense, (rows, term.predictor, at), 1.0 if weight is None else weight)
        else:
            dense[:, term.predictor, term.block] += columns
    return dense


def predictors_at(arrays, phi):
    """Evaluate the predictors, shape (b, k)."""
    v = arrays.offsets.copy()
    for term, (columns, index, weight) in zip(arrays.terms, arrays.coefficients, strict=True):
        block = phi[term.block]
        if columns is not None:
            v[:, term.predictor] += columns @ block
        else:
            v[:, term.predictor] += block[index] * (1.0 if weight is None else weight)
    return v


def check(tall, structure, seed=5, gradient=True):
    """Compare row(v(φ(θ))) and its gradient by θ with those of the model's own graph."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, tall.n_rows, 17)
    batch = [np.ascontiguousarray(values[rows]) for values in tall.data]
    [flat, *inputs], [term] = tall.batch_graph
    continuous = np.repeat([d.startswith("float") for d in tall.layout.dtypes], tall.layout.sizes)
    point = tall.start + 0.2 * continuous * rng.normal(size=tall.start.size)
    outputs = [term]
    if gradient:
        outputs.append(grad(pt.sum(term), flat, disconnected_inputs="ignore"))
    right = compile_all([flat, *inputs], outputs)(point, *batch)
    assert np.isfinite(right[0]).any()

    arrays = arrays_of(structure, batch)
    [phi] = compile_all([flat], [structure.phi])(point)
    assert phi.shape == (max(block.stop for block in structure.blocks.values()),)
    v = predictors_at(arrays, phi)
    dense = jacobian(arrays, phi.size)
    np.testing.assert_allclose(v, arrays.offsets + dense @ phi, rtol=1e-12, atol=1e-12)
    step = rng.normal(size=phi.size)
    np.testing.assert_allclose(
        predictors_at(arrays, phi + step) - v, dense @ step, rtol=1e-8, atol=1e-8 * np.abs(v).max()
    )
    outputs = [structure.row]
    if gradient:
        total = pt.sum(structure.row)
        outputs += [grad(total, predictor) for predictor in structure.predictors]
    found = compile_all([*structure.predictors, *structure.batch], outputs)(*v.T, *batch)
    finite = np.isfinite(right[0])
    np.testing.assert_allclose(found[0][finite], right[0][finite], rtol=1e-9, atol=1e-9)
    assert not np.isfinite(found[0][~finite]).any()
    if gradient and finite.all():
        by_phi = np.einsum("bk,bkp->p", np.stack(found[1:], axis=1), dense)
        cotangent = pt.dvector()
        pulled = grad(pt.dot(structure.phi, cotangent), flat, disconnected_inputs="ignore")
        [by_flat] = compile_all([flat, cotangent], [pulled])(point, by_phi)
        scale = np.abs(right[1]).max() + 1
        np.testing.assert_allclose(by_flat, right[1], rtol=1e-8, atol=1e-8 * scale)


@pytest.mark.parametrize("name", GALLERY)
def test_structure_of_the_gallery(name):
    tall = TallModel(GALLERY[name]())
    if name in REFUSED:
        with pytest.raises(NoStructureError, match=REFUSED[name]):
            structure_of(tall)
        return
    check(tall, structure_of(tall), gradient=name not in NO_GRADIENT)


def test_most_of_the_gallery_has_a_structure():
    assert len(REFUSED) < 0.2 * len(GALLERY)


def summary(structure):
    """Number of predictors, gathered blocks with their sizes, number of dense entries of φ."""
    gathers, dense = {}, set()
    for term in structure.terms:
        if term.index is None:
            dense.update(range(term.block.start, term.block.stop))
        else:
            [name] = [n for n, at in structure.blocks.items() if at == term.block]
            gathers[name] = term.block.stop - term.block.start
    return len(structure.predictors), gathers, len(dense)


@pytest.mark.parametrize("name", ZOO)
def test_structure_of_hierarchical_models(name):
    case = ZOO[name]
    tall = TallModel(case.build())
    structure = structure_of(tall)
    assert summary(structure) == (case.n_predictors, case.gathers, case.n_dense)
    check(tall, structure)


# --- Models made up ---------------------------------------------------------------------------

N = 30
RNG = np.random.default_rng(7)
X = RNG.normal(size=(N, 3))
GROUPS = [RNG.integers(0, 4, N), RNG.integers(0, 3, N)]


@st.composite
def predictors(draw, depth=3):
    """Draw an expression of data, coefficients and effects: affine, or not."""
    kinds = ["scalar", "product", "effect", "column", "effect of two", "row of effects"]
    if depth:
        kinds += ["sum", "difference", "times", "over", "minus", "scaled", "bent", "chosen"] * 2
    kind = draw(st.sampled_from(kinds))
    number = len(pm.modelcontext(None).named_vars)
    if kind in ("scalar", "product", "effect", "column", "effect of two", "row of effects"):
        group = GROUPS[draw(st.integers(0, 1))]
        spread = pt.exp(pm.Normal(f"s{number}")) if draw(st.booleans()) else 1.0
        late = draw(st.booleans())

        def effects(shape):
            z = pm.Normal(f"z{number}", shape=shape)
            return z if late else z * spread

        after = spread if late else 1.0
        if kind == "scalar":
            return pt.ones(N) * pm.Normal(f"a{number}") if late else pm.Normal(f"a{number}")
        if kind == "product":
            return after * (X @ effects(3))
        if kind == "effect":
            return after * effects(4)[group]
        if kind == "effect of two":
            return after * effects((4, 3))[GROUPS[0], GROUPS[1]]
        if kind == "row of effects":
            return after * (X * effects((4, 3))[group]).sum(axis=1)
        return X[:, draw(st.integers(0, 2))] * effects(())
    one = draw(predictors(depth=depth - 1))
    if kind == "minus":
        return -one
    if kind == "scaled":
        return one * X[:, draw(st.integers(0, 2))]
    if kind == "bent":
        return draw(st.sampled_from([pt.tanh, pt.sqr, pt.softplus, pt.abs]))(one)
    two = draw(predictors(depth=depth - 1))
    if kind == "sum":
        return one + two
    if kind == "difference":
        return one - two
    if kind == "times":
        return one * two
    if kind == "over":
        return one / (1.5 + pt.tanh(two))
    return pt.switch(X[:, 0] > 0, one, two)


@st.composite
def made_up_models(draw):
    with pm.Model() as model:
        eta = draw(predictors())
        y = RNG.normal(size=N)
        if draw(st.booleans()):
            pm.Normal("y", eta, pm.HalfNormal("sigma") if draw(st.booleans()) else 1.5, observed=y)
        else:
            pm.Bernoulli("y", logit_p=eta, observed=y > 0, shape=N)
    return model


@settings(
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(made_up_models())
def test_no_wrong_structure_of_a_made_up_model(model):
    tall = TallModel(model)
    if tall.structure is not None:
        check(tall, tall.structure)


# --- Verification, text, pickles --------------------------------------------------------------


@pytest.fixture(scope="module")
def grouped():
    return TallModel(grouped_model())


def changed(structure, change):
    """Change the gather of a structure."""
    terms = [t if t.index is None else change(t) for t in structure.terms]
    return replace(structure, terms=terms)


def test_wrong_coefficients_are_refused(grouped):
    structure = grouped.structure
    wrong = changed(structure, lambda t: replace(t, weight=pt.full_like(t.index, 1.0 + 1e-6)))
    with pytest.raises(NoStructureError, match="does not give the log-likelihood"):
        _verify(grouped, wrong)


def test_indices_beyond_their_block_are_refused(grouped):
    with pytest.raises(NoStructureError, match="an index runs from 1 to 4, beyond its 4 groups"):
        _check_indices(grouped, changed(grouped.structure, lambda t: replace(t, index=t.index + 1)))


def test_structure_survives_pickling(grouped):
    tall = cloudpickle.loads(cloudpickle.dumps(grouped))
    assert list(tall.structure.blocks) == ["alpha", "sigma_log__"]
    check(tall, tall.structure)


def test_describe_tells_what_a_row_reads(grouped):
    assert (
        "linear predictors, affine in effects and coefficients: 2\n"
        "  v0 = alpha[constant] (4 effects)\n"
        "  v1 = sigma_log__" in grouped.describe()
    )


def test_refusal_is_told():
    tall = TallModel(GALLERY["network"]())
    assert tall.structure is None
    assert "a row depends on 24 numbers" in tall.structure_refusal
    assert "linear predictors: none were found (a row depends on 24" in tall.describe()


def test_no_structure_is_found_before_it_is_asked_for():
    tall = TallModel(grouped_model())
    assert "_structure" not in vars(tall)
    assert tall.structure is tall.structure
    assert tall.structure_refusal is None


def test_weighed_functions_of_many_effects():
    """Rows read what a function is of, so that effects enter linearly: −exp(mean + sd z) × cost."""
    rng = np.random.default_rng(4)
    n, groups = 400, 40
    group, cost, x = np.arange(n) % groups, rng.gamma(2.0, 1.0, (n, 3)), rng.normal(size=(n, 3))
    with pm.Model():
        mean, sd, beta = pm.Normal("mean"), pm.HalfNormal("sd"), pm.Normal("beta")
        z = pm.Normal("z", shape=groups)
        weight = -pt.exp(mean + sd * z)
        utility = weight[group][:, None] * cost + beta * x
        pm.Categorical("y", p=pm.math.softmax(utility, axis=-1), observed=rng.integers(0, 3, n))
        tall = TallModel()
    structure = tall.structure
    assert structure is not None
    assert len(structure.predictors) == 2  # the effect and beta
    point = {"mean": 0.3, "sd_log__": -0.5, "beta": 0.7, "z": rng.normal(size=groups)}
    flat = tall.layout.flatten({name: np.asarray(value) for name, value in point.items()})
    phi = compile_all([tall.flat], [structure.phi])(flat)[0]
    expected = [*(0.3 + np.exp(-0.5) * point["z"]), 0.7]
    np.testing.assert_allclose(np.sort(phi), np.sort(expected), rtol=1e-12)


def test_functions_of_effects_by_constants_of_their_levels():
    """Rows read what the function is of, and the constant of their level beside it."""
    rng = np.random.default_rng(6)
    n, groups = 400, 40
    group, fastest = np.arange(n) % groups, rng.gamma(2.0, 0.1, groups)
    with pm.Model():
        mean, sd = pm.Normal("mean"), pm.HalfNormal("sd")
        shift = fastest * pm.math.invlogit(mean + sd * pm.Normal("z", shape=groups))
        pm.Normal("y", shift[group], 0.1, observed=rng.normal(size=n))
        tall = TallModel()
    structure = tall.structure
    assert structure is not None
    assert len(structure.predictors) == 1
    point = {"mean": 0.3, "sd_log__": -0.5, "z": rng.normal(size=groups)}
    flat = tall.layout.flatten({name: np.asarray(value) for name, value in point.items()})
    phi = compile_all([tall.flat], [structure.phi])(flat)[0]
    expected = 0.3 + np.exp(-0.5) * point["z"]
    np.testing.assert_allclose(np.sort(phi), np.sort(expected), rtol=1e-12)


@pytest.mark.parametrize(
    ("stacked", "is_zero"),
    [
        (lambda effects: pt.stack(effects), False),
        (lambda effects: pt.as_tensor_variable(effects), False),
        (lambda effects: pt.stack([0.0, *effects[1:]]), True),
    ],
    ids=["stack", "tensor", "with a reference level"],
)
def test_single_variables_of_which_each_row_takes_one(stacked, is_zero):
    """PyMC writes such a vector out, with an entry for each row."""
    rng = np.random.default_rng(5)
    group, x = rng.permutation(300) % 4, rng.normal(size=300)
    with pm.Model() as model:
        effects = [pm.Normal(f"e{k}") for k in range(4)]
        pm.Normal("y", stacked(effects)[group] * x, 0.5, observed=rng.normal(size=300))
    tall = TallModel(model)
    [index] = [term.index for term in tall.structure.terms if term.index is not None]
    assert index is not None
    assert any(np.array_equal(given.values, group) for given in tall.row_inputs.values())
    point = {f"e{k}": np.array(0.3 * k - 0.5) for k in range(4)}
    np.testing.assert_allclose(tall.logp(point), model.compile_logp(mode="FAST_COMPILE")(point))
    draws = xr.Dataset({name: (("chain", "draw"), np.full((1, 2), v)) for name, v in point.items()})
    idata = xr.DataTree.from_dict({"posterior": draws})
    found = pmb.predict(
        idata, {"constant": x[:4], "constant_1": group[:4]}, model=model, kind="mean"
    )
    expected = np.array([0.0 if is_zero else point["e0"], *[point[f"e{k}"] for k in (1, 2, 3)]])
    np.testing.assert_allclose(found["mean"], expected[group[:4]] * x[:4])


def test_a_variable_that_no_row_takes_is_not_known():
    """Other rows might take it, so the model is refused rather than given a number in its place."""
    with pm.Model() as model:
        effect = pt.stack([pm.Normal(f"e{k}") for k in range(4)])[np.arange(300) % 3]
        pm.Normal("y", effect, 0.5, observed=np.zeros(300))
    with pytest.raises(pmb.NotTallError):
        TallModel(model)
