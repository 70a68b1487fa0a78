"""Rows of closed windows: partitions of a group put together, aggregates as values, HAVING and measures over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.engines.engine import ClosedWindows
from matching.engines.run_trends import in_order, out_of_order
from matching.features import query
from matching.program.trends import FLOAT, LEAST, Put, TrendTable
from matching.store import to_arrow
from matching.trend_numbers import nearest, sums_of_doubles, whole_numbers
from matching.types import arrow_schema, plain_type
from query.errors import DataError
from query.plan.expression import Column, Expression, quote, show, to_sql, walk
from query.plan.output import output_columns
from query.plan.plan import Plan
from query.plan.trends import BIGNUM, WINDOW_COLUMNS, Over
from query.schema import Schema

#: Numbers of fewer bits have fewer digits than str(int) may be told to refuse; it is quicker than Decimal.
SHORT_BITS = 1 << 11
#: Bits of a number of values from which on a sum of doubles that is not finite has overflowed: a double has 1,024.
MANY_BITS = 512


class InfiniteSum(DataError):
    """Raised for a sum of doubles that so many trends have made infinite, or no number. aggregate: its name."""

    def __init__(self, aggregate: str) -> None:
        self.aggregate = aggregate
        super().__init__(
            f"{aggregate} of a window with more than 2^{MANY_BITS} values is more than a DOUBLE can hold",
            "cast the values to DECIMAL, whose sums are exact, or take MIN and MAX",
        )

    def _arguments(self) -> tuple[object, ...]:
        return (self.aggregate,)


def trend_rows(plan: Plan, table: TrendTable, windows: ClosedWindows, groups: Sequence[pa.Array]) -> pa.Table:
    """Returns the output rows of windows, by window, then group, nulls first. groups: the values of GROUP BY of each
    row of `windows`. Raises DataError if HAVING or a measure cannot be computed."""
    schema = arrow_schema(Schema("", output_columns(plan)))
    if not len(windows):
        return schema.empty_table()
    first, group = grouped(windows.window, groups)
    return rows_of(plan, table, windows.window[first], [g.take(pa.array(first)) for g in groups],
                   totals(windows, group, len(first)))  # fmt: skip


def rows_of(
    plan: Plan, table: TrendTable, window: np.ndarray, groups: Sequence[pa.Array], put: Totals
) -> pa.Table:
    """Returns the output rows of windows and groups, given their sums, in the same order."""
    schema = arrow_schema(Schema("", output_columns(plan)))
    start = window * table.trends.slide_us
    columns: dict[str, pa.Array] = {}
    for field, us in zip(WINDOW_COLUMNS, (start, start + table.trends.within_us), strict=True):
        columns[field.name] = pa.array(us).cast(plain_type(field.type))
    columns |= {c.name: values for c, values in zip(table.trends.group_by, groups, strict=True)}
    fixed = len(columns)
    columns |= {p.aggregate.name: _value(p, put, table) for p in table.puts}
    return measured(plan, columns, fixed).cast(schema)


def grouped(window: np.ndarray, groups: Sequence[pa.Array]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index of the first row of each (window, group), in the order of windows and groups, nulls first; and
    for each row the number of its (window, group)."""
    if not groups:
        _, first, number = np.unique(window, return_index=True, return_inverse=True)
        return first, number.astype(np.int64)
    groups = [_ordered(values) for values in groups]
    by = {f"g{i}": values for i, values in enumerate(groups)}
    rows = pa.table({"w": pa.array(window), **by, "i": pa.array(np.arange(len(window)))})
    keys = ["w", *by]
    found = rows.group_by(keys, use_threads=False).aggregate([("i", "min")])
    order = pc.sort_indices(found, [(name, "ascending", "at_start") for name in keys])
    first = found["i_min"].take(order).to_numpy()
    if len(first) == len(window):
        number = np.empty(len(window), np.int64)
        number[first] = np.arange(len(first))
        return first, number
    codes = [np.unique(window, return_inverse=True)[1]]
    for values in groups:
        encoded = values.dictionary_encode(null_encoding="encode")
        codes.append((encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded).indices.to_numpy())
    joined = codes[0].astype(np.int64)
    for code in codes[1:]:
        joined = np.unique(joined * (int(code.max(initial=0)) + 1) + code, return_inverse=True)[1]
    place = np.empty(int(joined.max()) + 1, np.int64)
    place[joined[first]] = np.arange(len(first))
    return first, place[joined]


