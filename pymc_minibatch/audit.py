"""Was a run right? Its moves beside the model's own density, its decisions beside all rows.

An audit is the witness of a run (:mod:`pymc_minibatch.witness`) with more moves: from draws of the
run, moves are made as the step makes them, and their log ratios compared with PyMC's own
log-density. If batches of rows decide, the decision on each of some moves is repeated many
times, each time with a part ψ that needs no rows so that the log ratio by all rows is one of a few
given numbers. So the frequency of acceptance can be compared with the probability that the test
stands for, and the estimates of log ratios with what all rows make them.

The exact test has no such probability, but a balance: with ψ = 0 and r the log ratio that the rows
add, it must accept the move e^r times as often as the move back.

P-values are corrected for their number by Holm's method.

Reference
---------
Holm (1979), A simple sequentially rejective multiple test procedure.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import chdtrc, ndtr

from pymc_minibatch.acceptance.decision import row_workspace
from pymc_minibatch.draws import draws_of_step
from pymc_minibatch.jit.cache import class_key
from pymc_minibatch.jit.compiled import CompiledFunction, jit_kept
from pymc_minibatch.kernels.audit import make_proposing, make_repeating
from pymc_minibatch.kernels.residents import Residents
from pymc_minibatch.steps import MinibatchMH
from pymc_minibatch.steps.common import TallStep
from pymc_minibatch.steps.gradient_step import GradientStep
from pymc_minibatch.tall.passes import sum_over_chunks
from pymc_minibatch.witness import Comparison
from pymc_minibatch.witness.comparison import AGREES
from pymc_minibatch.witness.repeats import (
    LOG_RATIOS,
    Repeats,
    decided_by_batches,
    repeat_on_effects,
)

__all__ = ["Audit", "audit"]

FALSE_ALARMS = 1000
"""One in so many audits of a correct run finds an error (false positives)."""

TUNING = 200
"""Draws by which a step is tuned that has made none in this process."""

LOOKS = 50
"""Draws from which moves are compared with the model's density; each takes some eight passes."""

CONFIDENCE = 1.96
"""Standard errors to both sides of an interval of 95 %."""

SPREAD = 0.19
"""Mean of p (1 − p) over the log ratios at which decisions are repeated."""

PILOT, MOST_READ, MOST_REPEATS = 64, 2e8, 50_000
"""Decisions on a move at least, by which the rows of a batch are known; rows that all decisions of
an audit may read, and decisions on a move at most, unless `n_repeats` is given."""

ESTIMATES = 64
"""Estimates of the log ratio of a move, besides those of decisions."""


