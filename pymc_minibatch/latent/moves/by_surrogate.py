"""Hyperparameters move many times by the surrogate, and all rows decide on where that leads.

A step by the surrogate reads no row, so that many are made, each along one hyperparameter. If few
effects follow it, as the one coefficient whose scale it is, they keep their place in the Gaussian
that all else leaves them. If many do, the other hyperparameters go along as they are correlated
with it, and the field keeps its η. Metropolis-Hastings for the surrogate π̃ decides on each step.
Steps are made in some order and then in the reverse order, so that all of them together are
reversible with respect to π̃. Rows accept the last state x' with the probability of

    π(x') π̃(x) / (π(x) π̃(x')).

If hyperparameters are many and far from normal, as the scales of a horseshoe are, a step of all of
them at once is short or rejected.

References
----------
Liu (2001), Monte Carlo strategies in scientific computing, section 9.4.3 (the surrogate transition
method). van Dyk and Park (2008), Partially collapsed Gibbs samplers.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs, dtrtrs

from pymc_minibatch.latent.moves.border import RandomBlocks
from pymc_minibatch.latent.moves.kernels import WALK_SPREAD
from pymc_minibatch.latent.moves.protocol import (
    MOST_FOLLOWERS,
    EffectsModel,
    Move,
    Outcome,
    Planned,
    Proposal,
    Setting,
)
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.tuners import HyperScale, Walks
from pymc_minibatch.latent.surrogate import Surrogate

__all__ = ["BySurrogate", "FewFollowers", "GivenOthers", "Step", "Tuner", "plan"]

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
    states : (ChainState, ChainState or None)
        Before it, and where it wants to go.
    log_jacobian : float
        log |∂z'/∂z|.
    log_ratio : float
        Its log ratio for π̃.
    """

    axis: int
    length: float
    states: tuple[ChainState, ChainState | None]
    log_jacobian: float
    log_ratio: float


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
    followers : list of ndarray of int64, or None
        Positions of the effects that follow each hyperparameter; None if these are many.
    """

    name, counts_as = "by surrogate", "hyper"
    words = "hyperparameters and effects, many times by the surrogate"

    def __init__(self, model: EffectsModel) -> None:
        self.followers = [own if own.size <= MOST_FOLLOWERS else None for own in model.followers]
        self.log_lengths, self.hyper = model.log_lengths, model.field.hyper
        self.few = FewFollowers(model.surrogate)
        times = [COMMON if own is None else 1 for own in self.followers]
        self.axes = np.repeat(np.arange(self.hyper.size), times)

    def initial(self) -> Tuner:
        """Return a walk for each hyperparameter, and one block."""
        walks = Walks.of(self.log_lengths.copy())
        return Tuner(walks, RandomBlocks(np.zeros(1), np.zeros(1)))

    def targets(self, rng: np.random.Generator, tuner: Tuner) -> Sequence[np.ndarray]:
        """Return the hyperparameters of each block, in random order."""
        return [self.axes[block] for block in tuner.blocks.split(rng, self.axes.size)]

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: np.ndarray, setting: Setting
    ) -> Proposal:
        """Make steps by the surrogate along some hyperparameters, to and fro."""
        log_lengths, start = setting.tuners[self.name].walks.log_length, state
        made = []
        for axis in np.concatenate([target, target[::-1]]):
            length = math.exp(log_lengths[axis] + WALK_SPREAD * rng.standard_normal())
            step = self.step(state, int(axis), length * rng.standard_normal(), setting.scale)
            made.append(step)
            if step.states[1] is not None and -rng.standard_exponential() < step.log_ratio:
                state = step.states[1]
        return Proposal(state, start.log_density - state.log_density, data=made)

    def step(self, state: ChainState, axis: int, length: float, scale: HyperScale) -> Step:
        """Return a step along a hyperparameter."""
        with np.errstate(invalid="ignore", over="ignore"):
            proposed, log_jacobian = self.moved(state, axis, length, scale)
            log_ratio = -np.inf
            if proposed is not None and math.isfinite(log_jacobian):
                log_ratio = proposed.log_density - state.log_density + log_jacobian
        return Step(axis, length, (state, proposed), log_jacobian, log_ratio)

    def moved(
        self, state: ChainState, axis: int, length: float, scale: HyperScale
    ) -> tuple[ChainState | None, float]:
        """Return where a hyperparameter leads, and log |∂z'/∂z| of the effects that follow it."""
        effects = self.followers[axis]
        if effects is not None:
            point = state.point.copy()
            point[self.hyper[axis]] += length
            return self.few.follow(state, point, effects)
        hyper = state.hyper + length * along(scale, axis)
        given, then = state.conditional, state.surrogate.factored_later(hyper)
        if not (given.is_proper and then.is_proper):
            return None, -np.inf
        point = then.frame.color(given.frame.whiten(state.point))
        log_jacobian = given.log_determinant - then.log_determinant
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
        for step in proposal.data:
            tuner.walks.learn(step.axis, step.log_ratio)
        tuner.blocks.tune(outcome.accepted, self.axes.size)


