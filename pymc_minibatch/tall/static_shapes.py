"""Graphs whose types know the lengths of their arrays.

A variable with ``dims`` has an array of unknown lengths in a model's graph, and what is made of it
has so, too. Once the variable is a part of a vector of parameters its lengths are known, and these
follow from them. A loop (Scan) refuses lengths of one that it was not made with; a graph with such
a loop is left as it is.
"""

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import io_toposort

__all__ = ["with_static_shapes"]


def with_static_shapes(inputs: Sequence[Variable], graph: Variable) -> Any:
    """Return the graph with operations made anew if they have outputs of unknown lengths.

    It is the same graph if an operation refuses what is known.

    Parameters
    ----------
    inputs
        Variables that stay as they are.
    graph
        A graph of these.
    """
    known: dict[Variable, Any] = {}
    for node in io_toposort(list(inputs), [graph]):
        read = [known.get(each, each) for each in node.inputs]
        is_as_before = all(a is b for a, b in zip(read, node.inputs, strict=True))
        if is_as_before and not any(map(_is_of_unknown_lengths, node.outputs)):
            continue
        try:
            made = node.op.make_node(*read)
        except (AssertionError, IndexError, TypeError, ValueError):
            return graph
        known.update(zip(node.outputs, made.outputs, strict=True))
    return known.get(graph, graph)


def _is_of_unknown_lengths(variable: Any) -> bool:
    return None in getattr(variable.type, "shape", ())
