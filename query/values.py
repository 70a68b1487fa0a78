"""Values of bound expressions in plain Python, with DuckDB's meaning: for the reference, one row and match at a
time."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from itertools import islice
from typing import Any, assert_never

from query.errors import DataError, Diagnostic, QueryError
from query.plan.expression import (
    Aggregate,
    Call,
    Classifier,
    Column,
    Constant,
    Expression,
    Logical,
    MatchNumber,
    Navigation,
    Opaque,
    children,
    show,
)

#: Computes the expressions that this file cannot: `evaluate(expression, leaves)` with the value of every leaf of the
#: expression. Leaves are its Columns, Navigations, Aggregates, Classifiers and MatchNumbers. An Aggregate comes with
#: {input: list of its values at the aggregated rows, in order} for each of its inputs. Raises DataError where DuckDB
#: raises.
Evaluate = Callable[[Expression, Mapping[Expression, Any]], Any]

Row = Mapping[str, object]
#: (variable, position of the row in its partition)
Label = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """Rows of one partition. values: of PARTITION BY, as in its first row. index: row index of each position."""

    values: tuple[object, ...]
    index: list[int]


@dataclass(frozen=True, slots=True)
class EvaluationScope:
    """The position at which an expression is evaluated.

    labels: rows of the match with their variables; the first `seen` of them are visible to RUNNING. at: position of the
    candidate or current row, None for an empty match. number: MATCH_NUMBER, None of a partial match.
    """

    partition: PartitionRows
    rows: Sequence[Row]
    labels: tuple[Label, ...]
    seen: int
    at: int | None
    number: int | None
    evaluate: Evaluate | None

    def visible(self, final: bool) -> tuple[Label, ...]:
        return self.labels if final or self.seen == len(self.labels) else self.labels[: self.seen]


def logical_row(e: Navigation, visible: Sequence[Label], current: int) -> int | None:
    """The position a navigation starts its physical step from."""
    if e.logical is None:
        return current
    steps = visible if e.logical is Logical.FIRST else reversed(visible)
    positions = (p for name, p in steps if not e.variables or name in e.variables)
    return next(islice(positions, e.logical_offset, None), None)


def value(e: Expression, scope: EvaluationScope) -> Any:
    """The value of an expression; None is null."""
    match e:
        case Constant():
            return _constant(e, scope)
        case Column(name):
            return None if scope.at is None else _cell(scope.rows[scope.partition.index[scope.at]][name])
        case Navigation(argument, physical_offset=offset, final=final):
            if scope.at is None:
                return None
            base = logical_row(e, scope.visible(final), scope.at)
            if base is None or not 0 <= base + offset < len(scope.partition.index):
                return None
            return value(argument, replace(scope, at=base + offset))
        case Aggregate(variables=variables, final=final):
            positions = [p for name, p in scope.visible(final) if not variables or name in variables]
            positions = positions[:-1] if e.before else positions
            inputs = {x: [value(x, replace(scope, at=p)) for p in positions] for x in e.inputs}
            return _aggregate(e, len(positions), inputs, scope.evaluate)
        case Classifier():
            return next((name for name, p in reversed(scope.labels) if p == scope.at), None)
        case MatchNumber():
            return scope.number
        case Opaque():
            return _outside(e, scope)
        case Call():
            return _call(e, scope)
        case _:
            assert_never(e)


def _cell(cell: object) -> Any:
    """Time is int64 microseconds, UTC."""
    if isinstance(cell, datetime):
        moment = cell if cell.tzinfo else cell.replace(tzinfo=UTC)
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return cell


def _outside(e: Expression, scope: EvaluationScope) -> Any:
    """Returns the value of an expression that only DuckDB can compute."""
    if scope.evaluate is None:
        raise _needs_duckdb(e)
    leaves: dict[Expression, Any] = {}

    def collect(x: Expression) -> None:
        if isinstance(x, Column | Navigation | Aggregate | Classifier | MatchNumber):
            leaves[x] = value(x, scope)
        else:
            for child in children(x):
                collect(child)

    collect(e)
    return scope.evaluate(e, leaves)


def _needs_duckdb(e: Expression) -> QueryError:
    return QueryError([Diagnostic("HQ500", f"{show(e)} can only be computed by DuckDB", e.span)])


INTEGERS: dict[str, tuple[int, int]] = {
    "TINYINT": (-(2**7), 2**7 - 1),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INTEGER": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1),
    "HUGEINT": (-(2**127), 2**127 - 1),
    "UTINYINT": (0, 2**8 - 1),
    "USMALLINT": (0, 2**16 - 1),
    "UINTEGER": (0, 2**32 - 1),
    "UBIGINT": (0, 2**64 - 1),
    "UHUGEINT": (0, 2**128 - 1),
}
_TIMES = ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE")
#: Types whose values, within one type, compare in Python as they do in DuckDB.
_ORDERED = {*_TIMES, "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "DATE", "VARCHAR", "BLOB", "BOOLEAN"}
_NULL = ("", "NULL", '"NULL"')
_EXACT = Context(prec=100)


def _is_decimal(type: str) -> bool:
    return type.startswith("DECIMAL(")


def _is_float(type: str) -> bool:
    return type in ("DOUBLE", "FLOAT")


def _is_exact(type: str) -> bool:
    return type in INTEGERS or _is_decimal(type)


def _is_number(type: str) -> bool:
    return _is_exact(type) or _is_float(type)


def _decimal_shape(type: str) -> tuple[int, int]:
    """(width, scale) of DECIMAL(width,scale)."""
    width, scale = type[len("DECIMAL(") : -1].split(",")
    return int(width), int(scale)


def _constant(e: Constant, scope: EvaluationScope) -> Any:
    if e.value is None and (not e.sql or e.type in _NULL):
        return None
    known = _is_number(e.type) or e.type in ("BOOLEAN", "VARCHAR", "INTERVAL", *_TIMES)
    text = isinstance(e.value, str) and e.type != "VARCHAR"
    if e.value is None or text or not known:
        return _outside(e, scope)
    if _is_decimal(e.type):
        return _to_decimal(Decimal(str(e.value)), e.type, e)
    return float(e.value) if _is_float(e.type) else e.value


def _is_fixed_interval(e: Expression) -> bool:
    """True for an interval that is known to have no months: its value is int microseconds."""
    match e:
        case Constant(ticks, "INTERVAL"):
            return isinstance(ticks, int)
        case Call("-", (a, b), "INTERVAL") if a.type in _TIMES and a.type == b.type:
            return True
        case Call("+" | "-" | "neg", arguments, "INTERVAL"):
            return all(map(_is_fixed_interval, arguments))
        case _:
            return False


def _comparable(arguments: Sequence[Expression]) -> str | None:
    """Returns the type that DuckDB compares these as, or "same" if they need no cast; None if it is left to DuckDB."""
    types = {a.type for a in arguments if a.type not in _NULL}
    if all(map(_is_number, types)):
        if any(map(_is_float, types)):
            return "DOUBLE" if "DOUBLE" in types else "FLOAT"
        if not any(map(_is_decimal, types)):
            return "same"  # Python compares integers of any width exactly
        shapes = [_decimal_shape(t) if _is_decimal(t) else (len(str(INTEGERS[t][1])), 0) for t in types]
        scale = max(s for _, s in shapes)
        return f"DECIMAL({min(38, max(w - s for w, s in shapes) + scale)},{scale})"
    if len(types) == 1 and (types <= _ORDERED or all(_is_fixed_interval(a) for a in arguments if a.type not in _NULL)):
        return "same"
    return None


def _fail(e: Expression, why: str) -> DataError:
    return DataError(f"{why} in {show(e)}", "use TRY(...) to get NULL instead")


def _call(e: Call, scope: EvaluationScope) -> Any:
    """Returns the value of a core operator, with DuckDB's meaning. Other types are left to DuckDB."""
    match e.function, e.arguments:
        case "and" | "or", arguments:
            return _connect(e.function == "or", (_boolean(a, scope) for a in arguments))
        case "not", (a,):
            truth = _boolean(a, scope)
            return None if truth is None else not truth
        case "is_null", (a,):
            return value(a, scope) is None
        case "is_not_null", (a,):
            return value(a, scope) is not None
        case "coalesce", arguments:
            return next((v for a in arguments if (v := _converted(a, e.type, scope)) is not None), None)
        case "case", arguments:
            for condition, then in zip(arguments[:-1:2], arguments[1::2], strict=True):
                if _boolean(condition, scope) is True:
                    return _converted(then, e.type, scope)
            return _converted(arguments[-1], e.type, scope)
        case "cast", (a,):
            return _converted(a, e.type, scope, e)
        case (("=" | "<>" | "<" | "<=" | ">" | ">=" | "is_distinct" | "is_not_distinct" | "in" | "between"), arguments):
            kind = _comparable(arguments)
            if kind is None:
                return _outside(e, scope)
            values = [_compared(value(a, scope), a, kind) for a in arguments]
            return _comparison(e.function, values)
        case (("+" | "-" | "*" | "/" | "//" | "%" | "neg" | "abs"), arguments):
            if all(a.type in _NULL or _is_number(a.type) for a in arguments) and _is_number(e.type):
                values = [value(a, scope) for a in arguments]
                if any(v is None for v in values):
                    return None
                return _arithmetic(e, values)
            return _time_arithmetic(e, scope)
        case _:
            return _outside(e, scope)


