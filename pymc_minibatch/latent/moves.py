"""Moves of a latent field and its hyperparameters.

In the coordinates (h, η) of :mod:`.surrogate`, with η standard normal given h under the surrogate:

- h moves with η held, so that the effects go where the new scales want them;
- h moves with what rows read held, which leaves the prior to decide, and no row to read: each of
  the two is good where the other is not (interweaving);
- the dense part of η moves, and carries along the effects of all groups;
- the η of all groups move, each group deciding from its own rows.

Where the dense part is large, as with crossed factors, each new h asks for a factorization that
takes longer than all else. Then h mostly moves with what rows read held, or with one factor
following it, and the dense part moves in the coordinates of a usual h: which proposes a little
worse, and is decided all the same.

All h move together in coordinates w in which their tails are nearly those of a Gaussian
(:mod:`.skew_transform`).

The surrogate reads no row and is most of every log ratio; what rows add to it is left to what
decides: a minibatch test that estimates their remainders (:mod:`.minibatch`), all rows
(:mod:`.whole`), or the bright rows of Firefly Monte Carlo (:mod:`.firefly`). Where it is the
posterior itself, nothing is left to decide (:mod:`.exact`). Where batches decide, levels, of which
each could move by itself, decide under the surrogate first, and those that move are a proposal to
the rows (delayed acceptance). Elsewhere, and if they walk, they decide by both at once, by all of
their rows.

References
----------
Adler (1981), Over-relaxation method for the Monte Carlo evaluation of the partition function.
Christen and Fox (2005), Markov chain Monte Carlo using an approximation. Yu and Meng (2011), To
center or not to center: interweaving.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dtrtrs

from pymc_minibatch.latent.batched import (
    inner_products,
    log_diagonal,
    multiply_transposed,
    solve_blocks_transposed,
)
from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.field import CenteredPoint, LatentField
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.skew_transform import SkewTransform
from pymc_minibatch.latent.surrogate import PredictorState, Surrogate
from pymc_minibatch.proposals.guided import walk_share, walk_share_beyond

__all__ = [
    "BLOCKS_ACCEPTED",
    "COSTLY",
    "DECIDED",
    "FACTORING_SHARE",
    "MOST_AT_ONCE",
    "MOST_BLOCKS",
    "PCN_ANGLES",
    "Decisions",
    "FactorBank",
    "LatentMoves",
    "LevelMoves",
    "LevelWalks",
    "Move",
    "MoveCounts",
    "RandomBlocks",
    "StepSizes",
    "Sweeping",
    "Tuning",
    "Walks",
    "beyond_typical",
    "collapsed_pairs",
    "factoring_share",
    "level_walk_shares",
    "log_stretch",
    "moved_alone",
    "overhead",
    "take_best",
]

KINDS = ("hyper", "dense", "groups")
"""Kinds of moves: of hyperparameters, of the dense part of the field, of its groups."""

DECIDED = ("hyper", "collapsed", "dense")
"""Kinds of moves on which all rows decide."""

PCN_ANGLES = 0.6 * math.pi * 2.0 ** (-0.5 * np.arange(12))
"""Lengths of moves that are tried. A right angle is an independent draw; the longest goes a little
beyond, which makes up for moves that are rejected (over-relaxation)."""

OVERHEAD, PER_MULTIPLICATION = 3000.0, 1 / 2000
"""What a move costs apart from reading rows, in rows: always, and for factoring a dense part."""

EXPLORE = 0.15
MEMORY = 0.99
WALK = 0.2
"""Share of moves of h that are a random walk, since its tails can be heavier than a Gaussian's.

