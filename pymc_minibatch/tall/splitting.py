"""How a model is split: which terms have rows, along which axes, and what is left for the prior.

Every array in the log-density of what is observed that has an axis of length N is taken for row
data, and the graph is rebuilt on a batch (:mod:`.slicing`). If several axes have that length, the
possibilities are tried in turn. A split counts only if, on random rows at random points, the batch
graph gives what the full graph gives. Operations that combine rows but depend on data alone are
computed once (:mod:`.evaluated`).
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
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
from pytensor.tensor.variable import TensorVariable

from pymc_minibatch.jit.compiled import compile_python
from pymc_minibatch.jit.memory import NotEnoughMemoryError
from pymc_minibatch.tall.by_entry import entries_of
from pymc_minibatch.tall.check import (
    FAILURES,
    IMPOSSIBLE,
    EvaluatedPoint,
    FullGraph,
    Graph,
    SplitCheck,
    difference,
)
from pymc_minibatch.tall.code_columns import gathered_by_columns
from pymc_minibatch.tall.deterministics import sizes_of_deterministics
from pymc_minibatch.tall.evaluated import data_evaluated
from pymc_minibatch.tall.layout import PointLayout
from pymc_minibatch.tall.observed import (
    ObservedTerm,
    apart,
    candidate_axes,
    observed_terms,
    row_counts,
    sum_rows,
)
from pymc_minibatch.tall.own_values import gathered_by_row
from pymc_minibatch.tall.potentials import has_rows, potential_terms
from pymc_minibatch.tall.prior_part import refuse_passes
from pymc_minibatch.tall.refusals import (
    NotTallError,
    dependent_rows,
    impossible_start,
    leaf_name,
    shared_across_rows,
    too_many_layouts,
    unfit_data,
)
from pymc_minibatch.tall.row_checks import checked_by_row
from pymc_minibatch.tall.row_input import RowInput, inputs_along
from pymc_minibatch.tall.set_rows import set_by_row
from pymc_minibatch.tall.slicing import data_leaves, leaf_value, slice_rows
from pymc_minibatch.tall.softmax import with_softmax
from pymc_minibatch.tall.some_rows import taken_first
from pymc_minibatch.tall.sources import check_finite
from pymc_minibatch.tall.stacks import unmerge
from pymc_minibatch.tall.structure import MAX_PREDICTORS, RowStructure
from pymc_minibatch.tall.taken_terms import rows_taken_first
from pymc_minibatch.tall.twice import twice_differentiable
from pymc_minibatch.tall.unions import RowSet, Union, union_of
from pymc_minibatch.tall.wide_integers import with_wide_integers

__all__ = ["Splitting"]


MAX_LAYOUTS = 64
"""Ways to assign row axes that are tried before a model is refused."""

MOST_ENTRIES = 20_000_000
"""Of a matrix that is split into entries although its rows are independent (about half a GB)."""

COMPARED = 64
"""Rows of each of several likelihoods that are compared once they are joined."""


class Splitting(ABC):
    """A model while its rows are looked for, and what was found.

    A class that extends it sets what is known of the model, and calls `_split_as_is_or_evaluated`.

    Attributes
    ----------
    model, given_model
        The model, without missing values of responses, and as it was passed.
    full_term
        The log-likelihoods of all rows of the model's own data, a graph of its variables.
    n_own
        Their number; another than that of the rows if other data are bound.
    rng
        By which rows and points are drawn at which graphs are compared.
    """

    model: Model
    given_model: Model
    is_bound: bool
    layout: PointLayout
    start: np.ndarray
    flat: TensorVariable
    n_rows: int
    row_names: list[str]
    row_potentials: list[str]
    row_inputs: dict[str, RowInput]
    batch_graph: Graph
    evaluates_data: bool
    union: Union | None
    full_term: TensorVariable
    n_own: int
    _rests: list[tuple[str, Variable]]
    rng: np.random.Generator

    @property
    @abstractmethod
    def structure(self) -> RowStructure | None:
        """How rows depend on the parameters, by few affine numbers; None if they do not."""

    @abstractmethod
    def batch(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """Gather rows of the data, as compiled functions of a batch take them."""

    @property
    def prior_potentials(self) -> list[Variable]:
        """Potentials that are no rows."""
        potentials: list[Variable] = self.model.potentials
        return [each for each in potentials if get_var_name(each) not in self.row_potentials]

    @property
    def row_axes(self) -> tuple[dict[Variable, int], dict[Variable, np.dtype], int]:
        """What :func:`slice_rows` takes: axes and types of the row data, length in the model."""
        inputs = list(self.row_inputs.values())
        [n_rows] = {leaf_value(i.leaf).shape[i.axis] for i in inputs}
        return {i.leaf: i.axis for i in inputs}, {i.leaf: i.values.dtype for i in inputs}, n_rows

    @cached_property
    def prior_graph(self) -> Variable:
        """Log-density of the prior part, a graph of the flat point."""
        factors = [rv for rv in self.model.basic_RVs if rv.name not in self.row_names]
        factors += self.prior_potentials
        terms = with_wide_integers(self.model.logp(vars=factors, sum=False))
        terms += [rest for _, rest in self._rests]
        if not self.is_bound:
            terms = taken_first(terms)
        total = pt.add(pt.constant(0.0), *[pt.sum(term) for term in terms])
        if not self.is_bound:
            [total] = data_evaluated([total])
        return self.bind(twice_differentiable(pt.cast(total, "float64")), {})

    @property
    def graphs_of_parts(self) -> tuple[Variable, Variable]:
        """Log-likelihoods of the model's own rows, by its variables, and :attr:`prior_graph`."""
        return self.full_term, self.prior_graph

    @property
    def row_parameters(self) -> list[str]:
        """Names of the value variables on which the rows depend."""
        read = set(ancestors([self.full_term]))
        return [get_var_name(value) for value in self.model.value_vars if value in read]

    def value_graph(self, variable: Variable) -> Variable:
        """Make a variable of the model, or a function of some, a graph of the flat point."""
        [graph] = self.model.replace_rvs_by_values([variable])
        return self.bind(graph, {})

    def deterministics_of_rows(self) -> list[str]:
        """List the Deterministics with one value per row, which make every draw cost N."""
        return list(self.sizes_of_row_deterministics())

    def sizes_of_row_deterministics(self) -> dict[str, int]:
        """Count the values that they have."""
        return sizes_of_deterministics(self)

    def _split_as_is_or_evaluated(self) -> tuple[SplitCheck, list[EvaluatedPoint]]:
        """Split the model, with what it computes from data in the rows or else computed once."""
        as_written = [*observed_terms(self.model), *potential_terms(self.model, self.is_bound)]
        terms = as_written if self.is_bound else rows_taken_first(self, as_written)
        self.evaluates_data = any(
            a.term is not b.term for a, b in zip(terms, as_written, strict=True)
        )
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
        rows = {row_input.leaf for row_input in self.row_inputs.values()}
        kept: list[tuple[str, Variable]] = self._rests
        if not self.is_bound:
            kept = [(name, each) for name, rest in kept for each in data_evaluated([rest])]
        kept = [(get_var_name(each), each) for each in self.prior_potentials] + kept
        others = [rv for rv in self.model.basic_RVs if rv.name not in self.row_names]
        refuse_passes(self.model, kept, others, rows, self.n_rows, is_bound=self.is_bound)
        return found

    def _split_some(self, terms: Sequence[ObservedTerm]) -> tuple[SplitCheck, list[EvaluatedPoint]]:
        """Split off rows, whatever the rest is."""
        refusal: NotTallError | None = None
        for n_rows in row_counts(terms):
            self.n_rows = self.n_own = n_rows
            self.__dict__.pop("_structure", None)  # of rows that were tried before
            rows = [term for term in terms if n_rows in term.lengths]
            self.row_names = [term.name for term in rows]
            self.row_potentials = [term.name for term in rows if term.leaf is None]
            self._rests = [(term.name, term.rest) for term in rows if term.rest is not None]
            term = unmerge(pt.cast(sum_rows(rows, n_rows), "float64"))
            term = gathered_by_columns(set_by_row(term, n_rows), n_rows)
            leaves = [each.leaf for each in rows if each.leaf is not None]
            try:
                found = self._split_term(term, leaves)
            except NotTallError as error:
                first, refusal = refusal is None, refusal or error
                other = self._split_entries(rows) if first else None
                other = other or self._split_own(term, leaves, n_rows)
                if other is not None:
                    return other
            else:
                return (None if refusal else self._split_wide(rows)) or found
        assert refusal is not None
        raise refusal

    def _split_term(
        self, term: Any, observed: Sequence[Variable]
    ) -> tuple[SplitCheck, list[EvaluatedPoint]]:
        """Split a graph of all rows."""
        self.full_term = twice_differentiable(term)
        candidates = candidate_axes(data_leaves([self.full_term]), self.n_rows)
        self._check_data(candidates)
        return self._split_along(candidates, observed)

    def _split_own(
        self, term: Any, observed: Sequence[Variable], n_rows: int
    ) -> tuple[SplitCheck, list[EvaluatedPoint]] | None:
        """Split rows some of whose parameters have one value for each row; None if none have."""
        if self.is_bound:  # other data have another number of rows
            return None
        shapes = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        values = {value: shapes[get_var_name(value)] for value in self.model.value_vars}
        gathered = gathered_by_row(term, values, n_rows)
        if gathered is term:
            return None
        self.n_rows = self.n_own = n_rows
        with suppress(NotTallError):
            return self._split_term(gathered, observed)
        return None

    def _split_wide(
        self, terms: Sequence[ObservedTerm]
    ) -> tuple[SplitCheck, list[EvaluatedPoint]] | None:
        """Split rows of many columns into entries, if rows read too many numbers; None if not.

        In a table of lifetimes by intervals each row reads the hazards of all intervals.
        """
        n_entries = math.prod(terms[0].shape)
        is_wide = n_entries > MAX_PREDICTORS * self.n_rows and n_entries <= MOST_ENTRIES
        if self.is_bound or not is_wide or self.structure is not None:
            return None
        kept = dict(self.__dict__)
        self.__dict__.pop("_structure")
        with suppress(ValueError, TypeError, IndexError, NotEnoughMemoryError):
            entries = self._split_entries(terms)
            if entries is not None and self.structure is not None:
                return entries
        self.__dict__.clear()
        self.__dict__ |= kept
        return None

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
        self.full_term = twice_differentiable(entries.term)
        self.n_rows = self.n_own = shape[0] * shape[1]
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
        evaluate = compile_python([self.flat], [self.bind(whole, {})])
        for point, rows in found[1]:
            if difference(rows, evaluate(point).ravel()) is not None:
                return None
        names = tuple(term.name for term in terms)
        axes = dict.fromkeys(entries.leaves, 0)
        rows_of_all = RowSet(names, self.full_term, self.n_rows, axes, seen)
        starts = np.array([0, self.n_rows])
        self.union = Union(self.full_term, starts, (rows_of_all,), tuple(axes), seen)
        return found

    def _union(self, terms: Sequence[ObservedTerm]) -> Union | None:
        """Join likelihoods of different lengths, or many in a loop; None if one set is best."""
        kinds = apart(terms, dict(zip(self.layout.names, self.layout.sizes, strict=True)))
        if len(kinds) == 1:
            return None
        sets, potentials, rests = [], [], []
        for some in kinds:
            try:
                self._split_some(some)
            except (NotTallError, ValueError):
                return None
            if any(has_rows(rest, self.n_rows) for _, rest in self._rests):
                return None
            potentials += self.row_potentials
            rests += self._rests
            axes, _, n_rows = self.row_axes
            seen = frozenset(each.leaf for each in some if each.leaf is not None)
            names = tuple(each.name for each in some)
            sets.append(RowSet(names, self.full_term, n_rows, axes, seen))
        self.row_potentials, self._rests = potentials, rests
        return union_of(sets)

    def _split_union(self, union: Union) -> tuple[SplitCheck, list[EvaluatedPoint]]:
        """Split the rows of several likelihoods."""
        self.n_rows = self.n_own = int(union.starts[-1])
        self.__dict__.pop("_structure", None)
        self.row_names = [name for each in union.order for name in each.names]
        self.full_term = twice_differentiable(unmerge(pt.cast(union.term, "float64")))
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
            alone = compile_python([self.flat, *inputs], [self.bind(term, {})])
            rows = self.rng.integers(0, each.n_rows, COMPARED)
            own = [
                np.ascontiguousarray(np.moveaxis(leaf_value(leaf), axis, 0)[rows])
                for leaf, axis in each.axes.items()
            ]
            for point in points:
                expected, found = alone(point, *own), evaluate(point, *self.batch(first + rows))
                if difference(found, expected) is not None:
                    raise NotTallError(
                        f"The rows of {' + '.join(each.names)} were not joined correctly with the "
                        "rows of the other observed variables. Please report this model."
                    )

    def _split_along(
        self, candidates: Mapping[Variable, Sequence[int]], observed: Sequence[Variable]
    ) -> tuple[SplitCheck, list[EvaluatedPoint]]:
        """Find the assignment of row axes that the full graph confirms."""
        arrays = [leaf_value(leaf) for leaf in candidates]
        full, points = self.make_full_graph(list(candidates), arrays)
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
            check = SplitCheck(full, arrays, axes, self.rng)
            graph = self.make_batch_graph(row_axes)
            reason = check.compare(graph, points)
            if reason is None:
                self.row_inputs, self.batch_graph = inputs_along(row_axes), graph
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
        term = self.bind(self.full_term, {})
        raise NotTallError(
            dependent_rows(
                self.row_names,
                self.n_rows,
                reason,
                self.latent_of_rows,
                shared_across_rows(term, self.flat, self.start, self.n_own),
            )
        )

    def make_batch_graph(
        self, row_axes: Mapping[Variable, int], dtypes: Mapping[Variable, np.dtype] | None = None
    ) -> Graph:
        """Make the log-likelihoods of the rows a graph of the flat point and a batch."""
        inputs, term = slice_rows(self.full_term, self.n_rows, row_axes, dtypes)
        everything: list[Variable] = [self.flat, *inputs]
        bound = checked_by_row(self.bind(term, {}), self.flat, inputs)
        return everything, [with_softmax(bound, everything)]

    def make_full_graph(
        self, leaves: Sequence[Variable], arrays: Sequence[np.ndarray]
    ) -> tuple[FullGraph, list[EvaluatedPoint]]:
        """Compile the terms of all rows; evaluate them where most are finite."""
        inputs = {leaf: leaf.type(name=leaf.name) for leaf in leaves}
        graph: Graph = [self.flat, *inputs.values()], [self.bind(self.full_term, inputs)]
        full = FullGraph(graph, self.n_rows, [array.shape for array in arrays])
        try:
            return full, full.points(self.layout, self.start, arrays, self.rng)
        except IMPOSSIBLE as error:
            start = full.beside(self.layout, self.start, arrays)
            if start is None:
                raise impossible_start(self.row_names, error) from error
            self.start = start
            return full, full.points(self.layout, start, arrays, self.rng)
        except FAILURES as error:
            raise unfit_data(self.row_names, data_leaves([self.full_term]), error) from error

    @property
    def latent_of_rows(self) -> list[str]:
        """Parameters of the rows with one value for each row."""
        return [
            get_var_name(self.model.values_to_rvs[value])
            for value, shape in zip(self.model.value_vars, self.layout.shapes, strict=True)
            if get_var_name(value) in self.row_parameters and self.n_own in shape
        ]

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
        evaluate = compile_python([self.flat], [self.bind(self.full_term, {})])
        try:
            with np.errstate(invalid="ignore"):
                term = evaluate(self.start)
        except IMPOSSIBLE:  # PyMC's check of the parameters of these rows
            return False
        return term.shape == finite.shape and bool(np.isfinite(term[~finite]).all())

    def bind(self, term: Variable, replace: Mapping[Variable, Variable]) -> Variable:
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