def _connect(wanted: bool, truths: Iterator[bool | None]) -> bool | None:
    """AND (wanted False) or OR (wanted True): stops at the first operand that decides it; null if none does but some
    operand is null."""
    result: bool | None = not wanted
    for truth in truths:
        if truth is wanted:
            return wanted
        if truth is None:
            result = None
    return result


def _boolean(e: Expression, scope: EvaluationScope) -> bool | None:
    truth: bool | None = _converted(e, "BOOLEAN", scope)
    return truth


def _order_key(v: Any) -> tuple[bool, Any]:
    """NaN equals itself and is the largest."""
    is_nan = isinstance(v, float) and math.isnan(v)
    return is_nan, 0 if is_nan else v


def hashable(value: object) -> object:
    """Returns the key of a value: NaN equals NaN; lists and structs have one."""
    if isinstance(value, float) and value != value:
        return ("nan",)
    if isinstance(value, list):
        return ("list", *map(hashable, value))
    if isinstance(value, tuple):  # an entry of a map
        return tuple(map(hashable, value))
    if isinstance(value, dict):
        return ("struct", *((k, hashable(v)) for k, v in value.items()))
    return value


def _compared(v: Any, e: Expression, kind: str) -> Any:
    return v if v is None or kind == "same" else _number(v, e.type, kind, e)


