"""What the stochastic-gradient steps share: how they read gradients, and their stats."""

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
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

from pymc_minibatch.arguments import checked_count
from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.decide import (
    check_control_variate,
    decide_control_variate,
    start_near_mode,
)
from pymc_minibatch.reference.gradient import GradientTarget, make_gradient_target
from pymc_minibatch.reference.source import Source, make_source
from pymc_minibatch.reference.trial import Trial
from pymc_minibatch.steps.common import TallStep, TallStepState, expansion
from pymc_minibatch.warn import warn

__all__ = ["GradientStep", "GradientStepState"]

DEFAULT_BATCH = 300

SHORT = 50
"""Warn where the default steps are so many times shorter than a normal posterior allows."""


@dataclass_state
class GradientStepState(TallStepState):
    """What is needed to continue a chain."""

    tuned: tuple[np.ndarray, ...]
    options: tuple[Any, ...] = field(metadata={"frozen": True})
    control_variate: int = field(metadata={"frozen": True})
    batch_size: int = field(metadata={"frozen": True})


class GradientStep(TallStep):
    """A step that moves by the gradient of a batch and does not accept or reject."""

    stats_dtypes_shapes: dict[str, tuple[Any, Any]] = {  # noqa: RUF012 - as PyMC declares it
        "n_gradient": (np.int64, []),
        "step_size": (np.float64, []),
        "gradient_noise": (np.float64, []),
        **TallStep.stats_dtypes_shapes,
    }
    shown: ClassVar[dict[str, tuple[str, str]]] = {
        "step_size": ("Step size", "0.2g"),
        "gradient_noise": ("Gradient noise", "0.0%"),
    }
    _state_class = GradientStepState

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
        started = time.perf_counter()
        check_control_variate(reference, control_variate)
        super().__init__(vars, data, steps_per_draw, model, rng)
        self.batch_size = (
            min(DEFAULT_BATCH, self.n_rows)
            if batch_size is None
            else checked_count("batch_size", batch_size, 2)
        )
        self.control = decide_control_variate(self.tall, reference, control_variate, 1.0)
        self._prepare()
        self._get_ready(started, reference)

    options: tuple[Any, ...]
    """Settings of the kind of step, which a state must fit."""
    tuned: tuple[np.ndarray, ...]
    """What the kernel changes besides the point."""

    @abstractmethod
    def _prepare(self) -> None:
        """Check and set up what depends on the model; sets `options`."""

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

    def _facts(self) -> dict[str, str]:
        return {
            "batches": f"{self.batch_size:,} rows, with replacement",
            "settings": ", ".join(str(o) for o in self.options if not isinstance(o, np.ndarray)),
            "expansion": expansion(self.control),
            "draw": f"{self.steps_per_draw} steps",
        }

    @cached_property
    def _target(self) -> GradientTarget:
        return make_gradient_target(self.tall, self.control)

    @cached_property
    def _source(self) -> Source:
        return make_source(self.tall, self._target)

    @cached_property
    def _kernel(self) -> Callable[..., tuple[bool, float]]:
        ndims = [values.ndim for values in self.tall.data]
        return jit_kept(self._make_kernel(ndims), [repr(ndims)])

    @property
    def _trial(self) -> Trial:
        """Where gradients of the sampled variables are tried."""
        return Trial(self.tall, self._target, self._active)

    def _warn_of_short_steps(self, setting: str, times_shorter: float) -> None:
        """Warn of a default that nothing but patience makes good."""
        if times_shorter > SHORT:
            warn(
                f"The default {setting} makes steps {times_shorter:.0f} times shorter than those "
                "for a normal posterior, because the density is far more curved, or its gradient "
                "far noisier, about the mode than at it. Chains will mix slowly, and may be wrong "
                "where that goes on further out: look at R-hat and pmb.ksd, or use MinibatchMH."
            )

    def _compile(self) -> None:
        self._transitions(self.tall.layout.flatten(self.tall.model.initial_point()), 0)

    def _near_mode(self, point: PointType) -> Mapping[str, np.ndarray]:
        if self.control is None:
            return point
        return start_near_mode(self.tall, self.control, self._active, point, self.rng)

    def _draw(self, flat: np.ndarray) -> dict[str, Any]:
        if not self.tune:
            self._check_ready()
        diverged, noise = self._transitions(flat, self.steps_per_draw)
        if diverged:
            raise SamplingError(
                f"{type(self).__name__} diverges at draw {self.n_draws}: its steps have become "
                f"1000 times as long as the first one. {self._advice}"
            )
        return {
            "n_gradient": self.steps_per_draw * self.batch_size * (1 + self.control_variate),
            "step_size": self._step_size(),
            "gradient_noise": noise,
        }

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
