"""Arrays of random rows that are like those of the data, made where they are read.

The check of a split looks at other data than the model's own. Their rows are made when they are
asked for, the same each time, so that there is no second array as large as the data.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["MadeUp", "made_up", "rows_of"]

POOL_BYTES = 2**24
"""Random whole numbers that are kept; rows repeat if there are more."""


@dataclass(frozen=True)
class MadeUp:
    """An array whose rows are those of another one, in another order or multiplied by noise.

    Attributes
    ----------
    source
        The other array, rows along the first axis.
    axis
        The axis along which the rows lie in this one.
    picked
        For each row that of `source`; None if the rows are in the same order.
    factors
        By what a row is multiplied; None for 1.
    instead_of_zero
        What zeros of a row become; None if they stay.
    """

    source: np.ndarray
    axis: int
    picked: np.ndarray | None = None
    factors: np.ndarray | None = None
    instead_of_zero: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        shape = list(self.source.shape[1:])
        shape.insert(self.axis, len(self.source if self.picked is None else self.picked))
        return tuple(shape)

    def rows(self, rows: Any) -> np.ndarray:
        """Make some rows, along the first axis."""
        values = self.source[rows if self.picked is None else self.picked[rows]]
        if self.factors is None:
            return values
        made = values * self._of(self.factors, rows)
        if self.instead_of_zero is not None:
            np.copyto(made, self._of(self.instead_of_zero, rows), where=values == 0)
        return made

    def _of(self, noise: np.ndarray, rows: Any) -> np.ndarray:
        """Return the noise of some rows, the same for all entries of a row."""
        return noise[rows].reshape(-1, *[1] * (self.source.ndim - 1))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Make the whole array."""
        whole = np.moveaxis(self.rows(slice(None)), 0, self.axis)
        return np.ascontiguousarray(whole, dtype)


def rows_of(values: np.ndarray | MadeUp, axis: int, rows: Any) -> np.ndarray:
    """Take rows of an array in which they lie along an axis; they lie along the first then."""
    if not isinstance(values, MadeUp):
        return np.moveaxis(values, axis, 0)[rows]
    if values.axis != axis:
        return np.moveaxis(np.asarray(values), axis, 0)[rows]
    return values.rows(rows)


def made_up(array: np.ndarray, axis: int, rng: np.random.Generator) -> Iterator[MadeUp]:
    """Make up values of the same type and signs or about the same range; then shuffle the rows."""
    values = np.moveaxis(array, axis, 0)
    n_rows = len(values)
    if values.dtype.kind == "f":
        noise = rng.normal(size=(2, n_rows)).astype(values.dtype)
        factors = np.exp(noise[1] / 4)
        if not values.all():
            yield MadeUp(values, axis, factors=factors, instead_of_zero=noise[0])
        yield MadeUp(values, axis, factors=factors)
    for pool in _pools(values, rng):
        yield MadeUp(pool, axis, rng.integers(0, len(pool), n_rows))
    yield MadeUp(values, axis, rng.permutation(n_rows))


def _pools(values: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Draw rows of whole numbers or truth values."""
    row_bytes = max(1, values[:1].nbytes)
    shape = (min(len(values), max(1, POOL_BYTES // row_bytes)), *values.shape[1:])
    if values.dtype.kind in "iu":
        low, high = values.min(axis=0), values.max(axis=0)
        wider = np.minimum(high, np.iinfo(values.dtype).max - 1) + 1
        for most in (wider, high):
            yield rng.integers(low, most, shape, dtype=values.dtype, endpoint=True)
    elif values.dtype.kind == "b":
        yield rng.random(shape) < 0.5
