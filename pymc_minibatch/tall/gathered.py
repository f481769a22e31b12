"""Vectors of single variables, of which each row takes one.

``pt.stack([a, b, c])[group]`` with known groups becomes, in PyMC's log-density, a vector with as
many entries as there are rows, each of which is a, b or c. Then no number of a row says any more
which of them it reads. :func:`gathered` writes a short vector and these numbers.
"""

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.basic import MakeVector

from pymc_minibatch.tall.sparse_rows import without_sparse

__all__ = ["gathered", "readable"]

REPEATED = 2
"""A vector is written shorter if its entries are more than so many times its variables."""


def readable(graphs: Sequence[Variable]) -> list[Variable]:
    """Write log-densities of PyMC so that it can be seen what each row reads."""
    return without_sparse(gathered(graphs))


def gathered(graphs: Sequence[Variable]) -> list[Variable]:
    """Replace vectors that repeat a few scalars; the very same graphs if there are none."""
    found: dict[Variable, Variable] = {}
    for node in io_toposort([], list(graphs)):
        number = {entry: k for k, entry in enumerate(dict.fromkeys(node.inputs))}
        if isinstance(node.op, MakeVector) and len(node.inputs) > REPEATED * len(number):
            [vector] = node.outputs
            index = np.array([number[entry] for entry in node.inputs])
            found[vector] = pt.stack(list(number)).astype(vector.type.dtype)[pt.constant(index)]
    return graph_replace(list(graphs), found, strict=False) if found else list(graphs)