def _ordered(values: pa.Array) -> pa.Array:
    """Returns values of a group as they are ordered: doubles as whole numbers, for Arrow puts NaN first."""
    if not pa.types.is_floating(values.type):
        return values
    null = values.is_null().to_numpy(zero_copy_only=False)
    return pa.array(in_order(values.fill_null(0.0).cast(pa.float64()).to_numpy()), mask=null)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of n rows of windows. whole: Python's ints, object (n, numbers); floats: float64 (n, sums); least, largest:
    int64 (n, sums), in the order of the values; there: bool (n, sums), True if there is a value."""

    whole: np.ndarray
    floats: np.ndarray
    least: np.ndarray
    largest: np.ndarray
    there: np.ndarray


def totals(windows: ClosedWindows, group: np.ndarray, count: int) -> Totals:
    """Adds up the rows of each group."""
    floats = np.empty((count, windows.floats.shape[1]))
    for k in range(floats.shape[1]):
        floats[:, k] = sums_of_doubles(windows.floats[:, k], group, count)
    shape = count, windows.least.shape[1]
    least, largest = (np.full(shape, bound, np.int64) for bound in (np.iinfo(np.int64).max, np.iinfo(np.int64).min))
    there = np.zeros(shape, np.bool_)
    for k in range(shape[1]):
        some = np.flatnonzero(windows.least_there[:, k])
        np.minimum.at(least[:, k], group[some], windows.least[some, k])
        np.maximum.at(largest[:, k], group[some], windows.least[some, k])
        there[group[some], k] = True
    return Totals(whole_numbers(windows.whole, group, count), floats, least, largest, there)


def _value(p: Put, put: Totals, table: TrendTable) -> pa.Array:
    """Returns the column of an aggregate, in the type of the plan; BIGNUM as digits."""
    kind, count = p.aggregate.type, len(put.whole)
    values = put.whole[:, 1 + p.values] if p.values >= 0 else None
    missing = None if values is None else np.array([not n for n in values], np.bool_)
    if p.kind == LEAST:
        of = put.largest if table.of_kind(LEAST)[p.total].largest else put.least
        numbers, there = of[:, p.total], put.there[:, p.total]
        argument = p.aggregate.argument
        assert argument is not None
        lane = next(lane for e, lane in table.features if e == argument)
        return to_arrow(out_of_order(numbers) if lane.floating else numbers, there, plain_type(kind))
    if p.kind == FLOAT:
        total = put.floats[:, p.total]
        _check_doubles(p, total, values)
        if p.aggregate.over is Over.SUM:
            return pa.array(total, mask=missing)
        assert values is not None
        means = [None if not n else nearest(Fraction(t) / n) if np.isfinite(t) else t for t, n in zip(total, values)]
        return pa.array(means, pa.float64())
    numbers = put.whole[:, 1 + p.total]
    if p.aggregate.over is Over.AVG:
        assert values is not None
        scale = 10**p.scale
        means = [None if not n else nearest(Fraction(t, n * scale)) for t, n in zip(numbers, values)]
        return pa.array(means, pa.float64())
    shown = np.zeros(count, np.bool_) if missing is None else missing
    if not p.scale and count and numbers.min() >= -(2**63) and numbers.max() < 2**63:
        return pa.array(numbers.astype(np.int64), mask=shown).cast(pa.string())
    return pa.array([digits(n, p.scale) for n in numbers], pa.string(), mask=shown)


def _check_doubles(p: Put, total: np.ndarray, values: np.ndarray | None) -> None:
    """Raises InfiniteSum for sums of doubles that so many trends have made infinite, or no number. values: the number
    of values of each sum."""
    for sum_, count in zip(total, () if values is None else values):
        if not np.isfinite(sum_) and int(count).bit_length() > MANY_BITS:
            raise InfiniteSum(p.aggregate.name)


def digits(number: int, scale: int = 0) -> str:
    """Returns the digits of a whole number of 10**-scale."""
    short = number.bit_length() < SHORT_BITS
    text = (str(abs(number)) if short else format(Decimal(abs(number)), "f")).rjust(scale + 1, "0")
    sign = "-" if number < 0 else ""
    return sign + (f"{text[:-scale]}.{text[-scale:]}" if scale else text)


def measured(plan: Plan, columns: dict[str, pa.Array], fixed: int) -> pa.Table:
    """Returns the windows, groups and measures of the rows that HAVING keeps. fixed: number of the columns before the
    aggregates."""
    trends = plan.trends
    assert trends is not None
    names = list(columns)[:fixed]
    expressions = [m.expression for m in plan.measures]
    if trends.having is None and all(isinstance(e, Column) for e in expressions):
        picked = [columns[e.name] for e in expressions if isinstance(e, Column)]
        return pa.table([*(columns[n] for n in names), *picked], names=[f.name for f in output_columns(plan)])
    types = {a.name: a.type for a in trends.aggregates if a.type == BIGNUM}
    leaves: dict[Expression, str] = {
        e: f"CAST({quote(e.name)} AS {BIGNUM})"
        for root in [*expressions, *([] if trends.having is None else [trends.having])]
        for e in walk(root)
        if isinstance(e, Column) and e.name in types
    }
    selected = [quote(n) for n in names]
    for m in plan.measures:
        sql = to_sql(m.expression, leaves)
        selected.append(f"CAST({sql} AS VARCHAR)" if m.type == BIGNUM else sql)
    where = "" if trends.having is None else f" WHERE {to_sql(trends.having, leaves)}"
    shown = ", ".join(f"{sql} AS c{i}" for i, sql in enumerate(selected))
    listed = ", ".join(map(show, expressions))

    def failure(reason: str) -> DataError:
        return DataError(f"a measure cannot be computed for these windows: {reason}",
                         f"guard it with TRY(...), TRY_CAST or CASE in: {listed}")

    found = query(f"SELECT {shown} FROM t{where}", {"t": columns}, failure, plan.settings)
    return pa.table(found, names=[f.name for f in output_columns(plan)])

