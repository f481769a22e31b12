"""The step inside and outside of pm.sample."""

import functools
import io
import os
import re
import signal
import subprocess
import sys
import time

import cloudpickle
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from models import N_GROUPS, N_ROWS, PlainMH, grouped_model, normal_model, random_point
from pymc.progress_bar import rich_progress
from pymc.sampling.mcmc import assign_step_methods
from pymc.sampling.parallel import ParallelSamplingError
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import Competence
from pymc.step_methods.state import equal_dataclass_values
from rich.console import Console

from pymc_minibatch import CorrectedBarker, MinibatchMH, Penalty, RandomWalk

QUIET = {"progressbar": False, "compute_convergence_checks": False}


@pytest.fixture(scope="module")
def normal():
    return normal_model()


@pytest.fixture(scope="module")
def grouped():
    return grouped_model()


def sample(model, step=None, *, seed=11, **kwargs):
    """Run pm.sample briefly, by default on a new step."""
    step = step or PlainMH(batch_size=50, steps_per_draw=3, model=model)
    with model:
        return pm.sample(
            **{"draws": 60, "tune": 150, "chains": 2, "cores": 1, "random_seed": seed}
            | QUIET
            | {"step": step}
            | kwargs
        )


def walk(step, n_draws):
    """Step by hand from the model's starting point; return points and stats."""
    point, points, stats = step.tall.model.initial_point(), [], []
    for _ in range(n_draws):
        point, [stat] = step.step(point)
        points.append(np.concatenate([np.ravel(value) for value in point.values()]))
        stats.append(stat)
    return np.array(points), {name: np.array([stat[name] for stat in stats]) for name in stats[0]}


def assert_same_draws(one, other):
    """Draws are the same bit for bit.

    Machine code that PyTensor loads from its cache may round differently from code it has just
    compiled; of the stats, s² and the error bound show it. Setting up takes as long as it takes.
    """
    posterior, stats = (
        [result[group].to_dataset().drop_attrs() for result in (one, other)]
        for group in ("posterior", "sample_stats")
    )
    xr.testing.assert_identical(*posterior)
    xr.testing.assert_allclose(*[stat.drop_vars("setup_seconds") for stat in stats], rtol=1e-9)


# --- The result -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(normal):
    return sample(normal)


def test_returns_what_pymc_returns(result):
    assert isinstance(result, xr.DataTree)
    assert set(result.posterior.data_vars) == {"mu", "sigma"}
    for name in ("mu", "sigma"):
        assert result.posterior[name].dims == ("chain", "draw")
        assert result.posterior[name].shape == (2, 60)
    assert result.observed_data["y"].shape == (N_ROWS,)
    assert (result.posterior["sigma"] > 0).all()
    assert np.unique(result.posterior["mu"]).size > 10


def test_stats_are_those_of_the_docstring(result):
    documented = re.findall(r"^ *- ``(\w+)``:", MinibatchMH.__doc__, flags=re.MULTILINE)
    assert set(result.sample_stats.data_vars) == set(documented)
    whole = ("n_likelihood", "n_gradient", "n_scanned", "n_rows", "n_witnessed")
    whole += ("rows_checksum", "model_checksum")
    kinds = [f"acceptance_rate_{kind}" for kind in ("hyper", "dense", "groups")]
    of_effects = [*kinds, "n_sweeps", "rows_per_sweep"]  # none here
    yes_or_no = ("exact", "diverging", "stand_in")
    for name in documented:
        stat = result.sample_stats[name]
        expected = bool if name in yes_or_no else np.int64 if name in whole else np.float64
        assert stat.dtype == expected
        assert stat.shape == (2, 60)
        assert np.isnan(stat).all() if name in of_effects else np.isfinite(stat).all()


def test_stats_lie_in_their_range(result):
    stats = result.sample_stats
    rate = stats["acceptance_rate"]
    np.testing.assert_allclose(3 * rate, np.round(3 * rate), atol=1e-12)
    assert rate.min() >= 0
    assert 0 < rate.mean() < 0.5
    assert stats["batch_size"].min() >= 50
    assert stats["batch_size"].max() <= N_ROWS
    assert 0 <= stats["log_ratio_var"].min() <= stats["log_ratio_var"].max() < 1
    assert 0 <= stats["test_error"].min() <= stats["test_error"].max() <= 1e-3
    assert (stats["n_gradient"] == 0).all()