@dataclass(frozen=True, eq=False)
class Audit:
    """Result of an audit.

    Attributes
    ----------
    comparisons : pandas.DataFrame
        One row per comparison with the model's own density: ``move``, ``variables``,
        ``log_ratio``, ``expected``, ``error`` (relative, beyond rounding).
    moves : pandas.DataFrame
        One row per move that was decided on repeatedly: its ``move``, ``log_ratio``,
        ``batch_size`` (mean), ``error`` (mean frequency of acceptance less the probability), its
        ``standard_error``, ``z``, and ``p`` of an error beyond `limit` after Holm's correction for
        the number of moves. Empty if no batch decides.
    by_log_ratio : pandas.DataFrame
        The same, over all moves, at each log ratio. For the exact test: empty.
    statistics : pandas.DataFrame
        ``mean`` error, ``odd`` (the error times the sign of the log ratio), ``moves`` (the sum of
        squared deviations of moves beyond `limit`, in standard errors) and ``estimate`` (the mean
        error of log ratios by batches, in nats), each with its p-value for a right test, corrected
        by Holm's method.
    limit : float
        The error of acceptance probabilities that was to be seen.
    resolution : float
        The error that is seen: half the width of the interval of 95 % of the mean error.
    right : bool
        Whether no deviation was found.
    resolved : bool
        Whether no deviation was found, and one of `limit` would have been.
    verdict : str
        In words.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> found = pmb.audit(idata, step)  # doctest: +SKIP
    >>> print(found)  # doctest: +SKIP
    """

    comparisons: pd.DataFrame
    moves: pd.DataFrame
    by_log_ratio: pd.DataFrame
    statistics: pd.DataFrame
    limit: float
    resolution: float
    right: bool
    resolved: bool
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
    step: TallStep,
    *,
    model: Any = None,
    n_moves: int = 200,
    n_repeats: int | None = None,
    limit: float = 1e-3,
    random_seed: int = 0,
) -> Audit:
    """Check the moves of a run against the model's own density, its decisions against all rows.

    Parameters
    ----------
    idata : DataTree
        Result of ``pm.sample``, perhaps read from a store; its posterior must hold all free
        variables of the model.
    step : MinibatchMH, FlyMC, SGFS, SGLD, SGHMC or SGNHT
        The step of the run, or one made in the same way. What it has tuned is audited; if it has
        made no draws in this process (as with ``cores`` above 1), it is tuned anew.
    model : bambi.Model, optional
        For a result of Bambi its model, which knows how the intercept was moved.
    n_moves : int, default 200
        Moves on which decisions are repeated, from draws at equal distances. Each reads all rows at
        two points.
    n_repeats : int, optional
        Decisions on each of them. If not given, as many as show errors of `limit`, unless they
        would read more than 2·10⁸ rows in all.
    limit : float, default 1e-3
        The mean error of acceptance probabilities that the audit should detect. The default is the
        error that tests allow in a decision.
    random_seed : int, default 0
        Seed of moves and batches.

    Returns
    -------
    Audit
        ``print`` it for the verdict.

    Raises
    ------
    TypeError
        If `step` is no step of this package.
    ValueError
        If the posterior lacks variables, has fewer than 40 draws, or draws that are not finite; if
        `limit` is not positive.
    SamplingError
        If a row is impossible at a draw, or beyond the bound of an exact test.
    RuntimeError
        If data or files are not those on which the step was set up.

    Notes
    -----
    The false-positive rate is 0.1 %. The verdict is "not resolved" if an error of
    `limit` would not have been seen, and says how many repetitions it takes. Decisions on the
    levels of a factor are compared with all rows, but not repeated. For gradients the audit
    compares those of all rows; the noise of batches is a part of the method there. An audit says
    nothing of whether chains have converged, nor of places that none has visited.

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
    if not isinstance(step, TallStep):
        raise TypeError(
            f"step must be a step of this package, such as MinibatchMH; got an object of type "
            f"{type(step).__name__}. Pass the step of the run, or one made in the same way."
        )
    if not limit > 0:
        raise ValueError(f"limit must be positive; got {limit}.")
    step.refuse_other_data()
    draws = draws_of_step(idata, step.tall, model)
    points = draws.all_points(step.tall, max(n_moves, 40), least=40)[:n_moves]
    rng, saved = np.random.default_rng(random_seed), step.sampling_state
    is_tuned = step.n_draws > 0 and not step.tune
    try:
        if not is_tuned:
            _tune(step, points[0], random_seed)
        compared = _compared(step, points, rng)
        plan = _Plan(n_repeats, limit, len(points))
        repeats = _repeats(step, points, plan, rng)
    finally:
        step.sampling_state = saved
    return _verdict(step, compared, repeats, limit, is_tuned)


def _tune(step: TallStep, flat: np.ndarray, random_seed: int) -> None:
    """Bring the step to where it was in the run: moves and batches are tuned anew."""
    step.setup_chain(np.random.default_rng(random_seed), TUNING, 0)
    point = step.tall.layout.unflatten(flat)
    for _ in range(TUNING):
        point, _ = step.step(point)
    step.stop_tuning()


def _compared(step: TallStep, points: np.ndarray, rng: np.random.Generator) -> list[Comparison]:
    """Compare moves of all kinds with the model's own density, from draws at equal distances."""
    look = step.look()
    if look is None:
        return []
    chosen = np.unique(np.linspace(0, len(points) - 1, LOOKS).astype(int))
    found = list(look.look_at_batches(rng, points[0]))
    for point in points[chosen]:
        found += look.look(rng, point.copy())
    return found


class _Plan(NamedTuple):
    """How often decisions are repeated: as was asked, or so that errors of `limit` are seen."""

    asked: int | None
    limit: float
    n_moves: int

    def __call__(self, batch_size: float) -> int:
        """Return the decisions on a move, given the rows that one takes."""
        if self.asked is not None:
            return self.asked
        affordable = MOST_READ / (max(batch_size, 1.0) * self.n_moves)
        return int(np.clip(self.wanted(SPREAD), PILOT, max(PILOT, min(affordable, MOST_REPEATS))))

    def wanted(self, spread: float) -> int:
        """Return the decisions on a move that make errors of `limit` visible."""
        return math.ceil(1.1 * spread * (CONFIDENCE / self.limit) ** 2 / self.n_moves)


def _repeats(
    step: TallStep, points: np.ndarray, plan: _Plan, rng: np.random.Generator
) -> list[Repeats]:
    """Repeat decisions by batches, if any decide."""
    if not isinstance(step, MinibatchMH):
        return []
    if step.latent is None:
        return _plain_repeats(step, points, plan, rng)
    look, found = step.look(), list[Repeats]()
    if not decided_by_batches(look):
        return []
    for turn, point in enumerate(points):
        n = plan(np.mean([each.batch_size for each in found])) if found else PILOT
        repeated = repeat_on_effects(look, rng, point, n, turn)
        if repeated is not None:
            found.append(repeated)
    return found


