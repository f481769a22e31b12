"""A run that is interrupted and resumed gives the draws of one that is not."""

import pickle

import numpy as np
import pymc as pm
import pytest
from models import UNREPEATED, PlainMH, normal_model

from pymc_minibatch import CorrectedBarker, MinibatchMH, RandomWalk

TUNE, DRAWS = 110, 30
"""The covariance changes once, at the 100th draw."""


@pytest.fixture(scope="module")
def model():
    return normal_model()


def new_step(model, **changes):
    return PlainMH(model=model, **{"batch_size": 50, "steps_per_draw": 2} | changes)


def run(step, point, first, last):
    """Make draws `first` to `last` of a chain by hand."""
    points, stats = [], []
    for draw in range(first, last):
        if draw == TUNE:
            step.stop_tuning()
        point, [stat] = step.step(point)
        points.append(point)
        stats.append({name: value for name, value in stat.items() if name not in UNREPEATED})
    return points, stats


# --- By hand ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("done", "order"), [(1, 2), (99, 0), (100, 2), (105, 0), (TUNE, 2), (TUNE + 15, 0)]
)
def test_resumed_by_hand(model, done, order):
    step = new_step(model, rng=1, control_variate=order)
    before, _ = run(step, model.initial_point(), 0, done)
    saved = pickle.dumps(step.sampling_state)
    expected, expected_stats = run(step, before[-1], done, TUNE + DRAWS)
    fresh = new_step(model, rng=2, control_variate=order)
    fresh.sampling_state = pickle.loads(saved)
    points, stats = run(fresh, before[-1], done, TUNE + DRAWS)
    assert points == expected
    assert stats == expected_stats


def test_a_state_is_not_changed_by_later_draws(model):
    step = new_step(model, rng=1)
    run(step, model.initial_point(), 0, 20)
    state = step.sampling_state
    before = pickle.dumps(state)
    run(step, model.initial_point(), 20, 120)
    assert pickle.dumps(state) == before


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("acceptance", {"acceptance": CorrectedBarker(sigma=1.1)}),
        ("batch_size", {"batch_size": 51}),
        ("temperature", {"temperature": 2.0}),
        ("steps_per_draw", {"steps_per_draw": 1}),
        ("proposal_options", {"proposal": RandomWalk(target_accept=0.3)}),
        ("control_variate", {"control_variate": 1, "proposal": RandomWalk()}),
        ("var_names", {"vars": ["mu"]}),
    ],
)
def test_a_step_with_other_settings_refuses_the_state(model, field, changes):
    state = new_step(model).sampling_state
    other = new_step(model, **changes)
    with pytest.raises(ValueError, match=f"Field '{field}' has different values"):
        other.sampling_state = state


def test_a_step_on_other_data_refuses_the_state(model):
    with pm.Model() as shorter:
        mu = pm.Normal("mu")
        sigma = pm.HalfNormal("sigma")
        pm.Normal("y", mu, sigma, observed=np.arange(100.0))
    other = new_step(shorter)
    message = (
        "Field 'n_rows' has different values.*Make it with the model, the data and the settings"
    )
    with pytest.raises(ValueError, match=message):
        other.sampling_state = new_step(model).sampling_state


def test_a_step_of_another_kind_refuses_the_state(model):
    with pytest.raises(ValueError, match=r"invalid state class.*Make it with the model"):
        new_step(model).sampling_state = pm.Metropolis(model=model).sampling_state


# --- Models with effects -----------------------------------------------------------------------


def linear_model():
    """Normal rows of crossed factors, of which sums say everything."""
    rng = np.random.default_rng(5)
    first, second = rng.integers(0, 30, 500), rng.integers(0, 12, 500)
    with pm.Model() as model:
        a = pm.HalfNormal("sd_a") * pm.Normal("a", shape=30)
        b = pm.Normal("b", 0, pm.HalfNormal("sd_b"), shape=12)
        mu = pm.Normal("mu") + a[first] + b[second]
        pm.Normal("y", mu, pm.HalfNormal("s"), observed=rng.normal(size=500))
    return model


