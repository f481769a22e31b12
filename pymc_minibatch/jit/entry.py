"""How Python enters machine code: without running Python on the way.

The handler of a signal runs between two operations of the interpreter, in the main thread, and may
raise an exception: Ctrl-C does. Numba runs Python code to unpack some arguments, a
``numpy.random.Generator`` for one, and to pack some results. An exception that arrives there is not
looked for, and the process dies. So kernels get generators by the address of what draws, and all
else that they get and return is unpacked and packed by C: arrays, numbers, and tuples of them.

Graphs that PyMC compiles, one that a trace records with for each draw, are packed by Python all the
same. An exception that arrives while an array is packed comes out as the cause of a SystemError,
which PyMC does not take for an interrupt. It is raised in place of that error.
"""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import current_thread, main_thread
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.dispatcher import Dispatcher
from numba.core.registry import CPUDispatcher
from numba.core.typing.typeof import typeof
from numba.extending import intrinsic, overload
from numba.np.numpy_support import as_dtype
from pytensor.link.numba.linker import NumbaLinker

from pymc_minibatch.jit.held_locks import release_held_locks

__all__ = [
    "answer_signals",
    "away_from_signals",
    "generator",
    "graph_from_python",
    "guard_graphs",
    "kernel_from_python",
    "pack_array",
]

UNPACKED_BY_C = (types.Array, types.Number, types.Boolean, types.NoneType)
"""Types whose values Numba unpacks and packs without Python code."""

POSITIONS = {"state": 0, "fnptr_next_uint64": 1, "fnptr_next_uint32": 2, "fnptr_next_double": 3}
"""Of what Numba reads in ``bitgen_t`` of NumPy's C interface, in words."""

COUNTER, OTHERS_EVERY = "answer_signals_counter", 32
"""Handlers and other threads have their turn once in so many calls. It takes about 0.1 µs, and a
transition of the fastest kernel 4; a chunk of rows, or a batch of gradients, less than 10 ms."""

_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype, _pointer_in.argtypes = ctypes.c_size_t, [ctypes.py_object, ctypes.c_char_p]


class KernelFromPython(CPUDispatcher):
    """A jitted kernel that Python calls; what draws random numbers it passes by address."""

    def __call__(self, *args: Any) -> Any:
        """Call the machine code."""
        try:
            return _call(
                self, *[_address(arg) if type(arg) is np.random.Generator else arg for arg in args]
            )
        except SystemError as error:
            raised = _raised_within(error)
        raise raised

    def _compile_for_args(self, *args: Any, **kwargs: Any) -> Any:
        for arg in args:
            _check(typeof(arg))
        return super()._compile_for_args(*args, **kwargs)  # type: ignore[misc]


class GraphFromPython(CPUDispatcher):
    """A graph of PyTensor that Python calls.

    If it draws random numbers it copies their generators, in Python.
    """

    def __call__(self, *args: Any) -> Any:
        """Call the machine code."""
        if any(type(arg) is np.random.Generator for arg in args):
            return away_from_signals(_call, self, *args)
        try:
            return _call(self, *args)
        except SystemError as error:
            raised = _raised_within(error)
        raise raised


class GraphOfOthers(CPUDispatcher):
    """A graph that was not compiled by this package."""

    def __call__(self, *args: Any) -> Any:
        """Call the machine code."""
        try:
            return _call(self, *args)
        except SystemError as error:
            raised = _raised_within(error)
        raise raised


_call: Callable[..., Any] = Dispatcher.__call__
_jit_compile: Callable[..., Any] = NumbaLinker.jit_compile


