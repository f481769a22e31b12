"""Hyperparameters move many times by the surrogate, and all rows decide on where that leads.

A step by the surrogate reads no row, so that many are made, each along one hyperparameter. If few
effects follow it, as the one coefficient whose scale it is, they keep their place in the Gaussian
that all else leaves them. If many do, the other hyperparameters go along as they are correlated
with it, and the field keeps its η. Metropolis-Hastings for the surrogate π̃ decides on each step.
Steps are made in some order and then in the reverse order, so that all of them together are
reversible with respect to π̃, which is of second order here. Rows accept the last state x' with the
probability of

    π(x') π̃(x) / (π(x) π̃(x')).

Steps that few effects follow are made in a kernel (:mod:`.few_followers`). If hyperparameters are
many and far from normal, as the scales of a horseshoe are, a step of all of them at once is short
or rejected.

References
----------
Liu (2001), Monte Carlo strategies in scientific computing, section 9.4.3 (the surrogate transition
method). van Dyk and Park (2008), Partially collapsed Gibbs samplers.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_minibatch.latent.moves.border import RandomBlocks
from pymc_minibatch.latent.moves.few_followers import MOST_FOLLOWERS, FollowerSteps
from pymc_minibatch.latent.moves.kernels import WALK_SPREAD
from pymc_minibatch.latent.moves.protocol import (
    EffectsModel,
    Move,
    Outcome,
    Planned,
    Proposal,
    Setting,
)
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.tuners import HyperScale, Walks

__all__ = ["BySurrogate", "Step", "Tuner", "log_density_of", "plan"]

COMMON = 4
"""Steps along a hyperparameter that many effects follow, for one along each of the others."""


class Step(NamedTuple):
    """A step by the surrogate.

    Attributes
    ----------
    axis : int
        The hyperparameter that moves.
    length : float
        By how much.
    points : ndarray, shape (2, D)
        Before it, and where it wants to go; not a number if nowhere.
    log_ratio : float
        Its log ratio for π̃.
    """

    axis: int
    length: float
    points: np.ndarray
    log_ratio: float


class Steps(NamedTuple):
    """All steps of a proposal.

    Attributes
    ----------
    axes : list of ndarray of int64
        The hyperparameters that move.
    log_ratios : list of ndarray
        The log ratio of each step.
    watched : list of Step
        Some of them.
    """

    axes: list[np.ndarray]
    log_ratios: list[np.ndarray]
    watched: list[Step]


class Tuner(NamedTuple):
    """What steps by the surrogate are tuned by.

    Attributes
    ----------
    walks : Walks
        Along each hyperparameter.
    blocks : RandomBlocks
        How hyperparameters are split, each block with a decision of rows.
    """

    walks: Walks
    blocks: RandomBlocks


class BySurrogate(Move):
    """Moves of single hyperparameters with their effects, many by the surrogate for each decision.

    Attributes
    ----------
    few : FewFollowers
        What makes the steps that few effects follow.
    """

    name, counts_as = "by surrogate", "hyper"
    words = "hyperparameters and effects, many times by the surrogate"

    def __init__(self, model: EffectsModel) -> None:
        self.log_lengths, self.hyper = model.log_lengths, model.field.hyper
        self.few = model.few_followers
        self.base = model.tails.base
        self.at_mode = self.base.from_hyper(model.hyper)
        sizes = np.array([own.size for own in model.followers])
        times = np.where(sizes > MOST_FOLLOWERS, COMMON, 1)
        self.axes = np.repeat(np.arange(self.hyper.size), times)

    def initial(self) -> Tuner:
        """Return a walk for each hyperparameter, and one block."""
        walks = Walks.of(self.log_lengths.copy())
        return Tuner(walks, RandomBlocks(np.zeros(1), np.zeros(1)))

    def targets(self, rng: np.random.Generator, tuner: Tuner) -> Sequence[np.ndarray]:
        """Return the hyperparameters of each block in random order, few followers first."""
        blocks = [self.axes[block] for block in tuner.blocks.split(rng, self.axes.size)]
        return [block[np.argsort(~self.few.are_few[block], kind="stable")] for block in blocks]

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: np.ndarray, setting: Setting
    ) -> Proposal:
        """Make steps by the surrogate along some hyperparameters, to and fro."""
        log_lengths, start = setting.tuners[self.name].walks.log_length, state
        axes = np.concatenate([target, target[::-1]])
        lengths = np.exp(log_lengths[axes] + WALK_SPREAD * rng.standard_normal(axes.size))
        steps = FollowerSteps(
            axes, lengths * rng.standard_normal(axes.size), -rng.standard_exponential(axes.size)
        )
        made = Steps([], [], [])
        for run in _runs(self.few.are_few[axes]):
            watched = int(rng.integers(run.size))
            some = FollowerSteps(axes[run], steps.lengths[run], steps.bars[run], watched)
            if self.few.are_few[axes[run[0]]]:
                state = self._few_follow(state, some, made)
            else:
                state = self._many_follow(state, some, made, setting.scale)
        log_kernel = log_density_of(start) - log_density_of(state)
        return Proposal(state, log_kernel, data=made)

    def moved(
        self, state: ChainState, axis: int, length: float, scale: HyperScale
    ) -> np.ndarray | None:
        """Return the point to which a hyperparameter leads, with those that follow it."""
        if self.few.are_few[axis]:
            return self.few.moved(state, axis, length)
        proposed, _ = self._moved_with_many(state, axis, length, scale)
        return None if proposed is None else proposed.point

    def _few_follow(self, state: ChainState, steps: FollowerSteps, made: Steps) -> ChainState:
        """Make steps that few effects follow."""
        followed, k = self.few.steps(state, steps), steps.watched
        made.axes.append(steps.axes)
        made.log_ratios.append(followed.log_ratios)
        made.watched.append(
            Step(steps.axes[k], steps.lengths[k], followed.watched, followed.log_ratios[k])
        )
        return followed.state

    def _many_follow(
        self, state: ChainState, steps: FollowerSteps, made: Steps, scale: HyperScale
    ) -> ChainState:
        """Make steps that many effects follow, or none."""
        made.axes.append(steps.axes)
        made.log_ratios.append(np.full(steps.axes.size, -np.inf))
        for t, (axis, length) in enumerate(zip(steps.axes, steps.lengths, strict=True)):
            proposed, log_jacobian = self._moved_with_many(state, axis, length, scale)
            if proposed is None:
                continue
            with np.errstate(invalid="ignore", over="ignore"):
                change = log_density_of(proposed) - log_density_of(state)
            log_ratio = made.log_ratios[-1][t] = change + log_jacobian
            if t == steps.watched:
                points = np.array([state.point, proposed.point])
                made.watched.append(Step(axis, length, points, log_ratio))
            if steps.bars[t] < log_ratio:
                state = proposed
        return state

    def _moved_with_many(
        self, state: ChainState, axis: int, length: float, scale: HyperScale
    ) -> tuple[ChainState | None, float]:
        """Return where a hyperparameter leads, and log |∂z'/∂z| of the effects that follow it."""
        if not self.few.followers[axis].size:
            point = state.point.copy()
            point[self.hyper[axis]] += length
            return ChainState(state.surrogate, point), 0.0
        with np.errstate(invalid="ignore", over="ignore"):
            hyper = state.hyper + length * self.base.push(self.at_mode, along(scale, axis))
            given, then = state.conditional, state.surrogate.factored_later(hyper)
            if not (given.is_proper and then.is_proper):
                return None, -np.inf
            point = then.frame.color(given.frame.whiten(state.point))
        log_jacobian = given.log_determinant - then.log_determinant
        if not math.isfinite(log_jacobian):
            return None, -np.inf
        return ChainState(state.surrogate, point, then), log_jacobian

    def learn(
        self,
        rng: np.random.Generator,
        tuner: Tuner,
        target: np.ndarray,
        proposal: Proposal,
        outcome: Outcome,
    ) -> None:
        """Change the lengths of steps, and how many are made for a decision."""
        made = proposal.data
        for axis, log_ratio in zip(
            np.concatenate(made.axes), np.concatenate(made.log_ratios), strict=True
        ):
            tuner.walks.learn(axis, log_ratio)
        tuner.blocks.tune(outcome.accepted, self.axes.size)


def log_density_of(state: ChainState) -> float:
    """Return log π̃, to second order."""
    if not math.isfinite(state.log_prior):
        return -math.inf
    log_likelihood = state.surrogate.log_likelihood(state.predictors)
    return float(state.log_prior + log_likelihood)


def _runs(is_few: np.ndarray) -> list[np.ndarray]:
    """Return positions, split where few followers change to many, or many to few."""
    return np.split(np.arange(is_few.size), np.flatnonzero(np.diff(is_few)) + 1)


def along(scale: HyperScale, axis: int) -> np.ndarray:
    """Return by how much hyperparameters move beside one of them, as they are correlated."""
    covariances = scale.cholesky @ scale.cholesky[axis]
    return np.asarray(covariances / covariances[axis])


def plan(model: EffectsModel) -> list[Planned]:
    """Return how it enters a scan: if most hyperparameters have a few effects of their own.

    The surrogate must be a density, which its expansion alone is not if that bends upwards.
    """
    is_density = model.surrogate.expansion.dense_shift is None
    return [Planned(BySurrogate(model))] if model.has_own_scales and is_density else []
