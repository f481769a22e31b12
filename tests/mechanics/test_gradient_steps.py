"""The stochastic-gradient steps inside and outside of pm.sample."""

import pickle
import re
import warnings

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from models import N_ROWS, UNREPEATED, grouped_model, logistic_model, logistic_rows, normal_model
from pymc.exceptions import SamplingError
from pymc.step_methods.state import equal_dataclass_values
from stored import as_memory_maps, as_paths, as_zarr

from pymc_minibatch import SGFS, SGHMC, SGLD, SGNHT, Cyclical, Polynomial, find_reference
from pymc_minibatch.kernels.gradient import make_estimate
from pymc_minibatch.kernels.sgfs import average_covariance, scoring_state
from pymc_minibatch.kernels.sgld import LangevinState, learn_scale

TUNE, DRAWS = 20, 15
STEPS = [SGFS, SGLD, SGHMC, SGNHT]
QUIET = {"progressbar": False, "compute_convergence_checks": False}


@pytest.fixture(scope="module")
def model():
    return normal_model()


@pytest.fixture(scope="module")
def reference(model):
    return find_reference(model)


def new_step(kind, model, reference, **changes):
    options = {"reference": reference, "control_variate": 1, "batch_size": 50, "steps_per_draw": 2}
    return kind(model=model, **options | changes)


def run(step, point, first, last):
    """Make draws `first` to `last` of a chain by hand."""
    points, stats = [], []
    for done in range(first, last):
        if done == TUNE:
            step.stop_tuning()
        point, [stat] = step.step(point)
        points.append(point)
        stats.append({name: value for name, value in stat.items() if name not in UNREPEATED})
    return points, stats


@pytest.mark.parametrize("kind", STEPS)
def test_in_pm_sample(kind, model, reference):
    """In two processes, twice, with the stats of the docstring."""
    results = []
    for _ in range(2):
        step = new_step(kind, model, reference)
        with model:
            results.append(
                pm.sample(100, tune=50, chains=2, cores=2, random_seed=1, step=step, **QUIET)
            )
    one, other = (result.posterior.to_dataset().drop_attrs() for result in results)
    xr.testing.assert_identical(one, other)
    assert one["mu"].shape == (2, 100)
    assert np.unique(one["mu"]).size > 150
    assert abs(one["mu"].mean() - 0.5) < 0.3
    stats = results[0].sample_stats
    documented = re.findall(r"^ *- (``.*``):", kind.__doc__, flags=re.MULTILINE)
    assert set(stats.data_vars) == set(re.findall(r"``(\w+)``", " ".join(documented)))
    assert (stats["n_gradient"] == 2 * 50 * 2).all()
    assert ((stats["gradient_noise"] >= 0) & (stats["gradient_noise"] < 1)).all()
    assert kind is SGNHT or (stats["gradient_noise"] > 0).all()
    assert (stats["step_size"] > 0).all()
    assert np.unique(stats["step_size"]).size == (1 if kind is SGLD else 2)


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize(("done", "order"), [(1, 1), (TUNE, 0), (TUNE + 5, 1)])
def test_resumed_by_hand(model, reference, kind, done, order):
    def fresh(seed):
        return new_step(kind, model, reference, rng=seed, control_variate=order)

    step = fresh(1)
    before, _ = run(step, model.initial_point(), 0, done)
    saved = pickle.dumps(step.sampling_state)
    expected, expected_stats = run(step, before[-1], done, TUNE + DRAWS)
    assert equal_dataclass_values(pickle.loads(saved), pickle.loads(saved))
    resumed = fresh(2)
    resumed.sampling_state = pickle.loads(saved)
    np.testing.assert_array_equal(resumed.tall.layout.flatten(before[-1]), resumed.last_point)
    points, stats = run(resumed, before[-1], done, TUNE + DRAWS)
    assert points == expected
    assert stats == expected_stats


