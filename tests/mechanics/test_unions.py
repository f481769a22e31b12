"""Likelihoods of different lengths, or many in a loop, are the rows of one."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_minibatch as pmb
from pymc_minibatch.latent.factors import find_factors
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import observed


@pytest.fixture(autouse=True, scope="module")
def few():
    """Let short likelihoods be long enough to be joined."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observed, "FEW_ROWS", 1000)
        yield


def two_families():
    rng = np.random.default_rng(1)
    x1, x2 = rng.normal(size=3000), rng.normal(size=1500)
    with pm.Model() as model:
        a, b, s = pm.Normal("a"), pm.Normal("b"), pm.HalfNormal("s")
        pm.Normal("y", a + b * pm.Data("x1", x1), s, observed=1 + 0.5 * x1 + rng.normal(size=3000))
        pm.Poisson("n", pm.math.exp(b * x2), observed=rng.poisson(np.exp(0.5 * x2)))
    return model


def devices():
    rng = np.random.default_rng(2)
    with pm.Model() as model:
        mu, s = pm.Normal("mu"), pm.HalfNormal("s")
        effect = pm.Normal("effect", mu, 1.0, shape=12)
        for k in range(12):
            x = rng.normal(size=150 + k)
            own = pm.Normal(f"slope_{k}") if k % 2 else 0.5
            pm.Normal(f"y_{k}", effect[k] + own * x, s, observed=rng.normal(size=150 + k))
    return model


def devices_with_scales():
    """Each device has a scale of its own, which is to be positive."""
    rng = np.random.default_rng(11)
    with pm.Model() as model:
        for k in range(24):
            mu, s = pm.Normal(f"mu_{k}"), pm.HalfNormal(f"s_{k}")
            pm.Normal(f"y_{k}", mu, s, observed=rng.normal(size=100 + k))
    return model


def events_and_censored_times():
    """Censored times by the logarithm of their survival function, in one sum with a prior."""
    rng = np.random.default_rng(8)
    clinic, x = rng.integers(0, 30, 4500), rng.normal(size=4500)
    time = np.exp(0.5 * x) * rng.weibull(1.3, 4500)
    event = time < 1.0
    with pm.Model() as model:
        shape, slope = pm.HalfNormal("shape", 2.0), pm.Normal("slope")
        effect = pm.Normal("effect", 0.0, 0.5, shape=30)
        scale = pm.math.exp(slope * x + effect[clinic])
        pm.Weibull("event", shape, scale[event], observed=time[event])
        survives = -((1.0 / scale[~event]) ** shape)
        pm.Potential("censored", survives.sum() - 0.5 * slope**4)
    return model


def potentials_alone():
    rng = np.random.default_rng(9)
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Potential("y", pm.logp(pm.Normal.dist(a, 1.0), rng.normal(size=3000)))
        pm.Potential("n", pm.logp(pm.Poisson.dist(pm.math.exp(a + b)), rng.poisson(2.0, 1500)))
    return model


def neighbours_beside_rows():
    """A potential of pairs of parameters is a prior, however many they are."""
    rng = np.random.default_rng(10)
    left, right = rng.integers(0, 50, (2, 1500))
    with pm.Model() as model:
        area, s = pm.Normal("area", shape=50), pm.HalfNormal("s")
        pm.Potential("smooth", -((area[left] - area[right]) ** 2) / (2 * s))
        pm.Normal("y", area[rng.integers(0, 50, 3000)], 1.0, observed=rng.normal(size=3000))
    return model


MODELS = {
    "two families": (two_families, 4500),
    "devices": (devices, sum(range(150, 162))),
    "devices with scales": (devices_with_scales, sum(range(100, 124))),
    "events and censored times": (events_and_censored_times, 4500),
    "potentials alone": (potentials_alone, 4500),
    "neighbours beside rows": (neighbours_beside_rows, 3000),
}


def point_of(model):
    rng = np.random.default_rng(4)
    return {name: rng.normal(0.0, 0.3, np.shape(v)) for name, v in model.initial_point().items()}


@pytest.mark.parametrize(("make", "n_rows"), MODELS.values(), ids=MODELS)
def test_rows_of_all_likelihoods_add_up_to_the_log_density(make, n_rows):
    model = make()
    tall = pmb.TallModel(model)
    point = point_of(model)
    rows = tall.row_logp(point, np.arange(n_rows))
    assert tall.n_rows == n_rows == rows.size
    if model.observed_RVs:
        own = model.compile_logp(model.observed_RVs, sum=False)(point)
        by_name = dict(zip((rv.name for rv in model.observed_RVs), own, strict=True))
        seen = [name for name in tall.row_names if name not in tall.row_potentials]
        expected = np.concatenate([by_name[name] for name in seen])
        np.testing.assert_allclose(rows[: expected.size], expected, rtol=1e-10, atol=1e-12)
    total = tall.prior_logp(point) + rows.sum()
    assert total == pytest.approx(float(model.compile_logp()(point)), rel=1e-12)


