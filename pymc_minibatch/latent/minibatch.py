"""Moves of a latent field decided by minibatch tests, from estimates of the rows' remainders."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.acceptance import CorrectedBarker, Penalty, corrected_barker, penalty
from pymc_minibatch.acceptance.decision import Rows, row_workspace
from pymc_minibatch.jit.cache import class_key
from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.kernels.by_group import GroupTable, weigh
from pymc_minibatch.kernels.by_size import RowSizes, SizeTable
from pymc_minibatch.kernels.decide import make_decision
from pymc_minibatch.kernels.rows import Drawing, clear
from pymc_minibatch.kernels.sweep import Grouping, make_sweep
from pymc_minibatch.latent.blocks import choose_blocks, choose_walks
from pymc_minibatch.latent.cubic import Cubic
from pymc_minibatch.latent.deciding import FIRST_BATCH, DecisionState, DecisionTests
from pymc_minibatch.latent.factors import Factor
from pymc_minibatch.latent.field import GroupEffects
from pymc_minibatch.latent.gathering import Gathering
from pymc_minibatch.latent.moves import (
    DECIDED,
    Decisions,
    LevelMoves,
    LevelWalks,
    Move,
    MoveCounts,
    factoring_share,
    overhead,
)
from pymc_minibatch.latent.sampler import LatentModel, LatentSampler, LatentState
from pymc_minibatch.latent.search import LatentReference
from pymc_minibatch.latent.surrogate import PredictorState, Surrogate
from pymc_minibatch.latent.weight_check import Contradiction, WeightCheck
from pymc_minibatch.reference.density import Density
from pymc_minibatch.reference.remainders import second_order
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import over_chunks

__all__ = ["MinibatchDecisions", "MinibatchSampler", "RepeatedDecisions"]

REJECTED = 0.3
"""Share of moves that the noise of batches rejects, about."""

BLOCK_BATCH = 32
"""Rows of the first batch of a block of groups; smaller blocks are read whole."""

SIZING_PAIRS = 16
"""Opposite posterior points at which each row is looked at."""

SIZING_WIDTH, KINKED_WIDTH = 1.5, 1.7
"""How far apart they are: rows that do more farther out would be read too seldom."""

READ_PAIRS = 12
"""Of these so many tell the scale of what each row reads."""

WALLS_FROM, WALLS_TO = 4.0, 7.0
"""Standard deviations of what a row reads at which walls are looked for; these are estimates."""

WALL = 4.0
"""Nats that a row leaves of its expansion there, to be drawn about ten times in each batch."""

SIGMAS = 0.2, 0.3, 0.5, 0.7, 1.0
"""Noise of decisions, of which the cheapest is chosen for each kind of moves."""

FIRST_SIGMA = 0.5
"""That before tuning."""

ROWS_BY_SIZE = 2.5
"""Rows of a batch, relative to the sum of how far remainders vary, as seen with several models."""

EXTREME, MOST_EXTREME, MOST_SHARE = 3.0, 64, 1e-3
"""A row is extreme if its remainder varies by more nats over the posterior; of more rows, or a
larger share, no expansion is made without them."""

BLOCK_SIGMA = 0.3
"""That of decisions on blocks of groups, which read few rows."""


class RepeatedDecisions(NamedTuple):
    """What decisions on one move have given.

    Attributes
    ----------
    accepted, sizes : ndarray, shape (R,)
        1 where it was accepted, and the rows that the decision rests on.
    estimates : ndarray, shape (R,)
        What each first batch makes of :meth:`MinibatchDecisions.of_rows`.
    """

    accepted: np.ndarray
    sizes: np.ndarray
    estimates: np.ndarray


class MinibatchDecisions(Decisions):
    """Tests on batches of all rows, and of the rows of each group.

    Parameters
    ----------
    surrogate
        What remainders are left of.
    decide
        The minibatch test on all rows.
    sweep
        The test on the rows of each group.
    density, rows
        What both read.
    tests, states
        What decides on all rows, and what is tuned of it for each kind of moves.
    group_parameters
        What the test on the rows of groups reads.
    blocks
        For each grouping factor the levels that decide together.
    walks
        For each how often each of its levels walks.
    functions, data, temperature
        What the rows read, all of them, and T.
    """

    sees_all = False

    def __init__(
        self,
        surrogate: Surrogate,
        decide: Callable[..., Any],
        sweep: Callable[..., Any],
        density: Density,
        rows: Rows,
        tests: DecisionTests,
        states: Mapping[str, DecisionState],
        group_parameters: tuple[Any, ...],
        blocks: Sequence[Grouping],
        walks: Sequence[LevelWalks],
        functions: RowFunctions,
        data: tuple[np.ndarray, ...],
        temperature: float,
    ) -> None:
        self.functions, self.data, self.temperature = functions, data, temperature
        self.surrogate, self.decide, self.sweep = surrogate, decide, sweep
        self.density, self.rows = density, rows
        self.tests, self.states = tests, states
        self.group_parameters, self.blocks = group_parameters, blocks
        self.walks = walks

    def level_walks(self, factor: int, levels: GroupEffects) -> LevelWalks:
        """Return how often each level walks."""
        return self.walks[factor]

    def on_all(self, rng: np.random.Generator, move: Move, counts: MoveCounts) -> bool:
        """Decide, given the log ratio under the surrogate, on it and the remainders of all rows.

        What decides is tuned for each kind of moves.
        """
        state = self.states[move.kind]
        outcome = self.decided(rng, move, self.tests.chosen(state))
        accepted, batch_size, n_evaluated, grown, variance, error, impossible, _ = outcome
        counts.n_evaluated += n_evaluated
        counts.decisions += 1
        counts.batch_rows += batch_size
        counts.variance += variance
        counts.test_error = max(counts.test_error, error)
        counts.impossible_row = max(counts.impossible_row, impossible)
        if move.tuning:
            self.tests.tune(state, grown, batch_size, variance, error)
        return bool(accepted)

    def decided(
        self, rng: np.random.Generator, move: Move, parameters: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Return what the jitted test says of a move."""
        decide, psi = self._deciding(move)
        return decide(rng, psi, parameters)

    def repeated(
        self, rng: np.random.Generator, move: Move, shifts: np.ndarray
    ) -> "RepeatedDecisions":
        """Decide again and again on a move whose log ratio is shifted, by batches as tuned."""
        decide, psi = self._deciding(move)
        parameters = self.tests.chosen(self.states[move.kind])
        accepted, sizes, estimates = np.zeros((3, shifts.size))
        scale, first = self.data[0].shape[0] / self.temperature, self.tests.first[0]
        for i, shift in enumerate(shifts.tolist()):
            clear(self.rows)
            accepted[i], sizes[i] = decide(rng, psi + shift, parameters)[:2]
            terms = self.rows.log_ratios[: min(first, self.rows.n_drawn[0])]
            estimates[i] = scale * terms.mean() if terms.size else np.nan
        estimates -= move.log_ratio - psi
        return RepeatedDecisions(accepted, sizes, estimates)

    def _deciding(self, move: Move) -> tuple[Callable[..., tuple[Any, ...]], float]:
        """Return the test of a move, ``(rng, psi, parameters)``, and ψ."""
        before, after = predictors = move.predictors
        psi = move.log_ratio - float(
            self.surrogate.expansion.smoothing_correction @ (after.phi - before.phi)
        )
        cubic = self.surrogate.cubics[0] if self.surrogate.cubics else None
        if isinstance(self.rows.table, GroupTable):
            self._weigh(self.rows.table, cubic, predictors)
        seen = [self.surrogate.seen_by_rows(predictor, cubic) for predictor in predictors]

        def decide(
            rng: np.random.Generator, psi: float, parameters: tuple[Any, ...]
        ) -> tuple[Any, ...]:
            found: tuple[Any, ...] = self.decide(
                rng, psi, *seen, self.density, self.rows, parameters
            )
            return found

        return decide, psi

    def changes_of(self, move: Move, numbers: np.ndarray) -> np.ndarray:
        """Return how the remainders of some rows change, by their numbers, not divided by T."""
        cubic = self.surrogate.cubics[0] if self.surrogate.cubics else None
        first, second = (
            self.surrogate.seen_by_rows(predictor, cubic) for predictor in move.predictors
        )
        at, batch = self.surrogate.expansion.at, tuple(values[numbers] for values in self.data)
        before, after = self.functions.remainders(first, second, at, batch)
        return after - before

    def on_levels(
        self, rng: np.random.Generator, moves: LevelMoves, counts: MoveCounts
    ) -> np.ndarray:
        """Let blocks of levels decide by batches of their own rows, and those that walk by all."""
        factor, moving, walks = moves.factor, moves.moving, moves.walks
        blocks, levels = self.blocks[factor], self.surrogate.field.levels[factor]
        walked = self._walked(rng, moves, counts)
        cubic = self.surrogate.cubic(levels.rows)
        predictors = moves.predictors[0], self._without(walks, moves, levels)
        self._weigh(blocks.table, cubic, predictors)
        before, after = (self.surrogate.seen_by_rows(predictor, cubic) for predictor in predictors)
        decided = np.zeros(blocks.first.size - 1, dtype=np.bool_)
        outcome = self.sweep(
            rng, before, after, blocks, self.density, self.group_parameters, decided
        )
        n_evaluated, _, error, _, impossible = outcome
        counts.n_evaluated += n_evaluated
        counts.test_error = max(counts.test_error, error)
        counts.impossible_row = max(counts.impossible_row, impossible)
        return np.where(walks, walked, np.repeat(decided, np.diff(blocks.first)) & moving)

    def _walked(
        self, rng: np.random.Generator, moves: LevelMoves, counts: MoveCounts
    ) -> np.ndarray:
        """Let each level that walks decide by all of its rows."""
        chosen, table = np.flatnonzero(moves.walks & moves.moving), self.blocks[moves.factor].table
        decided = np.zeros(moves.moving.size, dtype=np.bool_)
        if not chosen.size:
            return decided
        lengths = table.starts[chosen + 1] - table.starts[chosen]
        level = np.repeat(np.arange(chosen.size), lengths)
        first = np.cumsum(lengths) - lengths
        within = np.arange(level.size) - first[level]
        rows = table.rows[table.starts[chosen][level] + within]
        cubic = self.surrogate.cubic(self.surrogate.field.levels[moves.factor].rows)
        first, second = (self.surrogate.seen_by_rows(each, cubic) for each in moves.predictors)
        batch = [values[rows] for values in self.data]
        at = self.surrogate.expansion.at
        before, after = self.functions.remainders(first, second, at, batch)
        of_rows = np.bincount(level, after - before, minlength=chosen.size) / self.temperature
        counts.n_evaluated += rows.size
        # A row that is impossible makes the sum −∞ or not a number, which is never above.
        decided[chosen] = -rng.standard_exponential(chosen.size) < moves.undecided[chosen] + of_rows
        return decided

    def _without(
        self, walks: np.ndarray, moves: LevelMoves, levels: GroupEffects
    ) -> PredictorState:
        """Return what rows read after the moves of the levels that do not walk."""
        if not walks.any():
            return moves.predictors[1]
        proposed, stays = moves.points[1].copy(), levels.latent[walks]
        proposed[stays] = moves.points[0][stays]
        return self.surrogate.read_levels(proposed, moves.predictors[0], levels)

    def of_rows(self, move: Move) -> float:
        """Return what the remainders of all rows add to the log ratio under the surrogate."""
        before, after = move.predictors
        cubic = self.surrogate.cubics[0] if self.surrogate.cubics else None
        of_rest = float(self.surrogate.expansion.smoothing_correction @ (after.phi - before.phi))
        return float(self._remainders(move.predictors, cubic).sum()) - of_rest

    def of_rows_by_level(self, moves: LevelMoves) -> np.ndarray:
        """Return what the remainders of all rows of each level add to its log ratio."""
        levels, blocks = self.surrogate.field.levels[moves.factor], self.blocks[moves.factor]
        changes = self._remainders(moves.predictors, self.surrogate.cubic(levels.rows))
        table = blocks.table
        level = np.repeat(np.arange(moves.moving.size), np.diff(table.starts))
        return np.bincount(level, changes[table.rows], minlength=moves.moving.size)

    def _remainders(
        self, predictors: tuple[PredictorState, PredictorState], cubic: Cubic | None
    ) -> np.ndarray:
        """Return how the remainder of each row changes, divided by T, shape (N,)."""
        first, second = (self.surrogate.seen_by_rows(predictor, cubic) for predictor in predictors)
        at = self.surrogate.expansion.at

        def change(*batch: np.ndarray) -> np.ndarray:
            before, after = self.functions.remainders(first, second, at, batch)
            return after - before

        parts = over_chunks(change, self.data)
        return np.concatenate([part for _, part in parts]) / self.temperature

    def _weigh(
        self,
        table: GroupTable,
        cubic: Cubic | None,
        predictors: tuple[PredictorState, PredictorState],
    ) -> None:
        """Let rows of groups that are far out at one of two points be drawn more often."""
        if cubic is not None:
            coordinates = (self.surrogate.coordinates(cubic, predictor) for predictor in predictors)
            weigh(table, *(cubic.distances(u) for u in coordinates))


