"""One table that says whether a fast posterior can be trusted, and how fast it is.

Every number about draws is ArviZ's own. A run agrees with the reference if no mean, standard
deviation or quantile of any parameter is further from the reference's than Monte Carlo error
explains. So many are compared at once that the largest difference is large by chance alone: the
limit is the one that the largest of them all exceeds in one of `FALSE_ALARMS` comparisons of equal
distributions (Bonferroni).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import ndtri

__all__ = ["compare", "posterior_of", "rows_of_data", "rows_read", "stat_of"]

FALSE_ALARMS = 1000
"""One of so many comparisons of a run with its equal is flagged."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

R_HAT_LIMIT = 1.05
"""Beyond it the chains of a run disagree with each other, and Monte Carlo errors mean little."""

GRADIENTS = ("n_steps", "tree_size", "num_steps", "num_integration_steps")
"""Names of the gradients of a trajectory: PyMC and nutpie, old PyMC, NumPyro, and BlackJAX."""


class _Draws(NamedTuple):
    """A run's draws in terms of single parameters: arrays of shape (K,).

    Estimates and their Monte Carlo standard errors have shape (K, 2 + Q): mean, standard deviation
    and quantiles.
    """

    names: list[str]
    estimates: np.ndarray
    errors: np.ndarray
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


def compare(
    runs: Mapping[str, xr.DataTree],
    reference: str,
    *,
    var_names: Sequence[str] | None = None,
    n_rows: int | None = None,
) -> pd.DataFrame:
    """Compare posteriors and their cost, run by run, with a reference.

    Parameters
    ----------
    runs : mapping of str to DataTree
        Results of ``pm.sample`` for the same model, by name.
    reference : str
        The run that the others are compared with, such as a run of NUTS.
    var_names : sequence of str, optional
        The variables to compare; by default all that are in every run with the same shape.
    n_rows : int, optional
        Rows of the data, to count what NUTS reads. If not given it is taken from the sample stats
        of any run of this package, else from the length of the observed data.

    Returns
    -------
    pandas.DataFrame
        One row for each run, with columns

        - ``chains``, ``draws``: kept draws of each chain;
        - ``setup_seconds``, ``sampling_seconds``: set-up is recorded by the steps of this package
          and missing (nan) for others; sampling includes tuning;
        - ``min_ess_bulk``, ``median_ess_bulk``, ``min_ess_tail``, ``max_r_hat``: over parameters;
        - ``rows_per_draw``, ``rows_per_ess``: row evaluations while drawing (tuning excluded), by
          draw and by effective sample. One row at one point is one evaluation, with or without
          derivatives; scans of all rows are included. NUTS evaluates all rows ``n_steps`` times;
        - ``ess_per_second``, ``ess_per_million_rows``: of the worst parameter's bulk ESS. Seconds
          include set-up where it is recorded;
        - ``speed_up``: ``ess_per_second`` over the reference's;
        - ``mean_difference_sd``, ``mean_difference_mcse``: the worst difference of a mean, in the
          reference's posterior standard deviations, and in Monte Carlo standard errors (of both
          runs together);
        - ``sd_ratio_min``, ``sd_ratio_max``: range of posterior standard deviations over the
          reference's;
        - ``quantile_difference_sd``: the worst difference of a 5, 25, 50, 75 or 95 % quantile, in
          the reference's standard deviations;
        - ``verdict``: "agrees", or the worst disagreement in words, such as "differs: beta[3] by
          4.1 MCSE (0.2 sd)". A run whose chains disagree is "not converged", and one with draws
          that are nan or infinite is "not finite".

    Raises
    ------
    ValueError
        If the reference is not among the runs, or there is no variable to compare.

    Notes
    -----
    The limit in Monte Carlo standard errors grows with the number of parameters: equal
    distributions differ in at most one of 1000 comparisons, which is 3.8 standard errors
    for one parameter and 4.8 for a hundred. "agrees" means that no difference was seen at this
    number of draws, so look at ``mean_difference_sd`` too, and at how many effective samples it
    rests on.

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
    ...     for name, mean in {"reference": 0.0, "good": 0.0, "bad": 1.0}.items()
    ... }
    >>> table = pmb.compare(runs, reference="reference")
    >>> table.verdict["good"]
    'agrees'
    >>> table.verdict["bad"].startswith("differs: mu by")
    True
    """
    if not isinstance(runs, Mapping):
        raise TypeError(
            "runs must be a dict of results by name, such as {'NUTS': idata}; got an object of "
            f"type {type(runs).__name__}."
        )
    for name, run in runs.items():
        posterior_of(run, f"The run {name!r}")
    if reference not in runs:
        raise ValueError(
            f"The reference {reference!r} is not among the runs, which are {list(runs)}."
        )
    names = _shared(runs, reference, var_names)
    n_rows = rows_of_data(runs) if n_rows is None else n_rows
    draws = {name: _summarise(run, names) for name, run in runs.items()}
    table = pd.DataFrame(
        {
            name: _cost(run, draws[name], n_rows) | _difference(draws[name], draws[reference])
            for name, run in runs.items()
        }
    ).T
    trouble = _trouble(draws[reference])
    table.loc[reference, "verdict"] = f"reference, but {trouble}" if trouble else "reference"
    table.insert(
        table.columns.get_loc("ess_per_million_rows") + 1,
        "speed_up",
        table.ess_per_second / table.ess_per_second[reference],
    )
    return table.infer_objects().astype({"chains": int, "draws": int, "speed_up": float})


