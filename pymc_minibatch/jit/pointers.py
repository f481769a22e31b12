"""Call a compiled function by its address.

A jitted function that calls another one by name has it linked in and optimised again, at every
level of calls above it. By address, the graph of a model is compiled once by itself, and a kernel
is compiled once for all models whose data have the same types.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils, typing
from numba.core.imputils import impl_ret_new_ref
from numba.extending import intrinsic

__all__ = ["address_of", "batch_of_one", "call_array", "call_matrix", "call_scalar"]


def address_of(function: Any, *arguments: Any) -> int:
    """Compile a jitted function for arguments of these types; return its address.

    The address is good as long as `function` is alive.
    """
    signature = tuple(typing.typeof.typeof(argument) for argument in arguments)
    function.compile(signature)
    compiled = function.overloads[signature]
    return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)


def batch_of_one(data: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return a batch of one row, without values, whose types those of all batches are."""
    return tuple(np.empty((1, *values.shape[1:]), values.dtype) for values in data)


def _caller(result: types.Type) -> Callable[..., Any]:
    """Make a jitted ``call(address, arguments)`` for functions with this type of result.

    The function must have been compiled for exactly the types of `arguments`, a tuple: nothing can
    check that here, and other types would be misread.
    """

    @intrinsic
    def call(typing_context: Any, address: Any, arguments: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            types_of_arguments = list(arguments)
            convention = context.call_conv
            function_type = convention.get_function_type(result, types_of_arguments)
            function = builder.inttoptr(values[0], function_type.as_pointer())
            unpacked = cgutils.unpack_tuple(builder, values[1])
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
