"""Sampling of a model with effects: set-up once, then draws.

What rows read gives the grouping factors and the latent field; a search finds where to expand; the
moves are put together with the acceptance test, compiled, and called draw by draw.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.acceptance import CorrectedBarker, Penalty, corrected_barker, penalty
from pymc_minibatch.acceptance.decision import Acceptance, row_workspace
from pymc_minibatch.acceptance.growing import FirstBatch
from pymc_minibatch.jit.cache import class_key
from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.cores import one_blas_thread
from pymc_minibatch.kernels.by_group import GroupTable
from pymc_minibatch.kernels.by_size import RowSizes, SizeTable
from pymc_minibatch.kernels.decide import make_decision
from pymc_minibatch.kernels.rows import Drawing
from pymc_minibatch.kernels.sweep import Grouping, make_sweep
from pymc_minibatch.latent.averages import find_averages, rows_have_kinks
from pymc_minibatch.latent.blocks import choose_blocks
from pymc_minibatch.latent.coordinates import Coordinates
from pymc_minibatch.latent.cubic import Cubic
from pymc_minibatch.latent.deciding import FIRST_BATCH, DecisionState, DecisionTests
from pymc_minibatch.latent.factors import Factor, find_factors
from pymc_minibatch.latent.field import LatentField, NoFieldError, find_field, has_effects
from pymc_minibatch.latent.gathering import Gathering
from pymc_minibatch.latent.minibatch import MinibatchDecisions
from pymc_minibatch.latent.moves import (
    ANGLES,
    COSTLY,
    DECIDED,
    FACTORING_SHARE,
    KINDS,
    MOST_AT_ONCE,
    Decisions,
    LatentMoves,
    MoveCounts,
    Sweeping,
    Turns,
    Walks,
    carried_with,
    overhead,
    take_best,
)
from pymc_minibatch.latent.search import LatentReference, search
from pymc_minibatch.latent.tails import Tails, find_tails
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.tall.structure import RowStructure

__all__ = [
    "LatentSampler",
    "LatentState",
    "Located",
    "MinibatchSampler",
    "locate",
    "make_latent_sampler",
    "structure_with_effects",
]

BLOCK_BATCH = 32
"""Rows of the first batch of a block of groups; smaller blocks are read whole."""

FAR_OUT = 10.0
"""Standard deviations of the squared distance from the mode beyond which a chain does not start."""

WIDER = 2.0
"""Chains start so many times wider than the posterior, so that R-hat sees where they differ."""

SIZING_PAIRS = 16
"""Opposite posterior points at which each row is looked at."""

SIZING_WIDTH, KINKED_WIDTH = 1.5, 1.7
"""How far apart they are: rows that do more farther out would be read too seldom."""

SIGMAS = 0.2, 0.3, 0.5, 0.7, 1.0
"""Noise of decisions, of which the cheapest is chosen for each kind of moves."""

FIRST_SIGMA = 0.5
"""That before tuning."""

BLOCK_SIGMA = 0.3
"""That of decisions on blocks of groups, which read few rows."""

WINDOW = 100
"""Draws after which the moves of h are first made to fit what was seen; windows then double."""


class LatentState(NamedTuple):
    """What tuning changes.

    Attributes
    ----------
    current : ndarray of int64, shape (3,)
        The length in use of each kind of move.
    gains, costs : ndarray, shape (3, K)
        What is known of all lengths.
    mean, cholesky : ndarray, shapes (H,) and (H, H)
        Where h is thought to be, in coordinates w (:mod:`.tails`).
    log_length, n_moves : ndarray, shape (C + H,), or (C + 2H,) where there are many
        Walks in one dimension of h: of C that levels follow, then of all.
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
    seen: np.ndarray
    batch_size: np.ndarray
    batch_tuning: np.ndarray
    test: np.ndarray
    moments: np.ndarray

    @property
    def turns(self) -> list[Turns]:
        """The lengths of each kind of move, as views."""
        return [
            Turns(self.current[k : k + 1], self.gains[k], self.costs[k])
            for k in range(self.current.size)
        ]

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
    """

    sweeping = Sweeping()

    def __init__(self, tall: TallModel, reference: LatentReference) -> None:
        self.tall, self.reference = tall, reference
        surrogate = reference.surrogate
        self.work = surrogate.conditional(reference.hyper).factor.schur.work
        self.carried = carried_with(surrogate) if self.costly else None
        hyper, self.tails = reference.hyper, Tails.none(reference.hyper)
        if hyper.size <= MOST_AT_ONCE and not self.costly:
            self.tails = find_tails(surrogate.log_marginal, hyper, reference.hyper_cholesky)

    @property
    @abstractmethod
    def _decisions(self) -> Decisions:
        """What decides on moves."""

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
        size = self.field.hyper.size
        lengths = np.log(np.linalg.norm(self.reference.hyper_cholesky, axis=1) / 2)
        if size > MOST_AT_ONCE:
            lengths = np.concatenate([lengths, np.full(size, math.log(0.5))])
        if self.carried:
            of_pairs = [lengths[axis] for axis, _ in self.carried]
            lengths = np.concatenate([of_pairs, lengths])
        seen = np.zeros(2 + size + size**2)
        seen[1] = WINDOW
        return LatentState(
            np.zeros(len(KINDS), dtype=np.int64),
            np.zeros((len(KINDS), ANGLES.size)),
            np.zeros((len(KINDS), ANGLES.size)),
            self.reference.hyper.copy(),
            self.reference.hyper_cholesky.copy(),
            lengths,
            np.zeros(lengths.size),
            seen,
            *no_batches(),
        )

    @cached_property
    def _moves(self) -> LatentMoves:
        surrogate, decisions = self.reference.surrogate, self._decisions
        return LatentMoves(surrogate, decisions, self.sweeping, self.work, self.carried, self.tails)

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
        scale, walks = (state.mean, state.cholesky), Walks(state.log_length, state.n_moves)
        self._moves.draw(rng, inside, tuning, state.turns, scale, walks, counts)

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
        self._moves.forget()

    def scale(self, state: LatentState) -> float:
        """Return the sine of the angle of the moves of the dense part, for the sample stats."""
        return float(np.sin(ANGLES[state.current[1]]))

    def end_tuning(self, state: LatentState) -> None:
        """Take the settings that did best."""
        for turns in state.turns:
            take_best(turns)

    def near_mode(self, rng: np.random.Generator, point: np.ndarray) -> np.ndarray:
        """Return a random point about the mode, wider than the posterior, if `point` is far off."""
        inside = self._coordinates.from_model(point)
        start = self._start(rng, inside)
        return point if start is inside else self._coordinates.to_model(start)

    def _start(self, rng: np.random.Generator, point: np.ndarray) -> np.ndarray:
        reference, field = self.reference, self.field
        hyper = point[field.hyper]
        away = np.linalg.solve(reference.hyper_cholesky, hyper - reference.hyper)
        if np.abs(away).max(initial=0.0) < FAR_OUT:
            parts = (away, *reference.surrogate.conditional(hyper).frame.whiten(point))
            size = sum(part.size for part in parts)
            if sum(float(np.sum(p**2)) for p in parts) < size + FAR_OUT * math.sqrt(2 * size):
                return point
        wide = reference.hyper_cholesky @ rng.standard_normal(reference.hyper.size)
        frame = reference.surrogate.conditional(
            reference.hyper + WIDER * np.clip(wide, -1, 1)
        ).frame
        dense, groups = field.latent.noise(rng)
        return frame.color((WIDER * dense, groups))

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


class MinibatchSampler(LatentSampler):
    """Moves on which minibatch tests decide.

    Parameters
    ----------
    tall, reference
        As :class:`LatentSampler` takes them.
    factors
        The grouping factors.
    rows
        What the rows read.
    acceptance
        The test; None for the penalty test at the noise with which moves are cheapest.
    temperature
        Of the target.
    by_size
        Whether rows are drawn in proportion to what they can tell.
    batch_size
        Rows of first batches; None if each kind of moves tunes its own.
    """

    def __init__(
        self,
        tall: TallModel,
        reference: LatentReference,
        factors: Sequence[Factor],
        rows: RowFunctions,
        acceptance: CorrectedBarker | Penalty | None,
        temperature: float,
        by_size: bool,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(tall, reference)
        self.temperature, self.rows, self.batch_size = temperature, rows, batch_size
        surrogate, hyper = reference.surrogate, reference.hyper
        looked_at: dict[int, tuple[Factor, _Sizes, GroupTable]] = {}
        for factor in factors:
            if surrogate.cubic(factor.entries) or self._levels(factor):
                sizes = self._sizes(factor, by_size)
                table = GroupTable.of(*factor.by_level(), sizes.rows, sizes.farthest)
                looked_at[id(factor.entries)] = factor, sizes, table
        self.table: GroupTable | SizeTable | tuple[()] = ()
        if surrogate.cubics:
            _, sizes, self.table = looked_at[id(surrogate.cubics[0].entries)]
        else:
            sizes = self._sizes(None, by_size)
            self.table = RowSizes.of(sizes.rows).table
        if not by_size:
            self.table = ()
        self.acceptance = acceptance
        self.blocks: list[Grouping] = []
        for levels in self.field.levels:
            factor, _, table = looked_at[id(levels.rows)]
            self.blocks.append(
                choose_blocks(surrogate, hyper, factor, levels, rows, temperature, table)
            )

    def _sizes(self, factor: Factor | None, by_size: bool) -> "_Sizes":
        if by_size:
            cubic = None if factor is None else self.reference.surrogate.cubic(factor.entries)
            sizes = _sizes(self.reference, self.rows, cubic)
        else:
            sizes = _Sizes(np.ones(self.tall.n_rows), np.empty(0))
        if factor is None or sizes.farthest.size:
            return sizes
        return sizes._replace(farthest=np.ones(factor.n_levels))

    def _levels(self, factor: Factor) -> bool:
        return any(levels.rows is factor.entries for levels in self.field.levels)

    def initial_state(self) -> LatentState:
        """Return the state before tuning."""
        first = self.batch_size or min(FIRST_BATCH, self.tall.n_rows)
        return (
            super()
            .initial_state()
            ._replace(
                batch_size=np.full(len(DECIDED), first),
                batch_tuning=np.tile([math.log(first), 0.0], (len(DECIDED), 1)),
                test=np.full(len(DECIDED), 0 if self.acceptance else SIGMAS.index(FIRST_SIGMA)),
                moments=np.zeros((len(DECIDED), 3)),
            )
        )

    def draw(
        self,
        rng: np.random.Generator,
        point: np.ndarray,
        n_rounds: int,
        tuning: bool,
        state: LatentState,
    ) -> MoveCounts:
        """Move a point of the model in place by rounds of all moves; tune."""
        self._decisions.states = state.decisions
        return super().draw(rng, point, n_rounds, tuning, state)

    def _described(self, factor: int) -> str:
        """Say how many levels a factor has, and blocks."""
        return f"{super()._described(factor)} in blocks ({self.blocks[factor].first.size - 1:,})"

    @cached_property
    def _gathering(self) -> Gathering:
        return Gathering(self.rows, self.reference.surrogate.expansion.at, self.tall.data)

    @cached_property
    def _kernels(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The tests on all rows and on those of each group, which know no data."""
        test = self._tests[0]
        module = corrected_barker if isinstance(test, CorrectedBarker) else penalty
        exact = module.barker if module is corrected_barker else module.metropolis
        key = class_key(test)
        drawing: Drawing = "groups" if isinstance(self.table, GroupTable) else bool(self.table)
        decide = jit_kept(make_decision((), test, drawing), [key, repr(drawing)])
        return decide, jit_kept(make_sweep((), module.accept, exact), [key])

    @property
    def _tests(self) -> list[CorrectedBarker] | list[Penalty]:
        """The tests of which one is chosen for each kind of moves."""
        if self.acceptance is None:
            return [Penalty(sigma=sigma) for sigma in SIGMAS]
        return [self.acceptance]  # type: ignore[return-value]

    @cached_property
    def _decisions(self) -> MinibatchDecisions:
        n_rows, of_blocks = self.tall.n_rows, self.acceptance or Penalty(sigma=BLOCK_SIGMA)
        share = 1.0 if self.carried is None else FACTORING_SHARE
        fixed = overhead(self.field, share * self.work)
        return MinibatchDecisions(
            self.reference.surrogate,
            *self._kernels,
            self._gathering.density,
            row_workspace(n_rows, self.table),
            DecisionTests(
                self._tests, self.temperature, n_rows, fixed, tunes_batches=self.batch_size is None
            ),
            self.initial_state().decisions,
            of_blocks.parameters(self.temperature, np.array([BLOCK_BATCH]), n_rows),
            self.blocks,
        )


