"""Draws from the approximation that set-up has made.

A model without effects is Gaussian about its mode. Of one with effects the hyperparameters h have
the density p̃(h) that Laplace's approximation leaves when the field is integrated out, and the field
is Gaussian given h, with the mean that third order gives it:

    h ~ p̃(h) ∝ π̃(h, m(h)) / |L(h)|,    z | h ~ N(m(h), (L(h) L(h)ᵀ)⁻¹).

Laplace's approximation looks at one point of the field. Where groups are many and small its error
adds up to standard deviations of h. Let η be the whitened field and ℓ(h, η) = log π − log q. Then

    log p(h) = log p̃(h) + log E exp ℓ ≈ log p̃(h) + E ℓ + ½ Var ℓ,

to the second cumulant, over the same opposite pairs of η for all h, so that their noise is common;
the difference, which is smooth, is a polynomial of second order through few h.

Design points of h are quasi-random normal points in the coordinates of :mod:`..latent.tails`, with
weights for what p̃ is beside that normal density. Draws come in opposite pairs, and have mean 0 and
variance 1 in every whitened coordinate, so that moments have hardly any Monte Carlo error.

References
----------
Rue, Martino and Chopin (2009), Approximate Bayesian inference for latent Gaussian models, for
design points. Pitt, Silva, Giordani and
Kohn (2012), On some properties of Markov chain Monte Carlo simulation methods based on the particle
filter, for cumulants of an estimated likelihood. Owen (2013), Monte Carlo theory, methods and
examples, chapters 8 and 9, for opposite pairs and matched moments.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import logsumexp, ndtri
from scipy.stats import qmc

from pymc_minibatch.jit.cores import one_blas_thread
from pymc_minibatch.latent.layout import BorderAndBlocks
from pymc_minibatch.latent.modes import ModeSampler
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.latent.whole import WholeDecisions
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.rows import RowFunctions

__all__ = [
    "Approximation",
    "Drawn",
    "FieldApproximation",
    "GaussianApproximation",
    "Mixture",
    "approximation_of",
]

MOST_DESIGN, LEAST_DESIGN = 512, 16
"""Design points of the hyperparameters."""

DESIGN_WORK = 3e7
"""Multiplications and entries of the field that all design points may take together (about 3 s)."""

WIDER = 1.15
"""Design points spread so many times wider than the Gaussian about the mode of h."""

FIELD_ROWS, LEAST_PAIRS, MOST_PAIRS = 2e8, 4, 32
"""Rows that may be evaluated for the marginal of h beyond Laplace (about 1.5 s), and opposite pairs
of the field over which it is averaged. With 16 pairs and 2,000 groups of ten rows the mean of a
standard deviation was off by 0.01 of its own, where Laplace's was by 1.6."""

MOST_TERMS = 70
"""Terms of the polynomial; with more there are no products of different hyperparameters."""


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


class Approximation(Protocol):
    """What draws are made from."""

    def draw(self, rng: np.random.Generator, n_draws: int) -> Drawn:
        """Return draws."""


