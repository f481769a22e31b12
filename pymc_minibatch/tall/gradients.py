"""Gradients of the rows of a batch, all of them by one reverse pass.

Reverse mode gives the gradient of a sum. So that the rows stay apart, each gets its own copy of the
point: the graph of one row is vectorized over pairs of a row and a copy, and the sum of its values
is differentiated by the copies, an (n, D) matrix. Copies are all alike, and are put back to the one
point afterwards, so that what does not depend on the row is computed once.
"""

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import NullTypeGradError, grad, pushforward
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.utils import MethodNotDefined
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import SpecifyShape, specify_shape

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba
from pymc_minibatch.tall.model import TallModel

__all__ = ["NO_DERIVATIVE", "compile_gradient_sum", "compile_row_gradients", "row_gradients"]

NO_DERIVATIVE = (NotImplementedError, NullTypeGradError, MethodNotDefined)
"""What PyTensor raises where an operation has no derivative."""


def row_gradients(tall: TallModel) -> tuple[list[Variable], Variable]:
    """Build ``(flat point, *batch) -> gradients`` of the row log-likelihoods, shape (n, D)."""
    [flat, *batch], [term] = tall.batch_graph
    first: Any = batch[0]
    n, dim = first.shape[0], tall.layout.size
    theta: Any = pt.tensor("theta", shape=(dim,), dtype="float64")
    point: Any = pt.tensor("point", shape=(dim,), dtype="float64")
    copies: Any = pt.tensor("copies", shape=(None, dim), dtype="float64")
    # With a length of 1 that is known, rows and parameters broadcast without a check.
    single: list[Any] = [pt.tensor(dtype=b.type.dtype, shape=(1, *b.type.shape[1:])) for b in batch]
    replaced: dict[Variable, Variable] = {flat: theta} | dict(zip(batch, single, strict=True))
    one: Any
    [one] = graph_replace([term], replaced, strict=False)
    one = rewrite_graph(specify_shape(one, (1,)).squeeze(0), include=("canonicalize",))
    one = _rewritten(one, [theta, *single], local_sum_of_products)
    along: dict[Variable, Variable] = {
        s: pt.expand_dims(b, 1) for s, b in zip(single, batch, strict=True)
    }
    [rows] = vectorize_graph([one], {theta: copies} | along)
    gradients: Any = grad(pt.sum(rows), copies, disconnected_inputs="ignore")
    alike: dict[Variable, Variable] = {copies: pt.broadcast_to(point, (n, dim))}
    [gradients] = graph_replace([gradients], alike, strict=False)
    return [point, *batch], _rewritten(gradients, [point, *batch], local_drop_specify_shape)


def compile_row_gradients(tall: TallModel, order: int = 0) -> CompiledFunction:
    """Compile the gradients of the rows less those of their Taylor terms.

    Parameters
    ----------
    tall
        The model.
    order
        Of the Taylor expansion of the log-likelihood about the reference: 0 for none, 1 to subtract
        the gradient at the reference, 2 its change by the Hessian as well.

    Returns
    -------
    CompiledFunction
        ``(point, reference, *batch) -> array of shape (n, D)``; order 0 does not read the
        reference.
    """
    return _compile_remainder(*row_gradients(tall), order)


def compile_gradient_sum(tall: TallModel, order: int = 0) -> CompiledFunction:
    """Compile the gradient of a batch, the sum of what :func:`compile_row_gradients` gives.

    Returns
    -------
    CompiledFunction
        ``(point, reference, *batch) -> array of shape (D,)``.
    """
    [flat, *batch], [term] = tall.batch_graph
    gradient: Any = grad(pt.sum(term), flat, disconnected_inputs="ignore")
    return _compile_remainder([flat, *batch], gradient, order)


def _compile_remainder(
    inputs: Sequence[Variable], gradients: Variable, order: int
) -> CompiledFunction:
    """Compile gradients less those of the Taylor terms of what they are the gradients of."""
    flat: Any
    flat, *batch = inputs
    reference: Any = pt.tensor("reference", shape=flat.type.shape, dtype="float64")
    epsilon = pt.dscalar("epsilon")
    remainder: Any = gradients
    term: Any
    if order:
        along = {flat: reference + epsilon * (flat - reference)}
        [term] = graph_replace([gradients], along, strict=False)
        zero = {epsilon: pt.constant(0.0, dtype="float64")}
        for power in range(order):
            taylor: Any
            [taylor] = graph_replace([term], zero, strict=False)
            remainder = remainder - taylor
            if power + 1 < order:
                term = pushforward(
                    term, epsilon, pt.ones_like(epsilon), disconnected_outputs="ignore"
                )
    return compile_numba([flat, reference, *batch], [remainder])


def _rewritten(output: Variable, inputs: Sequence[Variable], rewriter: Any) -> Variable:
    graph = FunctionGraph(list(inputs), [output], clone=False)
    in2out(rewriter).rewrite(graph)
    return graph.outputs[0]


@node_rewriter([Dot])
def local_sum_of_products(fgraph: Any, node: Apply) -> list[Variable]:
    """Write a product of matrices out: of one row it is small, and many of them compile slowly."""
    a, b = (pt.as_tensor_variable(i) for i in node.inputs)
    return [(a[:, :, None] * b[None, :, :]).sum(axis=1)]


@node_rewriter([SpecifyShape])
def local_drop_specify_shape(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Drop checks of lengths, which compile slowly: the graph of the rows has made them."""
    inner: Any = node.inputs[0]
    outer: Any = node.outputs[0]
    return [inner] if inner.type.broadcastable == outer.type.broadcastable else None
