"""Bambi's own fit takes a step, made before or after Bambi has built its model."""

import warnings

import bambi
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pymc_minibatch as pmb
from pymc_minibatch.steps.row_deterministics import will_record

N_ROWS = 4000


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(1)
    x = rng.normal(5.0, 1.0, N_ROWS)  # far from centred, so that Bambi's intercept is shifted
    yes = rng.binomial(1, 1 / (1 + np.exp(-(3.2 - 0.8 * x))))
    return pd.DataFrame({"x": x, "yes": yes})


def new_model(frame):
    return bambi.Model("yes ~ x", frame, family="bernoulli")


OPTIONS = {"draws": 200, "tune": 200, "chains": 2, "cores": 1, "random_seed": 1}


def predicted_share(model, idata):
    model.predict(idata)
    return float(idata.posterior["p"].mean())


def test_a_step_made_before_the_model(frame):
    model = new_model(frame)
    with warnings.catch_warnings():
        # Bambi leaves out the probability of each row, so there is nothing to warn of.
        warnings.filterwarnings("error", "Deterministics", pmb.MinibatchWarning)
        idata = model.fit(step=pmb.MinibatchMH(steps_per_draw=5), progressbar=False, **OPTIONS)
    assert "batch_size" in idata.sample_stats
    assert abs(predicted_share(model, idata) - frame.yes.mean()) < 0.01


def test_a_step_that_waits_is_made_once(frame, caplog):
    model = new_model(frame)
    model.build()
    caplog.set_level("INFO", "pymc.minibatch")
    waiting = pmb.SGLD(step_size=1e-4, control_variate=0)
    with model.backend.model, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(list(waiting)) == 1
    assert len([w for w in caught if "Deterministics" in str(w.message)]) == 1
    first, *_, last = (record.message for record in caplog.records)
    assert first == "SGLD: looking for the rows of the model"
    assert last.startswith("SGLD: ready after ")
    assert len(caplog.records) == 4


def test_the_recipe(frame):
    model = new_model(frame)
    model.build()
    step = pmb.MinibatchMH(model=model.backend.model, steps_per_draw=5)
    idata = model.fit(step=step, progressbar=False, **OPTIONS)
    assert abs(predicted_share(model, idata) - frame.yes.mean()) < 0.01


def test_variables_that_are_left_out_are_not_warned_of(frame):
    with pm.Model() as model:
        x = pm.Data("x", frame["x"].to_numpy())
        odds = pm.Deterministic("odds", x * pm.Normal("slope"))
        pm.Bernoulli("yes", logit_p=odds, observed=frame["yes"].to_numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("error", pmb.MinibatchWarning)
        with will_record(["slope"]):
            pmb.SGLD(model=model, step_size=1e-4, control_variate=0)
    with pytest.warns(pmb.MinibatchWarning, match=r"Deterministics \['odds'\]"):
        pmb.SGLD(model=model, step_size=1e-4, control_variate=0)


def test_a_step_that_waits_says_so():
    step = pmb.FlyMC()
    with pytest.raises(AttributeError, match=r"FlyMC was made without a model, so it has no vars"):
        _ = step.vars
    with pytest.raises(TypeError, match="FlyMC was made outside `with model:`"):
        list(step)


def test_log_likelihoods_are_bambis(frame):
    model = new_model(frame)
    idata = model.fit(step=pmb.MinibatchMH(steps_per_draw=5), progressbar=False, **OPTIONS)
    with pytest.raises(ValueError, match=r"Pass the Bambi model itself"):
        pmb.log_likelihood(idata, model=model.backend.model)
    found = pmb.log_likelihood(idata, range(50), model=model, max_draws=20)
    expected = model.compute_log_likelihood(idata, inplace=False).log_likelihood["yes"]
    np.testing.assert_allclose(found["yes"], expected[:, ::20, :50], rtol=1e-6)


@pytest.fixture(scope="module")
def grouped():
    """A model with groups, not built yet, and made-up draws of it."""
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"x": rng.normal(5.0, 1.0, 400), "place": rng.choice(list("abc"), 400)})
    frame["count"] = rng.poisson(np.exp(0.3 * frame["x"] - 1.0))
    model = bambi.Model("count ~ x + (1 | place)", frame, family="poisson")
    dims, shape = ("chain", "draw"), (2, 100)
    draws = {
        "Intercept": (dims, rng.normal(-1.0, 0.05, shape)),
        "x": (dims, rng.normal(0.3, 0.01, shape)),
        "1|place_sigma": (dims, np.full(shape, 0.3)),
        "1|place": ((*dims, "place__factor_dim"), rng.normal(0, 0.2, (*shape, 3))),
    }
    coords = {"place__factor_dim": list("abc"), "chain": [0, 1], "draw": np.arange(100)}
    posterior = xr.Dataset(draws, coords).assign_attrs(modeling_interface="bambi")
    return model, xr.DataTree.from_dict({"posterior": posterior})