def test_scale_is_constant_after_tuning(result):
    scale = result.sample_stats["scale"]
    assert (scale == scale[:, :1]).all()
    assert scale[0, 0] != scale[1, 0]


def test_stop_tuning_freezes_the_proposal(normal):
    step = PlainMH(model=normal, rng=1)
    _, stats = walk(step, 130)
    assert np.unique(stats["scale"]).size == 130
    step.stop_tuning()
    before = step.sampling_state.proposal_state
    _, stats = walk(step, 130)
    assert np.unique(stats["scale"]).size == 1
    assert equal_dataclass_values(step.sampling_state.proposal_state, before)


def test_a_step_does_not_change_the_point_it_is_given(normal):
    step = PlainMH(model=normal, batch_size=N_ROWS, steps_per_draw=50, rng=1)
    point = normal.initial_point()
    new_point, _ = step.step(point)
    assert {name: float(value) for name, value in point.items()} == {"mu": 0, "sigma_log__": 0}
    assert all(new_point[name] != point[name] for name in point)


# --- Decisions --------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("names", [None, ["alpha"], ["mu", "sigma"]])
@pytest.mark.filterwarnings("ignore:MinibatchMH samples at temperature")
def test_whole_batches_make_barkers_test(grouped, names, temperature):
    """Replay each transition from the model's own log-density, the others' values included."""
    step = PlainMH(
        names,
        proposal=RandomWalk(cov=0.02),
        batch_size=N_ROWS,
        temperature=temperature,
        model=grouped,
        rng=5,
    )
    step.stop_tuning()
    moved = [value.name for value in step.vars]
    prior = grouped.compile_logp(vars=grouped.free_RVs, mode="FAST_COMPILE")
    likelihood = grouped.compile_logp(vars=grouped.observed_RVs, mode="FAST_COMPILE")
    rng, outcomes = np.random.default_rng(5), set()
    for seed in range(60):
        point = random_point(grouped, seed, spread=0.1)
        xi = rng.standard_normal(sum(np.size(point[name]) for name in moved))
        candidate, used = dict(point), 0
        for name in moved:
            size = np.size(point[name])
            change = np.sqrt(0.02) * xi[used : used + size].reshape(np.shape(point[name]))
            candidate[name], used = point[name] + change, used + size
        delta = prior(candidate) - prior(point)
        delta += (likelihood(candidate) - likelihood(point)) / temperature
        accepted = bool(rng.random() < 1 / (1 + np.exp(-delta)))
        new_point, [stats] = step.step(point)
        assert stats["acceptance_rate"] == accepted
        for name, value in (candidate if accepted else point).items():
            np.testing.assert_allclose(new_point[name], value, rtol=1e-12)
        outcomes.add(accepted)
    assert outcomes == {True, False}


def test_n_likelihood_is_twice_the_rows_read(normal):
    """The work space holds the batch and pilots; a decision on all rows reads them besides."""
    step = PlainMH(model=normal, acceptance=CorrectedBarker(test_error=None), batch_size=20, rng=3)
    point, decided_from_all = normal.initial_point(), set()
    for _ in range(100):
        point, [stats] = step.step(point)
        read_all = stats["batch_size"] == N_ROWS
        in_batch = int(step.workspace.n_drawn[0])
        assert stats["n_likelihood"] == 2 * (in_batch + read_all * N_ROWS)
        assert read_all or stats["batch_size"] <= in_batch
        decided_from_all.add(read_all)
    assert decided_from_all == {True, False}


