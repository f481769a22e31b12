"""Columns and rows of sources are bound by their labels, where there are any."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pymc_minibatch as pmb
from pymc_minibatch.tall.sources import open_sources
from pymc_minibatch.tall.tables import Wanted

pl = pytest.importorskip("polars", reason="polars is not installed")

WANTED = {"X": Wanted(("X",), 2, ("age", "income")), "y": Wanted(("y",), 1)}
FRAME = pd.DataFrame({"income": [1.0, 2, 3], "age": [4.0, 5, 6], "more": [0.0, 0, 0]})
Y = pd.Series([1.0, 2, 3], name="y")


def opened(X, y=Y, wanted=WANTED):
    found = open_sources({"X": X, "y": y}, wanted)
    return np.asarray(found["X"]).tolist(), np.asarray(found["y"]).tolist()


@pytest.mark.parametrize(
    "frame",
    [
        FRAME,
        FRAME[["age", "income"]],
        pl.from_pandas(FRAME),
        pl.from_pandas(FRAME[["income", "age"]]),
    ],
    ids=["one more", "in order", "polars", "polars in another order"],
)
def test_columns_are_those_that_the_model_names(frame):
    assert opened(frame)[0] == [[4.0, 1], [5.0, 2], [6.0, 3]]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(FRAME.to_numpy()[:, :2]),
        pl.DataFrame(FRAME.to_numpy()[:, :2]),
        FRAME.to_numpy()[:, :2],
    ],
    ids=["pandas", "polars", "array"],
)
def test_columns_without_names_are_in_order(frame):
    assert opened(frame)[0] == [[1.0, 4], [2.0, 5], [3.0, 6]]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME[["income"]], "'X'.* has no column named 'age'"),
        (FRAME.rename(columns={"income": "wage"}), "has no column named 'income'"),
        (pd.concat([FRAME, FRAME], axis=1), "has several columns named 'age'"),
    ],
    ids=["missing", "another", "twice"],
)
def test_columns_that_do_not_fit_are_named(frame, message):
    with pytest.raises(ValueError, match=message):
        opened(frame)


def test_predictions_of_a_frame_with_columns_in_another_order():
    rng = np.random.default_rng(1)
    draws = np.tile([2.0, -1.0], (2, 100, 1))
    posterior = xr.Dataset({"b": (("chain", "draw", "of"), draws)}, {"of": ["age", "income"]})
    idata = xr.DataTree.from_dict({"posterior": posterior})
    x = rng.normal(size=(50, 2))
    with pm.Model(coords={"of": ["age", "income"]}):
        X = pm.Data("X", x, dims=("row", "of"))
        b = pm.Normal("b", dims="of")
        pm.Normal("y", X @ b, observed=np.zeros(50), dims="row")
        found = pmb.predict(idata, {"X": FRAME[["income", "age"]]}, kind="mean")
    np.testing.assert_allclose(found["mean"], FRAME[["age", "income"]] @ [2.0, -1.0])


SHUFFLED = [2, 0, 1]


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (FRAME.iloc[SHUFFLED], Y),
        (FRAME, Y.iloc[SHUFFLED]),
        (FRAME.set_axis(list("abc")), Y.set_axis(list("acb"))),
        (
            xr.DataArray(FRAME.to_numpy()[:, :2], {"row": list("abc")}, ("row", "of")),
            xr.DataArray(Y.to_numpy(), {"row": list("cab")}, ("row",)),
        ),
    ],
    ids=["X shuffled", "y shuffled", "names", "xarray"],
)
def test_rows_in_another_order_are_refused(X, y):
    with pytest.raises(
        ValueError, match=r"data\['y'\] are labelled in another order .*data\['X'\]"
    ):
        opened(X, y)


def test_rows_with_other_labels_are_refused():
    with pytest.raises(ValueError, match=r"labelled otherwise than .*row 0 is .*1.* in y"):
        opened(FRAME.set_axis([5, 7, 9]), Y.set_axis([1, 5, 7]))


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (FRAME.iloc[SHUFFLED], Y.iloc[SHUFFLED]),
        (FRAME.iloc[SHUFFLED], Y.iloc[SHUFFLED].to_numpy()),
        (FRAME.set_axis(list("abc")), Y.iloc[SHUFFLED].reset_index(drop=True)),
        (FRAME.set_axis([5, 7, 9]), Y.iloc[SHUFFLED].reset_index(drop=True)),
    ],
    ids=["the same", "array", "names and numbers", "some rows and numbers"],
)
def test_rows_that_belong_together(X, y):
    assert opened(X, y)[1] == [3.0, 1, 2]


NUMBERED = pd.DataFrame({0: [1.0, 2], 1: [3.0, 4], "y": [0.0, 1]})


def as_dask(frame):
    dd = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    return dd.from_pandas(frame, npartitions=1)


@pytest.mark.parametrize("kind", [pd.DataFrame, as_dask])
def test_numbers_as_names_of_columns(kind):
    wanted = {"X": Wanted(("X",), 2), "y": Wanted(("y",), 1)}
    found = open_sources(pmb.Columns(kind(NUMBERED), {"X": [1, 0]}), wanted)
    assert np.asarray(found["X"]).tolist() == [[3.0, 1], [4.0, 2]]
    labelled = {"X": Wanted(("X",), 2, ("0", "1")), "y": Wanted(("y",), 1)}
    assert np.asarray(open_sources(kind(NUMBERED), labelled)["X"]).tolist() == [[1.0, 3], [2.0, 4]]


def as_parquet(frame, path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    columns = [pa.array(frame.iloc[:, j]) for j in range(frame.shape[1])]
    parquet.write_table(pa.table(columns, names=list(frame.columns)), path)
    return path


@pytest.mark.parametrize("kind", [lambda frame, _: frame, as_parquet], ids=["frame", "parquet"])
def test_a_name_of_several_columns_is_refused_if_it_is_meant(kind, tmp_path):
    frame = pd.DataFrame([[1.0, 2, 0], [3, 4, 1]], columns=["x", "x", "y"])
    source = kind(frame, tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="several columns named 'x', and X could be any"):
        open_sources(pmb.Columns(source, {"X": "x"}), {"X": Wanted(("X",), 1)})
    found = open_sources(pmb.Columns(source, {"X": "y"}), {"X": Wanted(("X",), 1)})
    assert np.asarray(found["X"]).tolist() == [0.0, 1]
