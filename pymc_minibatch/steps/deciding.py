"""How a step decides: by which acceptance test, and on rows drawn in which way."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from pymc_minibatch.acceptance import CorrectedBarker, Exact, Penalty
from pymc_minibatch.acceptance.decision import Acceptance, Prepared
from pymc_minibatch.acceptance.growing import LEAST_BATCH, rows_wanted
from pymc_minibatch.bounds.predictor import NoPredictorError
from pymc_minibatch.bounds.remainder import RemainderBounds, bound_remainders
from pymc_minibatch.kernels.by_size import RowSizes
from pymc_minibatch.proposals import RandomWalk
from pymc_minibatch.proposals.proposal import Proposal
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.pinned import may_be_extreme, read_always, rows_to_pin
from pymc_minibatch.reference.sizes import Unevenness, row_sizes
from pymc_minibatch.steps.asked import RowChoice
from pymc_minibatch.steps.display import mean_rows
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.weighted import SizedRows
from pymc_minibatch.warn import warn

__all__ = ["DEFAULT_BATCH", "TestPlan", "least_uniform_batch", "settle", "steps_of_draw"]

WORTH = 0.8
"""Rows are drawn by size where that takes a smaller share of the rows that uniform draws take."""

FEW_ROWS = 150
"""Up to this many rows on average, the exact test is preferred: others read fewer, but reject more,
and a transition costs as much as some ten further rows."""

OVERHEAD_ROWS, OVERHEAD_EACH = 40, 0.2
"""What else a transition costs, in rows, and more for each parameter: moves take D² products of
numbers in cache, where a row takes D of them and a walk to memory. From ``benchmarks.dimensions``.
"""

WALK = 5
"""Transitions of a random walk for each parameter that take it as far as one with a proposal from
the whole posterior."""

SEEN_SHARE = 0.5
"""With fewer rows that tell in a batch, it may know nothing of its error."""

SEEN_WANTED = 10.0
"""How many such rows a first batch then holds, on average."""

HARMLESS = 1e-4
"""With a smaller s² of one row it does not matter which rows are seen: by Cauchy and Schwarz, the
log ratios of all rows together are below its root."""

DEFAULT_BATCH = 100
"""Rows of a first batch before tuning."""

MOST_STEPS = 50
"""Transitions of a draw that are never exceeded by the automatic choice."""

ROUNDS = 3
"""How often extreme rows are looked for."""

MANY_ROWS = 5000
"""If a transition reads as many, PyMC's own cost of a draw hardly counts."""


def steps_of_draw(acceptance: Acceptance, proposal: Proposal, dim: int, rows: float) -> int:
    """Choose the transitions of a draw: until draws are nearly independent, and no more.

    PyMC takes about 0.1 ms for a draw whatever happens in it, as long as many transitions take; and
    draws between which the chain has hardly moved only fill memory. It is reckoned without a clock,
    so that runs can be repeated. `rows` is about how many a transition reads.
    """
    if rows > MANY_ROWS:
        return 1
    mixing = WALK * dim if isinstance(proposal, RandomWalk) else 1
    return min(MOST_STEPS, mixing * math.ceil(1 / acceptance.efficiency))


@dataclass(frozen=True)
class TestPlan:
    """What was settled.

    Attributes
    ----------
    acceptance
        The test.
    rows
        "size" or "uniform".
    reason
        Why, for the user.
    row_sizes
        What rows are drawn by; None if they are drawn uniformly.
    prepared
        What the test knows of the rows, as the jitted test reads it; None if that is nothing.
    unevenness
        How uneven the rows are, if it is known.
    rows_read
        About how many rows a full-size move takes, if that is known.
    sized
        What rows are drawn by where they are in partitions.
    control
        The control variate; where rows were found to be extreme, one that leaves them out.
    extreme
        The numbers of rows that are extreme, and not left out.
    """

    acceptance: Acceptance
    rows: str
    reason: str
    row_sizes: RowSizes | None = None
    prepared: Any = None
    unevenness: Unevenness | None = None
    rows_read: float = 0.0
    sized: SizedRows | None = None
    control: ControlVariate | None = None
    pinned: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))


def settle(
    tall: TallModel,
    control: ControlVariate | None,
    acceptance: Acceptance | Literal["auto"],
    rows: RowChoice,
) -> TestPlan:
    """Choose what the user has left open, and prepare it.

    If rows are extreme they are left out of the control variate, to be read at every decision,
    and it is chosen anew. Others may turn out to be extreme then, as the posterior may be wider.

    Raises
    ------
    ValueError
        If rows cannot be drawn in the way asked for, or the exact test has no bounds.
    """
    settled = _settle(tall, control, acceptance, rows)
    for _ in range(ROUNDS):
        if control is None or not settled.pinned.size:
            break
        left = read_always(tall, control, settled.pinned)
        if left is None:
            break
        control, settled = left, _settle(tall, left, acceptance, rows)
    n = 0 if control is None else control.always_read.size
    told = f"; {n} extreme row{'s' * (n > 1)} at every decision" if n else ""
    return replace(settled, control=control, reason=settled.reason + told)


