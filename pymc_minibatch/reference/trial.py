"""How curved the density is about its mode, and how noisy a batch's gradient, from some rows."""

from typing import NamedTuple

import numpy as np

from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.gradient import GradientTarget
from pymc_minibatch.tall import TallModel

__all__ = ["Trial"]

ROWS = 10_000

ENTRIES, LEAST_ROWS = 10_000_000, 100
"""If there are thousands of parameters, fewer rows, so that gradients have so many entries."""

CURVED_POINTS, NOISY_POINTS = 16, 8
"""Points about the mode at which the largest curvature is looked for, and noise averaged."""

POWER_STEPS = 10
"""Iterations of the power method."""

STEP = 1e-4
"""Of the finite differences, in standard deviations of the approximation."""


class Trial(NamedTuple):
    """Some rows, the same in every run, and the parameters by which their gradients are taken.

    Attributes
    ----------
    tall : TallModel
    target : GradientTarget
        The gradients.
    active : ndarray of int64, shape (d,)
        Positions of the parameters in the flat point.
    """

    tall: TallModel
    target: GradientTarget
    active: np.ndarray

    def gradients(self, flat: np.ndarray) -> np.ndarray:
        """Gradients of the terms of the rows, shape (n, d)."""
        wanted = max(LEAST_ROWS, min(ROWS, ENTRIES // self.active.size))
        rows = self.tall.random_rows(np.random.default_rng(0), wanted)
        batch = self.tall.batch(rows)
        return self.target.row(flat, self.target.constants, batch)[:, self.active]

    def covariance(self, flat: np.ndarray) -> np.ndarray:
        """Covariance of the gradients of the rows, shape (d, d)."""
        return np.atleast_2d(np.cov(self.gradients(flat), rowvar=False))

    def noise(self, control: ControlVariate, batch_size: int) -> np.ndarray:
        """Covariance of the gradient from a batch, averaged over points about the mode."""
        rng, covariance = np.random.default_rng(0), np.linalg.inv(control.precision(self.active))
        points = np.tile(control.reference.center, (NOISY_POINTS, 1))
        points[:, self.active] += rng.multivariate_normal(
            np.zeros(len(covariance)), covariance, NOISY_POINTS, method="cholesky"
        )
        rows = np.mean([self.covariance(point) for point in points], axis=0)
        return self.tall.n_rows**2 / batch_size * rows

    def largest_curvature(self, control: ControlVariate, precision: np.ndarray) -> float:
        """Largest curvature at points about the mode, in units of a precision.

        Eigenvalues are found by the power method, with differences of gradients for products.
        """
        mode, target = control.reference.center, self.target
        lower, rng = np.linalg.cholesky(np.linalg.inv(precision)), np.random.default_rng(0)

        def gradient(z: np.ndarray) -> np.ndarray:
            flat = mode.copy()
            flat[self.active] += lower @ z
            base = target.base(flat, target.constants)[self.active]
            return lower.T @ (base + self.tall.n_rows * self.gradients(flat).mean(axis=0))

        largest = 0.0
        for z in rng.standard_normal((CURVED_POINTS, len(lower))):
            here, along = gradient(z), rng.standard_normal(len(lower))
            for _ in range(POWER_STEPS):
                along *= STEP / np.linalg.norm(along)
                along = (here - gradient(z + along)) / STEP
            largest = max(largest, float(np.linalg.norm(along)))
        return largest
