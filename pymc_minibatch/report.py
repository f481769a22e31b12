"""A short text on a run: what it read, whether it worked, and what to change."""

from collections.abc import Iterator

import numpy as np
import xarray as xr

from pymc_minibatch.compare import R_HAT_LIMIT, labels, posterior_of, rows_read, stat_of

__all__ = ["report"]

NEAR_ALL = 0.5
"""Decisions that read a larger share of the rows save nothing."""

LOW_ACCEPTANCE = 0.1
LARGE_ERROR = 0.01
LARGE_NOISE = 0.5
FEW_EFFECTIVE = 100
"""Effective draws of a chain below which R-hat and quantiles mean little."""

SLOW_MIXING = 0.1
"""Share of effective draws below which steps between draws are cheaper than draws."""

KINDS = {"hyper": "scales of effects", "dense": "shared coefficients", "groups": "groups"}


def report(idata: xr.DataTree) -> str:
    """Say in a few lines what a run read, whether it worked, and what to change.

    Parameters
    ----------
    idata : DataTree
        What ``pm.sample`` returned, from a step of this package.

    Returns
    -------
    str
        Draws, rows and seconds; rows that were read, against passes over all of them; rows of a
        decision; acceptance by kind of move; R-hat and effective sample size; then advice.

    Raises
    ------
    TypeError
        If `idata` is no result of ``pm.sample``.
    ValueError
        If no step of this package was used.

    See Also
    --------
    compare : Runs side by side, with a reference.
    audit : Whether decisions were right, by reading all rows.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=np.random.default_rng(1).normal(size=10_000))
    ...     idata = pm.sample(step=pmb.MinibatchMH())  # doctest: +SKIP
    >>> print(pmb.report(idata))  # doctest: +SKIP
    """
    posterior_of(idata, "idata")
    recorded = stat_of(idata, "n_rows")
    if recorded is None:
        raise ValueError(
            "The sample stats have no n_rows, which every step of this package records. For a run "
            "of another sampler use az.summary, or pmb.compare."
        )
    n_rows = int(recorded.max())
    r_hat, ess, worst = _convergence(idata)
    lines = [_size(idata, n_rows), _cost(idata, n_rows), *_decisions(idata, n_rows)]
    lines.append(
        f"Chains: R-hat at most {r_hat:.3f}, effective draws at least {ess:,.0f} ({worst})."
    )
    advice = [f"- {line}" for line in _advice(idata, n_rows, r_hat, ess)]
    lines += ["What to change:", *advice] if advice else ["Nothing to change."]
    return "\n".join(lines)


def _size(idata: xr.DataTree, n_rows: int) -> str:
    sizes, sampling = idata.posterior.sizes, idata.posterior.attrs.get("sampling_time")
    setup = stat_of(idata, "setup_seconds")
    seconds = [] if setup is None else [f"{setup.max(axis=(0, 1)).sum():,.1f} s of set-up"]
    seconds += [] if sampling is None else [f"{sampling:,.1f} s of sampling"]
    return f"{sizes['chain']} chains of {sizes['draw']:,} draws from {n_rows:,} rows" + (
        f": {', '.join(seconds)}." if seconds else "."
    )


def _cost(idata: xr.DataTree, n_rows: int) -> str:
    read = rows_read(idata, n_rows)
    assert read is not None
    passes = read.sum() / n_rows
    return (
        f"Rows: {read.mean():,.0f} evaluations in a draw ({read.mean() / n_rows:.2%} of a pass), "
        f"{passes:,.3g} passes for all draws. A gradient of NUTS takes one pass."
    )