@pytest.mark.parametrize("kind", STEPS)
def test_an_interrupted_draw_is_repeated(model, reference, kind, monkeypatch):
    """What the kernel has changed before a Ctrl-C is put back."""
    step, same = (new_step(kind, model, reference, rng=1) for _ in range(2))
    [*_, point], _ = run(step, model.initial_point(), 0, 5)
    run(same, model.initial_point(), 0, 5)
    kernel = step.kernel

    def interrupted(*arguments):
        kernel(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(step.__dict__, "kernel", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step.step(point)
    assert run(step, point, 5, 9) == run(same, point, 5, 9)


@pytest.mark.filterwarnings("ignore:.*step_size of:UserWarning")
@pytest.mark.parametrize(
    ("kind", "field", "changes"),
    [
        (SGFS, "options", {"alpha": 2.0}),
        (SGFS, "options", {"variant": "diagonal"}),
        (SGLD, "options", {"step_size": 0.1}),
        (SGLD, "options", {"preconditioner": np.eye(2)}),
        (SGLD, "batch_size", {"batch_size": 51}),
        (SGLD, "control_variate", {"control_variate": 0, "step_size": 0.3999}),
        (SGHMC, "options", {"friction": 0.2}),
        (SGHMC, "options", {"schedule": Cyclical()}),
    ],
)
def test_a_step_with_other_settings_refuses_the_state(model, reference, kind, field, changes):
    state = new_step(kind, model, reference).sampling_state
    other = new_step(kind, model, reference, **changes)
    with pytest.raises(ValueError, match="has different values"):
        other.sampling_state = state


@pytest.mark.parametrize("kind", STEPS)
def test_a_pickled_step_goes_on(model, reference, kind):
    step = new_step(kind, model, reference, rng=1)
    [*_, point], _ = run(step, model.initial_point(), 0, 3)
    copied = cloudpickle.loads(cloudpickle.dumps(step))
    assert run(copied, point, 3, 5) == run(step, point, 3, 5)


def test_only_the_named_variables_move(model, reference):
    step = new_step(SGFS, model, reference, vars=["sigma"], rng=1)
    point = model.initial_point()
    [*_, last], _ = run(step, point, 0, 5)
    assert last["mu"] == point["mu"]
    assert last["sigma_log__"] != point["sigma_log__"]


def test_nothing_is_learned_after_tuning(model, reference):
    step = new_step(SGFS, model, reference, control_variate=0, rng=1)
    [*_, point], _ = run(step, model.initial_point(), 0, TUNE)
    step.stop_tuning()
    before = pickle.dumps(step.tuned.fisher)
    run(step, point, TUNE, TUNE + DRAWS)
    assert pickle.dumps(step.tuned.fisher) == before


# --- Data from elsewhere ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored():
    """Rows in single precision, a model that has them, and its reference point."""
    X, y = logistic_rows(2000)
    X = X.astype(np.float32)
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=2)
        pm.Bernoulli("y", logit_p=pm.Data("X", X.astype(float)) @ beta, observed=y)
    return {"X": X, "y": y.astype(np.int8)}, model, find_reference(model)


def in_memory(data, folder):
    return data


@pytest.mark.parametrize("kind", STEPS)
def test_draws_are_those_of_a_model_with_the_data(stored, kind, tmp_path):
    data, model, reference = stored
    options = {"reference": reference, "batch_size": 50, "control_variate": 2, "rng": 1}
    points, stats = run(kind(model=model, **options), reference.mode, 0, TUNE + DRAWS)
    for source in (in_memory, as_memory_maps, as_paths, as_zarr):
        step = kind(model=logistic_model(40), data=source(data, tmp_path), **options)
        found, found_stats = run(step, reference.mode, 0, TUNE + DRAWS)
        for point, expected in zip(found, points, strict=True):
            np.testing.assert_allclose(point["beta"], expected["beta"], rtol=1e-9)
        for stat, expected in zip(found_stats, stats, strict=True):
            # Of another graph, which has the data as inputs.
            expected |= {"stand_in": True, "model_checksum": stat["model_checksum"]}
            assert stat == pytest.approx(expected)


# --- Fisher information -----------------------------------------------------------------------


def test_the_gradient_of_a_batch_is_that_of_its_rows(model, reference):
    """Also of a batch of an odd number that is summed in two halves, to tell of the noise."""
    step = new_step(SGLD, model, reference, control_variate=0)
    estimate = make_estimate([values.ndim for values in step.tall.data])
    flat = step.tall.layout.flatten(model.initial_point()) + 0.1
    rows, active = np.empty(7, np.int64), np.arange(flat.size)
    noise = np.empty(flat.size)
    whole, halved = np.empty(flat.size), np.empty(flat.size)
    for gradient, sampled in ((whole, noise[:0]), (halved, noise)):
        rng = np.random.default_rng(1)
        estimate(rng, flat, active, step.density, rows, gradient, sampled)

    def slope(some, scale):
        """Gradient of the sum of rows by differences, times a scale; the prior if there is none."""

        def value(point):
            if not len(some):
                return float(step.tall.compiled_prior_logp(point))
            return np.sum(step.tall.compiled_row_logp(point, *step.tall.batch(some)))

        steps = 1e-5 * np.eye(flat.size)
        return np.array([scale * (value(flat + d) - value(flat - d)) / 2e-5 for d in steps])

    first, second = slope(rows[:3], 1 / 3), slope(rows[3:], 1 / 4)
    expected = slope(rows[:0], 1) + N_ROWS * (3 * first + 4 * second) / 7
    np.testing.assert_allclose(whole, expected, rtol=1e-6)
    np.testing.assert_allclose(halved, whole, rtol=1e-12)
    np.testing.assert_allclose(noise, N_ROWS * np.sqrt(12) / 7 * (first - second), rtol=1e-6)


@pytest.mark.parametrize("columns", [1, 3])
def test_average_of_the_covariances_of_batches(columns):
    """Unbiased ones of few rows, of which batch t has a weight of t (t + 1)."""
    batches = np.random.default_rng(1).normal(size=(5, 4, 6))
    active, state = np.array([0, 2, 5]), scoring_state(3, columns)
    for batch in batches:
        average_covariance(batch, active, batch.mean(axis=0)[active], state)
    t = np.arange(1, 6)
    each = [np.cov(batch[:, active], rowvar=False) for batch in batches]
    expected = np.average(each, axis=0, weights=t * (t + 1))
    expected = np.diag(expected)[:, None] if columns == 1 else np.tril(expected)
    np.testing.assert_allclose(state.fisher, expected, rtol=1e-12)


def test_rmsprop_from_the_first_gradient():
    """As in pSGLD, with the average free of the zeros it starts from."""
    rng = np.random.default_rng(1)
    gradients, n_rows = rng.normal(size=(4, 3)) * [1.0, 30.0, 1e-4], 100
    state = LangevinState(np.ones((3, 1)), np.zeros(3), np.zeros(1), np.zeros(1))
    for gradient in gradients:
        learn_scale(gradient, n_rows, state)
    weights = 0.99 ** np.arange(4)[::-1]
    squares = weights @ (gradients / n_rows) ** 2 / weights.sum()
    np.testing.assert_allclose(state.factor[:, 0] ** 2, 1 / (1e-5 + np.sqrt(squares)))


def test_the_chain_waits_for_full_rank():
    """Three rows a batch and four parameters: nothing moves before 40 rows."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N_ROWS, 4))
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=4)
        pm.Normal("y", X @ beta, 1.0, observed=rng.normal(size=N_ROWS))
    step = SGFS(model=model, control_variate=0, batch_size=3, rng=1)
    points, stats = run(step, model.initial_point(), 0, 16)
    moved = [bool(point["beta"].any()) for point in points]
    assert moved == [3 * (t + 1) >= 40 for t in range(16)]
    noise = [stat["gradient_noise"] for stat in stats]
    assert np.isnan(noise).tolist() == [not m for m in moved]


def test_singular_information_is_named():
    rng = np.random.default_rng(1)
    x = rng.normal(size=N_ROWS)
    with pm.Model() as model:
        a, b = pm.Flat("a"), pm.Flat("b")
        level = pm.Normal("level")
        pm.Normal("y", level + (a + b) * x, 1.0, observed=x)
    step = SGFS(model=model, control_variate=0, batch_size=50, rng=1)
    points, _ = run(step, model.initial_point(), 0, 10)
    assert points[-1]["level"] == 0
    step.stop_tuning()
    with pytest.raises(SamplingError, match=r"singular after 500 rows, mostly in [ab]:"):
        step.step(points[-1])


def test_parameters_without_rows_are_named():
    with pytest.raises(ValueError, match=r"do not inform \['mu', 'tau_log__'\]"):
        SGFS(model=grouped_model(), control_variate=0)


def test_parameters_that_matter_beyond_the_start_alone():
    """The scale does not matter where its offset is 0."""
    with pm.Model() as model:
        tau, z = pm.HalfNormal("tau"), pm.Normal("z")
        pm.Normal("y", tau * z, 1.0, observed=np.arange(50.0))
    SGFS(model=model, control_variate=0)


def test_sgfs_without_tuning_is_refused(model, reference):
    step = new_step(SGFS, model, reference)
    step.stop_tuning()
    with pytest.raises(SamplingError, match="pass tune="):
        step.step(model.initial_point())


# --- Bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (SGFS, {"alpha": -0.1}, "alpha must be at least 0"),
        (SGFS, {"alpha": np.nan}, "alpha must be at least 0"),
        (SGFS, {"alpha": 0.4}, "alpha must be at least 0.5 with a control variate"),
        (SGFS, {"variant": "half"}, "variant must be"),
        (SGFS, {"variant": "low rank", "control_variate": 2}, "keeps no Hessian"),
        (
            SGFS,
            {"variant": "low rank", "control_variate": 0, "B": np.eye(2)},
            "noise_covariance is for variant",
        ),
        (SGFS, {"rank": 0}, "rank must be"),
        (SGFS, {"noise_covariance": np.eye(3)}, "noise_covariance has shape"),
        (SGFS, {"noise_covariance": -np.eye(2)}, "noise_covariance must be positive definite"),
        (
            SGFS,
            {"noise_covariance": [[1.0, 0.5], [0.5, 1.0]], "variant": "diagonal"},
            "noise_covariance must be diagonal",
        ),
        (
            SGFS,
            {"noise_covariance": np.diag([1e3, 0.1])},
            r"noise_covariance must be at least 0.25 times .* and is",
        ),
        (SGFS, {"batch_size": 1}, "batch_size must be"),
        (SGFS, {"steps_per_draw": 0}, "steps_per_draw must be"),
        (SGFS, {"vars": ["nu"]}, "not a free variable"),
        (SGFS, {"control_variate": 3}, "control_variate must be"),
        (SGLD, {"step_size": 0.0}, "step_size must be positive"),
        (SGLD, {"step_size": (1.0, 2.0)}, "step_size must be a number or"),
        (SGLD, {"step_size": (1.0, 1.0, 1.5)}, "gamma"),
        (SGLD, {"preconditioner": "hessian"}, "preconditioner must be one of"),
        (SGLD, {"preconditioner": np.eye(3)}, "preconditioner has shape"),
        (SGLD, {"preconditioner": np.diag([1.0, 0.0])}, "preconditioner must be positive definite"),
        (SGHMC, {"step_size": -1.0}, "step_size must be positive"),
        (SGHMC, {"friction": 0.0}, "friction must be over 0"),
        (SGNHT, {"friction": 1.1}, "friction must be over 0 and at most 1"),
        (SGNHT, {"preconditioner": "reference"}, "preconditioner must be one of"),
    ],
)
def test_refuses(model, reference, kind, changes, message):
    with pytest.raises(ValueError, match=message):
        new_step(kind, model, reference, **changes)


@pytest.mark.parametrize("kind", [SGFS, SGHMC])
def test_a_model_without_gradient_is_refused(kind):
    """PyTensor does not differentiate by the order of a Bessel function."""
    y = np.random.default_rng(1).normal(size=100)
    with pm.Model() as bessel:
        pm.Normal("y", pt.kve(pm.HalfNormal("order"), 2.0), 1.0, observed=y)
    with pytest.raises(ValueError, match=r"has no gradient in PyTensor: .* Use MinibatchMH"):
        kind(model=bessel, control_variate=0)


ADVICE = r"diverges at draw \d+: .* (halve it|Raise alpha)"


@pytest.mark.filterwarnings("ignore:.*step_size of:UserWarning")
@pytest.mark.parametrize(
    "changes",
    [{"step_size": 5.0, "control_variate": 0}, {"step_size": 5.0}, {"step_size": 1e8}],
)
def test_sgld_that_diverges_is_stopped(model, reference, changes):
    step = new_step(SGLD, model, reference, rng=1, **changes)
    points = [reference.mode]

    def walk():
        while len(points) < 2000:
            points.append(step.step(points[-1])[0])

    with pytest.raises(SamplingError, match=ADVICE):
        walk()
    assert max(abs(value) for point in points for value in point.values()) < 1e4


def test_sgfs_that_diverges_is_stopped(model, reference):
    """Where sigma is small the density is far more curved than at the mode."""
    step = new_step(SGFS, model, reference, rng=1)
    run(step, reference.mode, 0, TUNE)
    step.stop_tuning()
    with pytest.raises(SamplingError, match=ADVICE):
        step.step({**reference.mode, "sigma_log__": np.array(-4.0)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Polynomial(gamma=1.5), "the chain would come to rest"),
        (lambda: Polynomial(gamma=0.0), r"gamma of Polynomial must lie in \(0, 1\]"),
        (lambda: Polynomial(b=0.0), "b of Polynomial must be positive"),
        (lambda: Cyclical(draws=0), "draws of Cyclical must be"),
        (lambda: Cyclical(exploration=1.0), r"exploration of Cyclical must lie in \[0, 1\)"),
    ],
)
def test_schedules_that_lead_nowhere_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_is_no_schedule_is_refused(model):
    with pytest.raises(TypeError, match="schedule must be a Schedule"):
        SGHMC(model=model, schedule=0.5)


# --- Schedules --------------------------------------------------------------------------------


def test_steps_that_fall():
    """Those of a draw go on where those of the draw before have ended."""
    parts = [Polynomial(b=10.0, gamma=0.6).of_draw(draw, 3) for draw in range(4)]
    sizes = np.concatenate([sizes for sizes, _ in parts])
    np.testing.assert_allclose(sizes, (1 + np.arange(12) / 10) ** -0.6)
    assert all(noisy.all() for _, noisy in parts)


def test_cycles():
    """Of 40 steps, 30 without noise; all of these before the first draw."""
    schedule = Cyclical(draws=5, exploration=0.75)
    parts = [schedule.of_draw(draw, 2) for draw in range(10)]
    assert [len(sizes) for sizes, _ in parts] == 2 * [32, 2, 2, 2, 2]
    sizes, noisy = (np.concatenate(part) for part in zip(*parts, strict=True))
    assert noisy.tolist() == 2 * (30 * [False] + 10 * [True])
    np.testing.assert_allclose(sizes, np.tile((np.cos(np.pi * np.arange(40) / 40) + 1) / 2, 2))
    assert (sizes > 0).all()


def test_cycles_in_a_step(model, reference):
    """The stats are those of the last step of a draw; without noise a step climbs."""
    step = new_step(SGHMC, model, reference, schedule=Cyclical(draws=5, exploration=0.75), rng=1)
    _, stats = run(step, model.initial_point(), 0, 10)
    first = step.tuned.size[0]
    expected = first * (np.cos(np.pi * np.array([31, 33, 35, 37, 39]) / 40) + 1) / 2
    np.testing.assert_allclose([stat["step_size"] for stat in stats], np.tile(expected, 2))
    assert [stat["n_gradient"] for stat in stats] == 2 * [32 * 100, *4 * [200]]


# --- Steps of a bad length --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step_size", "message"),
    [
        (0.05, None),
        (0.3, "too large by about"),
        (4.5, "unstable: from "),
        ((4.5, 1.0, 0.6), "unstable: from "),
        ((0.3, 1.0, 0.6), None),
        (None, None),
    ],
)
def test_a_long_step_is_warned_of(model, reference, step_size, message):
    """The batch of 50 of 600 rows has 12 times the curvature."""
    changes = {"step_size": step_size, "control_variate": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        new_step(SGLD, model, reference, **changes)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == (message is not None)
    assert message is None or message in messages[0]


@pytest.mark.parametrize("step_size", [1.0, 0.05])
def test_a_long_step_without_a_reference_is_logged(model, reference, step_size, caplog):
    """Rows are first read where the chain is after tuning; the result has no such stat."""
    options = {"control_variate": 0, "preconditioner": reference.covariance}
    step = new_step(SGLD, model, None, step_size=step_size, steps_per_draw=20, **options)
    with model:
        idata = pm.sample(20, tune=20, chains=2, cores=1, random_seed=1, step=step, **QUIET)
    logged = [text for text in caplog.messages if "too large by about" in text]
    assert len(logged) == (step_size == 1.0)
    assert "warning" not in idata.sample_stats


def test_a_learned_preconditioner_is_judged_as_it_is(model):
    """By linear theory: the Fisher information of the rows, in the coordinates of M."""
    options = {"control_variate": 0, "batch_size": 50, "steps_per_draw": 20, "rng": 1}
    step = SGLD(model=model, step_size=2e-4, preconditioner="rmsprop", **options)
    points, _ = run(step, model.initial_point(), 0, TUNE)
    step.stop_tuning()
    point, [stats] = step.step(points[-1])
    flat, scale = step.tall.layout.flatten(point), step.tuned.factor
    assert not np.allclose(scale, 1, rtol=0.1)
    largest = N_ROWS * np.linalg.eigvalsh(scale * step.trial.covariance(flat) * scale.T)[-1]
    bias = (1 + 2e-4 * 12 * largest / 4) / (1 - 2e-4 * largest / 4) - 1
    [found] = re.findall(r"too large by about (\d+)%", stats["warning"])
    assert int(found) / 100 == pytest.approx(bias, rel=0.35)


def test_default_steps_that_are_very_short_are_warned_of():
    """Of rows that only bound the rate from above."""
    with pm.Model() as model:
        rate = pm.Normal("rate", 0, 20)
        pm.Poisson("y", pm.math.exp(rate), observed=[0, 0])
    with pytest.warns(UserWarning, match=r"The default alpha of .* times shorter"):
        SGFS(model=model, control_variate=2)
