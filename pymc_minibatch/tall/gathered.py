"""Vectors of single variables, of which each row takes one.

``pt.stack([a, b, c])[group]`` with known groups becomes, in PyMC's log-density, a vector with as
many entries as there are rows, each of which is a, b or c. Then nothing says any more which of them
a row reads. :func:`readable` writes the short vector and its index again.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.model import Model
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.subtensor import AdvancedSubtensor

from pymc_minibatch.tall.sparse_rows import without_sparse
from pymc_minibatch.tall.wide_integers import with_wide_integers

__all__ = ["readable"]


def readable(graphs: Sequence[Variable], model: Model) -> list[Variable]:
    """Write log-densities of a model so that it can be seen what each row reads."""
    wide = with_wide_integers(_without_views(graphs))
    return without_sparse(_gathered(wide, list(_indices(model))))


def _without_views(graphs: Sequence[Variable]) -> list[Variable]:
    """Leave out operations that name a variable, as Deterministics do in potentials."""
    found = list(graphs)
    while views := [node for node in io_toposort([], found) if isinstance(node.op, ViewOp)]:
        [named], [variable] = views[0].outputs, views[0].inputs
        found = graph_replace(found, {named: variable}, strict=False)
    return found


def _indices(model: Model) -> Iterator[tuple[Constant, int]]:
    """Give the indices into vectors of single variables that a model has, and their lengths."""
    for node in io_toposort([], [*model.basic_RVs, *model.potentials]):
        if isinstance(node.op, AdvancedSubtensor) and len(node.inputs) == 2:
            vector, index = node.inputs
            is_made = vector.owner is not None and isinstance(vector.owner.op, MakeVector)
            if is_made and isinstance(index, Constant) and index.data.ndim == 1:
                yield index, len(vector.owner.inputs)


def _gathered(
    graphs: Sequence[Variable], indices: Sequence[tuple[Constant, int]]
) -> list[Variable]:
    """Replace vectors whose entries go by an index; the very same graphs if there are none."""
    if not indices:
        return list(graphs)
    found: dict[Variable, Variable] = {}
    for node in io_toposort([], list(graphs)):
        if not isinstance(node.op, MakeVector):
            continue
        known = [(_entries(node.inputs, *each), each[0]) for each in indices]
        fitting = [(entries, index) for entries, index in known if entries]
        if fitting:
            entries, index = min(fitting, key=lambda each: len(each[0]))
            [vector] = node.outputs
            found[vector] = pt.stack(entries).astype(vector.type.dtype)[index]
    return graph_replace(list(graphs), found, strict=False) if found else list(graphs)


def _entries(written_out: Sequence[Variable], index: Constant, length: int) -> list[Any]:
    """Return the short vector; none if the index is another's, or no row reads one of its entries.

    What that entry is cannot be known, and rows that take the place of the model's may read it.
    """
    numbers = np.asarray(index.data)
    if numbers.size != len(written_out):
        return []
    entries: list[Any] = [None] * length
    for number, entry in zip(numbers.tolist(), written_out, strict=True):
        if entries[number] is None:
            entries[number] = entry
        if entries[number] is not entry:
            return []
    return [] if None in entries else entries
