"""The predictive distribution of an observed variable for a batch of rows, of any data.

Its graph is cut out of the model's in the same way as that of the log-likelihoods: free variables
become the flat point, row data inputs of any length. Random generators are inputs too, so that
batches can be drawn in any order and in threads.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.moments.means import mean
from pymc.exceptions import UndefinedMomentException
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import reshape, specify_shape

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba, compile_python
from pymc_minibatch.jit.made_once import made_once
from pymc_minibatch.messages import IdentifiedError
from pymc_minibatch.tall.binding import check_source, extreme_rows, wanted_columns
from pymc_minibatch.tall.check import FAILURES
from pymc_minibatch.tall.evaluated import data_evaluated
from pymc_minibatch.tall.level_numbers import refuse_new_negative_indices
from pymc_minibatch.tall.model import TallModel
from pymc_minibatch.tall.row_input import RowInput, make_input
from pymc_minibatch.tall.slicing import batch_input, data_leaves, leaf_value, rebuild_graph
from pymc_minibatch.tall.sources import check_finite, check_range, open_sources
from pymc_minibatch.tall.sparse_rows import without_sparse

__all__ = ["NoPredictionError", "Predictive", "observed_input"]


class NoPredictionError(IdentifiedError, ValueError):
    """An observed variable cannot be drawn, or not batch by batch; the message says why.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb, xarray as xr
    >>> draws = xr.DataArray(np.zeros((2, 500)), dims=("chain", "draw"))
    >>> idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": draws})})
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     y = pm.Cauchy("y", mu, 1.0, observed=np.arange(100.0))
    ...     try:
    ...         found = pmb.predict(idata, kind="mean")
    ...     except pmb.NoPredictionError as error:
    ...         print(error)
    y has no mean (The mean of the Cauchy distribution is undefined). Leave kind out. For shares of
    categories, use output='draws'.
    """

    id = "PMB606"


class Predictive:
    """Draws of an observed variable, or its mean, given the parameters and a batch of rows.

    Parameters
    ----------
    tall
        The model.
    name
        The observed variable; one that has rows.
    kind
        "response" for draws of what is observed, "mean" for its expectation.
    data
        New rows, by name; those of the model, or that are bound to it, if None.

    Attributes
    ----------
    n_rows
        Rows that are predicted.
    inputs
        The data that are read, with rows along the first axis.
    observed
        What was observed in these rows; None if that is not known.

    Raises
    ------
    NoPredictionError
        If the variable cannot be drawn, or has no known mean.
    ValueError
        If data are missing or do not fit the model.
    """

    def __init__(
        self, tall: TallModel, name: str, kind: Literal["response", "mean"], data: Any
    ) -> None:
        if tall.evaluates_data and data is not None:
            raise NoPredictionError(
                f"{name} depends on a statistic of all rows, such as a mean, so new rows cannot be "
                "predicted. Compute it before you build the model, or use "
                "pm.sample_posterior_predictive."
            )
        if tall.union is not None:
            raise NoPredictionError(
                f"The rows of {' + '.join(tall.row_names)} are joined, and {name} has only some of "
                "them. Use pm.sample_posterior_predictive, or predict with a model that has no "
                f"likelihood but {name}: pass it as model, with the same draws."
            )
        self._tall, self.name = tall, name
        if data is None:
            tall.check_sources()
        own = tall.model.rvs_to_values[tall.model[name]]
        self._observed_leaf = data_leaves([own])[-1]
        self._term = _term(tall, name, kind)
        self._own = observed_input(tall, name)
        leaves = [v for v in data_leaves([self._term]) if v is not self._observed_leaf]
        found = {leaf: _input_of(tall, leaf) or _input_of_shape(tall, leaf) for leaf in leaves}
        if tall.evaluates_data:
            found |= {
                leaf: _computed_rows(leaf, f"computed {k}", tall.n_own)
                for k, (leaf, given) in enumerate(found.items())
                if given is None
            }
        self._inputs_of = {leaf: given.name for leaf, given in found.items() if given is not None}
        reads = list({each.name: each for each in found.values() if each is not None}.values())
        if data is None and tall.partitions is not None:
            raise NoPredictionError(
                "The rows of the model stay in partitions and are not copied to this machine. Pass "
                "the rows to predict as new_rows, or split the model with rows_in_memory=np.inf."
            )
        if data is None:
            self.inputs: list[RowInput] = reads
            self.observed: np.ndarray | None = self._own.values
        else:
            self.inputs, self.observed = self._opened(reads, data)
        arrays = [given.values for given in self.inputs]
        self.n_rows = len(arrays[0] if arrays else self._rows_of_observed())
        if not self.n_rows:
            raise ValueError("new_rows has no rows.")
        self._check_against_model(reads)
        if data is not None:
            self._check_extremes(reads)

    @made_once
    def compiled(self) -> CompiledFunction:
        """``(flat point, number of rows, *generators, *batch) -> values``, rows first."""
        dtypes = {given.leaf: given.values.dtype for given in self.inputs}
        inputs, output = self._sliced(self.inputs, dtypes)
        return compile_numba(inputs, [output])

    @property
    def own_shape(self) -> tuple[int, ...]:
        """Shape of what is observed in a row."""
        return self._own.values.shape[1:]

    @property
    def n_generators(self) -> int:
        """How many random generators it takes."""
        return len(self._generators)

    @cached_property
    def _generators(self) -> list[Variable]:
        return [
            v for v in ancestors([self._term]) if isinstance(v.type, RandomType) and not v.owner
        ]

    def _rows_of_observed(self) -> np.ndarray:
        if self.observed is None:
            raise ValueError(
                f"{self.name} reads no data, so new_rows does not determine how many rows to "
                f"predict. Leave new_rows out, or include {self.name} in it."
            )
        return self.observed

    def _sliced(
        self, inputs: list[RowInput], dtypes: Mapping[Variable, np.dtype]
    ) -> tuple[list[Variable], Variable]:
        """Rebuild the graph on a batch of rows."""
        n_batch = pt.lscalar("n_rows")
        batch = [batch_input(i.leaf, i.axis, dtypes.get(i.leaf)) for i in inputs]
        named = {
            given.name: pt.cast(pt.moveaxis(values, 0, given.axis), given.leaf.type.dtype)
            for given, values in zip(inputs, batch, strict=True)
        }
        replaced: dict[Variable, Variable] = {
            leaf: _shaped(named[name], leaf, self._tall.n_own, n_batch)
            for leaf, name in self._inputs_of.items()
        }
        shape: list[Any] = list(leaf_value(self._observed_leaf).shape)
        shape[self._own.axis] = n_batch  # of what is observed only the shape is read
        dtype = self._observed_leaf.type.dtype
        replaced[self._observed_leaf] = pt.zeros(shape, dtype=dtype)
        generators = {v: v.type() for v in self._generators}
        replaced.update(generators)
        [term] = rebuild_graph([self._term], replaced, self._tall.n_own, n_batch)
        output: Variable = pt.moveaxis(pt.as_tensor(self._tall.bind(term, {})), self._own.axis, 0)
        return [self._tall.flat, n_batch, *generators.values(), *batch], output

    def _check_against_model(self, reads: list[RowInput]) -> None:
        """Compare all rows of the model, as a batch, with the graph that the model has."""
        flat, seeds = self._tall.start, range(self.n_generators)
        own = [_own_rows(given) for given in reads]
        inputs, output = self._sliced(reads, {})
        generators = {v: v.type() for v in self._generators}
        whole = graph_replace([self._term], generators, strict=False)[0]
        full = compile_python([self._tall.flat, *generators.values()], [self._tall.bind(whole, {})])
        sliced = compile_python(inputs, [output])
        try:
            drawn = full(flat, *map(np.random.default_rng, seeds))
        except NotImplementedError as error:
            raise NoPredictionError(
                f"{self.name} cannot be drawn: give its pm.CustomDist random=."
            ) from error
        expected = np.moveaxis(drawn, self._own.axis, 0)
        found = sliced(flat, self._tall.n_own, *map(np.random.default_rng, seeds), *own)
        some = np.arange(self._tall.n_own // 2 + 1)[::-1]
        try:
            fewer = sliced(
                flat, some.size, *map(np.random.default_rng, seeds), *[v[some] for v in own]
            )
        except FAILURES:
            fewer = np.empty(0)
        same = found.shape == expected.shape and np.allclose(found, expected, equal_nan=True)
        same &= fewer.shape == expected[some].shape
        if same and not self._generators:
            same = np.allclose(fewer, expected[some], equal_nan=True)
        if not same:
            raise NoPredictionError(
                f"{self.name} is not drawn row by row. Use pm.sample_posterior_predictive on a "
                "model of fewer rows."
            )

    def _opened(self, reads: list[RowInput], data: Any) -> tuple[list[RowInput], np.ndarray | None]:
        """Match new rows to what is read, by name, shape, type and range."""
        wanted = wanted_columns(self._tall.model, {given.name: given for given in reads})
        of_observed = wanted_columns(self._tall.model, {self._own.name: self._own})
        optional = {name: replace(want, optional=True) for name, want in of_observed.items()}
        sources: Mapping[str, Any] = open_sources(data, optional | wanted, math.inf, "new_rows")
        found = [self._matched(given, given.name, sources, data) for given in reads]
        observed = None
        names = {i.name for i in reads} | {self.name, self._own.name}
        for name in (self.name, self._own.name):
            if observed is None and name in sources:
                observed = self._matched(self._own, name, sources, data).values
        unknown = set(sources) - names - set(self._tall.row_inputs) - set(self._tall.row_names)
        if unknown:
            raise ValueError(
                f"new_rows names {sorted(unknown)}, which hold no rows in the model; {self.name} "
                f"is predicted from {[i.name for i in reads]}."
            )
        lengths = {i.name: len(i.values) for i in found}
        lengths |= {} if observed is None else {self.name: len(observed)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"The sources must have the same number of rows; got {lengths}.")
        return found, observed

    def _matched(
        self, own: RowInput, name: str, sources: Mapping[str, np.ndarray], data: Any
    ) -> RowInput:
        if name not in sources:
            advice = "" if own.leaf.name else " It has no name in the model: make it a pm.Data."
            raise ValueError(
                f"new_rows has nothing for {name}, from which rows are predicted; it names "
                f"{list(sources)}.{advice}"
            )
        source = sources[name]
        given_as = data.get(name) if isinstance(data, Mapping) else None
        check_source(name, source, own, given_as, self._tall.model)
        given = make_input(name, own.leaf, own.axis, np.moveaxis(source, own.axis, 0))
        check_finite(name, given.values)
        check_range(name, given.values, np.dtype(own.leaf.type.dtype))
        return given

    def _check_extremes(self, reads: list[RowInput]) -> None:
        """Evaluate the rows with the smallest and largest numbers where indices are checked."""
        named = {given.name: given for given in self.inputs}
        rows = np.concatenate([extreme_rows(named, "iu"), extreme_rows(named, "f"), [0]])
        rows = rows.astype(np.int64)
        inputs, output = self._sliced(
            self.inputs, {given.leaf: given.values.dtype for given in self.inputs}
        )
        generators = [np.random.default_rng(0) for _ in range(self.n_generators)]
        batch = [given.values[rows] for given in self.inputs]
        try:
            compile_python(inputs, [output])(self._tall.start, rows.size, *generators, *batch)
            own = [_own_rows(given) for given in reads]
            read = inputs[len(inputs) - len(batch) :]
            refuse_new_negative_indices(output, read, own, batch)
        except FAILURES as error:
            raise ValueError(
                "The rows with the smallest and largest numbers cannot be predicted "
                f"({error}). Look for levels of a group, say, that the model has not seen."
            ) from error


def observed_input(tall: TallModel, name: str) -> RowInput:
    """Return the row data that are what a variable has observed."""
    leaf = data_leaves([tall.model.rvs_to_values[tall.model[name]]])[-1]
    given = _input_of(tall, leaf)
    assert given is not None
    return given


def _input_of(tall: TallModel, leaf: Variable) -> RowInput | None:
    """Return the row data of a leaf, or equal ones: PyMC merges equal constants of a density."""
    for given in tall.row_inputs.values():
        if given.leaf is leaf:
            return given
    for given in tall.row_inputs.values():
        if given.leaf.type == leaf.type and np.array_equal(
            leaf_value(given.leaf), leaf_value(leaf)
        ):
            return given
    return None


def _computed_rows(leaf: Variable, name: str, n_rows: int) -> RowInput | None:
    """Take what was computed from all rows as row data, if it has one axis of their length."""
    shape = leaf_value(leaf).shape
    if shape.count(n_rows) != 1:
        return None
    axis = shape.index(n_rows)
    rows = np.ascontiguousarray(np.moveaxis(leaf_value(leaf), axis, 0))
    return make_input(name, leaf, axis, rows)


def _input_of_shape(tall: TallModel, leaf: Variable) -> RowInput | None:
    """Return row data that are those of a leaf but for axes of length 1.

    Densities may be written with axes added to constants.
    """
    if not isinstance(leaf, Constant) or tall.n_own not in leaf_value(leaf).shape:
        return None
    values = leaf_value(leaf)
    for given in tall.row_inputs.values():
        own = leaf_value(given.leaf)
        if own.dtype == values.dtype and np.array_equal(own.squeeze(), values.squeeze()):
            return given
    return None


def _shaped(values: Variable, leaf: Variable, n_rows: int, n_batch: Variable) -> Variable:
    """Give a batch the axes of the leaf that it stands for."""
    shape = leaf_value(leaf).shape
    if values.type.ndim == len(shape):
        return values
    lengths = list(shape)
    lengths[shape.index(n_rows)] = n_batch
    kept = tuple(None if n is n_batch else n for n in lengths)
    shaped: Variable = specify_shape(reshape(values, lengths, ndim=len(shape)), kept)
    return shaped


def _own_rows(given: RowInput) -> np.ndarray:
    """Return the rows that the model has itself, whatever was bound to it."""
    return np.ascontiguousarray(np.moveaxis(leaf_value(given.leaf), given.axis, 0))


def _term(tall: TallModel, name: str, kind: Literal["response", "mean"]) -> Variable:
    """Return a variable, or its mean, as a graph of values of the free variables."""
    rv = tall.model[name]
    try:
        wanted = mean(rv) if kind == "mean" else None
    except NotImplementedError as error:
        raise NoPredictionError(
            f"The mean of {name} is not known to PyMC. Leave kind out: the summary then has the "
            "mean of the draws."
        ) from error
    except UndefinedMomentException as error:
        raise NoPredictionError(
            f"{name} has no mean ({error}). Leave kind out. For shares of categories, use "
            "output='draws'."
        ) from error
    free = tall.model.free_RVs
    others = dict(zip(free, tall.model.replace_rvs_by_values(list(free)), strict=True))
    terms = graph_replace([rv if wanted is None else wanted], others, strict=False)
    terms = data_evaluated(terms) if tall.evaluates_data else terms
    return without_sparse(terms)[0]
