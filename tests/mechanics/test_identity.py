"""What a run was made of: fingerprints of models, references of others, data that are set anew."""

import pickle
import warnings
from dataclasses import replace

import cloudpickle
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_minibatch as pmb
from pymc_minibatch.draws import draws_of_step
from pymc_minibatch.results import Result
from pymc_minibatch.tall import fingerprint

N_ROWS = 400
RNG = np.random.default_rng(1)
Y, GROUP = RNG.normal(size=N_ROWS), RNG.integers(0, 20, N_ROWS)
TABLE = RNG.normal(size=20)
QUIET = {"progressbar": False, "compute_convergence_checks": False}


def model_of(table=TABLE, sd=1.0, dist=pm.Normal, y=Y, extra=None, rare=0.0):
    with pm.Model() as model:
        b = pm.Normal("b", 0, sd)
        shift = pm.Uniform("shift", -3, 3, default_transform=None)
        group = pm.Data("group", GROUP)
        mu = b * pm.Data("table", table)[group] + shift
        mu = pm.math.switch(pm.math.gt(group, 15), mu + rare, mu)
        if extra is not None:
            pm.Potential("lean", extra * b)
        dist("y", mu, 1.0, observed=y)
    return model


@pytest.fixture(scope="module")
def reference():
    return pmb.find_reference(model_of(), progressbar=False)


# --- Fingerprints -----------------------------------------------------------------------------


def test_the_same_model_has_the_same_fingerprint(reference, tmp_path):
    reference.save(tmp_path / "r")
    loaded = pmb.Reference.load(tmp_path / "r")
    again = pmb.TallModel(model_of(table=TABLE.copy()))
    assert loaded.made_of.differences(again.fingerprint) == ([], [])
    handed_over = pickle.loads(cloudpickle.dumps(again))
    assert handed_over.fingerprint == again.fingerprint
    loaded.check_fits(again)


other_table = TABLE.copy()
other_table[3] += 1e-9


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"table": other_table}, (["the constant table"], [])),
        ({"sd": 2.0}, ([], ["the prior of b"])),
        ({"extra": 1.0}, ([], ["the prior of lean"])),
        ({"dist": pm.Logistic}, (["the likelihood"], [])),
        ({"rare": 1e-3}, (["the likelihood"], [])),
    ],
    ids=["table", "prior", "potential", "likelihood", "rule"],
)
def test_what_differs_is_named(reference, change, expected):
    other = pmb.TallModel(model_of(**change))
    assert reference.made_of.differences(other.fingerprint) == expected


# --- References of others ---------------------------------------------------------------------


def changed_table(size):
    """A table of which one number that the compared rows do not read is another."""
    compared = GROUP[np.unique(np.linspace(0, N_ROWS - 1, 20).astype(int))]
    table = TABLE.copy()
    table[np.setdiff1d(np.arange(20), compared)[0]] += size
    return table


def test_a_reference_of_another_table_is_refused_by_name(reference):
    message = "another likelihood: gradients .* since the constant table has changed"
    with pytest.raises(ValueError, match=message):
        pmb.MinibatchMH(model=model_of(table=changed_table(1.0)), reference=reference)


def test_a_reference_of_another_rule_for_few_rows_is_refused(reference):
    with pytest.raises(ValueError, match="another likelihood"):
        pmb.SGLD(model=model_of(rare=1.0), reference=reference)


def test_where_graphs_differ_values_decide(reference):
    unlike = replace(reference.made_of, rows="another", prior="another")
    unlike = replace(reference, made_of=unlike)
    unlike.check_fits(pmb.TallModel(model_of()))
    with pytest.raises(ValueError, match="another prior"):
        unlike.check_fits(pmb.TallModel(model_of(sd=0.5)))


@pytest.mark.parametrize("change", [{"sd": 0.05}, {"extra": 40.0}], ids=["prior", "potential"])
@pytest.mark.parametrize("kind", [pmb.MinibatchMH, pmb.SGFS])
def test_a_reference_of_another_prior_is_where_a_search_starts(reference, change, kind, caplog):
    model = model_of(**change)
    with pytest.raises(ValueError, match=r"another prior: the prior of (b|lean) has changed"):
        reference.check_fits(pmb.TallModel(model))
    with caplog.at_level("INFO", "pymc.minibatch"):
        step = kind(model=model, reference=reference, control_variate=2)
    assert "another prior" in caplog.text
    assert "found anew" in caplog.text
    expected = pmb.find_reference(model, progressbar=False)
    found = step.reference
    np.testing.assert_allclose(found.flat, expected.flat, atol=2e-4)
    np.testing.assert_allclose(found.prior_hessian, expected.prior_hessian, rtol=1e-6, atol=1e-9)


