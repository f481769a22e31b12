"""What is taken off the rows so that their sum can be estimated from a few."""

from typing import NamedTuple

import numpy as np

from pymc_minibatch.reference.reference import Reference

__all__ = ["ControlVariate", "PinnedRows"]


class PinnedRows(NamedTuple):
    """Rows that are read at every decision, and left out of the expansion; see :mod:`.pinned`.

    Attributes
    ----------
    rows : ndarray of int64, shape (k,)
        Their numbers.
    moves : Reference
        About the same point as the expansion, with the quadratic log-likelihood in `gradient` and
        `curvature` that makes the Gaussian which moves follow.
    whole : Reference
        The expansion of all rows.
    """

    rows: np.ndarray
    moves: Reference
    whole: Reference


class ControlVariate(NamedTuple):
    """The Taylor terms of the log-likelihood about a reference point, in a density at T.

    Attributes
    ----------
    reference : Reference
        The point and the sums over all rows there.
    order : int
        2 or 1, of the terms that are taken off; 0 if nothing is, and the reference serves moves and
        starts alone.
    temperature : float
        T; the likelihood counts with power 1/T.
    pinned : PinnedRows, optional
        Rows of which nothing is taken off, since they are read at every decision; then `reference`
        is an expansion of the others. None, the default, if there are none.
    """

    reference: Reference
    order: int
    temperature: float
    pinned: PinnedRows | None = None

    @property
    def gaussian(self) -> Reference:
        """The reference with the Gaussian approximation of the posterior."""
        return self.reference if self.pinned is None else self.pinned.moves

    @property
    def whole(self) -> Reference:
        """The expansion of all rows."""
        return self.reference if self.pinned is None else self.pinned.whole

    @property
    def always_read(self) -> np.ndarray:
        """The numbers of the rows that are read at every decision."""
        return np.empty(0, dtype=np.int64) if self.pinned is None else self.pinned.rows

    def left_to_batches(self, rows: np.ndarray) -> np.ndarray:
        """Return those of some rows that are not read at every decision."""
        return rows[~np.isin(rows, self.always_read)]

    def columns(self) -> tuple[np.ndarray, ...]:
        """Return what rows read in addition to the data: whether they are left to batches.

        Nothing if all of them are.
        """
        if self.pinned is None:
            return ()
        left = np.ones(self.reference.n_rows, dtype=np.bool_)
        left[self.pinned.rows] = False
        return (left,)

    @property
    def constants(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The reference point, and gradient and Hessian there of the terms that are taken off."""
        hessian = self.reference.hessian if self.order == 2 else 0.0 * self.reference.hessian
        gradient = self.reference.gradient
        return self.reference.flat, gradient / self.temperature, hessian / self.temperature

    def precision(self, active: np.ndarray) -> np.ndarray:
        """Precision of the Gaussian approximation, of some parameters given the others."""
        return self.gaussian.precision_at(self.temperature)[np.ix_(active, active)]
