"""pmb.sample: the draws of pm.sample, in blocks, and what it chooses."""

import logging
import multiprocessing
import sys

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb
from pymc_minibatch import run as running
from pymc_minibatch.bounds.remainder import bound_remainders
from pymc_minibatch.recorded import Values
from pymc_minibatch.steps.display import mean_rows
from pymc_minibatch.tall.layout import PointLayout

N = 3000
QUIET = {"progressbar": False, "compute_convergence_checks": False}


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(20261126)
    x = rng.normal(size=(N, 2))
    with pm.Model(coords={"k": ["a", "b"]}) as model:
        scale = pm.HalfNormal("scale")
        beta = pm.Normal("beta", dims="k")
        pm.Deterministic("odds", pm.math.exp(beta), dims="k")
        pm.Deterministic("fixed", pm.math.constant(np.arange(3.0)))
        observed = (rng.random(N) < 0.4).astype(int)
        pm.Bernoulli("y", logit_p=pm.math.dot(x, beta) - scale, observed=observed)
    return model


@pytest.fixture(scope="module")
def step(model):
    return pmb.MinibatchMH(model=model)


def same(found, expected):
    for group in ("posterior", "sample_stats"):
        a, b = (tree[group].to_dataset() for tree in (found, expected))
        assert list(a.data_vars) == list(b.data_vars)
        assert set(a.attrs) - {"made_of"} == set(b.attrs)  # pm.sample has no hook for attributes
        for name in b.data_vars:
            assert a[name].dims == b[name].dims
            assert a[name].dtype == b[name].dtype
            np.testing.assert_allclose(a[name].values, b[name].values, rtol=1e-12)
            for dim in b[name].dims:
                np.testing.assert_array_equal(a[name][dim].values, b[name][dim].values)


@pytest.mark.parametrize("cores", [1, 2])
def test_draws_are_those_of_pm_sample(model, step, cores):
    options = {"draws": 120, "tune": 30, "chains": 2, "random_seed": 5} | QUIET
    with model:
        expected = pm.sample(step=step, cores=1, **options)
    found = pmb.sample(model, step=step, cores=cores, **options)
    same(found, expected)
    assert set(found.groups) == set(expected.groups)
    assert (found.sample_stats["n_witnessed"].values[:, -1] > 0).all()


def test_warm_up_initial_values_and_names_are_those_of_pm_sample(model, step):
    options = {"draws": 20, "tune": 10, "chains": 2, "random_seed": 6, "cores": 1} | QUIET
    options |= {"discard_tuned_samples": False, "var_names": ["odds", "scale"]}
    options |= {"initvals": {"scale": 0.7}}
    with model:
        expected = pm.sample(step=step, **options)
    found = pmb.sample(model, step=step, **options)
    same(found, expected)
    np.testing.assert_allclose(found.warmup_posterior["odds"], expected.warmup_posterior["odds"])


@pytest.mark.parametrize("kind", [pmb.SGHMC, pmb.FlyMC])
def test_draws_of_other_steps_are_those_of_pm_sample(kind):
    rng = np.random.default_rng(3)
    with pm.Model():
        beta = pm.Normal("beta", shape=2)
        mu = pm.math.dot(rng.normal(size=(200, 2)), beta)
        pm.Bernoulli("y", logit_p=mu, observed=rng.integers(0, 2, 200))
        step = kind()
        options = {"draws": 15, "tune": 10, "chains": 1, "random_seed": 7} | QUIET
        expected = pm.sample(step=step, **options)
        found = pmb.sample(step=step, **options)
    same(found, expected)


def test_blocks_of_any_length_are_the_same_draws(model, step):
    def draws_by(size):
        step.setup_chain(np.random.default_rng(8), 10, 200)
        flat, blocks = step.tall.layout.flatten(model.initial_point()), []
        for first in range(0, 210, size):
            if first == 10:
                step.stop_tuning()
            blocks.append(step.make_draws(flat, size))
            flat = blocks[-1].points[-1].copy()
        stats = {n: np.concatenate([b.stats[n] for b in blocks]) for n in blocks[0].stats}
        return np.concatenate([b.points for b in blocks]), stats

    (points, stats), (expected, expected_stats) = draws_by(10), draws_by(1)
    np.testing.assert_array_equal(points, expected)
    for name, values in expected_stats.items():
        np.testing.assert_array_equal(stats[name], values, err_msg=name)


