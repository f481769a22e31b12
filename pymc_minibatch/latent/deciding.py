"""What decides on moves of a kind: a first batch and a noise of their own, both tuned.

Moves of hyperparameters may change what rows leave by a hundredth of what moves of coefficients do,
so that one needs a few rows and the other thousands. More noise in decisions needs fewer rows, and
accepts less often.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.acceptance.decision import Acceptance
from pymc_minibatch.acceptance.growing import (
    NORMAL_UNEVENNESS,
    FirstBatch,
    rows_wanted,
    tune_first_batch,
    upper_smoothness,
)

__all__ = ["FIRST_BATCH", "DecisionState", "DecisionTests"]

FIRST_BATCH = 100
"""Rows of a first batch before tuning."""

MEMORY = 100
"""Decisions over which moments are averaged."""

EVERY = 20
"""Decisions after which the noise is chosen anew."""

MARGIN = 1.0
"""How much larger than its average the log of a variance is in decisions that need many rows."""


class DecisionState(NamedTuple):
    """What is tuned for one kind of moves.

    Attributes
    ----------
    batch : FirstBatch
        The first batch.
    test : ndarray of int64, shape (1,)
        Which test decides.
    moments : ndarray, shape (3,)
        Number of decisions, and averages over them: the log variance of a log ratio estimated from
        one row, and the log of how uneven rows are, as in :func:`rows_wanted`.
    """

    batch: FirstBatch
    test: np.ndarray
    moments: np.ndarray


class DecisionTests:
    """Tests that differ by their noise.

    Parameters
    ----------
    tests
        Of one class.
    temperature, n_rows
        Of the target.
    overhead
        What a move costs apart from reading rows, in rows.
    tunes_batches
        Whether the size of the first batch is tuned.
    """

    def __init__(
        self,
        tests: Sequence[Acceptance],
        temperature: float,
        n_rows: int,
        overhead: float,
        tunes_batches: bool = True,
    ) -> None:
        self.n_rows, self.overhead, self.tunes_batches = n_rows, overhead, tunes_batches
        self.tests = tests
        self.first = np.array([FIRST_BATCH])
        self.parameters = [test.parameters(temperature, self.first, n_rows) for test in tests]
        self.accepted = np.array([test.most_accepted for test in tests])

    def chosen(self, state: DecisionState) -> tuple[Any, ...]:
        """Return what the jitted test reads at a decision."""
        self.first[0] = min(state.batch.size[0], self.n_rows)
        return self.parameters[state.test[0]]

    def tune(
        self, state: DecisionState, grown: bool, batch_size: int, variance: float, error: float
    ) -> None:
        """Learn from a decision: its batch, s² of its estimate, and the bound on its error."""
        if self.tunes_batches:
            tune_first_batch(state.batch, int(grown), 1, self.n_rows)
        if len(self.parameters) == 1 or variance <= 0.0:  # all rows were read
            return
        limits = self.parameters[state.test[0]][0]
        of_one, seen = variance * batch_size, state.moments
        smooth = upper_smoothness(variance, limits) * of_one**1.5 / batch_size**2
        uneven = max((error - limits.own_error) / smooth, NORMAL_UNEVENNESS / 2)
        seen[0] += 1
        seen[1:] += (np.log([of_one, uneven]) - seen[1:]) / min(seen[0], MEMORY)
        if seen[0] % EVERY == 0:
            self._choose(state)

    def _choose(self, state: DecisionState) -> None:
        """Take the test with the cheapest accepted moves."""
        log_variance, log_unevenness = state.moments[1:]
        wanted = self.wanted(math.exp(log_variance + MARGIN), math.exp(log_unevenness))
        before, best = state.test[0], np.argmin((self.overhead + wanted) / self.accepted)
        state.test[0] = best
        if self.tunes_batches:
            state.batch.tuning[0] += math.log(wanted[best] / wanted[before])

    def wanted(self, variance: float, unevenness: float) -> np.ndarray:
        """Return the rows that each test would take."""
        limits = [parameters[0] for parameters in self.parameters]
        return np.array([rows_wanted(each, variance, self.n_rows, unevenness) for each in limits])
