"""Each example runs from beginning to end in its quick mode, and reads the rows that it should."""

import importlib
import itertools
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.ndimage import zoom

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_mixture(tmp_path):
    """Rows for a decision: few for the corrected Barker test, far more for the two others."""
    figure = tmp_path / "mixture.png"
    command = [sys.executable, str(EXAMPLES / "mixture.py"), "--quick", "--figure", str(figure)]
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    rows = {
        name: float(
            re.search(rf"^{re.escape(name)} +([\d,]+)", run.stdout, re.M)[1].replace(",", "")
        )
        for name in ("MinibatchMH", "AustereMH(c)", "MHSubLhd")
    }
    assert rows["MinibatchMH"] < 230
    assert rows["AustereMH(c)"] > 5 * rows["MinibatchMH"]
    assert rows["MHSubLhd"] > rows["AustereMH(c)"]
    assert figure.stat().st_size > 10_000


@pytest.mark.slow
def test_multilevel(tmp_path):
    """The cost of an error grows with the rows for MALA, and hardly for multilevel SGLD."""
    command = [sys.executable, str(EXAMPLES / "multilevel.py"), "--quick", "--figures", tmp_path]
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    power = {
        name: float(re.search(rf"^{name} +(-?[\d.]+)$", run.stdout, re.M)[1])
        for name in ("multilevel SGLD", "MALA")
    }
    assert power["multilevel SGLD"] < 0.5 < power["MALA"]
    for figure in ("multilevel_coupling.png", "multilevel_cost.png"):
        assert (tmp_path / figure).stat().st_size > 10_000


@pytest.fixture
def run_example(monkeypatch, capsys):
    """Run an example in this process, which has compiled much of it already; return its lines."""
    matplotlib = pytest.importorskip("matplotlib", reason="the examples draw with Matplotlib")
    matplotlib.use("Agg")
    monkeypatch.syspath_prepend(EXAMPLES)

    def run(name, *arguments):
        importlib.import_module(name).main([*map(str, arguments)])
        return capsys.readouterr().out.splitlines()

    return run


def cells(lines, first):
    """Return the other cells of the line of a table that begins with these, as numbers."""
    [line] = [line for line in lines if line.startswith(f"| {first} |")]
    text = line.removeprefix(f"| {first} |").replace(",", "")
    return [[float(number) for number in re.findall(r"[\d.]+", cell)] for cell in text.split("|")]


@pytest.fixture
def small_digits(tmp_path):
    """Write the digits that come with scikit-learn in the format of MNIST."""
    datasets = pytest.importorskip("sklearn.datasets", reason="the digits are scikit-learn's")
    data = datasets.load_digits()
    chosen = np.isin(data.target, [1, 7, 9])
    images = np.array([zoom(image, 3.5, order=1) for image in data.images[chosen]])
    path = tmp_path / "digits.npz"
    images = (images * 255 / 16).reshape(-1, 784).astype(np.uint8)
    np.savez(path, images=images, labels=data.target[chosen])
    return path


