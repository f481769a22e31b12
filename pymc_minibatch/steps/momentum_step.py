"""What the steps with momentum share: where chains start, and what they learn there."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np
from pymc.blocking import PointType
from pymc.exceptions import SamplingError
from pymc.model import Model
from pymc.util import RandomGenerator
from pytensor.graph.basic import Variable

from pymc_minibatch.arguments import checked_share, checked_type
from pymc_minibatch.kernels.momentum import Momentum, MomentumState, make_momentum, momentum_state
from pymc_minibatch.messages import with_id
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.decide import decide_control_variate
from pymc_minibatch.reference.gradient import GradientTarget, make_gradient_sum
from pymc_minibatch.steps.ascent import CLIMB
from pymc_minibatch.steps.conditional_prior import FLATTEST
from pymc_minibatch.steps.gradient_step import BATCHES, GradientStep, largest_variance, scaled
from pymc_minibatch.steps.schedule import Constant, Schedule

__all__ = ["MomentumStep"]

DEFAULT_SHARE = 0.2
"""The default step lets the batch bring so much of the noise, in its noisiest direction."""

LONGEST = 0.25
"""The default step is no longer, in units of the inverse curvature."""

SHORTENINGS, SHORTER = 8, 0.3
"""How often a chain that diverges while it tunes starts again, and with how much shorter steps."""

SCALED_AT = {25 * 2**k for k in range(20)}
"""Draws before which a chain that tunes finds its scale anew."""

TINY = 1e-300

CURVED_ROWS, POWER_STEPS, PROBE = 1000, 10, 1e-4
"""Rows, iterations, and length of the differences by which the largest curvature is found."""

FULL = 100
"""Up to so many parameters the preconditioner is a full matrix unless the user wants another."""

BATCHES_PER_PARAMETER = 20
"""From so many batches the noise at the start is taken for a full matrix."""

RIDGE = 1e-9
"""Share of the curvature that is added, along directions of which nothing is known."""

PRECONDITIONERS = ("auto", "fisher", "diagonal", "identity")


class MomentumStep(GradientStep):
    """A gradient step with momentum, which finds its start, scale and step size automatically."""

    learns = ("tuned",)
    tuned: MomentumState
    bath: ClassVar[Callable[..., float]]
    """Friction and noise of a step; see :func:`.make_momentum`."""
    climbs = True
    default_steps = 20

    def __init__(
        self,
        vars: Variable | str | Sequence[Variable | str] | None = None,
        *,
        data: Any = None,
        step_size: float | None = None,
        friction: float = 0.1,
        schedule: Schedule | None = None,
        preconditioner: Literal["auto", "fisher", "diagonal", "identity"] = "auto",
        reference: Reference | None = None,
        control_variate: Literal["auto", 0, 1, 2] = "auto",
        batch_size: int | None = None,
        steps_per_draw: int | Literal["auto"] = "auto",
        model: Model | None = None,
        rng: RandomGenerator = None,
    ) -> None:
        checked_type("schedule", schedule, Schedule, "Use pmb.Polynomial() or pmb.Cyclical().")
        if step_size is not None and not (np.isfinite(step_size) and step_size > 0):
            raise ValueError(f"step_size must be positive and finite; got {step_size!r}.")
        if preconditioner not in PRECONDITIONERS:
            raise ValueError(
                f"preconditioner must be one of {PRECONDITIONERS}; got {preconditioner!r}."
            )
        self.step_size, self.friction = step_size, checked_share("friction", friction, 1.0)
        self.schedule, self.preconditioner = schedule or Constant(), preconditioner
        super().__init__(
            vars=vars,
            data=data,
            reference=reference,
            control_variate=control_variate,
            batch_size=batch_size,
            steps_per_draw=steps_per_draw,
            model=model,
            rng=rng,
        )

    @property
    def _make_kernel(self) -> Callable[..., Callable[..., tuple[bool, float]]]:
        return partial(make_momentum, bath=self.bath)

    def _prepare(self) -> None:
        if self.preconditioner == "auto":
            self.preconditioner = "fisher" if self._active.size <= FULL else "diagonal"
        self.options = (self.step_size, self.friction, self.schedule, self.preconditioner)

    def _decide_control(
        self, reference: Reference | None, control_variate: Literal["auto", 0, 1, 2]
    ) -> ControlVariate | None:
        """Search no reference unless it is asked for."""
        if reference is None and control_variate == "auto":
            control_variate = 0
        return decide_control_variate(self.tall, reference, control_variate, 1.0)

    @cached_property
    def target(self) -> GradientTarget:
        """The density that kernels sample, as functions of a point and a batch."""
        return make_gradient_sum(self.tall, self.control)

    @cached_property
    def _sums(self) -> GradientTarget:
        return self.target

    def _reset_tuning(self) -> None:
        dim = self._active.size
        self.tuned = momentum_state(dim, dim if self.preconditioner == "fisher" else 1)

    def _changing(self) -> dict[str, Any]:
        """Copy the momentum too, which changes after tuning as well."""
        return {"tuned": MomentumState(*(values.copy() for values in self.tuned))}

    # --- The start ----------------------------------------------------------------------------

    def near_mode(self, point: PointType) -> Mapping[str, np.ndarray]:
        """Start a chain, and find the scale there."""
        flat = self.tall.layout.flatten(super().near_mode(point))
        self._find_scale(flat)
        return self.tall.layout.unflatten(flat)

    def _find_scale(self, flat: np.ndarray) -> None:
        """Find the scale and the step size where the chain is; start with fresh momentum."""
        dim, state = self._active.size, self.tuned
        wanted = max(BATCHES, BATCHES_PER_PARAMETER * dim if self.preconditioner == "fisher" else 0)
        noises = self.ascent.climb(self.rng, flat, 0, wanted)
        state.factor[:] = state.scale[:] = self._scale(flat, noises)
        if self.prior.others.size:
            state.prior[:] = self.prior.curvature_given_others(flat)
        noises = scaled(noises, state.factor)
        state.noise[:] = np.mean(noises**2, axis=0)
        state.size[:] = self.step_size or state.shorter[0] * self._default_size(flat, noises)
        state.momentum[:] = self.rng.standard_normal(dim)
        state.thermostat[:] = self.friction / math.sqrt(state.size[0])
        state.seen[:] = 0

    def _scale(self, flat: np.ndarray, noises: np.ndarray) -> np.ndarray:
        """Return L, with M = LLᵀ the inverse curvature; one column if that is diagonal."""
        dim = self._active.size
        if self.preconditioner == "identity":
            return np.ones((dim, 1))
        if self.control is not None:
            curvature = self.control.precision(self._active)
        else:  # the noise of a batch has N/n times the Fisher information of the rows
            ratio = self.batch_size / self.n_rows
            prior = self.prior.curvature(flat)
            if self.preconditioner == "diagonal":
                diagonal = ratio * np.mean(noises**2, axis=0) + prior
                return np.where(diagonal > 0, diagonal, 1.0)[:, None] ** -0.5
            curvature = ratio * noises.T @ noises / len(noises) + np.diag(prior)
        if self.preconditioner == "diagonal":
            return np.diag(curvature)[:, None] ** -0.5
        return _root_of_inverse(curvature)

    def _fit_to_others(self, flat: np.ndarray) -> None:
        """Take the scale of the posterior with the prior as it is now; the momentum stays."""
        state = self.tuned
        if not state.size[0] or self.preconditioner == "identity":
            return
        change, before = self.prior.curvature_given_others(flat) - state.prior, state.factor.copy()
        if before.shape[1] == 1:
            flattest = FLATTEST * state.scale[:, 0] ** -2
            curvature = np.maximum(state.scale[:, 0] ** -2 + change, flattest)
            state.factor[:, 0] = curvature**-0.5
            state.noise[:] *= (state.factor / before)[:, 0] ** 2
        else:
            along = np.eye(change.size) + state.scale.T @ (change[:, None] * state.scale)
            values, vectors = np.linalg.eigh(along)
            root = state.scale @ vectors / np.sqrt(np.maximum(values, FLATTEST))
            state.factor[:] = np.linalg.cholesky(root @ root.T)
            turn = np.linalg.solve(before, state.factor)
            state.noise[:] = np.einsum("ij,i,ij->j", turn, state.noise, turn)
        if self.step_size is None:
            state.size[:] = min(state.size[0], self._longest(state.noise.max()))

    def _default_size(self, flat: np.ndarray, noises: np.ndarray) -> float:
        """Return the ε at which the noisiest direction has the default share of batch noise.

        If rows are fitted without error there is no noise, and the curvature is the limit.
        """
        stable = LONGEST / max(self._largest_curvature(flat), 1.0)
        return min(stable, self._longest(largest_variance(noises)))

    def _largest_curvature(self, flat: np.ndarray) -> float:
        """Largest curvature, where M is the identity, by the power method on some rows."""
        rng, factor = np.random.default_rng(0), self.tuned.factor
        lower = factor if factor.shape[1] > 1 else factor[:, 0]
        batch = self.tall.batch(rng.integers(0, self.n_rows, CURVED_ROWS))
        base, row, constants = self.target

        def gradient(z: np.ndarray) -> np.ndarray:
            moved = flat.copy()
            moved[self._active] += lower @ z if lower.ndim == 2 else lower * z
            total = row(moved, constants, batch) * (self.n_rows / CURVED_ROWS)
            total = (total + base(moved, constants))[self._active]
            return lower.T @ total if lower.ndim == 2 else lower * total

        along = rng.standard_normal(self._active.size)
        here = gradient(0 * along)
        for _ in range(POWER_STEPS):
            along *= PROBE / (np.linalg.norm(along) or 1.0)
            along = (here - gradient(along)) / PROBE
        return float(np.linalg.norm(along))

    # --- Draws --------------------------------------------------------------------------------

    def _draw(self, flat: np.ndarray) -> dict[str, Any]:
        """Find it again while the chain tunes, ever more rarely; shorten steps that are too hot."""
        if self.tune and self.n_draws in SCALED_AT:
            self._find_scale(flat)
        stats = super()._draw(flat)
        if self.tune and self.step_size is None:
            self.tuned.size[:] = min(self.tuned.size[0], self._longest(self.tuned.noise.max()))
        return stats

    def make_transitions(self, flat: np.ndarray, n_steps: int) -> tuple[bool, float]:
        """If a chain diverges while it tunes, climb from where it was, and take shorter steps.

        Away from a mode the density can bend far more sharply than where the scale was found.
        """
        kept = flat.copy()
        for _ in range(SHORTENINGS if self.tune and self.step_size is None else 0):
            diverged, share = super().make_transitions(flat, n_steps)
            if not diverged:
                return False, share
            flat[:] = kept
            self.ascent.climb(self.rng, flat, CLIMB)
            self.tuned.shorter[:] *= SHORTER
            self._find_scale(flat)
        return super().make_transitions(flat, n_steps)

    def _longest(self, noise: float) -> float:
        """Return the ε at which a direction with so much noise has the default share of it."""
        added, farther = 1 - (1 - self.friction) ** 2, (1 - self.friction / 2) ** 2
        return min(LONGEST, DEFAULT_SHARE * added / max(farther * noise, TINY))

    def _settings(self) -> Momentum:
        sizes, noisy = self.schedule.of_draw(self.n_draws, self.steps_per_draw)
        return Momentum(sizes, noisy, self.friction, self.batch_size)

    def _step_size(self) -> float:
        return float(self.tuned.size[0] * self._settings().sizes[-1])

    def _check_ready(self) -> None:
        if not self.tuned.size[0]:
            raise SamplingError(
                with_id(
                    "PMB309",
                    f"{type(self).__name__} finds its start and its scale while it tunes: pass "
                    "tune= to pm.sample.",
                )
            )

    @property
    def _advice(self) -> str:
        return (
            f"Its step_size of {self._step_size():.3g} is too long: make it smaller, or leave it "
            "out for the default; or start nearer to the mode: pass initvals to pm.sample."
        )


def _root_of_inverse(curvature: np.ndarray) -> np.ndarray:
    """Return L with LLᵀ the inverse, of a matrix that may be singular, whatever the units."""
    diagonal = np.diag(curvature)
    scale = np.where(diagonal > 0, diagonal, 1.0) ** -0.5
    correlation = curvature * np.outer(scale, scale) + np.diag(np.where(diagonal > 0, RIDGE, 1.0))
    return np.asarray(scale[:, None] * np.linalg.cholesky(np.linalg.inv(correlation)))
