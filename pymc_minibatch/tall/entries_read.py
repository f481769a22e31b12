"""Which entries of value variables an array depends on, entry by entry (a sparsity pattern)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from pymc_minibatch.jit.compiled import compile_python
from pymc_minibatch.tall.affine import Lengths

__all__ = ["EntriesRead", "constant_value"]

MAX_TRACED = 64
"""Entries of value variables that are told apart in what a data-free array reads."""

CHOOSING = (AdvancedSubtensor, Alloc, DimShuffle, Reshape, SpecifyShape, Subtensor)
"""Operations whose entries are those of their first input."""


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
