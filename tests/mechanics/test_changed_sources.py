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


KINDS = (Npy, Map, InSharedMemory, Parquet, ParquetInParts, Zarr, ZarrInParts)

CHANGES = {
    "written": lambda source: source.write(ROWS + 1),
    "reordered": lambda source: source.write(ROWS[::-1].copy()),
    "of another type": lambda source: source.write(ROWS.astype(np.float32)),
    "cut": lambda source: source.cut(),
    "removed": lambda source: source.remove(),
    "elsewhere": lambda source: os.chdir(source.elsewhere),
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
    there = {"written": ROWS + 1, "reordered": ROWS[::-1], "elsewhere": ROWS + 5}.get(change, ROWS)
    refused = ""
    try:
        tall = pmb.TallModel(stand_in(), data=source.opened(), **source.options)
        assert_rows(tall, there)
    except REFUSALS as error:
        refused = str(error)
    assert bool(refused) == (change in ("cut", "removed"))
    assert not refused or "y." in refused or "data" in refused


def assert_words(refused, change):
    """Whoever is refused is told of which file or variable, and nobody is for a folder's sake."""
    assert not refused or change != "elsewhere"
    assert not refused or "y." in refused or "data" in refused


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
        found = pmb.log_likelihood(idata, tall=tall)["y"]
        np.testing.assert_allclose(found[0, 0], norm.logpdf(ROWS, 0.3), rtol=1e-6)
    except REFUSALS as error:
        refused = str(error)
    assert_words(refused, change)