def test_names_with_commas_are_no_lists_of_types(caplog):
    with pm.Model() as model:
        pm.HalfNormal("bs(hour, df=5)", shape=2)
    with caplog.at_level(logging.INFO, logger="pymc_minibatch"):
        values = Values(model, PointLayout.of(model.initial_point(), ["bs(hour, df=5)_log__"]))
    draws = values(np.array([[0.0, 1.0], [2.0, 3.0]]))
    np.testing.assert_allclose(draws["bs(hour, df=5)"], np.exp([[0.0, 1.0], [2.0, 3.0]]))
    assert "draw by draw" not in caplog.text


def test_the_witness_looks_at_the_same_draws_in_blocks(model, step, monkeypatch):
    def look_often():
        monkeypatch.setattr("pymc_minibatch.witness.witness.LOOK", 0.5)
        monkeypatch.setattr("pymc_minibatch.witness.witness.LOOK_DRAWS", 0.5)

    def looks_by(size):
        look_often()
        step.setup_chain(np.random.default_rng(9), 0, 120)
        step.stop_tuning()
        seen, look = [], step.witness.look
        monkeypatch.setattr(step.witness, "look", lambda *args: seen.append(args[1]) or look(*args))
        flat = step.tall.layout.flatten(model.initial_point())
        for _ in range(0, 120, size):
            flat = step.make_draws(flat, size).points[-1].copy()
        monkeypatch.undo()
        return np.array(seen), step.witness.farthest

    (found, far), (expected, far_one) = looks_by(60), looks_by(1)
    assert len(expected) > 3
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(far.squares, far_one.squares, rtol=1e-12)
    assert far.distance == pytest.approx(far_one.distance)


def test_an_interrupted_run_returns_the_draws_so_far(model, step, monkeypatch):
    made = running.blocks_of

    def interrupted(*args):
        for first, block in made(*args):
            yield first, block
            if first >= 60:
                raise KeyboardInterrupt

    monkeypatch.setattr(running, "blocks_of", interrupted)
    monkeypatch.setattr(running, "FIRST_BLOCK", 5)
    with pytest.warns(UserWarning, match="The run was interrupted. The result has the .* 1 of 2"):
        found = pmb.sample(
            model, 10**6, 20, 2, step=step, cores=1, random_seed=1, progressbar=False
        )
    assert found.posterior.sizes["chain"] == 1
    assert 40 <= found.posterior.sizes["draw"] < 10**6
    assert np.isfinite(found.posterior["beta"]).all()


def test_ctrl_c_ends_processes_and_returns_their_draws(model, step, monkeypatch):
    shown = running.Progress.moved

    def moved(self, chain, made, done, *args):
        shown(self, chain, made, done, *args)
        if done > 60:
            raise KeyboardInterrupt  # workers of the test run ignore the signal itself

    monkeypatch.setattr(running.Progress, "moved", moved)
    with pytest.warns(UserWarning, match="The run was interrupted"):
        found = pmb.sample(model, 10**8, 20, 2, step=step, cores=2, **QUIET)
    assert found.posterior.sizes["draw"] > 20  # of two chains, if the other has half as many
    assert not multiprocessing.active_children()


def test_an_error_in_a_process_is_that_of_the_chain(model, step, monkeypatch):
    def fails(*args):
        raise ValueError("no such row")

    monkeypatch.setattr(type(step), "make_draws", fails)
    with pytest.raises(ValueError, match="no such row"):
        pmb.sample(model, 10, 10, 2, step=step, cores=2, **QUIET)


