"""Where chains start that know no mode: uphill from their initial point, by batches (Adam)."""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.kernels.adam import make_climb
from pymc_minibatch.reference.density import Density
from pymc_minibatch.steps.conditional_prior import ConditionalPrior
from pymc_minibatch.tall import TallModel

__all__ = ["CLIMB", "Ascent"]

JITTER = 0.1
"""Standard deviation by which a chain that climbs starts away from its initial point, in units of
how far a parameter must move to matter to its prior or to a row, as is the rate below."""

STARTS, CLIMB, MOST_CLIMBS, RATE = 4, 3000, 20, 0.02
"""Starts, of which the best goes on, steps of a climb, most climbs, and how far a parameter may go
in a step of it. Climbs end when one gains less than 1 in log-density for each parameter."""

STRAIGHT, FASTER = 0.5, 10.0
"""After a climb that took a parameter so much of the way that all of its steps could, the next one
takes steps longer by the factor: the mode is far away in the units of a row."""

TRIAL_ROWS = 10_000
"""By which climbs are judged."""

FEW_BATCHES = 30
"""From so many the lengths are taken by which chains climb."""


class Ascent:
    """Climbs by gradients of batches.

    Parameters
    ----------
    tall
        The model.
    active
        Positions of what moves in a flat point.
    batch_size
        Rows of a batch.
    density
        The gradient of a batch, without a control variate.
    bounded
        Whether the density may be zero.
    prior
        The prior of what moves.
    """

    def __init__(
        self,
        tall: TallModel,
        active: np.ndarray,
        batch_size: int,
        density: Density,
        bounded: bool,
        prior: ConditionalPrior,
    ) -> None:
        self.tall, self.active, self.batch_size = tall, active, batch_size
        self.density, self.bounded, self.prior = density, bounded, prior

    @cached_property
    def _kernel(self) -> Callable[..., None]:
        ndims = [values.ndim for values in self.tall.data]
        return jit_kept(make_climb(ndims, self.bounded), [repr(ndims), *["bounded"] * self.bounded])

    def climb(
        self,
        rng: np.random.Generator,
        flat: np.ndarray,
        n_steps: int,
        n_noises: int = 0,
        faster: float = 1.0,
    ) -> np.ndarray:
        """Move `flat` uphill; return the noise of the gradients of some batches there."""
        rows, noises = np.empty(self.batch_size, np.int64), np.empty((n_noises, self.active.size))
        rates = faster * RATE * (self.lengths(flat) if n_steps else np.ones(self.active.size))
        self._kernel(rng, flat, self.active, self.density, n_steps, rates, rows, noises)
        return noises

    def climbed(self, rng: np.random.Generator, start: np.ndarray) -> np.ndarray:
        """Climb from points close to one, so that units that are alike there part; keep the best.

        A chain may climb to a poor mode, and would not leave it.
        """
        lengths = self.lengths(start)
        starts = [self._jittered(rng, start, lengths) for _ in range(STARTS)]
        for flat in starts:
            self.climb(rng, flat, CLIMB)
        best, flat = max(
            ((self._log_density(flat), flat) for flat in starts), key=lambda found: found[0]
        )
        faster = 1.0
        for _ in range(MOST_CLIMBS):
            before = flat[self.active].copy()
            reach = faster * RATE * CLIMB / 2 * self.lengths(flat)  # steps shorten to nothing
            self.climb(rng, flat, CLIMB, faster=faster)
            is_far = (np.abs(flat[self.active] - before) > STRAIGHT * reach).any()
            faster = faster * FASTER if is_far else 1.0
            reached = self._log_density(flat)
            if not reached >= best:
                flat[self.active] = before
            if not reached - best > self.active.size:
                break
            best = reached
        return flat

    def lengths(self, flat: np.ndarray) -> np.ndarray:
        """Return how far each parameter must move to matter to its prior or to a single row.

        They have the units of the parameters; where neither tells, 1.
        """
        noises = self.climb(np.random.default_rng(0), flat, 0, FEW_BATCHES)
        of_row = np.mean(noises**2, axis=0) * self.batch_size / self.tall.n_rows**2
        information = np.maximum(of_row, self.prior.curvature(flat))
        known = np.isfinite(information) & (information > 0)
        return np.where(known, information, 1.0) ** -0.5

    def _jittered(
        self, rng: np.random.Generator, flat: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """Return a point close to one, or a copy where the others are impossible."""
        moved = flat.copy()
        moved[self.active] += JITTER * lengths * rng.standard_normal(self.active.size)
        return moved if np.isfinite(self._log_density(moved)) else flat.copy()

    def _log_density(self, flat: np.ndarray) -> float:
        """Log-density from some rows, always the same ones."""
        n_rows = self.tall.n_rows
        rows = np.random.default_rng(0).integers(0, n_rows, min(TRIAL_ROWS, n_rows))
        logps = self.tall.compiled_row_logp(flat, *self.tall.batch(rows))
        total = float(self.tall.compiled_prior_logp(flat)) + n_rows * float(np.mean(logps))
        return -np.inf if np.isnan(total) else total