class GaussianApproximation:
    """The Gaussian about the mode of a model without effects.

    Parameters
    ----------
    control
        The expansion about it.
    start : ndarray, shape (D,)
        A point of the model.
    """

    def __init__(self, control: ControlVariate, start: np.ndarray) -> None:
        precision = control.gaussian.precision_at(control.temperature)
        self.mean, self.start = control.gaussian.center, start
        self.factor = np.linalg.cholesky(precision)

    def draw(self, rng: np.random.Generator, n_draws: int) -> Drawn:
        """Return draws."""
        noise = _matched(rng.standard_normal(((n_draws + 1) // 2, self.mean.size)))
        eta = rng.permutation(_paired(noise)[:n_draws])
        points = self.mean + np.linalg.solve(self.factor.T, eta.T).T
        constant = np.log(np.diagonal(self.factor)).sum() - 0.5 * self.mean.size * _LOG_2PI
        return Drawn(points, constant - 0.5 * np.sum(eta**2, axis=1))


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
        self.reference, self.tails = sampler.reference, sampler.tails
        self.surrogate, self.field = sampler.reference.surrogate, sampler.field
        layout = self.field.latent
        work = sampler.work + 50.0 * (layout.dense.size + layout.groups.size)
        self.log_posterior = _log_posterior(sampler)
        n_design = np.clip(DESIGN_WORK / work, LEAST_DESIGN, MOST_DESIGN)
        self.n_design = 2 ** int(np.log2(n_design))  # Sobol points are balanced then
        self.cost = sampler.tall.n_rows + work
        self.log_evidence = 0.0

    def draw(self, rng: np.random.Generator, n_draws: int) -> Drawn:
        """Return draws."""
        with one_blas_thread():
            return self._drawn(rng, (n_draws + 1) // 2, n_draws)

    def _drawn(self, rng: np.random.Generator, n_pairs: int, n_draws: int) -> Drawn:
        w, log_density_w = self._hyper_draws(rng, n_pairs)
        layout, to_model = self.field.latent, self.field.derivatives.coordinates.to_model
        dense = _matched(rng.standard_normal((n_pairs, layout.dense.size)))
        seed = int(rng.integers(2**62))
        scale = _root_mean_square(seed, layout.groups.shape, n_pairs)
        points = np.empty((n_draws, self.reference.surrogate.center.size))
        densities = np.empty(n_draws)
        noise, known, places = np.random.default_rng(seed), None, rng.permutation(n_draws)
        n_latent = layout.dense.size + layout.groups.size
        for k in range(n_pairs):
            if known is None or not np.array_equal(w[k], w[k - 1]):
                known = self.surrogate.factored_later(self.tails.to_hyper(w[k]))
            groups = noise.standard_normal(layout.groups.shape) / scale
            squares = float(np.sum(dense[k] ** 2) + np.sum(groups**2))
            log_q = log_density_w[k] + known.log_determinant
            log_q -= 0.5 * (squares + n_latent * _LOG_2PI)
            for sign in (1, -1):
                at = 2 * k + (sign < 0)
                if at == n_draws:
                    break
                inside = known.frame.color((sign * dense[k], sign * groups))
                points[places[at]], densities[places[at]] = to_model(inside), log_q
        return Drawn(points, densities)

    def _hyper_draws(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return w of n draws of h, equal ones in a row, and the log-density of h at each."""
        size, mean, root = self.reference.hyper.size, self.reference.hyper, self._root
        if not size:
            self.log_evidence = self.surrogate.log_marginal(mean)
            return np.zeros((n, 0)), np.zeros(n)
        z = ndtri(qmc.Sobol(size, rng=rng).random(self.n_design)) * WIDER
        w = mean + z @ root.T
        log_p = np.array([self._log_density(each) for each in w])
        log_p += self._beyond_laplace(rng, w, z, log_p)
        log_g = -0.5 * np.sum((z / WIDER) ** 2, axis=1)
        log_weights = log_p - log_g
        weights = np.exp(log_weights - logsumexp(log_weights))
        constant = np.log(np.diagonal(root)).sum() + size * (0.5 * _LOG_2PI + math.log(WIDER))
        self.log_evidence = float(logsumexp(log_weights) - math.log(len(w)) + constant)
        chosen = np.sort(_resampled(rng, weights, n))
        slopes = np.array([self.tails.log_slope(each) for each in w])
        density = (log_p - slopes - self.log_evidence)[chosen]
        return _with_moments_of(w, weights, chosen), density

    def _beyond_laplace(
        self, rng: np.random.Generator, w: np.ndarray, z: np.ndarray, log_p: np.ndarray
    ) -> np.ndarray:
        """Return what the field adds to Laplace's log-density at design points, shape (K,)."""
        if self.reference.is_exact:
            return np.zeros(len(w))
        basis = _polynomial(z)
        order = np.argsort(np.sum(z**2, axis=1), kind="stable")
        finite = order[np.isfinite(log_p[order])]
        # Points all over the bulk, and not only the nearest ones.
        n_fitted = min(2 * basis.shape[1] + 3, finite.size)
        fitted = finite[np.linspace(0, 0.95 * (finite.size - 1), n_fitted).astype(int)]
        n_pairs = FIELD_ROWS / (2 * n_fitted * self.cost)
        layout = self.field.latent
        noise = [layout.noise(rng) for _ in range(int(np.clip(n_pairs, LEAST_PAIRS, MOST_PAIRS)))]
        added = np.array([self._averaged(w[k], noise) for k in fitted]) - log_p[fitted]
        known = np.isfinite(added)
        if known.sum() < basis.shape[1]:
            return np.zeros(len(w))
        terms = basis[fitted][known]
        return np.asarray(basis @ np.linalg.lstsq(terms, added[known], rcond=None)[0])

    def _averaged(self, w: np.ndarray, noise: Sequence[BorderAndBlocks]) -> float:
        """Return the log-density of w to the second cumulant over points of the field."""
        given = self.surrogate.factored_later(self.tails.to_hyper(w))
        if not given.is_proper:
            return -math.inf
        values = []
        for dense, groups in noise:
            squares = float(np.sum(dense**2) + np.sum(groups**2))
            for sign in (1.0, -1.0):
                point = given.frame.color((sign * dense, sign * groups))
                values.append(self.log_posterior(point) + 0.5 * squares)
        mean, variance = np.mean(values), np.var(values, ddof=1)
        return float(mean + 0.5 * variance - given.log_determinant + self.tails.log_slope(w))

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
            both = [given.frame.color((dense[k], sign * groups)) for sign in (1.0, -1.0)]
            ratios[k] = np.mean([self.log_posterior(point) for point in both]) - log_q
        return ratios

    @property
    def _root(self) -> np.ndarray:
        return self.reference.hyper_cholesky

    def _log_density(self, w: np.ndarray) -> float:
        """Return that of w under Laplace's approximation, up to a constant."""
        value = self.surrogate.log_marginal(self.tails.to_hyper(w)) + self.tails.log_slope(w)
        return value if np.isfinite(value) else -np.inf


class Mixture:
    """Several modes, each with its share of the posterior.

    Parameters
    ----------
    sampler
        A sampler about each mode.
    """

    def __init__(self, sampler: ModeSampler) -> None:
        self.parts = [FieldApproximation(part) for part in sampler.samplers]

    @property
    def n_modes(self) -> int:
        """How many modes there are."""
        return len(self.parts)

    def draw(self, rng: np.random.Generator, n_draws: int) -> Drawn:
        """Return draws from each mode, as many as its share of the posterior asks for."""
        drawn = [part.draw(rng, n_draws) for part in self.parts]
        evidence = np.array(
            [p.log_evidence + p.surrogate.expansion.value for p in self.parts], dtype=float
        )
        shares = np.exp(evidence - logsumexp(evidence))
        label = _resampled(rng, shares, n_draws)
        points = np.array([drawn[k].points[s] for s, k in enumerate(label)])
        densities = np.array([drawn[k].log_density[s] for s, k in enumerate(label)])
        return Drawn(points, densities + np.log(shares[label]))


def approximation_of(
    latent: LatentSampler | None, control: ControlVariate | None, start: np.ndarray
) -> Approximation | None:
    """Return what set-up knows of the posterior; None where it knows no mode."""
    if isinstance(latent, ModeSampler):
        return Mixture(latent)
    if latent is not None:
        return FieldApproximation(latent)
    return None if control is None else GaussianApproximation(control, start)


def _log_posterior(sampler: LatentSampler) -> Callable[[np.ndarray], float]:
    """Return the log posterior at points of the field, from all rows."""
    surrogate = sampler.reference.surrogate
    if sampler.reference.is_exact:
        return lambda point: surrogate.log_density(point, surrogate.read(point))
    rows: RowFunctions = sampler.rows  # type: ignore[attr-defined]
    temperature = sampler.reference.temperature
    whole = WholeDecisions(surrogate, rows, sampler.tall.data, [], temperature)
    prior, phi = surrogate.field.derivatives.prior, surrogate.phi
    return lambda point: prior(point) + float(whole.of_all(phi(point)).sum())


_LOG_2PI = math.log(2 * math.pi)


def _paired(noise: np.ndarray) -> np.ndarray:
    """Return each row and its opposite, one after the other."""
    return np.stack([noise, -noise], axis=1).reshape(-1, noise.shape[1])


def _matched(noise: np.ndarray) -> np.ndarray:
    """Give the rows and their opposites unit covariance, or unit variances where they are few."""
    n, size = noise.shape
    if size and n >= 4 * size:
        root = np.linalg.cholesky(noise.T @ noise / n)
        return np.linalg.solve(root, noise.T).T
    return noise / np.maximum(np.sqrt(np.mean(noise**2, axis=0)), np.finfo(float).tiny)


def _root_mean_square(seed: int, shape: tuple[int, ...], n: int) -> np.ndarray:
    """Return that of n arrays of noise, which are drawn again later: together they take memory."""
    rng, squares = np.random.default_rng(seed), np.zeros(shape)
    for _ in range(n):
        squares += rng.standard_normal(shape) ** 2
    return np.sqrt(squares / n)


def _with_moments_of(w: np.ndarray, weights: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the points chosen, moved a little to have mean and covariance of all by weight."""
    mean, own = weights @ w, w[chosen]
    moved = own - own.mean(axis=0)
    try:
        root = np.linalg.cholesky((w - mean).T @ ((w - mean) * weights[:, None]))
        mine = np.linalg.cholesky(moved.T @ moved / len(own))
    except np.linalg.LinAlgError:  # fewer points than dimensions
        return own
    return np.asarray(mean + np.linalg.solve(mine, moved.T).T @ root.T)


def _polynomial(z: np.ndarray) -> np.ndarray:
    """Return the terms of second order at points, shape (K, terms)."""
    n, size = z.shape
    rows, columns = np.triu_indices(size)
    if 1 + size + rows.size > MOST_TERMS:
        rows = columns = np.arange(size)
    return np.concatenate([np.ones((n, 1)), z, z[:, rows] * z[:, columns]], axis=1)


def _resampled(
    rng: np.random.Generator, weights: Sequence[float] | np.ndarray, n: int
) -> np.ndarray:
    """Return n numbers drawn by weights, each as often as its weight says or once more."""
    places = (np.arange(n) + rng.random()) / n
    return np.minimum(np.searchsorted(np.cumsum(weights), places), len(weights) - 1)
