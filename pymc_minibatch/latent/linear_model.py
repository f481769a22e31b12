"""Linear models with large crossed factors, whose effects are normal given their scales.

If sums are sufficient statistics of the rows (:mod:`.sums`), each entry of φ is one effect times
a scale that h determines, and effects are independent and normal a priori, the posterior is

    log p(h, φ) = ℓ(h) + κ(h) Q(φ) + ½ Σ log wᵢ(h) − ½ Σ wᵢ(h) (φᵢ − cᵢ(h))²,
    Q(φ) = Gᵀδ − ½ δᵀKδ,   δ = φ − φ̂,

whether effects are centred or not: c and 1/w are what the prior says of φ, given h. So h changes
numbers for each effect, and no matrix. The moves are those of :mod:`.linear`.

Reference
---------
Bates, Mächler, Bolker and Walker (2015), Fitting linear mixed-effects models using lme4, section 3.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import sparse

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.latent.arrowhead import ArrowheadFactor, ArrowheadMatrix, is_empty
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.layout import BorderAndBlocks
from pymc_minibatch.latent.surrogate import Surrogate
from pymc_minibatch.tall.verify import compare

__all__ = [
    "BankFrame",
    "IntegratedLevels",
    "LinearModel",
    "LinearState",
    "Scales",
    "find_linear",
    "integrate",
    "log_density",
]

CHECKED, TOLERANCE = (1e-3, 1e-2, 0.1, 1.0, 3.0), 1e-9
"""How far from the mode the form of the posterior is verified, in standard deviations of each
variable a priori, and relative errors."""


class Scales(NamedTuple):
    """What h says, for each of the n entries of φ.

    Attributes
    ----------
    scale, offset : ndarray, shape (n,)
        φ = scale · z + offset.
    precision, mean : ndarray, shape (n,)
        w and c.
    factor : float
        κ.
    level : float
        ℓ + ½ Σ log w.
    """

    scale: np.ndarray
    offset: np.ndarray
    precision: np.ndarray
    mean: np.ndarray
    factor: float
    level: float


class LinearState:
    """Where a chain is, and what is known there.

    Attributes
    ----------
    model : LinearModel
        The posterior.
    hyper, scales
        h and what it says.
    phi : ndarray, shape (n,)
        φ.
    """

    __slots__ = ("_curved", "_of_rows", "hyper", "model", "phi", "scales")

    def __init__(
        self, model: "LinearModel", hyper: np.ndarray, scales: Scales, phi: np.ndarray
    ) -> None:
        self.model, self.hyper, self.scales, self.phi = model, hyper, scales, phi
        self._curved: np.ndarray | None = None
        self._of_rows: float | None = None

    @property
    def curved(self) -> np.ndarray:
        """Kδ, shape (n,)."""
        if self._curved is None:
            self._curved = self.model.curvature_product(self.phi - self.model.at)
        return self._curved

    @property
    def of_rows(self) -> float:
        """Q."""
        if self._of_rows is None:
            delta = self.phi - self.model.at
            self._of_rows = float((self.model.slope - 0.5 * self.curved) @ delta)
        return self._of_rows

    def with_hyper(self, hyper: np.ndarray, scales: Scales) -> "LinearState":
        """Return the state with another h and the same φ."""
        state = LinearState(self.model, hyper, scales, self.phi)
        state._curved, state._of_rows = self.curved, self.of_rows
        return state


class IntegratedLevels(NamedTuple):
    """The levels of a factor given all else: c + C⁻ᵀ(C⁻¹ g + η), with standard normal η.

    The slope g is taken where they have their mean c a priori. There it is the slope of rows alone,
    and no digits are lost however small a scale is.

    Attributes
    ----------
    entries : ndarray of int64, shape (G, q)
        Where they are in φ.
    mean : ndarray, shape (G, q)
        c.
    halfway : ndarray, shape (G, q)
        C⁻¹ g.
    cholesky : ndarray, shape (G, q, q)
        C, with C Cᵀ the precision of each.
    log_density : float
        That of all else, when they are integrated out.
    """

    entries: np.ndarray
    mean: np.ndarray
    halfway: np.ndarray
    cholesky: np.ndarray
    log_density: float


class BankFrame(NamedTuple):
    """The posterior of φ given a usual h.

    Attributes
    ----------
    scales
        What that h says.
    mode : ndarray, shape (n,)
        Its mode.
    factor
        A factor of its precision.
    log_total : float
        Log of the integral of its density over φ.
    """

    scales: Scales
    mode: np.ndarray
    factor: ArrowheadFactor
    log_total: float


class LinearModel:
    """The posterior in the form above.

    Parameters
    ----------
    surrogate
        The posterior.
    effects : ndarray of int64, shape (n,)
        Positions in a point of the effects z, in the order of φ: its dense part, then its groups.

    Attributes
    ----------
    entries : ndarray of int64, shape (n,)
        Positions in φ.
    slope : ndarray, shape (n,)
        G.
    """

    def __init__(self, surrogate: Surrogate, effects: np.ndarray) -> None:
        self.surrogate, self.effects = surrogate, effects
        self.field: LatentField = surrogate.field
        rows, expansion = self.field.rows, surrogate.expansion
        self.entries = np.concatenate([rows.dense, rows.groups.ravel()])
        self.at = expansion.at[self.entries]
        self.slope = (expansion.slope + expansion.smoothing_correction)[self.entries]
        self.n_dense = rows.dense.size
        self.place = np.full(expansion.at.size, -1)
        self.place[self.entries] = np.arange(self.entries.size)
        self._ones = np.zeros(surrogate.center.size)
        self._ones[effects] = 1.0
        self._prior: tuple[np.ndarray, np.ndarray] | None = None
        if not self.field.hyper_in_prior:
            self._prior = self._prior_of(self._point(surrogate.center[self.field.hyper]))

    def _point(self, hyper: np.ndarray) -> np.ndarray:
        """Return a point with effects of zero."""
        point = self.surrogate.center.copy()
        point[self.effects], point[self.field.hyper] = 0.0, hyper
        return point

    def _prior_of(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return precision and mean of the effects z a priori, given the h of a point."""
        derivatives = self.field.derivatives
        precision = -derivatives.prior_product(point, self._ones)[self.effects]
        return precision, derivatives.prior_gradient(point)[self.effects] / precision

    def scales(self, hyper: np.ndarray) -> Scales:
        """Return what h says."""
        derivatives, point = self.field.derivatives, self._point(hyper)
        phi = derivatives.phi(point)
        scale, offset = derivatives.push(point, self._ones)[self.entries], phi[self.entries]
        precision, mean = self._prior or self._prior_of(point)
        point[self.effects] = mean
        of_scalars, factor = self.surrogate.expansion.shared(phi)
        of_phi, mean_of_phi, log_volume = prior_of_phi(scale, offset, precision, mean)
        level = derivatives.prior(point) + of_scalars - log_volume
        return Scales(scale, offset, of_phi, mean_of_phi, factor, level)

    def curvature_product(self, delta: np.ndarray) -> np.ndarray:
        """Return Kδ."""
        return _joined(self.surrogate.expansion.curvature.product(*self.parts(delta)))

    def parts(self, vector: np.ndarray) -> BorderAndBlocks:
        """Return the dense part of a vector and its groups."""
        groups = self.field.rows.groups
        return vector[: self.n_dense], vector[self.n_dense :].reshape(groups.shape)

    def here(self, hyper: np.ndarray, scales: Scales, phi: np.ndarray) -> LinearState:
        """Return a place."""
        return LinearState(self, hyper, scales, phi)

    def frame(self, hyper: np.ndarray) -> BankFrame:
        """Factor the precision of φ given h.

        Raises
        ------
        LinAlgError
            If it is not positive definite.
        """
        scales, curvature = self.scales(hyper), self.surrogate.expansion.curvature
        dense, groups = self.parts(scales.precision)
        blocks = scales.factor * curvature.blocks + groups[:, :, None] * np.eye(groups.shape[1])
        whole = curvature.dense
        diagonal = sparse.diags_array(dense) if sparse.issparse(whole) else np.diag(dense)
        precision = ArrowheadMatrix(
            scales.factor * whole + diagonal, scales.factor * curvature.cross, blocks
        )
        factor = precision.factor()
        pull = scales.factor * self.slope - scales.precision * (self.at - scales.mean)
        step = factor.solve(*self.parts(pull))
        top = self.here(hyper, scales, self.at + _joined(step))
        peak = log_density(scales, top.phi, top.of_rows)
        return BankFrame(scales, top.phi, factor, peak - factor.log_determinant())