class _Repeated(NamedTuple):
    """What repeated decisions on one move gave."""

    accepted: np.ndarray
    sizes: np.ndarray
    estimates: np.ndarray


def _plain_repeats(
    step: MinibatchMH, points: np.ndarray, plan: _Plan, rng: np.random.Generator
) -> list[Repeats]:
    proposed = _propose(step, points, rng)
    exact = _log_ratios(step, points, proposed)
    possible = np.isfinite(exact)
    moves = list(zip(points[possible], proposed[possible], exact[possible], strict=True))
    repeat, is_exact = _repeater(step, rng), step.acceptance.is_exact
    make = partial(_balanced if is_exact else _repeated, step, repeat)
    if not moves:
        return []
    pilot = np.mean([make(*move, n_repeats=PILOT).batch_size for move in moves[:8]])
    return [make(*move, n_repeats=plan(float(pilot))) for move in moves]


def _repeated(
    step: MinibatchMH,
    repeat: Callable[..., _Repeated],
    here: np.ndarray,
    there: np.ndarray,
    exact: float,
    *,
    n_repeats: int,
) -> Repeats:
    """Compare how often a move is accepted with the probability that the test stands for."""
    targets, base = np.resize(LOG_RATIOS, n_repeats), _base(step, here, there)
    found = repeat(here, there, targets - exact, min(n_repeats, ESTIMATES))
    probability = step.acceptance.ideal(targets, found.sizes == step.n_rows)
    return Repeats(
        "all at once",
        exact,
        float(found.sizes.mean()),
        found.accepted - probability,
        probability * (1 - probability),
        targets,
        found.estimates - (exact - base),
    )


def _balanced(
    step: MinibatchMH,
    repeat: Callable[..., _Repeated],
    here: np.ndarray,
    there: np.ndarray,
    exact: float,
    *,
    n_repeats: int,
) -> Repeats:
    """Compare how often a move and the move back are accepted for the rows alone."""
    base = _base(step, here, there)
    left, psi = exact - base, np.full(n_repeats, -base)
    there_and_back = repeat(here, there, psi, 0), repeat(there, here, -psi, 0)
    forward, back = (found.accepted for found in there_and_back)
    # Divided so that both terms are at most 1.
    weights = min(1.0, math.exp(-left)), min(1.0, math.exp(left))
    variance = weights[0] ** 2 * forward.var() + weights[1] ** 2 * back.var()
    variance += (weights[0] ** 2 + weights[1] ** 2) / n_repeats
    return Repeats(
        "all at once",
        exact,
        float(np.mean([found.sizes.mean() for found in there_and_back])),
        weights[0] * forward - weights[1] * back,
        np.full(n_repeats, variance),
        np.full(n_repeats, left),
        np.empty(0),
    )


