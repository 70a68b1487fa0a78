"""Row-local expressions over whole batches: numpy in lanes where that is exact, one DuckDB projection for the rest."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa

from matching.batch import Int64Array
from matching.store import RowStore, lanes
from query.automaton.lanes import Lane, Leaf, Literal, Lowered, NoLane, Op, lane_of, lower
from query.errors import DataError
from query.language.duck import quiet_connection
from query.plan.expression import Column, Expression, Navigation, show, to_sql, walk

Values = tuple[np.ndarray, np.ndarray | None]
INT64_MIN = np.int64(-(2**63))


class _Overflow(Exception):
    """A lane overflowed somewhere; DuckDB decides whether that row was ever read."""


def storable(type: str) -> Lane | None:
    """The lane a column of this type is stored in, or None if it is kept as Arrow."""
    try:
        lane = lane_of(type)
    except NoLane:
        return None
    if type in ("INTERVAL", "HUGEINT") or (type.startswith("DECIMAL") and lane.high > 10**18):
        return None
    return lane


def _leaf(expression: Expression) -> Leaf | None:
    match expression:
        case Column(name, type):
            lane = storable(type)
            if lane is None:
                raise NoLane(f"column {name}")
            return Leaf((name, 0), lane)
        case Navigation(Column(name, type), logical=None, physical_offset=offset):
            lane = storable(type)
            if lane is None:
                raise NoLane(f"column {name}")
            return Leaf((name, offset), lane)
        case Navigation():
            raise NoLane("navigation over an expression")
    return None


def lowered(expression: Expression) -> Lowered | None:
    """The expression in lanes over stored columns, or None if DuckDB has to compute it."""
    try:
        return lower(expression, _leaf)
    except NoLane:
        return None


def columns_read(expressions: Sequence[Expression]) -> tuple[str, ...]:
    """Names of the columns that occur anywhere in the expressions, in order."""
    return tuple(dict.fromkeys(e.name for x in expressions for e in walk(x) if isinstance(e, Column)))


class RowValues:
    """Evaluates row-local expressions at positions of a RowStore."""

    def __init__(self, expressions: Sequence[Expression]) -> None:
        self.expressions = tuple(expressions)
        self.lowered = tuple(map(lowered, self.expressions))

    def evaluate(self, store: RowStore, positions: Int64Array | slice) -> list[Values]:
        """Values (int64 or float64, (n,)) and validity of each expression. Raises DataError when a value cannot be
        computed (overflow, a bad cast), as DuckDB would."""
        results: list[Values | None] = []
        by_duckdb = []
        for index, low in enumerate(self.lowered):
            value: Values | None = None
            if low is not None:
                try:
                    value = _run(low, store, positions)
                except _Overflow:
                    value = None
            if value is None:
                by_duckdb.append(index)
            results.append(value)
        if by_duckdb:
            arrays = duckdb_values([self.expressions[i] for i in by_duckdb], store, positions)
            for i, array in zip(by_duckdb, arrays, strict=True):
                results[i] = lanes(array, lane_of(self.expressions[i].type).floating)
        return [r for r in results if r is not None]


def duckdb_values(
    expressions: Sequence[Expression], store: RowStore, positions: Int64Array | slice
) -> list[pa.Array]:
    """Row-local expressions by one DuckDB projection, as Arrow arrays in DuckDB's types."""
    if isinstance(positions, slice):
        positions = np.arange(positions.start, positions.stop)
    columns: dict[str, pa.Array] = {}

    def place(name: str, offset: int) -> str:
        key = f"{name}@{offset}"
        if key not in columns:
            columns[key] = store.column(name, store.chase(positions, offset) if offset else positions)
        return '"' + key.replace('"', '""') + '"'

    def sql(expression: Expression, offset: int) -> str:
        leaves: dict[Expression, str] = {}
        for e in walk(expression):
            match e:
                case Navigation(argument, logical=None, physical_offset=physical) if e not in leaves:
                    total = offset + physical
                    exists = f"exists@{total}"
                    if exists not in columns:
                        columns[exists] = pa.array(store.chase(positions, total) >= 0)
                    leaves[e] = f'(CASE WHEN "{exists}" THEN {sql(argument, total)} END)'
                case Column(name):
                    leaves[e] = place(name, offset)
        return to_sql(expression, leaves)

    texts = [sql(e, 0) for e in expressions]
    if not columns:
        columns["_"] = pa.nulls(len(positions))
    table = pa.table(columns)
    selected = ", ".join(f"{text} AS v{i}" for i, text in enumerate(texts))
    cursor = quiet_connection().cursor()
    try:
        cursor.register("t", table)
        result = pa.table(cursor.sql(f"SELECT {selected} FROM t"))
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        shown = ", ".join(show(e) for e in expressions)
        raise DataError(
            f"a condition or measure cannot be computed for these rows: {reason}",
            f"guard it with TRY(...), TRY_CAST or CASE in: {shown}",
        ) from None
    finally:
        cursor.close()
    return [c.combine_chunks() if c.num_chunks != 1 else c.chunk(0) for c in result.columns]


