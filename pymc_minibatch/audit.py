"""Were the decisions right? All rows are read to see what a batch cannot see of itself.

Some moves are made from draws of a run, as its step makes them. For each, all rows give the exact
log ratio, and the decision is repeated many times, each time with a part ψ that needs no rows so
that the log ratio is one of a few given numbers. So the frequency of acceptance can be compared
with the probability that the test stands for, at every move and every log ratio.

The exact test has no such probability, but a balance: with ψ = 0 and r the log ratio that the rows
add, it must accept the move e^r times as often as the move back.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import chdtrc, ndtr

from pymc_minibatch.acceptance import Exact, Penalty
from pymc_minibatch.acceptance.decision import row_workspace
from pymc_minibatch.draws import draws_of_step
from pymc_minibatch.jit.cache import class_key
from pymc_minibatch.jit.compiled import CompiledFunction, jit_kept
from pymc_minibatch.kernels.audit import make_proposing, make_repeating
from pymc_minibatch.kernels.residents import Residents
from pymc_minibatch.steps import MinibatchMH
from pymc_minibatch.tall.passes import sum_over_chunks

__all__ = ["Audit", "audit"]

FALSE_ALARMS = 1000
"""One of so many right runs is convicted."""

LOG_RATIOS = (-2.0, -1.0, -0.5, -0.2, 0.2, 0.5, 1.0, 2.0)
"""Those at which decisions are repeated."""

TUNING = 200


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found.

    Attributes
    ----------
    moves : pandas.DataFrame
        One row for each move: ``log_ratio`` of its rows, ``batch_size`` (mean), ``error`` (mean
        frequency of acceptance less the probability), its ``standard_error``, and ``z``.
    by_log_ratio : pandas.DataFrame
        The same, over all moves, at each log ratio. For the exact test: empty.
    statistics : pandas.DataFrame
        ``mean`` error, ``odd`` (the error times the sign of the log ratio) and ``moves`` (the sum
        of squared z), each with its p-value for a right test.
    scores : ndarray
        (Δ* − Δ)/s of single batches, standard normal for good ones. For the exact test: empty.
    right : bool
        Whether nothing was found.
    verdict : str
        In words.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> found = pmb.audit(idata, step)  # doctest: +SKIP
    >>> print(found)  # doctest: +SKIP
    """

    moves: pd.DataFrame
    by_log_ratio: pd.DataFrame
    statistics: pd.DataFrame
    scores: np.ndarray
    right: bool
    verdict: str

    def __str__(self) -> str:
        return self.verdict

    def plot(self, *, backend: str | None = None) -> Any:
        """Draw the error of each move, with its standard error as the unit, and the scores.

        Parameters
        ----------
        backend : {"matplotlib", "plotly", "bokeh"}, optional
            Default: that of arviz-plots.

        Returns
        -------
        arviz_plots.PlotCollection
            See :func:`pymc_minibatch.plots.audit`.
        """
        from pymc_minibatch import plots

        return plots.audit(self, backend=backend)


def audit(
    idata: xr.DataTree,
    step: MinibatchMH,
    *,
    n_moves: int = 200,
    n_repeats: int = 512,
    random_seed: int = 0,
) -> Audit:
    """Check the decisions of a run against all rows.

    Parameters
    ----------
    idata : DataTree
        What ``pm.sample`` returned, or a stored result of it; its posterior must hold all free
        variables of the model.
    step : MinibatchMH
        The step of the run, or one made in the same way.
    n_moves : int, default 200
        Moves that are looked at, from draws at equal distances. Each reads all rows at two points.
    n_repeats : int, default 512
        Decisions on each of them.
    random_seed : int, default 0
        Of moves and batches.

    Returns
    -------
    Audit
        ``print`` it for the verdict.

    Raises
    ------
    TypeError
        If `step` is no step of this kind.
    ValueError
        If the step moves effects and their scales, each by moves of its own; if the posterior lacks
        variables, has fewer than 40 draws, or draws that are not finite.
    SamplingError
        If a row is impossible at a draw, or beyond the bound of an exact test.
    RuntimeError
        If data or files are not those on which the step was set up.

    Notes
    -----
    A right run is convicted in one of 1000 audits. Errors of the acceptance probability below about
    0.003 are not seen with the default numbers. It says nothing of whether chains have converged.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=np.random.default_rng(1).normal(size=10_000))
    ...     step = pmb.MinibatchMH()
    ...     idata = pm.sample(step=step)  # doctest: +SKIP
    >>> print(pmb.audit(idata, step))  # doctest: +SKIP
    """
    if not isinstance(step, MinibatchMH):
        raise TypeError(
            f"step must be a MinibatchMH; got an object of type {type(step).__name__}. Pass the "
            "step of the run, or one made in the same way."
        )
    if step.latent is not None:
        raise ValueError(
            "An audit repeats the decisions of one kind of moves, and this step moves effects and "
            "their scales by several. Pass a step with a proposal, such as proposal='laplace'."
        )
    step.refuse_other_data()
    draws = draws_of_step(idata, step.tall)
    points = draws.all_points(step.tall, max(n_moves, 40), least=40)[:n_moves]
    saved = step.sampling_state
    try:
        _tune(step, points[0], random_seed)
        return _audited(step, points, n_repeats, np.random.default_rng(random_seed))
    finally:
        step.sampling_state = saved


