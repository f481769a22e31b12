"""FlyMC on models with effects: bounds of what rows read, and sweeps by bright rows."""

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from pymc.exceptions import SamplingError

import pymc_minibatch as pmb
from pymc_minibatch.latent.firefly import FireflySampler, make_firefly_sampler
from pymc_minibatch.steps.stats import OF_EFFECTS

N_ROWS, N_GROUPS = 800, 12
TUNE, DRAWS = 30, 20


def predictor() -> tuple[Any, np.ndarray]:
    """Return intercepts that are not centred and a coefficient, with values of the predictor."""
    rng = np.random.default_rng(4)
    group, x = rng.integers(0, N_GROUPS - 1, N_ROWS), rng.normal(size=N_ROWS)
    mu, sd, slope = pm.Normal("mu"), pm.HalfNormal("sd"), pm.Normal("slope")
    z = pm.Normal("z", shape=N_GROUPS)
    eta = mu + sd * z[pm.Data("group", group)] + slope * pm.Data("x", x)
    return eta, -0.5 + 0.7 * rng.normal(size=N_GROUPS)[group] + 0.4 * x


def bernoulli() -> None:
    eta, values = predictor()
    y = np.random.default_rng(5).binomial(1, 1 / (1 + np.exp(-values)))
    pm.Bernoulli("y", logit_p=eta, observed=y)


def binomial() -> None:
    eta, values = predictor()
    n = np.random.default_rng(6).integers(0, 9, N_ROWS)
    y = np.random.default_rng(5).binomial(n, 1 / (1 + np.exp(-values)))
    pm.Binomial("y", n=pm.Data("n", n), p=pm.math.sigmoid(eta), observed=y)


def student_t() -> None:
    eta, values = predictor()
    scale = np.random.default_rng(6).uniform(0.5, 2.0, N_ROWS)
    y = values + scale * np.random.default_rng(5).standard_t(4, N_ROWS)
    pm.StudentT("y", nu=4, mu=eta, sigma=pm.Data("scale", scale), observed=y)


def normal() -> None:
    eta, values = predictor()
    y = values + np.random.default_rng(5).normal(0, 1.3, N_ROWS)
    pm.Normal("y", eta, 1.3, observed=y)


def model_of(build: Callable[[], None]) -> pm.Model:
    with pm.Model() as model:
        build()
    return model


@pytest.fixture(scope="module")
def model() -> pm.Model:
    return model_of(bernoulli)


def new_step(model: pm.Model, **options: Any) -> pmb.FlyMC:
    return pmb.FlyMC(model=model, **{"rng": 1} | options)


@pytest.fixture(scope="module")
def step(model: pm.Model) -> pmb.FlyMC:
    return new_step(model)


def sample(model: pm.Model, step: pmb.FlyMC, **options: Any) -> xr.DataTree:
    with model:
        return pm.sample(
            **{"draws": DRAWS, "tune": TUNE, "chains": 2, "cores": 1, "random_seed": 7} | options,
            step=step,
            progressbar=False,
            compute_convergence_checks=False,
        )


def run(step: pmb.FlyMC, point: Any, first: int, last: int) -> list[dict[str, np.ndarray]]:
    """Make draws `first` to `last` of a chain by hand."""
    points = []
    for draw in range(first, last):
        if draw == TUNE:
            step.stop_tuning()
        point, _ = step.step(point)
        points.append(point)
    return points


def assert_same(points: list[Any], expected: list[Any]) -> None:
    for point, other in zip(points, expected, strict=True):
        for name, value in other.items():
            np.testing.assert_array_equal(point[name], value)


# --- Bounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [bernoulli, binomial, student_t, normal])
def test_prior_bounds_and_gaps_are_the_posterior(build: Callable[[], None]) -> None:
    tall = pmb.TallModel(model_of(build))
    sampler = make_firefly_sampler(tall, "auto")
    surrogate, rng = sampler.reference.surrogate, np.random.default_rng(1)
    for spread in (0.0, 0.3, 1.0, 3.0):
        point = surrogate.center + spread * rng.standard_normal(tall.layout.size)
        reading = surrogate.read(point)
        at = surrogate.expansion.at
        gaps = sampler.rows.remainders(reading.phi, reading.phi, at, tall.data)[0]
        assert gaps.min() >= -sampler.tolerance
        assert (gaps.max() > 1e-3) == (spread > 0 and build is not normal)
        base = surrogate.log_density(point, reading) + surrogate.expansion.value
        whole = tall.logp(tall.layout.unflatten(point))
        assert base + gaps.sum() == pytest.approx(whole, rel=1e-10)


