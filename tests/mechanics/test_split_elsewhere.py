"""Rows that depend on one another only at some points, or only some of them."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.tall import splitting
from pymc_minibatch.tall.check import SplitCheck
from pymc_minibatch.witness import Comparison, SurpriseError

N_ROWS = 5000


def beyond_two(reach):
    """Rows that share a total where th > 2; th is about 3, and starts from 0."""
    rng = np.random.default_rng(1)
    x = rng.exponential(size=N_ROWS)
    y = 3 + reach * N_ROWS * x / x.sum() + rng.normal(size=N_ROWS)
    with pm.Model() as model:
        th = pm.Normal("th", 0, 10)
        shared = N_ROWS * x / pt.sum(pm.Data("x", x))
        pm.Normal("y", th + reach * pt.maximum(th - 2, 0) * shared, 1, observed=y)
    return model


def test_rows_that_share_a_total_at_the_mode():
    with pytest.raises(pmb.NotTallError, match=r"row \d+ changes .*x is reduced over all rows"):
        pmb.MinibatchMH(model=beyond_two(1.0))


def test_rows_that_share_a_total_where_tuning_leads():
    """Without a control variate nothing knows of the mode before the chain is there."""
    model = beyond_two(1.0)
    step = pmb.MinibatchMH(model=model, control_variate=0)
    point = model.initial_point()
    for _ in range(500):
        point, _ = step.step(point)
    step.stop_tuning()
    with pytest.raises(pmb.NotTallError, match="changes with the rows"):
        step.step(point)


def test_the_same_without_sharing_is_accepted():
    step = pmb.MinibatchMH(model=beyond_two(0.0))
    assert step.control_variate == 2


@pytest.mark.parametrize("witness", [True, False])
def test_rows_that_a_split_gets_wrong_at_the_mode(monkeypatch, witness):
    """Beyond 2 they are wrong, each by itself: only the model's own density tells."""
    right, wrong = splitting.slice_rows, beyond_two(0.0)
    th = wrong.rvs_to_values[wrong["th"]]

    def sliced(*args):
        inputs, rows = right(*args)
        return inputs, rows + pt.maximum(th - 2.0, 0.0)

    monkeypatch.setattr(splitting, "slice_rows", sliced)
    with pytest.raises(pmb.NotTallError):
        pmb.MinibatchMH(model=wrong, witness=witness)


@pytest.mark.parametrize("witness", [True, False])
def test_one_comparison_at_the_mode_is_enough(monkeypatch, witness):
    compare, compared = SplitCheck.compare_at, []

    def noted(*args):
        compared.append(args)
        return compare(*args)

    monkeypatch.setattr(SplitCheck, "compare_at", noted)
    pmb.MinibatchMH(model=beyond_two(0.0), witness=witness)
    assert bool(compared) is not witness


def test_what_was_made_for_a_claim_goes_with_it(monkeypatch):
    """The kernel of bounds reads rows by their remainders, that of batches by their values."""
    looks = iter([SurpriseError(Comparison("a move", (), "a claim", 1.0, 0.0, 0.0)), None])
    monkeypatch.setattr(
        pmb.MinibatchMH, "_look_at_set_up", lambda step: step.workspace and next(looks)
    )
    model = beyond_two(0.0)
    step = pmb.MinibatchMH(model=model)
    assert type(step.acceptance).__name__ != "Exact"
    trace = pm.sample(50, tune=50, chains=1, cores=1, step=step, model=model, progressbar=False)
    assert trace.posterior.sizes["draw"] == 50


@pytest.fixture(scope="module")
def neighbours():
    """A stand-in whose density reads the row before where x lies between 3 and 4."""
    x = np.random.default_rng(2).uniform(0, 1, 60)
    with pm.Model() as model:
        th = pm.Normal("th")
        X = pm.Data("x", x)
        before = pt.concatenate([X[:1] * 0, X * 1.0])[: X.shape[0]]
        mean = th * X + pt.switch((X > 3) & (X < 4), before, 0.0)
        pm.Normal("y", mean, 1, observed=np.zeros(60))
    return model


@pytest.mark.parametrize("most", [3.9, 5.0], ids=["those are extreme", "others are extreme"])
def test_few_real_rows_that_read_their_neighbour(neighbours, most):
    rng = np.random.default_rng(3)
    x = rng.uniform(0, 1, 100_000)
    data = {"x": x, "y": rng.normal(size=x.size)}
    pmb.TallModel(neighbours, data=data)
    some = rng.choice(x.size, 20, replace=False)
    x[some] = rng.uniform(3, 4, some.size)
    x[7], x[8] = most, -most
    with pytest.raises(pmb.NotTallError, match="changes with the rows"):
        pmb.TallModel(neighbours, data=data)


def test_what_a_row_reads_is_verified_where_the_posterior_is():
    """What was found is right about the start, and not beyond 2."""
    tall = pmb.TallModel(beyond_two(0.0))
    found = tall.structure
    further = found.row + pt.maximum(found.predictors[0] - 2, 0.0)
    tall.__dict__["_structure"] = replace(found, row=further)
    tall.verify_at(np.array([1.0]))
    with pytest.raises(pmb.NotTallError, match=r"found for y,\n  v0 = (.|\n)* near the posterior"):
        tall.verify_at(np.array([3.0]))
