"""What a row reads: few numbers v, affine in the data-free quantities φ of a model.

    θ ──► φ(θ) ──► vₙ = offsetₙ + Jₙ φ ──► ℓₙ = f(vₙ; data of row n)

φ are effects and coefficients as rows see them, such as ``mu + sd*z`` or ``beta``, and the value
variables of scalars such as a standard deviation. Jₙ is sparse and needs no derivatives: a gather
(``alpha[group]``), a product with row data (``X @ beta``), both (``x * gamma[group]``), a number
that all rows share, and sums of these. The locals vₙ are the largest affine arrays of the graph
(:mod:`.affine`) below operations that are not.

What is found is compared with the graph of the model on random rows and at random points.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pymc.pytensorf import compile as pymc_compile
from pymc.util import get_var_name
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Constant, Variable, clone_get_equiv, equal_computations
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.rewriting.basic import MergeOptimizer
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.type import TensorType

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba, compile_python
from pymc_minibatch.tall.affine import Affine, AffineArrays, Lengths, Summand
from pymc_minibatch.tall.check import FAILURES
from pymc_minibatch.tall.passes import over_chunks

if TYPE_CHECKING:
    from pymc_minibatch.tall.model import TallModel

__all__ = ["NoStructureError", "RowArrays", "RowStructure", "Term", "find_structure"]

MAX_LOCALS = 16
"""Numbers that a row may read; more have no small matrix of second derivatives."""

MAX_TRACED = 64
"""Entries of value variables that are told apart in what a data-free array reads."""

MAX_LEVELS = 8
"""How often all affine arrays are opened in search of fewer parts."""

CHOOSING = (AdvancedSubtensor, Alloc, DimShuffle, Reshape, SpecifyShape, Subtensor)
"""Operations whose entries are those of their first input."""

PROBE_ROWS = (3, 5)
RTOL = 1e-9
TRIAL_ROWS = 64
N_POINTS = 6
MAX_POINTS = 24


class NoStructureError(ValueError):
    """A row does not depend on the parameters through few affine numbers; says why."""


@dataclass(frozen=True)
class Term:
    """One summand of a local input.

    Attributes
    ----------
    local
        Which local input it belongs to.
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

    local: int
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
    blocks
        Where each block of φ lies, by a readable name.
    locals
        The local inputs v of `row`, each a vector of shape (b,), float64.
    row
        The log-likelihood of each row, shape (b,), a graph of the locals and the batch.
    offsets
        For each local the part that reads only the batch, shape (b,); None for 0.
    terms
        The other parts.
    """

    flat: Variable
    batch: list[Variable]
    phi: Variable
    blocks: dict[str, slice]
    locals: list[Variable]
    row: Variable
    offsets: list[Variable | None]
    terms: list[Term]

    def local_graphs(self, phi: Any) -> list[Variable]:
        """Build the local inputs as graphs of φ and the batch."""
        first: Any = self.batch[0]
        totals: list[Any] = [
            pt.zeros((first.shape[0],), dtype="float64") if offset is None else offset
            for offset in self.offsets
        ]
        for term in self.terms:
            part: Any = phi[term.block]
            if term.index is None:
                part = pt.dot(term.columns, part)
            else:
                part = part[term.index]
                part = part if term.weight is None else term.weight * part
            totals[term.local] = totals[term.local] + part
        return totals

    @cached_property
    def compiled_arrays(self) -> CompiledFunction:
        """``(*batch) -> (offsets, columns or index and weight of each term)``."""
        nothing = pt.zeros((pt.as_tensor_variable(self.batch[0]).shape[0],), dtype="float64")
        offsets = pt.stack([nothing if o is None else o for o in self.offsets], axis=1)
        graphs = [g for t in self.terms for g in (t.columns, t.index, t.weight) if g is not None]
        return compile_numba(self.batch, [offsets, *graphs])

    def arrays(self, *batch: np.ndarray) -> "RowArrays":
        """Evaluate offsets and coefficients of some rows."""
        offsets, *rest = self.compiled_arrays.jitted(*batch)
        left = iter(rest)
        coefficients = [
            tuple(None if graph is None else next(left) for graph in (t.columns, t.index, t.weight))
            for t in self.terms
        ]
        return RowArrays(self.terms, offsets, coefficients)

    def describe(self, names: Sequence[str]) -> list[str]:
        """Write the local inputs as formulas; `names` are those of the row data."""
        name_of = dict(zip(self.batch, names, strict=True))

        def data(graph: Variable | None) -> str:
            read = set() if graph is None else _values_read([graph])
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
            if part not in formulas[term.local]:
                formulas[term.local].append(part)
        return [f"  v{i} = {' + '.join(parts)}" for i, parts in enumerate(formulas)]

    def __getstate__(self) -> dict[str, object]:
        """Leave compiled functions out."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("compiled_")}