def new_people(**columns):
    return pd.DataFrame({"x": [4.0, 5.0, 6.0], "place": ["c", "a", "b"]} | columns)


@pytest.mark.parametrize("rows", [None, new_people()], ids=["own", "new"])
@pytest.mark.filterwarnings("error:.*distributional_components:FutureWarning")
def test_means_are_bambis(monkeypatch, grouped, rows):
    model, idata = grouped
    monkeypatch.setattr("pymc_minibatch.bambi_rows.CHUNK_BYTES", 8 * 200 * 150)  # several chunks
    found = pmb.predict(idata, rows, model=model, kind="mean", output="draws")["count"]
    expected = model.predict(idata, "response_params", data=rows, inplace=False).posterior["mu"]
    assert found.dims == expected.dims
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert "mu" not in idata.posterior


def test_responses_and_their_coverage(monkeypatch, grouped):
    model, idata = grouped
    monkeypatch.setattr("pymc_minibatch.bambi_rows.CHUNK_BYTES", 8 * 200 * 150)
    found = pmb.predict(idata, model=model, by="place")
    mean = model.predict(idata, "response_params", inplace=False).posterior["mu"]
    mean = mean.stack(sample=("chain", "draw")).to_numpy()
    error = np.sqrt((mean.var(axis=1) + mean.mean(axis=1)) / 200)
    z = (found["mean"].to_numpy() - mean.mean(axis=1)) / error
    assert np.abs(z).max() < 5.5
    assert 0.8 < np.sqrt((z**2).mean()) < 1.2
    low, high = (found["quantile"].sel(prob=p).to_numpy() for p in (0.05, 0.95))
    inside = (low <= model.data["count"]) & (model.data["count"] <= high)
    np.testing.assert_allclose(
        found.coverage.sel(interval=0.9), inside.groupby(model.data["place"]).mean()
    )
    again = pmb.predict(idata, model.data, model=model, by="place")
    xr.testing.assert_equal(found, again)


def categorical(grouped, formula):
    """A model of four categories, and made-up draws of it with the dimensions that Bambi gives."""
    frame = grouped[0].data.assign(kind=np.repeat(list("uvwu"), 100))
    model = bambi.Model(formula, frame, family="categorical")
    model.build()
    dims, rng = ("chain", "draw", "kind_reduced_dim"), np.random.default_rng(3)
    draws = {name: (dims, rng.normal(0, 0.1, (2, 30, 2))) for name in ("Intercept", "x")}
    coords = {"kind_reduced_dim": ["v", "w"], "chain": [0, 1], "draw": np.arange(30)}
    if "place" in formula:
        draws["1|place_sigma"] = (dims, rng.gamma(3.0, 0.1, (2, 30, 2)))
        draws["1|place"] = ((*dims, "place__factor_dim"), rng.normal(0, 0.5, (2, 30, 2, 3)))
        coords["place__factor_dim"] = list("abc")
    posterior = xr.Dataset(draws, coords).assign_attrs(modeling_interface="bambi")
    return model, xr.DataTree.from_dict({"posterior": posterior})


