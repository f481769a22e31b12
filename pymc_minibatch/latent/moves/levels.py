"""The levels of a factor move, each by itself, given all else.

Given all else the levels are independent. So any of them that move under the surrogate are a
proposal to the rows (delayed acceptance), if batches decide. If each level decides by all of its
rows, rows and surrogate decide at once. Some levels walk, which reaches heavy tails.

Reference
---------
Christen and Fox (2005), Markov chain Monte Carlo using an approximation.
"""

import math
from typing import NamedTuple

import numpy as np

from pymc_minibatch.latent.batched import (
    inner_products,
    multiply_transposed,
    solve_blocks_transposed,
)
from pymc_minibatch.latent.moves import kernels
from pymc_minibatch.latent.moves.costs import OVERHEAD
from pymc_minibatch.latent.moves.decisions import LevelWalks
from pymc_minibatch.latent.moves.kernels import WALK_SPREAD
from pymc_minibatch.latent.moves.protocol import EffectsModel, Move, Outcome, Planned, Setting
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.tuners import StepSizes
from pymc_minibatch.latent.surrogate import PredictorState
from pymc_minibatch.proposals.guided import walk_share_beyond

__all__ = [
    "LevelTuner",
    "LevelsOfFactor",
    "ProposedLevels",
    "beyond_typical",
    "level_walk_shares",
    "log_stretch",
    "moved_levels",
    "plan",
    "proposed_levels",
]

FARTHEST_LEVEL = 5.0
"""Standard deviations beyond which the share of levels that walk no longer grows, as for h."""

MEMORY = 0.995
"""What a move counts for relative to the one after it, where correlations of levels are learnt."""

FARTHEST_WALK = math.asinh(1e5)
"""Standard deviations, in arsinh, beyond which no level walks: decisions would lose digits."""


class ProposedLevels(NamedTuple):
    """Where the levels of a factor want to go.

    Attributes
    ----------
    factor : int
        Which one.
    positions : ndarray of int64, shape (G, q)
        Of each level's variables in a point.
    point : ndarray, shape (D,)
        Where all of them have moved.
    predictors : PredictorState
        What rows read there.
    log_ratios : ndarray, shape (G,)
        The log ratio of each under the surrogate.
    walks : ndarray of bool, shape (G,)
        Which are steps of a random walk.
    coordinates, steps : ndarray, shape (G, q)
        Their whitened coordinates, and by how much these change.
    learns : bool
        Whether the tuner learns from it.
    often : LevelWalks
        How often levels walk.
    """

    factor: int
    positions: np.ndarray
    point: np.ndarray
    predictors: PredictorState
    log_ratios: np.ndarray
    walks: np.ndarray
    coordinates: np.ndarray
    steps: np.ndarray
    learns: bool
    often: LevelWalks


class LevelTuner(NamedTuple):
    """What moves of levels are tuned by.

    Attributes
    ----------
    step_sizes : StepSizes
        Of all of them.
    n_moves : ndarray, shape (2,)
        Moves while tuning; and with a weight that falls with each later move, as in all sums.
    jumps : ndarray, shape (G,)
        Sums of the squared jumps of each level, in whitened coordinates.
    sums, squares : ndarray, shape (G, q)
        Those of these coordinates.
    """

    step_sizes: StepSizes
    n_moves: np.ndarray
    jumps: np.ndarray
    sums: np.ndarray
    squares: np.ndarray

    @property
    def one_minus_correlation(self) -> np.ndarray:
        """One less the correlation of a level from a move to the next, of each level."""
        n = max(self.n_moves[1], 1.0)
        variances = np.sum(self.squares / n - (self.sums / n) ** 2, axis=1)
        shares = np.zeros(variances.size)
        np.divide(self.jumps / n, 2.0 * variances, out=shares, where=variances > 0.0)
        return shares


class LevelsOfFactor(Move):
    """Moves of the effects of all levels of a factor."""

    words, scope, counts_as = "levels of a factor", "levels", "groups"

    def __init__(self, model: EffectsModel, factor: int) -> None:
        self.name, self.factor = self.name_of(factor), factor
        self.levels, self.sweeping = model.field.levels[factor], model.sweeping

    @staticmethod
    def name_of(factor: int) -> str:
        """Return the name of the moves of a factor."""
        return f"levels of factor {factor}"

    def initial(self) -> LevelTuner:
        """Return its step sizes, before any jump."""
        shape = self.levels.latent.shape
        return LevelTuner(
            StepSizes.untuned(),
            np.zeros(2),
            np.zeros(shape[0]),
            np.zeros(shape),
            np.zeros(shape),
        )

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: None, setting: Setting
    ) -> ProposedLevels | None:
        """Turn all levels in their coordinates, but for some that walk."""
        sweeping, step_sizes = self.sweeping, setting.tuners[self.name].step_sizes
        angle, is_set = step_sizes.chosen(rng, sweeping.shorter, sweeping.mirrors)
        often = setting.decisions.level_walks(self.factor, self.levels)
        proposed = proposed_levels(rng, state, self.factor, angle, often)
        return None if proposed is None else proposed._replace(learns=is_set)

    def learn(
        self,
        rng: np.random.Generator,
        tuner: LevelTuner,
        target: None,
        proposal: ProposedLevels,
        outcome: Outcome,
    ) -> None:
        """Credit the jumps of the levels that were turned to the angle."""
        turned = outcome.accepted & ~proposal.walks
        cost = OVERHEAD + turned.size + outcome.n_read
        jumps = inner_products(proposal.steps, proposal.steps)
        for sums in (tuner.n_moves[1:], tuner.jumps, tuner.sums, tuner.squares):
            sums[:] *= MEMORY
        tuner.n_moves[:] += 1.0
        tuner.jumps[outcome.accepted] += jumps[outcome.accepted]
        tuner.sums[:] += proposal.coordinates
        tuner.squares[:] += proposal.coordinates**2
        tuner.step_sizes.record(rng, float(jumps @ turned), cost)

    def settle(self, tuner: LevelTuner) -> None:
        """Take the best angle."""
        tuner.step_sizes.take_best()


