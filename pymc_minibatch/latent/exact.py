"""Moves of a latent field where sums say everything of the rows, so that none is read.

The surrogate is the posterior then (:mod:`.sums`), and what it accepts is accepted.
"""

from functools import cached_property

import numpy as np

from pymc_minibatch.latent.moves.decisions import Candidate, Decisions, LevelMoves, MoveCounts
from pymc_minibatch.latent.sampler import LatentSampler

__all__ = ["ExactDecisions", "ExactSampler"]


class ExactDecisions(Decisions):
    """Metropolis-Hastings by the surrogate."""

    def on_all(self, rng: np.random.Generator, move: Candidate, counts: MoveCounts) -> bool:
        """Decide by the log ratio."""
        return bool(-rng.standard_exponential() < move.log_ratio)

    def on_levels(
        self, rng: np.random.Generator, moves: LevelMoves, counts: MoveCounts
    ) -> np.ndarray:
        """Let all levels move that the surrogate accepts."""
        accepted = -rng.standard_exponential(moves.moving.size) < moves.undecided
        return moves.moving & accepted

    def of_rows(self, move: Candidate) -> float:
        """Return nothing: the surrogate says it."""
        return 0.0

    def of_rows_by_level(self, moves: LevelMoves) -> np.ndarray:
        """Return nothing: the surrogate says it."""
        return np.zeros(moves.moving.size)


class ExactSampler(LatentSampler):
    """Moves that need no row."""

    presumes = "sums say everything of the rows, each of which is quadratic in its predictor"

    @cached_property
    def _decisions(self) -> ExactDecisions:
        return ExactDecisions()

    def describe(self) -> str:
        """Say in words what moves how."""
        return f"sums say everything of the rows, and none is read; {super().describe()}"
