"""Which files of a folder are rows, chunks that are missing, and partitions that change."""

import os

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pymc_minibatch as pmb
from pymc_minibatch.tall.columns import open_table
from pymc_minibatch.tall.sources import open_sources
from pymc_minibatch.tall.tables import Wanted

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

ROWS = pd.DataFrame({"y": np.arange(10.0)})
WANTED = {"y": Wanted(("y",), 1)}


def write(*paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        ROWS.to_parquet(path)


def files_of(source):
    return sorted({part.load[0] for part in open_table(source).parts})


@pytest.mark.parametrize(
    "hidden",
    [
        "_temporary/0/b.parquet",
        ".ipynb_checkpoints/b.parquet",
        "k=1/_delta_log/b.parquet",
        "._b.parquet",
    ],
)
def test_hidden_files_are_left_out(tmp_path, hidden):
    write(tmp_path / "_k=1" / "a.parquet", tmp_path / hidden)
    assert files_of(str(tmp_path)) == [str(tmp_path / "_k=1" / "a.parquet")]
    assert files_of(f"{tmp_path}/_k=?") == [str(tmp_path / "_k=1" / "a.parquet")]


def test_a_path_within_a_hidden_folder_is_meant(tmp_path):
    write(tmp_path / "_runs" / "a.parquet")
    assert len(files_of(str(tmp_path / "_runs"))) == 1
    assert len(files_of(str(tmp_path / "_runs" / "*.parquet"))) == 1


def test_a_path_that_exists_is_no_pattern(tmp_path):
    write(
        tmp_path / "run[1]" / "a.parquet",
        tmp_path / "run1" / "b.parquet",
        tmp_path / "c[1].parquet",
    )
    in_folder = [str(tmp_path / "run[1]" / "a.parquet")]
    assert files_of(str(tmp_path / "run[1]")) == in_folder
    assert files_of(str(tmp_path / "run[1]" / "*.parquet")) == in_folder
    assert files_of(str(tmp_path / "c[1].parquet")) == [str(tmp_path / "c[1].parquet")]
    assert files_of(str(tmp_path / "run?" / "*.parquet")) == [str(tmp_path / "run1" / "b.parquet")]


# --- Chunks -----------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    """A group of two arrays, one of which lacks a chunk."""
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    path = tmp_path / "rows.zarr"
    data = {name: ("row", np.arange(1, 41)) for name in ("x", "y")}
    encoding = {name: {"chunks": (10,)} for name in data}
    xr.Dataset(data).to_zarr(path, encoding=encoding, consolidated=False)
    [chunk] = [file for file in (path / "x").rglob("3") if file.is_file()]
    chunk.unlink()
    return path, zarr


@pytest.mark.parametrize("kind", ["path", "array", "xarray", "dask", "computed"])
def test_a_missing_chunk_is_refused(store, kind):
    path, zarr = store
    if kind in ("dask", "computed"):
        dask_array = pytest.importorskip("dask.array", reason="dask is not installed")
        source = {"x": dask_array.from_zarr(str(path / "x"))}
        source = source if kind == "dask" else {"x": source["x"] + 1}
    elif kind == "xarray":
        source = xr.open_zarr(path, chunks=None, consolidated=False)
    else:
        source = path if kind == "path" else {"x": zarr.open(str(path), mode="r")["x"]}
    with pytest.raises(ValueError, match=r"'x'.*1 of 4 chunks of .*x .*rows.zarr.* are missing"):
        open_sources(source)


def test_a_whole_array_beside_one_with_a_missing_chunk(store):
    path, zarr = store
    found = open_sources({"y": zarr.open(str(path), mode="r")["y"]})["y"]
    assert np.array_equal(found, np.arange(1, 41))


def test_a_relative_path_is_that_of_where_it_was_opened(tmp_path, monkeypatch):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    for folder, values in (("here", np.arange(10.0)), ("there", np.zeros(10))):
        os.makedirs(tmp_path / folder)
        monkeypatch.chdir(tmp_path / folder)
        np.save("y.npy", values)
        zarr.save("y.zarr", y=values)
        pd.DataFrame({"y": values}).to_parquet("y.parquet")
    monkeypatch.chdir(tmp_path / "here")
    stay = [open_sources("y.zarr", WANTED, 0), open_sources("y.parquet", WANTED, 0)]
    maps = open_sources({"y": "y.npy"})
    monkeypatch.chdir(tmp_path / "there")
    for found in (*stay, maps):
        assert np.array_equal(found["y"][np.arange(10)], np.arange(10.0))


# --- Partitions ---------------------------------------------------------------------------------


def unseeded(frame):
    return frame.assign(y=frame.y + np.random.default_rng().normal(size=len(frame)))


def shuffled(frame):
    return frame.sample(frac=1)


@pytest.mark.parametrize("change", [unseeded, shuffled])
def test_partitions_that_change_are_refused(change):
    dd = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    frame = pd.DataFrame({"x": np.arange(200.0), "y": np.arange(200.0)})
    table = dd.from_pandas(frame, npartitions=3).map_partitions(change, meta=frame.iloc[:0])
    with pm.Model():
        pm.Normal("y", pm.Normal("mu") * pm.Data("x", np.zeros(5)), observed=np.zeros(5))
        with pytest.raises(Exception, match="the same each time they are loaded: seed"):
            pmb.TallModel(data=table, rows_in_memory=0)
        with pytest.raises(ValueError, match="has other values when it is computed again"):
            pmb.TallModel(data={"x": table["x"], "y": table["y"]})


def test_partitions_that_are_rounded_otherwise_are_the_same():
    dd = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    frame = pd.DataFrame({"y": np.linspace(1, 2, 200)})

    def rounded(part):
        return part * (1 + 1e-14 * np.random.default_rng().normal())

    table = dd.from_pandas(frame, npartitions=3).map_partitions(rounded, meta=frame.iloc[:0])
    with pm.Model():
        pm.Normal("y", pm.Normal("mu"), observed=np.zeros(5))
        tall = pmb.TallModel(data=table, rows_in_memory=0)
    np.testing.assert_allclose(tall.batch(np.arange(200))[0], frame.y)


@pytest.mark.parametrize("change", ["written", "cut short", "removed", "other rows"])
def test_parquet_that_was_written_again_is_refused(tmp_path, change):
    path = tmp_path / "rows.parquet"
    frame = pd.DataFrame({"y": np.arange(100.0)})
    frame.to_parquet(path, row_group_size=50)
    values = open_sources(str(path), WANTED, 0)["y"]
    assert np.array_equal(values[np.array([3, 70])], [3.0, 70.0])
    if change == "removed":
        path.unlink()
    elif change == "cut short":
        os.truncate(path, path.stat().st_size // 2)
    else:
        other = frame[::-1] if change == "other rows" else frame + 1
        other.to_parquet(path, row_group_size=50)
    with pytest.raises(RuntimeError, match=r"rows\.parquet.* since its rows were bound"):
        values[np.array([3, 70])]
    with pytest.raises(RuntimeError, match=r"rows\.parquet.* since its rows were bound"):
        values.partitions.check_files()
