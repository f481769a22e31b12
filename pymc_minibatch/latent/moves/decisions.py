"""What decides on moves of effects, from rows: the interface of tests, and what they are given."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.latent.deciding import DecisionState
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.level_steps import OwnRowMoves
from pymc_minibatch.latent.own_rows import LevelRows, OwnRows, Walked
from pymc_minibatch.latent.surrogate import PredictorState, Surrogate

__all__ = ["Candidate", "Decisions", "ExactDecisions", "LevelMoves", "LevelWalks", "MoveCounts"]

NOWHERE = np.empty(0)

STATS = ("hyper", "dense", "groups")
"""Of which acceptance is reported: hyperparameters, the border of the field, its groups."""


@dataclass
class MoveCounts:
    """What happened in a draw.

    Attributes
    ----------
    accepted : dict
        Share accepted of each step, by the name of its move.
    counts_as : dict
        The stat in which a move is, by its name.
    """

    n_evaluated: int = 0
    decisions: int = 0
    batch_rows: int = 0
    variance: float = 0.0
    test_error: float = 0.0
    sweeps: int = 0
    sweep_rows: int = 0
    accepted: dict[str, list[float]] = field(default_factory=dict)
    counts_as: dict[str, str | None] = field(default_factory=dict)
    impossible_row: int = -1
    n_bright: int = 0
    n_slopes: int = 0

    def count(self, name: str, counts_as: str | None, accepted: float) -> None:
        """Count a step of a move."""
        self.accepted.setdefault(name, []).append(accepted)
        self.counts_as[name] = counts_as

    def by_stat(self) -> dict[str, list[float]]:
        """Return the shares accepted of what is reported together."""
        shares: dict[str, list[float]] = {stat: [] for stat in STATS}
        for name, accepted in self.accepted.items():
            stat = self.counts_as[name]
            if stat is not None:
                shares[stat] += accepted
        return shares


class Candidate(NamedTuple):
    """A proposal on which all rows decide, or the prior.

    Attributes
    ----------
    log_ratio : float
        Its log ratio under the surrogate.
    states : (ChainState, ChainState), or such of other moves
        Before and after it.
    name : str
        That of the move.
    tuning : bool
        Whether decisions may be tuned by it.
    test : DecisionState or None
        What is tuned of the test that decides, where batches do.
    target
        What the move was asked to move.
    proposal : Proposal or None
        How it was proposed.
    """

    log_ratio: float
    states: tuple[Any, Any]
    name: str = ""
    tuning: bool = False
    test: DecisionState | None = None
    target: Any = None
    proposal: Any = None

    @property
    def predictors(self) -> tuple[PredictorState, PredictorState]:
        """What rows read before and after it."""
        before, after = self.states
        return before.predictors, after.predictors

    @property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """The points before and after it."""
        before, after = self.states
        return before.point, after.point


class LevelWalks(NamedTuple):
    """How often levels walk in a sweep.

    Attributes
    ----------
    share : float or ndarray, shape (G,)
        Of all of them, or how often each does, near its center.
    atypical : float
        Standard deviations beyond the typical distance from which on it is more often.
    """

    share: float | np.ndarray
    atypical: float


LEVELS_WALK = LevelWalks(0.05, 1.5)
"""The density of a level can have a long tail, or another mode, where an outlying row is taken for
one or not."""

LEVELS_WALK_OUT = LevelWalks(0.4, 1.5)
"""The same if their prior is no Gaussian, since their tails may be as heavy as its: of 20 effects
with ν = 1.5, two of them separated, twice as many effective draws of the worst."""


class LevelMoves(NamedTuple):
    """Moves of the levels of a factor, each by itself.

    Attributes
    ----------
    predictors : (PredictorState, PredictorState)
        What rows read before and after all of them.
    factor : int
        Which one.
    moving : ndarray of bool, shape (G,)
        The levels that move, if rows let them.
    undecided : ndarray, shape (G,)
        What remains of the log ratio of each under the surrogate: nothing of those it has accepted.
    points : (ndarray, ndarray)
        The points before and after all of them.
    log_ratios : ndarray, shape (G,)
        The log ratio of each under the surrogate.
    walks : ndarray of bool, shape (G,)
        Which of them are steps of a random walk.
    often : LevelWalks or None
        How often levels walk in these moves.
    name : str
        That of the move.
    """

    predictors: tuple[PredictorState, PredictorState]
    factor: int
    moving: np.ndarray
    undecided: np.ndarray
    points: tuple[np.ndarray, np.ndarray] = (NOWHERE, NOWHERE)
    log_ratios: np.ndarray = NOWHERE
    walks: np.ndarray = NOWHERE
    often: LevelWalks | None = None
    name: str = ""


class Decisions(ABC):
    """What accepts and rejects moves, from rows.

    Attributes
    ----------
    sees_all : bool
        Whether each level decides by all of its rows. Elsewhere only those that walk do: a batch of
        rows does not see how wrong the surrogate is so far out that none was sized for.
    level_rows : LevelRows or None
        The rows of the levels, if these may move by their own density.
    """

    sees_all = True
    level_rows: LevelRows | None = None

    def refresh(self, rng: np.random.Generator, predictor: PredictorState) -> None:  # noqa: B027
        """Draw anew what decisions rest on beside the point, if anything, before each sweep."""

    @abstractmethod
    def on_all(self, rng: np.random.Generator, move: Candidate, counts: MoveCounts) -> bool:
        """Decide on a proposal."""

    @abstractmethod
    def on_levels(
        self, rng: np.random.Generator, moves: LevelMoves, counts: MoveCounts
    ) -> np.ndarray:
        """Decide on each of the levels; those that do not move are rejected."""

    def level_walks(self, factor: int, levels: GroupEffects) -> LevelWalks:
        """Return how often levels of a factor walk."""
        return LEVELS_WALK if levels.prior is None else LEVELS_WALK_OUT

    def own_rows(self, moves: OwnRowMoves) -> OwnRows:
        """Return the densities by which levels step."""
        assert self.level_rows is not None
        return self.level_rows.of(moves)

    def on_own_rows(
        self, rng: np.random.Generator, moves: OwnRowMoves, state: Any, counts: MoveCounts
    ) -> tuple[np.ndarray, np.ndarray]:
        """Let levels step by their own density; return the point then, and which have moved."""
        walked = self.walked(rng, (self.own_rows(moves), moves), state, counts)
        if walked is None:
            return state.point, np.zeros(moves.chosen.size, dtype=np.bool_)
        return walked.point, walked.moved

    def walked(
        self,
        rng: np.random.Generator,
        steps: tuple[OwnRows, OwnRowMoves],
        state: Any,
        counts: MoveCounts,
        values: np.ndarray | None = None,
    ) -> Walked | None:
        """Make steps of levels, given what their rows say, if known; None if none can be made."""
        own, moves = steps
        n_times = moves.times + (values is None)
        try:
            walked = own.walk(rng, state.point, state.conditional, moves, values)
        except np.linalg.LinAlgError:
            return None
        counts.n_evaluated += n_times * own.numbers.size
        return walked

    def on_prior(self, level: float, move: Candidate) -> bool:
        """Decide on a proposal that rows do not see, given the log of a uniform number."""
        return level < move.log_ratio

    def slope(self, phi: np.ndarray) -> np.ndarray:
        """Return the slope of the log-likelihood of all rows by φ, shape (P,)."""
        raise NotImplementedError

    def log_ratio(self, move: Candidate) -> float:
        """Return the log ratio of a proposal by all rows."""
        return move.log_ratio + self.of_rows(move)

    @abstractmethod
    def of_rows(self, move: Candidate) -> float:
        """Return what all rows add to the log ratio of a proposal under the surrogate."""

    @abstractmethod
    def of_rows_by_level(self, moves: LevelMoves) -> np.ndarray:
        """Return what all rows of each level add to its log ratio, shape (G,)."""


class ExactDecisions(Decisions):
    """Metropolis-Hastings by the surrogate.

    Parameters
    ----------
    surrogate
        The posterior.
    """

    def __init__(self, surrogate: Surrogate) -> None:
        self.surrogate = surrogate

    def on_all(self, rng: np.random.Generator, move: Candidate, counts: MoveCounts) -> bool:
        """Decide by the log ratio."""
        return bool(-rng.standard_exponential() < move.log_ratio)

    def on_levels(
        self, rng: np.random.Generator, moves: LevelMoves, counts: MoveCounts
    ) -> np.ndarray:
        """Let all levels move that the surrogate accepts."""
        accepted = -rng.standard_exponential(moves.moving.size) < moves.undecided
        return moves.moving & accepted

    def slope(self, phi: np.ndarray) -> np.ndarray:
        """Return the slope of the log-likelihood that sums say."""
        return self.surrogate.slope_of_sums(phi)

    def of_rows(self, move: Candidate) -> float:
        """Return nothing: the surrogate says it."""
        return 0.0

    def of_rows_by_level(self, moves: LevelMoves) -> np.ndarray:
        """Return nothing: the surrogate says it."""
        return np.zeros(moves.moving.size)
