"""Drawing rows without replacement and summing their log ratios, against NumPy."""

import math
from itertools import permutations

import numpy as np
import pytest
from numba import njit
from scipy.stats import chisquare

from pymc_minibatch.acceptance.decision import row_workspace
from pymc_minibatch.jit.pointers import address_of
from pymc_minibatch.kernels.rows import CHUNK_ROWS, contains, draw_rows, forget, make_readers
from pymc_minibatch.reference.density import Density

LEVEL = 1e-4


@njit
def draw_often(rng, n_rows, rows, sizes, drawn):
    """Fill each row of `drawn` with a sample that is grown through `sizes`."""
    for i in range(drawn.shape[0]):
        n_seen = 0
        for size in sizes:
            draw_rows(rng, n_rows, rows, n_seen, size)
            n_seen = size
        drawn[i] = rows.drawn[:n_seen]


@pytest.mark.parametrize("sizes", [(3,), (1, 3), (1, 2, 3)])
def test_every_ordered_sample_is_equally_likely(sizes):
    """The joint distribution of 3 rows out of 6, drawn at once or as a batch that grows."""
    n_rows, n_samples = 6, 60_000
    drawn = np.empty((n_samples, 3), dtype=np.int64)
    draw_often(np.random.default_rng(1), n_rows, row_workspace(n_rows), sizes, drawn)
    code = {sample: i for i, sample in enumerate(permutations(range(n_rows), 3))}
    counts = np.bincount([code[tuple(sample)] for sample in drawn], minlength=len(code))
    assert counts.size == math.perm(n_rows, 3)
    assert chisquare(counts).pvalue > LEVEL


@pytest.mark.parametrize("position", [0, 99])
def test_every_row_is_equally_likely(position):
    """Rows lie across several words of bits, the last of them incomplete."""
    n_rows, n_samples = 201, 20_000
    drawn = np.empty((n_samples, 100), dtype=np.int64)
    draw_often(np.random.default_rng(2), n_rows, row_workspace(n_rows), (40, 100), drawn)
    assert chisquare(np.bincount(drawn[:, position], minlength=n_rows)).pvalue > LEVEL


@pytest.mark.parametrize("n_rows", [2, 63, 64, 65, 128, 1001])
def test_half_of_the_rows_are_drawn_without_repeats(n_rows):
    rng, rows, half = np.random.default_rng(3), row_workspace(n_rows), n_rows // 2
    draw_rows(rng, n_rows, rows, 0, half)
    assert np.unique(rows.drawn[:half]).size == half
    assert rows.drawn[:half].min() >= 0
    assert rows.drawn[:half].max() < n_rows
    assert [contains(rows, row) for row in range(n_rows)] == [
        row in rows.drawn[:half] for row in range(n_rows)
    ]


def test_extending_keeps_what_was_drawn():
    rng, rows = np.random.default_rng(4), row_workspace(500)
    draw_rows(rng, 500, rows, 0, 30)
    first = rows.drawn[:30].copy()
    draw_rows(rng, 500, rows, 30, 250)
    np.testing.assert_array_equal(rows.drawn[:30], first)
    assert np.unique(rows.drawn[:250]).size == 250


def test_forgets_every_row():
    rng, rows = np.random.default_rng(5), row_workspace(300)
    draw_rows(rng, 300, rows, 0, 20)
    draw_rows(rng, 300, rows, 20, 150)
    assert rows.seen.any()
    forget(rows)
    assert not rows.seen.any()
    assert rows.n_drawn[0] == 0


def test_a_new_batch_forgets_the_one_before():
    rng, rows = np.random.default_rng(6), row_workspace(300)
    draw_rows(rng, 300, rows, 0, 150)
    draw_rows(rng, 300, rows, 0, 10)
    assert [row for row in range(300) if contains(rows, row)] == sorted(rows.drawn[:10])


# --- Readers ----------------------------------------------------------------------------------


@njit
def row(point, constants, batch):
    """``point`` is (slope, bound, switch): rows above the bound are impossible, or NaN."""
    matrix, vector, index, cube = batch
    logp = np.empty(vector.size)
    for i in range(vector.size):
        logp[i] = point[0] * matrix[i].sum() + vector[i] * index[i] + cube[i].sum()
        if vector[i] > point[1]:
            logp[i] = np.nan if point[2] > 0 else -np.inf
    return logp


DRAW, SUM, SCAN = make_readers((2, 1, 1, 3))
CURRENT = np.array([0.5, np.inf, 0.0])
PROPOSED = np.array([-0.25, np.inf, 0.0])


