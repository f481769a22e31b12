"""Sums over rows of which an expansion is made: slopes and curvatures, by what rows read.

What dense columns give is summed by BLAS, and what gathered entries give in a loop, group by group.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property, partial
from itertools import permutations
from typing import NamedTuple

import numpy as np
from scipy import sparse

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.latent.arrowhead import Matrix, compact, is_summed_whole
from pymc_minibatch.latent.layout import ArrowheadLayout
from pymc_minibatch.reference.remainders import second_order
from pymc_minibatch.reference.rows import DesignTerms

__all__ = [
    "ExpansionSums",
    "GatheredEntries",
    "add_gathered",
    "joined_entries",
    "meetings_of",
    "second_by",
]


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
class ExpansionSums:
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
    def zeros(cls, layout: ArrowheadLayout, reads: DesignTerms) -> "ExpansionSums":
        """Begin with nothing."""
        n_dense, (n_groups, width) = layout.dense.size, layout.groups.shape
        is_sparse, n_columns = not is_summed_whole(n_dense), reads.dense.size
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

    def __add__(self, other: "ExpansionSums") -> "ExpansionSums":
        return ExpansionSums(
            *(getattr(self, f.name) + getattr(other, f.name) for f in fields(self))
        )

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


def meetings_of(
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


def second_by(second: list[np.ndarray], i: int, j: int) -> np.ndarray:
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
            block = mine.T @ (second_by(second, i, j)[:, None] * columns[:, others])
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