def test_with_a_callback_pymc_makes_the_draws(model, step):
    seen = []
    options = {"draws": 5, "tune": 5, "chains": 1, "random_seed": 2} | QUIET
    pmb.sample(model, step=step, callback=lambda **given: seen.append(given["draw"]), **options)
    assert len(seen) == 10


# --- Choice -----------------------------------------------------------------------------------


def tall_model(n=200):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.linspace(-1, 1, n))
    return model


def test_few_rows_are_sampled_by_nuts(caplog):
    with caplog.at_level(logging.INFO, logger="pymc.minibatch"):
        found = pmb.sample(tall_model(), 20, 20, 1, random_seed=1, **QUIET)
    assert "pmb.sample uses NUTS: With 200 rows, fewer than 10,000" in caplog.text
    assert "n_rows" not in found.sample_stats


def test_with_an_error_as_fallback_few_rows_are_sampled_by_minibatches():
    found = pmb.sample(tall_model(), 20, 20, 1, fallback="error", random_seed=1, **QUIET)
    assert found.sample_stats["n_rows"].values[0, 0] == 200


def test_many_rows_are_sampled_by_minibatches(caplog, monkeypatch):
    monkeypatch.setattr(sys.modules["pymc_minibatch.check"], "FEW_ROWS", 100)
    with caplog.at_level(logging.INFO, logger="pymc.minibatch"):
        found = pmb.sample(tall_model(), 20, 20, 1, random_seed=1, **QUIET)
    assert "pmb.sample uses MinibatchMH on 200 rows" in caplog.text
    assert "n_rows" in found.sample_stats


def refused_model():
    with pm.Model() as model:
        rho = pm.Uniform("rho", -0.9, 0.9)
        pm.AR("y", rho=pm.math.stack([rho]), sigma=1.0, observed=np.sin(np.arange(60.0)))
    return model


def test_refused_models_are_sampled_by_nuts_with_the_reason(caplog):
    with caplog.at_level(logging.INFO, logger="pymc.minibatch"):
        found = pmb.sample(refused_model(), 20, 20, 1, random_seed=1, **QUIET)
    assert "pmb.sample uses NUTS" in caplog.text
    assert found.posterior.sizes["draw"] == 20
    with pytest.raises(pmb.NotTallError):
        pmb.sample(refused_model(), 20, 20, 1, fallback="error", **QUIET)
    found = pmb.check(refused_model())
    assert (found.supported, found.method) == (False, "nuts")
    assert found.reasons[0] in caplog.text


@pytest.mark.parametrize("observed", [1.0, [1.0]])
def test_one_row_is_sampled_by_nuts(observed, caplog):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=observed)
    with caplog.at_level(logging.INFO, logger="pymc.minibatch"):
        found = pmb.sample(model, 20, 20, 1, random_seed=1, **QUIET)
    assert "y has a single row" in caplog.text
    assert found.posterior.sizes["draw"] == 20


def test_discrete_variables_are_left_to_pymc():
    with pm.Model() as model:
        shift = pm.Bernoulli("shift", 0.5)
        pm.Normal("y", pm.Normal("mu") + shift, 1.0, observed=np.linspace(0, 1, 200))
    found = pmb.sample(model, 20, 20, 1, fallback="error", random_seed=1, cores=1, **QUIET)
    assert set(found.posterior.data_vars) == {"mu", "shift"}
    assert "another step" in pmb.check(model).updates["shift"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "gibbs"}, "method must be one of 'auto', 'nuts', 'minibatch'"),
        ({"fallback": "none"}, "fallback must be one of"),
        ({"target_accept": 0.9}, "target_accept is an option of NUTS: pass method='nuts'"),
        ({"draws": 0}, "draws must be a whole number, at least 1"),
        ({"step": None, "random_seed": -1, "fallback": "error"}, "random_seed must not be -1"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        pmb.sample(tall_model(), **QUIET | options)


def test_something_else_is_no_model():
    with pytest.raises(TypeError, match=r"must be a pymc\.Model or a bambi\.Model; got .* str"):
        pmb.sample("y ~ x")


def test_a_bambi_model_gives_what_fit_gives():
    bmb, pd = pytest.importorskip("bambi"), pytest.importorskip("pandas")
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"x": rng.normal(3.0, 1.0, 300)})
    frame["y"] = 1.0 + 2.0 * frame["x"] + rng.normal(size=300)
    model = bmb.Model("y ~ x", frame)
    options = {"draws": 30, "tune": 30, "chains": 1, "cores": 1, "random_seed": 3} | QUIET
    found = pmb.sample(model, fallback="error", **options)
    expected = model.fit(step=pmb.MinibatchMH(), **options)
    assert list(found.posterior.data_vars) == list(expected.posterior.data_vars)
    for name in expected.posterior.data_vars:
        np.testing.assert_allclose(found.posterior[name], expected.posterior[name], rtol=1e-10)
    assert found.posterior.attrs["modeling_interface"] == "bambi"


