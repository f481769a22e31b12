r"""Rows whose third derivative is proportional to exp(s η), so that it is largest at an end.

That is Poisson with log link, Exponential, and Gamma and Weibull with log link and known shape.
"""

from collections.abc import Sequence

import numpy as np

from pymc_minibatch.bounds.families.family import (
    STEPS,
    TOLERANCE,
    Family,
    OfSteps,
    Taylor,
    Third,
    Trial,
)

__all__ = ["EXPONENTIAL"]

LEAST_RATE = 1e-3
"""With a smaller |s| third derivatives are constant, up to rounding, for all that they tell."""


def third(trial: Trial) -> tuple[Third, np.ndarray] | None:
    """Find the rate s, which all rows have in common."""
    derivatives = trial.derivatives
    at_mode = derivatives(trial.eta, *trial.batch)[1]
    rates, fits = [], np.ones(trial.eta.size, dtype=bool)
    for step in STEPS:
        away = derivatives(trial.eta + step, *trial.batch)[1]
        fits &= (away == 0) == (at_mode == 0)
        rates.append(np.log(away / at_mode) / step)
    told = (at_mode != 0) & np.isfinite(rates).all(axis=0)
    if not told.any():
        return None
    rate = float(np.median(np.array(rates)[:, told]))
    if abs(rate) < LEAST_RATE:
        return None
    misses = np.abs(np.array(rates) - rate).max(axis=0)
    fits &= (at_mode == 0) | (misses <= TOLERANCE * abs(rate))

    def bound(lowest: np.ndarray, highest: np.ndarray, batch: Sequence[np.ndarray]) -> np.ndarray:
        ends = [np.abs(derivatives(end, *batch)[1]) for end in (lowest, highest)]
        return np.maximum(*ends)

    def remainder(eta: np.ndarray, taylor: Taylor, batch: Sequence[np.ndarray]) -> OfSteps:
        def of_steps(t: np.ndarray) -> np.ndarray:
            u = rate * t
            return taylor[2] / rate**2 * (np.expm1(u) - u - u**2 / 2)

        return of_steps

    return Third(bound, remainder), fits


EXPONENTIAL = Family(
    name="exponential",
    rows=("Poisson (log link)", "Exponential, Gamma and Weibull (log link) of known shape"),
    third=third,
)
