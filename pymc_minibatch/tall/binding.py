"""Other data instead of the model's own: matched by name, and put through both graphs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pymc.model import Model
from pymc.util import get_var_name

from pymc_minibatch.jit.compiled import compile_python
from pymc_minibatch.tall.check import FAILURES, EvaluatedPoint, Graph, SplitCheck
from pymc_minibatch.tall.level_numbers import refuse_new_negative_indices
from pymc_minibatch.tall.partitions import PartitionedArray
from pymc_minibatch.tall.refusals import (
    NotTallError,
)
from pymc_minibatch.tall.row_input import RowInput, make_input
from pymc_minibatch.tall.slicing import data_leaves, leaf_value
from pymc_minibatch.tall.sources import (
    check_finite,
    check_range,
    chunks,
)
from pymc_minibatch.tall.survey import Limits, survey
from pymc_minibatch.tall.tables import Wanted

if TYPE_CHECKING:
    from pymc_minibatch.tall.model import TallModel

__all__ = ["bind_sources", "check_source", "extreme_rows", "wanted_columns"]


def bind_sources(
    tall: "TallModel", sources: Mapping[str, Any], data: Any
) -> tuple[SplitCheck, list[EvaluatedPoint]]:
    """Put other data in place of the model's, and compare both graphs on some of their rows."""
    bound = _bound_inputs(tall, sources, data)
    row_axes = {given.leaf: given.axis for given in bound.values()}
    dtypes = {given.leaf: given.values.dtype for given in bound.values()}
    graph = tall.make_batch_graph(row_axes, dtypes)
    try:
        found = _check_bound(tall, graph, bound)
    except FAILURES as error:
        raise NotTallError(
            f"The data do not fit the model that was split on its own data: {error}. Check the "
            "order and the meaning of the arrays that you pass as data."
        ) from error
    tall.row_inputs, tall.batch_graph = bound, graph
    tall.__dict__.pop("watch", None)
    tall.n_rows = len(tall.data[0])
    return found


def wanted_columns(model: Model, inputs: Mapping[str, RowInput]) -> dict[str, Wanted]:
    """List the variables that need rows, by the names that columns may have for them."""
    observed = {
        data_leaves([model.rvs_to_values[rv]])[-1]: get_var_name(rv) for rv in model.observed_RVs
    }
    wanted = {}
    for name, own in inputs.items():
        names = tuple(n for n in (own.leaf.name, observed.get(own.leaf)) if n is not None)
        if not names:  # which is refused when data are bound
            continue
        dims: Sequence[str | None]
        dims = next((d for n in names if (d := model.named_vars_to_dims.get(n))), ())
        second = dims[1] if len(dims) == 2 and own.axis == 0 else None
        labels = None if second is None else model.coords.get(second)
        found = None if labels is None else tuple(map(str, labels))
        wanted[name] = Wanted(names, own.values.ndim, found, axis=own.axis)
    return wanted


