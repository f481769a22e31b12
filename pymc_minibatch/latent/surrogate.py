"""The surrogate density: the exact prior times the log-likelihood to second order in φ.

    log π̃(θ) = log p₀(θ) + Gᵀ(φ(θ) − φ̂) + ½ (φ(θ) − φ̂)ᵀ H (φ(θ) − φ̂)

Its geometry is the posterior's, with ridges and funnels, and it reads no row. Given the
hyperparameters h the latent field z is nearly Gaussian under it: with Λ = P(h) − A(h)ᵀ H A(h) =
L Lᵀ and m the mode, z = m(h) + L(h)⁻ᵀ η. In the coordinates (h, η) scales carry their effects
along, each by as much as its own rows allow, and h has the density that is left when the field is
integrated out.

References
----------
Rue, Martino and Chopin (2009), Approximate Bayesian inference for latent Gaussian models,
section 3.
Papaspiliopoulos, Roberts and Sköld (2007), A general framework for the parametrization of
hierarchical models: partial non-centring.
"""

from dataclasses import dataclass

import numpy as np

from pymc_minibatch.latent.arrow import (
    Arrow,
    ArrowFactor,
    factor_blocks,
    multiply_blocks,
    solve_blocks,
    solve_blocks_transposed,
)
from pymc_minibatch.latent.expansion import Expansion
from pymc_minibatch.latent.field import LatentField, Levels
from pymc_minibatch.tall import TallModel

__all__ = ["Conditional", "Surrogate"]


@dataclass(frozen=True)
class Conditional:
    """The latent field given hyperparameters, as a Gaussian.

    Attributes
    ----------
    point : ndarray, shape (D,)
        The mode m(h), with h in its place.
    dense, groups : ndarray, shape (p,) and (G, q)
        m(h).
    factor : ArrowFactor
        L(h), the factor of the precision.
    log_determinant : float
        log |L|.
    precision : Arrow
        Λ.
    prior_slope, prior_precision
        Slope of the log prior at the center, and minus its curvature P there.
    center : ndarray, shape (P,)
        φ at h and the latent variables of the center.
    """

    point: np.ndarray
    dense: np.ndarray
    groups: np.ndarray
    factor: ArrowFactor
    log_determinant: float
    precision: Arrow
    prior_slope: tuple[np.ndarray, np.ndarray]
    prior_precision: Arrow
    center: np.ndarray


