"""What a graph computes from data alone, computed once.

Rows are independent given the parameters, but what is made of the data before may take them
together: ``x - x.mean()``, the past values of a series, a cumulated sum. Such parts of a graph have
the same value at every draw. They become constants here, with rows of their own where they have
any.
"""

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pymc.pytensorf import compile as pymc_compile
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.type import TensorType

__all__ = ["data_evaluated"]


def data_evaluated(graphs: Sequence[Variable]) -> list[Any]:
    """Replace the largest parts of graphs that read data only by their values."""
    parts = _parts_of_data(graphs)
    if not parts:
        return list(graphs)
    mode = Mode(linker="py", optimizer="minimum_compile")
    values = pymc_compile([], parts, mode=mode)()
    constants: dict[Variable, Variable] = {
        part: pt.constant(value, dtype=part.type.dtype)
        for part, value in zip(parts, values, strict=True)
    }
    replaced: list[Any] = graph_replace(list(graphs), constants, strict=False)
    return replaced


def _parts_of_data(graphs: Sequence[Variable]) -> list[Variable]:
    """List what is computed from data and read by what is not."""
    of_data: set[Variable] = set()

    def is_of_data(variable: Variable) -> bool:
        is_shared = isinstance(variable, SharedVariable) and isinstance(variable.type, TensorType)
        return variable in of_data or is_shared or isinstance(variable, Constant)

    parts: dict[Variable, None] = {}
    for node in io_toposort([], graphs):
        if node.inputs and all(map(is_of_data, node.inputs)):
            of_data.update(node.outputs)
        else:
            parts |= dict.fromkeys(each for each in node.inputs if each in of_data)
    parts |= dict.fromkeys(graph for graph in graphs if graph in of_data)
    return [part for part in parts if isinstance(part.type, TensorType)]
