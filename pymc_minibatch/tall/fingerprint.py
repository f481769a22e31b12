"""What a model is made of, as numbers that are the same for the same graph, in any process.

A graph has the same number if it has the same operations on the same constants, shared values and
variables. Rows do not count: they have a checksum of their own. Two graphs with other numbers may
still compute the same, so a difference says where to look, and values decide.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from pymc.util import get_var_name
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.type import TensorType

from pymc_minibatch.tall.slicing import data_leaves, leaf_value

if TYPE_CHECKING:
    from pymc_minibatch.tall.model import TallModel

__all__ = ["Fingerprint", "SharedValues"]

ADDRESS = " at 0x"
"""In the description of an object that is another one in each process."""


@dataclass(frozen=True)
class Fingerprint:
    """What a model is made of, apart from its rows.

    Attributes
    ----------
    rows
        Number of the graph of the log-likelihoods.
    constants
        Of the data with a name that it reads and that are no rows, the checksums of their values.
    prior
        Number of the graph of the prior part, with all constants.
    priors
        Of each variable and potential in it, the number of its distribution.
    """

    rows: str
    constants: Mapping[str, int]
    prior: str
    priors: Mapping[str, str]

    @classmethod
    def of(cls, tall: "TallModel") -> "Fingerprint":
        """Take the fingerprint of a model that was split."""
        model = tall.model
        row_leaves = {given.leaf: name for name, given in tall.row_inputs.items()}
        values = {value: get_var_name(value) for value in model.value_vars}
        term, prior = tall.graphs_of_parts
        known = {**row_leaves, **values}
        lengths = set(model.dim_lengths.values())
        named = {
            str(leaf.name): _sum_of(leaf_value(leaf))
            for leaf in data_leaves([term])
            if isinstance(leaf, SharedVariable)
            and leaf.name
            and leaf not in row_leaves
            and leaf not in lengths
        }
        [of_rows] = _numbers([term], known)
        [of_prior] = _numbers([prior], {tall.flat: "point"})
        others = [v for v in model.basic_RVs if v.name not in tall.row_names]
        variables = [*others, *(p for p in model.potentials if p.name not in tall.row_potentials)]
        free = {rv: str(rv.name) for rv in model.free_RVs}
        of_each = {
            name: _numbers([model[name]], {v: n for v, n in free.items() if n != name})[0]
            for name in (str(variable.name) for variable in variables)
        }
        return cls(of_rows, named, of_prior, of_each)

    def differences(self, other: "Fingerprint") -> tuple[list[str], list[str]]:
        """Say in words what differs, in the likelihood and in the prior part."""
        rows: list[str] = []
        if self.rows != other.rows or self.constants != other.constants:
            rows = [f"the constant {name}" for name in _differ(self.constants, other.constants)]
            rows = rows or ["the likelihood"]
        prior: list[str] = []
        if self.prior != other.prior:
            prior = [f"the prior of {name}" for name in _differ(self.priors, other.priors)]
            prior = prior or ["the prior"]
        return rows, prior

    def to_json(self) -> str:
        """Write it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Fingerprint":
        """Read what :meth:`to_json` wrote."""
        return cls(**json.loads(text))


class SharedValues:
    """The values of a model's shared variables, to notice when they are set anew.

    Parameters
    ----------
    tall
        The model. Of one whose rows are bound by data, the stand-ins for rows are left out.
    """

    def __init__(self, tall: "TallModel") -> None:
        model = tall.model
        outputs = [*model.basic_RVs, *model.potentials, *model.rvs_to_values.values()]
        stand_ins = {given.leaf for given in tall.row_inputs.values()} if tall.is_bound else set()
        lengths = set(model.dim_lengths.values())  # which are set with the data
        self._values: list[tuple[Any, Any]] = [
            (leaf, leaf.get_value(borrow=True))
            for leaf in data_leaves(outputs)
            if isinstance(leaf, SharedVariable) and leaf not in stand_ins and leaf not in lengths
        ]

    def changed(self) -> list[str]:
        """Name those that have other values now; only what was set is compared."""
        names = []
        for leaf, value in self._values:
            now = leaf.get_value(borrow=True)
            if now is not value and not _equal(now, value):
                names.append(str(leaf.name or "a shared variable"))
        return names


def _equal(one: Any, other: Any) -> bool:
    return np.shape(one) == np.shape(other) and np.array_equal(one, other)


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _sum_of(values: np.ndarray) -> int:
    """Take the checksum of values and shape, the same for equal numbers of other types."""
    wide = values.astype(np.float64) if values.dtype.kind in "fiub" else values
    return crc32(repr(values.shape).encode(), crc32(np.ascontiguousarray(wide)))


def _digest(*parts: str) -> str:
    return blake2b("\x1f".join(parts).encode(), digest_size=12).hexdigest()


def _numbers(outputs: Sequence[Variable], known: Mapping[Variable, str]) -> list[str]:
    """Return the numbers of graphs, whose leaves are known variables and constants."""
    found: dict[Variable, str] = {v: _digest("variable", name) for v, name in known.items()}

    def number(variable: Variable) -> str:
        if variable not in found:
            found[variable] = _of_leaf(variable)
        return found[variable]

    stops = [variable for variable in known if variable not in outputs]
    for node in io_toposort(stops, outputs):
        made_of = [_described(node.op), *map(number, node.inputs)]
        for i, output in enumerate(node.outputs):
            found.setdefault(output, _digest(*made_of, str(i)))
    return [number(output) for output in outputs]


def _of_leaf(leaf: Variable) -> str:
    if not isinstance(leaf.type, TensorType):
        return _digest(type(leaf.type).__name__)
    if isinstance(leaf, Constant | SharedVariable):
        return _digest("value", str(_sum_of(leaf_value(leaf))))
    return _digest("input", str(leaf.name))


def _described(thing: Any) -> str:
    """Describe an operation, or what it is made with, as in any other process."""
    if isinstance(thing, Op):
        name = f"{type(thing).__module__}.{type(thing).__qualname__}"
        names = getattr(thing, "__props__", None) or ()
        props = [_described(getattr(thing, prop, None)) for prop in names]
        graph = getattr(thing, "fgraph", None)
        inner: Iterable[str] = ()
        if graph is not None:
            inputs = {variable: f"input {i}" for i, variable in enumerate(graph.inputs)}
            inner = _numbers(graph.outputs, inputs)
        return f"{name}({', '.join([*props, *inner])})"
    if isinstance(thing, tuple | list):
        return f"({', '.join(map(_described, thing))})"
    text = repr(thing)
    return type(thing).__qualname__ if ADDRESS in text else text