Far out it is larger: others seldom leave a heavy tail, such as that of the logarithm of a scale
that may be zero.
"""

ATYPICAL, FARTHEST = 1.0, 5.0
"""So far beyond the usual distance it begins to grow; after so many more standard deviations it
stays the same."""

WALK_SPREAD = 1.0

FARTHEST_LEVEL = 5.0
"""As for h."""

FARTHEST_WALK = math.asinh(1e5)
"""Standard deviations, in arsinh, beyond which no level walks: decisions would lose digits."""

SHORTER = 0.15
"""Share of moves of the field that are shorter than the length tuning has found."""

HYPER_MOVES = 2
"""Moves of h in a round."""

COSTLY = 400**3 / 6
"""If more multiplications are needed to factor the dense part, as each h asks, few rounds do."""

DENSE_MOVES = 2
"""Moves of the dense part in a round: these factor nothing."""

LARGE, MOST_BLOCKS = 50, 16
"""A larger dense part moves in parts, if it has to; how many of these in a round."""

BLOCKS_ACCEPTED = 0.65
"""Share of moves of such parts that are accepted; with less, chains would stay in tails."""

FACTORING_SHARE = 0.02
"""Share of rounds in which h moves with η held, where that is costly. With many effects that follow
no hyperparameter in another way, it is larger."""

NEARBY = 0.1
"""From h to another one, to see whether effects can be held."""

SAME = 1e-5
"""Relative difference of what levels that do not follow h keep."""

MOST_AT_ONCE = 10
"""Hyperparameters that move together."""

CENTERED_MOVES = 5
"""Moves of single hyperparameters with the effects held, in a round."""

REMEMBERED = 2
"""Conditional densities of the field: here and at the point proposed."""

BANK_SIZE = 4
"""Hyperparameters for which the dense part is factored, where it is not for all."""

CENTERED_IN_A_ROW = 3
"""Moves of each hyperparameter with the effects held, in a round where others are rare."""

COLLAPSED_MOVES = 3
"""Moves of single hyperparameters that one factor follows, in a round."""

ONE_AT_A_TIME = 0.44
"""Best share of accepted moves of a walk in one dimension."""


NOWHERE = np.empty(0)


class StepSizes(NamedTuple):
    """The angle of a kind of move, and what is known of those tried.

    Attributes
    ----------
    current : ndarray of int64, shape (1,)
        The setting in use.
    gains, costs : ndarray, shape (K,)
        Sums of the squared jumps and of what they cost.
    """

    current: np.ndarray
    gains: np.ndarray
    costs: np.ndarray


class Walks(NamedTuple):
    """Random walks along single directions of h.

    These are the axes, and where they are many also the columns of a factor of their covariance.

    Attributes
    ----------
    log_length : ndarray, shape (K,)
        Log of the standard deviation of a step.
    n_moves : ndarray, shape (K,)
        Moves while tuning.
    """

    log_length: np.ndarray
    n_moves: np.ndarray

    def tune(self, i: int, rate: float) -> None:
        """Change a step so that it is accepted as often as is best."""
        self.n_moves[i] += 1
        self.log_length[i] += (rate - ONE_AT_A_TIME) / self.n_moves[i] ** 0.6

    def learn(self, i: int, log_ratio: float) -> None:
        """Tune by a move with this log ratio."""
        self.tune(i, 0.0 if math.isnan(log_ratio) else math.exp(min(log_ratio, 0.0)))

    def part(self, first: int, end: int) -> "Walks":
        """Return some of them."""
        return Walks(self.log_length[first:end], self.n_moves[first:end])


class RandomBlocks(NamedTuple):
    """How a large dense part is split at random, each part moving by itself.

    Attributes
    ----------
    log_number : ndarray, shape (1,)
        Log of the number of parts.
    n_moves : ndarray, shape (1,)
        Moves while tuning.
    """

    log_number: np.ndarray
    n_moves: np.ndarray

    def split(self, rng: np.random.Generator, size: int) -> list[np.ndarray]:
        """Return the positions of each part; some of the parts where these are many."""
        number = round(math.exp(self.log_number[0]))
        return np.array_split(rng.permutation(size), number)[:MOST_BLOCKS]

    def tune(self, accepted: bool, size: int) -> None:
        """Change the number so that moves are accepted often enough, up to one part for each."""
        self.n_moves[0] += 1
        change = (BLOCKS_ACCEPTED - accepted) / self.n_moves[0] ** 0.6
        self.log_number[0] = min(max(self.log_number[0] + change, 0.0), math.log(size))


class Tuning(NamedTuple):
    """What moves are made with, and whether they change it.

    Attributes
    ----------
    is_on : bool
        Whether they do.
    step_sizes : sequence of StepSizes
        Lengths of moves of h, of the dense part, and of the levels of each factor.
    hyper_scale : (ndarray, ndarray), shapes (H,) and (H, H)
        Mean and a factor of the covariance of h, in coordinates w.
    walks : Walks
        Walks of hyperparameters that levels follow, then of all.
    parts : RandomBlocks
        How a large dense part is split.
    """

    is_on: bool
    step_sizes: Sequence[StepSizes]
    hyper_scale: tuple[np.ndarray, np.ndarray]
    walks: Walks
    parts: RandomBlocks


class FactorBank[T]:
    """What is made for a few usual hyperparameters, from memory.

    Parameters
    ----------
    make
        Makes it, given h.
    tails
        Coordinates w of the hyperparameters.
    number
        How many.
    """

    def __init__(self, make: Callable[[np.ndarray], T], tails: SkewTransform, number: int) -> None:
        self.make, self.tails, self.number = make, tails, number
        self._known: tuple[bytes, np.ndarray, list[T]] | None = None

    def forget(self) -> None:
        """Forget it."""
        self._known = None

    def nearest(self, hyper: np.ndarray, scale: tuple[np.ndarray, np.ndarray]) -> T:
        """Return that of the nearest to h, given mean and a factor of the covariance of w."""
        mean, cholesky = scale
        key = mean.tobytes() + cholesky.tobytes()
        if self._known is None or self._known[0] != key:
            away = np.random.default_rng(6).standard_normal((self.number, mean.size))
            away[0] = 0.0
            hypers = self.tails.to_hyper(mean + away @ cholesky.T)
            self._known = key, away, [self.make(hyper) for hyper in hypers]
        _, away, made = self._known
        z = self.tails.from_hyper(hyper) - mean
        z = dtrtrs(cholesky, z, lower=1)[0] if z.size else z
        return made[int(np.argmin(np.sum((away - z) ** 2, axis=1)))]


def collapsed_pairs(surrogate: Surrogate) -> list[tuple[int, int]] | None:
    """List hyperparameters with the factors whose levels follow them.

    Returns
    -------
    list of (int, int) or None
        A hyperparameter and a factor, by number; None where effects cannot be held.
    """
    field = surrogate.field
    point = surrogate.conditional(surrogate.center[field.hyper]).point
    gradient = field.derivatives.prior_gradient
    pairs = []
    for axis in range(field.hyper.size):
        hyper = point[field.hyper]
        hyper[axis] += NEARBY
        centered = field.with_effects_held(point, hyper)
        if centered is None:
            return None
        same = _same(centered.point, point) & _same(gradient(centered.point), gradient(point))
        pairs += [
            (axis, k) for k, levels in enumerate(field.levels) if not same[levels.latent].all()
        ]
    return pairs


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Say which entries of two vectors are the same, relative to their own size."""
    return np.asarray(np.abs(one - other) <= SAME * (np.abs(one) + np.abs(other)))


