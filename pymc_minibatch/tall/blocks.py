"""The blocks of φ: data-free quantities that rows read, with readable names."""

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pymc.util import get_var_name
from pytensor.graph.basic import Variable, equal_computations
from pytensor.graph.traversal import ancestors

from pymc_minibatch.jit.compiled import compile_all, compile_python
from pymc_minibatch.tall.affine import Affine, Summand
from pymc_minibatch.tall.cut import NoStructureError, RowGraph

if TYPE_CHECKING:
    from pymc_minibatch.tall.model import TallModel

__all__ = ["Blocks"]


class Blocks:
    """Collects the blocks of φ."""

    def __init__(self, graph: RowGraph) -> None:
        self.graph = graph
        self.slices: dict[Any, slice] = {}
        self.graphs: list[Any] = []

    def add(self, graph: Any, key: Any) -> slice:
        """Append a vector, unless it is there."""
        for known, graph_of in zip(self.slices, self.graphs, strict=True):
            if key not in self.slices and equal_computations([graph], [graph_of]):
                return self.slices[known]
        if key not in self.slices:
            start = max((s.stop for s in self.slices.values()), default=0)
            size = compile_python([self.graph.flat], [graph])(self.graph.start).size
            self.slices[key] = slice(start, start + size)
            self.graphs.append(graph)
        return self.slices[key]

    def of(
        self, summand: Summand, affine: Affine, entry: tuple[int, ...]
    ) -> tuple[slice, int, int]:
        """Find the block of a base, laid out as (groups, entries, summed over)."""
        base = summand.base
        rows, last = affine.rows, base.type.ndim - 1
        others = [axis for axis in range(last) if axis != rows]
        lengths = [int(base.type.shape[axis]) for axis in others]
        size = int(base.type.shape[last])
        weight = summand.weight
        if summand.weight is not None and size == 1 and weight.type.shape[last] not in (1, None):
            raise NoStructureError("a sum over data does not match its coefficients")
        groups = [] if rows is None else [rows]
        block = self.add(base.dimshuffle(*groups, *others, last).ravel(), base)
        at = [min(e, n - 1) for e, n in zip(entry, lengths, strict=True)]
        position = int(np.ravel_multi_index(at, lengths)) if lengths else 0
        return block, size, position

    def vectors(self) -> list[Variable]:
        """Build the blocks of φ by themselves."""
        return [pt.cast(graph, "float64") for graph in self.graphs]

    def joined(self) -> Variable:
        """Build φ."""
        vectors = self.vectors()
        return pt.concatenate(vectors) if len(vectors) > 1 else vectors[0]

    def named(self) -> dict[str, slice]:
        """Name the blocks after variables of the model that have their values."""
        graph = self.graph
        point = graph.start + np.random.default_rng(1).normal(0, 0.1, graph.start.size)
        known = dict(zip(*_named_graphs(graph.tall), strict=True))
        values = compile_all([graph.flat], [*self.graphs, *known.values()])(point)
        own, others = values[: len(self.graphs)], values[len(self.graphs) :]
        named: dict[str, slice] = {}
        for graph, value, where in zip(self.graphs, own, self.slices.values(), strict=True):
            found = (_name_in(n, v, value) for n, v in zip(known, others, strict=True))
            base = next((n for n in found if n is not None), None) or self._read_by(graph)
            numbered = (base if i == 1 else f"{base} ({i})" for i in itertools.count(1))
            named[next(name for name in numbered if name not in named)] = where
        return named

    def _read_by(self, graph: Variable) -> str:
        """List the variables that a block is a function of."""
        tall = self.graph.tall
        above = set(ancestors([graph]))
        read = [
            str(tall.model.values_to_rvs[value].name)
            for value, name in zip(tall.model.value_vars, tall.layout.names, strict=True)
            if any(
                v in above and at.size and at.flat[0] == tall.layout.slices[name].start
                for v, at in self.graph.values.items()
            )
        ]
        return f"f({', '.join(read)})"


def _named_graphs(tall: "TallModel") -> tuple[list[str], list[Variable]]:
    """List variables of the model that read no rows, and value variables."""
    rows = {row_input.leaf for row_input in tall.row_inputs.values()}
    variables = [
        variable
        for variable in (*tall.model.free_RVs, *tall.model.deterministics)
        if not rows.intersection(ancestors(tall.model.replace_rvs_by_values([variable])))
    ]
    names = [get_var_name(variable) for variable in variables]
    graphs = [tall.value_graph(variable) for variable in variables]
    flat: Any = tall.flat
    values = [name for name in tall.layout.names if name not in names]
    return names + values, graphs + [flat[tall.layout.slices[name]] for name in values]


def _name_in(name: str, whole: np.ndarray, part: np.ndarray) -> str | None:
    """Name a block that is a variable, or a slice of one; None if it is neither."""
    if whole.size == part.size and np.array_equal(np.sort(whole.ravel()), np.sort(part)):
        return name
    for axis in range(whole.ndim):
        for position in (
            range(whole.shape[axis]) if part.size * whole.shape[axis] == whole.size else ()
        ):
            if np.array_equal(np.take(whole, position, axis).ravel(), part):
                where = [":"] * whole.ndim
                where[axis] = str(position)
                return f"{name}[{', '.join(where)}]"
    return None
