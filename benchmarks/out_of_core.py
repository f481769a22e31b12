"""Sample a posterior whose data are larger than the memory the process may use.

Writes a logistic regression's data to files, then, in a process of its own under a limit on its
data segment (RLIMIT_DATA: heap and private mappings), binds them to a small model and samples. The
memory reported is what the processes hold beside the mapped files (RssAnon and RssShmem), the
largest of all at any time.

    python benchmarks/out_of_core.py --gigabytes 6 --limit 2 --store npy
    python benchmarks/out_of_core.py --gigabytes 6 --limit 2 --store zarr
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

N_COLUMNS = 25
CHUNK_ROWS = 2**18
GIGABYTE = 10**9


def write(folder: Path, gigabytes: float, store: str) -> np.ndarray:
    """Write X and y chunk by chunk; return the coefficients that made y."""
    n_rows = int(gigabytes * GIGABYTE) // (4 * N_COLUMNS)
    rng = np.random.default_rng(1)
    beta = rng.normal(0, 0.5, N_COLUMNS)
    X = create(folder / "X", (n_rows, N_COLUMNS), np.float32, store)
    y = create(folder / "y", (n_rows,), np.int8, store)
    for first in range(0, n_rows, CHUNK_ROWS):
        rows = slice(first, min(first + CHUNK_ROWS, n_rows))
        x = rng.standard_normal((rows.stop - first, N_COLUMNS), dtype=np.float32)
        X[rows] = x
        y[rows] = rng.random(len(x)) < 1 / (1 + np.exp(-x @ beta))
    return beta


def create(path: Path, shape: tuple[int, ...], dtype: type, store: str) -> np.ndarray:
    """Create an array on disk."""
    if store == "npy":
        return np.lib.format.open_memmap(path.with_suffix(".npy"), "w+", dtype, shape)
    import zarr

    chunks = (CHUNK_ROWS, *shape[1:])
    return zarr.open_array(str(path), "w", shape=shape, dtype=dtype, chunks=chunks)


def sample(folder: Path, store: str, limit: float) -> None:
    """Sample under the limit, and print a report as JSON."""
    resource.setrlimit(resource.RLIMIT_DATA, (int(limit * GIGABYTE),) * 2)
    watch = MemoryWatch()
    import arviz as az
    import pymc as pm

    import pymc_minibatch as pmb

    if store == "npy":
        data = {name: folder / f"{name}.npy" for name in ("X", "y")}
    else:
        import zarr

        data = {name: zarr.open_array(str(folder / name), "r") for name in ("X", "y")}
    stand_in = np.zeros((50, N_COLUMNS), np.float32)
    with pm.Model():
        beta = pm.Normal("beta", 0, 1, shape=N_COLUMNS)
        pm.Bernoulli("y", logit_p=pm.Data("X", stand_in) @ beta, observed=np.arange(50) % 2)
        start = time.perf_counter()
        step = pmb.MinibatchMH(data=data, steps_per_draw=5)
        ready = time.perf_counter()
        idata = pm.sample(1000, step=step, chains=2, cores=2, random_seed=1, progressbar=False)
    truth = np.load(folder / "beta.npy")
    posterior = idata.posterior["beta"]
    z = (posterior.mean(("chain", "draw")) - truth) / posterior.std(("chain", "draw"))
    report = {
        "rows": step.n_rows,
        "seconds_set_up": round(ready - start, 1),
        "seconds_sampling": round(time.perf_counter() - ready, 1),
        "passes_over_all_rows": round(step.reference.passes, 1),
        "ess_min": round(float(az.ess(idata).beta.min())),
        "rows_per_decision": round(float(idata.sample_stats.batch_size.mean()), 1),
        "largest_distance_from_truth_in_sds": round(float(abs(z).max()), 2),
        "memory_beside_files_MB": round(watch.stop() / 1e6),
    }
    print(json.dumps(report))


class MemoryWatch:
    """Follow the memory of this process and its children."""

    def __init__(self) -> None:
        self.peak, self._done = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(0.05):
            tasks = Path("/proc/self/task").glob("*/children")
            children = [pid for task in tasks for pid in task.read_text().split()]
            for process in ("self", *children):
                try:
                    text = Path(f"/proc/{process}/status").read_text()
                except OSError:  # it has ended
                    continue
                fields = dict(line.split(":", 1) for line in text.splitlines())
                held = [fields.get(name, "0 kB") for name in ("RssAnon", "RssShmem")]
                self.peak = max(self.peak, 1024.0 * sum(int(field.split()[0]) for field in held))

    def stop(self) -> float:
        """Return the largest memory of one process, in bytes."""
        self._done.set()
        self._thread.join()
        return self.peak


def main() -> None:
    """Write the data and sample in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=6.0, help="size of X")
    parser.add_argument("--limit", type=float, default=2.0, help="of the process, in gigabytes")
    parser.add_argument("--store", choices=["npy", "zarr"], default="npy")
    parser.add_argument("--sample", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sample:
        sample(options.sample, options.store, options.limit)
        return
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        np.save(Path(folder) / "beta.npy", write(Path(folder), options.gigabytes, options.store))
        print(f"Wrote the data in {time.perf_counter() - start:.0f} seconds.", flush=True)
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--sample", folder], check=True)


if __name__ == "__main__":
    main()
