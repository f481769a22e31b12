"""Matrix times vector, and small matrices times others, without BLAS.

PyTensor's products of matrices take eight seconds to compile. A batch of rows times a coefficient
vector is a double loop, which compiles in a fraction of one and is as fast at that size. To call
BLAS for each of many small matrices takes several times as long as a loop.
"""

from typing import Any

import numpy as np
from numba.extending import overload
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Dot
from pytensor.tensor.type import TensorType

from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.jit.reached import reached_number

__all__ = ["MatVec", "local_matvec", "local_small_matrices"]

LONGEST = 8
"""Columns of the first matrix, up to which products are written out."""


class MatVec(Op):
    """A matrix times a vector of the same floating type."""

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        """Take (n, d) and (d,), give (n,)."""
        matrix: Any = inputs[0]
        out = TensorType(matrix.type.dtype, shape=(matrix.type.shape[0],))()
        return Apply(self, list(inputs), [out])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Multiply in NumPy."""
        outputs[0][0] = inputs[0] @ inputs[1]


@node_rewriter([Dot])
def local_matvec(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace products of matrices of which one is a row or a column."""
    inputs: Any = node.inputs
    a, b = inputs
    if not (a.type.dtype == b.type.dtype and a.type.dtype in ("float32", "float64")):
        return None
    product: Any
    if b.type.shape[1] == 1:
        product = MatVec()(a, _column(b))
        return [product[:, None]]
    if a.type.shape[0] == 1:
        product = MatVec()(b.T, a[0])
        return [product[None, :]]
    return None


@node_rewriter([BatchedDot])
def local_small_matrices(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Write products of many small matrices as sums of products of their columns and rows."""
    inputs: Any = node.inputs
    a, b = inputs
    length = a.type.shape[2] or b.type.shape[1]
    if not length or length > LONGEST:  # it may not be known
        return None
    products = [a[:, :, k, None] * b[:, k, None, :] for k in range(length)]
    return [sum(products[1:], start=products[0])]


def _column(matrix: Any) -> Any:
    """Return the only column of a matrix: what it was before it got an axis, if that is known."""
    node = matrix.owner
    if node is not None and isinstance(node.op, DimShuffle) and node.op.new_order == (0, "x"):
        return node.inputs[0]
    return matrix[:, 0]


def _matvec(matrix: Any, vector: Any) -> Any:
    """Stand for the two loops below."""


@overload(_matvec, jit_options={"fastmath": {"reassoc", "contract"}})
def _overload_matvec(matrix: Any, vector: Any) -> Any:
    """Run along memory: over columns where these are contiguous, four at a time.

    The vector is copied, since a column of a matrix has a stride, which keeps the compiler from
    taking several products at a time.
    """

    def by_columns(matrix: Any, vector: Any) -> Any:
        out = np.zeros(matrix.shape[0], matrix.dtype)
        fours = matrix.shape[1] - matrix.shape[1] % 4
        for j in range(0, fours, 4):
            a, b, c, d = vector[j], vector[j + 1], vector[j + 2], vector[j + 3]
            for i in range(matrix.shape[0]):
                first = matrix[i, j] * a + matrix[i, j + 1] * b
                out[i] += first + (matrix[i, j + 2] * c + matrix[i, j + 3] * d)
        for j in range(fours, matrix.shape[1]):
            for i in range(matrix.shape[0]):
                out[i] += matrix[i, j] * vector[j]
        return out

    def by_rows(matrix: Any, vector: Any) -> Any:
        vector = vector.copy()
        out = np.zeros(matrix.shape[0], matrix.dtype)
        for i in range(matrix.shape[0]):
            total = out[i]
            for j in range(matrix.shape[1]):
                total += matrix[i, j] * vector[j]
            out[i] = total
        return out

    return by_columns if matrix.layout == "F" else by_rows


@register_funcify_default_op_cache_key(MatVec)
def _funcify_matvec(op: MatVec, node: Apply, **kwargs: Any) -> tuple[Any, int]:
    @jit_part
    def matvec(matrix: Any, vector: Any) -> Any:
        return _matvec(matrix, vector)

    return matvec, reached_number(matvec)
