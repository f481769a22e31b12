"""Functions of each level's own variables, moved to the rows that gather them.

A rate ``top * sigmoid(z)`` for each level, as ``Uniform(0, top)`` is, is not affine in z given
other variables, though each entry is a function of one entry of z. Written as
``(top * sigmoid(z))[group]`` rows read the rate; ``top * sigmoid(z[group])`` says the same, and the
rows read z and the top. A chain of functions of one array needs no help, unless rows multiply what
they gather by a parameter.

The same holds for functions of several of a level's own numbers: ordered thresholds and
probabilities that sum to one, which transforms make of unconstrained values, or a ratio
``(clearance / volume)[subject]`` of two columns. Any operation that works level by level is moved:
on entries, along other dimensions, columns that are taken or set. ``T(z)[item]`` is ``T(z[item])``.

Angles are arctan2(sin v, cos v) of values v on a line. They jump where v passes half a turn, and so
would an expansion about them. Rows read v, however few angles there are.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Join
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Sum
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import (
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    indices_from_subtensor,
)

__all__ = [
    "FEWEST_GATHERED",
    "STRAIGHT",
    "gathered_first",
    "gathers_levels",
    "linear_in_angles",
]

STRAIGHT = (ps.Add, ps.Cast, ps.Identity, ps.Mul, ps.Neg, ps.Second, ps.Sub)
"""Operations that are linear in effects, if the others of their inputs are
constants."""

FEWEST_GATHERED = 6
"""Effects that are too many to be hyperparameters, all of which moves change at once. Of 300 draws
of 25 weights of a mixture 15 were effective as hyperparameters, and 169 as effects."""

MANY_GATHERED = 30
"""The same if rows would read too many numbers otherwise."""

STRAIGHT_BY_LEVEL = (CumOp, DimShuffle, IncSubtensor, Join, SpecifyShape, Subtensor, Sum)
"""Operations on the numbers of a level that are linear in them."""

OF_ENTRIES = (DimShuffle, Elemwise, SpecifyShape, Subtensor)
"""Operations each of whose numbers is made of one of each array that they read."""

SCALES = (ps.Mul, ps.TrueDiv)
"""Operations by which a scale or a height enters."""

MOST_READ = 8
"""Numbers that the functions of a level may read: the derivatives of a row are as many as their
pairs."""

MOST_SET = 12
"""The same if a level's numbers are made of each other, as ordered thresholds are."""

MOST_IN_ALL = 16
"""Numbers that all that is moved may read: a row whose numbers are more has no structure."""


def gathered_first(inputs: list[Variable], term: Variable) -> Variable:
    """Gather values before they are transformed, if each level's are by themselves.

    Parameters
    ----------
    inputs
        The flat point and the batch.
    term
        A graph of these.
    """
    flat, batch = inputs[0], inputs[1:]
    term = _gathered_once(inputs, term)
    gathers = [
        (node, FunctionsOfEntries(_gathered(node), flat))
        for node in io_toposort(inputs, [term])
        if isinstance(node.op, AdvancedSubtensor)
        and _gathers_of_levels(node)
        and set(ancestors(node.inputs[:1])).isdisjoint(batch)
    ]
    multiplied = _multiplied(flat, batch, term)
    for fewest in (FEWEST_GATHERED, MANY_GATHERED):
        moved = [
            (node, functions)
            for node, functions in gathers
            if functions.are_to_be_moved(node.outputs[0] in multiplied, fewest)
        ]
        applied = set[Variable]().union(*(functions.applied for _, functions in moved))
        moved += [
            (node, functions)
            for node, functions in gathers
            if functions.is_chain and functions.applied & applied
        ]
        read = set[Variable]().union(*(functions.read for _, functions in moved))
        if moved and sum(map(_width, read)) <= MOST_IN_ALL:
            replaced = {node.outputs[0]: each.of(_first_index(node)) for node, each in moved}
            [rewritten] = graph_replace([term], replaced, strict=False)
            return rewritten
    return term


def _gathered_once(inputs: list[Variable], term: Variable) -> Variable:
    """Gather functions of regions for rows, in place of those that levels have gathered of them.

    ``exp(z)[region][hospital]`` is ``exp(z)[region[hospital]]``.
    """
    flat, batch = inputs[0], inputs[1:]
    replaced: dict[Variable, Variable] = {}
    for node in io_toposort(inputs, [term]):
        inner: Any = node.inputs[0].owner if isinstance(node.op, AdvancedSubtensor) else None
        if inner is None or not isinstance(inner.op, AdvancedSubtensor):
            continue
        if not (gathers_levels(node) and gathers_levels(inner)):
            continue
        levels, index = inner.inputs[0], _first_index(inner)
        reads_rows = not set(ancestors(inner.inputs)).isdisjoint(batch)
        if not reads_rows and FunctionsOfEntries(levels, flat).applied:
            replaced[node.outputs[0]] = levels[index[_first_index(node)]]
    return graph_replace([term], replaced, strict=False)[0] if replaced else term