def test_rows_that_are_normal_stay_dark() -> None:
    """Their bounds are themselves, and no move reads a row."""
    step = new_step(model_of(normal))
    points = run(step, step.tall.model.initial_point(), 0, 20)
    assert len({float(point["mu"]) for point in points}) > 10
    _, [stat] = step.step(points[-1])
    assert stat["n_bright"] == 0
    assert stat["n_likelihood"] < 10


# --- Which moves ------------------------------------------------------------------------------


def test_effects_are_swept_and_the_step_says_so(step: pmb.FlyMC) -> None:
    assert isinstance(step.latent, FireflySampler)
    assert step.choice == (
        "Bright rows decide: joint updates of hyperparameters (1) with effects and of "
        "coefficients (2); a factor of 12 levels."
    )
    assert "a factor of 12 levels" in repr(step)
    assert step.steps_per_draw == 2


def centred() -> None:
    rng = np.random.default_rng(4)
    group = rng.integers(0, N_GROUPS, N_ROWS)
    effect = pm.Normal("effect", pm.Normal("mu"), pm.HalfNormal("sd"), shape=N_GROUPS)
    shares = np.linspace(0.1, 0.9, N_GROUPS)[group]
    pm.Bernoulli("y", logit_p=effect[group], observed=rng.binomial(1, shares))


@pytest.mark.parametrize(
    "options",
    [
        {"proposal": "metropolis"},
        {"theta_updates": 2},
        {"z_update": "explicit"},
        {"tune_bounds": False},
        {"vars": ["effect", "mu"]},
        {"reference": None},
    ],
)
def test_options_that_ask_for_moves_of_all_variables_at_once(options: dict[str, Any]) -> None:
    model = model_of(centred)
    if "reference" in options:
        options = {"reference": pmb.find_reference(model)}
    step = new_step(model, **options)
    assert step.latent is None
    assert step.choice == "All variables are updated jointly."
    step.step(model.initial_point())


def unknown_scale() -> None:
    eta = pm.Normal("effect", 0, pm.HalfNormal("sd"), shape=60)[np.arange(300) % 60]
    y = np.random.default_rng(1).normal(size=300)
    pm.Normal("y", eta, pm.HalfNormal("sigma"), observed=y)


def no_effects() -> None:
    x = np.random.default_rng(1).normal(size=300)
    pm.Bernoulli("y", logit_p=pm.Normal("slope") * x, observed=np.arange(300) % 2)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (unknown_scale, "Rows of y depend on 2 linear predictors"),
        (no_effects, "no variable depends on others"),
    ],
)
def test_models_that_are_moved_at_once_say_why(build: Callable[[], None], reason: str) -> None:
    step = new_step(model_of(build))
    assert step.latent is None
    assert step.choice.startswith(f"All variables are updated jointly: {reason}")


# --- Chains -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(model: pm.Model) -> xr.DataTree:
    return sample(model, new_step(model))


def test_stats(result: xr.DataTree) -> None:
    stats = result.sample_stats
    for name in ("acceptance_rate", "n_likelihood", "n_bright", "q", "scale", *OF_EFFECTS):
        assert np.isfinite(stats[name]).all()
    assert 0.5 < stats["acceptance_rate"].mean() <= 1
    assert (stats["n_gradient"] == 0).all()
    assert (stats["n_sweeps"] == 8).all()  # two rounds of four sweeps
    assert 0 < stats["n_bright"].mean() < 0.1 * N_ROWS
    assert 0 < stats["q"].min() <= stats["q"].max() <= 0.5
    assert "Bright rows" in pmb.report(result)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_processes_make_the_same_draws(model: pm.Model, result: xr.DataTree, context: str) -> None:
    other = sample(model, new_step(model), cores=2, mp_ctx=context)
    xr.testing.assert_identical(
        result.posterior.to_dataset().drop_attrs(), other.posterior.to_dataset().drop_attrs()
    )


