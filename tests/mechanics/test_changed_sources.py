"""Each kind of source, changed in each way and at each time: right, or refused in words.

Right are the rows that were there when they were bound to the model.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from scipy.stats import norm

import pymc_minibatch as pmb
from pymc_minibatch.tall.partitions import Seen

N_ROWS = 400
ROWS = np.random.default_rng(1).normal(size=N_ROWS)
SHARED_MEMORY = Path("/dev/shm")
POINT = {"mu": np.array(0.3)}
REFUSALS = (RuntimeError, OSError, ValueError)


def no_more_than_is_needed():
    for name in ("pyarrow", "zarr", "dask"):
        pytest.importorskip(name, reason=f"{name} is not installed")


class Npy:
    """A file that is mapped."""

    folder_of = staticmethod(lambda tmp_path: tmp_path)

    def __init__(self, folder):
        self.path = folder / "y.npy"

    def write(self, values):
        np.save(self.path, values)

    def opened(self):
        return {"data": "y.npy"}

    def cut(self):
        os.truncate(self.path, self.path.stat().st_size // 2)

    def remove(self):
        self.path.unlink()

    options = {}  # noqa: RUF012


class Map(Npy):
    """A memory map of the user, who writes through it."""

    def opened(self):
        self.map = np.load("y.npy", mmap_mode="r+")
        return {"data": self.map}

    def write(self, values):
        if values.dtype == np.float64 and hasattr(self, "map"):
            self.map[:] = values
        else:
            super().write(values)


class InSharedMemory(Map):
    """The same where files have no time of their own."""

    @staticmethod
    def folder_of(tmp_path):
        if not SHARED_MEMORY.is_dir():
            pytest.skip("there is no /dev/shm")
        folder = SHARED_MEMORY / f"pmb_test_{os.getpid()}_{tmp_path.name}"
        folder.mkdir()
        return folder


class Parquet(Npy):
    """A file that is copied."""

    def __init__(self, folder):
        self.path = folder / "y.parquet"

    def write(self, values):
        pd.DataFrame({"data": values}).to_parquet(self.path, row_group_size=150)

    def opened(self):
        return "y.parquet"


class ParquetInParts(Parquet):
    """A file that is read part by part."""

    options = {"rows_in_memory": 0}  # noqa: RUF012


class Zarr(Npy):
    """A store that is copied."""

    def __init__(self, folder):
        self.path = folder / "y.zarr"

    def write(self, values):
        rows = xr.Dataset({"data": ("row", values)})
        rows.to_zarr(self.path, mode="w", encoding={"data": {"chunks": (150,)}}, consolidated=False)

    def opened(self):
        return "y.zarr"

    def cut(self):
        [chunk] = [file for file in (self.path / "data").rglob("1") if file.is_file()]
        os.truncate(chunk, chunk.stat().st_size // 2)

    def remove(self):
        [chunk] = [file for file in (self.path / "data").rglob("1") if file.is_file()]
        chunk.unlink()


class ZarrInParts(Zarr):
    """A store that is read part by part."""

    options = {"rows_in_memory": 0}  # noqa: RUF012


class Dask(Npy):
    """Partitions that are made by the user's own function, anew each time."""

    options = {"rows_in_memory": 0}  # noqa: RUF012

    def opened(self):
        return {"data": in_parts(self.load)}

    def load(self, part):
        return np.load(self.path, mmap_mode="r")[part * HALF : (part + 1) * HALF]


class DaskFrame(Dask):
    """The same as a table."""

    def opened(self):
        load = lambda part: pd.DataFrame({"data": self.load(part)})  # noqa: E731
        dataframe = pytest.importorskip("dask.dataframe", reason="dask.dataframe needs more")
        return dataframe.from_map(load, [0, 1], meta=pd.DataFrame({"data": [0.0]}))


HALF = N_ROWS // 2


def in_parts(load):
    dask, array = pytest.importorskip("dask"), pytest.importorskip("dask.array")
    parts = [dask.delayed(load, pure=False)(part) for part in (0, 1)]
    return array.concatenate([array.from_delayed(p, (HALF,), np.float64) for p in parts])


KINDS = (Npy, Map, InSharedMemory, Parquet, ParquetInParts, Zarr, ZarrInParts, Dask, DaskFrame)

ONE_OTHER = ROWS + np.where(np.arange(N_ROWS) == 137, 0.01, 0.0)

CHANGES = {
    "written": lambda source: source.write(ROWS + 1),
    "one row": lambda source: source.write(ONE_OTHER),
    "reordered": lambda source: source.write(ROWS[::-1].copy()),
    "of another type": lambda source: source.write(ROWS.astype(np.float32)),
    "cut": lambda source: source.cut(),
    "removed": lambda source: source.remove(),
    "elsewhere": lambda source: os.chdir(source.elsewhere),
}

THERE = {
    "written": ROWS + 1,
    "one row": ONE_OTHER,
    "reordered": ROWS[::-1],
    "elsewhere": ROWS + 5,
}


@pytest.fixture
def source(request, tmp_path, monkeypatch):
    """A source in the folder where the process runs, and another one of its name elsewhere."""
    no_more_than_is_needed()
    folder = request.param.folder_of(tmp_path)
    made = request.param(folder)
    made.elsewhere = folder / "elsewhere"
    made.elsewhere.mkdir()
    request.param(made.elsewhere).write(ROWS + 5)
    made.write(ROWS)
    monkeypatch.chdir(folder)
    yield made
    monkeypatch.undo()
    if SHARED_MEMORY in folder.parents:
        shutil.rmtree(folder)


