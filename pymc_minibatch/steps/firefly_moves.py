"""Firefly Monte Carlo for models without effects: all variables move at once, given bright rows."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pymc.blocking import PointType
from pymc.exceptions import SamplingError

from pymc_minibatch.bounds import Bound
from pymc_minibatch.bounds.choose import settle
from pymc_minibatch.bounds.laplace import approximate
from pymc_minibatch.bounds.quadratic import QuadraticBound
from pymc_minibatch.bounds.target import JittedTarget, violation
from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.pointers import address_of, batch_of_one
from pymc_minibatch.kernels.firefly import (
    EXPLICIT,
    IMPLICIT,
    Tuning,
    Work,
    make_iterations,
    restore,
)
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.decide import nearer_start
from pymc_minibatch.reference.density import Density
from pymc_minibatch.steps.common import TallStep
from pymc_minibatch.updates import UPDATES
from pymc_minibatch.updates.update import BrightnessState, Update, Whitening, new_brightness
from pymc_minibatch.warn import warn
from pymc_minibatch.witness.densities import BoundedDensity, Brightness
from pymc_minibatch.witness.witness import Look

__all__ = ["FireflyMoves"]


class FireflyMoves(TallStep):
    """A step that moves all variables given bright rows, and bright rows given these.

    A step that extends it sets what is asked for, and calls `_set_up_plainly`.
    """

    bound: QuadraticBound | Bound
    fixed_q: float | None
    fraction: float
    kernel: str
    theta_updates: int
    tune_bounds: bool
    tuning: Tuning
    z_update: str
    _z_drawn_at: np.ndarray | None

    def _set_up_plainly(
        self, bound: Literal["auto"] | QuadraticBound | Bound, reference: Reference | None
    ) -> None:
        """Settle how all variables are moved at once."""
        self.target, self.bound, self.chosen = settle(
            self.tall,
            self._active,
            bound,
            self.tune_bounds,
            reference,
            self._update.uses_gradient,
        )
        self._whitening = Whitening(self._active, *self.chosen.approximation)
        self._warn_of_passes()

    def _warn_of_passes(self) -> None:
        others = {self.tall.layout.name_of(int(i)) for i in self.elsewhere}
        if others:
            warn(
                "PMB109",
                f"The likelihood depends on {sorted(others)}, which other steps move. That is "
                "exact, but every draw at which they have changed costs a pass over all rows.",
            )

    @property
    def _update(self) -> Update:
        return UPDATES[self.kernel]

    @property
    def elsewhere(self) -> np.ndarray:
        """Positions that the likelihood depends on and other steps move."""
        return np.setdiff1d(self.target.entering, self._active)

    @cached_property
    def _kernel(self) -> Callable[..., tuple[float, int]]:
        update, ndims = self._update, [values.ndim for values in self.target.data]
        loop = make_iterations(
            ndims,
            update.build,
            update.uses_gradient,
            update.target_signal,
            update.longest_step,
        )
        return jit_kept(loop, [self.kernel, repr(ndims)])

    @cached_property
    def _jitted(self) -> JittedTarget:
        return self.target.jitted(self.chosen.constants)

    @cached_property
    def _addresses(self) -> tuple[int, int]:
        """Where the compiled gaps and the base are."""
        data, constants = self.target.data, self.chosen.constants
        point, gradient = self.tall.layout.empty(), self.tall.layout.empty()
        return (
            address_of(self._jitted.gap, point, constants, batch_of_one(data), gradient),
            address_of(self._jitted.base, point, constants, gradient),
        )

    @cached_property
    def brightness(self) -> BrightnessState:
        """Which rows are bright."""
        return new_brightness(self.n_rows, self.target.pinned)

    def _reset_tuning(self) -> None:
        first_step = self._update.first_step(self._active.size)
        q = -1.0 if self.fixed_q is None else self.fixed_q
        self.tuning = Tuning(
            np.array([np.log(first_step)]), np.zeros(1), np.array([q]), np.zeros(1)
        )

    def _compile(self) -> None:
        flat = self.tall.start.copy()
        self.iterate(flat, 0, redraw_z=False)

    def _bright_rows(self) -> tuple[np.ndarray, ...]:
        """Return bright rows, their log odds, and where they were drawn; () before the start."""
        if self._z_drawn_at is None:
            return ()
        n_bright = self.brightness.n_bright[0]
        return (
            self.brightness.bright[:n_bright].copy(),
            self.brightness.log_odds[:n_bright].copy(),
            self._z_drawn_at.copy(),
            self.chosen.constants[0].copy(),
        )

    def _restore_bright_rows(self, stored: tuple[np.ndarray, ...]) -> None:
        if not stored:
            self._z_drawn_at = None
            if "brightness" in self.__dict__:
                restore(self.brightness, np.empty(0, np.int64), np.empty(0))
            return
        bright, log_odds, lit_at, reference = stored
        restore(self.brightness, bright, log_odds)
        self.chosen = self.chosen.moved(self.target, reference, self.elsewhere)
        touches_here = np.allclose(reference, self.chosen.constants[0], rtol=1e-6, atol=0.0)
        self._z_drawn_at = lit_at if touches_here else None

    def near_mode(self, point: PointType) -> Mapping[str, np.ndarray]:
        """Return a point near the mode if one is known, else the point."""
        flat = self.tall.layout.flatten(point)
        others = np.setdiff1d(np.arange(flat.size), self._active)
        center, _, inverse = self.chosen.approximation
        if not np.array_equal(flat[others], self.chosen.constants[0][others]):
            reference = self.chosen.constants[0].copy()
            reference[others] = flat[others]
            center, _, inverse = approximate(self.target, self.target.constants(reference))
        return nearer_start(self.tall, center, inverse, 1.0, self._active, point, self.rng)

    def _draw(self, flat: np.ndarray) -> dict[str, Any]:
        here = flat[self.target.entering]
        redraw_z = self._z_drawn_at is None or not np.array_equal(here, self._z_drawn_at)
        if redraw_z:
            self.chosen = self.chosen.moved(self.target, flat, self.elsewhere)
        accept, n_bright, counts = self.iterate(flat, self.steps_per_draw, redraw_z)
        if counts[2] >= 0:
            raise SamplingError(violation(self.tall, int(counts[2]), counts[3]))
        self._z_drawn_at = flat[self.target.entering]
        return self._stats(accept, n_bright, counts)

    def look(self) -> Look | None:
        """Return what compares moves with the model's own density."""
        constants, target = self.chosen.constants, self.target
        lit = None
        if self._z_drawn_at is not None:
            n_bright = self.brightness.n_bright[0]
            lit = Brightness(
                self.brightness.bright[:n_bright].copy(),
                self.brightness.log_odds[:n_bright].copy(),
                lambda point, rows: target.gaps(point, constants[0], rows),
                entering=target.entering,
                at=self._z_drawn_at,
            )
        return BoundedDensity(
            self.model_density,
            lambda point: target.base(point, constants)[0],
            lambda point, *batch: target.compiled_gap(point, constants[0], *batch),
            data=target.data,
            pinned=target.pinned,
            root=self._whitening.root,
            active=self._active,
            tolerance=self.chosen.tolerance,
            brightness=lit,
            others=(self.elsewhere, constants[0][self.elsewhere]),
        )

    def iterate(
        self, flat: np.ndarray, n_iterations: int, redraw_z: bool
    ) -> tuple[float, int, np.ndarray]:
        """Move a flat point in place by some iterations."""
        counts = np.array([0.0, 0.0, -1.0, 0.0, 0.0])
        tunes_q = self.fixed_q is None and self.z_update == "implicit"
        work = Work(
            n_iterations,
            self.theta_updates,
            IMPLICIT if self.z_update == "implicit" else EXPLICIT,
            int(np.ceil(self.fraction * self.n_rows)),
            self._update.z_cost if tunes_q else 0.0,
            redraw_z,
            self.tune,
        )
        accept, n_bright = self._kernel(
            self.rng,
            flat,
            Density(self.target.data, self.chosen.constants, *self._addresses),
            self.brightness,
            self._whitening,
            self.tuning,
            work,
            self.chosen.tolerance,
            counts,
        )
        return accept, n_bright, counts

    def _stats(self, accept: float, n_bright: int, counts: np.ndarray) -> dict[str, Any]:
        n_always = self.target.pinned.size
        read_with_base = n_always * int(counts[4])
        return {
            "acceptance_rate": accept / (self.steps_per_draw * self.theta_updates),
            "n_likelihood": int(counts[0]) + read_with_base,
            "n_gradient": int(counts[1]) + (read_with_base if self._update.uses_gradient else 0),
            "n_bright": n_bright / self.steps_per_draw + n_always,
            "q": float(self.tuning.q[0]) if self.z_update == "implicit" else self.fraction,
            "scale": float(np.exp(self.tuning.log_step[0])),
        }
