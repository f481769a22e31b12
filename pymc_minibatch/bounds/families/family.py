"""What is known of a family of likelihoods.

A family says up to three things of rows f(η): by which distributions PyMC writes them, which lower
bound they have that is quadratic in η, and how large their third derivative is.

The last is for the exact test. There a family is told by identities of its derivatives on random
rows, so that it does not matter how a likelihood is written. If a derivative is not computed to
so many digits, as of log(1 − p) with p next to 1, it is compared up to its rounding error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pymc_minibatch.bounds.likelihood import Likelihood
from pymc_minibatch.bounds.quadratic import QuadraticBound

__all__ = ["STEPS", "Family", "OfSteps", "Taylor", "Third", "ThirdOf", "Trial", "rows_agree"]

STEPS = (-1.7, -0.6, 0.4, 1.3)
"""How far from η̂ identities are looked at, in units of η: where log-odds and log-rates bend."""

TOLERANCE = 1e-6
"""Relative error of a derivative of a row that is of a family."""

NEGLIGIBLE = 1e-9
"""Of the largest derivative of all trial rows: what is smaller tells nothing."""

NEARBY, AROUND, SAFE = 1e-7, 7, 8.0
"""Steps in η over which nothing but rounding is left of third differences, their number, and by
how much more rounding may change a derivative."""

type OfSteps = Callable[[np.ndarray], np.ndarray]
type Taylor = Sequence[np.ndarray]
type Remainder = Callable[[np.ndarray, Taylor, Sequence[np.ndarray]], OfSteps]
"""``(η, (f, f', f''), batch)`` gives ``t -> f(η + t) − f − f' t − f'' t²/2`` of each row."""


class Third(NamedTuple):
    """What the exact test needs of a family.

    Attributes
    ----------
    bound
        ``(lowest η, highest η, batch) -> K`` of each row.
    remainder
        What it has beyond second order.
    """

    bound: Callable[[np.ndarray, np.ndarray, Sequence[np.ndarray]], np.ndarray]
    remainder: Remainder

    def __call__(
        self, lowest: np.ndarray, highest: np.ndarray, batch: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Bound the third derivatives on intervals."""
        return self.bound(lowest, highest, batch)


class Trial(NamedTuple):
    """Random rows, by which a family is told.

    Attributes
    ----------
    derivatives
        ``(η, *batch) -> (f'', f''')``.
    eta : ndarray, shape (b,)
        η̂, the predictor at the reference point.
    batch : sequence of ndarray
        The data of the rows.
    likelihood
        ``() -> Likelihood`` as it is found in the graph of the model.
    start : ndarray, shape (D,)
        A point of the model, for what does not depend on any.
    """

    derivatives: Callable[..., tuple[np.ndarray, ...]]
    eta: np.ndarray
    batch: Sequence[np.ndarray]
    likelihood: Callable[[], Likelihood]
    start: np.ndarray

    def fits(self, order: int, expected: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Return of which rows a derivative is what is expected, shape (b,).

        Parameters
        ----------
        order : {2, 3}
            Of the derivative.
        expected
            ``(η,) -> derivative`` of each row.
        """
        fits = np.ones(self.eta.size, dtype=bool)
        for step in STEPS:
            at = self.eta + step
            found, wanted = self._derivative(order, at), expected(at)
            fits &= rows_agree(found, wanted)
            if not fits.all():
                fits |= np.abs(found - wanted) <= self._rounding(order, at)
        return fits

    def _derivative(self, order: int, at: np.ndarray) -> np.ndarray:
        return self.derivatives(at, *self.batch)[order - 2]

    def _rounding(self, order: int, at: np.ndarray) -> np.ndarray:
        """Return how much rounding may change a derivative."""
        near = [self._derivative(order, at + k * NEARBY) for k in range(AROUND)]
        return SAFE * np.abs(np.diff(near, n=3, axis=0)).max(axis=0)


def rows_agree(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Whether numbers agree, up to rounding of those that are hardly anything."""
    scale = np.maximum(np.abs(found), np.abs(expected))
    floor = NEGLIGIBLE * np.max(scale, initial=0.0)
    agree: np.ndarray = np.abs(found - expected) <= TOLERANCE * scale + floor
    return agree


type ThirdOf = Callable[[Trial], tuple[Third, np.ndarray] | None]


@dataclass(frozen=True)
class Family:
    """What is known of a family; what is not known is left out.

    Attributes
    ----------
    name : str
        As :class:`.Likelihood` names it.
    rows : tuple of str
        The rows that are of the family, for the user.
    third
        ``(trial,) -> (third, fits)``: how third derivatives are bounded, and which of the trial
        rows, shape (b,), are of the family; None if it cannot be.
    likelihoods : dict of type to callable
        ``(reader, *parameters) -> Likelihood`` of each distribution, by the type of its random
        variable.
    bound : QuadraticBound or None
        The lower bound that is taken by default.
    """

    name: str
    rows: tuple[str, ...] = ()
    third: ThirdOf | None = None
    likelihoods: Mapping[type, Callable[..., Likelihood]] = field(default_factory=dict)
    bound: QuadraticBound | None = None
