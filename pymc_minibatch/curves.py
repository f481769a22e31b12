"""Curves that figures of results draw: stats, running means and rows read, draw by draw."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_minibatch.compare import aligned_runs, shared_variables
from pymc_minibatch.panels import outline
from pymc_minibatch.results import Result, named_results

__all__ = [
    "Run",
    "Runs",
    "curves_of_stat",
    "drawable",
    "matrices_of",
    "mean_over_chains",
    "named",
    "outlines_of_sizes",
    "rows_read_by",
    "running_means",
]

LEAST_DRAWS = 10
"""With fewer draws a curve would show its bandwidth alone."""

type Run = xr.DataTree
type Runs = Mapping[str, xr.DataTree]


def named(runs: Run | Runs) -> Any:
    """Take a single run as one by name."""
    is_one = isinstance(runs, xr.DataTree) or not isinstance(runs, Mapping)
    return {"run": runs} if is_one else runs


def curves_of_stat(runs: Run | Runs, stat: str) -> dict[str, np.ndarray]:
    """Read a sample stat of each run, shape (chains, draws), and of each of its steps.

    Draws that were not made are nan.
    """
    curves = {}
    for name, run in named_results(named(runs)).items():
        values = run.stat(stat)
        if values is None:
            raise ValueError(
                f"The run {name!r} has no sample stat {stat}. Leave it out, or draw another figure."
            )
        values = np.where(run.is_made[:, :, None], values, np.nan)
        for k in range(values.shape[2]):
            title = name if values.shape[2] == 1 else f"{name}, step {k + 1}"
            curves[title] = values[:, :, k]
    return curves


def outlines_of_sizes(
    curves: Mapping[str, np.ndarray], n_bins: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the corners of histograms of batch sizes, by bins of equal width in the logarithm."""
    sizes = {name: values[values > 0] for name, values in curves.items()}
    if empty := [name for name, values in sizes.items() if not values.size]:
        raise ValueError(f"{empty[0]!r} has no draw with a batch. Leave it out.")
    low = min(values.min() for values in sizes.values())
    high = max(values.max() for values in sizes.values())
    edges = np.geomspace(0.9 * low, 1.1 * high, n_bins + 1)
    # A logarithmic axis has no zero: bins stand on half a decision of the longest run.
    floor = 0.5 / max(values.size for values in sizes.values())
    return {
        name: outline(edges, np.histogram(values, edges)[0] / values.size, floor)
        for name, values in sizes.items()
    }


def matrices_of(
    runs: Mapping[str, Result], reference: str, var_names: Sequence[str] | None
) -> dict[str, np.ndarray]:
    """Return all elements of the variables of each run, in the order of the reference's.

    Their shapes are (chains, draws, K).
    """
    names = shared_variables(runs, reference, var_names)
    matrices = {}
    for name, arrays in aligned_runs(runs, reference, names).items():
        for variable, values in arrays.items():
            runs[name].check_finite(variable, values)
        parts = [values.values.reshape(*values.shape[:2], -1) for values in arrays.values()]
        matrices[name] = np.concatenate(parts, axis=2)
    return matrices


def drawable(run: Result, arrays: Mapping[str, xr.DataArray]) -> xr.Dataset:
    """Return draws of which a density can be drawn."""
    for name, values in arrays.items():
        run.check_finite(name, values)
    if run.n_chains * run.n_draws < LEAST_DRAWS:
        raise ValueError(
            f"{run.what} has {run.n_chains * run.n_draws} draws: a density needs {LEAST_DRAWS}."
        )
    return xr.Dataset(dict(arrays))


def running_means(draws: np.ndarray) -> np.ndarray:
    """Return the mean of the draws so far, by chain and element."""
    counts = np.arange(1, draws.shape[1] + 1)
    return np.cumsum(draws, axis=1) / counts[None, :, None]


def mean_over_chains(run: Result, name: str, numbers: Mapping[str, Any]) -> np.ndarray:
    """Return the mean over chains of numbers that each draw of a run has, shape (draws,)."""
    if name not in numbers:
        raise ValueError(f"accuracy has nothing for the run {name!r}.")
    own = np.atleast_2d(np.asarray(numbers[name], dtype=np.float64))
    if own.shape != (run.n_chains, run.n_draws):
        raise ValueError(
            f"accuracy of the run {name!r} has shape {own.shape}; it needs a number for "
            f"each of {run.n_chains} chains and {run.n_draws} draws."
        )
    if not np.isfinite(own).all():
        raise ValueError(f"accuracy of the run {name!r} has numbers that are not finite.")
    return own.mean(axis=0)


def rows_read_by(run: Result, name: str, n_rows: int | None) -> np.ndarray:
    """Return the rows that a chain has evaluated up to each draw, in the mean over chains."""
    read = run.rows_read(n_rows)
    if read is None:
        raise ValueError(
            f"The run {name!r} does not record how many rows it read: it has neither "
            "n_likelihood nor n_gradient, nor n_steps with a known number of rows. Pass "
            "n_rows, or leave the run out."
        )
    return np.cumsum(read.mean(axis=0))
