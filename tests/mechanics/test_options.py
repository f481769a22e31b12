"""What pm.sample would refuse late is refused before a step is set up, by its name."""

import copy
import pickle
from typing import Any

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.options import check_options


def made(seed: int = 1, name: str = "mu", coords: Any = None) -> pm.Model:
    with pm.Model(coords=coords) as model:
        mu = pm.Normal(name, 0, 10)
        pm.Normal("y", mu, 1.0, observed=np.random.default_rng(seed).normal(seed, 1, 20_000))
    return model


@pytest.fixture
def no_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("work has started")

    monkeypatch.setattr(pmb.TallModel, "__init__", refuse)


WRONG = {
    "step of another kind": ({"step": "minibatch"}, TypeError, "step must be a step.*minibatch"),
    "class": ({"step": [pmb.FlyMC]}, TypeError, r"Write step=pmb.FlyMC\(\)"),
    "no such option": ({"thin": 2}, TypeError, "thin is no option"),
    "misspelled": ({"progresbar": False}, TypeError, "did you mean progressbar"),
    "cores": ({"cores": 0}, ValueError, "cores must be a whole number, at least 1"),
    "context": ({"mp_ctx": "bogus"}, ValueError, "mp_ctx must be one of"),
    "callback": ({"callback": 3}, TypeError, "callback must be a function"),
    "seed": ({"random_seed": "abc"}, TypeError, "random_seed must be a whole number"),
    "variable": ({"var_names": ["mux"]}, ValueError, r"mux is no variable.*\['mu'\]"),
    "no variable": ({"var_names": []}, ValueError, "var_names must be a list"),
    "start": ({"initvals": {"mux": 1.0}}, ValueError, "initvals has mux"),
    "kind of start": ({"initvals": 3}, TypeError, "initvals must be a dict"),
    "shape of start": ({"initvals": {"mu": np.zeros(2)}}, ValueError, r"initvals of mu has shape"),
    "result": ({"idata_kwargs": {"foo": True}}, ValueError, "idata_kwargs has 'foo'"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.usefixtures("no_set_up")
def test_a_wrong_option_is_refused_before_work_starts(case: str):
    options, error, match = WRONG[case]
    with pytest.raises(error, match=match):
        pmb.sample(made(), **options)


@pytest.mark.usefixtures("no_set_up")
def test_labels_that_results_have_not_are_refused():
    with pm.Model(coords={"pair": [(1, 2), (3, 4)]}) as model:
        pm.Normal("y", pm.Normal("b", dims="pair").sum(), 1.0, observed=np.zeros(20_000))
    with pytest.raises(ValueError, match="coords of pair are lists or tuples"):
        pmb.sample(model)
    with pytest.raises(ValueError, match="coords of pair are lists or tuples"):
        pmb.approximate(model)


@pytest.mark.usefixtures("no_set_up")
def test_approximate_refuses_names_before_work_starts():
    with pytest.raises(ValueError, match="mux is no variable"):
        pmb.approximate(made(), var_names=["mux"])


@pytest.mark.parametrize("kind", [pmb.MinibatchMH, pmb.FlyMC, pmb.SGHMC])
def test_a_step_does_not_sample_another_model_of_the_same_names(kind: type, tmp_path: Any):
    model, other = made(1), made(2)
    step = kind(model=model)
    with pytest.raises(ValueError, match=f"This {kind.__name__} was made for another model"):
        pmb.sample(other, 20, 20, 1, step=step)
    with pytest.raises(ValueError, match="was made for another model"):
        pmb.sample(other, 20, 20, 1, step=[step])
    store = tmp_path / "run"
    idata = pmb.sample(model, 20, 20, 1, step=step, store=store, progressbar=False)
    with pytest.raises(ValueError, match="was made for another model"):
        pmb.resume(store, other, step=step)
    with pytest.raises(ValueError, match="model is not the model of the step"):
        pmb.audit(idata, step, model=other)


def test_a_step_that_waits_for_its_model_can_be_copied():
    waiting = pmb.MinibatchMH()
    for each in (copy.copy(waiting), copy.deepcopy(waiting), pickle.loads(pickle.dumps(waiting))):
        idata = pmb.sample(made(), 50, 50, 1, step=each, progressbar=False)
        assert abs(float(idata.posterior["mu"].mean()) - 1.0) < 0.1


def test_arrays_that_are_changed_in_place_are_named_as_the_cause():
    rng = np.random.default_rng(3)
    x = rng.normal(size=20_000)
    y = rng.binomial(1, 1 / (1 + np.exp(-x)))
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.Normal("b") * x, observed=y)
        step = pmb.MinibatchMH()
        assert step.n_rows == 20_000
    x *= -1.0
    with pytest.raises(pm.exceptions.SamplingError, match="changed in place"):
        pmb.sample(model, 200, 200, 1, step=step, progressbar=False)


def test_chains_of_two_runs_are_not_read_as_one():
    import xarray as xr

    runs = [pmb.sample(made(seed), 50, 50, 1, progressbar=False) for seed in (1, 2)]
    joined = xr.DataTree.from_dict(
        {
            group: xr.concat(
                [run[group].to_dataset().assign_coords(chain=[k]) for k, run in enumerate(runs)],
                "chain",
                combine_attrs="override",
            )
            for group in ("posterior", "sample_stats")
        }
    )
    for read in (pmb.report, lambda i: pmb.loo(i, model=made(1)), lambda i: pmb.ksd(i, made(1))):
        with pytest.raises(ValueError, match="chains of different rows"):
            read(joined)


def test_an_infinite_predictor_is_named():
    x = np.random.default_rng(4).normal(size=20_000)
    x[5] = np.inf
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.Normal("b") * pm.Data("x", x), observed=x > 0)
    for of in (pmb.sample, pmb.approximate):
        with pytest.raises(ValueError, match="x has inf in row 5"):
            of(model)


