"""Variables with one value per row, gathered by the numbers of the rows.

In ``mu + effect`` each row reads its own entry of the effect, as with ``effect[np.arange(N)]``. The
second form has an index that a batch of rows can take along. So overdispersion, and the states of a
process that is observed once per step, are the effects of a factor with one row per level.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import continuous_dtypes

__all__ = ["gathered_by_row"]


def gathered_by_row(term: Any, values: Mapping[Any, tuple[int, ...]], n_rows: int) -> Any:
    """Return a graph in which continuous variables with one value per row are gathered.

    Parameters
    ----------
    term
        A graph; it is returned as it is if there are none.
    values
        The value variables of the model, with their shapes.
    n_rows : int
        N.
    """
    read = set(ancestors([term]))
    own: dict[Variable, Variable] = {
        value: value[pt.constant(np.arange(n_rows))]
        for value, shape in values.items()
        if value in read and shape[:1] == (n_rows,) and value.dtype in continuous_dtypes
    }
    return graph_replace([term], own)[0] if own else term