def _decisions(idata: xr.DataTree, n_rows: int) -> Iterator[str]:
    size, bright = stat_of(idata, "batch_size"), stat_of(idata, "n_bright")
    if size is not None:
        yield (
            f"Decisions: {size.mean():,.0f} rows on average ({size.mean() / n_rows:.2%}), "
            f"{_accuracy(idata)}."
        )
    if bright is not None:
        yield f"Bright rows: {bright.mean():,.0f} on average ({bright.mean() / n_rows:.2%})."
    accepted = stat_of(idata, "acceptance_rate")
    if accepted is not None:
        kinds = {text: stat_of(idata, f"acceptance_rate_{kind}") for kind, text in KINDS.items()}
        parts = [
            f"{np.nanmean(rate):.2f} for {text}"
            for text, rate in kinds.items()
            if rate is not None and not np.isnan(rate).all()
        ]
        more = f" ({', '.join(parts)})" if parts else ""
        yield f"Acceptance: {accepted.mean():.2f}{more}."
    swept = stat_of(idata, "rows_per_sweep")
    if swept is not None and not np.isnan(swept).all():
        read = float(np.nanmean(swept))
        yield f"Sweeps over groups: {read:,.0f} rows each ({read / n_rows:.2%})."
    noise = stat_of(idata, "gradient_noise")
    if noise is not None:
        yield f"Noise: {noise.mean():.1%} of what drives the chain comes from the batches."


def _accuracy(idata: xr.DataTree) -> str:
    exact, error = stat_of(idata, "exact"), stat_of(idata, "test_error")
    if exact is not None and exact.all():
        return "by an exact test"
    return "" if error is None else f"acceptance probabilities off by at most {error.max():.1g}"


def _convergence(idata: xr.DataTree) -> tuple[float, float, str]:
    """Return the largest R-hat, and the smallest effective sample size with its parameter."""
    import arviz as az

    posterior = idata.posterior.to_dataset()
    ess, r_hat = az.ess(posterior), az.rhat(posterior)
    names = list(posterior.data_vars)
    sizes = np.concatenate([np.ravel(ess[name].values) for name in names])
    ratios = np.concatenate([np.ravel(r_hat[name].values) for name in names])
    called = [label for name in names for label in labels(posterior[name])]
    if np.isnan(sizes).all():
        return np.nan, np.nan, "which need more draws"
    largest = np.nan if np.isnan(ratios).all() else float(np.nanmax(ratios))
    return largest, float(np.nanmin(sizes)), called[int(np.nanargmin(sizes))]


def _advice(idata: xr.DataTree, n_rows: int, r_hat: float, ess: float) -> Iterator[str]:
    size, accepted = stat_of(idata, "batch_size"), stat_of(idata, "acceptance_rate")
    error, noise = stat_of(idata, "test_error"), stat_of(idata, "gradient_noise")
    n_chains, n_draws = (idata.posterior.sizes[dim] for dim in ("chain", "draw"))
    if r_hat > R_HAT_LIMIT:
        yield (
            f"The chains disagree (R-hat {r_hat:.2f}): tune for longer. If that does not help, "
            "compare with NUTS on a part of the rows."
        )
    if size is not None and size.mean() > NEAR_ALL * n_rows:
        yield (
            f"Decisions read {size.mean() / n_rows:.0%} of the rows, which saves little: print the "
            "step to see how it decides, and try NUTS."
        )
    if accepted is not None and accepted.mean() < LOW_ACCEPTANCE:
        yield f"Only {accepted.mean():.1%} of the moves are accepted: tune for longer."
    if error is not None and error.max() > LARGE_ERROR:
        yield (
            f"Acceptance probabilities may be off by {error.max():.2g}: use a smaller sigma in the "
            "test, or acceptance='exact' where it is possible."
        )
    if noise is not None and noise.mean() > LARGE_NOISE:
        yield "Most of the noise comes from the batches: set a larger batch_size."
    if ess < FEW_EFFECTIVE * n_chains:
        slow = ess < SLOW_MIXING * n_chains * n_draws
        yield (
            f"{ess:,.0f} effective draws are few: "
            + ("set a larger steps_per_draw, or tune for longer." if slow else "take more draws.")
        )
    stand_in = stat_of(idata, "stand_in")
    if stand_in is not None and stand_in.any():
        yield (
            "observed_data and constant_data hold the model's stand-in: for what comes after, use "
            "pmb.loo, pmb.predict and pmb.log_likelihood with tall=step.tall."
        )
