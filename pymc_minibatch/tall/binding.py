"""Other data in place of the model's own: matched by name, and put through both graphs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pymc.model import Model
from pymc.util import get_var_name

from pymc_minibatch.jit.compiled import compile_python
from pymc_minibatch.tall.check import FAILURES, Graph, SplitCheck
from pymc_minibatch.tall.refusals import (
    NotTallError,
)
from pymc_minibatch.tall.row_input import RowInput, read_only
from pymc_minibatch.tall.slicing import data_leaves, leaf_value
from pymc_minibatch.tall.sources import (
    check_finite,
    check_range,
    chunks,
)

if TYPE_CHECKING:
    from pymc_minibatch.tall.model import TallModel

__all__ = ["bind_sources"]


def bind_sources(tall: "TallModel", sources: dict[str, np.ndarray], data: Any) -> SplitCheck:
    """Put other data in place of the model's, and compare both graphs on some of their rows."""
    bound = _bound_inputs(tall, sources, data)
    row_axes = {row_input.leaf: row_input.axis for row_input in bound.values()}
    dtypes = {row_input.leaf: row_input.values.dtype for row_input in bound.values()}
    graph = tall._batch_graph(row_axes, dtypes)
    try:
        check = _check_bound(tall, graph, bound)
    except FAILURES as error:
        raise NotTallError(
            f"The data do not fit the model that was split on its own data: {error}. Look at "
            "the order and the meaning of what is passed as data."
        ) from error
    tall.row_inputs, tall.batch_graph = bound, graph
    tall.n_rows = len(tall.data[0])
    return check


def _check_bound(tall: "TallModel", graph: Graph, bound: Mapping[str, RowInput]) -> SplitCheck:
    """Compare the graphs on some rows of other data, which are put through both."""
    n_bound = len(next(iter(bound.values())).values)
    rows = tall._rng.integers(0, n_bound, tall.n_rows)
    extremes = _extreme_rows(bound)[: tall.n_rows]
    rows[: extremes.size] = extremes
    sample = [row_input.taken(rows) for row_input in bound.values()]
    first = [i.values[: extremes.size + 2] for i in sample]
    try:  # by itself, to say which rows are to blame
        compile_python(*graph)(tall.start, *first)
    except FAILURES as error:
        raise ValueError(
            f"the rows with the smallest and largest numbers give an error ({error})"
        ) from error
    arrays = [np.ascontiguousarray(np.moveaxis(i.values, 0, i.axis)) for i in sample]
    full, points = tall._full_graph([i.leaf for i in sample], arrays)
    check = SplitCheck(full, points, arrays, [i.axis for i in sample], tall._rng)
    reason = check.compare(graph)
    if reason is not None:
        raise ValueError(reason)
    return check


def _bound_inputs(
    tall: "TallModel", sources: dict[str, np.ndarray], data: Any
) -> dict[str, RowInput]:
    """Match sources to row inputs by name, shape and dtype."""
    observed = {
        data_leaves([tall.model.rvs_to_values[rv]])[-1]: get_var_name(rv)
        for rv in tall.model.observed_RVs
    }
    bound, used = {}, {}
    for name, row_input in tall.row_inputs.items():
        names = [n for n in (name, observed.get(row_input.leaf)) if n in sources]
        if not names:
            unnamed = row_input.leaf.name is None and row_input.leaf not in observed
            advice = (
                "It has no name in the model: make it a pm.Data."
                if unnamed
                else "Pass all variables that hold rows, or none."
            )
            raise ValueError(f"data has nothing for {name}. {advice}")
        source = sources[names[0]]
        _check_source(names[0], source, row_input, data[names[0]], tall.model)
        used[names[0]] = source.shape[row_input.axis]
        rows = np.moveaxis(source, row_input.axis, 0)
        bound[name] = RowInput(name, row_input.leaf, row_input.axis, read_only(rows))
    if unknown := set(sources) - set(used):
        raise ValueError(
            f"data names {sorted(unknown)}, which hold no rows in the model; those that do are "
            f"{list(tall.row_inputs)}."
        )
    if len(set(used.values())) > 1 or min(used.values()) < 2:
        raise ValueError(f"The sources must have the same number of rows, at least 2; got {used}.")
    for name, row_input in bound.items():
        like = leaf_value(row_input.leaf)
        check_finite(name, row_input.values, infinite=bool(np.isinf(like).any()))
        check_range(name, row_input.values, np.dtype(row_input.leaf.type.dtype))
    return bound


def _check_source(
    name: str, source: np.ndarray, row_input: RowInput, given: Any, model: Model
) -> None:
    """Refuse a source whose shape, type or labels are not those of the model's own data."""
    expected = list(leaf_value(row_input.leaf).shape)
    shape = list(source.shape)
    if len(shape) == len(expected):
        shape[row_input.axis] = expected[row_input.axis]
    if shape != expected:
        described = tuple("N" if i == row_input.axis else n for i, n in enumerate(expected))
        raise ValueError(
            f"data[{name!r}] has shape {source.shape}; the model needs {described}, N any number."
        )
    dtype = np.dtype(row_input.leaf.type.dtype)
    integers = source.dtype.kind in "iu" and dtype.kind in "iu"  # their range is looked at later
    if not ((integers or np.can_cast(source.dtype, dtype, "safe")) and source.dtype.isnative):
        raise ValueError(
            f"data[{name!r}] has dtype {source.dtype.str}, which does not convert safely to "
            f"{dtype}, that of the model's own data. Convert it, or build the model on data of "
            "this dtype."
        )
    coords = getattr(given, "coords", {})
    for axis, dim in enumerate(model.named_vars_to_dims.get(name, ())):
        labels = model.coords.get(dim)
        theirs = coords.get(getattr(given, "dims", {axis: dim})[axis]) if len(coords) else None
        if axis == row_input.axis or labels is None or theirs is None:
            continue
        ours, found = np.asarray(labels).tolist(), theirs.values.tolist()
        if ours != found:
            raise ValueError(
                f"data[{name!r}] has the labels {found[:5]} along {dim!r}, where the model has "
                f"{ours[:5]}. Reorder the source, or build the model with its labels."
            )


def _extreme_rows(bound: Mapping[str, RowInput]) -> np.ndarray:
    """Find the rows with the smallest and largest integers, which may be indices out of range."""
    found: list[int] = []
    for row_input in bound.values():
        values = row_input.values
        if values.dtype.kind not in "iu":
            continue
        least: Any = None
        for chunk in chunks(values):
            part = values[chunk].reshape(len(values[chunk]), -1)
            where = np.array([part.argmin(axis=0), part.argmax(axis=0)])
            at = np.take_along_axis(part, where, axis=0)
            if least is None:
                least, rows = at, where + chunk.start
                continue
            better = np.array([at[0] < least[0], at[1] > least[1]])
            least, rows = np.where(better, at, least), np.where(better, where + chunk.start, rows)
        found.extend(rows.ravel().tolist())
    return np.array(found, dtype=np.int64)
