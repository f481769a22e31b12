"""The PyMC step for minibatch Metropolis-Hastings."""

import copy
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from hashlib import sha256
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pymc.blocking import PointType
from pymc.exceptions import SamplingError
from pymc.model import Model
from pymc.step_methods.state import dataclass_state
from pymc.util import RandomGenerator, get_random_generator
from pytensor.graph.basic import Variable

from pymc_minibatch.acceptance import CorrectedBarker, Exact, Penalty
from pymc_minibatch.acceptance.decision import Acceptance, Rows, row_workspace
from pymc_minibatch.acceptance.exact import MADE_UP, Ball, bound_factor
from pymc_minibatch.acceptance.growing import (
    LEAST_BATCH,
    UNKNOWN_KURTOSIS,
    FirstBatch,
    new_first_batch,
    tune_first_batch,
    with_kurtosis,
)
from pymc_minibatch.arguments import checked_count, checked_model, checked_temperature
from pymc_minibatch.jit.memory import NotEnoughMemoryError, in_words
from pymc_minibatch.jit.pointers import address_of
from pymc_minibatch.kernels.by_size import NO_SIZES, RowSizes
from pymc_minibatch.kernels.metropolis import (
    Totals,
    compile_transitions,
    of_one_draw,
    summed,
)
from pymc_minibatch.kernels.residents import OUT_OF_ROWS, Residents
from pymc_minibatch.kernels.rows import Drawing, clear
from pymc_minibatch.latent.choose import make_latent_sampler
from pymc_minibatch.latent.exact import ExactSampler
from pymc_minibatch.latent.modes import ModeSampler
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.latent.recognition import has_effects
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.latent.weight_check import LOOK_EVERY
from pymc_minibatch.messages import with_id
from pymc_minibatch.proposals import Laplace, RandomWalk, SurrogateHamiltonian
from pymc_minibatch.proposals.proposal import Approximation, Proposal, approximate
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.decide import (
    check_control_variate,
    choose_order,
    decide_control_variate,
    drawn_about_mode,
    gaussian_acceptance,
    start_near_mode,
)
from pymc_minibatch.reference.density import Density, make_density
from pymc_minibatch.reference.heavy import heavy_axes
from pymc_minibatch.reference.reference import SeveralModesError
from pymc_minibatch.reference.taylor import (
    Target,
    compile_prior_gradient,
    make_target,
)
from pymc_minibatch.steps.bound import register
from pymc_minibatch.steps.common import TallStep, TallStepState, expansion
from pymc_minibatch.steps.deciding import (
    DEFAULT_BATCH,
    PROPOSALS,
    TESTS,
    RowChoice,
    least_uniform_batch,
    named,
    settle,
    steps_of_draw,
)
from pymc_minibatch.steps.memory import bytes_of_step
from pymc_minibatch.steps.mixing import TRAJECTORY, Mixing
from pymc_minibatch.steps.start import kept
from pymc_minibatch.steps.stats import OF_EFFECTS, dtypes_shapes
from pymc_minibatch.steps.sweeps import scans_of_draw, stats_of_effects
from pymc_minibatch.steps.trajectories import Trajectories, TrajectoryLook
from pymc_minibatch.tall.refusals import NotTallError
from pymc_minibatch.tall.sources import ROWS_IN_MEMORY
from pymc_minibatch.tall.weighted import SizedRows
from pymc_minibatch.warn import warn
from pymc_minibatch.witness import SurpriseError
from pymc_minibatch.witness.batches import (
    MOST_ROWS,
    Batch,
    Probabilities,
    expected_rows,
    first_batch,
    n_batches,
    probabilities,
)
from pymc_minibatch.witness.choose import moves_of
from pymc_minibatch.witness.together import JointMove, MovesTogether
from pymc_minibatch.witness.witness import Look

__all__ = ["MinibatchMH", "MinibatchMHState"]

_log = logging.getLogger("pymc_minibatch")

CHECKED_DECISIONS = 50
"""Decisions after tuning before their cost is compared with that of the trial."""

SUSPICIOUS_ROWS, SUSPICIOUS_SHARE = 500, 0.5
"""Decisions that read fewer rows, or a smaller share of them, are no reason to look."""

DEARER = 2.5
"""Warn of decisions that read so many times the rows that a trial about the mode needed."""

STILL = 50
"""Draws without a move after which a chain is said to stand still. Of 100 transitions that accept
one in ten, none does in one of 10⁵ chains."""

LASTING = 1e5
"""If rows are in partitions, rows that are gathered: so many times those that a move takes."""

LEAST_RESIDENTS = 100_000

HEAVY_WALK = 0.4
"""Share of the random walk where tails are heavy, half of it along their axes."""

TRANSITION, TRANSITION_OF_EFFECTS = 200.0, 20_000.0
"""What one costs besides rows, in rows of some 50 ns."""

SETTLED = 100
"""Draws of tuning before which decisions tell nothing of those to come."""

AFFORDABLE = 2e9
"""Rows that trajectories of a chain may read if decisions are dear, but draws not correlated: some
100 seconds."""

LEAST_TUNING = 150
"""Draws of tuning that are left, without which trajectories are not begun: windows of PyMC's
variances are 101 draws long, after 50 that are left out."""

USUAL_DRAWS = 1000
"""Of a chain, where a step is run by hand."""

NEARLY_GAUSSIAN = 0.5
"""If independent Gaussian proposals would be accepted this often, no others are needed."""


