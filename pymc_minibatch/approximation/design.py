"""Weighted design points of a density of few coordinates, whatever its shape.

Points are quasi-random, normal on each side of each axis with a width of its own (split normal), as
wide as the density is found to be along that axis, and a little wider. Weights π/g take them for
the density (importance sampling), smoothed by Pareto's law. If they are uneven, points are spread
once more with the mean and covariance that the weights give (adaptive importance sampling).

If few points can be afforded, they are opposite pairs from the normal approximation with its own
mean and covariance. Then noise comes only from what weights differ by (a control variate).

References
----------
Wallis (2014), The two-piece normal, binormal, or double Gaussian distribution. Vehtari, Simpson,
Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling. Cappé, Guillin, Marin and Robert
(2004), Population Monte Carlo.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from arviz_stats.base.array import array_stats
from scipy.special import logsumexp, ndtri
from scipy.stats import qmc

__all__ = [
    "LOG_2PI",
    "Densities",
    "WeightedDesign",
    "matched",
    "opposite",
    "scaled",
    "split_scales",
    "weighted_design",
    "with_moments_of",
]

type Densities = Callable[[np.ndarray], np.ndarray]
"""Log-densities of points (K, H), up to a constant; shape (K,)."""

LOG_2PI = math.log(2 * math.pi)

WIDER = 0.35
"""Points are spread 1 + WIDER / √H times wider than the density: 1.25 for two coordinates."""

FALL, LEAST_SCALE = 3.0, 0.2
"""By how much the log density falls where its width is measured, and the narrowest that counts."""

FEW_POINTS, FEWEST_POINTS = 256, 40
"""Fewer points are spread as opposite pairs from the normal approximation, and none if k̂ could not
be found of them."""

POINTS_BY_DIMENSION = 16
"""So are fewer than so many for each coordinate, of which their widths alone take four."""

EVEN = 0.5
"""Share of the points that weights are worth, from which no second spread is needed."""

LEAST_EFFECTIVE, EFFECTIVE_BY_DIMENSION = 60.0, 3.0
"""How many points weights must be worth at least, and for each coordinate; otherwise their mean and
covariance are noise."""

MOST_WEIGHT_SD = 0.35
"""The largest relative standard deviation of the weights of few points: of 64, it makes a standard
error of their mean of 0.04."""

BAD_K = 0.7
"""Pareto's k̂ from which weights are not used."""