def _check_bound(
    tall: "TallModel", graph: Graph, bound: Mapping[str, RowInput]
) -> tuple[SplitCheck, list[EvaluatedPoint]]:
    """Compare the graphs on some rows of other data, which are put through both."""
    n_bound = len(next(iter(bound.values())).values)
    values = next(iter(bound.values())).values
    if isinstance(values, PartitionedArray):
        rows = values.partitions.random_rows(tall.rng, tall.n_rows)
        numbers, indices = _surveyed(list(bound.values()))
    else:
        rows = tall.rng.integers(0, n_bound, tall.n_rows)
        numbers, indices = extreme_rows(bound, "f"), extreme_rows(bound, "iu")
    try:  # by itself, to say which rows are to blame
        extremes = np.concatenate([indices, numbers, rows[:2]])
        taken = [given.values for given in _taken(bound, extremes)]
        compile_python(*graph)(tall.start, *taken)
        [_, *batch], [term] = graph
        own = [np.moveaxis(leaf_value(given.leaf), given.axis, 0) for given in bound.values()]
        refuse_new_negative_indices(term, batch, own, taken)
    except FAILURES as error:
        raise ValueError(
            f"the rows with the smallest and largest numbers give an error ({error})"
        ) from error
    # Few with extreme numbers, at which log-likelihoods may overflow.
    chosen = np.concatenate([indices, numbers[: tall.n_rows // 4]])[: tall.n_rows]
    rows[: chosen.size] = chosen
    sample = _taken(bound, rows)
    arrays = [np.ascontiguousarray(np.moveaxis(i.values, 0, i.axis)) for i in sample]
    full, points = tall.make_full_graph([i.leaf for i in sample], arrays)
    check = SplitCheck(full, arrays, [i.axis for i in sample], tall.rng)
    reason = check.compare(graph, points)
    if reason is not None:
        raise ValueError(reason)
    return check, points


def _bound_inputs(tall: "TallModel", sources: Mapping[str, Any], data: Any) -> dict[str, RowInput]:
    """Match sources to row inputs by name, shape and dtype."""
    observed = {
        data_leaves([tall.model.rvs_to_values[rv]])[-1]: get_var_name(rv)
        for rv in tall.model.observed_RVs
    }
    bound, used = {}, {}
    for name, own in tall.row_inputs.items():
        known = (name, observed.get(own.leaf))
        names = [n for n in known if n is not None and n in sources]
        if not names:
            unnamed = own.leaf.name is None and own.leaf not in observed
            advice = (
                "It has no name in the model: make it a pm.Data."
                if unnamed
                else f"Pass all variables that hold rows, {list(tall.row_inputs)}, or none."
            )
            raise ValueError(f"data has nothing for {name}; it names {list(sources)}. {advice}")
        source = sources[names[0]]
        given_as = data.get(names[0]) if isinstance(data, Mapping) else None
        check_source(names[0], source, own, given_as, tall.model)
        used[names[0]] = source.shape[own.axis]
        rows = _rows_first(names[0], source, own.axis)
        bound[name] = make_input(name, own.leaf, own.axis, rows)
    if unknown := set(sources) - set(used):
        raise ValueError(
            f"data names {sorted(unknown)}, which hold no rows in the model; those that do are "
            f"{list(tall.row_inputs)}."
        )
    if len(set(used.values())) > 1 or min(used.values()) < 2:
        raise ValueError(f"The sources must have the same number of rows, at least 2; got {used}.")
    if not isinstance(source, PartitionedArray):  # of which one pass looks at everything
        for name, given in bound.items():
            like = leaf_value(given.leaf)
            check_finite(name, given.values, infinite=bool(np.isinf(like).any()))
            check_range(name, given.values, np.dtype(given.leaf.type.dtype))
    return bound


def _rows_first(name: str, source: Any, axis: int) -> Any:
    if not isinstance(source, PartitionedArray):
        return np.moveaxis(source, axis, 0)
    if axis:
        raise ValueError(
            f"{name} has its rows along axis {axis}; rows in partitions must lie along the first. "
            "Transpose it in the model, or let it be copied to this machine with "
            "rows_in_memory=np.inf."
        )
    return source


def check_source(name: str, source: np.ndarray, own: RowInput, given: Any, model: Model) -> None:
    """Refuse a source whose shape, type or labels are not those of the model's own data.

    Raises
    ------
    ValueError
    """
    expected = list(leaf_value(own.leaf).shape)
    shape = list(source.shape)
    if len(shape) == len(expected):
        shape[own.axis] = expected[own.axis]
    if shape != expected:
        described = tuple("N" if i == own.axis else n for i, n in enumerate(expected))
        raise ValueError(
            f"data[{name!r}] has shape {source.shape}; the model needs {described}, N any number."
        )
    dtype = np.dtype(own.leaf.type.dtype)
    if not source.dtype.isnative:
        raise ValueError(
            f"data[{name!r}] has the bytes of its numbers in another order than this machine "
            f"({source.dtype.str}), as files of FITS do. Convert it, as in "
            f"{name}.astype({source.dtype.newbyteorder('=').name!r})."
        )
    integers = source.dtype.kind in "iu" and dtype.kind in "iu"  # their range is looked at later
    if not (integers or np.can_cast(source.dtype, dtype, "safe")):
        raise ValueError(
            f"data[{name!r}] has dtype {source.dtype.str}, which does not convert safely to "
            f"{dtype}, that of the model's own data. Convert it, or build the model on data of "
            "this dtype."
        )
    coords = getattr(given, "coords", {})
    for axis, dim in enumerate(model.named_vars_to_dims.get(name, ())):
        labels = model.coords.get(dim)
        theirs = coords.get(getattr(given, "dims", {axis: dim})[axis]) if len(coords) else None
        if axis == own.axis or labels is None or theirs is None:
            continue
        ours, found = np.asarray(labels).tolist(), theirs.values.tolist()
        if ours != found:
            raise ValueError(
                f"data[{name!r}] has the labels {found[:5]} along {dim!r}, but the model has "
                f"{ours[:5]}. Reorder the source, or build the model with its labels."
            )


def _taken(bound: Mapping[str, RowInput], rows: np.ndarray) -> list[RowInput]:
    """Return some rows of all inputs; those in partitions are gathered in one job."""
    values = [given.values for given in bound.values()]
    if isinstance(values[0], PartitionedArray):
        gathered: Any = values[0].partitions.take_of(values, rows)
    else:
        gathered = [of_source[rows] for of_source in values]
    return [replace(g, values=v, file=None) for g, v in zip(bound.values(), gathered, strict=True)]


def _surveyed(bound: list[RowInput]) -> tuple[np.ndarray, np.ndarray]:
    """Check all values in partitions, in one pass; return rows with extreme numbers and indices."""
    partitions = bound[0].values.partitions
    limits: list[Limits | None] = [None] * len(partitions.names)
    for given in bound:
        dtype, own = np.dtype(given.leaf.type.dtype), given.values.dtype
        least, most = -np.inf, np.inf
        if own.kind in "iu" and not np.can_cast(own, dtype, "safe"):
            least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        infinite = bool(np.isinf(leaf_value(given.leaf)).any())
        limits[given.values.position] = Limits(given.name, infinite, least, most)
    found = survey(partitions, limits)
    rows: dict[bool, list[int]] = {True: [], False: []}
    for given in bound:
        extremes = found[given.values.position]
        if extremes is not None:
            rows[given.values.dtype.kind == "f"].extend(extremes.rows.ravel().tolist())
    return np.array(rows[True], dtype=np.int64), np.array(rows[False], dtype=np.int64)


def extreme_rows(bound: Mapping[str, RowInput], kinds: str) -> np.ndarray:
    """Find the rows with the smallest and largest values, in arrays of these kinds of types.

    Integers may be indices out of range, and other numbers may lie where a branch is taken.
    """
    found: list[int] = []
    for given in bound.values():
        values = given.values
        if values.dtype.kind not in kinds:
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
