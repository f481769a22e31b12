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

from pymc_minibatch.acceptance.growing import FirstBatch
from pymc_minibatch.jit.cores import one_blas_thread
from pymc_minibatch.latent.coordinates import Coordinates
from pymc_minibatch.latent.deciding import DecisionState
from pymc_minibatch.latent.factors import Factor
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.linear import LinearMoves
from pymc_minibatch.latent.linear_model import find_linear
from pymc_minibatch.latent.moves import (
    COSTLY,
    DECIDED,
    MOST_AT_ONCE,
    PCN_ANGLES,
    Decisions,
    LatentMoves,
    MoveCounts,
    RandomBlocks,
    StepSizes,
    Sweeping,
    Tuning,
    Walks,
    collapsed_pairs,
    take_best,
)
from pymc_minibatch.latent.search import LatentReference
from pymc_minibatch.latent.skew_transform import SkewTransform, find_tails
from pymc_minibatch.latent.weight_check import Contradiction
from pymc_minibatch.reference.decide import log_density
from pymc_minibatch.tall import TallModel

__all__ = ["LatentSampler", "LatentState"]

FAR_OUT = 10.0
"""Standard deviations of the squared distance from the mode beyond which a chain does not start."""

WIDER = 2.0
"""Chains start so many times wider than the posterior, so that R-hat sees where they differ."""

STARTS, HALVINGS = 30, 30
"""How often a start is drawn anew where the density is zero, and then moved half of the way back to
the point that the chain was given."""

WINDOW = 100
"""Draws after which the moves of h are first made to fit what was seen; windows then double."""


