"""Moves of a latent field decided by the bright rows of Firefly Monte Carlo, which is exact.

Bounds Bₙ ≤ Lₙ that are quadratic in what rows read are quadratic in φ, and so is Σ log Bₙ. With its
curvature in place of the likelihood's, the surrogate is no approximation: it is the density of
prior and bounds,

    log π̃(θ) = log p₀(θ) + Σₙ log Bₙ(θ) + a constant.

Given which rows are bright, that of a point is π̃(θ) Π_{bright} L̃ₙ(θ), with L̃ₙ = Lₙ/Bₙ − 1. So the
moves of :mod:`.moves`, which follow π̃, are decided by the bright rows alone: all of them where all
that rows read changes, those of each level in a sweep. Before each round rows turn bright and dark
(:mod:`pymc_minibatch.kernels.firefly`).

References
----------
Maclaurin and Adams (2014), Firefly Monte Carlo: exact MCMC with subsets of data.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Literal

import numpy as np

from pymc_minibatch.bounds.choose import recognised
from pymc_minibatch.bounds.pinned import looser_than_most
from pymc_minibatch.bounds.quadratic import QuadraticBound
from pymc_minibatch.bounds.rows import BoundedRows
from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.cores import one_blas_thread
from pymc_minibatch.kernels.firefly import (
    ALL,
    IMPLICIT,
    Tuning,
    first_q,
    make_look,
    make_z_update,
    restore,
    tune_q,
)
from pymc_minibatch.latent.expansion import expand
from pymc_minibatch.latent.factors import Factor
from pymc_minibatch.latent.gathering import Gathering
from pymc_minibatch.latent.locate import LatentModel, locate, structure_with_effects
from pymc_minibatch.latent.moves.decisions import Candidate, Decisions, LevelMoves, MoveCounts
from pymc_minibatch.latent.moves.tuners import Sweeping
from pymc_minibatch.latent.sampler import LatentSampler, LatentState
from pymc_minibatch.latent.search import LatentReference
from pymc_minibatch.latent.surrogate import PredictorState, Surrogate
from pymc_minibatch.reference.density import Density
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.updates.update import BrightnessState, new_brightness

__all__ = ["FireflySampler", "bounded", "make_firefly_sampler"]

TRIAL_POINTS = 8
"""Points about the mode at which bounds are verified, and seen how loose they are."""

FAR = 10.0
"""Bounds are also verified so many times as far out."""

LOOSE = 0.05
"""Rows that would be bright so often are read always.

Levels move by themselves here, so that a bright row is less in the way than where all variables
move at once.
"""

Z_COST = 4.0
"""Rows that the updates of z in a round read for each one that its moves read."""

SWEEPING = Sweeping(times=4, shorter=0.7, mirrors=True)
"""Bright rows keep a level away from where their bounds touch, on one side and as far out as it is.