def proposed_levels(
    rng: np.random.Generator, state: ChainState, factor: int, angle: float, often: LevelWalks
) -> ProposedLevels | None:
    """Turn all levels of a factor in their coordinates, but for some that walk.

    Returns
    -------
    ProposedLevels or None
        None if the precision of a level is not positive definite.
    """
    surrogate, given, before = state.surrogate, state.conditional, state.predictors
    levels = surrogate.field.levels[factor]
    try:
        mean, cholesky = surrogate.given_others(given, state.point, before, levels)
    except np.linalg.LinAlgError:
        return None
    eta = multiply_transposed(cholesky, state.point[levels.latent] - mean)
    eta_then, log_q, walks = moved_levels(rng, eta, angle, often)
    point = state.point.copy()
    point[levels.latent] = mean + solve_blocks_transposed(cholesky, eta_then)
    after = surrogate.read_levels(point, before, levels)
    log_ratios = log_q + surrogate.level_ratios(
        given, (state.point, point), (before, after), levels
    )
    return ProposedLevels(
        factor,
        levels.latent,
        point,
        after,
        log_ratios,
        walks,
        coordinates=eta,
        steps=eta_then - eta,
        learns=False,
        often=often,
    )


def moved_levels(
    rng: np.random.Generator, eta: np.ndarray, angle: float, often: LevelWalks
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Turn the levels by an angle, but for some that walk in arsinh η, which reaches heavy tails.

    Also return the log ratios of the densities of both proposals, beside those of normal densities
    where levels are turned, and which levels walk: of those near the mode a share.
    """
    share, proposed = level_walk_shares(eta, often), kernels.rotated(rng, eta, angle)[0]
    walking = np.flatnonzero(rng.random(share.size) < share)
    start, shape = eta[walking], (walking.size, eta.shape[1])
    lengths = np.exp(WALK_SPREAD * rng.standard_normal(walking.size)) / math.sqrt(shape[1])
    walked = np.arcsinh(start) + lengths[:, None] * rng.standard_normal(shape)
    too_far = np.abs(walked).max(axis=1, initial=0.0) > FARTHEST_WALK
    walked[too_far] = np.arcsinh(start[too_far])  # they stay, with a log ratio of 0
    proposed[walking] = np.sinh(walked)
    share_then = level_walk_shares(proposed, often)
    log_q = np.log((1 - share_then) / (1 - share))
    end, of_types = proposed[walking], np.log(share_then[walking] / share[walking])
    log_q[walking] = of_types - 0.5 * (inner_products(end, end) - inner_products(start, start))
    log_q[walking] += log_stretch(end) - log_stretch(start)
    is_walking = np.zeros(share.size, dtype=np.bool_)
    is_walking[walking] = True
    return proposed, log_q, is_walking


def log_stretch(eta: np.ndarray) -> np.ndarray:
    """Return log |dη / d arsinh η| of each level."""
    return np.asarray(0.5 * np.log1p(eta**2).sum(axis=1))


def level_walk_shares(eta: np.ndarray, often: LevelWalks) -> np.ndarray:
    """Return how likely each level walks."""
    share, atypical = often
    return np.asarray(walk_share_beyond(beyond_typical(eta), share, atypical, FARTHEST_LEVEL))


def beyond_typical(eta: np.ndarray) -> np.ndarray:
    """Return how far levels are beyond the typical distance √q."""
    distances: np.ndarray = np.sqrt(inner_products(eta, eta))
    return distances - math.sqrt(eta.shape[1])


def plan(model: EffectsModel) -> list[Planned]:
    """Return how it enters a scan: each factor in turn; where h is costly, the first once more.

    The others lie in the border, which has moves of its own.
    """
    of_factors = [Planned(LevelsOfFactor(model, k)) for k in range(len(model.field.levels))]
    sweeps = of_factors * model.sweeping.times
    return [*sweeps, *sweeps[:1]] if model.costly else sweeps