@dataclass(frozen=True)
class RowArrays:
    """Offsets and coefficients of the rows of a batch.

    Attributes
    ----------
    terms
        The terms.
    offsets
        Shape (b, k).
    coefficients
        For each term columns, index and weight, as in :class:`Term`.
    """

    terms: Sequence[Term]
    offsets: np.ndarray
    coefficients: Sequence[tuple[np.ndarray | None, ...]]

    def locals_at(self, phi: np.ndarray) -> np.ndarray:
        """Evaluate the local inputs, shape (b, k)."""
        v = self.offsets.copy()
        for term, (columns, index, weight) in zip(self.terms, self.coefficients, strict=True):
            block = phi[term.block]
            if columns is not None:
                v[:, term.local] += columns @ block
            else:
                v[:, term.local] += block[index] * (1.0 if weight is None else weight)
        return v


def find_structure(tall: "TallModel") -> RowStructure | None:
    """Find how rows depend on the parameters; None where they do not through few affine numbers."""
    try:
        return structure_of(tall)
    except NoStructureError:
        return None


def structure_of(tall: "TallModel") -> RowStructure:
    """Find how rows depend on the parameters.

    Raises
    ------
    NoStructureError
        If not through few affine numbers.
    """
    structure = _Finder(tall).build()
    _verify(tall, structure)
    return structure


# --- Which arrays are local inputs ----------------------------------------------------------------


@dataclass(frozen=True)
class _Cut:
    """Where the graph is cut: below is affine, above is what `row` computes.

    Attributes
    ----------
    arrays
        Affine arrays that read rows.
    free
        Data-free arrays that operations on rows read.
    """

    arrays: tuple[Variable, ...]
    free: tuple[Variable, ...]


