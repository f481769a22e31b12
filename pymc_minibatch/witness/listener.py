"""Decisions that are listened to, and larger batches drawn for one of them."""

from typing import Any

import numpy as np

from pymc_minibatch.kernels.rows import clear
from pymc_minibatch.latent.batch_decisions import MinibatchDecisions
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.level_steps import OwnRowMoves
from pymc_minibatch.latent.moves.decisions import (
    Candidate,
    Decisions,
    LevelMoves,
    LevelWalks,
    MoveCounts,
)
from pymc_minibatch.latent.surrogate import PredictorState
from pymc_minibatch.witness.batches import (
    Batch,
    Probabilities,
    first_batch,
    n_batches,
    probabilities,
)

__all__ = ["Batching", "Listener"]


class Listener[D: Decisions](Decisions):
    """Decides as the decisions that it listens to."""

    def __init__(self, decisions: D) -> None:
        self.decisions, self.sees_all = decisions, decisions.sees_all
        self.level_rows = decisions.level_rows

    def refresh(self, rng: np.random.Generator, predictor: PredictorState) -> None:
        """Draw nothing: the chain's own bright rows stay as they are."""

    def on_all(self, rng: np.random.Generator, move: Candidate, counts: MoveCounts) -> bool:
        """Decide as these."""
        return self.decisions.on_all(rng, move._replace(tuning=False), counts)

    def on_levels(
        self, rng: np.random.Generator, moves: LevelMoves, counts: MoveCounts
    ) -> np.ndarray:
        """Decide as these."""
        return self.decisions.on_levels(rng, moves, counts)

    def level_walks(self, factor: int, levels: GroupEffects) -> LevelWalks:
        """Return how often levels walk by these."""
        return self.decisions.level_walks(factor, levels)

    def on_own_rows(
        self, rng: np.random.Generator, moves: OwnRowMoves, state: Any, counts: MoveCounts
    ) -> tuple[np.ndarray, np.ndarray]:
        """Let levels step as these."""
        return self.decisions.on_own_rows(rng, moves, state, counts)

    def slope(self, phi: np.ndarray) -> np.ndarray:
        """Return what these do."""
        return self.decisions.slope(phi)

    def log_ratio(self, move: Candidate) -> float:
        """Return what these do."""
        return self.decisions.log_ratio(move)

    def of_rows(self, move: Candidate) -> float:
        """Return what these do."""
        return self.decisions.of_rows(move)

    def of_rows_by_level(self, moves: LevelMoves) -> np.ndarray:
        """Return what these do."""
        return self.decisions.of_rows_by_level(moves)


class Batching(Listener[MinibatchDecisions]):
    """Decides as the chain does, and draws larger batches for the first move that rows see.

    Attributes
    ----------
    batches : list of Batch
        What they have read.
    probabilities : Probabilities or None
        Those of rows.
    """

    def __init__(self, decisions: MinibatchDecisions, n_rows: int) -> None:
        super().__init__(decisions)
        self.n_rows, self.batches = n_rows, list[Batch]()
        self.probabilities: Probabilities | None = None

    def on_all(self, rng: np.random.Generator, move: Candidate, counts: MoveCounts) -> bool:
        """Decide as the chain does."""
        if not self.batches and np.isfinite(move.log_ratio):
            with np.errstate(all="ignore"):  # rows may be impossible at a proposal
                for _ in range(n_batches(self.n_rows)):
                    self.batches.append(self._batch(rng, move))
            self.probabilities = probabilities(self.decisions.rows.table, self.n_rows)
        return super().on_all(rng, move, counts)

    def _batch(self, rng: np.random.Generator, move: Candidate) -> Batch:
        """Decide on a move by a batch of another size than the chain's own."""
        decisions, rows = self.decisions, self.decisions.rows
        assert move.test is not None
        parameters = decisions.tests.chosen(move.test)
        decisions.tests.first[0] = first_batch(self.n_rows)
        clear(rows)
        _, size, _, _, variance, _, _, _ = decisions.decided(rng, move, parameters)
        n = int(rows.n_drawn[0])
        drawn, terms = rows.drawn[:n].copy(), rows.log_ratios[:n].copy()
        noise = np.nan, np.nan
        if n == size:
            scale = self.n_rows / decisions.temperature
            s2 = scale**2 * terms.var(ddof=1) / n * (1 - n / rows.population)
            noise = variance, float(s2)
        return Batch(drawn, terms, decisions.changes_of(move, drawn), noise)
