"""Moves of a latent field decided by the log-likelihoods of all rows.

If a batch would have to be a good part of the data, as with few rows for each effect, all rows
cost less: of each only its value is needed, and those at the present point are known. Decisions are
then exact: the surrogate proposes, and Metropolis-Hastings corrects it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np

from pymc_minibatch.jit.cores import n_idle_cores
from pymc_minibatch.latent.elsewhere import look_elsewhere
from pymc_minibatch.latent.level_steps import OwnRowMoves
from pymc_minibatch.latent.locate import LatentModel
from pymc_minibatch.latent.moves.decisions import Candidate, Decisions, LevelMoves, MoveCounts
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.own_rows import Elsewhere, LevelRows
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.latent.surrogate import PredictorState, Surrogate
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel

__all__ = ["WholeDecisions", "WholeSampler"]

CHUNK_ROWS = 2**14
"""Rows that are evaluated at once, and stay in cache."""

REMEMBERED = 2
"""Points whose rows are kept."""

THREAD_CHUNKS = 4
"""Fewest chunks (some 0.5 ms) that are worth a thread."""


class WholeDecisions(Decisions):
    """Metropolis-Hastings by all rows, or by those of each level.

    Parameters
    ----------
    surrogate
        The density by which moves are proposed.
    rows
        What the rows read.
    data
        All rows.
    row_levels : sequence of ndarray, shape (N,)
        For each grouping factor that is swept the level of each row.
    temperature
        T.
    level_rows
        The rows of the levels, if these may move by their own density.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        rows: RowFunctions,
        data: Sequence[np.ndarray],
        row_levels: Sequence[np.ndarray],
        temperature: float,
        level_rows: LevelRows | None,
    ) -> None:
        self.level_rows = level_rows
        self.surrogate, self.rows, self.data = surrogate, rows, data
        self.row_levels, self.temperature = row_levels, temperature
        self.known: list[tuple[np.ndarray, np.ndarray]] = []

    def on_all(self, rng: np.random.Generator, move: Candidate, counts: MoveCounts) -> bool:
        """Decide by what all rows say, which takes the place of what the surrogate says of them."""
        before, after = self._values(move.predictors, counts)
        counts.decisions += 1
        counts.batch_rows += after.size
        return bool(-rng.standard_exponential() < self._by_rows(move, before, after))

    def on_levels(
        self, rng: np.random.Generator, moves: LevelMoves, counts: MoveCounts
    ) -> np.ndarray:
        """Let each level decide by its own rows."""
        predictors, factor, moving, undecided = moves[:4]
        of_rows, levels = self.row_levels[factor], self.surrogate.field.levels[factor]
        before, after = self._values(predictors, counts)
        change = undecided + self._beside_surrogate_by_level(moves, before, after)
        decided = moving & (-rng.standard_exponential(moving.size) < change)
        phi, entries = predictors[0].phi.copy(), levels.rows[decided]
        phi[entries] = predictors[1].phi[entries]
        self._remember(phi, np.where(decided[of_rows], after, before))
        return decided

    def on_own_rows(
        self, rng: np.random.Generator, moves: OwnRowMoves, state: ChainState, counts: MoveCounts
    ) -> tuple[np.ndarray, np.ndarray]:
        """Let levels step by their own density; what rows say is known before and after."""
        before, own = self._at(state.predictors.phi, counts), self.own_rows(moves)
        walked = self.walked(rng, (own, moves), state, counts, before[own.numbers])
        if walked is None:
            return state.point, np.zeros(moves.chosen.size, dtype=np.bool_)
        values = before.copy()
        values[own.numbers] = walked.values
        self._remember(self.surrogate.phi(walked.point), values)
        return walked.point, walked.moved

    def slope(self, phi: np.ndarray) -> np.ndarray:
        """Return the slope of the log-likelihood of all rows by φ, divided by T, shape (P,)."""
        total = np.zeros(phi.size)
        for chunk in self._long_chunks:
            total += self.rows.slope(phi, *chunk)
        return total / self.temperature

    def log_ratio(self, move: Candidate) -> float:
        """Return the log ratio of a move by all rows."""
        before, after = (self.of_all(predictor.phi) for predictor in move.predictors)
        return self._by_rows(move, before, after)

    def of_rows(self, move: Candidate) -> float:
        """Return what all rows add to the log ratio of a move under the surrogate."""
        return self.log_ratio(move) - move.log_ratio

    def of_rows_by_level(self, moves: LevelMoves) -> np.ndarray:
        """Return what all rows of each level add to its log ratio."""
        before, after = (self.of_all(predictor.phi) for predictor in moves.predictors)
        return self._beside_surrogate_by_level(moves, before, after)

    def _by_rows(self, move: Candidate, before: np.ndarray, after: np.ndarray) -> float:
        """Leave out the surrogate: far out it is so large that no digit of the rest is left."""
        here, there = move.states
        log_q = 0.0 if move.proposal is None else move.proposal.log_q
        return float(there.log_prior - here.log_prior + log_q + np.sum(after - before))

    def _beside_surrogate_by_level(
        self, moves: LevelMoves, before: np.ndarray, after: np.ndarray
    ) -> np.ndarray:
        of_rows = self.row_levels[moves.factor]
        levels = self.surrogate.field.levels[moves.factor]
        change = np.bincount(of_rows, after - before, minlength=moves.moving.size)
        return change - self.surrogate.change_of_levels(moves.predictors, levels)

    def _values(
        self, predictors: tuple[PredictorState, PredictorState], counts: MoveCounts
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-likelihoods of all rows at both points."""
        is_first = counts.n_evaluated == 0
        before = self._at(predictors[0].phi, counts)
        if is_first:  # known, unless a chain is resumed here; so its counts are those of the first
            counts.n_evaluated = 0
        after = self._at(predictors[1].phi, counts)
        impossible = np.flatnonzero(~np.isfinite(before))
        if impossible.size:
            counts.impossible_row = int(impossible[0])
        return before, after

    def _at(self, phi: np.ndarray, counts: MoveCounts) -> np.ndarray:
        for i, (at, values) in enumerate(self.known):
            if np.array_equal(at, phi):
                self.known.append(self.known.pop(i))
                return values
        values = self.of_all(phi)
        counts.n_evaluated += values.size
        self._remember(phi, values)
        return values

    def of_all(self, phi: np.ndarray) -> np.ndarray:
        """Return the log-likelihoods of all rows at φ, divided by T, shape (N,)."""
        chunks, values = self._chunks, np.empty(len(self.data[0]))

        def fill(numbers: np.ndarray) -> None:
            for i in numbers:
                values[i * CHUNK_ROWS : (i + 1) * CHUNK_ROWS] = self._of_some(phi, chunks[i])

        n_threads = min(n_idle_cores(), len(chunks) // THREAD_CHUNKS)
        if n_threads <= 1:
            fill(np.arange(len(chunks)))
        else:
            with ThreadPoolExecutor(n_threads) as pool:
                list(pool.map(fill, np.array_split(np.arange(len(chunks)), n_threads)))
        return values

    def _of_some(self, phi: np.ndarray, batch: list[np.ndarray]) -> np.ndarray:
        """Return those of a batch; −∞ where digits were lost (NaN), or all of them (+∞).

        A truncated density has the latter where what is left of a distribution rounds to 0.
        """
        values = self.rows.values(phi, *batch)[0]
        if self.temperature != 1.0:
            values = values / self.temperature
        return values if values.max() < np.inf else np.where(values < np.inf, values, -np.inf)

    @cached_property
    def _chunks(self) -> list[list[np.ndarray]]:
        return self._chunks_of(CHUNK_ROWS)

    @cached_property
    def _long_chunks(self) -> list[list[np.ndarray]]:
        """Chunks so long that their slopes, each as long as φ, are soon added up."""
        return self._chunks_of(max(CHUNK_ROWS, self.surrogate.expansion.at.size))

    def _chunks_of(self, n_rows: int) -> list[list[np.ndarray]]:
        """Return all rows, a few at a time."""
        starts = range(0, len(self.data[0]), n_rows)
        return [[_as_batch(part[i : i + n_rows]) for part in self.data] for i in starts]

    def _remember(self, phi: np.ndarray, values: np.ndarray) -> None:
        self.known = [*self.known[1 - REMEMBERED :], (phi, values)]


class _AsBatch:
    """Rows that pretend to be writable, as those of a batch are, which have been gathered."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows
        self.__array_interface__ = rows.__array_interface__ | {"data": (rows.ctypes.data, False)}


def _as_batch(rows: np.ndarray) -> np.ndarray:
    """Return rows of the type for which functions of batches are compiled; nobody writes to them.

    Without a copy, which would be a second one of the data, and of files that do not fit in memory.
    """
    rows = np.require(rows, requirements=["C", "ALIGNED"])
    return rows if rows.flags.writeable else np.asarray(_AsBatch(rows))


class WholeSampler(LatentSampler):
    """Moves on which all rows decide.

    Parameters
    ----------
    tall
        The model.
    latent_model
        Where it is, and what its rows read.
    temperature
        Of the target.
    """

    evaluations = 1, 0
    has_slopes = True
    presumes = "rows are independent, and read predictors that are affine in effects"

    def __init__(self, tall: TallModel, latent_model: LatentModel, temperature: float) -> None:
        rows, factors, reference, _ = latent_model
        super().__init__(tall, reference)
        self.rows, self.temperature = rows, temperature
        self.row_levels = self.levels_of_rows(factors)
        by_entries = {id(factor.entries): factor for factor in factors}
        self.tables = [by_entries[id(levels.rows)].by_level() for levels in self.field.levels]
        self.elsewhere: Sequence[Elsewhere] = ()
        varying = [np.full(tall.n_rows, np.inf)] * len(self.tables)
        self.elsewhere = look_elsewhere(self._level_rows, reference.hyper, varying)

    @property
    def _level_rows(self) -> LevelRows:
        surrogate = self.reference.surrogate
        return LevelRows(surrogate, self.rows, self.temperature, self.tables, self.elsewhere)

    @cached_property
    def decisions(self) -> WholeDecisions:
        """What decides on moves."""
        return WholeDecisions(
            self.reference.surrogate,
            self.rows,
            self.tall.data,
            self.row_levels,
            self.temperature,
            self._level_rows,
        )

    def describe(self) -> str:
        """Say in words what moves how."""
        return f"all rows are read, which takes less time than batches here; {super().describe()}"