def posterior_of(idata: Any, what: str) -> Any:
    """Return the posterior of a result of ``pm.sample``.

    Raises
    ------
    TypeError
        Naming `what` has none.
    """
    posterior = getattr(idata, "posterior", None)
    if not {"chain", "draw"} <= set(getattr(posterior, "sizes", ())):
        raise TypeError(
            f"{what} must be what pm.sample returns, with chains and draws in its group posterior; "
            f"got an object of type {type(idata).__name__}."
        )
    return posterior


def _shared(
    runs: Mapping[str, xr.DataTree], reference: str, var_names: Sequence[str] | None
) -> list[str]:
    """Find the variables that all runs have."""
    wanted = list(runs[reference].posterior.data_vars) if var_names is None else list(var_names)
    shapes = [
        {name: values.shape[2:] for name, values in run.posterior.data_vars.items()}
        for run in runs.values()
    ]
    shared = [
        str(name)
        for name in wanted
        if all(name in shape and shape[name] == shapes[0][name] for shape in shapes)
    ]
    if not shared or (var_names is not None and len(shared) < len(wanted)):
        raise ValueError(
            f"Of the variables {wanted} only {shared} are in the posterior of all runs with the "
            "same shape. Name some of these in var_names, and compare runs of the same model."
        )
    return shared


def stat_of(run: xr.DataTree, name: str) -> np.ndarray | None:
    """Return a sample stat as an array (chains, draws, steps), or None."""
    if "sample_stats" not in run.children or name not in run.sample_stats.data_vars:
        return None
    values = run.sample_stats[name].transpose("chain", "draw", ...).values
    return values.reshape(*values.shape[:2], -1)


def rows_of_data(runs: Mapping[str, xr.DataTree]) -> int | None:
    """Find the number of rows that the runs sampled, or None."""
    for run in runs.values():
        if (recorded := stat_of(run, "n_rows")) is not None:
            return int(recorded.max())
    observed = [
        values.shape[0]
        for run in runs.values()
        if "observed_data" in run.children
        for values in run.observed_data.data_vars.values()
        if values.ndim
    ]
    return max(observed, default=None)


def rows_read(run: xr.DataTree, n_rows: int | None) -> np.ndarray | None:
    """Count row evaluations at each draw, shape (chains, draws), or return None if not known."""
    parts = [stat_of(run, name) for name in ("n_likelihood", "n_gradient")]
    if known := [part.sum(axis=2) for part in parts if part is not None]:
        scanned = stat_of(run, "n_scanned")
        both: np.ndarray = np.max(known, axis=0)
        return both if scanned is None else both + scanned.sum(axis=2)
    gradients = [stat_of(run, name) for name in GRADIENTS]
    n_steps = next((steps for steps in gradients if steps is not None), None)
    return None if n_steps is None or n_rows is None else n_steps.sum(axis=2) * n_rows


def _summarise(run: xr.DataTree, names: list[str]) -> _Draws:
    import arviz as az  # takes half a second, which samplers need not wait for

    posterior = run.posterior.to_dataset()[names]

    def flat(values: xr.Dataset) -> np.ndarray:
        return np.concatenate([np.ravel(values[name].values) for name in names])

    def mcse(method: str, **prob: float) -> np.ndarray:
        return flat(az.mcse(posterior, method=method, **prob))

    start = posterior.isel(chain=0, draw=0)
    whole = flat(start.map(lambda values: xr.full_like(values, values.dtype.kind != "f")))
    constant = flat((posterior == start).all(("chain", "draw")))
    with np.errstate(invalid="ignore", divide="ignore"):  # constant, or not finite
        estimates = [
            np.where(constant, flat(start), flat(posterior.mean(("chain", "draw"), skipna=False))),
            np.where(constant, 0.0, flat(posterior.std(("chain", "draw"), ddof=1))),
            *(flat(posterior.quantile(prob, ("chain", "draw"))) for prob in QUANTILES),
        ]
        # Quantiles of whole numbers jump; their means and standard deviations tell as much.
        jumps = [np.where(whole, np.inf, mcse("quantile", prob=prob)) for prob in QUANTILES]
        errors = np.stack([mcse("mean"), mcse("sd"), *jumps], axis=1)
        return _Draws(
            names=[label for name in names for label in labels(posterior[name])],
            estimates=np.stack(estimates, axis=1),
            errors=np.where(constant[:, None], 0.0, errors),
            ess_bulk=flat(az.ess(posterior, method="bulk")),
            ess_tail=flat(az.ess(posterior, method="tail")),
            r_hat=flat(az.rhat(posterior)),
        )


