"""The PyMC step for minibatch Metropolis-Hastings."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from pymc.model import Model
from pymc.step_methods.state import dataclass_state
from pymc.util import RandomGenerator, get_random_generator
from pytensor.graph.basic import Variable

from pymc_minibatch.acceptance.decision import Acceptance
from pymc_minibatch.acceptance.growing import (
    FirstBatch,
)
from pymc_minibatch.arguments import checked_count, checked_model, checked_temperature
from pymc_minibatch.proposals.proposal import Proposal
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.find import discrete_in_rows
from pymc_minibatch.steps.asked import Asked, Claims, RowChoice
from pymc_minibatch.steps.batch_moves import ImpossibleRowError
from pymc_minibatch.steps.bound import register
from pymc_minibatch.steps.common import TallStepState
from pymc_minibatch.steps.fallback import Continuation, Fallback
from pymc_minibatch.steps.minibatch_moves import MinibatchMoves
from pymc_minibatch.steps.mixing import BLIND_TRAJECTORY, TRAJECTORY, Mixing
from pymc_minibatch.steps.start import kept
from pymc_minibatch.steps.stats import dtypes_shapes
from pymc_minibatch.steps.sweeps import (
    ROUNDS,
)
from pymc_minibatch.steps.trajectories import (
    TrajectoryLook,
    trajectories_of_draw,
)
from pymc_minibatch.tall.sources import ROWS_IN_MEMORY
from pymc_minibatch.witness.choose import moves_of
from pymc_minibatch.witness.witness import Look

__all__ = ["MinibatchMH", "MinibatchMHState"]

_log = logging.getLogger("pymc_minibatch")

TRANSITION, TRANSITION_OF_EFFECTS = 200.0, 20_000.0
"""What one costs besides rows, in rows of some 50 ns."""

USUAL_DRAWS = 1000
"""Of a chain, where a step is run by hand."""


@dataclass_state
class MinibatchMHState(TallStepState):
    """What is needed to continue a chain."""

    proposal_state: tuple[np.ndarray, ...]
    batch_state: FirstBatch
    transitions: int
    followed: dict[str, Any]
    trajectories: dict[str, Any] | None
    proposal_options: tuple[Any, ...] = field(metadata={"frozen": True})
    control_variate: int = field(metadata={"frozen": True})
    acceptance: Acceptance = field(metadata={"frozen": True})
    batch_size: int | None = field(metadata={"frozen": True})
    temperature: float = field(metadata={"frozen": True})
    rows: str = field(metadata={"frozen": True})


class MinibatchMH(MinibatchMoves):
    """Metropolis-Hastings that decides from a few rows of the data.

    Each transition proposes a move and accepts or rejects it by a test on a batch of rows, which
    grows until the error of the test is small enough. Draws are exact with some tests and
    approximate with others: see `acceptance` and :class:`CorrectedBarker`.

    Parameters
    ----------
    vars : TensorVariable, str, or sequence of these, optional
        Continuous free variables to sample; all if not given. Others are left to other steps, and
        their values are read at every draw. With `data`, those on which the rows depend may only be
        left to steps with the same `data`.
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own, such as files; see :class:`TallModel`. A TallModel that was
        made with these data saves splitting the model again.
    acceptance : "auto", Exact, CorrectedBarker, Penalty, Naive, Barker, Austere or SubLhd
        The acceptance test, as an instance or by a name such as "penalty". "auto", the default,
        takes Exact if the model has bounds that leave few rows per decision, and otherwise
        CorrectedBarker or Penalty, whichever needs fewer rows per effective draw. Effects and
        their scales are updated by Penalty, or exactly: without a row if the likelihood has
        sufficient statistics, as for normal rows with a common scale, and with all rows if
        batches would need a good part of them. ``choice`` gives the choice and the reason. With
        "exact", effects are updated by group if the likelihood has sufficient statistics, and all
        variables jointly otherwise. Naive, Barker, Austere and SubLhd are there for comparison.
    proposal : Laplace, SurrogateHamiltonian, SurrogateLangevin or RandomWalk, optional
        How moves are proposed, as an instance or by a name such as "laplace". If not given: with a
        control variate, Laplace if prior and Taylor likelihood together are nearly Gaussian,
        else SurrogateHamiltonian; without, RandomWalk.
    reference : Reference, optional
        Point about which the log-likelihood is expanded; found during set-up if it is needed and
        not given. Find it once with :func:`find_reference` to share it between steps.
    control_variate : {"auto", 0, 1, 2}, default "auto"
        Order of the Taylor expansion about the reference that is subtracted from the row terms, so
        that only a remainder is estimated from the batch. 0 is none. "auto" takes 2 if the
        remainder varies less than the log-likelihood at points about the mode, and 0 if it does
        not, if there is no mode or several are seen, or if the rows depend on discrete variables.
        The search can miss a mode: if you know of another one, set 0, because moves about one mode
        rarely reach another.
    batch_size : int, optional
        Rows of the first batch of each decision, from 2 to N. If not given it is 100, and most
        tests tune it towards the fewest rows that suffice for nine of ten decisions. If a few rows
        dominate decisions and rows are drawn uniformly, it is large enough for a batch to contain
        some of them. Austere chooses its batches itself.
    row_sampling : {"auto", "size", "uniform"}, default "auto"
        How the rows of a batch are drawn. "size": with replacement, in proportion to how far the
        term of each row varies over the posterior, which one pass about the reference point finds,
        so that the few rows that matter most (a rare category, an outlying predictor) are seen.
        "uniform": without replacement, as in the papers. "auto" draws by size if there is a
        reference point and that takes clearly fewer rows. Austere and SubLhd draw uniformly. Either
        way, a few rows so extreme that no expansion describes them (a predictor of 10⁵ among
        standard normals) are read at every decision; ``choice`` says how many.
    temperature : float, default 1.0
        T > 0; the target is the prior times the likelihood to the power 1/T.
    rows_in_memory : float, default 2**30
        Bytes of rows that may be copied to this machine. If a store has more (Dask, Parquet, zarr),
        only rows that were drawn by size are copied, as many as are needed. Exact uses each of
        them once and fetches others when they run out. Other tests reuse them, and their
        ``test_error`` includes the error of doing so. If rows are drawn uniformly, or there is no
        control variate, all rows are copied.
    steps_per_draw : int or "auto", default "auto"
        Transitions per draw. Many cost little more than one, since they run in one compiled call.
        "auto" makes draws nearly independent, with at most 50 transitions, and with one if a
        transition reads many rows. In a model with effects, a transition updates all of them.
        Then "auto" takes one while tuning and two afterwards; one if tuning draws are hardly
        correlated or a transition is slow; and four if PyMC evaluates 200,000 rows or more at
        each draw for a Deterministic. If tuning draws are correlated, as on a ridge that only the
        prior bounds, it takes more, again at most 50, as far as a run then takes no longer than
        a minute or two.
    witness : bool, default True
        Whether moves of every kind are compared with the model's own log-density, at the end of
        set-up and while chains run, for about 3 % of the time of a run. If a comparison at set-up
        fails, the shortcut that it concerns is not used; if one fails later, the chain stops and
        saves its draws. A run without a witness is not called exact. Rows in partitions have none.
    fallback : {"nuts", None}, default "nuts"
        The sampler of a chain for which batches do not pay. There are four cases. Decisions read
        most rows, and draws stay correlated during tuning. Or draws stay correlated for longer than
        any affordable number of transitions, and trajectories take minutes; examples are mixtures
        within a row, products of unknowns and curved ridges. Or no mode was found, and there are
        five variables or more. Or the support of rows depends on the parameters, and a row turns
        out to be impossible. With "nuts" such a chain continues with PyMC's No-U-Turn sampler on
        all rows, which is exact. It starts from the current point (in the last case from the start
        of the model) and tunes with the remaining tuning draws, at least 150. With
        `steps_per_draw` "auto", a draw has as many trajectories as leave it nearly
        independent, if these are affordable. The fallback needs rows in memory and the defaults of
        `acceptance`, `proposal`, `batch_size` and `temperature`.
    start : DataTree, optional
        Result of :func:`approximate` for the model. The step reuses its set-up, so only
        `steps_per_draw` and `rng` may be given as well. Each chain starts from one of its draws.
    model : pymc.Model, optional
        The model; taken from the context if not given. Its data are read here, and again by
        ``pm.sample`` if ``pm.set_data`` has set others since.
    rng : seed or numpy.random.Generator, optional
        Used if the step is run by hand; ``pm.sample`` gives each chain its own.

    Attributes
    ----------
    tall : TallModel
        The model, split into a prior part and rows.
    acceptance
        The acceptance test.
    rows : {"size", "uniform"}
        How rows are drawn.
    steps_per_draw : int
        Transitions per draw that are intended; after tuning ``transitions`` has those that are
        made.
    choice : str
        How moves are decided, and why.

    Raises
    ------
    NotTallError
        If the model does not split into a prior part and independent rows, or its moves do not
        have the model's own density.
    SamplingError
        While sampling, if the witness finds a move that does not have the model's own density.
    ValueError
        If an argument is out of range, a variable is unknown or discrete, the data are empty or not
        finite, or the reference does not fit the model.

    Warns
    -----
    MinibatchWarning
        If a Deterministic has one value per row, so that every draw costs a pass over the data; if
        a temperature is given for some of the variables only; if there is no control variate, or it
        helps little; and if a few rows dominate decisions, so that batches must be large. While
        sampling, ``pm.sample`` logs a warning if decisions read far more rows than expected.

    See Also
    --------
    sample : Chooses the step, and samples in blocks of draws.
    check : Estimates rows, time and memory without compiling.
    FlyMC : Exact, for likelihoods with a lower bound.
    report : Summarizes a run.

    Notes
    -----
    With a control variate, a chain that tunes and starts far from the posterior mode is first moved
    to a random point near it.

    Sample stats of each draw:

    - Listed in :data:`.steps.stats.STATS`.

    References
    ----------
    Seita, Pan, Chen and Canny (2017), An Efficient Minibatch Acceptance Test for
    Metropolis-Hastings, algorithm 1.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> data = 3 + np.random.default_rng(1).standard_t(4, size=20_000)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.StudentT("y", nu=4, mu=mu, sigma=1.0, observed=data)
    ...     step = pmb.MinibatchMH(steps_per_draw=10)
    ...     idata = pm.sample(
    ...         step=step, draws=500, tune=500, chains=2, random_seed=1, progressbar=False
    ...     )
    >>> float(idata.posterior["mu"].mean().round(1))
    3.0
    >>> rows_of_a_decision = idata.sample_stats["batch_size"].mean()
    >>> bool(rows_of_a_decision < 200)
    True
    """

    name = "minibatch_mh"
    renamed = {"rows": "row_sampling"}  # noqa: RUF012 - of the class, never changed
    stats_dtypes_shapes = dtypes_shapes("MinibatchMH")
    shown: ClassVar[dict[str, tuple[str, str]]] = {
        "scale": ("Scale", "0.2f"),
        "acceptance_rate": ("Accept", "0.2f"),
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
        row_sampling: RowChoice = "auto",
        temperature: float = 1.0,
        rows_in_memory: float = ROWS_IN_MEMORY,
        steps_per_draw: int | Literal["auto"] = "auto",
        witness: bool = True,
        fallback: Literal["nuts"] | None = "nuts",
        start: Any = None,
        model: Model | None = None,
        rng: RandomGenerator = None,
    ) -> None:
        started = time.perf_counter()
        if start is not None:
            self._take_over(start, checked_model(model), steps_per_draw, rng)
            return
        asked = Asked.of(acceptance, proposal, reference, control_variate, row_sampling)
        if fallback not in ("nuts", None):
            raise ValueError(f"fallback must be 'nuts' or None; got {fallback!r}.")
        self.temperature = checked_temperature(temperature)
        super().__init__(
            vars=vars,
            data=data,
            steps_per_draw=1 if steps_per_draw == "auto" else steps_per_draw,
            model=model,
            rng=rng,
            rows_in_memory=rows_in_memory if asked.may_stay else math.inf,
            witness=witness,
        )
        self.rows_in_memory = rows_in_memory
        self.batch_size = (
            None if batch_size is None else checked_count("batch_size", batch_size, 2, self.n_rows)
        )
        if batch_size is not None:
            asked.refuse_batch_size()
        self.steps_are_free = steps_per_draw == "auto"
        self.looks_for_mode = control_variate == "auto" and not discrete_in_rows(self.tall)
        self.may_follow_trajectories = (
            fallback == "nuts"
            and asked.is_open
            and asked.proposal is None
            and self.temperature == 1.0
            and batch_size is None
            and not self.tall.is_bound
            and self.tall.partitions is None
        )
        self.claims = Claims()
        self._draws_to_come = self._tuning_to_come = USUAL_DRAWS
        while True:
            self._set_up(asked)
            self._get_ready(started, reference)
            surprise = self._look_at_set_up()
            if surprise is None:
                break
            self._claim_less(asked, surprise)

    def _take_over(
        self, start: Any, model: Model, steps_per_draw: int | Literal["auto"], rng: RandomGenerator
    ) -> None:
        """Take over what another step was set up with; its points are where chains start."""
        asked = dict(self.made_with[1]) if self.made_with is not None else {}
        if others := sorted(set(asked) - {"start", "model", "rng", "steps_per_draw"}):
            raise ValueError(f"start= brings a set-up of its own: leave out {others[0]}, or start.")
        found = kept(start, model)
        assert found.attributes is not None
        of_self = {name: self.__dict__[name] for name in ("made_with",) if name in self.__dict__}
        self.__dict__.update(found.attributes | of_self)
        self.made_with = None  # other data need another start
        self.starts = found.points
        if steps_per_draw != "auto":
            self.steps_per_draw = checked_count("steps_per_draw", steps_per_draw, 1)
            self.steps_are_free = False
        self.rng = get_random_generator(rng)
        self.tune, self.n_draws = True, 0
        self._reset_tuning()
        register(self)

    def setup_chain(self, rng: RandomGenerator, tune: int, draws: int) -> None:
        """Prepare for a chain; rows that served another one do not serve this one."""
        super().setup_chain(rng, tune, draws)
        self._draws_to_come, self._tuning_to_come = draws, tune

    def _reset_tuning(self) -> None:
        super()._reset_tuning()
        self.transitions = 0  # not known yet
        self.continuation = Continuation(self.tall, self.var_names, self._active, self.control)
        fixed = TRANSITION
        if self.latent is not None:
            fixed = max(TRANSITION_OF_EFFECTS, self.latent.fixed_cost)
        self.mixing = Mixing(self.tall.layout, fixed)

    def stop_tuning(self) -> None:
        """Fix the results of tuning."""
        if self.by_trajectories:
            n_draws, free = self._draws_to_come, self.steps_are_free
            self.transitions = trajectories_of_draw(self.mixing, n_draws) if free else 1
        elif self.steps_are_free and (self.mixing.draws or not self.transitions):
            made, least = self.n_transitions, self.steps_per_draw
            if made == 1 and least == ROUNDS and self.mixing.are_apart:
                least = 1
            self.transitions = max(least, self.mixing.transitions(made, self._draws_to_come))
        self.mixing.clear()
        self._count_anew()
        super().stop_tuning()
        (self.proposal if self.latent is None else self.latent).end_tuning(self.proposal_state)

    @property
    def followed(self) -> dict[str, Any]:
        """What is known of draws of tuning."""
        return self.mixing.state

    @followed.setter
    def followed(self, stored: Mapping[str, Any]) -> None:
        self.mixing.state = stored

    @property
    def n_transitions(self) -> int:
        """Transitions of a draw."""
        few = self.latent is not None and self.steps_are_free
        if few and self.transitions:
            return self.transitions
        return max(1 if few and self.tune else self.steps_per_draw, self.transitions)

    def _draw(self, flat: np.ndarray) -> dict[str, Any]:
        if self.by_trajectories:
            n_made = 1 if self.tune else self.transitions
            along = self.continuation.trajectories
            stats = along.draw_with_stats(flat, self.rng, self.tune, n_made)
            if self.tune:
                self.mixing.add(flat, stats["n_likelihood"] + stats["n_gradient"], 1)
            return stats
        try:
            stats = super()._draw(flat)
        except ImpossibleRowError as error:
            self._start_on_all_rows(flat, error)
            return self._draw(flat)
        if not self.tune:
            stats["warning"] = stats["warning"] or self.warning_of_no_move(stats)
        elif self.steps_are_free or self.fallback.is_allowed:
            made = self.n_transitions
            self.mixing.add(flat, stats["n_likelihood"] + stats["n_gradient"], made)
            if reason := self._why_trajectories(made):
                self.continuation.begin(flat, reason)
                self._watch_trajectories()
            elif self.steps_are_free:
                self.transitions = self.mixing.while_tuning(made, self._draws_to_come)
        return stats

    @cached_property
    def fallback(self) -> Fallback:
        """When the chain goes on with all rows."""
        is_known = self.latent is None and self.control is not None
        passes = TRAJECTORY if is_known else BLIND_TRAJECTORY
        is_unknown = self.latent is None and self.control is None and self.looks_for_mode
        n_unknown = self._active.size if is_unknown else 0
        return Fallback(self.may_follow_trajectories, self.n_rows, passes, n_unknown)

    @property
    def _tuning_left(self) -> int:
        return self._tuning_to_come - self.n_draws - 1

    @property
    def watches_cost(self) -> bool:
        """Whether trajectories could take over if decisions turn out to read too much."""
        may = self.fallback.may_begin(self.n_draws + 1, self._tuning_left)
        return may and self.fallback.is_affordable(self._draws_to_come)

    def _why_trajectories(self, made: int) -> str | None:
        """Say why to go on with all rows, if batches do not pay; `made` transitions are a draw.

        Either there is no expansion, or draws stay correlated for all their work, or decisions read
        most rows since the chain is where the expansion does not hold, or, at the last chance,
        draws stay correlated for longer than any number of transitions that is affordable.
        """
        left, draws = self._tuning_left, self._draws_to_come
        if self.fallback.begins_at_once(draws, left):
            return "there is no expansion about a mode"
        if not self.fallback.may_begin(self.n_draws + 1, left):
            return None
        if self._is_beyond or self.fallback.goes_nowhere(self.mixing, made):
            return "decisions read most rows here and draws stay correlated"
        if self.steps_are_free and self.fallback.is_hopeless(self.mixing, made, draws, left):
            return "draws stay correlated for long"
        return None

    def _watch_trajectories(self) -> None:
        """Watch draws anew, which come along trajectories from here on."""
        self.transitions, self.mixing = 1, Mixing(self.tall.layout, 0.0)

    def _start_on_all_rows(self, flat: np.ndarray, error: ImpossibleRowError) -> None:
        """Begin anew with all rows, from the start of the model, if that is possible.

        Raises
        ------
        ImpossibleRowError
            If trajectories are not allowed, too little of tuning is left for them, or the start is
            impossible given the variables of other steps.
        """
        if not (self.tune and self.fallback.has_tuning(self._tuning_left)):
            raise error
        flat[self._active] = self.tall.start[self._active]
        if not np.isfinite(self.model_density(flat)):
            raise error
        self.continuation.begin_without_shape(flat)
        self._watch_trajectories()

    @property
    def by_trajectories(self) -> bool:
        """Whether trajectories with all rows move the chain, and not batches."""
        return self.continuation.has_begun

    @property
    def trajectories(self) -> dict[str, Any] | None:
        """What trajectories have learnt; None for a chain that batches move."""
        return self.continuation.state

    @trajectories.setter
    def trajectories(self, stored: Mapping[str, Any] | None) -> None:
        self.continuation.state = stored
        if stored is not None:
            self.mixing.fixed_cost = 0.0

    @property
    def _can_make_blocks(self) -> bool:  # type: ignore[override]
        return self.latent is None and self.residents is None and not self.by_trajectories

    def _changing(self) -> dict[str, Any]:
        """Copy what trajectories have learnt, too."""
        learnt = {"trajectories": self.trajectories} if self.tune and self.by_trajectories else {}
        return super()._changing() | learnt

    # --- The witness --------------------------------------------------------------------------

    def look(self) -> Look | None:
        """Return what compares moves with the model's own density."""
        if self.by_trajectories:
            return TrajectoryLook(self.model_density, self.continuation.trajectories)
        if self.latent is not None:
            return moves_of(self.model_density, self.latent, self.proposal_state)
        return super().look()
