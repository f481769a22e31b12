"""The log-likelihood to second order in what the rows read.

A row reads the parameters through φ(θ) and a few local inputs vₙ = Jₙ φ with a sparse Jacobian.
With f', f'' the derivatives of a row by its own inputs at φ̂, one pass sums

    G = Σ Jₙᵀ f',   H = Σ Jₙᵀ f'' Jₙ,

the dense columns by BLAS, the gathered entries by group.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.cores import n_cores, one_blas_thread
from pymc_minibatch.latent.arrow import Arrow
from pymc_minibatch.latent.layout import ArrowLayout
from pymc_minibatch.latent.rows import Reads, RowFunctions, second_order

__all__ = ["Expansion", "expand"]

CHUNK_ROWS = 2**12
PARTS = 8
"""Parts of the data that are summed by themselves, so that sums do not depend on the cores."""


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
    curvature : Arrow
        −H, in the layout of φ.
    tilt : ndarray, shape (P,)
        The slope, on average over the posterior, of all that is not of second order. Proposals are
        centered with it.
    rest : ndarray, shape (P,)
        The part of it that is not of third or fourth order either; the surrogate density has it,
        and decisions subtract it again.
    raised : ndarray, shape (G, q', q')
        What makes the groups' blocks of the curvature positive semidefinite, where outliers bend
        the log-likelihood of a group upwards. It is no part of the expansion.
    """

    at: np.ndarray
    value: float
    slope: np.ndarray
    curvature: Arrow
    tilt: np.ndarray
    rest: np.ndarray
    raised: np.ndarray


def expand(
    rows: RowFunctions,
    data: tuple[np.ndarray, ...],
    phi: np.ndarray,
    layout: ArrowLayout,
    temperature: float,
) -> Expansion:
    """Sum value, gradient and curvature at φ over all rows, in one pass."""
    place = np.zeros(phi.size, dtype=np.int64)  # dense entries 0 to p - 1, then the groups
    place[layout.dense] = np.arange(layout.dense.size)
    place[layout.groups.ravel()] = layout.dense.size + np.arange(layout.groups.size)
    n_rows, k, reads = len(data[0]), rows.n_locals, rows.reads

    def part(bounds: tuple[int, int]) -> tuple[float, np.ndarray, Arrow]:
        value, slope = 0.0, np.zeros(phi.size)
        curvature = Arrow.zeros(layout.dense.size, *layout.groups.shape)
        for start in range(bounds[0], bounds[1], CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, bounds[1])
            batch = [np.array(values[start:stop]) for values in data]
            local_inputs = rows.local_inputs(phi, *batch)
            logp, *rest = rows.derivatives(local_inputs, *batch)
            first, second = rest[:k], rest[k:]
            columns, entries, weights = rows.arrays.jitted(*batch)
            value += float(np.sum(logp))
            _add_dense(reads, columns, first, second, place, slope, curvature.dense)
            if entries.shape[1]:
                pairs = np.array([_full(second, i, j) for i in range(k) for j in range(k)])
                add_gathered(
                    columns,
                    place[reads.dense],
                    reads.dense_local,
                    entries,
                    place[entries],
                    weights,
                    reads.local,
                    np.array(first),
                    pairs.reshape(k, k, -1),
                    slope,
                    curvature.dense,
                    curvature.cross,
                    curvature.blocks,
                )
        return value, slope, curvature

    edges = np.linspace(0, n_rows, min(PARTS, n_rows) + 1).astype(int)
    bounds = list(pairwise(edges.tolist()))
    with one_blas_thread(), ThreadPoolExecutor(n_cores()) as pool:
        results = pool.map(part, bounds)
        value, slope, curvature = next(results)
        for more, more_slope, more_curvature in results:
            value, slope, curvature = value + more, slope + more_slope, curvature + more_curvature
    t = temperature
    blocks = (curvature.blocks + curvature.blocks.transpose(0, 2, 1)) / (2 * t)
    scaled = Arrow((curvature.dense + curvature.dense.T) / (2 * t), curvature.cross / t, blocks)
    raised = _semidefinite(blocks) - blocks
    none = np.zeros(phi.size)
    return Expansion(phi.copy(), value / t, slope / t, scaled, none, none, raised)


def _semidefinite(blocks: np.ndarray) -> np.ndarray:
    """Return the nearest positive semidefinite blocks."""
    if blocks.shape[1] == 1:
        return np.maximum(blocks, 0.0)
    if not np.isfinite(blocks).all():
        return blocks
    values, vectors = np.linalg.eigh(blocks)
    if not values.size or values.min() >= 0.0:
        return blocks
    return np.einsum("gij,gj,gkj->gik", vectors, np.maximum(values, 0.0), vectors)


def _full(second: list[np.ndarray], i: int, j: int) -> np.ndarray:
    """Return the second derivative by local inputs i and j from the lower triangle."""
    return second[second_order(max(i, j), min(i, j))]


def _add_dense(
    reads: Reads,
    columns: np.ndarray,
    first: list[np.ndarray],
    second: list[np.ndarray],
    place: np.ndarray,
    slope: np.ndarray,
    curvature: np.ndarray,
) -> None:
    """Add what dense columns give."""
    for i in range(len(first)):
        own = np.flatnonzero(reads.dense_local == i)
        if not own.size:
            continue
        mine = columns[:, own]
        np.add.at(slope, reads.dense[own], mine.T @ first[i])
        for j in range(i + 1):
            others = np.flatnonzero(reads.dense_local == j)
            if not others.size:
                continue
            block = mine.T @ (_full(second, i, j)[:, None] * columns[:, others])
            rows, cols = place[reads.dense[own]], place[reads.dense[others]]
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
    cross: np.ndarray,
    blocks: np.ndarray,
) -> None:
    """Add what gathered entries give, among themselves and with the dense columns."""
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
                    cross[g, slot, column_place[c]] -= value
                else:
                    dense[ps, column_place[c]] -= value
                    dense[column_place[c], ps] -= value
            for t in range(entries.shape[1]):
                pt_ = places[n, t]
                value = ws * weights[n, t] * second[ls, entry_local[t], n]
                if in_group and pt_ >= p:
                    blocks[g, slot, (pt_ - p) % width] -= value
                elif in_group:
                    cross[g, slot, pt_] -= value
                elif pt_ < p:
                    dense[ps, pt_] -= value
