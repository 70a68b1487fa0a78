"""64-bit integers that may overflow. numba lets LLVM assume that sums, differences and products of signed numbers never
do, so that one that does may give any result. Tests for overflow, and results modulo 2**64, are computed here."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from matching.kernels.jit import inlined

#: The largest number; it means so many or more.
MANY = (1 << 63) - 1


def _asked(operation: str) -> Any:
    @intrinsic
    def overflows(context: Any, x: Any, y: Any) -> Any:
        def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.extract_value(getattr(builder, f"{operation}_with_overflow")(*arguments), 1)

        return types.boolean(types.int64, types.int64), build

    return overflows


def _unchecked(operation: str) -> Any:
    @intrinsic
    def wraps_around(context: Any, x: Any, y: Any) -> Any:
        def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, operation)(*arguments)

        return types.int64(types.int64, types.int64), build

    return wraps_around


_sum_overflows, _difference_overflows, _product_overflows = _asked("sadd"), _asked("ssub"), _asked("smul")
_added, _multiplied = _unchecked("add"), _unchecked("mul")
_quotient, _remainder = _unchecked("sdiv"), _unchecked("srem")


@inlined
def add_overflows(x, y):
    return _sum_overflows(x, y)


@inlined
def sub_overflows(x, y):
    return _difference_overflows(x, y)


@inlined
def mul_overflows(x, y):
    return _product_overflows(x, y)


@inlined
def quotient(x, y):
    """Returns the quotient, rounded towards 0. y is not 0, nor is it -1 with the smallest x."""
    return _quotient(x, y)


@inlined
def remainder(x, y):
    """Returns the remainder, with the sign of x. y is not 0, nor is it -1 with the smallest x."""
    return _remainder(x, y)


@inlined
def stretched(x, y):
    """Returns the product with a positive y, or what is nearest to it."""
    if _product_overflows(x, y):
        return MANY if x > 0 else -MANY - 1
    return x * y


@inlined
def rounded_quotient(x, y):
    """Returns the quotient of a positive y, rounded to the nearest integer, halves away from 0."""
    whole = _quotient(x, y)
    rest = _remainder(x, y)
    if rest < 0:
        return whole - 1 if -rest >= y + rest else whole
    return whole + 1 if rest >= y - rest else whole


@inlined
def lower_quotient(x, y):
    """Returns the quotient of a positive y, rounded down."""
    whole = _quotient(x, y)
    return whole - 1 if _remainder(x, y) < 0 else whole


@inlined
def upper_quotient(x, y):
    """Returns the quotient of a positive y, rounded up."""
    whole = _quotient(x, y)
    return whole + 1 if _remainder(x, y) > 0 else whole


@inlined
def larger(x, y, xv, yv):
    """Returns the larger of those that are there."""
    if xv and yv:
        return x if x > y else y
    return x if xv else y


@inlined
def smaller(x, y, xv, yv):
    """Returns the smaller of those that are there."""
    if xv and yv:
        return x if x < y else y
    return x if xv else y


@inlined
def wrapped_product(x, y):
    """Returns the product modulo 2**64."""
    return _multiplied(x, y)


@inlined
def wrapped_sum(x, y):
    """Returns the sum modulo 2**64."""
    return _added(x, y)


@inlined
def many_sum(x, y):
    """Returns the sum of two numbers that are not negative; MANY if it is larger."""
    return MANY if x > MANY - y else x + y
