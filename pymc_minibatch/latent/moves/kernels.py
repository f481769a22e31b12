"""Proposals of whitened vectors and of hyperparameters, with the ratio of their densities.

A move turns a vector in a random plane (pCN), which leaves a standard normal density as it is, or
is a random walk, since tails can be heavier than a Gaussian's. Far out walks are more often.
"""

import math

import numpy as np
from scipy.linalg.lapack import dtrtrs

from pymc_minibatch.latent.moves.tuners import HyperScale
from pymc_minibatch.proposals.guided import walk_share

__all__ = [
    "MOST_AT_ONCE",
    "WALK_SPREAD",
    "hyper_walk_share",
    "moved_alone",
    "moved_together",
    "rotated",
    "whitened",
]

WALK = 0.2
"""Share of moves of h that are a random walk, since its tails can be heavier than a Gaussian's.

Far out it is larger: others seldom leave a heavy tail, such as that of the logarithm of a scale
that may be zero.
"""

ATYPICAL, FARTHEST = 1.0, 5.0
"""So far beyond the typical distance it begins to grow; after so many more standard deviations it
stays the same."""

WALK_SPREAD = 1.0
"""Standard deviation of the log of the length of a walk."""

MOST_AT_ONCE = 10
"""Hyperparameters that move together."""


def rotated(rng: np.random.Generator, z: np.ndarray, angle: float) -> tuple[np.ndarray, float]:
    """Turn a point by an angle in a random plane; also return the log ratio of normal densities."""
    turned = math.cos(angle) * z + math.sin(angle) * rng.standard_normal(z.shape)
    return turned, 0.5 * float(np.sum(turned**2) - np.sum(z**2))


def hyper_walk_share(z: np.ndarray) -> float:
    """Return how likely a random walk is chosen at a whitened h."""
    return walk_share(z, WALK, ATYPICAL, FARTHEST)


def whitened(w: np.ndarray, scale: HyperScale) -> np.ndarray:
    """Return the whitened coordinates of h, given its coordinates w."""
    away = w - scale.mean
    return np.asarray(dtrtrs(scale.cholesky, away, lower=1)[0]) if w.size else w


def moved_together(
    rng: np.random.Generator, z: np.ndarray, angle: float
) -> tuple[np.ndarray, float, bool]:
    """Propose another whitened h.

    Also return the log ratio of the densities of both proposals, and whether it is a random walk.
    """
    share, some, proposed = hyper_walk_share(z), _some(rng, z.size), z.copy()
    if rng.random() < share:
        length = 2.4 / math.sqrt(some.size) * math.exp(WALK_SPREAD * rng.standard_normal())
        proposed[some] += length * rng.standard_normal(some.size)
        return proposed, math.log(hyper_walk_share(proposed) / share), True
    proposed[some], log_q = rotated(rng, z[some], angle)
    return proposed, log_q + math.log((1 - hyper_walk_share(proposed)) / (1 - share)), False


def moved_alone(
    rng: np.random.Generator, hyper: np.ndarray, axis: int, scale: HyperScale, log_length: float
) -> tuple[np.ndarray, float, bool]:
    """Propose another h along one axis, from what is known of it or by a random walk.

    Also return the log ratio of the densities of both proposals, and whether it walks.
    """
    mean, sd = scale.mean[axis], math.sqrt(float(np.sum(scale.cholesky[axis] ** 2)))
    z, proposed = (hyper[axis : axis + 1] - mean) / sd, hyper.copy()
    share = hyper_walk_share(z)
    if rng.random() < share:
        length = math.exp(log_length + WALK_SPREAD * rng.standard_normal())
        proposed[axis] += length * rng.standard_normal()
        share_then = hyper_walk_share((proposed[axis : axis + 1] - mean) / sd)
        return proposed, math.log(share_then / share), True
    z_then, log_q = rotated(rng, z, math.pi / 2)
    proposed[axis] = mean + sd * float(z_then[0])
    return proposed, log_q + math.log((1 - hyper_walk_share(z_then)) / (1 - share)), False


def _some(rng: np.random.Generator, size: int) -> np.ndarray:
    """Choose which of the whitened hyperparameters move."""
    return np.arange(size) if size <= MOST_AT_ONCE else rng.permutation(size)[:MOST_AT_ONCE]
