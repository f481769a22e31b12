"""A PyMC model seen as a prior part plus N independent rows.

``log p(theta, y) = prior_logp(theta) + sum_n row_logp(theta, n)``

The rows are those of the observed variable. Every array in its log-density that has an axis of
length N is taken for row data, and the graph is rebuilt on a batch (:mod:`.slicing`). The split is
accepted only if, on random rows at random points, the batch graph gives what the full graph gives.
Everything else (priors, Jacobians, potentials) is the prior part.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.model import Model
from pymc.util import get_var_name
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.shape import shape as shape_of

from pymc_minibatch.checks import checked_model
from pymc_minibatch.tall.check import FAILURES, FullGraph, Graph, SplitCheck
from pymc_minibatch.tall.compiled import CompiledFunction, compile_numba, compile_python
from pymc_minibatch.tall.layout import PointLayout
from pymc_minibatch.tall.observed import ObservedTerm, observed_terms, row_counts, sum_rows
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.tall.refusals import (
    NotTallError,
    dependent_rows,
    leaf_name,
    shared_across_rows,
    unfit_data,
)
from pymc_minibatch.tall.slicing import data_leaves, leaf_value, slice_rows
from pymc_minibatch.tall.sources import (
    RowFile,
    check_finite,
    check_range,
    chunks,
    open_sources,
    share,
)

__all__ = ["NotTallError", "RowInput", "TallModel"]


MAX_LAYOUTS = 64
"""Ways to assign row axes that are tried before a model is refused."""


@dataclass(frozen=True)
class RowInput:
    """An array that holds row data.

    Attributes
    ----------
    name
        Name of the variable, or ``"constant"`` for an unnamed array in the graph.
    leaf
        The variable of the model's graph.
    axis
        The axis of the model's array along which the rows lie.
    values
        The data with rows along the first axis.
    """

    name: str
    leaf: Variable
    axis: int
    values: np.ndarray

    def taken(self, rows: np.ndarray) -> "RowInput":
        """Return some rows as an input of its own."""
        return RowInput(self.name, self.leaf, self.axis, self.values[rows])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle large arrays by reference to a file, so that processes share them."""
        return _restored_input, (self.name, self.leaf, self.axis, share(self.values))


