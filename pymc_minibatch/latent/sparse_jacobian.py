"""Columns of a sparse matrix that depends on the point, by few directional derivatives.

The pattern does not depend on the point. Columns that share no row are found by one directional
derivative, those that do not change are found once, and where the point only scales columns, the
scales follow from one derivative along a sum of them.

Reference
---------
Curtis, Powell and Reid (1974), On the estimation of sparse Jacobian matrices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from pymc_minibatch.latent.arrowhead import Matrix, compact
from pymc_minibatch.latent.claims import ROUNDING
from pymc_minibatch.latent.derivatives import Derivatives
from pymc_minibatch.latent.projector import Projector

__all__ = ["RTOL", "MapEntries", "SparseJacobian"]

RTOL = 1e-7
"""Relative difference of entries that do not depend on the point."""

LEAST_SINGULAR = 1e-6

MOST_SCALED = 4 * 10**6
"""Entries of a matrix whose columns are scaled together; its inverse costs their power 3/2."""

LEAST_APART, MOST_SHARED, NOTICED, RTOL_APART = 8, 8, 1e-9, 1e-9
"""More columns than this are looked at together, if they have no more rows in common than the next,
as levels have that of their mean. Of these sums are not what they should be, by so much relative to
them; and where entries are smaller than this, relative to what is natural for them, columns are
looked at one after the other."""

FULL_COLUMN = 5
"""A column with more entries has derivatives of its own, and its row is not read again."""


@dataclass(frozen=True)
class MapEntries:
    """The entries of A(h), of which matrices are made where these are asked for.

    Attributes
    ----------
    columns : SparseJacobian
        Where entries by the dense part of z are.
    entries : ndarray, shape (K,)
        Them.
    blocks : ndarray, shape (G, q', q)
        What each group of φ takes from its own z.
    """

    columns: "SparseJacobian"
    entries: np.ndarray
    blocks: np.ndarray

    @cached_property
    def whole(self) -> Projector:
        """A(h)."""
        return Projector(*self.columns.of(self.entries), self.blocks)

    def scales_of(self, other: "MapEntries") -> np.ndarray:
        """Return how much larger each column by the dense part is in another map."""
        column, n = self.columns.column, self.columns.positions.size
        own = np.bincount(column, self.entries**2, minlength=n)
        both = np.bincount(column, self.entries * other.entries, minlength=n)
        return np.where(own > 0.0, both / np.where(own > 0.0, own, 1.0), 1.0)


class SparsePart:
    """Some of the rows of a sparse matrix whose pattern is known.

    Parameters
    ----------
    row, column : ndarray of int64, shape (K,)
        Where its entries are, by rows.
    shape
        Its shape.
    """

    def __init__(self, row: np.ndarray, column: np.ndarray, shape: tuple[int, int]) -> None:
        self.row, self.column, self.shape = row, column, shape
        self.starts = np.searchsorted(row, np.arange(shape[0] + 1))
        self.sparse = not row.size or sparse.issparse(compact(self._as_sparse(np.ones(row.size))))

    def _as_sparse(self, entries: np.ndarray) -> sparse.csr_array:
        return sparse.csr_array((entries, self.column, self.starts), self.shape)

    def of(self, entries: np.ndarray) -> Matrix:
        """Return the matrix with these entries, compact; of none, an empty sparse one."""
        if self.sparse:
            return self._as_sparse(entries)
        matrix = np.zeros(self.shape)
        matrix[self.row, self.column] = entries
        return matrix


class SparseJacobian:
    """Columns of a sparse matrix that depends on the point, by few directional derivatives.

    Parameters
    ----------
    derivatives, name
        What they are, and of which function.
    points
        Points at which they are looked at.
    positions
        Positions of the columns in a flat point.
    rows
        Positions of the rows in the derivative, for each of two parts of the matrix.
    sizes
        What is natural for a row, shape (rows,), and for the variable of a column, shape (D,): an
        entry times the one is a share of the other.
    symmetric
        Whether the first part is symmetric. Then entries that others have in common with a column
        of many, such as effects with their mean, are taken from that column.
    apart
        Positions of columns of which no two are thought to have a row in common, such as those of
        the levels of a factor. They are found by three derivatives, if it is so.

    Attributes
    ----------
    row, column : ndarray of int64, shape (K,)
        Where entries are that may not be zero, by rows.
    """

    def __init__(
        self,
        derivatives: Derivatives,
        name: str,
        points: Sequence[np.ndarray],
        positions: np.ndarray,
        rows: tuple[np.ndarray, np.ndarray],
        sizes: tuple[np.ndarray, np.ndarray],
        symmetric: bool = False,
        apart: Sequence[np.ndarray] = (),
    ) -> None:
        self.derivatives, self.name = derivatives, name
        self.positions, self.rows = positions, np.concatenate(rows)
        self.of_rows, self.of_columns = sizes[0], sizes[1][positions]
        entries = self._probe(points, apart, symmetric)
        if symmetric:
            entries = _with_mirrored(*entries, positions.size)
        self.row, self.column, seen = entries
        changes = np.zeros(positions.size, dtype=np.bool_)
        self.noise = ROUNDING * self.of_rows[self.row] / self.of_columns[self.column]
        close = RTOL * np.abs(seen).max(axis=0) + self.noise
        moved = (np.abs(seen - seen[0]) > close).any(axis=0)
        changes[self.column[moved]] = True
        self.base = seen[0]
        n, self.first = rows[0].size, int(np.searchsorted(self.row, rows[0].size))
        own = slice(self.first), slice(self.first, None)
        self.parts = (
            SparsePart(self.row[own[0]], self.column[own[0]], (n, positions.size)),
            SparsePart(self.row[own[1]] - n, self.column[own[1]], (rows[1].size, positions.size)),
        )
        self.moving = np.flatnonzero(changes)
        self.changing = bool(changes.any())
        own = changes[self.column]
        self.mirrored, self.mirror = self._mirrored(own & symmetric)
        shape, read = (self.rows.size, positions.size), own.copy()
        read[self.mirrored] = False
        pattern = sparse.csc_array((read[read], (self.row[read], self.column[read])), shape)
        self.color = np.full(positions.size, -1)
        self.color[changes] = _colored(pattern[:, self.moving])
        self.unscale: np.ndarray | None = None
        self.seed = 1.0 / self.of_columns
        if self.color.max(initial=-1) > 0:
            self.read, place = np.unique(self.row[own], return_inverse=True)
        if self.color.max(initial=-1) > 0 and self.read.size * self.moving.size <= MOST_SCALED:
            slot = np.searchsorted(self.moving, self.column[own])
            whole = np.zeros((len(points), self.read.size, self.moving.size))
            whole[:, place, slot] = seen[:, own]
            self.unscale, self.seed[self.moving] = _scaled_columns(whole)

    def _mirrored(self, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which of some entries are taken from a full column, and where they are there."""
        size = self.positions.size
        in_square = np.flatnonzero(own & (self.row < size))
        row, column = self.row[in_square], self.column[in_square]
        full = np.bincount(column, minlength=size) > FULL_COLUMN
        taken = ~full[column] & full[row]
        keys, wanted = self.row * size + self.column, (column * size + row)[taken]
        mirror = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        there = keys[mirror] == wanted if keys.size else np.zeros(0, dtype=np.bool_)
        return in_square[taken][there], mirror[there]

    def _probe(
        self, points: Sequence[np.ndarray], apart: Sequence[np.ndarray], symmetric: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return where entries are not zero at some of the points, by rows, and these entries."""
        at: list[np.ndarray] = []
        columns: list[np.ndarray] = []
        entries: list[np.ndarray] = []
        waits = np.ones(self.positions.size, dtype=np.bool_)
        joined: dict[int, list[np.ndarray]] = {}
        for positions in apart:
            own = np.searchsorted(self.positions, positions)
            found = self._probe_apart(points, own) if own.size > LEAST_APART else None
            if found is None:
                continue
            *own_entries, shared = found
            if shared.size and not (symmetric and self._are_others(shared, apart)):
                continue
            waits[own] = False
            for row in shared.tolist():
                joined.setdefault(row, []).append(own)
            for parts, part in zip((at, columns, entries), own_entries, strict=True):
                parts.append(part)
        waits[[*joined]] = True
        for j in np.flatnonzero(waits):
            position = self.positions[j]
            derivatives = []
            for point in points:
                seed = np.zeros(point.size)
                seed[position] = 1.0
                derivatives.append(self.along(point, seed))
            column = np.array(derivatives)
            size = np.abs(column).max(axis=0)
            natural = self.of_rows / self.of_columns[j]
            own = np.flatnonzero(size > ROUNDING * np.minimum(size.max(initial=0.0), natural))
            at.append(own)
            columns.append(np.full(own.size, j))
            entries.append(column[:, own])
            for others in joined.get(int(j), []):
                below = np.intersect1d(own, others)
                at.append(np.full(below.size, j))
                columns.append(below)
                entries.append(column[:, below])
        none = np.empty(0, dtype=np.int64)
        row, column = np.concatenate([none, *at]), np.concatenate([none, *columns])
        order = np.lexsort((column, row))
        seen = np.concatenate([np.empty((len(points), 0)), *entries], axis=1)
        return row[order], column[order], seen[:, order]

    def _probe_apart(
        self, points: Sequence[np.ndarray], own: np.ndarray
    ) -> tuple[np.ndarray, ...] | None:
        """Return the same for columns of which no two have a row in common but for a few rows.

        Also return these rows; nothing where there are many. Of three sums of the columns with
        other weights, the first gives the entries, the ratio of the second to it says of which
        column each is, and the third has to be what follows.
        """
        n = own.size
        ratios = 1.0 + np.arange(n) / n, np.random.default_rng(7).uniform(0.5, 1.5, n)
        first = self.of_columns[own]
        sums = np.empty((len(points), 3, self.rows.size))
        for point, parts in zip(points, sums, strict=True):
            for part, ratio in zip(parts, (1.0, *ratios), strict=True):
                seed = np.zeros(point.size)
                seed[self.positions[own]] = first * ratio
                part[:] = self.along(point, seed)
        read = np.flatnonzero(sums.any(axis=(0, 1)))
        sums = sums[:, :, read]
        if not np.isfinite(sums).all() or not read.size:
            return None
        size = np.abs(sums[:, 0])
        largest = np.argmax(size, axis=0), np.arange(read.size)
        with np.errstate(divide="ignore", invalid="ignore"):
            place = np.nan_to_num((sums[:, 1][largest] / sums[:, 0][largest] - 1.0) * n)
        j = np.clip(np.rint(place), 0, n - 1).astype(np.int64)
        shared = np.zeros(read.size, dtype=np.bool_)
        for part, ratio in zip((sums[:, 1], sums[:, 2]), ratios, strict=True):
            shared |= np.any(np.abs(part - sums[:, 0] * ratio[j]) > RTOL_APART * size, axis=0)
        small = size[largest] <= NOTICED * np.minimum(size.max(), self.of_rows[read])
        if np.count_nonzero(shared) > MOST_SHARED or np.any(small & ~shared):
            return None
        alone = ~shared
        return read[alone], own[j[alone]], (sums[:, 0] / first[j])[:, alone], read[shared]

    def _are_others(self, rows: np.ndarray, apart: Sequence[np.ndarray]) -> bool:
        """Whether some rows are, in the symmetric part, those of columns that are not apart."""
        in_square = rows.max() < self.positions.size
        return bool(in_square and not np.isin(self.positions[rows], np.concatenate(apart)).any())

    def along(self, point: np.ndarray, seed: np.ndarray) -> np.ndarray:
        """Return the derivative along a direction."""
        return getattr(self.derivatives, self.name)(point, seed)[self.rows]

    def at(self, point: np.ndarray) -> tuple[Matrix, Matrix]:
        """Return both parts of the matrix at a point."""
        return self.of(self.entries(point))

    @cached_property
    def _fixed(self) -> tuple[Matrix, Matrix]:
        return self._of(self.base)

    @cached_property
    def _by_color(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The columns that are looked at together, their entries, and where derivatives are."""
        of_entry, parts = self.color[self.column], []
        for color in range(self.color.max() + 1):
            own = np.flatnonzero(of_entry == color)
            columns = self.positions[self.color == color]
            parts.append((columns, own, self.rows[self.row[own]]))
        return parts

    def of(self, entries: np.ndarray) -> tuple[Matrix, Matrix]:
        """Return both parts of the matrix with these entries."""
        return self._of(entries) if self.changing else self._fixed

    def _of(self, entries: np.ndarray) -> tuple[Matrix, Matrix]:
        return self.parts[0].of(entries[: self.first]), self.parts[1].of(entries[self.first :])

    def entries(self, point: np.ndarray) -> np.ndarray:
        """Return the entries at a point."""
        if not self.changing:
            return self.base
        entries = self.base.copy()
        if self.unscale is not None:
            seed, scale = np.zeros(point.size), np.ones(self.positions.size)
            seed[self.positions[self.moving]] = self.seed[self.moving]
            scale[self.moving] = self.unscale @ self.along(point, seed)[self.read]
            return entries * scale[self.column]
        for positions, own, rows in self._by_color:
            seed = np.zeros(point.size)
            seed[positions] = 1.0
            entries[own] = getattr(self.derivatives, self.name)(point, seed)[rows]
        entries[self.mirrored] = entries[self.mirror]
        return entries


def _with_mirrored(
    row: np.ndarray, column: np.ndarray, seen: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Add entries of a symmetric part that were seen on one side of its diagonal alone.

    Rounding may leave something of a sum that vanishes in one of its columns, and not in the other.
    """
    inside = row < size
    missing = inside & ~np.isin(column * size + row, (row * size + column)[inside])
    row, column = np.append(row, column[missing]), np.append(column, row[missing])
    order = np.lexsort((column, row))
    return row[order], column[order], np.append(seen, seen[:, missing], axis=1)[:, order]


def _scaled_columns(seen: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """Return what gives the scales of columns by their sum, if the point only scales columns.

    Parameters
    ----------
    seen : ndarray, shape (points, rows, columns)
        The matrix at some points; scales are relative to the first.

    Returns
    -------
    unscale : ndarray or None
        It; None if there is none.
    weights : ndarray
        Those of the columns in their sum, which are then alike, as are its rows.
    """
    first = seen[0]
    if first.shape[0] < first.shape[1]:  # some are sums of others, as one row of two effects has
        return None, np.ones(first.shape[1])
    columns = np.abs(first).max(axis=0)
    weights = 1.0 / np.where(columns > 0.0, columns, 1.0)
    rows = np.abs(first * weights).max(axis=1, initial=0.0)
    alike = first * weights / np.where(rows > 0.0, rows, 1.0)[:, None]
    squares = np.sum(alike**2, axis=0)
    others = seen * weights / np.where(rows > 0.0, rows, 1.0)[:, None]
    scales = np.einsum("krc,rc->kc", others, alike) / np.maximum(squares, 1e-300)
    expected = scales[:, None, :] * alike
    noise = ROUNDING * np.abs(scales[:, None, :])
    if np.any(np.abs(others - expected) > RTOL * np.abs(expected) + noise):
        return None, weights
    singular = np.linalg.svd(alike, compute_uv=False)
    if singular[-1] <= LEAST_SINGULAR * singular[0]:
        return None, weights
    return np.linalg.pinv(alike) / np.where(rows > 0.0, rows, 1.0), weights


def _colored(pattern: sparse.csc_array) -> np.ndarray:
    """Give columns that share a row different colors, greedily."""
    n_rows, n_columns = pattern.shape
    colors = np.zeros(n_columns, dtype=np.int64)
    taken: list[np.ndarray] = []
    for j in range(n_columns):
        own = pattern.indices[pattern.indptr[j] : pattern.indptr[j + 1]]
        color = next((c for c, rows in enumerate(taken) if not rows[own].any()), len(taken))
        if color == len(taken):
            taken.append(np.zeros(n_rows, dtype=np.bool_))
        colors[j] = color
        taken[color][own] = True
    return colors