# ---- lanes by numpy ---------------------------------------------------------------------------------------------


def _both(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    if a is None or b is None:
        return b if a is None else a
    return a & b


def _less(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """DuckDB's order of doubles: NaN is the largest."""
    return ~np.isnan(x) & ((x < y) | np.isnan(y))


def _equal(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x == y) | (np.isnan(x) & np.isnan(y))


def _checked(result: np.ndarray, bad: np.ndarray | bool, valid: np.ndarray | None, lane: Lane) -> np.ndarray:
    out = bad | (result < lane.low) | (result > lane.high)
    if np.any(out if valid is None else out & valid):
        raise _Overflow
    return result


def _run(low: Lowered, store: RowStore, positions: Int64Array | slice) -> Values:
    """Values and validity of a lowered expression."""
    count = positions.stop - positions.start if isinstance(positions, slice) else len(positions)
    gathered: dict[tuple[str, int], Values] = {}

    def run(node: Lowered) -> Values:
        match node:
            case Leaf((str(name), int(offset))):
                if (name, offset) not in gathered:
                    at: Int64Array | slice = positions
                    if offset:
                        at = _neighbours(store, positions, offset)
                    gathered[name, offset] = store.lane(name, at)
                return gathered[name, offset]
            case Literal(None, lane):
                return np.zeros(count, np.float64 if lane.floating else np.int64), np.zeros(count, np.bool_)
            case Literal(constant, lane):
                # a scalar broadcasts; it is all valid
                return np.asarray(constant, np.float64 if lane.floating else np.int64), None
            case Op("and" | "or" as name, (a, b)):
                x, xv = run(a)
                y, yv = run(b)
                x, y = x != 0, y != 0
                if xv is None and yv is None:
                    return (x & y if name == "and" else x | y), None
                xv = np.ones(count, np.bool_) if xv is None else xv
                yv = np.ones(count, np.bool_) if yv is None else yv
                if name == "and":
                    return x & y & xv & yv, (xv & yv) | (xv & ~x) | (yv & ~y)
                return (x & xv) | (y & yv), (xv & yv) | (xv & x) | (yv & y)
            case Op("not", (a,)):
                x, xv = run(a)
                return x == 0, xv
            case Op("is_null", (a,)):
                _, xv = run(a)
                return (np.zeros(count, np.bool_) if xv is None else ~xv), None
            case Op("case", parts):
                return _case([run(p) for p in parts], count, node.lane)
            case Op("coalesce", parts):
                values = [run(p) for p in parts]
                pairs: list[Values] = []
                for value in values[:-1]:
                    valid = np.ones(count, np.bool_) if value[1] is None else value[1]
                    pairs += [(valid, None), value]
                return _case([*pairs, values[-1]], count, node.lane)
            case Op(name, (a,), lane):
                x, xv = run(a)
                return _unary(name, x, xv, lane, a.lane), xv
            case Op(name, (a, b), lane):
                return _binary(name, run(a), run(b), lane, count)
            case _:
                raise AssertionError(node)

    values, valid = run(low)
    if values.ndim == 0:
        values = np.full(count, values)
    if valid is not None and valid.ndim == 0:
        valid = np.full(count, valid)
    return values, valid


def _neighbours(store: RowStore, positions: Int64Array | slice, offset: int) -> Int64Array:
    if isinstance(positions, slice):
        chain = store.next if offset > 0 else store.previous
        positions = chain[positions]
        offset += -1 if offset > 0 else 1
    return store.chase(positions, offset)


def _case(parts: list[Values], count: int, lane: Lane) -> Values:
    values = np.zeros(count, np.float64 if lane.floating else np.int64)
    valid = np.ones(count, np.bool_)
    left = np.ones(count, np.bool_)
    for (condition, known), (value, ok) in zip(parts[:-1:2], parts[1::2], strict=True):
        chosen = left & (condition != 0) & (True if known is None else known)
        values = np.where(chosen, value, values)
        valid = np.where(chosen, True if ok is None else ok, valid)
        left &= ~chosen
    value, ok = parts[-1]
    return np.where(left, value, values), np.where(left, True if ok is None else ok, valid)


def _unary(name: str, x: np.ndarray, valid: np.ndarray | None, lane: Lane, of: Lane) -> np.ndarray:
    match name:
        case "to_float":
            return x.astype(np.float64) / 10.0**of.scale if of.scale else x.astype(np.float64)
        case "rescale":
            factor = np.int64(10 ** (lane.scale - of.scale))
            limit = np.int64(2**63 - 1) // factor
            return _checked(x * factor, (x > limit) | (x < -limit), valid, lane)
        case "neg" | "abs":
            result = -x if name == "neg" else np.abs(x)
            return _checked(result, x == INT64_MIN, valid, lane)
        case "fneg":
            return -x
        case "fabs":
            return np.abs(x)
        case _:
            raise AssertionError(name)


def _binary(name: str, a: Values, b: Values, lane: Lane, count: int) -> Values:
    (x, xv), (y, yv) = a, b
    valid = _both(xv, yv)
    with np.errstate(all="ignore"):
        match name:
            case "eq":
                return x == y, valid
            case "ne":
                return x != y, valid
            case "lt":
                return x < y, valid
            case "le":
                return x <= y, valid
            case "gt":
                return x > y, valid
            case "ge":
                return x >= y, valid
            case "feq":
                return _equal(x, y), valid
            case "fne":
                return ~_equal(x, y), valid
            case "flt":
                return _less(x, y), valid
            case "fle":
                return ~_less(y, x), valid
            case "fgt":
                return _less(y, x), valid
            case "fge":
                return ~_less(x, y), valid
            case "distinct" | "fdistinct":
                same = x == y if name == "distinct" else _equal(x, y)
                if valid is None:
                    return ~same, None
                xv = np.ones(count, np.bool_) if xv is None else xv
                yv = np.ones(count, np.bool_) if yv is None else yv
                return np.where(xv & yv, ~same, xv != yv), None
            case "add":
                r = x + y
                return _checked(r, ((x ^ r) & (y ^ r)) < 0, valid, lane), valid
            case "sub":
                r = x - y
                return _checked(r, ((x ^ y) & (x ^ r)) < 0, valid, lane), valid
            case "mul":
                r = x * y
                rough = np.abs(x.astype(np.float64) * y.astype(np.float64))
                return _checked(r, rough >= 2.0**62, valid, lane), valid
            case "idiv" | "mod":
                bad = (y == 0) | ((y == -1) & (x == INT64_MIN))
                safe = np.where(bad, 1, y)
                q = np.abs(x) // np.abs(safe)
                q = np.where((x < 0) != (safe < 0), -q, q)
                return _checked(q if name == "idiv" else x - q * safe, bad, valid, lane), valid
            case "fadd":
                return x + y, valid
            case "fsub":
                return x - y, valid
            case "fmul":
                return x * y, valid
            case "fdiv":
                return x / y, valid
            case _:
                raise AssertionError(name)


def truth(values: Values) -> np.ndarray:
    """True where the value is true (not null, not false), bool (n,)."""
    v, valid = values
    held = v if v.dtype == np.bool_ else v != 0
    return held if valid is None else held & valid
