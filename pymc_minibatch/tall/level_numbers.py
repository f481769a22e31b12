"""Numbers of levels below zero, which NumPy counts from the end.

They stand for a missing label: pandas codes an unknown category as -1. A model whose own rows have
none would read its last level for them.
"""

from collections.abc import Sequence

import numpy as np
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import LogicalComparison
from pytensor.tensor.basic import Join
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import TensorType, integer_dtypes

from pymc_minibatch.jit.compiled import compile_all

__all__ = ["refuse_new_negative_indices"]


def refuse_new_negative_indices(
    output: Variable,
    batch: Sequence[Variable],
    own: Sequence[np.ndarray],
    new: Sequence[np.ndarray],
) -> None:
    """Refuse rows that count levels from the end, unless the model's own rows do.

    Parameters
    ----------
    output
        What is computed from the rows.
    batch
        Inputs that hold rows, along the first axis.
    own, new
        The values of these inputs in the model, and in other rows.

    Raises
    ------
    ValueError
    """
    indices = _indices_of_rows(output, batch)
    if not indices:
        return
    read = [k for k, rows in enumerate(batch) if rows in ancestors(indices)]
    evaluate = compile_all([batch[k] for k in read], indices)
    # Other rows may be of another type. Unsigned ones have no negative numbers, whatever our own.
    before = evaluate(*[own[k].astype(batch[k].type.dtype, copy=False) for k in read])
    for present, found in zip(before, evaluate(*[new[k] for k in read]), strict=True):
        if found.size and found.min() < 0 <= present.min(initial=0):
            raise ValueError(
                f"{found.min()} numbers a level of a group, which would be counted from the last "
                "one; pandas codes missing and unknown labels as -1. Leave out these rows, or give "
                "the missing label a level of its own"
            )


def _indices_of_rows(output: Variable, batch: Sequence[Variable]) -> list[Variable]:
    """List what takes levels or entries by number and is computed from the rows alone.

    It is left out where a model says itself what numbers below zero stand for: they are compared
    with something, or another entry was put behind the levels.
    """
    nodes = [variable.owner for variable in ancestors([output]) if variable.owner is not None]
    compared: set[Variable] = set()
    for node in nodes:
        if isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, LogicalComparison):
            roots = _rows(node.inputs)
            compared |= roots if roots <= set(batch) else set()
    found: dict[Variable, None] = {}
    for node in nodes:
        if not isinstance(node.op, AdvancedSubtensor) or _ends_with_a_constant(node.inputs[0]):
            continue
        for index in node.inputs[1:]:
            is_number = isinstance(index.type, TensorType) and index.type.dtype in integer_dtypes
            if is_number and _reads_only(index, batch) and not compared & _rows([index]):
                found[index] = None
    return list(found)


def _ends_with_a_constant(levels: Variable) -> bool:
    node = levels.owner
    return node is not None and isinstance(node.op, Join) and not _rows(node.inputs[-1:])


def _reads_only(index: Variable, batch: Sequence[Variable]) -> bool:
    roots = _rows([index])
    return bool(roots) and roots <= set(batch)


def _rows(variables: Sequence[Variable]) -> set[Variable]:
    """Return what variables are computed from, other than constants."""
    return {v for v in ancestors(variables) if v.owner is None and not isinstance(v, Constant)}
