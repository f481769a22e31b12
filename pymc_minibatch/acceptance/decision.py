"""What every acceptance test takes and returns."""

from typing import NamedTuple

import numpy as np

__all__ = ["Decision", "Rows", "Source", "row_workspace"]


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
    log_ratio_var
        Estimated variance s² of the log ratio, before noise is added; 0 where all rows are read.
    test_error
        Estimated bound on the error of the acceptance probability.
    impossible_row
        A row whose log-likelihood at the current point is not finite, or -1.
    """

    accepted: bool
    batch_size: int
    n_evaluated: int
    log_ratio_var: float
    test_error: float
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
    """

    drawn: np.ndarray
    log_ratios: np.ndarray
    seen: np.ndarray
    n_drawn: np.ndarray


class Source(NamedTuple):
    """What the rows are computed from.

    Attributes
    ----------
    data
        Arrays with rows along the first axis.
    constants
        What the terms of the rows read besides.
    """

    data: tuple[np.ndarray, ...]
    constants: tuple[np.ndarray, ...]


def row_workspace(n_rows: int) -> Rows:
    """Allocate work space for batches of up to half the rows.

    The pages of the arrays are taken from memory only when a batch grows into them.
    """
    capacity = n_rows // 2 + 1
    return Rows(
        drawn=np.empty(capacity, dtype=np.int64),
        log_ratios=np.empty(capacity),
        seen=np.zeros(n_rows // 64 + 1, dtype=np.uint64),
        n_drawn=np.zeros(1, dtype=np.int64),
    )