@pytest.mark.parametrize("rows", [None, new_people()], ids=["own", "new"])
@pytest.mark.parametrize("formula", ["kind ~ x", "kind ~ x + (1 | place)"])
def test_categories_have_an_axis_of_their_own(grouped, formula, rows):
    """Bambi puts dimensions of groups after it; the model of PyMC has them before."""
    model, idata = categorical(grouped, formula)
    found = pmb.predict(idata, rows, model=model, kind="mean")
    expected = model.predict(idata, "response_params", data=rows, inplace=False).posterior["p"]
    np.testing.assert_allclose(found["mean"], expected.mean(("chain", "draw")))
    assert "coverage" not in pmb.predict(idata, model.data[:5], model=model)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (new_people().drop(columns="x"), ValueError, "Look for columns that are missing"),
        (
            new_people(place=["a", "z", "b"]),
            ValueError,
            "group place that the model has not seen. Pass sample_n",
        ),
        (new_people(x=[1.0, np.nan, 2.0]), ValueError, "Row 1 is predicted as nan. Look for miss"),
        (new_people()[:0], ValueError, "new_rows has no rows. Pass at least one"),
        ({"x": [1.0]}, TypeError, "must be a pandas DataFrame for a Bambi model; got dict"),
    ],
)
def test_frames_that_do_not_fit(grouped, rows, error, message):
    model, idata = grouped
    with pytest.raises(error, match=message):
        pmb.predict(idata, rows, model=model)


def test_effects_of_new_groups_are_drawn_from_their_prior(grouped, monkeypatch):
    model, idata = grouped
    rows = pd.DataFrame({"x": [4.0, 4.0, 4.0, 5.0], "place": ["a", "z", "q", "z"]})
    options = {"model": model, "kind": "mean", "output": "draws", "sample_new_groups": True}
    found = np.log(pmb.predict(idata, rows, **options)["count"])
    known = pmb.predict(idata, rows[:1], model=model, kind="mean", output="draws")["count"]
    np.testing.assert_allclose(found[..., :1], np.log(known))
    posterior = idata.posterior
    common = posterior["Intercept"] + 4.0 * posterior["x"]
    z, q = (found[..., i] - common for i in (1, 2))
    assert abs(z).max() > 0.3  # not only one of the three known effects, and not zero
    for effect in (z, q):
        assert 0.24 < effect.std() < 0.36
        assert abs(effect.mean()) < 0.1
    assert abs(np.corrcoef(z.values.ravel(), q.values.ravel())[0, 1]) < 0.3
    np.testing.assert_allclose(found[..., 3] - posterior["x"], found[..., 1])
    # Neither chunks nor other rows change them.
    monkeypatch.setattr("pymc_minibatch.bambi_rows.CHUNK_BYTES", 8 * 200)
    alone = np.log(pmb.predict(idata, rows[2:], **options)["count"])
    np.testing.assert_allclose(alone, found[..., 2:])


def test_slopes_of_new_groups_follow_the_scales_of_each_draw():
    rng = np.random.default_rng(6)
    frame = pd.DataFrame({"y": rng.normal(size=60), "x": rng.normal(size=60)})
    frame["g"], frame["h"] = np.resize([3, 1, 7], 60), np.resize(list("uvw"), 60)
    prior = bambi.Prior("Laplace", mu=0.0, b=bambi.Prior("HalfNormal", sigma=1))
    model = bambi.Model("y ~ 1 + (0 + h | g)", frame, priors={"h|g": prior}, noncentered=False)
    model.build()
    dims, shape = ("chain", "draw"), (1, 4000)
    scales = np.tile([1e-9, 1e-9, 2.0], (*shape, 1))
    scales[:, ::2] = [1e-9, 1.0, 1e-9]
    draws = {
        "Intercept": (dims, np.zeros(shape)),
        "sigma": (dims, np.ones(shape)),
        "h|g_b": ((*dims, "h__expr_dim"), scales),
        "h|g": ((*dims, "g__factor_dim", "h__expr_dim"), np.full((*shape, 3, 3), 9.0)),
    }
    coords = {"g__factor_dim": ["1", "3", "7"], "h__expr_dim": list("uvw")}
    posterior = xr.Dataset(draws, coords | {"chain": [0], "draw": np.arange(4000)})
    idata = xr.DataTree.from_dict({"posterior": posterior.assign_attrs(modeling_interface="bambi")})
    rows = pd.DataFrame({"h": ["u", "v", "w", "w"], "g": [5, 5, 5, 1]})
    options = {"model": model, "kind": "mean", "output": "draws", "sample_new_groups": True}
    options["max_draws"] = 4000
    found = pmb.predict(idata, rows, **options)["y"].to_numpy()[0]
    even, odd = found[::2], found[1::2]
    np.testing.assert_allclose(np.abs(even).mean(axis=0), [0, 1, 0, 9], atol=0.12)
    np.testing.assert_allclose(np.abs(odd).mean(axis=0), [0, 0, 2, 9], atol=0.25)


