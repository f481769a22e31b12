"""Matrices of observations whose entries are the rows: persons by items, persons by dates.

A matrix may have no rows: each person has an effect, so that persons are not independent, and dates
are few. But its entries are independent given effects of both. So the log-density of the matrix is
written for pairs (i, j) of one row each: arrays of both axes are read at (i, j), and vectors of
parameters at i or at j, as ``ability[person] - difficulty[item]`` in a table of answers would be.

It goes down the graph as far as operations act entry by entry, and gathers what is below. That it
is the log-density of the matrix is verified by values.
"""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor

from pymc_minibatch.jit.compiled import compile_python
from pymc_minibatch.tall.row_checks import parts_of_condition
from pymc_minibatch.tall.slicing import data_leaves, leaf_value, reads_data_only

__all__ = ["Entries", "entries_of"]


class Entries:
    """The entries of matrices as rows.

    Attributes
    ----------
    term
        The log-density of each entry, a graph of the value variables and of new constants.
    leaves
        These, and what their data have been made of: each has one number for each entry.
    """

    def __init__(self, term: Any, lengths: tuple[int, int]) -> None:
        self._lengths = lengths
        self._places = tuple(np.indices(lengths).reshape(2, -1))
        self._data: dict[Variable, np.ndarray] = {}
        self._found: dict[Variable, Any] = {}
        self._numbers: dict[bytes, Variable] = {}
        self.leaves: dict[Variable, Variable | None] = {}
        self.term = self._at_entries(term)

    def _leaf(self, array: np.ndarray, name: str | None, source: Any = None) -> Variable:
        leaf: Any = pt.constant(array, name=name)
        self.leaves[leaf] = source
        return leaf

    def _number(self, numbers: np.ndarray, name: str) -> Variable:
        """Return a leaf with the numbers of what each entry reads; one for all that are alike."""
        key = numbers.tobytes()
        if key not in self._numbers:
            self._numbers[key] = self._leaf(numbers.astype(np.int32), name)
        return self._numbers[key]

    def _values(self, variable: Variable) -> np.ndarray:
        if variable not in self._data:
            self._data[variable] = np.asarray(compile_python([], [variable])())
        return self._data[variable]

    def _at_entries(self, variable: Any) -> Any:
        """Return an array at the entries: rows, then what axes it has after the first two."""
        if variable not in self._found:
            made = self._made(variable)
            self._found[variable] = made
        return self._found[variable]

    def _made(self, variable: Any) -> Any:
        if reads_data_only(variable):
            return self._of_data(variable)
        node = variable.owner
        op = None if node is None else node.op
        if isinstance(op, Elemwise):
            return op(*map(self._at_entries, node.inputs))
        if isinstance(op, Alloc | SpecifyShape) and node.inputs[0].type.ndim == variable.type.ndim:
            return self._at_entries(node.inputs[0])
        if isinstance(op, CheckParameterValue):
            return self._checked(node)
        if isinstance(op, Sum) and op.axis is not None and min(op.axis) >= 2:
            return self._at_entries(node.inputs[0]).sum(axis=[axis - 1 for axis in op.axis])
        if isinstance(op, Dot) and [i.type.ndim for i in node.inputs] == [2, 2]:
            left, right = node.inputs
            rows = self._gathered(left, self._places[0])
            return (rows * self._gathered(right.T, self._places[1])).sum(axis=1)
        if isinstance(op, AdvancedSubtensor) and _is_by_codes(node, 2):
            return self._gathered(node.inputs[0], self._of_both(node.inputs[1]))
        if isinstance(op, DimShuffle) and op.new_order in ((0, "x"), ("x", 0)):
            return self._gathered(node.inputs[0], self._places[op.new_order.index(0)])
        return self._of_parameters(variable)

    def _of_both(self, codes: Variable) -> np.ndarray:
        return np.broadcast_to(self._values(codes), self._lengths).ravel()

    def _of_data(self, variable: Any) -> Any:
        values = self._values(variable)
        if values.shape[:2] == (1, 1):
            return pt.constant(values[0])
        others = values.shape[2:]
        both = np.broadcast_to(values, (*self._lengths, *others)).reshape(-1, *others)
        return self._leaf(both, variable.name, variable)

    def _of_parameters(self, variable: Any) -> Any:
        """Read an array of parameters with axes of length 1 or of the matrix."""
        ones = variable.type.broadcastable[:2]
        if len(ones) < 2:
            raise _NotByEntryError
        if all(ones):
            return variable[0]
        if any(ones):
            vector = variable[0] if ones[0] else variable[:, 0]
            return self._gathered(vector, self._places[1 if ones[0] else 0])
        n, m = self._lengths
        if variable.type.shape[:2] != (n, m) or not _reads_no_data(variable):
            raise _NotByEntryError
        whole = variable.reshape((n * m, *variable.type.shape[2:]))
        return whole[self._number(np.arange(n * m), "entry")]

    def _gathered(self, array: Any, places: np.ndarray) -> Any:
        """Read an array along its first axis, through what acts along it entry by entry."""
        if reads_data_only(array):
            return self._leaf(self._values(array)[places], array.name, array)
        if array.type.shape[0] == 1:
            return array
        node = array.owner
        op = None if node is None else node.op
        if isinstance(op, AdvancedSubtensor) and _is_by_codes(node, 1):
            return self._gathered(node.inputs[0], self._values(node.inputs[1])[places])
        reads_data = not _reads_no_data(array)
        if isinstance(op, Elemwise) and reads_data:
            return op(*(self._gathered(each, places) for each in node.inputs))
        return array[self._number(places, "number")]

    def _checked(self, node: Apply) -> Any:
        value, *conditions = node.inputs
        own = []
        for part in (p for each in conditions for p in parts_of_condition(each)):
            if part.type.ndim == value.type.ndim:
                own.append(pt.all(self._at_entries(part)))
            elif _reads_no_data(part):
                own.append(pt.all(part))
            else:
                raise _NotByEntryError
        op: Any = node.op
        return op(self._at_entries(value), *own)


class _NotByEntryError(ValueError):
    """An operation takes entries together."""


def entries_of(term: Any, shape: tuple[int, ...]) -> Entries | None:
    """Write the log-density of a matrix of observations by its entries; None if it cannot be.

    Parameters
    ----------
    term
        The log-density, a graph of the value variables with two axes.
    shape
        Their lengths.
    """
    if term.type.ndim != 2 or len(shape) != 2:
        return None
    try:
        return Entries(term, (shape[0], shape[1]))
    except (_NotByEntryError, ValueError, IndexError):
        return None


def _is_by_codes(node: Apply, n_axes: int) -> bool:
    """Whether a node reads an array along its first axis at data with some axes."""
    op: Any = node.op
    return (
        tuple(op.idx_list) == (0,)
        and len(node.inputs) == 2
        and getattr(node.inputs[1].type, "ndim", None) == n_axes
        and reads_data_only(node.inputs[1])
    )


def _reads_no_data(variable: Variable) -> bool:
    """Whether nothing but numbers stands beside parameters."""
    return all(leaf_value(leaf).size <= 1 for leaf in data_leaves([variable]))
