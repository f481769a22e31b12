"""Rows that were added to those of a reference: only theirs are read for its sums."""

import logging
import re

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.proposals.proposal import approximate
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.decide import gaussian_acceptance
from pymc_minibatch.steps.other_data import split_for_step
from pymc_minibatch.tall.partitions import Partitions

dask = pytest.importorskip("dask", reason="dask is an extra")
da = pytest.importorskip("dask.array", reason="dask is an extra")

PART_ROWS, N_OLD, N_COLUMNS = 3000, 8, 3
QUIET = {"progressbar": False, "compute_convergence_checks": False}


@pytest.fixture(scope="module", autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        X = pm.Data("X", np.zeros((40, N_COLUMNS)))
        beta = pm.Normal("beta", 0, 1, shape=N_COLUMNS)
        pm.Bernoulli("y", logit_p=X @ beta, observed=np.arange(40) % 2)
    return model


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(8)
    X = rng.normal(size=((N_OLD + 1) * PART_ROWS, N_COLUMNS))
    y = (rng.random(len(X)) < 1 / (1 + np.exp(-X @ [0.5, -1.0, 0.2]))).astype(np.int8)
    return {"X": X, "y": y}


def as_dask(rows):
    return {name: da.from_array(values, chunks=PART_ROWS) for name, values in rows.items()}


def in_partitions(model, rows):
    return pmb.TallModel(model, data=as_dask(rows), rows_in_memory=0)


@pytest.fixture(scope="module")
def old(model, rows):
    first = {name: values[: N_OLD * PART_ROWS] for name, values in rows.items()}
    return pmb.find_reference(data=in_partitions(model, first))


@pytest.fixture
def grown(model, rows):
    return in_partitions(model, rows)


@pytest.fixture(scope="module")
def fresh(model, rows):
    return pmb.find_reference(model, data=rows)


@pytest.fixture
def jobs(monkeypatch):
    """Title and parts of each job but those that gather some rows."""
    run, seen = Partitions.run, []

    def watched(self, function, *args, title=None, **kwargs):
        if title != "Gathering rows":
            seen.append((title, [part.label for part in self.parts]))
        return run(self, function, *args, title=title, **kwargs)

    monkeypatch.setattr(Partitions, "run", watched)
    return seen


def test_only_new_partitions_are_read(model, rows, old, grown, fresh, jobs, tmp_path):
    old.save(tmp_path / "old")
    found = pmb.find_reference(data=grown, start=pmb.Reference.load(tmp_path / "old"))
    assert {title for title, _ in jobs} == {
        "Adding rows to the reference",
        "Taking a checksum",
        "Verifying that rows are independent",
    }
    assert all(labels == [f"partition {N_OLD} of X, y"] for _, labels in jobs)
    assert found.passes == pytest.approx(1 / (N_OLD + 1))
    # The mode is that of a fresh run, the sums those about the old one.
    sd = np.sqrt(np.diag(fresh.covariance))
    assert np.abs((found.center - fresh.flat) / sd).max() < 0.01
    np.testing.assert_array_equal(found.mode["beta"], found.center)
    np.testing.assert_allclose(found.covariance, fresh.covariance, rtol=0.02, atol=1e-6)
    s = 1 / (1 + np.exp(-rows["X"] @ old.flat))
    np.testing.assert_allclose(found.gradient, rows["X"].T @ (rows["y"] - s), rtol=1e-8, atol=1e-6)
    hessian = -(rows["X"].T * (s * (1 - s))) @ rows["X"]
    np.testing.assert_allclose(found.hessian, hessian, rtol=1e-8, atol=1e-6)
    # It fits the data as a fresh one does, whose checksum is that of one pass over all rows.
    again = in_partitions(model, rows)
    assert found.checksum == again.checksum
    found.check_fits(again)


def test_chains_about_a_reference_with_added_rows(model, old, grown, fresh):
    """Moves are about the new mode, though the expansion stays about the old one."""
    found = pmb.find_reference(data=grown, start=old)
    sd = np.sqrt(np.diag(fresh.covariance))
    assert np.abs((old.flat - fresh.flat) / sd).max() > 0.2
    control = ControlVariate(found, 2, 1.0)
    assert gaussian_acceptance(grown, control) > 0.97
    np.testing.assert_array_equal(approximate(control, np.arange(N_COLUMNS)).mode, found.center)
    step = pmb.MinibatchMH(model=model, data=grown, reference=found)
    assert step.tall is grown
    with model:
        drawn = pm.sample(2000, tune=300, step=step, chains=1, cores=1, random_seed=1, **QUIET)
    draws = drawn.posterior["beta"].values[0]
    assert np.abs((draws.mean(axis=0) - fresh.flat) / sd).max() < 0.2
    assert np.abs(draws.std(axis=0) / sd - 1).max() < 0.2


def test_steps_that_need_all_rows_copy_those_of_a_split(model, grown, rows):
    copied = split_for_step(model, grown, np.inf)
    assert copied.partitions is None
    np.testing.assert_array_equal(copied.data[0], rows["X"])
    with pm.Model() as other:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.zeros(10))
    with pytest.raises(ValueError, match="data is a TallModel of another model"):
        pmb.MinibatchMH(model=other, data=grown)


def test_rows_may_be_added_again_and_again(model, rows, old, grown):
    more = {name: np.concatenate([values, values[:500]]) for name, values in rows.items()}
    last = in_partitions(model, more)
    twice = pmb.find_reference(data=last, start=pmb.find_reference(data=grown, start=old))
    once = pmb.find_reference(data=last, start=old)
    np.testing.assert_allclose(twice.hessian, once.hessian, rtol=1e-12)
    np.testing.assert_allclose(twice.center, once.center, rtol=1e-10)
    assert twice.checksum == once.checksum
    assert twice.passes < once.passes < 0.2


def fewer(rows):
    """Fewer than the reference has seen: the last partition that it knows is a shorter one."""
    return {name: values[: N_OLD * PART_ROWS - 100] for name, values in rows.items()}


def other_order(rows):
    return {name: values[::-1].copy() for name, values in rows.items()}


def elsewhere(rows):
    """The labels of the new partition are others, which moves the mode."""
    y = rows["y"].copy()
    y[-PART_ROWS:] = 1 - y[-PART_ROWS:]
    return {"X": rows["X"], "y": y}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (fewer, "the first partitions do not have the rows of those"),
        (other_order, "rows that the reference has seen have another log-likelihood now"),
        (elsewhere, r"it has moved by \d.* posterior standard deviations"),
    ],
)
def test_when_all_rows_are_read(model, rows, old, caplog, change, message):
    changed = change(rows)
    with caplog.at_level(logging.INFO, logger="pymc.minibatch"):
        found = pmb.find_reference(data=in_partitions(model, changed), start=old)
    assert caplog.messages[0].startswith("All rows are read to find the posterior mode: ")
    assert re.search(message, caplog.messages[0])
    assert found.passes > 2
    expected = pmb.find_reference(model, data=changed)
    sd = np.sqrt(np.diag(expected.covariance))
    assert np.abs((found.flat - expected.flat) / sd).max() < 0.01
    np.testing.assert_array_equal(found.flat, found.center)
