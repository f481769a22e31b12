"""Small matrices that rows read, taken apart into their entries.

The density of several normal variables is written with operations on matrices: a factor, a
triangular solve. Their second derivatives are graphs of many such operations, which compile for
minutes. On the entries of three or four variables they are a few dozen multiplications, which
differentiate and run like the rest of a row.

An array is seen as those of its entries that belong to one row, each a graph for all rows, shape
(b,); one that no row enters is a number. Operations that only move entries are applied to labels
of entries.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import truediv
from typing import Any

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import graph_inputs, toposort
from pytensor.tensor.basic import (
    Alloc,
    AllocDiag,
    ExtractDiag,
    Join,
    MakeVector,
    ScalarFromTensor,
    TensorFromScalar,
)
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.math import Dot
from pytensor.tensor.pad import Pad
from pytensor.tensor.shape import Reshape, Shape, Shape_i
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)

from pymc_minibatch.jit.compiled import compile_all
from pymc_minibatch.jit.lean import range_of
from pymc_minibatch.tall.check import FAILURES
from pymc_minibatch.tall.slicing import values_read

__all__ = ["has_matrices", "without_matrices"]

MOVING: dict[type, slice] = {
    Alloc: slice(0, 1),
    Reshape: slice(0, 1),
    Subtensor: slice(0, 1),
    AdvancedSubtensor: slice(0, 1),
    IncSubtensor: slice(0, 2),
    AdvancedIncSubtensor: slice(0, 2),
    DimShuffle: slice(0, 1),
    AllocDiag: slice(0, 1),
    ExtractDiag: slice(0, 1),
    Join: slice(0, None),
    Pad: slice(0, 1),
    MakeVector: slice(0, None),
}
"""Operations that move entries, and which of their inputs have these; others say where to."""

SOLVING = Cholesky, SolveTriangular


class _NotTakenApartError(Exception):
    """An operation on several rows, or one that is not known here."""


def has_matrices(graph: Variable) -> bool:
    """Whether a graph factors or solves matrices."""
    return any(isinstance(_core(node), SOLVING) for node in toposort([graph]))


def without_matrices(row: Variable, predictors: Sequence[Variable]) -> Variable:
    """Write a graph of the rows with operations on numbers where it has some on small matrices.

    Parameters
    ----------
    row
        The log-likelihood of each row, shape (b,).
    predictors
        What reads the parameters, each of shape (b,).

    Returns
    -------
    The same graph if it factors and solves nothing, or if not all of its operations are known here.
    """
    read = set(predictors)
    nodes = []
    for node in toposort([row], blockers=list(predictors)):
        if read.intersection(node.inputs) and not isinstance(node.op, Shape | Shape_i):
            read.update(node.outputs)
            nodes.append(node)
    if not any(isinstance(_core(node), SOLVING) for node in nodes):
        return row
    try:
        [entry] = _TakenApart(nodes, predictors).entries[row].ravel()
    except (_NotTakenApartError, *FAILURES):
        return row
    return entry


def _core(node: Apply) -> Any:
    """Return what a node does, to each of several arrays if there are several."""
    op: Any = node.op
    return op.core_op if isinstance(op, Blockwise) else op


class _TakenApart:
    """The entries of all arrays of a graph that belong to one row, whose axis has length 1."""

    def __init__(self, nodes: Sequence[Apply], predictors: Sequence[Variable]) -> None:
        self.entries = {v: _objects([v], (1,)) for v in predictors}
        self.factors: dict[tuple[int, ...], np.ndarray] = {}
        outputs = {output for node in nodes for output in node.outputs}
        self.known = _evaluated(
            {i for node in nodes for i in node.inputs} - outputs - set(predictors)
        )
        for node in nodes:
            self.entries[node.outputs[0]] = self._applied(node)

    def _of(self, variable: Any) -> np.ndarray:
        """Return the entries of an array, also of one that does not read parameters."""
        if variable not in self.entries:
            known = self.known.get(variable)
            self.entries[variable] = _of_data(variable) if known is None else known
        return self.entries[variable]

    def _applied(self, node: Apply) -> np.ndarray:
        op: Any = node.op
        core = _core(node)
        moved = MOVING.get(type(core))
        if moved is not None:
            return self._moved(node, range(len(node.inputs))[moved])
        entries = [self._of(i) for i in node.inputs]
        if isinstance(op, ScalarFromTensor | TensorFromScalar):
            return entries[0]
        if isinstance(op, CheckParameterValue):
            return _checked(*entries)
        if isinstance(op, Elemwise):
            return _mapped(Elemwise(op.scalar_op), *entries)
        if isinstance(op, CAReduce):
            return _reduced(op, *entries)
        if isinstance(core, Dot):
            n_axes = [len(axes) for axes in op.inputs_sig] if core is not op else None
            return _on_each(self._product, n_axes, *entries)
        if isinstance(core, Cholesky):
            return _on_each(partial(self._factor, lower=core.lower), [2], *entries)
        if isinstance(core, SolveTriangular):
            return _on_each(partial(_solved, core), [2, core.b_ndim], *entries)
        raise _NotTakenApartError

    def _product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Multiply, and remember what L Lᵀ has been made of."""
        product = np.asarray(a @ b, dtype=object)
        if _is_lower(a) and _identities(a) == _identities(b.T):
            self.factors[_identities(product)] = a
        return product

    def _factor(self, matrix: np.ndarray, lower: bool) -> np.ndarray:
        """Factor a positive definite matrix."""
        if not lower:
            return self._factor(matrix.T, lower=True).T
        known = self.factors.get(_identities(matrix))
        if known is None:
            return _cholesky(matrix)
        return _mapped(_towards, known, np.diag(known))

    def _moved(self, node: Apply, movable: Sequence[int]) -> np.ndarray:
        """Apply an operation to labels of entries."""
        op: Any = MakeVector("float64") if isinstance(node.op, MakeVector) else node.op
        if getattr(_core(node), "set_instead_of_inc", True) is False:
            raise _NotTakenApartError
        entries: list[Any] = [0.0]  # what an operation puts beside entries
        inputs: list[Any] = []
        for i, variable in enumerate(node.inputs):
            if i in movable:
                own = self._of(variable)
                inputs.append(
                    len(entries) + np.arange(own.size, dtype="float64").reshape(own.shape)
                )
                entries.extend(own.ravel())
            elif variable in self.known:
                inputs.append(self.known[variable])
            else:
                raise _NotTakenApartError  # each row has places of its own
        labels: list[list[Any]] = [[None]]
        op.perform(op.make_node(*inputs), inputs, labels)
        return _mapped(lambda label: entries[int(label)], labels[0][0])


