"""Made-up rows are the same each time, and like those of the data."""

import numpy as np
import pytest

from pymc_minibatch.tall import made_up as module
from pymc_minibatch.tall.made_up import made_up, rows_of

RNG = np.random.default_rng(6)
RARE = RNG.normal(size=(50, 3)) * (RNG.random((50, 3)) < 0.2)
ARRAYS = {
    "numbers": RNG.normal(size=(50, 3)).astype(np.float32),
    "rare": RARE,
    "counts": RNG.poisson(3.0, size=(50, 2)).astype(np.int16),
    "groups": RNG.integers(0, 5, 50),
    "truth": RNG.random(50) < 0.1,
    "stack": RNG.normal(size=(2, 50, 3)),
}


def rows_axis(values):
    return values.shape.index(50)


@pytest.mark.parametrize("name", ARRAYS)
def test_rows_are_those_of_the_whole(name):
    values = ARRAYS[name]
    axis = rows_axis(values)
    found = list(made_up(values, axis, np.random.default_rng(0)))
    for each in found:
        whole = np.asarray(each)
        assert whole.shape == each.shape == values.shape
        assert whole.dtype == values.dtype
        rows = np.array([3, 3, 49, 0])
        for taken in (rows, slice(7, 20)):
            expected = np.moveaxis(whole, axis, 0)[taken]
            np.testing.assert_array_equal(rows_of(each, axis, taken), expected)
        assert not np.array_equal(whole, values)
    shuffled = np.moveaxis(np.asarray(found[-1]), axis, 0).reshape(50, -1)
    own = np.moveaxis(values, axis, 0).reshape(50, -1)
    np.testing.assert_array_equal(np.sort(shuffled, axis=0), np.sort(own, axis=0))


def test_rows_along_another_axis():
    square = RNG.normal(size=(4, 4))
    each = next(made_up(square, 0, np.random.default_rng(0)))
    np.testing.assert_array_equal(rows_of(each, 1, [2]), np.asarray(each)[:, 2][None])


def test_zeros_become_numbers_and_then_stay():
    first, second, _ = made_up(RARE, 0, np.random.default_rng(0))
    assert np.asarray(first).all()
    np.testing.assert_array_equal(np.sign(np.asarray(second)), np.sign(RARE))


def test_signs_stay_and_whole_numbers_keep_their_range():
    numbers, counts = ARRAYS["numbers"], ARRAYS["counts"]
    made = np.asarray(next(made_up(numbers, 0, np.random.default_rng(0))))
    np.testing.assert_array_equal(np.sign(made), np.sign(numbers))
    wider, same, _ = map(np.asarray, made_up(counts, 0, np.random.default_rng(0)))
    assert (wider.min(axis=0) >= counts.min(axis=0)).all()
    assert (wider.max(axis=0) <= counts.max(axis=0) + 1).all()
    assert (same.max(axis=0) <= counts.max(axis=0)).all()


def test_many_whole_numbers_are_drawn_from_a_pool(monkeypatch):
    monkeypatch.setattr(module, "POOL_BYTES", 10 * 4)
    first, *_ = made_up(ARRAYS["counts"], 0, np.random.default_rng(0))
    assert len(first.source) == 10
    assert len(np.unique(np.asarray(first), axis=0)) > 5
