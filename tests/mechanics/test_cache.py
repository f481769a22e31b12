"""The cache of machine code is never stale, and a broken one only costs time."""

import dataclasses
import errno
import re
import uuid
import warnings
from pathlib import Path

import numpy as np
import pytest
from numba import njit
from numba.core import caching
from pytensor.configdefaults import config
from pytensor.link.numba.cache import NUMBA_CACHE_PATH

import pymc_minibatch as pmb
from pymc_minibatch.jit import cache
from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.kernels.metropolis import compile_transitions


@pytest.fixture
def key():
    return str(uuid.uuid4())


def doubled(key):
    return jit_kept(lambda x: 2.0 * x, [key])


def halved(x):
    return 0.5 * x


def kept(key):
    """Compile a function and return the paths of its index and its code."""
    function = doubled(key)
    assert function(4.0) == 8.0
    index = Path(function._cache._cache_file._index_path)
    [code] = NUMBA_CACHE_PATH.glob(f"{index.stem}.*.nbc")
    return index, code


def misses(function):
    return sum(function.stats.cache_misses.values())


# --- Keys -------------------------------------------------------------------------------------


def test_what_was_kept_is_found(key):
    kept(key)
    again = doubled(key)
    assert again(4.0) == 8.0
    assert misses(again) == 0


def test_functions_with_the_same_keys_are_told_apart(key):
    kept(key)
    other = jit_kept(lambda x: 3.0 * x, [key])
    assert other(4.0) == 12.0
    assert misses(other) == 1


def test_an_unknown_key_is_not_kept(key):
    assert cache.kernel_key(halved, "known", None) is None
    function = jit_kept(lambda x: 2.0 * x, [key, None])
    assert function(4.0) == 8.0
    assert isinstance(function._cache, caching.NullCache)


def test_the_key_is_that_of_what_compiles(monkeypatch):
    """What is compiled is in it as well: test_reached.py."""
    before = cache.kernel_key(halved, "a")
    assert cache.kernel_key(halved, "a") == before
    for file in cache.COMPILERS:
        others = {each: each == file for each in cache.COMPILERS}
        monkeypatch.setattr(cache, "source_of", lambda path, others=others: str(others[path]))
        after = cache.kernel_key(halved, "a")
        assert after != before
        before = after


def test_where_it_cannot_be_told_what_is_reached_nothing_is_kept():
    unknown = object()
    assert cache.kernel_key(lambda: unknown) is None


@pytest.mark.parametrize("what", ["pytensor_version", "numba_version"])
def test_the_key_is_that_of_the_versions(monkeypatch, what):
    before = cache.kernel_key(halved, "a")
    monkeypatch.setattr(cache, what, "0.0")
    assert cache.kernel_key(halved, "a") != before


def test_the_key_is_that_of_the_flags():
    keys = []
    for fastmath in (True, False):
        with config.change_flags(numba__fastmath=fastmath):
            keys.append(cache.kernel_key(halved, "a"))
    assert keys[0] != keys[1]


@dataclasses.dataclass(frozen=True)
class Mine(pmb.Penalty):
    """A test that is not of the package, and may be edited between two runs."""


@pytest.mark.parametrize(("test", "is_kept"), [(pmb.Penalty(), True), (Mine(), False)])
def test_kernels_of_parts_from_elsewhere_are_not_kept(test, is_kept):
    kernel = compile_transitions([1], test, pmb.RandomWalk(), by_size=False)
    with pytest.raises(TypeError):
        kernel.compile(())  # without arguments
    assert isinstance(kernel._cache, caching.NullCache) != is_kept


def test_parts_of_this_package_are_known_by_name_and_others_not_at_all():
    assert cache.class_key(pmb.Penalty()) == "Penalty"
    assert cache.class_key(pmb.RandomWalk()) == "RandomWalk"
    assert cache.class_key(pmb.SurrogateHamiltonian()) == "SurrogateHamiltonian"
    assert cache.class_key(Mine()) is None


# --- Broken files -----------------------------------------------------------------------------


@pytest.fixture
def unwarned(monkeypatch):
    monkeypatch.setattr(cache, "_warned", set())


@pytest.mark.parametrize("length", [0, 10, -10])
@pytest.mark.parametrize("which", ["index", "code"])
def test_files_that_were_cut_short_are_compiled_anew(key, unwarned, which, length):
    index, code = kept(key)
    path = index if which == "index" else code
    path.write_bytes(path.read_bytes()[:length])
    again = doubled(key)
    with pytest.warns(UserWarning, match=re.escape(str(index))):
        assert again(4.0) == 8.0
    repaired = doubled(key)
    with warnings.catch_warnings(action="error"):
        assert repaired(4.0) == 8.0
    assert misses(repaired) == 0


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_where_nothing_can_be_written_code_is_compiled_all_the_same(
    key, unwarned, monkeypatch, error
):
    def refuse(self, path):
        raise OSError(error, "refused")

    monkeypatch.setattr(cache.CacheFile, "_open_for_write", refuse)
    with pytest.warns(UserWarning, match=r"cannot be written \(.*refused\).*free space"):
        assert doubled(key)(4.0) == 8.0
    with warnings.catch_warnings(action="error"):  # once is enough
        assert doubled(key + "again")(4.0) == 8.0


def test_caches_of_others_are_as_before(tmp_path, monkeypatch):
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))

    @njit(cache=True)
    def triple(x):
        return 3.0 * x

    triple(1.0)
    for path in tmp_path.glob("*/*.nbi"):
        path.write_bytes(b"")
    again = njit(cache=True)(triple.py_func)
    with pytest.raises(EOFError):
        again(np.float64(1.0))
