"""Levels that are not normal are moved by their own density, too.

Where rows say more of a level than their expansion, proposals that follow this stay away for long,
and stay for long. Steps by the density of the level itself do not: they read no rows but its own.
A few levels need many: an outlying row is taken for one or not, all outcomes are the same, or the
prior has a long tail. What was seen far from their centers before the start says which, and what
tuning has seen of their jumps.
"""

from abc import abstractmethod
from typing import NamedTuple

import numpy as np

from pymc_minibatch.latent.elsewhere import ELSEWHERE
from pymc_minibatch.latent.level_steps import LEAST_DRAWN_FROM, OwnRowMoves
from pymc_minibatch.latent.moves.costs import OVERHEAD
from pymc_minibatch.latent.moves.levels import LevelsOfFactor, LevelTuner
from pymc_minibatch.latent.moves.protocol import EffectsModel, Move, Planned, Setting
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.own_rows import LevelRows

__all__ = ["AnyLevels", "SlowLevels", "SlowTuner", "StepsOfLevels", "plan"]

LEAST_STEPS, MOST_STEPS, STEPS = 3, 200, 4
"""Steps of slow levels in a scan, and of others."""

STEP, ROW, MOVES = 100.0, 0.25, 1.0
"""What a step costs apart from reading rows, in rows of a decision, and for each row; and how many
other moves the steps of slow levels in a scan may cost as much as."""

PASSES = 4.0
"""Over all rows, that those of all factors may take beside that where all rows decide: a scan takes
some twenty, or a hundred with trajectories."""

SHARE, DECISIONS, PASS = 0.25, 4.0, 0.125
"""What steps of other levels cost, relative to a move, to so many decisions of a scan and, where
all rows decide, to a part of these."""

LEAST_ROWS = 1000.0
"""Rows that one move of others reads at least; with fewer, seldom."""

LEAST_MOVES = 50
"""Moves of all levels, while tuning, before which none is called slow."""

LOOK_EVERY = 25
"""Moves of all levels after which it is looked again which are slow."""

SEE_EVERY, MOST_SEEN, MOST_NUMBERS = 5, 160, 400_000
"""Moves of all levels after which their values are kept again; how often at most; and numbers that
are kept of a factor, at most."""

SLOW, SLOWER = 0.5, 0.5
"""One less the correlation from a move to the next, below which a level is slow, if that is also
below so much of the median: draws whose correlation falls as a power of ½ are worth a third."""

MOST_SHARE = 0.02
"""Share of the levels that are moved more often for either reason, at most, beside one; unless
there is time for the least number of steps of more."""


class SlowTuner(NamedTuple):
    """Which levels are slow.

    Attributes
    ----------
    n_moves : ndarray, shape (1,)
        Moves of all levels that tuning had seen when it was looked.
    is_slow : ndarray of bool, shape (G,)
        Which are.
    n_seen : ndarray, shape (2,)
        How often their values were kept, and moves of all levels then.
    seen : ndarray, shape (A, G, q)
        The last of these values.
    """

    n_moves: np.ndarray
    is_slow: np.ndarray
    n_seen: np.ndarray
    seen: np.ndarray

    @property
    def values_seen(self) -> np.ndarray:
        """Those values that were kept so far, but for the first half."""
        n_seen = int(self.n_seen[0])
        return self.seen[n_seen // 2 : n_seen] if n_seen <= len(self.seen) else self.seen


class StepsOfLevels(Move):
    """Steps of some levels of a factor by their own density.

    Attributes
    ----------
    factor : int
        Which one.
    again : bool
        Whether the next scan moves the same levels.
    """

    scope = "own rows"
    factor: int
    again: bool

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: None, setting: Setting
    ) -> OwnRowMoves | None:
        """Move the levels that are chosen; None if there are none, or none moves by its rows."""
        level_rows = setting.decisions.level_rows
        if level_rows is None:
            return None
        chosen = self.choose(rng, state, level_rows, setting)
        if not chosen.size:
            return None
        times = self.times(level_rows.counted(self.factor)[chosen])
        seen = setting.tuners[SlowLevels.name_of(self.factor)].values_seen
        jumps = level_rows.elsewhere[self.factor].jumps[:, chosen]
        return OwnRowMoves(
            self.name, self.factor, chosen, times, self.again, seen=seen, jumps=jumps
        )

    @abstractmethod
    def choose(
        self, rng: np.random.Generator, state: ChainState, level_rows: LevelRows, setting: Setting
    ) -> np.ndarray:
        """Choose levels, by their numbers in increasing order."""

    @abstractmethod
    def times(self, n_rows: np.ndarray) -> int:
        """Return how many steps levels take, given their numbers of rows."""