def test_a_likelihood_of_few_rows_is_evaluated_with_the_prior():
    rng = np.random.default_rng(5)
    with pm.Model() as model:
        a = pm.Normal("a")
        pm.Normal("y", a, 1.0, observed=rng.normal(size=3000))
        pm.Poisson("n", pm.math.exp(a), observed=rng.poisson(1.0, 200))
    tall = pmb.TallModel(model)
    assert tall.union is None
    assert (tall.n_rows, tall.row_names) == (3000, ["y"])


def test_a_potential_of_entries_of_parameters_stays_in_the_prior_part():
    tall = pmb.TallModel(neighbours_beside_rows())
    assert (tall.union, tall.row_potentials) == (None, [])
    assert pmb.TallModel(events_and_censored_times()).row_potentials == ["censored"]


def test_rows_read_what_is_asked_of_their_own_parameters():
    """Checks of the scales of all devices made each row read all of them."""
    tall = pmb.TallModel(devices_with_scales())
    assert len(tall.structure.predictors) == 2
    point = {name: np.zeros_like(v) for name, v in tall.model.initial_point().items()}
    point["s_3_log__"] = np.array(-np.inf)
    rows = tall.row_logp(point, np.arange(tall.n_rows))
    first, last = sum(range(100, 103)), sum(range(100, 104))
    assert not np.isfinite(rows[first:last]).any()
    assert np.isfinite(np.delete(rows, np.arange(first, last))).all()


def test_a_row_reads_one_level_of_a_factor():
    """Rows read levels of both kinds, of which one counts for nothing, and levels depended."""
    tall = pmb.TallModel(events_and_censored_times())
    factors = find_factors(RowFunctions(tall.structure), tall.data)
    assert [factor.entries.shape for factor in factors] == [(30, 1)]


def test_too_many_kinds_are_not_joined(monkeypatch):
    monkeypatch.setattr("pymc_minibatch.tall.unions.MAX_KINDS", 1)
    assert pmb.TallModel(two_families()).union is None


@pytest.fixture(scope="module")
def with_draws():
    model = two_families()
    rng = np.random.default_rng(6)
    drawn = {"a": 1.0, "b": 0.5, "s": 1.0}
    posterior = {
        name: (("chain", "draw"), value + 0.02 * rng.normal(size=(2, 50)))
        for name, value in drawn.items()
    }
    return model, xr.DataTree.from_dict({"posterior": xr.Dataset(posterior)})


def test_log_likelihoods_have_the_rows_of_all(with_draws):
    model, idata = with_draws
    with model:
        found = pmb.log_likelihood(idata, rows=[0, 2999, 3000, 4499])["y + n"]
        expected = pm.compute_log_likelihood(idata, extend_inferencedata=False, progressbar=False)
    values = np.concatenate(
        [expected["y"].values[..., [0, 2999]], expected["n"].values[..., [0, 1499]]], axis=-1
    )
    np.testing.assert_allclose(found.values, values, rtol=1e-9)
    assert found.dims == ("chain", "draw", "row")


def test_loo_is_that_of_all_rows(with_draws):
    model, idata = with_draws
    with model:
        whole = pm.compute_log_likelihood(idata, extend_inferencedata=False, progressbar=False)
    at_mean = sum(whole[name].mean(("chain", "draw")).values.sum() for name in ("y", "n"))
    found = pmb.loo(idata, model=model)
    assert found.n_data_points == 4500
    assert found.elpd == pytest.approx(at_mean, rel=0.01)


def test_predictions_of_joined_rows_are_refused(with_draws):
    model, idata = with_draws
    with pytest.raises(pmb.NoPredictionError, match=r"y \+ n are joined, and n has only some"):
        pmb.predict(idata, model=model, var_name="n")


def test_data_that_are_set_are_followed(with_draws):
    model, _ = with_draws
    with model:
        step = pmb.MinibatchMH()
        before = float(model["x1"].get_value()[7])
        try:
            pm.set_data({"x1": model["x1"].get_value() + 1.0})
            assert len(step.vars) == 3  # which sets it up again
            point = point_of(model)
            rows = step.tall.row_logp(point, np.arange(4500))
            own = float(model.compile_logp(model["y"])(point))
            assert rows[:3000].sum() == pytest.approx(own, rel=1e-10)
            assert model["x1"].get_value()[7] == before + 1.0
        finally:
            pm.set_data({"x1": model["x1"].get_value() - 1.0})


