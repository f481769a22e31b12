"""What the stochastic-gradient steps share: everything between PyMC and their kernels."""

import copy
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from pymc.blocking import PointType, StatsType
from pymc.exceptions import SamplingError
from pymc.model import Model, modelcontext
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import RandomGenerator, get_random_generator, get_var_name
from pytensor.graph.basic import Variable

from pymc_minibatch.acceptance.decision import Source
from pymc_minibatch.kernels.cache import code_key
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.decide import decide_control_variate, start_near_mode
from pymc_minibatch.reference.gradient import GradientTarget, make_gradient_target
from pymc_minibatch.steps.common import (
    TallStep,
    checked_count,
    continuous_value_vars,
    positions,
    row_deterministics_warning,
)
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.compiled import jit_cached
from pymc_minibatch.tall.pointers import address_of

__all__ = ["GradientStep", "GradientStepState", "checked_covariance"]

DEFAULT_BATCH = 300

KERNEL_SOURCE = """
def transitions(rng, point, active, source, n_steps, tuning, state, settings):
    return loop(rng, point, active, source, n_steps, tuning, state, settings)
"""


@dataclass_state
class GradientStepState(StepMethodState):
    """What is needed to continue a chain."""

    tune: bool
    tuned: tuple[np.ndarray, ...]
    n_draws: int
    last_point: np.ndarray
    options: tuple[Any, ...] = field(metadata={"frozen": True})
    control_variate: int = field(metadata={"frozen": True})
    n_rows: int = field(metadata={"frozen": True})
    batch_size: int = field(metadata={"frozen": True})
    steps_per_draw: int = field(metadata={"frozen": True})


