"""Levels that are not normal are moved by their own density, too.

Where rows say more of a level than their expansion, proposals that follow this stay away for long,
and stay for long. Steps by the density of the level itself do not: they read no rows but its own.
A few levels need many: an outlying row is taken for one or not, all outcomes are the same, or the
prior has a long tail. What was seen far from their centers before the start says which, and what
tuning has seen of their jumps.
"""

from typing import NamedTuple

import numpy as np

from pymc_minibatch.latent.moves.costs import OVERHEAD
from pymc_minibatch.latent.moves.levels import LevelsOfFactor, LevelTuner
from pymc_minibatch.latent.moves.protocol import EffectsModel, Move, Planned, Setting
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.own_rows import OwnRowMoves

__all__ = ["AnyLevels", "SlowLevels", "SlowTuner", "plan"]

LEAST_STEPS, MOST_STEPS, STEPS = 3, 200, 4
"""Steps of slow levels in a scan, and of others."""

STEP, ROW, MOVES = 100.0, 0.25, 1.0
"""What a step costs apart from reading rows, in rows of a decision, and for each row; and how many
other moves the steps of slow levels in a scan may cost as much as."""

SHARE, DECISIONS = 0.25, 4.0
"""What steps of other levels cost, relative to a move and to so many decisions of a scan."""

LEAST_ROWS = 1000.0
"""Rows that one move of others reads at least; with fewer, seldom."""

LEAST_MOVES = 50
"""Moves of all levels, while tuning, before which none is called slow."""

LOOK_EVERY = 25
"""Moves of all levels after which it is looked again which are slow."""

SLOW, SLOWER = 0.5, 0.5
"""One less the correlation from a move to the next, below which a level is slow, if that is also
below so much of the median: draws whose correlation falls as a power of ½ are worth a third."""

ELSEWHERE = -5.0
"""Log-density far out, less that at the center, above which a level has mass there: a Gaussian has
−6 at its nearest look."""

MOST_SHARE = 0.02
"""Share of the levels that are moved more often for either reason, at most, beside one."""


class SlowTuner(NamedTuple):
    """Which levels are slow.

    Attributes
    ----------
    n_moves : ndarray, shape (1,)
        Moves of all levels that tuning had seen when it was looked.
    is_slow : ndarray of bool, shape (G,)
        Which are.
    """

    n_moves: np.ndarray
    is_slow: np.ndarray


class SlowLevels(Move):
    """Steps of the levels of a factor that have jumped the least, or have mass elsewhere."""

    words, scope = "levels that seldom move", "own rows"

    def __init__(self, model: EffectsModel, factor: int) -> None:
        self.name, self.factor = f"slow levels of factor {factor}", factor
        self.of_all = LevelsOfFactor.name_of(factor)
        self.n_levels = len(model.field.levels[factor].latent)
        self.budget = MOVES * (OVERHEAD + self.n_levels)

    def initial(self) -> SlowTuner:
        """Return no slow level."""
        return SlowTuner(np.zeros(1), np.zeros(self.n_levels, dtype=np.bool_))

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: None, setting: Setting
    ) -> OwnRowMoves | None:
        """Move the slow levels; None if there are none, or none moves by its own rows alone."""
        level_rows = setting.decisions.level_rows
        if level_rows is None:
            return None
        tuner = setting.tuners[self.name]
        self._look(tuner, setting.tuners[self.of_all])
        chosen = np.flatnonzero(tuner.is_slow | self._highest(level_rows.far[self.factor]))
        if not chosen.size:
            return None
        cost = STEP + ROW * float(level_rows.counted(self.factor)[chosen].sum())
        times = int(np.clip(self.budget / cost, LEAST_STEPS, MOST_STEPS))
        return OwnRowMoves(self.name, self.factor, chosen, times, again=True)

    def _look(self, tuner: SlowTuner, of_all: LevelTuner) -> None:
        """Find the slow levels, the slowest if these are many, while tuning goes on."""
        if of_all.n_moves[0] < max(LEAST_MOVES, tuner.n_moves[0] + LOOK_EVERY):
            return
        shares = of_all.one_minus_correlation
        slow = np.flatnonzero(shares < min(SLOW, SLOWER * float(np.median(shares))))
        tuner.n_moves[:] = of_all.n_moves[0]
        tuner.is_slow[:] = False
        tuner.is_slow[slow[np.argsort(shares[slow])[: self._most]]] = True

    def _highest(self, elsewhere: np.ndarray) -> np.ndarray:
        """Say which levels have the most mass elsewhere."""
        found = np.zeros(self.n_levels, dtype=np.bool_)
        some = np.flatnonzero(elsewhere > ELSEWHERE)
        found[some[np.argsort(-elsewhere[some])[: self._most]]] = True
        return found

    @property
    def _most(self) -> int:
        return 1 + int(MOST_SHARE * self.n_levels)


class AnyLevels(Move):
    """Steps of some levels of those of which a row varies, drawn anew in each scan."""

    words, scope = "levels that are not normal", "own rows"

    def __init__(self, model: EffectsModel, factor: int) -> None:
        self.name, self.factor = f"any levels of factor {factor}", factor
        n_levels = len(model.field.levels[factor].latent)
        budget = SHARE * (OVERHEAD + n_levels + DECISIONS * model.expected_rows)
        self.most_rows = max(budget / STEPS / ROW, LEAST_ROWS)
        self.share = min(1.0, budget / (STEPS * (STEP + ROW * self.most_rows)))

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: None, setting: Setting
    ) -> OwnRowMoves | None:
        """Move as many as there is time for, one at least; None if all are normal."""
        level_rows = setting.decisions.level_rows
        if level_rows is None:
            return None
        levels = rng.permutation(np.flatnonzero(level_rows.far[self.factor] > -np.inf))
        read = np.cumsum(level_rows.counted(self.factor)[levels])
        chosen = np.sort(levels[: max(1, np.searchsorted(read, self.most_rows))])
        if not chosen.size:
            return None
        return OwnRowMoves(self.name, self.factor, chosen, STEPS, again=False)


def plan(model: EffectsModel) -> list[Planned]:
    """Return how they enter a scan: after all levels."""
    planned = []
    for k in range(len(model.field.levels)):
        of_others = AnyLevels(model, k)
        planned += [Planned(SlowLevels(model, k)), Planned(of_others, share=of_others.share)]
    return planned
