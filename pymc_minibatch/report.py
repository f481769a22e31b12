"""A short text on a run: what it read, whether it worked, and what to change."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import xarray as xr

from pymc_minibatch.compare import R_HAT_LIMIT, labels
from pymc_minibatch.convergence import convergence
from pymc_minibatch.elements import shown
from pymc_minibatch.results import Result, interrupted

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

R_HAT_WATCHED = 1.01
"""What R-hat is at most, if four chains are to be relied on (Vehtari, Gelman, Simpson, Carpenter
and Bürkner, 2021, section 4)."""

LEAST_HALVED = 8
"""Draws of a single chain from which its halves are compared."""

KINDS = {"hyper": "scales of effects", "dense": "shared coefficients", "groups": "groups"}


def report(idata: xr.DataTree) -> str:
    """Summarize in a few lines how many rows a run read, whether it converged, and what to change.

    Parameters
    ----------
    idata : DataTree
        Result of ``pm.sample``, from a step of this package.

    Returns
    -------
    str
        Draws, rows and seconds; rows that were read, against passes over all of them; rows per
        decision; acceptance by kind of move; R-hat and effective sample size; then advice.

    Raises
    ------
    TypeError
        If `idata` is no result of ``pm.sample``.
    ValueError
        If no step of this package was used, or the result is an approximation.

    See Also
    --------
    compare : Several runs in one table.
    audit : Checks decisions against all rows.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> data = 3 + np.random.default_rng(1).standard_t(4, size=20_000)
    >>> with pm.Model():
    ...     mu, sigma = pm.Normal("mu", 0, 10), pm.HalfNormal("sigma", 2)
    ...     y = pm.StudentT("y", nu=4, mu=mu, sigma=sigma, observed=data)
    ...     step = pmb.MinibatchMH()
    ...     idata = pm.sample(
    ...         step=step, draws=500, tune=500, chains=2, random_seed=1, progressbar=False
    ...     )
    >>> print(pmb.report(idata))
    2 chains of 500 draws from 20,000 rows: ... s of set-up, ... s of sampling.
    Rows: ... evaluations per draw (...% of a pass), ... passes for all draws. A gradient of
    NUTS takes one pass.
    Decisions: ... rows on average (...%), with an estimated error of at most 0.0... per decision.
    Acceptance: 0....
    Witness: ... comparisons agree with the model's own log-density up to rounding.
    Chains: R-hat at most ..., effective draws at least ... (...).
    Nothing to change.
    """
    run = Result(idata)
    n_rows = run.n_rows
    if n_rows is None:
        raise ValueError(
            "The sample stats have no n_rows, which every step of this package records. For a run "
            "of another sampler use az.summary, or pmb.compare."
        )
    if run.rows_read(n_rows) is None:
        raise ValueError(
            "The sample stats do not say how many rows the draws have read. A result of "
            "pmb.approximate has attributes instead: verdict, reason and pareto_k."
        )
    chains = _look_at_chains(run)
    lines = [_size(run, n_rows), _cost(run, n_rows), *_decisions(run, n_rows), _convergence(chains)]
    advice = [f"- {line}" for line in (*_faults(run, chains), *_advice(run, n_rows, chains))]
    lines += ["What to change:", *advice] if advice else ["Nothing to change."]
    return "\n".join(lines)


class _Chains(NamedTuple):
    """What the draws of a run look like."""

    r_hat: float
    """The largest; of the halves of the chain if there is one. nan if it is not known."""
    apart: str
    """The element with the largest."""
    ess: float
    slowest: str
    """The element with the fewest effective draws."""
    n_chains: int
    n_draws: int
    """Draws of each chain on which this rests."""
    not_finite: list[str]
    frozen: list[str]
    """Elements that have the same value in all draws of a chain, and another in other chains."""
    constant: list[str]
    """Variables of real numbers that have the same value in all draws."""

    @property
    def text(self) -> str:
        """Say how many draws were looked at."""
        return f"{_count(self.n_draws, 'draw')} of {_count(self.n_chains, 'chain')}"


def _look_at_chains(run: Result) -> _Chains:
    """Look at the draws that all chains made, one variable after the other."""
    kept = np.flatnonzero(run.finished)
    n_draws = int(run.finished[kept].min(initial=run.n_draws)) if kept.size else 0
    not_finite: list[str] = []
    frozen: list[str] = []
    constant: list[str] = []
    r_hat, apart, ess, slowest = np.nan, "", np.nan, ""
    for name in run.names if n_draws else []:
        drawn = run.array(name).isel(chain=kept, draw=slice(n_draws))
        called = np.array(labels(drawn))
        values = drawn.values.astype(np.float64).reshape(*drawn.shape[:2], -1)
        is_finite = np.isfinite(values).all(axis=(0, 1))
        stays = (values == values[:, :1]).all(axis=1)
        same = stays.all(axis=0) & (values[:, 0] == values[:1, 0]).all(axis=0)
        not_finite += list(called[~is_finite])
        if n_draws > 1:
            frozen += list(called[is_finite & ~same & stays.any(axis=0)])
        if same.all() and drawn.dtype.kind == "f" and n_draws * kept.size > 1:
            constant.append(name)
        varying = is_finite & ~stays.all(axis=0)
        if not varying.any():
            continue
        sizes, ratios = _sizes_and_ratios(values[:, :, varying])
        if not np.isnan(ratios).all() and not np.nanmax(ratios) <= r_hat:
            r_hat, apart = float(np.nanmax(ratios)), str(called[varying][np.nanargmax(ratios)])
        if not np.isnan(sizes).all() and not np.nanmin(sizes) >= ess:
            ess, slowest = float(np.nanmin(sizes)), str(called[varying][np.nanargmin(sizes)])
    return _Chains(
        r_hat=r_hat,
        apart=apart,
        ess=ess,
        slowest=slowest,
        n_chains=kept.size,
        n_draws=n_draws,
        not_finite=not_finite,
        frozen=frozen,
        constant=constant,
    )


def _sizes_and_ratios(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return effective sample sizes and R-hat, of the halves of a single chain."""
    found = convergence(values)
    if len(values) == 1 and values.shape[1] >= LEAST_HALVED:
        middle = values.shape[1] // 2
        halves = np.concatenate([values[:, :middle], values[:, -middle:]])
        return found.ess_bulk, convergence(halves).r_hat
    return found.ess_bulk, found.r_hat


