"""Rows that gather several effects by a matrix of codes, as one gather for each column.

``(weights * u[members]).sum(axis=1)``, with the numbers of three teachers in each row of `members`,
reads three effects of one factor: ``u[members[:, 0]]`` and so on.
"""

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.tensor.shape import specify_shape
from pytensor.tensor.subtensor import AdvancedSubtensor

from pymc_minibatch.tall.slicing import data_leaves, leaf_value, reads_data_only

__all__ = ["gathered_by_columns"]

MOST_COLUMNS = 16
"""Each becomes a gather of its own, of as many numbers as a row may read."""


def gathered_by_columns(term: Any, n_rows: int) -> Any:
    """Return a graph with the same values, in which rows gather by one column of codes at a time.

    Parameters
    ----------
    term
        A graph.
    n_rows : int
        N.
    """

    @node_rewriter([AdvancedSubtensor])
    def local_by_columns(fgraph: Any, node: Apply) -> list[Variable] | None:
        op: Any = node.op
        array, codes, *others = list[Any](node.inputs)
        if others or tuple(op.idx_list) != (0,) or not _is_matrix(codes, n_rows):
            return None
        columns = [array[codes[:, k]] for k in range(_shape(codes)[1])]
        result: Any = node.outputs[0]
        return [specify_shape(pt.stack(columns, axis=1), result.type.shape)]

    graph = FunctionGraph(outputs=[term], copy_inputs=False)
    in2out(local_by_columns).rewrite(graph)
    return graph.outputs[0]


def _is_matrix(codes: Any, n_rows: int) -> bool:
    """Whether these are the numbers of few entries for each row, and data."""
    if codes.type.ndim != 2 or codes.type.dtype == "bool" or not reads_data_only(codes):
        return False
    shape = _shape(codes)
    return len(shape) == 2 and shape[0] == n_rows and 1 < shape[1] <= MOST_COLUMNS


def _shape(codes: Any) -> tuple[int, ...]:
    if None not in codes.type.shape:
        return tuple(codes.type.shape)
    leaves = data_leaves([codes])
    return leaf_value(leaves[0]).shape if leaves == [codes] else ()
