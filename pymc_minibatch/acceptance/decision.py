"""What every acceptance test takes and returns."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numba.extending import register_jitable

__all__ = [
    "Acceptance",
    "Decision",
    "FirstBatchRule",
    "Rows",
    "Scan",
    "batch_variance",
    "decided_by_all",
    "decided_by_batch",
    "rejected",
    "row_workspace",
    "takes_all",
]


FirstBatchRule = Literal["tuned", "fixed", "designed"]


class Acceptance(Protocol):
    """An acceptance test on a batch of rows.

    Attributes
    ----------
    first_batch
        Who settles how many rows the first batch of a decision has: tuning, where more can be read
        if they do not do ("tuned"); the user, where no batch is known to be large enough ("fixed");
        or the test ("designed").
    most_accepted
        The largest mean acceptance rate of a chain: 1 for Metropolis's test, one half for Barker's.
    draws_by_size
        Whether it holds for rows drawn by size, with replacement.
    """

    first_batch: ClassVar[FirstBatchRule]
    draws_by_size: ClassVar[bool]

    @property
    def most_accepted(self) -> float:
        """See above."""

    def parameters(
        self, temperature: float, batch_size: np.ndarray, n_rows: int
    ) -> tuple[Any, ...]:
        """Return what the jitted test reads at every decision.

        ``batch_size[0]`` is the number of rows of the first batch, which tuning may change.
        """

    def build(
        self,
        draw_log_ratios: Callable[..., int],
        sum_log_ratios: Callable[..., tuple[float, int]],
        scan_log_ratios: Callable[..., "Scan"],
    ) -> Callable[..., "Decision"]:
        """Return the jitted test, composed with the functions that read the data.

        ``decide(rng, psi, current, proposed, density, rows, parameters) -> Decision``.
        """


class Decision(NamedTuple):
    """Outcome of one acceptance test.

    Attributes
    ----------
    accepted
        Whether the proposal is accepted.
    batch_size
        Rows the decision rests on.
    n_evaluated
        Rows read at both points on the way to it.
    grown
        Whether more rows had to be read than the first batch.
    log_ratio_var
        Estimated variance s² of the log ratio, before noise is added; 0 where all rows are read.
    test_error
        Estimated bound on the error of the acceptance probability.
    impossible_row
        A row whose log-likelihood at the current point is not finite, or -1.
    n_scanned
        Rows read at both points only to learn what the test presupposes, not for the decision.
    """

    accepted: bool
    batch_size: int
    n_evaluated: int
    grown: bool
    log_ratio_var: float
    test_error: float
    impossible_row: int
    n_scanned: int


@register_jitable
def rejected(n_read: Any, grown: Any, impossible_row: int, n_scanned: int) -> Decision:
    """Reject, since a row is impossible; it has a number if it is so at the current point."""
    return Decision(
        accepted=False,
        batch_size=n_read,
        n_evaluated=n_read,
        grown=grown,
        log_ratio_var=0.0,
        test_error=0.0,
        impossible_row=impossible_row,
        n_scanned=n_scanned,
    )


@register_jitable
def decided_by_batch(
    accepted: Any, n: Any, grown: Any, s2: float, error: float, n_scanned: int
) -> Decision:
    """Decide from the first n rows that were read."""
    return Decision(
        accepted=accepted,
        batch_size=n,
        n_evaluated=n,
        grown=grown,
        log_ratio_var=s2,
        test_error=error,
        impossible_row=-1,
        n_scanned=n_scanned,
    )


@register_jitable
def decided_by_all(
    accepted: Any, n_rows: int, n_seen: Any, impossible_row: int, n_scanned: int
) -> Decision:
    """Decide from all rows, after a batch of `n_seen` was not enough."""
    return Decision(
        accepted=accepted,
        batch_size=n_rows,
        n_evaluated=n_seen + n_rows,
        grown=n_seen > 0,
        log_ratio_var=0.0,
        test_error=0.0,
        impossible_row=impossible_row,
        n_scanned=n_scanned,
    )


@register_jitable
def takes_all(n: Any, n_rows: int) -> Any:
    """Whether a batch is so large that all rows are read: it would have more than half of them."""
    return 2 * n > n_rows


@register_jitable
def batch_variance(scale: float, variance: Any, n: Any, population: float) -> Any:
    """Return s², the variance of `scale` times the mean of n rows; `population` as in `Rows`."""
    return scale**2 * variance / n * (1 - n / population)


class Scan(NamedTuple):
    """Summary of the log ratios of all rows.

    Attributes
    ----------
    mean, sd
        Mean and standard deviation; a mean of -inf means that the proposal is impossible.
    range
        The largest minus the smallest.
    impossible_row
        A row whose log-likelihood at the current point is not finite, or -1.
    """

    mean: float
    sd: float
    range: float
    impossible_row: int


class Rows(NamedTuple):
    """Work space for the batch of one decision.

    Attributes
    ----------
    drawn
        Row numbers of the batch, in the order in which they were drawn.
    log_ratios
        Their log-likelihood at the proposal minus that at the current point.
    seen
        One bit for each row of the data: whether it is in the batch.
    n_drawn
        Number of rows in the batch, one element.
    population
        The number of rows of which the batch is drawn without replacement; infinity where it is
        drawn with replacement.
    table
        What rows are drawn by; empty where they are drawn uniformly.
    """

    drawn: np.ndarray
    log_ratios: np.ndarray
    seen: np.ndarray
    n_drawn: np.ndarray
    population: float
    table: Any


def row_workspace(n_rows: int, table: Any = ()) -> Rows:
    """Allocate work space for batches of up to half the rows, drawn uniformly or by a table.

    The pages of the arrays are taken from memory only when a batch grows into them.
    """
    capacity, uniform = n_rows // 2 + 1, len(table) == 0 or len(table[0]) == 0
    return Rows(
        drawn=np.empty(capacity, dtype=np.int64),
        log_ratios=np.empty(capacity),
        seen=np.zeros(n_rows // 64 + 1 if uniform else 0, dtype=np.uint64),
        n_drawn=np.zeros(1, dtype=np.int64),
        population=float(n_rows) if uniform else np.inf,
        table=table,
    )