class GradientStep(TallStep):
    """A step that moves by the gradient of a batch and does not accept or reject."""

    default_blocked = True
    stats_dtypes_shapes: dict[str, tuple[Any, Any]] = {  # noqa: RUF012 - as PyMC declares it
        "n_gradient": (np.int64, []),
        "step_size": (np.float64, []),
        "gradient_noise": (np.float64, []),
        "n_rows": (np.int64, []),
        "setup_seconds": (np.float64, []),
    }
    shown: ClassVar[dict[str, tuple[str, str]]] = {
        "step_size": ("Step size", "0.2g"),
        "gradient_noise": ("Gradient noise", "0.0%"),
    }
    _state_class = GradientStepState
    learns_while_tuning: ClassVar[bool]
    """Whether tuning changes the step, beyond the limit on its length."""

    def __init__(
        self,
        vars: Variable | str | Sequence[Variable | str] | None,
        data: Any,
        reference: Reference | None,
        control_variate: Literal["auto", 0, 1, 2],
        batch_size: int | None,
        steps_per_draw: int,
        model: Model | None,
        rng: RandomGenerator,
    ) -> None:
        started = time.perf_counter() - (0.0 if reference is None else reference.seconds)
        model = modelcontext(model)
        self.vars = continuous_value_vars(vars, model, type(self).__name__)
        self.var_names = [get_var_name(var) for var in self.vars]
        self.tall = TallModel(model, data=data)
        self.n_rows = self.tall.n_rows
        self.batch_size = (
            min(DEFAULT_BATCH, self.n_rows)
            if batch_size is None
            else checked_count("batch_size", batch_size, 2)
        )
        self.steps_per_draw = checked_count("steps_per_draw", steps_per_draw, 1)
        self.tune = True
        self.rng = get_random_generator(rng)
        self._active = positions(self.tall, self.var_names)
        self.reference, self.control_variate = decide_control_variate(
            self.tall, reference, control_variate, 1.0
        )
        self.n_draws, self.last_point = 0, np.empty(0)
        self._start_is_checked = False
        if warning := row_deterministics_warning(self.tall):
            warnings.warn(warning, stacklevel=3)
        self._prepare()
        self._compile()
        self.setup_seconds = time.perf_counter() - started

    options: tuple[Any, ...]
    """Settings of the kind of step, which a state must fit."""
    tuned: tuple[np.ndarray, ...]
    """What the kernel changes besides the point."""

    @abstractmethod
    def _prepare(self) -> None:
        """Check and set up what depends on the model; sets `options` and `tuned`."""

    @abstractmethod
    def _untuned(self) -> tuple[np.ndarray, ...]:
        """Return `tuned` as it is before the first draw."""

    @property
    @abstractmethod
    def _make_kernel(self) -> Callable[..., Callable[..., tuple[bool, float]]]:
        """The function that assembles the kernel."""

    @abstractmethod
    def _settings(self) -> tuple[Any, ...]:
        """Return what the kernel reads in this draw."""

    @abstractmethod
    def _step_size(self) -> float:
        """Return the step size, for the sample stats."""

    @property
    @abstractmethod
    def _advice(self) -> str:
        """What to do where the step diverges."""

    def _check_ready(self) -> None:
        """Refuse to go on where tuning has not found what the step needs."""

    @cached_property
    def _target(self) -> GradientTarget:
        return make_gradient_target(self.tall, self.reference, self.control_variate)

    @cached_property
    def _source(self) -> Source:
        base, row, constants = self._target
        point, data = self.tall.layout.empty(), self.tall.data
        batch = tuple(np.empty((1, *values.shape[1:]), values.dtype) for values in data)
        row_address = address_of(row, point, constants, batch)
        return Source(data, constants, row_address, address_of(base, point, constants))

    @cached_property
    def _kernel(self) -> Callable[..., tuple[bool, float]]:
        ndims = [values.ndim for values in self.tall.data]
        keys = [code_key(), repr(ndims), type(self).__name__]
        loop = self._make_kernel(ndims)
        return jit_cached(KERNEL_SOURCE, "transitions", {"loop": loop}, keys)

    def _row_gradients(
        self, flat: np.ndarray, rows: np.ndarray, target: GradientTarget
    ) -> np.ndarray:
        """Gradients of some rows' terms by the sampled parameters, shape (len(rows), d)."""
        batch = tuple(np.ascontiguousarray(values[rows]) for values in self.tall.data)
        return target.row(flat, target.constants, batch)[:, self._active]

    def _compile(self) -> None:
        """Compile before chains are forked, so that they share the machine code."""
        self._transitions(self.tall.layout.flatten(self.tall.model.initial_point()), 0)

    def setup_chain(self, rng: RandomGenerator, tune: int, draws: int) -> None:
        """Prepare for a chain, which may start anywhere; if it tunes, it tunes from the start."""
        super().setup_chain(rng, tune, draws)
        if tune:
            self.tuned = self._untuned()
        self.n_draws = 0
        self._start_is_checked = False

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Make the transitions of one draw."""
        if not self._start_is_checked:
            self.tall.check_start(point)
            self._start_is_checked = True
            point = self._start(point)
        if not self.tune:
            self._check_ready()
        flat = self.tall.layout.flatten(point)
        noise = self._transitions_or_nothing(flat)
        moved = self.tall.layout.unflatten(flat)
        new_point = {**point, **{name: moved[name] for name in self.var_names}}
        stats = {
            "n_gradient": self.steps_per_draw * self.batch_size * (1 + self.control_variate),
            "step_size": self._step_size(),
            "gradient_noise": noise,
            "n_rows": self.n_rows,
            "setup_seconds": self.setup_seconds,
        }
        self.n_draws, self.last_point = self.n_draws + 1, flat
        return new_point, [stats]

    def _start(self, point: PointType) -> PointType:
        """Let a chain that tunes start near the mode, where all variables can be moved there."""
        moves_all = self._active.size == self.tall.layout.size
        if not (self.tune and self.n_draws == 0 and self.reference is not None and moves_all):
            return point
        return {**point, **start_near_mode(self.tall, self.reference, 1.0, point, self.rng)}

    def _transitions(self, flat: np.ndarray, n_steps: int) -> tuple[bool, float]:
        return self._kernel(
            self.rng,
            flat,
            self._active,
            self._source,
            n_steps,
            self.tune,
            self.tuned,
            self._settings(),
        )

    def _transitions_or_nothing(self, flat: np.ndarray) -> float:
        """Make the transitions; when interrupted, leave the state as before them.

        A draw that is interrupted is not recorded, so a chain that is resumed must repeat it.
        """
        rng_state = self.rng.bit_generator.state
        learns = self.tune and self.learns_while_tuning
        before = copy.deepcopy(self.tuned) if learns else self.tuned
        try:
            diverged, noise = self._transitions(flat, self.steps_per_draw)
        except BaseException:
            self.rng.bit_generator.state = rng_state
            self.tuned = before
            raise
        if diverged:
            raise SamplingError(
                f"{type(self).__name__} diverges at draw {self.n_draws}: its steps have become "
                f"1000 times as long as the first one. {self._advice}"
            )
        return noise


def checked_covariance(name: str, values: Any, dim: int) -> np.ndarray:
    """Return a matrix that is symmetric and positive definite."""
    matrix = np.array(values, dtype=np.float64)
    if matrix.shape != (dim, dim):
        raise ValueError(
            f"{name} has shape {matrix.shape}, but the sampled variables have {dim} unconstrained "
            f"parameters: give a {dim} x {dim} matrix."
        )
    if not (np.isfinite(matrix).all() and np.allclose(matrix, matrix.T)):
        raise ValueError(f"{name} must be symmetric and finite.")
    if np.linalg.eigvalsh(matrix).min() <= 0:
        raise ValueError(f"{name} must be positive definite.")
    return matrix
