"""The grid of Micropolis II: a neural network sampled by minibatch Metropolis-Hastings.

A network of 64, 32, 32 and 10 units (3,466 parameters, flat priors) learns the 8 × 8 digits that
come with scikit-learn, by random walks with four acceptance tests: Metropolis's on all rows, the
naive one, Barker's without a correction, and the corrected ("exact") one; batches of 2 and 64 rows,
and step sizes and temperatures of the grid. Each runs for 30 seconds of processor time. The script
prints the table of accuracies on digits held out, and draws the figures of accuracy against rows
and against time.

Micropolis's log ratio is a mean over rows, so its temperature is N times lower than here. Barker's
test has no noise but that of the batch there; here a temperature so low that no other is added.

Run ``python examples/micropolis.py [--quick] [--seconds S] [--figure FILE]``. ``--quick`` gives
three of the runs half a second each.
"""

import argparse
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits

import pymc_minibatch as pmb

SEED = 64
UNITS = (64, 32, 32, 10)
N_HELD_OUT = 360
NO_TEMPERATURE = 1e-9
STEPS_PER_DRAW = 10
SPACING = 1.04
"""Accuracy is computed when so many times as many rows have been read."""


@dataclass(frozen=True)
class Setting:
    """A line of Micropolis's grid, with the accuracy that it reports, in percent."""

    name: str
    acceptance: pmb.Naive | pmb.Barker | pmb.CorrectedBarker
    batch_size: int | None
    step_sd: float
    temperature: float
    reported: float


GRID = (
    Setting("full batch", pmb.Naive(), None, 3e-3, 7e-4, 92.7),
    Setting("naive, 2 rows", pmb.Naive(), 2, 1e-3, 1e-5, 70.6),
    Setting("naive, 64 rows", pmb.Naive(), 64, 1e-3, 5e-5, 90.3),
    Setting("Barker, 2 rows", pmb.Barker(), 2, 1e-3, NO_TEMPERATURE, 74.7),
    Setting("Barker, 64 rows", pmb.Barker(), 64, 1e-3, NO_TEMPERATURE, 90.4),
    Setting("exact, 2 rows", pmb.CorrectedBarker(test_error=None), 2, 3e-4, 3e-3, 40.7),
    Setting("exact, 64 rows", pmb.CorrectedBarker(test_error=None), 64, 1e-3, 3e-3, 84.6),
)


QUICK = ("full batch", "naive, 64 rows", "exact, 64 rows")


@dataclass
class Progress:
    """What a run has used, and how good it was then."""

    rows: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    n_steps: int = 0
    n_accepted: float = 0.0
    batch_size: float = 0.0


# --- Data and model ---------------------------------------------------------------------------


def split_digits() -> tuple[np.ndarray, ...]:
    """Return pixels from 0 to 1 and digits, to learn from and held out."""
    data = load_digits()
    order = np.random.default_rng(SEED).permutation(data.target.size)
    held_out, kept = np.split(order, [N_HELD_OUT])
    pixels = data.data / 16
    return pixels[kept], data.target[kept], pixels[held_out], data.target[held_out]


