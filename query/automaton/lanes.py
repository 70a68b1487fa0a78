"""Lowering of bound expressions to lanes: the few machine types in which kernels compute exactly what DuckDB means.

A lane is int64 (whole numbers, decimals as integers with a scale, booleans as 0/1, times and intervals in
microseconds) or float64. BIGINT never passes through float64. Integer results are checked against the range of their
DuckDB type, so that overflow is an error and never a wrong number. What has no lane raises NoLane and is computed
another way (DuckDB for row-local expressions, the reference otherwise).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from query.plan.expression import Call, Column, Constant, Expression

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_INTEGER_RANGE = {
    "TINYINT": (-(2**7), 2**7 - 1), "SMALLINT": (-(2**15), 2**15 - 1), "INTEGER": (-(2**31), 2**31 - 1),
    "BIGINT": (INT64_MIN, INT64_MAX), "UTINYINT": (0, 2**8 - 1), "USMALLINT": (0, 2**16 - 1),
    "UINTEGER": (0, 2**32 - 1), "HUGEINT": (INT64_MIN, INT64_MAX),
}  # fmt: skip
_TIMES = ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE")


class NoLane(Exception):
    """The expression has no exact form in lanes; the message says which part."""


@dataclass(frozen=True, slots=True)
class Lane:
    """floating: float64, else int64. scale: decimal digits behind the point of an int64 lane. low, high: range of
    the DuckDB type; a result outside it is an overflow error."""

    floating: bool
    scale: int = 0
    low: int = INT64_MIN
    high: int = INT64_MAX
    boolean: bool = False


FLOAT = Lane(True)
BOOLEAN = Lane(False, boolean=True, low=0, high=1)


def lane_of(type: str) -> Lane:
    """The lane of values of a DuckDB type; NoLane for types without one (strings, dates, unsigned 64 bit, ...)."""
    if type == "BOOLEAN":
        return BOOLEAN
    if type in _INTEGER_RANGE:
        return Lane(False, 0, *_INTEGER_RANGE[type])
    if decimal := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", type):
        width, scale = int(decimal[1]), int(decimal[2])
        bound = min(10**width - 1, INT64_MAX)
        return Lane(False, scale, -bound, bound)
    if type == "DOUBLE":
        return FLOAT
    if type in _TIMES or type == "INTERVAL":
        return Lane(False)
    raise NoLane(f"values of type {type}")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value from outside: a column, feature or register. `source` says which."""

    source: object
    lane: Lane


@dataclass(frozen=True, slots=True)
class Literal:
    """value None is NULL."""

    value: int | float | None
    lane: Lane


@dataclass(frozen=True, slots=True)
class Op:
    """One typed operation.

    name: add sub mul neg abs idiv mod (int64, checked) fadd fsub fmul fdiv fneg fabs; to_float (divides by 10**scale
    of its argument), rescale (multiplies by 10**n up to its own scale); eq ne lt le gt ge (int64), feq fne flt fle fgt
    fge (NaN equals itself and is the largest); and or not is_null distinct fdistinct; case, coalesce.
    """

    name: str
    arguments: tuple[Lowered, ...]
    lane: Lane


