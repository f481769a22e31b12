"""The surrogate density: the exact prior times the log-likelihood to second order in φ.

    log π̃(θ) = log p₀(θ) + Gᵀδ + ½ δᵀ H δ + C(φ(θ)),   δ = φ(θ) − φ̂

with third and fourth order C by groups (:mod:`.cubic`), where there are any; where rows are normal,
C is zero, and their standard deviation multiplies the second order (:mod:`.sums`). Its geometry is
the posterior's, with ridges and funnels, and it reads no row. Given the hyperparameters h the
latent field z is nearly Gaussian under it: without C and with Λ = P(h) − A(h)ᵀ H A(h) = L Lᵀ and m
the mode, z = m(h) + L(h)⁻ᵀ η. In the coordinates (h, η) scales carry their effects along, each by
as much as its own rows allow, and h has the density that is left when the field is integrated out.

References
----------
Rue, Martino and Chopin (2009), Approximate Bayesian inference for latent Gaussian models,
section 3.
Papaspiliopoulos, Roberts and Sköld (2007), A general framework for the parametrization of
hierarchical models: partial non-centring.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_minibatch.latent.arrowhead import ArrowheadMatrix, Matrix, added, blocks_of_dense
from pymc_minibatch.latent.batched import (
    factored_blocks,
    inner_products,
    multiply_blocks,
    solve_blocks,
    solve_blocks_transposed,
)
from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.cubic import Cubic
from pymc_minibatch.latent.expansion import Expansion
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.layout import BorderAndBlocks
from pymc_minibatch.latent.projector import ProjectedCurvature, Projector
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.verify import RADII, compare, rounding

__all__ = ["PredictorState", "Surrogate"]

NOTHING = np.empty(0)

RTOL_OF_PHI, RTOL_OF_PRIOR = 1e-8, 1e-6
"""Relative differences of φ and of slopes of the prior where claims are looked at again."""


class PredictorState(NamedTuple):
    """What rows read at a point, and what the surrogate says there.

    Attributes
    ----------
    phi : ndarray, shape (P,)
        φ.
    curved : ndarray, shape (P,)
        K (φ − φ̂).
    u : ndarray, shape (G, q')
        Coordinates of the first factor's higher orders, where there are any.
    higher : ndarray, shape (G,)
        The share of each of its levels in C.
    """

    phi: np.ndarray
    curved: np.ndarray
    u: np.ndarray
    higher: np.ndarray


class Surrogate:
    """Prior and likelihood to second order about a point, and in part to fourth.

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
    cubics
        Third and fourth order by each grouping factor; that of the first is part of the density.
    """

    def __init__(
        self,
        tall: TallModel,
        field: LatentField,
        expansion: Expansion,
        center: np.ndarray,
        cubics: Sequence[Cubic] = (),
    ) -> None:
        self.tall, self.field, self.expansion, self.center = tall, field, expansion, center
        self.cubics = cubics
        self._joined: tuple[Matrix, ProjectedCurvature] | None = None
        self.kinks: tuple[np.ndarray, np.ndarray] | None = None

    def phi(self, point: np.ndarray) -> np.ndarray:
        """Return φ(θ)."""
        return self.field.derivatives.phi(point)

    def curvature_product(self, delta: np.ndarray) -> np.ndarray:
        """Return K δ, shape (P,)."""
        curved = np.zeros(delta.size)
        rows = self.field.rows
        rows.put(curved, *self.expansion.curvature.product(*rows.split(delta)))
        return curved

    def read(self, point: np.ndarray) -> PredictorState:
        """Return what rows read at a point."""
        return self.predictor(self.phi(point))

    def predictor(self, phi: np.ndarray) -> PredictorState:
        """Return what is made of φ."""
        delta = phi - self.expansion.at
        curved = self.curvature_product(delta)
        if not self.cubics:
            return PredictorState(phi, curved, NOTHING, NOTHING)
        u = self.cubics[0].coordinates(delta, curved)
        return PredictorState(phi, curved, u, self.cubics[0].values(u))

    def log_density(self, point: np.ndarray, predictor: PredictorState) -> float:
        """Return log π̃ at a point, given what rows read there."""
        return self._log_density(self.field.derivatives.prior(point), predictor)

    def smooth_log_density(self, point: np.ndarray) -> float:
        """Return the same with the prior without kinks, by which a search climbs."""
        return self._log_density(self.field.derivatives.smooth_prior(point), self.read(point))

    def _log_density(self, prior: float, predictor: PredictorState) -> float:
        if not np.isfinite(prior):
            return -np.inf
        return float(prior + self.log_likelihood(predictor) + predictor.higher.sum())

    def log_likelihood(self, predictor: PredictorState) -> float:
        """Return that to second order, up to a constant."""
        expansion = self.expansion
        delta, (of_scalars, factor) = predictor.phi - expansion.at, expansion.shared(predictor.phi)
        second_order = (expansion.slope + expansion.smoothing_correction) @ delta - 0.5 * (
            delta @ predictor.curved
        )
        return float(of_scalars + factor * second_order)

    def slope_of_sums(self, phi: np.ndarray) -> np.ndarray:
        """Return the slope by φ of a log-likelihood that sums say, shape (P,)."""
        expansion = self.expansion
        delta = phi - expansion.at
        curved = self.curvature_product(delta)
        second_order = expansion.slope @ delta - 0.5 * (delta @ curved)
        slope = np.asarray(expansion.shared(phi)[1] * (expansion.slope - curved))
        if expansion.common is not None:
            slope[self.field.scalars] = expansion.common.slope(phi, float(second_order))
        return slope

    def slope_of_higher_orders(self, delta: np.ndarray, curved: np.ndarray) -> np.ndarray:
        """Return ∇C given δ and Kδ, all of shape (P,)."""
        slope = np.zeros(curved.size)
        for cubic in self.cubics[:1]:
            slope[cubic.entries], of_scalars = cubic.slope(cubic.coordinates(delta, curved))
            slope = self.curvature_product(slope)
            slope[cubic.scalars] += of_scalars
        return slope

    def seen_by_rows(self, predictor: PredictorState, cubic: Cubic | None) -> np.ndarray:
        """Return what the remainders of rows take: φ, and u of a factor in its entries."""
        if cubic is None:
            return predictor.phi
        n = predictor.phi.size
        seen = np.zeros(2 * n)
        seen[:n] = predictor.phi
        cubic.put(seen[n:], self.coordinates(cubic, predictor))
        return seen

    def coordinates(self, cubic: Cubic, predictor: PredictorState) -> np.ndarray:
        """Return u of a factor."""
        if cubic is self.cubics[0]:
            return predictor.u
        return cubic.coordinates(predictor.phi - self.expansion.at, predictor.curved)

    def of_third_order(self, cubic: Cubic, predictor: PredictorState) -> np.ndarray:
        """Return the terms of third order, one for each level of a factor."""
        if cubic is self.cubics[0]:
            return predictor.higher
        return cubic.values(self.coordinates(cubic, predictor))

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
        given = self.factored_later(hyper, damping)
        _ = given.factor
        return given

    def factored_later(self, hyper: np.ndarray, damping: float = 0.0) -> Conditional:
        """Return the same Gaussian before it is factored, which may yet fail."""
        field, curvature, shifted = self.field, self.expansion.curvature, self.expansion.shifted
        here = self.center.copy()
        here[field.hyper] = hyper
        projector = field.projector_at(here)
        prior_precision = field.prior_precision_at(here)
        joined, phi = self._projected_curvature_of(projector), self.phi(here)
        _, factor = self.expansion.shared(phi)

        def dense_later() -> Matrix:
            of_rows = _scaled(factor, projector.project_dense(joined, shifted.blocks))
            dense = prior_precision.dense + of_rows
            return dense if self.kinks is None else dense + self.kinks[1]

        def cross_later() -> Matrix:
            of_rows = _scaled(factor, projector.project_cross(joined, shifted.blocks))
            return added(prior_precision.cross, of_rows)

        of_prior = field.latent.split(field.derivatives.prior_gradient(here))
        slope = field.rows.split(self.expansion.slope + self.expansion.mean_correction)
        curved = curvature.product(*field.rows.split(phi - self.expansion.at))
        of_rows = projector.transposed(
            factor * (slope[0] - curved[0]), factor * (slope[1] - curved[1])
        )
        of_dense = of_prior[0] if self.kinks is None else of_prior[0] + self.kinks[0]
        return Conditional(
            field.latent,
            here,
            blocks=prior_precision.blocks
            + _scaled(factor, projector.project_blocks(shifted.blocks)),
            dense_later=dense_later,
            cross_later=cross_later,
            slope=(of_dense + of_rows[0], of_prior[1] + of_rows[1]),
            prior_slope=of_prior,
            prior_precision=prior_precision,
            projector=projector,
            phi=phi,
            factor_of_rows=factor,
            damping=damping,
            by_products=self.expansion.is_exact,
        )

    def _projected_curvature_of(self, projector: Projector) -> ProjectedCurvature:
        """Return the curvature by the dense part, from memory where A does not change there."""
        if self._joined is None or self._joined[0] is not projector.dense:
            self._joined = (
                projector.dense,
                ProjectedCurvature(self.expansion.shifted, projector.dense),
            )
        return self._joined[1]

    def slope_at(
        self, given: Conditional, point: np.ndarray, predictor: PredictorState
    ) -> BorderAndBlocks:
        """Return the slope of the Gaussian at a point with its h, dense part and groups.

        What rows read there gives it without a product with the precision.
        """
        expansion, rows = self.expansion, self.field.rows
        dense, groups = rows.split(expansion.slope + expansion.mean_correction - predictor.curved)
        if expansion.is_shifted:
            shifts = expansion.times_shifts(*rows.split(predictor.phi - given.phi))
            dense, groups = dense - shifts[0], groups - shifts[1]
        by = given.factor_of_rows
        of_rows = given.projector.transposed(by * dense, by * groups)
        away = self.field.latent.split(point - given.here)
        curved = given.prior_precision.product(*away)
        return (
            of_rows[0] + given.prior_slope[0] - curved[0],
            of_rows[1] + given.prior_slope[1] - curved[1],
        )

    def given_others(
        self, given: Conditional, point: np.ndarray, predictor: PredictorState, levels: GroupEffects
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (G, q) and Cholesky factors (G, q, q) of levels given all other variables.

        Raises
        ------
        LinAlgError
            If the precision of a level is not positive definite.
        """
        layout = self.field.latent
        own = levels.latent is layout.groups
        blocks = given.blocks if own else blocks_of_dense(given.dense, layout, levels.latent)
        cholesky = factored_blocks(blocks)
        pull = np.zeros(point.size)
        self.field.latent.put(pull, *self.slope_at(given, point, predictor))
        halfway = solve_blocks(cholesky, pull[levels.latent][:, :, None])[:, :, 0]
        return point[levels.latent] + solve_blocks_transposed(cholesky, halfway), cholesky

    def read_levels(
        self, point: np.ndarray, before: PredictorState, levels: GroupEffects
    ) -> PredictorState:
        """Return what rows read after a move of the levels of a factor alone.

        Of what is bent there is only what these levels need: no row reads two of them, so that
        each is bent by itself.
        """
        phi, curved, cubic = self.phi(point), before.curved, self.cubic(levels.rows)
        if cubic is None:
            return before._replace(phi=phi)
        curved = curved.copy()
        curved[levels.rows] += multiply_blocks(cubic.blocks, (phi - before.phi)[levels.rows])
        if cubic is not self.cubics[0]:
            return before._replace(phi=phi, curved=curved)
        u = cubic.coordinates(phi - self.expansion.at, curved)
        return PredictorState(phi, curved, u, cubic.values(u))

    def level_ratios(
        self,
        given: Conditional,
        points: tuple[np.ndarray, np.ndarray],
        predictors: tuple[PredictorState, PredictorState],
        levels: GroupEffects,
    ) -> np.ndarray:
        """Return the log ratio of each level beside its remainders, from a point to another.

        The proposal is the Gaussian of the levels given all else; what it leaves out of the density
        is the higher orders, priors beyond their second order about the center, and what was added
        to slope and curvature.
        """
        before, after = predictors
        ratios = -inner_products(
            self.expansion.mean_correction[levels.rows], (after.phi - before.phi)[levels.rows]
        )
        cubic = self.cubic(levels.rows)
        if cubic is not None:
            ratios += self.of_third_order(cubic, after) - self.of_third_order(cubic, before)
        if self.expansion.is_shifted:  # no entry of a shift is between two levels of a factor
            moved, between = after.phi - before.phi, 0.5 * (after.phi + before.phi) - given.phi
            shifted, rows = np.zeros(moved.size), self.field.rows
            rows.put(shifted, *self.expansion.times_shifts(*rows.split(between)))
            ratios += inner_products(moved[levels.rows], shifted[levels.rows])
        if levels.prior is not None:
            here, there = map(self.field.derivatives.coordinates.to_model, points)
            ratios += levels.prior.logp(there) - levels.prior.logp(here)
            ratios -= self._quadratic_prior(given, *points, levels)
        return ratios

    def change_of_levels(
        self, predictors: tuple[PredictorState, PredictorState], levels: GroupEffects
    ) -> np.ndarray:
        """Return how the log-likelihood changes for each level of a factor that moves alone."""
        assert not self.expansion.is_exact  # there all levels move that may
        before, after = predictors
        delta = (after.phi - before.phi)[levels.rows]
        slope = (self.expansion.slope - before.curved)[levels.rows]
        blocks = self.expansion.curvature.blocks_of(self.field.rows, levels.rows)
        change = inner_products(delta, slope - 0.5 * multiply_blocks(blocks, delta))
        cubic = self.cubic(levels.rows)
        if cubic is not None:
            change += self.of_third_order(cubic, after) - self.of_third_order(cubic, before)
        return change

    def cubic(self, entries: np.ndarray) -> Cubic | None:
        """Return third and fourth order of the factor with these entries."""
        return next((cubic for cubic in self.cubics if cubic.entries is entries), None)

    def violation(self, hyper: np.ndarray, root: np.ndarray) -> str | None:
        """Say which claim about effects does not hold out in the posterior; None if all do.

        Every whitened coordinate of h and of the field is 1, 3 or 6 standard deviations out.

        Parameters
        ----------
        hyper, root
            The mode of h and a root of its covariance.
        """
        rng, derivatives = np.random.default_rng(16), self.field.derivatives
        for radius in (sign * each for each in RADII for sign in (1.0, -1.0)):
            away = radius * rng.choice([-1.0, 1.0], hyper.size)
            given = self.factored_later(hyper + root @ away)
            if not given.is_proper:
                continue
            dense, groups = (radius * np.sign(part) for part in given.layout.noise(rng))
            point = given.frame.color((dense, groups))
            parts = given.layout.split(point - given.here)
            moved = np.zeros(given.phi.size)
            self.field.rows.put(moved, *given.projector.times(*parts))
            phi = derivatives.phi(point)
            size = np.abs(phi) + np.abs(given.phi) + np.abs(moved)
            allowed = RTOL_OF_PHI * size + rounding(derivatives.phi, point, phi)
            if compare(phi, given.phi + moved, allowed=allowed) is not None:
                return "The linear predictors are not affine in the effects"
            if not self._has_gaussian_levels(given, point, parts, abs(radius)):
                return "The prior of the effects is not Gaussian given all else"
        return None

    def _has_gaussian_levels(
        self, given: Conditional, point: np.ndarray, away: BorderAndBlocks, radius: float
    ) -> bool:
        """Whether slopes of the prior are those at h and P, for levels claimed to be normal."""
        levels = [each.latent.ravel() for each in self.field.levels if each.prior is None]
        if not levels:
            return True
        own, gradient = np.concatenate(levels), self.field.derivatives.prior_gradient
        slope, curved, diagonal = np.zeros((3, point.size))
        self.field.latent.put(slope, *given.prior_slope)
        self.field.latent.put(curved, *given.prior_precision.product(*away))
        blocks = np.einsum("gii->gi", given.prior_precision.blocks)
        self.field.latent.put(diagonal, given.prior_precision.dense.diagonal(), blocks)
        found = gradient(point)
        size = np.abs(found) + np.abs(slope) + radius * np.sqrt(np.abs(diagonal))
        allowed = RTOL_OF_PRIOR * size + rounding(gradient, point, found)
        return compare(found[own], (slope - curved)[own], allowed=allowed[own]) is None

    def _quadratic_prior(
        self, given: Conditional, point: np.ndarray, proposed: np.ndarray, levels: GroupEffects
    ) -> np.ndarray:
        """Return how the second-order prior of each level changes."""
        slope = np.zeros(point.size)
        self.field.latent.put(slope, *given.prior_slope)
        slope -= self._times(given.prior_precision, point - self.center)
        delta = (proposed - point)[levels.latent]
        curved = multiply_blocks(
            given.prior_precision.blocks_of(self.field.latent, levels.latent), delta
        )
        return inner_products(delta, slope[levels.latent] - 0.5 * curved)

    def _times(self, matrix: ArrowheadMatrix, vector: np.ndarray) -> np.ndarray:
        """Multiply the latent part of a flat vector."""
        product = np.zeros(vector.size)
        self.field.latent.put(product, *matrix.product(*self.field.latent.split(vector)))
        return product

    def log_marginal_in(self, v: np.ndarray) -> float:
        """Return the log marginal density of coordinates v of h."""
        coordinates = self.field.hyper_coordinates
        return self.log_marginal(coordinates.to_hyper(v)) + coordinates.log_slope(v)

    def log_marginal_of_center(self) -> float:
        """Return that of the coordinates of the center."""
        hyper = self.center[self.field.hyper]
        return self.log_marginal_in(self.field.hyper_coordinates.from_hyper(hyper))

    def log_marginal(self, hyper: np.ndarray) -> float:
        """Return the log density of hyperparameters, the field integrated out by Laplace.

        The prior is that without kinks, whose curvature it is: at a peak it would be too high.
        """
        try:
            conditional = self.conditional(hyper)
        except np.linalg.LinAlgError:
            return -np.inf
        value = self.smooth_log_density(conditional.point) - conditional.log_determinant
        if self.expansion.dense_shift is not None:  # the Gaussian is not of the expansion alone
            away, _ = self.field.rows.split(self.phi(conditional.point) - conditional.phi)
            value -= 0.5 * float(away @ self.expansion.dense_shift @ away)
        return value


def _scaled(factor: float, matrix: Matrix) -> Matrix:
    """Multiply a matrix by a number, which is mostly one."""
    return matrix if factor == 1.0 else factor * matrix
