"""What is left of the graph of a row above the cut, rebuilt on predictors."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Alloc
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise

from pymc_minibatch.tall.cut import (
    NoStructureError,
    RowGraph,
    entry_of,
    gathered_like,
    is_condition,
)

__all__ = ["rebuilt_row"]


def rebuilt_row(
    graph: RowGraph,
    arrays: Mapping[Variable, Mapping[tuple[int, ...], Any]],
    values: Mapping[Variable, Mapping[int, Any]],
) -> Variable:
    """Rebuild the log-likelihood of the rows on predictors.

    Parameters
    ----------
    graph
        The batch graph.
    arrays
        For each array of the cut the predictors in place of its entries.
    values
        For each data-free array the predictors in place of the entries that are read.
    """
    return _Rebuilt(graph, arrays, values).build()


class _Rebuilt:
    """Rebuilds the log-likelihood of the rows on the predictors."""

    def __init__(
        self,
        graph: RowGraph,
        arrays: Mapping[Variable, Mapping[tuple[int, ...], Any]],
        values: Mapping[Variable, Mapping[int, Any]],
    ) -> None:
        self.graph = graph
        self.rebuilt: dict[Variable, Any] = {
            array: self._array(array, entries) for array, entries in arrays.items()
        }
        self.stacked = {v: self._stacked(v, entries) for v, entries in values.items()}
        self.spread: dict[Variable, Any] = {}

    def build(self) -> Variable:
        """Build the graph."""
        return self._rebuild(self.graph.term)

    def _array(self, array: Variable, entries: Mapping[tuple[int, ...], Any]) -> Any:
        """Put predictors in place of an affine array."""
        affine = self.graph.affine(array)
        assert affine is not None
        assert affine.rows is not None
        others = [n for n in affine.shape if n is not None]
        columns = []
        for entry in itertools.product(*map(range, others)):
            if entry in entries:
                columns.append(entries[entry])
            elif affine.offset is None:
                columns.append(pt.zeros((self.graph.n_batch,)))
            else:
                part = affine.offset[entry_of(affine.offset, affine, entry)]
                columns.append(self.graph.of_rows(part))
        if len(columns) == 1:
            whole = columns[0].dimshuffle(0, *["x"] * len(others))
        else:
            whole = pt.stack(columns, axis=1).reshape((self.graph.n_batch, *others))
        whole = pt.moveaxis(whole, 0, affine.rows)
        for node in reversed(self.graph.functions(array)):
            inputs = [
                whole if i in self.graph.reads_parameters else gathered_like(array, i)
                for i in node.inputs
            ]
            whole = node.op(*inputs)
        return whole

    def _stacked(self, variable: Variable, entries: Mapping[int, Any]) -> Any:
        """Put predictors in place of a data-free array; rows come first."""
        shape = [n or 0 for n in self.graph.shapes[variable]]
        zeros = pt.zeros((self.graph.n_batch,))
        columns = [entries.get(entry, zeros) for entry in range(int(np.prod(shape)))]
        if len(columns) == 1:
            whole = columns[0].dimshuffle(0, *["x"] * len(shape))
        else:
            whole = pt.stack(columns, axis=1).reshape((self.graph.n_batch, *shape))
        return pt.cast(whole, variable.type.dtype)

    def _rebuild(self, variable: Any) -> Any:
        if variable in self.rebuilt:
            return self.rebuilt[variable]
        if variable not in self.graph.reads_parameters:
            return variable
        node = variable.owner
        inputs = [
            self._placed(i, node) if self.graph.is_free(i) else self._rebuild(i)
            for i in node.inputs
        ]
        outputs = node.op.make_node(*inputs).outputs
        for old, new in zip(node.outputs, outputs, strict=True):
            self.rebuilt[old] = new
        return self.rebuilt[variable]

    def _placed(self, free: Any, node: Apply) -> Any:
        """Give a data-free array rows, where those of an operation that reads it are."""
        spread = self._spread(free)
        if is_condition(node.outputs[0]):
            return spread
        shape = self.graph.shapes.get(node.outputs[0])
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