def test_a_draw_makes_steps_per_draw_transitions(normal):
    one = PlainMH(model=normal, batch_size=20, rng=4)
    six = PlainMH(model=normal, batch_size=20, rng=4, steps_per_draw=6)
    one.stop_tuning()
    six.stop_tuning()
    points, stats = walk(one, 60)
    points_six, stats_six = walk(six, 10)
    np.testing.assert_array_equal(points_six, points[5::6])
    grouped_stats = {name: stat.reshape(10, 6) for name, stat in stats.items()}
    np.testing.assert_allclose(
        stats_six["acceptance_rate"], grouped_stats["acceptance_rate"].mean(axis=1)
    )
    np.testing.assert_allclose(stats_six["batch_size"], grouped_stats["batch_size"].mean(axis=1))
    np.testing.assert_array_equal(
        stats_six["n_likelihood"], grouped_stats["n_likelihood"].sum(axis=1)
    )
    np.testing.assert_array_equal(stats_six["test_error"], grouped_stats["test_error"].max(axis=1))


# --- Some of the variables --------------------------------------------------------------------


def test_vars_by_variable_name_or_list(grouped):
    alpha, sigma = grouped["alpha"], grouped.rvs_to_values[grouped["sigma"]]
    for given, expected in [
        (alpha, ["alpha"]),
        ("alpha", ["alpha"]),
        (sigma, ["sigma_log__"]),
        ("sigma_log__", ["sigma_log__"]),
        ([alpha, "sigma"], ["alpha", "sigma_log__"]),
        (("sigma", "mu"), ["sigma_log__", "mu"]),
        (None, ["mu", "tau_log__", "alpha", "sigma_log__"]),
    ]:
        step = PlainMH(given, model=grouped)
        assert [value.name for value in step.vars] == expected
        size = sum(np.size(grouped.initial_point()[name]) for name in expected)
        assert step.proposal_state.mean.shape == (size,)


def test_only_the_chosen_variables_move(grouped):
    step = PlainMH(["sigma", "mu"], model=grouped, steps_per_draw=100, rng=1)
    point = random_point(grouped, 1)
    new_point, _ = step.step(point)
    assert list(new_point) == list(point)
    moved = {name for name in point if np.any(new_point[name] != point[name])}
    assert moved == {"sigma_log__", "mu"}


@pytest.mark.parametrize("other", ["NUTS", "Metropolis"])
def test_compound_step(grouped, other):
    """PyMC picks NUTS for the rest by itself; group means are known to 0.065 from the data."""
    with grouped:
        steps = [PlainMH(["alpha", "sigma"], steps_per_draw=20)]
        if other == "Metropolis":
            steps.append(pm.Metropolis([grouped["mu"], grouped["tau"]]))
        idata = pm.sample(400, tune=400, chains=1, step=steps, random_seed=7, **QUIET)
    y = grouped.rvs_to_values[grouped["y"]].data
    group = group_of_rows(grouped)
    means = np.array([y[group == g].mean() for g in range(N_GROUPS)])
    posterior = idata.posterior.mean(("chain", "draw"))
    np.testing.assert_allclose(posterior["alpha"], means, atol=0.05)
    assert posterior["sigma"] == pytest.approx(np.std(y - means[group]), abs=0.02)
    spread = idata.posterior.std(("chain", "draw"))
    np.testing.assert_allclose(spread["alpha"], 0.8 / np.sqrt(np.bincount(group)), rtol=0.35)
    assert 0.4 < posterior["tau"] < 1.5
    assert {"n_likelihood", "batch_size", "scale"} <= set(idata.sample_stats.data_vars)


def group_of_rows(model):
    step = PlainMH("alpha", model=model)
    [group] = [values for values in step.tall.data if np.issubdtype(values.dtype, np.integer)]
    return group


def test_is_never_chosen_by_pymc(grouped):
    assert MinibatchMH not in STEP_METHODS
    assert MinibatchMH.competence(grouped["alpha"], True) is Competence.INCOMPATIBLE
    _, chosen = assign_step_methods(grouped)
    assert set(chosen) == {pm.NUTS}


# --- Seeds and processes ----------------------------------------------------------------------


def test_the_same_seed_gives_the_same_draws(normal, result):
    assert_same_draws(sample(normal), result)
    other = sample(normal, seed=12).posterior["mu"]
    assert (other != result.posterior["mu"]).mean() > 0.9


