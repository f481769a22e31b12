"""R-hat and effective sample sizes of all parameters at once: ArviZ's numbers, in less time."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import ndtri

from pymc_minibatch.arguments import checked_count
from pymc_minibatch.compare import labels
from pymc_minibatch.jit.cores import n_cores
from pymc_minibatch.kernels.convergence import CUT, diagnostics
from pymc_minibatch.results import Result

__all__ = ["Convergence", "convergence", "worst"]

FEW = 100_000
"""Up to so many draws of all parameters together ArviZ takes a few ms, and nothing is compiled."""

CHUNK = 2**17
"""Draws of all parameters that are sorted at once."""

MOST_LAGS = 1000
"""With more lags FFT is faster, and ArviZ is asked."""

LEAST_DRAWS = 4
"""Draws of a chain below which nothing is known."""


class Convergence(NamedTuple):
    """Diagnostics of parameters.

    Attributes
    ----------
    r_hat : ndarray, shape (K,)
        Rank-normalized split R-hat, the larger of that of the draws and that of the folded draws.
        NaN for one chain.
    ess_bulk, ess_tail : ndarray, shape (K,)
        Effective sample sizes of the ranks, and of the quantiles that ArviZ takes for the tails.
    """

    r_hat: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray


def convergence(values: np.ndarray) -> Convergence:
    """Compute R-hat and effective sample sizes.

    Parameters
    ----------
    values : ndarray, shape (chains, draws, K)
        Draws of K parameters.

    Returns
    -------
    Convergence
        The numbers of ``az.rhat`` and ``az.ess``, but for rounding.
    """
    n_chains, n_draws, size = values.shape
    if n_draws < LEAST_DRAWS or not size:
        return Convergence(*np.full((3, size), np.nan))
    if values.size <= FEW:
        return _by_arviz(values)
    per_chunk = max(1, CHUNK // (n_chains * n_draws))
    chunks = [slice(i, i + per_chunk) for i in range(0, size, per_chunk)]
    diagnostics()  # so that no two threads compile
    with ThreadPoolExecutor(n_cores()) as pool:
        parts = list(pool.map(lambda chunk: _of_chunk(values[:, :, chunk]), chunks))
    found = Convergence(*np.concatenate(parts, axis=1))
    if n_chains == 1:
        found.r_hat[:] = np.nan
    return found


def _of_chunk(values: np.ndarray) -> np.ndarray:
    """Return the three rows of diagnostics of some parameters."""
    n_chains, n_draws, size = values.shape
    half = n_draws // 2
    by_parameter = np.ascontiguousarray(values.transpose(2, 0, 1), dtype=np.float64)
    halves = [by_parameter[:, :, :half], by_parameter[:, :, n_draws - half :]]
    splits = np.concatenate(halves, axis=1).reshape(size, -1)
    orders = np.argsort(splits, axis=1)
    whole = by_parameter.reshape(size, -1)
    limits = (
        np.quantile(whole, tails(), axis=1).T if 2 * half < n_draws else _limits(splits, orders)
    )
    m = splits.shape[1]
    scores = ndtri((np.arange(2 * m + 1) / 2 - 3 / 8) / (m - 2 * 3 / 8 + 1))
    found = np.empty((size, 3))
    diagnostics()(splits, orders, limits, scores, MOST_LAGS, 2 * n_chains, found)
    unknown = ~np.isfinite(whole).all(axis=1)
    found[unknown] = np.nan
    cut = np.flatnonzero((found == CUT).any(axis=1))
    if cut.size:
        found[cut] = np.transpose(_by_arviz(values[:, :, cut]))
    return found.T


def tails() -> list[float]:
    """Return the quantiles of the tail effective sample size, which are a setting of ArviZ."""
    from arviz_base import rcParams

    share = float(rcParams["stats.ci_prob"])
    return sorted((share, 1 - share))


def _limits(values: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Interpolate between values, given what sorts them, as ``np.quantile`` does."""
    found, each = [], np.arange(len(values))
    for share in tails():
        place = share * (values.shape[1] - 1)
        below = int(place)
        low, high = (values[each, orders[:, below + i]] for i in (0, 1))
        t = place - below
        found.append(low + (high - low) * t if t < 0.5 else high - (high - low) * (1 - t))
    return np.stack(found, axis=1)


def _by_arviz(values: np.ndarray) -> Convergence:
    import arviz as az

    drawn = xr.Dataset({"x": (("chain", "draw", "k"), values)})

    def found(computed: Any) -> np.ndarray:
        result: np.ndarray = computed["x"].values
        return result

    with np.errstate(all="ignore"):
        r_hat = found(az.rhat(drawn)) if len(values) > 1 else np.full(values.shape[2], np.nan)
        sizes = [found(az.ess(drawn, method=method)) for method in ("bulk", "tail")]
    return Convergence(r_hat, *sizes)


def worst(
    idata: xr.DataTree, n: int | None = 10, *, var_names: Sequence[str] | None = None
) -> pd.DataFrame:
    """List the parameters whose chains have converged least.

    Parameters
    ----------
    idata : DataTree
        Result of ``pm.sample``.
    n : int or None, default 10
        How many; None for all of them.
    var_names : sequence of str, optional
        Variables to look at; all of them if not given.

    Returns
    -------
    DataFrame
        One row per parameter, with columns ``r_hat``, ``ess_bulk`` and ``ess_tail``, the numbers of
        ``az.summary``. Parameters with the fewest effective draws come first.

    Raises
    ------
    ValueError
        If a variable is not in the result, or `n` is not a positive number.

    Examples
    --------
    >>> import numpy as np, xarray as xr, pymc_minibatch as pmb
    >>> draws = np.random.default_rng(1).normal(size=(4, 500, 3))
    >>> draws[..., 2] = draws[..., 2].cumsum(axis=1)
    >>> posterior = xr.Dataset({"beta": (("chain", "draw", "k"), draws)})
    >>> table = pmb.worst(xr.DataTree.from_dict({"posterior": posterior}), 1)
    >>> table.index[0], bool(table["r_hat"].iloc[0] > 1.1)
    ('beta[2]', True)
    """
    if n is not None:
        n = checked_count("n", n, 1)
    run = Result(idata)
    names = run.names if var_names is None else list(var_names)
    if unknown := [name for name in names if name not in run.names]:
        raise ValueError(f"{unknown[0]} is not in the posterior, which has {run.names}.")
    parts = list(_tables(run, names))
    if not parts:
        return pd.DataFrame(columns=list(Convergence._fields), dtype=np.float64)
    smallest = pd.concat(parts)
    order = np.argsort(smallest[["ess_bulk", "ess_tail"]].min(axis=1).values, kind="stable")
    return smallest.iloc[order[:n]]


def _tables(run: Result, names: Sequence[str]) -> Iterator[pd.DataFrame]:
    for name in names:
        drawn = run.array(name)
        values = drawn.values.astype(np.float64).reshape(*drawn.shape[:2], -1)
        found = convergence(values)
        yield pd.DataFrame(found._asdict(), index=labels(drawn))