def labels(values: xr.DataArray) -> list[str]:
    """Name the elements of a variable by their coordinates, as ArviZ does."""
    from arviz_base import xarray_sel_iter  # as slow to import as arviz
    from arviz_base.labels import BaseLabeller

    elements = xarray_sel_iter(values.to_dataset(), skip_dims={"chain", "draw"})
    return [BaseLabeller().make_label_flat(*element) for element in elements]


def _cost(run: xr.DataTree, draws: _Draws, n_rows: int | None) -> dict[str, Any]:
    posterior = run.posterior
    n_chains, n_draws = posterior.sizes["chain"], posterior.sizes["draw"]
    recorded = stat_of(run, "setup_seconds")
    setup = np.nan if recorded is None else float(recorded.max(axis=(0, 1)).sum())
    sampling = float(posterior.attrs.get("sampling_time", np.nan))
    read = rows_read(run, n_rows)
    rows = np.nan if read is None else float(read.sum())
    ess = -_most(-draws.ess_bulk)
    return {
        "chains": n_chains,
        "draws": n_draws,
        "setup_seconds": setup,
        "sampling_seconds": sampling,
        "min_ess_bulk": ess,
        "median_ess_bulk": float(np.median(draws.ess_bulk)),
        "min_ess_tail": -_most(-draws.ess_tail),
        "max_r_hat": _most(draws.r_hat),
        "rows_per_draw": rows / (n_chains * n_draws),
        "rows_per_ess": rows / ess,
        "ess_per_second": ess / (np.nan_to_num(setup) + sampling),
        "ess_per_million_rows": 1e6 * ess / rows if rows else np.inf,
    }


def _difference(run: _Draws, reference: _Draws) -> dict[str, Any]:
    """Compare runs in the elements that vary in one of them, or from one to the other."""
    kept = ~((run.sd == 0) & (reference.sd == 0) & (run.mean == reference.mean))
    names = [name for name, keep in zip(run.names, kept, strict=True) if keep]
    run, reference = (
        _Draws(names, *(values[kept] for values in draws[1:])) for draws in (run, reference)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return _judge(run, reference)


def _judge(run: _Draws, reference: _Draws) -> dict[str, Any]:
    sd = reference.sd[:, None]
    shifts = np.abs(run.estimates - reference.estimates)
    scores = np.where(shifts == 0, 0.0, shifts / np.hypot(run.errors, reference.errors))
    return {
        "mean_difference_sd": _most((shifts / sd)[:, 0]),
        "mean_difference_mcse": _most(scores[:, 0]),
        "sd_ratio_min": -_most(-run.sd / reference.sd),
        "sd_ratio_max": _most(run.sd / reference.sd),
        "quantile_difference_sd": _most((shifts / sd)[:, 2:]),
        "verdict": _trouble(run) or _verdict(run.names, scores, shifts / sd),
    }


def _verdict(names: list[str], scores: np.ndarray, shifts: np.ndarray) -> str:
    """Put the worst difference in words; arrays have shape (K, 2 + Q)."""
    if np.isnan(scores).any():
        return "not compared: too few draws, or a reference that is not finite"
    if not scores.size or scores.max() <= -ndtri(1 / (2 * FALSE_ALARMS * scores.size)):
        return "agrees"
    k, j = np.unravel_index(np.argmax(scores), scores.shape)
    what = ["", "sd of ", *(f"{prob:.0%} quantile of " for prob in QUANTILES)][j]
    return f"differs: {what}{names[k]} by {scores[k, j]:.1f} MCSE ({shifts[k, j]:.2g} sd)"


def _trouble(draws: _Draws) -> str:
    """Say why a run cannot be judged by its Monte Carlo errors; empty if it can."""
    infinite = ~np.isfinite(draws.mean)
    if infinite.any():
        return f"not finite: {draws.names[int(np.argmax(infinite))]}"
    r_hat = np.nan_to_num(draws.r_hat, nan=1.0)
    if r_hat.size and r_hat.max() > R_HAT_LIMIT:
        return f"not converged: R-hat {r_hat.max():.2f} of {draws.names[int(np.argmax(r_hat))]}"
    return ""


def _most(values: np.ndarray) -> float:
    """Return the largest that is known, or nan."""
    known = values[~np.isnan(values)]
    return float(known.max()) if known.size else np.nan
