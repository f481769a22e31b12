"""Choose among settings of a move the one that goes farthest for its cost.

The figure of merit is the expected squared jump, in posterior standard deviations, per row read.
For moves about a Gaussian it orders settings as effective samples per second do, and unlike them it
can be had from a few hundred transitions. The seconds of a transition are reckoned in rows, so that
the choice does not depend on the clock and draws can be repeated.

Tuning tries each setting once, then takes the best so far, or in `EXPLORE` of the cases any. What
was seen long ago counts less, since a chain may have started far away.

Long moves that are often rejected jump farthest on average, and yet leave a chain for hundreds of
transitions where the target is far above what proposals expect there. Short moves lead away. So if
the best setting is accepted less often than shorter ones were, a share of the moves after tuning is
shorter. A mixture of moves that each leave the target as it is does so too.

References
----------
Pasarica and Gelman (2010), Adaptively scaling the Metropolis algorithm using expected squared
jumped distance. Sutton and Barto (2018), Reinforcement learning, section 2.2.
"""

from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable

__all__ = ["StepBandit", "chosen", "keep_best", "make_bandit", "record"]

EXPLORE = 0.15
MEMORY = 0.999

MOST_SHORTER = 0.5
"""The largest share of shorter moves after tuning."""

AS_OFTEN, RARER = 0.9, 0.7
"""Relative to shorter ones, moves that are accepted as often need none of them; if they are
accepted more rarely, shorter ones have their largest share."""

SHORTEST = 1 / 6
"""Of the length of the best: at a third of a right angle the log ratio of a Gaussian tail falls by
a few nats where that of a right angle does by ten, and at a sixth by one."""


class StepBandit(NamedTuple):
    """The settings and what is known of them.

    Attributes
    ----------
    settings : ndarray, shape (K, 2)
        Number of gradients and length of each kind of move.
    current : ndarray of int64, shape (1,)
        The setting in use.
    jump : ndarray, shape (1,)
        Squared length of the last move; negative if it was none of these.
    gains, costs : ndarray, shape (K,)
        Sums of the squared jumps and of the rows spent on them.
    made, accepted : ndarray, shape (K,)
        Sums of the moves, and of those that were accepted.
    shorter : ndarray, shape (1,)
        Share of moves with shorter settings than the best, once that is known.
    """

    settings: np.ndarray
    current: np.ndarray
    jump: np.ndarray
    gains: np.ndarray
    costs: np.ndarray
    made: np.ndarray
    accepted: np.ndarray
    shorter: np.ndarray


def make_bandit(settings: list[tuple[float, float]]) -> StepBandit:
    """Return the state before tuning, in which the first setting is in use."""
    size = len(settings)
    return StepBandit(
        settings=np.array(settings, dtype=np.float64),
        current=np.zeros(1, dtype=np.int64),
        jump=np.zeros(1),
        gains=np.zeros(size),
        costs=np.zeros(size),
        made=np.zeros(size),
        accepted=np.zeros(size),
        shorter=np.zeros(1),
    )


def keep_best(bandit: StepBandit) -> None:
    """Take the setting that did best, and shorter ones as often as it is rejected more."""
    if not bandit.costs.any():
        return
    k = bandit.current[0] = best(bandit)
    others = are_shorter(bandit, k) & (bandit.made > 0)
    rates = bandit.accepted[others] / bandit.made[others]
    if rates.any():
        share = bandit.accepted[k] / bandit.made[k] / rates.mean()
        missing = (AS_OFTEN - share) / (AS_OFTEN - RARER)
        bandit.shorter[0] = MOST_SHORTER * min(1.0, max(0.0, missing))


def are_shorter(bandit: StepBandit, k: int) -> np.ndarray:
    """Mark the settings that are shorter than one, but not by far."""
    lengths = bandit.settings[:, 1]
    return np.asarray((lengths < lengths[k]) & (lengths >= SHORTEST * lengths[k]))


@register_jitable
def chosen(rng: np.random.Generator, bandit: StepBandit) -> int:
    """Return the setting of the next move: the current one, or after tuning perhaps a shorter."""
    k = int(bandit.current[0])
    if bandit.shorter[0] == 0.0 or rng.random() >= bandit.shorter[0]:
        return k
    longest = bandit.settings[k, 1]
    while True:  # there is one, or the share would be zero
        other = int(rng.random() * bandit.settings.shape[0])
        if SHORTEST * longest <= bandit.settings[other, 1] < longest:
            return other


@register_jitable
def record(rng: np.random.Generator, accepted: bool, cost: float, bandit: StepBandit) -> None:
    """Credit the last move to its setting, and choose the next one."""
    if bandit.jump[0] < 0:
        return
    k = bandit.current[0]
    for i in range(bandit.costs.size):
        bandit.gains[i] *= MEMORY
        bandit.costs[i] *= MEMORY
        bandit.made[i] *= MEMORY
        bandit.accepted[i] *= MEMORY
    bandit.gains[k] += accepted * bandit.jump[0]
    bandit.costs[k] += cost
    bandit.made[k] += 1.0
    bandit.accepted[k] += accepted
    if rng.random() < EXPLORE:
        bandit.current[0] = int(rng.random() * bandit.costs.size)
        return
    bandit.current[0] = best(bandit)
    for untried in range(bandit.costs.size):
        if bandit.costs[untried] == 0:
            bandit.current[0] = untried
            break


@register_jitable
def best(bandit: StepBandit) -> int:
    """Return the setting with the largest gain for its cost."""
    found, most = 0, -1.0
    for k in range(bandit.costs.size):
        if bandit.costs[k] > 0 and bandit.gains[k] / bandit.costs[k] > most:
            found, most = k, bandit.gains[k] / bandit.costs[k]
    return found
