"""Data from elsewhere in place of the model's own."""

import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy.stats import chisquare, norm
from stored import as_memory_maps, as_paths, as_zarr

import pymc_minibatch as pmb
from pymc_minibatch.acceptance.decision import row_workspace
from pymc_minibatch.kernels.rows import draw_rows
from pymc_minibatch.tall.mapped import RowFile
from pymc_minibatch.tall.sources import open_sources, share

N_ROWS, N_GROUPS = 50_000, 5
QUIET = {"progressbar": False, "compute_convergence_checks": False}


@pytest.fixture(scope="module")
def model():
    """A stand-in of 40 rows: slopes, groups and an unknown scale."""
    rng = np.random.default_rng(1)
    with pm.Model(coords={"feature": ["a", "b", "c"]}) as model:
        X = pm.Data("X", rng.normal(size=(40, 3)), dims=("row", "feature"))
        group = pm.Data("group", np.arange(40) % N_GROUPS)
        alpha = pm.Normal("alpha", 0, 1, shape=N_GROUPS)
        beta = pm.Normal("beta", 0, 1, dims="feature")
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", alpha[group] + X @ beta, sigma, observed=rng.normal(size=40), dims="row")
    return model


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(N_ROWS, 3)).astype(np.float32)
    group = rng.integers(0, N_GROUPS, N_ROWS)
    y = X @ [0.5, -1.0, 0.2] + 0.3 * group + rng.normal(size=N_ROWS)
    return {"X": X, "group": group, "y": y}


POINT = {
    "alpha": np.linspace(-1, 1, N_GROUPS),
    "beta": np.array([0.3, -0.7, 0.1]),
    "sigma_log__": np.array(0.2),
}


def expected_rows(data):
    mean = POINT["alpha"][data["group"]] + data["X"].astype(float) @ POINT["beta"]
    return norm.logpdf(data["y"], mean, np.exp(POINT["sigma_log__"]))


def assert_bound(tall, data):
    assert tall.n_rows == N_ROWS
    rows = np.array([0, 5, 17, N_ROWS - 1, 5])
    np.testing.assert_allclose(
        tall.row_logp(POINT, rows), expected_rows(data)[rows], rtol=1e-9, atol=1e-12
    )


# --- Kinds of sources -------------------------------------------------------------------------


def as_dask(data, folder):
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    return {name: da.from_array(values, chunks=9000) for name, values in data.items()}


def as_dataset(data, folder):
    return xr.Dataset(
        {
            "X": (("row", "feature"), data["X"]),
            "group": ("row", data["group"]),
            "y": ("row", data["y"]),
        },
        coords={"feature": ["a", "b", "c"]},
    )


def as_pandas(data, folder):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    return {
        "X": pd.DataFrame(data["X"], columns=["a", "b", "c"]),
        "group": pd.Series(data["group"]),
        "y": pd.Series(data["y"]),
    }


def as_polars(data, folder):
    pl = pytest.importorskip("polars", reason="polars is not installed")
    return {
        "X": pl.DataFrame(data["X"], schema=["a", "b", "c"]),
        "group": pl.Series(data["group"]),
        "y": pl.Series(data["y"]),
    }


def as_transposed_memory(data, folder):
    return data | {"X": np.asfortranarray(data["X"])}


KINDS = [
    as_memory_maps,
    as_paths,
    as_zarr,
    as_dask,
    as_dataset,
    as_pandas,
    as_polars,
    as_transposed_memory,
]


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_rows_are_those_of_the_source(model, data, kind, tmp_path):
    with model:
        tall = pmb.TallModel(data=kind(data, tmp_path))
    assert_bound(tall, data)
    assert tall.row_inputs["X"].values.dtype == np.float32


def test_arrays_and_maps_are_not_copied(model, data, tmp_path):
    maps = as_memory_maps(data, tmp_path)
    for sources in (data, maps):
        tall = pmb.TallModel(model, data=sources)
        for name, source in sources.items():
            assert np.shares_memory(tall.row_inputs[name].values, source)


def test_the_whole_log_density_is_that_of_a_model_with_the_data(model, data):
    tall = pmb.TallModel(model, data=data)
    prior = tall.prior_logp(POINT)
    assert tall.logp(POINT) == pytest.approx(prior + expected_rows(data).sum(), rel=1e-9)


def test_sampling_gives_what_a_model_with_the_data_gives(model, data):
    with model:
        step = pmb.MinibatchMH(data=data, steps_per_draw=5)
        bound = pm.sample(300, tune=200, step=step, chains=2, cores=2, random_seed=1, **QUIET)
        reference = pmb.find_reference(data=data)
    design = np.column_stack([np.eye(N_GROUPS)[data["group"]], data["X"]])
    exact, *_ = np.linalg.lstsq(design, data["y"], rcond=None)
    np.testing.assert_allclose(reference.mode["beta"], exact[N_GROUPS:], atol=1e-3)
    sd = np.sqrt(np.diag(np.linalg.inv(design.T @ design)))[N_GROUPS:]
    means = bound.posterior["beta"].mean(("chain", "draw")).values
    np.testing.assert_allclose(means, exact[N_GROUPS:], atol=0.5 * sd.max())
    assert bound.sample_stats.batch_size.mean() < 1000


