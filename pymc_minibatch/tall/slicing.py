"""Rewrite a graph over all N rows into the same graph over a batch of rows.

A row term of a model, such as the log-density of ``y ~ Normal(X @ beta, sigma)``, is a graph whose
leaves are arrays with an axis of length N. Replacing each such leaf by an input of any length gives
the term of a batch. Three things stand in the way, and go symbolic here: the static length of the
leaves, ``SpecifyShape`` nodes, and row counts that are written into the graph as shapes (constants,
or the shared lengths that ``dims`` bring).

Nothing here proves that the result is right. :class:`~pymc_minibatch.tall.model.TallModel` compares
it with the full graph.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, graph_inputs, io_toposort
from pytensor.scan.op import Scan
from pytensor.tensor.basic import Alloc, MakeVector, get_underlying_scalar_constant_value
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape, specify_shape
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

__all__ = [
    "batch_input",
    "constant_length",
    "data_leaves",
    "leaf_value",
    "reads_data_only",
    "rebuild_graph",
    "slice_rows",
    "values_read",
]


def leaf_value(leaf: Variable) -> np.ndarray:
    """Return the array behind a constant or a shared variable, without copying it."""
    if isinstance(leaf, SharedVariable):
        return np.asarray(leaf.get_value(borrow=True))
    assert isinstance(leaf, Constant)
    return np.asarray(leaf.data)


def data_leaves(outputs: Iterable[Variable]) -> list[Variable]:
    """List the constants and shared tensors that a graph reads, in a stable order."""
    return [
        leaf
        for leaf in ancestors(list(outputs))
        if isinstance(leaf, Constant | SharedVariable) and isinstance(leaf.type, TensorType)
    ]


def slice_rows(
    term: TensorVariable,
    n_rows: int,
    row_axes: Mapping[Variable, int],
    dtypes: Mapping[Variable, np.dtype] | None = None,
) -> tuple[list[TensorVariable], Variable]:
    """Rebuild `term` on a batch of rows.

    Parameters
    ----------
    term
        A graph over all rows.
    n_rows
        The number of rows, N.
    row_axes
        For each leaf that holds rows, the axis along which they lie.
    dtypes
        What the inputs are made of; if not given, what the leaves are made of.

    Returns
    -------
    inputs
        One input for each leaf of `row_axes`, in that order, with rows along the first axis.
    batch_term
        The term over the rows of the inputs.
    """
    inputs = [batch_input(leaf, axis, (dtypes or {}).get(leaf)) for leaf, axis in row_axes.items()]
    replaced: dict[Variable, Variable] = {
        leaf: pt.cast(pt.moveaxis(batch, 0, axis), leaf.type.dtype)
        for (leaf, axis), batch in zip(row_axes.items(), inputs, strict=True)
    }
    [batch_term] = rebuild_graph([term], replaced, n_rows, inputs[0].shape[0])
    return inputs, batch_term


def rebuild_graph(
    outputs: Sequence[Variable],
    replaced: dict[Variable, Variable],
    n_rows: int,
    n_batch: TensorVariable,
) -> list[Variable]:
    """Rebuild graphs on what replaces some of their variables, and with another number of rows."""
    for node in io_toposort(list(replaced), outputs):
        rebuilt = _rebuild(node, [replaced.get(i, i) for i in node.inputs], n_rows, n_batch)
        if rebuilt is not None:
            replaced.update(zip(node.outputs, rebuilt, strict=True))
    return [replaced.get(output, output) for output in outputs]


def batch_input(leaf: Variable, axis: int, dtype: np.dtype | None) -> TensorVariable:
    """Make an input for a batch of what a leaf holds, with rows along the first axis."""
    shape = list(leaf.type.shape)
    del shape[axis]
    # pt.tensor takes some names for types, such as "long" or Bambi's "p(k, n)".
    return TensorType(dtype or leaf.type.dtype, (None, *shape))(name=leaf.name)


def _rebuild(
    node: Apply, inputs: list[Variable], n_rows: int, n_batch: TensorVariable
) -> Sequence[Variable] | None:
    """Rebuild one node on its replaced inputs; None if nothing changes."""
    if isinstance(node.op, SpecifyShape):
        # Its check is slow to compile and was made on the whole graph. A length of 1 is more than a
        # check: it lets the axis broadcast.
        lengths = [constant_length(length) for length in node.inputs[1:]]
        ones = tuple(1 if n == 1 else None for n in lengths)
        return [specify_shape(inputs[0], ones)] if 1 in ones else [inputs[0]]
    if isinstance(node.op, Alloc):
        inputs = [inputs[0], *(_batch_length(n, n_rows, n_batch) for n in inputs[1:])]
    elif isinstance(node.op, MakeVector) and node.op.dtype == "int64":
        inputs = [_batch_length(n, n_rows, n_batch) for n in inputs]
    elif isinstance(node.op, RandomVariable):
        inputs = [inputs[0], _batch_shape(inputs[1], n_rows, n_batch), *inputs[2:]]
    elif isinstance(node.op, Reshape):
        inputs = [inputs[0], _batch_shape(inputs[1], n_rows, n_batch)]
    if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
        return None
    if isinstance(node.op, Scan):
        return _rebuild_loop(node.op, inputs, n_rows, n_batch)
    if isinstance(node.op, OpFromGraph):  # its inner graph has the static shapes of all rows
        inner = node.op.fgraph.unfreeze()
        bound = dict(zip(inner.inputs, inputs, strict=True))
        return rebuild_graph(inner.outputs, bound, n_rows, n_batch)
    return node.op.make_node(*inputs).outputs


def _rebuild_loop(
    op: Scan, inputs: list[Variable], n_rows: int, n_batch: TensorVariable
) -> Sequence[Variable]:
    """Rebuild a loop, whose inner graph has the static shapes of all rows; it gets their number."""
    whole = op.fgraph.unfreeze()
    inner = [_of_any_length(variable, n_rows) for variable in whole.inputs]
    number = n_batch.type()
    bound = dict(zip(whole.inputs, inner, strict=True))
    outputs = rebuild_graph(whole.outputs, bound, n_rows, number)
    loop = Scan(
        [*inner, number],
        outputs,
        replace(op.info, n_non_seqs=op.info.n_non_seqs + 1),
        mode=op.mode,
        truncate_gradient=op.truncate_gradient,
        name=op.name,
        allow_gc=op.allow_gc,
        strict=op.strict,
    )
    found: Sequence[Variable] = loop.make_node(*inputs, n_batch).outputs
    return found


def _of_any_length(variable: Variable, n_rows: int) -> Variable:
    """Make a variable of the same type, whose axes of rows may have any length."""
    kind = variable.type
    if not isinstance(kind, TensorType) or n_rows not in kind.shape:
        return kind()
    return kind.clone(shape=tuple(None if n == n_rows else n for n in kind.shape))()


def constant_length(length: Variable) -> int | None:
    """Return a length that is known when the graph is built."""
    if isinstance(length, SharedVariable):
        return int(length.get_value())
    try:
        return int(get_underlying_scalar_constant_value(length))
    except (NotScalarConstantError, TypeError):  # TypeError: SpecifyShape's None
        return None


def _batch_length(length: Variable, n_rows: int, n_batch: TensorVariable) -> Variable:
    return n_batch if constant_length(length) == n_rows else length


def _batch_shape(shape: Variable, n_rows: int, n_batch: TensorVariable) -> Variable:
    if not isinstance(shape, Constant) or shape.data is None or n_rows not in shape.data:
        return shape
    return pt.stack([n_batch if n == n_rows else pt.constant(n) for n in shape.data])


def reads_data_only(graph: Variable) -> bool:
    """Whether a graph depends on data and constants alone."""
    return all(isinstance(leaf, Constant | SharedVariable) for leaf in graph_inputs([graph]))


def values_read(graphs: Sequence[Variable]) -> set[Variable]:
    """Find all that the values of graphs depend on, not only their shapes."""
    found: set[Variable] = set()
    stack = list(graphs)
    while stack:
        variable = stack.pop()
        if variable in found:
            continue
        found.add(variable)
        if variable.owner is not None and not isinstance(variable.owner.op, Shape | Shape_i):
            stack.extend(variable.owner.inputs)
    return found