# --- What is foretold -------------------------------------------------------------------------


def test_bambi_keeps_no_value_per_row_and_draw():
    bmb, pd = pytest.importorskip("bambi"), pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": np.linspace(-1, 1, 400), "yes": np.arange(400) % 2})
    model = bmb.Model("yes ~ x", frame, family="bernoulli")
    model.build()
    of_pymc, of_bambi = pmb.check(model.backend.model), pmb.check(model)
    assert of_pymc.memory - of_bambi.memory == 8 * 2000 * 400


def test_a_check_prints_as_a_table_and_compiles_nothing(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("something was compiled")

    monkeypatch.setattr("pymc_minibatch.jit.compiled.compile_numba", refuse)
    monkeypatch.setattr("pymc_minibatch.latent.derivatives.compile_numba", refuse)
    found = pmb.check(tall_model(20_000))
    assert found.supported
    assert found.method == "minibatch"
    assert "yes, 20,000 rows" in str(found)
    assert "updates mu" in str(found)
    assert "<table>" in found._repr_html_()
    assert found.memory > 20_000


def test_a_check_leaves_values_of_each_row_to_nuts():
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, pm.HalfNormal("sd"), shape=12_000)
        pm.Poisson("y", pm.math.exp(effect), observed=np.ones(12_000))
    found = pmb.check(model)
    assert found.supported
    assert found.method == "nuts"
    assert "With a value of effect for each row" in found.reasons[0]


def test_a_check_expects_the_rows_that_set_up_finds():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(12_000, 3))
    with pm.Model() as model:
        eta = pm.math.dot(x, pm.Normal("beta", shape=3))
        pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, 12_000))
    found, step = pmb.check(model), pmb.MinibatchMH(model=model)
    assert found.exact == (step.ball is not None)
    set_up = bound_remainders(step.tall, step.control).expected_rows
    assert f"Exact takes {mean_rows(set_up)} per decision" in step.choice
    assert set_up / 3 < found.expected_rows < 3 * set_up


def test_a_check_expects_all_rows_if_these_read_many_numbers():
    rng = np.random.default_rng(4)
    group, y = rng.integers(0, 200, 30_000), rng.normal(size=30_000)
    expected = {}
    for n_components in (2, 4):
        with pm.Model() as model:
            sd = pm.HalfNormal("sd", 1, shape=n_components)
            effect = sd * pm.Normal("z", shape=(200, n_components))
            parts = [pm.StudentT.dist(nu=4, mu=effect[group, k]) for k in range(n_components)]
            pm.Mixture("y", w=np.full(n_components, 1 / n_components), comp_dists=parts, observed=y)
        expected[n_components] = pmb.check(model).expected_rows
    assert expected[2] < 3000 < expected[4] == len(y)


