"""Inputs of rare types: list views, durations with nulls, scanners; and times that Python has no value for."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import hybrid
from hybrid.cli.output import RowFormat, in_text
from query.errors import DataError

VIEWS: list[tuple[pa.DataType, str, list[Any]]] = [
    (pa.list_view(pa.int32()), "INTEGER[]", [[1, 2], None, [1], [], [None, 1]]),
    (pa.large_list_view(pa.int32()), "INTEGER[]", [[1, 2], None, [1], [], [None, 1]]),
    (pa.list_(pa.large_list_view(pa.int32())), "INTEGER[][]", [[[1, 2], None], None, [[1]], [], [[None, 1]]]),
    (pa.struct([("a", pa.list_view(pa.int32()))]), "STRUCT(a INTEGER[])", [{"a": [1, 2]}, None, {"a": None}]),
]


@pytest.mark.parametrize(("arrow", "declared", "values"), VIEWS)
def test_list_views(arrow: pa.DataType, declared: str, values: list[Any]) -> None:
    # Before: values of foreign memory, and a crash of the process.
    column = pa.array(values, arrow)
    text = "SELECT x FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.x AS x PATTERN (A))"
    rows = pa.table({"ts": pa.array(range(len(values)), pa.timestamp("us")), "x": column})
    assert [x for (x,) in hybrid.sql(text, t=rows).fetchall()] == values
    larger = """SELECT count(*) FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES 1 AS one PATTERN (A B)
        DEFINE B AS x > A.x OR x IS NULL)"""
    assert hybrid.sql(larger, t=rows).fetchall() == [(1 if "STRUCT" in declared else 2,)]
    with hybrid.connect() as db:
        db.create_stream("t", {"ts": "TIMESTAMP", "x": declared}, time="ts")
        alerts = db.watch(text.replace("SELECT x", "SELECT *"))
        db.push("t", rows)
        assert [row["x"] for row in alerts.fetch().to_pylist()] == values


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_durations_of_pandas_with_nulls(unit: str) -> None:
    # Before, for s and ms: DataError, could not convert interval.
    column = pandas.Series(pandas.to_timedelta([1, None], unit="s")).astype(f"timedelta64[{unit}]")
    text = "SELECT a, b FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES FIRST(x) AS a, LAST(x) AS b PATTERN (A A))"
    found = hybrid.sql(text, t=pandas.DataFrame({"i": [1, 2], "x": column}))
    assert found.fetchall() == [(timedelta(seconds=1), None)]


def test_a_scanner() -> None:
    # Before: AttributeError, no attribute 'schema'.
    scanner = ds.dataset(pa.table({"i": [1, 2], "x": [3, 4]})).scanner(filter=ds.field("i") > 1)
    text = "SELECT x FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES A.x AS x PATTERN (A))"
    assert hybrid.sql(text, t=scanner).fetchall() == [(4,)]


FAR: list[tuple[str, object, str, object]] = [
    ("DATE 'infinity'", date.max, "infinity", "infinity"),
    ("DATE '20000-01-01'", "20000-01-01", "20000-01-01", "20000-01-01"),
    ("TIMESTAMP '-infinity'", datetime.min, "-infinity", "-infinity"),
    ("TIMESTAMP '290000-01-01'", "290000-01-01 00:00:00", "290000-01-01 00:00:00", "290000-01-01T00:00:00.000000"),
    ("[TIMESTAMP 'infinity']", [datetime.max], "[infinity]", ["infinity"]),
]


@pytest.mark.parametrize(("sql", "value", "shown", "in_json"), FAR)
def test_times_that_python_does_not_have(sql: str, value: object, shown: str, in_json: object) -> None:
    """They come as DuckDB returns them, and are shown as they are."""
    # Before: OverflowError and ValueError, from fetchall, show and a notebook.
    found = hybrid.sql(
        "SELECT x FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES A.x AS x PATTERN (A))",
        t=duckdb.sql(f"SELECT 1 AS i, {sql} AS x"),
    )
    assert found.fetchall() == [(value,)]
    assert [row["x"] for row in found] == [value]
    assert shown in repr(found)
    assert shown in found._repr_html_()
    assert json.loads(in_text(found.arrow(), RowFormat.json)) == {"x": in_json}
    if sql.startswith("DATE"):
        with pytest.raises(DataError, match="pandas cannot hold a value"):
            found.df()


def test_intervals_inside_values_of_polars() -> None:
    # Before: a panic of polars.
    rows = duckdb.sql("SELECT i, INTERVAL 1 DAY AS x FROM range(2) AS t(i)")
    found = hybrid.sql("SELECT x FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES list(x) AS x PATTERN (A+))", t=rows)
    with pytest.raises(DataError, match="intervals inside its values"):
        found.pl()


def test_keys_of_many_columns() -> None:
    # Before: OverflowError, more than 4096 values in one of 5 partition columns.
    count = 5000
    rows = pa.table({"i": range(count), "id": range(count), **{name: [1] * count for name in "abcd"}})
    text = "SELECT count(*) FROM t MATCH_RECOGNIZE (PARTITION BY id, a, b, c, d ORDER BY i PATTERN (A))"
    assert hybrid.sql(text, t=rows).fetchall() == [(count,)]