def stand_in():
    with pm.Model() as model:
        data = pm.Data("data", ROWS[:40])
        pm.Normal("y", pm.Normal("mu", 0, 10), 1.0, observed=data)
    return model


def made_step(source):
    step = pmb.MinibatchMH(
        model=stand_in(),
        data=source.opened(),
        acceptance="penalty",
        proposal="laplace",
        steps_per_draw=1,
        rng=1,
        **source.options,
    )
    step.setup_chain(np.random.default_rng(1), 0, 100)
    return step


def assert_rows(tall, values):
    numbers = np.arange(N_ROWS)
    np.testing.assert_allclose(tall.row_logp(POINT, numbers), norm.logpdf(values, 0.3), rtol=1e-6)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("source", KINDS, indirect=True)
def test_before_set_up(source, change):
    """What is opened is what is there then."""
    if change == "cut" and isinstance(source, Map):
        pytest.skip("NumPy fills up a file that it maps for writing")
    CHANGES[change](source)
    there = THERE.get(change, ROWS)
    if change == "elsewhere" and isinstance(source, Dask):  # which knows the path
        there = ROWS
    refused = ""
    try:
        tall = pmb.TallModel(stand_in(), data=source.opened(), **source.options)
        assert_rows(tall, there)
    except REFUSALS as error:
        refused = str(error)
    assert bool(refused) == (change in ("cut", "removed"))
    assert not refused or names_the_source(refused)


def names_the_source(refused):
    """By file, variable or, if a function makes it, the number of the partition."""
    return any(name in refused for name in ("y.", "data", "partition 0"))


def assert_words(refused, change):
    """Whoever is refused is told of which file or variable, and nobody is for a folder's sake."""
    assert not refused or change != "elsewhere"
    assert not refused or names_the_source(refused)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("source", KINDS, indirect=True)
def test_before_sampling(source, change):
    step, refused = made_step(source), ""
    CHANGES[change](source)
    try:
        step.setup_chain(np.random.default_rng(1), 0, 100)
        step.step(POINT)
        assert_rows(step.tall, ROWS)
    except REFUSALS as error:
        refused = str(error)
    assert_words(refused, change)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("source", KINDS[:3], indirect=True)
def test_while_sampling(source, change):
    """Others are not read any more, or were copied."""
    step, refused = made_step(source), ""
    point, _ = step.step(POINT)
    CHANGES[change](source)
    try:
        for _ in range(3):
            point, _ = step.step(point)
        assert_rows(step.tall, ROWS)
    except REFUSALS as error:
        refused = str(error)
    assert_words(refused, change)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("source", KINDS, indirect=True)
def test_after_sampling(source, change):
    tall, refused = pmb.TallModel(stand_in(), data=source.opened(), **source.options), ""
    CHANGES[change](source)
    draws = {"mu": (("chain", "draw"), np.full((1, 4), 0.3))}
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset(draws)})
    try:
        found = pmb.log_likelihood(idata, data=tall)["y"]
        np.testing.assert_allclose(found[0, 0], norm.logpdf(ROWS, 0.3), rtol=1e-6)
    except REFUSALS as error:
        refused = str(error)
    assert_words(refused, change)


UNSEEDED = {
    "noise": lambda rng, rows: rows + 0.1 * rng.normal(size=rows.size),
    "one row": lambda rng, rows: rows + 0.1 * (np.arange(rows.size) == rng.integers(rows.size)),
    "order": lambda rng, rows: rng.permutation(rows),
    "a sample": lambda rng, rows: rng.choice(rows, rows.size),
    "small integers": lambda rng, rows: (rows + 3 * rng.normal(size=rows.size)).astype(np.int64),
}


@pytest.mark.parametrize("change", UNSEEDED)
def test_partitions_that_are_random(tmp_path, change):
    """They are other ones each time they are made: a pass tells them by all of their rows."""
    pytest.importorskip("dask", reason="dask is an extra")
    load = lambda part: UNSEEDED[change](np.random.default_rng(), ROWS)  # noqa: E731
    dask, array = pytest.importorskip("dask"), pytest.importorskip("dask.array")
    dtype = load(0).dtype
    parts = [dask.delayed(load, pure=False)(part) for part in (0, 1)]
    rows = array.concatenate([array.from_delayed(part, (N_ROWS,), dtype) for part in parts])
    with pm.Model() as model:
        data = pm.Data("data", ROWS[:40].astype(dtype))
        pm.Normal("y", pm.Normal("mu", 0, 10), 1.0, observed=data)
    with pytest.raises(REFUSALS, match="must be the same each time they are loaded"):
        pmb.MinibatchMH(model=model, data={"data": rows}, rows_in_memory=0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_partitions_that_are_rounded_otherwise_are_the_same(dtype):
    """Sums that threads take in another order."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(5000, 3)).astype(dtype) * [1e-9, 1, 1e9]
    again = rows * (1 + 3e-7 * rng.uniform(-1, 1, rows.shape))
    seen = Seen.of((rows,))
    assert seen.is_like((again,), whole=True)
    for k in (0, 1, 2):
        other = rows.copy()
        other[1234, k] *= 1.5
        assert not seen.is_like((other,), whole=True)