def _tune(step: MinibatchMH, flat: np.ndarray, random_seed: int) -> None:
    """Bring the step to where it was in the run: moves and batches are tuned anew."""
    step.setup_chain(np.random.default_rng(random_seed), TUNING, 0)
    point = step.tall.layout.unflatten(flat)
    for _ in range(TUNING):
        point, _ = step.step(point)
    step.stop_tuning()


class _Repeated(NamedTuple):
    """What repeated decisions on one move gave."""

    accepted: np.ndarray
    sizes: np.ndarray
    scores: np.ndarray


def _audited(
    step: MinibatchMH, points: np.ndarray, n_repeats: int, rng: np.random.Generator
) -> Audit:
    proposed = _propose(step, points, rng)
    exact = _log_ratios(step, points, proposed)
    possible = np.isfinite(exact)
    points, proposed, exact = points[possible], proposed[possible], exact[possible]
    repeat = _repeater(step, rng)
    if isinstance(step.acceptance, Exact):
        return _audit_exact(step, points, proposed, exact, n_repeats, repeat)
    targets = np.resize(LOG_RATIOS, n_repeats)
    ideal = _ideal(step.acceptance)
    errors, variances = np.zeros((2, len(points), len(targets)))
    sizes, scores = np.zeros(len(points)), [np.empty(0)]
    for i, (here, there) in enumerate(zip(points, proposed, strict=True)):
        base = _base(step, here, there)
        found = repeat(here, there, targets - exact[i], exact[i] - base)
        whole = found.sizes == step.n_rows
        probability = np.where(whole, ideal(targets, True), ideal(targets, False))
        errors[i], variances[i] = found.accepted - probability, probability * (1 - probability)
        sizes[i] = found.sizes.mean()
        scores.append(found.scores)
    moves = _moves(exact, sizes, errors.mean(1), np.sqrt(variances.sum(1)) / n_repeats)
    by_log_ratio = pd.DataFrame(
        [
            (t, errors[:, targets == t].mean(), _mean_error(variances[:, targets == t]))
            for t in LOG_RATIOS
            if (targets == t).any()
        ],
        columns=["log_ratio", "error", "standard_error"],
    )
    sign = np.sign(targets)
    return _verdict(
        step, moves, by_log_ratio, np.concatenate(scores), errors, errors * sign, variances
    )


def _audit_exact(
    step: MinibatchMH,
    points: np.ndarray,
    proposed: np.ndarray,
    exact: np.ndarray,
    n_repeats: int,
    repeat: Callable[..., _Repeated],
) -> Audit:
    """Compare how often moves and the moves back are accepted for the rows alone."""
    n = len(points)
    errors, variances = np.zeros((2, n, n_repeats))
    sizes = np.zeros(n)
    for i, (here, there) in enumerate(zip(points, proposed, strict=True)):
        base = _base(step, here, there)
        left, psi = exact[i] - base, np.full(n_repeats, -base)
        there_and_back = repeat(here, there, psi, None), repeat(there, here, -psi, None)
        forward, back = (found.accepted for found in there_and_back)
        # Divided so that both terms are at most 1.
        weights = min(1.0, math.exp(-left)), min(1.0, math.exp(left))
        errors[i] = weights[0] * forward - weights[1] * back
        variances[i] = weights[0] ** 2 * forward.var() + weights[1] ** 2 * back.var()
        variances[i] += (weights[0] ** 2 + weights[1] ** 2) / n_repeats
        sizes[i] = np.mean([found.sizes.mean() for found in there_and_back])
    moves = _moves(exact, sizes, errors.mean(1), np.sqrt(variances.sum(1)) / n_repeats)
    empty = pd.DataFrame(columns=["log_ratio", "error", "standard_error"])
    sign = np.sign(exact - exact.mean())[:, None]
    return _verdict(step, moves, empty, np.empty(0), errors, errors * sign, variances)