def test_draws_that_do_not_fit(grouped):
    model, idata = grouped
    posterior = idata.posterior.to_dataset()
    other = xr.DataTree.from_dict({"posterior": posterior.drop_vars("x")})
    with pytest.raises(ValueError, match=r"lacks \['x'\]. Pass the Bambi model that was fitted"):
        pmb.predict(other, model=model)
    of_pymc = xr.DataTree.from_dict({"posterior": posterior.assign_attrs(modeling_interface="")})
    with pytest.raises(ValueError, match=r"Sample with fit\(step=\.\.\.\)"):
        pmb.predict(of_pymc, model=model)
    with pytest.raises(ValueError, match="leave out data, and pass"):
        pmb.predict(idata, model=model, data={"x": np.zeros(3)})


def test_rows_that_bambi_left_out(grouped):
    frame = grouped[0].data.assign(x=grouped[0].data["x"].where(lambda x: x > 3))
    model = bambi.Model("count ~ x + (1 | place)", frame, family="poisson", dropna=True)
    left_out = int(frame["x"].isna().sum())
    with pytest.raises(ValueError, match=f"left out {left_out} rows .* without them as new_rows"):
        pmb.predict(grouped[1], model=model)


def test_a_model_that_is_not_built_is_built(grouped):
    model = bambi.Model("count ~ x + (1 | place)", grouped[0].data, family="poisson")
    found = pmb.log_likelihood(grouped[1], [0], model=model, max_draws=2)
    expected = grouped[0].compute_log_likelihood(grouped[1], inplace=False).log_likelihood["count"]
    np.testing.assert_allclose(found["count"], expected[:, :1, :1], rtol=1e-6)


@pytest.mark.parametrize("response", ["p(successes, trials)", "weighted(amount, weight)"])
def test_responses_of_two_columns(frame, response):
    rng = np.random.default_rng(5)
    more = {"successes": rng.binomial(9, 0.4, len(frame)), "trials": 9}
    more |= {"amount": rng.gamma(2.0, size=len(frame)), "weight": rng.integers(1, 4, len(frame))}
    family = {"family": "binomial"} if response[0] == "p" else {"family": "gamma", "link": "log"}
    model = bambi.Model(f"{response} ~ x", frame.assign(**more), **family)
    model.build()
    assert response in pmb.TallModel(model.backend.model).describe()


def last_first(values):
    """Ranks, which no few rows tell."""
    return np.argsort(np.argsort(-np.asarray(values))) / len(values)


WHOLE = [
    "count ~ I(x - np.mean(x))",
    "count ~ last_first(x)",
    "count ~ x + (I(x - np.max(x))|place)",
]


def fitted(formula, frame, seed=6):
    model = bambi.Model(formula, frame, family="poisson")
    model.build()
    rng, dims, draws = np.random.default_rng(seed), ("chain", "draw"), {}
    for name, shape in model.backend.model.eval_rv_shapes().items():
        of = model.backend.model.named_vars_to_dims.get(name, ())
        draws[name] = ((*dims, *of), np.abs(rng.normal(0.1, 0.02, (2, 30, *shape))))
    for variable in model.backend.model.deterministics:
        of = model.backend.model.named_vars_to_dims.get(variable.name, ())
        if "__obs__" not in of:
            shape = [len(model.backend.model.coords[dim]) for dim in of]
            draws[variable.name] = ((*dims, *of), rng.normal(0.1, 0.02, (2, 30, *shape)))
    kept = {name: values for name, values in draws.items() if not name.endswith("_offset")}
    labels = {dim: list(model.backend.model.coords[dim]) for d, _ in kept.values() for dim in d[2:]}
    posterior = xr.Dataset(kept, labels | {"chain": [0, 1], "draw": np.arange(30)})
    posterior = posterior.assign_attrs(modeling_interface="bambi")
    return model, xr.DataTree.from_dict({"posterior": posterior})


