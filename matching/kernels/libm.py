"""Functions of the C library, which DuckDB calls too.

numba and LLVM replace calls by their own code (a square by a product, for one), which rounds differently. So these are
called by names that LLVM does not know. A name is resolved when compiled code is loaded, so that it can be cached.
"""

from __future__ import annotations

import ctypes
import ctypes.util

import numpy as np
from llvmlite import binding
from numba import types

from matching.kernels.jit import called, inlined
from matching.program.lanes import FUNCTIONS, FUNCTIONS_OF_TWO


def _declared() -> None:
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    for name in (*FUNCTIONS, *FUNCTIONS_OF_TWO, "fma"):
        binding.add_symbol(f"hybrid_{name}", ctypes.cast(getattr(library, name), ctypes.c_void_p).value)


_declared()
_ONE = types.float64(types.float64)
_TWO = types.float64(types.float64, types.float64)
_sqrt, _cbrt, _exp, _log, _log2, _log10, _sin, _cos, _tan, _asin, _acos, _atan, _floor, _ceil, _trunc, _round = (
    types.ExternalFunction(f"hybrid_{name}", _ONE) for name in FUNCTIONS
)
_pow, _fmod, _atan2 = (types.ExternalFunction(f"hybrid_{name}", _TWO) for name in FUNCTIONS_OF_TWO)
_fma = types.ExternalFunction("hybrid_fma", types.float64(types.float64, types.float64, types.float64))


@called
def function_of(x, which):
    """Returns FUNCTIONS[which] of x. Long chain: the first ones are asked for most."""
    if which == 0:
        return _sqrt(x)
    elif which == 1:
        return _cbrt(x)
    elif which == 2:
        return _exp(x)
    elif which == 3:
        return _log(x)
    elif which == 4:
        return _log2(x)
    elif which == 5:
        return _log10(x)
    elif which == 6:
        return _sin(x)
    elif which == 7:
        return _cos(x)
    elif which == 8:
        return _tan(x)
    elif which == 9:
        return _asin(x)
    elif which == 10:
        return _acos(x)
    elif which == 11:
        return _atan(x)
    elif which == 12:
        return _floor(x)
    elif which == 13:
        return _ceil(x)
    elif which == 14:
        return _trunc(x)
    return _round(x)


@called
def function_of_two(x, y, which):
    """Returns FUNCTIONS_OF_TWO[which] of x and y."""
    if which == 0:
        return _pow(x, y)
    elif which == 1:
        return _fmod(x, y)
    return _atan2(x, y)


@called
def rounded(x, c):
    """Returns x rounded to decimal places, halves away from 0. c: 10 to the power of their number, from 1 on.

    As DuckDB: the product with c may be rounded to a half that it is not, which the exact remainder tells."""
    product = x * c
    whole = _round(product)
    if abs(product - np.trunc(product)) == 0.5:
        rest = _fma(x, c, -product)
        if rest < 0.0 < product:
            whole -= 1.0
        elif product < 0.0 < rest:
            whole += 1.0
    whole /= c
    return whole if np.isfinite(whole) else x


@inlined
def multiplied_and_added(x, y, z):
    """Returns x * y + z, rounded once."""
    return _fma(x, y, z)


@inlined
def nearest(x):
    """Returns the nearest integer, of two the even one. x is within 64 bits."""
    return np.int64(np.rint(x))