class LatentState(NamedTuple):
    """What tuning changes.

    Attributes
    ----------
    current : ndarray of int64, shape (2 + F,)
        The length in use of moves of h, of the dense part, and of each factor.
    gains, costs : ndarray, shape (2 + F, K)
        What is known of all lengths.
    mean, cholesky : ndarray, shapes (H,) and (H, H)
        Where h is thought to be, in coordinates w (:mod:`.skew_transform`).
    log_length, n_moves : ndarray, shape (C + H,), or (C + 2H,) where there are many
        Walks in one dimension of h: of C that levels follow, then of all.
    log_parts, part_moves : ndarray, shape (1,)
        How a large dense part is split.
    seen : ndarray, shape (2 + H + H * H,)
        Draws in the window, its length, and the sums of w and of its squares.
    batch_size, test : ndarray of int64, shape (3,)
        Rows of the first batch, and which test decides, for kinds of moves on all rows; empty where
        no batch decides, as the next two.
    batch_tuning, moments : ndarray, shapes (3, 2) and (3, 3)
        What tunes them.
    """

    current: np.ndarray
    gains: np.ndarray
    costs: np.ndarray
    mean: np.ndarray
    cholesky: np.ndarray
    log_length: np.ndarray
    n_moves: np.ndarray
    log_parts: np.ndarray
    part_moves: np.ndarray
    seen: np.ndarray
    batch_size: np.ndarray
    batch_tuning: np.ndarray
    test: np.ndarray
    moments: np.ndarray

    @property
    def step_sizes(self) -> list[StepSizes]:
        """The lengths of moves of h, of the dense part, and of each factor, as views."""
        return [
            StepSizes(self.current[k : k + 1], self.gains[k], self.costs[k])
            for k in range(self.current.size)
        ]

    @property
    def parts(self) -> RandomBlocks:
        """How a large dense part is split, as views."""
        return RandomBlocks(self.log_parts, self.part_moves)

    @property
    def decisions(self) -> dict[str, DecisionState]:
        """What decides on kinds of moves, as views."""
        return {
            kind: DecisionState(
                FirstBatch(self.batch_size[k : k + 1], self.batch_tuning[k]),
                self.test[k : k + 1],
                self.moments[k],
            )
            for k, kind in enumerate(DECIDED)
        }


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
    """

    sweeping = Sweeping()
    evaluations = 2, 2
    by_batches = False

    def __init__(self, tall: TallModel, reference: LatentReference) -> None:
        self.tall, self.reference = tall, reference
        surrogate = reference.surrogate
        self.work = surrogate.conditional(reference.hyper).factor.schur.work
        self.collapsed = collapsed_pairs(surrogate) if self.costly else None
        hyper, self.tails = reference.hyper, SkewTransform.none(reference.hyper)
        if hyper.size <= MOST_AT_ONCE and not self.costly:
            self.tails = find_tails(surrogate.log_marginal, hyper, reference.hyper_cholesky)

    @property
    @abstractmethod
    def _decisions(self) -> Decisions:
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
    def _coordinates(self) -> Coordinates:
        return self.field.derivatives.coordinates

    @property
    def costly(self) -> bool:
        """Whether a round costs more than an evaluation of all rows."""
        return self.work > COSTLY

    def initial_state(self) -> LatentState:
        """Return the state before tuning."""
        size, n_kinds = self.field.hyper.size, 2 + len(self.field.levels)
        lengths = np.log(np.linalg.norm(self.reference.hyper_cholesky, axis=1) / 2)
        if size > MOST_AT_ONCE:
            lengths = np.concatenate([lengths, np.full(size, math.log(0.5))])
        if self.collapsed:
            of_pairs = [lengths[axis] for axis, _ in self.collapsed]
            lengths = np.concatenate([of_pairs, lengths])
        seen = np.zeros(2 + size + size**2)
        seen[1] = WINDOW
        return LatentState(
            np.zeros(n_kinds, dtype=np.int64),
            np.zeros((n_kinds, PCN_ANGLES.size)),
            np.zeros((n_kinds, PCN_ANGLES.size)),
            self.reference.hyper.copy(),
            self.reference.hyper_cholesky.copy(),
            lengths,
            np.zeros(lengths.size),
            np.zeros(1),
            np.zeros(1),
            seen,
            *no_batches(),
        )

    @cached_property
    def moves(self) -> LatentMoves | LinearMoves:
        """The moves of a scan."""
        surrogate, decisions = self.reference.surrogate, self._decisions
        if self.collapsed is not None:
            linear = find_linear(surrogate)
            if linear is not None:
                return LinearMoves(linear, self.collapsed, self.tails)
        return LatentMoves(
            surrogate, decisions, self.sweeping, self.work, self.collapsed, self.tails
        )

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
        n_rounds: int,
        tuning: bool,
        state: LatentState,
    ) -> MoveCounts:
        """Move a point of the model in place by rounds of all moves; tune."""
        counts = MoveCounts()
        inside = self._coordinates.from_model(point)
        with one_blas_thread():
            for _ in range(n_rounds):
                self._round(rng, inside, tuning, state, counts)
                if counts.impossible_row >= 0:
                    break
                if tuning:
                    self._observe(self.tails.from_hyper(inside[self.field.hyper]), state)
        point[:] = self._coordinates.to_model(inside)
        return counts

    def _round(
        self,
        rng: np.random.Generator,
        inside: np.ndarray,
        tuning: bool,
        state: LatentState,
        counts: MoveCounts,
    ) -> None:
        """Make one round of all moves."""
        self.moves.draw(rng, inside, self.settings(state, tuning), counts)

    def settings(self, state: LatentState, tuning: bool) -> Tuning:
        """Return what moves are made with."""
        return Tuning(
            tuning,
            state.step_sizes,
            (state.mean, state.cholesky),
            Walks(state.log_length, state.n_moves),
            state.parts,
        )

    def _observe(self, w: np.ndarray, state: LatentState) -> None:
        """Fit the moves of h to the draws of a window, at its end."""
        size, seen = w.size, state.seen
        seen[0] += 1
        seen[2 : 2 + size] += w
        seen[2 + size :] += np.outer(w, w).ravel()
        n = seen[0]
        if not size or n < seen[1]:
            return
        mean = seen[2 : 2 + size] / n
        covariance = seen[2 + size :].reshape(size, size) / n - np.outer(mean, mean)
        weight = n / (n + 10.0 * (size + 1))
        prior = state.cholesky @ state.cholesky.T
        state.mean[:] = weight * mean + (1 - weight) * state.mean
        state.cholesky[:] = np.linalg.cholesky(weight * covariance + (1 - weight) * prior)
        seen[0], seen[1], seen[2:] = 0.0, 2 * seen[1], 0.0

    def compile(self) -> None:
        """Compile all moves, by one round that is thrown away."""
        point = self._coordinates.to_model(self.reference.surrogate.center).copy()
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
        """Return the sine of the angle of the moves of the dense part, for the sample stats."""
        return float(np.sin(PCN_ANGLES[state.current[1]]))

    def end_tuning(self, state: LatentState) -> None:
        """Take the settings that did best."""
        for step_sizes in state.step_sizes:
            take_best(step_sizes)

    def near_mode(self, rng: np.random.Generator, point: np.ndarray) -> np.ndarray:
        """Return a random point about the mode, wider than the posterior, if `point` is far off.

        One where the density is zero, such as beyond a hard constraint, is drawn anew, and in the
        end moved towards `point`.
        """
        inside = self._coordinates.from_model(point)
        for _ in range(STARTS):
            start = self._start(rng, inside)
            if start is inside:
                return point
            start = self._coordinates.to_model(start)
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

    def _start(self, rng: np.random.Generator, point: np.ndarray) -> np.ndarray:
        if self._is_near(point):
            return point
        here = self._log_density(point)
        if here > self._log_density(self.reference.surrogate.center):
            return point
        start = self._start_about(rng, here)
        return point if start is None else start

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
        reference = self.reference
        hyper = point[self.field.hyper]
        away = np.linalg.solve(reference.hyper_cholesky, hyper - reference.hyper)
        given = reference.surrogate.factored_later(hyper)
        if np.abs(away).max(initial=0.0) > FAR_OUT or not given.is_proper:
            return False
        parts = (away, *given.frame.whiten(point))
        size = sum(part.size for part in parts)
        return sum(float(np.sum(p**2)) for p in parts) < size + FAR_OUT * math.sqrt(2 * size)

    def _log_density(self, point: np.ndarray) -> float:
        """Return that of the posterior, from all rows; -inf where it is not a number."""
        named = self.tall.layout.unflatten(self._coordinates.to_model(point))
        return log_density(self.tall, self.reference.temperature, named)

    presumes = "the rows are what their expansion and its remainders make of them"
    """What decisions rest on, in words."""

    def describe(self) -> str:
        """Say in words what moves how."""
        layout, levels = self.field.latent, self.field.levels
        beside = layout.dense.size - sum(level.latent.size for level in levels[1:])
        parts = [f"hyperparameters ({self.field.hyper.size}) carry effects along"]
        if beside:
            parts.append(f"coefficients ({beside}) move together")
        parts += [self._described(k) for k in range(len(levels))]
        return "; ".join(parts)

    def _described(self, factor: int) -> str:
        """Say how many levels a factor has."""
        return f"a factor of {self.field.levels[factor].latent.shape[0]:,} levels"


def no_batches() -> tuple[np.ndarray, ...]:
    """Return the last fields of a state where no batch decides."""
    numbers = np.empty(0, dtype=np.int64)
    return numbers, np.empty((0, 2)), numbers.copy(), np.empty((0, 3))