def no_batches() -> tuple[np.ndarray, ...]:
    """Return the last fields of a state where no batch decides."""
    numbers = np.empty(0, dtype=np.int64)
    return numbers, np.empty((0, 2)), numbers.copy(), np.empty((0, 3))


class Located(NamedTuple):
    """What is known of a model with effects before it is settled how moves are decided.

    Attributes
    ----------
    rows : RowFunctions
        What the rows read.
    factors : list of Factor
        The grouping factors.
    reference : LatentReference
        Where the log-likelihood is expanded.
    """

    rows: RowFunctions
    factors: list[Factor]
    reference: LatentReference


def locate(tall: TallModel, temperature: float) -> Located:
    """Find the latent field of a model and where it is.

    Raises
    ------
    NoFieldError
        If the model has no latent field that is nearly Gaussian given a few hyperparameters.
    """
    structure = structure_with_effects(tall)
    rows = RowFunctions(structure)
    # Threads of BLAS cost more than they save on matrices of this size.
    with one_blas_thread():
        factors = find_factors(rows, tall.data)
        entries = [factor.entries for factor in factors]
        field = find_field(tall, structure, entries)
        start = field.derivatives.phi(field.derivatives.coordinates.from_model(tall.start))
        if rows_have_kinks(structure, start, tall.data):
            rows.averages = find_averages(rows, start, tall.data, np.zeros(start.size))
        reference = search(tall, field, rows, factors, temperature)
        tall.verify_at(field.derivatives.coordinates.to_model(reference.surrogate.center))
    return Located(rows, factors, reference)


