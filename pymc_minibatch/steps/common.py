"""What steps share: everything between PyMC and the draws of an algorithm."""

import copy
import logging
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pymc.blocking import PointType, StatsType
from pymc.model import Model
from pymc.step_methods.compound import BlockedStep, StepMethodState
from pymc.step_methods.state import DataClassState, WithSamplingState, dataclass_state
from pymc.util import RandomGenerator, get_random_generator, get_var_name
from pytensor.graph.basic import Variable

from pymc_minibatch.arguments import checked_count, checked_model, checked_type
from pymc_minibatch.jit.dropped import keep_interrupts
from pymc_minibatch.jit.entry import guard_graphs
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.steps.bound import check_others_are_bound, left_to_others, register
from pymc_minibatch.steps.display import Display
from pymc_minibatch.steps.interrupted import tell_interrupts
from pymc_minibatch.steps.other_data import FollowsData, split_for_step
from pymc_minibatch.steps.row_deterministics import (
    require_memory_for_draws,
    warn_of_row_deterministics,
)
from pymc_minibatch.steps.stats import described
from pymc_minibatch.steps.stopped import stopped
from pymc_minibatch.steps.variables import continuous_value_vars, positions
from pymc_minibatch.steps.waiting import StepKind, WaitingStep
from pymc_minibatch.tall.fingerprint import MadeOf, SharedValues
from pymc_minibatch.tall.missing_responses import MissingResponses, missing_responses
from pymc_minibatch.tall.model_density import ModelDensity
from pymc_minibatch.tall.observed import refuse_missing_values
from pymc_minibatch.witness import SurpriseError, Witness
from pymc_minibatch.witness.witness import Look

__all__ = ["Block", "TallStep", "TallStepState"]


_progress = logging.getLogger("pymc.minibatch")  # shown by PyMC, as what pm.sample does is

KEPT_BYTES = 2**28
"""Of draws that a chain keeps to save them, should it be stopped by its witness."""


@dataclass_state
class TallStepState(StepMethodState):
    """What is needed to continue a chain, whatever the algorithm."""

    tune: bool
    n_draws: int
    last_point: np.ndarray
    n_rows: int = field(metadata={"frozen": True})
    steps_per_draw: int = field(metadata={"frozen": True})
    rows_checksum: int = field(metadata={"frozen": True})
    model_checksum: int = field(metadata={"frozen": True})


class Block(NamedTuple):
    """Draws that were made at once.

    Attributes
    ----------
    points : ndarray, shape (draws, size)
        Flat points.
    stats : dict of str to ndarray, shape (draws,)
        The sample stats.
    warnings : list
        What is to be logged.
    """

    points: np.ndarray
    stats: dict[str, np.ndarray]
    warnings: list[Any]


