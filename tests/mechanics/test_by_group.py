"""Rows drawn by groups: their frequencies, and the weights that make up for them."""

import pickle

import numpy as np
from numba import njit

from pymc_minibatch.kernels import by_group
from pymc_minibatch.kernels.by_group import GroupTable, draw_from_groups, draw_of_groups, weigh
from pymc_minibatch.tall.mapped import RowFile

GROUP_SIZES = np.array([0, 3, 1, 0, 5, 2, 0])
DRAWS = 40_000


@njit
def from_all(
    rng: np.random.Generator, table: GroupTable, drawn: np.ndarray, weights: np.ndarray
) -> bool:
    return draw_from_groups(rng, table, drawn, weights)


@njit
def from_some(
    rng: np.random.Generator,
    table: GroupTable,
    first: int,
    last: int,
    drawn: np.ndarray,
    weights: np.ndarray,
) -> None:
    draw_of_groups(rng, table, first, last, drawn, weights)


def table_of(rng: np.random.Generator) -> GroupTable:
    starts = np.concatenate([[0], np.cumsum(GROUP_SIZES)])
    rows = rng.permutation(starts[-1]).astype(np.int32)
    table = GroupTable.of(rows, starts, rng.uniform(0.5, 2.0, rows.size), np.full(7, 0.7))
    weigh(table, rng.uniform(0.0, 1.0, 7), rng.uniform(0.0, 1.0, 7))
    return table


def probabilities(table: GroupTable, first: int, last: int) -> np.ndarray:
    """Return those of all rows, where groups from first to last are drawn."""
    sizes = np.zeros(table.rows.size)
    for g in range(first, last):
        own = slice(table.starts[g], table.starts[g + 1])
        sizes[table.rows[own]] = np.diff(table.sums[own], prepend=0.0) * table.factors[g]
    return sizes / sizes.sum()


def test_rows_of_groups() -> None:
    rng = np.random.default_rng(1)
    table = table_of(rng)
    assert table.factors.max() > 1.5 * table.factors.min()
    for first, last in ((0, 7), (2, 6)):
        drawn, weights = np.empty(DRAWS, dtype=np.int64), np.empty(DRAWS)
        if last == 7:
            assert from_all(rng, table, drawn, weights)
        else:
            from_some(rng, table, first, last, drawn, weights)
        p = probabilities(table, first, last)
        n = table.starts[last] - table.starts[first]
        np.testing.assert_allclose(weights, 1 / (n * p[drawn]), rtol=1e-12)
        seen = np.bincount(drawn, minlength=p.size) / DRAWS
        assert np.all(np.abs(seen - p) <= 5 * np.sqrt(p * (1 - p) / DRAWS))


def test_groups_far_out_are_drawn_more_often() -> None:
    """In proportion to the squares of their distances at both points, beside a floor."""
    table = table_of(np.random.default_rng(2))
    before, after = np.zeros(7), np.zeros(7)
    before[1], after[1], after[4] = 0.7, 0.7, 4 * 0.7
    weigh(table, before, after)
    np.testing.assert_allclose(table.factors, [0.2, 2.2, 0.2, 0.2, 4.2, 0.2, 0.2])
    totals = [table.sums[table.starts[g + 1] - 1] if GROUP_SIZES[g] else 0.0 for g in range(7)]
    np.testing.assert_allclose(table.shares, np.cumsum(totals * table.factors))


def test_large_tables_lie_in_files(monkeypatch) -> None:
    """They are read by the same machine code, and pickled by reference."""
    in_memory = table_of(np.random.default_rng(3))
    monkeypatch.setattr(by_group, "MAPPED_BYTES", 1)
    in_files = table_of(np.random.default_rng(3))
    compiled = len(from_all.signatures)
    drawn = []
    for table in (in_memory, in_files, pickle.loads(pickle.dumps(in_files))):
        rows, weights = np.empty(100, dtype=np.int64), np.empty(100)
        from_all(np.random.default_rng(4), table, rows, weights)
        drawn.append((rows.tolist(), weights.tolist()))
    assert drawn[0] == drawn[1] == drawn[2]
    assert len(from_all.signatures) == max(compiled, 1)
    assert RowFile.of(in_memory.sums) is None
    assert RowFile.of(in_files.sums) is not None
    assert len(pickle.dumps(in_files)) < len(pickle.dumps(in_memory)) + 1000
