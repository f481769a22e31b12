"""Bambi's models with grouping factors by code are those that it builds anyway."""

import tracemalloc
from contextlib import nullcontext

import bambi
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import pymc_minibatch as pmb
from pymc_minibatch import formulas
from pymc_minibatch.bambi_rows import BambiPredictions


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(1)
    n_rows = 90
    found = pd.DataFrame({"x": rng.normal(1.0, 1.0, n_rows), "z": rng.normal(size=n_rows)})
    found["a"] = rng.choice(["u", "w", "v", "t"], n_rows)
    found["b"] = pd.Categorical(rng.choice(["p", "q"], n_rows), categories=["q", "p", "none"])
    found["c"] = rng.choice([10, 9, 2], n_rows)
    found["d"] = pd.Categorical(rng.choice(list("kl"), n_rows), ["m", "l", "k"], ordered=True)
    found["y"] = rng.integers(0, 2, n_rows)
    return found


ORDER = [10, 2, 9]

FORMULAS = [
    "y ~ x + (1 + x | a)",
    "y ~ a + x + (1 | a:b) + (0 + x | c)",
    "y ~ 0 + a + (0 + b | a) + (z | d)",
    "y ~ x + (b + x:z | a) + (1 | a/b) + (1 | C(c, levels=ORDER))",
    "y ~ (1 | C(c)) + (bs(x, df=4) | b) + (1 | C(a, Treatment))",
    "y ~ x + (x | C(a, Sum)) + (1 | C(a, Sum):c)",
]


def built(formula, frame, context, **options):
    with context:
        model = bambi.Model(formula, frame, categorical=["c"], **options)
    model.build()
    return model


def pair(formula, frame, **options):
    """The same model by code and by Bambi alone."""
    found = built(formula, frame, pmb.groups_as_codes(), **options)
    return found, built(formula, frame, nullcontext(), **options)


def made_up(model):
    """Draws of a model, as Bambi leaves them."""
    of, rng, variables = model.backend.model, np.random.default_rng(2), {}
    for variable in [*of.free_RVs, *of.deterministics]:
        dims = of.named_vars_to_dims.get(variable.name, ())
        if "__obs__" not in dims and not variable.name.endswith("_offset"):
            values = np.abs(rng.normal(0.3, 0.1, (2, 10, *(len(of.coords[dim]) for dim in dims))))
            variables[variable.name] = (("chain", "draw", *dims), values)
    coords = {dim: list(of.coords[dim]) for dims, _ in variables.values() for dim in dims[2:]}
    posterior = xr.Dataset(variables, coords | {"chain": [0, 1], "draw": np.arange(10)})
    return xr.DataTree.from_dict({"posterior": posterior.assign_attrs(modeling_interface="bambi")})


