"""Rows that stay in partitions: passes as jobs of Dask, and rows gathered by size."""

import os
import signal
import sys
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module

import cloudpickle
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_minibatch as pmb
from pymc_minibatch.kernels.rows import make_readers
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.sizes import row_sizes
from pymc_minibatch.steps import sweeps
from pymc_minibatch.steps.deciding import settle
from pymc_minibatch.tall import temporary
from pymc_minibatch.tall.cluster import PartError
from pymc_minibatch.tall.survey import Limits, survey

dask = pytest.importorskip("dask", reason="dask is an extra")
da = pytest.importorskip("dask.array", reason="dask is an extra")

N_PARTS, PART_ROWS, N_COLUMNS = 6, 2500, 3
N_ROWS = N_PARTS * PART_ROWS
QUIET = {"progressbar": False, "compute_convergence_checks": False}


def make_rows(part, crash=None):
    """Rows of a partition; where the file `crash` exists it is removed and the process killed."""
    if crash is not None and os.path.exists(crash):
        os.unlink(crash)
        os.kill(os.getpid(), signal.SIGKILL)
    rng = np.random.default_rng([7, part])
    X = rng.normal(size=(PART_ROWS, N_COLUMNS)).astype(np.float32)
    y = rng.random(PART_ROWS) < 1 / (1 + np.exp(-X @ [0.5, -1.0, 0.2]))
    return X, y.astype(np.int8)


def in_partitions(make=make_rows):
    blocks = [dask.delayed(make)(part) for part in range(N_PARTS)]
    X = [da.from_delayed(b[0], (PART_ROWS, N_COLUMNS), np.float32) for b in blocks]
    y = [da.from_delayed(b[1], (PART_ROWS,), np.int8) for b in blocks]
    return {"X": da.concatenate(X), "y": da.concatenate(y)}


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        X = pm.Data("X", np.zeros((40, N_COLUMNS), dtype=np.float32))
        beta = pm.Normal("beta", 0, 1, shape=N_COLUMNS)
        pm.Bernoulli("y", logit_p=X @ beta, observed=np.arange(40) % 2)
    return model


@pytest.fixture(scope="module")
def whole():
    parts = [make_rows(part) for part in range(N_PARTS)]
    return {"X": np.concatenate([X for X, _ in parts]), "y": np.concatenate([y for _, y in parts])}


@pytest.fixture(scope="module")
def expected(model, whole):
    return pmb.find_reference(model, data=whole)


@pytest.fixture(scope="module")
def tall(model):
    return pmb.TallModel(model, data=in_partitions(), rows_in_memory=0)


@pytest.fixture(scope="module")
def exact_step(model):
    return pmb.MinibatchMH(model=model, data=in_partitions(), acceptance="exact", rows_in_memory=0)


@pytest.fixture(scope="module")
def barker_step(model):
    return pmb.MinibatchMH(
        model=model, data=in_partitions(), acceptance="corrected_barker", rows_in_memory=0
    )


def assert_alike(found, expected):
    for name in ("gradient", "hessian", "prior_hessian"):
        scale = np.abs(getattr(expected, name)).max() + np.abs(expected.hessian).max()
        np.testing.assert_allclose(
            getattr(found, name), getattr(expected, name), atol=1e-4 * scale, rtol=0
        )
    off = np.linalg.cholesky(expected.precision_at(1.0)).T @ (found.flat - expected.flat)
    assert np.abs(off).max() < 0.01


def test_sums_over_partitions_are_those_over_all_rows(tall, whole, model, expected):
    assert tall.partitions is not None
    point = {"beta": np.array([0.3, -0.2, 0.1])}
    local = pmb.TallModel(model, data=whole)
    assert tall.logp(point) == pytest.approx(local.logp(point), rel=1e-10)
    rows = np.array([0, N_ROWS - 1, 2499, 2500, 7, 7])
    np.testing.assert_array_equal(tall.row_logp(point, rows), local.row_logp(point, rows))
    assert_alike(pmb.find_reference(data=tall), expected)


def test_blocks_of_other_lengths_are_aligned(model, whole):
    data = {
        "X": da.from_array(whole["X"], chunks=(4000, 2)),
        "y": da.from_array(whole["y"], chunks=1700),
    }
    tall = pmb.TallModel(model, data=data, rows_in_memory=0)
    np.testing.assert_array_equal(tall.partitions.lengths, [4000, 4000, 4000, 3000])
    rows = np.array([3999, 4000, 14_999])
    for found, source in zip(tall.batch(rows), (whole["X"], whole["y"]), strict=True):
        np.testing.assert_array_equal(found, source[rows])