def test_intercepts_and_slopes_of_a_factor_take_no_time_as_if_crossed():
    rng = np.random.default_rng(4)
    n, group, x = 30_000, rng.integers(0, 2000, 30_000), rng.normal(size=30_000)
    other = rng.integers(0, 2000, n)
    seconds = []
    for index in (group, other):
        with pm.Model() as model:
            a, b = pm.Normal("a", shape=2000), pm.Normal("b", shape=2000)
            mean = pm.HalfNormal("sd") * a[group] + b[index] * x
            pm.Bernoulli("y", logit_p=mean, observed=rng.integers(0, 2, n))
        seconds.append(pmb.check(model).setup_seconds)
    assert seconds[0] + 20 < seconds[1]


def test_a_check_expects_more_rows_if_rows_have_kinks():
    y = np.random.default_rng(4).normal(size=12_000)
    rows = {}
    for family in (pm.Normal, pm.Laplace):
        with pm.Model() as model:
            family("y", pm.Normal("mu"), pm.HalfNormal("scale"), observed=y)
        rows[family] = pmb.check(model).expected_rows
    assert 3 * rows[pm.Normal] < rows[pm.Laplace] < 12_000


@pytest.mark.parametrize("centred", [True, False])
def test_a_check_tells_scales_from_effects(centred):
    rng = np.random.default_rng(4)
    with pm.Model() as model:
        mu, sd = pm.Normal("mu"), pm.HalfNormal("sd")
        z = pm.Normal("z", 0.0, sd if centred else 1.0, shape=100)
        eta = mu + (z if centred else sd * z)[rng.integers(0, 100, 1000)]
        pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, 1000))
    updates = pmb.check(model).updates
    assert updates["sd"] == "with the effects that depend on it"
    assert updates["mu"] == updates["z"] != updates["sd"]


def test_a_check_knows_that_crossed_factors_take_longer():
    rng = np.random.default_rng(4)
    seconds = []
    for sizes in ([2000], [2000, 1500]):
        with pm.Model() as model:
            eta = 0.0
            for i, size in enumerate(sizes):
                sd = pm.HalfNormal(f"sd_{i}")
                effects = pm.Normal(f"effects_{i}", 0.0, sd, shape=size)
                eta = eta + effects[rng.integers(0, size, 60_000)]
            pm.Normal("y", eta, pm.HalfNormal("scale"), observed=rng.normal(size=60_000))
        seconds.append(pmb.check(model).setup_seconds)
    assert seconds[1] > 2 * seconds[0]


# --- What to write instead --------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Data in late contains missing values")
@pytest.mark.parametrize("values", [np.arange(20.0), np.arange(20)])
def test_missing_values_are_counted(values):
    masked = np.ma.masked_array(values, mask=np.arange(20) % 9 == 4)
    with pm.Model() as model:
        rate = pm.Exponential("rate", 1.0)
        if values.dtype.kind == "f":
            pm.Censored("late", pm.Normal.dist(rate, 1.0), None, 100.0, observed=masked)
        else:
            pm.ZeroInflatedPoisson("late", 0.5, rate, observed=masked)
    message = "late has 2 missing values, .* Remove those rows, or impute their values"
    with pytest.raises(pmb.NotTallError, match=message):
        pmb.MinibatchMH(model=model)
    assert "late has 2 missing values" in pmb.check(model).reasons[0]


def test_a_class_in_place_of_a_step_is_to_be_called():
    with tall_model(), pytest.raises(TypeError, match=r"Write step=pmb\.MinibatchMH\(\)"):
        pm.sample(step=pmb.MinibatchMH)
    with pytest.raises(TypeError, match=r"Write step=pmb\.FlyMC\(\)"):
        pmb.sample(tall_model(), step=pmb.FlyMC)


def test_target_accept_is_an_option_of_nuts():
    with tall_model(), pytest.raises(TypeError, match="MinibatchMH has no target_accept, which is"):
        pm.sample(step=pmb.MinibatchMH(target_accept=0.9))


def test_a_step_made_outside_of_the_model_is_to_get_the_model():
    with pytest.raises(TypeError, match=r"Write step=pmb\.MinibatchMH\(model=model\)"):
        pm.sample(model=tall_model(), step=pmb.MinibatchMH())
