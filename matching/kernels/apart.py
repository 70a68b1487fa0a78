"""Calls of kernels that are compiled apart from those that call them, and only once a program needs them.

What a kernel calls is compiled into it, and so into each kernel on the way: the walks of a few programs would be
compiled six times over for all of them. So they are called by their address, with a table of the arrays they read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Slots of a table: the address of the function, that of the table, and from here on, for each array, its address and
#: the lengths of two axes.
FUNCTION, OWN, ARRAYS = range(3)
_NUMBER = types.int64


@intrinsic
def called_apart(typing: Any, function: Any, table: Any, a: Any, b: Any, c: Any) -> Any:
    """Returns function(table, a, b, c), of whole numbers; the first two are addresses."""

    def code(context: Any, builder: Any, signature: Any, given: Sequence[Any]) -> Any:
        number = ir.IntType(64)
        of = ir.FunctionType(number, [number] * 4).as_pointer()
        return builder.call(builder.inttoptr(given[0], of), list(given[1:]))

    return _NUMBER(_NUMBER, _NUMBER, _NUMBER, _NUMBER, _NUMBER), code


def _pointer(type: Any) -> Any:
    @intrinsic
    def at(typing: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, given: Sequence[Any]) -> Any:
            return builder.inttoptr(given[0], context.get_value_type(type).as_pointer() if type is not types.boolean
                                    else cgutils.voidptr_t)  # fmt: skip

        return types.CPointer(type)(_NUMBER), code

    return at


#: Pointers to the numbers at an address.
numbers_at, doubles_at, bytes_at, shorts_at = map(_pointer, (types.int64, types.float64, types.int8, types.int16))


def filled(table: np.ndarray, function: int, arrays: Sequence[np.ndarray]) -> None:
    """Puts into a table what `function` reads."""
    table[FUNCTION], table[OWN] = function, table.ctypes.data
    for k, array in enumerate(arrays):
        assert array.flags.c_contiguous
        at = ARRAYS + 3 * k
        table[at], table[at + 1], table[at + 2] = array.ctypes.data, array.shape[0], array.shape[-1]