class _Finder:
    """Reads a batch graph."""

    def __init__(self, tall: "TallModel") -> None:
        self.tall = tall
        [flat, *batch], [term] = tall.batch_graph
        term = _merged([flat, *batch], term)
        self.flat, self.batch, self.term = flat, batch, term
        nodes = list(io_toposort([flat, *batch], [term]))
        values = [node for node in nodes if not isinstance(node.op, Shape | Shape_i)]
        self.reads_parameters = _downstream({flat}, values)
        self.reads_rows = _downstream(set(batch), nodes)
        observed = {
            b
            for b, row_input in zip(batch, tall.row_inputs.values(), strict=True)
            if row_input.leaf in _observed_leaves(tall)
        }
        self.affine = AffineArrays(
            self.reads_parameters,
            self.reads_rows,
            _downstream(observed, nodes),
            self._shapes(nodes),
        )
        self.observed = _downstream(observed, nodes)
        self.shapes = self.affine.shapes
        self.values = self._value_variables(nodes)
        self.start = tall.start
        self._constants: dict[Variable, np.ndarray | None] = {}
        self._traces: dict[Variable, np.ndarray] = {}
        self._inner: dict[Variable, Variable] = {}

    def _shapes(self, nodes: Sequence[Apply]) -> dict[Variable, Lengths]:
        """Evaluate all shapes on batches of two sizes; what grows with them are rows."""
        variables = [
            v
            for node in nodes
            for v in (*node.inputs, *node.outputs)
            if isinstance(v.type, TensorType)
        ]
        variables = list(dict.fromkeys([*variables, self.term]))
        shapes = [pt.as_tensor_variable(v).shape for v in variables]
        evaluate = _compile_all([self.flat, *self.batch], shapes)
        point = self.tall.start
        found = []
        for size in PROBE_ROWS:
            rows = np.arange(size) % self.tall.n_rows
            found.append(evaluate(point, *[np.ascontiguousarray(v[rows]) for v in self.tall.data]))
        few, more = PROBE_ROWS
        table: dict[Variable, Lengths] = {}
        for variable, a, b in zip(variables, *found, strict=True):
            lengths = [
                int(m) if m == n else (None if (m, n) == (few, more) else -1)
                for m, n in zip(a, b, strict=True)
            ]
            if -1 not in lengths and lengths.count(None) <= 1:
                table[variable] = tuple(lengths)
        return table

    def _value_variables(self, nodes: Sequence[Apply]) -> dict[Variable, np.ndarray]:
        """Find the value variables in the graph, with their positions in the flat point."""
        found: dict[Variable, np.ndarray] = {}
        clients: dict[Variable, list[Apply]] = {}
        for node in nodes:
            for variable in node.inputs:
                clients.setdefault(variable, []).append(node)
        positions = np.arange(self.tall.layout.size)
        for piece in clients.get(self.flat, []):
            start, stop = (int(i.data) for i in piece.inputs[1:])  # type: ignore[attr-defined]
            for reshape in clients.get(piece.outputs[0], []):
                variable = reshape.outputs[0]
                shape = [n or 0 for n in self.shapes.get(variable, ())]
                found[variable] = positions[start:stop].reshape(shape)
        return found

    # --- The cut --------------------------------------------------------------------------------

    def cut(self) -> _Cut:
        """Find the cut with the fewest local inputs.

        The highest cut goes through the largest affine arrays. Where several of these are made of
        the same parts, as ``(cut_1 - eta) / sigma`` and ``(cut_2 - eta) / sigma`` are, the parts
        are fewer; so arrays are opened, all at a time and one by one.
        """
        opened: frozenset[Variable] = frozenset()
        cut = self._collect(opened)
        levels = [(self._cost(cut), opened, cut)]
        while (tops := self._tops(cut.arrays)) and len(levels) < MAX_LEVELS:
            opened = opened.union(tops)
            cut = self._collect(opened)
            levels.append((self._cost(cut), opened, cut))
        cost, opened, cut = min(levels, key=lambda level: level[0])
        improved = True
        while improved:
            improved = False
            for array in self._tops(cut.arrays):
                trial = self._collect(opened | {array})
                if self._cost(trial) < cost:
                    cost, opened, cut = self._cost(trial), opened | {array}, trial
                    improved = True
                    break
        return cut

    def _tops(self, arrays: Sequence[Variable]) -> list[Variable]:
        """List sums, products and pieces of arrays, which no other array is made of."""
        below = {v for array in arrays for v in ancestors(array.owner.inputs)}
        kinds = (Elemwise, Subtensor, AdvancedSubtensor)
        return [a for a in arrays if a not in below and isinstance(a.owner.op, kinds)]

    def _cost(self, cut: _Cut) -> tuple[int, int]:
        """Count local inputs, then what they are sums of."""
        n_free = sum(len(entries) for entries in self.free_entries(cut.free).values())
        n_locals = n_terms = n_free
        for array in cut.arrays:
            affine = self.affine(array)
            assert affine is not None
            n_locals += len(self._varying(array))
            n_terms += len(self._varying(array)) * len(affine.summands)
        return n_locals, n_terms

    def _collect(self, opened: frozenset[Variable]) -> _Cut:
        arrays: dict[Variable, None] = {}
        free: dict[Variable, None] = {}
        seen: set[Variable] = set()
        stack = [self.term]
        while stack:
            variable = stack.pop()
            if variable in seen or variable not in self.reads_parameters:
                continue
            seen.add(variable)
            if self._is_free(variable):
                free[variable] = None
                continue
            below = self._below(variable, opened)
            if below is None:
                arrays[variable] = None
            else:
                stack.extend(reversed(below))
        return _Cut(tuple(arrays), tuple(free))

    def _is_free(self, variable: Variable) -> bool:
        return self.affine.is_free(variable) and not _is_condition(variable)

    def _below(self, variable: Any, opened: frozenset[Variable]) -> list[Variable] | None:
        """List what to look at below an array; None if the array itself is a local input."""
        node = variable.owner
        inputs = [i for i in node.inputs if i in self.reads_parameters]
        if variable in opened or self.affine(variable) is None:
            return inputs
        if isinstance(node.op, Join):
            return inputs
        if len(inputs) > 1 or not isinstance(
            node.op, Elemwise | DimShuffle | Reshape | SpecifyShape | Alloc
        ):
            return None
        if self._is_free(inputs[0]) and not self._is_trivial(node):
            return None
        return inputs

    def _is_trivial(self, node: Apply) -> bool:
        """Whether an operation on a data-free array should be left to `row`: y * log(rate)."""
        data = [i for i in node.inputs if i not in self.reads_parameters]
        return not isinstance(node.op, Elemwise) or any(i in self.observed for i in data)

    def _varying(self, array: Variable) -> list[tuple[int, ...]]:
        """List the entries, besides rows, of an affine array that read parameters."""
        affine = self.affine(array)
        assert affine is not None
        others = [range(n) for n in affine.shape if n is not None]
        return [
            entry
            for entry in itertools.product(*others)
            if any(not self._is_zero(summand, affine, entry) for summand in affine.summands)
        ]

    def _is_zero(self, summand: Summand, affine: Affine, entry: tuple[int, ...]) -> bool:
        """Whether a constant weight takes a summand out of an entry, as joining does."""
        weight = summand.weight
        if weight is None:
            return False
        if weight not in self._constants:
            self._constants[weight] = _constant_value(weight)
        value = self._constants[weight]
        return value is not None and not np.any(value[_where(weight, affine, entry)])

    # --- Data-free arrays -----------------------------------------------------------------------

    def free_entries(self, free: Sequence[Variable]) -> dict[Variable, list[int]]:
        """Choose which entries of which data-free arrays are locals by themselves.

        They are the value variables that are read, where these are not more than the arrays'
        entries; otherwise the arrays, without the functions of one variable applied to them.
        """
        chosen: dict[Variable, set[int]] = {}
        bases: dict[Variable, None] = {}
        for array in free:
            read = self._read_by(array)
            base = self._base(array)
            size = int(np.prod([n or 1 for n in self.shapes[base]]))
            if read is not None and sum(map(len, read.values())) <= size:
                for value, entries in read.items():
                    chosen.setdefault(value, set()).update(entries)
            else:
                bases[base] = None
        for base in bases:
            read = self._read_by(base)
            if read is not None and all(
                set(entries) <= chosen.get(value, set()) for value, entries in read.items()
            ):
                continue
            size = int(np.prod([n or 1 for n in self.shapes[base]]))
            chosen.setdefault(base, set()).update(range(size))
        return {variable: sorted(entries) for variable, entries in chosen.items()}

    def _base(self, variable: Any) -> Variable:
        """Take functions of one variable and changes of shape off a data-free array."""
        while variable not in self.values and variable.owner is not None:
            inputs = [i for i in variable.owner.inputs if i in self.reads_parameters]
            if len(inputs) != 1 or not isinstance(
                variable.owner.op, Elemwise | DimShuffle | Reshape | SpecifyShape
            ):
                break
            if variable.owner.inputs.count(inputs[0]) != 1 or self.shapes.get(inputs[0]) is None:
                break
            variable = inputs[0]
        return variable

    def _read_by(self, variable: Variable) -> dict[Variable, tuple[int, ...]] | None:
        """Find which entries of value variables an array may read; None if there are many."""
        above = set(ancestors([variable]))
        values = {value: at for value, at in self.values.items() if value in above}
        if sum(at.size for at in values.values()) > MAX_TRACED:
            return None
        mask = _joined(self._trace(variable))
        found = {
            value: tuple(e for e, position in enumerate(at.ravel()) if mask >> int(position) & 1)
            for value, at in values.items()
        }
        return {value: entries for value, entries in found.items() if entries}

    def _trace(self, variable: Variable) -> np.ndarray:
        """Mark for each entry of a data-free array, bit by bit, the positions it may read."""
        if variable not in self._traces:
            self._traces[variable] = np.asarray(self._traced(variable), dtype=object)
        return self._traces[variable]

    def _traced(self, variable: Any) -> np.ndarray:
        shape = tuple(n or 0 for n in self.shapes.get(variable, ()))
        if variable in self.values:
            bits = [1 << int(position) for position in self.values[variable].ravel()]
            return np.array(bits, dtype=object).reshape(shape)
        node = variable.owner
        inputs = [i for i in node.inputs if i in self.reads_parameters]
        traces = [self._trace(i) for i in inputs]
        if isinstance(node.op, Elemwise):
            total = np.zeros(shape, dtype=object)
            for trace in traces:
                total = total | trace
            return total
        if isinstance(node.op, CHOOSING) and node.inputs[:1] == inputs:
            numbers = pt.constant(np.arange(traces[0].size).reshape(traces[0].shape))
            chosen = _constant_value(node.op.make_node(numbers, *node.inputs[1:]).outputs[0])
            if chosen is not None:
                return traces[0].ravel()[chosen]
        mask = 0
        for trace in traces:
            mask |= _joined(trace)
        return np.full(shape, mask, dtype=object)

    # --- Building -------------------------------------------------------------------------------

    def build(self) -> RowStructure:
        """Put structure together."""
        cut = self.cut()
        n_locals, _ = self._cost(cut)
        if n_locals > MAX_LOCALS:
            raise NoStructureError(
                f"a row reads {n_locals} numbers that are affine in the parameters, more than "
                f"{MAX_LOCALS}"
            )
        if n_locals == 0:
            raise NoStructureError("the rows read no parameters")
        blocks = _Blocks(self)
        locals_: list[Any] = []
        offsets: list[Variable | None] = []
        terms: list[Term] = []
        arrays: dict[Variable, dict[tuple[int, ...], Any]] = {}
        for array in cut.arrays:
            inner = self._without_functions(array)
            affine = self.affine(inner)
            assert affine is not None
            arrays[array] = {}
            for entry in self._varying(inner):
                local = len(locals_)
                arrays[array][entry] = pt.dvector(f"v_{local}")
                locals_.append(arrays[array][entry])
                offset, own = self._emit(affine, entry, local, blocks)
                offsets.append(offset)
                terms.extend(own)
        values: dict[Variable, dict[int, Any]] = {}
        for variable, entries in self.free_entries(cut.free).items():
            graph: Any = variable
            where = blocks.add(graph.ravel()[entries], (variable, tuple(entries)))
            values[variable] = {}
            for position, entry in enumerate(entries):
                local = len(locals_)
                values[variable][entry] = pt.dvector(f"v_{local}")
                locals_.append(values[variable][entry])
                offsets.append(None)
                start = where.start + position
                ones = pt.ones((self.n_batch, 1), dtype="float64")
                terms.append(Term(local, slice(start, start + 1), columns=ones))
        row = _Row(self, arrays, values).build()
        return RowStructure(
            self.flat, self.batch, blocks.joined(), blocks.named(), locals_, row, offsets, terms
        )

    def _without_functions(self, array: Any) -> Variable:
        """Gather what functions of one variable are applied to: log(sigma) where it is sigma."""
        functions = self.functions(array)
        if not functions:
            return array
        [inner] = [i for i in functions[-1].inputs if i in self.reads_parameters]
        if array not in self._inner:
            node = array.owner
            new = node.op.make_node(inner, *node.inputs[1:]).outputs[0]
            self.reads_parameters.add(new)
            self.reads_rows.add(new)
            self.shapes[new] = self.shapes[array]
            self._inner[array] = new
        return self._inner[array]

    def functions(self, array: Any) -> list[Apply]:
        """List the functions of one variable in what is gathered, the last one first."""
        node, found = array.owner, []
        if not isinstance(node.op, AdvancedSubtensor) or not self._is_free(node.inputs[0]):
            return []
        inner = node.inputs[0]
        while inner not in self.values and inner.owner and isinstance(inner.owner.op, Elemwise):
            above = [i for i in inner.owner.inputs if i in self.reads_parameters]
            others = [i for i in inner.owner.inputs if i not in self.reads_parameters]
            if len(above) != 1 or not all(all(i.type.broadcastable) for i in others):
                break
            found.append(inner.owner)
            inner = above[0]
        bent = [n for n in found if not isinstance(n.op.scalar_op, ps.Add | ps.Mul | ps.Sub)]
        return found if bent else []

    @property
    def n_batch(self) -> Any:
        """The number of rows of a batch."""
        first: Any = self.batch[0]
        return first.shape[0]

    def _emit(
        self, affine: Affine, entry: tuple[int, ...], local: int, blocks: "_Blocks"
    ) -> tuple[Variable | None, list[Term]]:
        """Write one entry of an affine array as a local input."""
        offset = None
        if affine.offset is not None:
            offset = self._of_rows(affine.offset[_where(affine.offset, affine, entry)])
        terms = []
        for summand in affine.summands:
            if self._is_zero(summand, affine, entry):
                continue
            weight = summand.weight
            if weight is not None:  # (b or 1, last)
                weight = pt.cast(weight[_where(weight, affine, entry)], "float64")
            block, size, base_entry = blocks.of(summand, affine, entry)
            if summand.index is None:
                if weight is None:
                    columns = pt.ones((self.n_batch, size), dtype="float64")
                else:
                    columns = pt.broadcast_to(weight, (self.n_batch, size))
                start = block.start + base_entry * size
                terms.append(Term(local, slice(start, start + size), columns=columns))
                continue
            n_entries = (block.stop - block.start) // summand.base.type.shape[affine.rows]
            for s in range(size):
                index: Any = summand.index
                if n_entries > 1:
                    index = index * n_entries + (base_entry * size + s)
                column = None
                if weight is not None:
                    column = self._of_rows(weight[:, min(s, weight.type.shape[1] - 1)])
                terms.append(Term(local, block, index=index, weight=column))
        return offset, terms

    def _of_rows(self, vector: Any) -> Any:
        vector = pt.cast(vector, "float64")
        return pt.broadcast_to(vector, (self.n_batch,)) if vector.type.broadcastable[0] else vector


