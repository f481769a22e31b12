"""Axes along which the posterior has a heavier tail than its Gaussian approximation.

The tail of a coefficient that the data separate is that of its prior, and a Cauchy prior's reaches
hundreds of standard deviations. Such an axis needs a prior that falls less than its own curvature
says, which is seen without a row; all rows are read for axes of this kind only.
"""

import math

import numpy as np

from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.tall import TallModel

__all__ = ["heavy_axes"]

DISTANCES = 4.0, 8.0
"""Points of comparison, in standard deviations of the approximation."""

TELLS = 0.5
"""A prior that changes by less, in nats, from the mode to the farther of these has no say."""

HEAVY = 0.6
"""An axis is heavy if the log-density falls by less than this share of what a Gaussian's does."""

MOST_AXES = 16


def heavy_axes(tall: TallModel, control: ControlVariate) -> np.ndarray:
    """Return the positions of parameters with a heavy tail on one side, at most 16.

    Parameters
    ----------
    tall
        The model.
    control
        An expansion about its mode.
    """
    mode, temperature = control.gaussian.center, control.temperature
    covariance = np.linalg.inv(control.gaussian.precision_at(temperature))
    sds = np.sqrt(np.diagonal(covariance))
    far = DISTANCES[-1]
    at_mode, prior = float(tall.compiled_prior_logp(mode)), tall.compiled_prior_logp
    candidates = []
    for i in map(int, np.flatnonzero(tall.layout.is_continuous)):
        for side in (-1.0, 1.0):
            near, there = (_moved(mode, i, side * d * sds[i]) for d in (1.0, far))
            fall, fall_near = (at_mode - float(prior(p)) for p in (there, near))
            if abs(fall) > TELLS and fall < HEAVY * max(fall_near, 0.0) * far**2:
                candidates.append((i, side))
    if not candidates or len(candidates) > 2 * MOST_AXES:
        return np.empty(0, dtype=np.int64)
    peak = _log_density(tall, temperature, mode)
    # With the others held, an axis is as narrow as the precision says.
    alone = 1.0 / np.sqrt(np.diagonal(control.gaussian.precision_at(temperature)))
    heavy = {
        i
        for i, side in candidates
        if all(
            peak - _log_density(tall, temperature, _moved(mode, i, side * d * alone[i]))
            < HEAVY * d**2 / 2
            for d in DISTANCES
        )
    }
    return np.array(sorted(heavy), dtype=np.int64)


def _moved(point: np.ndarray, i: int, step: float) -> np.ndarray:
    moved = point.copy()
    moved[i] += step
    return moved


def _log_density(tall: TallModel, temperature: float, flat: np.ndarray) -> float:
    point = tall.layout.unflatten(flat)
    value = (1 - 1 / temperature) * tall.prior_logp(point) + tall.trial_logp(point) / temperature
    return value if np.isfinite(value) else -math.inf