@pytest.mark.slow
def test_logistic(run_example, small_digits, tmp_path):
    """The corrected Barker test reads fewer rows than the austere one, and both learn."""
    lines = run_example(
        "logistic_tests", "--quick", "--digits", small_digits, "--figures", tmp_path
    )
    found = {name: cells(lines, name) for name in ("MinibatchMH", "AustereMH(nc)")}
    rows = {name: values[0][0] for name, values in found.items()}
    assert 100 <= rows["MinibatchMH"] < rows["AustereMH(nc)"]
    assert all(values[4][0] > 85 for values in found.values())
    for name in ("rows", "accuracy"):
        assert (tmp_path / f"logistic_quick_{name}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_firefly_table(run_example, small_digits):
    """Tuned bounds leave few rows bright, and the default update learns more from each."""
    lines = run_example("firefly_table", "--quick", "--digits", small_digits)
    regular, untuned, tuned, default = (
        [number for [number] in cells(lines, name)[:4]]
        for name in (
            "regular, metropolis",
            "untuned FlyMC, metropolis",
            "MAP-tuned FlyMC, metropolis",
            "MAP-tuned FlyMC, default",
        )
    )
    assert regular[:2] == [2000, 2000]
    assert tuned[0] < 0.5 * untuned[0]
    assert tuned[1] < 0.5 * untuned[1]
    assert default[3] > 2


@pytest.mark.slow
def test_worst_case(run_example, tmp_path):
    """Steps a tenth as long need a hundredth of the rows, and never all; not so with AustereMH."""
    figure = tmp_path / "worst_case.png"
    lines = run_example("worst_case", "--quick", "--figure", figure)
    (_, (full, full_all)) = cells(lines, "1 | MinibatchMH")[:2]
    (_, (short, short_all)) = cells(lines, "0.1 | MinibatchMH")[:2]
    (_, (austere, austere_all)) = cells(lines, "0.1 | AustereMH(nc)")[:2]
    assert full > 30
    assert full_all > 20
    assert short < 3
    assert short_all == 0
    assert austere > 2 * short
    assert austere_all > 0
    assert figure.stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*step_size of:UserWarning")
def test_sgfs_figure(run_example, small_digits, tmp_path):
    """The full Fisher information gives the covariance; its diagonal and long SGLD steps do not."""
    figure = tmp_path / "sgfs_figure.png"
    lines = run_example("sgfs_figure", "--quick", "--digits", small_digits, "--figure", figure)
    errors = {
        name: cells(lines, name)[2][0]
        for name in ("SGFS-f | α = 0", "SGFS-f | α = 1", "SGFS-d | α = 0", "SGLD | ε = 0.001")
    }
    assert errors["SGFS-f | α = 0"] < 0.25
    assert errors["SGFS-f | α = 1"] < 0.25
    assert errors["SGFS-d | α = 0"] > 0.25
    assert errors["SGLD | ε = 0.001"] > 0.5
    assert figure.stat().st_size > 10_000


@pytest.mark.slow
def test_micropolis(run_example, tmp_path):
    pytest.importorskip("sklearn.datasets", reason="the digits are scikit-learn's")
    figure = tmp_path / "micropolis.png"
    lines = run_example("micropolis", "--quick", "--figure", figure)
    for name in ("full batch", "naive, 64 rows", "exact, 64 rows"):
        accuracy, _, [n_steps], [accepted], *_ = cells(lines, name)
        assert 0 <= accuracy[0] <= 100
        assert n_steps > 0
        assert 0 < accepted <= 1  # in half a second all of ten steps may be
    assert figure.stat().st_size > 10_000


@pytest.mark.slow
def test_trust(run_example, tmp_path):
    """Both steps agree with NUTS, and every figure is drawn."""
    lines = run_example("trust", "--quick", "--figures", tmp_path)
    [verdicts] = [line.split()[1:] for line in lines if line.startswith("verdict")]
    assert verdicts == ["agrees", "agrees", "baseline"]
    figures = sorted(path.name for path in tmp_path.glob("trust_*.png"))
    assert len(figures) == 7
    assert all((tmp_path / name).stat().st_size > 8_000 for name in figures)


@pytest.mark.slow
def test_sgfs_networks(run_example, monkeypatch):
    """Each method learns the 8 x 8 digits far better than by chance, in 300 draws."""
    pytest.importorskip("sklearn.datasets", reason="the digits are scikit-learn's")
    clock = itertools.count(step=0.01)  # the same number of draws on every machine
    still = SimpleNamespace(process_time=lambda: next(clock))
    monkeypatch.setattr("sgfs_networks.time", still)
    lines = run_example("sgfs_networks", "--quick", "--only", "digits")
    for name in ("SGD", "SGLD", "SGFS-f"):
        assert cells(lines, name)[2][0] < 50