def effects_model():
    """Counts of classes in schools, and a coefficient."""
    rng = np.random.default_rng(4)
    class_, x = rng.integers(0, 30, 500), rng.normal(size=500)
    with pm.Model() as model:
        school = pm.Normal("school", pm.Normal("mu"), pm.HalfNormal("sd_school"), shape=5)
        within = pm.HalfNormal("sd_class") * pm.Normal("z", shape=30)
        rate = pm.math.exp(school[class_ // 6] + within[class_] + pm.Normal("slope") * x)
        pm.Poisson("y", rate, observed=rng.poisson(np.exp(0.3 * x)))
    return model


@pytest.fixture(scope="module", params=["cheap", "costly", "linear"])
def model_of_effects(request):
    """Where factoring is costly, other moves are made, with other things in memory."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "cheap":
            patch.setattr("pymc_minibatch.latent.moves.costs.COSTLY", 0.0)
        yield linear_model() if request.param == "linear" else effects_model()


def test_resumed_by_hand_with_effects(model_of_effects):
    """One step serves many chains, and what it remembers of one does not change another."""
    step, resumed = (MinibatchMH(model=model_of_effects, rng=seed) for seed in (1, 2))
    assert step.latent is not None
    assert step.latent.costly == bool(step.latent.collapsed)
    point, done = model_of_effects.initial_point(), 0
    saved, points, stats = [], [], []
    for last in (1, 60, 99, 100, 105, TUNE, TUNE + 15, TUNE + DRAWS):
        more, of_more = run(step, point, done, last)
        points, stats, point, done = points + more, stats + of_more, more[-1], last
        saved.append((done, point, pickle.dumps(step.sampling_state)))
    for done, point, state in saved[:-1]:
        resumed.sampling_state = pickle.loads(state)
        again, of_again = run(resumed, point, done, TUNE + DRAWS)
        np.testing.assert_equal(again, points[done:])
        np.testing.assert_equal(of_again, stats[done:])


# --- From disk --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zarr():
    """The zarr module; the states on disk are pickles, which these tests trust."""
    zarr = pytest.importorskip("zarr", reason="ZarrTrace needs zarr")
    if int(zarr.__version__.split(".")[0]) >= 3:
        pytest.skip("PyMC's ZarrTrace needs zarr 2")
    import numcodecs.pickles

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)
        patch.setenv("NUMCODECS_ALLOW_UNSAFE_PICKLE_DECODE", "1")
        yield zarr


def resume(step, root, chain):
    """Give `step` the stored state of a chain; return its last point and its number of draws.

    `root` is what zarr reads from a ZarrTrace with ``draws_per_chunk=1``.
    """
    step.sampling_state = root["_sampling_state/sampling_state"][chain]
    return step.tall.layout.unflatten(step.last_point), step.n_draws


def sample_to(zarr, path, model, step, callback=None, **kwargs):
    trace = pm.backends.ZarrTrace(
        zarr.DirectoryStore(path), draws_per_chunk=1, include_transformed=True
    )
    with model:
        pm.sample(
            DRAWS,
            tune=TUNE,
            chains=2,
            step=step,
            trace=trace,
            callback=callback,
            random_seed=5,
            progressbar=False,
            compute_convergence_checks=False,
            **kwargs,
        )
    return zarr.open_group(path, mode="r")


def stored(root, name):
    """Draws of a variable or stat, those of tuning first."""
    parts = [root[f"warmup_{name}"][:], root[name][:]]
    return np.concatenate(parts, axis=1)


@pytest.fixture(scope="module")
def whole(zarr, model, tmp_path_factory):
    return sample_to(zarr, tmp_path_factory.mktemp("run") / "whole", model, new_step(model))


def assert_resumes(model, root, whole):
    """Complete each chain of `root` and compare it with `whole`."""
    for chain in range(2):
        step = new_step(model)
        point, done = resume(step, root, chain)
        points, stats = run(step, point, done, TUNE + DRAWS)
        for name in ("posterior/mu", "unconstrained_posterior/sigma_log__"):
            resumed = [point[name.split("/")[1]] for point in points]
            expected = stored(whole, name)[chain]
            written = int(root["_sampling_state/draw_idx"][chain])
            assert done - written in (0, 1)  # a draw may be lost while it is written
            np.testing.assert_array_equal(stored(root, name)[chain, :written], expected[:written])
            np.testing.assert_array_equal(resumed, expected[done:])
        for name in set(MinibatchMH.stats_dtypes_shapes) - {"warning", *UNREPEATED}:
            expected = stored(whole, f"sample_stats/sampler_0__{name}")[chain]
            np.testing.assert_allclose([stat[name] for stat in stats], expected[done:], rtol=1e-9)


@pytest.mark.parametrize("last", [0, 104, TUNE - 1, TUNE + 10])
def test_resumed_from_disk(zarr, whole, model, tmp_path, last):
    def interrupt(trace, draw):
        if draw.draw_idx == last:
            raise KeyboardInterrupt

    root = sample_to(zarr, tmp_path, model, new_step(model), callback=interrupt)
    assert root["_sampling_state/draw_idx"][:].tolist() == [last + 1, last + 1]
    assert_resumes(model, root, whole)


@pytest.mark.parametrize("last", [45, TUNE + 10])
def test_resumed_from_disk_after_an_interruption_within_a_step(
    zarr, whole, model, tmp_path, last, monkeypatch
):
    """The draw that is interrupted is not stored, so its random numbers must be used again."""
    step, n_calls = new_step(model, witness=False), 0

    def transitions(flat, n_steps):
        nonlocal n_calls
        n_calls += 1
        totals = MinibatchMH.make_transitions(step, flat, n_steps)
        if n_calls % (last + 2) == 0:
            raise KeyboardInterrupt
        return totals

    monkeypatch.setattr(step, "make_transitions", transitions)
    root = sample_to(zarr, tmp_path, model, step)
    assert root["_sampling_state/draw_idx"][:].tolist() == [last + 1, last + 1]
    assert_resumes(model, root, whole)


@pytest.mark.parametrize("last", [60, TUNE + 5])
def test_resumed_from_disk_after_sampling_in_processes(zarr, whole, model, tmp_path, last):
    latest = {}

    def interrupt(trace, draw):
        latest[draw.chain] = draw.draw_idx
        if len(latest) == 2 and min(latest.values()) >= last:
            raise KeyboardInterrupt

    root = sample_to(zarr, tmp_path, model, new_step(model), callback=interrupt, cores=2)
    assert min(root["_sampling_state/draw_idx"]) > last
    assert_resumes(model, root, whole)