def test_a_reference_of_other_rows_is_where_a_search_starts(reference, caplog):
    y = np.where(np.arange(N_ROWS) % 7 == 3, -Y, Y)
    model = model_of(y=y)
    with caplog.at_level("INFO", "pymc.minibatch"):
        found = pmb.SGLD(model=model, reference=reference).reference
    assert "The reference is of other data" in caplog.text
    expected = pmb.find_reference(model, progressbar=False)
    np.testing.assert_allclose(found.flat, expected.flat, atol=2e-4)


# --- Results of others ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs():
    """Results of the same model: of this process, in a file of its own, and of ``pm.sample``."""
    model = model_of()
    step = pmb.MinibatchMH(model=model, rng=1)
    options = {"draws": 60, "tune": 50, "chains": 2, "cores": 1, "random_seed": 1} | QUIET
    stored = pmb.sample(model, step=step, **options)
    with model:
        return {"stored": stored, "of pm.sample": pm.sample(step=step, **options)}


@pytest.fixture(params=["stored", "of pm.sample", "of another process"])
def run(request, runs, monkeypatch):
    """What is known of runs in this process is used for one of them only."""
    if request.param != "of pm.sample":
        monkeypatch.setattr(fingerprint, "_known", {})
    return runs["stored" if request.param == "stored" else "of pm.sample"], request.param


CHANGED = {
    "nothing": ({}, None, None),
    "table": ({"table": other_table}, "likelihood", "the constant table has changed"),
    "likelihood": ({"dist": pm.Logistic}, "likelihood", "the likelihood has changed"),
    "prior": ({"sd": 2.0}, "prior", "the prior of b has changed"),
    "potential": ({"extra": 1.0}, "prior", "the prior of lean has changed"),
    "rows": ({"y": Y + 1e-9}, "rows", "read other rows"),
    "order": ({"y": Y[::-1].copy()}, "rows", "read other rows"),
    "number": ({"y": None}, "rows", r"read 400 rows and the model has 390"),
}
REFUSE = {  # what else than rows they refuse
    "loo": ("likelihood",),
    "ksd": ("likelihood", "prior"),
    "audit": ("likelihood", "prior"),
    "predict": (),
    "log_likelihood": (),
}
DRAWN = {
    "loo": lambda idata, tall: pmb.loo(idata, 50, data=tall),
    "ksd": lambda idata, tall: pmb.ksd(idata, data=tall, control_variate=0),
    "audit": draws_of_step,
    "predict": lambda idata, tall: pmb.predict(idata, data=tall),
    "log_likelihood": lambda idata, tall: pmb.log_likelihood(idata, [1], data=tall),
}


@pytest.mark.filterwarnings("ignore:.*standard error due to subsampling")
@pytest.mark.filterwarnings("ignore:.*Pareto k")
@pytest.mark.parametrize("change", CHANGED)
def test_results_of_another_model(run, change):
    """Each function that takes a model beside a result names what has changed, or does not mind."""
    idata, known = run
    options, part, words = CHANGED[change]
    tall = pmb.TallModel(fewer_rows() if change == "number" else model_of(**options))
    if known == "of another process" and part == "prior":
        words = "the prior has changed"
    for name, function in DRAWN.items():
        minds_rows = part == "rows" and name in ("loo", "ksd", "audit")
        if minds_rows or part in REFUSE[name]:
            with pytest.raises(ValueError, match=words):
                function(idata, tall)
        elif part in ("likelihood", "prior"):
            with pytest.warns(UserWarning, match=words):
                function(idata, tall)
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*has changed since")
                function(idata, tall)


def fewer_rows():
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        shift = pm.Uniform("shift", -3, 3, default_transform=None)
        group = pm.Data("group", GROUP[:390])
        mu = b * pm.Data("table", TABLE)[group] + shift
        mu = pm.math.switch(pm.math.gt(group, 15), mu + 0.0, mu)
        pm.Normal("y", mu, 1.0, observed=Y[:390])
    return model