def factoring_share(
    field: LatentField, collapsed: Sequence[tuple[int, int]] | None, work: float
) -> float:
    """Return the share of rounds in which h moves with η held."""
    if collapsed is None:
        return 1.0
    unswept = field.latent.dense.size - sum(levels.latent.size for levels in field.levels[1:])
    return FACTORING_SHARE if unswept <= LARGE else max(FACTORING_SHARE, COSTLY / work)


def overhead(field: LatentField, work: float) -> float:
    """Return what a move costs apart from reading rows, in rows."""
    return OVERHEAD + PER_MULTIPLICATION * work + field.latent.groups.shape[0]


def record(rng: np.random.Generator, step_sizes: StepSizes, jump: float, cost: float) -> None:
    """Credit a jump to its setting, and choose the next one."""
    step_sizes.gains[:] *= MEMORY
    step_sizes.costs[:] *= MEMORY
    step_sizes.gains[step_sizes.current[0]] += jump
    step_sizes.costs[step_sizes.current[0]] += cost
    untried = np.flatnonzero(step_sizes.costs == 0)
    if rng.random() < EXPLORE:
        step_sizes.current[0] = rng.integers(PCN_ANGLES.size)
    elif untried.size:
        step_sizes.current[0] = untried[0]
    else:
        take_best(step_sizes)


def take_best(step_sizes: StepSizes) -> None:
    """Take the setting with the largest jumps for their cost."""
    tried = step_sizes.costs > 0
    if tried.any():
        rates = np.where(tried, step_sizes.gains / np.where(tried, step_sizes.costs, 1.0), -1.0)
        step_sizes.current[0] = int(np.argmax(rates))


class ChainState(NamedTuple):
    """A point.

    Attributes
    ----------
    key : bytes
        By which it is recognised.
    predictor : PredictorState
        What rows read there.
    log_density : float
        log π̃.
    """

    key: bytes
    predictor: PredictorState
    log_density: float


@dataclass
class MoveCounts:
    """What happened in a draw."""

    n_evaluated: int = 0
    decisions: int = 0
    batch_rows: int = 0
    variance: float = 0.0
    test_error: float = 0.0
    sweeps: int = 0
    sweep_rows: int = 0
    accepted: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    impossible_row: int = -1
    n_bright: int = 0


class Sweeping(NamedTuple):
    """How factors are swept.

    Attributes
    ----------
    times : int
        Sweeps over a factor in a round.
    shorter : float
        Share of sweeps whose moves are shorter than the length tuning has found.
    mirrors : bool
        Whether half of these move levels near to where they are mirrored in their mean.
    """

    times: int = 1
    shorter: float = SHORTER
    mirrors: bool = False


ONE_SWEEP = Sweeping()


class Move(NamedTuple):
    """A move of what all rows read.

    Attributes
    ----------
    log_ratio : float
        Its log ratio under the surrogate.
    predictors : (PredictorState, PredictorState)
        What rows read before and after it.
    kind : str
        One of DECIDED.
    tuning : bool
        Whether decisions may be tuned by it.
    points : (ndarray, ndarray)
        The points before and after it.
    walks : bool
        Whether it is a step of a random walk in h.
    pair : int
        Which hyperparameter and factor move, if it is collapsed.
    given : Conditional or None
        The Gaussian in whose coordinates the dense part moves.
    """

    log_ratio: float
    predictors: tuple[PredictorState, PredictorState]
    kind: str
    tuning: bool
    points: tuple[np.ndarray, np.ndarray] = (NOWHERE, NOWHERE)
    walks: bool = False
    pair: int = 0
    given: Conditional | None = None


