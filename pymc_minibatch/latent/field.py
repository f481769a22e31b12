"""The latent field: variables that are nearly Gaussian given a few hyperparameters.

With h the hyperparameters and z the rest of θ, what rows read is affine in z,

    φ = φ₀(h) + A(h) z,

and so is, as a rule, the gradient of the log prior, −P(h) z + …. Which variables these are is found
in :mod:`.recognition`; A and P are sparse, and found by few derivatives (:mod:`.sparse_jacobian`).

Reference
---------
Rue, Martino and Chopin (2009), Approximate Bayesian inference for latent Gaussian models, section
1.2.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from pymc_minibatch.latent.angles import Angles
from pymc_minibatch.latent.arrowhead import ArrowheadMatrix, Matrix, compact, is_empty
from pymc_minibatch.latent.batched import absolute, multiply_blocks, solve_square
from pymc_minibatch.latent.claims import ROUNDING, spread_of
from pymc_minibatch.latent.derivatives import Derivatives
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.hyper_coordinates import HyperCoordinates, find_hyper_coordinates
from pymc_minibatch.latent.layout import ArrowheadLayout
from pymc_minibatch.latent.projector import Projector
from pymc_minibatch.latent.sparse_jacobian import RTOL, MapEntries, SparseJacobian
from pymc_minibatch.tall.verify import compare

__all__ = ["NOTHING", "PROBES", "LatentField", "with_values"]

PROBES = 3
"""Points at which whole matrices are looked at; they are compared with derivatives at more."""

HELD = 1e-10
"""Relative error of each entry of φ that is to stay the same, or, where terms cancel, of these."""

REMEMBERED = 3
"""Values of the hyperparameters at which A is kept."""

NOTHING = np.empty(0, dtype=np.int64)


class CenteredPoint(NamedTuple):
    """A point with other hyperparameters, at which rows read the same.

    Attributes
    ----------
    point : ndarray, shape (D,)
        h' and z'.
    of_dense : ndarray, shape (p,)
        log |∂z'/∂z| of each variable of the dense part.
    of_groups : float
        The same of all groups.
    """

    point: np.ndarray
    of_dense: np.ndarray
    of_groups: float

    def log_jacobian(self) -> float:
        """Return log |∂z'/∂z|."""
        return float(self.of_dense.sum()) + self.of_groups