def test_what_a_run_was_made_of_is_stored_with_it(runs, tmp_path):
    """Attributes are left as they are by slices and files."""
    pytest.importorskip("zarr", reason="zarr is an extra")
    runs["stored"].isel(draw=slice(30, None)).to_zarr(tmp_path / "run.zarr")
    made_of = Result(xr.open_datatree(tmp_path / "run.zarr", engine="zarr")).made_of
    assert made_of == Result(runs["of pm.sample"]).made_of
    assert made_of.model == pmb.TallModel(model_of()).fingerprint


def test_files_that_were_written_again_are_named(tmp_path):
    path, options = tmp_path / "y.npy", {"draws": 60, "tune": 50, "chains": 2, "cores": 1} | QUIET
    np.save(path, Y)
    model = settable()
    idata = pmb.sample(model, data={"data": path}, method="minibatch", **options)
    np.save(path, np.concatenate([Y[1:], Y[:1]]))
    message = r"read other rows \(data was .*y\.npy, 3,328 bytes of .* and is .*y\.npy, 3,328 bytes"
    with pytest.raises(ValueError, match=message):
        pmb.loo(idata, 50, model=model, data={"data": path})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"table": other_table}, "the constant table has changed since"),
        ({"sd": 2.0}, "the prior of b has changed since"),
        ({"dist": pm.Logistic}, "the likelihood has changed since"),
        ({"y": Y + 1}, "rows were others"),
    ],
    ids=["table", "prior", "likelihood", "rows"],
)
def test_a_run_is_continued_on_its_own_model_only(tmp_path, change, words):
    options = {"cores": 1} | QUIET
    pmb.sample(model_of(), 5, 5, 1, method="minibatch", store=tmp_path / "run", **options)
    with pytest.raises(ValueError, match=f"cannot be continued: {words}"):
        pmb.resume(tmp_path / "run", model_of(**change), **options)
    assert pmb.resume(tmp_path / "run", model_of(), **options).posterior.sizes["draw"] == 5


def test_a_state_is_taken_over_by_a_step_on_the_same_model_only(monkeypatch):
    state = pmb.SGLD(model=model_of()).sampling_state
    pmb.SGLD(model=model_of()).sampling_state = state
    other = pmb.SGLD(model=model_of(sd=2.0))
    with pytest.raises(ValueError, match="cannot continue the run: the prior of b has changed"):
        other.sampling_state = state
    monkeypatch.setattr(fingerprint, "_known", {})
    with pytest.raises(ValueError, match="cannot continue the run: the prior has changed since"):
        other.sampling_state = state


def test_a_start_is_of_the_data_that_it_was_found_on():
    model = settable()
    start = pmb.approximate(model, draws=50, random_seed=1)
    with model:
        pm.set_data({"data": Y + 1})
        with pytest.raises(ValueError, match="data was set since start was found"):
            pmb.MinibatchMH(start=start)


def test_runs_of_other_models_are_compared_with_a_warning(runs):
    others = {"one": runs["stored"], "other": runs["of pm.sample"]}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*another model")
        pmb.compare(others, "one")
    model = model_of(sd=0.5, table=other_table)
    options = {"draws": 60, "tune": 50, "chains": 2, "cores": 1, "random_seed": 1} | QUIET
    others["other"] = pmb.sample(model, method="minibatch", **options)
    message = (
        "'other' is of another model than that of 'one': the constant table and the prior of b"
    )
    with pytest.warns(UserWarning, match=message):
        pmb.compare(others, "one")


# --- Data that are set anew -------------------------------------------------------------------


def settable(y=Y):
    with pm.Model() as model:
        data = pm.Data("data", y)
        pm.Normal("y", pm.Normal("mu", 0, 10), pm.HalfNormal("s", 5), observed=data)
    return model


def mean_of(idata):
    return float(idata.posterior["mu"].mean())


@pytest.mark.parametrize("kind", [pmb.MinibatchMH, pmb.FlyMC, pmb.SGLD])
def test_a_step_follows_data_that_are_set(kind, caplog):
    with pm.Model():
        data = pm.Data("data", Y)
        pm.Normal("y", pm.Normal("mu", 0, 10), 1.0, observed=data)
        step = kind()
        for values in (Y + 1, np.concatenate([Y, Y]) + 2, Y - 1):
            pm.set_data({"data": values})
            with caplog.at_level("INFO", "pymc.minibatch"):
                idata = pm.sample(
                    300, tune=200, chains=1, cores=1, step=step, random_seed=1, **QUIET
                )
            assert "data was set since" in caplog.text
            assert abs(mean_of(idata) - values.mean()) < 0.1
            assert step.n_rows == len(values)
            assert int(idata.sample_stats["n_rows"][0, 0]) == len(values)