class SlowLevels(StepsOfLevels):
    """Steps of the levels of a factor that have jumped the least, or have mass elsewhere."""

    words, again = "levels that seldom move", True

    def __init__(self, model: EffectsModel, factor: int) -> None:
        self.name, self.factor = self.name_of(factor), factor
        self.of_all = LevelsOfFactor.name_of(factor)
        self.latent = model.field.levels[factor].latent
        self.n_levels = len(self.latent)
        passes = PASSES / len(model.field.levels)
        self.budget = MOVES * (OVERHEAD + self.n_levels) + passes * ROW * model.all_rows

    @staticmethod
    def name_of(factor: int) -> str:
        """Return the name of the steps of a factor."""
        return f"slow levels of factor {factor}"

    def initial(self) -> SlowTuner:
        """Return no slow level, of which nothing was seen."""
        n_kept = min(MOST_SEEN, MOST_NUMBERS // self.latent.size)
        if n_kept < LEAST_DRAWN_FROM:
            n_kept = 0
        return SlowTuner(
            np.zeros(1),
            np.zeros(self.n_levels, dtype=np.bool_),
            np.zeros(2),
            np.zeros((n_kept, *self.latent.shape)),
        )

    def choose(
        self, rng: np.random.Generator, state: ChainState, level_rows: LevelRows, setting: Setting
    ) -> np.ndarray:
        """Choose the slow ones, and those with the most mass elsewhere."""
        tuner = setting.tuners[self.name]
        n_rows, of_all = level_rows.counted(self.factor), setting.tuners[self.of_all]
        self._keep(tuner, of_all, state.point)
        self._look(tuner, of_all, n_rows)
        return np.flatnonzero(tuner.is_slow | self._elsewhere(level_rows, n_rows))

    def times(self, n_rows: np.ndarray) -> int:
        """Return as many as the budget has rows for."""
        cost = STEP + ROW * float(n_rows.sum())
        return int(np.clip(self.budget / cost, LEAST_STEPS, MOST_STEPS))

    def _keep(self, tuner: SlowTuner, of_all: LevelTuner, point: np.ndarray) -> None:
        """Keep the values of the levels, in place of the oldest, while tuning goes on."""
        n_kept = len(tuner.seen)
        if not n_kept or of_all.n_moves[0] < tuner.n_seen[1] + SEE_EVERY:
            return
        tuner.seen[int(tuner.n_seen[0]) % n_kept] = point[self.latent]
        tuner.n_seen[:] = tuner.n_seen[0] + 1, of_all.n_moves[0]

    def _look(self, tuner: SlowTuner, of_all: LevelTuner, n_rows: np.ndarray) -> None:
        """Find the slow levels, the slowest if these are many, while tuning goes on."""
        if of_all.n_moves[0] < max(LEAST_MOVES, tuner.n_moves[0] + LOOK_EVERY):
            return
        shares = of_all.one_minus_correlation
        slow = np.flatnonzero(shares < min(SLOW, SLOWER * float(np.median(shares))))
        tuner.n_moves[:] = of_all.n_moves[0]
        slow = slow[np.argsort(shares[slow])]
        tuner.is_slow[:] = False
        tuner.is_slow[slow[: self._affordable(n_rows[slow])]] = True

    def _elsewhere(self, level_rows: LevelRows, n_rows: np.ndarray) -> np.ndarray:
        """Say which levels have the most mass elsewhere; those with other modes if time allows."""
        highest, jumps = level_rows.elsewhere[self.factor]
        found = np.zeros(self.n_levels, dtype=np.bool_)
        some = np.flatnonzero(highest > ELSEWHERE)
        some = some[np.argsort(-highest[some])]
        found[some[: self._most]] = True
        modal = some[jumps[0, some].any(axis=1)]
        found[modal[: self._affordable(n_rows[modal])]] = True
        return found

    def _affordable(self, n_rows: np.ndarray) -> int:
        """Return how many levels may take the least number of steps, of some with such rows."""
        cost = LEAST_STEPS * (STEP + ROW * np.cumsum(n_rows))
        return max(self._most, int(np.searchsorted(cost, self.budget)))

    @property
    def _most(self) -> int:
        return 1 + int(MOST_SHARE * self.n_levels)


class AnyLevels(StepsOfLevels):
    """Steps of some levels of those of which a row varies, drawn anew in each scan."""

    words, again = "levels that are not normal", False

    def __init__(self, model: EffectsModel, factor: int) -> None:
        self.name, self.factor = f"any levels of factor {factor}", factor
        n_levels = len(model.field.levels[factor].latent)
        read = DECISIONS * model.expected_rows + PASS * model.all_rows
        budget = SHARE * (OVERHEAD + n_levels + read)
        self.most_rows = max(budget / STEPS / ROW, LEAST_ROWS)
        self.share = min(1.0, budget / (STEPS * (STEP + ROW * self.most_rows)))

    def choose(
        self, rng: np.random.Generator, state: ChainState, level_rows: LevelRows, setting: Setting
    ) -> np.ndarray:
        """Draw as many as there is time for, one at least; none if all are normal."""
        levels = rng.permutation(
            np.flatnonzero(level_rows.elsewhere[self.factor].highest > -np.inf)
        )
        read = np.cumsum(level_rows.counted(self.factor)[levels])
        return np.sort(levels[: max(1, np.searchsorted(read, self.most_rows))])

    def times(self, n_rows: np.ndarray) -> int:
        """Return the number that all of these take."""
        return STEPS


def plan(model: EffectsModel) -> list[Planned]:
    """Return how they enter a scan: after all levels."""
    planned = []
    for k in range(len(model.field.levels)):
        of_others = AnyLevels(model, k)
        planned += [Planned(SlowLevels(model, k)), Planned(of_others, share=of_others.share)]
    return planned
