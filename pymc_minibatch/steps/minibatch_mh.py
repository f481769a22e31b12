"""The PyMC step for minibatch Metropolis-Hastings."""

import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from pymc.blocking import PointType
from pymc.exceptions import SamplingError
from pymc.model import Model
from pymc.step_methods.state import dataclass_state
from pymc.util import RandomGenerator
from pytensor.graph.basic import Variable

from pymc_minibatch.acceptance import CorrectedBarker, Exact
from pymc_minibatch.acceptance.decision import (
    Acceptance,
    Rows,
    Source,
    make_source,
    row_workspace,
)
from pymc_minibatch.acceptance.exact import Ball
from pymc_minibatch.acceptance.growing import (
    LEAST_BATCH,
    FirstBatch,
    first_batch,
    tune_first_batch,
)
from pymc_minibatch.kernels.by_size import RowSizes
from pymc_minibatch.kernels.cache import code_key
from pymc_minibatch.kernels.metropolis import Totals, make_transitions
from pymc_minibatch.proposals import Laplace, RandomWalk, SurrogateHamiltonian
from pymc_minibatch.proposals.proposal import Approximation, Proposal
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.decide import (
    decide_control_variate,
    gaussian_acceptance,
    start_near_mode,
)
from pymc_minibatch.reference.taylor import (
    Target,
    compile_prior_gradient,
    make_target,
    target_constants,
)
from pymc_minibatch.steps.common import TallStep, TallStepState, checked_count
from pymc_minibatch.steps.deciding import (
    PROPOSALS,
    TESTS,
    RowChoice,
    least_uniform_batch,
    likely_test,
    named,
    settle,
    steps_of_draw,
)
from pymc_minibatch.tall.ahead import CompiledAhead
from pymc_minibatch.tall.compiled import jit_cached
from pymc_minibatch.tall.pointers import address_of
from pymc_minibatch.warn import warn

__all__ = ["MinibatchMH", "MinibatchMHState"]

_log = logging.getLogger("pymc_minibatch")

DEFAULT_BATCH = 100

NEARLY_GAUSSIAN = 0.5
"""Where independent Gaussian proposals would be accepted this often, no others are needed."""

# Plain numbers, because Numba would call Python to return a named tuple, and crashes where Ctrl-C
# has arrived in the meantime.
KERNEL_SOURCE = """
def transitions(rng, point, active, source, n_steps, tuning, state, guide, parameters, rows):
    t = loop(rng, point, active, source, n_steps, tuning, state, guide, parameters, rows)
    return (
        t.n_accepted,
        t.n_decisions,
        t.n_grown,
        t.n_evaluated,
        t.batch_rows,
        t.log_ratio_var,
        t.test_error,
        t.impossible_row,
        t.n_scanned,
    )
"""


def make_kernel(
    ndims: Sequence[int], acceptance: Acceptance, proposal: Proposal, by_size: bool
) -> Callable[..., tuple[Any, ...]]:
    """Assemble the loop of transitions, its machine code kept on disk."""
    loop = make_transitions(ndims, acceptance.build, *proposal.build(), by_size)
    options = repr(ndims), repr(by_size), repr(proposal.jit_options)
    keys = [code_key(), type(acceptance).__name__, *options]
    return jit_cached(KERNEL_SOURCE, "transitions", {"loop": loop}, keys)


@dataclass_state
class MinibatchMHState(TallStepState):
    """What is needed to continue a chain."""

    proposal_state: tuple[np.ndarray, ...]
    batch_state: FirstBatch
    proposal_options: tuple[Any, ...] = field(metadata={"frozen": True})
    control_variate: int = field(metadata={"frozen": True})
    acceptance: Acceptance = field(metadata={"frozen": True})
    batch_size: int | None = field(metadata={"frozen": True})
    temperature: float = field(metadata={"frozen": True})
    rows: str = field(metadata={"frozen": True})