Lowered = Leaf | Literal | Op
_COMPARE = {"=": "eq", "<>": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_ARITHMETIC = {"+": "add", "-": "sub", "*": "mul"}


def _literal(constant: Constant) -> Lowered:
    value = constant.value
    if value is None and not constant.sql:
        try:
            return Literal(None, lane_of(constant.type))
        except NoLane:
            return Literal(None, Lane(False))
    lane = lane_of(constant.type)
    if isinstance(value, bool):
        return Literal(int(value), lane)
    if lane.floating and isinstance(value, int | float | Decimal):
        return Literal(float(value), lane)
    if isinstance(value, int):
        return Literal(value * 10**lane.scale, lane)
    if isinstance(value, Decimal):
        scaled = value.scaleb(lane.scale)
        if scaled == int(scaled) and lane.low <= int(scaled) <= lane.high:
            return Literal(int(scaled), lane)
    raise NoLane(f"the constant {constant.sql or value}")


def _to_float(value: Lowered) -> Lowered:
    if value.lane.floating:
        return value
    if isinstance(value, Literal):
        return Literal(None if value.value is None else value.value / 10**value.lane.scale, FLOAT)
    return Op("to_float", (value,), FLOAT)


def _to_scale(value: Lowered, scale: int) -> Lowered:
    have = value.lane.scale
    if have == scale:
        return value
    if have > scale:
        raise NoLane("rounding of a decimal")
    if isinstance(value, Literal):
        if value.value is None:
            return Literal(None, Lane(False, scale))
        scaled = int(value.value) * 10 ** (scale - have)
        if not INT64_MIN <= scaled <= INT64_MAX:
            raise NoLane("a constant beyond 64 bits")
        return Literal(scaled, Lane(False, scale))
    return Op("rescale", (value,), Lane(False, scale))


def _same(a: Lowered, b: Lowered) -> tuple[Lowered, Lowered, str]:
    """Both in one lane; the prefix of the operation."""
    if a.lane.floating or b.lane.floating:
        return _to_float(a), _to_float(b), "f"
    scale = max(a.lane.scale, b.lane.scale)
    return _to_scale(a, scale), _to_scale(b, scale), ""


def _fit(value: Lowered, lane: Lane) -> Lowered:
    """The value converted to the lane of its result type."""
    return _to_float(value) if lane.floating else _to_scale(value, lane.scale)


def lower(expression: Expression, leaf: Callable[[Expression], Leaf | None]) -> Lowered:
    """The expression in lanes. `leaf` maps sub-expressions that are read from outside (columns, registers).

    Raises NoLane where the exact meaning is not expressible."""
    found = leaf(expression)
    if found is not None:
        return found

    def down(e: Expression) -> Lowered:
        return lower(e, leaf)

    match expression:
        case Constant():
            return _literal(expression)
        case Call("and" | "or" as name, arguments):
            result = down(arguments[0])
            for argument in arguments[1:]:
                result = Op(name, (result, down(argument)), BOOLEAN)
            return result
        case Call("not", (a,)):
            return Op("not", (down(a),), BOOLEAN)
        case Call("is_null", (a,)):
            return Op("is_null", (down(a),), BOOLEAN)
        case Call("is_not_null", (a,)):
            return Op("not", (Op("is_null", (down(a),), BOOLEAN),), BOOLEAN)
        case Call("=" | "<>" | "<" | "<=" | ">" | ">=" as name, (a, b)):
            if "FLOAT" in (a.type, b.type):
                raise NoLane("comparison of FLOAT")
            x, y, prefix = _same(down(a), down(b))
            return Op(prefix + _COMPARE[name], (x, y), BOOLEAN)
        case Call("is_distinct" | "is_not_distinct" as name, (a, b)):
            x, y, prefix = _same(down(a), down(b))
            distinct = Op(prefix + "distinct", (x, y), BOOLEAN)
            return distinct if name == "is_distinct" else Op("not", (distinct,), BOOLEAN)
        case Call("between", (a, low, high)):
            return down(Call("and", (Call(">=", (a, low), "BOOLEAN"), Call("<=", (a, high), "BOOLEAN")), "BOOLEAN"))
        case Call("in", (a, *items)):
            return down(Call("or", tuple(Call("=", (a, item), "BOOLEAN") for item in items), "BOOLEAN"))
        case Call("+" | "-" | "*" as name, (a, b), type):
            lane = lane_of(type)
            x, y = down(a), down(b)
            if lane.floating:
                return Op("f" + _ARITHMETIC[name], (_to_float(x), _to_float(y)), lane)
            if name == "*":
                if x.lane.scale + y.lane.scale != lane.scale:
                    raise NoLane("a product that is rounded")
            else:
                x, y = _to_scale(x, lane.scale), _to_scale(y, lane.scale)
            return Op(_ARITHMETIC[name], (x, y), lane)
        case Call("/", (a, b), "DOUBLE"):
            return Op("fdiv", (_to_float(down(a)), _to_float(down(b))), FLOAT)
        case Call("//" | "%" as name, (a, b), type):
            lane = lane_of(type)
            x, y = down(a), down(b)
            if lane.floating or lane.scale or x.lane.scale or y.lane.scale:
                raise NoLane(f"{name} of other than integers")
            return Op("idiv" if name == "//" else "mod", (x, y), lane)
        case Call("neg" | "abs" as name, (a,), type):
            lane = lane_of(type)
            x = _fit(down(a), lane)
            return Op(("f" if lane.floating else "") + name, (x,), lane)
        case Call("cast", (a,), type):
            lane = lane_of(type)
            x = down(a)
            if x.lane.boolean != lane.boolean or (x.lane.floating and not lane.floating):
                raise NoLane(f"CAST to {type}")
            if lane.floating or (lane.scale >= x.lane.scale and lane.low <= x.lane.low and x.lane.high <= lane.high):
                return _fit(x, lane)
            raise NoLane(f"CAST to {type}")
        case Call("case", arguments, type):
            lane = lane_of(type)
            parts = [
                _fit(down(e), lane) if i % 2 or i == len(arguments) - 1 else down(e) for i, e in enumerate(arguments)
            ]
            return Op("case", tuple(parts), lane)
        case Call("coalesce", arguments, type):
            lane = lane_of(type)
            return Op("coalesce", tuple(_fit(down(e), lane) for e in arguments), lane)
        case Column(name):
            raise NoLane(f"column {name}")
        case _:
            raise NoLane(expression.function if isinstance(expression, Call) else expression.__class__.__name__)