def _raised_within(error: BaseException) -> BaseException:
    """Return the exception that machine code left behind when it returned, or the error itself."""
    while isinstance(error, SystemError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def kernel_from_python(dispatcher: Any) -> Any:
    """Let Python call a jitted kernel only in ways in which an interrupt does no harm."""
    dispatcher.__class__ = KernelFromPython
    return dispatcher


def graph_from_python(dispatcher: Any) -> Any:
    """Do the same with a graph of PyTensor."""
    dispatcher.__class__ = GraphFromPython
    return dispatcher


def guard_graphs() -> None:
    """Have exceptions of handlers come out of graphs of others as they are.

    It holds for what PyTensor compiles with Numba from now on, in this process.
    """
    if NumbaLinker.jit_compile is _jit_compile:
        NumbaLinker.jit_compile = _guarded  # type: ignore[method-assign]


def _guarded(linker: NumbaLinker, graph: Any) -> Any:
    jitted = _jit_compile(linker, graph)
    if type(jitted) is CPUDispatcher:  # without a compiler Numba returns a function
        jitted.__class__ = GraphOfOthers
    return jitted


def _address(rng: np.random.Generator) -> int:
    """Return the address of the ``bitgen_t`` of a generator, which has to stay alive."""
    address: int = _pointer_in(rng.bit_generator.capsule, b"BitGenerator")
    return address


def _check(kind: Any) -> None:
    """Refuse a type of argument whose unpacking runs Python code."""
    if isinstance(kind, types.BaseTuple):
        for part in kind.types:  # type: ignore[attr-defined]
            _check(part)
    elif not isinstance(kind, UNPACKED_BY_C):
        raise TypeError(
            f"Machine code cannot take {kind} from Python: Ctrl-C while it is unpacked would end "
            "the process. Pass arrays, numbers, or tuples of them."
        )


def pack_array(kind: Any, value: Any, tools: Any) -> Any:
    """Emit code that makes an array for Python; Numba's own calls Python to find its class."""
    api, builder, environment = tools.pyapi, tools.builder, tools.env_manager
    dtype, of_class = (
        environment.read_const(environment.add_const(constant))
        for constant in (as_dtype(kind.dtype), kind.box_type)
    )
    whole = ir.IntType(32)
    signature = ir.FunctionType(api.pyobj, [api.voidptr, api.pyobj, whole, whole, api.pyobj])
    function = api._get_function(signature, name="NRT_adapt_ndarray_to_python_acqref")
    place = builder.bitcast(cgutils.alloca_once_value(builder, value), api.voidptr)
    counts = ir.Constant(whole, kind.ndim), ir.Constant(whole, int(kind.mutable))
    packed = builder.call(function, [place, of_class, *counts, dtype])
    tools.context.nrt.decref(builder, kind, value)
    return packed


def generator(rng: Any) -> Any:
    """In jitted code, return the generator at an address, or a generator as it is."""
    raise NotImplementedError


@overload(generator, inline="always")
def _generator(rng):  # type: ignore[no-untyped-def]  # Numba compares signatures
    if isinstance(rng, types.Integer):
        return lambda rng: _generator_at(rng)  # type: ignore[call-arg]
    return lambda rng: rng


@intrinsic
def _generator_at(typing_context: Any, address: Any) -> Any:
    kind: Any = typeof(np.random.default_rng(0))

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        word = ir.IntType(64)
        words = builder.inttoptr(values[0], word.as_pointer())
        whole = cgutils.create_struct_proxy(kind)(context, builder)
        within = context.data_model_manager[kind].get_member_fe_type("bit_generator")
        drawing = cgutils.create_struct_proxy(within)(context, builder)
        for name, position in POSITIONS.items():
            place = builder.gep(words, [ir.Constant(ir.IntType(32), position)])
            setattr(drawing, name, builder.load(place))
        whole.bit_generator = drawing._getvalue()
        return whole._getvalue()

    return kind(address), codegen


def answer_signals() -> None:
    """In a kernel that Python calls, run the handlers of signals that have arrived.

    If one raises an exception, the kernel ends with it, wherever it is. What it was changing is
    then half done, and whoever called it has to put it back. Now and then other threads run, which
    may be those that send signals. The thread must hold the lock of the interpreter.
    """


@overload(answer_signals, inline="always")
def _answer_signals():  # type: ignore[no-untyped-def]
    return lambda: _answer()  # type: ignore[call-arg]


@intrinsic
def _answer(typing_context: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        def call(result: ir.Type, name: str, *args: Any) -> Any:
            kind = ir.FunctionType(result, [arg.type for arg in args])
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            return builder.call(function, args)

        module, word = builder.module, ir.IntType(64)
        if COUNTER not in module.globals:
            counter = cgutils.add_global_variable(module, word, COUNTER)
            counter.linkage, counter.initializer = "internal", ir.Constant(word, 0)
        counter = module.globals[COUNTER]
        count = builder.add(builder.load(counter), ir.Constant(word, 1))
        builder.store(count, counter)
        is_turn = builder.icmp_unsigned(
            "==", builder.urem(count, ir.Constant(word, OTHERS_EVERY)), ir.Constant(word, 0)
        )
        with cgutils.if_unlikely(builder, is_turn):
            thread = call(cgutils.voidptr_t, "PyEval_SaveThread")
            call(ir.VoidType(), "PyEval_RestoreThread", thread)
            raised = call(ir.IntType(32), "PyErr_CheckSignals")
            with cgutils.if_unlikely(builder, cgutils.is_not_null(builder, raised)):
                context.call_conv.return_exc(builder)
        return context.get_dummy_value()

    return types.none(), codegen


def away_from_signals[T](function: Callable[..., T], *args: Any) -> T:
    """Call a function in another thread than the main one: no handler of a signal runs there.

    It is for machine code that cannot do without Python. An interrupt is raised at once, and leaves
    the function to its end.
    """
    if current_thread() is not main_thread():
        return function(*args)
    release_held_locks()
    return _thread(os.getpid()).submit(function, *args).result()


@cache
def _thread(process: int) -> ThreadPoolExecutor:
    """Start the thread of a process; a forked one has none."""
    return ThreadPoolExecutor(1)
