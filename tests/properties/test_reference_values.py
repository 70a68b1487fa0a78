"""The reference computes expressions as DuckDB does: random expressions over random rows, one by the other."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from functools import cache

import duckdb
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.by_reference import DuckEvaluation, to_arrow, to_python
from query.errors import DataError, QueryError
from query.language.duck import quiet_connection
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from query.reference import find, match_rows
from query.schema import Field, Schema

COLUMNS = {
    "t": "TINYINT",
    "i": "INTEGER",
    "b": "BIGINT",
    "u": "UBIGINT",
    "h": "HUGEINT",
    "d": "DOUBLE",
    "f": "FLOAT",
    "m": "DECIMAL(9,2)",
    "w": "DECIMAL(30,4)",
    "o": "BOOLEAN",
    "s": "VARCHAR",
    "ts": "TIMESTAMP",
    "ts2": "TIMESTAMP",
    "dt": "DATE",
}
SCHEMA = Schema("e", tuple(Field(name, type) for name, type in COLUMNS.items()), time="ts")
LIMITS = {"t": 7, "i": 31, "b": 63, "h": 126}

numbers = st.sampled_from(["t", "i", "b", "u", "h", "d", "f", "m", "w"])
literals = st.sampled_from(
    ["0", "1", "-1", "3", "2.5", "0.1", "-0.25", "1e2", "9223372036854775807", "NULL", "2::DOUBLE"]
)
times = st.sampled_from(
    ["ts", "ts2", "ts + INTERVAL '1' DAY", "ts2 - INTERVAL '90' SECOND", "dt", "TIMESTAMP '2020-01-01'"]
)


def binary(operators: list[str], left: st.SearchStrategy[str], right: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(left, st.sampled_from(operators), right).map(lambda p: f"({p[0]} {p[1]} {p[2]})")


def one_of_number(inner: st.SearchStrategy[str], truths: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    types = st.sampled_from(["INTEGER", "BIGINT", "DOUBLE", "FLOAT", "DECIMAL(12,3)", "HUGEINT", "TINYINT"])
    return (
        binary(["+", "-", "*", "/", "//", "%"], inner, inner)
        | inner.map(lambda x: f"(-{x})")
        | inner.map(lambda x: f"abs({x})")
        | st.tuples(inner, types).map(lambda p: f"CAST({p[0]} AS {p[1]})")
        | st.tuples(inner, inner).map(lambda p: f"coalesce({p[0]}, {p[1]})")
        | st.tuples(truths, inner, inner).map(lambda p: f"(CASE WHEN {p[0]} THEN {p[1]} ELSE {p[2]} END)")
    )


plain = numbers | literals
simple_truths = binary(["=", "<>", "<", "<=", ">", ">="], plain, plain) | st.sampled_from(["o", "(s = 'a')", "NULL"])
number = st.recursive(plain, lambda inner: one_of_number(inner, simple_truths), max_leaves=5)
comparison = (
    binary(["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"], number, number)
    | binary(["=", "<", ">="], times, times)
    | st.tuples(number, number, number).map(lambda p: f"({p[0]} BETWEEN {p[1]} AND {p[2]})")
    | st.tuples(number, number, number).map(lambda p: f"({p[0]} IN ({p[1]}, {p[2]}))")
    | number.map(lambda x: f"({x} IS NULL)")
    | st.sampled_from(["(s = 'a')", "(s < 'b')", "(s IN ('a', NULL))", "(upper(s) = 'A')", "(s LIKE 'a%')", "o"])
    | st.just("(ts2 - ts > INTERVAL '1' HOUR)")
)
truth = st.recursive(
    comparison, lambda inner: binary(["AND", "OR"], inner, inner) | inner.map(lambda x: f"(NOT {x})"), max_leaves=4
)
scalars = number | truth | times | st.just("ts2 - ts") | number.map(lambda x: f"round({x}, 1)")


@st.composite
def rows(draw: st.DrawFn) -> dict[str, object]:
    def integer(bits: int) -> st.SearchStrategy[int]:
        return st.integers(-5, 5) | st.integers(-(2**bits), 2**bits - 1)

    cells: dict[str, st.SearchStrategy[object]] = {name: integer(bits) for name, bits in LIMITS.items()}
    cells["u"] = st.integers(0, 5) | st.integers(0, 2**64 - 1)
    cells["d"] = st.sampled_from([0.0, -0.0, 0.5, 2.5, -1.5, math.nan, math.inf]) | st.floats(allow_subnormal=False)
    cells["f"] = st.sampled_from([0.5, -2.0, math.nan]) | st.floats(width=32, allow_subnormal=False)
    cells["m"] = st.integers(-999, 99_999_999).map(lambda n: Decimal(n).scaleb(-2))
    cells["w"] = st.integers(-(10**20), 10**20).map(lambda n: Decimal(n).scaleb(-4))
    cells["o"] = st.booleans()
    cells["s"] = st.sampled_from(["a", "b", "A", "", "é"])
    cells["ts2"] = st.integers(-(10**15), 2 * 10**15)
    cells["dt"] = st.dates()
    row = {name: draw(st.none() | cell if draw(st.integers(0, 5)) == 0 else cell) for name, cell in cells.items()}
    return {"ts": draw(st.integers(0, 10**15))} | row


@cache
def plan_of(text: str) -> Plan | None:
    """A plan with one measure, or None where the types do not fit."""
    try:
        query = f"SELECT * FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES {text} AS x PATTERN (A))"
        return bind(parse(query), lambda name: SCHEMA).factors[0].plan
    except QueryError:
        return None


def by_duckdb(text: str, type: str, row: dict[str, object]) -> object:
    return by_duckdb_all(text, type, [row])


def by_duckdb_all(text: str, type: str, rows: list[dict[str, object]]) -> object:
    """The first value of a query over rows in their order."""
    table = pa.table({name: to_arrow([row[name] for row in rows], column) for name, column in COLUMNS.items()})
    cursor = quiet_connection()
    cursor.register("e", table)
    casts = ", ".join(f'CAST("{name}" AS {type}) AS "{name}"' for name, type in COLUMNS.items())
    found = pa.table(cursor.sql(f"SELECT {text} AS x FROM (SELECT {casts} FROM e)"))
    return to_python(found.column(0).combine_chunks(), type)[0]


def same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and a == b


@pytest.mark.slow
@given(text=scalars, row=rows())
def test_scalar_expressions_are_duckdbs(text: str, row: dict[str, object]) -> None:
    plan = plan_of(text)
    assume(plan is not None)
    assert plan is not None
    ts_us = [0]
    found = find(plan, [row], ts_us)
    # which operands of these are computed where one of them decides is DuckDB's choice, and so whether an error shows
    lazy = any(word in text for word in ("AND", "OR", "CASE", "coalesce", "IN", "NULL"))
    expected: object = None
    failed = False
    try:
        expected = by_duckdb(text, plan.measures[0].type, row)
    except (duckdb.Error, DataError):
        failed = True
    try:
        ((answer,),) = match_rows(plan, [row], ts_us, found, DuckEvaluation())
    except DataError:
        assert failed or lazy, f"DuckDB gives {expected!r}"
        return
    assert not failed or lazy, answer["x"]
    if not failed:
        if plan.measures[0].type == "INTERVAL":
            (expected,) = to_python(to_arrow([expected], "INTERVAL"), "INTERVAL")
            (answer["x"],) = to_python(to_arrow([answer["x"]], "INTERVAL"), "INTERVAL")
        assert same(answer["x"], expected)


#: Aggregate calls of every kind, over all rows of a match. Their sort keys leave no ties that would show.
CALLS = [
    "string_agg(s, ',')",
    "string_agg(s, ',' ORDER BY s DESC)",
    "string_agg(s, '/' ORDER BY b DESC NULLS LAST, s, i) FILTER (WHERE i > 0)",
    "list(b ORDER BY b NULLS FIRST)",
    "list(DISTINCT o ORDER BY o)",
    "arg_max(s, ts)",
    "max_by(m, ts, 2)",
    "quantile_disc(b, 0.5)",
    "quantile_disc(b, [0.25, 0.75])",
    "count(*) FILTER (WHERE i > 0)",
    "count(DISTINCT s) FILTER (WHERE o)",
    "count(b) FILTER (WHERE i IS NULL OR o)",
    "sum(b) FILTER (WHERE o)",
    "sum(m) FILTER (WHERE NOT o)",
    "sum(d) FILTER (WHERE d < 1e9)",
    "avg(m) FILTER (WHERE o)",
    "min(s) FILTER (WHERE i > 0)",
    "max(dt) FILTER (WHERE o)",
    "any_value(s ORDER BY ts, s, i)",
    "sum(1)",
    "corr(i, t)",
    "bool_or(o) FILTER (WHERE i > 0)",
]


@pytest.mark.slow
@given(text=st.sampled_from(CALLS), rows=st.lists(rows(), max_size=6))
def test_aggregate_calls_are_duckdbs(text: str, rows: list[dict[str, object]]) -> None:
    query = f"SELECT * FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES {text} AS x PATTERN (A*))"
    plan = bind(parse(query), lambda name: SCHEMA).factors[0].plan
    type = plan.measures[0].type
    # an empty match, where there is no row
    first: dict[str, object] = dict.fromkeys(COLUMNS) | {"ts": 0}
    found = find(plan, rows or [first], [0] * max(1, len(rows)))
    if not rows:
        found = [replace(found[0], labels=())]
    expected: object = None
    failed = False
    try:
        expected = by_duckdb_all(text, type, rows)
    except (duckdb.Error, DataError):
        failed = True
    try:
        ((answer,),) = match_rows(plan, rows or [first], [0], found, DuckEvaluation())
    except DataError:
        assert failed, f"DuckDB gives {expected!r}"
        return
    assert not failed, answer["x"]
    assert same(answer["x"], expected) or repr(answer["x"]) == repr(expected)