def _evaluated(variables: Iterable[Any]) -> dict[Any, Any]:
    """Evaluate for one row what depends on no row, or only on their number."""
    known = {v: v.data for v in variables if isinstance(v, Constant)}
    others = [v for v in variables if v not in known]
    inputs = [v for v in graph_inputs(others) if not isinstance(v, Constant)]
    others = [v for v in others if values_read([v]).isdisjoint(inputs)]
    one_row = [np.zeros([n or 1 for n in v.type.shape], v.type.dtype) for v in inputs]
    return known | dict(zip(others, compile_all(inputs, others)(*one_row), strict=True))


def _of_data(variable: Any) -> np.ndarray:
    """Pick the entries of row data."""
    shape = variable.type.shape
    if shape.count(None) != 1:
        raise _NotTakenApartError
    rows = shape.index(None)
    own = [n or 1 for n in shape]

    def entry(*place: int) -> Any:
        return variable[(*place[:rows], slice(None), *place[rows + 1 :])]

    return _objects([entry(*place) for place in np.ndindex(*own)], own)


def _objects(entries: Iterable[Any], shape: Sequence[int]) -> np.ndarray:
    """Make an array of objects, which NumPy would look into."""
    array = np.empty(tuple(shape), dtype=object)
    for place, entry in zip(np.ndindex(*shape), entries, strict=True):
        array[place] = entry
    return array


