"""Passes over all rows, by several threads."""

import threading
import time
import warnings

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from pymc_minibatch.steps.waiting import StepKind
from pymc_minibatch.tall import passes
from pymc_minibatch.tall.passes import over_chunks


def n_threads(*_):
    return max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")


@pytest.fixture
def data(monkeypatch):
    monkeypatch.setattr(passes, "CHUNK_ROWS", 100)
    return [np.arange(1050.0), np.arange(2100.0).reshape(1050, 2)]


@pytest.mark.parametrize("n_cores", [1, 4])
def test_chunks_come_in_order_and_hold_all_rows(data, n_cores, monkeypatch):
    monkeypatch.setattr(passes, "n_cores", lambda: n_cores)
    waits = iter(np.random.default_rng(0).uniform(0, 0.01, 11))

    def slow(x, z):
        time.sleep(next(waits))
        return x, z

    firsts, chunks = zip(*over_chunks(slow, data), strict=True)
    assert firsts == tuple(range(0, 1050, 100))
    for i, values in enumerate(data):
        np.testing.assert_array_equal(np.concatenate([chunk[i] for chunk in chunks]), values)


def test_several_chunks_at_a_time(data, monkeypatch):
    monkeypatch.setattr(passes, "n_cores", lambda: 2)
    barrier = threading.Barrier(2, timeout=10)  # passed only by two threads at once
    pairs = [values[:400] for values in data]
    assert len(list(over_chunks(lambda *_: barrier.wait(), pairs))) == 4


def test_blas_starts_no_threads_of_its_own(data, monkeypatch):
    monkeypatch.setattr(passes, "n_cores", lambda: 2)
    with threadpool_limits(2, user_api="blas"):
        assert {n for _, n in over_chunks(n_threads, data)} == {1}
        assert n_threads() == 2


def test_set_up_starts_no_threads_of_blas():
    class Made(metaclass=StepKind):
        def __init__(self):
            self.n_threads = n_threads()

    with threadpool_limits(2, user_api="blas"):
        assert Made().n_threads == 1
        assert n_threads() == 2


def test_wide_rows_make_short_chunks(monkeypatch):
    monkeypatch.setattr(passes, "CHUNK_BYTES", 8 * 50 * 7)
    wide = np.zeros((30, 50))
    lengths = [length for _, length in over_chunks(len, [wide])]
    assert lengths == [7, 7, 7, 7, 2]


def test_an_error_ends_the_pass(data):
    def fails(x, z):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(over_chunks(fails, data))


def test_a_progress_bar_where_there_is_much_to_read(data, monkeypatch):
    titles = []

    def track(results, title, **options):
        titles.append((title, options["total"]))
        return results

    monkeypatch.setattr(passes, "track", track)
    list(over_chunks(lambda *_: None, data, "Reading"))
    assert titles == []
    monkeypatch.setattr(passes, "SHOWN_BYTES", 1000)
    list(over_chunks(lambda *_: None, data))
    assert titles == []
    list(over_chunks(lambda *_: None, data, "Reading"))
    assert titles == [("Reading", 11)]


@pytest.mark.parametrize("n_cores", [1, 4])
def test_threads_warn_of_numbers_as_their_caller_does(data, n_cores, monkeypatch):
    monkeypatch.setattr(passes, "n_cores", lambda: n_cores)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        assert all(np.isinf(large[-1]) for _, large in over_chunks(np.exp, [data[0] + 800.0]))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        list(over_chunks(np.exp, [data[0]]))