def _joined(trace: np.ndarray) -> int:
    return int(np.bitwise_or.reduce(trace.ravel(), initial=0))


def _where(t: Any, affine: Affine, entry: tuple[int, ...]) -> tuple[Any, ...]:
    """Index one entry of an array, all rows; what it has length 1 along is read at 0."""
    position = iter(entry)
    where: list[Any] = []
    for axis, length in enumerate(affine.shape):
        if length is None:
            where.append(slice(None))
        else:
            at = next(position)
            where.append(0 if t.type.shape[axis] == 1 else at)
    return tuple(where)


def _constant_value(variable: Any) -> np.ndarray | None:
    above = list(ancestors([variable]))
    if any(v.owner is None and not isinstance(v, Constant) for v in above):
        return None
    return compile_python([], [variable])()


class _Blocks:
    """Collects the blocks of φ."""

    def __init__(self, finder: _Finder) -> None:
        self.finder = finder
        self.slices: dict[Any, slice] = {}
        self.graphs: list[Any] = []

    def add(self, graph: Any, key: Any) -> slice:
        """Append a vector, unless it is there."""
        for known, graph_of in zip(self.slices, self.graphs, strict=True):
            if key not in self.slices and equal_computations([graph], [graph_of]):
                return self.slices[known]
        if key not in self.slices:
            start = max((s.stop for s in self.slices.values()), default=0)
            size = compile_python([self.finder.flat], [graph])(self.finder.start).size
            self.slices[key] = slice(start, start + size)
            self.graphs.append(graph)
        return self.slices[key]

    def of(
        self, summand: Summand, affine: Affine, entry: tuple[int, ...]
    ) -> tuple[slice, int, int]:
        """Find the block of a base, laid out as (groups, entries, summed over)."""
        base = summand.base
        rows, last = affine.rows, base.type.ndim - 1
        others = [axis for axis in range(last) if axis != rows]
        lengths = [int(base.type.shape[axis]) for axis in others]
        size = int(base.type.shape[last])
        weight = summand.weight
        if summand.weight is not None and size == 1 and weight.type.shape[last] not in (1, None):
            raise NoStructureError("a sum over data does not match its coefficients")
        groups = [] if rows is None else [rows]
        block = self.add(base.dimshuffle(*groups, *others, last).ravel(), base)
        at = [min(e, n - 1) for e, n in zip(entry, lengths, strict=True)]
        position = int(np.ravel_multi_index(at, lengths)) if lengths else 0
        return block, size, position

    def joined(self) -> Variable:
        """Build φ."""
        vectors = [pt.cast(graph, "float64") for graph in self.graphs]
        return pt.concatenate(vectors) if len(vectors) > 1 else vectors[0]

    def named(self) -> dict[str, slice]:
        """Name the blocks after variables of the model that have their values."""
        finder = self.finder
        point = finder.start + np.random.default_rng(1).normal(0, 0.1, finder.start.size)
        known = dict(zip(*_named_graphs(finder.tall), strict=True))
        values = _compile_all([finder.flat], [*self.graphs, *known.values()])(point)
        own, others = values[: len(self.graphs)], values[len(self.graphs) :]
        named: dict[str, slice] = {}
        for graph, value, where in zip(self.graphs, own, self.slices.values(), strict=True):
            found = (_name_in(n, v, value) for n, v in zip(known, others, strict=True))
            base = next((n for n in found if n is not None), None) or self._read_by(graph)
            numbered = (base if i == 1 else f"{base} ({i})" for i in itertools.count(1))
            named[next(name for name in numbered if name not in named)] = where
        return named

    def _read_by(self, graph: Variable) -> str:
        """List the variables that a block is a function of."""
        tall = self.finder.tall
        above = set(ancestors([graph]))
        read = [
            str(tall.model.values_to_rvs[value].name)
            for value, name in zip(tall.model.value_vars, tall.layout.names, strict=True)
            if any(
                v in above and at.size and at.flat[0] == tall.layout.slices[name].start
                for v, at in self.finder.values.items()
            )
        ]
        return f"f({', '.join(read)})"


