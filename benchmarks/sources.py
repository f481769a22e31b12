"""Set-up time and posterior of the same rows from different sources.

A logistic regression on five columns, four predictors and a label, from NumPy arrays, Parquet files
in a folder and in ``memory://``, zarr, and rows that stay in partitions: on threads, and on a
cluster of two workers.

    python benchmarks/sources.py --rows 1e6
    python benchmarks/sources.py --rows 1e7 --only numpy parquet memory
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = ("a", "b", "c", "d")
BETA = np.array([0.5, -1.0, 0.2, 0.1])
GROUP_ROWS = 250_000
THINNED = 5
"""Draws that are compared with the Gaussian at the mode, to which so many rows lead."""


def make_rows(n_rows: int) -> dict[str, np.ndarray]:
    """Make X and y."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n_rows, len(COLUMNS)), dtype=np.float32)
    y = rng.random(n_rows) < 1 / (1 + np.exp(-X @ BETA))
    return {"X": X, "y": y.astype(np.int8)}


def as_parquet(data: dict[str, np.ndarray], url: str) -> Any:
    """Write Parquet files; return the columns that make up the variables."""
    import fsspec
    import pyarrow as pa
    from pyarrow import parquet

    import pymc_minibatch as pmb

    n_rows = len(data["y"])
    for part, first in enumerate(range(0, n_rows, 4 * GROUP_ROWS)):
        rows = slice(first, first + 4 * GROUP_ROWS)
        arrays = {name: data["X"][rows, i] for i, name in enumerate(COLUMNS)}
        table = pa.table(arrays | {"label": data["y"][rows]})
        with fsspec.open(f"{url}/part{part:04}.parquet", "wb", auto_mkdir=True) as file:
            parquet.write_table(table, file, row_group_size=GROUP_ROWS)
    return pmb.Columns(url, {"X": list(COLUMNS), "y": "label"})


def as_zarr(data: dict[str, np.ndarray], folder: Path) -> Any:
    """Write a zarr group."""
    import zarr

    group = zarr.open_group(str(folder / "rows.zarr"), mode="w")
    create = getattr(group, "create_array", None) or group.create_dataset
    for name, values in data.items():
        create(name, shape=values.shape, dtype=values.dtype, chunks=(GROUP_ROWS, *values.shape[1:]))
        group[name][:] = values
    return folder / "rows.zarr"


def as_dask(data: dict[str, np.ndarray], folder: Path) -> Any:
    """Read the Parquet files with Dask."""
    import dask.dataframe as dd

    import pymc_minibatch as pmb

    as_parquet(data, f"file://{folder}/dask")
    return pmb.Columns(dd.read_parquet(folder / "dask"), {"X": list(COLUMNS), "y": "label"})


def as_xarray(data: dict[str, np.ndarray]) -> Any:
    """Make a Dataset on Dask."""
    import dask.array as da
    import xarray as xr

    lazy = {
        name: da.from_array(values, chunks=(GROUP_ROWS, -1)[: values.ndim])
        for name, values in data.items()
    }
    return xr.Dataset({"X": (("row", "column"), lazy["X"]), "y": ("row", lazy["y"])})


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--only", nargs="*", help="names of sources")
    options = parser.parse_args()
    data = make_rows(int(options.rows))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kinds: dict[str, tuple[Callable[[], Any], float]] = {
            "numpy": (lambda: data, 2.0**30),
            "parquet": (partial(as_parquet, data, f"file://{folder}/parquet"), 2.0**30),
            "memory": (partial(as_parquet, data, "memory://parquet"), 2.0**30),
            "zarr": (partial(as_zarr, data, folder), 2.0**30),
            "parts": (partial(as_parquet, data, f"file://{folder}/parts"), 0),
            "xarray": (partial(as_xarray, data), 0),
            "dask": (partial(as_dask, data, folder), 0),
            "cluster": (partial(as_dask, data, folder), 0),
        }
        print(
            "source    set-up, s  its CPU, s  first, s  |mean - mode|  |sd - 1|  smallest p-value"
        )
        for kind in options.only or kinds:
            make, rows_in_memory = kinds[kind]
            measure(kind, make(), rows_in_memory)


def measure(kind: str, data: Any, rows_in_memory: float) -> None:
    """Set up a step twice, sample, and print a line; the second time everything is compiled.

    CPU time is that of this process, without workers of a cluster. The mean is in posterior
    standard deviations, and sds in those of the Hessian. The p-value is the least of four
    Kolmogorov-Smirnov tests, one for each coefficient.
    """
    import pymc as pm
    from scipy.stats import kstest

    import pymc_minibatch as pmb

    with pm.Model() as model:
        X = pm.Data("X", np.zeros((50, len(COLUMNS)), np.float32))
        beta = pm.Normal("beta", 0, 1, shape=len(COLUMNS))
        pm.Bernoulli("y", logit_p=X @ beta, observed=np.arange(50) % 2)
    seconds, cpu = [], 0.0
    with cluster_of_two() if kind == "cluster" else no_cluster():
        for _ in range(2):
            start, cpu = time.perf_counter(), time.process_time()
            step = pmb.MinibatchMH(
                model=model, data=data, acceptance="exact", rows_in_memory=rows_in_memory
            )
            seconds.append(time.perf_counter() - start)
            cpu = time.process_time() - cpu
        with model:
            found = pm.sample(
                step=step, chains=2, cores=1, random_seed=1, progressbar=False
            ).posterior["beta"]
    sd = np.sqrt(np.diag(step.reference.covariance))
    z = (found.values[:, ::THINNED] - step.reference.flat) / sd
    p_values = [kstest(z[..., i].ravel(), "norm").pvalue for i in range(len(sd))]
    off = abs(found.mean(("chain", "draw")).values - step.reference.flat) / sd
    spread = abs(found.std(("chain", "draw")).values / sd - 1)
    print(
        f"{kind:8} {seconds[1]:10.1f} {cpu:11.1f} {seconds[0]:9.1f} {off.max():12.3f} "
        f"{spread.max():8.3f} {min(p_values):8.3f}",
        flush=True,
    )


def no_cluster() -> Any:
    """Do nothing."""
    from contextlib import nullcontext

    return nullcontext()


def cluster_of_two() -> Any:
    """Make a cluster on this machine."""
    from distributed import Client

    return Client(n_workers=2, threads_per_worker=1, dashboard_address=None)


if __name__ == "__main__":
    main()
