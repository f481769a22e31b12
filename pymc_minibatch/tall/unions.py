"""Likelihoods of different lengths, or one in a loop, as the rows of one.

``log p(y₁, y₂ | θ) = Σ over rows of y₁ + Σ over rows of y₂`` is a sum over the rows of both. A row
is of one kind, and its term is that of the likelihood of its kind. In rows of other kinds the data
of a kind are repeated, where nothing of them counts, so that all branches have data that their
likelihoods allow.

Likelihoods of one kind, such as those of thirty devices in a loop, are one graph. Their data are
joined; parts that read no rows and differ, such as ``mu[3]``, ``mu_3`` or 0.5, are stacked, and
rows gather theirs by the number of their likelihood.

What comes out is verified on rows of each likelihood, and then split like any other term.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar import ScalarType
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import TensorType

from pymc_minibatch.jit.memory import require_memory
from pymc_minibatch.tall.cut import downstream
from pymc_minibatch.tall.row_checks import parts_of_condition
from pymc_minibatch.tall.slicing import leaf_value, slice_rows

__all__ = ["RowSet", "Union", "union_of"]

MAX_KINDS = 8
"""Kinds of likelihoods: each row evaluates those of all."""


@dataclass(frozen=True)
class RowSet:
    """The rows of one likelihood, or of several that have theirs in common.

    Attributes
    ----------
    names
        Names of the variables.
    term
        The log-density of each row, a graph of the value variables of the model.
    n_rows
        Their number.
    axes
        For each leaf of the graph that holds rows, along which axis.
    observed
        Those that are observed.
    """

    names: tuple[str, ...]
    term: Any
    n_rows: int
    axes: dict[Variable, int]
    observed: frozenset[Variable]


@dataclass(frozen=True)
class Union:
    """The rows of several sets, one below the other.

    Attributes
    ----------
    term
        The log-density of each row, a graph of the value variables and of new constants.
    starts
        The first row of each set, and the number of all rows.
    order
        The sets, in the order of the rows.
    leaves
        The constants that hold rows, along their first axes.
    observed
        Those that are observed.
    """

    term: Any
    starts: np.ndarray
    order: tuple[RowSet, ...]
    leaves: tuple[Variable, ...]
    observed: frozenset[Variable]


def union_of(sets: Sequence[RowSet]) -> Union | None:
    """Join sets of rows; None if they are of too many kinds.

    Raises
    ------
    NotEnoughMemoryError
        If the data of all kinds, as long as all rows together, do not fit.
    """
    kinds = _kinds(sets)
    if len(kinds) > MAX_KINDS:
        return None
    n_rows = sum(each.n_rows for each in sets)
    row_bytes = sum(array[:1].nbytes for kind in kinds for array in kind.data)
    require_memory(
        1.0 * n_rows * row_bytes,
        f"Likelihoods of {len(kinds)} kinds with {n_rows:,} rows together",
        "Sample on a machine with more memory.",
    )
    leaves: list[Variable] = []
    observed: set[Variable] = set()
    terms: list[Any] = []
    firsts = np.cumsum([0, *(kind.n_rows for kind in kinds)]).tolist()
    for kind in kinds:
        padded = [_padded(kinds, firsts, kind, i) for i in range(len(kind.data))]
        own = [
            pt.constant(array, name=name) for array, name in zip(padded, kind.names, strict=True)
        ]
        terms.append(kind.term(own))
        leaves += own
        observed |= {leaf for leaf, is_seen in zip(own, kind.observed, strict=True) if is_seen}
    which = np.repeat(np.arange(len(kinds), dtype=np.int8), [kind.n_rows for kind in kinds])
    term = terms[-1]
    if len(kinds) > 1:
        leaf: Any = pt.constant(which, name="kind of row")
        leaves.append(leaf)
        for number in range(len(kinds) - 2, -1, -1):
            term = pt.switch(pt.eq(leaf, number), terms[number], term)
    order = [each for kind in kinds for each in kind.sets]
    starts = np.concatenate([[0], np.cumsum([each.n_rows for each in order])])
    return Union(term, starts, tuple(order), tuple(leaves), frozenset(observed))


def _padded(
    kinds: Sequence["_Kind"], firsts: Sequence[int], kind: "_Kind", position: int
) -> np.ndarray:
    """Put an array of a kind where its rows are among all; elsewhere it counts for nothing.

    There the level of a factor is that which the row has by its own kind, so that levels remain
    independent.
    """
    array, own = kind.data[position], kind.gathers.get(position)
    padded = _repeated(array, firsts[kinds.index(kind)], firsts[-1])
    if own is None or padded is array:
        return padded
    for other, first in zip(kinds, firsts, strict=False):
        same = [i for i, each in other.gathers.items() if _are_same(own, each)]
        alike = same or [i for i, each in other.gathers.items() if _have_same_levels(own, each)]
        if other is not kind and alike:
            levels = other.data[alike[0]]
            padded = padded.astype(np.result_type(padded, levels))
            padded[first : first + other.n_rows] = levels
    return padded


def _are_same(one: "_Gathered", other: "_Gathered") -> bool:
    return one.axis == other.axis and _are_equal([one.source, other.source])


def _have_same_levels(one: "_Gathered", other: "_Gathered") -> bool:
    """Whether two variables are as long, and made of a variable in common that is so, too.

    Such are the effects of patients on what was measured, and a hazard that is a sum of these.
    """
    n_levels, of_other = (each.source.type.shape[each.axis] for each in (one, other))
    if n_levels is None or n_levels != of_other:
        return False
    both = ({v for v in ancestors([each.source]) if v.owner is None} for each in (one, other))
    return any(
        isinstance(v.type, TensorType) and n_levels in v.type.shape and not isinstance(v, Constant)
        for v in set.intersection(*both)
    )


def _repeated(array: np.ndarray, start: int, n_rows: int) -> np.ndarray:
    """Put the rows of a kind where they are among all, and repeat them before and after."""
    if len(array) == n_rows:
        return array
    return array[(np.arange(n_rows) - start) % len(array)]


# --- Kinds ------------------------------------------------------------------------------------


class _Gathered(NamedTuple):
    """Effects that are gathered by levels, and along which axis levels are."""

    source: Any
    axis: int


@dataclass(eq=False)
class _Kind:
    """Sets with one graph.

    Attributes
    ----------
    sets
        The sets.
    data, names, observed
        The rows of all sets, array by array; what they are called, and whether they are observed.
    term
        Makes the term of all rows from variables that hold the data.
    gathers
        What some of the arrays, by their positions, gather.
    """

    sets: list[RowSet]
    data: list[np.ndarray]
    names: list[str | None]
    observed: list[bool]
    term: Callable[[Sequence[Any]], Any]
    gathers: dict[int, _Gathered] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        return sum(each.n_rows for each in self.sets)


def _kinds(sets: Sequence[RowSet]) -> list[_Kind]:
    """Sort sets by their graphs."""
    groups: list[list[RowSet]] = []
    for each in sets:
        alike = next((group for group in groups if _can_merge([group[0], each])), None)
        if alike is None:
            groups.append([each])
        else:
            alike.append(each)
    kinds = []
    for group in groups:
        if len(group) > 1 and _can_merge(group):
            kinds.append(_merged(group))
        else:
            kinds += [_alone(each) for each in group]
    return kinds


def _can_merge(group: Sequence[RowSet]) -> bool:
    try:
        _Merge(group)
    except _DifferentError:
        return False
    return True


def _alone(each: RowSet) -> _Kind:
    data = [np.moveaxis(leaf_value(leaf), axis, 0) for leaf, axis in each.axes.items()]
    inputs, term = slice_rows(each.term, each.n_rows, each.axes)

    def build(own: Sequence[Any]) -> Any:
        return _replaced(term, dict(zip(inputs, own, strict=True)))

    names = [leaf.name for leaf in each.axes]
    observed = [leaf in each.observed for leaf in each.axes]
    return _Kind([each], data, names, observed, build, _gathers(inputs, term))


def _gathers(inputs: Sequence[Any], term: Any) -> dict[int, _Gathered]:
    """Find which inputs are levels, and the effects that they gather."""
    nodes = io_toposort(list(inputs), [term])
    rows, found = downstream(set(inputs), nodes), {}
    for node in nodes:
        op: Any = node.op
        if not isinstance(op, AdvancedSubtensor) or node.inputs[0] in rows:
            continue
        by_axis = [(axis, i) for axis, i in enumerate(op.idx_list) if isinstance(i, int)]
        read = [(axis, node.inputs[1 + i]) for axis, i in by_axis if node.inputs[1 + i] in rows]
        if len(read) != 1:
            continue
        [(axis, index)] = read
        while index not in inputs and index.owner and len(index.owner.inputs) == 1:
            [index] = index.owner.inputs
        if index in inputs:
            found[inputs.index(index)] = _Gathered(node.inputs[0], axis)
    return found


def _merged(group: Sequence[RowSet]) -> _Kind:
    merge = _Merge(group)
    first = group[0]
    data = []
    for position in range(len(first.axes)):
        own = [list(each.axes.items())[position] for each in group]
        data.append(np.concatenate([np.moveaxis(leaf_value(leaf), axis, 0) for leaf, axis in own]))
    lengths = [each.n_rows for each in group]
    data.append(np.repeat(np.arange(len(group), dtype=np.int32), lengths))
    names = [*(leaf.name for leaf in first.axes), f"number of {first.names[0]}"]
    observed = [*(leaf in first.observed for leaf in first.axes), False]

    def build(own: Sequence[Any]) -> Any:
        return _replaced(merge.term, dict(zip([*merge.inputs, merge.which], own, strict=True)))

    return _Kind(list(group), data, names, observed, build)


def _replaced(term: Any, replaced: dict[Any, Any]) -> Any:
    [found] = graph_replace([term], replaced, strict=False)
    return found


class _DifferentError(Exception):
    """Graphs that are not alike."""


class _Merge:
    """One graph of several sets that are alike.

    Attributes
    ----------
    inputs
        A batch of rows of all sets, array by array.
    which
        The number of the set of each row.
    term
        The log-density of each row.
    """

    def __init__(self, group: Sequence[RowSet]) -> None:
        sliced = [slice_rows(each.term, each.n_rows, each.axes) for each in group]
        self._batches = [inputs for inputs, _ in sliced]
        first = self._batches[0]
        for other in self._batches[1:]:
            kinds = [(i.type.dtype, i.type.shape) for i in other]
            if kinds != [(i.type.dtype, i.type.shape) for i in first]:
                raise _DifferentError
        self.inputs: list[Any] = [i.type(name=i.name) for i in first]
        self.which: Any = pt.vector("which", dtype="int32")
        self._reads_rows = [
            downstream(set(inputs), io_toposort(list(inputs), [term])) for inputs, term in sliced
        ]
        self._found: dict[tuple[Variable, ...], Any] = {}
        for inputs in zip(*self._batches, strict=True):
            self._found[inputs] = self.inputs[len(self._found)]
        self.term = self._of(tuple(term for _, term in sliced))

    def _is_free(self, variables: Sequence[Variable]) -> bool:
        """Whether no set's variable reads rows; all must alike."""
        reads = [v in rows for v, rows in zip(variables, self._reads_rows, strict=True)]
        if any(reads) and not all(reads):
            raise _DifferentError
        return not any(reads)

    def _of(self, variables: tuple[Variable, ...]) -> Any:
        """Return one variable in place of those of the sets."""
        if variables not in self._found:
            self._found[variables] = self._made(variables)
        return self._found[variables]

    def _made(self, variables: tuple[Variable, ...]) -> Any:
        if self._is_free(variables):
            if not _are_equal(variables):
                raise _DifferentError  # which no operation below has looked after
            return variables[0]
        nodes: list[Any] = [v.owner for v in variables]
        first = nodes[0]
        if (
            any(
                node is None or node.op != first.op or len(node.inputs) != len(first.inputs)
                for node in nodes
            )
            or len({node.outputs.index(v) for node, v in zip(nodes, variables, strict=True)}) != 1
        ):
            raise _DifferentError
        children = list(zip(*(node.inputs for node in nodes), strict=True))
        made = self._with_differences(first.op, children)
        if made is None:
            inputs = [self._of(each) for each in children]
            made = first.op.make_node(*inputs).outputs[first.outputs.index(variables[0])]
        return made

    def _with_differences(self, op: Any, children: Sequence[tuple[Any, ...]]) -> Any:
        """Apply an operation whose inputs differ in parts that read no rows; None if none does."""
        differ = [self._is_free(each) and not _are_equal(each) for each in children]
        if not any(differ):
            return None
        if isinstance(op, Elemwise):
            inputs = [
                self._gathered(each) if own else self._of(each)
                for each, own in zip(children, differ, strict=True)
            ]
            return op(*inputs)
        if isinstance(op, Alloc) and differ == [True, False]:
            if children[0][0].ndim:
                raise _DifferentError
            return pt.stack(children[0])[self.which]
        if isinstance(op, CheckParameterValue) and not differ[0]:
            conditions = [
                self._condition(each) if own else self._of(each)
                for each, own in zip(children[1:], differ[1:], strict=True)
            ]
            return op(self._of(children[0]), *conditions)
        if isinstance(op, AdvancedSubtensor) and differ == [True, False]:
            return self._from_groups(op, *children)
        if isinstance(op, Dot) and differ == [False, True]:
            return self._product(*children)
        raise _DifferentError

    def _condition(self, conditions: Sequence[Any]) -> Any:
        """Ask of each row only what its set asks of parameters, which a row then reads."""
        parts = list(zip(*map(parts_of_condition, conditions), strict=False))
        if len({len(parts_of_condition(each)) for each in conditions}) > 1:
            raise _DifferentError
        return pt.all([pt.all(self._condition_of_rows(each)) for each in parts])

    def _condition_of_rows(self, parts: tuple[Any, ...]) -> Any:
        if _are_equal(parts):
            return parts[0]
        nodes = [each.owner for each in parts]
        op = nodes[0] and nodes[0].op
        if isinstance(op, Elemwise) and all(node and node.op == op for node in nodes):
            read = zip(*(node.inputs for node in nodes), strict=True)
            return op(*[self._for_rows(each) for each in read])
        return self._for_rows(parts)

    def _for_rows(self, parts: tuple[Any, ...]) -> Any:
        if _are_equal(parts):
            return parts[0]
        if any(each.type.ndim for each in parts):
            return self._gathered(parts)
        return self._gathered(tuple(_tensor(each).dimshuffle("x") for each in parts))

    def _gathered(self, parts: tuple[Any, ...]) -> Any:
        """Give each row the part of its set, which has length 1 along the rows."""
        if not parts[0].type.ndim or any(not each.type.broadcastable[0] for each in parts):
            raise _DifferentError
        operation = _operation_on_numbers(parts)
        if operation is not None and _transforms(parts):
            op, read = operation
            return op(*[each[0] if _are_equal(each) else self._gathered(each) for each in read])
        entries = [_entry_of_vector(each) for each in parts]
        if None not in entries:
            vectors, positions = zip(
                *[entry for entry in entries if entry is not None], strict=True
            )
            if _are_equal(vectors):  # mu[0], mu[1], ...: of one variable
                places = pt.constant(np.array(positions, dtype=np.int64))
                return vectors[0][places[self.which]]
        return pt.concatenate(parts)[self.which]

    def _from_groups(self, op: Any, arrays: tuple[Any, ...], indices: tuple[Any, ...]) -> Any:
        """Gather from arrays of groups, one below the other."""
        ends = {each.type.shape[1:] for each in arrays}
        lengths = [each.type.shape[0] for each in arrays]
        if op.idx_list not in ((0,), [0]) or len(ends) > 1 or None in lengths:
            raise _DifferentError
        if any(not isinstance(i.type, TensorType) or i.type.ndim != 1 for i in indices):
            raise _DifferentError
        firsts = pt.constant(np.concatenate([[0], np.cumsum(lengths[:-1])]).astype(np.int64))
        return pt.concatenate(arrays)[pt.cast(self._of(indices), "int64") + firsts[self.which]]

    def _product(self, matrices: tuple[Any, ...], vectors: tuple[Any, ...]) -> Any:
        """Multiply each row with the coefficients of its set."""
        if vectors[0].type.ndim == 1:
            return (self._of(matrices) * pt.stack(vectors)[self.which]).sum(axis=1)
        if any(each.type.shape[1] != 1 for each in vectors):
            raise _DifferentError
        columns = pt.stack([each[:, 0] for each in vectors])
        return (self._of(matrices) * columns[self.which]).sum(axis=1, keepdims=True)


