"""A graph over all rows, evaluated on few rows at a time, so that it takes little memory.

Most operations act on each row by itself, whatever the model means by it: elementwise ones,
products with what all rows share, sums over other axes, gathers. They run on one tile of rows after
the other, and what the rest of the graph reads of them is put together. So no array as large as the
data is made, such as their copy in float64 for a product. The rest, such as a mean over rows or a
shape, runs on all rows at once.

Rows are not taken to be independent: tiles give what the whole graph gives (loop tiling).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from pymc_minibatch.jit.compiled import compile_all
from pymc_minibatch.jit.cores import one_blas_thread
from pymc_minibatch.tall.made_up import rows_of
from pymc_minibatch.tall.passes import in_order

__all__ = ["TiledGraph"]

TILE_BYTES = 2**23
"""Data of a tile; enough rows that Python's share is small."""


class TiledGraph:
    """A function of a flat point and arrays.

    Parameters
    ----------
    inputs
        The point and the arrays.
    output
        What is computed.
    axes
        For each array the axis along which it is cut into tiles; None if it is not. All have the
        same length along it.
    build
        What makes a function of inputs and outputs, that returns a list.
    in_threads : bool, default False
        Whether several tiles are evaluated at the same time, which the function must allow.
    """

    def __init__(
        self,
        inputs: Sequence[Variable],
        output: Variable,
        axes: Sequence[int | None],
        build: Callable[..., Callable[..., Sequence[Any]]] = compile_all,
        in_threads: bool = False,
    ) -> None:
        self._map = in_order if in_threads else map
        point, *arrays = inputs
        self._dtypes: list[str] = [array.type.dtype for array in arrays]
        self._cut = [(i, axis) for i, axis in enumerate(axes) if axis is not None]
        along, tiles = _row_by_row(output, arrays, axes)
        ends = _read_by_others(output, along)
        self._end_axes = [along[end] for end in ends]
        self._on_tiles = build(
            [point, *(tiles[arrays[i]] for i, _ in self._cut)], [tiles[end] for end in ends]
        )
        found = [end.type() for end in ends]
        [rest] = graph_replace([output], dict(zip(ends, found, strict=True)), strict=False)
        read = set(ancestors([rest]))
        self.read_whole = [i for i, array in enumerate(arrays) if array in read]
        whole = [arrays[i] for i in self.read_whole]
        self._on_all = build([point, *whole, *found], [rest])

    def __call__(self, point: np.ndarray, arrays: Sequence[Any]) -> np.ndarray:
        """Evaluate the graph; arrays may be of smaller types than its inputs."""
        with one_blas_thread():  # threads would wait for each other at each tile
            ends = self._joined(point, arrays) if self._end_axes else []
        whole = [np.asarray(arrays[i]).astype(self._dtypes[i], copy=False) for i in self.read_whole]
        [output] = self._on_all(point, *whole, *ends)
        return output

    def _joined(self, point: np.ndarray, arrays: Sequence[Any]) -> list[np.ndarray]:
        first, axis = self._cut[0]
        n_rows = arrays[first].shape[axis]
        row_bytes = sum(part.nbytes for part in self._tile(arrays, slice(0, 1)))
        step = max(1, TILE_BYTES // max(1, row_bytes))
        joined: list[np.ndarray] = []
        starts = range(0, n_rows, step)

        def evaluate(start: int) -> Sequence[Any]:
            return self._on_tiles(point, *self._tile(arrays, slice(start, start + step)))

        for start, parts in zip(starts, self._map(evaluate, starts), strict=True):
            rows = slice(start, start + step)
            joined = joined or [
                np.empty((*part.shape[:axis], n_rows, *part.shape[axis + 1 :]), part.dtype)
                for part, axis in zip(parts, self._end_axes, strict=True)
            ]
            for whole, part, axis in zip(joined, parts, self._end_axes, strict=True):
                np.moveaxis(whole, axis, 0)[rows] = np.moveaxis(part, axis, 0)
        return joined

    def _tile(self, arrays: Sequence[Any], rows: slice) -> list[np.ndarray]:
        return [
            np.moveaxis(rows_of(arrays[i], axis, rows), 0, axis).astype(self._dtypes[i], copy=False)
            for i, axis in self._cut
        ]


def _row_by_row(
    output: Variable, arrays: Sequence[Variable], axes: Sequence[int | None]
) -> tuple[dict[Variable, int], dict[Variable, Variable]]:
    """Find what is computed row by row: the axis of its rows, and its graph for a tile."""
    cut = [(a, axis) for a, axis in zip(arrays, axes, strict=True) if axis is not None]
    along = dict(cut)
    tiles: dict[Variable, Variable] = {array: _of_any_length(array, axis) for array, axis in cut}
    of_data = set(arrays)
    for node in io_toposort(arrays, [output]):
        if of_data.isdisjoint(node.inputs):
            continue
        of_data.update(node.outputs)
        has_whole = any(i in of_data and i not in along for i in node.inputs)
        axis = None if has_whole else _row_axis(node, along)
        if axis is not None:
            along |= dict.fromkeys(node.outputs, axis)
            tile: Any = node.op.make_node(*[tiles.get(i, i) for i in node.inputs])
            tiles.update(zip(node.outputs, tile.outputs, strict=True))
    return along, tiles


def _of_any_length(array: Any, axis: int) -> Variable:
    shape = list(array.type.shape)
    shape[axis] = None
    return array.type.clone(shape=shape)(name=array.name)


def _read_by_others(output: Variable, along: Mapping[Variable, int]) -> list[Variable]:
    """List what is computed row by row and read by what is not."""
    nodes = io_toposort([], [output])
    read = {i: None for node in nodes if node.outputs[0] not in along for i in node.inputs}
    read[output] = None
    return [variable for variable in read if variable in along and variable.owner is not None]


def _row_axis(node: Apply, along: Mapping[Variable, int]) -> int | None:
    """Return the axis of the outputs on which each row is made of its row of the inputs alone.

    None if that is not known. Inputs without rows are the same for all of them.
    """
    rules = (rule for op, rule in RULES.items() if isinstance(node.op, op))
    return next((rule(node, along) for rule in rules), None)


def _of_elements(node: Apply, along: Mapping[Variable, int]) -> int | None:
    return _common_axis(node, along, node.outputs[0].type.ndim)


def _common_axis(node: Apply, along: Mapping[Variable, int], n_leading: int) -> int | None:
    """Return the axis of the rows in all inputs that have any, if it is one of the first axes."""
    [axis, *others] = {along[i] for i in node.inputs if i in along}
    if others or axis >= n_leading:
        return None
    is_shared = all(i in along or i.type.shape[axis] == 1 for i in node.inputs)
    return axis if is_shared else None


def _of_blocks(node: Apply, along: Mapping[Variable, int]) -> int | None:
    op: Any = node.op
    axis = _common_axis(node, along, op.batch_ndim(node))
    is_product = axis is None and isinstance(op.core_op, Dot)
    return _of_product(node, along) if is_product else axis


def _of_product(node: Apply, along: Mapping[Variable, int]) -> int | None:
    left, right = node.inputs
    n_axes = node.outputs[0].type.ndim
    if right not in along and along[left] == n_axes - 2:
        return n_axes - 2
    if left not in along and along[right] == n_axes - 1:
        return n_axes - 1
    return None


def _of_axes(node: Apply, along: Mapping[Variable, int]) -> int | None:
    op: Any = node.op
    axis = along[node.inputs[0]]
    return op.new_order.index(axis) if axis in op.new_order else None


def _of_sum(node: Apply, along: Mapping[Variable, int]) -> int | None:
    op: Any = node.op
    axis = along[node.inputs[0]]
    if op.axis is None or axis in op.axis:
        return None
    return axis - sum(other < axis for other in op.axis)


def _of_columns(node: Apply, along: Mapping[Variable, int]) -> int | None:
    op: Any = node.op
    axis = along.get(node.inputs[0])
    if axis is None or op.idx_list[axis : axis + 1] not in ((), (slice(None),)):
        return None
    return axis - sum(not isinstance(entry, slice) for entry in op.idx_list[:axis])


def _of_gather(node: Apply, along: Mapping[Variable, int]) -> int | None:
    op: Any = node.op
    source, first, *_ = node.inputs
    by_first = op.idx_list[0] == 0 and all(entry == slice(None) for entry in op.idx_list[1:])
    if source in along or not by_first or first.type.dtype == "bool":
        return None
    return along[first]


RULES: dict[type, Callable[[Apply, Mapping[Variable, int]], int | None]] = {
    Elemwise: _of_elements,
    Blockwise: _of_blocks,
    Dot: _of_product,
    DimShuffle: _of_axes,
    CAReduce: _of_sum,
    Subtensor: _of_columns,
    AdvancedSubtensor: _of_gather,
}
