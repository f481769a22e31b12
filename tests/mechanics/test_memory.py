"""Large arrays are budgeted before they are made: a plan that fits, or an error in words."""

import numpy as np
import pymc as pm
import pytest
from pymc.sampling.parallel import ParallelSamplingError

import pymc_minibatch as pmb
from pymc_minibatch.jit import memory
from pymc_minibatch.latent import arrowhead, expansion
from pymc_minibatch.latent.layout import ArrowheadLayout
from pymc_minibatch.steps.memory import bytes_of_step


@pytest.fixture
def control_groups(tmp_path, monkeypatch):
    """A machine of folders, without limits."""
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "STATM", tmp_path / "statm")
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "cgroup")
    roots = {"": tmp_path / "two", "memory": tmp_path / "one"}
    monkeypatch.setattr(memory, "ROOTS", roots)
    monkeypatch.delenv(memory.LIMIT_VARIABLE, raising=False)
    monkeypatch.setattr(memory, "resource", None)
    return tmp_path


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)


def test_nothing_is_known_of_a_machine_without_files(control_groups):
    assert memory.free_bytes() == float("inf")


def test_free_memory_is_that_of_the_machine(control_groups):
    write(control_groups, meminfo="MemTotal: 9000 kB\nMemAvailable:    2000 kB\n")
    assert memory.free_bytes() == 2000 * 1024


def test_limits_of_containers_count_and_files_are_given_back(control_groups):
    write(control_groups, meminfo="MemAvailable: 9000000 kB\n", cgroup="0::/user/job\n")
    write(control_groups / "two", memory__max="max", memory__current="5000")
    write(control_groups / "two/user", memory__max="9000", memory__current="5000")
    assert memory.free_bytes() == 4000  # that of the group above
    stat = "anon 3000\ninactive_file 700\n"
    write(
        control_groups / "two/user/job",
        memory__max="4000",
        memory__current="3500",
        memory__stat=stat,
    )
    assert memory.free_bytes() == 500 + 700


def test_limits_of_the_first_version_count(control_groups):
    write(control_groups, cgroup="4:cpu,cpuacct:/a\n3:memory:/docker/1\n")
    folder = control_groups / "one/docker/1"
    write(folder, memory__limit_in_bytes="8000", memory__usage_in_bytes="6000")
    write(folder, memory__stat="inactive_file 3\ntotal_inactive_file 100\n")
    assert memory.free_bytes() == 2100


def test_limit_of_addresses_counts(control_groups, monkeypatch):
    class Limits:
        RLIMIT_AS, RLIM_INFINITY = 9, -1

        def getrlimit(self, kind):
            return 10**9, 10**9

    monkeypatch.setattr(memory, "resource", Limits())
    write(control_groups, statm="1000 500 1 1 0 1 0")
    page = memory.os.sysconf("SC_PAGE_SIZE")
    assert memory.free_bytes() == 10**9 - 1000 * page
    monkeypatch.setenv(memory.LIMIT_VARIABLE, "1e8")
    assert memory.free_bytes() == 1e8 - 500 * page


def test_a_limit_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv(memory.LIMIT_VARIABLE, "4 GB")
    with pytest.raises(ValueError, match=r"PYMC_MINIBATCH_MEMORY is .4 GB.\. Write the bytes"):
        memory.free_bytes()


def test_small_arrays_are_not_budgeted(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: 0.0)
    memory.require_memory(1e6, "A vector", "Nothing.")
    with pytest.raises(pmb.NotEnoughMemoryError, match="needs 80 MB of memory, but 0 MB is free"):
        memory.require_memory(8e7, "A matrix", "Nothing.")


def test_a_posterior_of_many_parameters_is_refused_before_the_search(monkeypatch):
    n = 3000
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=1500)
        x = pm.Data("x", rng.normal(size=(n, 1500)))
        pm.Normal("y", pm.math.exp(x @ beta * 0.01), 1.0, observed=rng.normal(size=n))
    monkeypatch.setattr(memory, "free_bytes", lambda: 1e8)
    with model, pytest.raises(pmb.NotEnoughMemoryError, match=r"all 1,500 parameters at once"):
        pmb.MinibatchMH()


