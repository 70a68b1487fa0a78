"""Lowering of bound expressions to lanes: the few machine types in which kernels compute exactly what DuckDB means.

A lane is int64 (whole numbers, decimals as integers with a scale, booleans as 0/1, times and intervals in
microseconds, dates in days) or float64. BIGINT never passes through float64. Integer results are checked against the
range of their DuckDB type, so that overflow is an error and never a wrong number. Texts and other values that are only
told apart are codes of a dictionary (code lanes). What has no lane raises NoLane and is computed another way (DuckDB
for row-local expressions, the reference otherwise).

Long: each operator and each function of DuckDB that has a form has a case.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import reduce

from query.plan.expression import Call, Column, Constant, Expression, Opaque

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
#: Longest chain that AND and OR become.
CHAIN_MAX = 64
#: Most operands of a function that DuckDB is asked for.
OPERANDS_MAX = 6
_INTEGER_RANGE = {
    "TINYINT": (-(2**7), 2**7 - 1), "SMALLINT": (-(2**15), 2**15 - 1), "INTEGER": (-(2**31), 2**31 - 1),
    "BIGINT": (INT64_MIN, INT64_MAX), "UTINYINT": (0, 2**8 - 1), "USMALLINT": (0, 2**16 - 1),
    "UINTEGER": (0, 2**32 - 1), "UBIGINT": (0, INT64_MAX), "HUGEINT": (INT64_MIN, INT64_MAX),
}  # fmt: skip
_TIMES = ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE")
#: Types whose values are equal in DuckDB exactly where their bytes are.
CODED = ("VARCHAR", "UUID", "BLOB")
_NULL = ("", "NULL", '"NULL"')
#: Sums and differences with a time stay below it. An infinite time is the last number of 64 bits: with that they
#: overflow, and DuckDB or the reference computes them.
_FAR_US = INT64_MAX - 2**60
#: Days of the last date; the next one is DuckDB's date 'infinity', and so downwards.
_LAST_DAY = 2**31 - 2
DAY_US = 86_400_000_000


class NoLane(Exception):
    """The expression has no exact form in lanes; the message names the part. instead: what may be written instead."""

    def __init__(self, part: str, instead: str = "compute it as a column in FROM (SELECT ...)") -> None:
        super().__init__(part)
        self.instead = instead


class Unit(Enum):
    """The meaning of the numbers of a lane; two values are only compared in one unit."""

    NUMBER = "number"
    MICROSECONDS = "microseconds"  # points in time, and intervals without months
    DAYS = "days"  # DATE
    TIME = "time"  # TIME of day, in microseconds
    SINGLE = "single"  # FLOAT, widened to float64: exact, but arithmetic would round otherwise
    CODE = "code"  # places in a dictionary of values of one type, which `coded` names


@dataclass(frozen=True, slots=True)
class Lane:
    """floating: float64, else int64. scale: decimal digits after the point of an int64 lane. low, high: range of
    the DuckDB type; a result outside it is an overflow error. coded: of codes, the DuckDB type of their values."""

    floating: bool
    scale: int = 0
    low: int = INT64_MIN
    high: int = INT64_MAX
    boolean: bool = False
    unit: Unit = Unit.NUMBER
    coded: str = ""


FLOAT = Lane(True)
BOOLEAN = Lane(False, boolean=True, low=0, high=1)


def lane_of(type: str) -> Lane:
    """The lane that values of a DuckDB type are computed in; NoLane for types without one (strings, lists, ...)."""
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
    if type == "FLOAT":
        return Lane(True, unit=Unit.SINGLE)
    if type in _TIMES or type == "INTERVAL":
        return Lane(False, unit=Unit.MICROSECONDS)
    if type == "DATE":
        return Lane(False, low=-_LAST_DAY, high=_LAST_DAY, unit=Unit.DAYS)
    if type == "TIME":
        return Lane(False, low=0, high=DAY_US, unit=Unit.TIME)
    raise NoLane(f"values of type {type}")


def kept_lane(type: str) -> Lane:
    """Like `lane_of`, with codes for values that are only told apart."""
    return Lane(False, unit=Unit.CODE, coded=type) if type in CODED else lane_of(type)


def is_wide(type: str) -> bool:
    """True if values of a type with a lane may be beyond its 64 bits."""
    decimal = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", type)
    return type in ("HUGEINT", "UBIGINT") or (decimal is not None and int(decimal[1]) > 18)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value from outside, `source`: a column, feature or register."""

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

    name: one of matching.program.opcodes in small letters. `and` and `or` are computed up to the operand that decides
    (a failure after it does not count), `both` and `either` are the same, but all operands are computed, as DuckDB
    does for BETWEEN and IN; case and coalesce become jumps. constant: that of an operation, if its lanes do not say it.
    """

    name: str
    arguments: tuple[Lowered, ...]
    lane: Lane
    constant: int | float | None = None


Lowered = Leaf | Literal | Op
_COMPARE = {"=": "eq", "<>": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_ARITHMETIC = {"+": "add", "-": "sub", "*": "mul"}


def _literal(constant: Constant) -> Lowered:
    value = constant.value
    if value is None and not constant.sql:
        try:
            return Literal(None, kept_lane(constant.type))
        except NoLane:
            return Literal(None, Lane(False))
    lane = lane_of(constant.type)
    if isinstance(value, bool):
        return Literal(int(value), lane)
    if lane.floating and isinstance(value, int | float | Decimal):
        return Literal(float(value), lane)
    if isinstance(value, int) and INT64_MIN <= value * 10**lane.scale <= INT64_MAX:
        return Literal(value * 10**lane.scale, lane)
    if isinstance(value, Decimal):
        scaled = value.scaleb(lane.scale)
        if scaled == int(scaled) and lane.low <= int(scaled) <= lane.high:
            return Literal(int(scaled), lane)
    if isinstance(value, str) and (ticks := _ticks(value, constant.type)) is not None:
        return Literal(ticks, lane)
    raise NoLane(f"the constant {constant.sql or value}")


def _ticks(text: str, type: str) -> int | None:
    """A date, time or timestamp as DuckDB prints it, in its lane; None if it is written in another way."""
    shape = {"DATE": "{d}", "TIME": "{t}", "TIMESTAMP": "{d} {t}"}.get(type, "(?!)")
    if not re.fullmatch(shape.format(d=r"\d{4}-\d\d-\d\d", t=r"\d\d:\d\d:\d\d(\.\d{1,6})?"), text, re.ASCII):
        return None
    try:
        moment = datetime.fromisoformat(f"1970-01-01 {text}" if type == "TIME" else text)
    except ValueError:
        return None
    since = moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days if type == "DATE" else since // timedelta(microseconds=1)


def _is_null(value: Lowered) -> bool:
    return isinstance(value, Literal) and value.value is None


def _to_float(value: Lowered) -> Lowered:
    if value.lane.floating:
        return value
    if _is_null(value):
        return Literal(None, FLOAT)
    if value.lane.unit is not Unit.NUMBER:
        raise NoLane(f"{value.lane.unit.value} as a number")
    if isinstance(value, Literal):
        return Literal(None if value.value is None else value.value / 10**value.lane.scale, FLOAT)
    return Op("to_float", (value,), FLOAT)


def _to_single(value: Lowered) -> Lowered:
    """A number as FLOAT, where nothing is rounded."""
    if value.lane.unit is Unit.SINGLE or _is_null(value):
        return value
    if isinstance(value, Literal) and value.value is not None and value.lane.unit is Unit.NUMBER:
        exact = Fraction(value.value) / 10**value.lane.scale
        if abs(exact) < 2**24:
            (single,) = struct.unpack("f", struct.pack("f", float(exact)))
            if Fraction(single) == exact:
                return Literal(single, lane_of("FLOAT"))
    raise NoLane("a number as FLOAT")


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
    _factor(scale - have)
    return Op("rescale", (value,), Lane(False, scale))


def _factor(places: int) -> int:
    """Returns the factor between two scales."""
    if 10**places > INT64_MAX:
        raise NoLane("a decimal with a scale beyond 64 bits")
    return 10**places  # type: ignore[no-any-return]


def _one_unit(a: Lowered, b: Lowered) -> None:
    """Raises NoLane unless both are of one unit, or one of them is NULL."""
    units = {(x.lane.unit, x.lane.coded) for x in (a, b) if not _is_null(x)}
    if units == {(Unit.SINGLE, ""), (Unit.NUMBER, "")} and a.lane.floating and b.lane.floating:
        return  # FLOAT and DOUBLE compare as DOUBLE
    if len(units) > 1:
        raise NoLane(" with ".join(sorted(coded or unit.value for unit, coded in units)))


def _same(a: Lowered, b: Lowered) -> tuple[Lowered, Lowered, str]:
    """Both in one lane; the prefix of the operation."""
    _one_unit(a, b)
    if a.lane.floating or b.lane.floating:
        return _to_float(a), _to_float(b), "f"
    scale = max(a.lane.scale, b.lane.scale)
    return _stretched(a, scale), _stretched(b, scale), ""


def _stretched(value: Lowered, scale: int) -> Lowered:
    """A value to be compared with one of that scale; where it has no 64 bits then, it is beyond all others."""
    factor = 10 ** (scale - value.lane.scale)
    largest = max(value.lane.high, -value.lane.low) * factor
    if factor == 1 or isinstance(value, Literal) or largest <= INT64_MAX or factor > INT64_MAX:
        return _to_scale(value, scale)
    return Op("stretch", (value,), Lane(False, scale))


def _ranked(text: Lowered) -> Lowered:
    """The place of a text among all that are known."""
    return text if _is_null(text) else Op("rank", (text,), Lane(False))


def _fit(value: Lowered, lane: Lane) -> Lowered:
    """The value converted to the lane of its result type."""
    if _is_null(value):
        return Literal(None, lane)
    if lane.unit is Unit.SINGLE:
        return _to_single(value)
    if lane.floating:
        return _to_float(value)
    _one_unit(value, Literal(0, lane))
    return _to_scale(value, lane.scale)


def _alike(arguments: Sequence[Expression]) -> tuple[Expression, ...]:
    """Compared values, with casts to DOUBLE or FLOAT where DuckDB compares them as such."""
    types = {a.type for a in arguments}
    target = next((t for t in ("DOUBLE", "FLOAT") if t in types), None)
    if target is None:
        return tuple(arguments)
    return tuple(a if a.type in (target, *_NULL) else Call("cast", (a,), target) for a in arguments)


def _on_dates(name: str, x: Lowered, y: Lowered, lane: Lane) -> Lowered:
    """DATE - DATE, DATE + days, days + DATE, DATE - days."""
    units = tuple(Unit.NUMBER if _is_null(v) else v.lane.unit for v in (x, y))
    if units == (Unit.DAYS, Unit.DAYS) and name == "-" and lane.unit is Unit.NUMBER:
        return Op("sub", (x, y), lane)
    if units == (Unit.NUMBER, Unit.DAYS) and name == "+":
        x, y, units = y, x, units[::-1]
    whole = not (y.lane.floating or y.lane.scale)
    if units != (Unit.DAYS, Unit.NUMBER) or name not in "+-" or lane.unit is not Unit.DAYS or not whole:
        raise NoLane(f"{name} of a DATE and other than days")
    moved = Op(_ARITHMETIC[name], (x, y), lane)
    endless = Op("gt", (Op("abs", (x,), Lane(False, unit=Unit.DAYS)), Literal(_LAST_DAY, lane)), BOOLEAN)
    # an infinite date stays what it is, unless there is no number to add
    known = Op("and", (endless, Op("not", (Op("is_null", (y,), BOOLEAN),), BOOLEAN)), BOOLEAN)
    return Op("case", (known, x, moved), lane)


def _connected(name: str, parts: list[Lowered]) -> Lowered:
    """The parts by and, or, both or either."""
    while len(parts) > CHAIN_MAX:  # in pairs: a chain as long as IN can be is too deep to walk
        parts = [Op(name, (*parts[i : i + 2],), BOOLEAN) if i + 1 < len(parts) else parts[i]
                 for i in range(0, len(parts), 2)]  # fmt: skip
    return reduce(lambda left, right: Op(name, (left, right), BOOLEAN), parts)


def _cast(x: Lowered, lane: Lane, what: str) -> Lowered:
    """A value in another lane, as CAST does: an error where that has no such value, decimals rounded half away from 0,
    doubles half to even."""
    if _is_null(x):
        return Literal(None, lane)
    if x.lane.unit is Unit.NUMBER and lane.unit is Unit.NUMBER and x.lane.boolean != lane.boolean:
        if lane.boolean and not x.lane.floating:
            return Op("ne", (x, Literal(0, x.lane)), BOOLEAN)
        if x.lane.boolean and not lane.scale:
            return _to_float(x) if lane.floating else x
        raise NoLane(what)
    if x.lane.boolean or lane.boolean:
        raise NoLane(what)
    if lane.unit not in (Unit.NUMBER, Unit.MICROSECONDS, Unit.SINGLE):
        raise NoLane(what)
    if lane.floating or (
        not x.lane.floating and lane.scale >= x.lane.scale and lane.low <= x.lane.low and x.lane.high <= lane.high
    ):
        return _fit(x, lane)
    if x.lane.unit is not Unit.NUMBER or lane.unit is not Unit.NUMBER:
        raise NoLane(what)
    if x.lane.floating:
        if lane.scale:
            raise NoLane(what)  # DuckDB rounds the product with the power of ten
        return Op("to_integer", (x,), lane)
    if x.lane.scale > lane.scale:
        x = Op("shrink", (x,), Lane(False, lane.scale), _factor(x.lane.scale - lane.scale))
    elif x.lane.scale < lane.scale:
        x = _to_scale(x, lane.scale)
    return Op("fit", (x,), lane)


#: Functions of the C library that kernels call, of one number and of two; a condition has the place of one.
FUNCTIONS = (
    "sqrt", "cbrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "floor", "ceil",
    "trunc", "round",
)  # fmt: skip
FUNCTIONS_OF_TWO = ("pow", "fmod", "atan2")
#: By DuckDB's names.
_FUNCTIONS = {name: place for place, name in enumerate(FUNCTIONS)}
_FUNCTIONS |= {"ln": _FUNCTIONS["log"], "log": _FUNCTIONS["log10"], "ceiling": _FUNCTIONS["ceil"]}
_FUNCTIONS_OF_TWO = {name: place for place, name in enumerate(FUNCTIONS_OF_TWO)}
_FUNCTIONS_OF_TWO |= dict.fromkeys(("power", "**", "^"), _FUNCTIONS_OF_TWO["pow"])
_TO_WHOLE = {"floor": "floor", "ceil": "ceil", "ceiling": "ceil", "trunc": "trunc", "round": "shrink"}
#: Microseconds of the parts of times that are always as long.
_PART_US = {
    "microsecond": 1, "microseconds": 1, "us": 1, "millisecond": 1000, "milliseconds": 1000, "ms": 1000,
    "second": 10**6, "seconds": 10**6, "s": 10**6, "minute": 60 * 10**6, "minutes": 60 * 10**6, "m": 60 * 10**6,
    "hour": 3600 * 10**6, "hours": 3600 * 10**6, "h": 3600 * 10**6,
}  # fmt: skip
_TEXT = r"'(?:[^']++|'')*+'"


def _called(sql: str) -> tuple[str, list[int | Constant]] | None:
    """Returns the function, or operator, of a text with one call, and what it is given: places of arguments, and
    constants. None if the text is none."""
    operator = re.fullmatch(r'\(\s*("_\d+"|-?\d+)\s*(\*\*|\^|&|\|)\s*("_\d+"|-?\d+)\s*\)', sql)
    if operator is not None:
        return operator[2], [_item(operator[1]), _item(operator[3])]
    call = re.fullmatch(r'"?(\w+)"?\((.*)\)', sql, re.DOTALL)
    if call is None:
        return None
    found, at = [], 0
    item = re.compile(rf"""\s*("_\d+"|{_TEXT}|-?\d+(?:\.\d+)?|true|false|NULL)\s*(,|$)""")
    while at < len(call[2]):
        one = item.match(call[2], at)
        if one is None:
            return None
        found.append(_item(one[1]))
        at = one.end()
    return call[1].lower(), found


def _item(text: str) -> int | Constant:
    """Returns the place of an argument, or a constant."""
    if text.startswith('"'):
        return int(text[2:-1])
    if text.startswith("'"):
        return Constant(text[1:-1].replace("''", "'"), "VARCHAR")
    if text in ("true", "false"):
        return Constant(text == "true", "BOOLEAN")
    if text == "NULL":
        return Constant(None, "NULL")
    if "." in text:
        return Constant(Decimal(text), f"DECIMAL({len(text) - text.count('-') - 1},{len(text.partition('.')[2])})")
    return Constant(int(text), "INTEGER" if abs(int(text)) < 2**31 else "BIGINT")


def _function(
    name: str, given: tuple[Expression, ...], type: str, down: Callable[[Expression], Lowered]
) -> Lowered | None:
    """Returns a function of DuckDB in lanes, or None if it has no form. Long: a case for each function."""
    match name, given:
        case "if", (condition, yes, no):
            return down(Call("case", (condition, yes, no), type))
        case "ifnull", (_, _):
            return down(Call("coalesce", given, type))
        case "nullif", (a, b):
            return down(Call("case", (Call("=", (a, b), "BOOLEAN"), Constant(None, type), a), type))
        case "greatest" | "least", (_, *_):
            lane = kept_lane(type)
            if lane.unit is Unit.CODE or (lane.unit is not Unit.NUMBER and any(a.type != type for a in given)):
                return None
            if type == "INTERVAL":  # the larger one of 1 day and 25 hours is 1 day here
                return None
            values = [_fit(down(value), lane) for value in given]
            chosen = ("f" if lane.floating else "") + ("larger" if name == "greatest" else "smaller")
            return reduce(lambda x, y: Op(chosen, (x, y), lane), values)
        case "date_sub" | "datesub", (Constant(str(part)), a, b):  # date_diff: query.plan.row_parts
            if (a.type, b.type, type) != ("TIMESTAMP", "TIMESTAMP", "BIGINT") or part.lower() not in _PART_US:
                return None
            return _whole_units(down(a), down(b), _PART_US[part.lower()])
        case ("epoch", (a,)) | ("date_part" | "datepart", (Constant("epoch"), a)) if _is_time_apart(a):
            x, day, whole = down(a), Literal(DAY_US, Lane(False)), Lane(False)
            days = Op("mul", (Op("idiv", (x, day), whole), Literal(86_400, whole)), whole)
            rest = Op("mod", (x, day), whole)
            return Op("fadd", (Op("to_float", (days,), FLOAT), Op("to_float", (rest,), FLOAT, 1e6)), FLOAT)
        case "&" | "|", (a, b):
            x, y = down(a), down(b)
            whole_numbers = [not of.floating and not of.scale and of.unit is Unit.NUMBER for of in (x.lane, y.lane)]
            wide = any(map(is_wide, (a.type, b.type, type)))
            if not all(whole_numbers) or x.lane.boolean or y.lane.boolean or wide:
                return None
            return Op("bit_and" if name == "&" else "bit_or", (x, y), lane_of(type))
    numbers = [a for a in given if _is_number(a.type)]
    if len(numbers) < len(given) or not _is_number(type):
        return None
    lane = lane_of(type)
    match name, given:
        case "sign", (a,):
            x = down(a)
            if x.lane.floating:
                return None
            zero, null = Literal(0, replace(x.lane, low=INT64_MIN, high=INT64_MAX)), Op("is_null", (x,), BOOLEAN)
            more, less = Op("gt", (x, zero), BOOLEAN), Op("lt", (x, zero), BOOLEAN)
            signs = (more, Literal(1, lane), less, Literal(-1, lane), Literal(0, lane))
            return Op("case", (null, Literal(None, lane), *signs), lane)
        case "round", (a, Constant(int(places))) if lane.floating and type == "DOUBLE" and 0 < places < 300:
            return Op("rounded", (_to_float(down(a)),), lane, 10.0**places)
        case ("round" | "floor" | "ceil" | "ceiling" | "trunc"), (a, *more) if not lane.floating:
            return _to_fewer_places(name, down(a), more, lane)
        case _, (a,) if name in _FUNCTIONS and type == "DOUBLE" and not (name == "round" and a.type != "DOUBLE"):
            return Op("function", (_to_float(down(a)),), lane, _FUNCTIONS[name])
        case _, (a, b) if name in _FUNCTIONS_OF_TWO and type == "DOUBLE":
            return Op("function_of_two", (_to_float(down(a)), _to_float(down(b))), lane, _FUNCTIONS_OF_TWO[name])
    return None


def _is_time_apart(e: Expression) -> bool:
    """True for the difference of two times, whose days and rest have one sign."""
    return isinstance(e, Call) and e.function == "-" and all(a.type == "TIMESTAMP" for a in e.arguments)


def _is_number(type: str) -> bool:
    try:
        lane = lane_of(type)
    except NoLane:
        return False
    return lane.unit is Unit.NUMBER and not lane.boolean


def _to_fewer_places(name: str, x: Lowered, more: Sequence[Expression], lane: Lane) -> Lowered | None:
    """A decimal or integer with fewer places, or None."""
    places = more[0].value if len(more) == 1 and isinstance(more[0], Constant) else None
    if x.lane.floating or (more and not isinstance(places, int)):
        return None
    if x.lane.scale == lane.scale:
        return x if places is None or int(places) >= x.lane.scale else None
    if x.lane.scale < lane.scale or places not in (None, lane.scale):
        return None
    return Op(_TO_WHOLE[name], (x,), lane, _factor(x.lane.scale - lane.scale))


def _whole_units(a: Lowered, b: Lowered, unit_us: int) -> Lowered:
    """The number of whole units between two times; null if one of them is infinite."""
    lane = Lane(False)

    def finite(x: Lowered) -> Lowered:
        endless = Op("eq", (Op("abs", (x,), lane), Literal(INT64_MAX, lane)), BOOLEAN)
        return Op("case", (endless, Literal(None, lane), x), lane)

    return Op("idiv", (Op("sub", (finite(b), finite(a)), lane), Literal(unit_us, lane)), lane)


def sqrt(value: Lowered) -> Lowered:
    """The square root of a double."""
    return Op("function", (value,), FLOAT, _FUNCTIONS["sqrt"])


def exp(value: Lowered) -> Lowered:
    """The exponential of a double."""
    return Op("function", (value,), FLOAT, _FUNCTIONS["exp"])


def lower(expression: Expression, leaf: Callable[[Expression], Lowered | None]) -> Lowered:
    """Returns the expression in lanes. `leaf` maps sub-expressions that are read from outside (columns, registers).

    Raises NoLane if the exact meaning is not expressible. Long: a case for each operation."""
    found = leaf(expression)
    if found is not None:
        return found

    def down(e: Expression) -> Lowered:
        return lower(e, leaf)

    match expression:
        case Constant():
            return _literal(expression)
        case Call("and" | "or" as name, arguments):
            return _connected(name, [down(argument) for argument in arguments])
        case Call("not", (a,)):
            return Op("not", (down(a),), BOOLEAN)
        case Call("is_null", (a,)):
            return Op("is_null", (down(a),), BOOLEAN)
        case Call("is_not_null", (a,)):
            return Op("not", (Op("is_null", (down(a),), BOOLEAN),), BOOLEAN)
        case Call("=" | "<>" | "<" | "<=" | ">" | ">=" as name, (a, b)):
            if "FLOAT" in (a.type, b.type):
                a, b = _alike((a, b))
            x, y, prefix = _same(down(a), down(b))
            if Unit.CODE in (x.lane.unit, y.lane.unit) and name not in ("=", "<>"):
                if "VARCHAR" not in (x.lane.coded, y.lane.coded):
                    raise NoLane(f"{name} of {x.lane.coded or y.lane.coded}")
                x, y = _ranked(x), _ranked(y)
            return Op(prefix + _COMPARE[name], (x, y), BOOLEAN)
        case Opaque(sql, (a, *others), "BOOLEAN") if (equal := equality(sql, len(others))) and a.type in CODED:
            return down(Call(equal, (a, others[0] if others else a), "BOOLEAN"))
        case Call("is_distinct" | "is_not_distinct" as name, (a, b)):
            if "FLOAT" in (a.type, b.type):
                a, b = _alike((a, b))
            x, y, prefix = _same(down(a), down(b))
            distinct = Op(prefix + "distinct", (x, y), BOOLEAN)
            return distinct if name == "is_distinct" else Op("not", (distinct,), BOOLEAN)
        case Call("between", (a, low, high)):
            name = "and" if isinstance(high, Constant) else "both"
            a, low, high = _alike((a, low, high))
            return _connected(name, [down(Call(">=", (a, low), "BOOLEAN")), down(Call("<=", (a, high), "BOOLEAN"))])
        case Call("in", (a, *items)):
            name = "or" if all(isinstance(item, Constant) for item in items) else "either"
            a, *items = _alike((a, *items))
            return _connected(name, [down(Call("=", (a, item), "BOOLEAN")) for item in items])
        case Call("+" | "-" | "*" as name, (a, b), type):
            lane = lane_of(type)
            x, y = down(a), down(b)
            if Unit.DAYS in (x.lane.unit, y.lane.unit, lane.unit):
                return _on_dates(name, x, y, lane)
            if {x.lane.unit, y.lane.unit, lane.unit} - {Unit.NUMBER, Unit.MICROSECONDS}:
                raise NoLane(f"{name} of {a.type} and {b.type}")
            if lane.floating:
                return Op("f" + _ARITHMETIC[name], (_to_float(x), _to_float(y)), lane)
            if a.type in _TIMES or b.type in _TIMES:
                lane = replace(lane, low=-_FAR_US, high=_FAR_US)
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
            if any(of.unit is not Unit.NUMBER for of in (lane, x.lane, y.lane)):
                raise NoLane(f"{name} of other than numbers")
            if lane.floating:
                if name == "//":
                    raise NoLane("// of doubles")
                return Op("function_of_two", (_to_float(x), _to_float(y)), lane, _FUNCTIONS_OF_TWO["fmod"])
            if name == "//" and any(of.scale for of in (lane, x.lane, y.lane)):
                raise NoLane("// of decimals")
            return Op("idiv" if name == "//" else "mod", (_to_scale(x, lane.scale), _to_scale(y, lane.scale)), lane)
        case Call("neg" | "abs" as name, (a,), type):
            lane = lane_of(type)
            if lane.unit not in (Unit.NUMBER, Unit.MICROSECONDS):
                raise NoLane(f"{name} of {type}")
            x = _fit(down(a), lane)
            return Op(("f" if lane.floating else "") + name, (x,), lane)
        case Call("cast", (a,), type):
            lane = kept_lane(type)
            x = down(a)
            if a.type == type:
                return x
            return _cast(x, lane, f"CAST of {a.type} to {type}")
        case Call("case", arguments, type):
            lane = kept_lane(type)
            parts = [
                _fit(down(e), lane) if i % 2 or i == len(arguments) - 1 else down(e) for i, e in enumerate(arguments)
            ]
            return Op("case", tuple(parts), lane)
        case Call("coalesce", arguments, type):
            lane = kept_lane(type)
            return Op("coalesce", tuple(_fit(down(e), lane) for e in arguments), lane)
        case Call("refuse", (a,)):
            return Op("refuse", (down(a),), BOOLEAN)
        case Opaque(sql, values, type) if (called := _called(sql)) is not None:
            given = tuple(values[item] if isinstance(item, int) else item for item in called[1])
            if (computed := _function(called[0], given, type, down)) is None:
                raise NoLane(f"the function {called[0]}")
            return computed
        case Column(name, type):
            raise NoLane(f"column {name} of type {type}")
        case Call(name):
            raise NoLane(name)
        case _:
            raise NoLane("an expression that only DuckDB computes")


def equality(sql: str, others: int) -> str | None:
    """Returns the operator of a comparison that is left to DuckDB, of `others` values with the first one."""
    found = re.fullmatch(r'\("_(\d)" (=|<>|!=|IS DISTINCT FROM|IS NOT DISTINCT FROM) "_(\d)"\)', sql)
    if found is None or others > 1 or {found[1], found[3]} != {"0", str(others)}:
        return None
    named = {"!=": "<>", "IS DISTINCT FROM": "is_distinct", "IS NOT DISTINCT FROM": "is_not_distinct"}
    return named.get(found[2], found[2])