def test_a_dataset_on_dask_stays(model, whole):
    lazy = in_partitions()
    data = xr.Dataset({"X": (("row", "column"), lazy["X"]), "y": ("row", lazy["y"])})
    tall = pmb.TallModel(model, data=data, rows_in_memory=0)
    np.testing.assert_array_equal(tall.partitions.lengths, [PART_ROWS] * N_PARTS)
    np.testing.assert_array_equal(tall.batch(np.array([9999]))[0], whole["X"][[9999]])


@pytest.mark.parametrize("kind", ["exact_step", "barker_step"])
def test_chains_read_gathered_rows(model, expected, request, kind):
    """Far fewer than all rows are gathered; the posterior is nearly the Gaussian at the mode."""
    step = request.getfixturevalue(kind)
    with model:
        found = pm.sample(500, tune=300, step=step, chains=2, cores=1, random_seed=1, **QUIET)
    assert (found.sample_stats["exact"] == (kind == "exact_step")).all()
    mean = found.posterior["beta"].mean(("chain", "draw")).values
    sd = np.sqrt(np.diag(expected.covariance))
    np.testing.assert_allclose(mean, expected.flat, atol=0.4 * sd.max())
    assert abs(found.posterior["beta"].std(("chain", "draw")).values / sd - 1).max() < 0.25
    error = found.sample_stats["test_error"]
    assert (error == 0).all() if kind == "exact_step" else (error > 0).all()


def test_rows_with_kinks_in_partitions():
    """Curvature by gradients, and sizes, are those of the same rows in memory; so is the choice."""
    rng = np.random.default_rng(1)
    n = 24_000
    x = rng.choice([-1.0, 1.0], n)
    data = {"x": x, "y": 0.3 * x + rng.normal(size=n)}
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 10)
        pm.Laplace("y", slope * pm.Data("x", x[:40]), 1.0, observed=data["y"][:40])
    tall = pmb.TallModel(
        model, data={k: da.from_array(v, chunks=9000) for k, v in data.items()}, rows_in_memory=0
    )
    local = pmb.TallModel(model, data=data)
    expected, found = (pmb.find_reference(data=t) for t in (local, tall))
    assert found.has_kinks
    assert found.hessian.item() == 0
    np.testing.assert_allclose(found.curvature, expected.curvature, rtol=0.3)
    assert abs(found.flat - expected.flat) < 0.4 * np.sqrt(expected.covariance.item())
    control = ControlVariate(expected, 1, 1.0)
    (sizes, uneven), (sized, uneven_found) = (row_sizes(t, control) for t in (local, tall))
    np.testing.assert_allclose(
        sized.totals, [part.sum() for part in np.split(sizes, [9000, 18000])], rtol=0.01
    )
    np.testing.assert_allclose(uneven_found, uneven, rtol=0.02)


def test_the_cheaper_test_is_chosen_in_partitions(tall, expected):
    control = ControlVariate(expected, 1, 1.0)  # Exact needs an expansion of order 2
    settled = settle(tall, control, "auto", "auto")
    assert settled.sized is not None
    assert settled.row_sizes is None
    assert "CorrectedBarker about" in settled.reason
    assert "Penalty about" in settled.reason
    assert "by size, drawn before the chain starts" in settled.reason


def test_no_row_of_the_exact_test_serves_twice(model, exact_step, monkeypatch):
    step = exact_step
    monkeypatch.setattr(step, "n_residents", 60)
    served, gathered = [], []
    kernel, gather = step.kernel, step.gather

    def watched(*args):
        residents = step.residents
        before = int(residents.table.turn[0])
        found = kernel(*args)
        served.append((residents, before, int(residents.table.turn[0])))
        return found

    monkeypatch.setattr(step, "gather", lambda: (gathered.append(1), gather()))
    monkeypatch.setattr(step, "kernel", watched)
    with model:
        found = pm.sample(1000, tune=0, step=step, chains=1, cores=1, random_seed=1, **QUIET)
    assert len(gathered) > 5
    evaluated = int(found.sample_stats["n_likelihood"].sum()) // 2
    last = {}
    for residents, before, after in served:
        # A call begins where one has ended, or where it is made again from its start.
        assert before <= last.get(id(residents), before) <= after
        last[id(residents)] = after
    assert evaluated <= len(gathered) * 60


def test_a_decision_that_needs_too_many_rows(model, exact_step, monkeypatch):
    step = exact_step
    monkeypatch.setattr(step, "n_residents", 2)
    with model, pytest.raises(Exception, match="a decision needs more rows than the 2 in memory"):
        pm.sample(500, tune=0, step=step, chains=1, cores=1, random_seed=1, **QUIET)