def _mapped(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """Apply a function to all entries."""
    each = np.broadcast_arrays(*arrays)
    return _objects(
        (function(*entries) for entries in zip(*map(np.ravel, each), strict=True)), each[0].shape
    )


def _checked(value: np.ndarray, *conditions: np.ndarray) -> np.ndarray:
    """Return −∞ if a condition is not met."""
    each = [c for condition in conditions for c in condition.ravel() if not _is_met(c)]
    if not each:
        return value
    met = reduce(pt.bitwise_and, each)
    return _mapped(lambda v: pt.switch(met, v, -np.inf), value)


def _is_met(condition: Any) -> bool:
    """Whether a condition asks that numbers are positive that are never negative, such as e^x."""
    node = getattr(condition, "owner", None)
    if node is None or not isinstance(node.op, Elemwise):
        return False
    if isinstance(node.op.scalar_op, ps.AND):
        return all(map(_is_met, node.inputs))
    if not isinstance(node.op.scalar_op, ps.GT):
        return False
    larger, smaller = node.inputs
    return range_of(larger)[0] >= 0 >= range_of(smaller)[1]


def _reduced(op: Any, values: np.ndarray) -> np.ndarray:
    """Sum along axes, or whatever an operation does."""
    axes = range(values.ndim) if op.axis is None else op.axis
    last = np.moveaxis(values, axes, range(-len(axes), 0))
    kept = last.shape[: values.ndim - len(axes)]
    both = Elemwise(op.scalar_op)
    return _objects((reduce(both, each) for each in last.reshape(math.prod(kept), -1)), kept)


# --- Matrices of one row ----------------------------------------------------------------------


def _on_each(
    function: Callable[..., np.ndarray], n_axes: Sequence[int] | None, *arrays: np.ndarray
) -> np.ndarray:
    """Apply a function to the matrices in the last axes of arrays, or to whole arrays."""
    if n_axes is None:
        return function(*arrays)
    alone = [a.shape[: a.ndim - n] for a, n in zip(arrays, n_axes, strict=True)]
    kept = np.broadcast_shapes(*alone)
    spread = [
        np.broadcast_to(a, (*kept, *a.shape[a.ndim - n :]))
        for a, n in zip(arrays, n_axes, strict=True)
    ]
    found = [function(*(a[place] for a in spread)) for place in np.ndindex(*kept)]
    shape = *kept, *found[0].shape
    return _objects((entry for each in found for entry in each.ravel()), shape)


def _is_lower(matrix: np.ndarray) -> bool:
    """Whether a matrix is square, and all entries above its diagonal are known to be 0."""
    if matrix.shape != (len(matrix), len(matrix)):
        return False
    above = matrix[np.triu_indices_from(matrix, 1)]
    return all(isinstance(entry, float) and entry == 0 for entry in above)


def _identities(matrix: np.ndarray) -> tuple[int, ...]:
    return tuple(map(id, matrix.ravel()))


def _towards(entry: Any, pivot: Any) -> Any:
    """Change the sign of a column whose entry on the diagonal is negative."""
    is_known = range_of(pt.as_tensor_variable(pivot))[0] >= 0
    return entry if is_known else entry * pt.sign(pivot)


def _cholesky(matrix: np.ndarray) -> np.ndarray:
    """Factor a positive definite matrix, column by column."""
    lower = _objects([0.0] * matrix.size, matrix.shape)
    for j in range(len(matrix)):
        rest = matrix[j:, j] - lower[j:, :j] @ lower[j, :j]
        lower[j, j] = pt.sqrt(rest[0])
        lower[j + 1 :, j] = _mapped(truediv, rest[1:], lower[j, j : j + 1])
    return lower


def _solved(op: SolveTriangular, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solve a triangular system by substitution."""
    order = range(len(b)) if op.lower else range(len(b) - 1, -1, -1)
    x = b.astype(object).reshape(len(b), -1)
    for solved, i in enumerate(order):
        before = list(order[:solved])
        x[i] = x[i] - a[i, before] @ x[before]
        if not op.unit_diagonal:
            x[i] = _mapped(truediv, x[i], a[i, i : i + 1])
    return x.reshape(b.shape)