class FunctionsOfEntries:
    """An array whose entries are functions of entries of others, and of what all entries read.

    Parameters
    ----------
    array
        The array, which has a level in each entry of its first dimension.
    flat
        The flat point.
    """

    def __init__(self, array: Any, flat: Variable) -> None:
        self.array, self._reads_flat, self._curved = array, {flat}, set[Variable]()
        nodes = io_toposort([flat], [array])
        self._of_angles = linear_in_angles(nodes)
        for node in nodes:
            is_length = isinstance(node.op, Shape | Shape_i)
            if not is_length and not self._reads_flat.isdisjoint(node.inputs):
                self._reads_flat.update(node.outputs)
            if self._is_curved(node):
                self._curved.update(node.outputs)
        for node in reversed(nodes):  # what is set part by part is one array
            if isinstance(node.op, IncSubtensor) and node.outputs[0] in self._curved:
                into: Any = node.inputs[0]
                if _sets(into.owner) and _works_by_level(into.owner):
                    self._curved.add(into)

    def _is_curved(self, node: Apply) -> bool:
        """Whether some function that is not linear in the levels' variables is in what it gives."""
        if not _works_by_level(node) or not _has_levels(node.outputs[0]):
            return False
        levels = [i for i in node.inputs if i in self._reads_flat and _has_levels(i)]
        if any(i in self._curved for i in levels):
            return True
        if not isinstance(node.op, Elemwise):
            return bool(levels) and not isinstance(node.op, STRAIGHT_BY_LEVEL)
        divides = isinstance(node.op.scalar_op, ps.TrueDiv) and node.inputs[1] not in levels
        return bool(levels) and not divides and not isinstance(node.op.scalar_op, STRAIGHT)

    @cached_property
    def applied(self) -> set[Variable]:
        """What its functions give, from the array down to what these read."""
        return self._walked[0]

    @property
    def read(self) -> set[Variable]:
        """What these read."""
        return self._walked[1]

    @property
    def is_chain(self) -> bool:
        """Whether each of its functions is of single entries of one array."""
        alone = all(len(self._above(each)) == 1 for each in self.applied)
        return bool(self.applied) and alone and self._are_of_entries

    @property
    def _are_of_entries(self) -> bool:
        """Whether each function gives one number for one of each array that it reads."""
        return all(isinstance(each.owner.op, OF_ENTRIES) for each in self.applied)

    def are_to_be_moved(self, is_multiplied: bool, fewest: int) -> bool:
        """Whether there are functions of many levels that rows cannot be seen to apply.

        That is, no chain of functions of one array; or a chain, of which rows multiply what they
        gather by a parameter. Effects times a function of others, such as the scale of each, are
        left as they are: given the scales they are affine.

        Parameters
        ----------
        is_multiplied
            Whether rows multiply what they gather by a parameter.
        fewest
            Levels that single numbers of each level must have.
        """
        if not self.applied:
            return False
        n_levels = self.array.type.shape[0] or MANY_GATHERED
        is_of_angle = self.array in self._of_angles
        if n_levels < fewest and self._are_of_entries and not is_of_angle:
            return False
        n_read = sum(map(_width, self.read))
        is_worth = is_multiplied or not self.is_chain
        return (
            is_worth
            and n_read <= (MOST_READ if self._are_sums else MOST_SET)
            and not any(map(self._is_mixed, self.applied))
        )

    @property
    def _are_sums(self) -> bool:
        """Whether single numbers of a level, or sums of them, are what rows gather."""
        return self._are_of_entries or any(
            isinstance(each.owner.op, CAReduce) for each in self.applied
        )

    @cached_property
    def _walked(self) -> tuple[set[Variable], set[Variable]]:
        """What functions give, and what they read, from the array down."""
        applied, read = set[Variable](), set[Variable]()
        pending = [self.array]
        while pending:
            variable = pending.pop()
            if variable not in self._curved:
                read.add(variable)
            elif variable not in applied:
                applied.add(variable)
                pending += self._above(variable)
        return applied, read

    def _above(self, variable: Any) -> list[Variable]:
        return [i for i in variable.owner.inputs if i in self._reads_flat]

    def _is_mixed(self, variable: Any) -> bool:
        """Whether it is a product of effects and of a function of others."""
        levels = set(filter(_has_levels, self._above(variable)))
        mixed = levels & self._curved and levels - self._curved
        return bool(mixed) and _applies(variable.owner, *SCALES)

    def of(self, index: Any) -> Any:
        """Return the array's entries at an index, as functions of others' entries there."""
        made: dict[Any, Any] = {}

        def at_index(variable: Any) -> Any:
            if variable not in made:
                if variable not in self._curved:
                    made[variable] = variable[index] if _has_levels(variable) else variable
                elif isinstance(variable.owner.op, SpecifyShape):
                    made[variable] = at_index(variable.owner.inputs[0])
                else:
                    inputs = map(at_index, variable.owner.inputs)
                    made[variable] = variable.owner.op(*inputs)
            return made[variable]

        return at_index(self.array)


