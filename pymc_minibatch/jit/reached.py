"""What machine code is made of: the code that a function reaches, and the values in it.

A kernel on disk is stale once any of the code in it has changed, and it should stay if another part
of the package has. So its key is made of what Numba compiles, and of that only: the bytecode of the
function and of all functions that it calls by name or holds in its closure, the options with which
each is compiled, the constants and the fields of named tuples. Bytecode has no comments and no
lines; docstrings are left out. What is read from elsewhere goes in by its name, with the version of
the package that it is from.

If something is reached whose content cannot be told, nothing is kept: :class:`UnknownError`.
"""

import ast
import dis
import sys
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core.dispatcher import Dispatcher
from numba.core.types import Type
from numba.core.typing.templates import builtin_registry
from numba.extending import intrinsic
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.numba.cache import CACHED_SRC_FUNCTIONS

__all__ = ["PACKAGE", "UnknownError", "package_source", "reached", "reached_number", "source_of"]

PACKAGE = "pymc_minibatch"

BY_VERSION = frozenset({"llvmlite", "numba", "numpy", "pymc", "pytensor", "scipy"})
"""Packages whose code does not change while their version stays."""

HAS_DOCSTRING = 0x4000000
"""The flag of code objects that tells of a docstring, from Python 3.13 on."""

PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes, np.dtype)
"""Types of values that are told by how they are written."""

Intrinsic: type = type(intrinsic(lambda context: None))


class UnknownError(Exception):
    """Something is reached whose content cannot be told."""


def reached(*values: Any) -> str:
    """Hash everything that functions reach.

    Raises
    ------
    UnknownError
        If that includes what cannot be told.
    """
    walk = Walk()
    for value in values:
        walk.add(value)
    return sha256("\n".join(walk.written).encode()).hexdigest()


def reached_number(*values: Any) -> int:
    """Return the same as a number: PyTensor wants one for the code of an operation."""
    return int(reached(*values)[:16], 16)


