"""How the cost of a transition scales with the number of rows.

    python -m benchmarks.scaling                    # 10⁵, 10⁶ and 10⁷ rows in memory
    python -m benchmarks.scaling --mapped 100000000  # to 1000 effective samples from a memory map

Both are logistic regressions on float32 columns. Transitions are timed in one process, one size
after the other in turn, so that the ratios hold on a machine that does other things too.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.outcome import Clock, peak_memory, worst_ess
from benchmarks.report import machine, table, versions
from benchmarks.sampler_minibatch import TimedMH, draw

__all__ = ["mapped", "time_transitions"]

SIZES = (10**5, 10**6, 10**7)
CHUNK_ROWS = 2**18
STEPS_PER_DRAW = 5
ROUNDS = 9
BATCH_SIZE = 100


def write_rows(X: np.ndarray, y: np.ndarray) -> None:
    """Make up rows chunk by chunk."""
    rng = np.random.default_rng(20)
    beta = rng.normal(0, 0.3, X.shape[1]).astype(np.float32)
    for first in range(0, len(X), CHUNK_ROWS):
        rows = slice(first, first + CHUNK_ROWS)
        x = rng.standard_normal(X[rows].shape, dtype=np.float32)
        X[rows] = x
        y[rows] = rng.random(len(x)) < 1 / (1 + np.exp(-x @ beta))


def make_step(data: dict[str, Any], n_columns: int, **options: Any) -> TimedMH:
    """Bind rows to a small model, which is entered and left here."""
    with pm.Model():
        X = pm.Data("X", np.zeros((50, n_columns), np.float32))
        beta = pm.Normal("beta", 0, 1, shape=n_columns)
        pm.Bernoulli("y", logit_p=X @ beta, observed=np.arange(50) % 2)
        return TimedMH(data=data, steps_per_draw=STEPS_PER_DRAW, **options)


def time_transitions(
    sizes: tuple[int, ...], n_columns: int, draws: int
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Time the same number of rows per decision at several sizes.

    Returns
    -------
    fixed, tuned
        For each size: microseconds for a transition and for a draw of `step`, rows of a decision.
        First with a first batch of the same size everywhere, then with the tuned one.
    """
    steps = []
    for size in sizes:
        X, y = np.empty((size, n_columns), np.float32), np.empty(size, np.int8)
        write_rows(X, y)
        for batch_size in (BATCH_SIZE, None):
            step = make_step({"X": X, "y": y}, n_columns, batch_size=batch_size)
            point = step.tall.model.initial_point()
            step.setup_chain(1, tune=draws, draws=draws)
            for _ in range(draws):
                point, _ = step.step(point)
            step.stop_tuning()
            steps.append((step, point))
    times = np.full((len(steps), ROUNDS), np.inf)
    rows = np.zeros(len(steps))
    for trial in range(ROUNDS):
        for i, (step, point) in enumerate(steps):
            start = time.perf_counter()
            for _ in range(draws):
                point, [stats] = step.step(point)
            times[i, trial] = (time.perf_counter() - start) / draws
            rows[i] += stats["batch_size"] / ROUNDS
            steps[i] = (step, point)
    python = [_python_overhead(step, point, draws) for step, point in steps]
    results = [
        {
            "rows": size,
            "draw": 1e6 * float(np.median(times[i])),
            "transition": 1e6 * float(np.median(times[i]) - python[i]) / STEPS_PER_DRAW,
            "batch": float(rows[i]),
        }
        for i, size in enumerate(np.repeat(sizes, 2))
    ]
    return results[::2], results[1::2]


def _python_overhead(step: TimedMH, point: Any, draws: int) -> float:
    """Time a draw without transitions."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(draws):
            _ = step.rng.bit_generator.state  # what is put back when a draw is interrupted
            step.make_transitions(step.tall.layout.flatten(point), 0)
        times.append((time.perf_counter() - start) / draws)
    return float(np.median(times))


def mapped(n_rows: int, n_columns: int, draws: int) -> dict[str, float]:
    """Sample from files on disk; return seconds of each phase and the effective sample size.

    Raises
    ------
    OSError
        If the disk is too small.
    """
    needed = n_rows * (4 * n_columns + 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if (free := shutil.disk_usage(folder).free) < 1.5 * needed:
            raise OSError(
                f"{n_rows:,} rows take {needed / 1e9:.1f} GB, and {folder} has {free / 1e9:.1f} GB "
                "left. Set TMPDIR to a folder on a larger disk, or ask for fewer rows."
            )
        clock = Clock()
        X = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float32, (n_rows, n_columns))
        y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.int8, (n_rows,))
        write_rows(X, y)
        X.flush(), y.flush()
        del X, y
        clock.mark("write the files")
        step = make_step({"X": folder / "X.npy", "y": folder / "y.npy"}, n_columns)
        assert step.reference is not None
        clock.mark("set-up")
        with step.tall.model:
            result, tuned, drawn = draw(step, draws // 2, draws, seed=1)
        clock.mark("tuning", until=tuned)
        clock.mark("draws", until=drawn)
    return clock.phases | {
        "reference": step.reference.seconds,
        "passes": step.reference.passes,
        "ess": worst_ess(result),
        "memory": peak_memory(),
    }


def main() -> None:
    """Print tables in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--mapped", type=int, help="rows out of a memory map, instead")
    parser.add_argument("--columns", type=int, default=5)
    parser.add_argument("--draws", type=int, default=1000)
    options = parser.parse_args()
    print(f"{machine()}\n\n{versions()}\n")
    if options.mapped:
        found = mapped(options.mapped, options.columns, options.draws)
        print(f"{options.mapped:,} rows of {options.columns} columns out of a memory map:\n")
        print(table(list(found), [[f"{value:,.1f}" for value in found.values()]]))
        return
    header = ["rows", "µs per transition", "ratio", "µs per draw", "ratio", "rows per decision"]
    titles = (f"First batch of {BATCH_SIZE} rows:", "Tuned first batch:")
    results = time_transitions(tuple(options.sizes), options.columns, options.draws)
    for title, found in zip(titles, results, strict=True):
        rows = [
            [
                f"{r['rows']:,}",
                f"{r['transition']:.1f}",
                f"{r['transition'] / found[0]['transition']:.2f}",
                f"{r['draw']:.1f}",
                f"{r['draw'] / found[0]['draw']:.2f}",
                f"{r['batch']:.0f}",
            ]
            for r in found
        ]
        print(f"{title}\n\n{table(header, rows)}")


if __name__ == "__main__":
    main()
