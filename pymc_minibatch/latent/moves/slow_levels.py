"""Levels that seldom move are moved more often, each deciding by all of its rows.

Of thousands of levels a few are far from normal: an outlying row is taken for one or not, all
outcomes are the same, or the prior has a long tail. What tuning has seen of their jumps says which.
Most of their moves are steps of a random walk, and these read no rows but their own.
"""

from typing import NamedTuple

import numpy as np

from pymc_minibatch.latent.moves.decisions import LevelWalks
from pymc_minibatch.latent.moves.levels import (
    LevelsOfFactor,
    LevelTuner,
    ProposedLevels,
    proposed_levels,
)
from pymc_minibatch.latent.moves.protocol import EffectsModel, Move, Planned, Setting
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.tuners import PCN_ANGLES

__all__ = ["SlowLevels", "SlowTuner", "plan"]

IN_A_ROW, MANY_LEVELS = 3, 5000
"""Moves in a scan; with more levels only a share of the scans has any, as all levels propose."""

LEAST_MOVES = 50
"""Moves of all levels, while tuning, before which none is called slow."""

LOOK_EVERY = 25
"""Moves of all levels after which it is looked again which are slow."""

SLOW, SLOWER = 0.5, 0.5
"""One less the correlation from a move to the next, below which a level is slow, if that is also
below so much of the median: draws whose correlation falls as a power of ½ are worth a third."""

MOST_SHARE = 0.02
"""Share of the levels that are moved more often, at most, beside one."""

SLOW_WALK = LevelWalks(0.7, 1.5)
"""How often they walk."""


class SlowTuner(NamedTuple):
    """Which levels are slow.

    Attributes
    ----------
    n_moves : ndarray, shape (1,)
        Moves of all levels that tuning had seen when it was looked.
    is_slow : ndarray of bool, shape (G,)
        Which are.
    any_slow : ndarray of bool, shape (1,)
        Whether one is.
    """

    n_moves: np.ndarray
    is_slow: np.ndarray
    any_slow: np.ndarray


class SlowLevels(Move):
    """Moves of the levels of a factor that have jumped the least."""

    words, scope = "levels that seldom move", "levels"

    def __init__(self, model: EffectsModel, factor: int) -> None:
        self.name, self.factor = f"slow levels of factor {factor}", factor
        self.of_all = LevelsOfFactor.name_of(factor)
        self.n_levels = len(model.field.levels[factor].latent)

    def initial(self) -> SlowTuner:
        """Return no slow level."""
        is_slow = np.zeros(self.n_levels, dtype=np.bool_)
        return SlowTuner(np.zeros(1), is_slow, np.zeros(1, dtype=np.bool_))

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: None, setting: Setting
    ) -> ProposedLevels | None:
        """Move the slow levels; None if there are none."""
        tuner = setting.tuners[self.name]
        self._look(tuner, setting.tuners[self.of_all])
        if not tuner.any_slow[0]:
            return None
        proposed = proposed_levels(rng, state, self.factor, PCN_ANGLES[0], SLOW_WALK)
        if proposed is None:
            return None
        log_ratios = np.where(tuner.is_slow, proposed.log_ratios, -np.inf)
        return proposed._replace(log_ratios=log_ratios, by_all_rows=True)

    def _look(self, tuner: SlowTuner, of_all: LevelTuner) -> None:
        """Find the slow levels, the slowest if these are many, while tuning goes on."""
        if of_all.n_moves[0] < max(LEAST_MOVES, tuner.n_moves[0] + LOOK_EVERY):
            return
        shares = of_all.one_minus_correlation
        slow = np.flatnonzero(shares < min(SLOW, SLOWER * float(np.median(shares))))
        most = 1 + int(MOST_SHARE * self.n_levels)
        tuner.n_moves[:] = of_all.n_moves[0]
        tuner.is_slow[:] = False
        tuner.is_slow[slow[np.argsort(shares[slow])[:most]]] = True
        tuner.any_slow[:] = slow.size > 0


def plan(model: EffectsModel) -> list[Planned]:
    """Return how it enters a scan: after all levels, seldom where these are many."""
    planned = []
    for k, levels in enumerate(model.field.levels):
        share = min(1.0, MANY_LEVELS / len(levels.latent))
        planned.append(Planned(SlowLevels(model, k), share=share, in_a_row=IN_A_ROW))
    return planned