@pytest.mark.parametrize("done", [1, TUNE - 7, TUNE + 5])
def test_resumed_by_hand(model: pm.Model, done: int) -> None:
    step = new_step(model)
    before = run(step, model.initial_point(), 0, done)
    saved = pickle.dumps(step.sampling_state)
    expected = run(step, before[-1], done, TUNE + DRAWS)
    fresh = new_step(model, rng=2)
    fresh.sampling_state = pickle.loads(saved)
    point = fresh.tall.layout.unflatten(fresh.last_point)
    assert_same(run(fresh, point, done, TUNE + DRAWS), expected)


def test_a_draw_that_is_interrupted_leaves_no_trace(
    model: pm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, twin = new_step(model), new_step(model)
    expected = run(twin, model.initial_point(), 0, 20)
    before = run(step, model.initial_point(), 0, 10)
    right = FireflySampler.make_scan

    def interrupted(self: FireflySampler, *args: Any) -> None:
        right(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FireflySampler, "make_scan", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step.step(before[-1])
    assert_same(run(step, before[-1], 10, 20), expected[10:])


def test_pickled_within_a_chain(model: pm.Model) -> None:
    step = new_step(model)
    before = run(step, model.initial_point(), 0, 5)
    twin = cloudpickle.loads(cloudpickle.dumps(step))
    twin.rng, step.rng = np.random.default_rng(1), np.random.default_rng(1)
    assert_same(run(twin, before[-1], 5, 10), run(step, before[-1], 5, 10))


def test_a_given_q_is_not_tuned(model: pm.Model) -> None:
    step = new_step(model, dark_to_bright_probability=0.03)
    point = model.initial_point()
    for _ in range(5):
        point, [stat] = step.step(point)
        assert stat["q"] == 0.03


def test_other_data_than_the_models() -> None:
    """A model of the first rows, and all rows by `data`, make the draws of the whole model."""
    model = model_of(bernoulli)
    y = model.rvs_to_values[model["y"]].data
    group, x = (model[name].get_value() for name in ("group", "x"))
    with pm.Model() as small:
        mu, sd, slope = pm.Normal("mu"), pm.HalfNormal("sd"), pm.Normal("slope")
        z = pm.Normal("z", shape=N_GROUPS)
        eta = mu + sd * z[pm.Data("group", group[:50])] + slope * pm.Data("x", x[:50])
        pm.Bernoulli("y", logit_p=eta, observed=y[:50])
    step = new_step(small, data={"group": group, "x": x, "y": y})
    assert step.latent is not None
    points = run(step, small.initial_point(), 0, 10)
    expected = run(new_step(model), model.initial_point(), 0, 10)
    for point, other in zip(points, expected, strict=True):
        np.testing.assert_allclose(point["z"], other["z"], rtol=1e-6, atol=1e-8)


def test_a_violation_in_a_chain_names_the_row(model: pm.Model) -> None:
    """With a negative tolerance every gap that is small counts as one."""
    step = new_step(model)
    assert step.latent is not None
    step.latent.decisions.tolerance = -1e3
    with pytest.raises(SamplingError, match=r"The lower bound of row \d+ of y lies above"):
        step.step(model.initial_point())


@pytest.mark.parametrize("pinned", [False, True])
def test_log_odds_are_kept_up_to_date(model: pm.Model, pinned: bool) -> None:
    """After many moves they are those of the point, as are gaps of rows that are always read."""
    sampler = make_firefly_sampler(pmb.TallModel(model), "auto")
    if pinned:
        sampler.pinned = np.arange(0, N_ROWS, 50)
    rng, point, state = np.random.default_rng(1), sampler.tall.start.copy(), sampler.initial_state()
    point = sampler.near_mode(rng, point)
    sampler.draw(rng, point, 50, True, state)
    lit, surrogate = sampler.decisions, sampler.reference.surrogate
    for _ in range(50):  # bounds are so close that often no row is bright
        if lit.bright.size:
            break
        sampler.draw(rng, point, 1, True, state)
    phi = surrogate.phi(point)
    gaps = sampler.rows.remainders(phi, phi, surrogate.expansion.at, sampler.tall.data)[0]
    assert lit.bright.size > 0
    assert np.unique(lit.bright).size == lit.bright.size
    assert not np.isin(lit.bright, sampler.pinned).any()
    odds = lit.brightness.log_odds[: lit.bright.size]
    np.testing.assert_allclose(odds, np.log(np.expm1(gaps[lit.bright])), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(lit.gaps, gaps[sampler.pinned], rtol=1e-6, atol=1e-10)
