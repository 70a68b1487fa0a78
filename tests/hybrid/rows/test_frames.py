"""Rows as other libraries have them: frames with durations, time zones and categories, tuples and dicts of Python."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import hybrid
from hybrid.rows.frames import Given, pandas_frame, polars_frame, python_columns
from query.errors import DataError

MINUTE = dt.timedelta(minutes=1)
TICKS = pd.DataFrame(
    {
        "ts": pd.date_range("2024-03-01 09:30", periods=5, freq="min", tz="Europe/Berlin"),
        "symbol": pd.Categorical(["B", "A", "B", "A", "B"], ["C", "B", "A"], ordered=True),
        "n": [1, 1, 2, 3, 3],
    }
)
RISES = """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts
    MEASURES FIRST(ts) AS since, LAST(ts) - FIRST(ts) AS took, sum(n) AS total
    PATTERN (A UP+) DEFINE UP AS n > PREV(n)) AS m ORDER BY since"""


def test_pandas_rows_have_the_types_of_the_frame_they_come_from() -> None:
    rows = hybrid.sql(RISES, ticks=TICKS).df()
    # Before: text, UTC, and objects for both the duration and the sum.
    assert rows["symbol"].dtype == TICKS["symbol"].dtype
    assert str(rows["since"].dtype) == "datetime64[us, Europe/Berlin]"
    assert rows["since"].tolist() == TICKS["ts"][:2].tolist()
    assert rows["took"].dtype.kind == "m"
    assert rows["took"].tolist() == [4 * MINUTE, 2 * MINUTE]
    assert rows["total"].dtype == "float64"
    assert rows["total"].tolist() == [6, 4]


def test_polars_rows_have_durations_and_time_zones() -> None:
    ticks = pl.from_pandas(TICKS.assign(symbol=TICKS["symbol"].astype(str)))
    ticks = ticks.with_columns(pl.col("symbol").cast(pl.Enum(["C", "B", "A"])))
    rows = hybrid.sql(RISES, ticks=ticks).pl()  # before: polars' ComputeError
    assert rows.schema["took"] == pl.Duration("us")
    assert rows.schema["since"] == pl.Datetime("us", "Europe/Berlin")
    assert rows.schema["symbol"] == ticks.schema["symbol"]
    assert rows["took"].to_list() == [4 * MINUTE, 2 * MINUTE]


def test_a_time_zone_of_several_and_a_category_without_a_value_are_left() -> None:
    table = pa.table({"t": pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("us", "UTC")), "s": ["x"]})
    frame = hybrid.sql(
        "SELECT t, s FROM a",
        a=table,
        b=pd.DataFrame({"t": pd.to_datetime(["2024-01-01"]).tz_localize("Asia/Tokyo"), "s": pd.Categorical(["y"])}),
    ).df()
    assert str(frame["t"].dtype) == "datetime64[us, UTC]"
    assert frame["s"].tolist() == ["x"]
    assert not isinstance(frame["s"].dtype, pd.CategoricalDtype)


INTERVALS = pa.array([pa.MonthDayNano([0, 1, 5000]), None, pa.MonthDayNano([0, -2, 0])])


def test_intervals_without_months_are_durations() -> None:
    table = pa.table({"took": pa.chunked_array([INTERVALS, INTERVALS[1:]])})
    expected = [dt.timedelta(days=1, microseconds=5), None, dt.timedelta(days=-2), None, dt.timedelta(days=-2)]
    assert python_columns(table) == [expected]
    assert polars_frame(table, Given())["took"].to_list() == expected
    assert [None if v is pd.NaT else v for v in pandas_frame(table, Given())["took"]] == expected


def test_polars_has_no_intervals_of_months() -> None:
    table = pa.table({"age": pa.array([pa.MonthDayNano([1, 0, 0])])})
    with pytest.raises(DataError, match=r"column age has intervals of months.*\nhint: cast it: CAST\(age AS VARCHAR\)"):
        polars_frame(table, Given())
    assert pandas_frame(table, Given())["age"].tolist() == [pd.DateOffset(days=0, months=1, nanoseconds=0)]


def test_rows_as_tuples_and_dicts() -> None:
    result = hybrid.sql(RISES, ticks=TICKS)
    tuples = result.fetchall()
    assert [row[2:] for row in tuples] == [(4 * MINUTE, 6), (2 * MINUTE, 4)]
    assert [type(row[3]) for row in tuples] == [int, int]
    assert [tuple(row.values()) for row in result] == tuples
    assert pd.DataFrame(result)["total"].tolist() == [6, 4]
    assert result.to_pandas().equals(result.df())
    assert hybrid.sql("SELECT 1 AS x WHERE false").fetchall() == []


def test_lists_and_durations_are_short_in_tables() -> None:
    text = "SELECT range(20) AS many, [TIMESTAMP '2024-01-01'] AS times, INTERVAL 90 SECOND AS took, 1.50 AS d"
    shown = str(hybrid.sql(text)).splitlines()[2]
    assert shown == "[0, 1, 2, 3, 4, 5, 6, ... 12 more, 19]  [2024-01-01 00:00:00]  0:01:30  1.50"


@pytest.mark.parametrize(
    ("interval", "shown"),
    [("5 DAY", "5 days"), ("-1 DAY", "-1 day"), ("36 HOUR", "1 day, 12:00:00"), ("-90 SECOND", "-0:01:30"),
     ("-36 HOUR", "-1 day, -12:00:00"), ("0 DAY", "0:00:00")],
)  # fmt: skip
def test_a_duration_has_no_part_that_is_nothing(interval: str, shown: str) -> None:
    """Before: 5 days, 0:00:00, and of ninety seconds back -1 day, 23:58:30."""
    assert str(hybrid.sql(f"SELECT INTERVAL '{interval}' AS took")).splitlines()[2] == shown


def test_a_decimal_keeps_its_places() -> None:
    assert hybrid.sql("SELECT 1.50 AS d").fetchall() == [(Decimal("1.50"),)]


def test_columns_of_one_name() -> None:
    text = "SELECT 1 AS x, 2 AS x, 3 AS x, 4 AS x_1"
    found = hybrid.sql(text)
    names = duckdb.sql(text).df().columns.tolist()
    # Before: polars' DuplicateError, a dict without the first ones, and three columns x in pandas.
    assert found.pl().columns == found.df().columns.tolist() == list(next(iter(found))) == names
    assert found.arrow().column_names == ["x", "x", "x", "x_1"]


def test_what_reads_a_result_by_itself_gets_durations_and_the_zone() -> None:
    hours = pd.date_range("2024-03-01", periods=3, freq="h", tz="Europe/Berlin")
    result = hybrid.sql("SELECT ts, ts - min(ts) OVER () AS since FROM t ORDER BY ts", t=pd.DataFrame({"ts": hours}))
    # Before: a panic of polars, and UTC.
    frame = pl.DataFrame(result)
    assert frame.schema == {"ts": pl.Datetime("us", "Europe/Berlin"), "since": pl.Duration("us")}
    assert frame["since"].to_list() == [dt.timedelta(hours=i) for i in range(3)]
    assert str(result.fetchall()[0][0]) == str(next(iter(result))["ts"]) == "2024-03-01 00:00:00+01:00"
    assert pd.DataFrame(result)["ts"].tolist() == hours.tolist()
    months = hybrid.sql("SELECT INTERVAL 1 MONTH AS i")
    assert pa.table(months).schema == months.arrow().schema
