"""Functions of each level's own variables, moved to the rows that gather them.

A rate ``top * sigmoid(z)`` for each level, as ``Uniform(0, top)`` is, is not affine in z given
other variables, though each entry is a function of one entry of z. Written as
``(top * sigmoid(z))[group]`` rows read the rate; ``top * sigmoid(z[group])`` says the same, and the
rows read z and the top. A chain of functions of one array needs no help, unless rows multiply what
they gather by a parameter.

Ordered thresholds of many items are what a transform makes of unconstrained values, each item's
from its own. Written as ``T(z)[item]`` rows read what is not affine in z, though each item is but a
few numbers: ``T(z[item])`` says the same, and the rows read z. Probabilities that sum to one are
left alone, since the softmax that makes them is taken apart elsewhere.

Angles are arctan2(sin v, cos v) of values v on a line. They jump where v passes half a turn, and so
would an expansion about them. Rows read v, however few angles there are.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pymc.util import get_var_name
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.special import Softmax
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor, indices_from_subtensor

from pymc_minibatch.jit.compiled import compile_all

if TYPE_CHECKING:
    from pymc_minibatch.tall.model import TallModel

__all__ = [
    "FEWEST_GATHERED",
    "STRAIGHT",
    "gathered_first",
    "gathers_levels",
    "linear_in_angles",
]

RTOL, N_POINTS = 1e-12, 2

STRAIGHT = (ps.Add, ps.Cast, ps.Identity, ps.Mul, ps.Neg, ps.Second, ps.Sub)
"""Operations that are linear in effects, if the others of their inputs are
constants."""

FEWEST_GATHERED = 30
"""Effects that are too many to be hyperparameters, all of which moves change at once."""

SCALES = (ps.Mul, ps.TrueDiv)
"""Operations by which a scale or a height enters."""

MOST_READ = 6
"""Numbers that the functions of a level may read: the derivatives of a row are as many as their
pairs."""


def gathered_first(tall: "TallModel", inputs: list[Variable], term: Variable) -> Variable:
    """Gather values before they are transformed, where each level's are by themselves.

    Parameters
    ----------
    tall
        The model.
    inputs
        The flat point and the batch.
    term
        A graph of these.
    """
    flat, replaced = inputs[0], {}
    multiplied = _multiplied(flat, inputs[1:], term)
    for node in io_toposort(inputs, [term]):
        if not isinstance(node.op, AdvancedSubtensor):
            continue
        if not gathers_levels(node):
            continue
        array = node.inputs[0]
        first = indices_from_subtensor(node.inputs[1:], node.op.idx_list)[0]
        for value, transformed in _candidates(tall, array, flat, inputs[1:]):
            if _agree(tall, flat, array, transformed(value)):
                replaced[node.outputs[0]] = transformed(value[first])
                break
        else:
            functions = FunctionsOfEntries(array, flat)
            if set(ancestors([array])).isdisjoint(inputs[1:]) and functions.are_to_be_moved(
                is_multiplied=node.outputs[0] in multiplied
            ):
                replaced[node.outputs[0]] = functions.of(first)
    if not replaced:
        return term
    [moved] = graph_replace([term], replaced, strict=False)
    return moved


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
            if not self._reads_flat.isdisjoint(node.inputs):
                self._reads_flat.update(node.outputs)
            if self._is_curved(node):
                self._curved.update(node.outputs)

    def _is_curved(self, node: Apply) -> bool:
        """Whether some function that is not linear in the levels' variables is in what it gives."""
        if not isinstance(node.op, Elemwise) or not _has_levels(node.outputs[0]):
            return False
        levels = [i for i in node.inputs if i in self._reads_flat and _has_levels(i)]
        if any(i in self._curved for i in levels):
            return True
        divides = isinstance(node.op.scalar_op, ps.TrueDiv) and node.inputs[1] not in levels
        return bool(levels) and not divides and not isinstance(node.op.scalar_op, STRAIGHT)

    def are_to_be_moved(self, *, is_multiplied: bool) -> bool:
        """Whether there are functions of many levels that rows cannot be seen to apply.

        That is, no chain of functions of one array; or a chain, of which rows multiply what they
        gather by a parameter. Effects times a function of others, such as the scale of each, are
        left as they are: given the scales they are affine.
        """
        n_levels = self.array.type.shape[0] if self.array.type.ndim else 1
        if self.array not in self._curved:
            return False
        if (n_levels or FEWEST_GATHERED) < FEWEST_GATHERED and self.array not in self._of_angles:
            return False
        n_read, is_chain = 0.0, True
        pending, seen = [self.array], set()
        while pending:
            variable = pending.pop()
            if variable in seen:
                continue
            seen.add(variable)
            if variable not in self._curved:
                n_read += _width(variable)
                continue
            node = variable.owner
            above = [i for i in node.inputs if i in self._reads_flat]
            levels = set(filter(_has_levels, above))
            mixed = levels & self._curved and levels - self._curved
            if isinstance(node.op.scalar_op, SCALES) and mixed:
                return False
            is_chain &= len(above) == 1
            pending += above
        return (not is_chain or is_multiplied) and n_read <= MOST_READ

    def of(self, index: Any) -> Any:
        """Return the array's entries at an index, as functions of others' entries there."""
        made: dict[Any, Any] = {}

        def at_index(variable: Any) -> Any:
            if variable not in made:
                if variable in self._curved:
                    inputs = map(at_index, variable.owner.inputs)
                    made[variable] = variable.owner.op(*inputs)
                else:
                    made[variable] = variable[index] if _has_levels(variable) else variable
            return made[variable]

        return at_index(self.array)


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
    op: Any = node.op
    first, *rest = indices_from_subtensor(node.inputs[1:], op.idx_list)
    return (
        not isinstance(first, slice)
        and first.type.ndim == 1
        and first.type.dtype != "bool"
        and all(isinstance(i, slice) and i == slice(None) for i in rest)
    )