def _propose(step: MinibatchMH, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    keys = [class_key(step.proposal), repr(step.proposal.jit_options)]
    propose = jit_kept(make_proposing(step.proposal.build()[0]), keys)
    proposed = points.copy()
    for here, there in zip(points, proposed, strict=True):
        for _ in range(100):
            propose(rng, here, there, step._active, step.proposal_state, step._guide)
            if np.isfinite(step.tall.compiled_prior_logp(there)):
                break
    return proposed


def _log_ratios(step: MinibatchMH, points: np.ndarray, proposed: np.ndarray) -> np.ndarray:
    """Read all rows for the log ratios of the target, by the model alone."""
    row_logp = step.tall.compiled_row_logp

    sums = partial(_sums, row_logp, points, proposed)
    [total] = sum_over_chunks(sums, step.tall.data, "Auditing the decisions")
    rows = total / step.temperature
    prior = step.tall.compiled_prior_logp
    priors = [
        float(prior(there)) - float(prior(here))
        for here, there in zip(points, proposed, strict=True)
    ]
    return rows + np.array(priors)


def _sums(
    row_logp: CompiledFunction, points: np.ndarray, proposed: np.ndarray, *batch: np.ndarray
) -> list[np.ndarray]:
    """Sum the log ratios of a chunk for each move."""
    moves = zip(points, proposed, strict=True)
    ratios = [(row_logp(there, *batch) - row_logp(here, *batch)).sum() for here, there in moves]
    return [np.array(ratios)]


def _base(step: MinibatchMH, here: np.ndarray, there: np.ndarray) -> float:
    target = step._target
    return target.base(there, target.constants) - target.base(here, target.constants)


def _repeater(step: MinibatchMH, rng: np.random.Generator) -> Callable[..., _Repeated]:
    ndims = [values.ndim for values in step._density.data]
    loop = make_repeating(ndims, step.acceptance.build, step.drawing)
    kernel = jit_kept(loop, [class_key(step.acceptance), repr(ndims), repr(step.drawing)])
    step._first_batch[0] = step.batch_state.size[0]
    first = int(np.clip(step._first_batch[0], 2, max(2, step.n_rows // 2)))
    rows, density, n_rows, numbers = step._rows, step._density, step.n_rows, None
    if step.sized is not None:  # rows of its own, each of which serves again
        residents = Residents.gather(step.sized, step.n_residents, rng, once=False)
        n_rows, numbers = step.n_residents, residents.numbers
        rows = row_workspace(n_rows, residents.table)
        density = density._replace(data=residents.data, drawn=residents.drawn)
    scale = n_rows / step.temperature

    def repeat(
        here: np.ndarray, there: np.ndarray, psi: np.ndarray, left: float | None
    ) -> _Repeated:
        accepted, sizes = np.array(psi, dtype=float), np.full(psi.size, first)
        means, variances = np.empty((2, 0 if left is None else 16))
        _, bad_row = kernel(
            rng,
            here,
            there,
            density,
            rows,
            step._parameters,
            accepted,
            sizes,
            means,
            variances,
        )
        step.refuse_impossible(bad_row, here, numbers)
        if left is None:
            return _Repeated(accepted, sizes, np.empty(0))
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = (scale * means - left) / (scale * np.sqrt(variances))
        return _Repeated(accepted, sizes, scores)

    return repeat


def _ideal(acceptance: Any) -> Callable[[np.ndarray, bool], np.ndarray]:
    """Return what a test stands for: a probability, by log ratio and whether all rows are read."""

    def probability(log_ratios: np.ndarray, whole: bool) -> np.ndarray:
        if isinstance(acceptance, Penalty) and not whole:
            return acceptance.probability(log_ratios)
        if type(acceptance).__name__ in ("CorrectedBarker", "Barker"):
            return 1 / (1 + np.exp(-log_ratios))
        return np.minimum(1.0, np.exp(log_ratios))

    return probability


def _mean_error(variances: np.ndarray) -> float:
    return math.sqrt(variances.sum()) / variances.size


def _moves(
    exact: np.ndarray, sizes: np.ndarray, errors: np.ndarray, standard_errors: np.ndarray
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "log_ratio": exact,
            "batch_size": sizes,
            "error": errors,
            "standard_error": standard_errors,
            "z": errors / standard_errors,
        }
    )


def _verdict(
    step: MinibatchMH,
    moves: pd.DataFrame,
    by_log_ratio: pd.DataFrame,
    scores: np.ndarray,
    errors: np.ndarray,
    signed: np.ndarray,
    variances: np.ndarray,
) -> Audit:
    standard_error = _mean_error(variances)
    rows = []
    for name, values in (("mean", errors), ("odd", signed)):
        value = float(values.mean())
        rows.append((name, value, standard_error, 2 * ndtr(-abs(value) / standard_error)))
    total = float((moves["z"] ** 2).sum())
    rows.append(("moves", total, math.sqrt(2 * len(moves)), chdtrc(len(moves), total)))
    statistics = pd.DataFrame(rows, columns=["statistic", "value", "standard_error", "p"])
    right = bool(statistics["p"].min() > 1 / (FALSE_ALARMS * len(statistics)))
    name = type(step.acceptance).__name__
    mean, odd = statistics["value"][:2]
    worst = moves.iloc[int(moves["z"].abs().argmax())]
    found = (
        f"{len(moves)} moves of {name}, {errors.shape[1]} decisions on each, about "
        f"{moves['batch_size'].mean():,.0f} rows in a decision: the acceptance probability is off "
        f"by {mean:+.4f} on average, {odd:+.4f} towards the sign of the log ratio (standard error "
        f"{standard_error:.4f}), and by {worst['error']:+.3f} ± {worst['standard_error']:.3f} for "
        "the worst move."
    )
    judged = (
        "No error was found."
        if right
        else "The decisions are WRONG: the draws are not those of the posterior. Use Exact() or "
        "CorrectedBarker(), rows='size', and leave batch_size out; check that a reference that was "
        "passed is that of these data."
    )
    return Audit(moves, by_log_ratio, statistics, scores, right, f"{found} {judged}")
