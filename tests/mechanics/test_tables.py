"""Tables as data: Parquet files, DataFrames and stores, bound by the names of columns."""

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb

pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
fsspec = pytest.importorskip("fsspec", reason="fsspec is an extra")
pd = pytest.importorskip("pandas", reason="pandas is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an extra")

N_ROWS = 5000
COLUMNS = {"X": ["a", "b"], "y": "bought"}
POINT = {"beta": np.array([0.3, -0.7])}


@pytest.fixture(scope="module")
def model():
    with pm.Model(coords={"feature": ["a", "b"]}) as model:
        X = pm.Data("X", np.zeros((40, 2)), dims=("row", "feature"))
        beta = pm.Normal("beta", 0, 1, dims="feature")
        pm.Bernoulli("y", logit_p=X @ beta, observed=np.arange(40) % 2)
    return model


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(2)
    return pd.DataFrame(
        {
            "b": rng.normal(size=N_ROWS).astype(np.float32),
            "name": ["x"] * N_ROWS,
            "a": rng.normal(size=N_ROWS),
            "bought": rng.integers(0, 2, N_ROWS).astype(np.int8),
        }
    )


@pytest.fixture
def folder(frame, tmp_path):
    """Three files of two row groups, or one; the last file is empty."""
    for k, piece in enumerate((frame[:2000], frame[2000:4500], frame[4500:], frame[:0])):
        piece.to_parquet(tmp_path / f"part{k}.parquet", row_group_size=1500)
    return tmp_path


def assert_rows_of(tall, frame):
    assert tall.n_rows == len(frame)
    rows = np.array([0, 4999, 1999, 2000, 4500, 17, 17])
    eta = frame[["a", "b"]].to_numpy()[rows] @ POINT["beta"]
    expected = np.where(
        frame["bought"].to_numpy()[rows], -np.log1p(np.exp(-eta)), -np.log1p(np.exp(eta))
    )
    np.testing.assert_allclose(tall.row_logp(POINT, rows), expected, rtol=1e-6)


def as_folder(frame, folder):
    return str(folder)


def as_file_url(frame, folder):
    return f"file://{folder}/*.parquet"


def as_memory_url(frame, folder):
    with fsspec.open("memory://rows/one.parquet", "wb") as file:
        frame.to_parquet(file, row_group_size=700)
    return "memory://rows"


def as_pandas(frame, folder):
    return frame


def as_polars(frame, folder):
    pl = pytest.importorskip("polars", reason="polars is not installed")
    return pl.DataFrame({name: frame[name].to_numpy() for name in ("a", "b", "bought")})


def as_dask(frame, folder):
    """From a filter, after which nobody knows how many rows a partition has; one has none."""
    dd = pytest.importorskip("dask.dataframe", reason="dask.dataframe is an extra")
    doubled = pd.concat([frame, frame.assign(bought=np.int8(2))], ignore_index=True)
    found = dd.from_pandas(doubled, npartitions=8)
    return found[found["bought"] < 2]


KINDS = [as_folder, as_file_url, as_memory_url, as_pandas, as_polars, as_dask]


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_columns_become_rows(model, frame, folder, kind):
    data = pmb.Columns(kind(frame, folder), COLUMNS)
    assert_rows_of(pmb.TallModel(model, data=data), frame)


@pytest.mark.parametrize("kind", [as_folder, as_dask], ids=["parquet", "dask"])
def test_rows_that_stay_where_they_are(model, frame, folder, kind):
    pytest.importorskip("dask", reason="dask is an extra")
    data = pmb.Columns(kind(frame, folder), COLUMNS)
    tall = pmb.TallModel(model, data=data, rows_in_memory=0)
    assert tall.partitions is not None
    assert_rows_of(tall, frame)
    whole = pmb.TallModel(model, data=pmb.Columns(frame, COLUMNS))
    assert tall.logp(POINT) == pytest.approx(whole.logp(POINT), rel=1e-9)


def test_columns_are_found_by_name_and_labels(model, frame, folder):
    """X has no column of its own, but its labels have."""
    assert_rows_of(pmb.TallModel(model, data=frame.rename(columns={"bought": "y"})), frame)


def test_zarr_groups_by_path(model, frame, tmp_path):
    zarr = pytest.importorskip("zarr", reason="zarr is an extra")
    store = zarr.open_group(str(tmp_path / "rows.zarr"), mode="w")
    values = {"X": frame[["a", "b"]].to_numpy(), "y": frame["bought"].to_numpy()}
    for name, array in values.items():
        made = store.create_array if hasattr(store, "create_array") else store.create_dataset
        made(name, shape=array.shape, dtype=array.dtype, chunks=(700, *array.shape[1:]))
        store[name][:] = array
    assert_rows_of(pmb.TallModel(model, data=tmp_path / "rows.zarr"), frame)
    dask = pytest.importorskip("dask", reason="dask is an extra")
    with dask.config.set({"array.chunk-size": "35kB"}):
        stays = pmb.TallModel(model, data=tmp_path / "rows.zarr", rows_in_memory=0)
    lengths = stays.partitions.lengths
    assert len(lengths) > 1
    assert (lengths[:-1] % 700 == 0).all()  # a partition is whole chunks of the store
    assert_rows_of(stays, frame)
    named = {name: f"{tmp_path}/rows.zarr/{name}" for name in values}
    assert_rows_of(
        pmb.TallModel(model, data={n: zarr.open(p, mode="r") for n, p in named.items()}), frame
    )


# --- What is refused --------------------------------------------------------------------------


