"""What samplers without proposals of their own rest on: a density in parts, or its gradient.

Firefly Monte Carlo samples prior and bounds times L̃ₙ = Lₙ/Bₙ − 1 of the rows that are bright. With
z summed out that must be the model's density; no gap log Lₙ − log Bₙ may be negative; and the odds
that are kept of bright rows must be those of the point where the chain is. Gradient steps follow
the prior's gradient plus those of the rows, or of their remainders, which must be the model's.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from pymc_minibatch.tall.model_density import ModelDensity
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.updates.update import log_odds
from pymc_minibatch.witness.comparison import Comparison, rounding
from pymc_minibatch.witness.witness import Look

__all__ = ["BoundedDensity", "Brightness", "FullGradient"]

FARTHER = 2.0
"""Posterior standard deviations between the points of a comparison, about."""

GRADIENT_AGREES = 1e-4
"""Relative to the gradient two points have: sums of many rows cancel near the mode, and products
of predictors in single precision have seven digits."""

MOST_ODDS = 2000
"""Bright rows whose odds are looked at."""


class Brightness(NamedTuple):
    """Bright rows and their odds, as a chain keeps them.

    Attributes
    ----------
    rows : ndarray of int64
        Their numbers.
    log_odds : ndarray
        log L̃ of each.
    gaps : callable
        ``(point, rows)`` gives the gaps of some rows at a flat point.
    entering, at : ndarray
        Positions of what rows depend on, and its values where the chain is.
    """

    rows: np.ndarray
    log_odds: np.ndarray
    gaps: Callable[[np.ndarray, np.ndarray], np.ndarray]
    entering: np.ndarray
    at: np.ndarray

    def compared(
        self, point: np.ndarray, names: tuple[str, ...], tolerance: float
    ) -> Comparison | None:
        """Compare the odds that are kept with those at a point.

        None if the chain is elsewhere, or no row is bright.
        """
        if not np.array_equal(point[self.entering], self.at):
            return None
        some = slice(None, None, max(1, self.rows.size // MOST_ODDS))
        rows, kept = self.rows[some], self.log_odds[some]
        if not rows.size:
            return None
        gaps = self.gaps(point, rows)
        right = np.array([log_odds(gap) for gap in gaps])
        # Odds of a gap g are e^g − 1: an error δ of the gap is one of δ (1 + e^(−log L̃)) of theirs.
        with np.errstate(over="ignore"):
            allowed = 1e3 * tolerance * (1.0 + np.exp(-np.minimum(right, kept)))
        excess = np.abs(kept - right) - allowed
        worst = int(np.argmax(np.nan_to_num(excess, nan=-np.inf)))
        return Comparison(
            move="odds of a bright row",
            names=names,
            rests_on="odds that are kept are those of the point where the chain is",
            log_ratio=float(kept[worst]),
            expected=float(right[worst]),
            rounding=float(allowed[worst]),
        )


class BoundedDensity(Look):
    """Prior and bounds, with the gaps of all rows.

    Parameters
    ----------
    density
        The model's own.
    base
        ``(point) -> float``: prior and bounds of all rows, with the gaps of those always read.
    gaps
        ``(point, *batch) -> (b,)``.
    data
        What gaps read.
    pinned : ndarray of int64
        Rows that are always read.
    root : ndarray, shape (A, A)
        A root of the covariance of the variables that move.
    active : ndarray of int64, shape (A,)
        Their positions.
    tolerance : float
        Negative gaps up to this size are rounding errors.
    brightness
        Bright rows, if the chain has started.
    others : (ndarray of int64, ndarray)
        Positions of what other steps move and bounds depend on, and the values that these were made
        with.
    """

    def __init__(
        self,
        density: ModelDensity,
        base: Callable[[np.ndarray], float],
        gaps: Callable[..., np.ndarray],
        data: tuple[np.ndarray, ...],
        pinned: np.ndarray,
        root: np.ndarray,
        active: np.ndarray,
        tolerance: float,
        brightness: Brightness | None,
        others: tuple[np.ndarray, np.ndarray],
    ) -> None:
        self.others = others
        self.density, self.base, self.gaps, self.data = density, base, gaps, data
        self.pinned, self.root, self.active = pinned, root, active
        self.tolerance, self.brightness = tolerance, brightness

    def look(self, rng: np.random.Generator, point: np.ndarray) -> Iterator[Comparison]:
        """Compare a point with another one, gaps with 0, and the odds that are kept."""
        names = self.density.tall.layout.names_of(self.active)
        positions, values = self.others
        point = point.copy()
        point[positions] = values
        other = point.copy()
        along = rng.standard_normal(self.active.size)
        along *= FARTHER / max(float(np.linalg.norm(along)), 1.0)
        other[self.active] += self.root @ along
        here, there = (self._whole(each) for each in (point, other))
        before, after = self.density(point), self.density(other)
        yield Comparison(
            move="prior, bounds and gaps",
            names=names,
            rests_on="bound and gap add up to the log-likelihood of each row",
            log_ratio=there[0] - here[0],
            expected=after - before,
            rounding=rounding(self.density.tall.n_rows, [before, after, here[0], there[0]]),
        )
        least = min(here[1], there[1])
        yield Comparison(
            move="the least gap of all rows",
            names=names,
            rests_on="bounds lie below their rows",
            log_ratio=least,
            expected=max(least, 0.0),
            rounding=self.tolerance,
        )
        lit = self.brightness
        odds = None if lit is None else lit.compared(point, names, self.tolerance)
        if odds is not None:
            yield odds

    def _whole(self, point: np.ndarray) -> tuple[float, float]:
        """Return the log-density with z summed out, and the least gap."""

        def look(first: int, *batch: np.ndarray) -> tuple[float, float]:
            gaps = self.gaps(point, *batch)
            own = self.pinned[(self.pinned >= first) & (self.pinned < first + gaps.size)] - first
            return float(gaps.sum() - gaps[own].sum()), float(gaps.min())

        parts = [part for _, part in over_chunks(look, self.data, numbered=True)]
        return self.base(point) + sum(total for total, _ in parts), min(least for _, least in parts)


class FullGradient(Look):
    """The gradient that steps follow, with all rows.

    Parameters
    ----------
    density
        The model's own.
    base
        ``(point) -> (D,)``: the gradient of the prior, and of the expansion.
    row
        ``(point, batch) -> (b, D)`` or ``(D,)``: gradients of rows or of their remainders.
    data
        All rows.
    active : ndarray of int64
        Positions of the variables that move.
    """

    def __init__(
        self,
        density: ModelDensity,
        base: Callable[[np.ndarray], np.ndarray],
        row: Callable[..., np.ndarray],
        data: tuple[np.ndarray, ...],
        active: np.ndarray,
    ) -> None:
        self.density, self.base, self.row, self.data = density, base, row, data
        self.active = active

    def look(self, rng: np.random.Generator, point: np.ndarray) -> Iterator[Comparison]:
        """Compare the gradient at a point, in the parameter where it is worst."""
        other = point.copy()
        other[self.active] *= 1.01
        other[self.active] += 0.01 * rng.standard_normal(self.active.size)
        found, right = self._whole(point), self.density.gradient(point)[self.active]
        farther = self.density.gradient(other)[self.active]
        if not np.isfinite(right).all():
            return
        size = np.abs(right) + np.where(np.isfinite(farther), np.abs(farther), 0.0)
        allowed = GRADIENT_AGREES * (size + np.median(size)) + np.finfo(float).tiny
        worst = int(np.argmax(np.abs(found - right) / allowed))
        yield Comparison(
            move="gradient",
            names=(self.density.tall.layout.name_of(int(self.active[worst])),),
            rests_on="gradients of prior and rows are the model's",
            log_ratio=float(found[worst] / allowed[worst]),
            expected=float(right[worst] / allowed[worst]),
            rounding=1.0,
        )

    def _whole(self, point: np.ndarray) -> np.ndarray:
        def total(*batch: np.ndarray) -> np.ndarray:
            slopes = self.row(point, batch)
            return slopes.sum(axis=0) if slopes.ndim == 2 else slopes

        rows = sum(part for _, part in over_chunks(total, self.data))
        return np.asarray(self.base(point) + rows)[self.active]
