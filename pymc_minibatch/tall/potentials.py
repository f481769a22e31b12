"""Potentials that are likelihoods: one value for each row, or a sum of these.

``pm.Potential("ll", (weights * pm.logp(dist, y)).sum())`` says of the posterior what an observed
variable would. Its sum is undone here; whether its terms are independent rows is verified as for
observed variables.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.model import Model
from pymc.util import get_var_name
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import graph_inputs
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import shape
from pytensor.tensor.variable import TensorVariable

from pymc_minibatch.jit.compiled import compile_python
from pymc_minibatch.tall.observed import ObservedTerm
from pymc_minibatch.tall.slicing import data_leaves, leaf_value

__all__ = ["potential_terms", "term_by_term"]


def potential_terms(model: Model) -> list[ObservedTerm]:
    """List the potentials with one term for each entry of some data."""
    if not model.potentials:
        return []
    found = []
    graphs = model.logp(vars=model.potentials, sum=False)
    for potential, graph in zip(model.potentials, graphs, strict=True):
        term = term_by_term(graph)
        lengths = {length for leaf in data_leaves([term]) for length in leaf_value(leaf).shape}
        if term.ndim and max(lengths, default=0) > 1:
            found.append(
                ObservedTerm(
                    name=get_var_name(potential),
                    leaf=None,
                    term=term,
                    distribution="Potential",
                    # An axis of another length than the data have is none of rows.
                    shape=tuple(n if n in lengths else 0 for n in _shape(model, term)),
                )
            )
    return found


def _shape(model: Model, term: TensorVariable) -> tuple[int, ...]:
    point = model.initial_point()
    values = [point[get_var_name(value)] for value in model.value_vars]
    found = compile_python(model.value_vars, [shape(term)])(*values)
    return tuple(int(length) for length in np.atleast_1d(found))


def term_by_term(total: Any) -> TensorVariable:
    """Undo the sum with which a graph ends: return the terms whose sum it is.

    A sum may have been negated, scaled, or added to others of as many terms. What is no sum, or
    reads data only, is returned as it is.
    """
    if total.ndim or total.owner is None or _reads_data_only(total):
        return total
    op, inputs = total.owner.op, total.owner.inputs
    if isinstance(op, Sum):
        terms: TensorVariable = inputs[0]
        return terms
    if isinstance(op, DimShuffle):
        return _of_product(inputs[0], total)
    if isinstance(op, Elemwise):
        return _of_elementwise(op, [term_by_term(each) for each in inputs], total)
    return total


def _reads_data_only(graph: Variable) -> bool:
    return all(isinstance(x, Constant | SharedVariable) for x in graph_inputs([graph]))


def _of_product(matrix: Any, total: Any) -> Any:
    """Return the terms of a product of two vectors, which is one of matrices to PyTensor."""
    while matrix.owner is not None and isinstance(matrix.owner.op, DimShuffle):
        [matrix] = matrix.owner.inputs
    if matrix.owner is None or not isinstance(matrix.owner.op, Dot):
        return total
    row, column = matrix.owner.inputs
    return pt.squeeze(row, 0) * pt.squeeze(column, 1)


def _of_elementwise(op: Elemwise, parts: list[Any], total: Any) -> Any:
    """Return what an operation on totals makes of their terms, if it is linear in these."""
    summed = [i for i, part in enumerate(parts) if part.ndim]
    linear: dict[type, Callable[[], bool]] = {
        ps.Neg: lambda: True,
        ps.Mul: lambda: len(summed) == 1,
        ps.TrueDiv: lambda: summed == [0],
        ps.Add: lambda: len(summed) == len(parts) and len({part.ndim for part in parts}) == 1,
        ps.Sub: lambda: len(summed) == len(parts) and len({part.ndim for part in parts}) == 1,
    }
    is_linear = linear.get(type(op.scalar_op), lambda: False)
    return op(*parts) if summed and is_linear() else total


def has_rows(potential: Variable, n_rows: int) -> bool:
    """Whether a potential reads data with so many rows."""
    return any(n_rows in leaf_value(leaf).shape for leaf in data_leaves([potential]))
