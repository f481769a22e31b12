"""Multilevel SGLD: known expectations within the reported error, and the rates of the method."""

import numpy as np
import pytest
from models import logistic_model
from normal_rows import FULL, normal_rows

from pymc_minibatch import TallModel, find_reference, multilevel_sgld
from pymc_minibatch.multilevel.estimand import make_estimand
from pymc_minibatch.multilevel.level import Schedule
from pymc_minibatch.multilevel.paths import Paths
from pymc_minibatch.multilevel.run import Run
from pymc_minibatch.reference.gradient import make_gradient_target

Z_MAX = 5.0
BATCH = 30


@pytest.fixture(scope="module")
def gaussian():
    return normal_rows(FULL)


@pytest.mark.parametrize("antithetic", [True, False])
@pytest.mark.parametrize("taylor", [True, False])
def test_gaussian_posterior(gaussian, antithetic, taylor):
    """Means and variances, of which only the latter are biased by the step size."""
    model, mean, precision = gaussian
    rtol = 0.05 if taylor else 0.2
    result = multilevel_sgld(
        "mu", model=model, rtol=rtol, antithetic=antithetic, taylor=taylor, random_seed=2
    )
    assert result.converged
    summary = result.summary
    expected = np.concatenate([mean, np.diag(np.linalg.inv(precision))])
    error = np.abs(summary["estimate"] - expected)
    assert (error < Z_MAX * summary["standard_error"] + 2 * summary["bias"]).all()
    assert (summary["rmse"] <= 1.01 * summary["target"]).all()


def test_errors_are_those_reported(gaussian):
    """Over repetitions of a function whose expectation is known: tr Σ."""
    model, mean, precision = gaussian
    expected, rtol, n = np.trace(np.linalg.inv(precision)), 0.1, 40
    tall = TallModel(model)
    reference = find_reference(tall=tall)
    estimand = make_estimand(lambda mu: ((mu - mean) ** 2).sum(), tall, reference.flat)
    target = make_gradient_target(tall, reference, 2)
    paths = Paths(tall, reference, target, np.random.default_rng(4), 2)
    schedule, runs = Schedule(1.0, 4, 2, True, BATCH, 3), []
    for _ in range(n):
        run = Run(paths, estimand, schedule, rtol, 1e9, 0)
        run.until_met()
        runs.append(run.result(tall.n_rows, reference.passes))
    estimates = np.array([run.estimate for run in runs])
    rmse = np.sqrt(np.mean((estimates / expected - 1) ** 2))
    assert 0.3 * rtol < rmse < 1.2 * rtol
    reported = np.sqrt(np.mean([run.standard_error**2 for run in runs]))
    assert estimates.std(ddof=1) / reported == pytest.approx(1, abs=3.9 / np.sqrt(2 * n))
    remaining = abs(estimates.mean() - expected)
    assert remaining < 2 * np.mean([run.bias for run in runs])


@pytest.fixture(scope="module")
def logistic():
    tall = TallModel(logistic_model(300))
    reference = find_reference(tall=tall)
    mode = reference.mode["beta"]
    estimand = make_estimand(lambda beta: ((beta - mode) ** 2).sum(), tall, reference.flat)
    target = make_gradient_target(tall, reference, 0)
    paths = Paths(tall, reference, target, np.random.default_rng(3), 2)
    return paths, paths.address(estimand.function)


@pytest.mark.parametrize(("antithetic", "rate", "within"), [(False, 1, 0.2), (True, 2, 0.3)])
def test_variance_decay(logistic, antithetic, rate, within):
    """Of the differences, by level: like h (plain) and like h² (antithetic)."""
    paths, function = logistic
    schedule = Schedule(1 / 8, 48, 4, antithetic, BATCH, 1)
    levels, variances = np.arange(2, 5), []
    for level in levels:
        fine, coarse = paths.run(schedule.coupling(level), 4000 // 2**level, function, 1)
        variances.append((fine - coarse).var())
    slope = np.polyfit(levels, np.log2(variances), 1)[0]
    assert -slope == pytest.approx(rate, abs=within)


def test_levels_add_up(logistic):
    """The coarse paths of a level have the law of the fine paths of the one below."""
    paths, function = logistic
    for antithetic in (True, False):
        schedule = Schedule(1 / 4, 8, 2, antithetic, BATCH, 1)
        _, coarse = paths.run(schedule.coupling(1), 4000, function, 1)
        fine, _ = paths.run(schedule.coupling(0), 4000, function, 1)
        z = (coarse.mean() - fine.mean()) / np.sqrt((coarse.var() + fine.var()) / 4000)
        assert abs(z) < 4
