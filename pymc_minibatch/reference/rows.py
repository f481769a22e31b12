"""What is compiled for the rows of a model: the log-likelihood of a row and two derivatives.

A row reads φ through k predictors vₙ = Jₙ φ. All that the surrogate and its decisions take from a
row is made of four functions of a batch: vₙ at some φ, what Jₙ consists of, f(vₙ), and f with its
first and second derivatives. PyTensor takes long to differentiate and to simplify a graph, and
those beyond the second are large; so these are differences of second ones
(:mod:`pymc_minibatch.reference.remainders`).

If f has kinks, as −|y − v| has, its second derivative is zero and says nothing. There f is taken
in averages over an interval about each predictor, of half-width hᵢ, whose derivatives are

    f'ᵢ = (f(v + hᵢ) − f(v − hᵢ)) / 2hᵢ,   f''ᵢⱼ = (f'ᵢ(v + hⱼ) − f'ᵢ(v − hⱼ)) / 2hⱼ.

The intervals of a row are as wide as the posterior of what it reads, and so wider in small groups.
They are summed for the surrogate and subtracted from rows, so that nothing depends on them but what
decisions cost.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, permutations
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import grad
from pytensor.graph.basic import Constant, clone
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import graph_inputs

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba
from pymc_minibatch.jit.kept import Graph, kept_rewrite
from pymc_minibatch.jit.lean import apart
from pymc_minibatch.jit.made_once import made_once
from pymc_minibatch.jit.pointers import address_of_graph
from pymc_minibatch.reference.remainders import (
    RowConstants,
    SmoothingWidths,
    higher_orders,
    remainders,
    remainders_by_factors,
)
from pymc_minibatch.tall.structure import RowStructure

__all__ = ["DesignTerms", "RowFunctions", "simplified"]

MOST_TRIPLES = 60
"""Rows that would need more third derivatives than this do with fewer, or with none."""


@dataclass(frozen=True)
class DesignTerms:
    """Which entries of φ predictors read.

    Attributes
    ----------
    dense, dense_predictor : ndarray of int64
        For each dense column its entry of φ and its predictor.
    predictor : ndarray of int64
        For each gathered entry its predictor.
    scalars, scalar_predictor : ndarray of int64
        Entries of φ that are a predictor by themselves, and these inputs; none where third
        derivatives by all of them would be too many.
    scalar_column : ndarray of int64
        Their dense columns.
    n_predictors : int
        Number of predictors.
    """

    dense: np.ndarray
    dense_predictor: np.ndarray
    predictor: np.ndarray
    scalars: np.ndarray
    scalar_predictor: np.ndarray
    scalar_column: np.ndarray
    n_predictors: int


class RowFunctions:
    """Compiled functions of a batch of rows.

    Parameters
    ----------
    structure
        What the rows read.
    build
        What makes a function of inputs and outputs: machine code, which decisions call, or for
        passes over all rows :func:`pymc_minibatch.jit.interpreted.evaluator`.

    Attributes
    ----------
    n_predictors : int
        Number of predictors, k.
    smoothing : SmoothingWidths
        Half-widths h of intervals, if rows have kinks.
    """

    def __init__(self, structure: RowStructure, build: Callable[..., Any] = compile_numba) -> None:
        self.structure, self.build, self.smoothing = structure, build, SmoothingWidths.none()
        self.n_predictors = len(structure.predictors)

    def __getstate__(self) -> dict[str, Any]:
        """Leave compiled functions out; they are rebuilt where they are needed."""
        kept = "structure", "build", "n_predictors", "smoothing"
        return {name: getattr(self, name) for name in kept}

    @property
    def kinked(self) -> bool:
        """Whether derivatives are averages about kinks."""
        return self.smoothing.scale.size > 0

    @made_once
    def reads(self) -> DesignTerms:
        """Which predictors read what."""
        terms = self.structure.terms
        dense = [t for t in terms if t.columns is not None]
        sizes = [t.block.stop - t.block.start for t in dense]
        predictors = [t.predictor for t in terms]
        alone = [
            i
            for i, (t, size) in enumerate(zip(dense, sizes, strict=True))
            if size == 1 and predictors.count(t.predictor) == 1
        ]
        gathered = {t.predictor for t in terms if t.columns is None}
        if len(_triples(gathered, {dense[i].predictor for i in alone})) > MOST_TRIPLES:
            alone = []
        none = np.empty(0, np.int64)
        starts = np.cumsum([0, *sizes])
        return DesignTerms(
            dense=np.concatenate([none, *(np.arange(t.block.start, t.block.stop) for t in dense)]),
            dense_predictor=np.repeat(
                np.array([t.predictor for t in dense], np.int64), np.array(sizes, np.int64)
            ),
            predictor=np.array([t.predictor for t in terms if t.columns is None], np.int64),
            scalars=np.array([dense[i].block.start for i in alone], np.int64),
            scalar_predictor=np.array([dense[i].predictor for i in alone], np.int64),
            scalar_column=starts[alone].astype(np.int64),
            n_predictors=self.n_predictors,
        )

    @made_once
    def triples(self) -> list[tuple[int, int, int]]:
        """Predictors by which third derivatives are taken, in increasing order.

        These read gathered entries or are scalars, and one of them is gathered.
        """
        if self.kinked:
            return []
        gathered = {int(i) for i in self.reads.predictor}
        found = _triples(gathered, {int(i) for i in self.reads.scalar_predictor})
        return found if len(found) <= MOST_TRIPLES else []

    @made_once
    def quads(self) -> list[tuple[int, int, int]]:
        """Predictors i ≥ j and l by which fourth derivatives are taken, by the last one twice.

        They are the gathered ones.
        """
        return _quads({int(i) for i in self.reads.predictor}) if self.triples else []

    @made_once
    def predictors_at(self) -> CompiledFunction:
        """``(phi, *batch) -> v``, shape (k, b)."""
        phi = pt.dvector("phi")
        graphs = self.structure.predictor_graphs(phi)
        return self.build([phi, *self.structure.batch], [self._stacked(graphs)])

    @made_once
    def arrays(self) -> CompiledFunction:
        """``(*batch)`` gives dense columns, gathered entries of φ and weights, shape (b, ·)."""
        terms = self.structure.terms
        dense = [pt.cast(t.columns, "float64") for t in terms if t.columns is not None]
        gathered = [t for t in terms if t.columns is None]
        entries = [pt.cast(t.index, "int64") + t.block.start for t in gathered]
        weights = [self._ones if t.weight is None else t.weight for t in gathered]
        nothing = pt.zeros((self._ones.shape[0], 0), dtype="float64")
        outputs = [
            pt.concatenate([nothing, *dense], axis=1),
            self._columns(entries, "int64"),
            self._columns(weights, "float64"),
        ]
        return self.build(self.structure.batch, outputs)

    @made_once
    def row(self) -> CompiledFunction:
        """``(v, *batch) -> f``, shape (1, b)."""
        graphs = self._of_inputs([self._possible])
        return self.build([self._v, *self.structure.batch], [self._stacked(graphs)])

    @made_once
    def values(self) -> CompiledFunction:
        """``(phi, *batch) -> f``, shape (1, b)."""
        phi = pt.dvector("phi")
        graphs: list[Any] = graph_replace([self._possible], self._read_at(phi), strict=False)
        return self.build([phi, *self.structure.batch], [self._stacked(graphs)])

    @made_once
    def slope(self) -> CompiledFunction:
        """``(phi, *batch) -> gradient`` of the sum of f by φ, shape (P,).

        That is the slope of Σᵢ f'ᵢ vᵢ with f'ᵢ fixed.
        """
        phi, predictors = pt.dvector("phi"), self.structure.predictors
        slopes = _gradient(self._f * self._ones, predictors)
        fixed = [apart(f) for f in graph_replace(slopes, self._read_at(phi), strict=False)]
        at_phi = self.structure.predictor_graphs(phi)
        total: Any = sum(pt.sum(f * v) for f, v in zip(fixed, at_phi, strict=True))
        found: Any = grad(total, phi, consider_constant=fixed, disconnected_inputs="ignore")
        return self.build([phi, *self.structure.batch], [found])

    def _read_at(self, phi: Any) -> dict[Any, Any]:
        """Return graphs of the predictors at φ.

        What is gathered from φ is in a loop of its own: where it is gathered in the loop that
        computes f, the processor computes one row at a time.
        """
        read = zip(self.structure.predictors, self.structure.predictor_graphs(phi), strict=True)
        gathered = {term.predictor for term in self.structure.terms if term.index is not None}
        return {v: apart(at_phi) if i in gathered else at_phi for i, (v, at_phi) in enumerate(read)}

    @made_once
    def first(self) -> CompiledFunction:
        """``(v, *batch)`` gives f and f'ᵢ, shape (1 + k, b)."""
        graphs = self._of_inputs([self._f, *self._slopes])
        return self.build([self._v, *self.structure.batch], [self._stacked(graphs)])

    @made_once
    def derivatives(self) -> CompiledFunction:
        """``(v, *batch)`` gives f, f'ᵢ and f''ᵢⱼ for j ≤ i, shape (1 + k + k (k + 1) / 2, b).

        If rows have kinks the half-widths of averages are below v, shape (2k, b).
        """
        if self.kinked:
            return self.build([self._v, *self.structure.batch], [self._stacked(self._averages)])
        second = [
            derivative
            for i, f in enumerate(self._slopes)
            for derivative in _gradient(f, self.structure.predictors[: i + 1])
        ]
        graphs = self._of_inputs([self._f, *self._slopes, *second])
        return self.build([self._v, *self.structure.batch], [self._stacked(graphs)])

    def taylor(self, v: np.ndarray, *batch: np.ndarray) -> np.ndarray:
        """Return f with its derivatives, or averages, as :attr:`derivatives` does, given v."""
        if self.kinked:
            v = np.concatenate([v, self.half_widths(*batch)])
        found: np.ndarray = self.derivatives(v, *batch)
        return found

    def half_widths(self, *batch: np.ndarray) -> np.ndarray:
        """Return h of some rows, shape (k, b)."""
        scale, entries, least = self.smoothing
        read = self.predictors_at(entries, *batch) - self.predictors_at(0 * entries, *batch)
        return np.asarray(scale[:, None] * (least + np.abs(read)))

    def higher(self, v: np.ndarray, taylor: np.ndarray, batch: Sequence[np.ndarray]) -> np.ndarray:
        """Return derivatives beyond the second, given those up to it.

        Third ones by each of the triples come first, then fourth ones by each of the quads, shape
        (triples + quads, b).
        """
        return higher_orders(v, taylor, self.constants(np.empty(0), batch), tuple(batch))

    def remainders(
        self, first: np.ndarray, second: np.ndarray, at: np.ndarray, batch: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return the remainders of rows about φ̂ at two readings, shape (2, b)."""
        return remainders(first, second, self.constants(at, batch), tuple(batch))

    def remainders_by_factors(
        self,
        phis: np.ndarray,
        coordinates: np.ndarray,
        at: np.ndarray,
        batch: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Return the remainders of rows at many φ, less what each factor says, shape (f, m, b)."""
        return remainders_by_factors(phis, coordinates, self.constants(at, batch), tuple(batch))

    def constants(self, at: np.ndarray, batch: Sequence[np.ndarray]) -> RowConstants:
        """Return what is the same for all rows of the types of a batch, in this process."""
        triples = np.array(self.triples, np.int64).reshape(-1, 3)
        quads = np.array(self.quads, np.int64).reshape(-1, 3)
        return RowConstants(
            at=at,
            addresses=self._addresses_for(batch),
            triples=triples,
            orderings=np.array([_n_orders(triple) / 6 for triple in self.triples]),
            quads=quads,
            arrangements=np.array([_n_orders((*quad, quad[2])) / 24 for quad in self.quads]),
            smoothing=self.smoothing,
            n_predictors=self.n_predictors,
        )

    def _addresses_for(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        kinds = tuple(
            (part.dtype, part.ndim, part.flags.c_contiguous, part.flags.f_contiguous)
            for part in batch
        )
        if kinds not in self._addresses:
            phi, v = np.empty(1), np.empty((1, 1))
            functions = (self.predictors_at, phi), (self.row, v), (self.derivatives, v)
            found = [address_of_graph(f.jitted, read, *batch) for f, read in functions]
            addresses, kept_alive = zip(*found, strict=True)
            self._addresses[kinds] = np.array(addresses), kept_alive
        return self._addresses[kinds][0]

    @made_once
    def _addresses(self) -> dict[Any, tuple[np.ndarray, Any]]:
        return {}

    @made_once
    def _f(self) -> Any:
        """The graph of f."""
        return simplified([self.structure.row])[0]

    @property
    def _possible(self) -> Any:
        """The graph of f; −∞ where f is more than it can be."""
        most = self.structure.most
        return self._f if most == math.inf else pt.switch(pt.gt(self._f, most), -math.inf, self._f)

    @made_once
    def _slopes(self) -> list[Any]:
        return simplified(_gradient(self._f, self.structure.predictors))

    @property
    def _averages(self) -> list[Any]:
        """The average of f over the intervals (by Simpson's rule), and its derivatives."""
        k, [f] = self.n_predictors, self._of_inputs([self._f])
        graphs, width = [self._f, *self._slopes], [self._v[k + i] for i in range(k)]
        above = [self._moved(graphs, i, 1) for i in range(k)]
        below = [self._moved(graphs, i, -1) for i in range(k)]
        value = f + sum((above[i][0] - 2 * f + below[i][0]) / 6 for i in range(k))
        slopes = [(above[i][0] - below[i][0]) / (2 * width[i]) for i in range(k)]
        second = [
            (above[j][1 + i] - below[j][1 + i]) / (2 * width[j])
            for i in range(k)
            for j in range(i + 1)
        ]
        return [value, *slopes, *second]

    def _moved(self, graphs: Sequence[Any], i: int, sign: int) -> list[Any]:
        """Return graphs at one end of the interval about a predictor."""
        rows = {v: self._v[j] for j, v in enumerate(self.structure.predictors)}
        rows[self.structure.predictors[i]] = self._v[i] + sign * self._v[self.n_predictors + i]
        moved: list[Any] = graph_replace(list(graphs), rows, strict=False)
        return moved

    @made_once
    def _v(self) -> Any:
        return pt.dmatrix("v")

    @made_once
    def _ones(self) -> Any:
        first: Any = self.structure.batch[0]
        return pt.ones((first.shape[0],), dtype="float64")

    def _of_inputs(self, graphs: Sequence[Any]) -> list[Any]:
        rows = {v: self._v[i] for i, v in enumerate(self.structure.predictors)}
        replaced: list[Any] = graph_replace(list(graphs), rows, strict=False)
        return replaced

    def _stacked(self, vectors: Sequence[Any]) -> Any:
        return pt.stack([pt.cast(v * self._ones, "float64") for v in vectors], axis=0)

    def _columns(self, vectors: Sequence[Any], dtype: str) -> Any:
        if not vectors:
            return pt.zeros((self._ones.shape[0], 0), dtype=dtype)
        return pt.stack([pt.cast(v, dtype) for v in vectors], axis=1)


def _triples(gathered: set[int], scalars: set[int]) -> list[tuple[int, int, int]]:
    """List triples of predictors, one of them gathered, in increasing order."""
    every = combinations_with_replacement(sorted(gathered | scalars), 3)
    return [triple for triple in every if gathered.intersection(triple)]


def _quads(gathered: set[int]) -> list[tuple[int, int, int]]:
    """List fourfold choices of predictors, all with one of them twice, which comes last."""
    every = sorted(gathered)
    pairs = [(i, j) for j, i in combinations_with_replacement(every, 2)]
    # Of two that are both twice, the smaller one comes last.
    return [(i, j, last) for i, j in pairs for last in every if i != j or last <= i]


def _n_orders(indices: Sequence[int]) -> int:
    """Return in how many ways indices can be ordered."""
    return len(set(permutations(indices)))


def _gradient(of_rows: Any, inputs: Sequence[Any]) -> list[Any]:
    """Differentiate each row by its own inputs."""
    found: Any = grad(pt.sum(of_rows), list(inputs), disconnected_inputs="ignore")
    return found


def simplified(graphs: Sequence[Any]) -> list[Any]:
    """Simplify graphs, which halves what differentiating and compiling them takes."""
    inputs = [v for v in graph_inputs(graphs) if not isinstance(v, Constant)]
    found, simple = kept_rewrite(_simplify, (inputs, list(graphs)))
    replaced: list[Any] = graph_replace(simple, dict(zip(found, inputs, strict=True)), strict=False)
    return replaced


def _simplify(graph: Graph) -> Graph:
    inputs, outputs = graph
    _, copied = clone(inputs, outputs, copy_inputs=False)  # a graph is rewritten where it is
    simple: Any = rewrite_graph(list(copied), include=("canonicalize", "stabilize"))
    return inputs, list(simple)
