"""Runs on disk that are stopped, or killed, and continued: the draws of a run that was not."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb
from pymc_minibatch import run as running
from pymc_minibatch.store import decoded, encoded

QUIET = {"progressbar": False, "compute_convergence_checks": False}
TUNE, DRAWS = 110, 90
UNLIKE = {"setup_seconds"}
"""Stats that differ from run to run."""


def plain_model(n=400, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=2)
        pm.Poisson("y", pm.math.exp(pm.math.dot(x, beta)), observed=rng.poisson(1.0, n))
    return model


def effects_model():
    rng = np.random.default_rng(2)
    group = rng.integers(0, 60, 600)
    with pm.Model() as model:
        effect = pm.Normal("effect", pm.Normal("mu"), pm.HalfNormal("sd"), shape=60)
        pm.Bernoulli("y", logit_p=effect[group], observed=rng.integers(0, 2, 600))
    return model


MODELS = {"plain": plain_model, "effects": effects_model}


@pytest.fixture(scope="module", params=list(MODELS))
def made(request):
    model = MODELS[request.param]()
    step = pmb.MinibatchMH(model=model)
    return model, step, sampled(model, step)


def sampled(model, step, **options):
    options = {"cores": 1, "random_seed": 4} | QUIET | options
    return pmb.sample(model, DRAWS, TUNE, 2, step=step, **options)


def same(found, expected):
    for group in ("posterior", "sample_stats"):
        a, b = (tree[group].to_dataset() for tree in (found, expected))
        assert set(a.data_vars) == set(b.data_vars)
        for name in set(b.data_vars) - UNLIKE:
            np.testing.assert_array_equal(a[name].values, b[name].values, err_msg=name)


def stopped_after(monkeypatch, n_draws):
    """Interrupt a run once a chain has made so many draws, in blocks of a few."""
    made = running.blocks_of

    def some(*args):
        for first, block in made(*args):
            yield first, block
            if first + len(block.points) >= n_draws:
                raise KeyboardInterrupt

    monkeypatch.setattr(running, "blocks_of", some)
    monkeypatch.setattr(running, "MOST_DRAWS", 7)


@pytest.mark.filterwarnings("ignore:The run was interrupted")
@pytest.mark.parametrize("n_draws", [1, 100, 110, 140])
def test_a_stopped_run_goes_on_as_if_it_had_not(made, tmp_path, monkeypatch, n_draws):
    model, step, expected = made
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        stopped_after(patch, n_draws)
        with suppress(pm.exceptions.SamplingError):  # if there is no draw to return
            sampled(model, step, store=path)
    assert list((path / "chain-0").glob("[0-9]*.npz"))
    assert not list((path / "chain-1").glob("[0-9]*.npz"))
    same(pmb.resume(path, model, step=step, **QUIET), expected)


def test_a_finished_run_is_read_and_extended(made, tmp_path):
    model, step, expected = made
    same(sampled(model, step, store=tmp_path / "run", cores=2), expected)
    same(pmb.resume(tmp_path / "run", model, step=step, **QUIET), expected)
    longer = pmb.resume(tmp_path / "run", model, step=step, draws=DRAWS + 20, **QUIET)
    assert longer.posterior.sizes["draw"] == DRAWS + 20
    same(longer.isel(draw=slice(DRAWS)), expected)


SCRIPT = """
import pickle, sys
sys.path.insert(0, {tests!r})
import pymc_minibatch as pmb
from pymc_minibatch import run
from test_stored_runs import MODELS, QUIET, sampled
run.MOST_DRAWS = 3
model = MODELS[{kind!r}]()
step = pmb.MinibatchMH(model=model)
if {what!r} == "resumed":
    found = pmb.resume({path!r}, model, step=step, **QUIET)
else:
    found = sampled(model, step, store={path!r}, cores=2)
with open({path!r} + "-{what}", "wb") as file:
    pickle.dump(found, file)