def _named_graphs(tall: "TallModel") -> tuple[list[str], list[Variable]]:
    """List variables of the model that read no rows, and value variables."""
    rows = {row_input.leaf for row_input in tall.row_inputs.values()}
    variables = [
        variable
        for variable in (*tall.model.free_RVs, *tall.model.deterministics)
        if not rows.intersection(ancestors(tall.model.replace_rvs_by_values([variable])))
    ]
    names = [get_var_name(variable) for variable in variables]
    graphs = [tall.value_graph(variable) for variable in variables]
    flat: Any = tall.flat
    values = [name for name in tall.layout.names if name not in names]
    return names + values, graphs + [flat[tall.layout.slices[name]] for name in values]


def _name_in(name: str, whole: np.ndarray, part: np.ndarray) -> str | None:
    """Name a block that is a variable, or a slice of one; None if it is neither."""
    if whole.size == part.size and np.array_equal(np.sort(whole.ravel()), np.sort(part)):
        return name
    for axis in range(whole.ndim):
        for position in (
            range(whole.shape[axis]) if part.size * whole.shape[axis] == whole.size else ()
        ):
            if np.array_equal(np.take(whole, position, axis).ravel(), part):
                where = [":"] * whole.ndim
                where[axis] = str(position)
                return f"{name}[{', '.join(where)}]"
    return None


