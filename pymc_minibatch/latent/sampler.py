"""Sampling of a model with effects: set-up once, then draws.

What rows read gives the grouping factors and the latent field; a search finds where to expand; the
moves are put together with the acceptance test, compiled, and called draw by draw.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.jit.cores import one_blas_thread
from pymc_minibatch.latent.coordinates import Coordinates
from pymc_minibatch.latent.deciding import DecisionState
from pymc_minibatch.latent.factors import Factor
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.hyper_coordinates import HyperCoordinates
from pymc_minibatch.latent.linear import LinearMoves
from pymc_minibatch.latent.linear_model import find_linear
from pymc_minibatch.latent.moves import costs
from pymc_minibatch.latent.moves.border import Border, BorderTuner
from pymc_minibatch.latent.moves.collapsed import collapsed_pairs, following
from pymc_minibatch.latent.moves.decisions import Decisions, MoveCounts
from pymc_minibatch.latent.moves.kernels import MOST_AT_ONCE
from pymc_minibatch.latent.moves.protocol import EffectsModel, Planned
from pymc_minibatch.latent.moves.scan import LatentMoves, Tuning, moves_of, plan_scan
from pymc_minibatch.latent.moves.trajectory import Angle, Trajectory
from pymc_minibatch.latent.moves.tuners import (
    HyperFrequency,
    HyperScale,
    StepSizes,
    Sweeping,
)
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.latent.search import LatentReference
from pymc_minibatch.latent.skew_transform import SkewTransform, find_tails
from pymc_minibatch.latent.weight_check import Contradiction
from pymc_minibatch.tall import TallModel

__all__ = ["LatentSampler", "LatentState"]

FAR_OUT = 10.0
"""Standard deviations of the squared distance from the mode beyond which a chain does not start."""

WIDER = 2.0
"""Chains start so many times wider than the posterior, so that R-hat sees where they differ."""

STARTS, HALVINGS = 30, 30
"""How often a start is drawn anew where the density is zero, and then moved half of the way back to
the point that the chain was given."""


class LatentState(NamedTuple):
    """What tuning changes.

    Attributes
    ----------
    scale : HyperScale
        Where the hyperparameters are thought to be.
    frequency : HyperFrequency
        How often all of them move.
    tuners : dict
        The tuner of each move, by its name.
    tests : dict of DecisionState
        What is tuned of the tests that decide, by the name of a move; empty if no batch decides.
    """

    scale: HyperScale
    frequency: HyperFrequency
    tuners: dict[str, Any]
    tests: dict[str, DecisionState]


class LatentSampler(ABC):
    """Draws from the posterior of a model with effects; what decides on moves is left open.

    Parameters
    ----------
    tall
        The model.
    reference
        Where the log-likelihood is expanded, or bounds of it.

    Attributes
    ----------
    sweeping : Sweeping
        How factors are swept.
    evaluations : (int, int)
        Values and gradients for each row that counts as evaluated.
    by_batches : bool
        Whether batches of rows decide.
    expected_rows : float
        About so many rows of a batch decide on a move.
    has_slopes : bool
        Whether all rows do, and give slopes.
    """

    sweeping = Sweeping()
    evaluations = 2, 2
    by_batches = False
    expected_rows = 0.0
    has_slopes = False

    def __init__(self, tall: TallModel, reference: LatentReference) -> None:
        self.tall, self.reference = tall, reference
        surrogate = reference.surrogate
        schur = surrogate.conditional(reference.hyper).factor.schur
        self.work, self.has_determinant = schur.work, schur.has_determinant
        self.collapsed = collapsed_pairs(surrogate) if self.costly else None
        if not self.has_determinant and (self.collapsed is None or find_linear(surrogate) is None):
            raise NoFieldError(
                f"{self.field.latent.dense.size:,} coefficients and effects are outside of the "
                "largest grouping factor, and are not normal given their scales."
            )
        hyper, base = reference.hyper, self.field.hyper_coordinates
        if self.collapsed is not None:  # each hyperparameter moves by itself
            base = HyperCoordinates.none(hyper.size)
        self.tails = SkewTransform.none(base, base.from_hyper(hyper))
        if hyper.size <= MOST_AT_ONCE and not self.costly:
            moments = self.tails.moments(hyper, reference.hyper_cholesky)
            self.tails = find_tails(surrogate.log_marginal_in, *moments, base)

    @property
    @abstractmethod
    def decisions(self) -> Decisions:
        """What decides on moves."""

    def levels_of_rows(self, factors: Sequence[Factor]) -> list[np.ndarray]:
        """Return the level of each row, shape (N,), for each factor that is swept."""
        by_entries = {id(factor.entries): factor.row_levels for factor in factors}
        return [by_entries[id(levels.rows)] for levels in self.field.levels]

    @property
    def field(self) -> LatentField:
        """The hyperparameters and the latent variables."""
        return self.reference.surrogate.field

    @property
    def coordinates(self) -> Coordinates:
        """Those of the model and those of the field, to and fro."""
        return self.field.derivatives.coordinates

    @property
    def costly(self) -> bool:
        """Whether a scan costs more than an evaluation of all rows."""
        n_read = self.tall.n_rows if self._follows_trajectories else 0
        return costs.is_costly(self.field, self.work, n_read) or not self.has_determinant

    @property
    def _follows_trajectories(self) -> bool:
        return self.has_slopes and self.reference.surrogate.kinks is None

    @property
    def fixed_cost(self) -> float:
        """What a scan costs apart from reading rows, in rows, with its share of factorizations."""
        share = costs.factoring_share(self.field, self.collapsed, self.work)
        return costs.overhead(self.field, share * self.work)

    @cached_property
    def model(self) -> EffectsModel:
        """What moves are planned for."""
        reference = self.reference
        return EffectsModel(
            reference.surrogate,
            reference.hyper,
            reference.hyper_cholesky,
            tails=self.tails,
            work=self.work,
            collapsed=self.collapsed,
            has_determinant=self.has_determinant,
            costly=self.costly,
            has_slopes=self._follows_trajectories,
            sweeping=self.sweeping,
            followers=self._followers,
            expected_rows=self.expected_rows,
            all_rows=0 if self.by_batches else self.tall.n_rows,
        )

    @property
    def _followers(self) -> Sequence[np.ndarray]:
        """Positions of the effects that follow each hyperparameter, if these are many."""
        many = self.reference.hyper.size > MOST_AT_ONCE
        if not many or self.collapsed is not None or not self.has_determinant:
            return ()
        return following(self.reference.surrogate) or ()

    @cached_property
    def linear(self) -> LinearMoves | None:
        """Moves of a linear model with large crossed factors, if it is one."""
        if self.collapsed is None:
            return None
        linear = find_linear(self.reference.surrogate)
        return None if linear is None else LinearMoves(linear, self.model)

    @cached_property
    def plan(self) -> Sequence[Planned]:
        """The moves of a scan."""
        return plan_scan(self.model) if self.linear is None else self.linear.plan

    @cached_property
    def moves(self) -> LatentMoves:
        """What makes scans."""
        return self.linear or LatentMoves(self.model, self.decisions, self.plan)

    def initial_state(self) -> LatentState:
        """Return the state before tuning."""
        reference = self.reference
        moments = self.tails.moments(reference.hyper, reference.hyper_cholesky)
        scale = HyperScale.of(*moments)
        tuners = {name: move.initial() for name, move in moves_of(self.plan).items()}
        by_sums = self.reference.is_exact
        return LatentState(scale, HyperFrequency.of(self.field.hyper.size, by_sums), tuners, {})

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is rebuilt in the process of a chain."""
        return {
            name: value
            for name, value in self.__dict__.items()
            if not isinstance(getattr(type(self), name, None), cached_property)
        }

    def draw(
        self,
        rng: np.random.Generator,
        point: np.ndarray,
        n_scans: int,
        tuning: bool,
        state: LatentState,
    ) -> MoveCounts:
        """Move a point of the model in place by scans of all moves; tune."""
        counts = MoveCounts()
        self.field.derivatives.angles.redraw_copies(rng, point)
        inside = self.coordinates.from_model(point)
        with one_blas_thread():
            for _ in range(n_scans):
                self.make_scan(rng, inside, tuning, state, counts)
                if counts.impossible_row >= 0:
                    break
                if tuning:
                    w = self.tails.from_hyper(inside[self.field.hyper])
                    state.scale.observe(w)
                    state.frequency.observe(w)
        point[:] = self.coordinates.to_model(inside)
        return counts

    def make_scan(
        self,
        rng: np.random.Generator,
        inside: np.ndarray,
        tuning: bool,
        state: LatentState,
        counts: MoveCounts,
    ) -> None:
        """Make one scan of all moves."""
        self.moves.draw(rng, inside, self.settings(state, tuning), counts)

    def settings(self, state: LatentState, tuning: bool) -> Tuning:
        """Return what moves are made with."""
        return Tuning(tuning, *state)

    def compile(self) -> None:
        """Compile all moves, by one scan that is thrown away."""
        point = self.coordinates.to_model(self.reference.surrogate.center).copy()
        rng = np.random.default_rng(0)
        self.draw(rng, point, 1, False, self.initial_state())
        self.moves.forget()

    def forget(self) -> None:
        """Forget what moves keep in memory, which an interrupt may leave half written."""
        self.moves.forget()

    def contradicted(self, point: np.ndarray) -> Contradiction | None:
        """Return a level that is where its own rows object, which only batches can overlook."""
        return None

    def scale(self, state: LatentState) -> float:
        """Return the sine of the angle of moves of the border, or of steps of trajectories."""
        tuner = state.tuners.get(Border.name, state.tuners.get(Trajectory.name))
        if isinstance(tuner, Angle):
            return float(np.sin(tuner.angle))
        step_sizes = tuner.step_sizes if isinstance(tuner, BorderTuner) else StepSizes.untuned()
        return float(np.sin(step_sizes.angle))

    def end_tuning(self, state: LatentState) -> None:
        """Take the settings that did best."""
        for name, move in moves_of(self.plan).items():
            move.settle(state.tuners[name])

    def near_mode(self, rng: np.random.Generator, point: np.ndarray) -> np.ndarray:
        """Return a random point about the mode, wider than the posterior, if `point` is far off.

        One where the density is zero, such as beyond a hard constraint, is drawn anew, and in the
        end moved towards `point`.
        """
        inside = self.coordinates.from_model(point)
        for _ in range(STARTS):
            start = self.start(rng, inside)
            if start is inside:
                return point
            start = self.coordinates.to_model(start)
            if self._is_possible(start):
                return start
        for _ in range(HALVINGS):
            start = (start + point) / 2
            if self._is_possible(start):
                return start
        return point

    def _is_possible(self, point: np.ndarray) -> bool:
        """Whether the log-density is finite at a point of the model."""
        if not np.isfinite(self.tall.compiled_prior_logp(point)):
            return False
        return bool(np.isfinite(self.tall.trial_logp(self.tall.layout.unflatten(point))))

    def start(self, rng: np.random.Generator, point: np.ndarray) -> np.ndarray:
        """Return a point near the mode if a point is far off, else the point."""
        if self._is_near(point):
            return point
        here, center = self._log_density(point), self.reference.surrogate.center
        there = self._log_density(center)
        if here > there or not np.isfinite(there):
            return point
        start = self._start_about(rng, here)
        return center.copy() if start is None else start

    def _start_about(self, rng: np.random.Generator, least: float) -> np.ndarray | None:
        """Return a random point about the mode with more than a log-density, if there is one."""
        reference = self.reference
        wide = reference.hyper_cholesky @ rng.standard_normal(reference.hyper.size)
        dense, groups = self.field.latent.noise(rng)
        for wider in (WIDER, 1.0, 0.0):
            hyper = reference.hyper + wider * np.clip(wide, -1, 1)
            given = reference.surrogate.factored_later(hyper)
            if given.is_proper:
                start = given.frame.color((wider * dense, min(wider, 1.0) * groups))
                if self._log_density(start) > least:
                    return start
        return None

    def _is_near(self, point: np.ndarray) -> bool:
        """Whether a point is where the approximation has its mass."""
        parts = self.reference.whiten(point)
        if parts is None or np.abs(parts[0]).max(initial=0.0) > FAR_OUT:
            return False
        size = sum(part.size for part in parts)
        return sum(float(np.sum(p**2)) for p in parts) < size + FAR_OUT * math.sqrt(2 * size)

    def _log_density(self, point: np.ndarray) -> float:
        """Return that of the posterior, from all rows; -inf where it is not a number."""
        return self.reference.log_density(point)

    presumes = "expansion and remainder add up to the log-likelihood of each row"
    """What decisions rest on, in words."""

    def describe(self) -> str:
        """Say in words what moves how."""
        layout, levels = self.field.latent, self.field.levels
        beside = layout.dense.size - sum(level.latent.size for level in levels[1:])
        joint = f"joint updates of hyperparameters ({self.field.hyper.size}) with effects"
        parts = [f"{joint} and of coefficients ({beside})" if beside else joint]
        parts += [self._described(k) for k in range(len(levels))]
        return "; ".join(parts)

    def _described(self, factor: int) -> str:
        """Say how many levels a factor has."""
        return f"a factor of {self.field.levels[factor].latent.shape[0]:,} levels"