def _are_equal(variables: Sequence[Any]) -> bool:
    """Whether graphs that read no rows compute the same."""
    first = variables[0]
    return all(each is first or equal_computations([first], [each]) for each in variables[1:])


AFFINE = ps.Add, ps.Sub, ps.Mul, ps.Neg
"""Operations on parameters after which rows gather what comes out: an effect, say."""


def _operation_on_numbers(parts: Sequence[Any]) -> tuple[Elemwise, list[tuple[Any, ...]]] | None:
    """Return the operation that all parts are made by, and what it reads, input by input."""
    nodes = [_entry(each).owner for each in parts]
    op = nodes[0] and nodes[0].op
    if not isinstance(op, Elemwise) or any(node is None or node.op != op for node in nodes):
        return None
    read = zip(*(node.inputs for node in nodes), strict=True)
    return op, [tuple(map(_as_vector, inputs)) for inputs in read]


def _transforms(parts: Sequence[Any]) -> bool:
    """Whether a part is no sum of products of what differs between sets.

    Of these rows read what it is made of: the same scale, whether they take its logarithm or divide
    by it.
    """
    operation = _operation_on_numbers(parts)
    if operation is None:
        return False
    op, read = operation
    differ = [each for each in read if not _are_equal(each)]
    return not isinstance(op.scalar_op, AFFINE) or any(map(_transforms, differ))


def _as_vector(number: Any) -> Any:
    return number if number.type.ndim else number.dimshuffle("x")


def _entry(part: Any) -> Any:
    """Return the number that an array of length 1 is made of."""
    node = part.owner
    expands = node is not None and isinstance(node.op, DimShuffle) and node.op.new_order == ("x",)
    return node.inputs[0] if expands else part


def _entry_of_vector(part: Any) -> tuple[Any, int] | None:
    """Return vector and position of ``vector[i]``, with an axis of length 1; None if it is not."""
    node = part.owner
    if node is None or not isinstance(node.op, DimShuffle) or node.op.new_order != ("x",):
        return None
    entry = node.inputs[0].owner
    if entry is None or type(entry.op).__name__ != "Subtensor" or entry.inputs[0].type.ndim != 1:
        return None
    if len(entry.inputs) != 2:
        return None
    position = entry.inputs[1]
    while position.owner is not None and len(position.owner.inputs) == 1:
        [position] = position.owner.inputs
    return (entry.inputs[0], int(position.data)) if isinstance(position, Constant) else None


def _tensor(condition: Any) -> Any:
    is_scalar = isinstance(condition.type, ScalarType)
    return pt.tensor_from_scalar(condition) if is_scalar else condition