def _candidates(
    tall: "TallModel", array: Any, flat: Variable, batch: list[Variable]
) -> Iterator[tuple[Any, Any]]:
    """Yield the one value variable that an array reads, with the transform that may have made it.

    Transforms of single numbers are functions of them, which need no help.
    """
    above = set(ancestors([array]))
    if flat not in above or not above.isdisjoint(batch) or isinstance(array.owner.op, Softmax):
        return
    read = [node for node in io_toposort([flat], [array]) if flat in node.inputs]
    if len(read) != 1 or not isinstance(read[0].op, Subtensor):
        return
    model, slices = tall.model, tall.layout.slices
    start, stop = (getattr(i, "data", None) for i in (*read[0].inputs[1:], None, None)[:2])
    for rv, value in model.rvs_to_values.items():
        where, transform = slices.get(get_var_name(value)), model.rvs_to_transforms.get(rv)
        if where is None or transform is None or rv.owner is None:
            continue
        if (where.start, where.stop) != (start, stop) or getattr(transform, "ndim_supp", 0) < 1:
            continue
        shaped = _value_in(array, flat)
        if shaped is not None and shaped.type.ndim == array.type.ndim > 1:
            yield shaped, lambda z, t=transform, rv=rv: t.backward(z, *rv.owner.inputs)


def _value_in(array: Any, flat: Variable) -> Any:
    """Return the value variable, of its own shape, in the graph of an array."""
    nodes: list[Apply] = [n for n in io_toposort([flat], [array]) if isinstance(n.op, Reshape)]
    pieces = [n for n in nodes if n.inputs[0].owner and flat in n.inputs[0].owner.inputs]
    return pieces[0].outputs[0] if len(pieces) == 1 else None


def _agree(tall: "TallModel", flat: Variable, array: Any, other: Any) -> bool:
    """Whether two arrays are the same at points about the start."""
    if not set(ancestors([other])) - set(ancestors([array])) or flat not in ancestors([other]):
        return False
    evaluate, rng = compile_all([flat], [array, other]), np.random.default_rng(3)
    for _ in range(N_POINTS):
        one, two = evaluate(tall.start + rng.standard_normal(tall.start.size))
        if one.shape != two.shape or not np.allclose(one, two, rtol=RTOL, atol=0.0):
            return False
    return True