# --- What is left of the graph ----------------------------------------------------------------


class _Row:
    """Rebuilds the log-likelihood of the rows on the local inputs."""

    def __init__(
        self,
        finder: _Finder,
        arrays: Mapping[Variable, Mapping[tuple[int, ...], Any]],
        values: Mapping[Variable, Mapping[int, Any]],
    ) -> None:
        self.finder = finder
        self.rebuilt: dict[Variable, Any] = {
            array: self._array(array, entries) for array, entries in arrays.items()
        }
        self.stacked = {v: self._stacked(v, entries) for v, entries in values.items()}
        self.spread: dict[Variable, Any] = {}

    def build(self) -> Variable:
        """Build the graph."""
        return self._rebuild(self.finder.term)

    def _array(self, array: Variable, entries: Mapping[tuple[int, ...], Any]) -> Any:
        """Put local inputs in place of an affine array."""
        affine = self.finder.affine(array)
        assert affine is not None
        assert affine.rows is not None
        others = [n for n in affine.shape if n is not None]
        columns = []
        for entry in itertools.product(*map(range, others)):
            if entry in entries:
                columns.append(entries[entry])
            elif affine.offset is None:
                columns.append(pt.zeros((self.finder.n_batch,)))
            else:
                part = affine.offset[_where(affine.offset, affine, entry)]
                columns.append(self.finder._of_rows(part))
        if len(columns) == 1:
            whole = columns[0].dimshuffle(0, *["x"] * len(others))
        else:
            whole = pt.stack(columns, axis=1).reshape((self.finder.n_batch, *others))
        whole = pt.moveaxis(whole, 0, affine.rows)
        for node in reversed(self.finder.functions(array)):
            inputs = [
                whole if i in self.finder.reads_parameters else i.ravel()[0] for i in node.inputs
            ]
            whole = node.op(*inputs)
        return whole

    def _stacked(self, variable: Variable, entries: Mapping[int, Any]) -> Any:
        """Put local inputs in place of a data-free array; rows come first."""
        shape = [n or 0 for n in self.finder.shapes[variable]]
        zeros = pt.zeros((self.finder.n_batch,))
        columns = [entries.get(entry, zeros) for entry in range(int(np.prod(shape)))]
        if len(columns) == 1:
            whole = columns[0].dimshuffle(0, *["x"] * len(shape))
        else:
            whole = pt.stack(columns, axis=1).reshape((self.finder.n_batch, *shape))
        return pt.cast(whole, variable.type.dtype)

    def _rebuild(self, variable: Any) -> Any:
        if variable in self.rebuilt:
            return self.rebuilt[variable]
        if variable not in self.finder.reads_parameters:
            return variable
        node = variable.owner
        inputs = [
            self._placed(i, node) if self.finder._is_free(i) else self._rebuild(i)
            for i in node.inputs
        ]
        outputs = node.op.make_node(*inputs).outputs
        for old, new in zip(node.outputs, outputs, strict=True):
            self.rebuilt[old] = new
        return self.rebuilt[variable]

    def _placed(self, free: Any, node: Apply) -> Any:
        """Give a data-free array rows, where those of an operation that reads it are."""
        spread = self._spread(free)
        if _is_condition(node.outputs[0]):
            return spread
        shape = self.finder.shapes.get(node.outputs[0])
        op = node.op
        if shape is None or None not in shape or not isinstance(op, Elemwise | Alloc | Blockwise):
            raise NoStructureError(f"{op} takes rows and parameters together")
        rows, n_axes = shape.index(None), free.type.ndim
        if isinstance(op, Blockwise):
            if rows >= op.batch_ndim(node):
                raise NoStructureError(f"{op} takes rows together")
        else:  # axes are aligned at the last
            spread = spread.dimshuffle(0, *["x"] * (len(shape) - n_axes), *range(1, n_axes + 1))
            n_axes = len(shape)
        if spread.type.shape[rows + 1] == 1:
            spread = spread.squeeze(rows + 1)
        else:
            spread = spread[(slice(None),) * (rows + 1) + (0,)]
        return pt.moveaxis(spread, 0, rows)

    def _spread(self, free: Variable) -> Any:
        if free not in self.spread:
            above = set(ancestors([free], blockers=list(self.stacked)))
            replaced = {v: s for v, s in self.stacked.items() if v in above}
            [self.spread[free]] = vectorize_graph([free], replaced)
        return self.spread[free]