def test_data_of_another_length_are_refused_beside_an_earlier_split():
    x = np.random.default_rng(5).normal(size=20_000)
    with pm.Model() as model:
        data = pm.Data("x", x)
        pm.Normal("y", pm.Normal("b") * data, 1.0, observed=x, shape=data.shape)
        step = pmb.MinibatchMH()
        idata = pmb.sample(draws=50, tune=50, chains=1, step=step, progressbar=False)
        pm.set_data({"x": x[:100]})
    for of in (pmb.loo, pmb.predict):
        with pytest.raises(ValueError, match=r"x was set to values of shape \(100,\)"):
            of(idata, model=model, data=step.tall)


def test_options_of_bambi_and_of_pymc_steps_are_known():
    import bambi
    import pandas as pd

    frame = pd.DataFrame({"y": np.random.default_rng(6).normal(size=200)})
    model = bambi.Model("y ~ 1", frame)
    options: dict[str, Any] = {"method": "nuts", "progressbar": False, "random_seed": 1}
    idata = pmb.sample(model, 20, 20, 1, omit_offsets=False, **options)
    assert idata.posterior.sizes["draw"] == 20
    check_options(made(), None, {"metropolis": {"scaling": 2.0}}, ())


def test_labels_that_no_variable_has_are_no_matter():
    model = made(coords={"pair": [(1, 2), (3, 4)]})
    pmb.sample(model, 20, 20, 1, progressbar=False, random_seed=np.random.SeedSequence(1))


@pytest.mark.parametrize("shape", [(3, 20_000), (20_000, 3)])
def test_a_split_has_the_rows_of_data_along_any_axis(shape: tuple[int, int]):
    X = np.random.default_rng(7).normal(size=shape)
    with pm.Model() as model:
        data = pm.Data("X", X)
        read = data if shape[1] == 3 else data.T
        pm.Normal(
            "y", pm.math.dot(read, pm.Normal("b", shape=3)), 1.0, observed=X.max(shape.index(3))
        )
        step = pmb.MinibatchMH()
    idata = pmb.sample(model, 50, 50, 1, step=step, progressbar=False)
    assert np.isfinite(pmb.loo(idata, model=model, data=step.tall).elpd)
