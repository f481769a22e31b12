"""The border of the latent field moves, in its coordinates η, and carries the groups along.

If a factorization for each h would be costly, the point goes to an h of the bank and back, with
predictors held. A large border is split at random, and its blocks move by themselves, if moves of
all of it are seldom accepted.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.moves import kernels
from pymc_minibatch.latent.moves.costs import LARGE
from pymc_minibatch.latent.moves.protocol import (
    EffectsModel,
    Move,
    Outcome,
    Planned,
    Proposal,
    Setting,
)
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.tuners import StepSizes

__all__ = ["BLOCKS_ACCEPTED", "MOST_BLOCKS", "Border", "BorderTuner", "RandomBlocks", "plan"]

TIMES = 2
"""Moves of all of the border in a scan: these factor nothing."""

MOST_BLOCKS = 16
"""Random blocks of a large border that move in a scan."""

BLOCKS_ACCEPTED = 0.65
"""Share of moves of such blocks that are accepted; with less, chains would stay in tails."""


class RandomBlocks(NamedTuple):
    """How a large border is split at random, each block moving by itself.

    Attributes
    ----------
    log_number : ndarray, shape (1,)
        Log of the number of blocks.
    n_moves : ndarray, shape (1,)
        Moves while tuning.
    """

    log_number: np.ndarray
    n_moves: np.ndarray

    def split(self, rng: np.random.Generator, size: int) -> list[np.ndarray]:
        """Return the positions of each block; some of the blocks where these are many."""
        number = round(math.exp(self.log_number[0]))
        return np.array_split(rng.permutation(size), number)[:MOST_BLOCKS]

    def tune(self, accepted: bool, size: int) -> None:
        """Change the number so that moves are accepted often enough, up to one block for each."""
        self.n_moves[0] += 1
        change = (BLOCKS_ACCEPTED - accepted) / self.n_moves[0] ** 0.6
        self.log_number[0] = min(max(self.log_number[0] + change, 0.0), math.log(size))


class BorderTuner(NamedTuple):
    """What moves of the border are tuned by.

    Attributes
    ----------
    step_sizes : StepSizes
        Of moves of all of it.
    blocks : RandomBlocks
        How a large one is split.
    """

    step_sizes: StepSizes
    blocks: RandomBlocks


class Border(Move):
    """Moves of the border of η."""

    name, words, counts_as = "border", "coefficients, effects following", "dense"

    def __init__(self, model: EffectsModel) -> None:
        self.size, self.overhead = model.field.latent.dense.size, model.overhead

    def initial(self) -> BorderTuner:
        """Return its step sizes and one block."""
        return BorderTuner(StepSizes.untuned(), RandomBlocks(np.zeros(1), np.zeros(1)))

    def targets(self, rng: np.random.Generator, tuner: BorderTuner) -> Sequence[np.ndarray]:
        """Return which coordinates move together, for each of its moves."""
        is_large = self.size > LARGE
        blocks = tuner.blocks.split(rng, self.size) if is_large else [np.arange(self.size)]
        return blocks if len(blocks) > 1 else blocks * (TIMES if self.size else 0)

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: np.ndarray, setting: Setting
    ) -> Proposal | None:
        """Turn some coordinates."""
        hyper, field = state.hyper, state.surrogate.field
        bank = setting.bank
        given = state.conditional if bank is None else bank.nearest(hyper, setting.scale)
        start = held_at(field, state.point, given.here[field.hyper])
        if start is None or not given.is_proper:
            return None
        eta, groups = given.frame.whiten(start)
        angle, is_set = setting.tuners[self.name].step_sizes.chosen(rng)
        turned = eta.copy()
        turned[target], log_kernel = kernels.rotated(rng, eta[target], angle)
        point = held_at(field, given.frame.color((turned, groups)), hyper)
        if point is None:
            return None
        return Proposal(
            state.with_latent(point),
            log_kernel,
            step=turned - eta,
            learns=is_set,
            conditional=given,
        )

    def learn(
        self,
        rng: np.random.Generator,
        tuner: BorderTuner,
        target: np.ndarray,
        proposal: Proposal,
        outcome: Outcome,
    ) -> None:
        """Change the number of blocks, or credit the jump to the angle."""
        if self.size > LARGE:
            tuner.blocks.tune(outcome.accepted, self.size)
        else:
            cost = self.overhead + outcome.n_read
            jump = outcome.accepted * float(np.sum(proposal.step**2))
            tuner.step_sizes.record(rng, jump, cost)

    def settle(self, tuner: BorderTuner) -> None:
        """Take the best angle."""
        tuner.step_sizes.take_best()


def held_at(field: LatentField, point: np.ndarray, hyper: np.ndarray) -> np.ndarray | None:
    """Return a point with another h, where there is one, at which rows read the same."""
    if np.array_equal(point[field.hyper], hyper):
        return point
    centered = field.with_effects_held(point, hyper)
    return None if centered is None else centered.point


def plan(model: EffectsModel) -> list[Planned]:
    """Return how it enters a scan; not where a trajectory moves a large border better."""
    move = Border(model)
    return [] if model.has_slopes and move.size > LARGE else [Planned(move)]
