"""The log-likelihood to second order in what the rows read.

A row reads the parameters through φ(θ) and a few predictors vₙ = Jₙ φ with a sparse Jacobian.
With f', f'' the derivatives of a row by its own inputs at φ̂, one pass sums

    G = Σ Jₙᵀ f',   H = Σ Jₙᵀ f'' Jₙ,

the dense columns by BLAS, the gathered entries by group.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property, partial, reduce
from itertools import pairwise, permutations
from typing import NamedTuple

import numpy as np
from scipy import sparse

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.cores import n_cores, one_blas_thread
from pymc_minibatch.jit.memory import SHARE, free_bytes, require_memory
from pymc_minibatch.latent import arrowhead
from pymc_minibatch.latent.arrowhead import ArrowheadMatrix, Matrix, compact
from pymc_minibatch.latent.layout import ArrowheadLayout
from pymc_minibatch.reference.remainders import second_order
from pymc_minibatch.reference.rows import DesignTerms, RowFunctions

__all__ = [
    "Expansion",
    "GatheredEntries",
    "curvature_bytes",
    "expand",
    "joined_entries",
    "semidefinite",
]

CHUNK_ROWS, LEAST_CHUNK_ROWS, CHUNK_BYTES = 2**15, 2**12, 2**22
"""Rows of a chunk: so many that Python's share is small, and threads do not wait for each other; if
rows have many columns, so few that they stay in cache."""

PARTS, LEAST_PARTS = 8, 2
"""Parts of the data that are summed by themselves, so that sums do not depend on the cores."""

ENTRIES_OF_ROW = 25.0
"""Entries of the sums that are cleared and added in half the time that a row takes, some 100 ns."""

ROUNDING = 1e-10
"""Negative eigenvalues of a block with unit diagonal that sums over millions of rows may leave."""

COPIES = 6
"""Matrices of the size of the sums that are made of them later: prior, factors, proposals."""


@dataclass(frozen=True)
class Expansion:
    """The log-likelihood about φ̂, to second order, divided by T.

    Attributes
    ----------
    at : ndarray, shape (P,)
        φ̂.
    value : float
        The sum of all rows.
    slope : ndarray, shape (P,)
        G.
    curvature : ArrowheadMatrix
        −H, in the layout of φ.
    mean_correction : ndarray, shape (P,)
        The slope, on average over the posterior, of all that is not of second order. Proposals are
        centered with it.
    smoothing_correction : ndarray, shape (P,)
        The part of it that is not of third or fourth order either; the surrogate density has it,
        and decisions subtract it again.
    psd_shift : ndarray, shape (G, q', q')
        What makes the groups' blocks of the curvature positive semidefinite, where outliers bend
        the log-likelihood of a group upwards. It is no part of the expansion.
    common : callable, optional
        What scalars that all rows share add to the log-likelihood, and by what they multiply slope
        and curvature, ``φ -> (float, float)``.
    is_exact : bool
        Whether this is all there is to the log-likelihood (:mod:`.sums`).
    """

    at: np.ndarray
    value: float
    slope: np.ndarray
    curvature: ArrowheadMatrix
    mean_correction: np.ndarray
    smoothing_correction: np.ndarray
    psd_shift: np.ndarray
    common: Callable[[np.ndarray], tuple[float, float]] | None = None
    is_exact: bool = False

    def shared(self, phi: np.ndarray) -> tuple[float, float]:
        """Return what scalars add, and by what they multiply the second order."""
        return (0.0, 1.0) if self.common is None else self.common(phi)


@np.errstate(invalid="ignore")  # where rows are impossible
def expand(
    rows: RowFunctions,
    data: tuple[np.ndarray, ...],
    phi: np.ndarray,
    layout: ArrowheadLayout,
    temperature: float,
    *,
    concave: bool = False,
) -> Expansion:
    """Sum value, gradient and curvature at φ over all rows, in one pass.

    With `concave` each row bends downwards, as much as it bends upwards in truth. That is no
    expansion; it is for a climb over places where the log-likelihood is not concave.
    """
    place = np.zeros(phi.size, dtype=np.int64)  # dense entries 0 to p - 1, then the groups
    place[layout.dense] = np.arange(layout.dense.size)
    place[layout.groups.ravel()] = layout.dense.size + np.arange(layout.groups.size)
    n_rows, k, reads = len(data[0]), rows.n_predictors, rows.reads
    length = _chunk_rows(data, k, reads)

    def part(bounds: tuple[int, int]) -> _Sums:
        sums = _Sums.zeros(layout, reads)
        meetings: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for start in range(bounds[0], bounds[1], length):
            stop = min(start + length, bounds[1])
            batch = [np.array(values[start:stop]) for values in data]
            logp, *rest = rows.taylor(rows.predictors_at(phi, *batch), *batch)
            first, second = rest[:k], _concave(rest[k:], k) if concave else rest[k:]
            columns, entries, weights = rows.arrays.jitted(*batch)
            sums.value += float(np.sum(logp))
            sums.add_columns(reads, columns, first, second, place)
            if entries.shape[1]:
                pairs = np.array([_full(second, i, j) for i in range(k) for j in range(k)])
                pairs = pairs.reshape(k, k, -1)
                gathered = joined_entries(
                    GatheredEntries(entries, weights, reads.predictor, np.array(first), pairs)
                )
                entries, weights, predictor, slopes, pairs = gathered
                places = place[entries]
                meetings += _meetings(places, weights, predictor, pairs, layout.dense.size)
                if sums.is_sparse:
                    sums.add_dense_entries(reads, columns, gathered, places)
                add_gathered(
                    columns,
                    place[reads.dense],
                    reads.dense_predictor,
                    entries,
                    places,
                    weights,
                    predictor,
                    slopes,
                    pairs,
                    sums.slope,
                    sums.dense,
                    sums.columns,
                    sums.blocks,
                )
        sums.close()
        if meetings:
            values, at, others = (np.concatenate(parts) for parts in zip(*meetings, strict=True))
            sums.meetings += sparse.csr_array((values, (at, others)), sums.meetings.shape)
        return sums

    most = max(1, math.ceil(n_rows / LEAST_CHUNK_ROWS))
    parts = min(n_parts(layout, reads.dense.size, n_rows), most)
    edges = np.linspace(0, n_rows, parts + 1).astype(int)
    bounds = list(pairwise(edges.tolist()))
    if len(bounds) == 1:
        with one_blas_thread():
            total = part(bounds[0])
    else:
        with one_blas_thread(), ThreadPoolExecutor(n_cores()) as pool:
            total = reduce(_Sums.__add__, pool.map(part, bounds))
    t, none = temperature, np.zeros(phi.size)
    blocks = (total.blocks + total.blocks.transpose(0, 2, 1)) / (2 * t)
    cross, dense = (make(place[reads.dense]) / t for make in (total.cross, total.whole_dense))
    curvature = ArrowheadMatrix(compact(dense), cross, blocks)
    with np.errstate(invalid="ignore"):  # not finite where the log-likelihood is not
        psd_shift = semidefinite(blocks) - blocks
    return Expansion(phi.copy(), total.value / t, total.slope / t, curvature, none, none, psd_shift)


def _chunk_rows(data: tuple[np.ndarray, ...], k: int, reads: DesignTerms) -> int:
    """Return how many rows are summed at once."""
    n_numbers = reads.dense.size + 3 * reads.predictor.size + (k + 1) * (k + 2)
    row_bytes = 8 * n_numbers + sum(values[:1].nbytes for values in data)
    return int(np.clip(CHUNK_BYTES // row_bytes, LEAST_CHUNK_ROWS, CHUNK_ROWS))


def n_parts(layout: ArrowheadLayout, n_columns: int, n_rows: int) -> int:
    """Return in how many parts the rows are summed, so that their sums fit into memory.

    Few are taken if the sums have so many entries that adding them takes longer than the rows.

    Raises
    ------
    NotEnoughMemoryError
        If not even one does, with what is made of it.
    """
    n_bytes = curvature_bytes(layout, n_columns)
    (n_groups, width), n_dense = layout.groups.shape, layout.dense.size
    require_memory(
        COPIES * n_bytes,
        f"The curvature of the log-likelihood by {n_dense:,} common coefficients and effects "
        f"beside {n_groups:,} levels of {width} effects",
        "Give the grouping factors fewer levels, or sample on a machine with more memory.",
    )
    worthwhile = max(LEAST_PARTS, ENTRIES_OF_ROW * n_rows / (n_bytes / 8.0))
    return int(max(1.0, min(PARTS, worthwhile, SHARE * free_bytes() / n_bytes - COPIES)))


def curvature_bytes(layout: ArrowheadLayout, n_columns: int) -> float:
    """Return the bytes of the curvature by all that rows read of a number of dense columns."""
    (n_groups, width), n_dense = layout.groups.shape, layout.dense.size
    size = n_dense if n_dense <= arrowhead.MOST_FACTORED else n_columns
    entries = n_dense * size + n_groups * width * (n_columns + width)
    return 8.0 * max(1, entries)


class GatheredEntries(NamedTuple):
    """What some rows read of gathered entries.

    Attributes
    ----------
    entries, weights : ndarray, shape (b, s)
        Which entries of φ, and by what they are multiplied.
    predictor : ndarray of int64, shape (s,)
        To which predictor each belongs.
    first, second : ndarray, shapes (k, b) and (k, k, b)
        Derivatives of the rows by their predictors.
    """

    entries: np.ndarray
    weights: np.ndarray
    predictor: np.ndarray
    first: np.ndarray
    second: np.ndarray


def joined_entries(gathered: GatheredEntries) -> GatheredEntries:
    """Read once what several predictors read of the same entries, as those of ordered classes do.

    Each such entry becomes a predictor of its own, behind the others, by the chain rule.
    """
    entries, weights, predictor, first, second = gathered
    alike: list[list[int]] = []
    for s in range(entries.shape[1]):
        for own in alike:
            if np.array_equal(entries[:, s], entries[:, own[0]]):
                own.append(s)
                break
        else:
            alike.append([s])
    if len(alike) == entries.shape[1]:
        return gathered
    k, n_rows = first.shape
    read = np.zeros((len(alike), k, n_rows))
    for own, parts in zip(alike, read, strict=True):
        for s in own:
            parts[predictor[s]] += weights[:, s]
    crossed = np.einsum("ukn,kln->uln", read, second)
    whole = np.empty((k + len(alike), k + len(alike), n_rows))
    whole[:k, :k], whole[k:, :k] = second, crossed
    whole[:k, k:] = crossed.transpose(1, 0, 2)
    whole[k:, k:] = np.einsum("uln,vln->uvn", crossed, read)
    return GatheredEntries(
        np.ascontiguousarray(entries[:, [own[0] for own in alike]]),
        np.ones((n_rows, len(alike))),
        k + np.arange(len(alike)),
        np.concatenate([first, np.einsum("ukn,kn->un", read, first)]),
        whole,
    )


@dataclass
class _Sums:
    """Sums over rows; the groups' curvature with the dense part in two parts.

    Attributes
    ----------
    columns : ndarray, shape (G q', C)
        With each dense column of the data.
    meetings : sparse array, shape (G q', P_dense)
        With gathered entries, those of other factors.
    by_column, of_columns : ndarray, shapes (P_dense, C) and (C, C)
        Where the dense part is large and not kept as an array: its gathered entries with the dense
        columns of the data, and these with each other.
    pairs : sparse array, shape (P_dense, P_dense)
        There, its gathered entries with each other.
    """

    value: float
    slope: np.ndarray
    dense: np.ndarray
    columns: np.ndarray
    meetings: sparse.csr_array
    blocks: np.ndarray
    by_column: np.ndarray
    of_columns: np.ndarray
    pairs: sparse.csr_array

    @classmethod
    def zeros(cls, layout: ArrowheadLayout, reads: DesignTerms) -> "_Sums":
        n_dense, (n_groups, width) = layout.dense.size, layout.groups.shape
        is_sparse, n_columns = n_dense > arrowhead.MOST_FACTORED, reads.dense.size
        return cls(
            0.0,
            np.zeros(n_dense + layout.groups.size),
            np.zeros((n_dense, 0 if is_sparse else n_dense)),
            np.zeros((layout.groups.size, n_columns)),
            sparse.csr_array((layout.groups.size, n_dense)),
            np.zeros((n_groups, width, width)),
            np.zeros((n_dense if is_sparse else 0, n_columns)),
            np.zeros((n_columns, n_columns)),
            sparse.csr_array((n_dense, n_dense)),
        )

    @property
    def is_sparse(self) -> bool:
        """Whether the dense part is large and kept in parts."""
        return self.dense.shape[1] < self.dense.shape[0]

    def add_columns(
        self,
        reads: DesignTerms,
        columns: np.ndarray,
        first: list[np.ndarray],
        second: list[np.ndarray],
        place: np.ndarray,
    ) -> None:
        """Add what dense columns give."""
        at, curvature = place[reads.dense], self.dense
        if self.is_sparse:
            at, curvature = np.arange(reads.dense.size), self.of_columns
        _add_dense(reads, columns, first, second, at, self.slope, curvature)

    def add_dense_entries(
        self,
        reads: DesignTerms,
        columns: np.ndarray,
        gathered: "GatheredEntries",
        places: np.ndarray,
    ) -> None:
        """Add what gathered entries of the dense part give with columns and each other."""
        _, weights, predictor, _, second = gathered
        in_dense = places < self.dense.shape[0]
        for s in range(places.shape[1]):
            own = np.flatnonzero(in_dense[:, s])
            if not own.size:
                continue
            of_columns = second[predictor[s], reads.dense_predictor][:, own].T * columns[own]
            np.subtract.at(self.by_column, places[own, s], weights[own, s, None] * of_columns)
            for t in range(places.shape[1]):
                both = own[in_dense[own, t]]
                values = (
                    weights[both, s] * weights[both, t] * second[predictor[s], predictor[t], both]
                )
                self.triplets.append((-values, places[both, s], places[both, t]))

    @cached_property
    def triplets(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """What is to be added to `pairs`: entries, rows and columns."""
        return []

    def close(self) -> None:
        """Sum what was listed."""
        if self.triplets:
            values, at, others = (np.concatenate(x) for x in zip(*self.triplets, strict=True))
            self.pairs += sparse.csr_array((values, (at, others)), self.pairs.shape)
            self.triplets.clear()

    def __add__(self, other: "_Sums") -> "_Sums":
        return _Sums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def whole_dense(self, places: np.ndarray) -> Matrix:
        """Join the parts of the dense part; `places` are those of the columns in it."""
        if not self.is_sparse:
            return (self.dense + self.dense.T) / 2
        projector = self._projector(places)
        by_column = sparse.csr_array(self.by_column) @ projector
        of_columns = projector.T @ sparse.csr_array(self.of_columns) @ projector
        whole = self.pairs + of_columns
        return (whole + whole.T) / 2 + by_column + by_column.T

    def _projector(self, places: np.ndarray) -> sparse.csr_array:
        n_columns = places.size
        shape = n_columns, self.dense.shape[0]
        return sparse.csr_array((np.ones(n_columns), (np.arange(n_columns), places)), shape)

    def cross(self, places: np.ndarray) -> Matrix:
        """Join both parts; `places` are those of the columns in the dense part."""
        of_columns = sparse.csr_array(self.columns) @ self._projector(places)
        return compact(of_columns + self.meetings)


def _meetings(
    places: np.ndarray,
    weights: np.ndarray,
    predictor: np.ndarray,
    second: np.ndarray,
    n_dense: int,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """List what rows add to minus the curvature of an entry in a group by a gathered dense one."""
    in_group = places >= n_dense
    for s, t in permutations(range(places.shape[1]), 2):
        own = np.flatnonzero(in_group[:, s] & ~in_group[:, t])
        if own.size:
            values = weights[own, s] * weights[own, t] * second[predictor[s], predictor[t], own]
            yield -values, places[own, s] - n_dense, places[own, t]


def _concave(second: list[np.ndarray], k: int) -> list[np.ndarray]:
    """Return second derivatives of rows with minus their absolute eigenvalues."""
    whole = np.empty((second[0].size, k, k))
    for i in range(k):
        for j in range(k):
            whole[:, i, j] = _full(second, i, j)
    values, vectors = np.linalg.eigh(np.nan_to_num(whole, posinf=0.0, neginf=0.0))
    concave_part = np.einsum("bij,bj,bkj->ikb", vectors, -np.abs(values), vectors)
    return [concave_part[i, j] for i in range(k) for j in range(i + 1)]


def semidefinite(blocks: np.ndarray) -> np.ndarray:
    """Return the nearest positive semidefinite blocks; those that are up to rounding stay."""
    if blocks.shape[1] == 1:
        return np.maximum(blocks, 0.0)
    if not np.isfinite(blocks).all():
        return blocks
    scale = np.sqrt(np.abs(np.diagonal(blocks, axis1=1, axis2=2)))
    scale[scale == 0.0] = 1.0
    scaled = blocks / (scale[:, :, None] * scale[:, None, :])  # whatever the units of predictors
    (indefinite,) = np.nonzero(np.linalg.eigvalsh(scaled).min(axis=1, initial=0.0) < -ROUNDING)
    if not indefinite.size:
        return blocks
    values, vectors = np.linalg.eigh(blocks[indefinite])
    shifted = blocks.copy()
    shifted[indefinite] = np.einsum("gij,gj,gkj->gik", vectors, np.maximum(values, 0.0), vectors)
    return shifted


def _full(second: list[np.ndarray], i: int, j: int) -> np.ndarray:
    """Return the second derivative by predictors i and j from the lower triangle."""
    return second[second_order(max(i, j), min(i, j))]


def _add_dense(
    reads: DesignTerms,
    columns: np.ndarray,
    first: list[np.ndarray],
    second: list[np.ndarray],
    place: np.ndarray,
    slope: np.ndarray,
    curvature: np.ndarray,
) -> None:
    """Add what dense columns give, each at its place in the curvature."""
    for i in range(len(first)):
        own = np.flatnonzero(reads.dense_predictor == i)
        if not own.size:
            continue
        mine = columns[:, own]
        np.add.at(slope, reads.dense[own], mine.T @ first[i])
        for j in range(i + 1):
            others = np.flatnonzero(reads.dense_predictor == j)
            if not others.size:
                continue
            block = mine.T @ (_full(second, i, j)[:, None] * columns[:, others])
            rows, cols = place[own], place[others]
            np.subtract.at(curvature, np.ix_(rows, cols), block)
            if i != j:
                np.subtract.at(curvature, np.ix_(cols, rows), block.T)


@partial(jit_kept, nogil=True)
def add_gathered(
    columns: np.ndarray,
    column_place: np.ndarray,
    column_local: np.ndarray,
    entries: np.ndarray,
    places: np.ndarray,
    weights: np.ndarray,
    entry_local: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    slope: np.ndarray,
    dense: np.ndarray,
    by_columns: np.ndarray,
    blocks: np.ndarray,
) -> None:
    """Add what gathered entries give with the dense columns, and among those of one part."""
    p, width = dense.shape[0], blocks.shape[1]
    for n in range(entries.shape[0]):
        for s in range(entries.shape[1]):
            ls, ps, ws = entry_local[s], places[n, s], weights[n, s]
            slope[entries[n, s]] += ws * first[ls, n]
            in_group = ps >= p
            g = (ps - p) // width if in_group else 0
            slot = (ps - p) % width if in_group else 0
            for c in range(column_place.size):
                value = ws * second[ls, column_local[c], n] * columns[n, c]
                if in_group:
                    by_columns[ps - p, c] -= value
                elif dense.shape[1] > 0:
                    dense[ps, column_place[c]] -= value
                    dense[column_place[c], ps] -= value
            for t in range(entries.shape[1]):
                pt_ = places[n, t]
                value = ws * weights[n, t] * second[ls, entry_local[t], n]
                if in_group and pt_ >= p:
                    blocks[g, slot, (pt_ - p) % width] -= value
                elif not in_group and pt_ < p and dense.shape[1] > 0:
                    dense[ps, pt_] -= value