def test_chains_in_processes_follow_data_that_are_set():
    with settable() as model:
        step = pmb.MinibatchMH()
        pm.set_data({"data": Y + 1})
        idata = pm.sample(200, tune=200, chains=2, cores=2, step=step, random_seed=1, **QUIET)
    assert abs(mean_of(idata) - (Y + 1).mean()) < 0.15
    assert model["data"].get_value(borrow=True) is not None


def test_steps_beside_each_other_see_the_same_data():
    with pm.Model():
        data = pm.Data("data", Y)
        mu, s = pm.Normal("mu", 0, 10), pm.HalfNormal("s", 5)
        pm.Normal("y", mu, s, observed=data)
        steps = [pmb.MinibatchMH([mu]), pm.Metropolis([s])]
        pm.set_data({"data": 3 * Y + 1})
        idata = pm.sample(400, tune=400, chains=1, cores=1, step=steps, random_seed=1, **QUIET)
    assert abs(mean_of(idata) - (3 * Y + 1).mean()) < 0.5
    assert abs(float(idata.posterior["s"].mean()) - 3 * Y.std()) < 0.4


def test_a_table_that_is_set_is_seen():
    with pm.Model():
        table = pm.Data("table", TABLE)
        b = pm.Normal("b", 0, 10)
        pm.Normal("y", b * table[GROUP], 1.0, observed=5 * TABLE[GROUP] + Y)
        step = pmb.MinibatchMH()
        pm.set_data({"table": 2 * TABLE})
        idata = pm.sample(300, tune=300, chains=1, cores=1, step=step, random_seed=1, **QUIET)
    assert abs(float(idata.posterior["b"].mean()) - 2.5) < 0.2


def test_equal_values_are_no_change():
    with settable():
        step = pmb.MinibatchMH()
        made = step.tall
        pm.set_data({"data": Y.copy()})
        assert step.vars
    assert step.tall is made


def test_stand_ins_are_no_data(caplog):
    with settable(Y[:50]):
        step = pmb.MinibatchMH(data={"data": Y})
        made = step.tall
        pm.set_data({"data": Y[:50] + 7})
        assert step.vars
    assert step.tall is made


def test_an_audit_is_of_the_data_of_the_run():
    with settable() as model:
        step = pmb.MinibatchMH(acceptance="penalty")
        idata = pm.sample(100, tune=100, chains=1, cores=1, step=step, random_seed=1, **QUIET)
        pm.set_data({"data": Y + 1})
    with pytest.raises(RuntimeError, match="data was set since MinibatchMH was set up"):
        pmb.audit(idata, step)
    assert model is step.tall.model


def test_a_step_from_elsewhere_says_that_data_were_set():
    with settable():
        step = pickle.loads(cloudpickle.dumps(pmb.MinibatchMH()))
        assert step.vars
        step.tall.model.set_data("data", Y + 1)
        with pytest.raises(RuntimeError, match=r"data was set since .* Make the step again"):
            _ = step.vars


# --- Results of other rows --------------------------------------------------------------------


@pytest.fixture(scope="module")
def result():
    with settable():
        return pm.sample(100, tune=100, chains=1, step=pmb.MinibatchMH(), random_seed=1, **QUIET)


@pytest.mark.parametrize("function", [pmb.loo, pmb.ksd])
@pytest.mark.parametrize("values", [Y[::-1].copy(), Y + 1e-9], ids=["reordered", "written"])
def test_a_result_of_other_rows_is_refused(result, function, values):
    with settable(values) as model, pytest.raises(ValueError, match="The run read other rows"):
        function(result, model=model)


def test_a_result_of_the_same_rows_is_accepted(result, tmp_path):
    np.save(tmp_path / "y.npy", Y)
    with settable(Y[:50]) as model:
        found = pmb.loo(result, model=model, data={"data": tmp_path / "y.npy"})
        np.save(tmp_path / "y.npy", Y + 1)
        with pytest.raises(ValueError, match="The run read other rows"):
            pmb.loo(result, model=model, data={"data": tmp_path / "y.npy"})
    with settable() as model:
        assert found.elpd == pytest.approx(pmb.loo(result, model=model).elpd)
    assert found.elpd < 0
