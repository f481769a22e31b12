"""What the patches of Numba and the rewrites of graphs buy where nothing is compiled yet.

Sets up and takes a draw of a logistic regression in fresh processes: with an empty cache and with
what the first run left there, with the patches of ``pymc_minibatch.jit.patches`` and without.
Prints seconds without imports, and microseconds for a draw.

    python -m benchmarks.cold_start --rows 100000 --columns 5
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

STEPS = ("MinibatchMH", "FlyMC", "SGLD")
DRAWS = 200


def measure(step: str, n_rows: int, n_columns: int) -> dict[str, float]:
    """Sample in this process; return seconds until the first draw, and for each draw after it."""
    import pymc_minibatch as pmb
    from benchmarks.transition import logistic

    with logistic(n_rows, n_columns) as model:
        start = time.perf_counter()
        made = getattr(pmb, step)(model=model, rng=1)
        point = model.initial_point()
        point, _ = made.step(point)
        first = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(DRAWS):
            point, _ = made.step(point)
        return {"first": first, "draw": (time.perf_counter() - start) / DRAWS}


def in_process(step: str, folder: str, patched: bool, rows: int, columns: int) -> dict[str, float]:
    """Measure in a process with its own cache."""
    environment = os.environ | {
        "PYTENSOR_FLAGS": f"base_compiledir={folder}",
        "PYMC_MINIBATCH_PATCHES": str(int(patched)),
    }
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.cold_start", "--measure", step]
    command += ["--rows", str(rows), "--columns", str(columns)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print a line for each step, with and without patches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=5)
    parser.add_argument("--steps", nargs="+", default=STEPS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.rows, options.columns)))
        return
    print(f"{'step':14}{'patched':>9}{'cold, s':>10}{'warm, s':>10}{'µs a draw':>12}")
    for step in options.steps:
        for patched in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                cold, warm = (
                    in_process(step, folder, patched, options.rows, options.columns)
                    for _ in range(2)
                )
            numbers = f"{cold['first']:10.1f}{warm['first']:10.1f}{1e6 * warm['draw']:12.1f}"
            print(f"{step:14}{patched!s:>9}{numbers}", flush=True)


if __name__ == "__main__":
    main()
