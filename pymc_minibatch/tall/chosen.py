"""One of two graphs for each row.

Where rows of two kinds are put together, ``pt.concatenate([u[old] + drift, u[new]])``, each row
reads its own kind. ``switch`` says so, but hides that both read a level of `u`. What the two have
in common is taken out of the choice here: ``u[switch(...)] + switch(is_old, drift, 0)``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.scalar.basic import Add, Mul, ScalarOp
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.subtensor import AdvancedSubtensor

__all__ = ["chosen"]


def chosen(is_second: np.ndarray, first: Any, second: Any) -> Any:
    """Return the rows of one graph where they are chosen, and those of the other elsewhere.

    Parameters
    ----------
    is_second : ndarray of bool, shape (N,)
        Which rows are those of the second graph.
    first, second
        Graphs with N rows, or one that is the same for all.
    """
    if first is second:
        return first
    if isinstance(first, Constant) and isinstance(second, Constant):
        return pt.constant(np.where(_along(is_second, first), second.data, first.data))
    product = _product(is_second, first, second)
    if product is not None:
        return product
    if len(_operands(first, Add)) > 1 or len(_operands(second, Add)) > 1:
        return _sum(is_second, first, second)
    ops = [None if each.owner is None else each.owner.op for each in (first, second)]
    if ops[0] is not None and ops[0] == ops[1]:
        both = list(zip(first.owner.inputs, second.owner.inputs, strict=True))
        if isinstance(ops[0], Elemwise) and len(first.owner.outputs) == 1:
            return ops[0](*[chosen(is_second, *each) for each in both])
        if isinstance(getattr(ops[0], "core_op", ops[0]), Dot) and both[1][0] is both[1][1]:
            return ops[0](chosen(is_second, *both[0]), both[1][0])
    return pt.switch(_along(is_second, first), second, first)


def _sum(is_second: np.ndarray, first: Any, second: Any) -> Any:
    """Choose between sums: what both gather from is one term, and all else another."""
    terms, others, found = _operands(first, Add), _operands(second, Add), list[Any]()
    for term in list(terms):
        for other in list(others):
            common = term if term is other else _product(is_second, term, other)
            if common is not None:
                found.append(common)
                terms.remove(term)
                others.remove(other)
                break
    if terms or others:
        nothing = pt.constant(np.zeros([1] * first.type.ndim))
        left = [_all(pt.add, each, nothing) for each in (terms, others)]
        is_done = len(terms) == len(others) == 1
        found.append(
            chosen(is_second, *left)
            if is_done
            else pt.switch(_along(is_second, first), left[1], left[0])
        )
    return _all(pt.add, found, None)


def _product(is_second: np.ndarray, first: Any, second: Any) -> Any:
    """Choose between products with what both gather from the same array; None if there is none."""
    ones, twos = (_operands(each, Mul) for each in (first, second))
    for i, one in enumerate(ones):
        for j, two in enumerate(twos):
            common = _gathered(is_second, one, two)
            if common is not None:
                rest = [ones[:i] + ones[i + 1 :], twos[:j] + twos[j + 1 :]]
                if not any(rest):
                    return common
                nothing = pt.constant(np.ones([1] * first.type.ndim))
                return common * chosen(is_second, *[_all(pt.mul, each, nothing) for each in rest])
    return None


def _gathered(is_second: np.ndarray, first: Any, second: Any) -> Any:
    """Return what both gather from the same array by numbers; None if they do not."""
    nodes = [each.owner for each in (first, second)]
    for node in nodes:
        if node is None or not isinstance(node.op, AdvancedSubtensor):
            return None
        if not all(isinstance(each, Constant) for each in node.inputs[1:]):
            return None
    array, *indices = nodes[0].inputs
    other, *others = nodes[1].inputs
    if array is not other or nodes[0].op != nodes[1].op:
        return None
    pairs = [(one.data, two.data) for one, two in zip(indices, others, strict=True)]
    is_first_axis = all(not isinstance(each, slice) for each in nodes[0].op.idx_list[: len(pairs)])
    if not is_first_axis or not all(
        _are_numbers(i, is_second.size) for both in pairs for i in both
    ):
        return None
    numbers = [np.where(is_second, two, one).astype(np.int64) for one, two in pairs]
    return nodes[0].op(array, *map(pt.constant, numbers))


def _are_numbers(index: np.ndarray, n_rows: int) -> bool:
    return index.ndim == 1 and index.dtype.kind in "iu" and index.size == n_rows


def _all(combine: Any, operands: Sequence[Any], nothing: Any) -> Any:
    """Return a sum or product, also of one operand, or none."""
    if not operands:
        return nothing
    return combine(*operands) if len(operands) > 1 else operands[0]


def _operands(graph: Any, kind: type[ScalarOp]) -> list[Any]:
    """List the terms of a sum, or the factors of a product."""
    op = None if graph.owner is None else graph.owner.op
    if not isinstance(op, Elemwise) or not isinstance(op.scalar_op, kind):
        return [graph]
    return [each for operand in graph.owner.inputs for each in _operands(operand, kind)]


def _along(is_second: np.ndarray, graph: Any) -> np.ndarray:
    """Return the choice with as many axes as a graph."""
    return is_second.reshape(-1, *[1] * (graph.type.ndim - 1))
