"""Deterministics with one value per row, which make every draw cost N."""

import math
from typing import TYPE_CHECKING

from pymc.util import get_var_name
from pytensor.graph.traversal import ancestors
from pytensor.tensor.shape import shape as shape_of

from pymc_minibatch.jit.compiled import compile_python
from pymc_minibatch.tall.missing_responses import completed_sizes

if TYPE_CHECKING:
    from pymc_minibatch.tall.splitting import Splitting

__all__ = ["sizes_of_deterministics"]


def sizes_of_deterministics(tall: "Splitting") -> dict[str, int]:
    """Count the values of those Deterministics of a model that have one for each row."""
    rows = {row_input.leaf for row_input in tall.row_inputs.values()}
    lengths = {tall.n_rows}
    if tall.union is not None:
        rows |= {leaf for each in tall.union.order for leaf in each.axes}
        lengths = {each.n_rows for each in tall.union.order}
    start = tall.model.initial_point()
    point = [start[get_var_name(value)] for value in tall.model.value_vars]
    found = {}
    for variable in tall.model.deterministics:
        shape = variable.type.shape
        reads = tall.evaluates_data or rows.intersection(ancestors([variable]))
        if None in shape and reads:
            graph = shape_of(*tall.model.replace_rvs_by_values([variable]))
            shape = tuple(compile_python(tall.model.value_vars, [graph])(*point))
        if lengths.intersection(shape):
            known = [length for length in shape if length is not None]
            found[get_var_name(variable)] = math.prod(map(int, known))
    return found | completed_sizes(tall.given_model)