@pytest.mark.parametrize("mp_ctx", ["fork", "forkserver", "spawn"])
def test_processes_give_the_same_draws(normal, result, mp_ctx):
    assert_same_draws(sample(normal, cores=2, mp_ctx=mp_ctx), result)


@pytest.mark.parametrize("mp_ctx", ["fork", "spawn"])
def test_processes_give_the_same_draws_with_a_control_variate(normal, mp_ctx):
    one = sample(normal, MinibatchMH(model=normal, steps_per_draw=3))
    assert (one.sample_stats["n_gradient"] > 0).all()
    other = sample(normal, MinibatchMH(model=normal, steps_per_draw=3), cores=2, mp_ctx=mp_ctx)
    assert_same_draws(one, other)


def test_a_step_can_be_used_again(normal, result):
    """Each call of pm.sample tunes anew."""
    step = PlainMH(batch_size=50, steps_per_draw=3, model=normal)
    sample(normal, step, seed=1)
    assert_same_draws(sample(normal, step), result)


def test_no_tuning(normal):
    idata = sample(normal, tune=0, draws=20)
    assert (idata.sample_stats["scale"] == 1.0).all()


def test_pickle_round_trip(normal):
    step = PlainMH(model=normal, batch_size=50, rng=8)
    walk(step, 120)
    copied = cloudpickle.loads(cloudpickle.dumps(step))
    expected_points, expected_stats = walk(step, 100)
    points, stats = walk(copied, 100)
    np.testing.assert_array_equal(points, expected_points)
    for name, stat in stats.items():
        np.testing.assert_array_equal(stat, expected_stats[name])


def test_a_kernel_is_compiled_once_and_found_on_disk(tmp_path):
    script = (
        "import numpy as np, pymc as pm, pymc_minibatch as pmb\n"
        "with pm.Model():\n"
        "    mu = pm.Normal('mu')\n"
        "    pm.Normal('y', mu, 1.0, observed=np.arange(100.0))\n"
        "    stats = pmb.MinibatchMH().kernel.stats\n"
        "print(len(stats.cache_hits), len(stats.cache_misses))\n"
    )
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    env = os.environ | {"PYTENSOR_FLAGS": f"{flags},base_compiledir={tmp_path}".lstrip(",")}
    counts = [
        subprocess.run(
            [sys.executable, "-c", script], env=env, check=True, capture_output=True, text=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert counts == [["0", "1"], ["1", "0"]]


# --- Progress bar -----------------------------------------------------------------------------


@pytest.mark.parametrize("compound", [False, True])
def test_progress_bar_shows_the_stats(grouped, compound, monkeypatch):
    screen = io.StringIO()
    console = functools.partial(
        Console, file=screen, width=250, force_terminal=True, color_system=None
    )
    monkeypatch.setattr(rich_progress, "Console", console)
    with grouped:
        steps = [PlainMH(["alpha", "sigma"] if compound else None, batch_size=N_ROWS)]
        if compound:
            steps.append(pm.Metropolis([grouped["mu"], grouped["tau"]]))
    sample(grouped, steps, draws=10, tune=10, progressbar=True)
    shown = screen.getvalue()
    for header in ["Scale", "Accept", "Rows"] + ["Scaling", "Accept Rate"] * compound:
        assert re.search(rf"\b{header}\b", shown)
    assert re.search(rf"\s{N_ROWS}\s", shown)


# --- Refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 1}, "batch_size must be a whole number, at least 2 and at most 600"),
        ({"batch_size": N_ROWS + 1}, "batch_size .* at most 600, the number of rows; got 601"),
        ({"batch_size": 100.0}, "batch_size must be a whole number"),
        ({"batch_size": True}, "batch_size must be a whole number"),
        ({"steps_per_draw": 0}, "steps_per_draw must be a whole number, at least 1 and at most"),
        ({"steps_per_draw": 1.5}, "steps_per_draw must be a whole number"),
        ({"temperature": 0.0}, "temperature must be a positive, finite number; got 0"),
        ({"temperature": -1.0}, "temperature must be a positive"),
        ({"temperature": np.nan}, "temperature must be a positive"),
        ({"temperature": np.inf}, "temperature must be a positive"),
        ({"vars": "beta"}, r"beta is not a free variable .* \['mu', 'sigma'\]"),
        ({"vars": ["mu", "y"]}, "y is not a free variable"),
        ({"proposal": RandomWalk(cov=np.eye(3))}, "2 unconstrained parameters"),
        ({"proposal": RandomWalk(target_accept=0.5)}, "CorrectedBarker.* never reaches: .* 0.5 of"),
        (
            {"proposal": RandomWalk(target_accept=0.7), "acceptance": Penalty(sigma=1.0)},
            "Penalty.* never reaches: it accepts 0.62",
        ),
    ],
)
def test_refuses_arguments(normal, arguments, message):
    with pytest.raises(ValueError, match=message):
        PlainMH(**arguments, model=normal)