def _comparison(function: str, values: Sequence[Any]) -> bool | None:
    a, *others = values
    if function in ("is_distinct", "is_not_distinct"):
        (b,) = others
        same = a is None and b is None if a is None or b is None else _order_key(a) == _order_key(b)
        return same == (function == "is_not_distinct")
    if function == "in":
        return _connect(True, (_compare("=", a, item) for item in others))
    if function == "between":
        return _connect(False, iter([_compare(">=", a, others[0]), _compare("<=", a, others[1])]))
    return _compare(function, a, others[0])


def _compare(function: str, a: Any, b: Any) -> bool | None:
    if a is None or b is None:
        return None
    x, y = _order_key(a), _order_key(b)
    match function:
        case "=":
            return x == y
        case "<>":
            return x != y
        case "<":
            return x < y
        case "<=":
            return x <= y
        case ">":
            return x > y
        case ">=":
            return x >= y
        case _:
            raise ValueError(function)


def _to_float(v: Any, source: str, target: str) -> float:
    """An integer, DECIMAL or floating value as DOUBLE or FLOAT, rounded as DuckDB does."""
    if isinstance(v, Decimal):
        _, scale = _decimal_shape(source)
        unscaled, power = int(v.scaleb(scale, _EXACT)), 10**scale
        if abs(unscaled) <= 2**53 or scale == 0:
            result = float(unscaled) / power
        else:  # whole and fractional part apart
            sign = -1 if unscaled < 0 else 1
            whole, part = divmod(abs(unscaled), power)
            result = sign * (float(whole) + float(part) / power)
    elif isinstance(v, int) and abs(v) >= 2**64:
        sign = -1 if v < 0 else 1
        result = sign * (float(abs(v) % 2**64) + float(abs(v) >> 64) * 2.0**64)
    else:
        result = float(v)
    return _single(result) if target == "FLOAT" else result