def test_chains_in_processes_gather_for_themselves(model, exact_step):
    step = exact_step
    draws = []
    for cores in (1, 2):
        with model:
            found = pm.sample(30, tune=10, step=step, chains=2, cores=cores, random_seed=1, **QUIET)
        draws.append(found.posterior["beta"].values)
    np.testing.assert_array_equal(*draws)


class AskedForAModelError(Exception):
    """Made in place of a model."""


@pytest.mark.parametrize(
    ("make", "stays"),
    [
        (pmb.MinibatchMH, True),
        (partial(pmb.MinibatchMH, row_sampling="uniform"), False),
        (partial(pmb.MinibatchMH, control_variate=0), False),
        (partial(pmb.MinibatchMH, acceptance="austere"), False),
        (pmb.FlyMC, False),
        (pmb.SGFS, False),
        (pmb.SGLD, False),
        (pmb.SGHMC, False),
        (pmb.SGNHT, False),
        (partial(pmb.multilevel_sgld, lambda beta: beta[0]), False),
    ],
)
def test_which_steps_leave_rows_where_they_are(model, monkeypatch, make, stays):
    """The others ask for all rows on this machine, whatever their number."""

    class Asked:
        def __init__(self, model, *, data, rows_in_memory):
            raise AskedForAModelError(rows_in_memory)

    monkeypatch.setattr("pymc_minibatch.tall.model.TallModel", Asked)
    with model, pytest.raises(AskedForAModelError) as error:
        make(data={})
    assert (error.value.args[0] < np.inf) == stays


def test_a_large_copy_is_announced(model, whole, monkeypatch):
    monkeypatch.setattr(temporary, "LARGE_COPY", 1e5)
    with pytest.warns(
        UserWarning, match=r"0\.0 GB of rows are copied to temporary files in .*FlyMC"
    ):
        tall = pmb.TallModel(model, data=in_partitions(), rows_in_memory=np.inf)
    assert tall.partitions is None
    np.testing.assert_array_equal(tall.batch(np.array([2501]))[0], whole["X"][[2501]])
    tall = pmb.TallModel(model, data=in_partitions(), rows_in_memory=0)
    with pytest.warns(UserWarning, match="of rows are copied to temporary files"):
        copied = tall.copied()
    assert copied.partitions is None
    np.testing.assert_array_equal(copied.batch(np.array([2501]))[0], whole["X"][[2501]])


def with_effects(n, n_groups):
    with pm.Model() as model:
        group = pm.Data("group", np.arange(n) % n_groups)
        sd = pm.HalfNormal("sd", 1)
        effect = pm.Normal("effect", 0, sd, shape=n_groups)
        pm.Normal("y", effect[group], 1.0, observed=np.zeros(n))
    return model


def test_rows_of_models_with_effects_are_copied(monkeypatch):
    """The structure is found where rows are in partitions; the moves of effects need all rows."""
    n, n_groups = 4000, 30
    rng = np.random.default_rng(2)
    data = {"group": rng.integers(0, n_groups, n), "y": rng.normal(size=n)}
    parts = {name: da.from_array(values, chunks=900) for name, values in data.items()}
    model = with_effects(60, n_groups)
    tall = pmb.TallModel(model, data=parts, rows_in_memory=0)
    names = ["group", "y"]
    expected = pmb.TallModel(model, data=data).structure.describe(names)
    assert tall.structure.describe(names) == expected

    def asked(tall, *args, **kwargs):
        raise AskedForAModelError(tall.partitions)

    monkeypatch.setattr(sweeps, "make_latent_sampler", asked)
    with (
        pytest.warns(UserWarning, match=r"of effects .*0\.0 GB of rows are copied.*'exact'"),
        pytest.raises(AskedForAModelError) as error,
    ):
        pmb.MinibatchMH(model=model, data=parts, rows_in_memory=0)
    assert error.value.args[0] is None


def test_all_gathered_rows_stand_for_all(model, expected, whole, barker_step):
    """The sum over them is right within what its variance says, which test_error includes."""
    step = barker_step
    local = pmb.TallModel(model, data=whole)
    residents, here, there = step.residents, expected.flat, expected.flat + 0.5
    _, total, _ = make_readers([2, 1], "residents")
    found, bad = total(here, there, step.density)
    assert bad == -1
    target = step.target
    found += target.base(there, target.constants) - target.base(here, target.constants)
    right = local.logp({"beta": there}) - local.logp({"beta": here})
    noise = float(residents.noise[0])
    assert 0 < noise < (0.1 * right) ** 2
    assert abs(found - right) < 5 * np.sqrt(noise)
    assert residents.fixed_error(0.0, 100, slope=0.25) == pytest.approx(0.25 * np.sqrt(noise))
    assert residents.fixed_error(0.0, 100, slope=0.25) == 0


