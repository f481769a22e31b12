"""Tall posteriors: records of the benchmark, its page, its posteriors, and a cell of its own."""

import importlib.util
import json
import time
from pathlib import Path

import numpy as np
import pymc as pm
import pytest

from benchmarks.outcome import Clock
from benchmarks.tall_posteriors import measure, page, scores, worker
from benchmarks.tall_posteriors.catalogue import POSTERIORS, PROGRAMS, posterior_of, program_of
from benchmarks.tall_posteriors.jobs import Job
from benchmarks.tall_posteriors.tables import MissingPackageError, Table, find_package, scaled

DOCS = Path(__file__).parents[2] / "docs"


class Tiny:
    """A posterior of made-up rows, with the interface of the modules in ``posteriors``."""

    TITLE, PACKAGES = "Tiny", ()

    @staticmethod
    def table():
        rng = np.random.default_rng(3)
        X = rng.normal(size=(5_000, 2))
        return Table({"X": X, "y": X @ [1.0, -0.5] + rng.normal(size=5_000)}, noisy=("X",))

    @staticmethod
    def model(table, batch=None):
        rows = table.rows if batch is None else batch
        total = None if batch is None else table.n_rows
        with pm.Model() as built:
            beta = pm.Normal("beta", 0, 2, shape=2)
            pm.Normal("y", rows["X"] @ beta, 1.0, observed=rows["y"], total_size=total)
        return built


def few_rows(posterior):
    """Return some rows of a posterior; skip the test if its data are not installed."""
    for package in posterior.PACKAGES:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"its data are in {package}: make tall-posteriors installs it")
    return scaled(posterior.table(), 500)


def exact(table):
    """Return mean and standard deviation of the coefficients of `Tiny`."""
    X, y = table.rows["X"], table.rows["y"]
    covariance = np.linalg.inv(X.T @ X + np.eye(2) / 4)
    return covariance @ X.T @ y, np.sqrt(np.diag(covariance))


def test_records_have_all_keys_and_are_of_known_cells():
    for record in measure.records():
        assert set(measure.KEYS) <= set(record)
        assert record["posterior"] in POSTERIORS
        assert record["program"] in PROGRAMS
        assert (record["failed"] is None) == (record["seconds_to_400_warm"] is not None)


def test_the_page_is_written_from_the_records(tmp_path):
    page.write(measure.records(), tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == (DOCS / "tall_posteriors.md").read_text()


def test_a_record_replaces_that_of_its_cell(tmp_path):
    path = tmp_path / "results.json"
    for value in (1, 2):
        measure.keep({"posterior": "a", "program": "b", "value": value}, path)
    measure.keep({"posterior": "a", "program": "c", "value": 3}, path)
    assert [r["value"] for r in json.loads(path.read_text())] == [2, 3]


def test_a_missing_package_is_named():
    with pytest.raises(MissingPackageError, match="pip install no_such_package"):
        find_package("no_such_package")


@pytest.mark.parametrize("name", POSTERIORS)
def test_posteriors_build_on_few_rows(name):
    posterior = posterior_of(name)
    table = few_rows(posterior)
    model = Job(posterior, table, Clock(time.perf_counter())).pymc_model()
    assert np.isfinite(model.compile_logp()(model.initial_point()))


@pytest.mark.parametrize("name", [n for n in POSTERIORS if hasattr(posterior_of(n), "linear")])
def test_linear_predictors_are_of_the_variables_of_the_model(name):
    posterior = posterior_of(name)
    table = few_rows(posterior)
    linear = posterior.linear(table)
    shapes = {v.name: v.type.shape for v in posterior.model(table).free_RVs}
    n_coefficients = int(np.prod(shapes.get(linear.coefficients, (0,))))
    assert linear.X.shape == (500, n_coefficients)
    assert linear.y.shape == (500,)
    n_deviations = len(linear.groups) + len(linear.slopes)
    if linear.deviations is not None:
        assert shapes[linear.deviations] == (n_deviations,)
    else:
        assert {f"sd_{name}" for name in linear.groups} <= set(shapes)


def test_rows_in_jax_are_those_of_pymc():
    jax = pytest.importorskip("jax", reason="make tall-posteriors installs it")
    from benchmarks.tall_posteriors.jax_model import jax_model

    table = Tiny.table()
    translated = jax_model(Job(Tiny, table, Clock()))
    beta = np.array([0.7, -0.2])
    known = Tiny.model(table).compile_logp()({"beta": beta})
    found = float(translated.log_density(jax.numpy.asarray(beta), translated.data))
    assert found == pytest.approx(known, rel=1e-4)  # in single precision unless JAX is told
    some = tuple(values[:10] for values in translated.data)
    assert np.shape(translated.log_rows(jax.numpy.asarray(beta), some)) == (10,)
    np.testing.assert_allclose(translated.mode(), exact(table)[0], atol=1e-3)
    draws = translated.constrain(np.zeros((2, 3, 2)))
    assert draws["beta"].shape == (2, 3, 2)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for a process in /proc")
def test_what_takes_too_long_ends_with_its_chains(tmp_path, monkeypatch):
    started = tmp_path / "started"
    code = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', "
        f"'import time; time.sleep(60)']); open({str(started)!r}, 'w').write(str(child.pid)); "
        "time.sleep(60)"
    )
    monkeypatch.setattr(measure, "COMMAND", ("-c", code))
    result = measure.process("flights_late", "minibatch", tmp_path, 5.0)
    assert result == {"failed": "not done within 5 s"}
    child = int(started.read_text())
    for _ in range(50):
        if not _alive(child):
            break
        time.sleep(0.1)
    assert not _alive(child)


def _alive(pid):
    """Tell whether a process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_larger_tables_are_resampled_with_noise():
    table = Tiny.table()
    larger = scaled(table, 20_000)
    assert larger.n_rows == 20_000
    assert len(np.unique(larger.rows["X"][:, 0])) == 20_000
    assert np.std(larger.rows["X"]) == pytest.approx(1.0, abs=0.03)


def test_a_cell_of_this_package():
    table = Tiny.table()
    mean, sd = exact(table)
    known = {"shape": [2], "elements": [0, 1]}
    known |= {"mean": mean.tolist(), "sd": sd.tolist(), "mean_error": [0, 0], "sd_error": [0, 0]}
    job = Job(Tiny, table, Clock())
    run, result = worker.measured(program_of("minibatch"), job, {"variables": {"beta": known}})
    assert run.draws["beta"].shape == (2, 1000, 2)
    assert result["effective"] > 400
    assert 0 < result["seconds_to_400"] <= result["seconds"]
    assert result["compared"] == 4
    assert result["worst_z"] < 5  # four numbers: once in 4 * 10^5 runs


def test_errors_are_in_monte_carlo_errors_and_in_standard_deviations():
    draws = np.random.default_rng(5).normal(size=(2, 2000, 1))
    off = {"shape": [1], "elements": [0], "mean": [0.5], "sd": [2.0]}
    off |= {"mean_error": [0.0], "sd_error": [0.0]}
    found = scores.errors({"x": draws}, {}, {"variables": {"x": off}})
    assert found["worst_mean_error"] == pytest.approx(0.25, abs=0.03)
    assert found["worst_sd_error"] == pytest.approx(0.5, abs=0.03)
    assert found["worst_z"] > 20