"""


def in_a_process(what, kind, path):
    given = {"what": what, "kind": kind, "path": os.fspath(path)}
    script = SCRIPT.format(tests=os.path.dirname(__file__), **given)
    return subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)


def _children(pid):
    told = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    pairs = [map(int, line.split()) for line in told.stdout.splitlines()]
    return [child for child, parent in pairs if parent == pid]


def _wait_for_end(pids):
    """Wait until processes have ended, or are zombies, half a minute at most."""
    last = time.monotonic() + 30
    for pid in pids:
        while True:
            assert time.monotonic() < last, f"Process {pid} has not ended."
            told = subprocess.run(
                ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True
            )
            if not told.stdout.strip() or told.stdout.startswith("Z"):
                break
            time.sleep(0.05)


def test_blocks_may_overlap_or_be_missing(made, tmp_path, monkeypatch):
    """As if another process had gone on for a moment, or a file had been lost."""
    model, step, expected = made
    for name, most in (("run", 3), ("other", 5)):
        monkeypatch.setattr(running, "MOST_DRAWS", most)
        sampled(model, step, store=tmp_path / name)
    for other in (tmp_path / "other").glob("chain-*/[0-9]*.npz"):
        other.rename(tmp_path / "run" / other.relative_to(tmp_path / "other"))
    same(pmb.resume(tmp_path / "run", model, step=step, **QUIET), expected)
    for file in sorted((tmp_path / "run" / "chain-0").glob("[0-9]*.npz"))[10:14]:
        file.unlink()
    longer = pmb.resume(tmp_path / "run", model, step=step, draws=2 * DRAWS, **QUIET)
    same(pmb.resume(tmp_path / "run", model, step=step, **QUIET), longer)


@pytest.mark.parametrize("kind", list(MODELS))
def test_a_killed_run_goes_on_as_if_it_had_not(kind, tmp_path):
    assert in_a_process("whole", kind, tmp_path / "whole").wait() == 0
    path = tmp_path / "run"
    killed = in_a_process("killed", kind, path)
    while killed.poll() is None and len(list(path.glob("chain-*/[0-9]*.npz"))) < 45:
        time.sleep(0.001)
    chains = _children(killed.pid)
    assert len(chains) == 2 or killed.poll() is not None
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert in_a_process("resumed", kind, path).wait() == 0
    _wait_for_end(chains)
    assert not (tmp_path / "run-killed").exists()
    found, expected = (
        pickle.loads((tmp_path / name).read_bytes()) for name in ("run-resumed", "whole-whole")
    )
    same(found, expected)


def test_a_run_is_not_continued_on_other_rows_or_by_another_step(tmp_path):
    model = plain_model()
    step = pmb.MinibatchMH(model=model)
    options = {"cores": 1} | QUIET
    pmb.sample(model, 5, 5, 1, step=step, store=tmp_path / "run", **options)
    others = plain_model(seed=9)
    with pytest.raises(ValueError, match="cannot be continued: rows were others"):
        pmb.resume(tmp_path / "run", others, **QUIET)
    other_step = pmb.MinibatchMH(model=model, steps_per_draw=31)
    with pytest.raises(ValueError, match="steps_per_draw was"):
        pmb.resume(tmp_path / "run", model, step=other_step, **QUIET)
    with pytest.raises(ValueError, match=r"exists\. pmb\.resume"):
        pmb.sample(model, 5, 5, 1, step=step, store=tmp_path / "run", **options)
    with pytest.raises(ValueError, match="initvals is no option of a run that is continued"):
        pmb.resume(tmp_path / "run", model, initvals={}, **QUIET)
    with pytest.raises(ValueError, match="holds no run"):
        pmb.resume(tmp_path, model, **QUIET)
    with pytest.raises(ValueError, match="5 are kept already; got 4"):
        pmb.resume(tmp_path / "run", model, draws=4, **QUIET)


@pytest.mark.parametrize("kept", [slice(0), slice(2), slice(-9)])
@pytest.mark.parametrize("name", ["run.json", "chain-0/start.npz"])
def test_a_damaged_file_of_a_run_is_named(tmp_path, name, kept):
    model = plain_model()
    step = pmb.MinibatchMH(model=model)
    pmb.sample(model, 5, 5, 1, step=step, cores=1, store=tmp_path / "run", **QUIET)
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes()[kept])
    with pytest.raises(ValueError, match=f"{path.name} cannot be read"):
        pmb.resume(tmp_path / "run", plain_model(), **QUIET)


def test_nuts_is_not_stored(tmp_path):
    with pytest.warns(UserWarning, match="This run is not stored"):
        pmb.sample(plain_model(), 5, 5, 1, store=tmp_path / "run", **QUIET)
    assert not (tmp_path / "run").exists()


def test_what_is_written_is_read_without_pickles():
    arrays = []
    value = {"a": (1, 2.5, None, True, "text"), "b": [np.arange(3), np.float64(2.0)], "c": 2**90}
    text = json.dumps(encoded(value, arrays))
    found = decoded(json.loads(text), arrays, value)
    np.testing.assert_equal(found, value)
    assert isinstance(found["b"], list)
    with pytest.raises(TypeError, match="A state holds a object"):
        encoded(object(), [])
    with pytest.raises(TypeError, match="A state holds a ndarray"):
        encoded(np.array([object()]), [])