class MinibatchSampler(LatentSampler):
    """Moves on which minibatch tests decide.

    Parameters
    ----------
    tall
        The model.
    latent_model
        Where it is, and what its rows read.
    acceptance
        The test; None for the penalty test at the noise with which moves are cheapest.
    temperature
        Of the target.
    by_size
        Whether rows are drawn in proportion to what they can tell.
    batch_size
        Rows of first batches; None if each kind of moves tunes its own.

    Attributes
    ----------
    expected_rows : float
        About so many rows decide on a move.
    fixed : float
        What a move costs apart from reading rows, in rows.
    """

    by_batches = True

    def __init__(
        self,
        tall: TallModel,
        latent_model: LatentModel,
        acceptance: CorrectedBarker | Penalty | None,
        temperature: float,
        by_size: bool,
        batch_size: int | None = None,
    ) -> None:
        rows, factors, reference, _ = latent_model
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
        self._ranges = sizes.rows - sizes.rows.min()
        self.expected_rows = ROWS_BY_SIZE * float(sizes.rows.sum()) / temperature
        share = factoring_share(self.field, self.collapsed, self.work)
        self.fixed = overhead(self.field, share * self.work)
        if not by_size:
            self.table = ()
        self.acceptance = acceptance
        self.blocks: list[Grouping] = []
        self.level_walks: list[LevelWalks] = []
        for levels in self.field.levels:
            factor, _, table = looked_at[id(levels.rows)]
            self.blocks.append(
                choose_blocks(surrogate, hyper, factor, levels, rows, temperature, table)
            )
            self.level_walks.append(
                choose_walks(surrogate, hyper, factor, levels, rows, temperature)
            )

    def rows_to_pin(self) -> np.ndarray:
        """Return the numbers of rows that no expansion describes, if they are few."""
        rows = np.flatnonzero(self._ranges > EXTREME * self.temperature)
        few = rows.size <= min(MOST_EXTREME, MOST_SHARE * self.tall.n_rows)
        return rows if few else rows[:0]

    @property
    def rows_of_a_move(self) -> float:
        """What batches cost, in rows: these, and moves that only their noise rejects."""
        return self.expected_rows + REJECTED * (self.expected_rows + self.fixed)

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

    def forget(self) -> None:
        """Forget what moves keep in memory, and which rows were drawn."""
        super().forget()
        clear(self._decisions.rows)

    def contradicted(self, point: np.ndarray) -> Contradiction | None:
        """Return a level that batches have let go where its own rows object, if one is found."""
        return self.weight_check.look(self._coordinates.from_model(point))

    @property
    def weight_check(self) -> WeightCheck:
        """What is read to find it."""
        tables = [grouping.table for grouping in self.blocks]
        surrogate = self.reference.surrogate
        return WeightCheck(surrogate, self.rows, self.tall.data, tables, self.temperature)

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
        return MinibatchDecisions(
            self.reference.surrogate,
            *self._kernels,
            self._gathering.density,
            row_workspace(n_rows, self.table),
            DecisionTests(
                self._tests,
                self.temperature,
                n_rows,
                self.fixed,
                tunes_batches=self.batch_size is None,
            ),
            self.initial_state().decisions,
            of_blocks.parameters(self.temperature, np.array([BLOCK_BATCH]), n_rows),
            self.blocks,
            self.level_walks,
            self.rows,
            self.tall.data,
            self.temperature,
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
            predictor = surrogate.read(given.frame.color(noise))
            pair.append(surrogate.seen_by_rows(predictor, cubic))
            if cubic is not None:
                distances.append(cubic.distances(surrogate.coordinates(cubic, predictor)))
        seen.append(pair)

    _ = rows.row, rows.derivatives, rows.local_inputs  # before threads ask for them

    def spread(*batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at = surrogate.expansion.at
        values = np.concatenate([rows.remainders(a, b, at, batch) for a, b in seen])
        values = np.nan_to_num(values, posinf=0.0, neginf=0.0)
        near = [predictor[: at.size] for pair in seen[:READ_PAIRS] for predictor in pair]
        wall = _walls(rows, at, near, width, batch)
        return np.maximum(values.max(axis=0), 0.0) - np.minimum(values.min(axis=0), 0.0), wall

    parts = over_chunks(spread, surrogate.tall.data, "Sizing the rows")
    ranges, walls = map(np.concatenate, zip(*(part for _, part in parts), strict=True))
    # Remainders can be small at a few points by chance: half of the draws are uniform.
    sizes = ranges + max(float(ranges.mean()), np.finfo(float).tiny)
    return _Sizes(np.maximum(sizes, walls), np.max(distances, axis=0))


def _walls(
    rows: RowFunctions,
    at: np.ndarray,
    near: Sequence[np.ndarray],
    width: float,
    batch: Sequence[np.ndarray],
) -> np.ndarray:
    """Return the sizes of rows that are flat at first and have a wall behind; 0 for others.

    Each is looked at at its own scale: along axes of the covariance of what it reads, which some
    posterior points tell, far beyond these points.
    """
    there = rows.local_inputs(at, *batch)
    taylor = rows.taylor(there, *batch)
    away = np.array([rows.local_inputs(phi, *batch) - there for phi in near]) / width
    k, steepest = there.shape[0], np.zeros(there.shape[1])
    with np.errstate(all="ignore"):
        for i in range(k):
            sd = np.sqrt((away[:, i] ** 2).mean(axis=0))
            axis = np.nan_to_num((away * away[:, i, None]).mean(axis=0) / sd)
            for s in (-WALLS_TO, -WALLS_FROM, WALLS_FROM, WALLS_TO):
                delta = s * axis
                rest = rows.row(there + delta, *batch)[0] - taylor[0]
                for j in range(k):
                    rest -= taylor[1 + j] * delta[j]
                    for m in range(j + 1):
                        share = 0.5 if j == m else 1.0
                        rest -= share * taylor[1 + k + second_order(j, m)] * delta[j] * delta[m]
                np.maximum(steepest, np.nan_to_num(np.abs(rest)), out=steepest)
    return np.where(steepest > WALL, WALL, 0.0)
