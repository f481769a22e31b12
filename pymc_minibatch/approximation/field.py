"""Draws of hyperparameters by their marginal, and of the field given these.

The hyperparameters h of a model with effects have the density p̃(h) that Laplace's approximation
leaves when the field is integrated out, and the field is Gaussian given h, with the mean that third
order gives it:

    h ~ p̃(h) ∝ π̃(h, m(h)) / |L(h)|,    z | h ~ N(m(h), (L(h) L(h)ᵀ)⁻¹).

What p̃ leaves out (:mod:`.marginal`) is smooth, and taken for a sum of functions of each coordinate
of h and of products of two.

Design points of h are quasi-random normal points in the coordinates of :mod:`..latent.tails`, with
weights for what p̃ is beside that normal density.

References
----------
Rue, Martino and Chopin (2009), Approximate Bayesian inference for latent Gaussian models, for
design points. Owen (2013), Monte Carlo theory, methods and examples, chapters 8 and 9, for opposite
pairs and matched moments.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline, PchipInterpolator
from scipy.special import logsumexp, ndtri
from scipy.stats import qmc

from pymc_minibatch.approximation.design import (
    LOG_2PI,
    WeightedDesign,
    matched,
    scaled,
    split_scales,
    weighted_design,
    with_moments_of,
)
from pymc_minibatch.approximation.marginal import FIELD_ROWS, FieldCorrection, FieldIntegral
from pymc_minibatch.jit.cores import one_blas_thread
from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.layout import BorderAndBlocks
from pymc_minibatch.latent.sampler import LatentSampler

__all__ = ["Drawn", "FieldApproximation"]

MOST_DESIGN, LEAST_DESIGN = 2048, 16
"""At how many different design points of the hyperparameters draws are, at most and at least. With
512 the standard deviation of a skewed coefficient was off by 5 %, by another amount each time."""

DESIGN = 512
"""Design points at which the density is known at least, by interpolation if draws are at fewer."""

DESIGN_WORK = 3e7
"""Multiplications and entries of the field that all design points may take together (about 3 s)."""

WIDER = 1.25
"""Design points spread so many times wider than the Gaussian about the mode of h."""

FARTHEST_SDS = 10.0
"""A single hyperparameter has an even grid out to so many standard deviations."""

OUT = (0.8, 1.7, 2.5, 3.5, 4.5, 7.0, 10.0)

AXIS, SHORT_AXIS = (*(-each for each in OUT), *OUT), (-2.4, -1.2, 1.2, 2.4)
"""Where the density is evaluated on each axis, in standard deviations, if that is fast, and if it
is not. With many rows there are many groups or much to say of each: nearer to Gaussian."""

FAST_ROWS = 2e5
"""Evaluations of rows, times axes, up to which more points do not take a second."""

MOST_JOINT, MOST_JOINT_POINTS = 12, 1024
"""Most hyperparameters and border entries for which design points are of both, and most points."""

JOINT_ROWS, LEAST_JOINT_POINTS = 3e8, 256
"""Rows that they may evaluate together (about 2 s on two cores), and fewest points."""

CORRECTED_ROWS = 1e8
"""Rows that corrections of each draw's levels may evaluate (about 1 s)."""

NODE_SDS = 1.5
"""How far from the mode, on each axis of h, levels are integrated out by more and more nodes."""

PAIRED, MOST_PAIRED = 1.5, 5
"""Where two axes are moved together, and the most hyperparameters for which they are."""


class Design(NamedTuple):
    """Design points of the hyperparameters.

    Attributes
    ----------
    w : ndarray, shape (K, H)
        h in the coordinates without tails.
    log_density, weights : ndarray, shape (K,)
        The log-density of w up to a constant, and each point's share.
    """

    w: np.ndarray
    log_density: np.ndarray
    weights: np.ndarray


class Drawn(NamedTuple):
    """Draws.

    Attributes
    ----------
    points : ndarray, shape (S, D)
        Unconstrained points of the model.
    log_density : ndarray, shape (S,)
        That of the approximation there, in the model's coordinates.
    """

    points: np.ndarray
    log_density: np.ndarray


