"""Step sizes that change from step to step, and where draws are kept."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from pymc_minibatch.arguments import checked_count

__all__ = ["Constant", "Cyclical", "Polynomial", "Schedule"]


class Schedule(ABC):
    """Step sizes relative to the first one."""

    @abstractmethod
    def of_draw(self, draw: int, steps_per_draw: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sizes of the steps of a draw, over 0, and in which of them noise is added.

        Draws are counted from 0 at the start of the chain; there is a last step, which is noisy.
        """


@dataclass(frozen=True)
class Constant(Schedule):
    """The same size at every step."""

    def of_draw(self, draw: int, steps_per_draw: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ones."""
        return np.ones(steps_per_draw), np.ones(steps_per_draw, dtype=np.bool_)


@dataclass(frozen=True)
class Polynomial(Schedule):
    """Step sizes that fall as a power of the number of steps.

    Step t of the chain, those of tuning included and counted from 0, has the size
    ``step_size * (1 + t / b) ** -gamma``. Averages over draws should then be weighted by the stat
    ``step_size``.

    Parameters
    ----------
    b : float, default 1000
        Steps after which the size has fallen by 2^(−gamma).
    gamma : float, default 0.55
        In (0, 1]; the squares of the sizes have a finite sum for more than 0.5.

    Raises
    ------
    ValueError
        If an argument is out of range. Steps that fall faster than 1/t cover a finite distance,
        so the chain would come to rest.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> pmb.Polynomial(b=100.0, gamma=1.0)
    Polynomial(b=100.0, gamma=1.0)
    """

    b: float = 1000.0
    gamma: float = 0.55

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not (np.isfinite(self.b) and self.b > 0):
            raise ValueError(f"b of Polynomial must be positive and finite; got {self.b!r}.")
        if not 0 < self.gamma <= 1:
            raise ValueError(
                f"gamma of Polynomial must lie in (0, 1]; got {self.gamma!r}. Steps that fall "
                "faster than 1/t cover a finite distance, so the chain would come to rest."
            )

    def of_draw(self, draw: int, steps_per_draw: int) -> tuple[np.ndarray, np.ndarray]:
        """Count the steps of all draws before."""
        t = draw * steps_per_draw + np.arange(steps_per_draw)
        return (1 + t / self.b) ** -self.gamma, np.ones(steps_per_draw, dtype=np.bool_)


@dataclass(frozen=True)
class Cyclical(Schedule):
    """Step sizes that fall along a cosine, again and again, with draws from the cold part.

    In a cycle of L steps, step k has the size ``step_size * (cos(pi * k / L) + 1) / 2``. The first
    steps of a cycle add no noise, so that the chain climbs, maybe to another mode; no draw is
    kept of them, since they belong to the first draw of the cycle. The others add noise and make
    the draws, so that L is ``draws * steps_per_draw / (1 - exploration)``.

    Parameters
    ----------
    draws : int, default 20
        Draws of a cycle.
    exploration : float, default 0.8
        Share of the steps of a cycle without noise, in [0, 1).

    Raises
    ------
    ValueError
        If an argument is out of range.

    References
    ----------
    Zhang, Li, Zhang, Chen and Wilson (2020), Cyclical Stochastic Gradient MCMC for Bayesian
    Deep Learning, algorithm 1.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> pmb.Cyclical(draws=50)
    Cyclical(draws=50, exploration=0.8)
    """

    draws: int = 20
    exploration: float = 0.8

    def __post_init__(self) -> None:
        """Check the arguments."""
        checked_count("draws of Cyclical", self.draws, 1)
        if not 0 <= self.exploration < 1:
            raise ValueError(
                f"exploration of Cyclical must lie in [0, 1); got {self.exploration!r}. The "
                "rest of a cycle makes its draws."
            )

    def of_draw(self, draw: int, steps_per_draw: int) -> tuple[np.ndarray, np.ndarray]:
        """Put the steps without noise before those of the first draw of a cycle."""
        n_cold = self.draws * steps_per_draw
        n_hot = math.ceil(n_cold * self.exploration / (1 - self.exploration))
        position = draw % self.draws
        first = n_hot + position * steps_per_draw if position else 0
        k = np.arange(first, n_hot + (position + 1) * steps_per_draw)
        return (np.cos(np.pi * k / (n_hot + n_cold)) + 1) / 2, k >= n_hot
