"""One table that says whether a fast posterior can be trusted, and how fast it is.

Every number about draws is ArviZ's own. A run agrees with the reference if no mean, standard
deviation or quantile of any parameter is further from the reference's than Monte Carlo error
explains. So many are compared at once that the largest difference is large by chance alone: the
limit is the one that the largest of them all exceeds in one of `FALSE_ALARMS` comparisons of equal
distributions (Bonferroni).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import stdtr

from pymc_minibatch.elements import layout_of, matched
from pymc_minibatch.renamed import renamed
from pymc_minibatch.results import Result, interrupted, named_results
from pymc_minibatch.warn import warn

__all__ = ["R_HAT_LIMIT", "aligned_runs", "compare", "labels", "rows_of_data", "shared_variables"]

FALSE_ALARMS = 1000
"""One of so many comparisons of a run with its equal is flagged."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

R_HAT_LIMIT = 1.05
"""Beyond it the chains of a run disagree with each other, and Monte Carlo errors mean little."""

LEAST_DRAWS = 4
"""Draws of a chain below which ArviZ knows no effective sample size."""

ADVICE = "with a run of the same model, or name other variables in var_names."

DRAWS_PER_DEGREE = 10
"""Effective draws for each degree of freedom of a Monte Carlo error.

The relative variance of an autocorrelation time is about 2 (2M + 1)/n with a window of M draws
(Madras and Sokal, 1988), which is 20 over the effective draws for M five times the time.
"""