class TallStep(FollowsData, Display, BlockedStep, metaclass=StepKind):
    """A step on the rows of a model.

    An algorithm makes the transitions of a draw in `_draw`, starts tuning anew in `_reset_tuning`,
    and knows in `near_mode` a better start for a chain. Its `__init__` begins with that of
    this class and ends with `_get_ready`.

    Attributes
    ----------
    learns
        The attributes that draws change while the chain tunes.
    renamed
        New names of arguments by those of the last release.
    default_steps
        Steps of a draw with "auto", if a fixed number.
    """

    default_blocked = True
    learns: ClassVar[tuple[str, ...]]
    renamed: ClassVar[Mapping[str, str]] = {}
    default_steps: ClassVar[int] = 1
    control: ControlVariate | None = None
    """What is subtracted from the rows; None if no reference point is known."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Describe the sample stats in the docstring."""
        super().__init_subclass__(**kwargs)
        cls.__doc__ = described(cls.__doc__, cls.__name__)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Wait for a model if there is none yet."""
        if "target_accept" in kwargs:
            raise TypeError(
                f"{cls.__name__} has no target_accept, which is an option of NUTS: leave it out. "
                "Moves tune themselves; a random walk of MinibatchMH takes "
                "proposal=pmb.RandomWalk(target_accept=...)."
            )
        if kwargs.get("model") is None and Model.get_context(error_if_none=False) is None:
            return WaitingStep(cls, args, kwargs)
        checked_model(kwargs.get("model"))
        step = super().__new__(cls, *args, **kwargs)
        if isinstance(step, TallStep):
            step.made_with = args, {name: kwargs[name] for name in kwargs if name != "blocked"}
        return step

    def __init__(
        self,
        vars: Variable | str | Sequence[Variable | str] | None,
        data: Any,
        steps_per_draw: int,
        model: Model | None,
        rng: RandomGenerator,
        rows_in_memory: float = math.inf,
        witness: bool = True,
    ) -> None:
        model = checked_model(model)
        checked_type("witness", witness, bool, "False leaves it out.")
        refuse_missing_values(model, data)
        self.vars = continuous_value_vars(vars, model, type(self).__name__)
        self.var_names = [get_var_name(var) for var in self.vars]
        self.vars += [model.rvs_to_values[rv] for rv in missing_responses(model)]
        self.steps_per_draw = checked_count("steps_per_draw", steps_per_draw, 1)
        _progress.info(f"{type(self).__name__}: looking for the rows of the model")
        self.tall = split_for_step(model, data, rows_in_memory)
        self.n_rows = self.tall.n_rows
        _progress.info(f"{type(self).__name__}: setting up on {self.n_rows:,} rows")
        self._active = positions(self.tall, self.var_names)
        self._left = left_to_others(self.tall, self.var_names)
        register(self)
        tell_interrupts()
        self.tune = True
        self.rng = get_random_generator(rng)
        self.n_draws, self.last_point = 0, np.empty(0)
        self._start_is_checked = self._split_is_verified = False
        self._shared_values = SharedValues(self.tall)
        self.witness = Witness(self.tall.layout, self.n_rows) if witness else None
        self._draws: list[np.ndarray] = []
        warn_of_row_deterministics(self.tall)

    def _get_ready(self, started: float, reference: Reference | None) -> None:
        """Compile, and note the seconds since `started` and those of a reference handed over."""
        self._reset_tuning()
        _progress.info(f"{type(self).__name__}: compiling")
        self._compile()
        _ = self._missing_responses  # refused now if it cannot be compiled
        self.made_of = MadeOf.of(self.tall)
        self.rows_checksum = self.made_of.rows_checksum
        self.model_checksum = self.made_of.model.number
        self.setup_seconds = time.perf_counter() - started
        _progress.info(f"{type(self).__name__}: ready after {self.setup_seconds:,.1f} seconds")
        if reference is not None:
            self.setup_seconds += reference.seconds

    @property
    def identity(self) -> dict[str, Any]:
        """The stats that say what the run is made of."""
        return {
            "stand_in": self.tall.is_bound,
            "rows_checksum": self.rows_checksum,
            "model_checksum": self.model_checksum,
        }

    @property
    def reference(self) -> Reference | None:
        """The reference point, if one is known."""
        return None if self.control is None else self.control.whole

    @property
    def control_variate(self) -> int:
        """Order of the control variate; 0 for none."""
        return 0 if self.control is None else self.control.order

    # --- What an algorithm fills in -----------------------------------------------------------

    @abstractmethod
    def _draw(self, flat: np.ndarray) -> dict[str, Any]:
        """Make the transitions of one draw, which move `flat`; return the algorithm's stats."""

    @abstractmethod
    def _reset_tuning(self) -> None:
        """Set what `learns` names to what it is before the first draw."""

    @abstractmethod
    def near_mode(self, point: PointType) -> Mapping[str, np.ndarray]:
        """Return a random point near the mode if `point` is far from it.

        Only the variables of this step move, to where they are probable given the others.
        """

    @abstractmethod
    def _compile(self) -> None:
        """Compile before chains are forked, so that they share the machine code."""

    def look(self) -> Look | None:
        """Return what compares moves with the model's own density; None if nothing can be."""
        return None

    # --- Sampling -----------------------------------------------------------------------------

    def setup_chain(self, rng: RandomGenerator, tune: int, draws: int) -> None:
        """Prepare for a chain, which may start anywhere; if it tunes, it tunes from the start."""
        keep_interrupts()
        guard_graphs()
        tell_interrupts()
        self._follow_data()
        self.tall.check_sources()
        require_memory_for_draws(self.tall, tune, draws)
        super().setup_chain(rng, tune, draws)
        self.tune = tune > 0  # a step that is used again has stopped, and processes do not set it
        if tune:
            self._reset_tuning()
        self.n_draws, self.last_point, self._draws = 0, np.empty(0), []
        register(self)
        self._start_is_checked = self._split_is_verified = False
        self.__dict__.pop("_missing_responses", None)  # which reads data as they were
        if self.witness is not None:
            self.witness.start_chain()

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Make the transitions of one draw."""
        self.tall.watch.check()
        if self._left:
            check_others_are_bound(self, self._left, point)
        if not self._start_is_checked:
            point = self._or_nothing(self._possible_start, point)
            self._start_is_checked = True
        flat = self.tall.layout.flatten(point)
        if not (self.tune or self._split_is_verified):
            self._verify_split(flat)
        new_point, stats = self._or_nothing(lambda start: self._completed(point, start), flat)
        stats["n_rows"], stats["setup_seconds"] = self.n_rows, self.setup_seconds
        stats |= self.identity
        self.n_draws, self.last_point = self.n_draws + 1, flat
        return new_point, [stats]

    # --- Many draws at once -------------------------------------------------------------------

    def make_draws(self, flat: np.ndarray, n: int) -> Block:
        """Make draws from a point, which are those that as many calls of :meth:`step` make.

        The step has to move all variables of the model.
        """
        points = np.empty((n, self.tall.layout.size))
        [dtypes] = self.stats_dtypes
        stats = {name: np.zeros(n, dtype=dtypes[name]) for name in dtypes if name != "warning"}
        warnings: list[Any] = []
        point, i = None, 0
        while i < n:
            found: Mapping[str, Any]
            if not self.tune and self._split_is_verified and self._can_make_blocks:
                made, found = self._block(flat, points[i:])
                flat, point = points[i + made - 1], None
            else:
                point = self.tall.layout.unflatten(flat) if point is None else point
                point, [found] = self.step(point)
                made, points[i] = 1, self.last_point
                flat = points[i]
            for name, values in stats.items():
                values[i : i + made] = found[name]
            warnings += [found["warning"]] if found.get("warning") is not None else []
            i += made
        return Block(points, stats, warnings)

    _can_make_blocks = False
    """Whether draws after tuning can be made many at a time."""

    def _draw_block(self, flat: np.ndarray, points: np.ndarray) -> dict[str, Any]:
        """Write draws to `points`, and return the algorithm's stats, an array each."""
        raise NotImplementedError

    def _block(self, flat: np.ndarray, points: np.ndarray) -> tuple[int, dict[str, Any]]:
        """Make draws after tuning, and compare moves with the model's own density."""
        self.tall.watch.check()
        stats = self._or_nothing(lambda start: self._draw_block(start, points), flat.copy())
        stats = {**self._not_recorded, **stats}
        stats |= self._bear_witness(points, stats)
        stats["n_rows"], stats["setup_seconds"] = self.n_rows, self.setup_seconds
        stats |= self.identity
        self.n_draws, self.last_point = self.n_draws + len(points), points[-1].copy()
        return len(points), stats

    def _bear_witness(self, points: np.ndarray, stats: Mapping[str, Any]) -> dict[str, Any]:
        """Compare moves with the model's own density if it is time to; return stats, arrays each.

        Raises
        ------
        SamplingError
            If they differ. The draws so far are saved.
        """
        witness, n_moves = self.witness, np.zeros(len(points), np.int64)
        errors: float | np.ndarray = np.nan
        if witness is not None and self.tune:
            n_moves, errors = n_moves + witness.n_moves, witness.error
        elif witness is not None:
            n_moves, errors = self._compared(witness, points, stats)
        found = {"n_witnessed": n_moves, "witness_error": np.where(n_moves, errors, np.nan)}
        can_look = self.tall.partitions is None
        if "exact" in stats and not self.tune and (can_look or witness is None):
            found["exact"] = stats["exact"] & (n_moves > 0)
        return found

    def _compared(
        self, witness: Witness, points: np.ndarray, stats: Mapping[str, Any]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Keep draws, should the chain be stopped, the last ones if they are many; and compare."""
        read = np.zeros(len(points)) + stats.get("n_likelihood", 0) + stats.get("n_gradient", 0)
        before = witness.farthest.n
        self._draws.extend(points)
        try:
            return witness.after_draws(self.look, points, read)
        except SurpriseError as surprise:
            seen = witness.farthest.n - before
            del self._draws[len(self._draws) - len(points) + seen :]
            raise stopped(surprise, self.tall, self._draws) from None
        finally:
            del self._draws[: max(0, len(self._draws) - KEPT_BYTES // max(1, points[0].nbytes))]

    def _possible_start(self, point: PointType) -> PointType:
        """Return where a chain starts: of an impossible start that nobody asked for, one beside it.

        Raises
        ------
        ValueError
            If another start is impossible.
        """
        try:
            self.tall.check_start(point)
        except ValueError:
            own = self.tall.model.initial_point()
            if not all(np.array_equal(point[name], own[name]) for name in self.tall.layout.names):
                raise
            beside = self.tall.layout.unflatten(self.tall.start)
            point = {**point, **{name: beside[name] for name in self.var_names}}
            self.tall.check_start(point)
        return self._start(point)

    @cached_property
    def _not_recorded(self) -> dict[str, float]:
        """NaN for each stat that is no whole number, where the algorithm has none."""
        kinds = self.stats_dtypes_shapes
        return {name: np.nan for name, (dtype, _) in kinds.items() if dtype is np.float64}

    def _completed(self, point: PointType, flat: np.ndarray) -> tuple[PointType, dict[str, Any]]:
        """Make a draw, and draw missing values of responses given all else."""
        stats = self._witnessed(flat)
        values = self.tall.layout.unflatten(flat)
        moved = {**point, **{name: values[name] for name in self.var_names}}
        if self._missing_responses is not None:
            moved |= self._missing_responses(self.rng, moved)
        return moved, stats

    @cached_property
    def _missing_responses(self) -> MissingResponses | None:
        """What draws missing values of responses, if there are any."""
        if self.tall.given_model is self.tall.model:
            return None
        return MissingResponses(self.tall.given_model)

    def _witnessed(self, flat: np.ndarray) -> dict[str, Any]:
        """Make a draw, and compare moves with the model's own density if it is time to."""
        stats = {**self._not_recorded, **self._draw(flat)}
        found = self._bear_witness(flat[None], stats)
        return stats | {name: values[0] for name, values in found.items()}

    @cached_property
    def model_density(self) -> ModelDensity:
        """The model's own log-density, at the temperature of the step."""
        return ModelDensity(self.tall, getattr(self, "temperature", 1.0))

    def _look_at_set_up(self) -> SurpriseError | None:
        """Compare moves from a point near the mode with the model's own density.

        Raises
        ------
        NotTallError
            If they differ, and it is the split that is wrong there.
        """
        look, state = self.look(), self.rng.bit_generator.state
        if self.witness is None or look is None:
            return None
        try:
            point = self._point_of_look()
            self.witness.look(look, point)
        except SurpriseError as surprise:
            self.tall.verify_at(point)
            return surprise
        finally:
            self.rng.bit_generator.state = state
            self.witness.start_chain()
        return None

    def _point_of_look(self) -> np.ndarray:
        """Return a point that is likely enough for moves from it to be accepted and rejected."""
        point = self.tall.model.initial_point()
        return self.tall.layout.flatten({**point, **self.near_mode(point)})

    def _start(self, point: PointType) -> PointType:
        """Let a chain that tunes start near the mode."""
        if self.tune and self.n_draws == 0:
            return {**point, **self.near_mode(point)}
        return point

    def _verify_split(self, flat: np.ndarray) -> None:
        """Verify the split where tuning has led; with a reference, that was done at the mode."""
        if self.reference is None:
            self.tall.verify_at(flat)
        self._split_is_verified = True

    def _or_nothing[S, T](self, move: Callable[[S], T], start: S) -> T:
        """Find a start or make a draw; when interrupted, leave the state as before it.

        A draw that is interrupted is not recorded, so a chain that is resumed must repeat it.
        """
        rng_state, before = self.rng.bit_generator.state, self._changing()
        try:
            with np.errstate(all="ignore"):  # proposals may be where there is no density
                return move(start)
        except BaseException:
            self._forget_work()
            self.rng.bit_generator.state = rng_state
            for name, value in before.items():
                setattr(self, name, value)
            raise

    def _forget_work(self) -> None:
        """Empty the work space, which a kernel that was interrupted leaves half written."""

    def _changing(self) -> dict[str, Any]:
        """Copy the attributes that the next draw may change."""
        if not self.tune:
            return {}
        return {name: copy.deepcopy(getattr(self, name)) for name in self.learns}

    # --- State ---------------------------------------------------------------------------------

    @property
    def sampling_state(self) -> DataClassState:
        """What it needs to continue."""
        return WithSamplingState.sampling_state.fget(self)

    @sampling_state.setter
    def sampling_state(self, state: DataClassState) -> None:
        number = getattr(state, "model_checksum", self.model_checksum)
        if number != self.model_checksum and getattr(state, "n_rows", None) == self.n_rows:
            before = MadeOf.known(number, getattr(state, "rows_checksum", 0))
            fingerprint = self.made_of.model
            changes = fingerprint.unlike(number) if before is None else before.changes(self.tall)
            if any(changes):
                raise ValueError(
                    f"This step cannot continue the run: {changes} since. Make it with the model, "
                    "the data and the settings of the run."
                )
        try:
            WithSamplingState.sampling_state.fset(self, state)
        except (AssertionError, ValueError) as error:
            raise ValueError(
                f"This step cannot continue the run: {error}. Make it with the model, the data and "
                "the settings of the run."
            ) from error

    # --- Pickling and progress -----------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is rebuilt in the process of a chain: the cached properties."""
        left = ("_BlockedStep__newargs", "_draws", "made_with")
        kept = {
            name: value
            for name, value in self.__dict__.items()
            if name not in left and not isinstance(getattr(type(self), name, None), cached_property)
        }
        return kept | {"made_with": None}

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Leave out what was passed as `data`, which is pickled by reference, within `tall`."""
        args, kwargs = super().__getnewargs_ex__()
        return args, {"model": kwargs["model"], "blocked": kwargs["blocked"]}
