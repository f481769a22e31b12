"""Factorizations for a few hyperparameters about which a chain is, at design points."""

from collections.abc import Callable

import numpy as np

from pymc_minibatch.latent.moves.kernels import whitened
from pymc_minibatch.latent.moves.tuners import HyperScale
from pymc_minibatch.latent.skew_transform import SkewTransform

__all__ = ["BANK_SIZE", "FactorBank"]

BANK_SIZE = 4
"""Hyperparameters for which the border is factored, where it is not for all."""


class FactorBank[T]:
    """What is made for a few hyperparameters, and made anew where their scale has changed.

    Parameters
    ----------
    make
        Makes it, given h.
    tails
        Coordinates w of the hyperparameters.
    number
        How many.
    """

    def __init__(self, make: Callable[[np.ndarray], T], tails: SkewTransform, number: int) -> None:
        self.make, self.tails, self.number = make, tails, number
        self._known: tuple[bytes, np.ndarray, list[T]] | None = None

    def forget(self) -> None:
        """Forget it."""
        self._known = None

    def nearest(self, hyper: np.ndarray, scale: HyperScale) -> T:
        """Return that of the nearest to h, given where the coordinates w are thought to be."""
        key = scale.mean.tobytes() + scale.cholesky.tobytes()
        if self._known is None or self._known[0] != key:
            away = np.random.default_rng(6).standard_normal((self.number, scale.mean.size))
            away[0] = 0.0
            hypers = self.tails.to_hyper(scale.mean + away @ scale.cholesky.T)
            self._known = key, away, [self.make(hyper) for hyper in hypers]
        _, away, made = self._known
        z = whitened(self.tails.from_hyper(hyper), scale)
        return made[int(np.argmin(np.sum((away - z) ** 2, axis=1)))]