def structure_with_effects(tall: TallModel) -> RowStructure:
    """Return what the rows of a model with effects read.

    Raises
    ------
    NoFieldError
        If that is not known, or the model has no effects.
    """
    structure = tall.structure
    if structure is None:
        raise NoFieldError("What the rows read is not affine in data-free quantities.")
    if not has_effects(tall, structure):
        raise NoFieldError("No variable depends on others, and there are few effects.")
    return structure


def make_latent_sampler(
    tall: TallModel,
    acceptance: Acceptance | None,
    temperature: float,
    by_size: bool = True,
    batch_size: int | None = None,
) -> MinibatchSampler:
    """Set up; by size, rows are drawn in proportion to what they can tell.

    Without a test the penalty test is taken, with the noise at which moves are cheapest; without a
    size of the first batches, each kind of moves tunes its own.

    Raises
    ------
    NoFieldError
        If the model has no latent field that is nearly Gaussian given a few hyperparameters.
    """
    assert acceptance is None or isinstance(acceptance, CorrectedBarker | Penalty)
    rows, factors, reference = locate(tall, temperature)
    with one_blas_thread():
        return MinibatchSampler(
            tall, reference, factors, rows, acceptance, temperature, by_size, batch_size
        )


class _Sizes(NamedTuple):
    """How far remainders vary over posterior points.

    Attributes
    ----------
    rows : ndarray, shape (N,)
        That of each row.
    farthest : ndarray, shape (G,)
        How far out the levels of a factor were at these points, if it has higher orders.
    """

    rows: np.ndarray
    farthest: np.ndarray


