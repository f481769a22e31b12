"""Choose among settings of a move the one that goes farthest for its cost.

The figure of merit is the expected squared jump, in posterior standard deviations, per row read.
For moves about a Gaussian it orders settings as effective samples per second do, and unlike them it
can be had from a few hundred transitions. The seconds of a transition are reckoned in rows, so that
the choice does not depend on the clock and draws can be repeated.

Tuning tries each setting once, then takes the best so far, or in `EXPLORE` of the cases any. What
was seen long ago counts less, since a chain may have started far away.

References
----------
Pasarica and Gelman (2010), Adaptively scaling the Metropolis algorithm using expected squared
jumped distance. Sutton and Barto (2018), Reinforcement learning, section 2.2.
"""

from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable

__all__ = ["StepBandit", "keep_best", "make_bandit", "record"]

EXPLORE = 0.15
MEMORY = 0.999


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
    """

    settings: np.ndarray
    current: np.ndarray
    jump: np.ndarray
    gains: np.ndarray
    costs: np.ndarray


def make_bandit(settings: list[tuple[float, float]]) -> StepBandit:
    """Return the state before tuning, in which the first setting is in use."""
    size = len(settings)
    return StepBandit(
        np.array(settings, dtype=np.float64),
        np.zeros(1, dtype=np.int64),
        np.zeros(1),
        np.zeros(size),
        np.zeros(size),
    )


def keep_best(bandit: StepBandit) -> None:
    """Take the setting that did best."""
    if bandit.costs.any():
        bandit.current[0] = best(bandit)


@register_jitable
def record(rng: np.random.Generator, accepted: bool, cost: float, bandit: StepBandit) -> None:
    """Credit the last move to its setting, and choose the next one."""
    if bandit.jump[0] < 0:
        return
    k = bandit.current[0]
    for i in range(bandit.costs.size):
        bandit.gains[i] *= MEMORY
        bandit.costs[i] *= MEMORY
    bandit.gains[k] += accepted * bandit.jump[0]
    bandit.costs[k] += cost
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
