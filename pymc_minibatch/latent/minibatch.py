"""Moves of a latent field decided by minibatch tests, from estimates of the rows' remainders."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from pymc_minibatch.acceptance import Penalty
from pymc_minibatch.acceptance.decision import Acceptance, row_workspace
from pymc_minibatch.acceptance.growing import FirstBatch
from pymc_minibatch.jit.cache import class_key
from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.kernels.by_group import GroupTable
from pymc_minibatch.kernels.by_size import RowSizes, SizeTable
from pymc_minibatch.kernels.decide import make_decision
from pymc_minibatch.kernels.rows import Drawing, clear
from pymc_minibatch.kernels.sweep import Grouping, make_sweep
from pymc_minibatch.latent.batch_decisions import MinibatchDecisions
from pymc_minibatch.latent.blocks import choose_blocks, choose_walks
from pymc_minibatch.latent.deciding import FIRST_BATCH, DecisionState, DecisionTests
from pymc_minibatch.latent.elsewhere import look_elsewhere
from pymc_minibatch.latent.factors import Factor
from pymc_minibatch.latent.gathering import Gathering
from pymc_minibatch.latent.locate import LatentModel
from pymc_minibatch.latent.moves.costs import factoring_share, overhead
from pymc_minibatch.latent.moves.decisions import LevelWalks
from pymc_minibatch.latent.moves.scan import moves_of
from pymc_minibatch.latent.own_rows import Elsewhere, LevelRows
from pymc_minibatch.latent.row_sizes import Sizes, sizes_of_rows
from pymc_minibatch.latent.sampler import LatentSampler, LatentState
from pymc_minibatch.latent.weight_check import Contradiction, WeightCheck
from pymc_minibatch.tall import TallModel

__all__ = ["MinibatchSampler"]

REJECTED = 0.3
"""Share of moves that the noise of batches rejects, about."""

BLOCK_BATCH = 32
"""Rows of the first batch of a block of groups; smaller blocks are read whole."""

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
        acceptance: Acceptance | None,
        temperature: float,
        by_size: bool,
        batch_size: int | None = None,
    ) -> None:
        rows, factors, reference, _ = latent_model
        super().__init__(tall, reference)
        self.temperature, self.rows, self.batch_size = temperature, rows, batch_size
        surrogate, hyper = reference.surrogate, reference.hyper
        looked_at: dict[int, tuple[Factor, Sizes, GroupTable]] = {}
        seen: list[Factor | None] = [
            f for f in factors if surrogate.cubic(f.entries) or self._levels(f)
        ]
        every = self._sizes(seen if surrogate.cubics else [*seen, None], by_size)
        for factor, sizes in zip(seen, every, strict=False):
            assert factor is not None
            table = GroupTable.of(*factor.by_level(), sizes.rows, sizes.farthest)
            looked_at[id(factor.entries)] = factor, sizes, table
        self.table: GroupTable | SizeTable | tuple[()] = ()
        if surrogate.cubics:
            _, sizes, self.table = looked_at[id(surrogate.cubics[0].entries)]
        else:
            sizes = every[-1]
            self.table = RowSizes.of(sizes.rows).table
        self._ranges = sizes.ranges
        self.expected_rows = ROWS_BY_SIZE * float(sizes.rows.sum()) / temperature
        share = factoring_share(self.field, self.collapsed, self.work)
        self.fixed = overhead(self.field, share * self.work)
        if not by_size:
            self.table = ()
        self.acceptance = acceptance
        self.blocks: list[Grouping] = []
        self.level_walks: list[LevelWalks] = []
        varying = list[np.ndarray]()
        self.elsewhere: Sequence[Elsewhere] = ()
        for levels in self.field.levels:
            factor, sizes, table = looked_at[id(levels.rows)]
            self.blocks.append(
                choose_blocks(surrogate, hyper, factor, levels, rows, temperature, table)
            )
            self.level_walks.append(
                choose_walks(surrogate, hyper, factor, levels, rows, temperature)
            )
            varying.append((sizes.rows - sizes.rows.min()) / temperature)
        self.elsewhere = look_elsewhere(self._level_rows, hyper, varying)

    @property
    def _level_rows(self) -> LevelRows:
        tables = [(grouping.table.rows, grouping.table.starts) for grouping in self.blocks]
        surrogate = self.reference.surrogate
        return LevelRows(surrogate, self.rows, self.temperature, tables, self.elsewhere)

    def rows_to_pin(self) -> np.ndarray:
        """Return the numbers of rows that no expansion describes, if they are few."""
        rows = np.flatnonzero(self._ranges > EXTREME * self.temperature)
        few = rows.size <= min(MOST_EXTREME, MOST_SHARE * self.tall.n_rows)
        return rows if few else rows[:0]

    @property
    def rows_of_a_move(self) -> float:
        """What batches cost, in rows: these, and moves that only their noise rejects."""
        return self.expected_rows + REJECTED * (self.expected_rows + self.fixed)

    def _sizes(self, factors: Sequence[Factor | None], by_size: bool) -> list[Sizes]:
        """Return sampling weights of rows beside the higher orders of factors."""
        surrogate = self.reference.surrogate
        if by_size:
            cubics = [None if f is None else surrogate.cubic(f.entries) for f in factors]
            every = sizes_of_rows(self.reference, self.rows, cubics)
        else:
            n_rows = self.tall.n_rows
            every = [Sizes(np.ones(n_rows), np.zeros(n_rows), np.empty(0))] * len(factors)
        return [
            sizes
            if factor is None or sizes.farthest.size
            else sizes._replace(farthest=np.ones(factor.n_levels))
            for factor, sizes in zip(factors, every, strict=True)
        ]

    def _levels(self, factor: Factor) -> bool:
        return any(levels.rows is factor.entries for levels in self.field.levels)

    def initial_state(self) -> LatentState:
        """Return the state before tuning."""
        decided = [n for n, move in moves_of(self.plan).items() if move.scope == "all rows"]
        return super().initial_state()._replace(tests={n: self._untuned_test() for n in decided})

    def _untuned_test(self) -> DecisionState:
        """Return what is tuned of the test that decides on a kind of moves, before tuning."""
        first = self.batch_size or min(FIRST_BATCH, self.tall.n_rows)
        test = 0 if self.acceptance else SIGMAS.index(FIRST_SIGMA)
        batch = FirstBatch(np.full(1, first), np.array([math.log(first), 0.0]))
        return DecisionState(batch, np.full(1, test), np.zeros(3))

    def forget(self) -> None:
        """Forget what moves keep in memory, and which rows were drawn."""
        super().forget()
        clear(self.decisions.rows)

    def contradicted(self, point: np.ndarray) -> Contradiction | None:
        """Return a level that batches have let go where its own rows object, if one is found."""
        return self.weight_check.look(self.coordinates.from_model(point))

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
        surrogate = self.reference.surrogate
        higher = bool(surrogate.cubics)
        return Gathering(self.rows, surrogate.expansion.at, self.tall.data, higher)

    @cached_property
    def _kernels(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The tests on all rows and on those of each group, which know no data."""
        test = self._tests[0]
        levels = test.for_levels()
        assert levels is not None
        key = class_key(test)
        drawing: Drawing = "groups" if isinstance(self.table, GroupTable) else bool(self.table)
        decide = jit_kept(make_decision((), test, drawing), [key, repr(drawing)])
        return decide, jit_kept(make_sweep((), *levels), [key])

    @property
    def _tests(self) -> Sequence[Acceptance]:
        """The tests of which one is chosen for each kind of moves."""
        if self.acceptance is None:
            return [Penalty(sigma=sigma) for sigma in SIGMAS]
        return [self.acceptance]

    @cached_property
    def decisions(self) -> MinibatchDecisions:
        """What decides on moves."""
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
            of_blocks.parameters(self.temperature, np.array([BLOCK_BATCH]), n_rows),
            self.blocks,
            self.level_walks,
            self._level_rows,
            self.rows,
            self.tall.data,
            self.temperature,
        )
