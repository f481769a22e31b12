"""Which entries of value variables an array depends on, entry by entry (a sparsity pattern)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from pymc_minibatch.jit.compiled import compile_python
from pymc_minibatch.tall.affine import Lengths

__all__ = ["EntriesRead", "constant_value", "value_variables"]

MAX_TRACED = 64
"""Entries of value variables that are told apart in what a data-free array reads."""

CHOOSING = (AdvancedSubtensor, Alloc, DimShuffle, Reshape, SpecifyShape, Subtensor)
"""Operations whose entries are those of their first input."""


def value_variables(
    flat: Variable, size: int, nodes: Sequence[Apply], shapes: Mapping[Variable, Lengths]
) -> dict[Variable, np.ndarray]:
    """Find the value variables in a graph, with their positions in the flat point."""
    found: dict[Variable, np.ndarray] = {}
    clients: dict[Variable, list[Apply]] = {}
    for node in nodes:
        for variable in node.inputs:
            clients.setdefault(variable, []).append(node)
    positions = np.arange(size)
    for piece in clients.get(flat, []):
        start, stop = (int(i.data) for i in piece.inputs[1:])  # type: ignore[attr-defined]
        for reshape in clients.get(piece.outputs[0], []):
            variable = reshape.outputs[0]
            shape = [n or 0 for n in shapes.get(variable, ())]
            found[variable] = positions[start:stop].reshape(shape)
    return found


class EntriesRead:
    """Reads off the graph which entries of value variables data-free arrays depend on.

    Parameters
    ----------
    values
        The value variables, with their positions in the flat point.
    reads_parameters
        All variables that depend on these.
    shapes
        Shapes of the variables of the graph.
    """

    def __init__(
        self,
        values: Mapping[Variable, np.ndarray],
        reads_parameters: set[Variable],
        shapes: Mapping[Variable, Lengths],
    ) -> None:
        self.values, self.reads_parameters, self.shapes = values, reads_parameters, shapes
        self._traces: dict[Variable, np.ndarray] = {}

    def of(self, variable: Variable) -> dict[Variable, tuple[int, ...]] | None:
        """Find which entries of value variables an array may read; None if there are many."""
        above = set(ancestors([variable]))
        values = {value: at for value, at in self.values.items() if value in above}
        if sum(at.size for at in values.values()) > MAX_TRACED:
            return None
        mask = _joined(self._of_each(variable))
        found = {
            value: tuple(e for e, position in enumerate(at.ravel()) if mask >> int(position) & 1)
            for value, at in values.items()
        }
        return {value: entries for value, entries in found.items() if entries}

    def chosen_of(self, free: Sequence[Variable]) -> dict[Variable, list[int]]:
        """Choose which entries of which data-free arrays are predictors by themselves.

        They are the value variables that are read, where these are not more than the arrays'
        entries; otherwise the arrays, without the functions of one variable applied to them.
        """
        chosen: dict[Variable, set[int]] = {}
        bases: dict[Variable, None] = {}
        for array in free:
            read = self.of(array)
            base = self._base(array)
            size = int(np.prod([n or 1 for n in self.shapes[base]]))
            if read is not None and sum(map(len, read.values())) <= size:
                for value, entries in read.items():
                    chosen.setdefault(value, set()).update(entries)
            else:
                bases[base] = None
        for base in bases:
            read = self.of(base)
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

    def _of_each(self, variable: Variable) -> np.ndarray:
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
        traces = [self._of_each(i) for i in inputs]
        if isinstance(node.op, Elemwise):
            total = np.zeros(shape, dtype=object)
            for trace in traces:
                total = total | trace
            return total
        if isinstance(node.op, CHOOSING) and node.inputs[:1] == inputs:
            numbers = pt.constant(np.arange(traces[0].size).reshape(traces[0].shape))
            chosen = constant_value(node.op.make_node(numbers, *node.inputs[1:]).outputs[0])
            if chosen is not None:
                return traces[0].ravel()[chosen]
        mask = 0
        for trace in traces:
            mask |= _joined(trace)
        return np.full(shape, mask, dtype=object)


def _joined(trace: np.ndarray) -> int:
    return int(np.bitwise_or.reduce(trace.ravel(), initial=0))


def constant_value(variable: Any) -> np.ndarray | None:
    """Return what a variable is whatever the parameters and the data are; None if it varies."""
    above = list(ancestors([variable]))
    if any(v.owner is None and not isinstance(v, Constant) for v in above):
        return None
    return compile_python([], [variable])()