class Surrogate:
    """Prior and second-order likelihood about a point.

    Parameters
    ----------
    tall
        The model.
    field
        Its hyperparameters and latent variables.
    expansion
        The log-likelihood about φ̂, divided by the temperature.
    center : ndarray, shape (D,)
        A point; its latent part is where the curvature of a prior that is not Gaussian is taken.
    """

    def __init__(
        self, tall: TallModel, field: LatentField, expansion: Expansion, center: np.ndarray
    ) -> None:
        self.tall, self.field, self.expansion, self.center = tall, field, expansion, center

    def phi(self, point: np.ndarray) -> np.ndarray:
        """Return φ(θ)."""
        return self.field.derivatives.phi(point)

    def log_likelihood(self, phi: np.ndarray) -> float:
        """Return the second-order log-likelihood, without its constant."""
        delta = phi - self.expansion.at
        parts = self.field.rows.split(delta)
        bent = self.expansion.curvature.product(*parts)
        linear = self.expansion.slope @ delta
        return float(linear - 0.5 * (parts[0] @ bent[0] + np.vdot(parts[1], bent[1])))

    def log_density(self, point: np.ndarray, phi: np.ndarray) -> float:
        """Return log π̃ at a point with this φ."""
        prior = float(self.tall.compiled_prior_logp(point))
        return prior + self.log_likelihood(phi) if np.isfinite(prior) else -np.inf

    def conditional(self, hyper: np.ndarray, damping: float = 0.0) -> Conditional:
        """Return the Gaussian of the latent field given hyperparameters.

        Parameters
        ----------
        hyper
            h.
        damping
            By how much, relative to its diagonal, the precision is raised, for a search that is
            still far from the mode.

        Raises
        ------
        LinAlgError
            If its precision is not positive definite.
        """
        field = self.field
        here = self.center.copy()
        here[field.hyper] = hyper
        onto = field.map_at(here)
        prior_precision = field.prior_precision_at(here)
        curvature = self.expansion.curvature
        raised = curvature.blocks + self.expansion.raised
        precision = prior_precision + onto.pull_back(
            Arrow(curvature.dense, curvature.cross, raised)
        )
        factor = (precision.damped(damping) if damping else precision).factor()
        of_prior = field.latent.split(field.derivatives.prior_gradient(here))
        center = self.phi(here)
        delta = field.rows.split(center - self.expansion.at)
        slope = field.rows.split(self.expansion.slope)
        bent = curvature.product(*delta)
        of_rows = onto.transposed(slope[0] - bent[0], slope[1] - bent[1])
        step = factor.solve(of_prior[0] + of_rows[0], of_prior[1] + of_rows[1])
        at = field.latent.split(here)
        dense, groups = at[0] + step[0], at[1] + step[1]
        field.latent.put(here, dense, groups)
        determinant = factor.log_determinant()
        return Conditional(
            here, dense, groups, factor, determinant, precision, of_prior, prior_precision, center
        )

    def given_others(
        self, given: Conditional, point: np.ndarray, levels: Levels
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (G, q) and Cholesky factors (G, q, q) of levels given all other variables."""
        blocks = self._blocks(given.precision, levels)
        cholesky = np.empty_like(blocks)
        factor_blocks(blocks, cholesky)
        pull = self._times(given.precision, given.point - point)[levels.latent]
        halfway = solve_blocks(cholesky, pull[:, :, None])[:, :, 0]
        return point[levels.latent] + solve_blocks_transposed(cholesky, halfway), cholesky

    def level_ratios(
        self,
        given: Conditional,
        points: tuple[np.ndarray, np.ndarray],
        phis: tuple[np.ndarray, np.ndarray],
        levels: Levels,
    ) -> np.ndarray:
        """Return the log ratio of each level beside its remainders, from a point to another.

        It is zero where the levels are Gaussian under the surrogate. Priors that are not are added
        beyond their second order about the center, and what was added to the curvature is taken
        away again, as is the tilt.
        """
        change = phis[1] - phis[0]
        ratios = -np.sum((self.expansion.tilt * change)[levels.rows], axis=1)
        if levels.rows is self.field.rows.groups:
            for sign, phi in ((0.5, phis[1]), (-0.5, phis[0])):
                away = (phi - given.center)[levels.rows]
                ratios += sign * np.sum(away * multiply_blocks(self.expansion.raised, away), axis=1)
        if levels.prior is not None:
            ratios += levels.prior.logp(points[1]) - levels.prior.logp(points[0])
            ratios -= self._quadratic_prior(given, *points, levels)
        return ratios

    def _quadratic_prior(
        self, given: Conditional, point: np.ndarray, proposed: np.ndarray, levels: Levels
    ) -> np.ndarray:
        """Return how the second-order prior of each level changes."""
        slope = np.zeros(point.size)
        self.field.latent.put(slope, *given.prior_slope)
        slope -= self._times(given.prior_precision, point - self.center)
        delta = (proposed - point)[levels.latent]
        bent = multiply_blocks(self._blocks(given.prior_precision, levels), delta)
        return np.sum(delta * (slope[levels.latent] - 0.5 * bent), axis=1)

    def _times(self, matrix: Arrow, vector: np.ndarray) -> np.ndarray:
        """Multiply the latent part of a flat vector."""
        product = np.zeros(vector.size)
        self.field.latent.put(product, *matrix.product(*self.field.latent.split(vector)))
        return product

    def _blocks(self, matrix: Arrow, levels: Levels) -> np.ndarray:
        """Return the blocks of each level on the diagonal."""
        layout = self.field.latent
        if levels.latent is layout.groups:
            return matrix.blocks
        place = np.searchsorted(layout.dense, levels.latent)
        return matrix.dense[place[:, :, None], place[:, None, :]]

    def log_marginal(self, hyper: np.ndarray) -> float:
        """Return the log density of hyperparameters, the field integrated out by Laplace."""
        try:
            conditional = self.conditional(hyper)
        except np.linalg.LinAlgError:
            return -np.inf
        point = conditional.point
        return self.log_density(point, self.phi(point)) - conditional.log_determinant