class TallModel:
    """A PyMC model split into a prior part and independent rows.

    Parameters
    ----------
    model : pymc.Model, optional
        The model; taken from the context if not given. Its data are read once, here: a later
        ``pm.set_data`` is not seen.
    data : mapping of str to array, optional
        Data that take the place of those in the model, which are then a small stand-in: for each
        variable that holds rows (pm.Data or observed, by name) a NumPy array or memory map, the
        path of a ``.npy`` file, or a zarr, dask, xarray, pandas or polars object; or a Dataset of
        these. Types must convert safely, such as float32 to float64; they are converted batch by
        batch. What is stored in chunks is copied once to a temporary file.

    Attributes
    ----------
    model : pymc.Model
        The model.
    n_rows : int
        The number of rows, N.
    row_inputs : dict of str to RowInput
        What was recognised as row data.
    layout : PointLayout
        Order of the value variables in a flat vector.

    Raises
    ------
    NotTallError
        If the model does not split into a prior part and independent rows.
    ValueError
        If the data are empty, have missing or infinite entries, or lengths that do not match; if
        `data` leaves out a variable with rows, names one that has none, or does not fit the model.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=np.arange(100.0))
    ...     tall = pmb.TallModel()
    >>> tall.n_rows
    100
    >>> tall.row_logp({"mu": np.array(0.0)}, [0, 2]).round(3)
    array([-0.919, -2.919])
    """

    def __init__(self, model: Model | None = None, *, data: Any = None) -> None:
        sources = None if data is None else open_sources(data)
        self.model = checked_model(model)
        self.layout = PointLayout.of(
            self.model.initial_point(), [get_var_name(value) for value in self.model.value_vars]
        )
        self.flat = pt.vector("point", dtype="float64")
        self._rng = np.random.default_rng(20170709)
        check = self._split(observed_terms(self.model))
        if sources is not None:
            check = self._bind_sources(sources, data)
        # Machine code last: where a graph reads beyond a batch, it would not notice.
        reason = check.compare_compiled(self.batch_graph, self.compiled_row_logp)
        if reason is not None:
            raise NotTallError(
                f"The log-likelihood of {' + '.join(self.row_names)} is compiled wrongly "
                f"({reason}). Sample this model with NUTS."
            )

    @cached_property
    def compiled_row_logp(self) -> CompiledFunction:
        """``(flat point, *batch) -> row log-likelihoods``, to be called from Numba or Python."""
        return compile_numba(*self.batch_graph)

    @cached_property
    def prior_graph(self) -> Variable:
        """Log-density of the prior part, a graph of the flat point."""
        factors = [rv for rv in self.model.basic_RVs if rv.name not in self.row_names]
        terms = self.model.logp(vars=factors + self.model.potentials, sum=False)
        total = pt.add(pt.constant(0.0), *[pt.sum(term) for term in terms])
        return self._bind(pt.cast(total, "float64"), {})

    @cached_property
    def compiled_prior_logp(self) -> CompiledFunction:
        """``(flat point,) -> log-density of the prior part``, a scalar array."""
        return compile_numba([self.flat], [self.prior_graph])

    def __getstate__(self) -> dict[str, object]:
        """Leave compiled functions out: they are rebuilt, from the disk, where they are needed."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("compiled_")}

    @property
    def data(self) -> tuple[np.ndarray, ...]:
        """Row data, rows along the first axis, in the order `compiled_row_logp` takes them."""
        return tuple(row_input.values for row_input in self.row_inputs.values())

    @property
    def row_axes(self) -> tuple[dict[Variable, int], dict[Variable, np.dtype], int]:
        """What :func:`slice_rows` takes: axes and types of the row data, length in the model."""
        inputs = list(self.row_inputs.values())
        [n_rows] = {leaf_value(i.leaf).shape[i.axis] for i in inputs}
        return {i.leaf: i.axis for i in inputs}, {i.leaf: i.values.dtype for i in inputs}, n_rows

    def row_logp(
        self, point: Mapping[str, np.ndarray], rows: Sequence[int] | np.ndarray
    ) -> np.ndarray:
        """Log-likelihood of some rows.

        Parameters
        ----------
        point
            Values of the value variables, as ``model.initial_point()`` gives.
        rows
            Row numbers, from 0 to N − 1; repeats are allowed.

        Returns
        -------
        ndarray of float64, shape (len(rows),)
        """
        rows = np.asarray(rows, dtype=np.int64)
        batch = [np.ascontiguousarray(values[rows]) for values in self.data]
        return self.compiled_row_logp(self.layout.flatten(point), *batch)

    def prior_logp(self, point: Mapping[str, np.ndarray]) -> float:
        """Log-density of everything that is not a row: priors, Jacobians, potentials."""
        return float(self.compiled_prior_logp(self.layout.flatten(point)))

    def logp(self, point: Mapping[str, np.ndarray]) -> float:
        """Log-density of the model: the prior part plus all rows, in chunks."""
        flat, row_logp = self.layout.flatten(point), self.compiled_row_logp
        sums = over_chunks(lambda *batch: float(row_logp(flat, *batch).sum()), self.data)
        return self.prior_logp(point) + sum(chunk for _, chunk in sums)

    def check_start(self, point: Mapping[str, np.ndarray]) -> None:
        """Refuse a point where the log-density of the model is not finite; reads every row.

        Raises
        ------
        ValueError
            Naming the variable, and for an observed variable the first row, that is to blame.
        """
        if not np.isfinite(self.prior_logp(point)):
            logps = self.model.point_logps(dict(point))
            blamed = {name: float(value) for name, value in logps.items() if not np.isfinite(value)}
            raise ValueError(
                f"The prior part has log-density {self.prior_logp(point)} at the starting point: "
                f"{blamed}. Start elsewhere: pass initvals to pm.sample."
            )
        flat, row_logp = self.layout.flatten(point), self.compiled_row_logp

        def first_bad(*batch: np.ndarray) -> tuple[int, float] | None:
            logps = row_logp(flat, *batch)
            bad = np.flatnonzero(~np.isfinite(logps))
            return (int(bad[0]), float(logps[bad[0]])) if bad.size else None

        for first, found in over_chunks(first_bad, self.data, "Checking the starting point"):
            if found is not None:
                row, value = found
                raise ValueError(
                    f"Row {first + row} of {' + '.join(self.row_names)} has log-likelihood "
                    f"{value} at the starting point. Look at this row of the data, or "
                    "start elsewhere: pass initvals to pm.sample."
                )

    def value_graph(self, variable: Variable) -> Variable:
        """Make a variable of the model, or a function of some, a graph of the flat point."""
        [graph] = self.model.replace_rvs_by_values([variable])
        return self._bind(graph, {})

    def describe(self) -> str:
        """Tell a person what was taken for rows and what for prior.

        Returns
        -------
        str
            The number of rows and the observed variables that have them; each array of row data
            with its type and its shape, rows first; the terms of the prior part. Warns of
            Deterministics with one value per row.
        """
        prior = [get_var_name(rv) for rv in self.model.free_RVs]
        prior += [
            f"observed {get_var_name(rv)}"
            for rv in self.model.observed_RVs
            if rv.name not in self.row_names
        ]
        prior += [f"potential {get_var_name(potential)}" for potential in self.model.potentials]
        row_bytes = sum(values.nbytes for values in self.data) // self.n_rows
        lines = [
            f"{self.n_rows:,} rows of {' + '.join(self.row_names)}",
            *(
                f"  {row_input.name}: {row_input.values.dtype} {row_input.values.shape}"
                + (f", rows along axis {row_input.axis}" if row_input.axis else "")
                for row_input in self.row_inputs.values()
            ),
            f"  {row_bytes:,} bytes per row, {row_bytes * self.n_rows / 1e6:,.1f} MB in all",
            f"prior part: {', '.join(prior)} ({self.layout.size} unconstrained parameters)",
        ]
        lines += [
            f"warning: Deterministic {name} has one value per row, and pm.sample evaluates it at "
            "every draw; leave it out with var_names."
            for name in self.deterministics_of_rows()
        ]
        return "\n".join(lines)

    def deterministics_of_rows(self) -> list[str]:
        """List the Deterministics with one value per row, which make every draw cost N."""
        rows = {row_input.leaf for row_input in self.row_inputs.values()}
        start = self.model.initial_point()
        point = [start[get_var_name(value)] for value in self.model.value_vars]
        found = []
        for variable in self.model.deterministics:
            shape = variable.type.shape
            if None in shape and rows.intersection(ancestors([variable])):
                graph = shape_of(*self.model.replace_rvs_by_values([variable]))
                shape = tuple(compile_python(self.model.value_vars, [graph])(*point))
            if self.n_rows in shape:
                found.append(get_var_name(variable))
        return found

    def _split(self, terms: Sequence[ObservedTerm]) -> SplitCheck:
        """Take the rows along the longest axis of what is observed that gives a verified split."""
        refusal: NotTallError | None = None
        for n_rows in row_counts(terms):
            self.n_rows = n_rows
            rows = [term for term in terms if n_rows in term.lengths]
            self.row_names = [term.name for term in rows]
            self._full_term = pt.cast(sum_rows(rows, n_rows), "float64")
            candidates = _candidate_axes(data_leaves([self._full_term]), n_rows)
            self._check_data(candidates)
            try:
                check = self._split_along(candidates, [term.leaf for term in rows])
            except NotTallError as error:
                refusal = refusal or error
                continue
            self._check_prior_part()
            return check
        assert refusal is not None
        raise refusal

    def _split_along(
        self, candidates: Mapping[Variable, Sequence[int]], observed: Sequence[Variable]
    ) -> SplitCheck:
        """Find the assignment of row axes that the full graph confirms."""
        arrays = [leaf_value(leaf) for leaf in candidates]
        full, points = self._full_graph(list(candidates), arrays)
        # An array of the length of the rows may hold something else, such as scales of groups.
        choices = [
            [*axes] if leaf in observed else [*axes, None] for leaf, axes in candidates.items()
        ]
        first: str | None = None
        for axes in itertools.islice(itertools.product(*choices), MAX_LAYOUTS):
            row_axes = {
                leaf: axis for leaf, axis in zip(candidates, axes, strict=True) if axis is not None
            }
            if not row_axes:
                continue
            check = SplitCheck(full, points, arrays, axes, self._rng)
            graph = self._batch_graph(row_axes)
            reason = check.compare(graph)
            if reason is None:
                self.row_inputs, self.batch_graph = _row_inputs(row_axes), graph
                return check
            first = first or reason
        raise NotTallError(
            dependent_rows(
                self.row_names,
                self.n_rows,
                first or "none of its terms reads data with one entry per row",
                self._latent_of_rows(),
                shared_across_rows(
                    self._bind(self._full_term, {}), self.flat, self._start(), self.n_rows
                ),
            )
        )

    def _batch_graph(
        self, row_axes: Mapping[Variable, int], dtypes: Mapping[Variable, np.dtype] | None = None
    ) -> Graph:
        inputs, term = slice_rows(self._full_term, self.n_rows, row_axes, dtypes)
        return [self.flat, *inputs], [self._bind(term, {})]

    def _full_graph(
        self, leaves: Sequence[Variable], arrays: Sequence[np.ndarray]
    ) -> tuple[FullGraph, list[tuple[np.ndarray, np.ndarray]]]:
        """Compile the terms of all rows; evaluate them where most are finite."""
        inputs = {leaf: leaf.type(name=leaf.name) for leaf in leaves}
        graph: Graph = [self.flat, *inputs.values()], [self._bind(self._full_term, inputs)]
        full = FullGraph(graph, self.n_rows)
        try:
            return full, full.points(self.layout, self._start(), arrays, self._rng)
        except FAILURES as error:
            raise unfit_data(self.row_names, data_leaves([self._full_term]), error) from error

    def _start(self) -> np.ndarray:
        return self.layout.flatten(self.model.initial_point())

    def _latent_of_rows(self) -> list[str]:
        """Name the parameters of the rows that have one value for each of them."""
        read = set(ancestors([self._full_term]))
        return [
            get_var_name(self.model.values_to_rvs[value])
            for value, shape in zip(self.model.value_vars, self.layout.shapes, strict=True)
            if value in read and self.n_rows in shape
        ]

    def _check_prior_part(self) -> None:
        """Refuse terms of the prior part that would read every row at every step."""
        rows = {row_input.leaf for row_input in self.row_inputs.values()}
        for potential in self.model.potentials:
            if any(self.n_rows in leaf_value(leaf).shape for leaf in data_leaves([potential])):
                raise NotTallError(
                    f"Potential {potential.name} reads data with {self.n_rows} rows, so every step "
                    "would cost a full pass. Write its rows as an observed pm.CustomDist."
                )
        for rv in self.model.basic_RVs:
            read = rows.intersection(ancestors([rv]))
            if rv.name not in self.row_names and read:
                names = ", ".join(sorted(leaf_name(leaf) for leaf in read))
                raise NotTallError(
                    f"The distribution of {rv.name} reads {names} with {self.n_rows} rows, so "
                    "every step would cost a full pass. Compute what it needs before building the "
                    "model."
                )

    def _check_data(self, candidates: Mapping[Variable, Sequence[int]]) -> None:
        for leaf, axes in candidates.items():
            rows = np.moveaxis(leaf_value(leaf), axes[0], 0)
            try:
                check_finite(leaf_name(leaf), rows)
            except ValueError:
                if not self._may_be_infinite(rows):
                    raise

    def _may_be_infinite(self, rows: np.ndarray) -> bool:
        """Whether rows with infinite data are possible, as those with no bound to censoring are."""
        finite = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
        if np.isnan(rows).any():
            return False
        evaluate = compile_python([self.flat], [self._bind(self._full_term, {})])
        with np.errstate(invalid="ignore"):
            term = evaluate(self._start())
        return term.shape == finite.shape and bool(np.isfinite(term[~finite]).all())

    def _bind_sources(self, sources: dict[str, np.ndarray], data: Any) -> SplitCheck:
        """Put other data in place of the model's, and compare both graphs on some of their rows."""
        bound = self._bound_inputs(sources, data)
        row_axes = {row_input.leaf: row_input.axis for row_input in bound.values()}
        dtypes = {row_input.leaf: row_input.values.dtype for row_input in bound.values()}
        graph = self._batch_graph(row_axes, dtypes)
        try:
            check = self._check_bound(graph, bound)
        except FAILURES as error:
            raise NotTallError(
                f"The data do not fit the model that was split on its own data: {error}. Look at "
                "the order and the meaning of what is passed as data."
            ) from error
        self.row_inputs, self.batch_graph = bound, graph
        self.n_rows = len(self.data[0])
        return check

    def _check_bound(self, graph: Graph, bound: Mapping[str, RowInput]) -> SplitCheck:
        """Compare the graphs on some rows of other data, which are put through both."""
        n_bound = len(next(iter(bound.values())).values)
        rows = self._rng.integers(0, n_bound, self.n_rows)
        extremes = _extreme_rows(bound)[: self.n_rows]
        rows[: extremes.size] = extremes
        sample = [row_input.taken(rows) for row_input in bound.values()]
        first = [i.values[: extremes.size + 2] for i in sample]
        try:  # by itself, to say which rows are to blame
            compile_python(*graph)(self._start(), *first)
        except FAILURES as error:
            raise ValueError(
                f"the rows with the smallest and largest numbers give an error ({error})"
            ) from error
        arrays = [np.ascontiguousarray(np.moveaxis(i.values, 0, i.axis)) for i in sample]
        full, points = self._full_graph([i.leaf for i in sample], arrays)
        check = SplitCheck(full, points, arrays, [i.axis for i in sample], self._rng)
        reason = check.compare(graph)
        if reason is not None:
            raise ValueError(reason)
        return check

    def _bound_inputs(self, sources: dict[str, np.ndarray], data: Any) -> dict[str, RowInput]:
        """Match sources to row inputs by name, shape and dtype."""
        observed = {
            data_leaves([self.model.rvs_to_values[rv]])[-1]: get_var_name(rv)
            for rv in self.model.observed_RVs
        }
        bound, used = {}, {}
        for name, row_input in self.row_inputs.items():
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
            _check_source(names[0], source, row_input, data[names[0]], self.model)
            used[names[0]] = source.shape[row_input.axis]
            rows = np.moveaxis(source, row_input.axis, 0)
            bound[name] = RowInput(name, row_input.leaf, row_input.axis, _read_only(rows))
        if unknown := set(sources) - set(used):
            raise ValueError(
                f"data names {sorted(unknown)}, which hold no rows in the model; those that do are "
                f"{list(self.row_inputs)}."
            )
        if len(set(used.values())) > 1 or min(used.values()) < 2:
            raise ValueError(
                f"The sources must have the same number of rows, at least 2; got {used}."
            )
        for name, row_input in bound.items():
            like = leaf_value(row_input.leaf)
            check_finite(name, row_input.values, infinite=bool(np.isinf(like).any()))
            check_range(name, row_input.values, np.dtype(row_input.leaf.type.dtype))
        return bound

    def _bind(self, term: Variable, replace: Mapping[Variable, Variable]) -> Variable:
        """Make `term` a graph of the flat point; shared variables become constants."""
        values = self.layout.symbolic(self.flat)
        replacements: dict[Variable, Variable] = {
            value: values[get_var_name(value)] for value in self.model.value_vars
        }
        replacements |= {
            leaf: pt.constant(leaf_value(leaf), name=leaf.name, dtype=leaf.type.dtype)
            for leaf in data_leaves([term])
            if isinstance(leaf, SharedVariable)
        }
        [bound] = graph_replace([term], replacements | dict(replace), strict=False)
        return bound


