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

__all__ = ["Arms", "keep_best", "make_arms", "record"]

EXPLORE = 0.15
MEMORY = 0.999


class Arms(NamedTuple):
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


def make_arms(settings: list[tuple[float, float]]) -> Arms:
    """Return the state before tuning, in which the first setting is in use."""
    size = len(settings)
    return Arms(
        np.array(settings, dtype=np.float64),
        np.zeros(1, dtype=np.int64),
        np.zeros(1),
        np.zeros(size),
        np.zeros(size),
    )


def keep_best(arms: Arms) -> None:
    """Take the setting that did best."""
    if arms.costs.any():
        arms.current[0] = best(arms)


@register_jitable
def record(rng: np.random.Generator, accepted: bool, cost: float, arms: Arms) -> None:
    """Credit the last move to its setting, and choose the next one."""
    if arms.jump[0] < 0:
        return
    k = arms.current[0]
    for i in range(arms.costs.size):
        arms.gains[i] *= MEMORY
        arms.costs[i] *= MEMORY
    arms.gains[k] += accepted * arms.jump[0]
    arms.costs[k] += cost
    if rng.random() < EXPLORE:
        arms.current[0] = int(rng.random() * arms.costs.size)
        return
    arms.current[0] = best(arms)
    for untried in range(arms.costs.size):
        if arms.costs[untried] == 0:
            arms.current[0] = untried
            break


@register_jitable
def best(arms: Arms) -> int:
    """Return the setting with the largest gain for its cost."""
    found, most = 0, -1.0
    for k in range(arms.costs.size):
        if arms.costs[k] > 0 and arms.gains[k] / arms.costs[k] > most:
            found, most = k, arms.gains[k] / arms.costs[k]
    return found
