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
from pymc_minibatch.kernels.adam import make_climb
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
    make_gradient_sum,
    make_gradient_target,
)
from pymc_minibatch.reference.trial import Trial
from pymc_minibatch.steps.common import TallStep, TallStepState, expansion
from pymc_minibatch.warn import warn

__all__ = [
    "BATCHES",
    "CLIMB",
    "LEAST_CURVATURE",
    "GradientStep",
    "GradientStepState",
    "largest_variance",
    "scaled",
]

_log = logging.getLogger("pymc_minibatch")

DEFAULT_BATCH = 300

MOST_PARAMETERS = 1000
"""With more no mode is searched for unless that is asked for."""

JITTER = 0.1
"""Standard deviation by which a chain that climbs starts away from its initial point."""

STARTS, CLIMB, MOST_CLIMBS, RATE = 4, 3000, 10, 0.02
"""Starts, of which the best goes on, steps of a climb, most climbs, and how far a parameter may go
in a step of it. Climbs end when one gains less than 1 in log-density for each parameter."""

TRIAL_ROWS = 10_000
"""By which climbs are judged."""

BATCHES = 300
"""From so many batches the noise at a point is taken."""

PROBES, PROBE = 10, 1e-4
LEAST_CURVATURE = 1e-6
"""Of the prior; a parameter that nothing informs has it."""

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
        self.control = self._decide_control(reference, control_variate)
        self._prepare()
        self._get_ready(started, reference)

    def _decide_control(
        self, reference: Reference | None, control_variate: Literal["auto", 0, 1, 2]
    ) -> ControlVariate | None:
        """Return the control variate; None where no reference point is known.

        None is searched for where there are surely several modes, or so many parameters that
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
    def _density(self) -> Density:
        return make_density(self.tall, self._target)

    @cached_property
    def _kernel(self) -> Callable[..., tuple[bool, float]]:
        ndims = [values.ndim for values in self.tall.data]
        return jit_kept(self._make_kernel(ndims), [self.name, repr(ndims)])

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
        flat = self.tall.start.copy()
        self._transitions(flat, 0)
        if self.climbs:
            self._climb(flat, 0, 0)

    def _near_mode(self, point: PointType) -> Mapping[str, np.ndarray]:
        if self.control is None:
            return self._climbed(point) if self.climbs else point
        return start_near_mode(self.tall, self.control, self._active, point, self.rng)

    @cached_property
    def _sums(self) -> GradientTarget:
        """The gradient of a batch without a control variate, by which chains climb."""
        return make_gradient_sum(self.tall, None)

    @cached_property
    def _sum_density(self) -> Density:
        return make_density(self.tall, self._sums)

    @cached_property
    def _climb_kernel(self) -> Callable[..., None]:
        ndims = [values.ndim for values in self.tall.data]
        return jit_kept(make_climb(ndims), [repr(ndims)])

    def _climb(
        self, flat: np.ndarray, n_steps: int, n_noises: int, rng: np.random.Generator | None = None
    ) -> np.ndarray:
        """Move `flat` uphill by the gradients of batches; return the noise of some there.

        Batches are drawn by the chain's generator unless another is given.
        """
        rows, noises = np.empty(self.batch_size, np.int64), np.empty((n_noises, self._active.size))
        self._climb_kernel(
            rng or self.rng, flat, self._active, self._sum_density, n_steps, RATE, rows, noises
        )
        return noises

    def _climbed(self, point: PointType) -> Mapping[str, np.ndarray]:
        """Climb from points close to one, so that units that are alike there part; keep the best.

        A chain may climb to a poor mode, and would not leave it.
        """
        starts = [self._jittered(point) for _ in range(STARTS)]
        for flat in starts:
            self._climb(flat, CLIMB, 0)
        best, flat = max(
            ((self._log_density(flat), flat) for flat in starts), key=lambda found: found[0]
        )
        for _ in range(MOST_CLIMBS):
            self._climb(flat, CLIMB, 0)
            reached = self._log_density(flat)
            if not reached - best > self._active.size:
                break
            best = reached
        return self.tall.layout.unflatten(flat)

    def _jittered(self, point: PointType) -> np.ndarray:
        """Return a flat point close to one, or itself where the others are impossible."""
        flat = self.tall.layout.flatten(point)
        moved = flat.copy()
        moved[self._active] += JITTER * self.rng.standard_normal(self._active.size)
        return moved if np.isfinite(self._log_density(moved)) else flat

    def _prior_curvature(self, flat: np.ndarray) -> np.ndarray:
        """Diagonal of the prior's curvature, exact where that is diagonal (Hutchinson's probes)."""
        base, _, constants = self._sums
        rng, here = np.random.default_rng(0), base(flat, constants)
        found = np.zeros(self._active.size)
        for _ in range(PROBES):
            signs = rng.choice([-1.0, 1.0], flat.size)
            change = base(flat + PROBE * signs, constants) - here
            found -= (signs * change / PROBE)[self._active] / PROBES
        return np.maximum(abs(found), LEAST_CURVATURE)

    def _log_density(self, flat: np.ndarray) -> float:
        """Log-density from some rows, always the same ones."""
        rows = np.random.default_rng(0).integers(0, self.n_rows, min(TRIAL_ROWS, self.n_rows))
        logps = self.tall.compiled_row_logp(flat, *self.tall.batch(rows))
        total = float(self.tall.compiled_prior_logp(flat)) + self.n_rows * float(np.mean(logps))
        return -np.inf if np.isnan(total) else total

    def _n_steps(self) -> int:
        """Return the number of steps of this draw."""
        return self.steps_per_draw

    def _draw(self, flat: np.ndarray) -> dict[str, Any]:
        if not self.tune:
            self._check_ready()
        n_steps = self._n_steps()
        diverged, noise = self._transitions(flat, n_steps)
        if diverged:
            raise SamplingError(
                f"{type(self).__name__} diverges at draw {self.n_draws}: its steps have become "
                f"1000 times as long as the first one. {self._advice}"
            )
        return {
            "n_gradient": n_steps * self.batch_size * (1 + self.control_variate),
            "step_size": self._step_size(),
            "gradient_noise": noise,
        }

    def _transitions(self, flat: np.ndarray, n_steps: int) -> tuple[bool, float]:
        return self._kernel(
            self.rng,
            flat,
            self._active,
            self._density,
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