class WeightedDesign(NamedTuple):
    """Points that stand for a density by their weights.

    Attributes
    ----------
    z : ndarray, shape (K, H)
        Points.
    log_density, weights : ndarray, shape (K,)
        The log-density there, normalized by its estimated integral, and shares.
    log_evidence : float
        Log of that integral.
    pareto_k : float
        k̂ of the weights.
    are_dense : bool
        Whether there are enough points to draw from them by weight; otherwise only their mean and
        covariance are of use.
    """

    z: np.ndarray
    log_density: np.ndarray
    weights: np.ndarray
    log_evidence: float
    pareto_k: float
    are_dense: bool

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean, shape (H,), and covariance, shape (H, H)."""
        mean = self.weights @ self.z
        away = self.z - mean
        return mean, away.T @ (away * self.weights[:, None])


def weighted_design(
    rng: np.random.Generator, log_densities: Densities, size: int, n: int
) -> WeightedDesign | None:
    """Spread points and weigh them; None if the weights are too uneven to be of use.

    Parameters
    ----------
    rng
        Chooses the points.
    log_densities
        Of points in coordinates in which the density is about standard normal.
    size
        H.
    n
        How many points can be afforded.
    """
    if n < max(FEW_POINTS, POINTS_BY_DIMENSION * size):
        return _of_few(rng, log_densities, size, n)
    n = 2 ** int(math.log2(n))  # Sobol points are balanced then
    mean, root = np.zeros(size), np.eye(size)
    found = _of_many(rng, log_densities, (mean, root), n)
    least = max(LEAST_EFFECTIVE, EFFECTIVE_BY_DIMENSION * size)
    if _effective(found) < EVEN * n and _effective(found) > min(least, 4.0 * size):
        mean, covariance = found.moments
        again = _of_many(rng, log_densities, (mean, np.linalg.cholesky(covariance)), n)
        found = max(found, again, key=_effective)
    return found if _effective(found) >= least and found.pareto_k < BAD_K else None


def _of_many(
    rng: np.random.Generator,
    log_densities: Densities,
    moments: tuple[np.ndarray, np.ndarray],
    n: int,
) -> WeightedDesign:
    mean, root = moments
    size = mean.size
    scales = split_scales(lambda at: log_densities(mean + at @ root.T), size)
    wider = 1.0 + WIDER / math.sqrt(size)
    v = ndtri(qmc.Sobol(size, rng=rng).random(n)) * wider
    log_g = -0.5 * np.sum((v / wider) ** 2, axis=1) - size * (0.5 * LOG_2PI + math.log(wider))
    log_g -= np.log(np.where(v < 0, *scales)).sum(axis=1)
    log_g -= np.log(np.diagonal(root)).sum()
    z = mean + scaled(v, scales) @ root.T
    return _weighed(z, log_densities(z), log_g, are_dense=True)


def _of_few(
    rng: np.random.Generator, log_densities: Densities, size: int, n: int
) -> WeightedDesign | None:
    """Return opposite pairs, if their weights are even."""
    if n < FEWEST_POINTS:
        return None
    z = opposite(matched(rng.standard_normal((n // 2, size))))
    log_g = -0.5 * np.sum(z**2, axis=1) - 0.5 * size * LOG_2PI
    found = _weighed(z, log_densities(z), log_g, are_dense=False)
    is_even = float(np.std(found.weights)) * len(z) < MOST_WEIGHT_SD
    return found if is_even else None


def _weighed(
    z: np.ndarray, log_p: np.ndarray, log_g: np.ndarray, *, are_dense: bool
) -> WeightedDesign:
    log_p = np.where(np.isfinite(log_p), log_p, -np.inf)
    ratios = log_p - log_g
    if not np.isfinite(ratios).any():
        nothing = np.full(len(z), 1.0 / len(z))
        return WeightedDesign(z, log_p, nothing, -np.inf, np.inf, are_dense)
    log_evidence = float(logsumexp(ratios) - math.log(len(z)))
    pareto_k = 0.0
    if np.ptp(ratios[np.isfinite(ratios)]) > 1e-9:
        floor = ratios[np.isfinite(ratios)].min() - 1.0
        smooth, k = array_stats.psislw(-np.maximum(ratios, floor))
        pareto_k = float(k)
        if are_dense:
            ratios = np.where(np.isfinite(ratios), np.asarray(smooth), -np.inf)
    weights = np.exp(ratios - logsumexp(ratios))
    return WeightedDesign(z, log_p - log_evidence, weights, log_evidence, pareto_k, are_dense)


def _effective(design: WeightedDesign) -> float:
    return 1.0 / float(np.sum(design.weights**2)) if math.isfinite(design.log_evidence) else 0.0


def split_scales(log_densities: Densities, size: int) -> np.ndarray:
    """Return how much wider a density is than the standard normal one, (2, H): left and right.

    The density falls by 3 at √6 standard deviations of a Gaussian.
    """
    scales, reach = np.ones((2, size)), math.sqrt(2.0 * FALL)
    places = [(side, i) for i in range(size) for side in (0, 1)]
    unit = np.eye(size)
    inner = dict.fromkeys(places, (0.0, 0.0))
    for times in (1.0, 2.0, 4.0, 8.0):
        at = [unit[i] * (times * reach * (1, -1)[side == 0]) for side, i in places]
        values = log_densities(np.array([np.zeros(size), *at]))
        peak, left = values[0], []
        for place, value in zip(places, values[1:], strict=True):
            fall = peak - value
            near, there = inner[place]
            if not fall < FALL:  # also where nothing is known
                share = (FALL - there) / (fall - there) if np.isfinite(fall) else 0.5
                scales[place] = max(near + share * (times - near), LEAST_SCALE)
                if near == 0.0:  # a parabola inside
                    scales[place] = max(math.sqrt(share), LEAST_SCALE)
            else:
                inner[place], scales[place] = (times, fall), times
                left.append(place)
        places = left
        if not places:
            break
    return scales


def scaled(v: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return points with their negative coordinates and the others times a scale."""
    return np.asarray(v * np.where(v < 0, scales[0], scales[1]))


def opposite(noise: np.ndarray) -> np.ndarray:
    """Return each row and its opposite, one after the other."""
    return np.stack([noise, -noise], axis=1).reshape(-1, noise.shape[1])


def matched(noise: np.ndarray) -> np.ndarray:
    """Give the rows and their opposites unit covariance, or unit variances where they are few."""
    n, size = noise.shape
    if size and n >= 4 * size:
        root = np.linalg.cholesky(noise.T @ noise / n)
        return np.linalg.solve(root, noise.T).T
    return noise / np.maximum(np.sqrt(np.mean(noise**2, axis=0)), np.finfo(float).tiny)


def with_moments_of(points: np.ndarray, moments: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return points, moved a little to have a mean and a covariance."""
    mean, covariance = moments
    moved = points - points.mean(axis=0)
    try:
        root = np.linalg.cholesky(covariance)
        mine = np.linalg.cholesky(moved.T @ moved / len(points))
    except np.linalg.LinAlgError:  # fewer points than dimensions
        return points
    return np.asarray(mean + np.linalg.solve(mine, moved.T).T @ root.T)
