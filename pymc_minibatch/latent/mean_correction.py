"""Where the field is on average, if rows are of higher order than the second.

The mean of the field given h is moved from its mode by the slope of what an expansion of second
order leaves out, averaged over the field: third and fourth order group by group, which read no row,
and the rest by rows at opposite points.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from pymc_minibatch.latent.cubic import cubic_of
from pymc_minibatch.latent.factors import Factor
from pymc_minibatch.latent.surrogate import Surrogate
from pymc_minibatch.reference.rows import RowFunctions

__all__ = ["MeanCorrection"]

TILT_PAIRS = 2
"""Opposite points of the field over which the slope of the remainders is averaged."""

CUBIC_PAIRS, TILT_TURNS = 20, 2
"""Those over which that of the higher orders is, and how often, since it moves the points."""

MOST_CUBES = 2 * 10**6
"""Factors whose higher orders have more entries than this go without."""


class MeanCorrection:
    """Finds the mean of the field given h about an expansion.

    Parameters
    ----------
    rows
        Functions of rows.
    data
        The rows.
    temperature
        Of the posterior.
    expand
        ``point -> surrogate``, which expands all rows about a point.
    """

    def __init__(
        self,
        rows: RowFunctions,
        data: tuple[np.ndarray, ...],
        temperature: float,
        expand: Callable[[np.ndarray], Surrogate],
    ) -> None:
        self.rows, self.data, self.temperature, self.expand = rows, data, temperature, expand

    def corrected(self, surrogate: Surrogate) -> Surrogate:
        """Find the slope of what is not of second order, averaged over the field given h.

        It moves the field over which it is averaged, hence some turns where none is known yet.
        Remainders of the effects of many groups add up: to third order, their slope by coefficients
        that all groups share is a sum of squares, which moves these by standard deviations. That of
        the higher orders by groups reads no row; what is left is averaged for the dense part.
        """
        about, none = surrogate.expansion.mean_correction, np.zeros(surrogate.expansion.at.size)
        for _ in range(0 if about.any() else TILT_TURNS):
            about = self._slope_of_higher_orders(self.with_mean_correction(surrogate, about, none))
        guess = self.with_mean_correction(surrogate, about, none)
        mean_correction, smoothing_correction = (
            self._slope_of_higher_orders(guess),
            self._slope_of_rest(guess),
        )
        if not np.isfinite(smoothing_correction + mean_correction).all():
            return surrogate
        return self.with_mean_correction(
            surrogate, mean_correction + smoothing_correction, smoothing_correction
        )

    def with_mean_correction(
        self, surrogate: Surrogate, mean_correction: np.ndarray, smoothing_correction: np.ndarray
    ) -> Surrogate:
        """Return a surrogate with these corrections."""
        corrected = replace(
            surrogate.expansion,
            mean_correction=mean_correction,
            smoothing_correction=smoothing_correction,
        )
        return Surrogate(
            surrogate.tall, surrogate.field, corrected, surrogate.center, surrogate.cubics
        )

    def points(self, surrogate: Surrogate, n_pairs: int) -> Iterator[np.ndarray]:
        """Draw opposite points of the field given h."""
        given = surrogate.conditional(surrogate.center[surrogate.field.hyper])
        rng = np.random.default_rng(5)
        for _ in range(n_pairs):
            dense, groups = given.layout.noise(rng)
            for sign in (1.0, -1.0):
                yield given.frame.color((sign * dense, sign * groups))

    def _slope_of_higher_orders(self, surrogate: Surrogate) -> np.ndarray:
        if not surrogate.cubics:
            return np.zeros(surrogate.expansion.at.size)
        slopes = []
        for point in self.points(surrogate, CUBIC_PAIRS):
            delta = surrogate.field.derivatives.phi(point) - surrogate.expansion.at
            slopes.append(
                surrogate.slope_of_higher_orders(delta, surrogate.curvature_product(delta))
            )
        return np.mean(slopes, axis=0)

    def _slope_of_rest(self, surrogate: Surrogate) -> np.ndarray:
        expansion, own = surrogate.expansion, surrogate.field.rows.dense
        slopes = []
        for point in self.points(surrogate, TILT_PAIRS):
            there = self.expand(point).expansion
            delta = there.at - expansion.at
            curved = surrogate.curvature_product(delta)
            higher = surrogate.slope_of_higher_orders(delta, curved)
            slopes.append((there.slope - expansion.slope + curved - higher)[own])
        smoothing_correction = np.zeros(expansion.at.size)
        smoothing_correction[own] = np.mean(slopes, axis=0)
        return smoothing_correction

    def with_higher_orders(self, surrogate: Surrogate, factors: Sequence[Factor]) -> Surrogate:
        """Add third and fourth order by each grouping factor."""
        if not factors or not self.rows.triples:
            return surrogate
        scalars, at = self.rows.reads.scalars, surrogate.expansion.at
        widths = [factor.entries.shape[1] + scalars.size for factor in factors]
        few = [
            factor.entries
            for factor, width in zip(factors, widths, strict=True)
            if factor.n_levels * width**4 <= MOST_CUBES
        ]
        layout, curvature = surrogate.field.rows, surrogate.expansion.curvature
        cubics = [
            cubic_of(
                self.rows,
                self.data,
                at,
                entries,
                (
                    curvature.blocks_of(layout, entries),
                    curvature.columns_of(layout, entries, scalars),
                    curvature.dense.diagonal()[np.searchsorted(layout.dense, scalars)],
                ),
                self.temperature,
            )
            for entries in few
        ]
        model = surrogate.tall, surrogate.field
        return Surrogate(*model, surrogate.expansion, surrogate.center, cubics)
