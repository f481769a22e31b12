"""The log-likelihood to second order in what the rows read.

A row reads the parameters through φ(θ) and a few predictors vₙ = Jₙ φ with a sparse Jacobian.
With f', f'' the derivatives of a row by its own inputs at φ̂, one pass sums

    G = Σ Jₙᵀ f',   H = Σ Jₙᵀ f'' Jₙ,

the dense columns by BLAS, the gathered entries by group.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from typing import Protocol

import numpy as np
from scipy import sparse

from pymc_minibatch.jit.cores import n_cores, one_blas_thread
from pymc_minibatch.jit.memory import SHARE, free_bytes, require_memory
from pymc_minibatch.latent.arrowhead import ArrowheadMatrix, compact, is_summed_whole
from pymc_minibatch.latent.batched import absolute, factor_blocks, multiply_blocks
from pymc_minibatch.latent.expansion_sums import (
    ExpansionSums,
    GatheredEntries,
    add_gathered,
    joined_entries,
    meetings_of,
    second_by,
)
from pymc_minibatch.latent.layout import ArrowheadLayout, BorderAndBlocks
from pymc_minibatch.reference.rows import DesignTerms, RowFunctions

__all__ = [
    "Expansion",
    "curvature_bytes",
    "expand",
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


class OfScalars(Protocol):
    """What scalars that all rows share do to the log-likelihood."""

    def __call__(self, phi: np.ndarray) -> tuple[float, float]:
        """Return what they add, and by what they multiply the second order."""
        ...

    def slope(self, phi: np.ndarray, second_order: float) -> np.ndarray:
        """Return the slope by them."""
        ...


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
    dense_shift : ndarray, shape (P_dense, P_dense), optional
        What is added to the curvature by the dense part: the average over the field less that at
        φ̂, if the log-likelihood does not bend downwards there. It is no part of the expansion
        either.
    common : OfScalars, optional
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
    dense_shift: np.ndarray | None = None
    common: OfScalars | None = None
    is_exact: bool = False

    @cached_property
    def shifted(self) -> ArrowheadMatrix:
        """The curvature that proposals have: with both shifts."""
        curvature = self.curvature
        dense = curvature.dense if self.dense_shift is None else curvature.dense + self.dense_shift
        with np.errstate(invalid="ignore"):  # where rows are impossible
            return ArrowheadMatrix(dense, curvature.cross, curvature.blocks + self.psd_shift)

    @cached_property
    def is_shifted(self) -> bool:
        """Whether proposals have another curvature."""
        return self.dense_shift is not None or bool(self.psd_shift.any())

    def times_shifts(self, dense: np.ndarray, groups: np.ndarray) -> BorderAndBlocks:
        """Return the product of both shifts with the dense part and the groups of a vector."""
        of_dense = np.zeros(dense.size) if self.dense_shift is None else self.dense_shift @ dense
        return of_dense, multiply_blocks(self.psd_shift, groups)

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

    def part(bounds: tuple[int, int]) -> ExpansionSums:
        sums = ExpansionSums.zeros(layout, reads)
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
                pairs = np.array([second_by(second, i, j) for i in range(k) for j in range(k)])
                pairs = pairs.reshape(k, k, -1)
                gathered = joined_entries(
                    GatheredEntries(entries, weights, reads.predictor, np.array(first), pairs)
                )
                entries, weights, predictor, slopes, pairs = gathered
                places = place[entries]
                meetings += meetings_of(places, weights, predictor, pairs, layout.dense.size)
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
            total = reduce(ExpansionSums.__add__, pool.map(part, bounds))
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
    size = n_dense if is_summed_whole(n_dense) else n_columns
    entries = n_dense * size + n_groups * width * (n_columns + width)
    return 8.0 * max(1, entries)


def _concave(second: list[np.ndarray], k: int) -> list[np.ndarray]:
    """Return second derivatives of rows with minus their absolute eigenvalues."""
    whole = np.empty((second[0].size, k, k))
    for i in range(k):
        for j in range(k):
            whole[:, i, j] = second_by(second, i, j)
    concave_part = -absolute(np.nan_to_num(whole, posinf=0.0, neginf=0.0))
    return [concave_part[:, i, j] for i in range(k) for j in range(i + 1)]


def semidefinite(blocks: np.ndarray) -> np.ndarray:
    """Return the nearest positive semidefinite blocks; those that are up to rounding stay."""
    if blocks.shape[1] == 1:
        return np.maximum(blocks, 0.0)
    if not np.isfinite(blocks).all():
        return blocks
    scale = np.sqrt(np.abs(np.diagonal(blocks, axis1=1, axis2=2)))
    scale[scale == 0.0] = 1.0
    scaled = blocks / (scale[:, :, None] * scale[:, None, :])  # whatever the units of predictors
    if factor_blocks(scaled + ROUNDING * np.eye(scale.shape[1]), np.empty_like(scaled)):
        return blocks
    (indefinite,) = np.nonzero(np.linalg.eigvalsh(scaled).min(axis=1, initial=0.0) < -ROUNDING)
    if not indefinite.size:
        return blocks
    values, vectors = np.linalg.eigh(blocks[indefinite])
    shifted = blocks.copy()
    shifted[indefinite] = np.einsum("gij,gj,gkj->gik", vectors, np.maximum(values, 0.0), vectors)
    return shifted
