"""Audits pass right runs and convict wrong ones."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pymc_minibatch as pmb
from pymc_minibatch.audit import FALSE_ALARMS, LOG_RATIOS, _moves, _verdict

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
    return pmb.audit(idata, step, n_moves=100)


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", ["exact", "corrected_barker", "penalty"])
def test_right_decisions_pass(case, acceptance):
    result = audited(case, acceptance=acceptance)
    assert result.right, result.verdict
    assert "No error was found" in str(result)
    assert len(result.moves) == 100
    assert result.moves["batch_size"].median() < 500


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:About .* rows hold most")
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
    n_audits, n_moves, n_repeats = 3000, 50, 64
    probability = np.broadcast_to(
        1 / (1 + np.exp(-np.resize(LOG_RATIOS, n_repeats))), (n_moves, n_repeats)
    )
    variances, sign = probability * (1 - probability), np.sign(np.resize(LOG_RATIOS, n_repeats))
    standard_errors = np.sqrt(variances.sum(1)) / n_repeats
    step, n_convicted = SimpleNamespace(acceptance=None), 0
    for _ in range(n_audits):
        errors = (rng.random(probability.shape) < probability) - probability
        moves = _moves(np.zeros(n_moves), np.zeros(n_moves), errors.mean(1), standard_errors)
        result = _verdict(
            step, moves, pd.DataFrame(), np.empty(0), errors, errors * sign, variances
        )
        n_convicted += not result.right
    assert n_audits / FALSE_ALARMS == 3  # expected; more than 11 once in 10^4 runs
    assert n_convicted <= 11