def _sizes(
    reference: LatentReference,
    rows: RowFunctions,
    cubic: Cubic | None,
) -> _Sizes:
    """Look at all rows in one pass."""
    surrogate, rng = reference.surrogate, np.random.default_rng(4)
    seen, distances = [], [np.empty(0)] if cubic is None else []
    width = KINKED_WIDTH if rows.kinked else SIZING_WIDTH
    for _ in range(SIZING_PAIRS):
        away = reference.hyper_cholesky @ rng.standard_normal(reference.hyper.size)
        dense, groups = surrogate.field.latent.noise(rng)
        pair = []
        for sign in (1.0, -1.0):
            given = surrogate.conditional(reference.hyper + sign * np.clip(away, -1.0, 1.0))
            noise = sign * width * dense, sign * width * groups
            reading = surrogate.read(given.frame.color(noise))
            pair.append(surrogate.seen_by_rows(reading, cubic))
            if cubic is not None:
                distances.append(cubic.distances(surrogate.coordinates(cubic, reading)))
        seen.append(pair)

    def spread(*batch: np.ndarray) -> np.ndarray:
        at = surrogate.expansion.at
        values = np.concatenate([rows.remainders(a, b, at, batch) for a, b in seen])
        values = np.nan_to_num(values, posinf=0.0, neginf=0.0)
        return np.maximum(values.max(axis=0), 0.0) - np.minimum(values.min(axis=0), 0.0)

    parts = over_chunks(spread, surrogate.tall.data, "Sizing the rows")
    ranges = np.concatenate([part for _, part in parts])
    # Remainders can be small at a few points by chance: half of the draws are uniform.
    sizes = ranges + max(float(ranges.mean()), np.finfo(float).tiny)
    return _Sizes(sizes, np.max(distances, axis=0))
