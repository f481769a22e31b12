"""The Firefly step inside and outside of pm.sample."""

import pickle
import re
from dataclasses import replace

import cloudpickle
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from models import N_GROUPS, N_ROWS, UNREPEATED, grouped_model, logistic_model, logistic_rows
from pymc.exceptions import SamplingError

from pymc_minibatch import FlyMC, find_reference
from pymc_minibatch.steps.stats import OF_EFFECTS

TUNE, DRAWS = 60, 30


@pytest.fixture(scope="module")
def model():
    return logistic_model()


@pytest.fixture(scope="module")
def reference(model):
    return find_reference(model)


def new_step(model, **options):
    return FlyMC(model=model, **{"rng": 1} | options)


def sample(model, step, **kwargs):
    with model:
        return pm.sample(
            **{"draws": DRAWS, "tune": TUNE, "chains": 2, "cores": 1, "random_seed": 7} | kwargs,
            step=step,
            progressbar=False,
            compute_convergence_checks=False,
        )


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


def assert_same(points, expected):
    for point, other in zip(points, expected, strict=True):
        for name, value in other.items():
            np.testing.assert_array_equal(point[name], value)


# --- The result -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(model):
    return sample(model, new_step(model))


def test_stats_are_those_of_the_docstring(result):
    documented = re.findall(r"^ *- ``(\w+)``:", FlyMC.__doc__, flags=re.MULTILINE)
    stats = result.sample_stats
    assert set(stats.data_vars) == set(documented)
    for name in documented:
        assert stats[name].shape == (2, DRAWS)
        assert np.isfinite(stats[name]).all() == (name not in OF_EFFECTS)
    assert 0.5 < stats["acceptance_rate"].mean() <= 1
    assert 0 <= stats["n_bright"].mean() < 0.05 * N_ROWS
    assert (stats["n_gradient"] <= stats["n_likelihood"]).all()
    assert 0 < stats["q"].min() <= stats["q"].max() <= 0.5


def test_processes_make_the_same_draws(model, result):
    for context in ("fork", "spawn"):
        other = sample(model, new_step(model), cores=2, mp_ctx=context)
        xr.testing.assert_identical(
            result.posterior.to_dataset().drop_attrs(), other.posterior.to_dataset().drop_attrs()
        )


def test_n_likelihood_counts_rows_at_points(model, reference):
    """An explicit update of z reads the rows it picks, and Metropolis the bright rows once."""
    options = {"z_update": "explicit", "fraction": 0.1, "theta_updates": 3}
    step = new_step(model, reference=reference, proposal="metropolis", tune_bounds=False, **options)
    _, stats = run(step, model.initial_point(), 0, 20)
    for i, stat in enumerate(stats):
        whole_pass = N_ROWS if i == 0 else 0
        assert stat["n_likelihood"] == whole_pass + N_ROWS / 10 + 3 * stat["n_bright"]
        assert stat["n_bright"] > 0
        assert stat["n_gradient"] == 0


def test_a_fixed_q_is_not_tuned(model, reference):
    step = new_step(model, reference=reference, dark_to_bright_probability=0.03)
    _, stats = run(step, model.initial_point(), 0, 10)
    assert {stat["q"] for stat in stats} == {0.03}


def test_a_chain_far_away_starts_near_the_mode(model, reference):
    step = new_step(model, reference=reference)
    far = {"beta": np.array([15.0, 15.0])}
    near, _ = step.step(far)
    assert abs(near["beta"] - reference.mode["beta"]).max() < 1
    step.stop_tuning()
    step.setup_chain(1, tune=0, draws=10)
    kept, [stat] = step.step(far)
    assert stat["n_bright"] > 0.5 * N_ROWS
    assert abs(kept["beta"] - far["beta"]).max() < 10


def test_the_seconds_of_a_reference_count(model, reference):
    step = new_step(model, reference=replace(reference, seconds=1e6))
    assert step.setup_seconds > 1e6


def test_other_steps_move_what_the_likelihood_depends_on():
    model = grouped_model()
    with pytest.warns(UserWarning, match=r"\['sigma_log__'\], which other steps move"):
        step = new_step(model, vars=["alpha", "mu"])
    result = sample(model, [step, pm.Metropolis([model["sigma"], model["tau"]], model=model)])
    assert result.posterior["alpha"].shape == (2, DRAWS, N_GROUPS)
    assert np.unique(result.posterior["sigma"]).size > 2
    bright = [v for name, v in result.sample_stats.items() if name.endswith("n_bright")]
    assert all((stat == 0).all() for stat in bright)  # normal rows are their own bound


# --- Other data -------------------------------------------------------------------------------


def test_data_from_files_on_a_small_model(model, result, tmp_path):
    X, y = logistic_rows(N_ROWS)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    with model:
        names = list(new_step(model).tall.row_inputs)
    paths = {name: str(tmp_path / f"{'X' if name == 'X' else 'y'}.npy") for name in names}
    small = logistic_model(50)
    step = new_step(small, data=paths)
    assert step.n_rows == N_ROWS
    other = sample(small, step)
    np.testing.assert_allclose(other.posterior["beta"], result.posterior["beta"], rtol=1e-6)


