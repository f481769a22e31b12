"""Functions that only machine code calls are linked into their callers, and not loaded.

Numba optimises each function that it compiles together with all that it calls, generates machine
code and loads it, in case Python should call it. Most of ours, and of what PyTensor generates, are
called by other jitted functions only. Each level of calls then optimises and generates anew what
the levels below have been through, which takes a third of the time to compile a model. Here such a
function stays as it was written, and the function that Python calls is optimised once, as a whole.

Nor does such a function need the wrappers by which Python and C would call it, which unpack each
argument and pack each result: :func:`jit_part` leaves them out.

This changes how Numba works inside of :func:`linking` only, where it compiles for us. It rests on
Numba's own classes, so it is off for versions that it does not know
(:mod:`pymc_minibatch.jit.patches`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import CO_VARARGS
from typing import Any, Self
from unittest.mock import patch

import llvmlite.binding as llvm
import numba.core.boxing  # noqa: F401 - registers what is replaced here
from numba import njit, types
from numba.core import cpu
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment
from numba.core.pythonapi import _boxers

from pymc_minibatch.jit import cache
from pymc_minibatch.jit.entry import pack_array
from pymc_minibatch.jit.patches import PATCHED

__all__ = ["compiled_by_linking", "compiled_once", "jit_part", "linking"]

ENVIRONMENT = "_ZN08NumbaEnv"
"""How the names of globals begin in which a function finds its Python objects."""

_get_executable: Callable[..., Any] = cpu.CPUContext.get_executable
_set_environment: Callable[..., Any] = JITCPUCodegen.set_env


class LinkedLibrary(JITCodeLibrary):
    """The code of a function; if it is only linked, as it was written.

    Attributes
    ----------
    only_linked : bool
        Whether nobody has asked for its address.
    """

    only_linked = False

    def add_linking_library(self, library: Any) -> None:
        """Note that this code calls that of another library."""
        if isinstance(library, LinkedLibrary) and not library._finalized:
            library.only_linked = True
        super().add_linking_library(library)

    def get_pointer_to_function(self, name: str) -> int:
        """Return an address, for which the code has to be loaded."""
        self._ensure_finalized()
        if self.only_linked:
            self.only_linked = False
            self._optimize_final_module()
            self._finalize_final_module()
        address: int = super().get_pointer_to_function(name)
        return address

    def serialize_using_object_code(self) -> tuple[Any, ...]:
        """Return what is kept on disk."""
        self._ensure_finalized()
        if self.only_linked:
            kept: tuple[Any, ...] = self.serialize_using_bitcode()
        else:
            kept = super().serialize_using_object_code()
        return kept

    @classmethod
    def _unserialize(cls, codegen: Any, state: tuple[Any, ...]) -> Self:
        name, kind, data = state
        if kind != "bitcode":
            loaded: Self = super()._unserialize(codegen, state)
            return loaded
        self: Self = codegen.create_library(name)
        self._final_module = llvm.parse_bitcode(data)
        self.only_linked = True
        self._finalize_final_module()
        return self

    def _optimize_final_module(self) -> None:
        if not self.only_linked:
            super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        if self.only_linked:
            self._finalize_dynamic_globals()
            self._finalized = True
            return
        super()._finalize_final_module()
        for variable in self._final_module.global_variables:
            if variable.name.startswith(ENVIRONMENT):
                environment = lookup_environment(variable.name)
                if environment is not None:
                    self._codegen.set_env(variable.name, environment)  # type: ignore[attr-defined]


def _executable(context: Any, library: Any, description: Any, environment: Any) -> Any:
    """Load a function unless Python cannot call it."""
    if isinstance(library, LinkedLibrary) and not library._finalized:
        library.only_linked = not _has_wrapper(library, description)
    if not getattr(library, "only_linked", False):
        return _get_executable(context, library, description, environment)
    module, name = description.lookup_module(), description.qualname.split(".")[-1]
    made: Any = cpu._dynfunc.make_function(  # type: ignore[attr-defined]
        module, name, "linked only", 0, environment, (library,)
    )
    return made


def _has_wrapper(library: Any, description: Any) -> bool:
    """Whether a function that was just compiled has a wrapper by which Python calls it."""
    try:
        library.get_function(description.llvm_cpython_wrapper_name)
    except NameError:
        return False
    return True


def _set_environment_of_loaded(codegen: Any, name: str, environment: Any) -> None:
    """Set where a function finds its Python objects, once it is loaded."""
    if codegen._engine.is_symbol_defined(name):
        _set_environment(codegen, name, environment)


def _no_wrapper(*_: Any) -> None:
    """Make nothing by which C could call a function: what we call by address is the function."""


@contextmanager
def linking() -> Iterator[None]:
    """Compile with Numba in this way, and pack arrays without Python; other threads wait."""
    if not PATCHED:
        with global_compiler_lock:
            yield
        return
    with (
        global_compiler_lock,
        patch.object(JITCPUCodegen, "_library_class", LinkedLibrary),
        patch.object(JITCPUCodegen, "set_env", _set_environment_of_loaded),
        patch.object(cpu.CPUContext, "get_executable", _executable),
        patch.object(cpu.CPUContext, "create_cfunc_wrapper", _no_wrapper),
        patch.dict(_boxers.functions, {types.Array: pack_array}),
        patch.object(cache, "manner", "linked, packed by C"),
    ):
        yield


def compiled_by_linking[F: Callable[..., Any]](dispatcher: F) -> F:
    """Have a jitted function compiled in this way when it is called with new types."""
    compile_as_usual = dispatcher.compile  # type: ignore[attr-defined]

    def compile_linking(signature: Any) -> Any:
        with linking():
            return compile_as_usual(signature)

    dispatcher.compile = compile_linking  # type: ignore[attr-defined]
    return dispatcher


def compiled_once[F: Callable[..., Any]](dispatcher: F) -> F:
    """Have a function of ``*args`` compiled once for Python and jitted code alike.

    To Numba, the arguments are a tuple of one type where Python calls, of another where jitted code
    does, and would be compiled for both.
    """
    if not PATCHED:
        return dispatcher
    overloads: dict[Any, Any] = dispatcher.overloads  # type: ignore[attr-defined]
    compile_as_usual = dispatcher.compile  # type: ignore[attr-defined]
    has_star = bool(dispatcher.py_func.__code__.co_flags & CO_VARARGS)  # type: ignore[attr-defined]

    def compile_for_both(signature: Any) -> Any:
        if not has_star:  # its arguments have names: some of its operations call Python
            return compile_as_usual(signature)
        [arguments] = signature
        starred = (types.StarArgTuple(tuple(arguments.types)),)
        compile_as_usual(starred)
        compiled = overloads[starred]
        if signature not in overloads:
            renamed = compiled._replace(signature=compiled.signature.replace(args=signature))
            dispatcher.add_overload(renamed)  # type: ignore[attr-defined]
        return compiled.entry_point

    dispatcher.compile = compile_for_both  # type: ignore[attr-defined]
    return dispatcher


def jit_part[F: Callable[..., Any]](function: F) -> F:
    """Jit a part of a kernel, which other jitted functions call.

    Python may call it as well, for which it is jitted once more. Numba compiles what a part calls
    once for all callers with equal options: they are those of ``register_jitable``.
    """
    whole: F = njit(function)
    if not PATCHED:
        return whole
    part: Any = njit(function, no_cpython_wrapper=True)  # type: ignore[call-overload]
    part.add_overload = lambda made: part.overloads.update({tuple(made.signature.args): made})
    part._compile_for_args = lambda *args, **options: whole
    found: F = part
    return found
