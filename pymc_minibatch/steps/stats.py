"""The sample stats of all steps, from which docstrings and ``docs/stats.md`` are made."""

import re
import textwrap
from typing import Any, NamedTuple

import numpy as np
from pymc.stats.convergence import SamplerWarning

__all__ = ["OF_EFFECTS", "STATS", "Stat", "described", "dtypes_shapes", "stats_of", "with_tables"]

MARK = re.compile(r"^( *)- Listed in :data:`\.steps\.stats\.STATS`\.$", re.MULTILINE)
"""The line of a step's docstring in whose place the stats are described."""

WIDTH = 96
"""Characters of a line of a docstring."""

MH, FLY, FISHER, LANGEVIN, MOMENTUM = "MinibatchMH", "FlyMC", "SGFS", "SGLD", "SGHMC"
THERMOSTAT = "SGNHT"
EFFECTS = MH, FLY
GRADIENT = FISHER, LANGEVIN, MOMENTUM, THERMOSTAT
ALL = EFFECTS + GRADIENT


class Stat(NamedTuple):
    """A stat of each draw, a number.

    Attributes
    ----------
    name : str
        By which it is in ``sample_stats``.
    dtype : type
        Of its values.
    steps : tuple of str
        The steps that record it.
    meaning : str
        What it is.
    expected : str
        What to look for; empty if nothing is to be.
    kind : {"own", "effects", "all"}
        Under which heading ``docs/stats.md`` has it: a step's own; of models with effects; of all
        steps.
    """

    name: str
    dtype: Any
    steps: tuple[str, ...]
    meaning: str
    expected: str = ""
    kind: str = "own"


STATS = (
    Stat(
        "acceptance_rate",
        np.float64,
        (MH,),
        "share of the draw's transitions that were accepted",
        "at most about 0.5 with Barker's test, higher with others; far below 0.2 the moves are too "
        "long",
    ),
    Stat(
        "acceptance_rate",
        np.float64,
        (FLY,),
        "share of its updates of θ, or moves of effects, that were accepted",
    ),
    Stat(
        "n_likelihood",
        np.int64,
        (MH,),
        "row log-likelihoods evaluated; one row at one point counts 1. Rows that are read at every "
        "decision count here, and not in ``batch_size``",
        "the cost of a draw",
    ),
    Stat(
        "n_likelihood",
        np.int64,
        (FLY,),
        "row log-likelihoods evaluated; one row at one point counts 1. The first draw of a chain "
        "reads all rows once more, to draw which are bright",
        "the cost of a draw",
    ),
    Stat(
        "n_gradient",
        np.int64,
        (MH,),
        "directional derivatives of rows evaluated for the control variate; those of one row at "
        "the reference, towards one point, count 1",
        "0 without a control variate",
    ),
    Stat(
        "n_gradient",
        np.int64,
        (FLY,),
        "number of these evaluations that include the gradient, made by updates of θ",
    ),
    Stat(
        "n_gradient",
        np.int64,
        GRADIENT,
        "gradients of rows evaluated; with a control variate those at the reference, and their "
        "changes by the Hessian, count too",
        "the cost of a draw",
    ),
    Stat(
        "n_scanned",
        np.int64,
        (MH,),
        "row log-likelihoods scanned, by tests that have to know something about all rows before "
        'they decide (SubLhd, and Austere with variant "nc")',
        "0 for the tests meant for use",
    ),
    Stat(
        "batch_size",
        np.float64,
        (MH,),
        "mean number of rows that a decision rests on",
        "near N: no rows are saved",
    ),
    Stat(
        "log_ratio_var",
        np.float64,
        (MH,),
        "mean of s², the variance of the estimated log ratio",
        "below σ² by construction",
    ),
    Stat(
        "test_error",
        np.float64,
        (MH,),
        "largest estimated bound on the error of an acceptance probability",
        "below the limit, 10⁻³ by default; 0 for the exact test",
    ),
    Stat(
        "exact",
        np.bool_,
        (MH,),
        "whether decisions are exact (by Exact, by sufficient statistics, or by all rows), and the "
        "witness has verified it",
    ),
    Stat(
        "diverging",
        bool,  # as PyMC declares it
        (MH,),
        "whether a trajectory with all rows diverged (``fallback``)",
        "false; if true, the posterior has a funnel or an edge there",
    ),
    Stat("n_bright", np.float64, (FLY,), "mean number of bright rows, with those always read"),
    Stat("q", np.float64, (FLY,), "probability of a proposal to turn a dark row bright"),
    Stat(
        "scale",
        np.float64,
        (MH,),
        "length of the moves; for a random walk the factor on its standard deviations, for Laplace "
        "sqrt(1 - rho²), for effects the sine of an angle, for trajectories their step size",
        "constant after tuning",
    ),
    Stat(
        "scale",
        np.float64,
        (FLY,),
        "length of the moves of θ, in standard deviations of prior and bounds",
        "constant after tuning",
    ),
    Stat(
        "step_size",
        np.float64,
        (FISHER,),
        "share s of the way to the mode that a step makes, averaged over the directions; an "
        "independent draw takes about 2/s − 1 steps",
    ),
    Stat(
        "step_size",
        np.float64,
        (LANGEVIN, MOMENTUM, THERMOSTAT),
        "ε of the last step",
        "weight averages by it if it falls",
    ),
    Stat(
        "gradient_noise",
        np.float64,
        (FISHER,),
        "share of the batch in the variance of the noise, in the last 32 steps; NaN while the "
        "chain waits",
    ),
    Stat(
        "gradient_noise",
        np.float64,
        (LANGEVIN,),
        "share of the batch in the variance of the noise, in the last 32 steps",
        "small, because nothing compensates for it",
    ),
    Stat(
        "gradient_noise",
        np.float64,
        (MOMENTUM,),
        "share of the batch in the noise of the momentum, averaged over the parameters",
    ),
    Stat(
        "gradient_noise",
        np.float64,
        (THERMOSTAT,),
        "share of the friction in the last step that compensates for the noise of the batch",
    ),
    Stat(
        "acceptance_rate_hyper",
        np.float64,
        EFFECTS,
        "share of accepted moves of hyperparameters, such as the scales of effects; NaN for models "
        "without effects, as are the next four stats",
        kind="effects",
    ),
    Stat(
        "acceptance_rate_dense",
        np.float64,
        EFFECTS,
        "share of accepted moves of coefficients, and of effects that many rows share",
        kind="effects",
    ),
    Stat(
        "acceptance_rate_groups",
        np.float64,
        EFFECTS,
        "share of accepted moves of the effects of groups",
        kind="effects",
    ),
    Stat(
        "n_sweeps",
        np.float64,
        EFFECTS,
        "number of sweeps over all levels of a grouping factor",
        kind="effects",
    ),
    Stat(
        "rows_per_sweep",
        np.float64,
        EFFECTS,
        "mean number of rows read per sweep",
        kind="effects",
    ),
    Stat(
        "n_rows",
        np.int64,
        ALL,
        "rows of the data, the same at every draw, for :func:`compare`",
        kind="all",
    ),
    Stat(
        "setup_seconds",
        np.float64,
        ALL,
        "seconds of set-up, including those of the `reference` that was passed; the same at every "
        "draw",
        kind="all",
    ),
    Stat(
        "stand_in",
        np.bool_,
        ALL,
        "whether rows were bound by ``data=``, so that ``observed_data`` and ``constant_data`` of "
        "the result hold the model's stand-in for them",
        kind="all",
    ),
    Stat(
        "rows_checksum",
        np.int64,
        ALL,
        "checksum of the rows, which reveals if other rows are passed later; 0 if rows stay in "
        "partitions and are not read for it",
        kind="all",
    ),
    Stat(
        "model_checksum",
        np.int64,
        ALL,
        "checksum of the rest of the model: likelihood, constants and prior",
        kind="all",
    ),
    Stat(
        "n_witnessed",
        np.int64,
        ALL,
        "number of comparisons with the model's own log-density that the chain has passed",
        kind="all",
    ),
    Stat(
        "witness_error",
        np.float64,
        ALL,
        "largest relative error of these comparisons beyond rounding; NaN before the first",
        kind="all",
    ),
)

