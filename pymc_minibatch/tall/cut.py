"""Where the graph of a row is cut: affine below, and above it what is left of the likelihood.

The cut goes through the largest affine arrays (:mod:`.affine`) below operations that are not
affine. Operations that only weigh, shift or move the entries of one array (``y * eta``) lie above
it, so that an array that the likelihood reads in several places is one.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable, clone_get_equiv
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import MergeOptimizer
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All, Sum
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor, indices_from_subtensor
from pytensor.tensor.type import TensorType

from pymc_minibatch.jit.compiled import compile_all
from pymc_minibatch.tall.affine import Affine, Lengths, Summand
from pymc_minibatch.tall.affine_arrays import AffineArrays
from pymc_minibatch.tall.by_level import (
    FEWEST_GATHERED,
    STRAIGHT,
    gathered_first,
    gathers_levels,
    linear_in_angles,
)
from pymc_minibatch.tall.entries_read import EntriesRead, constant_value, value_variables
from pymc_minibatch.tall.slicing import data_leaves
from pymc_minibatch.tall.static_shapes import with_static_shapes

if TYPE_CHECKING:
    from pymc_minibatch.tall.model import TallModel

__all__ = [
    "Cut",
    "NoStructureError",
    "RowGraph",
    "downstream",
    "entry_of",
    "gathered_like",
    "is_condition",
]

MAX_LEVELS = 8
"""How often all affine arrays are opened in search of fewer parts."""

MOST_BELOW = 12
"""Numbers that a row may read below functions of effects: its derivatives are as many as their
pairs."""

HIDING = (Elemwise, DimShuffle, Sum)
"""Operations that may hide functions of effects. Below a sum along columns there may be many."""

PROBE_ROWS = (3, 5)
"""Sizes of the batches on which shapes are evaluated."""


class NoStructureError(ValueError):
    """A row does not depend on the parameters through few affine numbers; says why."""


@dataclass(frozen=True)
class Cut:
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


class RowGraph:
    """Reads a batch graph.

    Parameters
    ----------
    tall
        The model.
    moves_functions
        Whether rows apply functions of levels that they gather, if that may help.
    """

    def __init__(self, tall: "TallModel", *, moves_functions: bool = True) -> None:
        self.tall = tall
        [flat, *batch], [term] = tall.batch_graph
        self.flat, self.batch = flat, batch
        inputs = [flat, *batch]
        merged = _merged(inputs, with_static_shapes(inputs, term))
        self.term = self._without_shapes(
            gathered_first(inputs, merged) if moves_functions else merged
        )
        nodes = list(io_toposort([flat, *batch], [self.term]))
        self.reads_parameters = downstream({flat}, nodes)
        self.reads_rows = downstream(set(batch), nodes)
        observed = {
            b
            for b, row_input in zip(batch, tall.row_inputs.values(), strict=True)
            if row_input.leaf in _observed_leaves(tall)
        }
        self.observed = downstream(observed, nodes)
        self.shapes = self._shapes(nodes)
        self.affine = AffineArrays(
            self.reads_parameters, self.reads_rows, self.observed, self.shapes
        )
        self.values = value_variables(self.flat, tall.layout.size, nodes, self.shapes)
        self.start = tall.start
        self._constants: dict[Variable, np.ndarray | None] = {}
        self.entries_read = EntriesRead(self.values, self.reads_parameters, self.shapes)
        self._inner: dict[Variable, Variable] = {}

    def _without_shapes(self, term: Variable) -> Variable:
        """Write lengths out that the graph reads off arrays; merge what is alike."""
        inputs = [self.flat, *self.batch]
        term = _with_single_lengths(_merged(inputs, term), inputs)
        nodes = [n for n in io_toposort(inputs, [term]) if isinstance(n.op, Shape | Shape_i)]
        if not nodes:
            return term
        shapes = self._shapes(nodes)
        lengths: dict[Variable, Any] = {}
        for node in nodes:
            found = shapes.get(node.inputs[0])
            if found is not None:
                known = [
                    self.n_batch if n is None else pt.constant(n, dtype="int64") for n in found
                ]
                op: Any = node.op
                lengths[node.outputs[0]] = (
                    known[op.i] if isinstance(op, Shape_i) else _vector(known)
                )
        [replaced] = graph_replace([term], lengths, strict=False)
        return _merged(inputs, replaced)

    def _shapes(self, nodes: Sequence[Apply]) -> dict[Variable, Lengths]:
        """Evaluate all shapes on batches of two sizes; what grows with them are rows."""
        variables = [
            v
            for node in nodes
            for v in (*node.inputs, *node.outputs)
            if isinstance(v.type, TensorType)
        ]
        variables = list(dict.fromkeys(variables))
        shapes = [pt.as_tensor_variable(v).shape for v in variables]
        evaluate = compile_all([self.flat, *self.batch], shapes)
        point = self.tall.start
        found = []
        for size in PROBE_ROWS:
            rows = np.arange(size) % self.tall.n_rows
            found.append(evaluate(point, *self.tall.batch(rows)))
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

    # --- The cut --------------------------------------------------------------------------------

    def cut(self) -> Cut:
        """Find the cut with the fewest predictors.

        The highest cut goes through the largest affine arrays. If several of these are made of
        the same parts, as ``(cut_1 - eta) / sigma`` and ``(cut_2 - eta) / sigma`` are, the parts
        are fewer; so arrays are opened, all at a time and one by one. Those that weigh functions of
        effects, as ``-exp(mu + sd * z)[group] * cost`` does, are opened before, if rows do not read
        many numbers then: below the function the effects enter linearly.
        """
        for kinds in (HIDING, HIDING[:-1]):
            opened = self._opened_to_functions(kinds)
            cut = self._best_below(opened)
            if not opened or self.cost(cut)[0] <= MOST_BELOW:
                return cut
        return self._best_below(frozenset())

    def _best_below(self, opened: frozenset[Variable]) -> Cut:
        """Find the cut with the fewest predictors below some arrays."""
        cut = self._collect(opened)
        levels = [(self.cost(cut), opened, cut)]
        while (tops := self._tops(cut.arrays)) and len(levels) < MAX_LEVELS:
            opened = opened.union(tops)
            cut = self._collect(opened)
            levels.append((self.cost(cut), opened, cut))
        cost, opened, cut = min(levels, key=lambda level: level[0])
        improved = True
        while improved:
            improved = False
            for array in self._tops(cut.arrays):
                trial = self._collect(opened | {array})
                if self.cost(trial) < cost:
                    cost, opened, cut = self.cost(trial), opened | {array}, trial
                    improved = True
                    break
        return cut

    def _opened_to_functions(self, kinds: tuple[type, ...]) -> frozenset[Variable]:
        """List arrays of some kinds that hide functions of effects, of which each row gathers one.

        Parameters
        ----------
        kinds
            Operations that make them.
        """
        opened: frozenset[Variable] = frozenset()
        hides = partial(self._hides_function, kinds)
        while hiding := set(filter(hides, self._collect(opened).arrays)):
            opened |= hiding
        return opened

    def _hides_function(self, kinds: tuple[type, ...], array: Any) -> bool:
        affine = self.affine(array)
        return (
            affine is not None
            and isinstance(array.owner.op, kinds)
            and any(
                _is_of_angle(self.flat, s.base) or self._gathers_function(s)
                for s in affine.summands
            )
        )

    def _gathers_function(self, summand: Summand) -> bool:
        """Whether rows gather a function of one array of many effects."""
        variable: Any = summand.base
        while summand.index is not None and variable not in self.values and variable.owner:
            op, above = variable.owner.op, variable.owner.inputs
            if isinstance(op, Elemwise):
                above = [i for i in above if not isinstance(i, Constant)]
                if not isinstance(op.scalar_op, STRAIGHT) and len(above) == 1:
                    lengths = [n or 1 for n in self.shapes.get(variable, ())]
                    return math.prod(lengths) >= FEWEST_GATHERED
            elif isinstance(op, DimShuffle | Reshape | SpecifyShape | Subtensor):
                above = above[:1]
            if len(above) != 1:
                return False
            [variable] = above
        return False

    def _tops(self, arrays: Sequence[Variable]) -> list[Variable]:
        """List sums, products and pieces of arrays, which no other array is made of."""
        below = {v for array in arrays for v in ancestors(array.owner.inputs)}
        kinds = (Elemwise, Subtensor, AdvancedSubtensor)
        return [a for a in arrays if a not in below and isinstance(a.owner.op, kinds)]

    def cost(self, cut: Cut) -> tuple[int, int]:
        """Count predictors, then what they are sums of."""
        n_free = sum(len(entries) for entries in self.entries_read.chosen_of(cut.free).values())
        n_predictors = n_terms = n_free
        for array in cut.arrays:
            affine = self.affine(array)
            assert affine is not None
            n_predictors += len(self.varying(array))
            n_terms += len(self.varying(array)) * len(affine.summands)
        return n_predictors, n_terms

    def _collect(self, opened: frozenset[Variable]) -> Cut:
        arrays: dict[Variable, None] = {}
        free: dict[Variable, None] = {}
        seen: set[Variable] = set()
        stack = [self.term]
        while stack:
            variable = stack.pop()
            if variable in seen or variable not in self.reads_parameters:
                continue
            seen.add(variable)
            if self.is_free(variable) and _is_of_angle(self.flat, variable):
                stack.extend(reversed(variable.owner.inputs))
                continue
            if self.is_free(variable):
                free[variable] = None
                continue
            below = self._below(variable, opened)
            if below is None:
                arrays[variable] = None
            else:
                stack.extend(reversed(below))
        return Cut(tuple(arrays), tuple(free))

    def is_free(self, variable: Variable) -> bool:
        """Whether it reads parameters and no row data."""
        return self.affine.is_free(variable) and not is_condition(variable)

    def _below(self, variable: Any, opened: frozenset[Variable]) -> list[Variable] | None:
        """List what to look at below an array; None if the array itself is a predictor."""
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
        if self.is_free(inputs[0]) and not self._is_trivial(node):
            return None
        return inputs

    def _is_trivial(self, node: Apply) -> bool:
        """Whether an operation on a data-free array should be left to `row`: y * log(rate)."""
        data = [i for i in node.inputs if i not in self.reads_parameters]
        return not isinstance(node.op, Elemwise) or any(i in self.observed for i in data)

    def varying(self, array: Variable) -> list[tuple[int, ...]]:
        """List the entries, other than rows, of an affine array that read parameters."""
        affine = self.affine(array)
        assert affine is not None
        others = [range(n) for n in affine.shape if n is not None]
        return [
            entry
            for entry in itertools.product(*others)
            if any(not self.is_zero(summand, affine, entry) for summand in affine.summands)
        ]

    def is_zero(self, summand: Summand, affine: Affine, entry: tuple[int, ...]) -> bool:
        """Whether a constant weight takes a summand out of an entry, as joining does."""
        weight = summand.weight
        if weight is None:
            return False
        if weight not in self._constants:
            self._constants[weight] = constant_value(weight)
        value = self._constants[weight]
        return value is not None and not np.any(value[entry_of(weight, affine, entry)])

    # --- Parts of arrays ---------------------------------------------------------------------

    def without_functions(self, array: Any) -> Variable:
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
        if not isinstance(node.op, AdvancedSubtensor) or not self.is_free(node.inputs[0]):
            return []
        inner = node.inputs[0]
        while inner not in self.values and inner.owner and isinstance(inner.owner.op, Elemwise):
            above = [i for i in inner.owner.inputs if i in self.reads_parameters]
            others = [i for i in inner.owner.inputs if i not in self.reads_parameters]
            if len(above) != 1 or above[0].type.broadcastable != inner.type.broadcastable:
                break
            if not all(all(i.type.broadcastable) or gathers_levels(node) for i in others):
                break
            found.append(inner.owner)
            inner = above[0]
        nonlinear = [n for n in found if not isinstance(n.op.scalar_op, ps.Add | ps.Mul | ps.Sub)]
        return found if nonlinear else []

    @property
    def n_batch(self) -> Any:
        """The number of rows of a batch."""
        first: Any = self.batch[0]
        return first.shape[0]

    def of_rows(self, vector: Any) -> Any:
        """Give a vector of length 1 or b the length b."""
        vector = pt.cast(vector, "float64")
        return pt.broadcast_to(vector, (self.n_batch,)) if vector.type.broadcastable[0] else vector


def gathered_like(array: Any, other: Any) -> Any:
    """Gather for each row what belongs to its level, from numbers beside those of `array`."""
    if all(other.type.broadcastable):
        return other.ravel()[0]
    if other.type.broadcastable[0]:
        return other
    return array.owner.op.make_node(other, *array.owner.inputs[1:]).outputs[0]


def entry_of(t: Any, affine: Affine, entry: tuple[int, ...]) -> tuple[Any, ...]:
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


def is_condition(variable: Any) -> bool:
    """Whether it says that something holds everywhere, for rows and parameters alike."""
    op = variable.owner.op if variable.owner else None
    if isinstance(op, All):
        return variable.type.ndim == 0
    return variable.type.dtype == "bool" and isinstance(op, MakeVector | ScalarFromTensor)


def _is_of_angle(flat: Variable, variable: Variable) -> bool:
    """Whether a graph is linear in an angle, by which it has jumps (:func:`.linear_in_angles`)."""
    return variable in linear_in_angles(io_toposort([flat], [variable]))


def _with_single_lengths(term: Variable, inputs: Sequence[Variable]) -> Variable:
    """Read one length of an array off it where it is read off all of its lengths."""
    single: dict[Variable, Any] = {}
    for node in io_toposort(inputs, [term]):
        lengths: Any = node.inputs[0].owner
        if isinstance(node.op, Subtensor) and lengths and isinstance(lengths.op, Shape):
            [array] = lengths.inputs
            places = indices_from_subtensor(node.inputs[1:], node.op.idx_list)
            if isinstance(places[0], Constant):
                single[node.outputs[0]] = Shape_i(int(places[0].data) % array.type.ndim)(array)
    [replaced] = graph_replace([term], single, strict=False)
    return replaced


def _vector(lengths: Sequence[Any]) -> Variable:
    return pt.stack(lengths) if lengths else pt.constant(np.zeros(0, dtype="int64"))


def _merged(inputs: Sequence[Variable], term: Variable) -> Variable:
    """Copy a graph so that what is computed twice is there once."""
    copies = clone_get_equiv(inputs, [term], copy_inputs=False, copy_orphans=False)
    copy: Any = copies[term]
    graph = FunctionGraph(list(inputs), [copy], clone=False)
    MergeOptimizer().rewrite(graph)
    [merged] = graph.outputs
    return merged


def downstream(sources: set[Variable], nodes: Sequence[Apply]) -> set[Variable]:
    """List some variables and what is computed from them."""
    found = set(sources)
    for node in nodes:
        if any(i in found for i in node.inputs):
            found.update(node.outputs)
    return found


def _observed_leaves(tall: "TallModel") -> set[Variable]:
    if tall.union is not None:
        return set(tall.union.observed)
    return {
        data_leaves([tall.model.rvs_to_values[rv]])[-1]
        for rv in tall.model.observed_RVs
        if rv.name in tall.row_names
    }
