"""Draws from the approximation that set-up has made.

A model without effects is Gaussian about its mode; of one with effects see :mod:`.field`. Draws
come in opposite pairs, and have mean 0 and variance 1 in every whitened coordinate, so that moments
have hardly any Monte Carlo error.
"""

from functools import partial
from typing import Protocol

import numpy as np
from scipy.special import logsumexp

from pymc_minibatch.approximation.design import (
    FEW_POINTS,
    LOG_2PI,
    MOST_FAR,
    Densities,
    WeightedDesign,
    matched,
    opposite,
    weighted_design,
    with_moments_of,
)
from pymc_minibatch.approximation.field import Drawn, FieldApproximation, resampled
from pymc_minibatch.latent.modes import ModeSampler
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.derivatives import row_derivatives
from pymc_minibatch.tall import TallModel

__all__ = [
    "Approximation",
    "GaussianApproximation",
    "Mixture",
    "approximation_of",
]

PLAIN_ROWS, PLAIN_POINT, MOST_PLAIN_POINTS = 1e8, 2e4, 4096
"""Rows that design points of a model without effects may evaluate (about 1 s), what a point costs
beside them, in rows, and most points."""

COLUMNS_OF_A_ROW = 50
"""So many more columns make a row cost as much again."""

POINTS_AT_ONCE = 64
"""Points of a model without effects at which each chunk of rows is evaluated."""


class Approximation(Protocol):
    """What draws are made from."""

    @property
    def center(self) -> np.ndarray:
        """A point of the model in the middle of the approximation, shape (D,)."""

    @property
    def pareto_k(self) -> float | None:
        """k̂ of the design points, after the first draw; None if there are none."""

    def draw(self, rng: np.random.Generator, n_draws: int) -> Drawn:
        """Return draws."""


class GaussianApproximation:
    """A model without effects: design points about its mode, or the Gaussian there.

    Parameters
    ----------
    control
        The expansion about it.
    start : ndarray, shape (D,)
        A point of the model.
    log_densities
        The log posterior at points (K, D), up to a constant; None if it is not to be evaluated.
    n_rows
        Rows that are read for each point.
    """

    def __init__(
        self,
        control: ControlVariate,
        start: np.ndarray,
        log_densities: Densities | None = None,
        n_rows: int = 0,
    ) -> None:
        precision = control.gaussian.precision_at(control.temperature)
        self.mean, self.start = control.gaussian.center, start
        self.factor = np.linalg.cholesky(precision)
        self.log_densities = log_densities
        cost = n_rows * (1.0 + self.mean.size / COLUMNS_OF_A_ROW) + PLAIN_POINT
        self.n_points = int(min(PLAIN_ROWS / cost, MOST_PLAIN_POINTS))
        self._design: WeightedDesign | None = None
        self._has_looked = False

    @property
    def center(self) -> np.ndarray:
        """The mean, shape (D,)."""
        return self.mean

    @property
    def pareto_k(self) -> float | None:
        """k̂ of the design points; None if there are none, or draws do not come from them.

        If points that were spread far make their weights uneven, draws miss what these have found.
        """
        design = self._design
        told = design is not None and (design.is_even or self.looks_far)
        return design.pareto_k if design is not None and told else None

    @property
    def looks_far(self) -> bool:
        """Whether some design points look for mass far from the mode."""
        enough = self.n_points >= FEW_POINTS and self.log_densities is not None
        return enough and self.mean.size <= MOST_FAR

    def draw(self, rng: np.random.Generator, n_draws: int) -> Drawn:
        """Return draws."""
        design = self._designed(rng)
        constant = np.log(np.diagonal(self.factor)).sum()
        if design is not None and design.are_dense:  # many draws repeat some points
            chosen = resampled(rng, design.weights, n_draws)
            z = with_moments_of(design.z[chosen], design.moments)
            order = rng.permutation(n_draws)
            return Drawn(self._points(z)[order], design.log_density[chosen][order] + constant)
        noise = opposite(matched(rng.standard_normal(((n_draws + 1) // 2, self.mean.size))))
        eta = rng.permutation(noise[:n_draws])
        log_q = constant - 0.5 * np.sum(eta**2, axis=1) - 0.5 * self.mean.size * LOG_2PI
        if design is not None:
            eta = with_moments_of(eta, design.moments)
            log_q -= 0.5 * np.linalg.slogdet(design.moments[1])[1]
        return Drawn(self._points(eta), log_q)

    def _points(self, z: np.ndarray) -> np.ndarray:
        return np.asarray(self.mean + np.linalg.solve(self.factor.T, z.T).T)

    def _designed(self, rng: np.random.Generator) -> WeightedDesign | None:
        if not self._has_looked and self.log_densities is not None:
            evaluate = self.log_densities
            self._design = weighted_design(
                rng,
                lambda z: evaluate(self._points(z)),
                self.mean.size,
                self.n_points,
                looks_far=self.looks_far,
            )
            self._has_looked = True
        return self._design if self._design is not None and self._design.is_even else None


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

    @property
    def pareto_k(self) -> float | None:
        """Is not known of all modes together."""
        return None

    @property
    def center(self) -> np.ndarray:
        """A point about the first mode, shape (D,)."""
        return self.parts[0].center

    def draw(self, rng: np.random.Generator, n_draws: int) -> Drawn:
        """Return draws from each mode, as many as its share of the posterior asks for."""
        drawn = [part.draw(rng, n_draws) for part in self.parts]
        evidence = np.array([part.log_evidence for part in self.parts])
        shares = np.exp(evidence - logsumexp(evidence))
        label = resampled(rng, shares, n_draws)
        points = np.array([drawn[k].points[s] for s, k in enumerate(label)])
        densities = np.array([drawn[k].log_density[s] for s, k in enumerate(label)])
        return Drawn(points, densities + np.log(shares[label]))


def approximation_of(
    latent: LatentSampler | None, control: ControlVariate | None, tall: TallModel
) -> Approximation | None:
    """Return what set-up knows of the posterior; None if it knows no mode."""
    if isinstance(latent, ModeSampler):
        return Mixture(latent)
    if latent is not None:
        return FieldApproximation(latent)
    if control is None:
        return None
    if not tall.layout.is_continuous.all():
        return GaussianApproximation(control, tall.start)
    densities = partial(_log_posterior, tall, control.temperature)
    return GaussianApproximation(control, tall.start, densities, tall.n_rows)


def _log_posterior(tall: TallModel, temperature: float, points: np.ndarray) -> np.ndarray:
    """Return the log posterior at points (K, D), in blocks that take little memory."""
    rows = row_derivatives(tall)
    with np.errstate(all="ignore"):
        prior = [float(tall.compiled_prior_logp(point)) for point in points]
        of_rows = [
            rows.values(points[i : i + POINTS_AT_ONCE], tall.data)
            for i in range(0, len(points), POINTS_AT_ONCE)
        ]
    return np.asarray(prior + np.concatenate(of_rows) / temperature)
