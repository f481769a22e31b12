"""The check on which a split rests: the batch graph gives what the full graph gives.

Rows are independent if and only if the term of a row is the same whatever other rows are evaluated
with it. Both graphs are therefore evaluated operation by operation in Python, which is quick to
start and notices every index out of range, and compared at several points on

- small batches of random rows, where totals over rows differ from those over all of them, and
  some rows by themselves;
- all rows in random order, where each row has other neighbours;
- other data: each array is replaced by random values of the same kind, so that arrays whose entries
  are mostly alike, such as rare events, hide nothing.

A Numba function cannot tell that an index lies outside of a batch. It is compared with NumPy on
the small batches when it is compiled, after the batch graph has passed.

A branch that a density takes elsewhere, or on few rows of other data, is not seen by this. So both
graphs are compared again at the mode, and all rows are evaluated in two orders there.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.basic import Variable

from pymc_minibatch.jit.compiled import compile_python
from pymc_minibatch.tall.layout import PointLayout
from pymc_minibatch.tall.made_up import MadeUp, made_up, rows_of
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.tall.tiled import TiledGraph

__all__ = [
    "FAILURES",
    "IMPOSSIBLE",
    "EvaluatedPoint",
    "FullGraph",
    "Graph",
    "SplitCheck",
    "compare_orders",
    "difference",
    "only_axis",
]

Graph = tuple[list[Variable], list[Variable]]
"""Inputs and outputs."""

EvaluatedPoint = tuple[np.ndarray, np.ndarray]
"""A flat point, and what the full graph gives there."""

FAILURES = (ValueError, AssertionError, IndexError, ZeroDivisionError)
"""What operations raise on data that do not fit."""

IMPOSSIBLE = ParameterValueError
"""What they raise where parameters are out of range, whatever the data."""

BESIDE = (1.0, -1.0, 5.0, -5.0)
"""How far, on unconstrained scales, a variable moves from a start that is impossible."""

N_POINTS = 4

SLIGHTLY, MOST_NATS, MOST_ALONE = 1e-8, 2.0, 50
"""To find out how far points may be from the start: a step; by how much a row may change; how many
elements of a variable are looked at one by one."""

BATCHES = (*[1] * 12, 2, 5, 64)
CHUNK_ROWS = 2**15
CHUNK_BYTES = 2**23
"""Rows that are gathered at a time."""

TOLERANCE = 1e-9
"""Relative, and absolute where a term is near zero."""

ORDERS_TOLERANCE = 1e-7
"""Among all rows there may be some in which more digits are lost."""

UNDERFLOW = -700.0
"""The logarithm of the smallest number is −745: a density that is smaller may be rounded to 0."""

NUDGES, NUDGE, ROUNDINGS = 4, 2.0**-48, 16.0
"""Points whose last digits differ, by how much, relatively, and how many times what that does to a
row rounding may do: sums of predictors are taken in another order in a batch."""


class FullGraph:
    """The terms of all rows, a function of the flat point and the data.

    Data are passed as inputs of the model's own static shape, not as constants, so that they are
    not hashed; they may be of a smaller type than the model's. What reads them row by row runs on
    tiles, so that no array as large as the data is made.
    """

    def __init__(self, graph: Graph, n_rows: int, shapes: Sequence[tuple[int, ...]]) -> None:
        self.n_rows = n_rows
        inputs, [term] = graph
        self._evaluate = TiledGraph(inputs, term, [only_axis(shape, n_rows) for shape in shapes])

    def __call__(self, point: np.ndarray, arrays: Sequence[np.ndarray | MadeUp]) -> np.ndarray:
        """Evaluate all rows.

        Raises
        ------
        ValueError
            If the result does not have one entry per row.
        """
        rows = self._evaluate(point, arrays)
        if rows.shape != (self.n_rows,):
            raise ValueError(f"It has shape {rows.shape} instead of ({self.n_rows},).")
        return rows

    def points(
        self,
        layout: PointLayout,
        start: np.ndarray,
        arrays: Sequence[np.ndarray],
        rng: np.random.Generator,
    ) -> list[EvaluatedPoint]:
        """Find a few points near the start where most rows are finite; return points and rows.

        The start itself is one of them; at the others no parameter keeps its value, which may be a
        zero that hides what the parameter multiplies. If predictors have raw scales, hundreds of
        thousands say, coefficients stay nearer than other parameters. Points that the model makes
        impossible, such as those with a negative mean, are replaced by others.
        """
        points: list[EvaluatedPoint] = []
        reach = np.ones(start.size)
        for attempt in range(8 * N_POINTS):
            if attempt == 4 * N_POINTS:
                reach, points = self._reaches(layout, start, arrays), []
            halvings = (attempt % (4 * N_POINTS)) ** 0.5
            jitter = reach * rng.normal(0, 0.5 * 2.0**-halvings, start.size) if halvings else 0.0
            point = start + jitter * layout.is_continuous
            rows = self.where_possible(point, arrays) if halvings else self(point, arrays)
            if rows is not None and np.isfinite(rows).mean() > 0.5:
                points.append((point, rows))
            if len(points) == N_POINTS:
                return points
        raise ValueError("At random points near model.initial_point() it is not finite.")

    def where_possible(
        self, point: np.ndarray, arrays: Sequence[np.ndarray | MadeUp]
    ) -> np.ndarray | None:
        """Evaluate all rows; None if the model makes the point impossible."""
        try:
            return self(point, arrays)
        except FAILURES:
            return None

    def beside(
        self, layout: PointLayout, start: np.ndarray, arrays: Sequence[np.ndarray]
    ) -> np.ndarray | None:
        """Return a point at which the model is possible, beside one at which it is not; or None.

        One variable or element moves: a mean that is zero at the start is positive on one side.
        """
        places = [np.arange(start.size)[where] for where in layout.slices.values()]
        alone = [some for where in places for some in where[: where.size > 1 and MOST_ALONE, None]]
        for length in BESIDE:
            for where in [*places, *alone][:MOST_ALONE]:
                moved = start.copy()
                moved[where] += length * layout.is_continuous[where]
                rows = self.where_possible(moved, arrays)
                if rows is not None and np.isfinite(rows).all():
                    return moved
        return None

    def _reaches(
        self, layout: PointLayout, start: np.ndarray, arrays: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return how far each parameter goes until some row has changed by a few nats, or 1.

        The elements of a large variable go equally far.
        """
        reaches, rows = np.ones(start.size), self(start, arrays)
        for where in layout.slices.values():
            places = np.arange(start.size)[where]
            for some in places[:, None] if places.size <= MOST_ALONE else [places]:
                moved = start.copy()
                moved[some] += SLIGHTLY
                change = np.abs(self(moved, arrays) - rows)
                steepest = change[np.isfinite(change)].max(initial=0.0) / SLIGHTLY
                reaches[some] = min(1.0, MOST_NATS / max(steepest, MOST_NATS))
        return reaches


