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
    if _n_entries(matrix) <= SPARSER * own.size:
        return None
    matrix /= np.abs(matrix).max()
    try:
        inverse = np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        return None
    inverse[np.abs(inverse) <= ROUNDING * np.abs(inverse).max()] = 0.0
    close = np.allclose(inverse @ matrix, np.eye(own.size), rtol=0.0, atol=1e-9)
    elsewhere = _columns(push, there, own, read) @ inverse
    most = _n_entries(matrix) / SPARSER
    if not close or max(_n_entries(inverse), _n_entries(elsewhere)) > most:
        return None
    return sparse.csr_array(inverse)


def _columns(
    push: Callable[[np.ndarray, np.ndarray], np.ndarray],
    point: np.ndarray,
    own: np.ndarray,
    read: np.ndarray,
) -> np.ndarray:
    matrix = np.empty((read.size, own.size))
    for j, position in enumerate(own):
        seed = np.zeros(point.size)
        seed[position] = 1.0
        matrix[:, j] = push(point, seed)[read]
    return matrix


def _n_entries(matrix: np.ndarray) -> int:
    return int(np.count_nonzero(np.abs(matrix) > ROUNDING * np.abs(matrix).max(initial=0.0)))
