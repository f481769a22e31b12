"""Values that are written into some rows, row by row.

``mu = pt.inc_subtensor(mu[rare], bias)`` changes rows that are named by their numbers, which a
batch of other rows does not have. So does what PyTensor makes of effects that are put together from
parts, ``pt.set_subtensor(u[some], ...)[group]``. :func:`set_by_row` says the same of each row:
whether it is changed, and to what.
"""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.tensor.basic import AllocEmpty
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

__all__ = ["set_by_row"]


def set_by_row(term: Any, n_rows: int) -> Any:
    """Return a graph with the same values, in which no rows are named by their numbers.

    Parameters
    ----------
    term
        A graph.
    n_rows : int
        N.
    """

    @node_rewriter([AdvancedIncSubtensor])
    def local_set_by_row(fgraph: Any, node: Apply) -> list[Variable] | None:
        op: Any = node.op
        whole, values, *index = node.inputs
        result: Any = node.outputs[0]
        if op.idx_list != (0,) or result.type.shape[0] != n_rows:
            return None
        [numbers] = index
        rows = _numbers(numbers)
        rows = None if rows is None else rows % n_rows
        if rows is None or (np.unique(rows).size < rows.size and not op.set_instead_of_inc):
            return None
        if whole.owner is not None and isinstance(whole.owner.op, AllocEmpty):
            whole = pt.zeros([1] * whole.type.ndim, dtype=whole.type.dtype)
        position = np.zeros(n_rows, dtype=np.int64)
        position[rows] = np.arange(rows.size)
        is_set = np.zeros((n_rows, *[1] * (whole.type.ndim - 1)), dtype=bool)
        is_set[rows] = True
        new = _spread(values, rows, position, whole.type.ndim)
        changed: Any = new if op.set_instead_of_inc else whole + new
        return [pt.cast(pt.switch(is_set, changed, whole), result.type.dtype)]

    graph = FunctionGraph(outputs=[term], copy_inputs=False)
    in2out(local_set_by_row).rewrite(graph)
    return graph.outputs[0]


def _numbers(index: Any) -> np.ndarray | None:
    """Return the constant numbers of an index; None if it is something else."""
    if not isinstance(index, Constant) or index.type.ndim != 1 or index.data is None:
        return None
    numbers = np.asarray(index.data)
    return np.flatnonzero(numbers) if numbers.dtype == bool else numbers.astype(np.int64)


def _spread(values: Any, rows: np.ndarray, position: np.ndarray, n_axes: int) -> Any:
    """Give each row its value; some row's where it has none."""
    if values.type.ndim < n_axes or values.type.shape[0] == 1:
        return values
    node = values.owner
    if node is not None and isinstance(node.op, Elemwise):
        return node.op(*[_spread(i, rows, position, n_axes) for i in node.inputs])
    if node is not None and isinstance(node.op, AdvancedSubtensor) and node.op.idx_list == (0,):
        source, *index = node.inputs
        numbers = _numbers(index[0])
        of_rows = source.type.shape[0] == position.size
        if numbers is not None and of_rows and np.array_equal(numbers % position.size, rows):
            return source  # what a row becomes is made of what it was
        if numbers is not None:
            return source[numbers[position]]
    return values[position]