@pytest.fixture(scope="module")
def draws(expected):
    z = np.random.default_rng(6).standard_normal((2, 200, N_COLUMNS))
    beta = expected.flat + z @ np.linalg.cholesky(expected.covariance).T
    return xr.DataTree.from_dict(
        {"posterior": xr.Dataset({"beta": (("chain", "draw", "beta_dim_0"), beta)})}
    )


def test_leave_one_out_where_rows_stay(tall, model, whole, draws, monkeypatch):
    local = pmb.loo(draws, data=pmb.TallModel(model, data=whole), rows=100)
    found = pmb.loo(draws, data=tall, rows=100)
    assert found.elpd == pytest.approx(local.elpd, rel=1e-9)
    assert found.se == pytest.approx(local.se, rel=1e-6)
    monkeypatch.setattr(import_module("pymc_minibatch.loo"), "LARGEST_BYTES", 1e5)
    with pytest.raises(ValueError, match=r"stay in partitions.*0\.0 GB here.*log_likelihood"):
        pmb.loo(draws, data=tall)


def test_predictions_are_made_on_this_machine(tall, draws, whole):
    with pytest.raises(ValueError, match=r"stay in partitions.*new_rows, or data=tall\.copied"):
        pmb.predict(draws, data=tall)
    new = {"X": whole["X"][:50]}
    by_rows, by_copy = pmb.predict(draws, new, data=tall), pmb.predict(draws, data=tall.copied())
    np.testing.assert_array_equal(by_rows["mean"], by_copy["mean"][:50])


# --- What goes wrong --------------------------------------------------------------------------


def spoilt(part, change):
    X, y = make_rows(part)
    return change(X, y) if part == 4 else (X, y)


def with_nan(X, y):
    X[123, 1] = np.nan
    return X, y


def fewer(X, y):
    return X[:-1], y[:-1]


def no_numbers(X, y):
    return X.astype(str), y


def wider(X, y):
    return X, y.astype(np.int64)


def fails(X, y):
    raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_nan, r"X has nan in row 10123 \(row 123 of partition 4 of X, y\)"),
        (fewer, r"partition 4 of X, y: it has shape \(2499, 3\) instead of \(2500, 3\)"),
        (no_numbers, r"partition 4 of X, y: it has dtype <U\d+, which does not convert"),
        (wider, r"partition 4 of X, y: it has dtype int64, which does not convert safely to int8"),
        (fails, r"partition 4 of X, y: OSError: the disk is gone"),
    ],
)
def test_a_bad_partition_is_named(model, change, message):
    data = in_partitions(partial(spoilt, change=change))
    with pytest.raises((ValueError, PartError), match=message):
        pmb.TallModel(model, data=data, rows_in_memory=0)


def test_a_bad_value_in_a_late_row_is_named(tall):
    """Rows are numbered beyond what 32 bits hold."""
    late = tall.partitions.after(0)
    late.starts = late.starts + 10**11
    late.parts = [replace(part, load=_Loads(i == 4)) for i, part in enumerate(late.parts)]
    late.seen = [None] * len(late.parts)
    limits = [Limits(name, False, -np.inf, np.inf) for name in ("X", "y")]
    message = r"X has nan in row 100000010123 \(row 123 of partition 4 of X, y\)"
    with pytest.raises(ValueError, match=message):
        survey(late, limits)


@dataclass(frozen=True)
class _Loads:
    """Loads a part, with a missing value or without."""

    is_bad: bool

    def __call__(self):
        return with_nan(*make_rows(0)) if self.is_bad else make_rows(0)


def test_an_empty_partition_and_unknown_lengths(model, whole):
    keep = np.ones(N_ROWS, bool)
    keep[2500:5000] = False
    data = in_partitions()
    mask = da.from_array(keep, chunks=PART_ROWS)
    tall = pmb.TallModel(model, data={n: v[mask] for n, v in data.items()}, rows_in_memory=0)
    assert tall.n_rows == N_ROWS - 2500
    np.testing.assert_array_equal(tall.batch(np.array([2500]))[0], whole["X"][[5000]])