def _is_condition(variable: Any) -> bool:
    """Whether it says that something holds everywhere, for rows and parameters alike."""
    op = variable.owner.op if variable.owner else None
    if isinstance(op, All):
        return variable.type.ndim == 0
    return variable.type.dtype == "bool" and isinstance(op, MakeVector | ScalarFromTensor)


def _compile_all(
    inputs: Sequence[Variable], outputs: Sequence[Variable]
) -> Callable[..., list[np.ndarray]]:
    """Build a function with several outputs that runs in Python."""
    mode = Mode(linker="py", optimizer="minimum_compile")
    return pymc_compile(list(inputs), list(outputs), mode=mode, on_unused_input="ignore")


def _values_read(graphs: Sequence[Variable]) -> set[Variable]:
    """Find all that the values of graphs depend on, not only their shapes."""
    found: set[Variable] = set()
    stack = list(graphs)
    while stack:
        variable = stack.pop()
        if variable in found:
            continue
        found.add(variable)
        if variable.owner is not None and not isinstance(variable.owner.op, Shape | Shape_i):
            stack.extend(variable.owner.inputs)
    return found


def _merged(inputs: Sequence[Variable], term: Variable) -> Variable:
    """Copy a graph so that what is computed twice is there once."""
    copies = clone_get_equiv(inputs, [term], copy_inputs=False, copy_orphans=False)
    graph = FunctionGraph(list(inputs), [copies[term]], clone=False)
    MergeOptimizer().rewrite(graph)
    return graph.outputs[0]