def _size(run: Result, n_rows: int) -> str:
    sampling = run.attrs.get("sampling_time")
    setup = run.stat("setup_seconds")
    seconds = [] if setup is None else [f"{np.nanmax(setup, axis=(0, 1)).sum():,.1f} s of set-up"]
    seconds += [] if sampling is None else [f"{sampling:,.1f} s of sampling"]
    chains, draws = _count(run.n_chains, "chain"), _count(run.n_draws, "draw")
    return f"{chains} of {draws} from {n_rows:,} rows" + (
        f": {', '.join(seconds)}." if seconds else "."
    )


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def _cost(run: Result, n_rows: int) -> str:
    read = run.rows_read(n_rows)
    assert read is not None
    passes, of_draw = read.sum() / n_rows, read.sum() / max(1, int(run.finished.sum()))
    all_passes = f"{passes:,.0f}" if passes >= 100 else f"{passes:.3g}"
    share = _share(of_draw / n_rows)
    return (
        f"Rows: {_few_or_many(of_draw)} evaluations per draw ({share} of a pass), "
        f"{all_passes} passes for all draws. A gradient of NUTS takes one pass."
    )


def _share(part: float) -> str:
    return "less than 0.01%" if 0 < part < 5e-5 else f"{part:.2%}"


def _few_or_many(mean: float) -> str:
    """Return a mean number of rows in words; one that rounds to 0 looks like none."""
    if 0 < mean < 1:
        return "fewer than one"
    return f"{mean:.1f}" if 1 <= mean < 9.5 else f"{mean:,.0f}"


def _made(run: Result, name: str) -> np.ndarray | None:
    """Read a stat of the draws that were made, shape (draws of all chains, steps)."""
    values = run.stat(name)
    return None if values is None else values[run.is_made]


