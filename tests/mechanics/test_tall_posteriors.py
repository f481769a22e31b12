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
        with pm.Model() as built:
            beta = pm.Normal("beta", 0, 2, shape=2)
            pm.Normal("y", table.rows["X"] @ beta, 1.0, observed=table.rows["y"])
        return built


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
    for package in posterior.PACKAGES:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"its data are in {package}: make tall-posteriors installs it")
    table = scaled(posterior.table(), 500)
    model = Job(posterior, table, Clock(time.perf_counter())).pymc_model()
    assert np.isfinite(model.compile_logp()(model.initial_point()))


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