class LevelWalks(NamedTuple):
    """How often levels walk in a sweep.

    Attributes
    ----------
    share : float or ndarray, shape (G,)
        Of all of them, or how often each does, near its center.
    unusual : float
        Standard deviations beyond the usual distance from which on it is more often.
    """

    share: float | np.ndarray
    unusual: float


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
    """

    predictors: tuple[PredictorState, PredictorState]
    factor: int
    moving: np.ndarray
    undecided: np.ndarray
    points: tuple[np.ndarray, np.ndarray] = (NOWHERE, NOWHERE)
    log_ratios: np.ndarray = NOWHERE
    walks: np.ndarray = NOWHERE


class Decisions(ABC):
    """What accepts and rejects moves, from rows.

    Attributes
    ----------
    sees_all : bool
        Whether each level decides by all of its rows. Elsewhere only those that walk do: a batch of
        rows does not see how wrong the surrogate is so far out that none was sized for.
    """

    sees_all = True

    def refresh(self, rng: np.random.Generator, predictor: PredictorState) -> None:  # noqa: B027
        """Draw anew what decisions rest on beside the point, if anything, before each sweep."""

    @abstractmethod
    def on_all(self, rng: np.random.Generator, move: Move, counts: MoveCounts) -> bool:
        """Decide on a move."""

    @abstractmethod
    def on_levels(
        self, rng: np.random.Generator, moves: LevelMoves, counts: MoveCounts
    ) -> np.ndarray:
        """Decide on each of the levels; those that do not move are rejected."""

    def level_walks(self, factor: int, levels: GroupEffects) -> LevelWalks:
        """Return how often levels of a factor walk."""
        return LEVELS_WALK if levels.prior is None else LEVELS_WALK_OUT

    def on_prior(
        self, level: float, log_ratio: float, points: tuple[np.ndarray, np.ndarray]
    ) -> bool:
        """Decide on a move that rows do not see, given the log of a uniform number."""
        return level < log_ratio

    @abstractmethod
    def of_rows(self, move: Move) -> float:
        """Return what all rows add to the log ratio of a move under the surrogate."""

    @abstractmethod
    def of_rows_by_level(self, moves: LevelMoves) -> np.ndarray:
        """Return what all rows of each level add to its log ratio, shape (G,)."""


class LatentMoves:
    """The moves of one model.

    Parameters
    ----------
    surrogate
        The density that moves follow.
    decisions
        What decides on them.
    sweeping
        How factors are swept.
    work
        Multiplications that the factorization of the dense part takes.
    collapsed
        What :func:`collapsed_pairs` says, where h is costly.
    tails
        Coordinates w in which all hyperparameters move together.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        decisions: Decisions,
        sweeping: Sweeping,
        work: float,
        collapsed: Sequence[tuple[int, int]] | None,
        tails: SkewTransform,
    ) -> None:
        self.surrogate, self.field, self.decisions = surrogate, surrogate.field, decisions
        self.sweeping = sweeping
        self.known: dict[bytes, Conditional] = {}
        self.bank = FactorBank(surrogate.factored_later, tails, BANK_SIZE)
        self.here: ChainState | None = None
        self.costly, self.tails = work > COSTLY, tails
        self.fixed_factor, self.collapsed = collapsed is not None, collapsed or ()
        self.factoring_share = factoring_share(self.field, collapsed, work)
        self.overhead = overhead(self.field, work)

    def conditional(self, hyper: np.ndarray) -> Conditional:
        """Return the Gaussian of the field given h, the last two from memory."""
        key = hyper.tobytes()
        found = self.known.pop(key, None) or self.surrogate.factored_later(hyper)
        if len(self.known) == REMEMBERED:
            self.known.pop(next(iter(self.known)))
        self.known[key] = found  # at the end: the first was needed longest ago
        return found

    def forget(self) -> None:
        """Forget all that is kept in memory."""
        self.known, self.here = {}, None
        self.bank.forget()

    def draw(
        self, rng: np.random.Generator, point: np.ndarray, settings: Tuning, counts: MoveCounts
    ) -> None:
        """Move a point in place by one round of all kinds of moves."""
        tuning, step_sizes, hyper_scale, walks, parts = settings
        n_hyper, n_dense = self.field.hyper.size, self.field.latent.dense.size
        self.decisions.refresh(rng, self.at(point).predictor)
        for _ in range(self._hyper_moves(rng) if n_hyper else 0):
            self.move_noncentered(rng, point, tuning, step_sizes[0], hyper_scale, counts)
        n_collapsed = len(self.collapsed)
        centered = walks.part(n_collapsed, walks.log_length.size)
        for i in self._held_moves(rng, centered.log_length.size):
            self.move_centered(rng, point, tuning, int(i), hyper_scale[1], centered)
        for i in rng.permutation(n_collapsed)[:COLLAPSED_MOVES]:
            self.move_collapsed(rng, point, tuning, int(i), hyper_scale, walks, counts)
        for some in self._parts(rng, n_dense, parts):
            if counts.impossible_row < 0:
                self.move_dense(rng, point, tuning, hyper_scale, step_sizes[1], parts, some, counts)
        for factor in self._sweeps():
            if counts.impossible_row < 0:
                self.move_levels(rng, point, tuning, factor, step_sizes[2 + factor], counts)

    def _hyper_moves(self, rng: np.random.Generator) -> int:
        if self.fixed_factor:
            return int(rng.random() < self.factoring_share)
        return 1 if self.costly else HYPER_MOVES

    def _parts(
        self, rng: np.random.Generator, n_dense: int, parts: RandomBlocks
    ) -> Sequence[np.ndarray]:
        """Choose which coordinates of the dense part move together, for each of its moves."""
        split = parts.split(rng, n_dense) if n_dense > LARGE else [np.arange(n_dense)]
        return split if len(split) > 1 else split * (DENSE_MOVES if n_dense else 0)

    def _held_moves(self, rng: np.random.Generator, n_directions: int) -> np.ndarray:
        """Choose the directions in which h moves with the effects held."""
        every = rng.permutation(n_directions)
        if self.fixed_factor:
            return np.repeat(every, CENTERED_IN_A_ROW)
        n_hyper = self.field.hyper.size
        return every[: 0 if self.costly else max(CENTERED_MOVES, n_hyper // 2)]

    def _sweeps(self) -> list[int]:
        """List the factors to sweep, by number: where h is costly, the first twice.

        The others lie in the dense part, which has moves of its own.
        """
        factors = [*range(len(self.field.levels))] * self.sweeping.times
        return [*factors, *factors[:1]] if self.costly else factors

    def _held(self, point: np.ndarray, hyper: np.ndarray) -> np.ndarray | None:
        """Return a point with another h, where there is one, at which rows read the same."""
        if np.array_equal(point[self.field.hyper], hyper):
            return point
        centered = self.field.with_effects_held(point, hyper)
        return None if centered is None else centered.point

    def at(self, point: np.ndarray) -> ChainState:
        """Return what is known of a point, the last one from memory."""
        key = point.tobytes()
        if self.here is None or self.here.key != key:
            self.here = self._looked_at(point)
        return self.here

    def _looked_at(self, point: np.ndarray) -> ChainState:
        predictor = self.surrogate.read(point)
        return ChainState(point.tobytes(), predictor, self.surrogate.log_density(point, predictor))

    def _tested(self, rng: np.random.Generator, move: Move, counts: MoveCounts) -> bool:
        """Decide on a move, if it is possible under the surrogate."""
        return bool(np.isfinite(move.log_ratio)) and self.decisions.on_all(rng, move, counts)

    def _made(
        self,
        rng: np.random.Generator,
        move: Move,
        after: ChainState,
        counts: MoveCounts,
    ) -> bool:
        """Make a move if it is accepted, after which the point is known."""
        accepted = self._tested(rng, move, counts)
        if accepted:
            move.points[0][:] = move.points[1]
            self.here = after
        return accepted

    def move_noncentered(
        self,
        rng: np.random.Generator,
        point: np.ndarray,
        tuning: bool,
        step_sizes: StepSizes,
        scale: tuple[np.ndarray, np.ndarray],
        counts: MoveCounts,
    ) -> None:
        """Move h, the field following: η stays, and w moves."""
        mean, cholesky = scale
        hyper, evaluated = point[self.field.hyper], counts.n_evaluated
        given, w = self.conditional(hyper), self.tails.from_hyper(hyper)
        z = dtrtrs(cholesky, w - mean, lower=1)[0] if w.size else w
        moved, log_q, walks = _moved_hyper(rng, z, PCN_ANGLES[step_sizes.current[0]])
        w_then = mean + cholesky @ moved
        then, accepted = self.conditional(self.tails.to_hyper(w_then)), False
        if given.is_proper and then.is_proper:
            proposed = then.frame.color(given.frame.whiten(point))
            before, after = self.at(point), self._looked_at(proposed)
            log_ratio = (
                after.log_density
                - then.log_determinant
                + self.tails.log_slope(w_then)
                - before.log_density
                + given.log_determinant
                - self.tails.log_slope(w)
                + log_q
            )
            move = Move(
                log_ratio,
                (before.predictor, after.predictor),
                "hyper",
                tuning,
                points=(point, proposed),
                walks=walks,
            )
            accepted = self._made(rng, move, after, counts)
        counts.accepted["hyper"].append(float(accepted))
        if tuning and not walks:
            cost = self.overhead + counts.n_evaluated - evaluated
            record(rng, step_sizes, accepted * float(np.sum((moved - z) ** 2)), cost)

    def move_centered(
        self,
        rng: np.random.Generator,
        point: np.ndarray,
        tuning: bool,
        i: int,
        cholesky: np.ndarray,
        walks: Walks,
    ) -> None:
        """Move along one direction of h, the effects as rows read them held."""
        hyper = point[self.field.hyper]
        step = math.exp(walks.log_length[i]) * rng.standard_normal()
        if i < hyper.size:
            hyper[i] += step
        else:
            hyper += step * cholesky[:, i - hyper.size]
        level = -rng.standard_exponential()
        centered = self.field.with_effects_held(point, hyper)
        log_ratio = -np.inf
        if centered is not None:
            prior = self.field.derivatives.prior
            log_ratio = prior(centered.point) - prior(point) + centered.log_jacobian()
            if self.field.scalars.size:
                log_ratio += self._of_scalars(point, centered.point)
            if self.decisions.on_prior(level, log_ratio, (point, centered.point)):
                point[:] = centered.point
        if tuning:
            walks.learn(i, log_ratio)

    def _of_scalars(self, point: np.ndarray, proposed: np.ndarray) -> float:
        """Return how the log-likelihood changes where scalars are all that changes of φ."""
        before, phi = self.at(point).predictor, self.surrogate.phi
        after = before.phi.copy()
        after[self.field.scalars] = phi(proposed)[self.field.scalars]
        log_likelihood = self.surrogate.log_likelihood
        return log_likelihood(before._replace(phi=after)) - log_likelihood(before)

    def move_collapsed(
        self,
        rng: np.random.Generator,
        point: np.ndarray,
        tuning: bool,
        i: int,
        scale: tuple[np.ndarray, np.ndarray],
        walks: Walks,
        counts: MoveCounts,
    ) -> None:
        """Move a hyperparameter, one factor following and the other effects held.

        The levels of the factor keep their places in the Gaussian that all else leaves them. The
        hyperparameter is drawn from what is known of it, or walks.
        """
        axis, k = self.collapsed[i]
        hyper, log_q, walk = moved_alone(
            rng, point[self.field.hyper], axis, scale, walks.log_length[i]
        )
        proposed, log_jacobian = self.followed(point, hyper, self.field.levels[k])
        accepted = False
        if np.isfinite(log_jacobian):
            before, after = self.at(point), self._looked_at(proposed)
            log_ratio = after.log_density - before.log_density + log_jacobian + log_q
            move = Move(
                log_ratio,
                (before.predictor, after.predictor),
                "collapsed",
                tuning,
                points=(point, proposed),
                walks=walk,
                pair=i,
            )
            accepted = self._made(rng, move, after, counts)
        counts.accepted["hyper"].append(float(accepted))
        if tuning and walk:
            walks.tune(i, float(accepted))

    def followed(
        self, point: np.ndarray, hyper: np.ndarray, levels: GroupEffects
    ) -> tuple[np.ndarray, float]:
        """Return a point with another h that some levels follow, and log |∂z'/∂z|.

        Where that is not finite, there is no such point.
        """
        centered = self.field.with_effects_held(point, hyper)
        if centered is None:
            return point, -np.inf
        given, then = self.conditional(point[self.field.hyper]), self.conditional(hyper)
        predictor, given_others = self.at(point).predictor, self.surrogate.given_others
        try:
            mean, cholesky = given_others(given, point, predictor, levels)
            mean_then, cholesky_then = given_others(then, centered.point, predictor, levels)
        except np.linalg.LinAlgError:
            return point, -np.inf
        eta = multiply_transposed(cholesky, point[levels.latent] - mean)
        centered.point[levels.latent] = mean_then + solve_blocks_transposed(cholesky_then, eta)
        of_levels = log_diagonal(cholesky) - log_diagonal(cholesky_then)
        return centered.point, of_levels + self._of_others(centered, levels)

    def _of_others(self, centered: CenteredPoint, levels: GroupEffects) -> float:
        """Return log |∂z'/∂z| of all but some levels."""
        layout = self.field.latent
        if levels.latent is layout.groups:
            return float(centered.of_dense.sum())
        others = np.delete(centered.of_dense, np.searchsorted(layout.dense, levels.latent.ravel()))
        return float(others.sum()) + centered.of_groups

    def move_dense(
        self,
        rng: np.random.Generator,
        point: np.ndarray,
        tuning: bool,
        scale: tuple[np.ndarray, np.ndarray],
        step_sizes: StepSizes,
        parts: RandomBlocks,
        some: np.ndarray,
        counts: MoveCounts,
    ) -> None:
        """Move some coordinates η of the dense part, which carries the groups along.

        Where a factor for each h would be costly, the point goes to a usual h and back, with what
        rows read held.
        """
        hyper = point[self.field.hyper]
        given = self.bank.nearest(hyper, scale) if self.fixed_factor else self.conditional(hyper)
        start = self._held(point, given.here[self.field.hyper])
        if start is None or not given.is_proper:
            return
        eta, groups = given.frame.whiten(start)
        angle, is_set = _angle(rng, step_sizes)
        moved = eta.copy()
        moved[some], log_q = _rotated(rng, eta[some], angle)
        proposed = self._held(given.frame.color((moved, groups)), hyper)
        if proposed is None:
            return
        before, after = self.at(point), self._looked_at(proposed)
        log_ratio, evaluated = after.log_density - before.log_density + log_q, counts.n_evaluated
        move = Move(
            log_ratio,
            (before.predictor, after.predictor),
            "dense",
            tuning,
            points=(point, proposed),
            given=given,
        )
        accepted = self._made(rng, move, after, counts)
        counts.accepted["dense"].append(float(accepted))
        if tuning and is_set and eta.size > LARGE:
            parts.tune(accepted, eta.size)
        elif tuning and is_set:
            cost = self.overhead + counts.n_evaluated - evaluated
            record(rng, step_sizes, accepted * float(np.sum((moved - eta) ** 2)), cost)

    def move_levels(
        self,
        rng: np.random.Generator,
        point: np.ndarray,
        tuning: bool,
        factor: int,
        step_sizes: StepSizes,
        counts: MoveCounts,
    ) -> None:
        """Move the effects of all levels of a factor, given all else.

        Given all else the levels are independent; so any of them that move under the surrogate are
        a proposal to the rows.
        """
        levels = self.field.levels[factor]
        given, before = self.conditional(point[self.field.hyper]), self.at(point).predictor
        try:
            mean, cholesky = self.surrogate.given_others(given, point, before, levels)
        except np.linalg.LinAlgError:
            return
        eta = multiply_transposed(cholesky, point[levels.latent] - mean)
        angle, is_set = _angle(rng, step_sizes, self.sweeping)
        often = self.decisions.level_walks(factor, levels)
        moved, log_q, walking = _moved_levels(rng, eta, angle, often)
        proposed = point.copy()
        proposed[levels.latent] = mean + solve_blocks_transposed(cholesky, moved)
        after = self.surrogate.read_levels(proposed, before, levels)
        self.decisions.refresh(rng, before)
        points, predictors = (point, proposed), (before, after)
        psi = log_q + self.surrogate.level_ratios(given, points, predictors, levels)
        # By all rows of a level rows and surrogate decide at once; a batch is for the levels that
        # the surrogate lets move.
        at_once = walking | self.decisions.sees_all
        moving = np.isfinite(psi) & (at_once | (-rng.standard_exponential(psi.size) < psi))
        undecided = np.where(at_once, psi, 0.0)
        if not moving.all():
            stays = levels.latent[~moving]
            proposed[stays] = point[stays]
            after = self.surrogate.read_levels(proposed, before, levels)
        evaluated = counts.n_evaluated
        moves = LevelMoves(
            (before, after),
            factor,
            moving,
            undecided,
            points=points,
            log_ratios=psi,
            walks=walking,
        )
        accepted = self.decisions.on_levels(rng, moves, counts)
        read = counts.n_evaluated - evaluated
        counts.sweeps += 1
        counts.sweep_rows += read
        point[levels.latent[accepted]] = proposed[levels.latent[accepted]]
        counts.accepted["groups"].append(float(accepted.mean()))
        if tuning and is_set:
            turned = accepted & ~walking
            jump = float(inner_products(moved - eta, moved - eta) @ turned)
            record(rng, step_sizes, jump, OVERHEAD + accepted.size + read)


def hyper_walk_share(z: np.ndarray) -> float:
    """Return how likely a random walk is chosen at a whitened h."""
    return walk_share(z, WALK, ATYPICAL, FARTHEST)


def _angle(
    rng: np.random.Generator, step_sizes: StepSizes, sweeping: Sweeping = ONE_SWEEP
) -> tuple[float, bool]:
    """Return the angle in use, or now and then a shorter one, which leaves heavy tails sooner.

    Also return whether it is the one in use.
    """
    shorter = rng.random() < sweeping.shorter
    setting = step_sizes.current[0] + (rng.integers(1, 7) if shorter else 0)
    angle = float(PCN_ANGLES[min(setting, PCN_ANGLES.size - 1)])
    if shorter and sweeping.mirrors and rng.random() < 0.5:
        angle = math.pi - angle
    return angle, not shorter


def _moved_hyper(
    rng: np.random.Generator, z: np.ndarray, angle: float
) -> tuple[np.ndarray, float, bool]:
    """Propose another whitened h.

    Also return the log ratio of the densities of both proposals, and whether it is a random walk.
    """
    share, some, moved = hyper_walk_share(z), _some(rng, z.size), z.copy()
    if rng.random() < share:
        length = 2.4 / math.sqrt(some.size) * math.exp(WALK_SPREAD * rng.standard_normal())
        moved[some] += length * rng.standard_normal(some.size)
        return moved, math.log(hyper_walk_share(moved) / share), True
    moved[some], log_q = _rotated(rng, z[some], angle)
    return moved, log_q + math.log((1 - hyper_walk_share(moved)) / (1 - share)), False


def moved_alone(
    rng: np.random.Generator,
    hyper: np.ndarray,
    axis: int,
    scale: tuple[np.ndarray, np.ndarray],
    log_length: float,
) -> tuple[np.ndarray, float, bool]:
    """Propose another h along one axis, from what is known of it or by a random walk.

    Also return the log ratio of the densities of both proposals, and whether it walks.
    """
    mean, sd = scale[0][axis], math.sqrt(float(np.sum(scale[1][axis] ** 2)))
    z, moved = (hyper[axis : axis + 1] - mean) / sd, hyper.copy()
    share = hyper_walk_share(z)
    if rng.random() < share:
        length = math.exp(log_length + WALK_SPREAD * rng.standard_normal())
        moved[axis] += length * rng.standard_normal()
        there = hyper_walk_share((moved[axis : axis + 1] - mean) / sd)
        return moved, math.log(there / share), True
    z_then, log_q = _rotated(rng, z, math.pi / 2)
    moved[axis] = mean + sd * float(z_then[0])
    return moved, log_q + math.log((1 - hyper_walk_share(z_then)) / (1 - share)), False


def _moved_levels(
    rng: np.random.Generator, eta: np.ndarray, angle: float, often: LevelWalks
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Turn the levels by an angle, but for some that walk in arsinh η, which reaches heavy tails.

    Also return the log ratios of the densities of both proposals, beside those of normal densities
    where levels are turned, and which levels walk: of those near the mode a share.
    """
    share, moved = level_walk_shares(eta, often), _rotated(rng, eta, angle)[0]
    walking = np.flatnonzero(rng.random(share.size) < share)
    start, shape = eta[walking], (walking.size, eta.shape[1])
    lengths = np.exp(WALK_SPREAD * rng.standard_normal(walking.size)) / math.sqrt(shape[1])
    walked = np.arcsinh(start) + lengths[:, None] * rng.standard_normal(shape)
    too_far = np.abs(walked).max(axis=1, initial=0.0) > FARTHEST_WALK
    walked[too_far] = np.arcsinh(start[too_far])
    moved[walking] = np.sinh(walked)
    there = level_walk_shares(moved, often)
    log_q = np.log((1 - there) / (1 - share))
    end, of_types = moved[walking], np.log(there[walking] / share[walking])
    log_q[walking] = of_types - 0.5 * (inner_products(end, end) - inner_products(start, start))
    log_q[walking] += log_stretch(end) - log_stretch(start)
    log_q[walking[too_far]] = -np.inf
    is_walking = np.zeros(share.size, dtype=np.bool_)
    is_walking[walking] = True
    return moved, log_q, is_walking


def log_stretch(eta: np.ndarray) -> np.ndarray:
    """Return log |dη / d arsinh η| of each level."""
    return np.asarray(0.5 * np.log1p(eta**2).sum(axis=1))


def level_walk_shares(eta: np.ndarray, often: LevelWalks) -> np.ndarray:
    """Return how likely each level walks."""
    share, unusual = often
    return np.asarray(walk_share_beyond(beyond_typical(eta), share, unusual, FARTHEST_LEVEL))


def beyond_typical(eta: np.ndarray) -> np.ndarray:
    """Return how far levels are beyond the usual distance √q."""
    distances: np.ndarray = np.sqrt(inner_products(eta, eta))
    return distances - math.sqrt(eta.shape[1])


def _some(rng: np.random.Generator, size: int) -> np.ndarray:
    """Choose which of the whitened hyperparameters move."""
    return np.arange(size) if size <= MOST_AT_ONCE else rng.permutation(size)[:MOST_AT_ONCE]


def _rotated(rng: np.random.Generator, z: np.ndarray, angle: float) -> tuple[np.ndarray, float]:
    """Turn a point by an angle in a random plane; also return the log ratio of normal densities."""
    moved = math.cos(angle) * z + math.sin(angle) * rng.standard_normal(z.shape)
    return moved, 0.5 * float(np.sum(moved**2) - np.sum(z**2))