# --- A cluster --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed", reason="dask.distributed is an extra")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def step_on_cluster(model, client, tmp_path_factory):
    """A worker dies in the first pass; `crash` is where the next one is ordered."""
    crash = tmp_path_factory.mktemp("cluster") / "crash"
    crash.touch()
    data = in_partitions(partial(make_rows, crash=str(crash)))
    step = pmb.MinibatchMH(model=model, data=data, acceptance="exact", rows_in_memory=0)
    assert not crash.exists()
    return step, crash


def test_passes_on_a_cluster_where_a_worker_dies(step_on_cluster, expected):
    assert_alike(step_on_cluster[0].reference, expected)


def bytes_from_workers(dask_worker):
    return sum(entry["total"] for entry in dask_worker.transfer_incoming_log)


def test_rows_stay_on_their_workers(model, client, whole):
    """Results are combined in a tree; no worker gets rows from another."""
    before = sum(client.run(bytes_from_workers).values())
    tall = pmb.TallModel(model, data=in_partitions(), rows_in_memory=0)
    for _ in range(3):
        tall.logp({"beta": np.zeros(N_COLUMNS)})
    sent = sum(client.run(bytes_from_workers).values()) - before
    assert sent < whole["y"].nbytes


def page_faults():
    """Pages that this process is given while arrays of the size of a chunk come and go."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        np.ones(2**16)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
def test_workers_use_memory_again(model, client):
    """Each array would take 128 pages from the system, which costs more than the pass itself."""
    pmb.TallModel(model, data=in_partitions(), rows_in_memory=0)
    [*faults] = client.map(lambda _: page_faults(), range(8), pure=False)
    assert min(client.gather(faults)) < 100 * 128 / 4


def test_results_that_workers_hold(model, client, expected):
    """Blocks of a persisted collection are read where they are held."""
    data = dict(zip(("X", "y"), dask.persist(*in_partitions().values()), strict=True))
    tall = pmb.TallModel(model, data=data, rows_in_memory=0)
    assert hasattr(tall.partitions.parts[0].load, "dask")
    flat = {"beta": expected.flat}
    local = pmb.TallModel(model, data=in_partitions(), rows_in_memory=0)
    assert tall.logp(flat) == pytest.approx(local.logp(flat), rel=1e-9)


def test_a_bad_partition_is_named_on_a_cluster(model, client):
    data = in_partitions(partial(spoilt, change=fails))
    with pytest.raises(PartError, match=r"partition 4 of X, y: OSError: the disk is gone"):
        pmb.TallModel(model, data=data, rows_in_memory=0)


def test_a_worker_dies_during_the_gather(model, step_on_cluster, expected):
    step, crash = step_on_cluster
    crash.touch()
    with model:
        found = pm.sample(300, tune=0, step=step, chains=1, cores=1, random_seed=1, **QUIET)
    assert not crash.exists()
    sd = np.sqrt(np.diag(expected.covariance))
    mean = found.posterior["beta"].mean(("chain", "draw")).values
    np.testing.assert_allclose(mean, expected.flat, atol=0.6 * sd.max())


def test_forked_chains_gather_from_the_cluster(model, step_on_cluster):
    step, _ = step_on_cluster
    draws = []
    for cores in (1, 2):
        with model:
            found = pm.sample(20, tune=0, step=step, chains=2, cores=cores, random_seed=1, **QUIET)
        draws.append(found.posterior["beta"].values)
    np.testing.assert_array_equal(*draws)


def test_chains_as_tasks(model, client, step_on_cluster, expected):
    step, _ = step_on_cluster
    runs = [
        pmb.sample_on(client, model, step=step, chains=3, draws=100, tune=20, random_seed=5)
        for _ in range(2)
    ]
    np.testing.assert_array_equal(runs[0].posterior["chain"], [0, 1, 2])
    np.testing.assert_array_equal(*[run.posterior["beta"].values for run in runs])
    assert runs[0].sample_stats.sizes["chain"] == 3
    means = runs[0].posterior["beta"].mean("draw").values
    assert len(np.unique(means)) == means.size
    sd = np.sqrt(np.diag(expected.covariance))
    np.testing.assert_allclose(means.mean(0), expected.flat, atol=0.6 * sd.max())


def test_sample_on_says_what_belongs_to_one_machine(model, client):
    with pytest.raises(TypeError, match=r"takes a dask\.distributed\.Client; got int"):
        pmb.sample_on(3, model, step=None)
    with pytest.raises(ValueError, match="cores is for chains on one machine"):
        pmb.sample_on(client, model, step=None, cores=2)


def test_partitions_are_pickled_without_rows(tall):
    assert len(cloudpickle.dumps(tall.partitions.parts)) < 50_000
