"""Graphs that PyTensor has rewritten, kept on disk beside its machine code.

Rewriting takes more than a second of setting up a model that is known. A graph is kept under all
that determines how it is rewritten: operations, types and constants, but no names, and the versions
and settings of what rewrites it. Operations from elsewhere may change while their names stay, so
graphs with such are rewritten each time, and so are graphs with large constants.
"""

import io
import os
import pickle
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from types import FunctionType
from typing import Any

import numpy as np
from pymc.model import modelcontext
from pytensor.configdefaults import config
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.traversal import io_toposort
from pytensor.link.numba.cache import NUMBA_CACHE_PATH
from pytensor.misc.frozendict import frozendict
from pytensor.scalar.basic import Composite, ScalarOp

from pymc_minibatch.jit.cache import compiler_key, warn_once
from pymc_minibatch.jit.reached import PACKAGE, UnknownError, package_source, reached

__all__ = ["Graph", "kept_rewrite"]

KNOWN = (PACKAGE, "builtins", "collections", "copyreg", "functools", "numpy", "pymc", "pytensor")
"""Packages whose versions are in the key, or which do not change how graphs are rewritten."""

LARGEST = 1_000_000
"""Of a graph on disk, in bytes."""

type Graph = tuple[list[Variable], list[Variable]]
"""Inputs and outputs."""


def kept_rewrite(rewrite: Callable[[Graph], Graph], graph: Graph) -> Graph:
    """Rewrite a graph, or read from disk what came of it before.

    Parameters
    ----------
    rewrite
        A function of this package. Its code determines what it gives for a graph.
    graph
        Inputs and outputs; the inputs may be results of operations, at which the graph ends.

    Returns
    -------
    Graph
        With inputs of its own.
    """
    key = _graph_key(rewrite, graph)
    if key is None or not config.numba__cache:
        return rewrite(graph)
    path = os.path.join(NUMBA_CACHE_PATH, f"{key}.graph")
    found = _read(path)
    if found is None:
        found = rewrite(graph)
        _write(path, found)
        # What shares constants as later runs find it gives the same keys to what is made of it.
        found = _read(path) or found
    return found


class _KeyPickler(pickle.Pickler):
    """Pickles what determines how a graph is rewritten.

    Equal things give equal bytes, whether or not they are one object. A graph that was built here
    shares constants, types and strings otherwise than one that was read from disk.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.fast = True  # no references to what was pickled before

    def reducer_override(self, obj: Any) -> Any:
        """Write operations by their properties, and refuse what is not known."""
        if isinstance(obj, Variable | Apply):
            raise UnknownError  # may have another value later
        if isinstance(obj, type | FunctionType) and obj.__module__.split(".")[0] not in KNOWN:
            raise UnknownError
        if isinstance(obj, Composite):
            return _part, (type(obj), _written(obj.fgraph.inputs, obj.fgraph.outputs))
        if isinstance(obj, HasInnerGraph):
            raise UnknownError
        if isinstance(obj, ScalarOp):
            state = {name: value for name, value in vars(obj).items() if name != "name"}
            source = package_source() if type(obj).__module__.startswith(PACKAGE) else ""
            return _part, (type(obj), source, sorted(state.items()))
        if isinstance(obj, Op) and hasattr(type(obj), "__props__"):
            source = package_source() if type(obj).__module__.startswith(PACKAGE) else ""
            return _part, (type(obj), source, obj._props())  # type: ignore[attr-defined]
        if isinstance(obj, frozendict):  # which keeps its hash
            return _part, tuple(obj.items())
        if isinstance(obj, np.ndarray) and obj.dtype != object:
            return _part, (str(obj.dtype), obj.shape, obj.tobytes())
        return NotImplemented


def _part(*parts: Any) -> None:
    """Stand for an operation in a key, which nobody unpickles."""


def _written(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> bytes:
    """Write a graph down without names, operation by operation."""
    numbers = {variable: i for i, variable in enumerate(inputs)}

    def told(variable: Variable) -> Any:
        if variable in numbers:
            return numbers[variable]
        if not isinstance(variable, Constant):
            raise UnknownError
        return variable.type, variable.data

    nodes = []
    for node in io_toposort(inputs, outputs):
        nodes.append((node.op, [told(v) for v in node.inputs], [v.type for v in node.outputs]))
        for variable in node.outputs:
            numbers.setdefault(variable, len(numbers))
    file = io.BytesIO()
    _KeyPickler(file).dump(([v.type for v in inputs], nodes, [told(v) for v in outputs]))
    return file.getvalue()


def _graph_key(rewrite: Callable[..., Any], graph: Graph) -> str | None:
    try:
        written, code = _written(*graph), reached(rewrite)
    except (UnknownError, pickle.PicklingError, AttributeError, TypeError, RecursionError):
        return None
    digest = sha256(f"{_versions()} {_checks_bounds()} {code}".encode())
    digest.update(written)
    return digest.hexdigest()


@cache
def _versions() -> str:
    known = (version(package) for package in ("pymc", "numpy"))
    return " ".join([compiler_key(), config.get_config_hash(), *known])


def _checks_bounds() -> bool:
    """Whether PyMC turns parameters out of range into -inf, which a model may switch off."""
    try:
        return bool(modelcontext(None).check_bounds)
    except TypeError:  # outside of a model
        return True


def _read(path: str) -> Graph | None:
    try:
        with open(path, "rb") as file:
            graph: Graph = pickle.load(file)
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever a file that was cut short makes of itself
        warn_once("read", path, error)
        return None
    return graph


def _write(path: str, graph: Graph) -> None:
    """Put a file in place whole, as other processes may read it meanwhile."""
    for node in io_toposort(*graph):
        node.tag.__dict__.pop("gufunc", None)  # a loop that is made anew and cannot be pickled
    try:
        content = pickle.dumps(graph)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError):
        return
    if len(content) > LARGEST:
        return
    try:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as folder:
            whole = os.path.join(folder, "graph")
            with open(whole, "wb") as file:
                file.write(content)
            os.replace(whole, path)
    except OSError as error:
        warn_once("written", path, error)