def _joined(parts: BorderAndBlocks) -> np.ndarray:
    return np.concatenate([part.ravel() for part in parts])


@jit_kept
def prior_of_phi(
    scale: np.ndarray, offset: np.ndarray, precision: np.ndarray, mean: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return precision and mean of φ, given those of z, and Σ log |scale|."""
    of_phi, mean_of_phi = np.empty(scale.size), np.empty(scale.size)
    log_volume, last, log_last = 0.0, 1.0, 0.0
    for i in range(scale.size):
        if scale[i] != last:  # most are the same as the one before
            last, log_last = scale[i], math.log(abs(scale[i]))
        log_volume += log_last
        of_phi[i] = precision[i] / scale[i] ** 2
        mean_of_phi[i] = offset[i] + scale[i] * mean[i]
    return of_phi, mean_of_phi, log_volume


@jit_kept
def integrate(
    entries: np.ndarray,
    blocks: np.ndarray,
    slope: np.ndarray,
    phi: np.ndarray,
    factor: float,
    precision: np.ndarray,
    mean: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Integrate levels out, as :class:`IntegratedLevels` says.

    Given are their blocks of K, the slope of Q at φ, κ, w and c. φ is left with the levels at their
    mean. Return C⁻¹ g, C, and what is added to ℓ + κQ + ½ Σ log w; NaN if a C does not exist.
    """
    n_groups, width = entries.shape
    halfway, cholesky, added = np.empty((n_groups, width)), np.zeros(blocks.shape), 0.0
    for g in range(n_groups):
        for i in range(width):
            here, curved = entries[g, i], 0.0
            for j in range(width):
                curved += blocks[g, i, j] * (mean[entries[g, j]] - phi[entries[g, j]])
            added += factor * (mean[here] - phi[here]) * (slope[here] - 0.5 * curved)
            total = factor * (slope[here] - curved)
            for j in range(i + 1):
                entry = factor * blocks[g, i, j] + (precision[here] if i == j else 0.0)
                for k in range(j):
                    entry -= cholesky[g, i, k] * cholesky[g, j, k]
                if i > j:
                    cholesky[g, i, j] = entry / cholesky[g, j, j]
                    total -= cholesky[g, i, j] * halfway[g, j]
                elif entry > 0.0:
                    cholesky[g, i, i] = math.sqrt(entry)
                    added -= 0.5 * math.log(entry)
                else:
                    return halfway, cholesky, math.nan
            halfway[g, i] = total / cholesky[g, i, i]
            added += 0.5 * halfway[g, i] ** 2
        for i in range(width):
            phi[entries[g, i]] = mean[entries[g, i]]
    for i in range(phi.size):
        added -= 0.5 * precision[i] * (phi[i] - mean[i]) ** 2
    return halfway, cholesky, added


def log_density(scales: Scales, phi: np.ndarray, of_rows: float) -> float:
    """Return log p(h, φ), up to a constant."""
    away = phi - scales.mean
    return scales.level + scales.factor * of_rows - 0.5 * float(scales.precision @ away**2)


def find_linear(surrogate: Surrogate) -> LinearModel | None:
    """Return the posterior in the form above; None if it is not of this form."""
    field, expansion = surrogate.field, surrogate.expansion
    if not expansion.is_exact or surrogate.cubics:
        return None
    effects = _matched(field, surrogate.center)
    if effects is None:
        return None
    model, rng = LinearModel(surrogate, effects), np.random.default_rng(15)
    seen = []
    for radius in CHECKED:
        away = radius * field.spread * rng.standard_normal(surrogate.center.size)
        point = surrogate.center + away
        predictor, scales = surrogate.read(point), model.scales(point[field.hyper])
        phi = scales.offset + scales.scale * point[effects]
        terms = np.abs(scales.offset) + np.abs(scales.scale * point[effects])
        if compare(phi, predictor.phi[model.entries], allowed=TOLERANCE * terms) is not None:
            return None
        here = model.here(point[field.hyper], scales, phi)
        jacobian = float(np.log(np.abs(scales.scale)).sum())
        modelled = log_density(scales, phi, here.of_rows) + jacobian
        seen.append((surrogate.log_density(point, predictor), modelled, scales.precision.min()))
    truth, modelled, least = np.array(seen).T
    wrong, size = np.abs(np.diff(truth - modelled)), np.abs(truth) + np.abs(modelled)
    is_linear = np.all(wrong <= TOLERANCE * (size[1:] + size[:-1])) and np.all(least > 0)
    return model if is_linear else None


def _matched(field: LatentField, center: np.ndarray) -> np.ndarray | None:
    """Return the position of the effect that each entry of φ reads; None if it reads others."""
    projector = field.projector_at(center)
    dense = sparse.csr_array(projector.dense)
    dense.eliminate_zeros()
    is_square = (
        dense.shape[0] == dense.shape[1] and projector.blocks.shape[1] == projector.blocks.shape[2]
    )
    if not is_square or np.any(np.diff(dense.indptr) != 1):
        return None
    off = projector.blocks * (1.0 - np.eye(projector.blocks.shape[1]))
    crossed = not is_empty(projector.cross) and np.any(sparse.csr_array(projector.cross).data)
    if crossed or np.any(off) or np.unique(dense.indices).size < dense.shape[0]:
        return None
    return np.concatenate([field.latent.dense[dense.indices], field.latent.groups.ravel()])
