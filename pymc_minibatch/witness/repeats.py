"""Decisions on one move, made again and again, compared with the decision that all rows make.

A part ψ of the log ratio needs no rows. It is shifted so that the log ratio by all rows is one of a
few numbers, at which the probability of acceptance that a test stands for is known.
"""

from typing import NamedTuple, TypeGuard

import numpy as np

from pymc_minibatch.latent.batch_decisions import MinibatchDecisions
from pymc_minibatch.latent.moves.decisions import Candidate, MoveCounts
from pymc_minibatch.witness.effects import MovesOfEffects
from pymc_minibatch.witness.listener import Listener
from pymc_minibatch.witness.witness import Look

__all__ = ["LOG_RATIOS", "Repeats", "decided_by_batches", "repeat_on_effects"]

LOG_RATIOS = (-2.0, -1.0, -0.5, -0.2, 0.2, 0.5, 1.0, 2.0)
"""Those at which decisions are repeated."""


class Repeats(NamedTuple):
    """What decisions on one move have given.

    Attributes
    ----------
    kind : str
        What moved.
    log_ratio : float
        By all rows.
    batch_size : float
        Rows that a decision rests on, in the mean.
    errors, variances : ndarray, shape (R,)
        1 or 0, whether it was accepted, less the probability for all rows; and p (1 − p).
    targets : ndarray, shape (R,)
        The log ratios to which it was shifted.
    estimates : ndarray, shape (K,)
        Log ratios by batches, less that by all rows.
    """

    kind: str
    log_ratio: float
    batch_size: float
    errors: np.ndarray
    variances: np.ndarray
    targets: np.ndarray
    estimates: np.ndarray


def decided_by_batches(look: Look | None) -> TypeGuard[MovesOfEffects]:
    """Whether it is of moves of effects on which batches of rows decide."""
    return isinstance(look, MovesOfEffects) and isinstance(look.moves.decisions, MinibatchDecisions)


def repeat_on_effects(
    look: MovesOfEffects,
    rng: np.random.Generator,
    point: np.ndarray,
    n_repeats: int,
    turn: int,
) -> Repeats | None:
    """Repeat decisions on a move of a scan from a point, of another kind each turn.

    None if rows see no move.
    """
    assert isinstance(look.moves.decisions, MinibatchDecisions)
    found = _Moves(look.moves.decisions)
    look.scan(rng, point, found)
    if not found.moves:
        return None
    name = list(found.moves)[turn % len(found.moves)]
    return found.repeat(rng, name, look.moves.by_name[name].words, n_repeats)


class _Moves(Listener[MinibatchDecisions]):
    """Decides as the chain does, and takes note of the first move of each kind.

    Attributes
    ----------
    moves : dict
        They and what all rows add to their log ratios, by kind.
    """

    def __init__(self, decisions: MinibatchDecisions) -> None:
        super().__init__(decisions)
        self.moves: dict[str, tuple[Candidate, float]] = {}

    def on_all(self, rng: np.random.Generator, move: Candidate, counts: MoveCounts) -> bool:
        """Decide as the chain does."""
        if move.name not in self.moves:
            of_rows = self.decisions.of_rows(move)
            if np.isfinite(of_rows):
                self.moves[move.name] = move, of_rows
        return super().on_all(rng, move, counts)

    def repeat(self, rng: np.random.Generator, name: str, words: str, n_repeats: int) -> Repeats:
        """Repeat decisions on a move."""
        decisions, (move, of_rows) = self.decisions, self.moves[name]
        assert move.test is not None
        exact = move.log_ratio + of_rows
        targets = np.resize(LOG_RATIOS, n_repeats)
        made = decisions.repeated(rng, move, targets - exact)
        test = decisions.tests.tests[int(move.test.test[0])]
        probability = test.ideal(targets, made.sizes == len(decisions.data[0]))
        return Repeats(
            kind=words,
            log_ratio=exact,
            batch_size=float(made.sizes.mean()),
            errors=made.accepted - probability,
            variances=probability * (1.0 - probability),
            targets=targets,
            estimates=(made.estimates - of_rows)[np.isfinite(made.estimates)],
        )