@pytest.mark.parametrize("number", range(len(FORMULAS)))
def test_models_are_bambis(number, frame):
    options = {"noncentered": False} if number % 2 else {"family": "bernoulli"}
    found, expected = pair(FORMULAS[number], frame, **options)
    a, b = found.backend.model, expected.backend.model
    assert str(found) == str(expected)
    assert list(a.named_vars) == list(b.named_vars)
    assert {k: list(v) for k, v in a.coords.items()} == {k: list(v) for k, v in b.coords.items()}
    rng = np.random.default_rng(3)
    start = b.initial_point()
    point = {name: value + rng.normal(0, 0.3, np.shape(value)) for name, value in start.items()}
    logp = (model.compile_fn(model.logp(sum=False), mode="FAST_COMPILE") for model in (a, b))
    for one, other in zip(*(function(point) for function in logp), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("formula", FORMULAS)
def test_predictions_are_bambis(formula, frame):
    found, expected = pair(formula, frame, family="bernoulli")
    idata = made_up(expected)
    for rows in (frame.iloc[::5], None):
        predicted = [model.predict(idata, data=rows, inplace=False) for model in (found, expected)]
        xr.testing.assert_equal(*(result.posterior["p"] for result in predicted))


@pytest.mark.filterwarnings("ignore:'sample_new_groups':FutureWarning")
@pytest.mark.parametrize("formula", [FORMULAS[0], "y ~ (1 | a:b) + (z | c)"])
def test_new_groups_are_predicted_as_by_bambi(formula, frame):
    found, expected = pair(formula, frame, family="bernoulli")
    idata = made_up(expected)
    new = frame.iloc[::7].assign(a="new")
    with pytest.raises(ValueError, match="new groups"):
        found.predict(idata, data=new, inplace=False)
    options = {"data": new, "inplace": False, "sample_new_groups": True, "random_seed": 4}
    predicted = [model.predict(idata, **options) for model in (found, expected)]
    xr.testing.assert_equal(*(result.posterior["p"] for result in predicted))


def test_predict_and_log_likelihood_take_it(frame):
    found, expected = pair(FORMULAS[0], frame, family="bernoulli")
    idata = made_up(expected)
    a, b = (pmb.predict(idata, model=model, kind="mean") for model in (found, expected))
    xr.testing.assert_equal(a, b)
    a, b = (pmb.log_likelihood(idata, range(5), model=model)["y"] for model in (found, expected))
    xr.testing.assert_equal(a, b)


def test_memory_grows_with_rows_alone():
    rng = np.random.default_rng(5)
    n_rows, n_groups = 20_000, 4_000  # 640 MB as a dense matrix
    big = pd.DataFrame({"y": rng.normal(size=n_rows), "x": rng.normal(size=n_rows)})
    big["g"] = [f"g{k}" for k in rng.integers(0, n_groups, n_rows)]
    tracemalloc.start()
    with pmb.groups_as_codes():
        model = bambi.Model("y ~ x + (1 + x | g)", big)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6
    assert len(model.components["mu"].group_specific_terms["x|g"].groups) == big["g"].nunique()


def test_bambi_is_as_before_outside(frame):
    with pytest.raises(ValueError, match="of the user"), pmb.groups_as_codes():
        raise ValueError("of the user")
    model = bambi.Model(FORMULAS[0], frame)
    grouper = model.components["mu"].group_specific_terms["x|a"].grouper
    assert isinstance(grouper, np.ndarray)


@pytest.mark.parametrize("reason", ["version", "design"])
def test_nothing_is_replaced_in_versions_that_are_not_known(monkeypatch, frame, reason):
    formulas.reason_against.cache_clear()
    if reason == "version":
        monkeypatch.setattr(formulas, "KNOWN", ("0.1.0",))
        told = "knows formulae 0.1.0, not"
    else:
        monkeypatch.setattr("pymc_minibatch.bambi_groups.is_right", lambda: False)
        told = "small frame are not those of formulae"
    with pytest.warns(UserWarning, match=told), pmb.groups_as_codes():
        model = bambi.Model(FORMULAS[0], frame)
    formulas.reason_against.cache_clear()
    assert isinstance(model.components["mu"].group_specific_terms["x|a"].grouper, np.ndarray)


def test_a_design_that_is_wrong_is_seen(monkeypatch):
    from pymc_minibatch import bambi_groups

    assert bambi_groups.is_right()
    monkeypatch.setattr(
        bambi_groups.Indicators, "argmax", lambda self, axis=1: self.n_columns - 1 - self.codes
    )
    assert not bambi_groups.is_right()


NESTED = "y ~ x + (b + x:z | a) + (1 | a/b) + (bs(x, df=4) | c)"


@pytest.mark.parametrize("own", [True, False], ids=["own", "new"])
def test_effects_of_few_groups_are_bambis(frame, own):
    model, _ = pair(NESTED, frame, family="bernoulli")
    idata = made_up(model)
    posterior = idata.posterior.to_dataset()
    rows = None if own else frame.iloc[::-2].reset_index(drop=True)
    drawing = BambiPredictions(model, posterior, rows, "mean", 1)
    found = [drawn for _, drawn in drawing.chunks(lambda drawn, _: drawn, None)]
    assert [effects.agrees for effects in drawing.effects] == [True]
    expected = model.predict(idata, data=rows, inplace=False).posterior["p"]
    expected = expected.stack(sample=("chain", "draw")).transpose("sample", ...)
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, rtol=1e-12)


def test_effects_that_disagree_are_left_to_bambi(monkeypatch, frame):
    model, _ = pair(FORMULAS[0], frame, family="bernoulli")
    idata = made_up(model)
    expected = pmb.predict(idata, model=model, kind="mean")
    monkeypatch.setattr("pymc_minibatch.bambi_effects._effects", lambda values: np.zeros((1, 4)))
    xr.testing.assert_allclose(pmb.predict(idata, model=model, kind="mean"), expected, rtol=1e-9)
