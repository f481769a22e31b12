"""What a row reads: few numbers v, affine in the data-free quantities φ of a model.

    θ ──► φ(θ) ──► vₙ = offsetₙ + Jₙ φ ──► ℓₙ = f(vₙ; data of row n)

φ are effects and coefficients as rows see them, such as ``mu + sd*z`` or ``beta``, and the value
variables of scalars such as a standard deviation. Jₙ is sparse and needs no derivatives: a gather
(``alpha[group]``), a product with row data (``X @ beta``), both (``x * gamma[group]``), a number
that all rows share, and sums of these. The predictors vₙ are the largest affine arrays of the graph
(:mod:`.affine`) below operations that are not.

What is found is compared with the graph of the model on random rows and at random points.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import pushforward
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors

from pymc_minibatch.jit.compiled import compile_python
from pymc_minibatch.tall.affine import Affine
from pymc_minibatch.tall.blocks import Blocks
from pymc_minibatch.tall.check import FAILURES
from pymc_minibatch.tall.cut import NoStructureError, RowGraph, entry_of
from pymc_minibatch.tall.entries import has_matrices, without_matrices
from pymc_minibatch.tall.observed import largest_log_density
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.tall.rebuilt import rebuilt_row

if TYPE_CHECKING:
    from pymc_minibatch.tall.model import TallModel
from pymc_minibatch.tall.slicing import values_read
from pymc_minibatch.tall.twice import twice_differentiable

__all__ = ["MAX_PREDICTORS", "NoStructureError", "RowStructure", "Term", "structure_of"]

MAX_PREDICTORS, MAX_ENTRIES = 16, 32
"""Numbers that a row may read; more have no small matrix of second derivatives. Those of a row
whose matrices were taken apart may be more, since its derivatives are short."""

RTOL = 1e-9
TRIAL_ROWS = 64
N_POINTS = 6
MAX_POINTS = 24


@dataclass(frozen=True)
class Term:
    """One summand of a predictor.

    Attributes
    ----------
    predictor
        Which predictor it belongs to.
    block
        The entries of φ that it reads.
    columns
        Dense: a graph of the batch, float64, shape (b, entries). None for a gather.
    index
        Gather: a graph of the batch, int64, shape (b,): which entry of the block a row reads.
        None if dense.
    weight
        Gather: a graph of the batch, shape (b,); None for 1.
    """

    predictor: int
    block: slice
    columns: Variable | None = None
    index: Variable | None = None
    weight: Variable | None = None


@dataclass(frozen=True)
class RowStructure:
    """How rows depend on the parameters.

    Attributes
    ----------
    flat
        The flat point.
    batch
        The row data, one input for each, as in ``tall.batch_graph``.
    phi
        A graph of the flat point, shape (P,): all blocks raveled and joined.
    parts
        The blocks of φ by themselves.
    blocks
        Where each block of φ lies, by a readable name, in the order of `parts`.
    predictors
        The predictors v of `row`, each a vector of shape (b,), float64.
    row
        The log-likelihood of each row, shape (b,), a graph of the predictors and the batch.
    offsets
        For each predictor the part that reads only the batch, shape (b,); None for 0.
    terms
        The other parts.
    most
        The largest log-likelihood that a row can have. Rows with more have lost their digits.
    """

    flat: Variable
    batch: list[Variable]
    phi: Variable
    parts: list[Variable]
    blocks: dict[str, slice]
    predictors: list[Variable]
    row: Variable
    offsets: list[Variable | None]
    terms: list[Term]
    most: float = math.inf

    def predictor_graphs(self, phi: Any) -> list[Variable]:
        """Build the predictors as graphs of φ and the batch."""
        return self.predictor_graphs_of([phi[where] for where in self.blocks.values()])

    def predictor_graphs_of(self, parts: Sequence[Any]) -> list[Variable]:
        """Build the predictors as graphs of the blocks of φ and the batch."""
        first: Any = self.batch[0]
        starts = [where.start for where in self.blocks.values()]
        totals: list[Any] = [
            pt.zeros((first.shape[0],), dtype="float64") if offset is None else offset
            for offset in self.offsets
        ]
        for term in self.terms:
            own = self.part_of(term)
            part: Any = parts[own][term.block.start - starts[own] : term.block.stop - starts[own]]
            if term.index is None:
                part = pt.dot(term.columns, part)
            else:
                part = part[term.index]
                part = part if term.weight is None else term.weight * part
            totals[term.predictor] = totals[term.predictor] + part
        return totals

    @property
    def n_read(self) -> int:
        """Entries of φ, P."""
        return max(where.stop for where in self.blocks.values())

    @property
    def graph(self) -> tuple[list[Variable], list[Variable]]:
        """The flat point and the batch, and the log-likelihood of each row by what it reads."""
        replaced = dict(zip(self.predictors, self.predictor_graphs(self.phi), strict=True))
        return [self.flat, *self.batch], graph_replace([self.row], replaced, strict=False)

    def part_of(self, term: Term) -> int:
        """Return the position of the block that a term reads."""
        starts = [where.start for where in self.blocks.values()]
        return bisect_right(starts, term.block.start) - 1

    @cached_property
    def nonlinear(self) -> list[bool]:
        """For each block of φ, whether it is no affine function of the parameters.

        Along a line its derivative would not depend on where it is taken.
        """
        epsilon, start, way = pt.dscalar("epsilon"), pt.dvector("start"), pt.dvector("way")
        line: dict[Variable, Variable] = {self.flat: start + epsilon * way}
        along: list[Any] = graph_replace(self.parts, line, strict=False)

        def is_curved(part: Any) -> bool:
            if epsilon not in ancestors([part]):
                return False
            derivative: Any = pushforward(part, epsilon, pt.ones_like(epsilon))
            slope: Any = rewrite_graph(derivative)
            return epsilon in ancestors([slope])

        return [is_curved(part) for part in along]

    def describe(self, names: Sequence[str]) -> list[str]:
        """Write the predictors as formulas; `names` are those of the row data."""
        name_of = dict(zip(self.batch, names, strict=True))

        def data(graph: Variable | None) -> str:
            read = set() if graph is None else values_read([graph])
            return ", ".join(name_of[b] for b in self.batch if b in read)

        formulas: list[list[str]] = [
            [data(offset) or "constant"] if offset is not None else [] for offset in self.offsets
        ]
        for term in self.terms:
            [(block, where)] = [
                (name, at)
                for name, at in self.blocks.items()
                if at.start <= term.block.start < at.stop
            ]
            size, whole = term.block.stop - term.block.start, where.stop - where.start
            if size < whole:
                first = term.block.start - where.start
                block += f"[{first}]" if size == 1 else f"[{first}:{first + size}]"
            if term.index is not None:
                part = f"{block}[{data(term.index)}]"
                part = f"{data(term.weight)} * {part}" if data(term.weight) else part
                part += f" ({size:,} effects)"
            else:
                by = data(term.columns)
                part = f"{by} {'*' if size == 1 else '@'} {block}" if by else block
                part += f" ({size:,} coefficients)" if size > 1 else ""
            if part not in formulas[term.predictor]:
                formulas[term.predictor].append(part)
        return [f"  v{i} = {' + '.join(parts)}" for i, parts in enumerate(formulas)]


def structure_of(tall: "TallModel") -> RowStructure:
    """Find how rows depend on the parameters.

    Raises
    ------
    NoStructureError
        If not through few affine numbers.
    """
    try:
        structure = _Builder(RowGraph(tall)).build()
    except NoStructureError:  # it may be read if levels are gathered as they are written
        structure = _Builder(RowGraph(tall, moves_functions=False)).build()
    _verify(tall, structure)
    return structure


# --- Building ---------------------------------------------------------------------------------


class _Builder:
    """Writes arrays of the cut as predictors."""

    def __init__(self, graph: RowGraph) -> None:
        self.graph = graph
        self.blocks = Blocks(graph)
        self.predictors: list[Any] = []
        self.offsets: list[Variable | None] = []
        self.terms: list[Term] = []

    def build(self) -> RowStructure:
        """Put the structure together.

        Raises
        ------
        NoStructureError
            If there are too many predictors, or none.
        """
        graph = self.graph
        cut = graph.cut()
        n_predictors, _ = graph.cost(cut)
        _check_number(n_predictors, MAX_ENTRIES if has_matrices(graph.term) else MAX_PREDICTORS)
        if n_predictors == 0:
            raise NoStructureError("the rows read no parameters")
        arrays = {array: self._array(array) for array in cut.arrays}
        values = {
            variable: self._shared(variable, entries)
            for variable, entries in graph.entries_read.chosen_of(cut.free).items()
        }
        # Only now are lengths known of variables with dims, along which products are written out.
        rebuilt = twice_differentiable(rebuilt_row(graph, arrays, values))
        row = without_matrices(rebuilt, self.predictors)
        if row is rebuilt:
            _check_number(n_predictors, MAX_PREDICTORS)
        terms = [g for t in self.terms for g in (t.columns, t.index, t.weight)]
        if graph.flat in ancestors([g for g in (row, *self.offsets, *terms) if g is not None]):
            raise NoStructureError("its coefficients read parameters")
        blocks = self.blocks
        return RowStructure(
            flat=graph.flat,
            batch=graph.batch,
            phi=blocks.joined(),
            parts=blocks.vectors(),
            blocks=blocks.named(),
            predictors=self.predictors,
            row=row,
            offsets=self.offsets,
            terms=self.terms,
            most=largest_log_density(graph.tall.model, graph.tall.row_names),
        )

    def _local(self, offset: Variable | None) -> Any:
        self.predictors.append(pt.dvector(f"v_{len(self.predictors)}"))
        self.offsets.append(offset)
        return self.predictors[-1]

    def _array(self, array: Variable) -> dict[tuple[int, ...], Any]:
        """Make predictors of the entries of an affine array."""
        inner = self.graph.without_functions(array)
        affine = self.graph.affine(inner)
        assert affine is not None
        entries: dict[tuple[int, ...], Any] = {}
        for entry in self.graph.varying(inner):
            offset = affine.offset
            if offset is not None:
                offset = self.graph.of_rows(offset[entry_of(offset, affine, entry)])
            entries[entry] = self._local(offset)
            self._add_terms(affine, entry)
        return entries

    def _shared(self, variable: Any, entries: Sequence[int]) -> dict[int, Any]:
        """Make predictors of entries of a data-free array, which all rows share."""
        block = self.blocks.add(variable.ravel()[entries], (variable, tuple(entries)))
        found: dict[int, Any] = {}
        for position, entry in enumerate(entries, start=block.start):
            found[entry] = self._local(None)
            ones = pt.ones((self.graph.n_batch, 1), dtype="float64")
            own = slice(position, position + 1)
            self.terms.append(Term(len(self.predictors) - 1, own, columns=ones))
        return found

    def _add_terms(self, affine: Affine, entry: tuple[int, ...]) -> None:
        """Write the summands of one entry of an affine array as terms of the last predictor."""
        predictor, n_batch = len(self.predictors) - 1, self.graph.n_batch
        for summand in affine.summands:
            if self.graph.is_zero(summand, affine, entry):
                continue
            weight = summand.weight
            if weight is not None:  # of shape (b or 1, summed over or 1)
                weight = pt.cast(weight[entry_of(weight, affine, entry)], "float64")
            block, size, position = self.blocks.of(summand, affine, entry)
            if summand.index is None:
                columns = pt.ones((n_batch, size), dtype="float64")
                if weight is not None:
                    columns = pt.broadcast_to(weight, (n_batch, size))
                start = block.start + position * size
                self.terms.append(Term(predictor, slice(start, start + size), columns=columns))
                continue
            n_entries = (block.stop - block.start) // summand.base.type.shape[affine.rows]
            for s in range(size):
                index: Any = summand.index
                if n_entries > 1:
                    index = index * n_entries + (position * size + s)
                own = None
                if weight is not None:
                    own = self.graph.of_rows(weight[:, min(s, weight.type.shape[1] - 1)])
                self.terms.append(Term(predictor, block, index=index, weight=own))


def _check_number(n_predictors: int, most: int) -> None:
    if n_predictors > most:
        raise NoStructureError(
            f"a row depends on {n_predictors} numbers that are affine in the parameters, more than "
            f"{most}"
        )


def _continuous(tall: "TallModel") -> np.ndarray:
    """Say of each entry of the flat point whether it is continuous."""
    kinds = [
        np.full(size, np.issubdtype(dtype, np.floating))
        for size, dtype in zip(tall.layout.sizes, tall.layout.dtypes, strict=True)
    ]
    return np.concatenate(kinds)


def _verify(tall: "TallModel", structure: RowStructure) -> None:
    """Compare with the graph of the model on random rows, at random points.

    Raises
    ------
    NoStructureError
        If they differ.
    """
    rng = np.random.default_rng(20170709)
    evaluate = compile_python(*structure.graph)
    expected = compile_python(*tall.batch_graph)
    start, continuous = tall.start, _continuous(tall)
    compared = 0
    for attempt in range(MAX_POINTS):
        spread = 0.0 if attempt == 0 else 2.0 ** (1 - attempt % 8)
        point = start + spread * continuous * rng.normal(size=start.size)
        rows = tall.random_rows(rng, TRIAL_ROWS)
        batch = tall.batch(rows)
        try:
            right = expected(point, *batch)
        except FAILURES:  # such as a matrix that is not positive definite
            continue
        try:
            found = evaluate(point, *batch)
        except FAILURES as error:
            raise NoStructureError(
                f"the structure that was found cannot be evaluated ({error})"
            ) from error
        finite = np.isfinite(right)
        if found.shape != right.shape:
            raise NoStructureError(
                f"the structure that was found has shape {found.shape}, not {right.shape}"
            )
        close = np.isclose(found, right, rtol=RTOL, atol=RTOL)
        agrees = np.where(finite, close, ~np.isfinite(found))
        if not agrees.all():
            raise NoStructureError(
                "the structure that was found does not give the log-likelihood of the rows"
                f" ({found[~agrees][0]} instead of {right[~agrees][0]})"
            )
        compared += bool(finite.mean() > 0.5)
        if compared == N_POINTS:
            break
    if not compared:
        raise NoStructureError("at random points near the start most rows are not finite")
    _check_indices(tall, structure)


def _check_indices(tall: "TallModel", structure: RowStructure) -> None:
    """Refuse a gather that reads beyond its block for any row.

    Raises
    ------
    NoStructureError
        If one does.
    """
    gathers = [term for term in structure.terms if term.index is not None]
    if not gathers:
        return
    graphs: list[Any] = [term.index for term in gathers]
    ends = pt.stack([end for index in graphs for end in (index.min(), index.max())])
    read = set(ancestors([ends]))
    batch = [b for b in structure.batch if b in read]
    # If rows are in partitions nothing is read by way of the structure: a sample will do.
    rows = tall.data if tall.partitions is None else tall.batch(tall.partitions.kept_rows())
    data = [v for b, v in zip(structure.batch, rows, strict=True) if b in read]
    evaluate, lock = compile_python(batch, [ends]), Lock()

    def one_at_a_time(*chunk: np.ndarray) -> np.ndarray:
        with lock:  # a function that runs in Python keeps what it computes in one place
            return evaluate(*chunk)

    for _, found in over_chunks(one_at_a_time, data):
        for term, (least, most) in zip(gathers, found.reshape(-1, 2), strict=True):
            if least < 0 or most >= term.block.stop - term.block.start:
                raise NoStructureError(
                    f"an index runs from {least} to {most}, beyond its "
                    f"{term.block.stop - term.block.start} groups"
                )