class MinibatchMH(TallStep):
    """Metropolis-Hastings that decides from a few rows of the data.

    Each transition proposes a move and accepts or rejects it by a test on a batch of rows, which
    grows until the test is sure enough. See :class:`CorrectedBarker` for what is approximate.

    Parameters
    ----------
    vars : variable, name, or list of them, optional
        Continuous free variables to sample; all if not given. Others are left to other steps, and
        their values are read at every draw.
    data : mapping of str to array, optional
        Data in place of the model's own, from wherever they live; see :class:`TallModel`.
    acceptance : "auto", Exact, CorrectedBarker, Penalty, Naive, Barker, Austere or SubLhd
        The acceptance test, as an instance or by a name such as "penalty". "auto", the default,
        takes Exact where it has bounds and is expected to read few rows, and CorrectedBarker
        elsewhere; ``choice`` says which, and why. The last four are there for comparison.
    proposal : Laplace, SurrogateHamiltonian, SurrogateLangevin or RandomWalk, optional
        How moves are proposed, as an instance or by a name such as "laplace". If not given: with a
        control variate, Laplace where prior and Taylor likelihood together are nearly Gaussian,
        else SurrogateHamiltonian; without, RandomWalk.
    reference : Reference, optional
        Where the log-likelihood is expanded; found here if not given and wanted. Find it once with
        :func:`find_reference` and hand it to several steps.
    control_variate : {"auto", 0, 1, 2}, default "auto"
        Order of the Taylor expansion about the reference that is taken off the row terms, so that
        only a remainder is estimated from the batch. 0 is none. "auto" takes 2 where the remainder
        varies less than the log-likelihood at points about the mode, and 0 where it does not, where
        there is no mode or several are seen, or where the model has discrete variables. Not every
        other mode is seen: where you know of one set 0, since moves about one rarely reach another.
    batch_size : int, optional
        Rows of the first batch of each decision, from 2 to N. If not given it is 100, and tuned by
        tests that can tell whether that does, towards the fewest rows that do for nine of ten
        decisions; where few rows decide and are drawn uniformly, so many that a batch holds some of
        them. Austere finds it by itself.
    rows : {"auto", "size", "uniform"}, default "auto"
        How the rows of a batch are drawn. "size": with replacement, in proportion to how far the
        term of each row varies over the posterior, which one pass about the reference point finds;
        so few rows that tell much (a rare category, an outlying predictor) are seen. "uniform":
        without replacement, as in the papers. "auto" draws by size where there is a reference point
        and that takes clearly fewer rows. Austere and SubLhd draw uniformly.
    temperature : float, default 1.0
        T > 0; the target is the prior times the likelihood to the power 1/T.
    steps_per_draw : int or "auto", default "auto"
        Transitions for each draw that is kept. Many cost little more than one, since they run in
        one compiled call. "auto" takes so many that draws are nearly independent, at most 50, and
        one where a transition reads many rows.
    model : pymc.Model, optional
        The model; taken from the context if not given. Its data are read once, here.
    rng : seed or numpy.random.Generator, optional
        Used where the step is run by hand; ``pm.sample`` gives each chain its own.

    Attributes
    ----------
    acceptance
        The acceptance test.
    rows : {"size", "uniform"}
        How rows are drawn.
    steps_per_draw : int
        Transitions for each draw.
    choice : str
        How it decides, and why.

    Raises
    ------
    NotTallError
        If the model does not split into a prior part and independent rows.
    ValueError
        If an argument is out of range, a variable is unknown or discrete, the data are empty or not
        finite, or the reference does not fit the model.

    Warns
    -----
    UserWarning
        If a Deterministic has a value for each row, which makes every draw cost N; if a
        temperature is given for some of the variables only; if there is no control variate, or it
        helps little; and if few rows decide, so that batches must be large.

    Notes
    -----
    With a control variate, a chain that tunes and starts far from the posterior mode is first moved
    to a random point near it.

    Sample stats, for each draw:

    - ``accept``: share of its transitions that were accepted (at most about one half).
    - ``n_likelihood``: row log-likelihoods evaluated; one row at one point counts 1.
    - ``n_gradient``: directional derivatives of rows evaluated for the control variate; those of
      one row at the reference, towards one point, count 1.
    - ``n_scanned``: row log-likelihoods evaluated besides, by tests that have to know something
      about all rows before they decide (SubLhd, and Austere with variant "nc").
    - ``batch_size``: mean number of rows that a decision rests on.
    - ``log_ratio_var``: mean of s², the variance of the estimated log ratio.
    - ``test_error``: largest estimated bound on the error of an acceptance probability.
    - ``exact``: whether the test is exact, as Exact is.
    - ``scale``: length of the moves; for a random walk the factor on its standard deviations, for
      Laplace sqrt(1 - rho²).
    - ``n_rows``: rows of the data, the same at every draw, for :func:`compare`.
    - ``setup_seconds``: seconds that making the step took, with those of a reference that was
      handed over; the same at every draw.

    Source: Seita, Pan, Chen and Canny (2017), An Efficient Minibatch Acceptance Test for
    Metropolis-Hastings, algorithm 1.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=np.random.default_rng(1).normal(size=10_000))
    ...     idata = pm.sample(step=pmb.MinibatchMH(steps_per_draw=10))  # doctest: +SKIP
    """

    name = "minibatch_mh"
    stats_dtypes_shapes: dict[str, tuple[Any, Any]] = {  # noqa: RUF012 - as PyMC declares it
        "accept": (np.float64, []),
        "n_likelihood": (np.int64, []),
        "n_gradient": (np.int64, []),
        "n_scanned": (np.int64, []),
        "batch_size": (np.float64, []),
        "log_ratio_var": (np.float64, []),
        "test_error": (np.float64, []),
        "exact": (np.bool_, []),
        "scale": (np.float64, []),
        **TallStep.stats_dtypes_shapes,
    }
    shown: ClassVar[dict[str, tuple[str, str]]] = {
        "scale": ("Scale", "0.2f"),
        "accept": ("Accept", "0.2f"),
        "batch_size": ("Rows", ",.0f"),
    }
    learns = ("proposal_state", "batch_state")
    _state_class = MinibatchMHState

    def __init__(
        self,
        vars: Variable | str | Sequence[Variable | str] | None = None,
        *,
        data: Any = None,
        acceptance: Acceptance | str | None = "auto",
        proposal: Proposal | str | None = None,
        reference: Reference | None = None,
        control_variate: Literal["auto", 0, 1, 2] = "auto",
        batch_size: int | None = None,
        rows: RowChoice = "auto",
        temperature: float = 1.0,
        steps_per_draw: int | Literal["auto"] = "auto",
        model: Model | None = None,
        rng: RandomGenerator = None,
    ) -> None:
        started = time.perf_counter()
        is_open = acceptance is None or (isinstance(acceptance, str) and acceptance == "auto")
        test = None if is_open else named("acceptance", acceptance, TESTS, "build")
        moves = None if proposal is None else named("proposal", proposal, PROPOSALS, "build")
        first_steps = 1 if steps_per_draw == "auto" else steps_per_draw
        super().__init__(vars, data, first_steps, model, rng)
        self.batch_size = (
            None if batch_size is None else checked_count("batch_size", batch_size, 2, self.n_rows)
        )
        self.acceptance: Acceptance = test or likely_test(self.tall, self.batch_size, rows)
        if batch_size is not None and self.acceptance.first_batch == "designed":
            raise ValueError(
                f"{type(self.acceptance).__name__} finds the size of its batches by itself; leave "
                "batch_size out."
            )
        self.temperature = _checked_temperature(temperature)
        if rows not in ("auto", "size", "uniform"):
            raise ValueError(f"rows must be 'auto', 'size' or 'uniform'; got {rows!r}.")
        self.rows: str = rows
        self.row_sizes: RowSizes | None = None
        self.ball: Ball | None = None
        self.least_batch = LEAST_BATCH
        if not is_open and isinstance(self.acceptance, Exact) and control_variate == "auto":
            control_variate = 2
        with self._compiled_ahead(moves or Laplace(), control_variate):
            self.reference, self.control_variate = decide_control_variate(
                self.tall, reference, control_variate, self.temperature
            )
            self.proposal: Proposal = moves or self._default_proposal()
            self.proposal_options = self.proposal.jit_options
            _ = self._source  # compiles the target
        self._warn_of_other_temperatures()
        rows_read = self._settle_decisions(is_open, rows)
        if steps_per_draw == "auto":
            self.steps_per_draw = steps_of_draw(
                self.acceptance, self.proposal, self._active.size, rows_read
            )
        self._get_ready(started, reference)

    def _default_proposal(self) -> Proposal:
        if not self.control_variate:
            return RandomWalk()
        assert self.reference is not None
        fit = gaussian_acceptance(self.tall, self.reference, self.temperature)
        return Laplace() if fit > NEARLY_GAUSSIAN else SurrogateHamiltonian()

    def _approximation(self) -> Approximation | None:
        if self.reference is None:
            return None
        rows, columns = np.ix_(self._active, self._active)
        return Approximation(
            mode=self.reference.flat[self._active],
            precision=self.reference.precision_at(self.temperature)[rows, columns],
            reference=self.reference.flat,
            slope=self.reference.gradient[self._active] / self.temperature,
            curvature=self.reference.hessian[self._active] / self.temperature,
        )

    def _warn_of_other_temperatures(self) -> None:
        others = [var.name for var in self.tall.model.value_vars if var not in self.vars]
        if others and self.temperature != 1.0:
            warn(
                f"MinibatchMH samples at temperature {self.temperature}; the steps of {others} "
                "must use the same temperature, or the chain has no well-defined target."
            )

    def _settle_decisions(self, is_open: bool, rows: RowChoice) -> float:
        """Settle the test and how rows are drawn; return about how many a full-size move takes."""
        test: Acceptance | Literal["auto"] = self.acceptance
        if is_open:
            test = "auto" if self.batch_size is None else CorrectedBarker()
        settled = settle(
            self.tall, self.reference, self.control_variate, self.temperature, test, rows
        )
        self.acceptance, self.rows = settled.acceptance, settled.rows
        self.row_sizes, self.ball = settled.row_sizes, settled.ball
        self.choice = f"{type(self.acceptance).__name__}: {settled.reason}."
        _log.info(self.choice)
        uneven = settled.unevenness
        if uneven and self.rows == "uniform" and self.acceptance.first_batch == "tuned":
            self.least_batch = least_uniform_batch(
                self.n_rows, self._initial_batch, self.batch_size, uneven
            )
        # Without a control variate a random walk needs a constant share of the rows.
        return settled.rows_read if self.control_variate else float(self.n_rows)

    @property
    def _initial_batch(self) -> int:
        """Rows of a first batch before tuning."""
        return self.batch_size or min(max(DEFAULT_BATCH, self.least_batch), self.n_rows)

    def _reset_tuning(self) -> None:
        variance = self.temperature / self.n_rows
        self.proposal_state = self.proposal.initial_state(
            self._active.size, variance, self._approximation()
        )
        self.batch_state = first_batch(self._initial_batch)

    def _near_mode(self, point: PointType) -> Mapping[str, np.ndarray]:
        if not self.control_variate:
            return point
        assert self.reference is not None
        return start_near_mode(self.tall, self.reference, self.temperature, point, self.rng)

    @cached_property
    def _target(self) -> Target:
        order = self.control_variate
        return make_target(self.tall, self.reference, order, self.temperature)

    @cached_property
    def _prior_gradient(self) -> Callable[..., np.ndarray]:
        return compile_prior_gradient(self.tall)

    @cached_property
    def _guide(self) -> tuple[Any, ...]:
        wanted = self.proposal.needs_prior_gradient
        gradient = address_of(self._prior_gradient, self.tall.layout.empty()) if wanted else 0
        return self.proposal.guide(self._approximation(), gradient)

    @cached_property
    def _kernel(self) -> Callable[..., tuple[Any, ...]]:
        return make_kernel(*self._kernel_options)

    @property
    def _kernel_options(self) -> tuple[list[int], Acceptance, Proposal, bool]:
        ndims = [values.ndim for values in self.tall.data]
        return ndims, self.acceptance, self.proposal, self.row_sizes is not None

    def _compiled_ahead(
        self, proposal: Proposal, control_variate: Literal["auto", 0, 1, 2]
    ) -> AbstractContextManager[object]:
        """Compile beside the search the kernel that is likely to be wanted after it.

        Its machine code depends on the types of its arguments alone, so any reference will do.
        """
        if control_variate == 0:
            return nullcontext()
        twin = copy.copy(self)
        twin.reference, twin.control_variate = _any_reference(self.tall.layout.size), 2
        twin.proposal = proposal
        if self.rows != "uniform" and getattr(self.acceptance, "draws_by_size", False):
            twin.row_sizes = RowSizes.of(np.ones(2, np.float32))
        if isinstance(self.acceptance, Exact):
            twin.ball = Ball(twin.reference.flat, np.eye(self.tall.layout.size), 0.0, 0.0)
        twin._reset_tuning()
        constants = target_constants(twin.reference, twin.control_variate, self.temperature)
        twin._source = Source(self.tall.data, constants)
        twin._guide = proposal.guide(twin._approximation())
        return CompiledAhead(make_kernel, twin._kernel_options, twin._arguments(np.empty(0), 0))

    @cached_property
    def _source(self) -> Source:
        return make_source(self.tall, self._target)

    @cached_property
    def _rows(self) -> Rows:
        return row_workspace(self.n_rows, () if self.row_sizes is None else self.row_sizes.table)

    @cached_property
    def _first_batch(self) -> np.ndarray:
        return self.batch_state.size.copy()

    @cached_property
    def _parameters(self) -> tuple[Any, ...]:
        given = self.acceptance.parameters(self.temperature, self._first_batch, self.n_rows)
        return given if self.ball is None else (*given, self.ball)

    def _compile(self) -> None:
        start = self.tall.layout.flatten(self.tall.model.initial_point())
        self._transitions(start, n_steps=0)

    def stop_tuning(self) -> None:
        """Settle on what tuning has found."""
        super().stop_tuning()
        self.proposal.end_tuning(self.proposal_state)

    def _draw(self, flat: np.ndarray) -> dict[str, Any]:
        totals = self._transitions(flat, self.steps_per_draw)
        if totals.impossible_row >= 0:
            raise SamplingError(self._complaint(totals.impossible_row, flat))
        if self.tune:
            self._tune(totals)
        return self._stats(totals)

    def _complaint(self, row: int, flat: np.ndarray) -> str:
        """Say what is wrong with a row at which the kernel has stopped."""
        name = f"Row {row} of {' + '.join(self.tall.row_names)}"
        if self.ball is not None and np.isfinite(
            self.tall.row_logp(self.tall.layout.unflatten(flat), [row])
        ):
            return (
                f"{name} varies more than the bound on its third derivative allows, so that the "
                "exact test is not exact. Look at Exact(third=...), which must hold at every value "
                "of the predictor, or use CorrectedBarker()."
            )
        return (
            f"{name} has a log-likelihood that is not finite at a point that was accepted from "
            "other rows. Minibatch sampling needs rows that are possible at every value of the "
            "parameters (no support that depends on them); sample this model with NUTS."
        )

    def _transitions(self, flat: np.ndarray, n_steps: int) -> Totals:
        self._first_batch[0] = self.batch_state.size[0]
        return Totals(*self._kernel(*self._arguments(flat, n_steps)))

    def _arguments(self, flat: np.ndarray, n_steps: int) -> tuple[Any, ...]:
        """Return what the kernel is called with."""
        return (
            self.rng,
            flat,
            self._active,
            self._source,
            n_steps,
            self.tune,
            self.proposal_state,
            self._guide,
            self._parameters,
            self._rows,
        )

    def _tune(self, totals: Totals) -> None:
        self.proposal.end_draw(self.proposal_state)
        if self.batch_size is None and self.acceptance.first_batch == "tuned":
            tune_first_batch(
                self.batch_state,
                totals.n_grown,
                totals.n_decisions,
                self.n_rows,
                self.least_batch,
            )

    def _stats(self, totals: Totals) -> dict[str, Any]:
        n_decisions = max(totals.n_decisions, 1)
        return {
            "accept": totals.n_accepted / self.steps_per_draw,
            "n_likelihood": 2 * totals.n_evaluated,
            "n_gradient": 2 * totals.n_evaluated if self.control_variate else 0,
            "n_scanned": 2 * totals.n_scanned,
            "batch_size": totals.batch_rows / n_decisions,
            "log_ratio_var": totals.log_ratio_var / n_decisions,
            "test_error": totals.test_error,
            "exact": self.ball is not None,
            "scale": self.proposal.scale(self.proposal_state),
        }


def _any_reference(dim: int) -> Reference:
    """Return a reference for what depends on its shape alone."""
    zeros, negative = np.zeros(dim), -np.eye(dim)
    return Reference({}, zeros, zeros, negative, negative, zeros, 0, 1.0, False, 0.0, 0.0)


def _checked_temperature(temperature: float) -> float:
    if not (np.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature must be positive and finite; got {temperature}.")
    return float(temperature)
