"""Call a compiled function by its address, or read arrays by theirs.

A jitted function that calls another one by name has it linked in and optimised again, at every
level of calls above it. By address, the graph of a model is compiled once by itself, and a kernel
is compiled once for all models whose data have the same types. A kernel that knows not even these
leaves the reading to a function that finds the data by their address.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils, typing
from numba.core.imputils import impl_ret_new_ref
from numba.extending import intrinsic

__all__ = [
    "OF_NUMBER_GRAPH",
    "OF_VECTOR_GRAPH",
    "address_of",
    "address_of_graph",
    "array_loader",
    "batch_of_one",
    "call_array",
    "call_graph",
    "call_graph_for_number",
    "call_graph_for_vector",
    "call_matrix",
    "call_scalar",
    "stored_arrays",
]

OF_GRAPH = types.Tuple([types.float64[:, ::1]])
OF_VECTOR_GRAPH = types.Tuple([types.float64[::1]])
OF_NUMBER_GRAPH = types.Tuple([types.Array(types.float64, 0, "A")])
"""What a compiled graph with one matrix, vector or number as its result returns."""

LAID_OUT_ALIKE = {types.Tuple([types.Array(types.float64, 0, "C")]): OF_NUMBER_GRAPH}
"""Types that are the same to machine code: without axes there are no strides."""


def address_of(function: Any, *arguments: Any) -> int:
    """Compile a jitted function for arguments of these types; return its address.

    The address is good as long as `function` is alive.
    """
    return _address(function, tuple(map(typing.typeof.typeof, arguments)))


def address_of_graph(
    function: Any, *arguments: Any, returns: types.Type = OF_GRAPH
) -> tuple[int, Any]:
    """Do the same for a compiled graph, whose one result is a matrix, unless said otherwise.

    PyTensor has it take all of its arguments as one tuple. Some rewritten graphs end in a view that
    is not contiguous; such results are copied.

    Returns
    -------
    address : int
        For :func:`call_graph`.
    function : object
        Has to stay alive as long as the address is used.

    Raises
    ------
    TypeError
        If the graph returns something else.
    """
    signature = (types.StarArgTuple(tuple(map(typing.typeof.typeof, arguments))),)
    for candidate in (function, _contiguous(function)):
        address = _address(candidate, signature)
        result = candidate.overloads[signature].signature.return_type
        if LAID_OUT_ALIKE.get(result, result) == returns:
            return address, candidate
    raise TypeError(f"The graph returns {result}, not {returns}.")


def _contiguous(graph: Any) -> Any:
    @njit
    def copied(*arguments):  # type: ignore[no-untyped-def]
        return (np.ascontiguousarray(graph(*arguments)[0]),)

    return copied


def _address(function: Any, signature: tuple[types.Type, ...]) -> int:
    function.compile(signature)
    compiled = function.overloads[signature]
    return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)


def batch_of_one(data: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return a batch of one row, without values, whose types those of all batches are."""
    return tuple(np.empty((1, *values.shape[1:]), values.dtype) for values in data)


def stored_arrays(arrays: tuple[np.ndarray, ...]) -> np.ndarray:
    """Write down where arrays are, in the way in which jitted code does, for :func:`array_loader`.

    They and the result have to stay alive as long as they are read by its address.
    """
    words: list[int] = []
    for values in arrays:
        # Nobody counts references to what is read by address: hence no owner.
        words += [0, 0, values.size, values.itemsize, values.ctypes.data]
        words += [*values.shape, *values.strides]
    return np.array(words, dtype=np.int64)


def array_loader(arrays: tuple[np.ndarray, ...]) -> Any:
    """Make a jitted ``load(address)`` for a tuple of arrays of these types."""
    kind = typing.typeof.typeof(arrays)

    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            pointer = context.get_value_type(kind).as_pointer()
            return builder.load(builder.inttoptr(values[0], pointer))

        return kind(types.intp), codegen

    return load


def _caller(result: types.Type, of_graph: bool = False) -> Callable[..., Any]:
    """Make a jitted ``call(address, arguments)`` for functions, or graphs, with this result.

    The function must have been compiled for exactly the types of `arguments`, a tuple: nothing can
    check that here, and other types would be misread.
    """

    @intrinsic
    def call(typing_context: Any, address: Any, arguments: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            each = tuple(arguments.types)
            types_of_arguments = [types.StarArgTuple(each)] if of_graph else each
            convention = context.call_conv
            function_type = convention.get_function_type(result, types_of_arguments)
            function = builder.inttoptr(values[0], function_type.as_pointer())
            unpacked = [values[1]] if of_graph else cgutils.unpack_tuple(builder, values[1])
            status, returned = convention.call_function(
                builder, function, result, types_of_arguments, unpacked
            )
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return impl_ret_new_ref(context, builder, result, returned)

        return result(types.intp, arguments), codegen

    return call


call_array = _caller(types.float64[::1])
"""For functions that return a contiguous vector."""

call_scalar = _caller(types.float64)
"""For functions that return a number."""

call_matrix = _caller(types.float64[:, ::1])
"""For functions that return a contiguous matrix."""

call_graph = _caller(OF_GRAPH, of_graph=True)
"""For compiled graphs with one result, a contiguous matrix."""

call_graph_for_vector = _caller(OF_VECTOR_GRAPH, of_graph=True)
"""The same with a contiguous vector."""

call_graph_for_number = _caller(OF_NUMBER_GRAPH, of_graph=True)
"""The same with a number, as an array without axes."""
