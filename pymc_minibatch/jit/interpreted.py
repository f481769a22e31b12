"""Graphs evaluated operation by operation in NumPy, for passes over all rows.

Machine code pays where a few rows are read a million times. A pass over all rows reads them once,
in chunks of many rows that stay in cache, and there an operation of NumPy costs about what a loop
of machine code does, but needs no compilation, which takes seconds for each model. Operations run
without the interpreter's lock, so that passes use all cores.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from importlib import import_module
from typing import Any, cast

import numpy as np
from pymc.pytensorf import compile as pymc_compile
from pytensor import scalar as ps
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import AbstractFunctionGraph, FunctionGraph
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.scalar import math as psm
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from scipy import special

from pymc_minibatch.jit.branchless import FUNCTIONS, InverseErfcx, LogErfc
from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba
from pymc_minibatch.jit.kept import Graph, kept_rewrite

__all__ = [
    "Evaluator",
    "Interpreted",
    "evaluator",
    "for_few_rows",
    "only_looking",
    "shaken_outputs",
    "stable_outputs",
]

STABLE = RewriteDatabaseQuery(include=["fast_run"], exclude=["fusion", "inplace", "BlasOpt"])
"""PyTensor's rewrites without those that matter for the speed of machine code only."""


SHAKEN = 4.0 * float(np.finfo(float).eps)
"""Relative error of an operation, by which libraries differ as well: a unit in the last place for
sums and products, a few for log Γ."""

EXACT = (
    *(ps.Cast, ps.Identity, ps.Second, ps.Switch, ps.Clip, ps.Abs, ps.Neg, ps.Sign),
    *(ps.Maximum, ps.Minimum, ps.Floor, ps.Ceil, ps.Trunc),
    *(ps.RoundHalfToEven, ps.RoundHalfAwayFromZero),
)
"""Operations that add no rounding error."""


class NotVectorizedError(Exception):
    """An operation that NumPy does not do array by array."""


@dataclass(frozen=True)
class _Step:
    """An operation: what it reads, and what nobody reads after it."""

    run: Callable[..., Sequence[Any]]
    reads: list[int]
    last: list[int]


@dataclass(frozen=True)
class _Program:
    """Operations in an order in which they can be done."""

    steps: list[_Step]
    constants: list[Any]
    results: list[int]

    def __call__(self, *args: Any) -> list[Any]:
        values: list[Any] = [*args, *self.constants]
        for step in self.steps:
            values.extend(step.run(*[values[i] for i in step.reads]))
            for i in step.last:
                values[i] = None
        return [values[i] for i in self.results]