def _propose(step: MinibatchMH, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    keys = [class_key(step.proposal), repr(step.proposal.jit_options)]
    propose = jit_kept(make_proposing(step.proposal.build()[0]), keys)
    proposed = points.copy()
    for here, there in zip(points, proposed, strict=True):
        for _ in range(100):
            propose(rng, here, there, step._active, step.proposal_state, step.guide)
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
    target = step.target
    return target.base(there, target.constants) - target.base(here, target.constants)


def _repeater(step: MinibatchMH, rng: np.random.Generator) -> Callable[..., _Repeated]:
    ndims = [values.ndim for values in step.density.data]
    loop = make_repeating(ndims, step.acceptance.build, step.drawing)
    kernel = jit_kept(loop, [class_key(step.acceptance), repr(ndims), repr(step.drawing)])
    step._first_batch[0] = step.batch_state.size[0]
    first = int(np.clip(step._first_batch[0], 2, max(2, step.n_rows // 2)))
    rows, density, n_rows, numbers = step.workspace, step.density, step.n_rows, None
    if step.sized is not None:  # rows of its own, each of which serves again
        residents = Residents.gather(step.sized, step.n_residents, rng, once=False)
        n_rows, numbers = step.n_residents, residents.numbers
        rows = row_workspace(n_rows, residents.table)
        density = density._replace(data=residents.data, drawn=residents.drawn)
    scale = n_rows / step.temperature

    def repeat(here: np.ndarray, there: np.ndarray, psi: np.ndarray, n_estimates: int) -> _Repeated:
        accepted, sizes = np.array(psi, dtype=float), np.full(psi.size, first)
        means, variances = np.empty((2, n_estimates))
        _, bad_row = kernel(
            rng,
            here,
            there,
            density,
            rows,
            step.test_parameters,
            accepted,
            sizes,
            means,
            variances,
        )
        step.refuse_impossible(bad_row, here, numbers)
        return _Repeated(accepted, sizes, scale * means)

    return repeat


def _mean_error(variances: np.ndarray) -> float:
    return math.sqrt(variances.sum()) / variances.size


def holm(p: np.ndarray) -> np.ndarray:
    """Correct p-values for their number by Holm's method.

    Parameters
    ----------
    p : ndarray, shape (K,)
        Of K tests.

    Returns
    -------
    ndarray, shape (K,)
        Below α for a right null hypothesis with probability α at most, whichever are right.

    Examples
    --------
    >>> import numpy as np
    >>> holm(np.array([0.01, 0.5, 0.04])).round(2).tolist()
    [0.03, 0.5, 0.08]
    """
    order = np.argsort(p)
    scaled = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    corrected = np.empty(p.size)
    corrected[order] = np.minimum(1.0, scaled)
    return corrected


def _two_sided(z: np.ndarray | float) -> Any:
    return 2 * ndtr(-np.abs(z))


def _beyond(error: np.ndarray | float, limit: float, standard_error: Any) -> Any:
    """Return by how many standard errors an error exceeds the limit; 0 if it does not."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.maximum(np.abs(error) - limit, 0.0) / standard_error)


def _moves(repeats: Sequence[Repeats], limit: float) -> pd.DataFrame:
    rows = []
    for each in repeats:
        standard_error = _mean_error(each.variances)
        error = float(each.errors.mean())
        z = error / standard_error if standard_error else 0.0
        p = _two_sided(_beyond(error, limit, standard_error))
        rows.append((each.kind, each.log_ratio, each.batch_size, error, standard_error, z, p))
    names = ["move", "log_ratio", "batch_size", "error", "standard_error", "z", "p"]
    moves = pd.DataFrame(rows, columns=names)
    moves["p"] = holm(moves["p"].to_numpy(dtype=float))
    return moves


def _by_log_ratio(repeats: Sequence[Repeats]) -> pd.DataFrame:
    targets = np.concatenate([each.targets for each in repeats])
    errors = np.concatenate([each.errors for each in repeats])
    variances = np.concatenate([each.variances for each in repeats])
    rows = [
        (t, errors[targets == t].mean(), _mean_error(variances[targets == t]))
        for t in LOG_RATIOS
        if (targets == t).any()
    ]
    return pd.DataFrame(rows, columns=["log_ratio", "error", "standard_error"])


def _statistics(repeats: Sequence[Repeats], moves: pd.DataFrame, limit: float) -> pd.DataFrame:
    """Test the mean error, one with the sign of the log ratio, all moves, and the estimates.

    Of the first three, what exceeds `limit` is tested: a smaller error is one that tests announce.
    """
    errors = np.concatenate([each.errors for each in repeats])
    targets = np.concatenate([each.targets for each in repeats])
    standard_error = _mean_error(np.concatenate([each.variances for each in repeats]))
    rows = []
    for name, values in (("mean", errors), ("odd", errors * np.sign(targets))):
        value = float(values.mean())
        excess = _beyond(value, limit, standard_error)
        rows.append((name, value, standard_error, float(_two_sided(excess))))
    total = float((_beyond(moves["error"], limit, moves["standard_error"]) ** 2).sum())
    rows.append(("moves", total, math.sqrt(2 * len(moves)), chdtrc(len(moves), total)))
    estimates = [each.estimates for each in repeats if each.estimates.size > 1]
    if estimates:
        # Standardized move by move, since some vary more than others.
        sds = np.array([each.std(ddof=1) for each in estimates])
        means = np.array([each.mean() for each in estimates])
        errors_of_means = sds / np.sqrt([each.size for each in estimates])
        whole = math.sqrt(float((errors_of_means**2).sum())) / sds.size
        value = float(means.mean())
        rows.append(("estimate", value, whole, _two_sided(value / whole) if whole else 1.0))
    statistics = pd.DataFrame(rows, columns=["statistic", "value", "standard_error", "p"])
    statistics["p"] = holm(statistics["p"].to_numpy(dtype=float))
    return statistics


def _verdict(
    step: TallStep,
    compared: Sequence[Comparison],
    repeats: Sequence[Repeats],
    limit: float,
    is_tuned: bool = True,
) -> Audit:
    comparisons = pd.DataFrame(
        [
            (each.move, ", ".join(each.names), each.log_ratio, each.expected, each.error)
            for each in compared
        ],
        columns=["move", "variables", "log_ratio", "expected", "error"],
    )
    wrong = [each for each in compared if not each.agrees]
    words, right, resolved, resolution = [_of_comparisons(compared, wrong)], not wrong, True, 0.0
    moves, statistics = _moves(repeats, limit), pd.DataFrame()
    by_log_ratio = pd.DataFrame(columns=["log_ratio", "error", "standard_error"])
    if repeats:
        statistics = _statistics(repeats, moves, limit)
        if not (isinstance(step, MinibatchMH) and step.acceptance.is_exact):
            by_log_ratio = _by_log_ratio(repeats)
        resolution = CONFIDENCE * float(statistics["standard_error"][0])
        decides_right = bool(statistics["p"].min() > 1 / FALSE_ALARMS)
        right, resolved = right and decides_right, resolution <= limit
        words.append(_of_decisions(step, repeats, moves, statistics))
        words.append(_judged(repeats, limit, resolution, decides_right))
    elif isinstance(step, MinibatchMH):
        words.append("No batch of rows decides on these moves.")
    elif isinstance(step, GradientStep):
        words.append(
            "Those are gradients by all rows; the noise of batches and the error of steps "
            "of finite length are a part of the method, and are not looked at."
        )
    if not is_tuned:
        words.append(
            "The step has made no draws in this process, so it was tuned anew by "
            f"{TUNING} draws; its lengths and batches are not quite those of the run."
        )
    return Audit(
        comparisons,
        moves,
        by_log_ratio,
        statistics,
        limit,
        resolution,
        right,
        right and resolved,
        " ".join(words),
    )


def _of_comparisons(compared: Sequence[Comparison], wrong: Sequence[Comparison]) -> str:
    if wrong:
        return (
            f"{len(wrong)} of {len(compared)} comparisons with the model's own log-density FAIL. "
            f"{wrong[0].complaint()}. The draws are not those of the posterior. Please report this "
            "model."
        )
    if not compared:
        return "No move was compared with the model's own log-density, as rows are elsewhere."
    kinds = len({each.move for each in compared})
    error = max(each.error for each in compared)
    return (
        f"{len(compared)} comparisons of {kinds} kind{'s' * (kinds > 1)}, at draws of the run, "
        f"agree with the model's own log-density to {max(error, 1e-12):.0e} (limit {AGREES:.0e})."
    )


def _of_decisions(
    step: TallStep, repeats: Sequence[Repeats], moves: pd.DataFrame, statistics: pd.DataFrame
) -> str:
    name = type(getattr(step, "acceptance", None)).__name__
    values = dict(zip(statistics["statistic"], statistics["value"], strict=True))
    errors = dict(zip(statistics["statistic"], statistics["standard_error"], strict=True))
    half, worst = CONFIDENCE * errors["mean"], moves.iloc[int(moves["z"].abs().argmax())]
    found = (
        f"Decisions by batches ({name}): {len(moves)} moves, {repeats[-1].errors.size:,} decisions "
        f"on each, about {moves['batch_size'].mean():,.0f} rows in a decision. The acceptance "
        f"probability is off by {values['mean']:+.4f} on average (95 % interval "
        f"{values['mean'] - half:+.4f} to {values['mean'] + half:+.4f}), and by "
        f"{values['odd']:+.4f} ± {errors['odd']:.4f} towards the sign of the log ratio. "
    )
    if "estimate" in values:
        found += (
            f"Log ratios by batches are off by {values['estimate']:+.4f} ± "
            f"{errors['estimate']:.4f} nats. "
        )
    return (
        f"{found}The move farthest off deviates by {abs(worst['z']):.1f} standard errors, p = "
        f"{worst['p']:.2g} after correction for {len(moves)} moves; all tests together have p = "
        f"{statistics['p'].min():.2g}."
    )


def _judged(repeats: Sequence[Repeats], limit: float, resolution: float, right: bool) -> str:
    if not right:
        return (
            "The decisions are WRONG: the draws are not those of the posterior. Use Exact(), or "
            "the default control variate with row_sampling='size', and leave batch_size out; "
            "check that a reference that was passed is that of these data."
        )
    if resolution <= limit:
        return f"No deviation was found; one of {limit:g} on average would have been seen."
    n_repeats = math.ceil(repeats[-1].errors.size * (resolution / limit) ** 2 * 1.1)
    return (
        f"No deviation was found, but NOT RESOLVED: deviations below {resolution:.2g} on average "
        f"are not seen. To see those of {limit:g} takes n_repeats={n_repeats:,}."
    )