def make_data(n_rows):
    rng = np.random.default_rng(7)
    return (
        rng.normal(size=(n_rows, 3)).astype(np.float32),
        np.arange(n_rows, dtype=np.float64),
        rng.integers(0, 9, n_rows).astype(np.int32),
        rng.integers(0, 2, (n_rows, 2, 2)).astype(np.bool_),
    )


def density(data):
    return Density(data, (), row=address_of(row, CURRENT, (), data))


def log_ratios(data, current=CURRENT, proposed=PROPOSED):
    return row(proposed, (), data) - row(current, (), data)


@pytest.mark.parametrize("n", [1, 50, CHUNK_ROWS, 2 * CHUNK_ROWS + 3])
def test_draw_log_ratios(n):
    data = make_data(10_000)
    rows = row_workspace(10_000)
    assert DRAW(np.random.default_rng(8), CURRENT, PROPOSED, density(data), rows, 0, n) == -1
    np.testing.assert_allclose(rows.log_ratios[:n], log_ratios(data)[rows.drawn[:n]], rtol=1e-12)


def test_draw_log_ratios_extends():
    data = make_data(10_000)
    rng, rows = np.random.default_rng(9), row_workspace(10_000)
    DRAW(rng, CURRENT, PROPOSED, density(data), rows, 0, 10)
    first = rows.log_ratios[:10].copy()
    DRAW(rng, CURRENT, PROPOSED, density(data), rows, 10, 3000)
    np.testing.assert_array_equal(rows.log_ratios[:10], first)
    expected = log_ratios(data)[rows.drawn[:3000]]
    np.testing.assert_allclose(rows.log_ratios[:3000], expected, rtol=1e-12)


@pytest.mark.parametrize("n_rows", [2, 100, CHUNK_ROWS, CHUNK_ROWS + 1, 3 * CHUNK_ROWS - 1])
def test_sum_log_ratios(n_rows):
    data = make_data(n_rows)
    total, impossible = SUM(CURRENT, PROPOSED, density(data))
    assert total == pytest.approx(log_ratios(data).sum(), rel=1e-10)
    assert impossible == -1


@pytest.mark.parametrize("n_rows", [2, 100, CHUNK_ROWS + 1, 3 * CHUNK_ROWS - 1])
def test_scan_log_ratios(n_rows):
    data = make_data(n_rows)
    scan, expected = SCAN(CURRENT, PROPOSED, density(data)), log_ratios(data)
    assert scan.mean == pytest.approx(expected.mean(), rel=1e-10)
    assert scan.sd == pytest.approx(expected.std(), rel=1e-10)
    assert scan.range == pytest.approx(np.ptp(expected), rel=1e-10)
    assert scan.impossible_row == -1


@pytest.mark.parametrize("is_nan", [0.0, 1.0])
def test_a_row_impossible_at_the_current_point_is_reported(is_nan):
    """Its vector is its number, so that only the last row exceeds the bound."""
    n_rows = CHUNK_ROWS + 50
    data, rows = make_data(n_rows), row_workspace(n_rows)
    current = np.array([0.5, n_rows - 1.5, is_nan])
    total, impossible = SUM(current, PROPOSED, density(data))
    assert (total, impossible) == (-np.inf, n_rows - 1)
    scan = SCAN(current, PROPOSED, density(data))
    assert (scan.mean, scan.impossible_row) == (-np.inf, n_rows - 1)
    half = n_rows // 2
    for seed in range(5):
        reported = DRAW(
            np.random.default_rng(seed), current, PROPOSED, density(data), rows, 0, half
        )
        assert reported == (n_rows - 1 if n_rows - 1 in rows.drawn[:half] else -1)


@pytest.mark.parametrize("is_nan", [0.0, 1.0])
def test_a_row_impossible_at_the_proposal_has_log_ratio_minus_infinity(is_nan):
    n_rows = 1000
    data, rows = make_data(n_rows), row_workspace(n_rows)
    proposed = np.array([-0.25, 499.5, is_nan])
    assert SUM(CURRENT, proposed, density(data)) == (-np.inf, -1)
    scan = SCAN(CURRENT, proposed, density(data))
    assert (scan.mean, scan.impossible_row) == (-np.inf, -1)
    assert DRAW(np.random.default_rng(10), CURRENT, proposed, density(data), rows, 0, 100) == -1
    impossible = rows.drawn[:100] > 499.5
    assert impossible.any()
    assert np.all(rows.log_ratios[:100][impossible] == -np.inf)
    assert np.isfinite(rows.log_ratios[:100][~impossible]).all()
