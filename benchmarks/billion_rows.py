"""Sample a logistic regression on rows that no machine holds.

Rows are made on the fly by the partitions of Dask arrays, 10 float32 columns and a label, so that
nothing of their size is ever stored. Two workers with 2 GB each run the passes; chains run in the
main process on rows that were gathered.

    python benchmarks/billion_rows.py --rows 1e7
    python benchmarks/billion_rows.py --rows 1e9 --part-rows 2.5e6 --chains 1
"""

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

N_COLUMNS = 10
ROWS_IN_MEMORY = 2e7
BETA = np.linspace(-0.5, 0.5, N_COLUMNS)


def make_rows(part: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Make the rows of a partition, the same each time."""
    rng = np.random.Generator(np.random.SFC64([2026, part]))
    X = rng.random((n, N_COLUMNS), dtype=np.float32)
    X -= np.float32(0.5)
    X *= np.float32(12**0.5)  # with variance 1
    eta = X @ BETA.astype(np.float32)
    return X, (rng.random(n, dtype=np.float32) < 1 / (1 + np.exp(-eta))).astype(np.int8)


def rows_of(n_rows: int, part_rows: int) -> dict[str, object]:
    """Return Dask arrays whose blocks make their rows."""
    import dask
    import dask.array as da

    X, y = [], []
    for part, first in enumerate(range(0, n_rows, part_rows)):
        n = min(part_rows, n_rows - first)
        block = dask.delayed(make_rows, nout=2)(part, n)
        X.append(da.from_delayed(block[0], (n, N_COLUMNS), np.float32))
        y.append(da.from_delayed(block[1], (n,), np.int8))
    return {"X": da.concatenate(X), "y": da.concatenate(y)}


def watch_jobs(jobs: list[tuple[str, int, float, float]]) -> None:
    """Note title, partitions, seconds, and CPU seconds of all workers, of each job."""
    from distributed import default_client

    from pymc_minibatch.tall.partitions import Partitions

    run = Partitions.run

    def cpu_seconds() -> float:
        return sum(default_client().run(cpu_of_worker).values())

    def timed(self: Partitions, function: object, *args: object, **options: object) -> object:
        start, cpu = time.perf_counter(), cpu_seconds()
        try:
            return run(self, function, *args, **options)
        finally:
            seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
            chosen = options.get("chosen")
            n = len(self.parts) if chosen is None else len(chosen)
            title = str(options.get("title") or getattr(function, "__name__", type(function)))
            jobs.append((title, n, seconds, cpu))
            print(f"{title}: {n} partitions, {seconds:.1f} s, CPU {cpu:.1f} s", flush=True)

    Partitions.run = timed


def cpu_of_worker() -> float:
    """CPU seconds of this process so far."""
    return time.process_time()


def loopback_bytes() -> int:
    """Bytes that processes of this machine have sent each other."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    [fields] = [line.split() for line in lines if line.strip().startswith("lo:")]
    return int(fields[9])


def bytes_from_workers(dask_worker: Any) -> int:
    """Bytes that a worker has got from other workers."""
    return int(sum(entry["total"] for entry in dask_worker.transfer_incoming_log))


def peak_memory() -> int:
    """Peak memory of this process, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Run it and print a report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--part-rows", type=float, default=5e5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", default="2GB", help="limit of each worker")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--chains", type=int, default=2, help="of each of two runs")
    options = parser.parse_args()

    import arviz as az
    import pymc as pm
    from distributed import Client, LocalCluster

    import pymc_minibatch as pmb

    jobs: list[tuple[str, int, float, float]] = []
    watch_jobs(jobs)
    with (
        LocalCluster(
            n_workers=options.workers,
            threads_per_worker=1,
            memory_limit=options.memory,
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
        pm.Model(),
    ):
        stand_in = np.zeros((50, N_COLUMNS), np.float32)
        beta = pm.Normal("beta", 0, 1, shape=N_COLUMNS)
        pm.Bernoulli("y", logit_p=pm.Data("X", stand_in) @ beta, observed=np.arange(50) % 2)
        sent, start = loopback_bytes(), time.perf_counter()
        step = pmb.MinibatchMH(
            data=rows_of(int(options.rows), int(options.part_rows)),
            acceptance="exact",
            rows_in_memory=ROWS_IN_MEMORY,
        )
        ready = time.perf_counter()
        runs = [
            pm.sample(
                options.draws,
                tune=500,
                step=step,
                chains=options.chains,
                cores=1,
                random_seed=seed,
                progressbar=False,
            )
            for seed in (1, 2)
        ]
        done = time.perf_counter()
        peaks = client.run(peak_memory)
        between = sum(client.run(bytes_from_workers).values())
        sent = loopback_bytes() - sent
    sd = np.sqrt(np.diag(step.reference.covariance))
    means = [run.posterior["beta"].mean(("chain", "draw")).values for run in runs]
    sds = [run.posterior["beta"].std(("chain", "draw")).values for run in runs]
    report = {
        "rows": step.n_rows,
        "choice": step.choice,
        "seconds_set_up": round(ready - start, 1),
        "seconds_of_two_runs": round(done - ready, 1),
        "seconds_in_jobs": round(sum(seconds for *_, seconds, _ in jobs), 1),
        "cpu_seconds_in_jobs": round(sum(cpu for *_, cpu in jobs), 1),
        "megabytes_between_workers": round(between / 1e6, 3),
        "megabytes_between_processes": round(sent / 1e6, 1),
        "peak_memory_MB": {
            "main": round(peak_memory() / 1e6),
            "workers": [round(peak / 1e6) for peak in peaks.values()],
        },
        "mean_less_mode_in_sds": [
            (abs(mean - step.reference.flat) / sd).max().round(3) for mean in means
        ],
        "between_seeds_in_sds": (abs(means[0] - means[1]) / sd).max().round(3),
        "sd_by_that_of_the_hessian": [
            [(s / sd).min().round(3), (s / sd).max().round(3)] for s in sds
        ],
        "ess_min": [round(float(az.ess(run).beta.min())) for run in runs],
        "rows_for_each_decision": round(float(runs[0].sample_stats["batch_size"].mean()), 3),
    }
    print(json.dumps(report, indent=1, default=float))


if __name__ == "__main__":
    main()
