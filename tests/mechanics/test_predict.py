"""Predictions, compared with PyMC's own and with closed forms."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_minibatch as pmb

N_ROWS, N_DRAWS = 400, 500


def rows(seed, n):
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, n)
    x = rng.normal(size=n)
    return {"x": x, "group": group, "y": rng.poisson(np.exp(0.5 * x + group))}


@pytest.fixture(scope="module")
def data():
    return rows(1, N_ROWS)


@pytest.fixture(scope="module")
def model(data):
    """Counts, of which the model knows too little: coverage differs between groups."""
    with pm.Model(coords={"obs": np.arange(N_ROWS) + 1000}) as model:
        alpha = pm.Normal("alpha", shape=3)
        scale = pm.HalfNormal("scale")
        x, group = pm.Data("x", data["x"]), pm.Data("group", data["group"])
        pm.Poisson("y", pm.math.exp(alpha[group] + scale * x), observed=data["y"], dims="obs")
    return model


@pytest.fixture(scope="module")
def idata():
    rng = np.random.default_rng(2)
    shape = (2, N_DRAWS // 2)
    alpha = rng.normal([0.5, 1.0, 1.5], 0.1, (*shape, 3))
    scale = np.exp(rng.normal(-0.7, 0.1, shape))
    dims = ("chain", "draw")
    posterior = xr.Dataset({"alpha": ((*dims, "k"), alpha), "scale": (dims, scale)})
    return xr.DataTree.from_dict(
        {"posterior": posterior.assign_coords(chain=[0, 1], draw=np.arange(shape[1]))}
    )


@pytest.fixture(scope="module")
def tall(model):
    return pmb.TallModel(model)


@pytest.fixture(scope="module")
def pymcs(model, idata):
    with model:
        drawn = pm.sample_posterior_predictive(idata, random_seed=1, progressbar=False)
    return drawn.posterior_predictive["y"].stack(sample=("chain", "draw")).values


@pytest.fixture(scope="module")
def summary(tall, idata):
    return pmb.predict(idata, data=tall, by="group")


def test_summary_agrees_with_pymc(summary, pymcs):
    sd = pymcs.std(axis=1, ddof=1)
    z = (summary["mean"].values - pymcs.mean(axis=1)) / (sd * np.sqrt(2 / N_DRAWS))
    assert np.abs(z).max() < 5.5
    assert 0.8 < np.sqrt((z**2).mean()) < 1.2
    assert np.abs(summary.sd / sd - 1).mean() < 0.06
    assert summary["mean"].dims == ("obs",)
    assert summary.obs.values.tolist() == list(range(1000, 1000 + N_ROWS))


def test_coverage_by_group_agrees_with_pymc(summary, pymcs, data):
    probs = [0.05, 0.25, 0.75, 0.95]
    low, lower, upper, high = np.quantile(pymcs, probs, axis=1)
    y = data["y"]
    for interval, inside in {
        0.9: (low <= y) & (y <= high),
        0.5: (lower <= y) & (y <= upper),
    }.items():
        expected = [inside[data["group"] == g].mean() for g in range(3)]
        found = summary.coverage.sel(interval=interval)
        np.testing.assert_allclose(found, expected, atol=0.05)
    assert summary.rows.values.tolist() == np.bincount(data["group"]).tolist()
    assert (
        np.ptp(summary.coverage.sel(interval=0.9).values) > 0.2
    )  # so that groups mixed up would show


def test_means_are_those_of_the_distribution(tall, idata, data):
    found = pmb.predict(idata, data=tall, kind="mean", output="draws", max_draws=10)
    alpha = idata.posterior.alpha.values[:, ::50]
    scale = idata.posterior.scale.values[:, ::50]
    expected = np.exp(alpha[..., data["group"]] + scale[..., None] * data["x"])
    np.testing.assert_allclose(found.y, expected, rtol=1e-9)


def test_new_rows(tmp_path, tall, idata):
    new = rows(3, 700)
    np.save(tmp_path / "x.npy", new["x"])
    given = {"x": tmp_path / "x.npy", "group": new["group"].astype(np.int8)}
    found = pmb.predict(idata, given, data=tall)
    mean = np.exp(
        idata.posterior.alpha.values[..., new["group"]].reshape(-1, 700)
        + idata.posterior.scale.values.reshape(-1, 1) * new["x"]
    )
    error = np.sqrt((mean.var(axis=0) + mean.mean(axis=0)) / N_DRAWS)
    z = (found["mean"].values - mean.mean(axis=0)) / error
    assert np.abs(z).max() < 5.5
    assert "coverage" not in found
    assert "coverage" in pmb.predict(idata, new, data=tall, max_draws=50)


def test_draws_do_not_depend_on_where_they_go(tmp_path, monkeypatch, tall, idata):
    monkeypatch.setattr("pymc_minibatch.prediction.CHUNK_BYTES", 8 * 20 * 90)  # several chunks
    options = {"tall": tall, "output": "draws", "max_draws": 20, "random_seed": 3}
    here = pmb.predict(idata, **options)
    there = pmb.predict(idata, **options, store=tmp_path / "draws.zarr")
    xr.testing.assert_equal(here, there.load())
    assert here.y.dims == ("chain", "draw", "obs")
    assert here.y.shape == (2, 10, N_ROWS)
    repeats = [np.array_equal(here.y[0, 0, :90], here.y[0, 0, i : i + 90]) for i in (90, 180)]
    assert not any(repeats)
    assert not np.array_equal(here.y[0, 0], here.y[0, 1])


def test_many_draws_need_a_store(monkeypatch, tall, idata):
    monkeypatch.setattr("pymc_minibatch.prediction.LARGEST_BYTES", 1000)
    with pytest.raises(ValueError, match=r"Set store to the path of a zarr store"):
        pmb.predict(idata, data=tall, output="draws")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": None}, r"new_rows has nothing for group.*it names \['x'\]"),
        ({"group": np.array([0, 3])}, "levels of a group, say, that the model has not seen"),
        ({"group": np.array([0, -1])}, "-1 numbers a level of a group.*counted from the last"),
        ({"x": np.zeros(0), "group": np.zeros(0, dtype=int)}, "new_rows has no rows"),
        ({"x": np.zeros((2, 1))}, r"shape \(2, 1\); the model needs \('N',\)"),
        ({"x": np.zeros(3)}, "same number of rows"),
        ({"x": np.array([0.0, np.nan])}, "x has nan in row 1"),
        ({"z": np.zeros(2)}, r"new_rows names \['z'\], which hold no rows"),
    ],
)
def test_new_rows_that_do_not_fit(tall, idata, change, message):
    given = {"x": np.zeros(2), "group": np.zeros(2, dtype=int)} | change
    given = {name: values for name, values in given.items() if values is not None}
    with pytest.raises(ValueError, match=message):
        pmb.predict(idata, given, data=tall)


def test_new_rows_without_names(tall, idata):
    with pytest.raises(ValueError, match=r"new_rows must map names.*'x': \.\.\..*got ndarray"):
        pmb.predict(idata, np.zeros((5, 2)), data=tall)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "median"}, "kind must be one of 'response', 'mean'"),
        ({"store": "x.zarr"}, "store is for draws"),
        ({"store": ".", "output": "draws"}, r"\. exists\. Remove it, or name a new folder"),
        ({"quantiles": [0.5, 1.0]}, "quantiles must lie between 0 and 1"),
        ({"quantiles": "0.5"}, "quantiles must lie between 0 and 1; got '0.5'"),
        ({"by": "g"}, r"the row data that are read are \['group', 'x'\]|\['x', 'group'\]"),
        ({"by": [1, 2]}, r"one label for each of the 400 rows; it has shape \(2,\)"),
        ({"var_name": "z"}, r"var_name must be one of .*\['y'\]; got 'z'"),
    ],
)
def test_arguments(tall, idata, options, message):
    with pytest.raises(ValueError, match=message):
        pmb.predict(idata, data=tall, **options)


def test_a_variable_without_draws(idata):
    with pm.Model() as model:
        alpha = pm.Normal("alpha", shape=3)
        scale = pm.HalfNormal("scale")
        logp = lambda value, a, s: pm.logp(pm.Normal.dist(a, s), value)  # noqa: E731
        pm.CustomDist("y", alpha[0], scale, logp=logp, observed=np.zeros(20))
    with pytest.raises(
        pmb.NoPredictionError, match=r"y cannot be drawn: give its pm\.CustomDist random="
    ):
        pmb.predict(idata, model=model)


@pytest.fixture(scope="module")
def kinds():
    """Several observed variables in the same rows, of two kinds that lie apart; PyMC's draws."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=300)
    with pm.Model() as model:
        mu = pm.Normal("mu") + np.repeat([-1.0, 1.0], 150)
        pm.StudentT("heavy", nu=9, mu=mu, sigma=1.0, observed=z)
        pm.Censored("cut", pm.Normal.dist(mu, 1.0), -1, 1, observed=z.clip(-1, 1))
        pm.ZeroInflatedPoisson("counts", 0.7, pm.math.exp(mu), observed=np.floor(z**2))
        pm.Bernoulli("yes", logit_p=mu, observed=(z > 0).astype(int))
        pm.Normal("flat", 0.0, 1.0, observed=z)
    posterior = xr.Dataset({"mu": (("chain", "draw"), np.zeros((2, 100)))})
    idata = xr.DataTree.from_dict({"posterior": posterior})
    with model:
        drawn = pm.sample_posterior_predictive(idata, random_seed=1, progressbar=False)
    return idata, pmb.TallModel(model), drawn.posterior_predictive