def _known(run: Result, name: str) -> np.ndarray | None:
    """Read a stat of the draws that were made; None if it is NaN in all of them."""
    values = _made(run, name)
    return None if values is None or np.isnan(values).all() else values


def _by_step(values: np.ndarray, text: Callable[[float], str]) -> str:
    """Put the mean over draws in words, of each step if there are several."""
    means = np.nanmean(values.astype(np.float64), axis=0)
    return " and ".join(text(mean) for mean in means)


def _witnessed(run: Result) -> Iterator[str]:
    """Say what was compared with the model's own density, and how closely."""
    compared, error = run.stat("n_witnessed"), run.stat("witness_error")
    if compared is None or error is None:
        return
    last = np.nanmax(np.where(run.is_made[..., None], compared, 0), axis=1)
    total = int(last.sum())
    if not total:
        yield "Witness: none; no move was compared with the model's own log-density."
        return
    largest = float(np.nanmax(error[run.is_made]))
    agrees = "up to rounding" if largest == 0.0 else f"to {largest:.0e}"
    yield f"Witness: {total} comparisons agree with the model's own log-density {agrees}."


def _decisions(run: Result, n_rows: int) -> Iterator[str]:
    size, bright = _made(run, "batch_size"), _made(run, "n_bright")
    if size is not None and size.size:
        rows, share = _by_step(size, _few_or_many), _by_step(size / n_rows, _share)
        noun = "row" if rows == "fewer than one" else "rows"
        yield f"Decisions: {rows} {noun} on average ({share}), {_accuracy(run)}."
    if bright is not None and bright.size:
        rows, share = _by_step(bright, _few_or_many), _by_step(bright / n_rows, _share)
        yield f"Bright rows: {rows} on average ({share})."
    if (accepted := _known(run, "acceptance_rate")) is not None:
        kinds = {text: _known(run, f"acceptance_rate_{kind}") for kind, text in KINDS.items()}
        parts = [f"{np.nanmean(r):.2f} for {text}" for text, r in kinds.items() if r is not None]
        more = f" ({', '.join(parts)})" if parts else ""
        yield f"Acceptance: {_by_step(accepted, '{:.2f}'.format)}{more}."
    if (swept := _known(run, "rows_per_sweep")) is not None:
        read = float(np.nanmean(swept))
        noun = "row" if 0 < read < 1 else "rows"
        yield f"Sweeps over groups: {_few_or_many(read)} {noun} each ({_share(read / n_rows)})."
    yield from _witnessed(run)
    if (noise := _known(run, "gradient_noise")) is not None:
        yield f"Noise: {np.nanmean(noise):.1%} of the noise of a step comes from the batches."


def _accuracy(run: Result) -> str:
    exact, error = _made(run, "exact"), _known(run, "test_error")
    if exact is not None and exact.size and exact.all():
        return "by an exact test"
    if error is None:
        return "with errors that are not recorded"
    text = f"an estimated error of at most {np.nanmax(error):.1g} per decision"
    some = exact is not None and exact.shape[1] > 1 and exact.all(axis=0).any()
    return f"some by an exact test, others with {text}" if some else f"with {text}"


def _has_effects(run: Result) -> bool:
    """Whether moves of effects are among those that were decided: all rows may well decide them."""
    return any(_made(run, f"acceptance_rate_{kind}") is not None for kind in KINDS)


def _convergence(chains: _Chains) -> str:
    if np.isnan(chains.ess):
        return "Chains: R-hat and effective draws are not known."
    of_halves = " of its halves" if chains.n_chains == 1 else ""
    r_hat = "not known" if np.isnan(chains.r_hat) else f"at most {max(1.0, chains.r_hat):.3f}"
    return (
        f"Chains: R-hat{of_halves} {r_hat}, effective draws at least {chains.ess:,.0f} "
        f"({chains.slowest})."
    )