def only_axis(shape: tuple[int, ...], n_rows: int) -> int | None:
    """Return the axis with a length, if it is the only one."""
    return shape.index(n_rows) if shape.count(n_rows) == 1 else None


class SplitCheck:
    """Comparisons with the full graph, on given data and on data made up from them.

    Parameters
    ----------
    full
        The full graph.
    arrays
        The data, as the full graph takes them.
    axes
        For each array the axis along which the rows lie; None if it holds none.
    rng
        Chooses rows and makes data up.
    """

    def __init__(
        self,
        full: FullGraph,
        arrays: Sequence[np.ndarray],
        axes: Sequence[int | None],
        rng: np.random.Generator,
    ) -> None:
        n_rows = full.n_rows
        self.batches = [rng.integers(0, n_rows, size) for size in BATCHES]
        self.full = full
        self.arrays = arrays
        self.axes = axes
        self.rng = rng

    def compare(self, graph: Graph, points: Sequence[EvaluatedPoint]) -> str | None:
        """Say how a batch graph differs from the full graph; None if it does not."""
        evaluate = compile_python(*graph)
        for point, expected in points:
            reason = self._compare_rows(evaluate, point, self.arrays, expected, self.batches)
            if reason is not None:
                return reason
        order = self.rng.permutation(self.full.n_rows)
        step = self._chunk_rows()
        large = [order[i : i + step] for i in range(0, order.size, step)]
        point, expected = points[-1]
        reason = self._compare_rows(evaluate, point, self.arrays, expected, large)
        if reason is not None:
            return reason
        others, rows = _other_data(self.full, point, expected, self.arrays, self.axes, self.rng)
        return self._compare_rows(evaluate, point, others, rows, [*self.batches, *large])

    def compare_at(self, graph: Graph, points: Sequence[np.ndarray]) -> str | None:
        """Do the same at other flat points; at some of the rows."""
        evaluate = compile_python(*graph)
        for point in points:
            expected = self.full.where_possible(point, self.arrays)
            if expected is None:  # as a point beside the mode may be
                continue
            reason = self._compare_rows(evaluate, point, self.arrays, expected, self.batches)
            if reason is not None:
                return reason
        return None

    def _compare_rows(
        self,
        evaluate: Callable[..., np.ndarray],
        point: np.ndarray,
        arrays: Sequence[np.ndarray | MadeUp],
        expected: np.ndarray,
        batches: Sequence[np.ndarray],
    ) -> str | None:
        for rows in batches:
            try:
                actual = evaluate(point, *self._taken(arrays, rows))
            except FAILURES as error:
                return f"on a batch of rows it cannot be evaluated ({_first_line(error)})"
            if actual.shape != rows.shape:
                return f"a batch of {rows.size} rows gives an array of shape {actual.shape}"
            worst = difference(actual, expected[rows])
            if worst is not None:
                noise = rounding_of(evaluate, point, self._taken(arrays, rows))
                worst = difference(actual, expected[rows], noise=noise)
            if worst is not None:
                return f"row {rows[worst]} changes with the rows that it is evaluated with"
        return None

    def _chunk_rows(self) -> int:
        row_bytes = sum(values.nbytes for values in self.taken(np.zeros(1, dtype=np.int64)))
        return max(1, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes))

    def taken(self, rows: np.ndarray) -> list[np.ndarray]:
        """Gather rows of the data."""
        return self._taken(self.arrays, rows)

    def _taken(self, arrays: Sequence[np.ndarray | MadeUp], rows: np.ndarray) -> list[np.ndarray]:
        return [
            np.ascontiguousarray(rows_of(values, axis, rows))
            for values, axis in zip(arrays, self.axes, strict=True)
            if axis is not None
        ]