def test_rows_that_cannot_be_joined_are_those_of_the_longest(monkeypatch):
    def cannot(*args):
        raise pmb.NotTallError("not joined")

    monkeypatch.setattr(pmb.TallModel, "_verify_union", cannot)
    tall = pmb.TallModel(two_families())
    assert (tall.union, tall.n_rows, tall.row_names) == (None, 3000, ["y"])


def test_short_likelihoods_leave_exact_tests_and_bounds_possible(monkeypatch):
    monkeypatch.setattr(observed, "FEW_ROWS", 10_000)
    rng = np.random.default_rng(3)
    x = rng.normal(size=3000)
    with pm.Model():
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Bernoulli("y", logit_p=a + b * x, observed=rng.integers(0, 2, 3000))
        pm.Normal("z", b, 1.0, observed=rng.normal(size=1500))
        assert pmb.FlyMC().n_rows == pmb.MinibatchMH(acceptance=pmb.Exact()).n_rows == 3000


@pytest.mark.parametrize("is_potential", [False, True])
@pytest.mark.parametrize("is_centered", [False, True])
def test_a_short_likelihood_that_reads_effects_has_rows(is_potential, is_centered):
    """What was measured, and lifetimes of the same persons: a level has three entries."""
    rng, n = np.random.default_rng(4), 200
    person = np.append(rng.integers(0, n, 2000), n - 1)
    t, times = rng.random(person.size), rng.exponential(size=n)
    with pm.Model() as model:
        mu, sd = pm.Normal("mu", 0, 1, shape=2), pm.HalfNormal("sd", 1, shape=2)
        if is_centered:
            b = pm.Normal("b", mu, sd, shape=(n, 2))
        else:
            b = pm.Deterministic("b", mu + sd * pm.Normal("z", shape=(n, 2)))
        gamma = pm.Normal("gamma", 0, 1, shape=2)
        pm.Normal("y", b[person, 0] + b[person, 1] * t, 1.0, observed=rng.normal(size=person.size))
        log_hazard = pm.math.dot(b, gamma)
        if is_potential:
            pm.Potential("survival", pm.math.sum(log_hazard - pm.math.exp(log_hazard) * times))
        else:
            pm.Exponential("times", pm.math.exp(log_hazard), observed=times)
    tall = pmb.TallModel(model)
    assert tall.n_rows == person.size + n
    [factor] = find_factors(RowFunctions(tall.structure), tall.data)
    assert factor.entries.shape == (n, 3)
    np.testing.assert_array_equal(factor.row_levels[:-n], person)
    np.testing.assert_array_equal(factor.row_levels[-n:], np.arange(n))


def test_two_factors_of_one_length_keep_their_levels():
    """Both effects have a scale in common; a short likelihood reads those of the second alone."""
    rng, n = np.random.default_rng(5), 200
    one, other, alone = (rng.integers(0, n, size) for size in (3000, 3000, 1000))
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1)
        a, b = (sd * pm.Normal(f"z_{name}", shape=n) for name in "ab")
        pm.Normal("y", b[other] + a[one], 1.0, observed=rng.normal(size=3000))
        pm.Poisson("n", pm.math.exp(b[alone]), observed=rng.poisson(1.0, 1000))
    tall = pmb.TallModel(model)
    factors = find_factors(RowFunctions(tall.structure), tall.data)
    assert sorted(factor.entries.shape for factor in factors) == [(n, 1), (n, 1)]
    whole = np.append(other, alone)
    assert any(np.array_equal(factor.row_levels, whole) for factor in factors)


def test_names_within_names_are_looked_through():
    rng, n = np.random.default_rng(6), 200
    person, times = rng.integers(0, n, 3000), rng.exponential(size=n)
    with pm.Model() as model:
        b = pm.Deterministic("b", pm.HalfNormal("sd", 1) * pm.Normal("z", shape=(n, 2)))
        hazard = pm.Deterministic("hazard", pm.math.dot(b, pm.Normal("gamma", shape=2)))
        rows = pm.Deterministic("rows", hazard - pm.math.exp(hazard) * times)
        pm.Normal("y", b[person, 0], 1.0, observed=rng.normal(size=3000))
        pm.Potential("survival", pm.math.sum(rows))
    tall = pmb.TallModel(model)
    [factor] = find_factors(RowFunctions(tall.structure), tall.data)
    assert factor.row_levels.size == 3000 + n


def test_a_short_likelihood_that_reads_coefficients_alone_belongs_to_the_prior_part():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(3000, 40))
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=40)
        pm.Bernoulli("y", logit_p=pm.math.dot(X, beta), observed=rng.integers(0, 2, 3000))
        pm.Normal("w", pm.math.dot(X[:500], beta), 1.0, observed=rng.normal(size=500))
    assert pmb.TallModel(model).n_rows == 3000
