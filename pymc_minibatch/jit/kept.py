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

from pymc.model import modelcontext
from pytensor.configdefaults import config
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.link.numba.cache import NUMBA_CACHE_PATH

from pymc_minibatch.jit.cache import PACKAGE, code_key, warn_once

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
    return found


class _UnknownError(Exception):
    """A part of a graph that may change while its name stays, or its value while it is kept."""


class _KeyPickler(pickle.Pickler):
    """Pickles what determines how a graph is rewritten."""

    def __init__(self, file: io.BytesIO, inputs: Sequence[Variable]) -> None:
        super().__init__(file, protocol=5)
        self._inputs = {variable: i for i, variable in enumerate(inputs)}

    def reducer_override(self, obj: Any) -> Any:
        """Leave names out of variables, and refuse what is not known."""
        if isinstance(obj, Variable):
            if obj in self._inputs:
                return _part, (self._inputs[obj], obj.type)
            if isinstance(obj, Constant):
                return _part, (obj.type, obj.data)
            if obj.owner is None:
                raise _UnknownError
            return _part, (obj.owner, obj.index, obj.type)
        if isinstance(obj, Apply):
            return _part, (obj.op, obj.inputs)
        if isinstance(obj, type | FunctionType) and obj.__module__.split(".")[0] not in KNOWN:
            raise _UnknownError
        return NotImplemented


def _part(*parts: Any) -> None:
    """Stand for a variable or an application in a key, which nobody unpickles."""


def _graph_key(rewrite: Callable[..., Any], graph: Graph) -> str | None:
    inputs, outputs = graph
    file = io.BytesIO()
    try:
        _KeyPickler(file, inputs).dump((inputs, outputs))
    except (_UnknownError, pickle.PicklingError, AttributeError, TypeError, RecursionError):
        return None
    digest = sha256(f"{_versions()} {_checks_bounds()} {rewrite.__qualname__}".encode())
    digest.update(file.getbuffer())
    return digest.hexdigest()


@cache
def _versions() -> str:
    known = (version(package) for package in ("pymc", "numpy"))
    return " ".join([code_key(), config.get_config_hash(), *known])


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