@pytest.mark.parametrize("mapped", [False, True])
def test_float32_rows_are_read_as_they_are(tmp_path, mapped):
    """They stay float32, and make the draws that the same numbers make as float64."""
    X, y = logistic_rows(N_ROWS)
    narrow = X.astype(np.float32)
    if mapped:
        np.save(tmp_path / "X.npy", narrow)
        narrow = np.load(tmp_path / "X.npy", mmap_mode="r")
    small = logistic_model(50)
    step, wide = (new_step(small, data={"X": x, "y": y}) for x in (narrow, narrow.astype(float)))
    assert step.tall.row_inputs["X"].values.dtype == np.float32
    assert np.shares_memory(step.tall.row_inputs["X"].values, narrow)
    start = small.initial_point()
    draws, stats = run(step, start, 0, TUNE + DRAWS)
    expected, expected_stats = run(wide, start, 0, TUNE + DRAWS)
    np.testing.assert_allclose(
        [draw["beta"] for draw in draws], [draw["beta"] for draw in expected], rtol=1e-9
    )
    assert [s["n_bright"] for s in stats] == [s["n_bright"] for s in expected_stats]


def test_pickles_refer_to_the_data(tmp_path):
    n_rows = 50_000
    X, y = logistic_rows(n_rows)
    model = logistic_model(50)
    step = new_step(model, data={"X": X, "y": y})
    step.step(model.initial_point())
    pickled = cloudpickle.dumps(step)
    assert len(pickled) < X.nbytes / 2
    twin = cloudpickle.loads(pickled)
    twin.rng = np.random.default_rng(1)
    step.rng = np.random.default_rng(1)
    start = {"beta": np.array([0.8, -0.5])}
    assert_same(run(twin, start, 0, 5)[0], run(step, start, 0, 5)[0])


# --- Resuming ---------------------------------------------------------------------------------


@pytest.mark.parametrize("done", [1, 40, TUNE, TUNE + 7])
def test_resumed_by_hand(model, reference, done):
    step = new_step(model, reference=reference)
    before, _ = run(step, model.initial_point(), 0, done)
    saved = pickle.dumps(step.sampling_state)
    expected, expected_stats = run(step, before[-1], done, TUNE + DRAWS)
    fresh = new_step(model, reference=reference, rng=2)
    fresh.sampling_state = pickle.loads(saved)
    assert fresh.n_draws == done
    point = fresh.tall.layout.unflatten(fresh.last_point)
    points, stats = run(fresh, point, done, TUNE + DRAWS)
    assert_same(points, expected)
    assert stats == expected_stats


def test_a_draw_that_is_interrupted_leaves_no_trace(model, reference, monkeypatch):
    step, twin = (new_step(model, reference=reference) for _ in range(2))
    expected, _ = run(twin, model.initial_point(), 0, 20)
    before, _ = run(step, model.initial_point(), 0, 10)
    right = FlyMC.iterate

    def interrupted(self, *args, **kwargs):
        right(self, *args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FlyMC, "iterate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step.step(before[-1])
    assert_same(run(step, before[-1], 10, 20)[0], expected[10:])


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("kernel", {"proposal": "metropolis"}),
        ("z_update", {"z_update": "explicit"}),
        ("fixed_q", {"dark_to_bright_probability": 0.01}),
        ("tune_bounds", {"tune_bounds": False}),
        ("steps_per_draw", {"steps_per_draw": 2}),
    ],
)
def test_a_step_with_other_settings_refuses_the_state(model, reference, field, changes):
    state = new_step(model, reference=reference).sampling_state
    other = new_step(model, reference=reference, **changes)
    with pytest.raises(ValueError, match=f"Field '{field}' has different values"):
        other.sampling_state = state


# --- Refusals ---------------------------------------------------------------------------------


def test_a_violation_in_a_chain_stops_it_and_names_the_row(model, reference):
    """With a negative tolerance every gap that is small counts as one."""
    step = new_step(model, reference=reference)
    step.chosen = replace(step.chosen, tolerance=-1e3)
    with pytest.raises(SamplingError, match=r"The lower bound of row \d+ of y lies above"):
        step.step(model.initial_point())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"proposal": "gibbs"}, "proposal must be one of 'metropolis'"),
        ({"z_update": "both"}, "z_update must be one of 'implicit', 'explicit'"),
        ({"fraction": 0.0}, "fraction must be over 0 and at most 1"),
        ({"dark_to_bright_probability": 1.0}, "probability must be over 0 and below 1"),
        ({"steps_per_draw": 0}, "steps_per_draw must be a whole number, at least 1"),
        ({"theta_updates": 1.5}, "theta_updates must be a whole number, at least 1"),
        ({"vars": ["gamma"]}, "gamma is not a free variable"),
    ],
)
def test_bad_arguments(model, options, message):
    with pytest.raises(ValueError, match=message):
        new_step(model, **options)


def test_a_reference_of_another_model_is_refused(reference):
    with pytest.raises(ValueError, match="The reference is of another model"):
        new_step(grouped_model(), reference=reference)
