"""Climb a density of few variables whose evaluations are dear.

Steps are quasi-Newton's (BFGS) within a box, and slopes are differences, one evaluation for each
variable. The curvature is kept from one climb to the next: densities of turns of a search are
alike, so that most climbs need one slope. The last step, which promises next to nothing, is taken
without a look at what it gives.

Reference
---------
Nocedal and Wright (2006), Numerical optimization, sections 6.1 and 18.3 (damped updates).
"""

import math
from collections.abc import Callable

import numpy as np

__all__ = ["Climb"]

GAIN = 1e-3
"""Steps end when the next promises less, in nats: 0.045 standard deviations, most of which it
removes."""

SHARE = 0.1
"""They also end when one promised less than this share of what had been gained, where the density
is about to change."""

MOST_STEPS, HALVINGS = 30, 12

DIFFERENCE, SHARE_OF_SD = 1e-4, 0.05
"""Differences of slopes: so long at most, and a share of the width of the density."""

WIDTH = 0.01
"""Those by which curvature is seen first."""

LEAST_CURVATURE = 0.25
"""A density counts as no wider than a standard deviation of 2."""

LEAST_EIGENVALUE = 1e-6
"""Of the curvature with unit diagonal. If rounding leaves less, that of pairs is forgotten."""

DAMPED = 0.2
"""An update leaves at least this share of the curvature along a step."""

ENOUGH = 1e-4
"""A step has to give this share of what its slope promises."""


class Climb:
    """Climbs densities that are alike, one after the other.

    Attributes
    ----------
    curvature : ndarray or None, shape (H, H)
        Minus the second derivatives, about; None before the first climb.
    """

    def __init__(self) -> None:
        self.curvature: np.ndarray | None = None

    @property
    def widths(self) -> np.ndarray | None:
        """About the standard deviation of each variable given the others, if it is known."""
        return None if self.curvature is None else 1.0 / np.sqrt(np.diagonal(self.curvature))

    def correct(self, widths: np.ndarray) -> None:
        """Take other widths, which were looked at, and keep what the curvature has of pairs."""
        if self.curvature is None:
            self.curvature = np.eye(widths.size)
        scale = 1.0 / (widths * np.sqrt(np.diagonal(self.curvature)))
        self.curvature *= np.outer(scale, scale)

    def __call__(
        self,
        log_density: Callable[[np.ndarray], float],
        start: np.ndarray,
        longest: float,
        is_last: bool = False,
    ) -> np.ndarray:
        """Return about where a density is highest, each variable not farther than `longest`.

        Parameters
        ----------
        log_density
            ``x -> float``, minus infinity where it is impossible.
        start
            Where to begin.
        longest
            How far each variable may move.
        is_last
            Whether no other climb follows; otherwise it may end early.
        """
        x, value = start.copy(), log_density(start)
        if not math.isfinite(value):
            return x
        low, high = start - longest, start + longest
        slope, gained = self._first_slope(log_density, x, value), 0.0
        for _ in range(MOST_STEPS):
            step, promised = self._step(slope, low - x, high - x)
            if promised < GAIN:
                return x + step
            moved, then = _backtracked(log_density, x, value, step, float(slope @ step))
            if then <= value:
                return x
            is_enough = not is_last and promised < SHARE * gained
            gained += then - value
            if is_enough:
                return moved
            before, (step, x, value) = slope, (moved - x, moved, then)
            slope = self._slope(log_density, x, value)
            self._update(step, before - slope)
        return x

    def _first_slope(
        self, log_density: Callable[[np.ndarray], float], x: np.ndarray, value: float
    ) -> np.ndarray:
        """Return the slope where a climb begins, and find the curvature where there is none."""
        if self.curvature is None:
            self.curvature = np.eye(x.size)
            for i in range(x.size):
                ends = [log_density(_moved(x, i, step)) for step in (WIDTH, -WIDTH)]
                seen = (2.0 * value - sum(ends)) / WIDTH**2
                self.curvature[i, i] = max(seen, LEAST_CURVATURE) if math.isfinite(seen) else 1.0
        return self._slope(log_density, x, value)

    def _slope(
        self, log_density: Callable[[np.ndarray], float], x: np.ndarray, value: float
    ) -> np.ndarray:
        """Return the slope by differences, less what curvature adds to them."""
        assert self.curvature is not None
        slope = np.zeros(x.size)
        for i, curvature in enumerate(np.diagonal(self.curvature)):
            length = min(DIFFERENCE, SHARE_OF_SD / math.sqrt(curvature))
            for by in (length, -length):
                difference = (log_density(_moved(x, i, by)) - value) / by
                if math.isfinite(difference):
                    slope[i] = difference + 0.5 * curvature * by
                    break
        return slope

    def _step(
        self, slope: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Return the step to the top of the parabola within a box, and what it promises.

        Variables that would leave the box stay on its faces, and the others go on from there.
        """
        assert self.curvature is not None
        step, free = np.zeros(slope.size), np.ones(slope.size, dtype=np.bool_)
        while free.any():
            rest = slope[free] - self.curvature[np.ix_(free, ~free)] @ step[~free]
            step[free] = np.linalg.solve(self.curvature[np.ix_(free, free)], rest)
            outside = free & ((step < low) | (step > high))
            if not outside.any():
                break
            step = np.where(outside, np.clip(step, low, high), step)
            free &= ~outside
        promised = float(slope @ step - 0.5 * step @ self.curvature @ step)
        if promised > 0.0:
            return step, promised
        step = np.clip(slope / np.diagonal(self.curvature), low, high)
        curved = float(step @ self.curvature @ step)
        step *= min(1.0, float(slope @ step) / curved) if curved > 0.0 else 0.0
        return step, float(slope @ step - 0.5 * step @ self.curvature @ step)

    def _update(self, step: np.ndarray, change: np.ndarray) -> None:
        """Change the curvature by what a step has shown, so that it stays positive definite."""
        assert self.curvature is not None
        curved = self.curvature @ step
        along, seen = float(step @ curved), float(step @ change)
        if not (along > 0.0 and np.isfinite(change).all()):
            return
        if seen < DAMPED * along:
            share = (1.0 - DAMPED) * along / (along - seen)
            change = share * change + (1.0 - share) * curved
            seen = float(step @ change)
        self.curvature += np.outer(change, change) / seen - np.outer(curved, curved) / along
        diagonal = np.diagonal(self.curvature)
        self.curvature += np.diag(np.maximum(LEAST_CURVATURE - diagonal, 0.0))
        scale = np.sqrt(np.diagonal(self.curvature))
        if not np.linalg.eigvalsh(self.curvature / np.outer(scale, scale)).min() > LEAST_EIGENVALUE:
            self.curvature = np.diag(scale**2)


def _moved(x: np.ndarray, i: int, by: float) -> np.ndarray:
    moved = x.copy()
    moved[i] += by
    return moved


def _backtracked(
    log_density: Callable[[np.ndarray], float],
    x: np.ndarray,
    value: float,
    step: np.ndarray,
    promised: float,
) -> tuple[np.ndarray, float]:
    """Shorten a step until the density rises; promised is what its slope says.

    If a step leads to where there is no density, none is taken: a Laplace marginal has no top
    before the place at which the precision of the field becomes singular, only a pole there.
    """
    share = 1.0
    for _ in range(HALVINGS):
        moved = x + share * step
        then = log_density(moved)
        if not math.isfinite(then):
            break
        if then > value + ENOUGH * share * promised:
            return moved, then
        share *= 0.5
    return x, value
