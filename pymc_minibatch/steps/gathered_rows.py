"""Moves by batches of rows that stay in partitions: rows drawn by size are gathered before.

For the exact test each row that was gathered serves once, and others are gathered when they run
out; for other tests they serve again and again, with an error that is reported.
"""

import copy
from hashlib import sha256
from typing import Any

import numpy as np
from pymc.blocking import PointType
from pymc.exceptions import SamplingError
from pymc.util import RandomGenerator

from pymc_minibatch.kernels.metropolis import Totals, summed
from pymc_minibatch.kernels.residents import OUT_OF_ROWS, Residents
from pymc_minibatch.messages import with_id
from pymc_minibatch.steps.asked import RowChoice
from pymc_minibatch.steps.batch_moves import BatchMoves
from pymc_minibatch.tall.weighted import SizedRows

__all__ = ["GatheredRows"]

LASTING = 1e5
"""If rows are in partitions, rows that are gathered: so many times those that a move takes."""

LEAST_RESIDENTS = 100_000


class GatheredRows(BatchMoves):
    """Moves of all variables by batches, also of rows that are gathered before."""

    def _start(self, point: PointType) -> PointType:
        """Let a chain start near the mode if only rows that tell there are on this machine."""
        if self.residents is not None and self.n_draws == 0:
            return {**point, **self.near_mode(point)}
        return super()._start(point)

    def _first_residents(self, sized: SizedRows, rows_read: float) -> Residents:
        """Gather rows by size; for the exact test, each chain gathers its own when it needs them.

        For the exact test they are to last for many decisions; where rows serve again, the error
        that is left is small if they are many times the rows at which s² = 1.
        """
        most = max(LEAST_RESIDENTS, int(self.rows_in_memory / self.tall.row_bytes))
        n = np.clip(LASTING * rows_read, LEAST_RESIDENTS, most)
        self.n_residents = int(n)
        if self.ball is not None:
            return Residents.none(sized)
        return Residents.gather(sized, self.n_residents, np.random.default_rng(0), once=False)

    def _snapshot(self, flat: np.ndarray) -> tuple[Any, ...]:
        """Copy what transitions change, where they may run out of rows."""
        if self.residents is None:
            return ()
        turn, state = self.residents.table.turn.copy(), copy.deepcopy(self.proposal_state)
        return flat.copy(), self.rng.bit_generator.state, state, turn

    @property
    def _gathered(self) -> tuple[Residents, np.ndarray]:
        """The rows that were gathered, and whose turn it is."""
        assert self.residents is not None
        return self.residents, self.residents.table.turn.copy()

    @_gathered.setter
    def _gathered(self, stored: tuple[Residents, np.ndarray]) -> None:
        residents, turn = stored
        self._put_in_place(residents)
        residents.table.turn[:] = turn

    def _restore(self, flat: np.ndarray, before: tuple[Any, ...]) -> None:
        assert self.residents is not None
        flat[:], self.rng.bit_generator.state, self.proposal_state, turn = before
        self.residents.table.turn[:] = turn

    def _one_by_one(self, flat: np.ndarray) -> Totals:
        """Make the transitions of a draw one by one, and gather rows where they run out.

        A decision that runs out is made again with the same random numbers, and so with the same
        number of rows: that they had run out tells nothing of the rows, and the test stays exact.
        """
        made = []
        for _ in range(self.n_transitions):
            before = self._snapshot(flat)
            totals = self.make_transitions(flat, 1)
            if totals.impossible_row == OUT_OF_ROWS:
                self._restore(flat, before)
                self.gather()
                totals = self.make_transitions(flat, 1)
            made.append(totals)
            if totals.impossible_row != -1:
                break
        return summed(made)

    def gather(self) -> None:
        """Gather rows for the exact test, drawn by a generator of their own."""
        if self.ball is None:
            return
        assert self.sized is not None
        digest = sha256(repr(self.rng.bit_generator.state).encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest))
        self._put_in_place(Residents.gather(self.sized, self.n_residents, rng, once=True))

    def _put_in_place(self, residents: Residents) -> None:
        self.residents = residents
        self.__dict__.pop("workspace", None)
        if "density" in self.__dict__:
            self.density = self.density._replace(data=residents.data, drawn=residents.drawn)

    def _fixed_error(self, totals: Totals) -> float:
        """Return what acceptance probabilities are off by since gathered rows serve again."""
        if self.residents is None or self.ball is not None:
            return 0.0
        n = max(totals.n_decisions, 1)
        return self.residents.fixed_error(
            totals.log_ratio_var / n,
            totals.batch_rows / n,
            self.acceptance.steepest,
            self.temperature,
        )

    def setup_chain(self, rng: RandomGenerator, tune: int, draws: int) -> None:
        """Prepare for a chain; rows that served another one do not serve this one."""
        super().setup_chain(rng, tune, draws)
        if self.sized is not None and self.ball is not None:
            self._put_in_place(Residents.none(self.sized))

    def _settle_decisions(self, is_open: bool, rows: RowChoice) -> float:
        """Settle the test and how rows are drawn, and gather some of those in partitions."""
        rows_read = super()._settle_decisions(is_open, rows)
        if self.sized is not None:
            self.residents = self._first_residents(self.sized, rows_read)
        return rows_read

    def _transitions_of_draw(self, flat: np.ndarray) -> Totals:
        before = self._snapshot(flat)
        totals = super()._transitions_of_draw(flat)
        if totals.impossible_row == OUT_OF_ROWS:
            self._restore(flat, before)
            totals = self._one_by_one(flat)
        return totals

    def refuse_impossible(
        self, row: int, flat: np.ndarray, numbers: np.ndarray | None = None
    ) -> None:
        """Raise if a kernel has stopped at a row, or for want of rows."""
        if row == OUT_OF_ROWS:
            raise SamplingError(
                with_id(
                    "PMB301",
                    "The chain is far from the mode, and a decision needs more rows than the "
                    f"{self.n_residents:,} in memory. Set rows_in_memory to more bytes, or to "
                    "np.inf, which copies all rows to this machine.",
                )
            )
        if numbers is None and self.residents is not None:
            numbers = self.residents.numbers
        super().refuse_impossible(row, flat, numbers)

    def _changing(self) -> dict[str, Any]:
        """Copy whose turn it is of rows that were gathered, which changes after tuning as well."""
        gathered = {} if self.residents is None else {"_gathered": self._gathered}
        return super()._changing() | gathered

    def _stats(self, totals: Totals) -> dict[str, Any]:
        stats = super()._stats(totals)
        stats["test_error"] = np.minimum(1.0, totals.test_error + self._fixed_error(totals))
        return stats
