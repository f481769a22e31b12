"""Decisions on moves of effects by minibatch tests, from estimates of the rows' remainders."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.acceptance.decision import Rows
from pymc_minibatch.kernels.by_group import GroupTable, weigh
from pymc_minibatch.kernels.rows import clear
from pymc_minibatch.kernels.sweep import Grouping
from pymc_minibatch.latent.cubic import Cubic
from pymc_minibatch.latent.deciding import DecisionState, DecisionTests
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.moves.decisions import (
    Candidate,
    Decisions,
    LevelMoves,
    LevelWalks,
    MoveCounts,
)
from pymc_minibatch.latent.own_rows import LevelRows, rows_of_levels
from pymc_minibatch.latent.surrogate import PredictorState, Surrogate
from pymc_minibatch.reference.density import Density
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall.passes import over_chunks

__all__ = ["MinibatchDecisions", "RepeatedDecisions"]


class RepeatedDecisions(NamedTuple):
    """What decisions on one move have given.

    Attributes
    ----------
    accepted, sizes : ndarray, shape (R,)
        1 if it was accepted, and the rows that the decision rests on.
    estimates : ndarray, shape (R,)
        What each first batch makes of :meth:`MinibatchDecisions.of_rows`.
    """

    accepted: np.ndarray
    sizes: np.ndarray
    estimates: np.ndarray


class MinibatchDecisions(Decisions):
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
    tests
        What decides on all rows.
    group_parameters
        What the test on the rows of groups reads.
    blocks
        For each grouping factor the levels that decide together.
    walks
        For each how often each of its levels walks.
    level_rows
        The rows of the levels.
    functions, data, temperature
        What the rows read, all of them, and T.
    """

    sees_all = False

    def __init__(
        self,
        surrogate: Surrogate,
        decide: Callable[..., Any],
        sweep: Callable[..., Any],
        density: Density,
        rows: Rows,
        tests: DecisionTests,
        group_parameters: tuple[Any, ...],
        blocks: Sequence[Grouping],
        walks: Sequence[LevelWalks],
        level_rows: LevelRows,
        functions: RowFunctions,
        data: tuple[np.ndarray, ...],
        temperature: float,
    ) -> None:
        self.functions, self.data, self.temperature = functions, data, temperature
        self.surrogate, self.decide, self.sweep = surrogate, decide, sweep
        self.density, self.rows = density, rows
        self.tests = tests
        self.group_parameters, self.blocks = group_parameters, blocks
        self.walks, self.level_rows = walks, level_rows

    def level_walks(self, factor: int, levels: GroupEffects) -> LevelWalks:
        """Return how often each level walks."""
        return self.walks[factor]

    def on_all(self, rng: np.random.Generator, move: Candidate, counts: MoveCounts) -> bool:
        """Decide, given the log ratio under the surrogate, on it and the remainders of all rows.

        What decides is tuned for each kind of moves.
        """
        state = _test_of(move)
        outcome = self.decided(rng, move, self.tests.chosen(state))
        accepted, batch_size, n_evaluated, grown, variance, error, impossible, _ = outcome
        counts.n_evaluated += n_evaluated
        counts.decisions += 1
        counts.batch_rows += batch_size
        counts.variance += variance
        counts.test_error = max(counts.test_error, error)
        counts.impossible_row = max(counts.impossible_row, impossible)
        if move.tuning:
            self.tests.tune(state, grown, batch_size, variance, error)
        return bool(accepted)

    def decided(
        self, rng: np.random.Generator, move: Candidate, parameters: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Return what the jitted test says of a move."""
        decide, psi = self._deciding(move)
        return decide(rng, psi, parameters)

    def repeated(
        self, rng: np.random.Generator, move: Candidate, shifts: np.ndarray
    ) -> "RepeatedDecisions":
        """Decide again and again on a move whose log ratio is shifted, by batches as tuned."""
        decide, psi = self._deciding(move)
        parameters = self.tests.chosen(_test_of(move))
        accepted, sizes, estimates = np.zeros((3, shifts.size))
        scale, first = self.data[0].shape[0] / self.temperature, self.tests.first[0]
        for i, shift in enumerate(shifts.tolist()):
            clear(self.rows)
            accepted[i], sizes[i] = decide(rng, psi + shift, parameters)[:2]
            terms = self.rows.log_ratios[: min(first, self.rows.n_drawn[0])]
            estimates[i] = scale * terms.mean() if terms.size else np.nan
        estimates -= move.log_ratio - psi
        return RepeatedDecisions(accepted, sizes, estimates)

    def _deciding(self, move: Candidate) -> tuple[Callable[..., tuple[Any, ...]], float]:
        """Return the test of a move, ``(rng, psi, parameters)``, and ψ."""
        before, after = predictors = move.predictors
        psi = move.log_ratio - float(
            self.surrogate.expansion.smoothing_correction @ (after.phi - before.phi)
        )
        cubic = self.surrogate.cubics[0] if self.surrogate.cubics else None
        if isinstance(self.rows.table, GroupTable):
            self._weigh(self.rows.table, cubic, predictors)
        seen = [self.surrogate.seen_by_rows(predictor, cubic) for predictor in predictors]

        def decide(
            rng: np.random.Generator, psi: float, parameters: tuple[Any, ...]
        ) -> tuple[Any, ...]:
            found: tuple[Any, ...] = self.decide(
                rng, psi, *seen, self.density, self.rows, parameters
            )
            return found

        return decide, psi

    def changes_of(self, move: Candidate, numbers: np.ndarray) -> np.ndarray:
        """Return how the remainders of some rows change, by their numbers, not divided by T."""
        cubic = self.surrogate.cubics[0] if self.surrogate.cubics else None
        first, second = (
            self.surrogate.seen_by_rows(predictor, cubic) for predictor in move.predictors
        )
        at, batch = self.surrogate.expansion.at, tuple(values[numbers] for values in self.data)
        before, after = self.functions.remainders(first, second, at, batch)
        return after - before

    def on_levels(
        self, rng: np.random.Generator, moves: LevelMoves, counts: MoveCounts
    ) -> np.ndarray:
        """Let blocks of levels decide by batches of their own rows, and those that walk by all."""
        factor, moving, walks = moves.factor, moves.moving, moves.walks
        blocks, levels = self.blocks[factor], self.surrogate.field.levels[factor]
        walked = self._by_all_rows(rng, moves, walks & moving, counts)
        cubic = self.surrogate.cubic(levels.rows)
        predictors = moves.predictors[0], self._without(walks, moves, levels)
        self._weigh(blocks.table, cubic, predictors)
        before, after = (self.surrogate.seen_by_rows(predictor, cubic) for predictor in predictors)
        decided = np.zeros(blocks.first.size - 1, dtype=np.bool_)
        outcome = self.sweep(
            rng, before, after, blocks, self.density, self.group_parameters, decided
        )
        n_evaluated, _, error, _, impossible = outcome
        counts.n_evaluated += n_evaluated
        counts.test_error = max(counts.test_error, error)
        counts.impossible_row = max(counts.impossible_row, impossible)
        return np.where(walks, walked, np.repeat(decided, np.diff(blocks.first)) & moving)

    def _by_all_rows(
        self, rng: np.random.Generator, moves: LevelMoves, which: np.ndarray, counts: MoveCounts
    ) -> np.ndarray:
        """Let some levels decide, each by all of its rows."""
        chosen, table = np.flatnonzero(which), self.blocks[moves.factor].table
        decided = np.zeros(moves.moving.size, dtype=np.bool_)
        if not chosen.size:
            return decided
        rows, level = rows_of_levels(table.rows, table.starts, chosen)
        cubic = self.surrogate.cubic(self.surrogate.field.levels[moves.factor].rows)
        first, second = (self.surrogate.seen_by_rows(each, cubic) for each in moves.predictors)
        batch = [values[rows] for values in self.data]
        at = self.surrogate.expansion.at
        before, after = self.functions.remainders(first, second, at, batch)
        of_rows = np.bincount(level, after - before, minlength=chosen.size) / self.temperature
        counts.n_evaluated += rows.size
        # A row that is impossible makes the sum −∞ or not a number, which is never above.
        decided[chosen] = -rng.standard_exponential(chosen.size) < moves.undecided[chosen] + of_rows
        return decided

    def _without(
        self, walks: np.ndarray, moves: LevelMoves, levels: GroupEffects
    ) -> PredictorState:
        """Return what rows read after the moves of the levels that do not walk."""
        if not walks.any():
            return moves.predictors[1]
        proposed, stays = moves.points[1].copy(), levels.latent[walks]
        proposed[stays] = moves.points[0][stays]
        return self.surrogate.read_levels(proposed, moves.predictors[0], levels)

    def of_rows(self, move: Candidate) -> float:
        """Return what the remainders of all rows add to the log ratio under the surrogate."""
        before, after = move.predictors
        cubic = self.surrogate.cubics[0] if self.surrogate.cubics else None
        of_rest = float(self.surrogate.expansion.smoothing_correction @ (after.phi - before.phi))
        return float(self._remainders(move.predictors, cubic).sum()) - of_rest

    def of_rows_by_level(self, moves: LevelMoves) -> np.ndarray:
        """Return what the remainders of all rows of each level add to its log ratio."""
        levels, blocks = self.surrogate.field.levels[moves.factor], self.blocks[moves.factor]
        changes = self._remainders(moves.predictors, self.surrogate.cubic(levels.rows))
        table = blocks.table
        level = np.repeat(np.arange(moves.moving.size), np.diff(table.starts))
        return np.bincount(level, changes[table.rows], minlength=moves.moving.size)

    def _remainders(
        self, predictors: tuple[PredictorState, PredictorState], cubic: Cubic | None
    ) -> np.ndarray:
        """Return how the remainder of each row changes, divided by T, shape (N,)."""
        first, second = (self.surrogate.seen_by_rows(predictor, cubic) for predictor in predictors)
        at = self.surrogate.expansion.at

        def change(*batch: np.ndarray) -> np.ndarray:
            before, after = self.functions.remainders(first, second, at, batch)
            return after - before

        parts = over_chunks(change, self.data)
        return np.concatenate([part for _, part in parts]) / self.temperature

    def _weigh(
        self,
        table: GroupTable,
        cubic: Cubic | None,
        predictors: tuple[PredictorState, PredictorState],
    ) -> None:
        """Let rows of groups that are far out at one of two points be drawn more often."""
        if cubic is not None:
            coordinates = (self.surrogate.coordinates(cubic, predictor) for predictor in predictors)
            weigh(table, *(cubic.distances(u) for u in coordinates))


def _test_of(move: Candidate) -> DecisionState:
    """Return what is tuned of the test that decides on a proposal."""
    assert move.test is not None
    return move.test
