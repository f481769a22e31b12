"""The mean of a border with many entries, from slopes of all rows.

Laplace's approximation puts the border x of the whitened field at its mode. If each of many groups
is skewed a little, as those with few events are, they move the border together by standard
deviations. Stein's identity says how far: over the posterior,

    E[∇ log π(x, η)] = 0.

Given h, x is taken to be standard normal about its mean b, and each group to be at the nodes of its
quadrature given b. In whitened coordinates the curvature is about one, so that b is moved by the
mean slope until this is nil. The expectation is over 16 points: x is in opposite pairs, and each
group visits every node as often as its share says, in random order. The cost is that of a few dozen
slopes, however many entries there are.

References
----------
Opper and Archambeau (2009), The variational Gaussian approximation revisited, for the identity.
Owen (1998), Latin supercube sampling for very high-dimensional simulations, for points in which
each group is stratified.
"""

from collections.abc import Callable, Iterator

import numpy as np

from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.joint_frame import JointFrame

__all__ = ["SLOPES", "mean_of_border"]

POINTS, STEPS = 16, 4
"""Points of an expectation, and expectations. The second step leads to the mean, but for noise of
0.03 standard deviations; the later ones are averaged."""

SLOPES = POINTS * STEPS
"""How often the slope of all rows is taken."""

MOST_SLOPE = 0.1
"""Root mean square of the last mean slope, at most, in standard deviations."""

MOST_OF_ENTRY = 0.5
"""The last mean slope of an entry that has found its mean; others stay where they were."""


def mean_of_border(
    given: Conditional,
    shares: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    slope: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Return the mean of the whitened border given h, shape (p,); zeros if it is not found.

    Parameters
    ----------
    given
        The Gaussian of the field given h.
    shares
        ``border -> (shares, nodes)``: of the nodes of each group, shapes (G, J) and (J, q).
    slope
        ``point -> gradient`` of the log posterior, in the coordinates of the field.
    """
    rng, frame = np.random.default_rng(11), JointFrame.of_field(given)
    border, found = np.zeros(given.layout.dense.size), []
    for _ in range(STEPS):
        half = rng.standard_normal((POINTS // 2, border.size))
        mean_slope = np.zeros(border.size)
        places = _stratified(rng, *shares(border))
        for x, groups in zip(np.concatenate([half, -half]), places, strict=True):
            gradient = frame.slope(slope(given.frame.color((border + x, groups))))
            mean_slope += (gradient[: border.size] + x) / POINTS
        border = border + mean_slope
        found.append(border)
    if not np.sqrt(np.mean(mean_slope**2)) < MOST_SLOPE:
        return np.zeros(border.size)
    return np.where(np.abs(mean_slope) < MOST_OF_ENTRY, np.mean(found[1:], axis=0), 0.0)


def _stratified(
    rng: np.random.Generator, shares: np.ndarray, nodes: np.ndarray
) -> Iterator[np.ndarray]:
    """Give points (G, q), of each group every node as often as its share says."""
    order = rng.permuted(np.tile(np.arange(POINTS), (len(shares), 1)), axis=1)
    within, shares_up_to = rng.random(len(shares)), np.cumsum(shares, axis=1)[:, :-1]
    for stratum in order.T:
        place = (stratum + within) / POINTS
        yield nodes[(shares_up_to < place[:, None]).sum(axis=1)]
