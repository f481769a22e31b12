"""What a move of effects and their scales is, and what it is given.

A move proposes; :func:`.scan.step` decides, counts and lets it tune. So a new one is a class with
``propose``, and what it needs of the other methods of :class:`Move`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.moves.bank import FactorBank
from pymc_minibatch.latent.moves.costs import factoring_share, overhead
from pymc_minibatch.latent.moves.decisions import Decisions, MoveCounts
from pymc_minibatch.latent.moves.few_followers import MOST_FOLLOWERS, FewFollowers
from pymc_minibatch.latent.moves.tuners import HyperScale, StepSizes, Sweeping
from pymc_minibatch.latent.skew_transform import SkewTransform
from pymc_minibatch.latent.surrogate import Surrogate

__all__ = [
    "EffectsModel",
    "Move",
    "Outcome",
    "Planned",
    "Proposal",
    "Setting",
    "TurningMove",
]

NO_STEP = np.empty(0)


class Setting(NamedTuple):
    """What moves are made with.

    Attributes
    ----------
    tuners : dict
        The tuner of each, by its name, as its `initial` has made it.
    scale : HyperScale
        Where the hyperparameters are thought to be.
    decisions : Decisions
        What decides.
    bank : FactorBank or None
        Gaussians of the field for a few h, where a factorization for each h would be costly.
    """

    tuners: Mapping[str, Any]
    scale: HyperScale
    decisions: Decisions
    bank: FactorBank[Any] | None = None


class Proposal(NamedTuple):
    """Where a move wants to go.

    Attributes
    ----------
    state : ChainState or None
        There; None if there is no such point. Then it is rejected, and learned from.
    log_kernel : float
        log k(x | x') − log k(x' | x) of what is drawn.
    log_jacobian : float
        log |∂z'/∂z| of the latent variables that follow it.
    step : ndarray
        By how much whitened coordinates change, if the tuner learns from its length.
    learns : bool
        Whether the tuner learns from it.
    walks : bool
        Whether it is a step of a random walk in h.
    conditional : Conditional or None
        The Gaussian in whose coordinates a part of the field moves, if not that of the state.
    follow : callable or None
        ``point -> point``, by which latent variables follow what is drawn, if `log_jacobian` is
        that of this map: then the witness compares it with differences.
    path
        The trajectory along which all variables move, if they do.
    data
        Surrogate data about which they move, if there are any.
    """

    state: Any
    log_kernel: float = 0.0
    log_jacobian: float = 0.0
    step: np.ndarray = NO_STEP
    learns: bool = True
    walks: bool = False
    conditional: Conditional | None = None
    follow: Callable[[np.ndarray], np.ndarray] | None = None
    path: Any = None
    data: Any = None

    @property
    def log_q(self) -> float:
        """Log q(θ | θ') − log q(θ' | θ)."""
        return self.log_kernel + self.log_jacobian


class Outcome(NamedTuple):
    """What became of a proposal.

    Attributes
    ----------
    accepted : bool or ndarray of bool, shape (G,)
        Whether it was made; for levels, which of them.
    log_ratio : float
        Its log ratio, as far as it needed no rows; for levels, NaN.
    n_read : int
        Rows that were read for it.
    """

    accepted: Any
    log_ratio: float
    n_read: int


class Move(ABC):
    """A kind of move.

    Attributes
    ----------
    name : str
        By which tuners, decisions and acceptance are kept; no other move of the scan has it.
    words : str
        What moves, in words.
    scope : {"all rows", "prior", "levels", "own rows"}
        Who decides: all rows; the prior alone, since rows read the same; each level by itself; or
        all rows of each of a few levels.
    counts_as : str or None
        In which stat its acceptance is: "hyper", "dense" or "groups".
    """

    name: str
    words: str
    scope: Literal["all rows", "prior", "levels", "own rows"] = "all rows"
    counts_as: str | None = None

    def initial(self) -> Any:
        """Return its tuner before tuning: a named tuple of arrays, or ()."""
        return ()

    def targets(self, rng: np.random.Generator, tuner: Any) -> Sequence[Any]:
        """Return what is moved in a scan, one after the other, such as directions of h."""
        return (None,)

    def begin(self, state: Any, target: Any, setting: Setting) -> Any:
        """Return the state from which a target is moved, such as with levels integrated out."""
        return state

    @abstractmethod
    def propose(self, rng: np.random.Generator, state: Any, target: Any, setting: Setting) -> Any:
        """Return a :class:`Proposal`; None if there is nothing to propose from here.

        A move of scope "levels" returns a :class:`.levels.ProposedLevels`, one of scope "own rows"
        :class:`~pymc_minibatch.latent.level_steps.OwnRowMoves`.
        """

    def learn(  # noqa: B027
        self,
        rng: np.random.Generator,
        tuner: Any,
        target: Any,
        proposal: Any,
        outcome: Outcome,
    ) -> None:
        """Change the tuner in place; called while tuning."""

    def finish(self, rng: np.random.Generator, state: Any, target: Any, counts: MoveCounts) -> Any:
        """Return the state after a target was moved, such as with these levels drawn anew."""
        return state

    def settle(self, tuner: Any) -> None:  # noqa: B027
        """Take what did best, at the end of tuning."""


class TurningMove(Move):
    """A move that turns whitened coordinates by an angle, which tuning chooses.

    Attributes
    ----------
    overhead : float
        What it costs apart from reading rows, in rows.
    """

    overhead: float

    def initial(self) -> StepSizes:
        """Return its step sizes."""
        return StepSizes.untuned()

    def learn(
        self,
        rng: np.random.Generator,
        tuner: StepSizes,
        target: None,
        proposal: Proposal,
        outcome: Outcome,
    ) -> None:
        """Credit the jump to the angle."""
        jump = outcome.accepted * float(np.sum(proposal.step**2))
        tuner.record(rng, jump, self.overhead + outcome.n_read)

    def settle(self, tuner: StepSizes) -> None:
        """Take the best angle."""
        tuner.take_best()


class Planned(NamedTuple):
    """How a move enters a scan.

    Attributes
    ----------
    move : Move
        Which.
    share : float
        Share of the scans that make it.
    at_most : int or None
        Of its targets the first so many; None for all.
    in_a_row : int
        How often each is moved.
    by_need : bool
        Whether tuning makes fewer or more, as hyperparameters need them.
    """

    move: Move
    share: float = 1.0
    at_most: int | None = None
    in_a_row: int = 1
    by_need: bool = False


@dataclass(frozen=True)
class EffectsModel:
    """What moves are planned for.

    Attributes
    ----------
    surrogate : Surrogate
        The density that moves follow.
    hyper, hyper_cholesky : ndarray, shapes (H,) and (H, H)
        The mode of h and a factor of its covariance.
    tails : SkewTransform
        Coordinates w in which all hyperparameters move together.
    work : float
        Multiplications that the factorization of the border takes.
    collapsed : sequence of (int, int) or None
        Hyperparameters with the factors whose levels follow them, where h is costly.
    sweeping : Sweeping
        How factors are swept.
    followers : sequence of ndarray of int64
        Positions of the effects that follow each hyperparameter; empty if these are few.
    has_determinant : bool
        Whether the determinant of the border is known.
    costly : bool
        Whether to factor the border for each h takes longer than to read rows.
    has_slopes : bool
        Whether what decides gives slopes of all rows, too, and the prior has no kinks.
    expected_rows : float
        About so many rows of a batch decide on a move.
    all_rows : int
        N if all rows decide, else 0.
    """

    surrogate: Surrogate
    hyper: np.ndarray
    hyper_cholesky: np.ndarray
    tails: SkewTransform
    work: float
    collapsed: Sequence[tuple[int, int]] | None
    sweeping: Sweeping
    followers: Sequence[np.ndarray] = ()
    has_determinant: bool = True
    costly: bool = False
    has_slopes: bool = False
    expected_rows: float = 0.0
    all_rows: int = 0

    @property
    def field(self) -> LatentField:
        """The hyperparameters and the latent variables."""
        return self.surrogate.field

    @property
    def fixed_factor(self) -> bool:
        """Whether the border moves in the coordinates of a bank of factorizations."""
        return self.collapsed is not None

    @property
    def has_own_scales(self) -> bool:
        """Whether most of many hyperparameters have a few effects of their own."""
        own = [0 < each.size <= MOST_FOLLOWERS for each in self.followers]
        return 2 * sum(own) > len(own) and bool(self.few_followers.are_few[own].any())

    @cached_property
    def few_followers(self) -> FewFollowers:
        """Steps along hyperparameters that few effects follow."""
        return FewFollowers(self.surrogate, self.followers)

    @property
    def factoring_share(self) -> float:
        """Share of scans in which h moves with η held."""
        return factoring_share(self.field, self.collapsed, self.work)

    @property
    def overhead(self) -> float:
        """What a move costs apart from reading rows, in rows."""
        return overhead(self.field, self.work)

    @property
    def log_lengths(self) -> np.ndarray:
        """Log lengths at which walks along the axes of h begin."""
        return np.asarray(np.log(np.linalg.norm(self.hyper_cholesky, axis=1) / 2))
