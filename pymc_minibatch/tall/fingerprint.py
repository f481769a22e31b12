"""What a model is made of, as numbers that are the same for the same graph, in any process.

A graph has the same number if it has the same operations on the same constants, shared values and
variables. Rows do not count: they have a checksum of their own. Two graphs with other numbers may
still compute the same, so a difference says where to look, and values decide.

A run notes all of it, in the attributes of its result if they can be set. What ``pm.sample``
returns has only what a step records with each draw, which is one number for the model: it says
which part differs, and in the process of the run also what in it does.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple
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

__all__ = ["Changes", "Fingerprint", "MadeOf", "SharedValues", "check_lengths"]

ADDRESS = " at 0x"
"""In the description of an object that is another one in each process."""


BITS = 21
"""Of each of the three parts of the number of a model, which is an int64 and positive."""

MOST_KNOWN = 256
"""Runs of this process of which all is known."""


class Changes(NamedTuple):
    """What differs between two models, in words.

    Attributes
    ----------
    likelihood, prior : list of str
        In the likelihood, such as ``"the constant table"``, and in the prior part.
    """

    likelihood: list[str]
    prior: list[str]

    def __str__(self) -> str:
        names = [*self.likelihood, *self.prior]
        return f"{' and '.join(names)} {'have' if len(names) > 1 else 'has'} changed"


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

    @property
    def number(self) -> int:
        """All of it as a positive int64, of which parts are compared by :meth:`unlike`."""
        return sum(_bits(part) << (BITS * i) for i, part in enumerate(self._parts))

    @property
    def _parts(self) -> tuple[str, str, str]:
        return self.rows, json.dumps(dict(self.constants), sort_keys=True), self.prior

    def unlike(self, number: int) -> Changes:
        """Say in words what differs from a model of which only the number is known."""
        rows, constants, prior = (
            _bits(part) != (number >> (BITS * i)) % (1 << BITS)
            for i, part in enumerate(self._parts)
        )
        names = list(self.constants)
        a_constant = f"the constant {names[0]}" if len(names) == 1 else "a constant"
        likelihood = [a_constant] if constants else ["the likelihood"] if rows else []
        return Changes(likelihood, ["the prior"] if prior else [])

    def differences(self, other: "Fingerprint") -> Changes:
        """Say in words what differs, in the likelihood and in the prior part."""
        rows: list[str] = []
        if self.rows != other.rows or self.constants != other.constants:
            rows = [f"the constant {name}" for name in _differ(self.constants, other.constants)]
            rows = rows or ["the likelihood"]
        prior: list[str] = []
        if self.prior != other.prior:
            prior = [f"the prior of {name}" for name in _differ(self.priors, other.priors)]
            prior = prior or ["the prior"]
        return Changes(rows, prior)

    def to_json(self) -> str:
        """Write it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Fingerprint":
        """Read what :meth:`to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class MadeOf:
    """What a run was made of.

    Attributes
    ----------
    n_rows, rows_checksum
        Of the rows; the checksum is 0 if it is not known.
    model
        The rest of the model.
    sources
        Of the rows that lie in files, by name: path, bytes and time of the last change.
    versions
        Those of the packages that make graphs; with others, the same model has other graphs.
    """

    n_rows: int
    rows_checksum: int
    model: Fingerprint
    sources: Mapping[str, str]
    versions: str

    @classmethod
    def of(cls, tall: "TallModel") -> "MadeOf":
        """Note what a run of a model is made of, for this process too."""
        rows_checksum = tall.rows_checksum
        made_of = cls(tall.n_rows, rows_checksum, tall.fingerprint, tall.sources, _versions())
        key = made_of.model.number, rows_checksum
        _known.pop(key, None)
        _known[key] = made_of
        while len(_known) > MOST_KNOWN:
            del _known[next(iter(_known))]
        return made_of

    @staticmethod
    def known(number: int, rows_checksum: int) -> "MadeOf | None":
        """Return what a run of this process was made of, by what its draws have recorded."""
        return _known.get((number, rows_checksum))

    def changes(self, tall: "TallModel") -> Changes:
        """Say what a model has otherwise, apart from the rows.

        With another number of rows, or other versions, graphs differ for no reason of their own:
        then only what has a name is compared.
        """
        found = self.model.differences(tall.fingerprint)
        if self.n_rows == tall.n_rows and self.versions == _versions():
            return found
        constants = _differ(self.model.constants, tall.fingerprint.constants)
        named = [f"the constant {name}" for name in constants]
        return Changes(named, found.prior if self.versions == _versions() else [])

    def unlike(self, other: "MadeOf") -> list[str]:
        """Say in what another run was made of something else."""
        one, two = self.rows_checksum, other.rows_checksum
        are_others = self.n_rows != other.n_rows
        are_others |= bool(one and two) and one >> 32 == two >> 32 and one != two
        rows = ["the rows"] if are_others else []
        if self.versions != other.versions:
            return rows
        changes = self.model.differences(other.model)
        return [*rows, *changes.likelihood, *changes.prior]

    def other_sources(self, tall: "TallModel") -> str:
        """Say which files were written since; empty if none is known to have been."""
        names = [n for n in self.sources if tall.sources.get(n) not in (None, self.sources[n])]
        parts = [f"{name} was {self.sources[name]} and is {tall.sources[name]}" for name in names]
        return "; ".join(parts)

    def to_json(self) -> str:
        """Write it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "MadeOf":
        """Read what :meth:`to_json` wrote."""
        parts = json.loads(text)
        return cls(**parts | {"model": Fingerprint(**parts["model"])})


_known: dict[tuple[int, int], MadeOf] = {}
"""Of the runs of this process."""


def _versions() -> str:
    return f"pymc {version('pymc')}, pytensor {version('pytensor')}"


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


def check_lengths(tall: "TallModel") -> None:
    """Refuse a split whose model has other numbers of rows by now.

    Raises
    ------
    ValueError
        Naming the data that were set.
    """
    for name, given in {} if tall.is_bound else tall.row_inputs.items():
        if isinstance(given.leaf, SharedVariable):
            values = given.leaf.get_value(borrow=True)
            now = values.shape[given.axis] if given.axis < values.ndim else 0
            if now != len(given.values):
                raise ValueError(
                    f"{name} was set to values of shape {values.shape} since the model was split "
                    f"with {len(given.values):,} rows. Set it again, or leave out data= to take "
                    "the data as they are."
                )


def _equal(one: Any, other: Any) -> bool:
    return np.shape(one) == np.shape(other) and np.array_equal(one, other)


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _sum_of(values: np.ndarray) -> int:
    """Take the checksum of values and shape, the same for equal numbers of other types."""
    wide = values.astype(np.float64) if values.dtype.kind in "fiub" else values
    return crc32(repr(values.shape).encode(), crc32(np.ascontiguousarray(wide)))


def _bits(part: str) -> int:
    return int(_digest(part), 16) % (1 << BITS)


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