def _downstream(sources: set[Variable], nodes: Sequence[Apply]) -> set[Variable]:
    found = set(sources)
    for node in nodes:
        if any(i in found for i in node.inputs):
            found.update(node.outputs)
    return found


def _continuous(tall: "TallModel") -> np.ndarray:
    """Say of each entry of the flat point whether it is continuous."""
    kinds = [
        np.full(size, np.issubdtype(dtype, np.floating))
        for size, dtype in zip(tall.layout.sizes, tall.layout.dtypes, strict=True)
    ]
    return np.concatenate(kinds)


def _observed_leaves(tall: "TallModel") -> set[Variable]:
    from pymc_minibatch.tall.slicing import data_leaves

    return {
        data_leaves([tall.model.rvs_to_values[rv]])[-1]
        for rv in tall.model.observed_RVs
        if rv.name in tall.row_names
    }


# --- Verification -----------------------------------------------------------------------------


def _verify(tall: "TallModel", structure: RowStructure) -> None:
    """Compare with the graph of the model on random rows, at random points.

    Raises
    ------
    NoStructureError
        If they differ.
    """
    rng = np.random.default_rng(20170709)
    replaced = dict(zip(structure.locals, structure.local_graphs(structure.phi), strict=True))
    [whole] = graph_replace([structure.row], replaced, strict=False)
    evaluate = compile_python([structure.flat, *structure.batch], [whole])
    expected = compile_python(*tall.batch_graph)
    start, continuous = tall.start, _continuous(tall)
    compared = 0
    for attempt in range(MAX_POINTS):
        spread = 0.0 if attempt == 0 else 2.0 ** (1 - attempt % 8)
        point = start + spread * continuous * rng.normal(size=start.size)
        rows = rng.integers(0, tall.n_rows, TRIAL_ROWS)
        batch = [np.ascontiguousarray(values[rows]) for values in tall.data]
        right = expected(point, *batch)
        try:
            found = evaluate(point, *batch)
        except FAILURES as error:
            raise NoStructureError(f"what was found cannot be evaluated ({error})") from error
        finite = np.isfinite(right)
        agrees = np.isclose(found, right, rtol=RTOL, atol=RTOL) == finite
        if found.shape != right.shape or not agrees.all():
            raise NoStructureError(
                "what was found does not give the log-likelihood of the rows"
                f" ({found[~agrees][0]} where {right[~agrees][0]} is right)"
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
    data = [v for b, v in zip(structure.batch, tall.data, strict=True) if b in read]
    for _, found in over_chunks(compile_python(batch, [ends]), data):
        for term, (least, most) in zip(gathers, found.reshape(-1, 2), strict=True):
            if least < 0 or most >= term.block.stop - term.block.start:
                raise NoStructureError(
                    f"an index runs from {least} to {most}, beyond its "
                    f"{term.block.stop - term.block.start} groups"
                )
