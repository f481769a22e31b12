"""What the witness looks at where batches decide on moves of all variables.

Moves are compared with the model's own density; and of the batches that decide, how often each row
comes and what it counts.
"""

import math

import numpy as np

from pymc_minibatch.acceptance.exact import MADE_UP, bound_factor
from pymc_minibatch.acceptance.growing import (
    new_first_batch,
)
from pymc_minibatch.kernels.rows import clear
from pymc_minibatch.steps.gathered_rows import GatheredRows
from pymc_minibatch.witness.batches import (
    MOST_ROWS,
    Batch,
    Probabilities,
    expected_rows,
    first_batch,
    n_batches,
    probabilities,
)
from pymc_minibatch.witness.together import MovesTogether
from pymc_minibatch.witness.witness import Look

__all__ = ["WitnessedBatches"]


class WitnessedBatches(GatheredRows):
    """Moves of all variables by batches, which the witness looks at."""

    def look(self) -> Look | None:
        """Return what compares moves with the model's own density."""
        if self.tall.partitions is not None:
            return None
        wanted = getattr(self.proposal, "needs_prior_gradient", False)
        return MovesTogether(
            self.model_density,
            self.one_transition,
            self.target.row,
            constants=self.density.constants,
            data=self.density.data,
            active=self._active,
            proposal=self.proposal,
            state=self.proposal_state,
            guide=self.guide,
            prior_gradient=self._prior_gradient if wanted else None,
            drawn=self._drawn,
            rests_on=self._presumes,
            batches=self._batches,
        )

    @property
    def _presumes(self) -> str:
        """What decisions rest on, in words."""
        if self.ball is not None:
            return "third derivatives of rows are within their bounds, and 0 where these are"
        if self.control_variate:
            return "expansion and remainder add up to the log-likelihood of each row"
        return "the rows found in the model are all that depends on data"

    def _batches(
        self, rng: np.random.Generator, point: np.ndarray
    ) -> tuple[list[Batch], Probabilities | None]:
        """Draw batches for decisions on moves from a point; return the probabilities of rows too.

        They have as many rows as :func:`.first_batch` says.
        """
        if self.n_rows > MOST_ROWS or self.residents is not None:
            return [], None
        kept, batches = (self.batch_state, self.test_parameters), []
        try:
            with np.errstate(all="ignore"):  # rows may be impossible at a proposal
                for seed in rng.integers(2**63, size=n_batches(self.n_rows)).tolist():
                    self.batch_state, self.test_parameters = kept
                    batches.append(self._one_batch(seed, point))
        finally:
            self.batch_state, self.test_parameters = kept
            clear(self.workspace)
        known = [batch for batch in batches if batch is not None]
        return known, probabilities(self.workspace.table, self.n_rows)

    def _one_batch(self, seed: int, point: np.ndarray) -> Batch | None:
        """Decide on one move by a larger batch than the chain's own, if it reads a batch."""
        size = first_batch(self.n_rows)
        self.batch_state, rows = new_first_batch(size), (np.nan, np.nan, np.nan)
        if self.ball is not None:
            move = self.one_transition(np.random.default_rng(seed), point)
            largest, factor = bound_factor(point, move.proposed, self.ball)
            if not (np.isfinite(move.without_rows) and 0.0 < largest <= self.ball.radius):
                return None
            mean = expected_rows(self.ball.total, factor, self.temperature)
            if mean == 0.0:
                return None
            rows = self._many_rows(size / mean, size, move.without_rows)
        clear(self.workspace)
        move = self.one_transition(np.random.default_rng(seed), point)
        n, totals = int(self.workspace.n_drawn[0]), move.totals
        assert totals is not None
        drawn, terms = self.workspace.drawn[:n].copy(), self.workspace.log_ratios[:n].copy()
        batch = tuple(values[drawn] for values in self.density.data)
        both = self.target.row(point, move.proposed, self.density.constants, batch)
        noise = np.nan, np.nan
        if self.acceptance.first_batch == "tuned" and n == totals.batch_rows:
            scale = self.n_rows / self.temperature
            s2 = scale**2 * terms.var(ddof=1) / n * (1 - n / self.workspace.population)
            noise = totals.log_ratio_var, float(s2)
        if self.ball is not None:
            rows = float(totals.batch_rows), *rows[1:]
        return Batch(drawn, terms, both[1] - both[0], noise, rows)

    def _many_rows(self, times: float, mean: float, psi: float) -> tuple[float, float, float]:
        """Let the exact test draw so many times the rows; say how many, for a move with ψ.

        It stays right, as larger bounds are bounds. It draws none where stage 1 rejects.
        """
        temperature, ball = self.test_parameters
        self.test_parameters = temperature, ball._replace(total=times * ball.total)
        second = max(-MADE_UP * mean, min(psi, MADE_UP * mean))
        share = math.exp(min(0.0, psi - second))
        return 0.0, share * mean, share * mean + share * (1.0 - share) * mean**2

    def _drawn(self, here: np.ndarray, there: np.ndarray) -> np.ndarray | None:
        """Return which rows decisions on a move may read; None for all."""
        if self.ball is None:
            return None if self.row_sizes is None else self.row_sizes.drawn(self.n_rows)
        if bound_factor(here, there, self.ball)[0] > self.ball.radius:
            return None
        if not self.ball.total:
            return np.zeros(self.n_rows, dtype=np.bool_)
        assert self.row_sizes is not None
        return self.row_sizes.drawn(self.n_rows)