def _works_by_level(node: Apply) -> bool:
    """Whether each level of what an operation gives is made of the same level of what it reads.

    Levels are in the first dimension. What has one entry there is read by all.
    """
    op: Any = node.op
    [out] = node.outputs if len(node.outputs) == 1 else [None]
    if out is None or isinstance(op, Elemwise):
        return out is not None
    array: Any = node.inputs[0]
    if isinstance(op, DimShuffle):
        return bool(op.new_order) and op.new_order[0] == 0
    if isinstance(op, Subtensor):
        return _is_whole(_first_index(node))
    if isinstance(op, IncSubtensor):
        is_alike = node.inputs[1].type.ndim == array[_indices(node)].type.ndim
        return is_alike and _is_whole(_first_index(node))
    if isinstance(op, Join):
        return op.axis % array.type.ndim != 0 and all(map(_has_levels, node.inputs))
    if isinstance(op, CAReduce) and isinstance(op.scalar_op, ps.Maximum | ps.Minimum):
        return False  # rows had their kinks
    if isinstance(op, CAReduce | CumOp | LogSoftmax | Softmax):
        axes = op.axis if isinstance(op.axis, tuple | list) else [op.axis]
        return None not in axes and all(axis % array.type.ndim != 0 for axis in axes)
    return isinstance(op, SpecifyShape)


def _indices(node: Apply) -> tuple[Any, ...]:
    """Return the indices of an operation that takes or sets part of an array."""
    op: Any = node.op
    n_arrays = 2 if isinstance(op, IncSubtensor) else 1
    return indices_from_subtensor(node.inputs[n_arrays:], op.idx_list)


def _first_index(node: Apply) -> Any:
    return _indices(node)[0]


def _sets(node: Apply | None) -> bool:
    return node is not None and isinstance(node.op, IncSubtensor)


def _is_whole(index: Any) -> bool:
    return isinstance(index, slice) and index == slice(None)


def linear_in_angles(nodes: Sequence[Apply]) -> set[Variable]:
    """Return what is linear in arctan2(sin v, cos v), by which PyMC gives angles.

    It has a jump where the angle is half a turn. Rows that apply it themselves read v, of which
    they are smooth functions, as a rule. Sine and cosine of an angle have no jump.
    """
    found = set[Variable]()
    for node in nodes:
        is_moved = isinstance(node.op, DimShuffle | Reshape | SpecifyShape | Subtensor)
        if _is_angle(node):
            found.update(node.inputs, node.outputs)
        elif (is_moved or _applies(node, *STRAIGHT)) and not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def _is_angle(node: Apply) -> bool:
    """Whether it is arctan2(sin v, cos v)."""
    if not _applies(node, ps.ArcTan2):
        return False
    sin, cos = (each.owner for each in node.inputs)
    both = _applies(sin, ps.Sin) and _applies(cos, ps.Cos)
    return both and sin.inputs[0] is cos.inputs[0]


def _applies(node: Any, *functions: type) -> bool:
    """Whether an operation applies one of some functions to each entry."""
    is_elementwise = node is not None and isinstance(node.op, Elemwise)
    return is_elementwise and isinstance(node.op.scalar_op, functions)


def _has_levels(variable: Any) -> bool:
    """Whether an array has more than one entry in its first dimension, so far as is known."""
    return variable.type.ndim > 0 and not variable.type.broadcastable[0]


def _width(variable: Any) -> float:
    """Return how many numbers of an array a row reads; infinitely many if that is not known."""
    lengths = variable.type.shape[1:] if _has_levels(variable) else variable.type.shape
    return math.inf if None in lengths else math.prod(lengths)


def _multiplied(flat: Variable, batch: list[Variable], term: Variable) -> set[Variable]:
    """Return what is multiplied or divided by a parameter that all rows share."""
    by_flat, by_rows, found = {flat}, set(batch), set[Variable]()
    for node in io_toposort([flat, *batch], [term]):
        for reads in (by_flat, by_rows):
            if not reads.isdisjoint(node.inputs):
                reads.update(node.outputs)
        if isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, SCALES):
            shared = [i for i in node.inputs if i in by_flat and i not in by_rows]
            if any(all(i.type.broadcastable) for i in shared):
                found.update(node.inputs)
    return found


def gathers_levels(node: Apply) -> bool:
    """Whether each row gathers one level of an array, with all that the level has."""
    return _gathers_of_levels(node) and all(map(_is_whole, _indices(node)[1:]))


def _gathers_of_levels(node: Apply) -> bool:
    """Whether each row gathers one level of an array, or the same entries of each."""
    first, *rest = _indices(node)
    return (
        not isinstance(first, slice)
        and first.type.ndim == 1
        and first.type.dtype != "bool"
        and all(_is_whole(i) or (isinstance(i, Constant) and i.type.ndim == 0) for i in rest)
    )


def _gathered(node: Apply) -> Any:
    """Return the array of which rows gather all that a level has."""
    array: Any = node.inputs[0]
    return array if gathers_levels(node) else array[(slice(None), *_indices(node)[1:])]