@pytest.mark.parametrize(
    "formula", [*WHOLE, "count ~ center(x) + (1|place)", "count ~ bs(x, df=4)"]
)
def test_formulas_that_compute_from_whole_columns(monkeypatch, grouped, formula):
    frame = grouped[0].data
    model, idata = fitted(formula, frame)
    monkeypatch.setattr("pymc_minibatch.bambi_rows.CHUNK_BYTES", 8 * 60 * 70)  # several chunks
    found = pmb.predict(idata, model=model, kind="mean")["mean"]
    whole = model.predict(idata, "response_params", inplace=False).posterior["mu"]
    np.testing.assert_allclose(found, whole.mean(("chain", "draw")), rtol=1e-10)
    new = frame.iloc[::9].reset_index(drop=True)
    if formula in WHOLE:
        with pytest.raises(ValueError, match=r"is computed from whole columns.*center"):
            pmb.predict(idata, new, model=model, kind="mean")
    else:
        found = pmb.predict(idata, new, model=model, kind="mean")["mean"]
        np.testing.assert_allclose(found, whole.mean(("chain", "draw"))[::9], rtol=1e-10)


def test_levels_in_another_order(grouped):
    model, idata = grouped
    other = xr.DataTree.from_dict(
        {"posterior": idata.posterior.to_dataset().isel(place__factor_dim=[2, 0, 1])}
    )
    for function in (
        lambda result: pmb.predict(result, model=model, kind="mean")["mean"],
        lambda result: pmb.log_likelihood(result, range(9), model=model)["count"],
    ):
        np.testing.assert_allclose(function(other), function(idata), rtol=1e-12)


def test_the_discrepancy_puts_the_intercept_back(grouped):
    """It needs the offsets of the effects as well, which Bambi leaves out."""
    model, idata = grouped
    varied = idata.posterior.to_dataset()
    spread = np.exp(np.random.default_rng(7).normal(-1, 0.1, (2, 100)))
    varied["1|place_sigma"] = (("chain", "draw"), spread)
    varied = xr.DataTree.from_dict({"posterior": varied})
    model.build()
    put_back = model._re_center_intercept(varied)["posterior"].to_dataset()
    plain = xr.DataTree.from_dict({"posterior": put_back.assign_attrs(modeling_interface="")})
    found = pmb.ksd(varied, model, control_variate=0)
    expected = pmb.ksd(plain, model.backend.model, control_variate=0)
    assert found.squared == pytest.approx(expected.squared, rel=1e-6)


def test_a_result_of_other_rows(frame):
    """Functions of a whole column are those of the model that is passed."""
    few = frame.iloc[:300]
    fitted = bambi.Model("yes ~ scale(x)", few, family="bernoulli")
    options = OPTIONS | {"draws": 20, "tune": 20, "chains": 1, "progressbar": False}
    idata = fitted.fit(compute_convergence_checks=False, **options)
    new = pd.DataFrame({"x": [4.0, 6.0]})
    with warnings.catch_warnings():
        warnings.simplefilter("error", pmb.MinibatchWarning)
        pmb.predict(idata, model=fitted, new_rows=new)
    for other in (frame.iloc[300:600], frame.iloc[:200]):
        model = bambi.Model("yes ~ scale(x)", other, family="bernoulli")
        with pytest.warns(pmb.MinibatchWarning, match="observed on other values of yes"):
            pmb.predict(idata, model=model, new_rows=new)
    with pytest.raises(ValueError, match="missing or of another type"):
        pmb.predict(idata, model=fitted, new_rows=new.astype(str))


@pytest.mark.parametrize("level", ["other", None])
def test_a_level_of_a_slope_that_is_new_is_refused(level):
    """Formulae gives it no effect, as if it were the mean of the group."""
    rng = np.random.default_rng(8)
    frame = pd.DataFrame(
        {"kind": rng.choice(["a", "b", "c"], 600), "group": rng.choice(["p", "q", "r", "s"], 600)}
    )
    frame["y"] = rng.poisson(2.0, 600)
    model = bambi.Model("y ~ 1 + (0 + kind | group)", frame, family="poisson")
    idata = pmb.sample(model, 20, 20, 1, method="minibatch", progressbar=False)
    new_rows = frame.iloc[:4].copy()
    new_rows.loc[new_rows.index[2], "kind"] = level
    with pytest.raises(ValueError, match=r"Row 2 of new_rows has .* in column kind"):
        pmb.predict(idata, new_rows, model=model)