Then moves that are short or mirrored leave it sooner than independent ones, and a sweep takes few
rows. In groups of rare outcomes, whose bounds are loose, this is worth most."""


@cache
def kernels() -> tuple[Callable[..., None], Callable[..., None]]:
    """Compile what reads bright rows and turns them, by their numbers: once for all models."""
    return jit_kept(make_look(()), ["by number"]), jit_kept(make_z_update(()), ["by number"])


class FireflyDecisions(Decisions):
    """Which rows are bright, and decisions by them.

    Parameters
    ----------
    density
        The gaps of rows by their number.
    pinned : ndarray of int64
        Rows that are always read; their gaps count in place of log L̃.
    row_levels : sequence of ndarray, shape (N,)
        For each grouping factor that is swept the level of each row.
    tolerance
        Negative gaps up to this size are rounding errors.
    rows, at, data
        The gaps of all rows, where their bounds touch, and the rows.

    Attributes
    ----------
    q : float
        The probability to propose that a dark row turns bright.
    brightness : BrightnessState
        The bright rows, with log L̃ at the current point.
    gaps : ndarray
        The gaps there of the rows that are always read.
    counts : ndarray, shape (5,)
        Rows read at a point, and a row whose bound is above its likelihood, or -1, with its gap; as
        :func:`~pymc_minibatch.kernels.firefly.make_iterations` has them.
    """

    def __init__(
        self,
        density: Density,
        pinned: np.ndarray,
        row_levels: Sequence[np.ndarray],
        tolerance: float,
        rows: BoundedRows,
        at: np.ndarray,
        data: tuple[np.ndarray, ...],
    ) -> None:
        self.rows, self.at, self.data = rows, at, data
        self.density, self.pinned, self.row_levels = density, pinned, row_levels
        self.tolerance, self.q = tolerance, 0.5
        self.brightness: BrightnessState = new_brightness(density.data[0].size, pinned)
        self.gaps, self._proposed = np.zeros(pinned.size), np.zeros(pinned.size)
        self.counts = np.array([0.0, 0.0, -1.0, 0.0, 0.0])
        self._look, self._update_z = kernels()

    @property
    def bright(self) -> np.ndarray:
        """The numbers of the bright rows."""
        return self.brightness.bright[: self.brightness.n_bright[0]]

    def refresh(self, rng: np.random.Generator, predictor: PredictorState) -> None:
        """Let some rows turn bright and dark."""
        self._turn(rng, predictor.phi, IMPLICIT, self.q)

    def redraw_z(self, rng: np.random.Generator, phi: np.ndarray) -> None:
        """Draw anew which rows are bright."""
        self._turn(rng, phi, ALL, 1.0)
        self._read(phi)
        self.gaps[:] = self._proposed

    def _turn(self, rng: np.random.Generator, phi: np.ndarray, how: int, q: float) -> None:
        density, brightness, tolerance, counts = (
            self.density,
            self.brightness,
            self.tolerance,
            self.counts,
        )
        self._update_z(rng, phi, density, brightness, how, 0, q, tolerance, counts)

    def on_all(self, rng: np.random.Generator, move: Candidate, counts: MoveCounts) -> bool:
        """Decide by all bright rows, given the log ratio of prior and bounds."""
        change = self._changes(move.predictors, counts)
        accepted = bool(-rng.standard_exponential() < move.log_ratio + change.sum())
        if accepted:
            self._keep(np.ones(change.size, dtype=np.bool_))
        return accepted

    def on_levels(
        self, rng: np.random.Generator, moves: LevelMoves, counts: MoveCounts
    ) -> np.ndarray:
        """Let each level decide by its own bright rows."""
        predictors, factor, moving, undecided = moves[:4]
        change = self._changes(predictors, counts)
        levels = self.row_levels[factor][np.concatenate([self.bright, self.pinned])]
        totals = undecided + np.bincount(levels, change, minlength=moving.size)
        accepted = moving & (-rng.standard_exponential(moving.size) < totals)
        self._keep(accepted[levels])
        return accepted

    def of_rows(self, move: Candidate) -> float:
        """Return what the gaps of all rows add, whichever of them are bright.

        With z summed out, Bₙ + (Lₙ − Bₙ) = Lₙ is left of a row.
        """
        return float(self._gaps(move.predictors).sum())

    def of_rows_by_level(self, moves: LevelMoves) -> np.ndarray:
        """Return what the gaps of all rows of each level add."""
        changes = self._gaps(moves.predictors)
        return np.bincount(self.row_levels[moves.factor], changes, minlength=moves.moving.size)

    def _gaps(self, predictors: tuple[PredictorState, PredictorState]) -> np.ndarray:
        """Return how the gap of each row changes, shape (N,)."""
        first, second = (predictor.phi for predictor in predictors)

        def change(*batch: np.ndarray) -> np.ndarray:
            before, after = self.rows.remainders(first, second, self.at, batch)
            return after - before

        return np.concatenate([part for _, part in over_chunks(change, self.data)])

    def _changes(
        self, predictors: tuple[PredictorState, PredictorState], counts: MoveCounts
    ) -> np.ndarray:
        """Return how log L̃ of bright rows changes, and then the gaps of those always read."""
        before = self.counts[0]
        self._read(predictors[1].phi)
        counts.n_evaluated += int(self.counts[0] - before)
        counts.impossible_row = max(counts.impossible_row, int(self.counts[2]))
        n_bright, brightness = self.brightness.n_bright[0], self.brightness
        of_bright = brightness.proposed[:n_bright] - brightness.log_odds[:n_bright]
        return np.concatenate([of_bright, self._proposed - self.gaps])

    def _read(self, phi: np.ndarray) -> None:
        self._look(
            phi,
            self.density,
            self.brightness,
            self.pinned,
            self._proposed,
            self.tolerance,
            self.counts,
        )

    def _keep(self, moved: np.ndarray) -> None:
        """Take what was read at the proposed point for the rows that have moved there."""
        n_bright = self.brightness.n_bright[0]
        np.copyto(
            self.brightness.log_odds[:n_bright],
            self.brightness.proposed[:n_bright],
            where=moved[:n_bright],
        )
        np.copyto(self.gaps, self._proposed, where=moved[n_bright:])


class FireflySampler(LatentSampler):
    """Moves on which bright rows decide.

    Parameters
    ----------
    tall
        The model.
    reference
        Prior and bounds, and the hyperparameters where these touch.
    rows
        Gaps of rows.
    factors
        The grouping factors.
    pinned
        Rows that are always read.
    tolerance
        Negative gaps up to this size are rounding errors.
    q
        The probability to propose that a dark row turns bright; tuned if not given.
    """

    sweeping = SWEEPING
    presumes = "bound and gap add up to the log-likelihood of each row"

    def __init__(
        self,
        tall: TallModel,
        reference: LatentReference,
        rows: BoundedRows,
        factors: Sequence[Factor],
        pinned: np.ndarray,
        tolerance: float,
        q: float | None = None,
    ) -> None:
        super().__init__(tall, reference)
        self.rows, self.pinned, self.tolerance, self.q = rows, pinned, tolerance, q
        self.row_levels = self.levels_of_rows(factors)
        self.z_tuning = self.new_z_tuning()
        self._z_drawn_at: np.ndarray | None = None

    def new_z_tuning(self) -> Tuning:
        """Return what tuning changes of the updates of z, before they start."""
        q = -1.0 if self.q is None else self.q
        return Tuning(np.zeros(1), np.zeros(1), np.array([q]), np.zeros(1))

    @cached_property
    def _gathering(self) -> Gathering:
        return Gathering(self.rows, self.reference.surrogate.expansion.at, self.tall.data)

    @cached_property
    def decisions(self) -> FireflyDecisions:
        """What decides on moves."""
        return FireflyDecisions(
            self._gathering.gaps,
            self.pinned,
            self.row_levels,
            self.tolerance,
            rows=self.rows,
            at=self.reference.surrogate.expansion.at,
            data=self.tall.data,
        )

    @property
    def violation(self) -> tuple[int, float]:
        """A row whose bound lies above its likelihood, or -1, with its gap."""
        row, gap = self.decisions.counts[2:4]
        return int(row), float(gap)

    @property
    def fireflies(self) -> tuple[np.ndarray, ...]:
        """Bright rows, their log odds, gaps of others, and where they and bounds were found.

        Empty before the start.
        """
        if self._z_drawn_at is None:
            return ()
        lit, touches = self.decisions, self.reference.surrogate.expansion.at
        odds = lit.brightness.log_odds[: lit.bright.size]
        found = lit.bright, odds, lit.gaps, self._z_drawn_at, touches
        return tuple(values.copy() for values in found)

    @fireflies.setter
    def fireflies(self, stored: tuple[np.ndarray, ...]) -> None:
        self._z_drawn_at = None
        if not stored:
            if "decisions" in self.__dict__:
                restore(self.decisions.brightness, np.empty(0, np.int64), np.empty(0))
            return
        bright, log_odds, gaps, lit_at, touches = stored
        if np.allclose(touches, self.reference.surrogate.expansion.at, rtol=1e-6, atol=1e-8):
            self._z_drawn_at, self.decisions.gaps[:] = lit_at, gaps
            restore(self.decisions.brightness, bright, log_odds)

    def draw(
        self,
        rng: np.random.Generator,
        point: np.ndarray,
        n_scans: int,
        tuning: bool,
        state: LatentState,
    ) -> MoveCounts:
        """Move a point of the model in place, and let rows turn bright and dark before each round.

        If the point is not that of the last draw, which rows are bright is drawn anew.
        """
        before = self.decisions.counts[0]
        if self._z_drawn_at is None or not np.array_equal(self._z_drawn_at, point):
            self.redraw(rng, point)
        counts = super().draw(rng, point, n_scans, tuning, state)
        counts.n_evaluated = int(self.decisions.counts[0] - before)
        self._z_drawn_at = point.copy()
        return counts

    def redraw(self, rng: np.random.Generator, point: np.ndarray) -> None:
        """Draw anew which rows are bright at a point."""
        lit, q = self.decisions, self.z_tuning.q
        lit.counts[2] = -1
        phi = self.reference.surrogate.phi(self.coordinates.from_model(point))
        lit.redraw_z(rng, phi)
        if q[0] < 0.0:
            q[0] = first_q(lit.bright.size, self.tall.n_rows)

    def make_scan(
        self,
        rng: np.random.Generator,
        inside: np.ndarray,
        tuning: bool,
        state: LatentState,
        counts: MoveCounts,
    ) -> None:
        """Make all moves; tune q."""
        lit, z_tuning, evaluated = self.decisions, self.z_tuning, counts.n_evaluated
        lit.q = float(z_tuning.q[0])
        super().make_scan(rng, inside, tuning, state, counts)
        counts.n_bright += lit.bright.size
        if tuning:
            z_tuning.n_corrections[0] += 1
            n_updates = 1 + self.sweeping.times * len(self.field.levels)
            z_cost = Z_COST / n_updates if self.q is None else 0.0
            tune_q(z_tuning, counts.n_evaluated - evaluated, z_cost, self.tall.n_rows)

    def compile(self) -> None:
        """Compile all moves, by one scan that is thrown away."""
        super().compile()
        self._z_drawn_at, self.z_tuning = None, self.new_z_tuning()


def make_firefly_sampler(
    tall: TallModel, bound: Literal["auto"] | QuadraticBound, q: float | None = None
) -> FireflySampler:
    """Set up; q is the probability to propose that a dark row turns bright, tuned if not given.

    Raises
    ------
    NoFieldError
        If the model has no latent field that is nearly Gaussian given a few hyperparameters.
    NoBoundError, BoundError
        If the likelihood has no known bound, or rows read more than its predictor.
    ValueError
        If the bound is for another likelihood.
    """
    structure = structure_with_effects(tall)
    rows = BoundedRows(tall, structure, *recognised(tall, bound))
    return bounded(tall, rows, locate(tall, 1.0), q)


def bounded(
    tall: TallModel, rows: BoundedRows, latent_model: LatentModel, q: float | None = None
) -> FireflySampler:
    """Put bounds below the rows of a model whose mode is known.

    Raises
    ------
    NoBoundError, BoundError
        If they are found not to be bounds, or of another likelihood.
    """
    found, field = latent_model.reference.surrogate, latent_model.reference.surrogate.field
    at = found.expansion.at
    with one_blas_thread():
        bounds = expand(rows, tall.data, at, field.rows, 1.0)
        surrogate = Surrogate(tall, field, bounds, found.center)
        start = found.phi(field.derivatives.coordinates.from_model(tall.start))
        predictors = [found.phi(point) for point in _points(latent_model.reference)]
        rows.check(tall, at, [start, *predictors, *(at + FAR * (phi - at) for phi in predictors)])
        pinned = looser_than_most(_mean_gaps(tall, rows, at, predictors), LOOSE)
        reference = replace(latent_model.reference, surrogate=surrogate)
        tolerance = rows.tolerance(at, tall)
        return FireflySampler(tall, reference, rows, latent_model.factors, pinned, tolerance, q)


def _points(reference: LatentReference) -> Iterator[np.ndarray]:
    """Draw points about the mode."""
    surrogate, rng = reference.surrogate, np.random.default_rng(20140406)
    for _ in range(TRIAL_POINTS):
        away = reference.hyper_cholesky @ rng.standard_normal(reference.hyper.size)
        given = surrogate.conditional(reference.hyper + np.clip(away, -1.0, 1.0))
        yield given.frame.color(given.layout.noise(rng))


def _mean_gaps(
    tall: TallModel, rows: BoundedRows, at: np.ndarray, predictors: Sequence[np.ndarray]
) -> np.ndarray:
    """Average the gap of each row over some φ, in one pass."""

    def mean(*batch: np.ndarray) -> np.ndarray:
        pairs = zip(predictors[::2], predictors[1::2], strict=True)
        return np.mean([rows.remainders(*pair, at, batch) for pair in pairs], axis=(0, 1))

    return np.concatenate([part for _, part in over_chunks(mean, tall.data, "Sizing the gaps")])
