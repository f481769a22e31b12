"""The benchmarks still run, as far as they need nothing but this package."""

import json
import re
from pathlib import Path

import numpy as np
import pytensor
import pytest

from benchmarks import agreement, decision_error, effects, priors
from benchmarks.data import MODELS, simulate
from benchmarks.effects import differences, worst
from benchmarks.figure import Point, draw, read_points
from benchmarks.models_pymc import build
from benchmarks.outcome import Clock, Settings, summarise
from benchmarks.report import Contender, report, seconds_to_wanted, write_section
from benchmarks.worker import sampler


@pytest.fixture(scope="module")
def settings():
    # Without a control variate there is less to compile.
    options = {"control_variate": 0, "steps_per_draw": 2}
    return Settings("logistic", 2000, tune=60, draws=60, rate_draws=40, options=options)


@pytest.fixture(scope="module")
def summary(settings):
    data = simulate(settings.model, settings.rows)
    outcome = sampler("minibatch")(settings, data, Clock())
    return json.loads(json.dumps(summarise(outcome)))


def test_the_seconds_are_split_into_phases(summary):
    assert set(summary["phases"]) >= {"model", "split", "reference", "kernel", "tuning", "draws"}
    assert all(seconds >= 0 for seconds in summary["phases"].values())


def test_draws_are_counted_and_timed(summary):
    assert summary["draws"] == 60
    assert summary["seconds_per_draw"] > 0
    assert summary["row_evaluations_per_ess"] > 0
    assert len(summary["mean"]["beta"]) == len(summary["sd"]["beta"]) == 20


def test_the_report_has_a_line_for_every_sampler(summary, settings):
    contenders = [
        Contender("MinibatchMH", settings, summary, summary),
        Contender("NUTS", settings, summary, summary),
        Contender("slow", settings, "not done within 5 seconds", None),
    ]
    text = report("command", "logistic", 2000, contenders, ("NUTS",))
    assert "| MinibatchMH | " in text
    assert "| slow | not done within 5 seconds |" in text
    assert "| MinibatchMH against NUTS | 1.0 | 1.0 | 1.0 |" in text
    assert "| MinibatchMH | 0.000 |" in text  # the same draws have the same mean


def test_the_time_is_that_of_the_wanted_effective_sample_size():
    summary = {"phases": {"set-up": 2.0, "draws": 4.0}, "draws": 400, "ess": 2000.0}
    assert seconds_to_wanted(summary, seconds_per_draw=0.01) == pytest.approx(4.0)
    assert seconds_to_wanted(summary, 0.01, wanted=20_000) == pytest.approx(42.0)


