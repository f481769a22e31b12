"""Coordinates of the field in which the matrices that join its variables are sparse.

The levels of a random walk written as ``cumsum(sd * z)`` are read one by one, but each depends on
all earlier steps z: what the rows say of z is a full matrix. With w = B z, where B is how the rows
read z at some point, up to a factor, what they say of w is diagonal, and with B⁻¹ sparse the prior
of w is sparse as well, here that of neighbouring days. B does not depend on the point, so densities
change by a constant.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

__all__ = ["Coordinates", "find_coordinates"]

SPARSER = 4
"""Coordinates are changed if that makes matrices so many times sparser."""

ROUNDING = 1e-11
"""Entries smaller than the largest by this factor are rounding errors."""


@dataclass(frozen=True)
class Coordinates:
    """A linear map from some variables of a flat point to others in their place.

    Attributes
    ----------
    positions : ndarray of int64, shape (n,)
        Positions of these variables.
    inverse : sparse array, shape (n, n)
        B⁻¹.
    """

    positions: np.ndarray
    inverse: sparse.csr_array

    @classmethod
    def none(cls) -> "Coordinates":
        """Leave points as they are."""
        return cls(np.empty(0, dtype=np.int64), sparse.csr_array((0, 0)))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the factors, which cannot be pickled."""
        return {"positions": self.positions, "inverse": self.inverse}

    @cached_property
    def _solve(self) -> Callable[[np.ndarray], np.ndarray]:
        return splu(self.inverse.tocsc()).solve

    @cached_property
    def _transposed(self) -> sparse.csr_array:
        return self.inverse.T.tocsr()

    def from_model(self, point: np.ndarray) -> np.ndarray:
        """Return the point, or vector, with w in the place of z; itself where nothing changes."""
        return self._replaced(point, self._solve) if self.positions.size else point

    def to_model(self, point: np.ndarray) -> np.ndarray:
        """Undo :meth:`from_model`."""
        return self._replaced(point, self.inverse.__matmul__) if self.positions.size else point

    def gradient(self, slope: np.ndarray) -> np.ndarray:
        """Return the gradient by w, given that by z."""
        return self._replaced(slope, self._transposed.__matmul__) if self.positions.size else slope

    def _replaced(
        self, vector: np.ndarray, linear: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        replaced = vector.copy()
        replaced[self.positions] = linear(vector[self.positions])
        return replaced


def find_coordinates(
    push: Callable[[np.ndarray, np.ndarray], np.ndarray],
    points: Sequence[np.ndarray],
    variables: Sequence[np.ndarray],
) -> Coordinates:
    """Find variables that rows read through a full matrix whose inverse is sparse.

    Parameters
    ----------
    push
        ``(point, vector) -> Jφ · vector``.
    points
        Points at which the matrix is looked at.
    variables
        Positions of each variable in the flat point.
    """
    found = [(own, _sparse_inverse(push, points, own)) for own in variables]
    chosen = [(own, inverse) for own, inverse in found if inverse is not None]
    if not chosen:
        return Coordinates.none()
    positions = np.concatenate([own for own, _ in chosen])
    blocks = [sparse.coo_array(inverse) for _, inverse in chosen]
    return Coordinates(positions, sparse.csr_array(sparse.block_diag(blocks)))


def _sparse_inverse(
    push: Callable[[np.ndarray, np.ndarray], np.ndarray],
    points: Sequence[np.ndarray],
    own: np.ndarray,
) -> sparse.csr_array | None:
    """Return B⁻¹ for a variable, None if it does not make its matrices sparse."""
    here, there = points[:2]
    seed = np.zeros(here.size)
    seed[own] = np.random.default_rng(6).normal(size=own.size)
    read = np.flatnonzero(push(here, seed))
    if read.size != own.size:
        return None
    matrix = _columns(push, here, own, read)
    if matrix.nnz <= SPARSER * own.size:
        return None
    matrix /= abs(matrix).max()
    inverse = _inverse(matrix)
    if inverse is None:
        return None
    elsewhere = _without_rounding(_columns(push, there, own, read) @ inverse)
    return inverse if max(inverse.nnz, elsewhere.nnz) <= matrix.nnz / SPARSER else None


def _columns(
    push: Callable[[np.ndarray, np.ndarray], np.ndarray],
    point: np.ndarray,
    own: np.ndarray,
    read: np.ndarray,
) -> sparse.csc_array:
    """Return B, without what is rounding."""
    rows, entries, seed = [], [], np.zeros(point.size)
    for position in own:
        seed[position] = 1.0
        column = push(point, seed)[read]
        seed[position] = 0.0
        rows.append(np.flatnonzero(column))
        entries.append(column[rows[-1]])
    columns = np.repeat(np.arange(own.size), [each.size for each in rows])
    places = np.concatenate(rows), columns
    shape = read.size, own.size
    return _without_rounding(sparse.coo_array((np.concatenate(entries), places), shape=shape))


def _inverse(matrix: sparse.csc_array) -> sparse.csr_array | None:
    """Invert a matrix block by block, such as the walks of many groups; None if it is singular."""
    size = matrix.shape[0]
    joined = sparse.block_array([[None, matrix], [matrix.T, None]])
    labels = connected_components(joined, directed=False)[1]
    order = np.argsort(labels, kind="stable")
    parts = []
    for nodes in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        rows, columns = nodes[nodes < size], nodes[nodes >= size] - size
        if rows.size != columns.size:
            return None
        block = matrix[rows][:, columns].toarray()
        try:
            inverse = np.linalg.inv(block)
        except np.linalg.LinAlgError:
            return None
        if not np.allclose(inverse @ block, np.eye(rows.size), rtol=0.0, atol=1e-9):
            return None
        places = np.repeat(columns, rows.size), np.tile(rows, columns.size)
        parts.append((*places, inverse.ravel()))
    at_rows, at_columns, entries = (np.concatenate(each) for each in zip(*parts, strict=True))
    whole = sparse.coo_array((entries, (at_rows, at_columns)), shape=matrix.shape)
    return sparse.csr_array(_without_rounding(whole))


def _without_rounding(matrix: Any) -> Any:
    """Leave out entries that are zero but for rounding errors."""
    found = sparse.coo_array(matrix)
    kept = np.abs(found.data) > ROUNDING * np.abs(found.data).max(initial=0.0)
    places = found.coords[0][kept], found.coords[1][kept]
    return sparse.csc_array(sparse.coo_array((found.data[kept], places), shape=found.shape))
