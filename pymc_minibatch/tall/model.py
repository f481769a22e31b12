"""A PyMC model seen as a prior part plus N independent rows.

``log p(theta, y) = prior_logp(theta) + sum_n row_logp(theta, n)``

The rows are those of the observed variable, or of a potential in its place; everything else
(priors, Jacobians, potentials) is the prior part. How rows are found is in :mod:`.splitting`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.transforms import CircularTransform
from pymc.model import Model
from pymc.util import get_var_name

from pymc_minibatch.arguments import checked_model
from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba
from pymc_minibatch.jit.dropped import keep_interrupts
from pymc_minibatch.jit.entry import guard_graphs
from pymc_minibatch.jit.interpreted import Evaluator, evaluator
from pymc_minibatch.jit.made_once import made_once
from pymc_minibatch.tall.arguments import checked_point, checked_rows
from pymc_minibatch.tall.binding import bind_sources, wanted_columns
from pymc_minibatch.tall.check import SplitCheck, compare_orders, difference
from pymc_minibatch.tall.checksum import checksum, of_all, of_parts
from pymc_minibatch.tall.description import described
from pymc_minibatch.tall.fingerprint import Fingerprint, check_lengths
from pymc_minibatch.tall.layout import PointLayout
from pymc_minibatch.tall.mapped import FileWatch
from pymc_minibatch.tall.missing_responses import without_missing_responses
from pymc_minibatch.tall.observed import refuse_missing_values
from pymc_minibatch.tall.partitions import PartitionedArray, Partitions
from pymc_minibatch.tall.passes import over_chunks, sum_over_chunks
from pymc_minibatch.tall.possible_start import possible_start
from pymc_minibatch.tall.refusals import NotTallError, in_single_precision
from pymc_minibatch.tall.row_input import RowInput
from pymc_minibatch.tall.sources import ROWS_IN_MEMORY, open_sources
from pymc_minibatch.tall.splitting import Splitting
from pymc_minibatch.tall.stored import described_sources
from pymc_minibatch.tall.structure import NoStructureError, RowStructure, structure_of

__all__ = ["NotTallError", "RowInput", "TallModel"]


class TallModel(Splitting):
    """A PyMC model split into a prior part and independent rows.

    Parameters
    ----------
    model : pymc.Model, optional
        The model; taken from the context if not given. Its data are read once, here: a later
        ``pm.set_data`` is not seen.
    data : dict, DataFrame, path or Columns, optional
        Data that take the place of those in the model, which are then a small stand-in: for each
        variable that holds rows (pm.Data or observed, by name) a NumPy array or memory map, the
        path of a ``.npy`` file, or a zarr, dask, xarray, pandas or polars object; or a Dataset of
        these. Types must convert safely, such as float32 to float64; they are converted batch by
        batch. A table does as well: a path, glob or URL of Parquet files, or a DataFrame of pandas,
        polars or Dask, whose columns have the names of the variables; see :class:`Columns` for
        others. Data stored in parts are copied once to a temporary file, or stay where they are.
        Do not change files while they are mapped.
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
        The likelihoods whose rows are joined, if they have different lengths.
    evaluates_data : bool
        Whether the likelihood depends on statistics of the whole data set, such as a mean.
    layout : PointLayout
        Order of the value variables in a flat vector.
    start : ndarray
        ``model.initial_point()`` as a flat vector, or a possible point near it if it is impossible.
    is_bound : bool
        Whether rows are those of `data`, so that the data in the model are a stand-in.
    sources : dict of str to str
        Path, bytes and time of the last change of files that hold rows.

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
        guard_graphs()
        self.given_model = checked_model(model)
        refuse_missing_values(self.given_model, data)
        self.model = without_missing_responses(self.given_model)
        single = [str(v.name) for v in self.model.value_vars if v.dtype == "float32"]
        if single:
            raise in_single_precision(single)
        start = self.model.initial_point()
        self.layout = PointLayout.of(
            start, [get_var_name(value) for value in self.model.value_vars]
        )
        self.start = self.layout.flatten(start)
        self.flat = pt.vector("point", dtype="float64")
        self.rng = np.random.default_rng(20170709)
        self.is_bound = data is not None
        self._check: SplitCheck | None
        check, points = self._split_as_is_or_evaluated()
        self._check = check
        if data is None:
            self.start = possible_start(self, check, points)
        if data is not None:
            sources = open_sources(
                data, wanted_columns(self.model, self.row_inputs), rows_in_memory
            )
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
    def is_angle(self) -> np.ndarray:
        """Which entries of a flat point are angles, of which a whole turn changes nothing."""
        is_angle = np.zeros(self.layout.size, dtype=np.bool_)
        for rv, transform in self.model.rvs_to_transforms.items():
            if isinstance(transform, CircularTransform):
                name = get_var_name(self.model.rvs_to_values[rv])
                is_angle[self.layout.slices[name]] = True
        return is_angle

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What the model is made of, apart from its rows."""
        return Fingerprint.of(self)

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
                    f"The linear predictors that were found for {' + '.join(self.row_names)},\n"
                    f"{lines}\ngive another log-likelihood near the posterior mode. Please report "
                    "this model."
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

    def describe(self) -> str:
        """Describe in words which part of the model is rows, and which is prior.

        Returns
        -------
        str
            The number of rows and the observed variables that have them; each array of row data
            with its type and its shape, rows first; the terms of the prior part; the linear
            predictors of a row. Warns of Deterministics with one value per row.
        """
        return described(self)


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


def split(model: Model | None, data: Any = None, **options: Any) -> TallModel:
    """Split a model, or take the split that was passed as its data.

    Raises
    ------
    TypeError
        If there is no model.
    ValueError
        If the split is of another model, or of other rows than the model has by now.
    """
    if not isinstance(data, TallModel):
        return TallModel(model, data=data, **options)
    if model is not None and data.given_model is not model:
        raise ValueError(
            "data is a TallModel of another model. Pass pmb.TallModel(model, data=...) of the "
            "same model, or the data themselves."
        )
    check_lengths(data)
    return data