def compare_orders(
    row_logp: Callable[..., np.ndarray], point: np.ndarray, data: Sequence[np.ndarray]
) -> str | None:
    """Say which row changes with those it is evaluated with; None if none does.

    All rows are evaluated twice: a chunk as a whole, then every other row by itself, so that
    neighbours, totals and lengths are others.
    """
    look = partial(_first_change, row_logp, point)
    for first, changed in over_chunks(look, data, "Verifying that rows are independent"):
        if changed is not None:
            return f"row {first + changed} changes with the rows that it is evaluated with"
    return None


def _first_change(
    row_logp: Callable[..., np.ndarray], point: np.ndarray, *chunk: np.ndarray
) -> int | None:
    expected = row_logp(point, *chunk)
    for half in range(min(2, len(expected))):
        part = [np.ascontiguousarray(values[half::2]) for values in chunk]
        actual, wanted = row_logp(point, *part), expected[half::2]
        worst = difference(actual, wanted, ORDERS_TOLERANCE)
        if worst is not None:
            noise = rounding_of(row_logp, point, part)
            worst = difference(actual, wanted, ORDERS_TOLERANCE, noise)
        if worst is not None:
            return half + 2 * worst
    return None


def difference(
    actual: np.ndarray,
    expected: np.ndarray,
    tolerance: float = TOLERANCE,
    noise: np.ndarray | float = 0.0,
) -> int | None:
    """Say where two arrays differ by more than noise.

    What is not a finite number in one must not be in the other, unless a density that is zero in
    one is too small for a number in the other, which a graph in another form may see.
    """
    finite = np.isfinite(expected)
    close = np.isclose(actual, expected, rtol=tolerance, atol=tolerance + noise)
    lower, upper = np.minimum(actual, expected), np.maximum(actual, expected)
    close |= np.isneginf(lower) & (upper < UNDERFLOW)
    agrees = np.where(finite, close, close | ~np.isfinite(actual))
    return None if agrees.all() else int(np.argmin(agrees))


def rounding_of(
    evaluate: Callable[..., np.ndarray], point: np.ndarray, batch: Sequence[np.ndarray]
) -> np.ndarray:
    """Return what rounding may do to rows: how far they change with the last digits of a point.

    A predictor of 10⁷ has an error of 10⁻⁹ by itself, and so has a log-density of 0.7 that is a
    difference of such numbers.
    """
    rng, values = np.random.default_rng(0), evaluate(point, *batch)
    noise = np.zeros(values.shape)
    with np.errstate(invalid="ignore"):
        for _ in range(NUDGES):
            nudged = point * (1.0 + NUDGE * rng.choice([-1.0, 1.0], point.size))
            noise = np.fmax(noise, np.abs(evaluate(nudged, *batch) - values))
    return np.where(np.isfinite(noise), ROUNDINGS * noise, 0.0)


def _other_data(
    full: FullGraph,
    point: np.ndarray,
    terms: np.ndarray,
    arrays: Sequence[np.ndarray],
    axes: Sequence[int | None],
    rng: np.random.Generator,
) -> tuple[list[np.ndarray | MadeUp], np.ndarray]:
    """Replace one array after the other by random values, as long as most rows stay finite.

    An array that allows no other values (counts of a fixed total, say) has its rows shuffled; one
    that does not even allow this stays as it is.
    """
    current: list[np.ndarray | MadeUp] = list(arrays)
    for position, axis in enumerate(axes):
        if axis is None:
            continue
        for values in made_up(arrays[position], axis, rng):
            trial = [*current]
            trial[position] = values
            try:
                changed = full(point, trial)
            except FAILURES:
                continue
            if np.isfinite(changed).mean() > 0.5:
                current, terms = trial, changed
                break
    return current, terms


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