def test_a_section_replaces_the_earlier_one_of_its_title(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Benchmarks\n\nText.\n")
    for section in ("## a\n\nold\n", "## b\n\nother\n", "## a\n\nnew\n"):
        write_section(page, section)
    assert page.read_text() == "# Benchmarks\n\nText.\n\n## b\n\nother\n\n## a\n\nnew\n"


def test_the_clock_leaves_out_what_it_is_told_to():
    clock = Clock()
    with clock.stopped():
        np.linalg.inv(np.eye(400))
    clock.mark("rest")
    assert list(clock.phases) == ["rest"]
    assert clock.phases["rest"] >= 0


@pytest.mark.parametrize("name", MODELS)
def test_models_have_as_many_rows_as_asked_for(name):
    data = simulate(name, 300)
    assert {len(values) for values in data.values()} == {300}
    assert [variable.name for variable in build(name, data).observed_RVs] == ["y"]


@pytest.mark.parametrize("name", agreement.MODELS)
def test_models_that_are_compared_have_as_many_rows_as_asked_for(name):
    model = agreement.MODELS[name](3000)
    [y] = model.observed_RVs
    assert model.rvs_to_values[y].data.shape == (3000,)
    largest = max(v.size for v in model.initial_point().values())
    assert largest in ((10,) if name == "plain" else (200, 400))


@pytest.mark.parametrize("name", priors.MODELS)
def test_models_of_priors_start_where_their_density_is_finite(name):
    model = priors.MODELS[name](300)
    start = model.initial_point()
    assert max(value.size for value in start.values()) in (priors.N_GROUPS - 1, priors.N_GROUPS)
    assert np.isfinite(model.compile_logp(mode="FAST_COMPILE")(start))


def log_volume(name, values):
    """Return log |∂(what NUTS samples) / ∂(what the model samples)|, up to a constant."""
    if name == "poststratification":
        kinds = ("state", "age", "education", "both")
        return sum(values[f"z_{k}"].size * np.log(values[f"sd_{k}"]) for k in kinds)
    if name != "smooth":
        return 0.0
    x = np.random.default_rng(3).uniform(-3, 3, 2000)
    boundary = 1.5 * (x.max() - x.min()) / 2
    reach = values["length"] * np.arange(1, effects.KNOWN + 1) * np.pi / (2 * boundary)
    densities = np.log(values["scale"] ** 2 * values["length"]) - reach**2 / 2
    return densities.sum() / 2


@pytest.mark.parametrize("name", agreement.FOR_NUTS)
def test_nuts_gets_another_form_of_the_same_posterior(name):
    model, other = (effects.MODELS[name](2000, **form) for form in ({}, {"for_nuts": True}))
    variables = model.free_RVs
    same = other.replace_rvs_by_values([other[rv.name] for rv in variables])
    read = pytensor.function(other.value_vars, same, on_unused_input="ignore")
    logp, logp_of_other = model.compile_logp(jacobian=False), other.compile_logp(jacobian=False)
    rng, differences = np.random.default_rng(4), []
    for _ in range(4):
        near = {k: v + rng.normal(0, 0.01, np.shape(v)) for k, v in other.initial_point().items()}
        values = read(*[near[value.name] for value in other.value_vars])
        point = {
            model.rvs_to_values[rv].name: v if model.rvs_to_transforms[rv] is None else np.log(v)
            for rv, v in zip(variables, values, strict=True)
        }
        named = dict(zip([rv.name for rv in variables], values, strict=True))
        differences.append(logp(point) - logp_of_other(near) - log_volume(name, named))
    np.testing.assert_allclose(differences, differences[0], atol=1e-6)


def test_differences_are_in_standard_errors():
    first, second, third = np.random.default_rng(1).normal(size=(3, 4, 500, 60))
    same, apart = differences(first, second), differences(first, 1.2 * third + 0.2)
    for z in (same.means, same.sds, same.log_ratio / same.noise):
        assert 0.7 < agreement.rms(z) < 1.3
        assert np.abs(z).max() < 4
    assert same.noise.mean() == pytest.approx(np.hypot(*[1 / np.sqrt(2 * 2000)] * 2), rel=0.1)
    error = 0.2 / np.sqrt((1 + 1.2**2) / 2000)
    assert apart.means.mean() == pytest.approx(-error, rel=0.2)
    np.testing.assert_allclose(apart.log_ratio, -np.log(1.2), atol=0.1)
    assert worst(first)[0] > 1500
    assert worst(first)[1] < 1.01
    assert agreement.largest(np.ones(200)) == pytest.approx(2.9, abs=0.1)
    row = agreement.compare(first, second)
    assert row["parameters"] == "60"
    assert float(row["means, largest z"]) < 4


PAGE = """# Benchmarks

## logistic, 10,000 rows, again

| sampler | seconds to 1000 effective, cold | warm | all chains |
| --- | ---: | ---: | ---: |
| MinibatchMH | 99.0 | 99.0 | 99 |

## logistic, 10,000 rows

| sampler | seconds to 1000 effective, cold | warm | all chains |
| --- | ---: | ---: | ---: |
| MinibatchMH | 15.1 | 4.1 | 2,000 |
| MinibatchMH, Penalty | 15.5 | 3.8 | 20,776 |
| PyMC NUTS (nutpie) |  | 1,255.0* | 8 |
| NumPyro NUTS | not done within 5 seconds |  |  |

| against NumPyro NUTS | largest difference of means, sds |
| --- | ---: |
| MinibatchMH | 0.039 |

## poisson, 10,000 rows

| sampler | seconds to 1000 effective, cold | warm | all chains |
| --- | ---: | ---: | ---: |
| NumPyro HMCECS, 100 rows | 1.0 | 1.0 | 1 |
"""


def test_the_figure_shows_the_numbers_of_the_page(tmp_path):
    points = read_points(PAGE)
    assert points == [
        Point("MinibatchMH", 10_000, 15.1, 4.1, 0.5),
        Point("PyMC NUTS (nutpie)", 10_000, None, 1255.0, 125.0),
    ]
    draw(points, tmp_path / "figure.svg")
    assert "MinibatchMH" in (tmp_path / "figure.svg").read_text()


def test_the_figure_on_the_front_page_is_that_of_the_page_of_benchmarks(tmp_path):
    docs = Path(__file__).parents[2] / "docs"
    draw(read_points((docs / "benchmarks.md").read_text()), tmp_path / "figure.svg")
    drawn = [tmp_path / "figure.svg", docs / "images" / "seconds_by_rows.svg"]
    [new, shown] = [re.findall(r' d="[^"]+"', path.read_text()) for path in drawn]
    assert new == shown


@pytest.mark.parametrize("step", [None, 1.0])
def test_what_an_error_of_each_decision_does(step):
    mean, sd = decision_error.stationary(step, 0.0, decision_error.upwards)
    assert abs(mean) < 1e-9
    assert abs(sd - 1.0) < 1e-6
    errors = [decision_error.stationary(step, e, decision_error.upwards)[0] for e in (1e-3, 2e-3)]
    assert errors[1] == pytest.approx(2 * errors[0], rel=0.02)
    if step is None:
        # Accepting with a ± e tilts the density by 1 + (2 e / a)(2 Φ(x) - 1), of mean 2 e / (a √π).
        accepted = decision_error.penalty(np.zeros(1))[0]
        assert errors[0] == pytest.approx(2e-3 / accepted / np.sqrt(np.pi), rel=0.01)