def _single(v: float) -> float:
    """The nearest 32-bit float."""
    try:
        return float(struct.unpack("f", struct.pack("f", v))[0])
    except OverflowError:
        return math.copysign(math.inf, v)


def _to_integer(v: int, type: str, e: Expression) -> int:
    low, high = INTEGERS[type]
    if not low <= v <= high:
        raise _fail(e, f"{v} is out of the range of {type}")
    return v


def _to_decimal(v: Decimal | int, type: str, e: Expression) -> Decimal:
    """Rounds half away from zero."""
    width, scale = _decimal_shape(type)
    result = Decimal(v).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    if result.copy_abs() >= Decimal(10) ** (width - scale):  # abs() would round to the context's 28 digits
        raise _fail(e, f"{v} is out of the range of {type}")
    return result


def _converted(a: Expression, type: str, scope: EvaluationScope, e: Expression | None = None) -> Any:
    """The value of `a` cast to another type. e: the cast as written, if it is one."""
    e = e or Call("cast", (a,), type, a.span)
    if a.type == type or a.type in _NULL or type in _NULL:
        return value(a, scope)
    if type == "BOOLEAN" and _is_exact(a.type):
        v = value(a, scope)
        return None if v is None else v != 0
    if (_is_number(a.type) or (a.type == "BOOLEAN" and type in INTEGERS)) and _is_number(type):
        if not (_is_float(a.type) and _is_decimal(type)):  # DuckDB's own rounding applies there
            v = value(a, scope)
            return None if v is None else _number(v, a.type, type, e)
    return _outside(e, scope)


def _number(v: Any, source: str, target: str, e: Expression) -> Any:
    """A number of one type as another."""
    if _is_float(target):
        return _to_float(v, source, target)
    if _is_decimal(target):
        return _to_decimal(v, target, e)
    if isinstance(v, float):
        if not math.isfinite(v):
            raise _fail(e, f"{v} is out of the range of {target}")
        return _to_integer(round(v), target, e)  # half to even
    if isinstance(v, Decimal):
        return _to_integer(int(v.to_integral_value(ROUND_HALF_UP, _EXACT)), target, e)
    return _to_integer(int(v), target, e)


def _arithmetic(e: Call, values: Sequence[Any]) -> Any:
    """Arithmetic on numbers, none of them null, in the type of the call."""
    if _is_float(e.type):
        floats = [_to_float(v, a.type, e.type) for v, a in zip(values, e.arguments, strict=True)]
        result = _float_arithmetic(e, floats)
        return _single(result) if e.type == "FLOAT" else result
    if _is_decimal(e.type):
        # the factors of a product keep their scales, which add up
        product = e.function == "*"
        numbers = [Decimal(v) if product else _number(v, a.type, e.type, e) for v, a in zip(values, e.arguments)]
        return _to_decimal(_decimal_arithmetic(e, numbers), e.type, e)
    integers = [_number(v, a.type, e.type, e) for v, a in zip(values, e.arguments, strict=True)]
    return _to_integer(_integer_arithmetic(e, integers), e.type, e)


def _float_arithmetic(e: Call, v: Sequence[float]) -> float:
    match e.function:
        case "+":
            return v[0] + v[1]
        case "-":
            return v[0] - v[1]
        case "*":
            return v[0] * v[1]
        case "/":
            return _divide(v[0], v[1])
        case "//":
            if v[1] == 0:
                raise _fail(e, "division by zero")
            return _divide(v[0], v[1])  # on floating numbers DuckDB's // does not round
        case "%":
            if v[1] == 0 or math.isinf(v[0]) or math.isnan(v[0]) or math.isnan(v[1]):
                return math.nan
            return math.fmod(v[0], v[1])
        case "neg":
            return -v[0]
        case "abs":
            return abs(v[0])
        case _:
            raise ValueError(e.function)


def _divide(a: float, b: float) -> float:
    """IEEE 754 division."""
    if b != 0:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)


