"""Files of rows: read whole or refused, watched for changes, removed when nobody needs them."""

import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.tall import temporary
from pymc_minibatch.tall.mapped import FileWatch, RowFile
from pymc_minibatch.tall.sources import open_sources, share

N_ROWS = 20_000


class Store:
    """What is read chunk by chunk, as zarr and dask arrays are."""

    def __init__(self, values):
        self.values = values
        self.shape, self.dtype, self.chunks = values.shape, values.dtype, (len(values) // 4,)

    def __getitem__(self, rows):
        return self.values[rows]


def copy_of(values):
    return open_sources({"y": Store(values)})["y"]


def temporary_files():
    return set(temporary.own_folder().glob("*.npy"))


# --- .npy files -------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"garbage" * 10, "cut", "objects"])
def test_an_incomplete_file_is_refused(content, tmp_path):
    path = tmp_path / "y.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        values = {"cut": np.zeros(100), "objects": np.array([None])}
        np.save(path, values[content])
        if content == "cut":
            path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"data\['y'\]: .*y\.npy is not a complete") as refusal:
        open_sources({"y": path})
    assert "allow_pickle" not in str(refusal.value)


@pytest.mark.parametrize("dtype", [np.float16, np.longdouble])
def test_types_that_machine_code_does_not_read(dtype):
    with pytest.raises(ValueError, match="convert it to float32 or float64"):
        open_sources({"y": np.zeros(10, dtype)})
    with pytest.raises(ValueError, match="convert it to float32 or float64"):
        open_sources({"y": Store(np.zeros(10, dtype))})


def test_masks_are_not_ignored():
    values = np.ma.masked_array(np.arange(4.0), [False, False, True, False])
    with pytest.raises(ValueError, match=r"data\['y'\] has masked values, the first in row 2"):
        open_sources({"y": values})
    opened = open_sources({"y": values[:2]})["y"]
    assert type(opened) is np.ndarray
    np.testing.assert_array_equal(opened, [0.0, 1.0])


# --- Files that change ------------------------------------------------------------------------


def cut_short(path):
    os.truncate(path, 200)


def written_to(path):
    with path.open("r+b") as file:
        file.seek(200)
        file.write(b"12345678")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1000))  # clocks of file systems are coarse


def replaced(path):
    (path.parent / "other.npy").write_bytes(path.read_bytes())
    (path.parent / "other.npy").rename(path)


CHANGES = {"had 160,128 bytes and has 200": cut_short, "written to": written_to}


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """A step on files, as it is, pickled, and the path of the rows."""
    path = tmp_path_factory.mktemp("rows") / "y.npy"
    np.save(path, np.random.default_rng(1).normal(size=N_ROWS))
    with pm.Model():
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=np.arange(40) / 40)
        step = pmb.MinibatchMH(data={"y": path}, control_variate=0)
    return step, cloudpickle.dumps(step), path


@pytest.fixture
def kept(steps):
    """Put the file back as it was."""
    path, content = steps[2], steps[2].read_bytes()
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    yield
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=times)


@pytest.mark.parametrize(("message", "change"), CHANGES.items(), ids=["cut", "written to"])
def test_a_change_is_noticed_before_the_next_draw(steps, kept, message, change):
    step, pickled, path = steps
    again = pickle.loads(pickled)
    for drawing in (step, again):
        drawing.step({"mu": np.array(0.0)})
    change(path)
    for drawing in (step, again):
        with pytest.raises(RuntimeError, match=message):
            drawing.step({"mu": np.array(0.0)})
    with pytest.raises(RuntimeError, match=message):
        pickle.loads(pickled)


def test_another_file_is_not_opened_in_its_place(tmp_path):
    path = tmp_path / "y.npy"
    np.save(path, np.arange(1000.0))
    values = open_sources({"y": path})["y"]
    file = RowFile.of(values)
    watch = FileWatch([file])
    replaced(path)
    watch.check()  # what is mapped is the old one
    with pytest.raises(RuntimeError, match="was replaced since its rows were bound"):
        file.open()


