"""Potentials that are likelihoods: one value for each row, or a sum of these.

``pm.Potential("ll", (weights * pm.logp(dist, y)).sum())`` says of the posterior what an observed
variable would. Its sums are undone here. Each entry of what was summed counts once: parts of
another length than the rows, such as a prior that was added, are a rest beside them. That rows and
rest give the potential is verified by values; whether the rows are independent, as for observed
variables.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.model import Model
from pymc.util import get_var_name
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import Shape, Shape_i, shape
from pytensor.tensor.variable import TensorVariable

from pymc_minibatch.jit.compiled import compile_all
from pymc_minibatch.tall.gathered import readable
from pymc_minibatch.tall.layout import PointLayout
from pymc_minibatch.tall.observed import ObservedTerm
from pymc_minibatch.tall.probes import prior_points
from pymc_minibatch.tall.slicing import data_leaves, leaf_value, reads_data_only
from pymc_minibatch.tall.some_rows import taken_first
from pymc_minibatch.tall.verify import compare

__all__ = ["parts_of_total", "potential_terms"]

N_POINTS = 2
"""Points near the start, and of the prior, at which a potential is compared with its parts."""

DOUBLE, SINGLE = 1e-12, 1e-5
"""Rounding of a sum relative to that of the absolute values of its terms, by their type."""

type ReadsRows = Callable[[Variable], bool]


def potential_terms(model: Model, is_bound: bool = False) -> list[ObservedTerm]:
    """List the potentials with one term for each entry of some data.

    What such a potential adds to the sum of its rows, a prior say, is in :attr:`ObservedTerm.rest`.
    If other data take the place of the model's own (`is_bound`), their lengths are not known.
    """
    if not model.potentials:
        return []
    graphs = readable(model.logp(vars=model.potentials, sum=False), model)
    graphs = graphs if is_bound else taken_first(graphs)
    found = []
    for potential, graph in zip(model.potentials, graphs, strict=True):
        name = get_var_name(potential)
        term = _potential_term(model, name, graph)
        if term is None and not is_bound:
            term = _potential_term(model, name, _with_lengths(model, graph))
        if term is not None:
            found.append(term)
    return found


def _with_lengths(model: Model, total: Any) -> Any:
    """Write lengths of arrays into a graph, by which a mean divides; they are read off once."""
    lengths = [
        variable
        for variable in ancestors([total])
        if variable.owner is not None and isinstance(variable.owner.op, Shape | Shape_i)
    ]
    point = model.initial_point()
    values = [point[get_var_name(value)] for value in model.value_vars]
    found = compile_all(model.value_vars, lengths)(*values)
    constants: dict[Variable, Variable] = {
        length: pt.constant(value, dtype=length.type.dtype)
        for length, value in zip(lengths, found, strict=True)
    }
    return graph_replace([total], constants, strict=False)[0]


def _potential_term(model: Model, name: str, total: Any) -> ObservedTerm | None:
    """Take a potential apart into rows and a rest; None if it has no rows."""
    parts = [part for part in parts_of_total(total) if not reads_data_only(part)]
    fixed = [part for part in parts_of_total(total) if reads_data_only(part)]
    shapes = _shapes(model, parts)
    lengths = {n for leaf in data_leaves(parts) for n in leaf_value(leaf).shape if n > 1}
    n_rows = max((n for own in shapes for n in own if n in lengths), default=0)
    if not n_rows:
        return None
    rows = [(p, own) for p, own in zip(parts, shapes, strict=True) if n_rows in own]
    others = [p for p, own in zip(parts, shapes, strict=True) if n_rows not in own] + fixed
    term, shape_of_term = _sum_of_rows(rows, n_rows)
    rest = (
        pt.add(*map(pt.sum, others)) if len(others) > 1 else pt.sum(others[0]) if others else None
    )
    if not _gives(model, total, [term] if rest is None else [term, rest]):
        return None
    return ObservedTerm(
        name=name,
        leaf=None,
        term=term,
        distribution="Potential",
        # An axis of another length than the data have is none of rows.
        shape=tuple(n if n in lengths else 0 for n in shape_of_term),
        rest=rest,
    )


def _shapes(model: Model, graphs: Sequence[Any]) -> list[tuple[int, ...]]:
    point = model.initial_point()
    values = [point[get_var_name(value)] for value in model.value_vars]
    found = compile_all(model.value_vars, [shape(graph) for graph in graphs])(*values)
    return [tuple(map(int, np.atleast_1d(each))) for each in found]


def _sum_of_rows(
    rows: Sequence[tuple[Any, tuple[int, ...]]], n_rows: int
) -> tuple[Any, tuple[int, ...]]:
    """Add parts up row by row, without broadcasting; return the sum and its shape."""
    first = rows[0][1]
    if all(own == first for _, own in rows):
        parts, found = [part for part, _ in rows], first
    else:
        found = (n_rows,)
        parts = [
            part.sum(axis=[axis for axis in range(part.ndim) if axis != own.index(n_rows)])
            for part, own in rows
        ]
    return (pt.add(*parts) if len(parts) > 1 else parts[0]), found


def _gives(model: Model, total: Any, parts: Sequence[Any]) -> bool:
    """Whether a potential is the sum of its parts, by its values at points of the prior."""
    sums = [pt.sum(part, dtype="float64") for part in parts]
    sizes = [pt.sum(abs(part), dtype="float64") for part in parts]
    values = [pt.sum(total, dtype="float64"), pt.add(*sums, 0.0), pt.add(*sizes, 0.0)]
    evaluate = compile_all(model.value_vars, values)
    single = any(getattr(each.type, "dtype", "") == "float32" for each in ancestors([total]))
    rtol = SINGLE if single else DOUBLE
    seen = False
    with np.errstate(all="ignore"):
        for point in _points(model):
            expected, found, size = evaluate(*point)
            if compare(found, expected, rtol=0.0, allowed=rtol * np.abs(size)) is not None:
                return False
            seen = seen or bool(np.isfinite(found))
    return seen


def _points(model: Model) -> list[list[np.ndarray]]:
    """Return the start, points near it and draws of the prior, if it can be drawn from."""
    names = [get_var_name(value) for value in model.value_vars]
    layout = PointLayout.of(model.initial_point(), names)
    start = layout.flatten(model.initial_point())
    shifts = np.random.default_rng(0).standard_normal((N_POINTS, start.size)) * layout.is_continuous
    points = [start, *(start + shifts)]
    with suppress(NotImplementedError, ValueError):
        points += list(prior_points(model, layout, N_POINTS))
    return [list(layout.unflatten(point).values()) for point in points]


def parts_of_total(total: Any, reads: ReadsRows | None = None) -> list[TensorVariable]:
    """Undo the sums with which a graph ends: return arrays whose entries add up to it.

    A sum may have been negated, scaled, or added to others. What is no sum, or reads data only, is
    returned as it is. Of a product only one factor is taken apart, the one of which `reads` is
    true: by default, the one that reads data and parameters.
    """
    reads = reads or _reads_rows
    if not _is_one_number(total) or total.owner is None or reads_data_only(total):
        return [total]
    op, inputs = total.owner.op, total.owner.inputs
    if isinstance(op, Sum):
        return _entries(inputs[0], reads)
    if isinstance(op, DimShuffle):
        return _of_shaped(inputs[0], total, reads)
    if isinstance(op, Elemwise):
        return _of_elementwise(op, inputs, total, reads)
    return [total]


def _is_one_number(graph: Any) -> bool:
    return all(graph.type.broadcastable)


def _entries(array: Any, reads: ReadsRows) -> list[TensorVariable]:
    """Return arrays with the entries of one that was put together from others."""
    op = array.owner.op if array.owner else None
    if isinstance(op, MakeVector):
        return [part for each in array.owner.inputs for part in parts_of_total(each, reads)]
    if isinstance(op, Join):
        joined = [each for each in array.owner.inputs if each.ndim == array.ndim]
        return [part for each in joined for part in _entries(each, reads)]
    return parts_of_total(array, reads)


def _reads_rows(graph: Variable) -> bool:
    """Whether a graph reads parameters and an array of data."""
    sizes = [leaf_value(leaf).size for leaf in data_leaves([graph])]
    return max(sizes, default=0) > 1 and not reads_data_only(graph)


def _of_shaped(matrix: Any, total: Any, reads: ReadsRows) -> list[Any]:
    """Return the terms of a product of two vectors, which is one of matrices to PyTensor."""
    while matrix.owner is not None and isinstance(matrix.owner.op, DimShuffle):
        [matrix] = matrix.owner.inputs
    if matrix.owner is None or not isinstance(matrix.owner.op, Dot):
        return parts_of_total(matrix, reads) if _is_one_number(matrix) else [total]
    row, column = matrix.owner.inputs
    return [pt.squeeze(row, 0) * pt.squeeze(column, 1)]


def _of_elementwise(op: Elemwise, inputs: Sequence[Any], total: Any, reads: ReadsRows) -> list[Any]:
    """Return what an operation on totals makes of their parts, if it is linear in these."""
    kind = type(op.scalar_op)
    if kind in (ps.Add, ps.Sub, ps.Neg):
        signs = {ps.Sub: (1, -1), ps.Neg: (-1,)}.get(kind, (1,) * len(inputs))
        return [
            part if sign > 0 else -part
            for sign, each in zip(signs, inputs, strict=True)
            for part in parts_of_total(each, reads)
        ]
    if kind in (ps.Mul, ps.TrueDiv) or isinstance(op.scalar_op, ps.Cast):
        of_rows = [i for i, each in enumerate(inputs) if reads(each)]
        if len(of_rows) != 1 or (kind is ps.TrueDiv and of_rows != [0]):
            return [total]
        [i] = of_rows
        return [
            op(*inputs[:i], part, *inputs[i + 1 :]) for part in parts_of_total(inputs[i], reads)
        ]
    return [total]


def has_rows(potential: Variable, n_rows: int) -> bool:
    """Whether a potential reads data with so many rows."""
    return any(n_rows in leaf_value(leaf).shape for leaf in data_leaves([potential]))