def test_rows_of_a_source_are_drawn_uniformly(data, tmp_path):
    """What is drawn are row numbers, whatever the source; here those of stored chunks."""
    opened = open_sources(as_zarr({"y": np.arange(1000.0)}, tmp_path))["y"]
    rng, rows = np.random.default_rng(3), row_workspace(1000)
    drawn = []
    for _ in range(2000):
        draw_rows(rng, 1000, rows, 0, 100)
        drawn.append(opened[rows.drawn[:100]].astype(int))
    # Without replacement, counts vary less than multinomial ones.
    counts = np.bincount(np.concatenate(drawn), minlength=1000)
    assert chisquare(counts).pvalue > 1e-4


# --- Processes --------------------------------------------------------------------------------


def test_a_step_is_pickled_without_its_data(model, data, tmp_path):
    for sources in (data, as_memory_maps(data, tmp_path)):
        step = pmb.MinibatchMH(model=model, data=sources, control_variate=0)
        pickled = cloudpickle.dumps(step)
        assert len(pickled) < 0.4 * data["X"].nbytes
        again = pickle.loads(pickled)
        assert_bound(again.tall, data)


def test_what_is_shared_is_a_file(tmp_path):
    values = np.random.default_rng(4).normal(size=(300_000, 2))
    first, second = share(values), share(values)
    assert isinstance(first, RowFile)
    assert first == second
    np.testing.assert_array_equal(first.open(), values)
    mapped = np.memmap(tmp_path / "rows", np.float64, "w+", shape=(300_000, 2))
    mapped[:] = values
    reference = RowFile.of(np.asarray(mapped)[1000:, 1])
    assert isinstance(reference, RowFile)
    assert reference.path == str(tmp_path / "rows")
    np.testing.assert_array_equal(reference.open(), values[1000:, 1])


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_processes_draw_the_same(model, data, context, tmp_path, in_one_process):
    assert_same = in_one_process
    with model:
        step = pmb.MinibatchMH(data=as_paths(data, tmp_path), control_variate=0, batch_size=50)
        drawn = pm.sample(
            20, tune=20, step=step, chains=2, cores=2, mp_ctx=context, random_seed=3, **QUIET
        )
    xr.testing.assert_equal(drawn.posterior.to_dataset(), assert_same)


@pytest.fixture(scope="module")
def in_one_process(model, data):
    with model:
        step = pmb.MinibatchMH(data=data, control_variate=0, batch_size=50)
        drawn = pm.sample(20, tune=20, step=step, chains=2, cores=1, random_seed=3, **QUIET)
    return drawn.posterior.to_dataset()


# --- What is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"X": None},
            r"nothing for X; it names \['.*\]\. Pass all variables that hold rows, \['",
        ),
        ({"beta": np.zeros(3)}, r"names \['beta'\], which hold no rows"),
        ({"y": np.zeros(10)}, "same number of rows"),
        ({"X": np.zeros((N_ROWS, 4))}, r"X.* has shape \(50000, 4\); the model needs \('N', 3\)"),
        ({"X": np.zeros(N_ROWS)}, r"the model needs \('N', 3\)"),
        ({"group": np.zeros(N_ROWS)}, "does not convert safely to int"),
        ({"group": np.full(N_ROWS, 2**40)}, rf"group has {2**40} in row 0\. It does not fit"),
        ({"y": ["a"] * N_ROWS}, "is a list"),
        ({"y": "rows.csv"}, r"paths by name must end in \.npy or \.zarr"),
        ({"y": np.full(N_ROWS, "a")}, "rows must be numbers"),
    ],
)
def test_refused(model, data, changes, message):
    sources = {name: v for name, v in (data | changes).items() if v is not None}
    with pytest.raises(ValueError, match=message):
        pmb.TallModel(model, data=sources)


def test_no_mapping(model, data):
    with pytest.raises(ValueError, match=r"data must map names .*'X': \.\.\..*got ndarray"):
        pmb.TallModel(model, data=data["X"])


def test_no_file(model, data):
    with pytest.raises(
        FileNotFoundError, match=r"data\['X'\]: there is no file /.*none\.npy\. Pass"
    ):
        pmb.TallModel(model, data=data | {"X": "none.npy"})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_missing_values_are_found(model, data, value):
    y = data["y"].copy()
    y[41_234] = value
    with pytest.raises(ValueError, match=f"y has {value} in row 41234"):
        pmb.TallModel(model, data=data | {"y": y})


@pytest.mark.parametrize("index", [N_GROUPS, -N_GROUPS - 1])
def test_an_index_out_of_range_is_found(model, data, index):
    group = data["group"].copy()
    group[33_333] = index
    with pytest.raises(pmb.NotTallError, match="smallest and largest numbers give an error"):
        pmb.TallModel(model, data=data | {"group": group})


def test_labels_in_another_order(model, data, tmp_path):
    source = as_dataset(data, tmp_path).sel(feature=["c", "a", "b"])
    with pytest.raises(ValueError, match=r"labels .*'c', 'a', 'b'.* along 'feature'"):
        pmb.TallModel(model, data=source)


def test_a_nameless_array():
    x = np.linspace(0, 1, 30)
    with pm.Model() as model:
        slope = pm.Normal("slope")
        pm.Normal("y", slope * x, 1, observed=np.zeros(30))
    with pytest.raises(ValueError, match=r"no name in the model: make it a pm\.Data"):
        pmb.TallModel(model, data={"y": np.zeros(100)})