def build_model(pixels: np.ndarray, digits: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        layer = pm.Data("pixels", pixels)
        for i, (n_in, n_out) in enumerate(pairwise(UNITS)):
            weight = pm.Flat(f"weight{i}", shape=(n_in, n_out))
            bias = pm.Flat(f"bias{i}", shape=n_out)
            layer = (pt.maximum(layer, 0.0) if i else layer) @ weight + bias
        pm.Categorical("digit", logit_p=layer, observed=digits)
    return model


def start() -> dict[str, np.ndarray]:
    """Draw weights and biases uniformly, within 1 / √(number of inputs)."""
    rng = np.random.default_rng(SEED)
    point = {}
    for i, (n_in, n_out) in enumerate(pairwise(UNITS)):
        point[f"weight{i}"] = rng.uniform(-1, 1, (n_in, n_out)) / np.sqrt(n_in)
        point[f"bias{i}"] = rng.uniform(-1, 1, n_out) / np.sqrt(n_in)
    return point


def accuracy(point: dict[str, np.ndarray], pixels: np.ndarray, digits: np.ndarray) -> float:
    """Return the percentage of right predictions."""
    layer = pixels
    for i in range(len(UNITS) - 1):
        layer = (np.maximum(layer, 0) if i else layer) @ point[f"weight{i}"] + point[f"bias{i}"]
    return 100 * float((layer.argmax(axis=1) == digits).mean())


# --- Sampling ---------------------------------------------------------------------------------


def run(model: pm.Model, setting: Setting, seconds: float, held_out: tuple) -> Progress:
    n_rows = len(model["pixels"].get_value(borrow=True))
    step = pmb.MinibatchMH(
        model=model,
        acceptance=setting.acceptance,
        proposal=pmb.RandomWalk(cov=setting.step_sd**2, adapt=False),
        batch_size=setting.batch_size or n_rows,
        temperature=setting.temperature * n_rows,
        control_variate=0,
        steps_per_draw=STEPS_PER_DRAW,
        rng=SEED,
    )
    step.stop_tuning()
    point, progress, draws = start(), Progress(), 0
    rows, spent, wanted = 0.0, 0.0, 0.0
    while spent < seconds:
        began = time.process_time()
        point, [stats] = step.step(point)
        spent += time.process_time() - began
        rows += stats["n_likelihood"]
        draws += 1
        progress.n_accepted += STEPS_PER_DRAW * stats["acceptance_rate"]
        progress.batch_size += (stats["batch_size"] - progress.batch_size) / draws
        if rows >= wanted or spent >= seconds:
            wanted = SPACING * rows
            progress.rows.append(rows)
            progress.seconds.append(spent)
            progress.accuracy.append(accuracy(point, *held_out))
    progress.n_steps = STEPS_PER_DRAW * draws
    return progress


# --- Table and figure -------------------------------------------------------------------------


def table_line(setting: Setting, progress: Progress) -> str:
    return (
        f"| {setting.name} | {progress.accuracy[-1]:.1f} % | {setting.reported} % "
        f"| {progress.n_steps:,} | {progress.n_accepted / progress.n_steps:.2f} "
        f"| {progress.batch_size:,.0f} | {progress.rows[-1]:.1e} |"
    )


def draw(runs: dict[str, Progress], path: Path) -> None:
    figure, (by_rows, by_time) = plt.subplots(
        1, 2, figsize=(11, 4.2), sharey=True, layout="constrained"
    )
    tests = list(dict.fromkeys(name.split(",")[0] for name in runs))
    for name, progress in runs.items():
        style = {
            "color": pmb.plots.COLORS[tests.index(name.split(",")[0])],
            "linestyle": "--" if name.endswith(" 2 rows") else "-",
            "linewidth": 1.3,
        }
        by_rows.plot(progress.rows, progress.accuracy, label=name, **style)
        by_time.plot(progress.seconds, progress.accuracy, label=name, **style)
    by_rows.set_xscale("log")
    by_rows.set_xlabel("row likelihoods evaluated")
    by_rows.set_ylabel("accuracy on digits held out (%)")
    by_time.set_xlabel("processor time (s)")
    by_time.legend(fontsize="small")
    figure.savefig(path)
    print(f"figure: {path}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three runs of half a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="processor time of each run")
    parser.add_argument("--figure", type=Path, default=Path("micropolis.png"))
    options = parser.parse_args(arguments)
    pixels, digits, *held_out = split_digits()
    model = build_model(pixels, digits)
    seconds = 0.5 if options.quick else options.seconds
    print(
        f"{len(digits):,} rows, {len(held_out[1])} held out, "
        f"{seconds:g} seconds of processor time each"
    )
    print("| test | accuracy | Micropolis | steps | accepted | rows for a decision | read in all |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    runs = {}
    for setting in GRID:
        if options.quick and setting.name not in QUICK:
            continue
        runs[setting.name] = run(model, setting, seconds, tuple(held_out))
        print(table_line(setting, runs[setting.name]), flush=True)
    draw(runs, options.figure)


if __name__ == "__main__":
    plt.switch_backend("Agg")
    main()
