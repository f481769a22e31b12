"""Weighted design points of a density of few coordinates, whatever its shape.

Points are quasi-random, normal on each side of each axis with a width of its own (split normal), as
wide as the density is found to be along that axis, and a little wider. Weights π/g take them for
the density (importance sampling), smoothed by Pareto's law. If they are uneven, points are spread
once more with the mean and covariance that the weights give (adaptive importance sampling), and all
are weighed by the mixture that they come from. Of few coordinates, some are spread several times
wider, so that mass far from the mode is found (defensive importance sampling).

If few points can be afforded, they are opposite pairs from the normal approximation with its own
mean and covariance. Then noise comes only from what weights differ by (a control variate).

References
----------
Wallis (2014), The two-piece normal, binormal, or double Gaussian distribution. Vehtari, Simpson,
Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling. Cappé, Guillin, Marin and Robert
(2004), Population Monte Carlo. Cornuet, Marin, Mira and Robert (2012), Adaptive multiple importance
sampling. Hesterberg (1995), Weighted average importance sampling and defensive mixtures.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from arviz_stats.base.array import array_stats
from scipy.special import logsumexp, ndtri
from scipy.stats import qmc

__all__ = [
    "FEW_POINTS",
    "FINITE_K",
    "LOG_2PI",
    "MOST_FAR",
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

FAR, FAR_SHARE, MOST_FAR = 4.0, 0.25, 5
"""How much wider the points that look for mass far away are spread, how many there are beside each
other one, and the most coordinates in which they would find any."""

MOST_SPREADS = 3
"""How often points are spread at most."""

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

FINITE_K = 0.5
"""Pareto's k̂ from which weights have no finite variance: points are spread again."""

BAD_K, WORST_K = 0.7, 1.0
"""Pareto's k̂ from which weights are not used, and that if some points have looked far, since what
they have found is better known roughly than not at all; the check says so then."""


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
    is_even : bool
        Whether weights are even enough to be of use.
    """

    z: np.ndarray
    log_density: np.ndarray
    weights: np.ndarray
    log_evidence: float
    pareto_k: float
    are_dense: bool
    is_even: bool = True

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean, shape (H,), and covariance, shape (H, H)."""
        mean = self.weights @ self.z
        away = self.z - mean
        return mean, away.T @ (away * self.weights[:, None])


class _Spread(NamedTuple):
    """A split normal density from which points are spread."""

    mean: np.ndarray
    root: np.ndarray
    scales: np.ndarray
    width: float
    n: int

    def points(self, rng: np.random.Generator) -> np.ndarray:
        """Return quasi-random points, shape (n, H)."""
        v = ndtri(qmc.Sobol(self.mean.size, rng=rng).random(self.n)) * self.width
        return np.asarray(self.mean + scaled(v, self.scales) @ self.root.T)

    def log_density(self, z: np.ndarray) -> np.ndarray:
        """Return the log-density at points (K, H), times how many come from here."""
        u = np.linalg.solve(self.root, (z - self.mean).T).T
        widths = self.width * np.where(u < 0, *self.scales)
        log_g = -0.5 * np.sum((u / widths) ** 2, axis=1) - np.log(widths).sum(axis=1)
        constant = self.mean.size * 0.5 * LOG_2PI + np.log(np.diagonal(self.root)).sum()
        return np.asarray(log_g - constant + math.log(self.n))


def weighted_design(
    rng: np.random.Generator,
    log_densities: Densities,
    size: int,
    n: int,
    *,
    looks_far: bool = False,
) -> WeightedDesign | None:
    """Spread points and weigh them; None if there are too few.

    Parameters
    ----------
    rng
        Chooses the points.
    log_densities
        Of points in coordinates in which the density is about standard normal.
    size
        H.
    n
        How many points can be afforded each time that points are spread.
    looks_far
        Whether some of them look for mass far away, which takes densities that are right there,
        and few coordinates.
    """
    if n < max(FEW_POINTS, POINTS_BY_DIMENSION * size):
        return _of_few(rng, log_densities, size, n)
    n = 2 ** int(math.log2(n))  # Sobol points are balanced then
    least = max(LEAST_EFFECTIVE, EFFECTIVE_BY_DIMENSION * size)
    spreads: list[_Spread] = []
    z, log_p = np.zeros((0, size)), np.zeros(0)
    moments = np.zeros(size), np.eye(size)
    for _ in range(MOST_SPREADS):
        added = _spreads_about(moments, log_densities, n, looks_far=looks_far)
        points = np.concatenate([each.points(rng) for each in added])
        spreads += added
        z, log_p = np.concatenate([z, points]), np.concatenate([log_p, log_densities(points)])
        log_g = logsumexp([each.log_density(z) for each in spreads], axis=0) - math.log(len(z))
        found = _weighed(z, log_p, log_g, are_dense=True)
        effective = _effective(found)
        if effective <= min(least, 4.0 * size):
            break
        if effective >= EVEN * n and found.pareto_k < FINITE_K:
            break
        moments = found.moments
    worst = WORST_K if looks_far else BAD_K
    return found._replace(is_even=effective >= least and found.pareto_k < worst)


def _spreads_about(
    moments: tuple[np.ndarray, np.ndarray], log_densities: Densities, n: int, *, looks_far: bool
) -> list[_Spread]:
    """Return where n points are to be spread, for a density with about this mean and covariance."""
    mean, root = moments[0], np.linalg.cholesky(moments[1])
    size = mean.size
    scales = split_scales(lambda at: log_densities(mean + at @ root.T), size)
    width = 1.0 + WIDER / math.sqrt(size)
    near = _Spread(mean, root, scales, width, n)
    return [near, near._replace(width=FAR * width, n=int(FAR_SHARE * n))] if looks_far else [near]


def _of_few(
    rng: np.random.Generator, log_densities: Densities, size: int, n: int
) -> WeightedDesign | None:
    """Return opposite pairs; None if they are too few."""
    if n < FEWEST_POINTS:
        return None
    z = opposite(matched(rng.standard_normal((n // 2, size))))
    log_g = -0.5 * np.sum(z**2, axis=1) - 0.5 * size * LOG_2PI
    found = _weighed(z, log_densities(z), log_g, are_dense=False)
    is_even = float(np.std(found.weights)) * len(z) < MOST_WEIGHT_SD
    return found._replace(is_even=is_even)


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