def _settle(
    tall: TallModel,
    control: ControlVariate | None,
    acceptance: Acceptance | Literal["auto"],
    rows: RowChoice,
) -> TestPlan:
    asked = None if isinstance(acceptance, str) else acceptance
    if asked is None:
        prepared, reason = _affordable(tall, control, rows)
    else:
        prepared, reason = _prepared(tall, control, rows, asked)
    if prepared is not None:
        assert control is not None
        return _by_prepared_sizes(tall, control, prepared, asked or Exact(), reason)
    tests = _open_tests(control) if asked is None else (asked,)
    if rows == "size":
        _check_can_draw_by_size(tests[0], control)
    may_size = rows != "uniform" and tests[0].draws_by_size
    if control is None or not (may_size or tests[0].first_batch == "tuned"):
        return TestPlan(tests[0], "uniform", f"{reason}; rows uniformly")
    return _by_variance(tall, control, tests, reason, may_size, rows == "size")


def _by_variance(
    tall: TallModel,
    control: ControlVariate,
    tests: Sequence[Acceptance],
    reason: str,
    may_size: bool,
    must_size: bool,
) -> TestPlan:
    """Draw rows by size if that takes clearly fewer of them, or must be; take the cheapest test."""
    sizes, unevenness = row_sizes(tall, control)
    sized = sizes if isinstance(sizes, SizedRows) else None
    by_size = sized is not None or (may_size and (must_size or _is_worth_sizing(unevenness)))
    variance = unevenness.by_size if by_size else unevenness.uniform
    test, told = tests[0], reason
    if len(tests) > 1:
        test, why = _cheapest(tests, tall, control, variance)
        told += f"; {why}"
    told += "; rows by size" if by_size else "; rows uniformly"
    told += ", drawn before the chain starts" if sized is not None else ""
    if 0.0 < unevenness.uniform < np.inf and np.isfinite(unevenness.by_size):
        share = unevenness.by_size / unevenness.uniform
        told += f" (sampling by size needs {share:.0%} as many rows as uniform batches)"
    return TestPlan(
        test,
        "size" if by_size else "uniform",
        told,
        unevenness=unevenness,
        rows_read=variance,
        row_sizes=None if isinstance(sizes, SizedRows) or not by_size else RowSizes.of(sizes),
        sized=sized,
        pinned=_extreme_rows(tall, control, sizes),
    )


def _is_worth_sizing(unevenness: Unevenness) -> bool:
    """Whether drawing rows by size is clearly cheaper, or uniform batches would miss rows."""
    misses = _may_miss_rows(unevenness, DEFAULT_BATCH) and np.isfinite(unevenness.by_size)
    return bool(unevenness.by_size < WORTH * unevenness.uniform or misses)


def _extreme_rows(
    tall: TallModel, control: ControlVariate, sizes: np.ndarray | SizedRows
) -> np.ndarray:
    """Find rows to be read always; of those in partitions none is."""
    if isinstance(sizes, SizedRows):
        return np.empty(0, dtype=np.int64)
    return rows_to_pin(tall, control, sizes)


def _open_tests(control: ControlVariate | None) -> tuple[Acceptance, ...]:
    """List the approximate tests to choose from; without a control variate the noise is large."""
    if control is None or control.order == 0:
        return (CorrectedBarker(),)
    return CorrectedBarker(), Penalty()


@dataclass(frozen=True)
class _Survey:
    """What a test may ask of the rows; see :class:`.RowSurvey`."""

    tall: TallModel
    control: ControlVariate | None
    uniformly: bool
    most_rows: float = np.inf

    @property
    def order(self) -> int:
        return 0 if self.control is None else self.control.order

    @property
    def reference(self) -> np.ndarray:
        assert self.control is not None
        return self.control.reference.flat

    def remainder_bounds(self, third: Any = None) -> RemainderBounds:
        assert self.control is not None
        return bound_remainders(self.tall, self.control, third, self.most_rows)


def _prepared(
    tall: TallModel, control: ControlVariate | None, rows: RowChoice, acceptance: Acceptance
) -> tuple[Prepared | None, str]:
    """Let a test that was asked for learn about the rows, and say what it has learnt."""
    try:
        prepared = acceptance.prepare(_Survey(tall, control, rows == "uniform"))
    except NoPredictorError as error:
        raise NoPredictorError(
            f"{type(acceptance).__name__} cannot be used: {error}. Use CorrectedBarker() or leave "
            "acceptance out."
        ) from error
    if prepared is None:
        return None, "as requested"
    return prepared, f"{mean_rows(prepared.expected_rows)} per decision"


