"""Where the field is on average, if rows are of higher order than the second.

The mean of the field given h is moved from its mode by the slope of what an expansion of second
order leaves out, averaged over the field: third and fourth order group by group, which read no row,
and the rest by rows at opposite points.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.cubic import cubic_of
from pymc_minibatch.latent.expander import RowExpander
from pymc_minibatch.latent.factors import Factor
from pymc_minibatch.latent.surrogate import Surrogate

__all__ = [
    "TOO_FAR",
    "MeanCorrection",
    "distance_of_dense",
    "opposite_points",
    "with_mean_correction",
]

TILT_PAIRS = 2
"""Opposite points of the field over which the slope of the remainders is averaged."""

CUBIC_PAIRS, TILT_TURNS = 20, 2
"""Those over which that of the higher orders is, and how often, since it moves the points."""

TOO_FAR = 10.0
"""Standard deviations by which the mean of the field may be from where rows are expanded; one that
is farther is not believed."""

CHECKED, MOST_LEFT = 2.0, 0.5
"""From how many standard deviations between them on it is seen whether rows lead to that mean, too;
and which share of them may be left there."""

MOST_CUBES = 2 * 10**6
"""Factors whose higher orders have more entries than this go without."""


class MeanCorrection:
    """Finds the mean of the field given h about an expansion.

    Parameters
    ----------
    rows
        The rows.
    factors
        The grouping factors, by which there are higher orders.
    """

    def __init__(self, rows: RowExpander, factors: Sequence[Factor]) -> None:
        self.rows, self.factors = rows, factors

    def with_higher_orders(self, surrogate: Surrogate) -> tuple[Surrogate, float]:
        """Add higher orders, and what they make of the mean of the field.

        Also return how far that is from where rows are expanded: infinity if rows are not finite
        all over the field, or do not agree that the mean is there.
        """
        corrected = self.corrected(self.higher_orders(surrogate))
        if not corrected.expansion.mean_correction.any():
            return corrected, math.inf
        given = corrected.conditional(corrected.center[corrected.field.hyper])
        away = distance_of_dense(given, corrected.center)
        if not CHECKED < away < TOO_FAR:
            return corrected, away
        is_there = self._distance_left(corrected, given) < MOST_LEFT * away
        return corrected, away if is_there else math.inf

    def _distance_left(self, corrected: Surrogate, given: Conditional) -> float:
        """Return how far rows would move the dense part on from its mean, averaged over the field.

        In standard deviations. Where some coefficients are skew, remainders at a few points say
        little of the mean, and may lead others far away.
        """
        derivatives, slopes = corrected.field.derivatives, []
        for point in opposite_points(corrected, TILT_PAIRS):
            of_rows = self.rows.expand(point).expansion.slope
            slopes.append(derivatives.pull(point, of_rows) + derivatives.prior_gradient(point))
        slope = given.layout.split(np.mean(slopes, axis=0))
        return float(np.abs(given.factor.solve_lower(*slope)[0]).max(initial=0.0))

    def with_higher_orders_if_near(self, surrogate: Surrogate) -> Surrogate:
        """Add higher orders, and what they make of the mean of the field unless that is far off."""
        corrected, away = self.with_higher_orders(surrogate)
        return corrected if away < TOO_FAR else self.higher_orders(surrogate)

    def corrected(self, surrogate: Surrogate) -> Surrogate:
        """Find the slope of what is not of second order, averaged over the field given h.

        It moves the field over which it is averaged, hence some turns where none is known yet.
        Remainders of the effects of many groups add up: to third order, their slope by coefficients
        that all groups share is a sum of squares, which moves these by standard deviations. That of
        the higher orders by groups reads no row; what is left is averaged for the dense part.
        """
        about = surrogate.expansion.mean_correction
        for _ in range(0 if about.any() else TILT_TURNS):
            about = self._slope_of_higher_orders(with_mean_correction(surrogate, about))
        guess = with_mean_correction(surrogate, about)
        higher, rest = self._slope_of_higher_orders(guess), self._slope_of_rest(guess)
        if not np.isfinite(rest + higher).all():
            return surrogate
        return with_mean_correction(surrogate, higher + rest, rest)

    def _slope_of_higher_orders(self, surrogate: Surrogate) -> np.ndarray:
        if not surrogate.cubics:
            return np.zeros(surrogate.expansion.at.size)
        slopes = []
        for point in opposite_points(surrogate, CUBIC_PAIRS):
            delta = surrogate.field.derivatives.phi(point) - surrogate.expansion.at
            slopes.append(
                surrogate.slope_of_higher_orders(delta, surrogate.curvature_product(delta))
            )
        return np.mean(slopes, axis=0)

    def _slope_of_rest(self, surrogate: Surrogate) -> np.ndarray:
        expansion, own = surrogate.expansion, surrogate.field.rows.dense
        slopes = []
        for point in opposite_points(surrogate, TILT_PAIRS):
            there = self.rows.expand(point).expansion
            delta = there.at - expansion.at
            curved = surrogate.curvature_product(delta)
            higher = surrogate.slope_of_higher_orders(delta, curved)
            slopes.append((there.slope - expansion.slope + curved - higher)[own])
        smoothing_correction = np.zeros(expansion.at.size)
        smoothing_correction[own] = np.mean(slopes, axis=0)
        return smoothing_correction

    def higher_orders(self, surrogate: Surrogate) -> Surrogate:
        """Add third and fourth order by each grouping factor."""
        functions = self.rows.functions
        if not self.factors or not functions.triples:
            return surrogate
        scalars, at = functions.reads.scalars, surrogate.expansion.at
        few = [
            factor.entries
            for factor in self.factors
            if factor.n_levels * (factor.entries.shape[1] + scalars.size) ** 4 <= MOST_CUBES
        ]
        layout, curvature = surrogate.field.rows, surrogate.expansion.curvature
        cubics = [
            cubic_of(
                functions,
                self.rows.data,
                at,
                entries,
                (
                    curvature.blocks_of(layout, entries),
                    curvature.columns_of(layout, entries, scalars),
                    curvature.dense.diagonal()[np.searchsorted(layout.dense, scalars)],
                ),
                self.rows.temperature,
            )
            for entries in few
        ]
        model = surrogate.tall, surrogate.field
        return Surrogate(*model, surrogate.expansion, surrogate.center, cubics)


def with_mean_correction(
    surrogate: Surrogate,
    mean_correction: np.ndarray,
    smoothing_correction: np.ndarray | None = None,
) -> Surrogate:
    """Return a surrogate with these corrections."""
    none = np.zeros(mean_correction.size)
    corrected = replace(
        surrogate.expansion,
        mean_correction=mean_correction,
        smoothing_correction=none if smoothing_correction is None else smoothing_correction,
    )
    return Surrogate(surrogate.tall, surrogate.field, corrected, surrogate.center, surrogate.cubics)


def opposite_points(surrogate: Surrogate, n_pairs: int) -> Iterator[np.ndarray]:
    """Draw pairs of opposite points of the field given h."""
    given = surrogate.conditional(surrogate.center[surrogate.field.hyper])
    rng = np.random.default_rng(5)
    for _ in range(n_pairs):
        dense, groups = given.layout.noise(rng)
        for sign in (1.0, -1.0):
            yield given.frame.color((sign * dense, sign * groups))


def distance_of_dense(given: Conditional, center: np.ndarray) -> float:
    """Return how far the dense part is from its mean, in standard deviations of a variable."""
    return float(np.abs(given.frame.whiten(center)[0]).max(initial=0.0))
