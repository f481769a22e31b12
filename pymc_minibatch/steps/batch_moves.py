"""Moves of all variables at once, which a test on batches of rows decides on.

It is the algorithm of :class:`MinibatchMH` for models without effects: a proposal and a test, rows
drawn by size or uniformly, and a kernel that makes the transitions of a draw.
"""

import copy
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pymc.blocking import PointType
from pymc.exceptions import SamplingError

from pymc_minibatch.acceptance import CorrectedBarker
from pymc_minibatch.acceptance.decision import Acceptance, Rows, row_workspace
from pymc_minibatch.acceptance.exact import Ball
from pymc_minibatch.acceptance.growing import FirstBatch, tune_first_batch, with_kurtosis
from pymc_minibatch.jit.pointers import address_of
from pymc_minibatch.kernels.by_size import NO_SIZES, RowSizes
from pymc_minibatch.kernels.metropolis import Totals, compile_transitions, of_one_draw
from pymc_minibatch.kernels.residents import Residents
from pymc_minibatch.kernels.rows import Drawing, clear
from pymc_minibatch.messages import with_id
from pymc_minibatch.proposals import Laplace, RandomWalk, SurrogateHamiltonian
from pymc_minibatch.proposals.proposal import Approximation, Proposal, approximate
from pymc_minibatch.reference.decide import (
    choose_order,
    decide_control_variate,
    gaussian_acceptance,
    start_near_mode,
)
from pymc_minibatch.reference.density import Density, make_density
from pymc_minibatch.reference.heavy import heavy_axes
from pymc_minibatch.reference.taylor import Target, compile_prior_gradient, make_target
from pymc_minibatch.steps.asked import Asked, Claims, RowChoice
from pymc_minibatch.steps.common import TallStep
from pymc_minibatch.steps.deciding import DEFAULT_BATCH, least_uniform_batch, settle
from pymc_minibatch.tall.weighted import SizedRows
from pymc_minibatch.witness.together import JointMove

__all__ = ["BatchMoves", "ImpossibleRowError"]

_log = logging.getLogger("pymc_minibatch")

CHECKED_DECISIONS = 50
"""Decisions after tuning before their cost is compared with that of the trial."""

SUSPICIOUS_ROWS, SUSPICIOUS_SHARE = 500, 0.5
"""Decisions that read fewer rows, or a smaller share of them, are no reason to look."""

DEARER = 2.5
"""Warn of decisions that read so many times the rows that a trial about the mode needed."""

HEAVY_WALK = 0.4
"""Share of the random walk where tails are heavy, half of it along their axes."""

NEARLY_GAUSSIAN = 0.5
"""If independent Gaussian proposals would be accepted this often, no others are needed."""


class ImpossibleRowError(SamplingError):
    """A row is impossible at a point to which decisions on other rows have led."""


