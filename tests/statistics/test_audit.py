"""Audits pass right runs and convict wrong ones."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_minibatch as pmb
from pymc_minibatch.verdict import FALSE_ALARMS, holm, judge
from pymc_minibatch.witness.repeats import LOG_RATIOS, Repeats

N_ROWS = 20_000


def rare_category(seed=1):
    """A logistic regression with a dummy for 20 of its rows."""
    rng = np.random.default_rng(seed)
    x, dummy = rng.normal(size=N_ROWS), np.arange(N_ROWS) < 20
    y = rng.random(N_ROWS) < 1 / (1 + np.exp(2 - 0.5 * x - 0.5 * dummy))
    y[:4] = True
    with pm.Model() as model:
        a, b, c = (pm.Normal(name, 0, 2.5) for name in "abc")
        pm.Bernoulli("y", logit_p=a + b * x + c * dummy, observed=y.astype(int))
    return model


@pytest.fixture(scope="module")
def case():
    """A model, its reference, and draws from a Gaussian: the audit is of decisions, not draws."""
    model = rare_category()
    reference = pmb.find_reference(model)
    draws = np.random.default_rng(2).multivariate_normal(
        reference.flat, reference.covariance, (2, 200)
    )
    posterior = {name: (("chain", "draw"), draws[..., i]) for i, name in enumerate("abc")}
    return model, reference, xr.DataTree.from_dict({"posterior": xr.Dataset(posterior)})


def audited(case, **options):
    model, reference, idata = case
    step = pmb.MinibatchMH(**{"model": model, "reference": reference, "rng": 1} | options)
    return pmb.audit(idata, step, n_moves=100, n_repeats=512)


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", ["exact", "corrected_barker", "penalty"])
def test_right_decisions_pass(case, acceptance):
    result = audited(case, acceptance=acceptance)
    assert result.right, result.verdict
    assert "No deviation was found" in str(result)
    assert "agree with the model's own log-density" in str(result)
    assert not result.resolved
    assert "NOT RESOLVED" in str(result)
    assert result.resolution > result.limit
    assert len(result.moves) == 100
    assert result.moves["batch_size"].median() < 500


@pytest.mark.slow
def test_as_many_decisions_are_made_as_the_limit_takes(case):
    model, reference, idata = case
    step = pmb.MinibatchMH(acceptance="penalty", model=model, reference=reference, rng=1)
    result = pmb.audit(idata, step, n_moves=50, limit=5e-3)
    assert result.right, result.verdict
    assert result.resolved
    assert result.resolution <= 5e-3
    assert "would have been seen" in str(result)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:About .* rows dominate")
@pytest.mark.parametrize(
    "options",
    [
        {"acceptance": "naive", "control_variate": 0, "proposal": "random_walk", "rows": "uniform"},
        {"acceptance": "barker", "control_variate": 0, "batch_size": 100, "rows": "uniform"},
        {"acceptance": "corrected_barker", "rows": "uniform", "batch_size": 100},
    ],
    ids=["naive", "barker", "batches that miss rare rows"],
)
def test_wrong_decisions_are_convicted(case, options):
    result = audited(case, **options)
    assert not result.right, result.verdict
    assert "WRONG" in str(result)


@pytest.mark.slow
def test_a_reference_of_other_data_is_found_anew(case):
    other = pmb.find_reference(rare_category(seed=3))
    for acceptance in ("exact", "corrected_barker"):
        assert audited(case, reference=other, acceptance=acceptance).right


def test_the_step_is_left_as_it_was(case):
    model, reference, idata = case
    step = pmb.MinibatchMH(model=model, reference=reference, rng=1)
    before = step.sampling_state
    pmb.audit(idata, step, n_moves=5, n_repeats=8)
    after = step.sampling_state
    assert after.n_draws == before.n_draws
    np.testing.assert_array_equal(after.batch_state.size, before.batch_state.size)


def test_false_alarms_are_rare():
    """Simulated decisions of a right test."""
    rng = np.random.default_rng(4)
    n_audits, n_moves, n_repeats, n_convicted = 1500, 30, 64, 0
    targets = np.resize(LOG_RATIOS, n_repeats)
    probability = 1 / (1 + np.exp(-targets))
    variances = probability * (1 - probability)
    step = SimpleNamespace(acceptance=None)
    for _ in range(n_audits):
        errors = (rng.random((n_moves, n_repeats)) < probability) - probability
        estimates = rng.normal(size=(n_moves, 16))
        repeats = [
            Repeats("any", 0.0, 10.0, own, variances, targets, some)
            for own, some in zip(errors, estimates, strict=True)
        ]
        n_convicted += not judge(step, [], repeats, limit=1e-9).right
    assert n_audits / FALSE_ALARMS == 1.5  # expected; more than 8 once in 10^4 runs
    assert n_convicted <= 8


def test_holm_corrects_for_how_many_were_looked_at():
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03])), [0.03, 0.06, 0.06])
    rng = np.random.default_rng(1)
    least = [holm(rng.random(20)).min() for _ in range(4000)]
    assert abs(np.mean(np.array(least) < 0.05) - 0.05) < 0.015  # 4.4 standard errors
