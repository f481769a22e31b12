"""Transforms of each level's own variables, moved to the rows that gather them.

Ordered thresholds of many items are what a transform makes of unconstrained values, each item's
from its own. Written as ``T(z)[item]`` rows read what is not affine in z, though each item is but a
few numbers: ``T(z[item])`` says the same, and the rows read z. Probabilities that sum to one are
left alone, since the softmax that makes them is taken apart elsewhere.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from pymc.util import get_var_name
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.shape import Reshape
from pytensor.tensor.special import Softmax
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor, indices_from_subtensor

from pymc_minibatch.jit.compiled import compile_all

if TYPE_CHECKING:
    from pymc_minibatch.tall.model import TallModel

__all__ = ["gathered_first", "gathers_levels"]

RTOL, N_POINTS = 1e-12, 2


def gathered_first(tall: "TallModel", inputs: list[Variable], term: Variable) -> Variable:
    """Gather values before they are transformed, where each level's are by themselves.

    Parameters
    ----------
    tall
        The model.
    inputs
        The flat point and the batch.
    term
        A graph of these.
    """
    flat, replaced = inputs[0], {}
    for node in io_toposort(inputs, [term]):
        if not isinstance(node.op, AdvancedSubtensor):
            continue
        if not gathers_levels(node):
            continue
        array = node.inputs[0]
        first = indices_from_subtensor(node.inputs[1:], node.op.idx_list)[0]
        for value, transformed in _candidates(tall, array, flat, inputs[1:]):
            if _agree(tall, flat, array, transformed(value)):
                replaced[node.outputs[0]] = transformed(value[first])
                break
    if not replaced:
        return term
    [moved] = graph_replace([term], replaced, strict=False)
    return moved


def gathers_levels(node: Apply) -> bool:
    """Whether each row gathers one level of an array, with all that the level has."""
    op: Any = node.op
    first, *rest = indices_from_subtensor(node.inputs[1:], op.idx_list)
    return (
        not isinstance(first, slice)
        and first.type.ndim == 1
        and first.type.dtype != "bool"
        and all(isinstance(i, slice) and i == slice(None) for i in rest)
    )


def _candidates(
    tall: "TallModel", array: Any, flat: Variable, batch: list[Variable]
) -> Iterator[tuple[Any, Any]]:
    """Yield the one value variable that an array reads, with the transform that may have made it.

    Transforms of single numbers are functions of them, which need no help.
    """
    above = set(ancestors([array]))
    if flat not in above or not above.isdisjoint(batch) or isinstance(array.owner.op, Softmax):
        return
    read = [node for node in io_toposort([flat], [array]) if flat in node.inputs]
    if len(read) != 1 or not isinstance(read[0].op, Subtensor):
        return
    model, slices = tall.model, tall.layout.slices
    start, stop = (getattr(i, "data", None) for i in (*read[0].inputs[1:], None, None)[:2])
    for rv, value in model.rvs_to_values.items():
        where, transform = slices.get(get_var_name(value)), model.rvs_to_transforms.get(rv)
        if where is None or transform is None or rv.owner is None:
            continue
        if (where.start, where.stop) != (start, stop) or getattr(transform, "ndim_supp", 0) < 1:
            continue
        shaped = _value_in(array, flat)
        if shaped is not None and shaped.type.ndim == array.type.ndim > 1:
            yield shaped, lambda z, t=transform, rv=rv: t.backward(z, *rv.owner.inputs)


def _value_in(array: Any, flat: Variable) -> Any:
    """Return the value variable, of its own shape, in the graph of an array."""
    nodes: list[Apply] = [n for n in io_toposort([flat], [array]) if isinstance(n.op, Reshape)]
    pieces = [n for n in nodes if n.inputs[0].owner and flat in n.inputs[0].owner.inputs]
    return pieces[0].outputs[0] if len(pieces) == 1 else None


def _agree(tall: "TallModel", flat: Variable, array: Any, other: Any) -> bool:
    """Whether two arrays are the same at points about the start."""
    if not set(ancestors([other])) - set(ancestors([array])) or flat not in ancestors([other]):
        return False
    evaluate, rng = compile_all([flat], [array, other]), np.random.default_rng(3)
    for _ in range(N_POINTS):
        one, two = evaluate(tall.start + rng.standard_normal(tall.start.size))
        if one.shape != two.shape or not np.allclose(one, two, rtol=RTOL, atol=0.0):
            return False
    return True
