"""Rows that will be read soon are asked for ahead.

Rows drawn at random lie anywhere in memory, and a processor looks ahead by a few of them only.
Asked for some rows before, they arrive together: gathering takes a third of the time.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

__all__ = ["prefetch_row", "rows_ahead"]

LINES_AHEAD, MOST_AHEAD = 128, 64
"""Lines of memory, and rows, on their way at the same time. Fewer lines leave the memory idle."""

LINE = 64
"""Bytes that come from memory at once."""

MOST_LINES = 16
"""Of a row. The processor sees by itself where a long one goes on."""


@intrinsic
def _prefetch(typing_context: Any, values: Any, offset: Any) -> Any:
    """Ask for the line that holds the byte at an offset from the start of an array."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        start = builder.bitcast(array.data, cgutils.voidptr_t)
        address = builder.gep(start, [args[1]])
        number = ir.IntType(32)
        arguments = [address.type, number, number, number]
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [address.type], ir.FunctionType(ir.VoidType(), arguments)
        )
        to_read, keep, data = number(0), number(3), number(1)
        builder.call(function, [address, to_read, keep, data])
        return context.get_dummy_value()

    return types.void(values, types.intp), generate


@register_jitable
def _entries_of_line(values: Any) -> int:
    return max(1, LINE // max(1, abs(values.strides[1])))


@register_jitable
def rows_ahead(values: Any) -> int:
    """Return how many rows of a matrix should be on their way."""
    lines = 1 + values.shape[1] // _entries_of_line(values)
    return max(1, min(LINES_AHEAD // min(lines, MOST_LINES), MOST_AHEAD))


@register_jitable
def prefetch_row(values: Any, row: int) -> None:
    """Ask for a row of a matrix of any layout. It need not exist."""
    width, step = values.shape[1], _entries_of_line(values)
    first, stride = row * values.strides[0], values.strides[1]
    for j in range(0, min(width, MOST_LINES * step), step):
        _prefetch(values, first + j * stride)  # type: ignore[call-arg]
    _prefetch(values, first + (width - 1) * stride)  # type: ignore[call-arg]