def _affordable(
    tall: TallModel, control: ControlVariate | None, rows: RowChoice
) -> tuple[Prepared | None, str]:
    """Prepare the exact test if it reads few rows, else None; and say why."""
    if control is not None and control.reference.has_kinks:
        return None, "the rows have kinks, for which Exact has no bound"
    if control is None or control.order != Exact.needs_order or rows == "uniform":
        return None, "Exact needs an expansion of order 2, and rows sampled by size"
    try:
        prepared = Exact().prepare(_Survey(tall, control, False, most_rows=FEW_ROWS))
    except NoPredictorError as error:
        told = str(error)
        return None, told if told.startswith("Exact") else f"Exact cannot be used, since {told}"
    takes = f"Exact would take {mean_rows(prepared.expected_rows)} per decision"
    if prepared.expected_rows > FEW_ROWS:
        return None, takes
    return prepared, takes.replace("would take", "takes")


def _cheapest(
    tests: Sequence[Acceptance], tall: TallModel, control: ControlVariate, variance: float
) -> tuple[Acceptance, str]:
    """Choose the test with the most effective samples for its cost, and say why.

    `variance` is s² of a batch of one row.
    """
    n_rows, dim = tall.n_rows, control.reference.flat.size
    costs, told = [], []
    for test in tests:
        limits = test.parameters(control.temperature, np.empty(1), n_rows)[0]
        wanted = rows_wanted(limits, variance, n_rows) if np.isfinite(variance) else n_rows
        costs.append((OVERHEAD_ROWS + OVERHEAD_EACH * dim + wanted) / test.efficiency)
        told.append(f"{type(test).__name__} about {wanted:,.3g}")
    return tests[int(np.argmin(costs))], f"{', '.join(told)} rows"


def _by_prepared_sizes(
    tall: TallModel,
    control: ControlVariate,
    prepared: Prepared,
    acceptance: Acceptance,
    reason: str,
) -> TestPlan:
    """Draw rows by the sizes that a test asks for; of sizes that are all 0 no row is read."""
    sizes = prepared.sizes
    plan = TestPlan(acceptance, "size", reason, rows_read=prepared.expected_rows)
    if isinstance(sizes, SizedRows):
        known = prepared.parameters(sizes.total)
        sized = sizes if sizes.total else SizedRows.alike(sizes.partitions)
        return replace(plan, prepared=known, sized=sized)
    none_needed = not sizes.any()
    table = RowSizes.of(np.ones_like(sizes) if none_needed else sizes)
    known = prepared.parameters(0.0 if none_needed else table.total)
    plan = replace(plan, row_sizes=table, prepared=known)
    if not may_be_extreme(control, sizes):
        return plan
    return replace(plan, pinned=_extreme_rows(tall, control, row_sizes(tall, control)[0]))


def _check_can_draw_by_size(acceptance: Acceptance, control: ControlVariate | None) -> None:
    if not acceptance.draws_by_size:
        raise ValueError(
            f"{type(acceptance).__name__} draws rows uniformly, without replacement: leave "
            "row_sampling='size' out, or use CorrectedBarker() or Penalty()."
        )
    if control is None:
        raise ValueError(
            "row_sampling='size' needs a reference point, about which the rows are sized, and "
            "there is none. Pass reference=pmb.find_reference(), or leave row_sampling out."
        )


def least_uniform_batch(
    n_rows: int, size: int, batch_size: int | None, unevenness: Unevenness
) -> int:
    """Find how large a first batch must be to hold some of the rows that decide; warn if large.

    If few rows hold the variance of the log ratio, a uniform batch without them can know neither
    it nor the error of the test.
    """
    if not _may_miss_rows(unevenness, size):
        return LEAST_BATCH
    kurtosis = unevenness.kurtosis
    telling = max(1, round(n_rows / kurtosis))
    least = min(n_rows, math.ceil(SEEN_WANTED * kurtosis))
    remedy = (
        f"so batches have at least {least:,} rows."
        if batch_size is None
        else f"and random batches of {size:,} rows usually miss them: draws may be wrong, and "
        f"test_error does not show it. Leave batch_size out, or set it to {least}."
    )
    warn(
        "PMB102",
        f"About {telling:,} of the {n_rows:,} rows dominate the acceptance decision (for example "
        f"those of a rare class or category), {remedy} With row_sampling='size' few rows suffice.",
    )
    return least


def _may_miss_rows(unevenness: Unevenness, size: int) -> bool:
    """Whether a uniform batch can be without rows that matter, and not know it.

    A row may matter for few pairs of points only, such as one that is flat on one side of the mode:
    what counts is its size, not what it adds to the log ratio of most pairs.
    """
    most = max(unevenness.uniform, unevenness.most)
    return most >= HARMLESS and size < SEEN_SHARE * unevenness.kurtosis
