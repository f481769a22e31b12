"""A PyMC model seen as a prior part plus N independent rows.

``log p(theta, y) = prior_logp(theta) + sum_n row_logp(theta, n)``

The rows are those of the observed variable, or of a potential in its place. Every array in its
log-density that has an axis of length N is taken for row data, and the graph is rebuilt on a batch
(:mod:`.slicing`). The split is accepted only if, on random rows at random points, the batch graph
gives what the full graph gives. Operations that combine rows but depend on data alone are
computed once (:mod:`.evaluated`).
Everything else (priors, Jacobians, potentials) is the prior part.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
import pytensor.tensor as pt
from pymc.model import Model
from pymc.util import get_var_name
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.shape import shape as shape_of

from pymc_minibatch.arguments import checked_model
from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba, compile_python
from pymc_minibatch.jit.dropped import keep_interrupts
from pymc_minibatch.jit.interpreted import Evaluator, evaluator
from pymc_minibatch.jit.made_once import made_once
from pymc_minibatch.jit.memory import NotEnoughMemoryError
from pymc_minibatch.tall.arguments import checked_point, checked_rows
from pymc_minibatch.tall.binding import bind_sources
from pymc_minibatch.tall.by_entry import entries_of
from pymc_minibatch.tall.check import (
    FAILURES,
    IMPOSSIBLE,
    EvaluatedPoint,
    FullGraph,
    Graph,
    SplitCheck,
    compare_orders,
    difference,
)
from pymc_minibatch.tall.checksum import checksum, of_all, of_parts
from pymc_minibatch.tall.evaluated import data_evaluated
from pymc_minibatch.tall.fingerprint import Fingerprint
from pymc_minibatch.tall.layout import PointLayout
from pymc_minibatch.tall.mapped import FileWatch
from pymc_minibatch.tall.observed import (
    ObservedTerm,
    apart,
    observed_terms,
    row_counts,
    sum_rows,
)
from pymc_minibatch.tall.partitions import PartitionedArray, Partitions
from pymc_minibatch.tall.passes import over_chunks, sum_over_chunks
from pymc_minibatch.tall.potentials import has_rows, potential_terms
from pymc_minibatch.tall.refusals import (
    NotTallError,
    dependent_rows,
    impossible_start,
    in_single_precision,
    leaf_name,
    shared_across_rows,
    too_many_layouts,
    unfit_data,
)
from pymc_minibatch.tall.row_checks import checked_by_row
from pymc_minibatch.tall.row_input import RowInput, make_input
from pymc_minibatch.tall.slicing import data_leaves, leaf_value, slice_rows
from pymc_minibatch.tall.softmax import with_softmax
from pymc_minibatch.tall.sources import (
    ROWS_IN_MEMORY,
    check_finite,
    open_sources,
)
from pymc_minibatch.tall.stacks import unmerge
from pymc_minibatch.tall.stored import described_sources
from pymc_minibatch.tall.structure import NoStructureError, RowStructure, structure_of
from pymc_minibatch.tall.tables import Wanted
from pymc_minibatch.tall.twice import twice_differentiable
from pymc_minibatch.tall.unions import RowSet, Union, union_of

__all__ = ["NotTallError", "RowInput", "TallModel"]


MAX_LAYOUTS = 64
"""Ways to assign row axes that are tried before a model is refused."""

COMPARED = 64
"""Rows of each of several likelihoods that are compared once they are joined."""


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
        batch. A table does as well: a path, glob or URL of Parquet files, or a DataFrame of pandas,
        polars or Dask, whose columns have the names of the variables; see :class:`Columns` for
        others. What is stored in parts is copied once to a temporary file, or stays where it is.
        Files that are mapped must stay as they are.
    rows_in_memory : float, default 2**30
        Bytes of rows that are copied to this machine. Stores with more (Dask, Parquet, zarr) stay
        where they are: passes over all rows are jobs of Dask's active scheduler.

    Attributes
    ----------
    model : pymc.Model
        The model.
    n_rows : int
        The number of rows, N.
    row_inputs : dict of str to RowInput
        The arrays that were recognised as row data.
    row_names, row_potentials : list of str
        The observed variables and potentials that have rows, and which of them are potentials.
    union : Union or None
        The likelihoods whose rows are one below the other, if they are of different lengths.
    evaluates_data : bool
        Whether the likelihood depends on statistics of the whole data set, such as a mean.
    layout : PointLayout
        Order of the value variables in a flat vector.
    start : ndarray
        ``model.initial_point()`` as a flat vector, or a possible point beside one that is not.
    is_bound : bool
        Whether rows are those of `data`, so that the data in the model are a stand-in.
    sources : dict of str to str
        Of rows that lie in files: path, bytes and time of the last change.

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

    def __init__(
        self,
        model: Model | None = None,
        *,
        data: Any = None,
        rows_in_memory: float = ROWS_IN_MEMORY,
    ) -> None:
        keep_interrupts()
        self.model = checked_model(model)
        single = [str(v.name) for v in self.model.value_vars if v.dtype == "float32"]
        if single:
            raise in_single_precision(single)
        start = self.model.initial_point()
        self.layout = PointLayout.of(
            start, [get_var_name(value) for value in self.model.value_vars]
        )
        self.start = self.layout.flatten(start)
        self.flat = pt.vector("point", dtype="float64")
        self._rng = np.random.default_rng(20170709)
        self.is_bound = data is not None
        self._check: SplitCheck | None
        self._check, points = self._split_as_is_or_evaluated()
        if data is not None:
            sources = open_sources(data, self.wanted(self.row_inputs), rows_in_memory)
            self._check, points = bind_sources(self, sources, data)
        self.watch.check()
        own = {name: i.file.path for name, i in self.row_inputs.items() if i.file is not None}
        self.sources = described_sources(own if data is None else data)
        self._points = tuple(point for point, _ in points)
        if data is not None:  # of which some rows only have been seen
            self._refuse_if(compare_orders(self.vector_row_logp, self._points[-1], self.data))

    @made_once
    def vector_row_logp(self) -> Evaluator:
        """``(flat point, *batch) -> row log-likelihoods``, for many rows at a time."""
        return evaluator(*self.batch_graph)

    @made_once
    def compiled_row_logp(self) -> CompiledFunction:
        """The same as machine code, to be called from Numba or for few rows.

        Raises
        ------
        NotTallError
            If machine code gives something else.
        """
        compiled = compile_numba(*self.batch_graph)
        for batch, points in self.trials():
            # Only now: where a graph reads beyond a batch, machine code would not notice.
            for at in points:
                self.refuse_wrong_code(compiled(at, *batch), self.vector_row_logp(at, *batch))
        return compiled

    def refuse_wrong_code(self, actual: np.ndarray, expected: np.ndarray) -> None:
        """Refuse machine code that gives other numbers for some rows than NumPy.

        Raises
        ------
        NotTallError
        """
        if (worst := difference(actual, expected)) is not None:
            raise NotTallError(
                f"The log-likelihood of {' + '.join(self.row_names)} is compiled wrongly: machine "
                f"code gives {actual[worst]} for a row instead of {expected[worst]}. Please report "
                "this model."
            )

    @cached_property
    def watch(self) -> FileWatch:
        """The files of the data, to notice when one of them changes."""
        files = [row_input.file for row_input in self.row_inputs.values()]
        return FileWatch(file for file in files if file is not None)

    @cached_property
    def prior_graph(self) -> Variable:
        """Log-density of the prior part, a graph of the flat point."""
        factors = [rv for rv in self.model.basic_RVs if rv.name not in self.row_names]
        terms = self.model.logp(vars=factors + self._prior_potentials, sum=False)
        terms += [rest for _, rest in self._rests]
        total = pt.add(pt.constant(0.0), *[pt.sum(term) for term in terms])
        if not self.is_bound:
            [total] = data_evaluated([total])
        return self._bind(twice_differentiable(pt.cast(total, "float64")), {})

    @property
    def _prior_potentials(self) -> list[Variable]:
        potentials: list[Variable] = self.model.potentials
        return [each for each in potentials if get_var_name(each) not in self.row_potentials]

    @made_once
    def compiled_prior_logp(self) -> CompiledFunction:
        """``(flat point,) -> log-density of the prior part``, a scalar array."""
        return compile_numba([self.flat], [self.prior_graph])

    @property
    def structure(self) -> RowStructure | None:
        """How rows depend on the parameters, by few affine numbers; None if they do not.

        Found when it is first asked for; :attr:`structure_refusal` says why there is none.
        """
        return self._structure if isinstance(self._structure, RowStructure) else None

    @property
    def structure_refusal(self) -> str | None:
        """Why :attr:`structure` is None."""
        return self._structure if isinstance(self._structure, str) else None

    @cached_property
    def _structure(self) -> RowStructure | str:
        try:
            return structure_of(self)
        except NoStructureError as error:
            return str(error)

    def __getstate__(self) -> dict[str, object]:
        """Leave out what is made anew where it is needed: compiled functions, open files."""
        kept = self.__dict__.items()
        made = ("compiled_", "vector_")
        left = {k: v for k, v in kept if k != "watch" and not k.startswith(made)}
        return left | {"_check": None}

    @property
    def data(self) -> tuple[np.ndarray, ...]:
        """Row data, rows along the first axis, in the order `vector_row_logp` takes them.

        Raises
        ------
        RuntimeError
            If a file behind them has changed.
        """
        self.watch.check()
        return tuple(row_input.values for row_input in self.row_inputs.values())

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of all arrays."""
        return sum(values.nbytes for values in self.data) // self.n_rows

    @property
    def partitions(self) -> Partitions | None:
        """Partitions of the rows if they are not on this machine; None if they are."""
        first = self.data[0]
        return first.partitions if isinstance(first, PartitionedArray) else None

    def random_rows(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw row numbers for a trial, with replacement.

        If rows are in partitions, they come from a sample that is gathered once.
        """
        if self.partitions is not None:
            return self.partitions.random_rows(rng, size)
        return rng.integers(0, self.n_rows, size)

    def check_sources(self) -> None:
        """Refuse files behind the rows that are not what they were when the rows were bound.

        Raises
        ------
        RuntimeError
            Naming the file.
        """
        self.watch.check_all()
        if self.partitions is not None:
            self.partitions.check_files()

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What the model is made of, apart from its rows."""
        return Fingerprint.of(self)

    @property
    def graphs_of_parts(self) -> tuple[Variable, Variable]:
        """Log-likelihoods of the model's own rows, by its variables, and :attr:`prior_graph`."""
        return self._full_term, self.prior_graph

    @cached_property
    def checksum(self) -> int:
        """Checksum of the values of all rows, in their order; the first time it takes a pass."""
        self.watch.check()
        return checksum(self.data) if self.partitions is None else of_all(self.part_checksums)

    @cached_property
    def part_checksums(self) -> np.ndarray:
        """Rows and checksum of each partition, shape (parts, 2); the first time it takes a pass."""
        return of_parts(self.data)

    @property
    def cut(self) -> int:
        """How the rows are cut into partitions, as a number; 0 if they are not.

        Rows that are cut in another way have another checksum.
        """
        return 0 if self.partitions is None else 1 + crc32(self.partitions.lengths) % 2**30

    @property
    def rows_checksum(self) -> int:
        """What runs record of the rows: checksum and cut; 0 if no pass over parts was made."""
        is_known = self.partitions is None or "part_checksums" in self.__dict__
        return (self.cut << 32) + self.checksum if is_known else 0

    @property
    def row_axes(self) -> tuple[dict[Variable, int], dict[Variable, np.dtype], int]:
        """What :func:`slice_rows` takes: axes and types of the row data, length in the model."""
        inputs = list(self.row_inputs.values())
        [n_rows] = {leaf_value(i.leaf).shape[i.axis] for i in inputs}
        return {i.leaf: i.axis for i in inputs}, {i.leaf: i.values.dtype for i in inputs}, n_rows

    def copied(self) -> "TallModel":
        """Return the model with its rows copied to this machine, if they are elsewhere."""
        if self.partitions is None:
            return self
        copied = TallModel(self.model, data=self.partitions.copied())
        copied.sources = self.sources
        return copied

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

        Raises
        ------
        ValueError
            If a variable of the point is missing or has another shape, or a row number is none.
        """
        numbers = checked_rows(rows, self.n_rows)
        return self.vector_row_logp(checked_point(self.layout, point), *self.batch(numbers))

    def batch(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """Gather rows of the data, as compiled functions of a batch take them."""
        if self.partitions is not None:  # all of them in one job
            return self.partitions.take_of(self.data, rows)
        return tuple(np.ascontiguousarray(values[rows]) for values in self.data)

    def prior_logp(self, point: Mapping[str, np.ndarray]) -> float:
        """Log-density of everything that is not a row: priors, Jacobians, potentials."""
        return float(self.compiled_prior_logp(checked_point(self.layout, point)))

    def logp(self, point: Mapping[str, np.ndarray]) -> float:
        """Log-density of the model: the prior part plus all rows, in chunks."""
        flat, row_logp = checked_point(self.layout, point), self.vector_row_logp
        [total] = sum_over_chunks(_Evaluated(row_logp, flat, np.sum), self.data)
        return self.prior_logp(point) + float(total)

    def trial_logp(self, point: Mapping[str, np.ndarray]) -> float:
        """Log-density of the model for a trial: if rows are in partitions, from a sample."""
        if self.partitions is None:
            return self.logp(point)
        rows = self.partitions.kept_rows()
        scale = self.n_rows / rows.size
        return self.prior_logp(point) + scale * float(self.row_logp(point, rows).sum())

    def trials(self) -> Iterator[tuple[list[np.ndarray], tuple[np.ndarray, ...]]]:
        """Yield small batches, and the points at which functions of their rows are compared.

        There are none if this model was handed over by another process.
        """
        if self._check is not None:
            for rows in self._check.batches:
                yield self._check.taken(rows), self._points

    def verify_at(
        self,
        *points: np.ndarray,
        data: Sequence[Any] | None = None,
        will_be_witnessed: bool = False,
    ) -> None:
        """Verify the split again at flat points where it is used, such as the mode.

        All rows, or those in `data`, are evaluated in two orders, at the first of them. The full
        graph is evaluated at all of them, unless this model was handed over by another process, or
        will be compared with its own density by a witness. So is what rows read, if it has been
        used.

        Raises
        ------
        NotTallError
            If a row changes with those that it is evaluated with, or reads something else.
        """
        self.watch.check()
        if self._check is not None and not will_be_witnessed:
            self._refuse_if(self._check.compare_at(self.batch_graph, points))
            found = self.__dict__.get("_structure")
            if isinstance(found, RowStructure) and self._check.compare_at(found.graph, points[:1]):
                lines = "\n".join(found.describe(list(self.row_inputs)))
                raise NotTallError(
                    f"Rows of {' + '.join(self.row_names)} were found to read\n{lines}\nand have "
                    "another log-likelihood near the posterior mode. Please report this model."
                )
        data = self.data if data is None else data
        self._refuse_if(compare_orders(self.vector_row_logp, points[0], data))

    def check_start(self, point: Mapping[str, np.ndarray]) -> None:
        """Refuse a point where the log-density of the model is not finite; reads every row.

        If rows are in partitions, it reads those of a sample that is kept in memory.

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
        flat, row_logp = self.layout.flatten(point), self.vector_row_logp

        look = _Evaluated(row_logp, flat, _first_bad)
        data, numbers = self.data, None
        if self.partitions is not None:
            numbers = self.partitions.kept_rows()
            data = self.batch(numbers)
        for first, [found] in over_chunks(look, data, "Checking the starting point"):
            if found is not None:
                row, value = found
                at = first + row if numbers is None else numbers[first + row]
                raise ValueError(
                    f"Row {at} of {' + '.join(self.row_names)} has log-likelihood "
                    f"{value} at the starting point. Look at this row of the data, or "
                    "start elsewhere: pass initvals to pm.sample."
                )

    @property
    def row_parameters(self) -> list[str]:
        """Names of the value variables on which the rows depend."""
        read = set(ancestors([self._full_term]))
        return [get_var_name(value) for value in self.model.value_vars if value in read]

    def value_graph(self, variable: Variable) -> Variable:
        """Make a variable of the model, or a function of some, a graph of the flat point."""
        [graph] = self.model.replace_rvs_by_values([variable])
        return self._bind(graph, {})

    def describe(self) -> str:
        """Describe in words which part of the model is rows, and which is prior.

        Returns
        -------
        str
            The number of rows and the observed variables that have them; each array of row data
            with its type and its shape, rows first; the terms of the prior part; the numbers
            through which a row depends on the parameters. Warns of Deterministics with one value
            per row.
        """
        prior = [get_var_name(rv) for rv in self.model.free_RVs]
        prior += [
            f"observed {get_var_name(rv)}"
            for rv in self.model.observed_RVs
            if rv.name not in self.row_names
        ]
        prior += [f"potential {get_var_name(potential)}" for potential in self._prior_potentials]
        row_bytes = self.row_bytes
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
        lines += self._describe_structure()
        lines += [
            f"warning: Deterministic {name} has one value per row, and pm.sample evaluates it at "
            "every draw; leave it out with var_names."
            for name in self.deterministics_of_rows()
        ]
        return "\n".join(lines)

    def _describe_structure(self) -> list[str]:
        structure = self.structure
        if structure is None:
            return [f"what a row reads: all parameters ({self.structure_refusal})"]
        k = len(structure.predictors)
        title = f"what a row reads: {k} number{'s' * (k > 1)}, affine in effects and coefficients"
        return [title, *structure.describe(list(self.row_inputs))]

    def deterministics_of_rows(self) -> list[str]:
        """List the Deterministics with one value per row, which make every draw cost N."""
        return list(self.sizes_of_row_deterministics())

    def sizes_of_row_deterministics(self) -> dict[str, int]:
        """Count the values that they have."""
        rows = {row_input.leaf for row_input in self.row_inputs.values()}
        lengths = {self.n_rows}
        if self.union is not None:
            rows |= {leaf for each in self.union.order for leaf in each.axes}
            lengths = {each.n_rows for each in self.union.order}
        start = self.model.initial_point()
        point = [start[get_var_name(value)] for value in self.model.value_vars]
        found = {}
        for variable in self.model.deterministics:
            shape = variable.type.shape
            reads = self.evaluates_data or rows.intersection(ancestors([variable]))
            if None in shape and reads:
                graph = shape_of(*self.model.replace_rvs_by_values([variable]))
                shape = tuple(compile_python(self.model.value_vars, [graph])(*point))
            if lengths.intersection(shape):
                known = [length for length in shape if length is not None]
                found[get_var_name(variable)] = math.prod(map(int, known))
        return found

    def wanted(self, inputs: Mapping[str, RowInput]) -> dict[str, Wanted]:
        """List the variables that need rows, by the names that columns may have for them."""
        observed = {
            data_leaves([self.model.rvs_to_values[rv]])[-1]: get_var_name(rv)
            for rv in self.model.observed_RVs
        }
        wanted = {}
        for name, own in inputs.items():
            names = tuple(n for n in (own.leaf.name, observed.get(own.leaf)) if n is not None)
            if not names:  # which is refused when data are bound
                continue
            dims: Sequence[str | None]
            dims = next((d for n in names if (d := self.model.named_vars_to_dims.get(n))), ())
            second = dims[1] if len(dims) == 2 and own.axis == 0 else None
            labels = None if second is None else self.model.coords.get(second)
            found = None if labels is None else tuple(map(str, labels))
            wanted[name] = Wanted(names, own.values.ndim, found, axis=own.axis)
        return wanted

    def _split_as_is_or_evaluated(self) -> tuple[SplitCheck, list[EvaluatedPoint]]:
        """Split the model, with what it computes from data in the rows or else computed once."""
        terms = [*observed_terms(self.model), *potential_terms(self.model, self.is_bound)]
        self.evaluates_data = False
        self.union = None
        with suppress(NotTallError, NotEnoughMemoryError):  # else one has rows, the others none
            self.union = None if self.is_bound else self._union(terms)
            if self.union is not None:
                return self._split_union(self.union)
        self.union = None
        try:
            return self._split(terms)
        except NotTallError:
            evaluated = data_evaluated([term.term for term in terms])
            if self.is_bound or all(a is b.term for a, b in zip(evaluated, terms, strict=True)):
                raise
            self.evaluates_data = True
            replaced = [replace(t, term=e) for t, e in zip(terms, evaluated, strict=True)]
            with suppress(NotTallError):
                return self._split(replaced)
            raise

    def _split(self, terms: Sequence[ObservedTerm]) -> tuple[SplitCheck, list[EvaluatedPoint]]:
        """Take the rows along the longest axis of what is observed that gives a verified split."""
        found = self._split_some(terms)
        self._check_prior_part()
        return found

    def _split_some(self, terms: Sequence[ObservedTerm]) -> tuple[SplitCheck, list[EvaluatedPoint]]:
        """Split off rows, whatever the rest is."""
        refusal: NotTallError | None = None
        for n_rows in row_counts(terms):
            self.n_rows = self._n_own = n_rows
            rows = [term for term in terms if n_rows in term.lengths]
            self.row_names = [term.name for term in rows]
            self.row_potentials = [term.name for term in rows if term.leaf is None]
            self._rests = [(term.name, term.rest) for term in rows if term.rest is not None]
            term = unmerge(pt.cast(sum_rows(rows, n_rows), "float64"))
            self._full_term = twice_differentiable(term)
            candidates = _candidate_axes(data_leaves([self._full_term]), n_rows)
            self._check_data(candidates)
            try:
                return self._split_along(candidates, [t.leaf for t in rows if t.leaf is not None])
            except NotTallError as error:
                first, refusal = refusal is None, refusal or error
            if first and (found := self._split_entries(rows)) is not None:
                return found
        assert refusal is not None
        raise refusal

    def _split_entries(
        self, terms: Sequence[ObservedTerm]
    ) -> tuple[SplitCheck, list[EvaluatedPoint]] | None:
        """Split matrices into entries, whose axes are not independent; None if they are none."""
        shape = terms[0].shape
        if self.is_bound or any(term.shape != shape or term.term.ndim != 2 for term in terms):
            return None
        whole = unmerge(pt.cast(pt.add(*[term.term for term in terms], 0.0), "float64"))
        entries = entries_of(whole, shape)
        if entries is None or not entries.leaves:
            return None
        self._full_term = twice_differentiable(entries.term)
        self.n_rows = self._n_own = shape[0] * shape[1]
        own = {term.leaf for term in terms}
        seen = frozenset(
            leaf
            for leaf, source in entries.leaves.items()
            if source is not None and own.intersection(data_leaves([source]))
        )
        try:
            found = self._split_along({leaf: [0] for leaf in entries.leaves}, list(entries.leaves))
        except NotTallError:
            return None
        evaluate = compile_python([self.flat], [self._bind(whole, {})])
        for point, rows in found[1]:
            if difference(rows, evaluate(point).ravel()) is not None:
                return None
        names = tuple(term.name for term in terms)
        axes = dict.fromkeys(entries.leaves, 0)
        rows_of_all = RowSet(names, self._full_term, self.n_rows, axes, seen)
        starts = np.array([0, self.n_rows])
        self.union = Union(self._full_term, starts, (rows_of_all,), tuple(axes), seen)
        return found

    def _union(self, terms: Sequence[ObservedTerm]) -> Union | None:
        """Join likelihoods of different lengths, or many in a loop; None if one set is best."""
        sets = []
        for some in apart(terms):
            try:
                self._split_some(some)
            except (NotTallError, ValueError):
                return None
            axes, _, n_rows = self.row_axes
            seen = frozenset(each.leaf for each in some if each.leaf is not None)
            names = tuple(each.name for each in some)
            sets.append(RowSet(names, self._full_term, n_rows, axes, seen))
        return union_of(sets) if len(sets) > 1 else None

    def _split_union(self, union: Union) -> tuple[SplitCheck, list[EvaluatedPoint]]:
        """Split the rows of several likelihoods."""
        self.n_rows = self._n_own = int(union.starts[-1])
        self.row_names = [name for each in union.order for name in each.names]
        self.row_potentials, self._rests = [], []
        self._full_term = twice_differentiable(unmerge(pt.cast(union.term, "float64")))
        candidates: dict[Variable, list[int]] = {leaf: [0] for leaf in union.leaves}
        found = self._split_along(candidates, union.leaves)
        self._verify_union(union, [point for point, _ in found[1]])
        return found

    def _verify_union(self, union: Union, points: Sequence[np.ndarray]) -> None:
        """Compare some rows of a union with those of the likelihoods by themselves.

        Raises
        ------
        NotTallError
            If they differ.
        """
        evaluate = compile_python(*self.batch_graph)
        for each, first in zip(union.order, union.starts[:-1], strict=True):
            inputs, term = slice_rows(each.term, each.n_rows, each.axes)
            alone = compile_python([self.flat, *inputs], [self._bind(term, {})])
            rows = self._rng.integers(0, each.n_rows, COMPARED)
            own = [
                np.ascontiguousarray(np.moveaxis(leaf_value(leaf), axis, 0)[rows])
                for leaf, axis in each.axes.items()
            ]
            for point in points:
                expected, found = alone(point, *own), evaluate(point, *self.batch(first + rows))
                if difference(found, expected) is not None:
                    raise NotTallError(
                        f"The rows of {' + '.join(each.names)} were not joined rightly with those "
                        "of the other observed variables. Please report this model."
                    )

    def _split_along(
        self, candidates: Mapping[Variable, Sequence[int]], observed: Sequence[Variable]
    ) -> tuple[SplitCheck, list[EvaluatedPoint]]:
        """Find the assignment of row axes that the full graph confirms."""
        arrays = [leaf_value(leaf) for leaf in candidates]
        full, points = self._full_graph(list(candidates), arrays)
        # An array of the length of the rows may hold something else, such as scales of groups.
        choices = [
            [*axes] if leaf in observed else [*axes, None] for leaf, axes in candidates.items()
        ]
        first: str | None = None
        layouts = itertools.product(*choices)
        for axes in itertools.islice(layouts, MAX_LAYOUTS):
            row_axes = {
                leaf: axis for leaf, axis in zip(candidates, axes, strict=True) if axis is not None
            }
            if not row_axes:
                continue
            check = SplitCheck(full, arrays, axes, self._rng)
            graph = self._batch_graph(row_axes)
            reason = check.compare(graph, points)
            if reason is None:
                self.row_inputs, self.batch_graph = _row_inputs(row_axes), graph
                return check, points
            first = first or reason
        if next(layouts, None) is not None:
            names = sorted(leaf_name(leaf) for leaf in candidates)
            raise NotTallError(too_many_layouts(self.row_names, self.n_rows, names, MAX_LAYOUTS))
        self._refuse_if(first or "none of its terms reads data with one entry per row")
        raise AssertionError

    def _refuse_if(self, reason: str | None) -> None:
        """Refuse the split for a reason, if there is one, and say what takes the rows together."""
        if reason is None:
            return
        term = self._bind(self._full_term, {})
        raise NotTallError(
            dependent_rows(
                self.row_names,
                self.n_rows,
                reason,
                self._latent_of_rows(),
                shared_across_rows(term, self.flat, self.start, self._n_own),
            )
        )

    def _batch_graph(
        self, row_axes: Mapping[Variable, int], dtypes: Mapping[Variable, np.dtype] | None = None
    ) -> Graph:
        inputs, term = slice_rows(self._full_term, self.n_rows, row_axes, dtypes)
        everything: list[Variable] = [self.flat, *inputs]
        bound = checked_by_row(self._bind(term, {}), self.flat, inputs)
        return everything, [with_softmax(bound, everything)]

    def _full_graph(
        self, leaves: Sequence[Variable], arrays: Sequence[np.ndarray]
    ) -> tuple[FullGraph, list[EvaluatedPoint]]:
        """Compile the terms of all rows; evaluate them where most are finite."""
        inputs = {leaf: leaf.type(name=leaf.name) for leaf in leaves}
        graph: Graph = [self.flat, *inputs.values()], [self._bind(self._full_term, inputs)]
        full = FullGraph(graph, self.n_rows, [array.shape for array in arrays])
        try:
            return full, full.points(self.layout, self.start, arrays, self._rng)
        except IMPOSSIBLE as error:
            start = full.beside(self.layout, self.start, arrays)
            if start is None:
                raise impossible_start(self.row_names, error) from error
            self.start = start
            return full, full.points(self.layout, start, arrays, self._rng)
        except FAILURES as error:
            raise unfit_data(self.row_names, data_leaves([self._full_term]), error) from error

    def _latent_of_rows(self) -> list[str]:
        """Name the parameters of the rows that have one value for each of them."""
        return [
            get_var_name(self.model.values_to_rvs[value])
            for value, shape in zip(self.model.value_vars, self.layout.shapes, strict=True)
            if get_var_name(value) in self.row_parameters and self._n_own in shape
        ]

    def _check_prior_part(self) -> None:
        """Refuse terms of the prior part that would read every row at every step."""
        rows = {row_input.leaf for row_input in self.row_inputs.values()}
        rests = self._rests
        if not self.is_bound:
            rests = [(name, each) for name, rest in rests for each in data_evaluated([rest])]
        graphs = [(get_var_name(each), each) for each in self._prior_potentials] + rests
        for name, graph in graphs:
            if has_rows(graph, self.n_rows):
                raise NotTallError(
                    f"Potential {name} reads data with {self.n_rows} rows and is not a "
                    "sum of one term for each of them, so every step would cost a full pass. "
                    "Compute what it needs before building the model, or let it end with the sum."
                )
        for rv in self.model.basic_RVs:
            read = rows.intersection(ancestors([rv]))
            if rv.name not in self.row_names and read and (self.is_bound or self._reads_rows(rv)):
                names = ", ".join(sorted(leaf_name(leaf) for leaf in read))
                raise NotTallError(
                    f"The distribution of {rv.name} reads {names} with {self.n_rows} rows, so "
                    "every step would cost a full pass. Compute what it needs before building the "
                    "model."
                )

    def _reads_rows(self, rv: Variable) -> bool:
        """Whether the density of a variable reads rows at each draw, and not once."""
        evaluated = data_evaluated(self.model.logp(vars=[rv], sum=False))
        return any(self.n_rows in leaf_value(leaf).shape for leaf in data_leaves(evaluated))

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
            term = evaluate(self.start)
        return term.shape == finite.shape and bool(np.isfinite(term[~finite]).all())

    def _bind(self, term: Variable, replace: Mapping[Variable, Variable]) -> Variable:
        """Make `term` a graph of the flat point; shared variables become constants."""
        values = self.layout.symbolic(self.flat)
        replacements: dict[Variable, Variable] = {
            value: values[get_var_name(value)] for value in self.model.value_vars
        }
        replacements |= {
            leaf: pt.constant(leaf_value(leaf), name=leaf.name)  # a dtype would make it a copy
            for leaf in data_leaves([term])
            if isinstance(leaf, SharedVariable) and leaf not in replace
        }
        [bound] = graph_replace([term], replacements | dict(replace), strict=False)
        return bound


@dataclass(frozen=True)
class _Evaluated:
    """What is made of the log-likelihoods of a chunk at a point; it can be sent to workers."""

    row_logp: Evaluator
    flat: np.ndarray
    made: Callable[[np.ndarray], Any]

    def __call__(self, *batch: np.ndarray) -> list[Any]:
        return [self.made(self.row_logp(self.flat, *batch))]


def _first_bad(logps: np.ndarray) -> tuple[int, float] | None:
    bad = np.flatnonzero(~np.isfinite(logps))
    return (int(bad[0]), float(logps[bad[0]])) if bad.size else None


def _candidate_axes(leaves: Sequence[Variable], n_rows: int) -> dict[Variable, list[int]]:
    """Find the axes along which the rows of each leaf may lie.

    Leaves are ordered by their kind: machine code is made for a list of types, and then serves all
    models that have the same.
    """

    def kind(leaf: Any) -> tuple[int, str]:
        return -leaf.type.ndim, leaf.type.dtype

    axes = {
        leaf: [axis for axis, length in enumerate(leaf_value(leaf).shape) if length == n_rows]
        for leaf in sorted(leaves, key=kind)
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
        row_inputs[name] = make_input(name, leaf, axis, values)
    return row_inputs


def split(model: Model | None, data: Any = None, **options: Any) -> TallModel:
    """Split a model, or take the split that was passed as its data.

    Raises
    ------
    TypeError
        If there is no model.
    ValueError
        If the split is of another model.
    """
    if not isinstance(data, TallModel):
        return TallModel(model, data=data, **options)
    if model is not None and data.model is not model:
        raise ValueError(
            "data is a TallModel of another model. Pass pmb.TallModel(model, data=...) of the "
            "same model, or the data themselves."
        )
    return data
