"""Checks of parameters, row by row.

PyMC asks that all rows have parameters in range, and gives all of them −∞ if one has not. The sum
is the same if only that row has it. So a row whose rate rounds to 0 at a proposal says nothing of
others, whose effects may move beside its own.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import All

__all__ = ["checked_by_row", "parts_of_condition"]


def checked_by_row(term: Any, flat: Variable, batch: Sequence[Variable]) -> Any:
    """Return the log-likelihoods of a batch, in which checks concern the row that they read.

    Checks of what reads no rows, or parameters, or has other axes than the rows, stay as they are.

    Parameters
    ----------
    term
        A graph of the flat point and a batch, one number a row.
    flat, batch
        Its inputs.
    """
    inputs = set(batch)

    @node_rewriter([CheckParameterValue])
    def local_check_by_row(fgraph: Any, node: Apply) -> list[Variable] | None:
        op: Any = node.op
        if not op.can_be_replaced_by_ninf:
            return None
        value, *conditions = node.inputs
        each = [part for condition in conditions for part in parts_of_condition(condition)]
        by_row = [part for part in each if _is_like(part, value) and _reads(part, flat, inputs)]
        if not by_row:
            return None
        checked: Any = pt.switch(reduce(pt.and_, by_row), value, -np.inf)
        others = [pt.all(part) for part in each if part not in by_row]
        if others:  # one condition, as PyMC has: PyTensor vectorizes no checks of several
            checked = op(checked, pt.all(pt.stack(others)))
        return [pt.cast(checked, node.outputs[0].type.dtype)]

    graph = FunctionGraph(outputs=[term], copy_inputs=False)
    in2out(local_check_by_row).rewrite(graph)
    return graph.outputs[0]


def parts_of_condition(condition: Any) -> list[Any]:
    """Return the conditions that all are to be met, without what joins them to one."""
    node = condition.owner
    op = None if node is None else node.op
    if isinstance(op, All) and op.axis in (None, tuple(range(node.inputs[0].type.ndim))):
        return parts_of_condition(node.inputs[0])
    if isinstance(op, MakeVector):
        return [part for each in node.inputs for part in parts_of_condition(each)]
    if isinstance(op, ScalarFromTensor | TensorFromScalar):
        return parts_of_condition(node.inputs[0])
    if isinstance(op, DimShuffle) and condition.type.ndim == 0:
        return parts_of_condition(node.inputs[0])
    return [condition]


def _is_like(part: Any, value: Any) -> bool:
    """Whether a condition has the axes of a value, of which at most one holds rows."""
    lengths, own = getattr(part.type, "shape", None), value.type.shape
    return bool(own) and own.count(None) <= 1 and lengths == own


def _reads(part: Any, flat: Variable, batch: set[Variable]) -> bool:
    above = set(ancestors([part]))
    return flat in above and not batch.isdisjoint(above)
