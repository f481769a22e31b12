"""What repeated decisions and comparisons say of a run: statistics, p-values and the verdict.

P-values are corrected for their number by Holm's method.

Reference
---------
Holm (1979), A simple sequentially rejective multiple test procedure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import chdtrc, ndtr

from pymc_minibatch.steps import MinibatchMH
from pymc_minibatch.steps.common import TallStep
from pymc_minibatch.steps.gradient_step import GradientStep
from pymc_minibatch.witness import Comparison
from pymc_minibatch.witness.comparison import AGREES
from pymc_minibatch.witness.repeats import (
    LOG_RATIOS,
    Repeats,
)

__all__ = ["CONFIDENCE", "FALSE_ALARMS", "TUNING", "Audit", "holm", "judge"]

FALSE_ALARMS = 1000
"""One in so many audits of a correct run finds an error (false positives)."""

TUNING = 200
"""Draws by which a step is tuned that has made none in this process."""

CONFIDENCE = 1.96
"""Standard errors to both sides of an interval of 95 %."""


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
        The errors of all moves together, by log ratio. Empty for the exact test.
    statistics : pandas.DataFrame
        ``mean`` error, ``odd`` (the error times the sign of the log ratio), ``moves`` (the sum of
        squared deviations of moves beyond `limit`, in standard errors) and ``estimate`` (the mean
        error of log ratios by batches, in nats), each with its p-value for a correct test,
        corrected by Holm's method.
    limit : float
        The error of acceptance probabilities that the audit should detect.
    resolution : float
        The error that it can detect: half the width of the 95 % interval of the mean error.
    right : bool
        Whether no deviation was found.
    resolved : bool
        Whether no deviation was found, although one of `limit` would have been detected.
    verdict : str
        The result as a text.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> data = 3 + np.random.default_rng(1).standard_t(4, size=20_000)
    >>> with pm.Model():
    ...     mu, sigma = pm.Normal("mu", 0, 10), pm.HalfNormal("sigma", 2)
    ...     y = pm.StudentT("y", nu=4, mu=mu, sigma=sigma, observed=data)
    ...     step = pmb.MinibatchMH()
    ...     idata = pm.sample(
    ...         step=step, draws=500, tune=500, chains=2, cores=1, random_seed=1,
    ...         progressbar=False,
    ...     )
    >>> found = pmb.audit(idata, step)
    >>> found.right, found.resolved
    (True, True)
    >>> found.statistics["statistic"].tolist()
    ['mean', 'odd', 'moves', 'estimate']
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


def mean_error(variances: np.ndarray) -> float:
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
        standard_error = mean_error(each.variances)
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
        (t, errors[targets == t].mean(), mean_error(variances[targets == t]))
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
    standard_error = mean_error(np.concatenate([each.variances for each in repeats]))
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


def judge(
    step: TallStep,
    compared: Sequence[Comparison],
    repeats: Sequence[Repeats],
    limit: float,
    is_tuned: bool = True,
) -> Audit:
    """Return what an audit has found, with its verdict in words."""
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
            "These comparisons are of gradients of all rows. The noise of batches and the error of "
            "steps of finite length are part of the method, and are not checked."
        )
    if not is_tuned:
        words.append(
            "The step has made no draws in this process, so it was tuned anew by "
            f"{TUNING} draws; its step lengths and batches can differ from those of the run."
        )
    return Audit(
        comparisons=comparisons,
        moves=moves,
        by_log_ratio=by_log_ratio,
        statistics=statistics,
        limit=limit,
        resolution=resolution,
        right=right,
        resolved=right and resolved,
        verdict=" ".join(words),
    )


def _of_comparisons(compared: Sequence[Comparison], wrong: Sequence[Comparison]) -> str:
    if wrong:
        return (
            f"{len(wrong)} of {len(compared)} comparisons with the model's own log-density FAIL. "
            f"{wrong[0].complaint()}. The draws are not those of the posterior. Please report this "
            "model."
        )
    if not compared:
        return "Rows stay in partitions: no move was compared with the model's own log-density."
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
        f"on each, about {moves['batch_size'].mean():,.0f} rows per decision. The acceptance "
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
            "if you passed a reference, check that it belongs to these data."
        )
    if resolution <= limit:
        return f"No deviation was found; one of {limit:g} on average would have been seen."
    n_repeats = math.ceil(repeats[-1].errors.size * (resolution / limit) ** 2 * 1.1)
    return (
        f"No deviation was found, but NOT RESOLVED: deviations below {resolution:.2g} on average "
        f"are not seen. To see those of {limit:g} takes n_repeats={n_repeats:,}."
    )
