"""Log-likelihoods of rows at draws, compared with PyMC's own."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_minibatch as pmb

N_ROWS = 60


def build(x, group, y):
    """A model with every kind of transform; nothing of the rows depends on `other`."""
    coords = {"obs": [f"row {i}" for i in range(len(y))]}
    with pm.Model(coords=coords) as model:
        pm.Normal("other")
        upper = pm.HalfNormal("upper")
        sigma = pm.Uniform("sigma", 0.1, 0.2 + upper)
        share = pm.Dirichlet("share", np.ones(3))
        mean = share[pm.Data("group", group)] + pm.Data("x", x)
        pm.Normal("y", mean, sigma, observed=y, dims="obs")
    return model


def rows(seed, n=N_ROWS):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=n), "group": rng.integers(0, 3, n), "y": rng.normal(size=n)}


@pytest.fixture(scope="module")
def data():
    return rows(1)


@pytest.fixture(scope="module")
def model(data):
    return build(**data)


@pytest.fixture(scope="module")
def tall(model):
    return pmb.TallModel(model)


@pytest.fixture(scope="module")
def idata(model):
    """Draws of the prior, as if they were of the posterior."""
    with model:
        prior = pm.sample_prior_predictive(30, random_seed=1).prior.to_dataset()
    kept = prior.drop_vars("other").stack(sample=("chain", "draw")).reset_index("sample", drop=True)
    kept = kept.drop_vars(["chain", "draw"], errors="ignore")
    split = [kept.isel(sample=slice(0, 15)), kept.isel(sample=slice(15, 30))]
    both = xr.concat(split, "chain").rename(sample="draw").transpose("chain", "draw", ...)
    both = both.assign_coords(chain=[0, 1], draw=np.arange(15))
    return xr.DataTree.from_dict({"posterior": both})


@pytest.fixture(scope="module")
def expected(model, idata):
    whole = xr.DataTree.from_dict({"posterior": idata.posterior.to_dataset().assign(other=0.0)})
    whole.posterior["other"] = xr.zeros_like(whole.posterior["upper"])
    with model:
        return pm.compute_log_likelihood(whole, extend_inferencedata=False, progressbar=False)


def test_all_rows_equal_those_of_pymc(tall, idata, expected):
    found = pmb.log_likelihood(idata, data=tall)
    xr.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found.y.dims == expected.y.dims


def test_some_rows_and_draws(tall, idata, expected):
    found = pmb.log_likelihood(idata, [7, 3, 7], data=tall, max_draws=7)
    some = expected.isel(obs=[7, 3, 7], draw=[0, 5, 10])
    xr.testing.assert_allclose(found, some, rtol=1e-9)


def test_other_data_give_what_a_model_of_them_gives(tmp_path, model, idata):
    other = rows(2, 40)
    for name, values in other.items():
        np.save(tmp_path / f"{name}.npy", values)
    paths = {name: tmp_path / f"{name}.npy" for name in other}
    found = pmb.log_likelihood(idata, model=model, data=paths)
    with build(**other):
        built = pmb.log_likelihood(idata)
    np.testing.assert_allclose(found.y, built.y, rtol=1e-9)
    assert found.obs.values.tolist() == list(range(40))


def test_arviz_takes_it(tall, idata):
    result = idata.copy()
    result["log_likelihood"] = xr.DataTree(pmb.log_likelihood(idata, range(20), data=tall))
    assert az.loo(result).n_data_points == 20


def marked(idata, **stats):
    shape = idata.posterior.sizes["chain"], idata.posterior.sizes["draw"]
    stats = {name: (("chain", "draw"), np.full(shape, value)) for name, value in stats.items()}
    return xr.DataTree.from_dict(
        {"posterior": idata.posterior.to_dataset(), "sample_stats": xr.Dataset(stats)}
    )


def test_a_stand_in_is_refused(model, idata, data):
    result = marked(idata, stand_in=True, n_rows=N_ROWS)
    for function in (pmb.log_likelihood, pmb.loo):
        with pytest.raises(ValueError, match=r"bound with data=.* Pass the same data=, or data="):
            function(result, model=model)
    assert pmb.log_likelihood(result, [1], model=model, data=data).y.shape == (2, 15, 1)


def test_loo_of_other_rows_is_refused(tall, idata):
    with pytest.raises(ValueError, match=r"read 70 rows and the model has 60"):
        pmb.loo(marked(idata, n_rows=70), data=tall)


def test_variables_that_are_not_there(tall, idata):
    lacking = xr.DataTree.from_dict({"posterior": idata.posterior.to_dataset().drop_vars("upper")})
    with pytest.raises(ValueError, match=r"lacks \['upper'\].*Pass the model .*var_names"):
        pmb.log_likelihood(lacking, data=tall)


def test_draws_that_are_not_finite(tall, idata):
    broken = xr.DataTree.from_dict({"posterior": idata.posterior.to_dataset() * np.nan})
    with pytest.raises(ValueError, match="draws that are not finite"):
        pmb.log_likelihood(broken, data=tall)


def test_draws_of_another_model(tall, idata):
    posterior = idata.posterior.to_dataset().isel(share_dim_0=slice(0, 2))
    with pytest.raises(ValueError, match=r"share has shape \(2,\) in the posterior and \(3,\)"):
        pmb.log_likelihood(xr.DataTree.from_dict({"posterior": posterior}), data=tall)


def test_arguments(tall, model, idata):
    with pm.Model() as other, pytest.raises(ValueError, match="is a TallModel of another model"):
        pmb.log_likelihood(idata, data=tall, model=other)
    with pytest.raises(ValueError, match="numbers from 0 to 59; there is 60"):
        pmb.log_likelihood(idata, [60], data=tall)
    with pytest.raises(TypeError, match=r"idata must be a result of pm\.sample"):
        pmb.log_likelihood({}, data=tall)


def test_loo_needs_draws_for_a_tail(tall, idata):
    few = idata.isel(draw=slice(12))
    with pytest.raises(ValueError, match=r"24 draws are too few for leave-one-out.*25 are needed"):
        pmb.loo(few, data=tall)


def test_draws_at_an_end_of_a_variable(tall, idata):
    """Single precision rounds a share to 1, which is infinite on the scale of the moves."""
    edge = idata.posterior.to_dataset()
    edge["sigma"][1, 3] = 0.1
    with pytest.raises(ValueError, match="1 draws lie at or beyond the bounds of sigma"):
        pmb.log_likelihood(xr.DataTree.from_dict({"posterior": edge}), data=tall)


def test_too_many_numbers_are_refused(monkeypatch, tall, idata):
    monkeypatch.setattr("pymc_minibatch.pointwise.LARGEST_BYTES", 8 * 30 * N_ROWS - 1)
    with pytest.raises(ValueError, match=r"60 rows at 30 draws take .* pmb.loo"):
        pmb.log_likelihood(idata, data=tall)