class Walk:
    """Writes down what is reached, each function once."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.seen: dict[int, int] = {}
        self.alive: list[Any] = []  # so that no number in `seen` is given twice

    def add(self, value: Any, names: Iterable[str] = ()) -> None:
        """Write a value; of a module, only its attributes with these names."""
        if isinstance(value, PLAIN):
            self.written.append(f"{type(value).__name__} {value!r}")
        elif isinstance(value, np.generic | np.ndarray):
            self._add_array(np.asarray(value))
        elif isinstance(value, tuple | list | dict | AbstractSet):
            self._add_container(value)
        elif id(value) in self.seen:
            self.written.append(f"known {self.seen[id(value)]}")
        else:
            self.seen[id(value)] = len(self.seen)
            self.alive.append(value)
            self._add_object(value, names)

    def _add_array(self, values: np.ndarray) -> None:
        if values.dtype.hasobject:
            raise UnknownError(f"an array of {values.dtype}")
        content = sha256(values.tobytes()).hexdigest()
        self.written.append(f"array {values.dtype} {values.shape} {content}")

    def _add_container(self, values: Any) -> None:
        self.written.append(f"{type(values).__qualname__} {len(values)}")
        entries: Iterable[Any] = values.items() if isinstance(values, dict) else values
        if isinstance(values, set | frozenset):
            entries = sorted(values, key=repr)
        for entry in entries:
            self.add(entry)

    def _add_object(self, value: Any, names: Iterable[str]) -> None:
        write = next((write for kinds, write in WRITERS if isinstance(value, kinds)), None)
        if write is None:
            raise UnknownError(repr(value))
        if write is Walk._add_module:
            self._add_module(value, names)
        else:
            write(self, value)

    def _add_function(self, function: FunctionType) -> None:
        if _is_by_name(function):
            self._add_name(function)
            return
        of_graph = CACHED_SRC_FUNCTIONS.get(function)
        if of_graph is not None and not _is_ours(function):
            self.written.append(f"graph {of_graph}")
            return
        code = told(function.__code__)
        self.written.append(f"function {function.__module__}.{function.__qualname__} {code.text}")
        self.add((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            self.add(_content(cell))
        builtins = function.__globals__.get("__builtins__", {})
        for name in code.reads:
            self.written.append(f"global {name}")
            if name in function.__globals__:
                self.add(function.__globals__[name], code.names)
            elif name not in getattr(builtins, "__dict__", builtins):
                raise UnknownError(f"the name {name}")
        for options, implementation in _overloads(function):
            self.written.append("overload")
            self.add(options)
            self.add(implementation)

    def _add_dispatcher(self, dispatcher: Any) -> None:
        self.written.append("jitted")
        self.add(sorted(dispatcher.targetoptions.items(), key=repr))
        self.add(sorted(dispatcher.locals.items(), key=repr))
        self.add(dispatcher.py_func)

    def _add_intrinsic(self, value: Any) -> None:
        self.written.append("intrinsic")
        self.add(value._defn)

    def _add_class(self, value: type) -> None:
        if _is_by_name(value):
            self._add_name(value)
        elif issubclass(value, tuple) and hasattr(value, "_fields"):
            self.written.append(f"named tuple {value.__module__}.{value.__qualname__}")
            self.add((value._fields, value._field_defaults))  # type: ignore[attr-defined]
        else:
            raise UnknownError(repr(value))

    def _add_module(self, value: ModuleType, names: Iterable[str]) -> None:
        if _root(value.__name__) is not None:
            self.written.append(f"module {value.__name__} {_root(value.__name__)}")
            return
        found = [name for name in names if hasattr(value, name)]
        if not found:
            raise UnknownError(f"the module {value.__name__}")
        for name in found:
            self.written.append(f"attribute {name}")
            self.add(getattr(value, name), names)

    def _add_type(self, value: Type) -> None:
        text = f"{type(value).__qualname__} {value!r}"
        if " at 0x" in text:
            raise UnknownError(text)
        self.written.append(text)

    def _add_partial(self, value: partial) -> None:
        self.written.append("partial")
        self.add((value.func, value.args, value.keywords))

    def _add_query(self, value: RewriteDatabaseQuery) -> None:
        self.written.append("query")
        self.add(vars(value))

    def _add_name(self, value: Any) -> None:
        """Write what is from elsewhere, and public there, by its name."""
        module = getattr(value, "__module__", None) or "builtins"
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", repr(value))
        known = _root(module)
        if known is None:
            raise UnknownError(f"{module}.{name}")
        self.written.append(f"{known} {module}.{name}")


WRITERS: list[tuple[Any, Callable[..., None]]] = [
    (FunctionType, Walk._add_function),
    (Dispatcher, Walk._add_dispatcher),
    (Intrinsic, Walk._add_intrinsic),
    (type, Walk._add_class),
    (ModuleType, Walk._add_module),
    (Type, Walk._add_type),
    (partial, Walk._add_partial),
    (RewriteDatabaseQuery, Walk._add_query),
    ((BuiltinFunctionType, np.ufunc, type(np.sum)), Walk._add_name),
]
"""What writes objects of these types; the first that fits."""


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        raise UnknownError("an empty cell of a closure") from None


@cache
def _root(module: str) -> str | None:
    """Return the package of a module with its version, None if that does not tell its content."""
    root = module.split(".")[0]
    if root in sys.stdlib_module_names or root == "builtins":
        return "python"
    if root not in BY_VERSION:
        return None
    try:
        return f"{root} {version(root)}"
    except PackageNotFoundError:
        return None


def _is_ours(value: Any) -> bool:
    return str(value.__module__).split(".")[0] == PACKAGE


def _is_by_name(value: Any) -> bool:
    """Whether something is what its name says, in a package that we know by its version."""
    if not value.__module__ or _root(value.__module__) is None:
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return getattr(found, "py_func", found) is value or found is value


class _Told:
    """What is told of a code object.

    Attributes
    ----------
    text : str
        All that it does.
    reads : list of str
        Its globals, with those of the functions inside.
    names : list of str
        Also attributes.
    """

    def __init__(self, code: CodeType) -> None:
        self.reads: list[str] = []
        self.names = list(code.co_names)
        parts: list[object] = [
            code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount,
            code.co_flags & ~HAS_DOCSTRING, code.co_names, code.co_varnames,
            code.co_freevars, code.co_cellvars, code.co_exceptiontable,
        ]  # fmt: skip
        for step in dis.get_instructions(code):
            if step.opcode in dis.hasconst:
                parts.append((step.opname, self._constant(step.argval)))
            else:
                parts.append((step.opname, step.arg))
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                self.reads.append(step.argval)
        self.reads, self.names = list(dict.fromkeys(self.reads)), list(dict.fromkeys(self.names))
        self.text = repr(parts)

    def _constant(self, value: Any) -> str:
        if isinstance(value, CodeType):
            inner = told(value)
            self.reads += inner.reads
            self.names += inner.names
            return f"{value.co_name} {inner.text}"
        if isinstance(value, frozenset):
            return f"frozenset {sorted(map(repr, value))}"
        return repr(value)


@cache
def told(code: CodeType) -> _Told:
    return _Told(code)


_found_overloads: dict[int, list[tuple[dict[str, Any], Callable[..., Any]]]] = {}
_n_looked_at = 0


def _overloads(function: Any) -> list[tuple[dict[str, Any], Callable[..., Any]]]:
    """Return with what Numba replaces a function, and how it compiles that.

    Numba keeps a list, which only grows.
    """
    global _n_looked_at
    registered = builtin_registry.globals
    for value, kind in registered[_n_looked_at:]:
        for template in getattr(kind, "templates", ()):
            if hasattr(template, "_overload_func"):
                options = {**template._jit_options, "inline": vars(template._inline)}
                found = options, template._overload_func
                _found_overloads.setdefault(id(value), []).append(found)
    _n_looked_at = len(registered)
    return _found_overloads.get(id(function), [])


# --- Source, where what is reached cannot be told -----------------------------------------------


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return tree


def _is_text(node: Any) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@cache
def source_of(path: str) -> str:
    """Hash a file of this package without its comments and docstrings."""
    tree = ast.parse(files(PACKAGE).joinpath(path).read_bytes())
    return sha256(ast.dump(_without_docstrings(tree)).encode()).hexdigest()


@cache
def package_source() -> str:
    """Hash all files of this package, as they are: to parse them takes seconds."""
    found = sha256()
    for path in _paths(files(PACKAGE), ""):
        found.update(path.encode() + files(PACKAGE).joinpath(path).read_bytes())
    return found.hexdigest()


def _paths(folder: Any, before: str) -> Iterator[str]:
    for each in sorted(folder.iterdir(), key=lambda path: path.name):
        if each.name.endswith(".py"):
            yield before + each.name
        elif each.is_dir() and each.name != "__pycache__":
            yield from _paths(each, f"{before}{each.name}/")