def test_what_the_owner_of_a_map_wrote_before_is_no_change(tmp_path):
    values = np.memmap(tmp_path / "y", np.float64, "w+", shape=(100_000,))
    values[:] = 1.0
    file = RowFile.of(values)
    os.sync()
    np.testing.assert_array_equal(file.open(), 1.0)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists open files here")
def test_descriptors_are_closed(tmp_path):
    def n_open():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    np.save(tmp_path / "y.npy", np.arange(1000.0))
    copy_of(np.zeros(10))  # the folder of this process keeps one, by which others see that it lives
    before = n_open()
    opened = open_sources({"y": tmp_path / "y.npy"})["y"], copy_of(np.arange(2000.0))
    watch = FileWatch([RowFile.of(values) for values in opened])
    assert n_open() > before
    del opened, watch
    assert n_open() == before


# --- Space ------------------------------------------------------------------------------------


def test_space_that_is_not_there_is_an_error():
    resource = pytest.importorskip("resource", reason="Unix only")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = temporary_files()
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limit[1]))
    try:
        for copy in (share, copy_of):
            with pytest.raises(OSError, match=r"file of 800,000 bytes in .*, which has .* free"):
                copy(np.zeros(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert temporary_files() == before


def test_space_is_taken_before_it_is_written():
    array = temporary.new_array((100_000,), np.dtype(float))
    assert Path(array.filename).stat().st_blocks * 512 >= array.nbytes


def test_copies_are_removed_with_what_they_are_for():
    before, descriptors = temporary_files(), len(os.listdir("/proc/self/fd"))
    values = np.random.default_rng(2).normal(size=N_ROWS)
    stored, file = copy_of(values), share(values)
    view = stored[10:]
    assert len(temporary_files() - before) == 2
    del stored
    gc.collect()
    np.testing.assert_array_equal(view, values[10:])
    np.testing.assert_array_equal(file.open(), values)
    del view, values
    gc.collect()
    assert temporary_files() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_copies_are_removed_with_their_step():
    before = temporary_files()
    rows = np.random.default_rng(3).normal(size=N_ROWS)
    with pm.Model():
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=np.arange(40) / 40)
        step = pmb.MinibatchMH(data={"y": Store(rows)}, control_variate=0)
    cloudpickle.dumps(step)
    step.step({"mu": np.array(0.0)})
    assert len(temporary_files() - before) == 1
    del step, mu
    gc.collect()
    assert temporary_files() == before


def test_a_store_is_copied_again_only_if_it_changed():
    values = np.random.default_rng(4).normal(size=N_ROWS)
    first, second = copy_of(values), copy_of(values.copy())
    assert second is first
    values[-1] += 1
    third = copy_of(values)
    assert third is not first
    assert third[-1] == values[-1]
    assert first[-1] == values[-1] - 1


KILLED = """
import os, signal, sys
from pymc_minibatch.tall.temporary import new_array
print(new_array((10,), "f8").filename, flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_folders_of_killed_processes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(temporary.tempfile, "gettempdir", lambda: str(tmp_path))
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        file = Path(process.stdout.readline().strip())
        temporary.remove_left_behind()
        assert file.exists()
        process.communicate()
    assert file.exists()
    temporary.remove_left_behind()
    assert not file.parent.exists()


def test_files_as_on_windows(monkeypatch):
    """Without locks, without reserved space, and where a file that is mapped cannot be removed."""
    monkeypatch.setattr(temporary, "fcntl", None)
    monkeypatch.delattr(os, "posix_fallocate")
    refusing = Path.unlink
    refused = []

    def unlink(path, missing_ok=False):
        refused.append(path)
        raise PermissionError(path)

    monkeypatch.setattr(Path, "unlink", unlink)
    temporary.folder_of_process.cache_clear()
    try:
        written = temporary.new_array((10,), np.dtype(float))
        written[:] = np.arange(10.0)
        array = temporary.reopened(written)
        np.testing.assert_array_equal(array, np.arange(10.0))
        path = Path(array.filename)
        del array, written
        gc.collect()
        assert refused == [path]
        assert path.exists()
        folder = temporary.own_folder()
        monkeypatch.setattr(Path, "unlink", refusing)
        temporary.remove_folder(folder, os.getpid())
        assert not folder.exists()
    finally:
        temporary.folder_of_process.cache_clear()
