"""What the stochastic-gradient steps share: how they read gradients, and their stats."""

import logging
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
from pymc_minibatch.messages import with_id
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.decide import (
    check_control_variate,
    decide_control_variate,
    start_near_mode,
)
from pymc_minibatch.reference.density import Density, make_density
from pymc_minibatch.reference.exchange import interchangeable
from pymc_minibatch.reference.gradient import (
    GradientTarget,
    bounded_base,
    make_gradient_sum,
    make_gradient_target,
)
from pymc_minibatch.reference.trial import Trial
from pymc_minibatch.steps.ascent import Ascent
from pymc_minibatch.steps.common import TallStep, TallStepState
from pymc_minibatch.steps.conditional_prior import MOST_PARAMETERS, ConditionalPrior
from pymc_minibatch.steps.display import expansion
from pymc_minibatch.steps.schedule import Constant, Schedule
from pymc_minibatch.tall.support import may_be_impossible
from pymc_minibatch.warn import warn
from pymc_minibatch.witness.densities import FullGradient
from pymc_minibatch.witness.witness import Look

__all__ = ["BATCHES", "GradientStep", "GradientStepState", "largest_variance", "scaled"]

_log = logging.getLogger("pymc_minibatch")

DEFAULT_BATCH = 300

BATCHES = 300
"""From so many batches the noise at a point is taken."""

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
        steps_per_draw: int | Literal["auto"],
        model: Model | None,
        rng: RandomGenerator,
    ) -> None:
        started = time.perf_counter()
        check_control_variate(reference, control_variate)
        if steps_per_draw == "auto":
            steps_per_draw = self.default_steps
        super().__init__(vars, data, steps_per_draw, model, rng)
        self.batch_size = (
            min(DEFAULT_BATCH, self.n_rows)
            if batch_size is None
            else checked_count("batch_size", batch_size, 2)
        )
        self.control = self._decide_control(reference, control_variate)
        self._prepare()
        self._get_ready(started, reference)

    def _decide_control(
        self, reference: Reference | None, control_variate: Literal["auto", 0, 1, 2]
    ) -> ControlVariate | None:
        """Return the control variate; None if no reference point is known.

        None is searched for if there are surely several modes, or so many parameters that
        their Hessian is large.
        """
        if reference is None and control_variate == "auto" and (why := self._why_no_mode()):
            _log.info(f"No control variate: {why}. Chains climb from their initial points.")
            self.climbs, control_variate = True, 0
        return decide_control_variate(self.tall, reference, control_variate, 1.0)

    def _why_no_mode(self) -> str | None:
        if self._active.size > MOST_PARAMETERS:
            return f"{self._active.size} parameters are too many for a Hessian"
        if self.tall.model.discrete_value_vars:
            return None
        units = interchangeable(self.tall)
        return f"units of {units} can be exchanged, so there are several modes" if units else None

    climbs = False
    """Whether chains climb from their initial points where no reference point is known."""
    schedule: Schedule = Constant()
    """How steps change in size; and how many make a draw."""
    options: tuple[Any, ...]
    """Settings of the kind of step, which a state must fit."""
    tuned: tuple[np.ndarray, ...]
    """What the kernel changes in addition to the point."""

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

    def _fit_to_others(self, flat: np.ndarray) -> None:
        """Fit the moves to the prior that others have left; they may have moved far."""

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
    def target(self) -> GradientTarget:
        """The density that kernels sample, as functions of a point and a batch."""
        return make_gradient_target(self.tall, self.control)

    @cached_property
    def density(self) -> Density:
        """The target as kernels call it."""
        return self._inside(self.target)

    @cached_property
    def kernel(self) -> Callable[..., tuple[bool, float]]:
        """The compiled loop over transitions."""
        ndims = [values.ndim for values in self.tall.data]
        keys = [self.name, repr(ndims), *["bounded"] * self._bounded]
        return jit_kept(self._make_kernel(ndims, self._bounded), keys)

    @cached_property
    def _bounded(self) -> bool:
        """Whether the prior part may have hard constraints, at which kernels have to look."""
        return may_be_impossible(self.tall.prior_graph)

    @cached_property
    def _bounded_base(self) -> Callable[..., np.ndarray]:
        return bounded_base(self.tall)

    def _inside(self, target: GradientTarget) -> Density:
        """Return the density as kernels read it, which do not go where it is zero."""
        if self._bounded:
            target = target._replace(base=self._bounded_base)
        return make_density(self.tall, target)

    def look(self) -> Look | None:
        """Return what compares moves with the model's own density."""
        if self.tall.is_bound:
            return None
        base, row, constants = self.target
        return FullGradient(
            self.model_density,
            lambda point: base(point, constants),
            lambda point, batch: row(point, constants, batch),
            data=self.tall.data,
            active=self._active,
        )

    @property
    def trial(self) -> Trial:
        """Where gradients of the sampled variables are tried."""
        return Trial(self.tall, self.target, self._active)

    def _warn_of_short_steps(self, setting: str, times_shorter: float) -> None:
        """Warn of a default that nothing but patience makes good."""
        if times_shorter > SHORT:
            warn(
                "PMB111",
                f"The default {setting} makes steps {times_shorter:.0f} times shorter than those "
                "for a normal posterior, because curvature or gradient noise varies strongly "
                "around the mode. Expect slow mixing, and possibly bias in the tails: check R-hat "
                "and pmb.ksd, or use MinibatchMH.",
            )

    def _compile(self) -> None:
        flat = self.tall.start.copy()
        self.make_transitions(flat, 0)
        if self.climbs:
            self.ascent.climb(self.rng, flat, 0)

    def near_mode(self, point: PointType) -> Mapping[str, np.ndarray]:
        """Return a point near the mode if one is known, else the point."""
        if self.control is None and self.climbs:
            climbed = self.ascent.climbed(self.rng, self.tall.layout.flatten(point))
            return self.tall.layout.unflatten(climbed)
        if self.control is None:
            return point
        return start_near_mode(self.tall, self.control, self._active, point, self.rng)

    @cached_property
    def _sums(self) -> GradientTarget:
        """The gradient of a batch without a control variate, by which chains climb."""
        return make_gradient_sum(self.tall, None)

    @cached_property
    def _sum_density(self) -> Density:
        return self.density if self._sums is self.target else self._inside(self._sums)

    @cached_property
    def ascent(self) -> Ascent:
        """Climbs by the gradients of batches."""
        return Ascent(
            self.tall, self._active, self.batch_size, self._sum_density, self._bounded, self.prior
        )

    @cached_property
    def prior(self) -> ConditionalPrior:
        """The prior of what this step moves, given the rest."""
        return ConditionalPrior(self.tall, self.vars, self._active)

    def _others_moved(self, flat: np.ndarray) -> bool:
        """Whether the prior of some parameter here is another one than at the draw before."""
        if not self.prior.others.size:
            return False
        others, before = flat[self.prior.others], self._seen_others
        self._seen_others = others.copy()
        return before is None or not np.array_equal(others, before)

    _seen_others: np.ndarray | None = None

    def _draw(self, flat: np.ndarray) -> dict[str, Any]:
        if not self.tune:
            self._check_ready()
        if self._others_moved(flat):
            self._fit_to_others(flat)
        n_steps = self.schedule.of_draw(self.n_draws, self.steps_per_draw)[0].size
        diverged, noise = self.make_transitions(flat, n_steps)
        if diverged:
            raise SamplingError(
                with_id(
                    "PMB306",
                    f"{type(self).__name__} diverges at draw {self.n_draws}: its steps have become "
                    f"1000 times as long as the first one. {self._advice}",
                )
            )
        return {
            "n_gradient": n_steps * self.batch_size * (1 + self.control_variate),
            "step_size": self._step_size(),
            "gradient_noise": noise,
        }

    def make_transitions(self, flat: np.ndarray, n_steps: int) -> tuple[bool, float]:
        """Move a flat point in place by some transitions."""
        return self.kernel(
            self.rng,
            flat,
            self._active,
            self.density,
            n_steps,
            self.tune,
            self.tuned,
            self._settings(),
        )


def scaled(noises: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return noise, a vector in each row, where M = LLᵀ is the identity; L or one column of it."""
    return noises @ factor if factor.shape[1] > 1 else noises * factor[:, 0]


def largest_variance(noises: np.ndarray) -> float:
    """Return the largest variance in any direction, by the smaller of two Gram matrices."""
    m, dim = noises.shape
    gram = noises @ noises.T if m < dim else noises.T @ noises
    return float(np.linalg.eigvalsh(gram / m)[-1])
