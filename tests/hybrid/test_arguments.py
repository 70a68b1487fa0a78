"""Arguments of another type than asked for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import hybrid
from query.errors import DataError

COLUMNS = {"ts": "TIMESTAMP", "v": "BIGINT"}
TEXT = "SELECT * FROM seen MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n PATTERN (A) DEFINE A AS v > 1)"


@pytest.fixture(scope="module")
def db() -> hybrid.Database:
    db = hybrid.connect()
    db.create_stream("seen", COLUMNS, time="ts")
    return db


@pytest.mark.parametrize("text", [None, 5, b"SELECT 1", ["SELECT 1"]], ids=repr)
def test_a_text_that_is_none(db: hybrid.Database, text: Any) -> None:
    # Before: TypeErrors and AttributeErrors from inside: expected string or bytes-like object.
    alerts = db.watch(TEXT)
    calls: list[Callable[[], object]] = [
        lambda: hybrid.sql(text), lambda: hybrid.matches(text), lambda: hybrid.plan(text, {}), lambda: db.sql(text),
        lambda: db.watch(text), lambda: db.backtest(text, "2024-01-01"), lambda: db.explain(text),
        lambda: db.compare(TEXT, text, "2024-01-01"), lambda: db.replace(alerts, text),
        lambda: db.create_pattern("v", text), lambda: db.create_patterns({"v": text}),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(DataError, match=f"query( of a pattern)? is a text, not {type(text).__name__}"):
            call()
    alerts.close()


def test_other_arguments_that_are_none(db: hybrid.Database) -> None:
    wrong: Any = None
    with pytest.raises(DataError, match="name of a pattern is a text, not NoneType"):
        db.drop_pattern(wrong)
    with pytest.raises(DataError, match="patterns are texts by name, not NoneType"):
        db.create_patterns(wrong)
    with pytest.raises(DataError, match="columns of stream z are types by name, not None"):
        db.create_stream("z", wrong, time="ts")
    with pytest.raises(DataError, match="the time of stream z is a text, not NoneType"):
        db.create_stream("z", COLUMNS, time=wrong)
    for path in (5, b"market"):
        with pytest.raises(DataError, match=f"{path!r} is no path"):
            hybrid.connect(path)  # type: ignore[arg-type]


def test_columns_of_an_arrow_schema() -> None:
    # Before: timestamp[us] is no DuckDB type: Parser Error: Expected a constant number as array size.
    fields = {"ts": pa.timestamp("us"), "z": pa.timestamp("us", "UTC"), "s": pa.dictionary(pa.int8(), pa.string()),
              "d": pa.decimal128(9, 2), "l": pa.list_(pa.int32())}  # fmt: skip
    with hybrid.connect() as db:
        db.create_stream("a", pa.schema(fields), time="ts", key="s")
        db.create_stream("b", fields, time="ts", key="s")
        types = ["TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "VARCHAR", "DECIMAL(9,2)", "INTEGER[]"]
        for stream in db.streams().values():
            assert stream["columns"] == dict(zip(fields, types, strict=True))
        with pytest.raises(DataError, match=r"c\.d: "):
            db.create_stream("c", {"ts": "TIMESTAMP", "d": pa.float16()}, time="ts")
        twice = pa.schema([("ts", pa.timestamp("us")), ("ts", pa.int64())])
        with pytest.raises(DataError, match="two columns ts"):
            db.create_stream("c", twice, time="ts")


def test_arguments_of_a_watch_that_are_none_of_theirs(db: hybrid.Database) -> None:
    # Before: a push that failed later, an AttributeError from inside, and a hint that no call could follow.
    alerts, wrong = db.watch(TEXT), "10s"
    for rows in (0, -1, wrong):
        with pytest.raises(DataError, match=r"unread_max is .*, not a number of rows"):
            db.watch(TEXT, unread_max=rows)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="shed is of type str"):
        db.watch(TEXT, shed=wrong)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="shed is of type str"):
        db.shed(alerts, wrong)  # type: ignore[arg-type]
    alerts.close()
    with pytest.raises(DataError, match="s3:// names no bucket"):
        hybrid.connect("s3://")


@pytest.mark.slow
def test_parameters_of_live_queries(tmp_path: Path) -> None:
    # Before: "a parameter without a value", with a hint to params=, which watch did not take.
    text = TEXT.replace("v > 1", "v > $least AND v < $most")
    rows = [{"ts": datetime(2024, 1, 1, second=i), "v": i} for i in range(6)]
    for given in ({"least": 3, "most": 5}, {"least": 3, "most": 5}):
        with hybrid.connect(tmp_path) as db:
            db.create_stream("seen", COLUMNS, time="ts")
            alerts = db.watch(text, name="some", params=given)
            db.push("seen", rows, "x", 0)
    with hybrid.connect(tmp_path) as db:
        alerts = db.watch(text, name="some", params={"least": 3, "most": 5})
        assert alerts.fetch().num_rows == 1
        with pytest.raises(DataError, match="some"):
            db.watch(text, name="some", params={"least": 2, "most": 5})
        alerts = db.replace(alerts, text, params={"least": 4, "most": 7})
        db.push("seen", [{"ts": datetime(2024, 1, 1, second=6), "v": v} for v in (4, 6)], "x", 6)
        db.advance("seen", None)
        assert alerts.fetch().num_rows == 1
        assert db.backtest(text, "2024-01-01", params={"least": 1, "most": 4}).arrow().num_rows == 2


def test_connections_that_cannot_be_used() -> None:
    closed = duckdb.connect()
    closed.close()
    aborted = duckdb.connect()
    aborted.execute("BEGIN")
    with pytest.raises(duckdb.Error):
        aborted.execute("SELECT * FROM nothing")
    # Before: DuckDB's own exceptions, and a hint about tables.
    for connection, said in (
        (closed, "the connection is closed"), (aborted, "transaction of the connection is aborted(.|\n)*rollback"),
        ("x.db", r"not a DuckDB connection\nhint: duckdb\.connect opens a database"),
        (duckdb, r"pass duckdb\.default_connection\(\)"),
    ):  # fmt: skip
        wrong: Any = connection
        with pytest.raises(DataError, match=said):
            hybrid.sql("SELECT 1", wrong)


def test_a_table_called_timeout() -> None:
    wrong: Any = pd.DataFrame({"a": [1, 2]})
    # Before: pandas' ValueError about the truth of a frame.
    with pytest.raises(DataError, match="not a duration"):
        hybrid.sql("SELECT * FROM timeout", timeout=wrong)


@pytest.mark.parametrize(("params", "expected"), [
    ({"X": 3}, 3), ({"x": np.array([1, 2])}, [1, 2]), ({"x": pd.NaT}, None), ({"x": pd.NA}, None),
    ({"x": np.int8(3)}, 3),
])  # fmt: skip
def test_values_of_parameters(params: Any, expected: object) -> None:
    # Before: `$x has no value`, numpy's ValueError, `"NaT"` as a time, and `has no literal`.
    assert hybrid.sql("SELECT $x AS x", params=params).fetchall() == [(expected,)]


def test_hints_about_parameters() -> None:
    with pytest.raises(DataError, match=r'names in params have no \$: \{"x": ...\}'):
        hybrid.sql("SELECT $x AS x", params={"$x": 3})
    text = TEXT.replace("(A)", "(A) WITHIN $w")
    for value in ("1 hour", 3):
        # Before: `expected INTERVAL` without a hint, at another place for numbers.
        with pytest.raises(hybrid.QueryError, match="hint: pass a timedelta"):
            hybrid.sql(text, params={"w": value}, seen=[{"ts": 1, "v": 2}])


def test_files_that_are_no_csv(tmp_path: Path) -> None:
    file = tmp_path / "latin.csv"
    file.write_bytes("ts,wört\n2024-01-01,1\n".encode("latin-1"))
    # Before: `CSV Error on Line: 1` alone.
    with pytest.raises(DataError, match=r"CSV Error on Line: 1: .*not utf-8 encoded"):
        hybrid.sql("SELECT * FROM t", t=file)
    with pytest.raises(hybrid.QueryError, match=r"CSV Error on Line: 1: .*not utf-8 encoded"):
        hybrid.sql(f"SELECT * FROM '{file}'")
