"""Leave-one-out cross-validation from a subsample of the rows.

The expected log predictive density of all rows is estimated by the difference estimator of
Magnusson, Vehtari, Jonasson and Riis Andersen (2020),

    elpd = Σ_n a_n + (N/m) Σ_{n in S} (elpd_n − a_n)

where a_n is the log-likelihood at the posterior mean, which takes one pass over all rows, and
elpd_n is found, for a random sample S of m rows, by Pareto smoothed importance sampling from the
log-likelihoods at posterior draws. It is unbiased whatever a_n is; the nearer to elpd_n, the
smaller its standard error.

References
----------
Magnusson, Vehtari, Jonasson and Riis Andersen (2020), Leave-One-Out Cross-Validation for Bayesian
Model Comparison in Large Data. AISTATS, PMLR 108.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_minibatch.arguments import checked_count
from pymc_minibatch.draws import Draws, draws_of
from pymc_minibatch.pointwise import as_draws, pointwise
from pymc_minibatch.renamed import renamed
from pymc_minibatch.row_labels import row_axis
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.arguments import checked_rows
from pymc_minibatch.warn import warn

__all__ = ["loo"]

LARGE_SHARE = 0.5
"""Warn where the error of the subsample is a larger share of that of the data."""

FEWEST_DRAWS = 25
"""A generalised Pareto tail is fitted to a fifth of the draws, and to five numbers at least."""

RESULT_BYTES, LARGEST_BYTES = 32, 2**31
"""Numbers for each row that the result and its making take; what rows in partitions may take."""


@renamed(tall="data")
def loo(
    idata: xr.DataTree,
    rows: int | Sequence[int] | np.ndarray = 1000,
    *,
    model: Any = None,
    data: Any = None,
    max_draws: int = 1000,
    random_seed: int = 0,
) -> Any:
    """Estimate the expected log predictive density by leave-one-out on a sample of the rows.

    Parameters
    ----------
    idata : DataTree
        Result of ``pm.sample`` or of Bambi's ``fit``; its posterior must hold the variables on
        which the rows depend.
    rows : int or sequence of int, default 1000
        How many rows to draw at random, or which; these must have been drawn uniformly. Models that
        are compared should use the same ones, as they do with the same `random_seed`.
    model : pymc.Model or bambi.Model, optional
        The model; taken from the context if not given. For a result of Bambi pass its model.
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own, or the model already split, such as ``step.tall``; see
        :class:`TallModel`.
    max_draws : int, default 1000
        Posterior draws that are used, at equal distances.
    random_seed : int, default 0
        Chooses the rows.

    Returns
    -------
    arviz_stats.ELPDDataLOOSubsample
        ``elpd`` and ``se`` as of ``az.loo`` on all rows, and ``subsampling_se``, the standard error
        due to subsampling. Made for ``az.compare``: it holds three numbers for each of
        the N rows.

    Raises
    ------
    ValueError
        If variables are missing from the posterior or not finite, the model has not as many rows as
        the run, a row is impossible at the posterior mean, or `data` is needed and not given; or
        rows stay in partitions and are so many that the results take more than 2 GiB.

    Warns
    -----
    MinibatchWarning
        If importance sampling fails for some of the rows, or if the rows are too few for N.

    Notes
    -----
    All rows are read once, at the posterior mean of the unconstrained parameters. If parameters
    are informed by few rows each, such as effects of small groups, that approximates less well, and
    more rows are needed; ``subsampling_se`` says so. Beyond the results for all rows, memory is
    that of the log-likelihoods of the sampled rows at all draws.

    References
    ----------
    Magnusson, Vehtari, Jonasson and Riis Andersen (2020), Leave-One-Out Cross-Validation for
    Bayesian Model Comparison in Large Data.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb, xarray as xr
    >>> rng = np.random.default_rng(1)
    >>> y = rng.normal(size=10_000)
    >>> mu = xr.DataArray(rng.normal(y.mean(), 0.01, (4, 250)), dims=("chain", "draw"))
    >>> idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": mu})})
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     _ = pm.Normal("y", mu, 1.0, observed=y)
    ...     found = pmb.loo(idata, rows=200)
    >>> found.subsample_size, found.subsampling_se < 1
    (200, True)
    """
    tall, draws = draws_of(idata, model, data, all_rows=True, same_prior=False)
    _check_memory(tall)
    draws = draws.thinned(max_draws)
    _check_draws(draws)
    sampled = _sampled_rows(rows, tall.n_rows, random_seed)
    points = draws.points(tall)
    approximate = _at_mean(tall, points)
    values = as_draws(pointwise(tall, points, sampled), draws.posterior, tall, sampled)
    return _estimate(values, _relative_efficiency(draws), sampled, approximate, tall)


def _check_draws(draws: Draws) -> None:
    """Refuse so few draws that importance sampling cannot tell its own error."""
    n_draws = draws.n_chosen
    if n_draws < FEWEST_DRAWS:
        raise ValueError(
            f"{n_draws} draws are too few for leave-one-out, which fits a tail to the largest of "
            f"them: {FEWEST_DRAWS} are needed, some hundreds are better."
        )


def _check_memory(tall: TallModel) -> None:
    """Refuse rows in partitions whose results this machine may not hold."""
    if tall.partitions is not None and RESULT_BYTES * tall.n_rows > LARGEST_BYTES:
        raise ValueError(
            f"The rows stay in partitions, and results for each of them take "
            f"{1e-9 * RESULT_BYTES * tall.n_rows:,.1f} GB here. Draw some rows at random, and pass "
            "their pmb.log_likelihood(idata, rows=...) to az.loo. Multiply its elpd by N over the "
            "number of these rows."
        )


def _sampled_rows(
    rows: int | Sequence[int] | np.ndarray, n_rows: int, random_seed: int
) -> np.ndarray:
    """Choose rows, sorted, so that those on disk are read in order."""
    if not isinstance(rows, int | np.integer):
        return np.unique(checked_rows(rows, n_rows, 1))
    size = checked_count("rows", min(int(rows), n_rows), 2, n_rows)
    return np.sort(np.random.default_rng(random_seed).choice(n_rows, size, replace=False))


def _at_mean(tall: TallModel, points: np.ndarray) -> np.ndarray:
    """Evaluate all rows at the mean of the unconstrained draws."""
    [found] = pointwise(tall, points.mean(axis=0, keepdims=True), None)
    bad = np.flatnonzero(~np.isfinite(found))
    if bad.size:
        raise ValueError(
            f"Row {bad[0]} of {' + '.join(tall.row_names)} has log-likelihood {found[bad[0]]} at "
            "the posterior mean. Look at this row."
        )
    return found


def _relative_efficiency(draws: Draws) -> float:
    """Effective share of the draws, the mean over parameters, as ArviZ has it."""
    import arviz as az

    if draws.n_chains == 1:
        return 1.0
    ess = az.ess(draws.posterior[draws.free].compute(), method="mean")
    known = np.concatenate([np.ravel(ess[name].values) for name in draws.free])
    known = known[np.isfinite(known)]
    return float(known.mean() / draws.n_chosen) if known.size else 1.0


def _estimate(
    values: xr.DataArray,
    relative_efficiency: float,
    sampled: np.ndarray,
    approximate: np.ndarray,
    tall: TallModel,
) -> Any:
    """Let ArviZ estimate: importance sampling on the rows, and the difference to all rows."""
    import arviz  # noqa: F401 - registers the accessor
    from arviz_stats import ELPDDataLOOSubsample

    elpd, pareto_k, p = values.azstats.loo(sample_dims=["chain", "draw"], r_eff=relative_efficiency)
    dim, labels = row_axis(tall)
    coords = {} if labels is None else {dim: labels}

    def whole(found: np.ndarray, name: str) -> xr.DataArray:
        return xr.DataArray(found, dims=(dim,), coords=coords, name=name)

    def spread(found: xr.DataArray, name: str) -> xr.DataArray:
        filled = np.full(tall.n_rows, np.nan)
        filled[sampled] = found.values
        return whole(filled, name)

    approximation = whole(approximate, "elpd_loo_approx")
    total, subsampling_se, se = elpd.azstats.diff_srs_estimator(
        lpd_approx_sample=approximation[sampled],
        lpd_approx_all=approximation,
        n_data_points=tall.n_rows,
    )
    n_effective, _, _ = p.azstats.srs_estimator(n_data_points=tall.n_rows)
    n_draws = values.sizes["chain"] * values.sizes["draw"]
    good_k = min(1 - 1 / math.log10(n_draws), 0.7)
    bad = int((pareto_k > good_k).sum())
    _warn(bad, good_k, float(subsampling_se), float(se), sampled.size)
    return ELPDDataLOOSubsample(
        elpd=float(total),
        se=float(se),
        p=float(n_effective),
        n_samples=n_draws,
        n_data_points=tall.n_rows,
        scale="log",
        warning=bad > 0,
        good_k=good_k,
        elpd_i=spread(elpd, "elpd_i"),
        pareto_k=spread(pareto_k, "pareto_k"),
        subsampling_se=float(subsampling_se),
        subsample_size=sampled.size,
        loo_subsample_observations=sampled,
        elpd_loo_approx=approximation,
    )


def _warn(bad: int, good_k: float, subsampling_se: float, se: float, size: int) -> None:
    if bad:
        warn(
            "PMB404",
            f"{bad} of the {size} sampled rows have a Pareto k over {good_k:.2f}: leaving one of "
            "them out moves the posterior so far that importance sampling fails. Use more draws, "
            "or fit again without these rows, which are those with a large pareto_k in the result.",
        )
    if subsampling_se > LARGE_SHARE * se:
        warn(
            "PMB405",
            f"The standard error due to subsampling {size:,} rows ({subsampling_se:.3g}) is large "
            f"compared with that of elpd_loo ({se:.3g}). Use more rows: pmb.loo(..., rows="
            f"{4 * size}).",
        )
