"""Cholesky factors of large matrices whose entries lie near the diagonal, but for a few rows.

Random walks of many teams that meet at each time, or areas and their neighbours, beside the
coefficients of a regression: with the unknowns in order of time, or of place, a band of the matrix
has entries, and LAPACK factors it in time m k² for m unknowns and a band of k, ten times as fast as
entry by entry. The coefficients, which all unknowns meet, are eliminated last:

    ⎡ K   B ⎤     L = ⎡ R    0 ⎤      R Rᵀ = K,   W = R⁻¹ B,   C Cᵀ = A − Wᵀ W
    ⎣ Bᵀ  A ⎦         ⎣ Wᵀ   C ⎦

Reference
---------
Cuthill and McKee (1969), Reducing the bandwidth of sparse symmetric matrices.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError
from scipy.linalg.blas import dtbmv, dtbsv, dtrmv
from scipy.linalg.lapack import dpbtrf, dpotrf, dtbtrs, dtrtrs
from scipy.sparse.csgraph import reverse_cuthill_mckee

__all__ = ["NOT_POSITIVE", "Band", "BandedCholesky", "find_band"]

NOT_POSITIVE = "The dense part is not positive definite."

MOST_WORK, MOST_MULTIPLICATIONS = 0.2, 6000**3 / 6
"""Share of the multiplications of a full matrix that a factorization may take, and how many at
most: some two seconds."""

NARROW = 64
"""Entries below the diagonal from which on blocks of a band are worth a call each."""

MEETS_MANY, MOST_LAST = (0.1, 0.03, 0.01), 0.1
"""Unknowns that meet a larger share of the others are eliminated last, whichever of these takes
least work, and the share of the unknowns that they may be."""


@dataclass(frozen=True)
class Band:
    """Where the entries of a sparse matrix are in its band.

    Attributes
    ----------
    order : ndarray of int64, shape (p,)
        The unknowns in the order in which they are eliminated.
    n_last : int
        How many of them are eliminated last, after the band.
    width : int
        k: entries below the diagonal in each column of the band.
    own : ndarray of int64, shape (K,)
        Which entries of the matrix are in the lower half of the band.
    place : (ndarray, ndarray) of int64, shapes (K,)
        Their rows, counted from the diagonal, and their columns.
    """

    order: np.ndarray
    n_last: int
    width: int
    own: np.ndarray
    place: tuple[np.ndarray, np.ndarray]

    def factor(self, matrix: sparse.csr_array) -> "BandedCholesky":
        """Factor a matrix with these entries.

        Raises
        ------
        LinAlgError
            If it is not positive definite.
        """
        first = self.order.size - self.n_last
        band = np.zeros((self.width + 1, first), order="F")
        band[self.place] = matrix.data[self.own]
        root, failed = dpbtrf(band, lower=1, overwrite_ab=1)
        failed = failed or not np.isfinite(root[0]).all()
        rows = matrix[self.order[first:]].toarray()[:, self.order]
        whitened, rest = rows[:, :first].T, rows[:, first:]
        if self.n_last and not failed:
            whitened = _solve_band(root, whitened)
            rest, failed = dpotrf(rest - whitened.T @ whitened, lower=1, clean=1)
        if failed:
            raise LinAlgError(NOT_POSITIVE)
        return BandedCholesky(self.order, root, whitened, rest)


@dataclass(frozen=True)
class BandedCholesky:
    """The factor L of a banded matrix with a few full rows.

    Attributes
    ----------
    order : ndarray of int64, shape (p,)
        The unknowns in the order in which they are eliminated.
    root : ndarray, shape (k + 1, m)
        R, each column from its diagonal on.
    whitened : ndarray, shape (m, p - m)
        W.
    last : ndarray, shape (p - m, p - m)
        C.
    """

    order: np.ndarray
    root: np.ndarray
    whitened: np.ndarray
    last: np.ndarray
    has_determinant = True

    @property
    def work(self) -> float:
        """About how many multiplications the factorization takes."""
        return _work(self.root.shape[1], self._width, self.last.shape[0])

    def log_determinant(self) -> float:
        """Return log |L|."""
        return float(np.log(self.root[0]).sum() + np.log(np.diagonal(self.last)).sum())

    def solve(self, vector: np.ndarray) -> np.ndarray:
        """Return ``L⁻¹ x``."""
        band, last = self._parts(vector[self.order])
        band = dtbsv(self._width, self.root, band, lower=1)
        if last.size:
            last = dtrtrs(self.last, last - self.whitened.T @ band, lower=1)[0]
        return np.concatenate([band, last])

    def solve_transposed(self, vector: np.ndarray) -> np.ndarray:
        """Return ``L⁻ᵀ x``."""
        band, last = self._parts(vector)
        if last.size:
            last = dtrtrs(self.last, last, lower=1, trans=1)[0]
            band = band - self.whitened @ last
        solved = np.empty_like(vector)
        band = dtbsv(self._width, self.root, band, lower=1, trans=1)
        solved[self.order] = np.concatenate([band, last])
        return solved

    def multiply_transposed(self, vector: np.ndarray) -> np.ndarray:
        """Return ``Lᵀ x``."""
        band, last = self._parts(vector[self.order])
        product = dtbmv(self._width, self.root, band, lower=1, trans=1)
        if last.size:
            product = product + self.whitened @ last
            last = dtrmv(self.last, last, lower=1, trans=1)
        return np.concatenate([product, last])

    @property
    def _width(self) -> int:
        return self.root.shape[0] - 1

    def _parts(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n_band = self.root.shape[1]
        return vector[:n_band], vector[n_band:]


@lru_cache(maxsize=8)
def find_band(starts_bytes: bytes, columns_bytes: bytes) -> Band | None:
    """Find an order of the unknowns in which a pattern of entries is banded, but for a few rows.

    None if the band would fill too much of the matrix.

    Parameters
    ----------
    starts_bytes, columns_bytes
        Where rows of the matrix start and the columns of its entries, as bytes of int64.
    """
    starts, columns = (np.frombuffer(b, dtype=np.int64) for b in (starts_bytes, columns_bytes))
    size, n_met = starts.size - 1, np.diff(starts)
    pattern = sparse.csr_array(
        (np.ones(columns.size, dtype=np.int8), columns, starts), (size, size)
    )
    best, order, n_last = min(MOST_WORK * size**3 / 6, MOST_MULTIPLICATIONS), None, 0
    for share in MEETS_MANY:
        is_last = n_met > share * size
        if is_last.sum() > MOST_LAST * size:
            break
        work, first = _narrowed(pattern, np.flatnonzero(~is_last))
        if work < best:
            best, n_last = work, int(is_last.sum())
            order = np.concatenate([first, np.flatnonzero(is_last)])
    if order is None:
        return None
    n_band = size - n_last
    place = np.argsort(order)
    rows, at = place[np.repeat(np.arange(size), n_met)], place[columns]
    own = np.flatnonzero((at <= rows) & (rows < n_band))
    below = rows[own] - at[own]
    return Band(order, n_last, int(below.max(initial=0)), own, (below, at[own]))


def _narrowed(pattern: sparse.csr_array, some: np.ndarray) -> tuple[float, np.ndarray]:
    """Order some unknowns so that their band is narrow; return the work, too, with the others."""
    within = sparse.csr_matrix(pattern[some][:, some])
    order = reverse_cuthill_mckee(within, symmetric_mode=True)
    place = np.argsort(order)
    rows = np.repeat(np.arange(some.size), np.diff(within.indptr))
    width = int(np.abs(place[rows] - place[within.indices]).max(initial=0))
    return _work(some.size, width, pattern.shape[0] - some.size), some[order]


def _solve_band(root: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return ``R⁻¹ B``, block by block; LAPACK takes one column after the other.

    Entry (i, j) of R is stored i + j k numbers from the first.
    """
    width, n_band = root.shape[0] - 1, root.shape[1]
    if width < NARROW:
        return dtbtrs(root, matrix, uplo="L")[0]
    size = root.itemsize
    strides = size, width * size
    whole = np.lib.stride_tricks.as_strided(root, (n_band, n_band), strides, writeable=False)
    solved = np.empty_like(matrix)
    for start in range(0, n_band, width):
        own, before = slice(start, start + width), slice(max(0, start - width), start)
        rest = matrix[own] - np.triu(whole[own, before]) @ solved[before]
        solved[own] = dtrtrs(whole[own, own], rest, lower=1)[0]
    return solved


def _work(n_band: int, width: int, n_last: int) -> float:
    """Return about how many multiplications a factorization takes."""
    return n_band * (width + n_last) ** 2 / 2 + n_last**3 / 6
