"""Rows that are taken from what is computed for more of them.

``mu = a + b * x`` for all patients, and ``mu[died]`` for those who died: a likelihood of the dead
has none of the rows of `mu`, and each batch would compute all. :func:`taken_first` takes rows
of `x` instead. So it is with slices, ``mu[1:]``, and with the entries of a matrix that were seen,
``(ability[:, None] - difficulty)[answered]``.

Only selections are moved, in which no row comes twice: levels that rows gather stay levels.

Rows that are put together are taken in the same way, all of them: ``pt.concatenate([old, new])``,
``pt.repeat(u, n_of_each)``, ``(a[:, None] + b).flatten()``. Each row reads its entry of its part.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.basic import Alloc, Join
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.extra_ops import Repeat
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import Reshape, SpecifyShape, specify_shape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor, indices_from_subtensor

from pymc_minibatch.tall.chosen import chosen
from pymc_minibatch.tall.evaluated import data_evaluated
from pymc_minibatch.tall.slicing import data_leaves, leaf_value, reads_data_only

__all__ = ["taken_first"]

type Positions = tuple[np.ndarray, ...]
"""Where entries are along the first axes of an array, one array of numbers for each axis."""

MOST_PARTS = 32
"""Of rows that are put together; each is evaluated for all rows if they have nothing in common."""

LEAST_PRODUCTS, MOST_COLUMNS, MOST_PADDED = 3, 32, 2.0
"""Different coefficients of parts, from which number on rows gather their own; how many each may
have; and how many times the entries of the data all rows may have. Else a row reads those of all
parts."""


def taken_first(graphs: Sequence[Variable]) -> list[Any]:
    """Return graphs with the same values, in which rows are taken before anything is computed."""
    most = _most_rows(graphs)
    taking, replaced = _Taking(most), {}
    for node in reversed(io_toposort([], list(graphs))):
        if _puts_together(node, most):
            made = taking.all_of(node.outputs[0])
            if made is not None:
                replaced[node.outputs[0]] = made
            continue
        positions = _selection(node)
        if positions is not None:
            made = taking.of(node.inputs[0], positions)
            result = node.outputs[0]
            if made is not None and made.type.broadcastable[1:] == result.type.broadcastable[1:]:
                replaced[result] = specify_shape(made, result.type.shape)
    if not replaced:
        return list(graphs)
    return list(graph_replace(list(graphs), replaced, strict=False))


class _Taking:
    """Entries of arrays; the same ones are taken once.

    Parameters
    ----------
    n_rows
        How many rows there may be.
    """

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self._made: dict[tuple[Variable, int, bytes], Any] = {}
        self._numbers: dict[bytes, Variable] = {}
        self._data: dict[Variable, Any] = {}

    def of(self, array: Any, positions: Positions) -> Any:
        """Return the entries of an array; None if nothing is computed row by row in it."""
        if array.owner is None or reads_data_only(array):
            return None
        has_rows = _has_rows(array) or _puts_together(array.owner, self.n_rows)
        if len(positions) == 1 and not has_rows:
            return None
        return self._through(array.owner, array, positions)

    def all_of(self, array: Any) -> Any:
        """Return the same rows, each of which reads its own entries; None if that is not known."""
        n_rows = _length(array)
        if n_rows is None:
            return None
        made = self._through(array.owner, array, (np.arange(n_rows),))
        if made is None or made.type.broadcastable != array.type.broadcastable:
            return None
        return pt.cast(specify_shape(made, (n_rows, *array.type.shape[1:])), array.type.dtype)

    def _taken(self, array: Any, positions: Positions) -> Any:
        key = array, len(positions), b"".join(each.tobytes() for each in positions)
        if key not in self._made:
            self._made[key] = self._entries(array, positions)
        return self._made[key]

    def _entries(self, array: Any, positions: Positions) -> Any:
        n_axes = len(positions)
        ones = array.type.broadcastable[:n_axes]
        if all(ones):
            return array if n_axes == 1 else array.dimshuffle("x", *range(n_axes, array.type.ndim))
        if isinstance(array, Constant | SharedVariable):
            return self._of_data(array, positions)
        node = array.owner
        made = None if node is None else self._through(node, array, positions)
        if made is None or made.type.broadcastable[1:] != array.type.broadcastable[n_axes:]:
            # It takes rows together, or an axis along which all is alike was lost.
            known = self._of_data(array, positions) if reads_data_only(array) else None
            return self._gathered(array, positions) if known is None else known
        return made

    def _of_data(self, array: Any, positions: Positions) -> Any:
        """Take entries of data, or of what is computed from them; None if that is random."""
        if array not in self._data:
            is_leaf = isinstance(array, Constant | SharedVariable)
            self._data[array] = array if is_leaf else data_evaluated([array])[0]
        if not isinstance(self._data[array], Constant | SharedVariable):
            return None
        values = leaf_value(self._data[array])
        own = tuple(
            np.zeros_like(each) if length == 1 else each
            for each, length in zip(positions, values.shape, strict=False)
        )
        return pt.constant(values[own], name=array.name, dtype=array.type.dtype)

    def _through(self, node: Apply, array: Any, positions: Positions) -> Any:
        """Take entries of what an operation reads; None if it takes rows together."""
        op: Any = node.op
        first, n_axes = node.inputs[0], len(positions)
        if isinstance(op, Elemwise) and len(node.outputs) == 1:
            return op(*[self._taken(each, positions) for each in node.inputs])
        if isinstance(op, DimShuffle):
            return self._shuffled(op, first, positions)
        if isinstance(op, SpecifyShape):
            return self._taken(first, positions)
        if isinstance(op, Join):
            return self._joined(node, positions)
        if isinstance(op, Repeat):
            return self._repeated(node, positions)
        if isinstance(op, Reshape):
            return self._reshaped(array, first, positions)
        if isinstance(op, Alloc):
            return self._spread(array, first, positions)
        if isinstance(op, Sum) and op.axis is not None and min(op.axis) >= n_axes:
            axes = [axis - n_axes + 1 for axis in op.axis]
            return self._taken(first, positions).sum(axis=axes)
        if n_axes > 1:
            return None
        if (
            isinstance(getattr(op, "core_op", op), Dot)
            and first.type.ndim == 2
            and _has_rows(first)
        ):
            return op(self._taken(first, positions), node.inputs[1])
        if isinstance(op, AdvancedSubtensor):
            return self._gathered_twice(node, positions)
        if isinstance(op, Subtensor) and op.idx_list[0] == slice(None):
            return op(self._taken(first, positions), *node.inputs[1:])
        return None

    def _joined(self, node: Apply, positions: Positions) -> Any:
        """Take entries of arrays that are put after one another: each is of one of them."""
        axis, parts = node.op.axis % node.outputs[0].type.ndim, node.inputs
        products = _products_of_data(node) if len(positions) == 1 else None
        if products is not None:
            return self._joined_products(products, positions[0], node.outputs[0].type.dtype)
        if axis >= len(positions) or len(parts) > MOST_PARTS:
            return None
        found, start, where = None, 0, positions[axis]
        for part in parts:
            length = _length(part, axis)
            if length is None:
                return None
            if length == 0:
                continue
            inside = np.clip(where - start, 0, length - 1)
            own = self._taken(part, (*positions[:axis], inside, *positions[axis + 1 :]))
            if own is None:
                return None
            found = own if found is None else chosen(where >= start, found, own)
            start += length
        return found

    def _joined_products(
        self, products: Sequence[tuple[np.ndarray, Any]], numbers: np.ndarray, dtype: str
    ) -> Any:
        """Take entries of products of data with coefficients that are put after one another.

        Each row reads the coefficients of its own part, as it would of its group.
        """
        lengths, widths = zip(*(design.shape for design, _ in products), strict=True)
        whole, start = np.zeros((sum(lengths), max(widths))), 0
        stacked = []
        for design, coefficients in products:
            n_rows, width = design.shape
            whole[start : start + n_rows, :width] = design
            start += n_rows
            vector = coefficients if coefficients.type.ndim == 1 else coefficients[:, 0]
            rest = np.zeros(max(widths) - width, dtype=vector.type.dtype)
            stacked.append(pt.concatenate([vector, rest]) if rest.size else vector)
        part = np.repeat(np.arange(len(products)), lengths)[numbers]
        own = pt.stack(stacked)[self._number(part)]
        return pt.cast((pt.constant(whole[numbers]) * own).sum(axis=1), dtype)

    def _repeated(self, node: Apply, positions: Positions) -> Any:
        """Take entries of an array whose entries are repeated, as often as data say."""
        array, repeats = node.inputs
        axis, length = node.op.axis, _length(array, node.op.axis)
        if axis >= len(positions) or length is None or not reads_data_only(repeats):
            return None
        source = np.repeat(np.arange(length), _values(repeats))[positions[axis]]
        return self._taken(array, (*positions[:axis], source, *positions[axis + 1 :]))

    def _reshaped(self, array: Any, first: Any, positions: Positions) -> Any:
        """Take entries of an array that had other axes."""
        shape, before = array.type.shape, first.type.shape
        if not before or None in before or len(positions) != len(shape):
            return None
        shape = (math.prod(before),) if len(shape) == 1 else shape
        if None in shape:
            return None
        flat = np.ravel_multi_index(positions, shape)
        return self._taken(first, np.unravel_index(flat, before))

    def _spread(self, array: Any, value: Any, positions: Positions) -> Any:
        """Take entries of an array that has the same value all along some axes."""
        n_axes, n_new = len(positions), array.type.ndim - value.type.ndim
        kept = value.dimshuffle(*["x"] * n_new, *range(value.type.ndim))
        if kept.type.broadcastable[n_axes:] != array.type.broadcastable[n_axes:]:
            return None
        return self._taken(kept, positions)

    def _shuffled(self, op: Any, array: Any, positions: Positions) -> Any:
        """Take entries of an array whose axes are ordered otherwise, or are new."""
        n_axes = len(positions)
        firsts, others = op.new_order[:n_axes], op.new_order[n_axes:]
        own = [axis for axis in firsts if axis != "x"]
        if not own or sorted(own) != list(range(len(own))):
            return None
        taken = self._taken(array, tuple(positions[firsts.index(axis)] for axis in sorted(own)))
        return taken.dimshuffle(0, *(a if a == "x" else a - len(own) + 1 for a in others))

    def _gathered_twice(self, node: Apply, positions: Positions) -> Any:
        """Gather at fewer positions what is gathered by data, as the effects of groups are."""
        op: Any = node.op
        array: Any = node.inputs[0]
        indices = indices_from_subtensor(node.inputs[1:], op.idx_list)
        codes = [each for each in indices if not isinstance(each, slice)]
        if any(isinstance(each, slice) for each in indices[: len(codes)]):
            return None
        if any(c.type.ndim > 1 or not reads_data_only(c) for c in codes):
            return None
        values = [np.asarray(_values(each)) for each in codes]
        if all(each.size == 1 or each.ndim == 0 for each in values):
            return None
        if any(each.ndim == 0 and each.dtype == np.bool_ for each in values):
            return None
        own = tuple(
            np.full(len(positions[0]), each.item(), dtype=np.int64)
            if each.size == 1 and each.dtype != np.bool_
            else _as_numbers(each)[positions[0]]
            for each in values
        )
        if len(indices) == len(codes) and _has_rows(array) and (own[0] >= 0).all():
            return self._taken(array, own)  # a selection of a selection
        return array[(*map(self._number, own), *indices[len(codes) :])]

    def _gathered(self, array: Any, positions: Positions) -> Any:
        kept = [i for i, one in enumerate(array.type.broadcastable[: len(positions)]) if not one]
        dropped = [
            axis for axis in range(array.type.ndim) if axis in kept or axis >= len(positions)
        ]
        whole = array if len(kept) == len(positions) else array.dimshuffle(*dropped)
        return whole[tuple(self._number(positions[i]) for i in kept)]

    def _number(self, numbers: np.ndarray) -> Variable:
        key = numbers.tobytes()
        if key not in self._numbers:
            self._numbers[key] = pt.constant(numbers.astype(np.int64))
        return self._numbers[key]


def _most_rows(graphs: Sequence[Variable]) -> int:
    """Return the length of the longest data that graphs read."""
    return max((n for leaf in data_leaves(graphs) for n in leaf_value(leaf).shape), default=0)


def _puts_together(node: Apply, n_rows: int) -> bool:
    """Whether a node puts together so many rows, none of which is data."""
    result: Any = node.outputs[0]
    if not isinstance(node.op, Join | Repeat | Reshape) or reads_data_only(result):
        return False
    return n_rows > 1 and result.type.ndim > 0 and _length(result) == n_rows


def _length(array: Any, axis: int = 0) -> int | None:
    """Return the length along an axis as data determine it; None if they do not."""
    length = array.type.shape[axis]
    if length is None:
        inferred: Any = rewrite_graph(array.shape[axis], include=("ShapeOpt", "canonicalize"))
        length = _values(inferred) if reads_data_only(inferred) else None
    return None if length is None else int(length)


def _products_of_data(node: Apply) -> list[tuple[np.ndarray, Any]] | None:
    """Return the data and coefficients of products that a node puts together.

    None if some part is no such product, or rows would not gain by reading those of their own part.
    """
    result: Any = node.outputs[0]
    products = [_product_of_data(part) for part in node.inputs]
    found = [each for each in products if each is not None]
    if result.type.ndim != 1 or len(found) < len(products):
        return None
    if len({coefficients for _, coefficients in found}) < LEAST_PRODUCTS:
        return None
    designs = data_evaluated([design for design, _ in found])
    if not all(isinstance(each, Constant | SharedVariable) for each in designs):
        return None  # of random numbers
    values = [leaf_value(each) for each in designs]
    width = max(each.shape[1] for each in values)
    padded = width * sum(map(len, values))
    if width > MOST_COLUMNS or padded > MOST_PADDED * sum(each.size for each in values):
        return None
    return [(each, own) for each, (_, own) in zip(values, found, strict=True)]


def _product_of_data(array: Any) -> tuple[Any, Any] | None:
    """Return the matrix of data and the coefficients of which a vector is the product, if any."""
    node = array.owner
    is_column = node is not None and isinstance(node.op, DimShuffle) and node.op.new_order == (0,)
    if is_column:
        node = node.inputs[0].owner
    if node is None or not isinstance(getattr(node.op, "core_op", node.op), Dot):
        return None
    design, coefficients = node.inputs
    if design.type.ndim != 2 or not reads_data_only(design) or not _has_rows(design):
        return None
    if coefficients.type.ndim == 2 and coefficients.type.shape[1] == 1:
        of_vector = coefficients.owner is not None and isinstance(coefficients.owner.op, DimShuffle)
        vector = coefficients.owner.inputs[0] if of_vector else coefficients
        return design, vector if vector.type.ndim == 1 else coefficients
    return (design, coefficients) if coefficients.type.ndim == 1 else None


def _selection(node: Apply) -> Positions | None:
    """Return which rows or entries a node takes; None if some come twice, or it does otherwise."""
    op: Any = node.op
    if not isinstance(op, AdvancedSubtensor | Subtensor):
        return None
    first, *others = indices_from_subtensor(node.inputs[1:], op.idx_list)
    taken = [first, *(each for each in others if not isinstance(each, slice))]
    length = node.inputs[0].type.shape[0]
    if isinstance(op, Subtensor):
        if not isinstance(first, slice) or first == slice(None) or length is None:
            return None
        if any(each != slice(None) for each in others):
            return None
        ends = [_number_of(end) for end in (first.start, first.stop, first.step)]
        if any(end is NotImplemented for end in ends):
            return None
        return (np.arange(length)[slice(*ends)],)
    if any(isinstance(each, slice) or not reads_data_only(each) for each in taken):
        return None
    if any(each != slice(None) for each in others[len(taken) - 1 :]):
        return None
    return _unique(tuple(map(_values, taken)), node.inputs[0].type.shape)


def _unique(indices: Positions, shape: tuple[int | None, ...]) -> Positions | None:
    if indices[0].dtype == bool:
        positions = np.nonzero(indices[0]) if len(indices) == 1 else ()
    else:
        positions = indices
    if not positions or any(each.ndim != 1 for each in positions):
        return None
    found = np.stack([np.asarray(each, dtype=np.int64) for each in positions])
    lengths = shape[: len(found)]
    if None not in lengths and found.shape[1] > math.prod(cast(tuple[int, ...], lengths)):
        return None  # effects of groups, which need not be sorted
    if (found < 0).any():
        if None in lengths:
            return None
        found %= np.array(lengths)[:, None]
    if np.unique(found, axis=1).shape[1] < found.shape[1]:
        return None
    return tuple(found)


def _as_numbers(index: np.ndarray) -> np.ndarray:
    return np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)


def _number_of(end: Any) -> Any:
    """Return the end of a slice, None if there is none; NotImplemented if it is not known."""
    if end is None:
        return None
    return int(end.data) if isinstance(end, Constant) else NotImplemented


def _values(index: Any) -> np.ndarray:
    if isinstance(index, Constant | SharedVariable):
        return leaf_value(index)
    return leaf_value(data_evaluated([index])[0])


def _has_rows(array: Any) -> bool:
    """Whether some data of an array have as many entries as itself along their first long axis.

    If the length of the array is not known before it is computed, that of any data will do.
    """
    length = array.type.shape[0]
    shapes = [leaf_value(leaf).shape for leaf in data_leaves([array])]
    lengths = {next(n for n in shape if n > 1) for shape in shapes if max(shape, default=0) > 1}
    return bool(lengths) if length is None else length in lengths