def _decimal_arithmetic(e: Call, v: Sequence[Decimal]) -> Decimal:
    match e.function:
        case "+":
            return _EXACT.add(v[0], v[1])
        case "-":
            return _EXACT.subtract(v[0], v[1])
        case "*":
            return _EXACT.multiply(v[0], v[1])
        case "%":
            if v[1] == 0:
                raise _fail(e, "division by zero")
            return _EXACT.remainder(v[0], v[1])  # has the sign of the dividend
        case "neg":
            return _EXACT.minus(v[0])
        case "abs":
            return _EXACT.abs(v[0])
        case _:
            raise ValueError(e.function)


def _integer_arithmetic(e: Call, v: Sequence[int]) -> int:
    match e.function:
        case "+":
            return v[0] + v[1]
        case "-":
            return v[0] - v[1]
        case "*":
            return v[0] * v[1]
        case "//" | "%":
            if v[1] == 0:
                raise _fail(e, "division by zero")
            quotient = abs(v[0]) // abs(v[1]) * (1 if (v[0] < 0) == (v[1] < 0) else -1)  # towards zero
            _to_integer(quotient, e.type, e)
            return quotient if e.function == "//" else v[0] - v[1] * quotient
        case "neg":
            return -v[0]
        case "abs":
            return abs(v[0])
        case _:
            raise ValueError(e.function)


def _time_arithmetic(e: Call, scope: EvaluationScope) -> Any:
    """Times and intervals of fixed length are microseconds; anything else is left to DuckDB."""

    def is_ticks(a: Expression) -> bool:
        return a.type in _TIMES or a.type in _NULL or _is_fixed_interval(a)

    known = e.function in ("+", "-", "neg") and e.type in (*_TIMES, "INTERVAL")
    if not known or not all(map(is_ticks, e.arguments)):
        return _outside(e, scope)
    values = [value(a, scope) for a in e.arguments]
    if any(v is None for v in values):
        return None
    for v, a in zip(values, e.arguments, strict=True):
        if a.type in _TIMES and abs(v) == 2**63 - 1:  # 'infinity'
            if e.type == "INTERVAL":
                raise _fail(e, "an infinite time cannot be subtracted")
            return v
    ticks = -values[0] if e.function == "neg" else values[0] + values[1] if e.function == "+" else values[0] - values[1]
    return _to_integer(ticks, "BIGINT", e)


def _aggregate(e: Aggregate, count: int, inputs: Mapping[Expression, Sequence[Any]], evaluate: Evaluate | None) -> Any:
    """An aggregate over `count` rows, with the value of each of its inputs at each row, in order. Floating sums go from
    left to right."""
    counted = [True] * count if e.where is None else [truth is True for truth in inputs[e.where]]
    if e.argument is None:
        return sum(counted)
    if e.distinct and "INTERVAL" in e.argument.type and evaluate is not None:  # one day is 24 hours
        return evaluate(e, inputs)
    there = [v for v, c in zip(inputs[e.argument], counted, strict=True) if c and v is not None]
    if e.distinct:
        there = list({hashable(v): v for v in there}.values())
    type = e.argument.type
    known = not (e.more or e.order) and (e.where is None or e.where.type == "BOOLEAN")
    if known and e.function == "count":
        return len(there)
    summable = _is_number(type) or (type == "BOOLEAN" and e.function == "sum")
    if known and e.function in ("sum", "avg") and summable and type != "UHUGEINT":
        return _sum(e, type, there) if there else None
    if known and e.function in ("min", "max") and (_is_number(type) or type in _ORDERED):
        return (min if e.function == "min" else max)(there, key=_order_key, default=None)
    if evaluate is None:
        raise _needs_duckdb(e)
    return evaluate(e, inputs)


def _sum(e: Aggregate, type: str, values: Sequence[Any]) -> Any:
    """The sum or average of values of one type, at least one."""
    if _is_float(type):
        total = 0.0
        for v in values:
            total += v
        return total if e.function == "sum" else total / len(values)
    if _is_decimal(type):
        _, scale = _decimal_shape(type)
        unscaled = sum(int(v.scaleb(scale, _EXACT)) for v in values)
        if e.function == "sum":
            return _to_decimal(Decimal(unscaled).scaleb(-scale, _EXACT), e.type, e)
        return float(unscaled) / (float(len(values)) * 10.0**scale)
    integer = _to_integer(sum(values), "HUGEINT", e)
    return integer if e.function == "sum" else float(integer) / len(values)
