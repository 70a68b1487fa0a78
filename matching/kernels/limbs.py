"""Steps of numbers of several limbs of 64 bits, in two's complement, the lowest limb first. A limb is an int64 that is
read as its 64 bits."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_WIDE = ir.IntType(128)


def _both(builder: Any, low: Any, high: Any) -> Any:
    return cgutils.pack_array(builder, [low, high])


def _halves(builder: Any, value: Any) -> tuple[Any, Any]:
    word = ir.IntType(64)
    return builder.trunc(value, word), builder.trunc(builder.lshr(value, ir.Constant(_WIDE, 64)), word)


@intrinsic
def add_limb(context: Any, x: Any, y: Any, carry: Any) -> Any:
    """(x + y + carry) modulo 2**64, and the carry after it; carry: 0 or 1."""

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, y, carry = (builder.zext(a, _WIDE) for a in arguments)
        return _both(builder, *_halves(builder, builder.add(builder.add(x, y), carry)))

    return types.UniTuple(types.int64, 2)(types.int64, types.int64, types.int64), build


@intrinsic
def add_product_limb(context: Any, x: Any, y: Any, factor: Any, carry: Any) -> Any:
    """(x + y * factor + carry) modulo 2**64, and the carry after it, less than 2**64."""

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, y, factor, carry = (builder.zext(a, _WIDE) for a in arguments)
        total = builder.add(builder.add(x, builder.mul(y, factor)), carry)
        return _both(builder, *_halves(builder, total))

    return types.UniTuple(types.int64, 2)(types.int64, types.int64, types.int64, types.int64), build


@intrinsic
def subtract_product_limb(context: Any, x: Any, y: Any, factor: Any, borrow: Any) -> Any:
    """(x - y * factor - borrow) modulo 2**64, and the borrow after it, at most 2**64 - 1."""

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        y, factor, borrow = (builder.zext(a, _WIDE) for a in arguments[1:])
        taken = builder.add(builder.mul(y, factor), borrow)
        low, high = _halves(builder, taken)
        here = arguments[0]
        left = builder.sub(here, low)
        short = builder.zext(builder.icmp_unsigned("<", here, low), ir.IntType(64))
        return _both(builder, left, builder.add(high, short))

    return types.UniTuple(types.int64, 2)(types.int64, types.int64, types.int64, types.int64), build


@intrinsic
def trailing_zeros(context: Any, x: Any) -> Any:
    """The index of the lowest bit of x, which is not 0."""

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), build


@intrinsic
def leading_zeros(context: Any, x: Any) -> Any:
    """The number of bits above the highest one of x; 64 if x is 0."""

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), build

@intrinsic
def bits_of(context: Any, x: Any) -> Any:
    """The bits of a float64, as an int64."""

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), build


@intrinsic
def number_of(context: Any, x: Any) -> Any:
    """The float64 with these bits."""

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), build