class LatentField:
    """Layouts of θ and φ, and A(h) and P(h).

    Attributes
    ----------
    hyper : ndarray of int64
        Positions of the hyperparameters h in the flat point.
    latent : ArrowheadLayout
        Positions of the latent variables z.
    rows : ArrowheadLayout
        Where the dense part and the groups lie in φ.
    derivatives
        Compiled functions.
    levels : sequence of GroupEffects
        The grouping factors that can be swept; the first has the groups of the layouts, if there
        are any.
    scalars : ndarray of int64
        Positions in φ of what hyperparameters alone determine; it is in no layout, and is not held
        with effects.
    shifts : sequence of Shift
        Shifts of variables of the dense part against levels that rows do not see.
    hyper_in_prior : bool
        Whether the prior of z depends on h.
    spread : ndarray, shape (D,)
        Standard deviations of variables a priori.
    spread_of_phi : ndarray, shape (P,)
        Those of what rows read.
    """

    def __init__(
        self,
        derivatives: Derivatives,
        hyper: np.ndarray,
        latent: ArrowheadLayout,
        rows: ArrowheadLayout,
        levels: Sequence[GroupEffects],
        points: Sequence[np.ndarray],
        scalars: np.ndarray = NOTHING,
    ) -> None:
        if not latent.groups.size:  # what kinks are on average is found otherwise (:mod:`.kinks`)
            derivatives = derivatives.with_kinks()
        self.derivatives, self.hyper, self.latent, self.rows = derivatives, hyper, latent, rows
        self.levels, self.scalars = levels, scalars
        self.shifts: Sequence[Any] = ()
        push, product = derivatives.push, derivatives.prior_product
        spread = self.spread = spread_of(np.array(points))
        of_phi = self.spread_of_phi = spread_of(np.array([derivatives.phi(p) for p in points]))
        both = rows.dense, rows.groups.ravel()
        everything = latent.dense, latent.groups.ravel()
        sizes = of_phi[np.concatenate(both)], spread
        probed = points[:PROBES]
        apart = [column for factor in levels[1:] for column in factor.latent.T]
        self.map_jacobian = SparseJacobian(
            derivatives, "push", probed, latent.dense, both, sizes, apart=apart
        )
        self.prior_hessian = SparseJacobian(
            derivatives,
            "prior_product",
            probed,
            latent.dense,
            everything,
            (1.0 / spread[np.concatenate(everything)], spread),
            symmetric=True,
            apart=apart,
        )
        own = spread[latent.groups]
        self._noise_of_map = ROUNDING * of_phi[rows.groups][:, :, None] / own[:, None, :]
        self._noise_of_prior = ROUNDING / (own[:, :, None] * own[:, None, :])
        group_map = [self._group_blocks(push, p, rows.groups) for p in points]
        group_prior = [self._group_blocks(product, p, latent.groups) for p in points]
        self.fixed_map = group_map[0] if _alike(group_map, self._noise_of_map) else None
        self.fixed_prior = group_prior[0] if _alike(group_prior, self._noise_of_prior) else None
        self._precision: tuple[bytes, ArrowheadMatrix] | None = None
        self._maps: dict[bytes, MapEntries] = {}
        # Given h effects that are not centred have priors of their own.
        self.hyper_in_prior = not all(
            self._same_precision(points[0], with_values(points[0], hyper, point[hyper]))
            for point in points[1:]
        )

    @cached_property
    def hyper_coordinates(self) -> HyperCoordinates:
        """Those in which the mode of h is looked for."""
        return find_hyper_coordinates(self.derivatives.tall, self.hyper)

    def weigh(self, angles: Angles) -> None:
        """Take the weights of angles into the prior, once it is known where they are.

        Each depends on one angle alone, so that what is claimed of all others stays true.
        """
        if not angles.positions.size:
            return
        self.derivatives = self.derivatives.with_weights(angles)
        self.levels = [
            levels
            if levels.prior is None
            else replace(levels, prior=levels.prior.with_weights(angles))
            for levels in self.levels
        ]

    def _group_blocks(
        self, derivative: Callable[..., np.ndarray], point: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        n_groups, width = self.latent.groups.shape
        blocks = np.empty((n_groups, rows.shape[1], width))
        for slot in range(width):
            seed = np.zeros(point.size)
            seed[self.latent.groups[:, slot]] = 1.0
            blocks[:, :, slot] = derivative(point, seed)[rows]
        return blocks

    def _same_precision(self, point: np.ndarray, other: np.ndarray) -> bool:
        """Whether the curvature of the prior is the same at two points."""
        entries = [self.prior_hessian.entries(p) for p in (point, other)]
        noise = self.prior_hessian.noise
        blocks = [
            self._group_blocks(self.derivatives.prior_product, p, self.latent.groups)
            for p in (point, other)
        ]
        return _alike(entries, noise) and _alike(blocks, self._noise_of_prior)

    def projector_at(self, point: np.ndarray) -> Projector:
        """Return A(h) at the hyperparameters of a point, the last ones from memory."""
        return self._entries_at(point).whole

    def _entries_at(self, point: np.ndarray) -> MapEntries:
        fixed = not self.map_jacobian.changing and self.fixed_map is not None
        key = b"" if fixed else point[self.hyper].tobytes()
        if key not in self._maps:
            blocks = self.fixed_map
            if blocks is None:
                blocks = self._group_blocks(self.derivatives.push, point, self.rows.groups)
            if len(self._maps) == REMEMBERED:
                self._maps.pop(next(iter(self._maps)))
            self._maps[key] = MapEntries(
                self.map_jacobian, self.map_jacobian.entries(point), blocks
            )
        return self._maps[key]

    def prior_precision_at(self, point: np.ndarray) -> ArrowheadMatrix:
        """Return P, minus the Hessian of the log prior by z, at a point, the last from memory.

        Priors of levels that are not normal count as bending downwards.
        """
        key = b""
        if self.prior_hessian.changing or self.fixed_prior is None:
            elsewhere = point.copy()
            if not self.hyper_in_prior:
                elsewhere[self.hyper] = 0.0
            key = elsewhere.tobytes()
        if self._precision is None or self._precision[0] != key:
            self._precision = key, self._bent_down(self._prior_precision(point))
        return self._precision[1]

    def _prior_precision(self, point: np.ndarray) -> ArrowheadMatrix:
        """Return minus the Hessian of the log prior, whichever way it bends."""
        blocks = self.fixed_prior
        if blocks is None:
            blocks = self._group_blocks(self.derivatives.prior_product, point, self.latent.groups)
        hessian = self.prior_hessian
        dense, cross = _negated(*hessian.at(point)) if hessian.changing else self._fixed_negated
        return ArrowheadMatrix(dense, cross, -blocks)

    @cached_property
    def _fixed_negated(self) -> tuple[Matrix, Matrix]:
        """What minus the Hessian has in the dense part's columns, if the same everywhere."""
        return _negated(*self.prior_hessian.of(self.prior_hessian.base))

    def _bent_down(self, precision: ArrowheadMatrix) -> ArrowheadMatrix:
        """Return the same where priors of levels bend upwards as much as they do downwards.

        In its tails a Cauchy prior bends upwards. What is proposed there is about as wide as the
        level is far out.
        """
        dense = precision.dense
        diagonal = dense.diagonal()[self._bending]
        if (diagonal < 0.0).any():
            added = np.zeros(dense.shape[0])
            added[self._bending] = np.abs(diagonal) - diagonal
            dense = compact(dense + sparse.diags_array(added))
        blocks = precision.blocks if self.fixed_prior is not None else absolute(precision.blocks)
        return ArrowheadMatrix(dense, precision.cross, blocks)

    @cached_property
    def _bending(self) -> np.ndarray:
        """Positions in the dense part of single effects whose priors are not Gaussian."""
        own = [
            levels.latent[:, 0]
            for levels in self.levels
            if levels.prior is not None and levels.latent.shape[1] == 1
        ]
        wanted = np.concatenate(own) if own else np.zeros(0, dtype=np.int64)
        return np.flatnonzero(np.isin(self.latent.dense, wanted))

    def with_effects_held(self, point: np.ndarray, hyper: np.ndarray) -> "CenteredPoint | None":
        """Change h and z so that rows read the same φ, but for scalars that h determines.

        Parameters
        ----------
        point
            Where to begin.
        hyper
            The new h.

        Returns
        -------
        CenteredPoint or None
            The new point; None if no z does that, as far as scales of the dense part and the
            blocks of groups go.
        """
        phi = self.derivatives.phi(point)
        moved = point.copy()
        moved[self.hyper] = hyper
        here, there = self._entries_at(point), self._entries_at(moved)
        of_dense, of_groups = np.zeros(self.latent.dense.size), 0.0
        if here is not there:
            if self.map_jacobian.changing:
                scale = here.scales_of(there)
                if not (np.isfinite(scale).all() and np.all(scale)):
                    return None
                moved[self.latent.dense] /= scale
                of_dense = -np.log(np.abs(scale))
            if self.fixed_map is None:
                of_groups = self._hold_groups(moved, phi, here.blocks, there.blocks)
                if not np.isfinite(of_groups):
                    return None
        return CenteredPoint(moved, of_dense, of_groups) if self.reads_same(moved, phi) else None

    def reads_same(self, point: np.ndarray, phi: np.ndarray) -> bool:
        """Whether rows read φ at a point, but for scalars that h determines."""
        away = np.abs(self.derivatives.phi(point) - phi)
        away[self.scalars] = 0.0
        doubtful = np.flatnonzero(~(away <= HELD * np.abs(phi)))
        if not doubtful.size:
            return True
        terms = self._terms_of(point, self._entries_at(point))
        return bool(np.all(away[doubtful] <= HELD * terms[doubtful]))

    def _terms_of(self, point: np.ndarray, entries: MapEntries) -> np.ndarray:
        """Return the sum of the sizes of the terms of each entry of φ.

        If they cancel, the entry itself is small, and does not say what rounding does to it.
        """
        projector, (dense, groups) = entries.whole, self.latent.split(np.abs(point))
        without = point.copy()
        without[self.latent.dense], without[self.latent.groups] = 0.0, 0.0
        terms = np.abs(self.derivatives.phi(without))
        of_groups = multiply_blocks(np.abs(projector.blocks), groups)
        if not is_empty(projector.cross):
            of_groups += (abs(projector.cross) @ dense).reshape(of_groups.shape)
        self.rows.put(
            terms,
            terms[self.rows.dense] + abs(projector.dense) @ dense,
            terms[self.rows.groups] + of_groups,
        )
        return terms

    def foretells(self, point: np.ndarray, variables: Sequence[np.ndarray]) -> bool:
        """Whether A(h) and P are what derivatives say at a point it was not made of.

        Parameters
        ----------
        point
            In the coordinates of the field.
        variables
            Positions of the latent variables, one by one: what the small of them do is not to be
            lost beside the large.
        """
        rng, derivatives = np.random.default_rng(20090404), self.derivatives
        projector, precision = self.projector_at(point), self._prior_precision(point)
        of_map, of_prior = np.zeros(self.spread_of_phi.size), np.zeros(point.size)
        own_size = np.zeros(point.size)  # no entry is larger than the root of those of two
        blocks = np.einsum("gqq->gq", precision.blocks)
        self.latent.put(own_size, np.abs(precision.dense.diagonal()) ** 0.5, np.abs(blocks) ** 0.5)
        z = np.concatenate([self.latent.dense, self.latent.groups.ravel()])
        read = np.concatenate([self.rows.dense, self.rows.groups.ravel()])
        for own in variables:
            seed = np.zeros(point.size)
            seed[own] = self.spread[own] * rng.standard_normal(own.size)
            dense, groups = self.latent.split(seed)
            self.rows.put(of_map, *projector.times(dense, groups))
            self.latent.put(of_prior, *precision.product(dense, groups))
            # An entry may be a sum that vanishes, of terms as large as entries may be.
            terms = own_size * float(own_size @ np.abs(seed))
            noise = 10.0 * ROUNDING * self.spread_of_phi, ROUNDING * (10.0 / self.spread + terms)
            of_phi, curved = derivatives.push(point, seed), -derivatives.prior_product(point, seed)
            if compare(of_phi[read], of_map[read], rtol=RTOL, allowed=noise[0][read]) or compare(
                curved[z], of_prior[z], rtol=RTOL, allowed=noise[1][z]
            ):
                return False
        return True

    def _hold_groups(
        self, moved: np.ndarray, phi: np.ndarray, here: np.ndarray, there: np.ndarray
    ) -> float:
        """Put groups where rows read φ, in place; return log |∂z'/∂z|, not finite if impossible."""
        if here.shape[1] == here.shape[2]:
            moved[self.latent.groups] = 0.0
            left = (phi - self.derivatives.phi(moved))[self.rows.groups]
            moved[self.latent.groups], below = solve_square(there, left)
            return solve_square(here, left)[1] - below
        # Rows read more of a level than it has variables of its own.
        with np.errstate(all="ignore"):
            scale = np.sum(here * there, axis=1) / np.sum(here**2, axis=1)
            moved[self.latent.groups] /= scale
            return -float(np.sum(np.log(np.abs(scale))))


def with_values(point: np.ndarray, positions: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a point with other values at some positions."""
    moved = point.copy()
    moved[positions] = values
    return moved


def _alike(arrays: Sequence[np.ndarray], noise: np.ndarray) -> bool:
    """Whether arrays are the same, entry by entry, up to rounding and what is noise."""
    return all(compare(array, arrays[0], rtol=RTOL, allowed=noise) is None for array in arrays[1:])


def _negated(dense: Matrix, cross: Matrix) -> tuple[Matrix, Matrix]:
    """Return minus both parts of a symmetric matrix, without what rounding makes of symmetry."""
    return compact(-(dense + dense.T) / 2), -cross
