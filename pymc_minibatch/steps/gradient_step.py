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
from pytensor.graph.traversal import ancestors

from pymc_minibatch.arguments import checked_count
from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.kernels.adam import make_climb
from pymc_minibatch.messages import with_id
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.decide import (
    check_control_variate,
    decide_control_variate,
    start_near_mode,
)
from pymc_minibatch.reference.density import Density, make_density
from pymc_minibatch.reference.derivatives import Derivatives
from pymc_minibatch.reference.exchange import interchangeable
from pymc_minibatch.reference.gradient import (
    GradientTarget,
    bounded_base,
    make_gradient_sum,
    make_gradient_target,
)
from pymc_minibatch.reference.trial import Trial
from pymc_minibatch.steps.common import TallStep, TallStepState
from pymc_minibatch.steps.display import expansion
from pymc_minibatch.tall.support import may_be_impossible
from pymc_minibatch.warn import warn
from pymc_minibatch.witness.densities import FullGradient
from pymc_minibatch.witness.witness import Look

__all__ = [
    "BATCHES",
    "CLIMB",
    "FLATTEST",
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
"""Standard deviation by which a chain that climbs starts away from its initial point, in units of
how far a parameter must move to matter to its prior or to a row, as is the rate below."""

STARTS, CLIMB, MOST_CLIMBS, RATE = 4, 3000, 10, 0.02
"""Starts, of which the best goes on, steps of a climb, most climbs, and how far a parameter may go
in a step of it. Climbs end when one gains less than 1 in log-density for each parameter."""

TRIAL_ROWS = 10_000
"""By which climbs are judged."""

BATCHES = 300
"""From so many batches the noise at a point is taken."""

FEW_BATCHES = 30
"""From so many the lengths are taken by which chains climb."""

FLATTEST = 1e-3
"""No direction is taken for flatter than this share of what it is at the reference."""

PROBES = 10
"""Random signs by which the prior's curvature is taken where parameters are many."""

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
            self.climb(flat, 0, 0)

    def near_mode(self, point: PointType) -> Mapping[str, np.ndarray]:
        """Return a point near the mode if one is known, else the point."""
        if self.control is None:
            return self.climbed(point) if self.climbs else point
        return start_near_mode(self.tall, self.control, self._active, point, self.rng)

    @cached_property
    def _sums(self) -> GradientTarget:
        """The gradient of a batch without a control variate, by which chains climb."""
        return make_gradient_sum(self.tall, None)

    @cached_property
    def _sum_density(self) -> Density:
        return self._inside(self._sums)

    @cached_property
    def _climb_kernel(self) -> Callable[..., None]:
        ndims = [values.ndim for values in self.tall.data]
        keys = [repr(ndims), *["bounded"] * self._bounded]
        return jit_kept(make_climb(ndims, self._bounded), keys)

    def climb(
        self, flat: np.ndarray, n_steps: int, n_noises: int, rng: np.random.Generator | None = None
    ) -> np.ndarray:
        """Move `flat` uphill by the gradients of batches; return the noise of some there.

        Batches are drawn by the chain's generator unless another is given.
        """
        rows, noises = np.empty(self.batch_size, np.int64), np.empty((n_noises, self._active.size))
        rates = RATE * (self.lengths(flat) if n_steps else np.ones(self._active.size))
        self._climb_kernel(
            rng or self.rng, flat, self._active, self._sum_density, n_steps, rates, rows, noises
        )
        return noises

    def climbed(self, point: PointType) -> Mapping[str, np.ndarray]:
        """Climb from points close to one, so that units that are alike there part; keep the best.

        A chain may climb to a poor mode, and would not leave it.
        """
        lengths = self.lengths(self.tall.layout.flatten(point))
        starts = [self._jittered(point, lengths) for _ in range(STARTS)]
        for flat in starts:
            self.climb(flat, CLIMB, 0)
        best, flat = max(
            ((self._log_density(flat), flat) for flat in starts), key=lambda found: found[0]
        )
        for _ in range(MOST_CLIMBS):
            self.climb(flat, CLIMB, 0)
            reached = self._log_density(flat)
            if not reached - best > self._active.size:
                break
            best = reached
        return self.tall.layout.unflatten(flat)

    def _jittered(self, point: PointType, lengths: np.ndarray) -> np.ndarray:
        """Return a flat point close to one, or itself where the others are impossible."""
        flat = self.tall.layout.flatten(point)
        moved = flat.copy()
        moved[self._active] += JITTER * lengths * self.rng.standard_normal(self._active.size)
        return moved if np.isfinite(self._log_density(moved)) else flat

    def _prior_curvature(self, flat: np.ndarray) -> np.ndarray:
        """Diagonal of the prior's curvature, exact unless parameters are many (Hutchinson)."""
        dim = flat.size
        with np.errstate(all="ignore"):
            if dim <= MOST_PARAMETERS:
                found = np.diag(self._prior_derivatives.hessian(flat))
            else:
                signs = np.random.default_rng(0).choice([-1.0, 1.0], (PROBES, dim))
                _, products = self._prior_derivatives.products_at(flat, signs)()
                found = np.mean(signs * products, axis=0)
        return np.abs(np.nan_to_num(found[self._active], posinf=0.0, neginf=0.0))

    @cached_property
    def _prior_derivatives(self) -> Derivatives:
        return Derivatives(self.tall.prior_graph, self.tall.flat)

    @cached_property
    def _others(self) -> np.ndarray:
        """Positions of what other steps move, if the prior of some parameter here depends on it."""
        own, model = set(self.vars), self.tall.model
        joined = False
        for rv in model.free_RVs:
            values = _values_in(model, [rv, *rv.owner.inputs])
            joined |= bool(values & own) and bool(values - own)
        for potential in model.potentials:
            values = _values_in(model, [potential])
            joined |= bool(values & own) and bool(values - own)
        everything = np.arange(self.tall.layout.size)
        return np.setdiff1d(everything, self._active) if joined else everything[:0]

    def _others_moved(self, flat: np.ndarray) -> bool:
        """Whether the prior of some parameter here is another one than at the draw before."""
        if not self._others.size:
            return False
        others, before = flat[self._others], self._seen_others
        self._seen_others = others.copy()
        return before is None or not np.array_equal(others, before)

    _seen_others: np.ndarray | None = None

    def _with_others(self, flat: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Return a point with the other variables as they are, and those of this step elsewhere.

        What moves are made by must not depend on where this step's own variables are.
        """
        point = own.copy()
        point[self._others] = flat[self._others]
        return point

    def _precision_given_others(self, flat: np.ndarray, control: ControlVariate) -> np.ndarray:
        """Precision of the Gaussian approximation with the prior as it is at a point.

        If that is not convex there it counts for no less than a share of what it was.
        """
        block, reference = np.ix_(self._active, self._active), control.gaussian
        precision = control.precision(self._active)
        now = self._prior_derivatives.hessian(self._with_others(flat, reference.flat))[block]
        change = reference.prior_hessian[block] - np.nan_to_num(now)
        lower = np.linalg.cholesky(precision)
        inverse = np.linalg.inv(lower)
        values, vectors = np.linalg.eigh(inverse @ (precision + change) @ inverse.T)
        root = lower @ vectors * np.sqrt(np.maximum(values, FLATTEST))
        return np.asarray(root @ root.T)

    def lengths(self, flat: np.ndarray) -> np.ndarray:
        """Return how far each parameter must move to matter to its prior or to a single row.

        They have the units of the parameters; where neither tells, 1.
        """
        noises = self.climb(flat, 0, FEW_BATCHES, np.random.default_rng(0))
        of_row = np.mean(noises**2, axis=0) * self.batch_size / self.n_rows**2
        information = np.maximum(of_row, self._prior_curvature(flat))
        known = np.isfinite(information) & (information > 0)
        return np.where(known, information, 1.0) ** -0.5

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
        if self._others_moved(flat):
            self._fit_to_others(flat)
        n_steps = self._n_steps()
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


def _values_in(model: Model, variables: Sequence[Variable]) -> set[Variable]:
    """Return the value variables of the free variables on which some variables depend."""
    found = set(ancestors(variables))
    return {model.rvs_to_values[rv] for rv in model.free_RVs if rv in found}