@dataclass(frozen=True)
class Interpreted:
    """A PyTensor graph as a sequence of NumPy operations.

    It holds no state, so that threads may call it at the same time, and is pickled as its graph.
    """

    graph: tuple[list[Variable], list[Variable]]
    program: _Program

    def __call__(self, *args: Any) -> Any:
        """Evaluate the first output."""
        return self.outputs(*args)[0]

    def outputs(self, *args: Any) -> list[Any]:
        """Evaluate all outputs."""
        with np.errstate(all="ignore"):
            return self.program(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the graph."""
        return _restored, (pickle.dumps(self.graph),)


type Evaluator = Interpreted | CompiledFunction


def evaluator(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Evaluator:
    """Build what evaluates a graph on many rows: NumPy if it can, otherwise machine code."""
    try:
        return _interpreted(list(inputs), list(outputs))
    except NotVectorizedError:
        return compile_numba(inputs, outputs)


_only_looks: ContextVar[bool] = ContextVar("only_looks", default=False)


@contextmanager
def only_looking() -> Iterator[None]:
    """Have :func:`for_few_rows` compile nothing for a while, where rows are read a few times only.

    What it makes meanwhile must not be kept for kernels.
    """
    token = _only_looks.set(True)
    try:
        yield
    finally:
        _only_looks.reset(token)


def for_few_rows(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> CompiledFunction:
    """Build what evaluates a graph on few rows at a time: machine code, if it is often."""
    if _only_looks.get():
        return cast(CompiledFunction, evaluator(inputs, outputs))
    return compile_numba(inputs, outputs)


def stable_outputs(
    inputs: Sequence[Variable], outputs: Sequence[Variable]
) -> Callable[..., Sequence[Any]]:
    """Build what evaluates all outputs of a graph that PyTensor has made stable.

    So a probability that rounds to 1 has a logarithm of its complement.
    """
    return evaluator(inputs, outputs).outputs if outputs else lambda *args: []


def shaken_outputs(
    inputs: Sequence[Variable], outputs: Sequence[Variable]
) -> Callable[..., Sequence[Any]]:
    """Build the same with operations rounded otherwise, at random (Monte Carlo arithmetic).

    What differs is what rounding may do, also where large terms cancel within a row. It concerns
    operations on what the first input, the point, changes: rows may be looked up by what is made of
    data alone. Graphs that are not evaluated by NumPy are not shaken.

    Reference: Parker (1997), Monte Carlo arithmetic.
    """
    found = evaluator(inputs, outputs)
    if not isinstance(found, Interpreted):
        return found.outputs
    rewritten = kept_rewrite(_stable, (list(inputs), list(outputs)))
    program = _program(FunctionGraph(*rewritten, clone=False), shaken=True)
    return Interpreted((list(inputs), list(outputs)), program).outputs


@lru_cache(maxsize=64)
def _restored(graph: bytes) -> Interpreted:
    return _interpreted(*pickle.loads(graph))


def _interpreted(inputs: list[Variable], outputs: list[Variable]) -> Interpreted:
    rewritten = kept_rewrite(_stable, (inputs, outputs))
    program = _program(FunctionGraph(*rewritten, clone=False))
    return Interpreted((inputs, outputs), program)


def _stable(graph: Graph) -> Graph:
    inputs, outputs = graph
    mode = Mode(linker="py", optimizer=STABLE)
    function = pymc_compile(inputs, outputs, mode=mode, on_unused_input="ignore")
    if shared := function.get_shared():
        raise ValueError(f"The graph reads shared variables that were not bound: {shared}.")
    fgraph = function.maker.fgraph
    return list(fgraph.inputs), list(fgraph.outputs)


def _program(fgraph: AbstractFunctionGraph, shaken: bool = False) -> _Program:
    nodes = fgraph.toposort()
    read = [*(v for node in nodes for v in node.inputs), *fgraph.outputs]
    constants = list(dict.fromkeys(v for v in read if isinstance(v, Constant)))
    given = [*fgraph.inputs, *constants]
    variables = [*given, *(v for node in nodes for v in node.outputs)]
    slots = {variable: position for position, variable in enumerate(variables)}
    kept = {*given, *fgraph.outputs}
    last_read = {v: node for node in nodes for v in node.inputs if v not in kept}
    inexact = set(_inexact(fgraph)) if shaken else set()
    steps = [
        _Step(
            run=partial(_shake, number, _run(node)) if node in inexact else _run(node),
            reads=[slots[v] for v in node.inputs],
            last=[slots[v] for v in {*node.inputs} if last_read.get(v) is node],
        )
        for number, node in enumerate(nodes)
    ]
    results = [slots[v] for v in fgraph.outputs]
    return _Program(steps, [v.data for v in constants], results)


def _run(node: Apply) -> Callable[..., Sequence[Any]]:
    op: Any = node.op
    if isinstance(op, Elemwise):
        op = op.scalar_op
    if isinstance(op, ps.Composite):
        return _program(op.fgraph)
    if isinstance(op, ps.ScalarOp):
        out: Any = node.outputs[0]
        return partial(_elementwise, _ufunc(op), out.type.dtype)
    if isinstance(op, Blockwise):
        return _of_blocks(op, node)
    if isinstance(op, HasInnerGraph):
        raise NotVectorizedError(str(op))
    return partial(_perform, op, node)


def _inexact(fgraph: AbstractFunctionGraph) -> Iterator[Apply]:
    """List operations that round what the first input changes."""
    changed = {fgraph.inputs[0]}
    for node in fgraph.toposort():
        if changed.isdisjoint(node.inputs):
            continue
        changed.update(node.outputs)
        if isinstance(node.op, Elemwise) and not isinstance(node.op.scalar_op, EXACT):
            yield node


def _shake(number: int, run: Callable[..., Sequence[Any]], *args: Any) -> list[Any]:
    """Round floating-point results of an operation up or down, by its number."""
    rng = np.random.default_rng(number)
    return [
        value * (1.0 + SHAKEN * rng.choice((-1.0, 1.0), np.shape(value)))
        if np.issubdtype(np.asarray(value).dtype, np.floating)
        else value
        for value in run(*args)
    ]


def _of_blocks(op: Blockwise, node: Apply) -> Callable[..., Sequence[Any]]:
    """Return what does an operation for each row; PyTensor's own loop is not safe in threads."""
    if isinstance(op.core_op, SolveTriangular):
        return partial(_solve_triangular, op.core_op)
    if op.gufunc_spec is None and getattr(op.core_op, "gufunc_spec", None) is None:
        raise NotVectorizedError(str(op))
    return partial(_perform, op, node)


def _elementwise(function: Callable[..., Any], dtype: str, *args: Any) -> list[Any]:
    return [np.asarray(function(*args)).astype(dtype, copy=False)]


def _perform(op: Any, node: Apply, *args: Any) -> list[Any]:
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    op.perform(node, list(args), storage)
    return [each[0] for each in storage]


def _solve_triangular(op: Any, a: np.ndarray, b: np.ndarray) -> list[Any]:
    """Solve one triangular system for each row by substitution."""
    if op.b_ndim == 1:
        b = b[..., None]
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = np.empty((*leading, *b.shape[-2:]), dtype=np.result_type(a, b))
    size = a.shape[-1]
    for i in range(size) if op.lower else reversed(range(size)):
        known = slice(0, i) if op.lower else slice(i + 1, size)
        rest = b[..., i, :] - np.einsum("...j,...jk->...k", a[..., i, known], x[..., known, :])
        x[..., i, :] = rest if op.unit_diagonal else rest / a[..., i, i, None]
    return [x[..., 0] if op.b_ndim == 1 else x]


def _ufunc(op: Any) -> Callable[..., Any]:
    """Return the function of arrays that does what a scalar operation does."""
    if type(op) in UFUNCS:
        return UFUNCS[type(op)]
    spec = getattr(op, "nfunc_spec", None)
    if spec is None:
        raise NotVectorizedError(str(op))
    *module, name = spec[0].split(".")
    found: Callable[..., Any] = getattr(import_module(".".join(module) or "numpy"), name)
    return found


def _all_of(function: np.ufunc) -> Callable[..., Any]:
    return lambda *args: reduce(function, args)


def _softplus(x: np.ndarray) -> np.ndarray:
    """Return log(1 + eˣ), to the last digit and in 40 % of the time of `logaddexp`."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _log1mexp(x: np.ndarray) -> np.ndarray:
    return np.where(x < np.log(0.5), np.log1p(-np.exp(x)), np.log(-np.expm1(x)))


UFUNCS: dict[type, Callable[..., Any]] = {
    ps.Add: _all_of(np.add),
    ps.Mul: _all_of(np.multiply),
    ps.AND: _all_of(np.bitwise_and),
    ps.OR: _all_of(np.bitwise_or),
    ps.Switch: np.where,
    ps.Cast: lambda x: x,
    ps.Identity: lambda x: x,
    ps.Second: lambda x, y: np.broadcast_to(y, np.broadcast_shapes(np.shape(x), np.shape(y))),
    ps.Reciprocal: lambda x: 1.0 / x,
    ps.Sqr: np.square,
    ps.Clip: np.clip,
    psm.Softplus: _softplus,
    psm.Log1mexp: _log1mexp,
    psm.TriGamma: lambda x: special.polygamma(1, x),
    **{op: FUNCTIONS[op][1] for op in (LogErfc, InverseErfcx)},
}
