"""Every type of DuckDB as a column of the input: in measures, as key, as order, in conditions; compared with DuckDB."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import hybrid

#: For each type three values; the rows are the first, the second, null, the third and the first again.
TYPES: dict[str, tuple[str, str, str]] = {
    "TINYINT": ("1", "2", "-128"),
    "SMALLINT": ("1", "2", "-32768"),
    "INTEGER": ("1", "2", "-2147483648"),
    "BIGINT": ("1", "9007199254740993", "-9223372036854775808"),
    "HUGEINT": ("1", "170141183460469231731687303715884105727", "-3"),
    "UTINYINT": ("1", "2", "255"),
    "USMALLINT": ("1", "2", "65535"),
    "UINTEGER": ("1", "2", "4294967295"),
    "UBIGINT": ("1", "2", "18446744073709551615"),
    "FLOAT": ("1.5", "'nan'", "'-inf'"),
    "DOUBLE": ("1.5", "'nan'", "-0.25"),
    "DECIMAL(4,1)": ("1.5", "2.5", "-3.0"),
    "DECIMAL(18,3)": ("1.5", "2.5", "-3.001"),
    "DECIMAL(38,10)": ("1.5", "2.5", "-1234567890123456789012345678.0000000001"),
    "BOOLEAN": ("true", "false", "true"),
    "DATE": ("'2020-01-01'", "'1960-05-05'", "'2021-01-01'"),
    "TIMESTAMP": ("'2020-01-01 00:00:00.000001'", "'1960-05-05'", "'2021-01-01'"),
    "TIMESTAMP_S": ("'2020-01-01'", "'1960-05-05'", "'2021-01-01'"),
    "TIMESTAMP_MS": ("'2020-01-01 00:00:00.001'", "'1960-05-05'", "'2021-01-01'"),
    "TIMESTAMP_NS": ("'2020-01-01 00:00:00.000001'", "'1990-05-05'", "'2021-01-01'"),
    "TIMESTAMP WITH TIME ZONE": ("'2020-01-01 00:00:00+02'", "'1960-05-05 00:00:00+00'", "'2021-01-01 00:00:00+00'"),
    "TIME": ("'10:00:00'", "'09:00:00.5'", "'23:59:59'"),
    "INTERVAL": ("'1 day'", "'1 month'", "'2 hours'"),
    "VARCHAR": ("'b'", "'a''|é'", "''"),
    "BLOB": ("'\\x00ab'", "'x'", "''"),
    "ENUM('z', 'y', 'x')": ("'z'", "'x'", "'y'"),
    "UUID": (
        "'00000000-0000-0000-0000-000000000002'", "'f0000000-0000-0000-0000-000000000001'",
        "'10000000-0000-0000-0000-000000000001'",
    ),
    "JSON": ("""'{"a": 1}'""", "'[1]'", "'2'"),
    "INTEGER[]": ("[1, 2]", "[]", "[NULL, 3]"),
    "INTEGER[2]": ("[1, 2]", "[0, 1]", "[3, NULL]"),
    "STRUCT(a INTEGER, b VARCHAR)": ("{'a': 1, 'b': 'x'}", "{'a': NULL, 'b': 'y'}", "{'a': 0, 'b': NULL}"),
    "MAP(VARCHAR, INTEGER)": ("MAP {'k': 1}", "MAP {}", "MAP {'k': NULL}"),
    "STRUCT(e TIMESTAMP[])[]": ("[{'e': ['2020-01-01']}]", "[]", "[{'e': [NULL]}]"),
}  # fmt: skip


@pytest.fixture(params=[pytest.param(t, marks=pytest.mark.slow if i % 3 else ()) for i, t in enumerate(TYPES)])
def typed(request: pytest.FixtureRequest) -> tuple[str, duckdb.DuckDBPyConnection]:
    """The type as conditions see it, and a connection with its rows in t(i, x)."""
    type, (a, b, c) = request.param, TYPES[request.param]
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    values = ", ".join(f"({i}, CAST({x} AS {type}))" for i, x in enumerate((a, b, "NULL", c, a)))
    connection.execute(f"CREATE TABLE t AS SELECT * FROM (VALUES {values}) AS v(i, x)")
    return ("VARCHAR" if type == "JSON" else type), connection  # it is text in here


def same(connection: duckdb.DuckDBPyConnection, text: str, expected: str) -> None:
    """The statement gives what DuckDB alone gives for the other one; values are compared as DuckDB shows them."""
    found = connection.from_arrow(hybrid.sql(text, connection).arrow()).project("COLUMNS(*)::VARCHAR").fetchall()
    wanted = connection.sql(expected).project("COLUMNS(*)::VARCHAR").fetchall()
    assert sorted(map(str, found)) == sorted(map(str, wanted))


def match(measures: str, rest: str, order: str = "i") -> str:
    return f"SELECT * FROM t MATCH_RECOGNIZE (ORDER BY {order} MEASURES {measures} {rest})"


Typed = tuple[str, duckdb.DuckDBPyConnection]


@pytest.mark.slow
@pytest.mark.thinned(6)
def test_measures(typed: Typed) -> None:
    type, connection = typed
    each = match("A.i AS i, A.x AS x, PREV(A.x) AS p", "PATTERN (A)")
    same(connection, each, "SELECT i, x, lag(x) OVER (ORDER BY i) FROM t")
    same(
        connection,
        match("FIRST(A.x) AS a, LAST(A.x, 1) AS b, count(A.x) AS c, list(A.x) AS l", "PATTERN (A+)"),
        f"SELECT any_value(x) FILTER (i = 0), any_value(x) FILTER (i = 3), count(x), list(x::{type} ORDER BY i) FROM t",
    )
    same(
        connection,
        match("min(A.x) AS a, max(A.x) AS b", "PATTERN (A+)"),
        f"SELECT min(x::{type}), max(x::{type}) FROM t",
    )
    all_rows = "SELECT i, x FROM t MATCH_RECOGNIZE (ORDER BY i ALL ROWS PER MATCH PATTERN (A+))"
    same(connection, all_rows, "SELECT i, x FROM t")


@pytest.mark.slow
@pytest.mark.thinned(6, 4)
def test_partition_keys(typed: Typed) -> None:
    _, connection = typed
    text = "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY x ORDER BY i MEASURES list(A.i) AS l PATTERN (A+))"
    same(connection, text, "SELECT x, list(i ORDER BY i) FROM t GROUP BY x")
    text = "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY i, x ORDER BY i MEASURES count(*) AS n PATTERN (A+))"
    same(connection, text, "SELECT i, x, 1 FROM t")


@pytest.mark.slow
@pytest.mark.thinned(6, 2)
def test_order_keys(typed: Typed) -> None:
    type, connection = typed
    for order in ("NULLS LAST", "DESC NULLS FIRST"):
        by = match("list(A.i) AS l", "PATTERN (A+)", f"x {order}, i")
        same(connection, by, f"SELECT list(i ORDER BY x::{type} {order}, i) FROM t")


@pytest.mark.slow
@pytest.mark.thinned(5)
def test_conditions(typed: Typed) -> None:
    type, connection = typed
    same(connection, match("A.i AS i", "PATTERN (A) DEFINE A AS x IS NOT NULL"), "SELECT i FROM t WHERE x IS NOT NULL")
    first = f"(SELECT x::{type} FROM t WHERE i = 0)"
    value = connection.sql("SELECT x::VARCHAR FROM t WHERE i = 0").fetchall()[0][0].replace("'", "''")
    equal = match("A.i AS i", f"PATTERN (A) DEFINE A AS x = CAST('{value}' AS {type})")
    same(connection, equal, f"SELECT i FROM t WHERE x::{type} = {first}")
    changed = f"SELECT i FROM (SELECT i, x::{type} AS x, lag(x::{type}) OVER (ORDER BY i) AS p FROM t) WHERE x <> p"
    same(connection, match("A.i AS i", "PATTERN (A) DEFINE A AS x <> PREV(x)"), changed)


def test_rows_without_a_time_have_their_place() -> None:
    table = pa.table({"i": [1, 2, 3], "ts": pa.array([5, None, 4], pa.timestamp("us"))})
    text = "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES list(A.i) AS l PATTERN (A+){})"
    assert hybrid.sql(text.format(""), t=table).arrow().to_pylist() == [{"l": [3, 1, 2]}]
    assert hybrid.sql(text.format(" WITHIN 2 ROWS"), t=table).arrow().to_pylist() == [{"l": [3, 1]}, {"l": [2]}]
    with pytest.raises(hybrid.DataError, match=r"t\.ts orders the rows and has 1 null(?!s)"):
        hybrid.sql(text.format(" WITHIN INTERVAL '1' SECOND"), t=table)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("BIT", "'101'"),
        ("UHUGEINT", "1"),
        ("TIME WITH TIME ZONE", "'10:00:00+01'"),
        ("UNION(a INTEGER, b VARCHAR)", "1"),
        ("STRUCT(a BIT)[]", "[{'a': '101'}]"),
    ],
)
def test_types_that_would_come_out_as_others_are_refused(type: str, value: str) -> None:
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE t AS SELECT 1 AS i, CAST({value} AS {type}) AS x")
    with pytest.raises(hybrid.DataError, match=r'SELECT \* REPLACE \(CAST\("x" AS VARCHAR\) AS "x"\)'):
        hybrid.sql(match("A.x AS x", "PATTERN (A)"), connection)
    cast = match("A.x AS x", "PATTERN (A)").replace("FROM t", "FROM (SELECT * REPLACE (x::VARCHAR AS x) FROM t)")
    same(connection, cast, "SELECT x::VARCHAR FROM t")


# ---- types of other libraries ------------------------------------------------------------------------------------

TEXT = match("A.x AS x, count(A.x) AS n", "PATTERN (A)")
ID = uuid.UUID(int=7)
DAY = dt.date(2020, 1, 2)


def measured(table: Any) -> list[Any]:
    return hybrid.sql(TEXT, t=table).arrow().column("x").to_pylist()


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1.5, None], pa.float16()), [1.5, None]),
        (pa.array([DAY, None], pa.date64()), [DAY, None]),
        (pa.array([3600, None], pa.time32("s")), [dt.time(1), None]),
        (pa.array([1, None], pa.timestamp("s")), [dt.datetime(1970, 1, 1, 0, 0, 1), None]),
        (pa.array([1_000, None], pa.timestamp("ns")), [dt.datetime(1970, 1, 1, 0, 0, 0, 1), None]),
        (pa.array([1, None], pa.timestamp("ms", "Europe/Berlin")),
         [dt.datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=dt.UTC), None]),
        (pa.array(["a", None], pa.large_string()), ["a", None]),
        (pa.array(["a", None], pa.string_view()), ["a", None]),
        (pa.array(["a", None]).dictionary_encode(), ["a", None]),
        (pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
        (pa.array([b"ab", None], pa.large_binary()), [b"ab", None]),
        (pa.array([Decimal("1.5"), None], pa.decimal32(5, 1)), [Decimal("1.5"), None]),
        (pa.array([[1], None], pa.large_list(pa.int64())), [[1], None]),
        (pa.array([[1], None], pa.list_view(pa.int64())), [[1], None]),
        (pa.RunEndEncodedArray.from_arrays([1, 2], pa.array(["a", None])), ["a", None]),
        (pa.array([ID.bytes, None], pa.uuid()), [str(ID), None]),
        (pa.ListArray.from_arrays([0, 1, 1], pa.array(["a"]).dictionary_encode()), [["a"], []]),
        (pa.nulls(2), [None, None]),
    ],
    ids=lambda v: str(v.type) if isinstance(v, pa.Array) else "",
)  # fmt: skip
def test_arrow_types(column: pa.Array, expected: list[Any]) -> None:
    assert measured(pa.table({"i": [1, 2], "x": column})) == expected


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pd.array([1, None], dtype="Int64"), [1, None]),
        (pd.array([True, None], dtype="boolean"), [True, None]),
        (pd.array(["a", None], dtype="string[pyarrow]"), ["a", None]),
        (pd.Categorical(["a", None]), ["a", None]),
        (pd.Series([Decimal("1.5"), None]), [Decimal("1.5"), None]),
        (pd.Series([ID, ID]), [str(ID), str(ID)]),
        (pd.Series([[1], None]), [[1], None]),
        (pd.Series([DAY, None]), [DAY, None]),
        (pd.to_datetime(["2020-01-02", None], utc=True), [dt.datetime(2020, 1, 2, tzinfo=dt.UTC), None]),
        (np.array([1.5, 2.5], np.float32), [1.5, 2.5]),
    ],
    ids=lambda v: str(getattr(v, "dtype", "")),
)
def test_pandas_types(column: Any, expected: list[Any]) -> None:
    assert measured(pd.DataFrame({"i": [1, 2], "x": column})) == expected


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pl.Series(["a", None], dtype=pl.Categorical), ["a", None]),
        (pl.Series(["a", None], dtype=pl.Enum(["b", "a"])), ["a", None]),
        (pl.Series([Decimal("1.50"), None]), [Decimal("1.50"), None]),
        (pl.Series([2**63, None], dtype=pl.UInt64), [2**63, None]),
        (pl.Series([1_000, None], dtype=pl.Datetime("ns")), [dt.datetime(1970, 1, 1, 0, 0, 0, 1), None]),
        (pl.Series([[1, 2], None], dtype=pl.Array(pl.Int64, 2)), [[1, 2], None]),
        (pl.Series([{"a": 1}, None]), [{"a": 1}, None]),
        (pl.Series([DAY, None]), [DAY, None]),
        (pl.Series([None, None]), [None, None]),
    ],
    ids=lambda v: str(getattr(v, "dtype", "")),
)
def test_polars_types(column: pl.Series, expected: list[Any]) -> None:
    assert measured(pl.DataFrame({"i": [1, 2], "x": column})) == expected


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2], pa.duration("s")),
        pd.to_timedelta([1, 2], unit="s"),
        pl.Series([1000, 2000], dtype=pl.Duration("ms")),
    ],
    ids=lambda v: type(v).__module__.split(".")[0],
)
def test_durations_are_intervals(column: Any) -> None:
    table = {"i": [1, 2], "x": column}
    make = {"pyarrow": pa.table, "pandas": pd.DataFrame, "polars": pl.DataFrame}[type(column).__module__.split(".")[0]]
    assert [x.nanoseconds for x in measured(make(table))] == [10**9, 2 * 10**9]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table([[1], [2], [3]], names=["i", "x", "X"]), "two columns x"),
        ({"i": [1], "x": [1], 2: [1], "2": [1]}, "two columns 2"),
        ([{"i": 1, "x": 1, 2: 1}, {"2": 1}], "two columns 2"),
        (pd.DataFrame({"i": [1], "": [1], "x": [1]}), "a column without a name, number 2"),
        (pl.DataFrame({"i": [1], "x": pl.Series([object()], dtype=pl.Object)}), "column x: Could not convert <object"),
        (pa.table({"i": [1], "x": pa.array([1], pa.timestamp("ns"))}), "finer than a microsecond"),
        (pa.table({"i": [1], "x": pa.array([Decimal(1)], pa.decimal256(40, 1))}), "DuckDB has no type for"),
        ([], "no columns"),
        ("missing.parquet", "missing.parquet"),
        (duckdb.sql("SELECT 1 AS i, '101'::BIT AS x"), "is BIT"),
        (7, "is not a table"),
    ],
)
def test_tables_that_cannot_be_taken(table: Any, message: str) -> None:
    with pytest.raises(hybrid.DataError, match=message):
        measured(table)


@pytest.mark.parametrize("table", [{"i": [1], 2: [3], "x": ["b"]}, [{"i": 1, 2: 3, "x": "b"}]], ids=["columns", "rows"])
def test_names_of_columns_are_text(table: Any) -> None:
    # Before: "expected bytes, int found".
    assert measured(table) == ["b"]


def test_files_by_their_path(tmp_path: Path) -> None:
    file = tmp_path / "it's one.parquet"
    pl.DataFrame({"i": [2, 1], "x": ["b", "a"]}).write_parquet(file)
    assert measured(file) == measured(str(file)) == ["a", "b"]
    file = tmp_path / "one.csv"
    pl.DataFrame({"i": [2, 1], "x": ["b", "a"]}).write_csv(file)
    assert measured(file) == ["a", "b"]
