"""Moves of linear models with large crossed factors, whose effects are normal given their scales.

Where sums say everything of the rows (:mod:`.sums`), each entry of φ is one effect times a scale
that h determines, and effects are independent and normal a priori, the posterior is

    log p(h, φ) = ℓ(h) + κ(h) Q(φ) + ½ Σ log wᵢ(h) − ½ Σ wᵢ(h) (φᵢ − cᵢ(h))²,
    Q(φ) = Gᵀδ − ½ δᵀKδ,   δ = φ − φ̂,

whether effects are centred or not: c and 1/w are what the prior says of φ, given h. So h changes
numbers for each effect, and no matrix. A round of moves is made of

- one hyperparameter, the effects as rows read them held;
- one hyperparameter with a factor whose effects follow it: these are integrated out, and drawn
  anew whether or not it moves;
- the dense part, by itself or with a hyperparameter, the groups integrated out and drawn anew. It
  is proposed from the posterior given a usual h close by, whose precision has been factored before;
  how the two differ decides.

References
----------
Papaspiliopoulos, Roberts and Zanella (2020), Scalable inference for crossed random effects models.
Bates, Mächler, Bolker and Walker (2015), Fitting linear mixed-effects models using lme4, section 3.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.latent.arrowhead import (
    ArrowheadFactor,
    ArrowheadMatrix,
    is_empty,
    solve_blocks_transposed,
)
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.layout import BorderAndBlocks
from pymc_minibatch.latent.moves import FactorBank, MoveCounts, Tuning, Walks, moved_alone
from pymc_minibatch.latent.skew_transform import SkewTransform
from pymc_minibatch.latent.surrogate import Surrogate
from pymc_minibatch.tall.verify import compare

__all__ = ["LinearModel", "LinearMove", "LinearMoves", "Scales", "find_linear"]

CHECKED, TOLERANCE = (1e-3, 1e-2, 0.1, 1.0, 3.0), 1e-9
"""How far from the mode the form of the posterior is verified, in standard deviations of each
variable a priori, and relative errors."""

BANK_SIZE, MOST_ENTRIES = 16, 4e7
"""Hyperparameters for which the dense part is factored; fewer if that takes more numbers."""

CENTERED_IN_A_ROW = 2
"""Moves of a hyperparameter with φ held, in a round; one of those that also move with a factor."""

CARRIED_IN_A_ROW, DENSE_IN_A_ROW = 2, 2
"""Moves of a hyperparameter while its factor is integrated out, and of the dense part while the
groups are. Those after the first cost less."""


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


class LinearState(NamedTuple):
    """Where a chain is.

    Attributes
    ----------
    hyper, scales
        h and what it says.
    phi, curved : ndarray, shape (n,)
        φ and Kδ.
    of_rows : float
        Q.
    """

    hyper: np.ndarray
    scales: Scales
    phi: np.ndarray
    curved: np.ndarray
    of_rows: float


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
        """Return what is known of a place."""
        delta = phi - self.at
        curved = self.curvature_product(delta)
        return LinearState(hyper, scales, phi, curved, float((self.slope - 0.5 * curved) @ delta))

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


class LinearMove(NamedTuple):
    """A move before it is decided on.

    Attributes
    ----------
    kind : str
        "centered", "collapsed" or "dense".
    log_ratio : float
        Its log ratio, with what is integrated out left out.
    here, there : LinearState
        Before and after it. What is integrated out is the same at both, and means nothing.
    given, given_then : IntegratedLevels or None
        The levels that are integrated out, given all else at either end.
    axis : int
        The hyperparameter that moves; -1 for none.
    walks : bool
        Whether it walks by itself, and is not drawn from what is known of it.
    is_symmetric : bool
        Whether all its moves are steps of a walk.
    frames : tuple of BankFrame
        By which the dense part was, and would be, proposed.
    """

    kind: str
    log_ratio: float
    here: LinearState
    there: LinearState
    given: IntegratedLevels | None = None
    given_then: IntegratedLevels | None = None
    axis: int = -1
    walks: bool = False
    is_symmetric: bool = False
    frames: tuple[BankFrame, ...] = ()


class LinearMoves:
    """The moves of one model.

    Parameters
    ----------
    model
        Its posterior.
    collapsed
        Hyperparameters with the factors whose levels follow them, by number.
    tails
        Coordinates of the hyperparameters.
    """

    def __init__(
        self, model: LinearModel, collapsed: Sequence[tuple[int, int]], tails: SkewTransform
    ) -> None:
        self.model, self.collapsed = model, collapsed
        bank_size = int(min(BANK_SIZE, 1 + MOST_ENTRIES / (1 + model.n_dense**2)))
        self.bank = FactorBank(model.frame, tails, bank_size)
        rows, curvature = model.field.rows, model.surrogate.expansion.curvature
        self.groups = model.place[rows.groups], curvature.blocks
        self.factors = [
            (model.place[levels.rows], curvature.blocks_of(rows, levels.rows))
            for levels in model.field.levels
        ]
        self.walking = np.isin(np.arange(model.field.hyper.size), [axis for axis, _ in collapsed])
        self.listen: Callable[[LinearMove], None] | None = None

    def forget(self) -> None:
        """Forget all that is kept in memory."""
        self.bank.forget()

    def draw(
        self, rng: np.random.Generator, point: np.ndarray, settings: Tuning, counts: MoveCounts
    ) -> None:
        """Move a point in place by one round of all kinds of moves."""
        tuning, hyper_scale, walks = settings.is_on, settings.hyper_scale, settings.walks
        model, hyper = self.model, point[self.model.field.hyper]
        scales, n_collapsed = model.scales(hyper), len(self.collapsed)
        here = model.here(hyper, scales, scales.offset + scales.scale * point[model.effects])
        centered = walks.part(n_collapsed, walks.log_length.size)
        here = self._move_centered(rng, here, tuning, hyper_scale, centered)
        for i in rng.permutation(n_collapsed):
            here = self._move_collapsed(rng, here, tuning, int(i), hyper_scale, walks, counts)
        here, phi = self._move_dense(rng, here, hyper_scale, walks, counts)
        n_drawn = n_collapsed + 1
        counts.sweeps += n_drawn
        counts.accepted["groups"] += [1.0] * n_drawn
        point[model.field.hyper] = here.hyper
        point[model.effects] = (phi - here.scales.offset) / here.scales.scale

    def _move_centered(
        self,
        rng: np.random.Generator,
        here: LinearState,
        tuning: bool,
        hyper_scale: tuple[np.ndarray, np.ndarray],
        walks: Walks,
    ) -> LinearState:
        """Move each hyperparameter, φ held.

        Those that move with a factor too walk, since φ leaves them little room.
        """
        order = rng.permutation(here.hyper.size)
        for i in np.repeat(order, np.where(self.walking[order], 1, CENTERED_IN_A_ROW)):
            if self.walking[i]:
                hyper, log_q, walk = here.hyper.copy(), 0.0, True
                hyper[i] += math.exp(walks.log_length[i]) * rng.standard_normal()
            else:
                hyper, log_q, walk = moved_alone(
                    rng, here.hyper, int(i), hyper_scale, walks.log_length[i]
                )
            level, then = -rng.standard_exponential(), self.model.scales(hyper)
            log_ratio = log_density(then, here.phi, here.of_rows) + log_q
            log_ratio -= log_density(here.scales, here.phi, here.of_rows)
            if self.listen is not None:
                there = here._replace(hyper=hyper, scales=then)
                is_symmetric = bool(self.walking[i])
                self.listen(
                    LinearMove(
                        "centered",
                        log_ratio,
                        here,
                        there,
                        axis=int(i),
                        walks=walk,
                        is_symmetric=is_symmetric,
                    )
                )
            if level < log_ratio:
                here = here._replace(hyper=hyper, scales=then)
            if tuning and walk:
                walks.learn(int(i), log_ratio)
        return here

    def _given_others(
        self, here: LinearState, scales: Scales, factor: tuple[np.ndarray, np.ndarray]
    ) -> IntegratedLevels:
        """Return the levels of a factor given all else, at some h.

        Of the factor are given its entries and their blocks of K. The log density is NaN if the
        precision of a level is not positive definite.
        """
        entries, blocks = factor
        halfway, cholesky, added = integrate(
            entries,
            blocks,
            self.model.slope - here.curved,
            here.phi.copy(),
            scales.factor,
            scales.precision,
            scales.mean,
        )
        log_marginal = scales.level + scales.factor * here.of_rows + added
        return IntegratedLevels(entries, scales.mean[entries], halfway, cholesky, log_marginal)

    def _drawn(
        self, rng: np.random.Generator, here: LinearState, levels: IntegratedLevels
    ) -> np.ndarray:
        """Return φ with the levels of a factor drawn given all else."""
        phi = here.phi.copy()
        noise = rng.standard_normal(levels.halfway.shape)
        away = solve_blocks_transposed(levels.cholesky, levels.halfway + noise)
        phi[levels.entries] = levels.mean + away
        return phi

    def _move_collapsed(
        self,
        rng: np.random.Generator,
        here: LinearState,
        tuning: bool,
        i: int,
        hyper_scale: tuple[np.ndarray, np.ndarray],
        walks: Walks,
        counts: MoveCounts,
    ) -> LinearState:
        """Move a hyperparameter with a factor integrated out, and draw its levels anew."""
        axis, k = self.collapsed[i]
        factor = self.factors[k]
        given = self._given_others(here, here.scales, factor)
        for _ in range(CARRIED_IN_A_ROW):
            hyper, log_q, walk = moved_alone(
                rng, here.hyper, axis, hyper_scale, walks.log_length[i]
            )
            then = self.model.scales(hyper)
            given_then = self._given_others(here, then, factor)
            log_ratio = given_then.log_density - given.log_density + log_q
            if self.listen is not None:
                there = here._replace(hyper=hyper, scales=then)
                self.listen(
                    LinearMove(
                        "collapsed",
                        log_ratio,
                        here,
                        there,
                        given,
                        given_then,
                        axis=axis,
                        walks=walk,
                    )
                )
            accepted = bool(-rng.standard_exponential() < log_ratio)
            if accepted:
                here, given = here._replace(hyper=hyper, scales=then), given_then
            counts.accepted["hyper"].append(float(accepted))
            if tuning and walk:
                walks.tune(i, float(accepted))
        return self.model.here(here.hyper, here.scales, self._drawn(rng, here, given))

    def _move_dense(
        self,
        rng: np.random.Generator,
        here: LinearState,
        hyper_scale: tuple[np.ndarray, np.ndarray],
        walks: Walks,
        counts: MoveCounts,
    ) -> tuple[LinearState, np.ndarray]:
        """Move the dense part, every other time with a hyperparameter, the groups integrated out.

        The dense part is drawn whatever it was. So what decides is how much more likely each place
        is than its proposal. Return the last place, and its φ with the groups drawn anew.
        """
        model, dense = self.model, slice(self.model.n_dense)
        frame = last = self.bank.nearest(here.hyper, hyper_scale)
        given, weight = self._weighed(here, frame)
        for n in range(DENSE_IN_A_ROW):
            hyper, scales, log_q, axis, walk = here.hyper, here.scales, 0.0, -1, True
            if n % 2 and self.collapsed:
                i = int(rng.integers(len(self.collapsed)))
                axis, log_length = self.collapsed[i][0], walks.log_length[i]
                hyper, log_q, walk = moved_alone(rng, hyper, axis, hyper_scale, log_length)
                scales = model.scales(hyper)
            frame = self.bank.nearest(hyper, hyper_scale)
            phi = here.phi.copy()
            away = frame.factor.schur.solve_transposed(rng.standard_normal(model.n_dense))
            phi[dense] = frame.mode[dense] + away
            there = model.here(hyper, scales, phi)
            given_then, weight_then = self._weighed(there, frame)
            log_ratio = weight_then - weight + log_q
            if self.listen is not None:
                self.listen(
                    LinearMove(
                        "dense",
                        log_ratio,
                        here,
                        there,
                        given,
                        given_then,
                        axis=axis,
                        walks=walk,
                        is_symmetric=axis < 0,
                        frames=(last, frame),
                    )
                )
            accepted = bool(-rng.standard_exponential() < log_ratio)
            counts.accepted["dense"].append(float(accepted))
            if accepted:
                here, given, weight, last = there, given_then, weight_then, frame
        return here, self._drawn(rng, here, given)

    def _weighed(self, here: LinearState, frame: BankFrame) -> tuple[IntegratedLevels, float]:
        """Return the groups given the rest, and the log density of that less the proposal's."""
        given, proposed = (
            self._given_others(here, scales, self.groups) for scales in (here.scales, frame.scales)
        )
        return given, given.log_density - (proposed.log_density - frame.log_total)
