"""Rows whose gradients have a known covariance, so that stationary distributions are known.

Rows y ~ N(A mu, I) whose sample covariance is I: the gradients of the rows have covariance AᵀA at
every mu, which is the Fisher information.
"""

import numpy as np
import pymc as pm

from pymc_minibatch.steps.schedule import Constant

N_ROWS, BATCH = 500, 100
FULL = np.array([[1.0, 0.6, 0.0], [0.0, 1.0, -0.5], [0.0, 0.0, 2.0]])
Z_MAX = 5.0
"""Nine entries of a mean and a covariance, of draws of which nearly all are independent."""


def normal_rows(matrix, prior_sd=None):
    """Return a model, and mean and precision of its posterior."""
    y = np.random.default_rng(3).normal(size=(N_ROWS, 3))
    y -= y.mean(axis=0)
    y = y @ np.linalg.inv(np.linalg.cholesky(y.T @ y / N_ROWS)).T
    y += matrix @ [1.0, -2.0, 0.5]
    with pm.Model() as model:
        mu = pm.Flat("mu", shape=3) if prior_sd is None else pm.Normal("mu", 0, prior_sd, shape=3)
        pm.Normal("y", matrix @ mu, 1.0, observed=y)
    precision = N_ROWS * matrix.T @ matrix + (0 if prior_sd is None else np.eye(3) / prior_sd**2)
    return model, np.linalg.solve(precision, matrix.T @ y.sum(axis=0)), precision


def draw(step, n_tune, n_draws, dim=3):
    """Run a chain by hand; return an array (draw, parameter) and the last stats."""
    point = step.tall.model.initial_point()
    for _ in range(n_tune):
        point, _ = step.step(point)
    step.stop_tuning()
    draws = np.empty((n_draws, dim))
    for i in range(n_draws):
        point, [stats] = step.step(point)
        draws[i] = point["mu"]
    return draws, stats


def assert_moments(draws, mean, covariance):
    """Compare in coordinates in which the expected covariance is the identity."""
    z = np.linalg.solve(np.linalg.cholesky(covariance), (draws - mean).T).T
    assert (abs(z.mean(axis=0)) < Z_MAX / np.sqrt(len(z))).all()
    error = abs(np.cov(z.T) - np.eye(3))
    assert (error < Z_MAX * np.sqrt((1 + np.eye(3)) / len(z))).all(), error


class Noiseless(Constant):
    """Steps that only climb."""

    def of_draw(self, draw, steps_per_draw):
        sizes, noisy = super().of_draw(draw, steps_per_draw)
        return sizes, ~noisy
