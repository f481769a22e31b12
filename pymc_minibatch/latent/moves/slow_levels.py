"""Levels that seldom move are moved more often, each deciding by all of its rows.

Of thousands of levels a few are far from normal: an outlying row is taken for one or not, all
outcomes are the same, or the prior has a long tail. What tuning has seen of their jumps says which.
Most of their moves are steps of a random walk, and these read no rows but their own.
"""

import numpy as np

from pymc_minibatch.latent.moves.decisions import LevelWalks
from pymc_minibatch.latent.moves.levels import LevelsOfFactor, ProposedLevels, proposed_levels
from pymc_minibatch.latent.moves.protocol import EffectsModel, Move, Planned, Setting
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.tuners import PCN_ANGLES

__all__ = ["SlowLevels", "plan"]

IN_A_ROW, MANY_LEVELS = 3, 5000
"""Moves in a scan; with more levels only a share of the scans has any, as all levels propose."""

LEAST_MOVES = 50
"""Moves of all levels, while tuning, before which none is called slow."""

SLOW, SLOWER = 0.5, 0.5
"""One less the correlation from a move to the next, below which a level is slow, if that is also
below so much of the median: draws whose correlation falls as a power of ½ are worth a third."""

MOST_SHARE = 0.02
"""Share of the levels that are moved more often, at most, beside one."""

SLOW_WALK = LevelWalks(0.7, 1.5)
"""How often they walk."""


class SlowLevels(Move):
    """Moves of the levels of a factor that have jumped the least."""

    words, scope = "levels that seldom move", "levels"

    def __init__(self, model: EffectsModel, factor: int) -> None:
        self.name, self.factor = f"slow levels of factor {factor}", factor
        self.of_all = LevelsOfFactor.name_of(factor)
        self.n_levels = len(model.field.levels[factor].latent)

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: None, setting: Setting
    ) -> ProposedLevels | None:
        """Move the slow levels; None if there are none."""
        slow = self.slow(setting)
        if not slow.size:
            return None
        proposed = proposed_levels(rng, state, self.factor, PCN_ANGLES[0], SLOW_WALK)
        if proposed is None:
            return None
        log_ratios = np.full(self.n_levels, -np.inf)
        log_ratios[slow] = proposed.log_ratios[slow]
        return proposed._replace(log_ratios=log_ratios, by_all_rows=True)

    def slow(self, setting: Setting) -> np.ndarray:
        """Return the numbers of the slow levels, the slowest if these are many."""
        tuner = setting.tuners[self.of_all]
        if tuner.n_moves[0] < LEAST_MOVES:
            return np.empty(0, dtype=np.int64)
        shares = tuner.one_minus_correlation
        slow = np.flatnonzero(shares < min(SLOW, SLOWER * float(np.median(shares))))
        most = 1 + int(MOST_SHARE * self.n_levels)
        return slow if slow.size <= most else slow[np.argsort(shares[slow])[:most]]


def plan(model: EffectsModel) -> list[Planned]:
    """Return how it enters a scan: after all levels, seldom where these are many."""
    planned = []
    for k, levels in enumerate(model.field.levels):
        share = min(1.0, MANY_LEVELS / len(levels.latent))
        planned.append(Planned(SlowLevels(model, k), share=share, in_a_row=IN_A_ROW))
    return planned