class FieldApproximation:
    """The latent field given hyperparameters, and these by their Laplace marginal.

    Parameters
    ----------
    sampler
        A model with effects, set up.

    Attributes
    ----------
    log_evidence : float
        Log of the integral of the posterior under the approximation, after the first draw.
    """

    def __init__(self, sampler: LatentSampler) -> None:
        reference = self.reference = sampler.reference
        self.tails = sampler.tails
        self._moments = self.tails.moments(reference.hyper, reference.hyper_cholesky)
        self._log_volume = float(np.log(np.diagonal(self._moments[1])).sum())
        self.surrogate, self.field = sampler.reference.surrogate, sampler.field
        layout = self.field.latent
        work = sampler.work + 50.0 * (layout.dense.size + layout.groups.size)
        n_design = np.clip(DESIGN_WORK / max(work, 1.0), LEAST_DESIGN, MOST_DESIGN)
        self.n_design = 2 ** int(np.log2(n_design))  # Sobol points are balanced then
        self.cost = sampler.tall.n_rows + work
        self.integral = None if self.reference.is_exact else FieldIntegral(sampler)
        self.log_evidence = 0.0
        self._design: Design | None = None
        self._joint: WeightedDesign | None = None
        self._is_looked_for = self.integral is not None

    @property
    def pareto_k(self) -> float | None:
        """k̂ of design points of h and the border; None if there are none."""
        return None if self._joint is None else self._joint.pareto_k

    @property
    def center(self) -> np.ndarray:
        """A point of the model in the middle of the approximation, shape (D,)."""
        return np.asarray(self.field.derivatives.coordinates.to_model(self.surrogate.center))

    def draw(self, rng: np.random.Generator, n_draws: int) -> Drawn:
        """Return draws."""
        with one_blas_thread():
            return self._drawn(rng, (n_draws + 1) // 2, n_draws)

    def _drawn(self, rng: np.random.Generator, n_pairs: int, n_draws: int) -> Drawn:
        layout, to_model = self.field.latent, self.field.derivatives.coordinates.to_model
        joint = self._jointly_designed(rng)
        if joint is not None:
            w, dense, log_density_w = self._joint_draws(rng, joint, n_pairs)
        else:
            w, log_density_w = self._hyper_draws(rng, n_pairs)
            dense = matched(rng.standard_normal((n_pairs, layout.dense.size)))
        seed = int(rng.integers(2**62))
        scale = root_mean_square(seed, layout.groups.shape, n_pairs)
        points = np.empty((n_draws, self.reference.surrogate.center.size))
        densities = np.empty(n_draws)
        noise, known, places = np.random.default_rng(seed), None, rng.permutation(n_draws)
        by_draw, correction = self._corrects_each(n_pairs), self._correction
        n_latent = layout.dense.size + layout.groups.size
        for k in range(n_pairs):
            if known is None or not np.array_equal(w[k], w[k - 1]):
                known = self.surrogate.factored_later(self.tails.to_hyper(w[k]))
                if by_draw and self.integral is not None:  # the border is the same, too
                    at_draw = self.integral.correction_at(known, dense[k])
                    correction = self._correction if at_draw is None else at_draw
            groups = noise.standard_normal(layout.groups.shape) / scale
            log_q = log_density_w[k] + known.log_determinant
            log_q -= 0.5 * (float(np.sum(groups**2)) + n_latent * LOG_2PI)
            if joint is None:
                log_q -= 0.5 * float(np.sum(dense[k] ** 2))
            else:
                log_q += 0.5 * layout.dense.size * LOG_2PI  # is in the density of both
            for sign in (1, -1):
                at = 2 * k + (sign < 0)
                if at == n_draws:
                    break
                border = dense[k] if joint is not None else sign * dense[k]
                eta, log_slope = _corrected(correction, (border, sign * groups))
                inside = known.frame.color(eta)
                points[places[at]] = to_model(inside)
                densities[places[at]] = log_q - log_slope
        return Drawn(points, densities)

    def _jointly_designed(self, rng: np.random.Generator) -> WeightedDesign | None:
        """Return design points of h and the whitened border, if they are few; looked for once."""
        if self._is_looked_for:
            assert self.integral is not None
            self._is_looked_for = False
            size = self.reference.hyper.size
            axes = NODE_SDS * np.eye(size)
            about_mode = np.concatenate([np.zeros((1, size)), axes, -axes])
            given, proper, _ = self._given(about_mode)
            near = [each for each, known in zip(given, proper, strict=True) if known]
            if len(near) > 1:
                self.integral.choose_nodes(near, self.cost)
            if proper[0]:
                self.integral.find_border(near[0], self.cost)
            self._joint = self._joint_design(rng, self.integral)
        return self._joint

    def _joint_design(
        self, rng: np.random.Generator, integral: FieldIntegral
    ) -> WeightedDesign | None:
        size = self.reference.hyper.size + self.field.latent.dense.size
        n = min(JOINT_ROWS / (integral.n_passes * self.cost), MOST_JOINT_POINTS)
        if not 0 < size <= MOST_JOINT or n < LEAST_JOINT_POINTS:
            return None
        if not integral.is_by_level(self.surrogate.factored_later(self.reference.hyper)):
            return None
        design = weighted_design(rng, self._joint_densities, size, int(n))
        if design is None or not design.is_even:
            return None
        self.log_evidence = design.log_evidence + self._log_volume
        return design

    def _joint_densities(self, at: np.ndarray) -> np.ndarray:
        """Return the log-density of whitened h and border, levels integrated out, shape (K,)."""
        n_hyper, found = self.reference.hyper.size, np.full(len(at), -np.inf)
        given, proper, slopes = self._given(at[:, :n_hyper])
        if self.integral is not None and proper.any():
            some = [each for each, known in zip(given, proper, strict=True) if known]
            found[proper] = self.integral.at_borders(some, at[proper, n_hyper:]) + slopes[proper]
        return found

    def _joint_draws(
        self, rng: np.random.Generator, joint: WeightedDesign, n: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return w, the whitened border, and their log-density, of n draws."""
        n_hyper = self.reference.hyper.size
        chosen = np.sort(resampled(rng, joint.weights, n))
        z = with_moments_of(joint.z[chosen], joint.moments)
        w = np.array([self._w(each) for each in z[:, :n_hyper]]).reshape(n, n_hyper)
        slopes = np.array([self.tails.log_slope(each) for each in w])
        log_density = joint.log_density[chosen] - slopes - self._log_volume
        return w, z[:, n_hyper:], log_density

    def _corrects_each(self, n: int) -> bool:
        """Whether levels of n draws are corrected given each one's own h and border."""
        if self._joint is None or self.integral is None or not self.reference.hyper.size:
            return False
        different = min(n, len(self._joint.z))
        return different * self.integral.n_passes * self.cost <= CORRECTED_ROWS

    @cached_property
    def _correction(self) -> FieldCorrection | None:
        """What the field is beyond Gaussian, at the mode of h."""
        given = self.surrogate.factored_later(self.reference.hyper)
        if self.integral is None:
            return None
        return self.integral.correction(given, self.cost, moves_border=self._joint is None)

    def _hyper_draws(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return w of n draws of h, equal ones in a row, and the log-density of h at each."""
        if not self.reference.hyper.size:
            self.log_evidence = self.surrogate.log_marginal(self.reference.hyper) + self._origin
            return np.zeros((n, 0)), np.zeros(n)
        if self._design is None:
            self._design = self._designed(rng)
        w, log_p, weights = self._design
        n_different = min(n, self.n_design)
        chosen = np.sort(resampled(rng, weights, n_different))
        chosen = chosen[np.arange(n) * n_different // n]
        slopes = np.array([self.tails.log_slope(each) for each in w])
        density = (log_p - slopes - self.log_evidence)[chosen]
        mean = weights @ w
        covariance = (w - mean).T @ ((w - mean) * weights[:, None])
        return with_moments_of(w[chosen], (mean, covariance)), density

    def _designed(self, rng: np.random.Generator) -> Design:
        """Spread design points and weigh them."""
        size, n_points = self.reference.hyper.size, max(self.n_design, DESIGN)
        near_enough = self.integral is None or self.integral.has_large_levels
        scales = split_scales(
            self._laplace_densities
            if near_enough  # for where design points are; weights are by exact densities
            else lambda at: self._exact_densities(at, rows=0.0)[0],
            size,
        )
        if size == 1:
            v = np.linspace(-FARTHEST_SDS, FARTHEST_SDS, n_points)[:, None]
            log_g = np.full(len(v), -math.log(2.0 * FARTHEST_SDS))
        else:
            v = ndtri(qmc.Sobol(size, rng=rng).random(n_points)) * WIDER
            log_g = -0.5 * np.sum((v / WIDER) ** 2, axis=1)
            log_g -= size * (0.5 * LOG_2PI + math.log(WIDER))
        log_g -= np.log(np.where(v < 0, *scales)).sum(axis=1)
        w = np.array([self._w(z) for z in scaled(v, scales)])
        log_p = self._log_densities(v, scales)
        log_weights = log_p - log_g
        weights = np.exp(log_weights - logsumexp(log_weights))
        log_mean = logsumexp(log_weights) - math.log(len(w))
        self.log_evidence = float(log_mean + self._log_volume)
        return Design(w, log_p, weights)

    def _log_densities(self, v: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Return the log-density at whitened points up to a constant, shape (K,).

        What it has beyond Laplace's is known on the axes and at few points between them. So is all
        of it if Laplace's approximation takes long.
        """
        exact, size = self.n_design >= DESIGN, v.shape[1]
        z, whole = scaled(v, scales), -0.5 * np.sum(v**2, axis=1)
        if exact:
            whole = self._laplace_densities(z)
            if self.integral is None:
                return whole + self._origin
        is_fast = self.cost * size < FAST_ROWS
        places = _points_of_axes(size, AXIS if is_fast else SHORT_AXIS)
        at = scaled(places, scales)
        found, laplace = self._exact_densities(at)
        with np.errstate(invalid="ignore"):
            found = found - (laplace if exact else -0.5 * np.sum(places**2, axis=1))
        return np.asarray(whole + _by_axes(at, found, z))

    def _exact_densities(
        self, at: np.ndarray, rows: float = FIELD_ROWS
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-density with the field integrated out, and Laplace's, both (K,)."""
        given, proper, slopes = self._given(at)
        found, laplace = np.full((2, len(at)), -np.inf)
        laplace[proper] = self._laplace_densities(at[proper])
        if self.integral is None or not proper.any():
            return laplace.copy(), laplace
        some = [each for each, known in zip(given, proper, strict=True) if known]
        seed = np.random.default_rng(6)  # the same points of the border each time
        found[proper] = self.integral.over_field(seed, some, rows / self.cost) + slopes[proper]
        return found, laplace

    def _laplace_densities(self, at: np.ndarray) -> np.ndarray:
        """Return Laplace's log-density at whitened h, shape (K,)."""
        return np.array([self._log_density(self._w(each)) for each in at])

    def _given(self, at: np.ndarray) -> tuple[list[Conditional], np.ndarray, np.ndarray]:
        """Return Gaussians of the field given whitened h, which are proper, and log-slopes of h."""
        w = [self._w(each) for each in at]
        given = [self.surrogate.factored_later(self.tails.to_hyper(each)) for each in w]
        proper = np.array([each.is_proper for each in given], dtype=bool)
        return given, proper, np.array([self.tails.log_slope(each) for each in w])

    @property
    def _origin(self) -> float:
        """The log-likelihood about which the surrogate counts."""
        return float(self.surrogate.expansion.value)

    def _w(self, z: np.ndarray) -> np.ndarray:
        mode, cholesky = self._moments
        return np.asarray(mode + cholesky @ z)

    def log_ratios(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Return log π − log q at n draws of h and the border, up to a constant.

        The levels of the groups are the same in all of them, averaged over an opposite pair: what
        each of many levels adds to a ratio would hide what h and the border do.
        """
        n_pairs = max(n, 2)
        w, log_density_w = self._hyper_draws(rng, n_pairs)
        layout, ratios = self.field.latent, np.zeros(n_pairs)
        dense, groups = rng.standard_normal((n_pairs, layout.dense.size)), layout.noise(rng)[1]
        for k in range(n_pairs):
            given = self.surrogate.factored_later(self.tails.to_hyper(w[k]))
            log_q = log_density_w[k] + given.log_determinant - 0.5 * float(np.sum(dense[k] ** 2))
            both = [
                _corrected(self._correction, (dense[k], sign * groups))[0] for sign in (1.0, -1.0)
            ]
            points = [given.frame.color(eta) for eta in both]
            ratios[k] = np.mean(self._log_posteriors(points)) - log_q
        return ratios

    def _log_posteriors(self, points: Sequence[np.ndarray]) -> list[float]:
        """Return the log posterior at points of the field."""
        if self.integral is None:
            return [self.surrogate.log_density(x, self.surrogate.read(x)) for x in points]
        return self.integral.log_densities(points)

    def _log_density(self, w: np.ndarray) -> float:
        """Return that of w under Laplace's approximation, up to a constant."""
        value = self.surrogate.log_marginal(self.tails.to_hyper(w)) + self.tails.log_slope(w)
        return value if np.isfinite(value) else -np.inf


def root_mean_square(seed: int, shape: tuple[int, ...], n: int) -> np.ndarray:
    """Return that of n arrays of noise, which are drawn again later: together they take memory."""
    rng, squares = np.random.default_rng(seed), np.zeros(shape)
    for _ in range(n):
        squares += rng.standard_normal(shape) ** 2
    return np.sqrt(squares / n)


def _points_of_axes(size: int, axis: Sequence[float]) -> np.ndarray:
    """Return the origin, points on each axis, and points between two axes, shape (K, H)."""
    unit = np.eye(size)
    points = [np.zeros(size)]
    points += [each * unit[i] for i in range(size) for each in axis if each]
    if size <= MOST_PAIRED:
        points += [
            PAIRED * (unit[i] + sign * unit[j])
            for i in range(size)
            for j in range(i)
            for sign in (1.0, -1.0)
        ]
    return np.array(points)


def _by_axes(at: np.ndarray, values: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Interpolate along each axis, and take what two axes have together for their product.

    Parameters
    ----------
    at : ndarray, shape (K, H)
        The origin and points on the axes and between two of them.
    values : ndarray, shape (K,)
        There; infinite where not known.
    z : ndarray, shape (n, H)
        Where the function is asked for.
    """
    origin, moves = values[0], np.count_nonzero(at, axis=1)
    if not np.isfinite(origin):
        raise np.linalg.LinAlgError("The density of the hyperparameters is not known.")
    away = np.where(np.isfinite(values), values, np.nan) - origin
    size = z.shape[1]
    curves: list[Callable[[np.ndarray], np.ndarray]] = []
    for i in range(size):
        own = np.flatnonzero((moves == 0) | ((moves == 1) & (at[:, i] != 0)))
        own = own[np.isfinite(away[own])]
        own = own[np.argsort(at[own, i])]
        curves.append(_curve(at[own, i], away[own]))
    found = origin + sum(curve(z[:, i]) for i, curve in enumerate(curves))
    for i in range(size):
        for j in range(i):
            both = (moves == 2) & (at[:, i] != 0) & (at[:, j] != 0) & np.isfinite(away)
            if both.any():
                joint = away[both] - curves[i](at[both, i]) - curves[j](at[both, j])
                found = found + np.mean(joint / (at[both, i] * at[both, j])) * z[:, i] * z[:, j]
    return np.asarray(found)


def _curve(at: np.ndarray, values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Interpolate by cubes, and by lines beyond the ends."""
    if at.size < 2:
        return np.zeros_like
    inside = CubicSpline(at, values) if at.size > 3 else PchipInterpolator(at, values)
    slope = inside.derivative()

    def curve(x: np.ndarray) -> np.ndarray:
        near = np.clip(x, at[0], at[-1])
        return np.asarray(inside(near) + slope(near) * (x - near))

    return curve


def _corrected(
    correction: FieldCorrection | None, eta: BorderAndBlocks
) -> tuple[BorderAndBlocks, float]:
    """Return the whitened field that a standard normal one stands for, and the log-slope."""
    return (eta, 0.0) if correction is None else correction.apply(eta)


def resampled(
    rng: np.random.Generator, weights: Sequence[float] | np.ndarray, n: int
) -> np.ndarray:
    """Return n numbers drawn by weights, each as often as its weight says or once more."""
    places = (np.arange(n) + rng.random()) / n
    return np.minimum(np.searchsorted(np.cumsum(weights), places), len(weights) - 1)