def _faults(run: Result, chains: _Chains) -> Iterator[str]:
    """Say what is wrong with the draws themselves."""
    if text := interrupted(run):
        yield (
            f"The run was interrupted: {text}. This report covers {chains.text}. Take "
            f"idata.isel(draw=slice({chains.n_draws}))"
            + (", of the chains that have some," if chains.n_chains < run.n_chains else "")
            + " or sample again."
        )
    if chains.not_finite:
        yield (
            f"There are draws that are not finite, in {_count(len(chains.not_finite), 'element')} "
            f"({shown(chains.not_finite)}): look for a prior or a likelihood that overflows, and "
            "do not use their means."
        )
    if chains.frozen:
        yield (
            f"Chains never moved in {shown(chains.frozen)}: in some chain all draws have the "
            "same value. Tune for longer, or look at the acceptance rate of that chain."
        )
    if chains.constant:
        yield (
            f"{shown(chains.constant)} has the same value in all draws: if it is a parameter, it "
            "never moved. Look at its acceptance and its prior."
        )


def _advice(run: Result, n_rows: int, chains: _Chains) -> Iterator[str]:
    """Say what would make a run better."""
    yield from _advice_on_agreement(chains)
    yield from _advice_on_moves(run, n_rows)
    yield from _advice_on_length(chains)
    if run.is_stand_in:
        yield (
            "observed_data and constant_data hold the model's stand-in: after the fit, use "
            "pmb.loo, pmb.predict and pmb.log_likelihood with data=step.tall."
        )


def _advice_on_agreement(chains: _Chains) -> Iterator[str]:
    if chains.r_hat > R_HAT_LIMIT and chains.n_chains == 1:
        yield (
            f"The halves of the chain disagree (R-hat {chains.r_hat:.2f}): tune for longer, and "
            "sample several chains."
        )
    elif chains.r_hat > R_HAT_LIMIT:
        yield (
            f"The chains disagree (R-hat {chains.r_hat:.2f}): tune for longer. If that does not "
            "help, compare with NUTS on a part of the rows."
        )
    elif round(chains.r_hat, 3) > R_HAT_WATCHED and chains.n_chains > 1:
        yield (
            f"R-hat of {chains.apart} is {chains.r_hat:.3f}, above {R_HAT_WATCHED}: take more "
            "draws before you rely on its quantiles."
        )
    elif chains.n_chains == 1 and not np.isnan(chains.ess):
        yield "One chain does not show whether it has found all of the posterior: sample several."


def _advice_on_moves(run: Result, n_rows: int) -> Iterator[str]:
    size, accepted = _made(run, "batch_size"), _made(run, "acceptance_rate")
    error, noise = _made(run, "test_error"), _made(run, "gradient_noise")
    if size is not None and np.nanmean(size) > NEAR_ALL * n_rows and not _has_effects(run):
        yield (
            f"Decisions read {np.nanmean(size) / n_rows:.0%} of the rows, which saves little: "
            "print(step) shows which test decides. Try NUTS."
        )
    if accepted is not None and np.nanmean(accepted) < LOW_ACCEPTANCE:
        yield f"Only {np.nanmean(accepted):.1%} of the moves are accepted: tune for longer."
    if error is not None and np.nanmax(error) > LARGE_ERROR:
        yield (
            f"Acceptance probabilities may be off by {np.nanmax(error):.2g}: use a smaller sigma "
            "in the test, or acceptance='exact' if the model allows it."
        )
    if noise is not None and np.nanmean(noise) > LARGE_NOISE:
        yield "Most of the noise comes from the batches: set a larger batch_size."


def _advice_on_length(chains: _Chains) -> Iterator[str]:
    if np.isnan(chains.ess) or np.isnan(chains.r_hat):
        if not chains.constant:
            yield (f"{chains.text} cannot show convergence: take more draws.")
    elif chains.ess < FEW_EFFECTIVE * chains.n_chains:
        slow = chains.ess < SLOW_MIXING * chains.n_chains * chains.n_draws
        yield (
            f"{chains.ess:,.0f} effective draws are few: "
            + ("set a larger steps_per_draw, or tune for longer." if slow else "take more draws.")
        )