@dataclass_state
class MinibatchMHState(TallStepState):
    """What is needed to continue a chain."""

    proposal_state: tuple[np.ndarray, ...]
    batch_state: FirstBatch
    transitions: int
    followed: tuple[np.ndarray, float]
    trajectories: dict[str, Any] | None
    proposal_options: tuple[Any, ...] = field(metadata={"frozen": True})
    control_variate: int = field(metadata={"frozen": True})
    acceptance: Acceptance = field(metadata={"frozen": True})
    batch_size: int | None = field(metadata={"frozen": True})
    temperature: float = field(metadata={"frozen": True})
    rows: str = field(metadata={"frozen": True})


class Claims(NamedTuple):
    """What set-up may presume, unless its witness finds it wrong.

    Attributes
    ----------
    sums
        That sums say everything of the rows.
    effects
        That effects and their scales are a latent Gaussian field.
    bounds
        That third derivatives of rows are bounded.
    expansion
        That rows are an expansion and its remainders.
    """

    sums: bool = True
    effects: bool = True
    bounds: bool = True
    expansion: bool = True


class Asked(NamedTuple):
    """What the user has asked for, or left open."""

    is_open: bool
    proposal: Proposal | None
    reference: Reference | None
    control_variate: Literal["auto", 0, 1, 2]
    rows: RowChoice