OF_EFFECTS = tuple(stat.name for stat in STATS if stat.kind == "effects")
"""Stats of a model with effects, NaN elsewhere."""

WARN = MH, LANGEVIN
"""Steps that warn while they sample."""


def stats_of(step: str) -> list[Stat]:
    """Return the stats of a step, by the name of its class."""
    return [stat for stat in STATS if step in stat.steps]


def dtypes_shapes(step: str) -> dict[str, tuple[Any, Any]]:
    """Return the stats of a step as PyMC declares them."""
    declared: dict[str, tuple[Any, Any]] = {stat.name: (stat.dtype, []) for stat in stats_of(step)}
    if step in WARN:  # pm.sample logs it, and drops it from its result
        declared["warning"] = (SamplerWarning, None)
    return declared


def described(doc: str | None, step: str) -> str | None:
    """Return a docstring with the stats of a step, if it has the line that stands for them."""
    mark = MARK.search(doc or "")
    if doc is None or mark is None:
        return doc
    indent, lines = mark.group(1), []
    for stat in stats_of(step):
        text = f"{indent}- ``{stat.name}``: {stat.meaning}."
        lines += textwrap.wrap(text, WIDTH, subsequent_indent=f"{indent}  ")
    return doc[: mark.start()] + "\n".join(lines) + doc[mark.end() :]


PLACE = re.compile(r"<!-- stats of (\w+)(?:, (\w+))? -->")
"""Where a page has a table: of which step, and of which kind if not its own."""


def with_tables(page: str) -> str:
    """Return a page of the documentation with its tables of stats."""
    return PLACE.sub(lambda place: table(place[1], place[2] or "own"), page)


def table(step: str, kind: str) -> str:
    """Return the stats of a step under one heading as a table in Markdown."""
    chosen = [stat for stat in stats_of(step) if stat.kind == kind]
    with_expected = any(stat.expected for stat in chosen)
    header = ["stat", "meaning"] + ["what to look for"] * with_expected
    rows = [header, ["---"] * len(header)]
    rows += [
        [f"`{s.name}`", _markdown(s.meaning)] + [_markdown(s.expected)] * with_expected
        for s in chosen
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _markdown(text: str) -> str:
    """Return text of a docstring as Markdown."""
    linked = re.sub(r":func:`(\w+)`", r"{func}`~pymc_minibatch.\1`", text)
    return linked.replace("``", "`")
