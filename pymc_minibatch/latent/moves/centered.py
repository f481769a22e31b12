"""One direction of h moves, and the effects as rows read them stay.

Rows read the same predictors, so that the prior decides, with the Jacobian of z: no row is read.
If scalars that all rows share depend on h, what sums say of these is added.

Reference
---------
Yu and Meng (2011), To center or not to center: that is not the question.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_minibatch.latent.moves.kernels import MOST_AT_ONCE
from pymc_minibatch.latent.moves.protocol import (
    EffectsModel,
    Move,
    Outcome,
    Planned,
    Proposal,
    Setting,
)
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.tuners import Walks

__all__ = ["Centered", "CenteredWalks", "plan"]

LEAST_MOVES = 5
"""Directions in a scan, or half of the hyperparameters if these are more."""

IN_A_ROW = 3
"""How often along each direction, in a scan where other moves of h are rare, or read all rows."""

FIRST_ALONG_COLUMNS = math.log(0.5)
"""Log length at which walks along columns begin, in standard deviations."""


class CenteredWalks(NamedTuple):
    """Walks along directions of h.

    Attributes
    ----------
    axes : Walks
        One for each hyperparameter.
    columns : Walks
        One for each column of the factor of the covariance of h, if these are many; else none.
    """

    axes: Walks
    columns: Walks

    def along(self, direction: tuple[str, int]) -> Walks:
        """Return the walks to which a direction belongs."""
        return self.axes if direction[0] == "axis" else self.columns


class Centered(Move):
    """Moves of single directions of h with predictors held."""

    name, words, scope = "centered", "a hyperparameter, predictors held", "prior"

    def __init__(self, model: EffectsModel) -> None:
        self.log_lengths = model.log_lengths
        self.base = model.tails.base
        self.at_mode = self.base.from_hyper(model.hyper)
        n_hyper = model.field.hyper.size
        self.directions = [("axis", i) for i in range(n_hyper)]
        if n_hyper > MOST_AT_ONCE:
            self.directions += [("column", i) for i in range(n_hyper)]

    def initial(self) -> CenteredWalks:
        """Return its walks."""
        n_columns = len(self.directions) - self.log_lengths.size
        return CenteredWalks(
            Walks.of(self.log_lengths.copy()), Walks.of(np.full(n_columns, FIRST_ALONG_COLUMNS))
        )

    def targets(self, rng: np.random.Generator, tuner: CenteredWalks) -> Sequence[tuple[str, int]]:
        """Return the directions in random order."""
        return [self.directions[i] for i in rng.permutation(len(self.directions))]

    def propose(
        self,
        rng: np.random.Generator,
        state: ChainState,
        target: tuple[str, int],
        setting: Setting,
    ) -> Proposal:
        """Step along a direction."""
        (kind, i), hyper = target, state.hyper
        log_length = setting.tuners[self.name].along(target).log_length[i]
        length = math.exp(log_length) * rng.standard_normal()
        if kind == "axis":
            hyper[i] += length
        else:
            hyper += length * self.base.push(self.at_mode, setting.scale.cholesky[:, i])
        centered = state.surrogate.field.with_effects_held(state.point, hyper)
        if centered is None:
            return Proposal(None, log_jacobian=-np.inf)
        proposed = ChainState(state.surrogate, centered.point)
        return Proposal(proposed, log_jacobian=centered.log_jacobian())

    def learn(
        self,
        rng: np.random.Generator,
        tuner: CenteredWalks,
        target: tuple[str, int],
        proposal: Proposal,
        outcome: Outcome,
    ) -> None:
        """Change the length of steps along the direction, by how likely they are accepted."""
        tuner.along(target).learn(target[1], outcome.log_ratio)


def plan(model: EffectsModel) -> list[Planned]:
    """Return how it enters a scan: often where other moves of h are rare or cost far more."""
    if model.fixed_factor:
        return [Planned(Centered(model), in_a_row=IN_A_ROW)]
    n_moves = 0 if model.costly else max(LEAST_MOVES, model.field.hyper.size // 2)
    times = IN_A_ROW if model.has_slopes else 1
    return [Planned(Centered(model), at_most=n_moves, in_a_row=times)]