def test_rows_that_read_no_parameter_leave_the_prior():
    with pm.Model() as model:
        pm.Normal("beta", 3.0, 0.5)
        pm.DiscreteUniform("y", -1, np.repeat([4, 6], 20), observed=np.arange(40) % 4)
    step = MinibatchMH(model=model, rng=1)
    points, _ = walk(step, 400)
    assert abs(points[50:].mean() - 3.0) < 0.2
    assert 0.3 < points[50:].std() < 0.7


def test_refuses_discrete_variables():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        shift = pm.Poisson("shift", 2.0)
        pm.Normal("y", mu + shift, 1.0, observed=np.arange(50.0))
    for chosen in (None, ["mu", "shift"]):
        with pytest.raises(ValueError, match=r"shift is discrete.*pm\.Metropolis"):
            PlainMH(chosen, model=model)
    step = PlainMH("mu", batch_size=50, model=model)
    assert [value.name for value in step.vars] == ["mu"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sigma": 0.4}, r"sigma must lie in \[0\.5, 1\.4\]"),
        ({"sigma": np.nan}, "sigma must lie in"),
        ({"test_error": 0.0}, "test_error must be above"),
        ({"test_error": np.nan}, "test_error must be above"),
        ({"sigma": 1.4, "test_error": 1e-5}, "smaller sigma or a larger limit"),
    ],
)
def test_corrected_barker_refuses_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        CorrectedBarker(**arguments)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    ("initvals", "message"),
    [
        ({"sigma": 1e-170}, r"Row 0 of y has log-likelihood -inf at the starting point"),
        ({"mu": 1e200}, r"prior part has log-density -inf at the starting point: \{'mu': -inf"),
    ],
)
def test_refuses_an_impossible_start(normal, cores, initvals, message):
    with pytest.raises((ValueError, ParallelSamplingError), match=message):
        sample(normal, cores=cores, initvals=initvals)


def test_refuses_a_row_that_becomes_impossible(normal):
    """As if the step had come to such a point by batches without that row."""
    step = PlainMH(model=normal, batch_size=N_ROWS)
    step.step({"mu": np.array(0.0), "sigma_log__": np.array(0.0)})
    with pytest.raises(pm.exceptions.SamplingError, match=r"^Row \d+ of y .* not finite"):
        step.step({"mu": np.array(0.0), "sigma_log__": np.array(-400.0)})


def test_warns_of_a_temperature_for_some_variables(grouped):
    with pytest.warns(UserWarning, match=r"temperature 2\.0; the steps of \['mu', 'tau_log__'\]"):
        PlainMH(["alpha", "sigma"], temperature=2.0, model=grouped)


@pytest.mark.filterwarnings("error:.*temperature")
def test_does_not_warn_of_a_temperature_for_all_variables(grouped):
    PlainMH(temperature=2.0, model=grouped)
    PlainMH(["alpha"], model=grouped)


@pytest.mark.parametrize(
    ("batch_size", "message"),
    [(None, "batches have at least"), (100, "Leave batch_size out, or set it to")],
)
def test_warns_of_rare_rows(batch_size, message):
    """Where few rows decide, a first batch is large enough to hold some, and stays so."""
    category = np.arange(4000) < 10
    with pm.Model() as model:
        slope, intercept = pm.Normal("slope", 0, 5), pm.Normal("intercept", 0, 5)
        y = (np.arange(4000) % 40 == 0).astype(int)
        pm.Bernoulli("y", logit_p=intercept + slope * category, observed=y)
        with pytest.warns(UserWarning, match=message):
            # With an expansion of second order these rows would be read at every decision.
            step = MinibatchMH(
                batch_size=batch_size, row_sampling="uniform", control_variate=1, rng=1
            )
    assert step.least_batch > 1000
    if batch_size is None:
        point = model.initial_point()
        for _ in range(200):
            point, [stats] = step.step(point)
            assert stats["batch_size"] >= step.least_batch


