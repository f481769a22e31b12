"""What every acceptance test takes and returns."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numba.extending import register_jitable

__all__ = [
    "BARKER",
    "METROPOLIS",
    "Acceptance",
    "Decision",
    "FirstBatchRule",
    "Prepared",
    "RowReaders",
    "RowSurvey",
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

METROPOLIS, BARKER = 0.6, 0.27
"""Effective samples for each transition of a logistic regression with 10⁵ rows and 20 coefficients,
measured with Penalty and with CorrectedBarker; the tests of all rows accept about as often."""


class RowSurvey(Protocol):
    """What a test may ask of the rows, before it decides on any.

    Attributes
    ----------
    order : int
        That of the control variate; 0 if there is none.
    reference : ndarray, shape (D,)
        The point about which rows are expanded, if there is a control variate.
    uniformly : bool
        Whether the user wants rows to be drawn uniformly.
    """

    @property
    def uniformly(self) -> bool:
        """See above."""

    @property
    def order(self) -> int:
        """See above."""

    @property
    def reference(self) -> np.ndarray:
        """See above."""

    def remainder_bounds(self, third: Any = None) -> Any:
        """Bound what rows are beyond their control variate; see :class:`.RemainderBounds`.

        Raises
        ------
        ValueError
            If no bound is known; it says why.
        """


class Prepared(NamedTuple):
    """What a test knows of the rows.

    Attributes
    ----------
    sizes
        What rows are drawn by: an array, or the sizes of rows in partitions; they may be all 0.
    parameters
        ``(total,) -> parameters``, which the jitted test reads after those of
        :meth:`Acceptance.parameters`; `total` is the sum of the sizes, as they are rounded for
        drawing.
    expected_rows : float
        Rows of a decision about the mode, on average.
    """

    sizes: Any
    parameters: Callable[[float], Any]
    expected_rows: float


class Acceptance(Protocol):
    """An acceptance test on a batch of rows, and all that others know of it.

    A test is a frozen dataclass that extends this class. All that is said of tests elsewhere is
    asked of them here, so that a new one has a file of its own and needs no change elsewhere.

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
    needs_order
        Order of the control variate without which it cannot decide; None if it does with any.
    steepest
        The largest derivative of its acceptance probability by the log ratio.
    efficiency
        Effective samples for each transition of a chain with good proposals, between 0 and 1. By
        default those of Metropolis's test.
    is_exact
        Whether the chain samples the posterior itself, whatever rows it reads. Then the test has no
        probability that depends on the log ratio alone, but a balance: it accepts a move e^r times
        as often as the move back.
    """

    first_batch: ClassVar[FirstBatchRule]
    draws_by_size: ClassVar[bool]
    needs_order: ClassVar[int | None] = None
    efficiency: ClassVar[float] = METROPOLIS
    is_exact: ClassVar[bool] = False

    @property
    def most_accepted(self) -> float:
        """See above."""
        return 1.0

    @property
    def steepest(self) -> float:
        """See above."""
        return 1.0

    @property
    def decides_levels(self) -> bool:
        """Whether it can be asked for where a model has effects."""
        return self.is_exact or self.for_levels() is not None

    def ideal(self, log_ratios: np.ndarray, by_all: np.ndarray) -> np.ndarray:
        """Return the acceptance probability that the test stands for.

        Parameters
        ----------
        log_ratios : ndarray, shape (n,)
            Log ratios by all rows.
        by_all : ndarray of bool, shape (n,)
            Whether all rows are read for the decision.
        """
        return np.minimum(1.0, np.exp(log_ratios))

    def prepare(self, rows: RowSurvey) -> Prepared | None:
        """Learn about the rows before the first decision; by default nothing.

        Raises
        ------
        ValueError
            If the test cannot decide on these rows; it says why.
        """
        return None

    def for_levels(self) -> tuple[Any, Any] | None:
        """Return how it decides on the levels of a grouping factor, None if it does not.

        That is `accept` and `exact_probability` of :func:`.growing.build_growing`.
        """
        return None

    @abstractmethod
    def parameters(
        self, temperature: float, batch_size: np.ndarray, n_rows: int
    ) -> tuple[Any, ...]:
        """Return the parameters of the jitted test.

        ``batch_size[0]`` is the number of rows of the first batch, which tuning may change.
        """

    @abstractmethod
    def build(self, readers: "RowReaders") -> Callable[..., "Decision"]:
        """Return the jitted test, composed with the functions that read the data.

        ``decide(rng, psi, current, proposed, density, rows, parameters) -> Decision``.
        """


class RowReaders(NamedTuple):
    """The functions that read the data for a test; see :func:`.kernels.rows.make_readers`."""

    draw_log_ratios: Callable[..., int]
    sum_log_ratios: Callable[..., tuple[float, int]]
    scan_log_ratios: Callable[..., "Scan"]


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
        Estimated variance s² of the log ratio, before noise is added; 0 if all rows are read.
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
    accepted: Any, n: Any, n_read: Any, grown: Any, s2: float, error: float, n_scanned: int
) -> Decision:
    """Decide from n of the rows that were read."""
    return Decision(
        accepted=accepted,
        batch_size=n,
        n_evaluated=n_read,
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
        What rows are drawn by; empty if they are drawn uniformly.
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