def _candidate_axes(leaves: Sequence[Variable], n_rows: int) -> dict[Variable, list[int]]:
    """Find the axes along which the rows of each leaf may lie."""
    axes = {
        leaf: [axis for axis, length in enumerate(leaf_value(leaf).shape) if length == n_rows]
        for leaf in leaves
    }
    return {leaf: found for leaf, found in axes.items() if found}


def _row_inputs(row_axes: Mapping[Variable, int]) -> dict[str, RowInput]:
    row_inputs: dict[str, RowInput] = {}
    for leaf, axis in row_axes.items():
        name = base = leaf_name(leaf)
        for number in itertools.count(1):
            if name not in row_inputs:
                break
            name = f"{base}_{number}"
        values = np.ascontiguousarray(np.moveaxis(leaf_value(leaf), axis, 0))
        row_inputs[name] = RowInput(name, leaf, axis, _read_only(values))
    return row_inputs


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


def _read_only(values: np.ndarray) -> np.ndarray:
    """View an array so that it cannot be written: compiled code tells such arrays from others."""
    view = values.view()
    view.flags.writeable = False
    return view


def _restored_input(name: str, leaf: Variable, axis: int, values: np.ndarray | RowFile) -> RowInput:
    opened = values.open() if isinstance(values, RowFile) else values
    return RowInput(name, leaf, axis, _read_only(opened))