class BatchMoves(TallStep):
    """A step whose moves of all variables a test on batches of rows decides on.

    A step that extends it sets what is asked for, and calls `_set_up_plainly`.
    """

    acceptance: Acceptance
    batch_size: int | None
    batch_state: FirstBatch
    _cost_is_checked: bool
    _read: np.ndarray
    claims: Claims
    kurtosis: float
    least_batch: int
    prepared: Any
    proposal: Proposal
    proposal_options: tuple[Any, ...]
    proposal_state: Any
    residents: Residents | None
    row_sizes: RowSizes | None
    rows: str
    rows_in_memory: float
    sized: SizedRows | None
    temperature: float

    @property
    @abstractmethod
    def n_transitions(self) -> int:
        """Transitions of a draw."""

    def _set_up_plainly(self, asked: Asked, *, one_mode: bool) -> float:
        """Settle how all variables are moved at once; return about how many rows a move takes.

        Raises
        ------
        SeveralModesError
            If there are several modes, unless it is to be done for one all the same.
        """
        control_variate = asked.control_variate
        if not self.claims.expansion:
            control_variate = 0
        if self.acceptance.needs_order == 2 and control_variate == "auto":
            control_variate = 2
        self.control = decide_control_variate(
            self.tall,
            asked.reference,
            control_variate,
            self.temperature,
            one_mode=one_mode,
            will_be_witnessed=self.witness is not None
            and not self.tall.is_bound
            and self.tall.partitions is None,
        )
        if self.tall.partitions is not None and not self.control_variate:
            self.tall = self.tall.copied()
        rows_read = self._settle_decisions(asked.is_open, asked.rows)
        self.proposal = asked.proposal or self._default_proposal()
        _check_target(self.proposal, self.acceptance)
        self.proposal_options = self.proposal.jit_options
        return rows_read

    def _settle_decisions(self, is_open: bool, rows: RowChoice) -> float:
        """Settle the test and how rows are drawn; return about how many a full-size move takes."""
        test: Acceptance | Literal["auto"] = self.acceptance
        if is_open:
            may_bound = self.batch_size is None and self.claims.bounds
            test = "auto" if may_bound else CorrectedBarker()
        settled = settle(self.tall, self.control, test, rows)
        self.acceptance, self.rows, self.control = (
            settled.acceptance,
            settled.rows,
            settled.control,
        )
        self.row_sizes, self.prepared = settled.row_sizes, settled.prepared
        if self.ball is not None:
            self.prepared = self.ball._replace(at_once=bool(self._heavy.size))
        self.sized = settled.sized
        self.choice = f"{type(self.acceptance).__name__}: {settled.reason}."
        uneven = settled.unevenness
        if uneven:
            of_rows = uneven.kurtosis_by_size if self.rows == "size" else uneven.uniform_kurtosis
            self.kurtosis = min(of_rows, float(self.n_rows))
        if uneven and self.rows == "uniform" and self.acceptance.first_batch == "tuned":
            self.least_batch = least_uniform_batch(
                self.n_rows, self._initial_batch, self.batch_size, uneven
            )
        # Without a control variate a random walk needs a constant share of the rows.
        return settled.rows_read if self.control_variate else float(self.n_rows)

    def _default_proposal(self) -> Proposal:
        if self.control is None or not self.control.order:
            return RandomWalk()
        if self.tall.layout.discrete:  # the prior changes with them
            return SurrogateHamiltonian()
        fit = gaussian_acceptance(self.tall, self.control)
        share = HEAVY_WALK if self._heavy.size else Laplace.random_walk
        if fit > NEARLY_GAUSSIAN or self._heavy.size:
            return Laplace(random_walk=share)
        return SurrogateHamiltonian(random_walk=share)

    @property
    def ball(self) -> Ball | None:
        """The bounds of the exact test; None for others."""
        return self.prepared if isinstance(self.prepared, Ball) else None

    @cached_property
    def _heavy(self) -> np.ndarray:
        """Positions of parameters whose tails are heavier than a Gaussian's."""
        if self.control is None or not self.control.order or self.tall.partitions is not None:
            return np.empty(0, dtype=np.int64)
        return heavy_axes(self.tall, self.control)

    @property
    def _approximation(self) -> Approximation | None:
        if self.control is None:
            return None
        return approximate(self.control, self._active, self._heavy)

    @property
    def _initial_batch(self) -> int:
        """Rows of a first batch before tuning."""
        return self.batch_size or min(max(DEFAULT_BATCH, self.least_batch), self.n_rows)

    @cached_property
    def target(self) -> Target:
        """The density that kernels sample, as functions of a point and a batch."""
        return make_target(self.tall, self.control)

    @cached_property
    def _prior_gradient(self) -> Callable[..., np.ndarray]:
        return compile_prior_gradient(self.tall)

    @cached_property
    def guide(self) -> tuple[Any, ...]:
        """What the proposal reads, and nothing changes."""
        wanted = self.proposal.needs_prior_gradient
        gradient = address_of(self._prior_gradient, self.tall.layout.empty()) if wanted else 0
        return self.proposal.guide(self._approximation, gradient)

    @cached_property
    def kernel(self) -> Callable[..., int]:
        """The compiled loop over transitions."""
        ndims = [values.ndim for values in self.density.data]
        return compile_transitions(ndims, self.acceptance, self.proposal, self.drawing)

    @property
    def drawing(self) -> Drawing:
        """How kernels draw rows; see :func:`.kernels.rows.make_readers`."""
        return self.residents is None or "residents"

    @cached_property
    def density(self) -> Density:
        """The target as kernels call it."""
        if self.residents is None:
            return make_density(self.tall, self.target)
        density = make_density(self.tall, self.target, self.residents.data)
        return density._replace(drawn=self.residents.drawn)

    @cached_property
    def workspace(self) -> Rows:
        """What kernels draw rows into."""
        if self.residents is not None:
            return row_workspace(self.residents.numbers.size, self.residents.table)
        sizes = NO_SIZES if self.row_sizes is None else self.row_sizes.table
        return row_workspace(self.n_rows, sizes)

    @cached_property
    def _first_batch(self) -> np.ndarray:
        return self.batch_state.size.copy()

    @cached_property
    def test_parameters(self) -> tuple[Any, ...]:
        """What the test reads at every decision."""
        given = self.acceptance.parameters(self.temperature, self._first_batch, self.n_rows)
        given = with_kurtosis(given, self.kurtosis)
        return given if self.prepared is None else (*given, self.prepared)

    def _reset_tuning(self) -> None:
        variance = self.temperature / self.n_rows
        self.proposal_state = self.proposal.initial_state(
            self._active.size, variance, self._approximation
        )

    def _count_anew(self) -> None:
        """Forget what decisions have read so far."""
        self._read, self._cost_is_checked = np.zeros(2), False

    def near_mode(self, point: PointType) -> Mapping[str, np.ndarray]:
        """Return a point near the mode if one is known, else the point."""
        if self.control is None or not self.control.order:
            return point
        return start_near_mode(self.tall, self.control, self._active, point, self.rng)

    def _compile(self) -> None:
        self.make_transitions(self.tall.start.copy(), n_steps=0)

    def _forget_work(self) -> None:
        if "workspace" in self.__dict__:
            clear(self.workspace)

    def _draw(self, flat: np.ndarray) -> dict[str, Any]:
        totals = self._transitions_of_draw(flat)
        self.refuse_impossible(totals.impossible_row, flat)
        if self.tune:
            self.proposal.end_draw(self.proposal_state)
            self._tune_batch(totals.n_grown, totals.n_decisions)
        stats = self._stats(totals)
        stats["warning"] = None
        if not self.tune:
            stats["warning"] = self._warning_of_cost(totals)
        elif self.watches_cost:
            self._is_beyond |= self._beyond_expansion(totals) is not None
        return stats

    def _draw_block(self, flat: np.ndarray, points: np.ndarray) -> dict[str, Any]:
        made = np.zeros((len(points), len(Totals._fields)))
        n_made = self._make_draws(flat, self.n_transitions, points, made)
        totals = Totals(*made.T)
        self.refuse_impossible(int(made[n_made - 1, 7]), points[n_made - 1])
        stats = self._stats(totals)
        of_all = of_one_draw(made.sum(axis=0)[None])
        stats["warning"] = self._warning_of_cost(of_all)
        return stats

    def _transitions_of_draw(self, flat: np.ndarray) -> Totals:
        return self.make_transitions(flat, self.n_transitions)

    def refuse_impossible(
        self, row: int, flat: np.ndarray, numbers: np.ndarray | None = None
    ) -> None:
        """Raise if a kernel has stopped at a row.

        `numbers` are those of the rows that it reads, if they are not all rows.
        """
        if row >= 0:
            number = row if numbers is None else int(numbers[row])
            kind = SamplingError if self._breaks_a_bound(number, flat) else ImpossibleRowError
            raise kind(self.complaint(number, flat))

    def _breaks_a_bound(self, row: int, flat: np.ndarray) -> bool:
        """Whether a row at which the kernel has stopped is possible, but a bound of it is wrong."""
        values = self.tall.layout.unflatten(flat)
        return self.ball is not None and bool(np.isfinite(self.tall.row_logp(values, [row])).all())

    def complaint(self, row: int, flat: np.ndarray) -> str:
        """Say what is wrong with a row at which the kernel has stopped."""
        name = f"Row {row} of {' + '.join(self.tall.row_names)}"
        if self._breaks_a_bound(row, flat):
            return with_id(
                "PMB302",
                f"{name} varies more than the bound on its third derivative allows, so the exact "
                "test is not exact. Correct Exact(third=...), which must hold at every value of "
                "the predictor, or use CorrectedBarker().",
            )
        return with_id(
            "PMB303",
            f"{name} has a log-likelihood that is not finite at a point that was accepted from "
            "other rows: the support of the likelihood depends on the parameters, and batches "
            "can miss its end. Raise tune: with at least 150 tuning draws left, the chain "
            "continues with NUTS on all rows (fallback='nuts', with the defaults of acceptance, "
            "proposal and batch_size).",
        )

    def _beyond_expansion(self, totals: Totals) -> tuple[float, float] | None:
        """Return how many rows decisions read, and needed in a trial, if it is far more.

        Then the chain is where the expansion about the mode does not hold, and the moves made for
        the neighbourhood of the mode are no good either. It is asked once.
        """
        self._read += (totals.n_decisions, totals.batch_rows)
        n_decisions, n_rows = self._read
        if self._cost_is_checked or not self.control_variate or n_decisions < CHECKED_DECISIONS:
            return None
        mean = n_rows / n_decisions
        if mean < max(SUSPICIOUS_ROWS, SUSPICIOUS_SHARE * self.n_rows):
            return None
        self._cost_is_checked = True
        assert self.control is not None
        expected = self.n_rows * choose_order(self.tall, self.control.gaussian, self.temperature)[2]
        return None if mean < DEARER * max(expected, SUSPICIOUS_ROWS) else (mean, expected)

    def _warning_of_cost(self, totals: Totals) -> str | None:
        """Warn once where decisions read far more rows than the surrogate is good for."""
        found = self._beyond_expansion(totals)
        if found is None:
            return None
        mean, expected = found
        return with_id(
            "PMB202",
            f"Decisions read {mean:,.0f} of {self.n_rows:,} rows (expected {expected:,.0f}): the "
            "chain is far from the posterior mode, where the Taylor expansion is poor, and has "
            "probably not converged. Check R-hat and the effective sample size, and increase tune.",
        )

    def make_transitions(self, flat: np.ndarray, n_steps: int) -> Totals:
        """Move a flat point in place by some transitions."""
        point, totals = self._one_draw
        self._make_draws(flat, n_steps, point, totals)
        return of_one_draw(totals)

    def _make_draws(
        self, flat: np.ndarray, n_steps: int, points: np.ndarray, totals: np.ndarray
    ) -> int:
        """Move a point, and write draws and what happened in them; return how many were made."""
        self._first_batch[0] = self.batch_state.size[0]
        return self.kernel(
            self.rng,
            flat,
            self._active,
            self.density,
            n_steps,
            self.tune,
            self.proposal_state,
            self.guide,
            self.test_parameters,
            self.workspace,
            *self._last_proposal,
            points,
            totals,
        )

    @cached_property
    def _one_draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Where a draw that is made by itself is written."""
        return self.tall.layout.empty()[None], np.zeros((1, len(Totals._fields)))

    @cached_property
    def _last_proposal(self) -> tuple[np.ndarray, np.ndarray]:
        """Where kernels leave their last proposal, and its log ratios."""
        return self.tall.layout.empty(), np.zeros(2)

    def one_transition(self, rng: np.random.Generator, point: np.ndarray) -> JointMove:
        """Make one transition from a copy of a point, as the chain would."""
        kept = self.rng, self.proposal_state, self.tune
        self.rng, self.proposal_state, self.tune = rng, copy.deepcopy(self.proposal_state), False
        try:
            totals = self.make_transitions(point.copy(), 1)
        finally:
            self.rng, self.proposal_state, self.tune = kept
        proposed, ratios = self._last_proposal
        return JointMove(proposed.copy(), float(ratios[0]), float(ratios[1]), totals)

    def _tune_batch(self, n_grown: int, n_decisions: int) -> None:
        if self.batch_size is None and self.acceptance.first_batch == "tuned":
            tune_first_batch(self.batch_state, n_grown, n_decisions, self.n_rows, self.least_batch)

    def _stats(self, totals: Totals) -> dict[str, Any]:
        """Return the stats of a draw, or of many."""
        n_decisions = np.maximum(totals.n_decisions, 1)
        pinned = 0 if self.control is None else self.control.always_read.size
        return {
            "acceptance_rate": totals.n_accepted / self.n_transitions,
            # Rows that are read always, at the first point and at each proposal.
            "n_likelihood": 2 * totals.n_evaluated + pinned * (self.n_transitions + 1),
            "n_gradient": 2 * totals.n_evaluated if self.control_variate else 0,
            "n_scanned": 2 * totals.n_scanned,
            "batch_size": totals.batch_rows / n_decisions,
            "log_ratio_var": totals.log_ratio_var / n_decisions,
            "test_error": np.minimum(1.0, totals.test_error),
            "exact": self.ball is not None,
            "diverging": False,
            "scale": self.proposal.scale(self.proposal_state),
        }


def _check_target(proposal: Proposal, acceptance: Acceptance) -> None:
    """Refuse an acceptance rate that the test never reaches: the moves would shrink to nothing."""
    most = acceptance.most_accepted
    if isinstance(proposal, RandomWalk) and proposal.adapt and proposal.target_accept >= most:
        raise ValueError(
            f"RandomWalk(target_accept={proposal.target_accept}) is tuned to a rate that "
            f"{acceptance} never reaches: it accepts {most:.2g} of the proposals at most. Set a "
            "lower rate."
        )