@pytest.mark.parametrize("name", ["heavy", "cut", "counts", "yes", "flat"])
def test_kinds_of_distributions(kinds, name):
    idata, tall, pymcs = kinds
    drawn = pmb.predict(idata, data=tall, var_name=name, output="draws")[name]
    found, expected = (v.values.reshape(-1, 2, 150).astype(float) for v in (drawn, pymcs[name]))
    for moment in (1, 2):
        error = np.sqrt(2 * (expected**moment).var(axis=(0, 2)) / (200 * 150))
        apart = (found**moment).mean(axis=(0, 2)) - (expected**moment).mean(axis=(0, 2))
        assert (np.abs(apart) < 6 * error).all()


def test_one_of_several_variables_must_be_named(kinds):
    idata, tall, _ = kinds
    with pytest.raises(ValueError, match=r"var_name must be one of .* got None"):
        pmb.predict(idata, data=tall)


def test_own_rows_of_what_is_computed_from_all_of_them():
    rng = np.random.default_rng(1)
    x = rng.normal(3, 1, 300)
    with pm.Model() as model:
        data = pm.Data("x", x)
        mu = pm.Normal("slope") * (data - data.mean())
        pm.Normal("y", mu, 0.5, observed=rng.normal(size=300))
    posterior = xr.Dataset({"slope": (("chain", "draw"), [[0.5, 1.5]])})
    idata = xr.DataTree.from_dict({"posterior": posterior})
    found = pmb.predict(idata, model=model, kind="mean")
    np.testing.assert_allclose(found["mean"], x - x.mean())
    with pytest.raises(pmb.NoPredictionError, match="new rows cannot be predicted"):
        pmb.predict(idata, {"x": x[:4]}, model=model)
