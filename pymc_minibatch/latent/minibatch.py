"""Moves of a latent field decided by minibatch tests, from estimates of the rows' remainders."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pymc_minibatch.acceptance.decision import Rows
from pymc_minibatch.kernels.by_group import GroupTable, weigh
from pymc_minibatch.kernels.sweep import Grouping
from pymc_minibatch.latent.cubic import Cubic
from pymc_minibatch.latent.deciding import DecisionState, DecisionTests
from pymc_minibatch.latent.moves import MoveCounts
from pymc_minibatch.latent.surrogate import Reading, Surrogate
from pymc_minibatch.reference.density import Density

__all__ = ["MinibatchDecisions"]


class MinibatchDecisions:
    """Tests on batches of all rows, and of the rows of each group.

    Parameters
    ----------
    surrogate
        What remainders are left of.
    decide
        The minibatch test on all rows.
    sweep
        The test on the rows of each group.
    density, rows
        What both read.
    tests, states
        What decides on all rows, and what is tuned of it for each kind of moves.
    group_parameters
        What the test on the rows of groups reads.
    blocks
        For each grouping factor the levels that decide together.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        decide: Callable[..., Any],
        sweep: Callable[..., Any],
        density: Density,
        rows: Rows,
        tests: DecisionTests,
        states: Mapping[str, DecisionState],
        group_parameters: tuple[Any, ...],
        blocks: Sequence[Grouping],
    ) -> None:
        self.surrogate, self.decide, self.sweep = surrogate, decide, sweep
        self.density, self.rows = density, rows
        self.tests, self.states = tests, states
        self.group_parameters, self.blocks = group_parameters, blocks

    def refresh(self, rng: np.random.Generator, reading: Reading) -> None:
        """Do nothing: each decision draws its own batch."""

    def on_all(
        self,
        rng: np.random.Generator,
        log_ratio: float,
        readings: tuple[Reading, Reading],
        kind: str,
        tuning: bool,
        counts: MoveCounts,
    ) -> bool:
        """Decide, given the log ratio under the surrogate, on it and the remainders of all rows.

        What decides is tuned for each kind of moves.
        """
        before, after = readings
        psi = log_ratio - float(self.surrogate.expansion.rest @ (after.phi - before.phi))
        cubic = self.surrogate.cubics[0] if self.surrogate.cubics else None
        if isinstance(self.rows.table, GroupTable):
            self._weigh(self.rows.table, cubic, readings)
        seen = [self.surrogate.seen_by_rows(reading, cubic) for reading in readings]
        state = self.states[kind]
        outcome = self.decide(rng, psi, *seen, self.density, self.rows, self.tests.chosen(state))
        accepted, batch_size, n_evaluated, grown, variance, error, impossible, _ = outcome
        counts.n_evaluated += n_evaluated
        counts.decisions += 1
        counts.batch_rows += batch_size
        counts.variance += variance
        counts.test_error = max(counts.test_error, error)
        counts.impossible_row = max(counts.impossible_row, impossible)
        if tuning:
            self.tests.tune(state, grown, batch_size, variance, error)
        return bool(accepted)

    def on_levels(
        self,
        rng: np.random.Generator,
        readings: tuple[Reading, Reading],
        factor: int,
        moving: np.ndarray,
        counts: MoveCounts,
    ) -> np.ndarray:
        """Let blocks of levels decide by the remainders of their own rows."""
        blocks, levels = self.blocks[factor], self.surrogate.field.levels[factor]
        cubic = self.surrogate.cubic(levels.rows)
        self._weigh(blocks.table, cubic, readings)
        before, after = (self.surrogate.seen_by_rows(reading, cubic) for reading in readings)
        decided = np.zeros(blocks.first.size - 1, dtype=np.bool_)
        outcome = self.sweep(
            rng, before, after, blocks, self.density, self.group_parameters, decided
        )
        n_evaluated, _, error, _, impossible = outcome
        counts.n_evaluated += n_evaluated
        counts.test_error = max(counts.test_error, error)
        counts.impossible_row = max(counts.impossible_row, impossible)
        return np.repeat(decided, np.diff(blocks.first)) & moving

    def _weigh(
        self, table: GroupTable, cubic: Cubic | None, readings: tuple[Reading, Reading]
    ) -> None:
        """Let rows of groups that are far out at one of two points be drawn more often."""
        if cubic is not None:
            coordinates = (self.surrogate.coordinates(cubic, reading) for reading in readings)
            weigh(table, *(cubic.distances(u) for u in coordinates))