def test_a_missing_column_is_named(model, frame):
    with pytest.raises(ValueError, match=r"no column 'c' for X.*pmb\.Columns"):
        pmb.TallModel(model, data=pmb.Columns(frame, {"X": ["a", "c"], "y": "bought"}))
    with pytest.raises(ValueError, match=r"no column 'y' for y"):
        pmb.TallModel(model, data=frame)
    with pytest.raises(ValueError, match=r"columns names \['z'\], which hold no rows"):
        pmb.TallModel(model, data=pmb.Columns(frame, COLUMNS | {"z": "a"}))


def test_strings_are_refused(model, frame, folder):
    for source in (frame, str(folder)):
        with pytest.raises(ValueError, match="Column 'name' holds no numbers"):
            pmb.TallModel(model, data=pmb.Columns(source, {"X": ["a", "name"], "y": "bought"}))


def test_strings_in_one_file_are_named(model, frame, folder):
    frame[4500:].astype({"b": str}).to_parquet(folder / "part2.parquet")
    with pytest.raises(ValueError, match=r"Column 'b' holds no numbers in .*part2\.parquet"):
        pmb.TallModel(model, data=pmb.Columns(folder, COLUMNS))


def test_strings_in_one_partition_are_named(model, frame):
    """Dask has been told that all partitions hold numbers."""
    dd = pytest.importorskip("dask.dataframe", reason="dask.dataframe is an extra")

    def spoilt(piece, partition_info=None):
        return piece.astype({"b": str}) if partition_info["number"] == 2 else piece

    lazy = dd.from_pandas(frame, npartitions=4).map_partitions(spoilt, meta=frame[:0])
    for rows_in_memory in (1e9, 0):
        with pytest.raises(Exception, match=r"Column 'b' .*partition 2 .*no numbers"):
            pmb.TallModel(model, data=pmb.Columns(lazy, COLUMNS), rows_in_memory=rows_in_memory)


def test_a_column_missing_in_one_file(model, frame, folder):
    frame.drop(columns="b").to_parquet(folder / "part3.parquet")
    with pytest.raises(ValueError, match=r"'b' of .*part0.parquet is missing in .*part3.parquet"):
        pmb.TallModel(model, data=pmb.Columns(folder, COLUMNS))


def test_files_of_other_types_are_converted_where_nothing_is_lost(model, frame, folder):
    frame[:0].astype({"b": np.float64}).to_parquet(folder / "part3.parquet")
    assert_rows_of(pmb.TallModel(model, data=pmb.Columns(folder, COLUMNS)), frame)


def test_a_missing_value_is_named_with_its_row(model, frame, folder):
    pytest.importorskip("dask", reason="dask is an extra")
    spoilt = frame.copy()
    spoilt.loc[3210, "b"] = np.nan
    spoilt[2000:4500].to_parquet(folder / "part1.parquet", row_group_size=1500)
    data = pmb.Columns(folder, COLUMNS)
    with pytest.raises(ValueError, match="X has nan in row 3210"):
        pmb.TallModel(model, data=data)
    with pytest.raises(
        ValueError, match=r"row 3210 \(row 1210 of row group 0 of .*part1.parquet\)"
    ):
        pmb.TallModel(model, data=data, rows_in_memory=0)


def test_a_missing_integer_is_named(model, frame, folder):
    spoilt = frame.astype({"bought": "Int8"})
    spoilt.loc[2100, "bought"] = pd.NA
    spoilt[2000:4500].to_parquet(folder / "part1.parquet", row_group_size=1500)
    with pytest.raises(ValueError, match=r"'bought' has a missing value in row 100 of row group 0"):
        pmb.TallModel(model, data=pmb.Columns(folder, COLUMNS))


def test_a_damaged_file_is_named(model, frame, folder):
    pytest.importorskip("dask", reason="dask is an extra")
    path = folder / "part1.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"part1.parquet is not a complete Parquet file"):
        pmb.TallModel(model, data=pmb.Columns(folder, COLUMNS))
    path.write_bytes(whole[:8] + bytes(2000) + whole[2008:])  # the footer is whole
    for rows_in_memory in (1e9, 0):
        with pytest.raises(Exception, match=r"row group 0 of .*part1.parquet"):
            pmb.TallModel(model, data=pmb.Columns(folder, COLUMNS), rows_in_memory=rows_in_memory)


def test_no_files(model, tmp_path):
    with pytest.raises(ValueError, match="There is no Parquet file at"):
        pmb.TallModel(model, data=tmp_path / "nothing")


def test_what_is_no_table_yet(model, frame, tmp_path):
    """Lazy frames, and files of other kinds."""
    polars = pytest.importorskip("polars", reason="polars is not installed")
    lazy = polars.LazyFrame({name: frame[name].to_numpy() for name in ("a", "b", "bought")})
    with pytest.raises(ValueError, match=r"LazyFrame has no rows yet. Pass frame.collect\(\)"):
        pmb.TallModel(model, data=lazy)
    frame[:10].to_csv(tmp_path / "rows.csv")
    with pytest.raises(ValueError, match="if it is of another kind, such as CSV, read it with"):
        pmb.TallModel(model, data=str(tmp_path / "rows.csv"))
    swapped = {"X": frame[["a", "b"]].to_numpy().astype(">f8"), "y": frame["bought"].to_numpy()}
    with pytest.raises(ValueError, match=r"another order .*\(>f8\).*X.astype\('float64'\)"):
        pmb.TallModel(model, data=swapped)