def test_warns_of_a_deterministic_of_rows():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        mean = pm.Deterministic("mean", mu * np.linspace(0, 1, 50))
        pm.Normal("y", mean, 1.0, observed=np.arange(50.0))
    message = r"\['mean'\] have one value for each of the 50 rows"
    with pytest.warns(UserWarning, match=message) as caught:
        PlainMH(batch_size=50, model=model)
    assert [warning.filename for warning in caught] == [__file__]


def test_says_what_probabilities_of_rows_would_take(monkeypatch):
    with pm.Model() as model:
        cut = pm.Normal("cut", [-1.0, 1.0], transform=pm.distributions.transforms.ordered)
        rating = np.resize([0, 1, 2], 50)
        eta = pm.Normal("b") * np.linspace(-1.0, 1.0, 50)
        pm.OrderedLogistic("rating", eta=eta, cutpoints=cut, observed=rating)
    monkeypatch.setattr("pymc_minibatch.steps.row_deterministics.NOTABLE_BYTES", 1e5)
    monkeypatch.setattr("pymc_minibatch.steps.row_deterministics.free_bytes", lambda: 1e6)
    monkeypatch.setattr("pymc_minibatch.steps.row_deterministics.DRAWS_OF_A_CHAIN", 10**6)
    told = r"1,000,000 draws of one chain take 1.2 GB .* where 0.0 GB are free.*compute_p=False"
    with pytest.warns(UserWarning, match=told):
        PlainMH(batch_size=50, model=model)


# --- Interruption -----------------------------------------------------------------------------

INTERRUPTED = """
import signal
import numpy as np, pymc as pm, pymc_minibatch as pmb
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells switch it off in the background
with pm.Model():
    mu = pm.Normal("mu")
    sigma = pm.HalfNormal("sigma")
    pm.Normal("y", mu, sigma, observed=np.linspace(-1, 1, 600))
    step = pmb.MinibatchMH(control_variate=0, batch_size=600, steps_per_draw=20_000)
    idata = pm.sample(
        10_000, tune=0, chains=1, step=step, progressbar=False, quiet=True,
        callback=lambda trace, draw: draw.draw_idx == 2 and print("drawing", flush=True),
    )
print("kept", idata.posterior.sizes["draw"], flush=True)
"""


def test_ctrl_c_within_the_kernel_keeps_the_draws():
    """A draw takes long here, so that the signal arrives in compiled code."""
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "drawing\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert int(output.split()[-1]) >= 1


@pytest.mark.parametrize(
    ("where", "tuning"), [("kernel", True), ("kernel", False), ("end_draw", True)]
)
def test_an_interrupted_draw_leaves_no_trace(normal, where, tuning, monkeypatch):
    """The draw is interrupted after the kernel has changed generator and proposal."""
    step, uninterrupted = (PlainMH(model=normal, batch_size=50, rng=9) for _ in range(2))
    for one in (step, uninterrupted):
        walk(one, 99)
        if not tuning:
            one.stop_tuning()
    before = step.sampling_state

    def interrupt(*args):
        raise KeyboardInterrupt

    def run_and_interrupt(flat, n_steps):
        MinibatchMH.make_transitions(step, flat, n_steps)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if where == "kernel":
            patched.setattr(step, "make_transitions", run_and_interrupt)
        else:
            patched.setattr(RandomWalk, "end_draw", interrupt)
        with pytest.raises(KeyboardInterrupt):
            step.step(normal.initial_point())
    assert equal_dataclass_values(step.sampling_state, before)
    np.testing.assert_array_equal(walk(step, 50)[0], walk(uninterrupted, 50)[0])