def test_sums_of_curvature_are_taken_in_fewer_parts_if_memory_is_short(monkeypatch):
    monkeypatch.setattr(arrowhead, "MOST_SUMMED", 2000)
    layout = ArrowheadLayout(np.arange(2000), np.arange(2000, 5000)[:, None])
    one = expansion.curvature_bytes(layout, 3)
    assert one == 8.0 * (2000**2 + 3000 * 4)
    free = {8: 1e12, 3: (expansion.COPIES + 3.5) * one / memory.SHARE}
    for parts, n_bytes in free.items():
        for module in (memory, expansion):
            monkeypatch.setattr(module, "free_bytes", lambda n_bytes=n_bytes: n_bytes)
        assert expansion.n_parts(layout, 3, n_rows=10**7) == parts
        assert expansion.n_parts(layout, 3, n_rows=10**4) == expansion.LEAST_PARTS
    monkeypatch.setattr(memory, "free_bytes", lambda: one)
    with pytest.raises(pmb.NotEnoughMemoryError, match=r"2,000 common .* beside 3,000 levels"):
        expansion.n_parts(layout, 3, n_rows=10**7)


@pytest.fixture(scope="module")
def with_values_of_rows():
    n = 20_000
    rng = np.random.default_rng(2)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        x = pm.Data("x", rng.normal(size=n))
        pm.Deterministic("mean", mu * x)
        pm.Deterministic("twice", 2 * mu)
        pm.Normal("y", mu * x, 1.0, observed=rng.normal(size=n))
    return model


def test_check_counts_draws_of_values_of_rows(with_values_of_rows):
    found = pmb.check(with_values_of_rows)
    without = bytes_of_step(pmb.TallModel(with_values_of_rows), with_effects=False)
    assert found.memory == pytest.approx(without + 8 * 2000 * 20_001)


def test_values_of_rows_are_left_out_if_their_draws_do_not_fit(with_values_of_rows, monkeypatch):
    with with_values_of_rows, pytest.warns(UserWarning, match="have one value for each"):
        step = pmb.MinibatchMH()
    assert "memory" in repr(step)
    monkeypatch.setattr(memory, "free_bytes", lambda: 9e7)
    options = {"draws": 300, "tune": 100, "chains": 2, "cores": 1, "progressbar": False}
    with pytest.warns(UserWarning, match=r"600 draws .*'mean'.* are left out"):
        idata = pmb.sample(with_values_of_rows, step=step, random_seed=3, **options)
    assert set(idata["posterior"].data_vars) == {"mu", "twice"}


def test_a_run_stops_with_its_draws_if_memory_is_short(with_values_of_rows, monkeypatch):
    with with_values_of_rows, pytest.warns(UserWarning, match="have one value for each"):
        step = pmb.MinibatchMH()
    monkeypatch.setattr(memory, "free_bytes", lambda: 9e7)
    options = {"draws": 300, "tune": 100, "chains": 2, "cores": 1, "progressbar": False}
    options |= {"step": step, "var_names": ["mean"], "compute_convergence_checks": False}
    with (
        pytest.warns(UserWarning, match=r"of which mean has 20,000, take 192 MB"),
        pytest.warns(UserWarning, match="stopped because memory is short"),
    ):
        idata = pmb.sample(with_values_of_rows, random_seed=3, **options)
    assert idata["posterior"].sizes["chain"] == 1
    assert np.all(idata["posterior"]["mean"].std("draw") > 0.0)
    monkeypatch.setattr(memory, "LEAST_BYTES", 1e6)
    monkeypatch.setattr(memory, "free_bytes", lambda: 1e7)
    with pytest.raises(pmb.NotEnoughMemoryError, match=r"A result of 100 draws .* mean has 20,000"):
        pmb.sample(with_values_of_rows, **options)


@pytest.mark.parametrize("cores", [1, 2])
def test_draws_that_would_not_fit_are_refused_before_the_first(monkeypatch, cores):
    """Two chains of 400 draws of 20,000 probabilities and half of them again take 192 MB."""
    monkeypatch.setattr(memory, "free_bytes", lambda: 1.2e8)
    x = np.random.default_rng(1).normal(size=20_000)
    with pm.Model():
        probability = pm.Deterministic("probability", pm.math.sigmoid(pm.Normal("slope") * x))
        pm.Bernoulli("y", p=probability, observed=(x > 0).astype(int))
        with pytest.warns(pmb.MinibatchWarning, match="one value for each"):
            step = pmb.MinibatchMH()
        options = {"tune": 200, "chains": 2, "cores": cores, "progressbar": False}
        options |= {"mp_ctx": "fork"} if cores > 1 else {}
        refused = pmb.NotEnoughMemoryError if cores == 1 else ParallelSamplingError
        with pytest.raises(refused, match=r"(?s)2 chains.*\['probability'\]"):
            pm.sample(200, step=step, random_seed=1, **options)
        idata = pm.sample(200, step=step, random_seed=1, var_names=["slope"], **options)
    assert list(idata.posterior.data_vars) == ["slope"]