def along(scale: HyperScale, axis: int) -> np.ndarray:
    """Return by how much hyperparameters move beside one of them, as they are correlated."""
    covariances = scale.cholesky @ scale.cholesky[axis]
    return np.asarray(covariances / covariances[axis])


class GivenOthers(NamedTuple):
    """The Gaussian of a few effects given all else.

    Attributes
    ----------
    mean : ndarray, shape (q,)
        Their mean.
    cholesky : ndarray, shape (q, q)
        Of their precision.
    """

    mean: np.ndarray
    cholesky: np.ndarray

    @property
    def log_determinant(self) -> float:
        """Half the log-determinant of the precision."""
        return float(np.log(self.cholesky.diagonal()).sum())


class FewFollowers:
    """How a few effects follow a hyperparameter under the surrogate.

    Parameters
    ----------
    surrogate
        The density.
    """

    def __init__(self, surrogate: Surrogate) -> None:
        self.surrogate = surrogate
        self.columns: dict[int, np.ndarray] = {}

    def follow(
        self, state: ChainState, point: np.ndarray, effects: np.ndarray
    ) -> tuple[ChainState | None, float]:
        """Let effects follow the h of a point, in place; also return log |∂z'/∂z|."""
        if not effects.size:
            return ChainState(self.surrogate, point), 0.0
        z, base = state.point[effects], state.point.copy()
        base[effects], point[effects] = 0.0, 0.0
        before = self.given_others(state, base, effects, -z)
        after = self.given_others(state, point, effects, None)
        if before is None or after is None:
            return None, -np.inf
        eta = before.cholesky.T @ (z - before.mean)
        point[effects] = after.mean + dtrtrs(after.cholesky, eta, lower=1, trans=1)[0]
        log_jacobian = before.log_determinant - after.log_determinant
        return ChainState(self.surrogate, point), log_jacobian

    def given_others(
        self, state: ChainState, base: np.ndarray, effects: np.ndarray, moved: np.ndarray | None
    ) -> GivenOthers | None:
        """Return the Gaussian of a few effects given all else; None if there is none.

        The prior is taken to second order about where they are zero, and so the Gaussian does not
        depend on where they are.

        Parameters
        ----------
        state
            A state with the same other effects.
        base
            A point with some h, and no such effects.
        effects
            Their positions.
        moved
            How far these effects are at `base` from where they are at `state`; None if h differs.
        """
        derivatives, expansion = self.surrogate.field.derivatives, self.surrogate.expansion
        here, seed = state.predictors, np.zeros(base.size)
        reads, curved = np.empty((2, effects.size, here.phi.size))
        of_prior = np.empty((effects.size, effects.size))
        for i, position in enumerate(effects):
            seed[position] = 1.0
            reads[i] = derivatives.push(base, seed)
            curved[i] = self.curvature_product(reads[i])
            of_prior[i] = derivatives.prior_product(base, seed)[effects]
            seed[position] = 0.0
        phi = self.surrogate.phi(base) if moved is None else here.phi + moved @ reads
        _, of_rows = expansion.shared(phi)
        slope = reads @ (expansion.slope + expansion.mean_correction - here.curved)
        pull = of_rows * (slope - curved @ (phi - here.phi))
        pull += derivatives.prior_gradient(base)[effects]
        cholesky, failed = dpotrf(of_rows * (reads @ curved.T) - of_prior, lower=1, clean=1)
        return None if failed else GivenOthers(dpotrs(cholesky, pull, lower=1)[0], cholesky)

    def curvature_product(self, reads: np.ndarray) -> np.ndarray:
        """Return K times what rows read of an effect, from a column of K if that is one entry."""
        entries = np.flatnonzero(reads)
        if entries.size != 1:
            return self.surrogate.curvature_product(reads)
        [k] = entries.tolist()
        if k not in self.columns:
            unit = np.zeros(reads.size)
            unit[k] = 1.0
            self.columns[k] = self.surrogate.curvature_product(unit)
        return np.asarray(reads[k] * self.columns[k])


def plan(model: EffectsModel) -> list[Planned]:
    """Return how it enters a scan: if most hyperparameters have a few effects of their own."""
    return [Planned(BySurrogate(model))] if model.has_own_scales else []