class _Draws(NamedTuple):
    """A run's draws in terms of single parameters: arrays of shape (K,), or (K, ...)."""

    names: list[str]
    values: np.ndarray
    """Draws, shape (K, chains, draws)."""
    estimates: np.ndarray
    """Mean, standard deviation and quantiles, shape (K, 2 + Q)."""
    errors: np.ndarray
    """Monte Carlo standard errors of mean and standard deviation, shape (K, 2)."""
    ess: np.ndarray
    """Effective draws for mean and standard deviation, shape (K, 2)."""
    ess_bulk: np.ndarray
    ess_tail: np.ndarray
    r_hat: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Return the first of the estimates."""
        return self.estimates[:, 0]

    @property
    def sd(self) -> np.ndarray:
        """Return the second of the estimates."""
        return self.estimates[:, 1]

    @property
    def n(self) -> int:
        """Number of draws."""
        return int(np.prod(self.values.shape[1:]))


class _Differences(NamedTuple):
    """How a run differs from the reference; arrays of shape (K, 2 + Q)."""

    names: list[str]
    shifts: np.ndarray
    """Differences of the estimates, in standard deviations of the reference."""
    scores: np.ndarray
    """Differences in Monte Carlo standard errors."""
    p: np.ndarray
    """How probable such scores are for equal distributions."""
    sd_ratio: np.ndarray


@renamed(reference="baseline")
def compare(
    runs: Mapping[str, xr.DataTree],
    baseline: str,
    *,
    var_names: Sequence[str] | None = None,
    n_rows: int | None = None,
) -> pd.DataFrame:
    """Compare posteriors and their cost, run by run, with a baseline.

    Parameters
    ----------
    runs : mapping of str to DataTree
        Results of ``pm.sample`` for the same model, by name.
    baseline : str
        The run that the others are compared with, such as a run of NUTS.
    var_names : sequence of str, optional
        The variables to compare; by default all that are in every run with the same shape.
    n_rows : int, optional
        Rows of the data, to count what NUTS reads. If not given it is taken from the sample stats
        of any run of this package, else from the length of the observed data.

    Returns
    -------
    pandas.DataFrame
        One row per run, with columns

        - ``chains``, ``draws``: kept draws of each chain;
        - ``setup_seconds``, ``sampling_seconds``: set-up is recorded by the steps of this package
          and missing (nan) for others; sampling includes tuning;
        - ``min_ess_bulk``, ``median_ess_bulk``, ``min_ess_tail``, ``max_r_hat``: over parameters;
        - ``rows_per_draw``, ``rows_per_ess``: row evaluations while drawing (tuning excluded), by
          draw and by effective sample. One row at one point is one evaluation, with or without
          derivatives; scans of all rows are included. NUTS evaluates all rows ``n_steps`` times;
        - ``ess_per_second``, ``ess_per_million_rows``: of the worst parameter's bulk ESS. Seconds
          include set-up if it is recorded;
        - ``speed_up``: ``ess_per_second`` over the baseline's;
        - ``mean_difference_sd``, ``mean_difference_mcse``: the worst difference of a mean, in the
          baseline's posterior standard deviations, and in Monte Carlo standard errors (of both
          runs together);
        - ``sd_ratio_min``, ``sd_ratio_max``: range of posterior standard deviations over the
          baseline's;
        - ``quantile_difference_sd``: the worst difference of a 5, 25, 50, 75 or 95 % quantile, in
          the baseline's standard deviations;
        - ``verdict``: "agrees", or the worst disagreement in words, such as "differs: beta[3] by
          4.1 MCSE (0.2 sd)". A run whose chains disagree is "not converged", and one with draws
          that are nan or infinite is "not finite".

    Raises
    ------
    ValueError
        If the baseline is not among the runs, or there is no variable to compare.

    Notes
    -----
    The limit in Monte Carlo standard errors grows with the number of parameters, so that equal
    distributions get the verdict "differs" in at most one of 1000 comparisons. It is 3.8 standard
    errors for one parameter and 4.8 for a hundred, and more if there are few effective draws.
    "agrees" means that no difference was seen with these draws. So also look at
    ``mean_difference_sd``, and at the number of effective draws.

    An element that has the same value in all draws of both runs, such as the diagonal of a
    correlation matrix, is left out. If a run has a single chain, R-hat is missing (nan) and does
    not show whether it has converged. Runs whose sample stats are not those of PyMC are read as
    well: of nutpie and NumPyro ``n_steps``, also under its other names.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc_minibatch as pmb
    >>> rng = np.random.default_rng(1)
    >>> runs = {
    ...     name: az.from_dict({"posterior": {"mu": rng.normal(mean, 1.0, (4, 1000))}})
    ...     for name, mean in {"baseline": 0.0, "good": 0.0, "bad": 1.0}.items()
    ... }
    >>> table = pmb.compare(runs, baseline="baseline")
    >>> table.verdict["good"]
    'agrees'
    >>> table.verdict["bad"].startswith("differs: mu by")
    True
    """
    results = named_results(runs, baseline)
    warn_of_other_models(results, baseline)
    names = shared_variables(results, baseline, var_names)
    n_rows = rows_of_data(results.values()) if n_rows is None else n_rows
    draws: dict[str, list[_Draws]] = {name: [] for name in results}
    differences: dict[str, list[_Differences]] = {name: [] for name in results}
    for name in names:
        aligned = aligned_runs(results, baseline, [name])
        of = {key: _summarise(arrays[name]) for key, arrays in aligned.items()}
        for key, own in of.items():
            differences[key].append(_differ(own, of[baseline]))
            draws[key].append(own._replace(values=np.empty(0)))
    table = pd.DataFrame(
        {
            key: _cost(result, draws[key], n_rows) | _judge(result, draws[key], differences[key])
            for key, result in results.items()
        }
    ).T
    trouble = _trouble(results[baseline], draws[baseline])
    table.loc[baseline, "verdict"] = f"baseline, but {trouble}" if trouble else "baseline"
    table.insert(
        table.columns.get_loc("ess_per_million_rows") + 1,
        "speed_up",
        table.ess_per_second / table.ess_per_second[baseline],
    )
    return table.infer_objects().astype({"chains": int, "draws": int, "speed_up": float})


def warn_of_other_models(results: Mapping[str, Result], reference: str) -> None:
    """Warn of runs of another model than that of the reference, where both are known."""
    own = results[reference].made_of
    for key, result in results.items():
        if own is None or result.made_of is None or not (names := own.unlike(result.made_of)):
            continue
        warn(
            "PMB403",
            f"{key!r} is of another model than that of {reference!r}: {' and '.join(names)} "
            "differ.",
        )


def aligned_runs(
    runs: Mapping[str, Result], reference: str, names: Sequence[str]
) -> dict[str, dict[str, xr.DataArray]]:
    """Read variables of all runs with the dimensions and in the order of labels of the reference.

    Raises
    ------
    ValueError
        If a run has other labels.
    """
    owner = f"the run {reference!r}"
    layouts = {name: layout_of(runs[reference].posterior[name], owner) for name in names}
    return {
        key: {
            name: matched(name, run.array(name), layouts[name], f"Compare the run {key!r} {ADVICE}")
            for name in names
        }
        for key, run in runs.items()
    }


def shared_variables(
    runs: Mapping[str, Result], reference: str, var_names: Sequence[str] | None
) -> list[str]:
    """Find the variables that all runs have, with as many elements along their dimensions.

    Raises
    ------
    ValueError
        If there are none, or one that is named is not among them.
    """
    wanted = runs[reference].names if var_names is None else list(var_names)
    sizes = [
        {name: sorted(layout_of(run.posterior[name], "").shape) for name in run.names}
        for run in runs.values()
    ]
    shared = [
        str(name)
        for name in wanted
        if all(name in size and size[name] == sizes[0][name] for size in sizes)
    ]
    if not shared or (var_names is not None and len(shared) < len(wanted)):
        raise ValueError(
            f"Of the variables {wanted} only {shared} are in the posterior of all runs with the "
            "same shape. Name some of these in var_names, and compare runs of the same model."
        )
    return shared


def rows_of_data(runs: Iterable[Result]) -> int | None:
    """Find the number of rows that the runs sampled, or None."""
    for run in runs:
        if run.n_rows is not None:
            return run.n_rows
    observed = [values.shape[0] for run in runs for values in run.observed() if values.ndim]
    return max(observed, default=None)


def labels(values: xr.DataArray) -> list[str]:
    """Name the elements of a variable by their coordinates, as ArviZ does."""
    from arviz_base import xarray_sel_iter  # as slow to import as arviz
    from arviz_base.labels import BaseLabeller

    elements = xarray_sel_iter(values.to_dataset(), skip_dims={"chain", "draw"})
    return [BaseLabeller().make_label_flat(*element) for element in elements]


def _summarise(drawn: xr.DataArray) -> _Draws:
    import arviz as az  # takes half a second, which samplers need not wait for

    drawn = drawn.astype(np.float64)
    posterior = drawn.to_dataset()

    def flat(values: xr.Dataset | xr.DataArray) -> np.ndarray:
        return np.ravel((values[drawn.name] if isinstance(values, xr.Dataset) else values).values)

    def of_both(function: Any) -> np.ndarray:
        return np.stack([flat(function(posterior, method=kind)) for kind in ("mean", "sd")], axis=1)

    start = drawn.isel(chain=0, draw=0)
    constant = flat((drawn == start).all(("chain", "draw")))
    with np.errstate(invalid="ignore", divide="ignore"):  # constant, or not finite
        estimates = [
            np.where(constant, flat(start), flat(drawn.mean(("chain", "draw"), skipna=False))),
            np.where(constant, 0.0, flat(drawn.std(("chain", "draw"), ddof=1))),
            *(flat(drawn.quantile(prob, ("chain", "draw"))) for prob in QUANTILES),
        ]
        return _Draws(
            names=labels(drawn),
            values=np.moveaxis(drawn.values.reshape(*drawn.shape[:2], -1), 2, 0),
            estimates=np.stack(estimates, axis=1),
            errors=np.where(constant[:, None], 0.0, of_both(az.mcse)),
            ess=of_both(az.ess),
            ess_bulk=flat(az.ess(posterior, method="bulk")),
            ess_tail=flat(az.ess(posterior, method="tail")),
            r_hat=flat(az.rhat(posterior)),
        )


def _cost(run: Result, parts: list[_Draws], n_rows: int | None) -> dict[str, Any]:
    recorded = run.stat("setup_seconds")
    setup = np.nan if recorded is None else float(np.nanmax(recorded, axis=(0, 1)).sum())
    sampling = float(run.attrs.get("sampling_time", np.nan))
    read = run.rows_read(n_rows)
    rows = np.nan if read is None else float(read.sum())
    ess_bulk = np.concatenate([part.ess_bulk for part in parts])
    ess = -_most(-ess_bulk)
    return {
        "chains": run.n_chains,
        "draws": run.n_draws,
        "setup_seconds": setup,
        "sampling_seconds": sampling,
        "min_ess_bulk": ess,
        "median_ess_bulk": float(np.median(ess_bulk)),
        "min_ess_tail": -_most(-np.concatenate([part.ess_tail for part in parts])),
        "max_r_hat": _most(np.concatenate([part.r_hat for part in parts])),
        "rows_per_draw": rows / max(1, int(run.finished.sum())),
        "rows_per_ess": rows / ess,
        "ess_per_second": ess / (np.nan_to_num(setup) + sampling),
        "ess_per_million_rows": 1e6 * ess / rows if rows else np.inf,
    }


def _differ(run: _Draws, reference: _Draws) -> _Differences:
    """Compare runs in the elements that vary in one of them, or from one to the other."""
    kept = ~((run.sd == 0) & (reference.sd == 0) & (run.mean == reference.mean))
    names = [name for name, keep in zip(run.names, kept, strict=True) if keep]
    run, reference = (
        _Draws(names, *(values[kept] for values in draws[1:])) for draws in (run, reference)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        of_moments, of_shares = _compare_moments(run, reference), _compare_shares(run, reference)
        scores, p = (np.concatenate(both, 1) for both in zip(of_moments, of_shares, strict=True))
        shifts = np.abs(run.estimates - reference.estimates) / reference.sd[:, None]
        if min(run.values.shape[2], reference.values.shape[2]) < LEAST_DRAWS:
            scores[:] = np.nan
        p = np.where(np.isnan(scores), np.nan, p)
        return _Differences(names, shifts, scores, p, run.sd / reference.sd)


def _compare_moments(run: _Draws, reference: _Draws) -> tuple[np.ndarray, np.ndarray]:
    """Score means and standard deviations; return the scores and their p-values.

    How well a run mixes that has the same value in all draws is not known: as well as the other.
    """
    variances, degrees = [], []
    for own, other in ((run, reference), (reference, run)):
        borrowed = (own.errors == 0) & (other.errors > 0)
        variances.append(np.where(borrowed, other.errors**2 * other.n / own.n, own.errors**2))
        degrees.append(_degrees(np.where(borrowed, other.ess * own.n / other.n, own.ess)))
    shifts = np.abs(run.estimates - reference.estimates)[:, :2]
    scores = np.where(shifts == 0, 0.0, shifts / np.sqrt(sum(variances)))
    return scores, _p_values(scores, variances, degrees)


def _compare_shares(run: _Draws, reference: _Draws) -> tuple[np.ndarray, np.ndarray]:
    """Score quantiles by the shares of draws at or below the quantiles of both runs together.

    Shares are means, whatever the draws: there is no density to estimate, and nothing jumps where
    draws have few values. √ and arc sine make their variances equal (Anscombe, 1948).
    """
    both = [draws.values.reshape(len(draws.names), -1) for draws in (run, reference)]
    pooled = np.concatenate(both, axis=1)
    scores, p = np.empty((2, len(run.names), len(QUANTILES)))
    for k, prob in enumerate(QUANTILES):
        at = np.quantile(pooled, prob, axis=1, method="inverted_cdf")[:, None, None]
        is_below = [draws.values <= at for draws in (run, reference)]
        shares = [below.mean(axis=(1, 2)) for below in is_below]
        effective = _effective(is_below, (run, reference))
        angles = [np.arcsin(np.sqrt(share)) for share in shares]
        variances = [0.25 / n for n in effective]
        shift = np.abs(angles[0] - angles[1])
        scores[:, k] = np.where(shift == 0, 0.0, shift / np.sqrt(sum(variances)))
        p[:, k] = _p_values(scores[:, k], variances, [_degrees(n) for n in effective])
    unknown = ~np.isfinite(run.mean + reference.mean) | np.isnan(run.ess_bulk + reference.ess_bulk)
    scores[unknown & (run.sd > 0) & (reference.sd > 0)] = np.nan
    return scores, p


def _effective(is_below: list[np.ndarray], runs: tuple[_Draws, _Draws]) -> list[np.ndarray]:
    """Count the effective draws of shares; that of a share of 0 or 1 is not known."""
    import arviz as az

    found = []
    for below in is_below:
        values = xr.Dataset({"x": (("k", "chain", "draw"), below.astype(np.float64))})
        ess = az.ess(values, method="mean")["x"].values
        varies = below.any(axis=(1, 2)) & ~below.all(axis=(1, 2))
        found.append(np.where(varies, ess, np.nan))
    bulk = [np.where(draws.sd > 0, draws.ess_bulk, np.nan) for draws in runs]
    result = []
    for k, draws in enumerate(runs):
        other = found[1 - k] * draws.n / runs[1 - k].n
        guess = np.fmin(bulk[k], other)
        result.append(
            np.where(np.isnan(found[k]), np.where(np.isnan(guess), draws.n, guess), found[k])
        )
    return result


def _degrees(ess: np.ndarray) -> np.ndarray:
    """Return how many degrees of freedom a Monte Carlo error has that so many draws tell."""
    return np.maximum(np.nan_to_num(ess, nan=1.0) / DRAWS_PER_DEGREE, 1.0)


def _p_values(
    scores: np.ndarray, variances: list[np.ndarray], degrees: list[np.ndarray]
) -> np.ndarray:
    """Return p-values of scores with errors that are estimates themselves (Welch, 1947)."""
    total = variances[0] + variances[1]
    spread = variances[0] ** 2 / degrees[0] + variances[1] ** 2 / degrees[1]
    freedom = np.where(spread > 0, total**2 / spread, 1e9)
    p: np.ndarray = 2 * stdtr(freedom, -scores)
    return p


def _judge(result: Result, draws: list[_Draws], differences: list[_Differences]) -> dict[str, Any]:
    names = [name for part in differences for name in part.names]
    shifts, scores, p, ratio = (
        np.concatenate([part[k] for part in differences]) for k in (1, 2, 3, 4)
    )
    return {
        "mean_difference_sd": _most(shifts[:, 0]),
        "mean_difference_mcse": _most(scores[:, 0]),
        "sd_ratio_min": -_most(-ratio),
        "sd_ratio_max": _most(ratio),
        "quantile_difference_sd": _most(shifts[:, 2:]),
        "verdict": _trouble(result, draws) or _verdict(names, scores, p, shifts),
    }


def _verdict(names: list[str], scores: np.ndarray, p: np.ndarray, shifts: np.ndarray) -> str:
    """Put the least probable difference in words; arrays have shape (K, 2 + Q)."""
    if np.isnan(scores).any():
        return "not compared: too few draws, or a baseline that is not finite"
    if not scores.size or p.min() >= 1 / (FALSE_ALARMS * scores.size):
        return "agrees"
    worst = np.lexsort((-scores.ravel(), p.ravel()))[0]
    k, j = np.unravel_index(worst, scores.shape)
    what = ["", "sd of ", *(f"{prob:.0%} quantile of " for prob in QUANTILES)][j]
    return f"differs: {what}{names[k]} by {scores[k, j]:.1f} MCSE ({shifts[k, j]:.2g} sd)"


def _trouble(run: Result, parts: list[_Draws]) -> str:
    """Say why a run cannot be judged by its Monte Carlo errors; empty if it can."""
    if text := interrupted(run):
        return f"interrupted: {text}"
    names = [name for part in parts for name in part.names]
    infinite = ~np.isfinite(np.concatenate([part.mean for part in parts]))
    if infinite.any():
        return f"not finite: {names[int(np.argmax(infinite))]}"
    r_hat = np.nan_to_num(np.concatenate([part.r_hat for part in parts]), nan=1.0)
    if r_hat.size and r_hat.max() > R_HAT_LIMIT:
        return f"not converged: R-hat {r_hat.max():.2f} of {names[int(np.argmax(r_hat))]}"
    return ""


def _most(values: np.ndarray) -> float:
    """Return the largest that is known, or nan."""
    known = values[~np.isnan(values)]
    return float(known.max()) if known.size else np.nan
