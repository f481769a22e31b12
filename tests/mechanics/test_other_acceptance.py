"""Naive, Barker, Austere and SubLhd: arguments, the design of Austere, and what a step reports."""

import numpy as np
import pymc as pm
import pytest
from models import normal_model
from numba import njit
from scipy.stats import norm
from scipy.stats import t as student

from pymc_minibatch import (
    Austere,
    Barker,
    CorrectedBarker,
    Exact,
    Laplace,
    MinibatchMH,
    Naive,
    Penalty,
    SubLhd,
)
from pymc_minibatch.acceptance import TESTS
from pymc_minibatch.acceptance.austere import half_width
from pymc_minibatch.acceptance.decision import Scan
from pymc_minibatch.acceptance.design import designs, error_and_rows
from pymc_minibatch.steps.deciding import steps_of_draw

N_PATHS = 20_000


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Austere(error_bound=0.5), "error_bound"),
        (lambda: Austere(variant="d"), "variant"),
        (lambda: Austere(batch_sizes=(1, 50)), "batch_sizes"),
        (lambda: Austere(thresholds=(0.7,)), "thresholds"),
        (lambda: SubLhd(p=1.0), "p > 1"),
        (lambda: SubLhd(gamma=0.5), "gamma > 1"),
        (lambda: SubLhd(delta=0.0), "delta"),
    ],
)
def test_arguments_out_of_range(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_a_batch_size_is_refused_where_the_test_finds_it():
    with pytest.raises(ValueError, match="size of its batches itself"):
        MinibatchMH(model=normal_model(), acceptance=Austere(), batch_size=50)


def test_a_grid_that_cannot_meet_the_bound_is_refused():
    test = Austere(error_bound=0.005, thresholds=(0.01, 0.05))
    with pytest.raises(ValueError, match=r"the least is 0\.1"):
        test.design(n_rows=1_000_000)


@njit
def simulate(n_rows, batch_size, boundary, mu_std, n_paths):
    """Follow Brownian paths to the boundary; return the error and the mean number of rows."""
    np.random.seed(1)
    n_wrong, rows = 0, 0.0
    for _ in range(n_paths):
        x, v, n = 0.0, 0.0, batch_size
        while 2 * n <= n_rows:
            dv = n / (n_rows - n) - v
            x, v = x + mu_std * dv + np.sqrt(dv) * np.random.standard_normal(), v + dv
            if abs(x) > boundary * np.sqrt(v):
                break
            n += batch_size
        stopped = 2 * n <= n_rows
        n_wrong += stopped and x < 0
        rows += n if stopped else n_rows
    return n_wrong / n_paths, rows / n_paths


@pytest.mark.parametrize("mu_std", [0.0, 3.0, 10.0, 100.0])
def test_design_against_simulation(mu_std):
    """The law of the stops is exact but for looks left out, and the overshoot at strong drift."""
    n_rows, sizes, thresholds = 13_000, (50, 450), (5e-4, 0.01, 0.05)
    grid = designs(n_rows, sizes, thresholds)
    for k, boundary in enumerate(grid.boundary):
        error, rows = error_and_rows(grid, k, mu_std, n_rows)
        expected, rows_expected = simulate(n_rows, grid.batch_size[k], boundary, mu_std, N_PATHS)
        noise = 4.5 * np.sqrt(max(expected, 1e-4) / N_PATHS)
        assert abs(error - expected) < 0.1 * expected + noise
        assert rows == pytest.approx(rows_expected, rel=0.02 if mu_std < 5 else 0.15)


def test_the_design_is_the_cheapest_within_the_bound():
    grid = designs(13_000, Austere().batch_sizes, Austere().thresholds)
    results = [error_and_rows(grid, k, 0.0, 13_000) for k in range(grid.boundary.size)]
    batch_size, threshold = Austere(error_bound=0.05).design(13_000)
    k = Austere().batch_sizes.index(batch_size) * 10 + Austere().thresholds.index(threshold)
    assert results[k][0] <= 0.05
    assert results[k][1] == min(rows for error, rows in results if error <= 0.05)


@pytest.mark.parametrize("dof", [49, 500, 10_000])
def test_half_width_of_austere(dof):
    for eps in Austere().thresholds:
        width = half_width(dof + 1, 1, 2.0, 10**12, Scan(0.0, 0.0, 0.0, -1), (50, norm.isf(eps)))
        expected = student.isf(eps, dof) * 2.0 / np.sqrt(dof + 1)
        assert width == pytest.approx(expected, rel=2e-4)


def run(model, **options):
    with model:
        return pm.sample(
            draws=20,
            tune=30,
            chains=1,
            step=MinibatchMH(steps_per_draw=2, **options),
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        ).sample_stats


@pytest.mark.slow
def test_a_batch_that_is_never_too_small_keeps_its_size():
    stats = run(normal_model(), acceptance=Naive(), control_variate=0)
    assert (stats.batch_size == 100).all()
    assert (stats.n_scanned == 0).all()
    expected = np.minimum(1, np.sqrt(stats.log_ratio_var))
    assert (stats.test_error >= expected - 1e-9).all()


@pytest.mark.slow
@pytest.mark.parametrize("test", [SubLhd(), Austere(variant="nc"), Austere()], ids=str)
def test_scans_are_counted_apart(test):
    """Every decision of the first two scans all 600 rows at two points, whatever it reads then."""
    stats = run(normal_model(), acceptance=test)
    scans = not (isinstance(test, Austere) and test.variant == "c")
    assert (stats.n_scanned == scans * 2 * 2 * 600).all()
    assert (stats.batch_size <= 600).all()
    assert (stats.n_likelihood >= 2 * 2 * stats.batch_size).all()


@pytest.mark.parametrize("test", [kind() for kind in TESTS], ids=str)
def test_what_a_test_says_of_itself(test):
    """Its probability, the largest of it and the steepest slope are those of one function."""
    grid, by_batch = np.linspace(-6.0, 6.0, 2401), np.zeros(2401, dtype=bool)
    ideal = test.ideal(grid, by_batch)
    assert (np.diff(ideal) >= -1e-12).all()
    assert ideal[1200] == pytest.approx(test.most_accepted)
    slope = np.diff(ideal).max() / (grid[1] - grid[0])
    assert slope <= test.steepest * (1 + 1e-9)
    assert slope > 0.98 * test.steepest
    assert 0 < test.efficiency <= 1
    assert (test.for_levels() is None) or test.first_batch == "tuned"


def test_transitions_of_a_draw_follow_from_the_test():
    """Tests that make Metropolis's decision take half as many as Barker's, whatever their class."""
    laplace = Laplace()
    takes = {kind: steps_of_draw(kind(), laplace, 20, 10) for kind in TESTS}
    assert {takes[SubLhd], takes[Austere], takes[Naive], takes[Exact], takes[Penalty]} == {2}
    assert {takes[Barker], takes[CorrectedBarker]} == {4}
