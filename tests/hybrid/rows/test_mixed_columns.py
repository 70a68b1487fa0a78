"""Columns of values that patterns cannot read: refused where a clause reads them, and nowhere else."""

from __future__ import annotations

from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pytest

import hybrid
from hybrid import DataError

ROWS = {"ts": [1, 2, 3], "price": [3, 2, 1], "note": [1, "a", None]}
IN_POLARS = pl.DataFrame({**ROWS, "note": pl.Series(ROWS["note"], dtype=pl.Object)})
KINDS: dict[str, Any] = {
    "pandas": pd.DataFrame(ROWS), "polars": IN_POLARS, "lazy": IN_POLARS.lazy(), "columns": ROWS,
    "dicts": [dict(zip(ROWS, row)) for row in zip(*ROWS.values())],
}  # fmt: skip
FALLS = """SELECT {} FROM {} MATCH_RECOGNIZE (ORDER BY ts {} MEASURES LAST(price) AS low{}
    PATTERN (A B+) DEFINE B AS price < PREV(price){})"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [
    "SELECT count(*) AS low, sum(price) FROM t HAVING sum(price) = 6",
    FALLS.format("*", "t", "", "", ""),
    FALLS.format("m.low", "(SELECT ts, price FROM t)", "", "", "") + " AS m",
    FALLS.format("*", "(SELECT * FROM t WHERE ts > 0)", "", "", ""),
])  # fmt: skip
def test_statements_that_do_not_read_it(kind: str, text: str) -> None:
    # Before: the whole table was refused, of dicts without the name of the column.
    assert hybrid.sql(text, t=KINDS[kind]).fetchall()[0][0] in (1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [
    "SELECT * FROM t",
    "FROM t",
    "SELECT ALL * FROM t",  # Before: its text, for this and the next four.
    "SELECT DISTINCT ON (price) * FROM t",
    "SELECT COLUMNS(*) FROM t",
    "SELECT z FROM t NATURAL JOIN (SELECT 'a' AS note, 1 AS z)",
    "UNPIVOT t ON ts, price",
    "SELECT t FROM t",  # Before: its text, for this and the next two.
    "SELECT to_json(t) AS j FROM t",
    "SELECT price FROM t AS x WHERE x IS NOT NULL",
    "SELECT note FROM t",
    FALLS.format("*", "t", "", ", LAST(note) AS n", ""),
    FALLS.format("*", "t", "", "", " AND note > 3"),  # about the column, not about the types of this comparison
    FALLS.format("*", "(SELECT * FROM t)", "", "", " AND note IS NULL"),
    FALLS.format("*", "t", "", "", "").replace("ORDER BY ts", "ORDER BY note"),
    FALLS.format("*", "t", "", "", "").replace("MEASURES LAST(price) AS low", "ALL ROWS PER MATCH"),
])  # fmt: skip
def test_statements_that_read_it(kind: str, text: str) -> None:
    with pytest.raises(DataError, match="table t, column note: Could not convert 'a'") as caught:
        hybrid.sql(text, t=KINDS[kind])
    how = {"pandas": "t['note'].astype(str), pd.to_numeric(...)", "polars": "t['note'].map_elements(str, "}
    assert how.get(kind, "give the column one type") in str(caught.value.hint)


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_shows_it_as_text(kind: str) -> None:
    found = hybrid.sql(FALLS.format("*", "t", "", "", ""), t=KINDS[kind]).evidence()
    assert found.column("note").to_pylist() == ["1", "a", None]


def test_values_that_are_no_text() -> None:
    odd = pd.DataFrame({"ts": [1, 2, 3], "price": [3, 2, 1], "note": [pd.NA, "\ud800", 1.5]})  # noqa: F841
    found = hybrid.sql(FALLS.format("*", "odd", "", "", "")).evidence()
    assert found.column("note").to_pylist() == [None, "?", "1.5"]


def test_a_static_table_of_a_live_query_is_read_as_a_whole() -> None:
    with hybrid.connect() as db:
        db.create_stream("s", {"ts": "TIMESTAMP", "price": "DOUBLE"}, time="ts")
        text = FALLS.format("m.low", "s", "", "", "") + " AS m JOIN t ON t.price = m.low"
        with pytest.raises(DataError, match="table t, column note"):
            db.watch(text, tables={"t": KINDS["pandas"]})


def test_names_with_a_space() -> None:
    for columns in ("ts, price", "ts, price, note"):
        text = f"""SELECT count(*) AS n
            FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES LAST(price) AS low PATTERN (A)) AS m,
            (SELECT {columns} FROM "my t") AS h"""
        given: dict[str, Any] = {"e": KINDS["dicts"], "my t": KINDS["dicts"]}
        if "note" in columns:
            with pytest.raises(DataError, match="table my t, column note"):
                hybrid.sql(text, **given)
        else:
            assert hybrid.sql(text, **given).fetchall()[0][0] == 9
    with pytest.raises(DataError, match="table my t, column note"):
        hybrid.sql(FALLS.format("*", '"my t"', "", ", LAST(note) AS n", ""), **{"my t": KINDS["dicts"]})


PERIODS = pd.DataFrame({
    "ts": [1, 2, 3], "price": [3, 2, 1], "month": pd.PeriodIndex(["2024-01", "NaT", "2024-03"], freq="M"),
})  # fmt: skip


def test_periods_of_pandas_are_refused_where_they_are_read() -> None:
    # Before: numbers, the months since 1970.
    for text in ("SELECT month FROM t", "SELECT * FROM t", FALLS.format("*", "t", "", ", LAST(month) AS n", "")):
        with pytest.raises(DataError, match="table t, column month: periods of pandas are no type of DuckDB") as caught:
            hybrid.sql(text, t=PERIODS)
        assert caught.value.hint == "convert the column: t['month'].dt.to_timestamp(), or .astype(str)"
    found = hybrid.sql(FALLS.format("*", "t", "", "", ""), t=PERIODS)
    assert found.evidence().column("month").to_pylist() == ["2024-01", None, "2024-03"]
    converted = PERIODS.assign(month=PERIODS["month"].dt.to_timestamp())
    assert hybrid.sql("SELECT max(month) AS m FROM t", t=converted).df().m[0] == pd.Timestamp("2024-03-01")
    assert PERIODS.month.dtype == "period[M]"  # unchanged


ODD = {
    "BIT": "'101'::BIT", "UNION": "union_value(num := 1)", "BIT[]": "['101'::BIT]", "VARIANT": "1::VARIANT",
    "BIGNUM": "12345678901234567890::BIGNUM", "TIMETZ": "TIMETZ '01:00:00+02'", "GEOMETRY": "'POINT(1 1)'::GEOMETRY",
}  # fmt: skip
ODD_TABLE = "CREATE TABLE t AS SELECT i AS ts, 3 - i AS price, {} AS note FROM range(1, 4) r(i)"
HISTORY = """SELECT count(*) AS low
    FROM t AS e MATCH_RECOGNIZE (ORDER BY ts MEASURES LAST(price) AS low PATTERN (A)) AS m
    LEFT JOIN t AS h ON h.price = m.low"""


def shown(value: str) -> str:
    """Returns what DuckDB shows of a value."""
    return str(duckdb.connect().execute(f"SELECT ({value})::VARCHAR").fetchall()[0][0])


def of_duckdb(value: str, kind: str) -> dict[str, Any]:
    """Returns arguments of hybrid.sql: a table with this note, as a relation or on its connection."""
    connection = duckdb.connect()
    connection.execute(ODD_TABLE.format(value))
    return {"t": connection.table("t")} if kind == "relation" else {"connection": connection}


@pytest.mark.parametrize("kind", ["relation", "connection"])
@pytest.mark.parametrize("type", ODD)
def test_types_that_arrow_lacks_stop_no_statement_that_does_not_read_them(type: str, kind: str) -> None:
    # Before: refused, wherever they were.
    for text, first in (
        (FALLS.format("*", "t", "", "", ""), 0), (HISTORY, 3),
        (FALLS.format("m.low", "(SELECT * FROM t WHERE ts > 0)", "", "", "") + " AS m", 0),
        (FALLS.format("m.low", "(SELECT ts, price, note::VARCHAR AS n FROM t)", "", "", "") + " AS m", 0),
    ):  # fmt: skip
        given = of_duckdb(ODD[type], kind)
        if "note" in text and kind == "relation":  # of a table that is given, text would stand where its values are
            with pytest.raises(DataError, match="note is "):
                hybrid.sql(text, **given)
        else:
            assert hybrid.sql(text, **given).fetchall()[0][0] == first
    evidence = hybrid.sql(FALLS.format("*", "t", "", "", ""), **of_duckdb(ODD[type], kind)).evidence()
    assert evidence.column("note").to_pylist() == [shown(ODD[type])] * 3


@pytest.mark.parametrize("kind", ["relation", "connection"])
@pytest.mark.parametrize("text", [
    FALLS.format("*", "t", "", ", LAST(note) AS n", ""),
    FALLS.format("*", "t", "", "", " AND note = '101'"),
    FALLS.format("*", "t", "", "", " AND bit_count(note) = 2"),
    FALLS.format("*", "t", "", "", "").replace("ORDER BY ts", "PARTITION BY note ORDER BY ts"),
    FALLS.format("*", "t", "", "", "").replace("ORDER BY ts", "ORDER BY ts, note"),
    FALLS.format("*", "t", "", "", "").replace("MEASURES LAST(price) AS low", "ALL ROWS PER MATCH"),
    FALLS.format("*", "(SELECT * FROM t)", "", ", LAST(note) AS n", ""),
    FALLS.format("*", "(SELECT ts, price, note AS x FROM t)", "", "", " AND x IS NULL"),
])  # fmt: skip
def test_types_that_arrow_lacks_are_refused_where_they_are_read(kind: str, text: str) -> None:
    with pytest.raises(DataError, match="is BIT, which DuckDB cannot export exactly"):
        hybrid.sql(text, **of_duckdb(ODD["BIT"], kind))


@pytest.mark.parametrize("type", [t for t in ODD if t != "BIGNUM"])
def test_results_of_types_that_arrow_lacks_are_text(type: str) -> None:
    # Before: the bytes of a BIT, a time without its zone.
    text = FALLS.format(f"m.low, {ODD[type]} AS note", "t", "", "", "") + " AS m"
    (row,) = hybrid.sql(text, **of_duckdb("1", "connection")).fetchall()
    assert row[1] == shown(ODD[type])


@pytest.mark.parametrize("value", ["'101'::BIT", "5::BIGNUM"])
def test_results_with_several_columns_of_one_name(value: str) -> None:
    # Before: each had the values of the first one.
    text = FALLS.format(f"m.low, {value} AS low, 7 AS LOW", "t", "", "", "") + " AS m"
    table = hybrid.sql(text, **of_duckdb("1", "connection")).arrow()
    assert [column.to_pylist() for column in table.columns] == [[0], [shown(value)], [7]]


def test_types_that_duckdb_lacks_stop_no_statement_that_does_not_read_them() -> None:
    # Before: refused, whatever was read.
    mixed = pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])])
    table = pa.table({"ts": [1, 2, 3], "price": [3, 2, 1], "note": mixed})
    for t in (table, pa_dataset.dataset(table), table.to_batches()[0]):
        found = hybrid.sql(FALLS.format("*", "t", "", "", ""), t=t)
        assert found.fetchall() == [(1,)]
        assert found.evidence().column("note").to_pylist() == ["1", "b", "3"]
        with pytest.raises(DataError, match="note: DuckDB has no type for sparse_union"):
            hybrid.sql(FALLS.format("*", "t", "", ", LAST(note) AS n", ""), t=t)