class MinibatchMH(TallStep):
    """Metropolis-Hastings that decides from a few rows of the data.

    Each transition proposes a move and accepts or rejects it by a test on a batch of rows, which
    grows until the test is sure enough. See :class:`CorrectedBarker` for what is approximate.

    Parameters
    ----------
    vars : variable, name, or list of them, optional
        Continuous free variables to sample; all if not given. Others are left to other steps, and
        their values are read at every draw. With `data`, those on which the rows depend may only be
        left to steps with the same `data`.
    data : mapping of str to array, or TallModel, optional
        Data instead of the model's own, from wherever they live; see :class:`TallModel`. Or such a
        split itself, made before with these data, to save doing it again.
    acceptance : "auto", Exact, CorrectedBarker, Penalty, Naive, Barker, Austere or SubLhd
        The acceptance test, as an instance or by a name such as "penalty". "auto", the default,
        takes Penalty for models with effects and scales of their own, with more noise if rows
        cost more. Two kinds of them are sampled exactly: no row is read if the likelihood has
        sufficient statistics, as for normal rows with a common scale; and all rows are if batches
        would be a good part of them. For other models "auto" takes Exact if it has bounds and is
        expected to read few rows, and of CorrectedBarker and Penalty the cheaper one elsewhere.
        ``choice`` says which, and why. Asked for, Exact moves effects by themselves if sums
        suffice, and all variables at once elsewhere. Naive, Barker, Austere and SubLhd are there
        for comparison.
    proposal : Laplace, SurrogateHamiltonian, SurrogateLangevin or RandomWalk, optional
        How moves are proposed, as an instance or by a name such as "laplace". If not given: with a
        control variate, Laplace if prior and Taylor likelihood together are nearly Gaussian,
        else SurrogateHamiltonian; without, RandomWalk.
    reference : Reference, optional
        Where the log-likelihood is expanded; found here if not given and wanted. Find it once with
        :func:`find_reference` and hand it to several steps.
    control_variate : {"auto", 0, 1, 2}, default "auto"
        Order of the Taylor expansion about the reference that is subtracted from the row terms, so
        that only a remainder is estimated from the batch. 0 is none. "auto" takes 2 if the
        remainder varies less than the log-likelihood at points about the mode, and 0 if it does
        not, if there is no mode or several are seen, or if the rows depend on discrete variables.
        Not every other mode is seen: if you know of one, set 0, since moves about one rarely
        reach another.
    batch_size : int, optional
        Rows of the first batch of each decision, from 2 to N. If not given it is 100, and most
        tests tune it towards the fewest rows that suffice for nine of ten decisions. If few rows
        decide and are drawn uniformly, it is so large that a batch contains some of them. Austere
        finds it itself.
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
        Bytes of rows that may be copied to this machine. Of stores with more (Dask, Parquet, zarr)
        only rows that were drawn by size are, as many as are needed: Exact takes each of them once,
        and gathers others when they run out; other tests use them again and again, and their
        ``test_error`` has the error that comes with it. Steps that need all rows copy them: if
        rows are drawn uniformly or there is no control variate.
    steps_per_draw : int or "auto", default "auto"
        Transitions per draw that is kept. Many cost little more than one, since they run in
        one compiled call. "auto" takes so many that draws are nearly independent, at most 50, and
        one if a transition reads many rows. Of a model with effects a transition moves all of
        them; "auto" takes one while tuning and two afterwards, or four if PyMC evaluates all
        rows, 200,000 or more, at each draw for a Deterministic, but one if a transition is
        costly. If draws of tuning are correlated for long, as on a ridge that only the prior
        bounds, it takes more after tuning, again at most 50, as long as that takes a minute or two.
    witness : bool, default True
        Whether moves of every kind are compared with the model's own log-density, when set-up is
        done and while chains run, at about 3 % of the time of a run. What set-up presumes of the
        model and a comparison finds wrong is not used; a chain that finds it later stops, and
        saves its draws. A run without a witness is not called exact. Rows in partitions have none.
    fallback : {"nuts", None}, default "nuts"
        What a chain does for which batches do not pay: its decisions read most rows, and draws of
        tuning stay correlated for all the work. Mixtures within a row, products of unknowns and
        ridges that bend can be such. With "nuts" it goes on along trajectories with all rows, by
        PyMC's No-U-Turn sampler, from where it is and with what is left of tuning, at least
        150 draws. That is exact, and needs rows in memory, and `acceptance`, `proposal`,
        `batch_size` and `temperature` left as they are.
    start : DataTree, optional
        What :func:`approximate` has returned for the model. Its set-up is taken over, so that only
        `steps_per_draw` and `rng` may be given beside it, and each chain starts from one of its
        draws.
    model : pymc.Model, optional
        The model; taken from the context if not given. Its data are read here, and again by
        ``pm.sample`` if ``pm.set_data`` has set others since.
    rng : seed or numpy.random.Generator, optional
        Used if the step is run by hand; ``pm.sample`` gives each chain its own.

    Attributes
    ----------
    acceptance
        The acceptance test.
    rows : {"size", "uniform"}
        How rows are drawn.
    steps_per_draw : int
        Transitions per draw, at least: after tuning ``transitions`` may be more.
    choice : str
        How it decides, and why.

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
    UserWarning
        If a Deterministic has one value per row, which makes every draw cost N; if a
        temperature is given for some of the variables only; if there is no control variate, or it
        helps little; and if few rows decide, so that batches must be large. While sampling,
        ``pm.sample`` logs it if decisions turn out to read far more rows than about the mode.

    Notes
    -----
    With a control variate, a chain that tunes and starts far from the posterior mode is first moved
    to a random point near it.

    Sample stats of each draw:

    - Listed in :data:`.steps.stats.STATS`.

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
        is_open = acceptance is None or (isinstance(acceptance, str) and acceptance == "auto")
        test = None if is_open else named("acceptance", acceptance, TESTS, "build")
        moves = None if proposal is None else named("proposal", proposal, PROPOSALS, "build")
        if fallback not in ("nuts", None):
            raise ValueError(f"fallback must be 'nuts' or None; got {fallback!r}.")
        if row_sampling not in ("auto", "size", "uniform"):
            raise ValueError(
                f"row_sampling must be 'auto', 'size' or 'uniform'; got {row_sampling!r}."
            )
        self.temperature = checked_temperature(temperature)
        check_control_variate(reference, control_variate)
        by_size = test is None or test.draws_by_size
        may_stay = by_size and row_sampling != "uniform" and control_variate != 0
        super().__init__(
            vars,
            data,
            1 if steps_per_draw == "auto" else steps_per_draw,
            model,
            rng,
            rows_in_memory if may_stay else math.inf,
            witness,
        )
        self.rows_in_memory = rows_in_memory
        self.batch_size = (
            None if batch_size is None else checked_count("batch_size", batch_size, 2, self.n_rows)
        )
        self.acceptance: Acceptance = CorrectedBarker() if test is None else test
        if batch_size is not None and self.acceptance.first_batch == "designed":
            raise ValueError(
                f"{type(self.acceptance).__name__} chooses the size of its batches itself; leave "
                "batch_size out."
            )
        self.steps_are_free = steps_per_draw == "auto"
        self.may_follow_trajectories = (
            fallback == "nuts"
            and is_open
            and moves is None
            and self.temperature == 1.0
            and batch_size is None
            and not self.tall.is_bound
            and self.tall.partitions is None
        )
        asked = Asked(is_open, moves, reference, control_variate, row_sampling)
        self.claims = Claims()
        while True:
            self._set_up(asked)
            self._get_ready(started, reference)
            surprise = self._look_at_set_up()
            if surprise is None:
                break
            self._claim_less(asked, surprise)

    def _take_over(
        self,
        start: Any,
        model: Model,
        steps_per_draw: int | Literal["auto"],
        rng: RandomGenerator,
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

    def _set_up(self, asked: "Asked") -> None:
        """Settle how the model is sampled."""
        for name, value in vars(type(self)).items():
            if isinstance(value, cached_property):
                self.__dict__.pop(name, None)
        self.proposal_options = ()
        self._draws_to_come = self._tuning_to_come = USUAL_DRAWS
        self._moved_alike = ""
        self.rows: str = "uniform"
        self.row_sizes: RowSizes | None = None
        self.sized: SizedRows | None = None
        self.residents: Residents | None = None
        self.prepared: Any = None
        self.control = None
        self.least_batch, self.kurtosis = LEAST_BATCH, UNKNOWN_KURTOSIS
        is_free = asked.reference is None and asked.proposal is None
        is_free &= asked.control_variate in ("auto", 2) and self.claims.effects
        self.latent = self._latent_sampler(asked.is_open, asked.rows) if is_free else None
        rows_read = 0.0
        if self.latent is None:
            try:
                rows_read = self._set_up_plainly(asked, one_mode=not is_free)
            except NotEnoughMemoryError as error:
                raise NotEnoughMemoryError(f"{error} {self._moved_alike}".strip()) from error
            except SeveralModesError:
                self.latent = self._latent_sampler(asked.is_open, asked.rows, effects=False)
                if not isinstance(self.latent, ModeSampler):
                    self.latent = None
                    rows_read = self._set_up_plainly(asked, one_mode=True)
        if self.latent is None:
            if self.steps_are_free:
                self.steps_per_draw = steps_of_draw(
                    self.acceptance, self.proposal, self._active.size, rows_read
                )
        elif self.steps_are_free and not self.latent.costly:
            self.steps_per_draw = scans_of_draw(self.tall)
        _log.info(self.choice)
        self._warn_of_other_temperatures()

    def _claim_less(self, asked: "Asked", surprise: SurpriseError) -> None:
        """Leave out the claim that a look has found not to hold; refuse the model if none is left.

        Raises
        ------
        NotTallError
            If the rows, as they were split, are not the model's.
        """
        claims = self.claims
        if isinstance(self.latent, ExactSampler) and asked.is_open:
            self.claims = claims._replace(sums=False)
        elif self.latent is not None:
            self.claims = claims._replace(effects=False)
        elif asked.is_open and self.prepared is not None:
            self.claims = claims._replace(bounds=False)
        elif asked.is_open and asked[1:4] == (None, None, "auto") and self.control_variate:
            self.claims = claims._replace(expansion=False)
        elif asked.reference is not None:
            raise NotTallError(
                f"{surprise}. The reference may be of other data: leave it out, or find it again."
            )
        else:
            raise NotTallError(f"{surprise}. Please report this model.")
        _log.info(f"Set up in a more general way: {surprise}.")

    def _latent_sampler(
        self, is_open: bool, rows: RowChoice, *, effects: bool = True
    ) -> LatentSampler | None:
        """Set up the moves of effects and their scales; None if the model has none.

        Or, without `effects`, those about several modes.
        """
        whole = self._active.size == self.tall.layout.size
        acceptance = None if is_open else self.acceptance
        if not (whole and (acceptance is None or acceptance.decides_levels)):
            return None
        if acceptance is None or not acceptance.is_exact:
            self._copy_for_effects()
        if self.tall.partitions is not None:
            return None
        try:
            sampler = make_latent_sampler(
                self.tall,
                acceptance,
                self.temperature,
                by_size=rows != "uniform",
                batch_size=self.batch_size,
                effects=effects,
                may_sum=self.claims.sums,
            )
        except (NoFieldError, np.linalg.LinAlgError) as reason:
            _log.info(
                "The updates for multilevel models cannot be used, so all variables are updated "
                f"jointly: {reason}"
            )
            self._moved_alike = f"Effects are not updated by group: {reason}"
            return None
        if isinstance(sampler, ModeSampler):
            _warn_of_modes(sampler)
        if not sampler.by_batches:
            self.acceptance, self.choice = Exact(), f"Exact: {sampler.describe()}."
            return sampler
        test = self.acceptance = acceptance or Penalty()
        self.rows = "uniform" if rows == "uniform" else "size"
        name = type(test).__name__
        if isinstance(test, Penalty):
            name += " of tuned sigma" if is_open else f" at sigma {test.sigma:g}"
        self.choice = f"{name}: {sampler.describe()}."
        return sampler

    def _copy_for_effects(self) -> None:
        """Copy rows in partitions to this machine where the model has effects, and say so."""
        structure = self.tall.structure
        if self.tall.partitions is None or structure is None:
            return
        if has_effects(self.tall, structure):
            size = self.tall.row_bytes * self.n_rows
            warn(
                "PMB501",
                "This model has effects, and their moves read any row at any time: its "
                f"{size / 1e9:,.1f} GB of rows are copied to this machine. With acceptance='exact' "
                "or a reference= of your own all variables are moved at once, and rows stay where "
                "they are.",
            )
            self.tall = self.tall.copied()

    def _set_up_plainly(self, asked: "Asked", *, one_mode: bool) -> float:
        """Settle how all variables are moved at once; return about how many rows a move takes.

        Raises
        ------
        SeveralModesError
            If there are several modes, unless it is to be done for one all the same.
        """
        is_open, proposal, reference, control_variate, rows = asked
        if not self.claims.expansion:
            control_variate = 0
        if self.acceptance.needs_order == 2 and control_variate == "auto":
            control_variate = 2
        self.control = decide_control_variate(
            self.tall, reference, control_variate, self.temperature, one_mode=one_mode
        )
        if self.tall.partitions is not None and not self.control_variate:
            self.tall = self.tall.copied()
        rows_read = self._settle_decisions(is_open, rows)
        self.proposal = self._default_proposal() if proposal is None else proposal
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
        if self.sized is not None:
            self.residents = self._first_residents(self.sized, settled.rows_read)
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

    def _warn_of_other_temperatures(self) -> None:
        others = [var.name for var in self.tall.model.value_vars if var not in self.vars]
        if others and self.temperature != 1.0:
            warn(
                "PMB108",
                f"MinibatchMH samples at temperature {self.temperature}; the steps of {others} "
                "must use the same temperature, or the chain has no well-defined target.",
            )

    @property
    def _initial_batch(self) -> int:
        """Rows of a first batch before tuning."""
        return self.batch_size or min(max(DEFAULT_BATCH, self.least_batch), self.n_rows)

    def setup_chain(self, rng: RandomGenerator, tune: int, draws: int) -> None:
        """Prepare for a chain; rows that served another one do not serve this one."""
        super().setup_chain(rng, tune, draws)
        self._draws_to_come, self._tuning_to_come = draws, tune
        if self.sized is not None and self.ball is not None:
            self._put_in_place(Residents.none(self.sized))

    def _reset_tuning(self) -> None:
        self.batch_state = new_first_batch(self._initial_batch)
        self._read, self._cost_is_checked, self._is_beyond = np.zeros(2), False, False
        self._level_is_found = False
        self.transitions, self._n_still = 1, 0
        self.by_trajectories = False
        self.__dict__.pop("_trajectories", None)
        fixed = TRANSITION
        if self.latent is not None:
            fixed = max(TRANSITION_OF_EFFECTS, self.latent.fixed_cost)
        self._mixing = Mixing(self.tall.layout, fixed)
        if self.latent is not None:
            self.proposal_state = self.latent.initial_state()
            return
        variance = self.temperature / self.n_rows
        self.proposal_state = self.proposal.initial_state(
            self._active.size, variance, self._approximation
        )

    def _start(self, point: PointType) -> PointType:
        """Let a chain start near the mode if only rows that tell there are on this machine."""
        if self.residents is not None and self.n_draws == 0:
            return {**point, **self._near_mode(point)}
        return super()._start(point)

    starts: np.ndarray | None = None
    """Points from which chains start, if they were handed over."""

    def _near_mode(self, point: PointType) -> Mapping[str, np.ndarray]:
        if self.starts is not None:
            chosen = self.starts[int(self.rng.integers(len(self.starts)))]
            return self.tall.layout.unflatten(chosen)
        if self.latent is not None:
            flat = self.tall.layout.flatten(point)
            return self.tall.layout.unflatten(self.latent.near_mode(self.rng, flat))
        if self.control is None or not self.control.order:
            return point
        return start_near_mode(self.tall, self.control, self._active, point, self.rng)

    @cached_property
    def _target(self) -> Target:
        return make_target(self.tall, self.control)

    @cached_property
    def _prior_gradient(self) -> Callable[..., np.ndarray]:
        return compile_prior_gradient(self.tall)

    @cached_property
    def _guide(self) -> tuple[Any, ...]:
        wanted = self.proposal.needs_prior_gradient
        gradient = address_of(self._prior_gradient, self.tall.layout.empty()) if wanted else 0
        return self.proposal.guide(self._approximation, gradient)

    @cached_property
    def _kernel(self) -> Callable[..., int]:
        ndims = [values.ndim for values in self._density.data]
        return compile_transitions(ndims, self.acceptance, self.proposal, self.drawing)

    @property
    def drawing(self) -> Drawing:
        """How kernels draw rows; see :func:`.kernels.rows.make_readers`."""
        return self.residents is None or "residents"

    @cached_property
    def _density(self) -> Density:
        if self.residents is None:
            return make_density(self.tall, self._target)
        density = make_density(self.tall, self._target, self.residents.data)
        return density._replace(drawn=self.residents.drawn)

    @cached_property
    def _rows(self) -> Rows:
        if self.residents is not None:
            return row_workspace(self.residents.numbers.size, self.residents.table)
        sizes = NO_SIZES if self.row_sizes is None else self.row_sizes.table
        return row_workspace(self.n_rows, sizes)

    @cached_property
    def _first_batch(self) -> np.ndarray:
        return self.batch_state.size.copy()

    @cached_property
    def _parameters(self) -> tuple[Any, ...]:
        given = self.acceptance.parameters(self.temperature, self._first_batch, self.n_rows)
        given = with_kurtosis(given, self.kurtosis)
        return given if self.prepared is None else (*given, self.prepared)

    def _compile(self) -> None:
        start = self.tall.start.copy()
        if self.latent is not None:
            self.latent.compile()
        else:
            self._transitions(start, n_steps=0)

    def stop_tuning(self) -> None:
        """Fix what tuning has found."""
        if self._may_take_more and not self.by_trajectories:
            self.transitions = self._mixing.transitions(self._made, self._draws_to_come)
        self._mixing.draws.clear()
        self._read, self._cost_is_checked = np.zeros(2), False
        super().stop_tuning()
        (self.proposal if self.latent is None else self.latent).end_tuning(self.proposal_state)

    def _facts(self) -> dict[str, str]:
        facts = {"decides by": self.choice.removesuffix(".")}
        if self.latent is None or self.latent.by_batches:
            size = "tuned" if self.batch_size is None else f"from {self.batch_size:,} rows"
            facts["batches"] = f"{self.rows}, {size}"
        if self.latent is None:
            facts["moves"] = repr(self.proposal)
            facts["expansion"] = expansion(self.control)
        if self.temperature != 1.0:
            facts["temperature"] = f"{self.temperature:g}"
        facts["memory"] = f"about {in_words(bytes_of_step(self.tall, self.latent is not None))}"
        return facts | {"draw": f"{self.steps_per_draw} transitions"}

    @property
    def _may_take_more(self) -> bool:
        return self.steps_are_free

    @property
    def followed(self) -> tuple[np.ndarray, float]:
        """Draws of tuning, of parameters that are followed, and how many rows they have read."""
        return np.array(self._mixing.draws), self._mixing.rows_read

    @followed.setter
    def followed(self, stored: tuple[np.ndarray, float]) -> None:
        self._mixing.draws, self._mixing.rows_read = list(stored[0]), stored[1]

    @property
    def _made(self) -> int:
        """Transitions of a draw."""
        if not self.tune:
            return max(self.steps_per_draw, self.transitions)
        return 1 if self.latent is not None and self.steps_are_free else self.steps_per_draw

    def _draw(self, flat: np.ndarray) -> dict[str, Any]:
        if self.by_trajectories:
            return self._draw_along_trajectory(flat)
        stats = self._draw_together(flat) if self.latent is None else self._draw_latent(flat)
        if not self.tune:
            stats["warning"] = stats["warning"] or self._warning_of_no_move(stats)
        elif self._may_take_more or self.may_follow_trajectories:
            self._mixing.add(flat, stats["n_likelihood"] + stats["n_gradient"])
            if self._may_begin_trajectories:
                self._follow_trajectories_if_needed(flat)
        return stats

    @property
    def _may_begin_trajectories(self) -> bool:
        """Whether enough of tuning is left, and nothing that was asked for stands against it."""
        made = self.n_draws + 1
        left = self._tuning_to_come - made
        return self.may_follow_trajectories and made >= SETTLED and left >= LEAST_TUNING

    @property
    def _are_affordable(self) -> bool:
        return self._draws_to_come * self.n_rows * TRAJECTORY <= AFFORDABLE

    def _follow_trajectories_if_needed(self, flat: np.ndarray) -> None:
        """Go on with all rows if batches do not pay.

        Either draws stay correlated for all their work, or decisions read most rows since the
        chain is where the expansion does not hold.
        """
        if not (self._is_beyond or self._mixing.goes_nowhere(self._made, self.n_rows)):
            return
        _log.info(
            "MinibatchMH: decisions read most rows here and draws stay correlated; the chain goes "
            "on along trajectories with all rows, as NUTS (fallback='nuts')"
        )
        self._trajectories = self._trajectories_from(flat)
        self.by_trajectories = True

    def _trajectories_from(self, flat: np.ndarray) -> Trajectories:
        known = self._approximation
        covariance = np.ones(self._active.size)
        if known is not None:
            covariance = np.linalg.inv(known.precision)
        return Trajectories(
            self.tall, self.var_names, active=self._active, start=flat, covariance=covariance
        )

    @property
    def trajectories(self) -> dict[str, Any] | None:
        """What trajectories have learnt; None for a chain that batches move."""
        return self._trajectories.state if self.by_trajectories else None

    @trajectories.setter
    def trajectories(self, stored: Mapping[str, Any] | None) -> None:
        self.by_trajectories = stored is not None
        if stored is not None:
            if "_trajectories" not in self.__dict__:
                self._trajectories = self._trajectories_from(self.tall.start)
            self._trajectories.state = stored

    @cached_property
    def _trajectories(self) -> Trajectories:
        return self._trajectories_from(self.tall.start)

    def _draw_along_trajectory(self, flat: np.ndarray) -> dict[str, Any]:
        made = self._trajectories.draw(flat, self.rng, self.tune)
        read = int(made["tree_size"]) * self.n_rows
        return {
            "acceptance_rate": made["mean_tree_accept"],
            "n_likelihood": read,
            "n_gradient": read,
            "n_scanned": 0,
            "batch_size": float(self.n_rows),
            "log_ratio_var": 0.0,
            "test_error": 0.0,
            "exact": True,
            "diverging": made["diverging"],
            "scale": made["step_size"],
            "warning": None,
            **dict.fromkeys(OF_EFFECTS, np.nan),
        }

    def _warning_of_no_move(self, stats: dict[str, Any]) -> str | None:
        """Warn once where a chain stands still, which R-hat does not see if others do as well."""
        self._n_still = self._n_still + 1 if stats["acceptance_rate"] == 0.0 else 0
        if self._n_still != STILL:
            return None
        return with_id(
            "PMB203",
            f"No proposal of {STILL} draws was accepted: moves do not fit the posterior where this "
            "chain is, as beside a wall, or if kinks of the prior tie many parameters. Draws "
            "that repeat are not those of the posterior. Use NUTS, or make the prior smooth.",
        )

    def _draw_together(self, flat: np.ndarray) -> dict[str, Any]:
        before = self._snapshot(flat)
        totals = self._transitions(flat, self._made)
        if totals.impossible_row == OUT_OF_ROWS:
            self._restore(flat, before)
            totals = self._one_by_one(flat)
        numbers = None if self.residents is None else self.residents.numbers
        self.refuse_impossible(totals.impossible_row, flat, numbers)
        if self.tune:
            self.proposal.end_draw(self.proposal_state)
            self._tune_batch(totals.n_grown, totals.n_decisions)
        stats = self._stats(totals)
        stats["warning"] = None
        if not self.tune:
            stats["warning"] = self._warning_of_cost(totals)
        elif self._may_begin_trajectories and self._are_affordable:
            self._is_beyond |= self._beyond_expansion(totals) is not None
        return stats

    @property
    def _can_make_blocks(self) -> bool:  # type: ignore[override]
        return self.latent is None and self.residents is None and not self.by_trajectories

    def _draw_block(self, flat: np.ndarray, points: np.ndarray) -> dict[str, Any]:
        made = np.zeros((len(points), len(Totals._fields)))
        n_made = self._make_draws(flat, self.steps_per_draw, points, made)
        totals = Totals(*made.T)
        self.refuse_impossible(int(made[n_made - 1, 7]), points[n_made - 1])
        stats = self._stats(totals)
        of_all = of_one_draw(made.sum(axis=0)[None])
        stats["warning"] = self._warning_of_cost(of_all)
        return stats

    def _draw_latent(self, flat: np.ndarray) -> dict[str, Any]:
        assert self.latent is not None
        counts = self.latent.draw(
            self.rng,
            flat,
            self._made,
            self.tune,
            self.proposal_state,
        )
        self.refuse_impossible(counts.impossible_row, flat)
        n_decisions = max(counts.decisions, 1)
        values, gradients = self.latent.evaluations
        return {
            "n_likelihood": values * counts.n_evaluated,
            "n_gradient": gradients * counts.n_evaluated,
            "n_scanned": 0,
            "batch_size": counts.batch_rows / n_decisions,
            "log_ratio_var": counts.variance / n_decisions,
            "test_error": counts.test_error,
            "exact": not self.latent.by_batches,
            "diverging": False,
            "scale": self.latent.scale(self.proposal_state),
            "warning": None if self.tune else self._warning_of_a_level(flat),
            **stats_of_effects(counts),
        }

    def _snapshot(self, flat: np.ndarray) -> tuple[Any, ...]:
        """Copy what transitions change, where they may run out of rows."""
        if self.residents is None:
            return ()
        turn, state = self.residents.table.turn.copy(), copy.deepcopy(self.proposal_state)
        return flat.copy(), self.rng.bit_generator.state, state, turn

    def _forget_work(self) -> None:
        if self.latent is not None:
            self.latent.forget()
        elif "_rows" in self.__dict__:
            clear(self._rows)

    def _changing(self) -> dict[str, Any]:
        """Copy whose turn it is of rows that were gathered, which changes after tuning as well."""
        gathered = {} if self.residents is None else {"_gathered": self._gathered}
        learnt = {"trajectories": self.trajectories} if self.tune and self.by_trajectories else {}
        return super()._changing() | gathered | learnt

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
        for _ in range(self._made):
            before = self._snapshot(flat)
            totals = self._transitions(flat, 1)
            if totals.impossible_row == OUT_OF_ROWS:
                self._restore(flat, before)
                self._gather()
                totals = self._transitions(flat, 1)
            made.append(totals)
            if totals.impossible_row != -1:
                break
        return summed(made)

    def _gather(self) -> None:
        """Gather rows for the exact test, drawn by a generator of their own."""
        if self.ball is None:
            return
        assert self.sized is not None
        digest = sha256(repr(self.rng.bit_generator.state).encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest))
        self._put_in_place(Residents.gather(self.sized, self.n_residents, rng, once=True))

    def _put_in_place(self, residents: Residents) -> None:
        self.residents = residents
        self.__dict__.pop("_rows", None)
        if "_density" in self.__dict__:
            self._density = self._density._replace(data=residents.data, drawn=residents.drawn)

    def refuse_impossible(
        self, row: int, flat: np.ndarray, numbers: np.ndarray | None = None
    ) -> None:
        """Raise if a kernel has stopped at a row, or for want of rows.

        `numbers` are those of the rows that it reads, if they are not all rows.
        """
        if row == OUT_OF_ROWS:
            raise SamplingError(
                with_id(
                    "PMB301",
                    f"A decision needs more than the {self.n_residents:,} rows that are gathered "
                    "at a time, or all of them, as it does far from the mode. Set rows_in_memory "
                    "to more bytes, or to np.inf, which copies all rows to this machine.",
                )
            )
        if row >= 0:
            number = row if numbers is None else int(numbers[row])
            raise SamplingError(self.complaint(number, flat))

    def complaint(self, row: int, flat: np.ndarray) -> str:
        """Say what is wrong with a row at which the kernel has stopped."""
        name = f"Row {row} of {' + '.join(self.tall.row_names)}"
        if self.ball is not None and np.isfinite(
            self.tall.row_logp(self.tall.layout.unflatten(flat), [row])
        ):
            return with_id(
                "PMB302",
                f"{name} varies more than the bound on its third derivative allows, so that the "
                "exact test is not exact. Look at Exact(third=...), which must hold at every value "
                "of the predictor, or use CorrectedBarker().",
            )
        return with_id(
            "PMB303",
            f"{name} has a log-likelihood that is not finite at a point that was accepted from "
            "other rows. Minibatch sampling needs rows that are possible at every value of the "
            "parameters (no support that depends on them); sample this model with NUTS.",
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

    def _warning_of_a_level(self, flat: np.ndarray) -> str | None:
        """Warn once where batches have let a level go where its own rows object."""
        assert self.latent is not None
        if self._level_is_found or self.n_draws % LOOK_EVERY:
            return None
        contradicted = self.latent.contradicted(flat)
        if contradicted is None:
            return None
        self._level_is_found = True
        name = self.tall.layout.name_of(contradicted.position)
        element = contradicted.position - self.tall.layout.slices[name].start
        return with_id(
            "PMB204",
            f"{name}[{element}] has moved to a value that its own rows contradict: their "
            f"log-likelihood is {contradicted.nats:,.0f} below what the minibatches indicated. "
            "Draws of it and of all that depends on it are wrong. Please report this model; "
            "meanwhile, set a larger batch_size.",
        )

    def _transitions(self, flat: np.ndarray, n_steps: int) -> Totals:
        point, totals = self._one_draw
        self._make_draws(flat, n_steps, point, totals)
        return of_one_draw(totals)

    def _make_draws(
        self, flat: np.ndarray, n_steps: int, points: np.ndarray, totals: np.ndarray
    ) -> int:
        """Move a point, and write draws and what happened in them; return how many were made."""
        self._first_batch[0] = self.batch_state.size[0]
        return self._kernel(
            self.rng,
            flat,
            self._active,
            self._density,
            n_steps,
            self.tune,
            self.proposal_state,
            self._guide,
            self._parameters,
            self._rows,
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

    # --- The witness --------------------------------------------------------------------------

    def _look(self) -> Look | None:
        if self.by_trajectories:
            return TrajectoryLook(self._model_density, self._trajectories)
        if self.latent is not None:
            return moves_of(self._model_density, self.latent, self.proposal_state)
        if self.tall.partitions is not None:
            return None
        wanted = getattr(self.proposal, "needs_prior_gradient", False)
        return MovesTogether(
            self._model_density,
            self._one_transition,
            self._target.row,
            constants=self._density.constants,
            data=self._density.data,
            active=self._active,
            proposal=self.proposal,
            state=self.proposal_state,
            guide=self._guide,
            prior_gradient=self._prior_gradient if wanted else None,
            drawn=self._drawn,
            rests_on=self._presumes,
            batches=self._batches,
        )

    def _point_of_look(self) -> np.ndarray:
        if self.latent is None and self.control is not None and self.control.order:
            start = self.tall.layout.flatten(self.tall.model.initial_point())
            point = drawn_about_mode(self.control, self._active, start, self.rng)
            if np.isfinite(self._model_density(point)):
                return point
        return super()._point_of_look()

    def _one_transition(self, rng: np.random.Generator, point: np.ndarray) -> JointMove:
        """Make one transition from a copy of a point, as the chain would."""
        kept = self.rng, self.proposal_state, self.tune
        self.rng, self.proposal_state, self.tune = rng, copy.deepcopy(self.proposal_state), False
        try:
            totals = self._transitions(point.copy(), 1)
        finally:
            self.rng, self.proposal_state, self.tune = kept
        proposed, ratios = self._last_proposal
        return JointMove(proposed.copy(), float(ratios[0]), float(ratios[1]), totals)

    def _batches(
        self, rng: np.random.Generator, point: np.ndarray
    ) -> tuple[list[Batch], Probabilities | None]:
        """Draw batches for decisions on moves from a point; return the probabilities of rows too.

        They have as many rows as :func:`.first_batch` says.
        """
        if self.n_rows > MOST_ROWS or self.residents is not None:
            return [], None
        kept, batches = (self.batch_state, self._parameters), []
        try:
            with np.errstate(all="ignore"):  # rows may be impossible at a proposal
                for seed in rng.integers(2**63, size=n_batches(self.n_rows)).tolist():
                    self.batch_state, self._parameters = kept
                    batches.append(self._one_batch(seed, point))
        finally:
            self.batch_state, self._parameters = kept
            clear(self._rows)
        known = [batch for batch in batches if batch is not None]
        return known, probabilities(self._rows.table, self.n_rows)

    def _one_batch(self, seed: int, point: np.ndarray) -> Batch | None:
        """Decide on one move by a larger batch than the chain's own, if it reads a batch."""
        size = first_batch(self.n_rows)
        self.batch_state, rows = new_first_batch(size), (np.nan, np.nan, np.nan)
        if self.ball is not None:
            move = self._one_transition(np.random.default_rng(seed), point)
            largest, factor = bound_factor(point, move.proposed, self.ball)
            if not (np.isfinite(move.without_rows) and 0.0 < largest <= self.ball.radius):
                return None
            mean = expected_rows(self.ball.total, factor, self.temperature)
            if mean == 0.0:
                return None
            rows = self._many_rows(size / mean, size, move.without_rows)
        clear(self._rows)
        move = self._one_transition(np.random.default_rng(seed), point)
        n, totals = int(self._rows.n_drawn[0]), move.totals
        assert totals is not None
        drawn, terms = self._rows.drawn[:n].copy(), self._rows.log_ratios[:n].copy()
        batch = tuple(values[drawn] for values in self._density.data)
        both = self._target.row(point, move.proposed, self._density.constants, batch)
        noise = np.nan, np.nan
        if self.acceptance.first_batch == "tuned" and n == totals.batch_rows:
            scale = self.n_rows / self.temperature
            s2 = scale**2 * terms.var(ddof=1) / n * (1 - n / self._rows.population)
            noise = totals.log_ratio_var, float(s2)
        if self.ball is not None:
            rows = float(totals.batch_rows), *rows[1:]
        return Batch(drawn, terms, both[1] - both[0], noise, rows)

    def _many_rows(self, times: float, mean: float, psi: float) -> tuple[float, float, float]:
        """Let the exact test draw so many times the rows; say how many, for a move with ψ.

        It stays right, as larger bounds are bounds. It draws none where stage 1 rejects.
        """
        temperature, ball = self._parameters
        self._parameters = temperature, ball._replace(total=times * ball.total)
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

    @property
    def _presumes(self) -> str:
        """What decisions rest on, in words."""
        if self.ball is not None:
            return "third derivatives of rows are within their bounds, and 0 where these are"
        if self.control_variate:
            return "rows are what an expansion and its remainders make of them"
        return "the rows found in the model are all that depends on data"

    def _tune_batch(self, n_grown: int, n_decisions: int) -> None:
        if self.batch_size is None and self.acceptance.first_batch == "tuned":
            tune_first_batch(self.batch_state, n_grown, n_decisions, self.n_rows, self.least_batch)

    def _stats(self, totals: Totals) -> dict[str, Any]:
        """Return the stats of a draw, or of many."""
        n_decisions = np.maximum(totals.n_decisions, 1)
        pinned = 0 if self.control is None else self.control.always_read.size
        return {
            "acceptance_rate": totals.n_accepted / self._made,
            # Rows that are read always, at the first point and at each proposal.
            "n_likelihood": 2 * totals.n_evaluated + pinned * (self._made + 1),
            "n_gradient": 2 * totals.n_evaluated if self.control_variate else 0,
            "n_scanned": 2 * totals.n_scanned,
            "batch_size": totals.batch_rows / n_decisions,
            "log_ratio_var": totals.log_ratio_var / n_decisions,
            "test_error": np.minimum(1.0, totals.test_error + self._fixed_error(totals)),
            "exact": self.ball is not None,
            "diverging": False,
            "scale": self.proposal.scale(self.proposal_state),
            **dict.fromkeys(OF_EFFECTS, np.nan),
        }

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


def _warn_of_modes(sampler: ModeSampler) -> None:
    """Name the variables in which modes differ."""
    names = ", ".join(sampler.differing())
    warn(
        "PMB107",
        f"The posterior has {len(sampler.samplers)} modes, which differ in {names}. Chains start "
        "about all of them and jump between them; if R-hat says that they do not mix, there are "
        "too few jumps: make one mode improbable by the prior, or by a constraint on a sign.",
    )


def _check_target(proposal: Proposal, acceptance: Acceptance) -> None:
    """Refuse an acceptance rate that the test never reaches: the moves would shrink to nothing."""
    most = acceptance.most_accepted
    if isinstance(proposal, RandomWalk) and proposal.adapt and proposal.target_accept >= most:
        raise ValueError(
            f"RandomWalk(target_accept={proposal.target_accept}) is tuned to a rate that "
            f"{acceptance} never reaches: it accepts {most:.2g} of the proposals at most. Set a "
            "lower rate."
        )
