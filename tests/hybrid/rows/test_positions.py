"""Rows of equal time: the position decides in tables, frames and files; derived relations go by content."""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.rows.positions import of_relation, of_select
from hybrid.statement import by_key
from hybrid.statement.statement import compare_with_reference

NOON = datetime(2024, 1, 1, 12)
#: Four falling ticks of one instant. By content they are a rally.
FALL = [{"ts": NOON, "price": price} for price in (9, 7, 5, 3)]
FALLS = """SELECT n FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n PATTERN (A F+)
           DEFINE F AS price < PREV(price))"""
VALUES = "SELECT v FROM {} MATCH_RECOGNIZE ({} MEASURES list(x) AS v PATTERN (A+))"


class Capsule:
    """A table that is nothing but a PyCapsule stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def rows(text: str, connection: duckdb.DuckDBPyConnection | None = None, **tables: Any) -> list[tuple[Any, ...]]:
    table = hybrid.sql(text, connection, **tables).arrow()
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize(
    "make",
    [
        list,
        lambda fall: {name: [row[name] for row in fall] for name in fall[0]},
        pa.Table.from_pylist,
        lambda fall: pa.Table.from_pylist(fall).to_batches()[0],
        lambda fall: pa.RecordBatchReader.from_batches(
            pa.Table.from_pylist(fall).schema, pa.Table.from_pylist(fall).to_batches(max_chunksize=1)
        ),
        lambda fall: Capsule(pa.Table.from_pylist(fall)),
        pd.DataFrame,
        pl.DataFrame,
        lambda fall: pl.LazyFrame(fall),
        lambda fall: duckdb.connect().from_df(pd.DataFrame(fall)),
    ],
)
def test_falling_ticks_of_one_instant_are_no_rally(make: Callable[[Any], Any]) -> None:
    # Before: no match, for the rows were sorted to 3, 5, 7, 9.
    assert rows(FALLS, t=make(FALL)) == [(4,)]
    rising = make(FALL[::-1])
    assert rows(FALLS, t=rising) == []


def test_so_does_the_reference() -> None:
    assert compare_with_reference(FALLS, {"t": FALL}) == (1, True)


def test_without_order_by_rows_are_as_given() -> None:
    table = pa.table({"x": [3, 1, None, 2, 1]})
    assert rows(VALUES.format("t", ""), t=table) == [([3, 1, None, 2, 1],)]  # Before: [None, 1, 1, 2, 3].
    assert rows(VALUES.format("t", "ORDER BY x DESC NULLS LAST"), t=table) == [([3, 2, 1, 1, None],)]


def test_rows_that_come_in_no_order_of_time_are_sorted_by_it_alone() -> None:
    seconds = [2, 1, 2, 1, 0, 2]
    table = pa.table({"ts": [NOON + timedelta(seconds=s) for s in seconds], "x": [6, 5, 4, 3, 2, 1]})
    assert rows(VALUES.format("t", "ORDER BY ts"), t=table) == [([2, 5, 3, 6, 4, 1],)]
    evidence = hybrid.sql(VALUES.format("t", "ORDER BY ts"), t=table).evidence()
    assert evidence.column("offset").to_pylist() == [4, 1, 3, 0, 2, 5], "an event is known by its place in the table"
    assert evidence.column("x").to_pylist() == [2, 5, 3, 6, 4, 1]


#: 40,000 rows of four instants, in many row groups: what is read in several threads.
N = 40_000
TICKS = pa.table({
    "ts": pa.array(np.repeat(np.arange(4), N // 4), pa.timestamp("us")),
    "x": np.random.default_rng(7).permutation(N),
    "k": np.arange(N) % 7,
})  # fmt: skip
IN_ORDER = "SELECT v FROM {} MATCH_RECOGNIZE (ORDER BY ts MEASURES list(x) AS v PATTERN (A+))"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ticks")
    pq.write_table(TICKS, folder / "ticks.parquet", row_group_size=700)
    # the second half comes first: files in the order given
    pq.write_table(TICKS.slice(N // 2), folder / "b.parquet", row_group_size=700)
    pq.write_table(TICKS.slice(0, N // 2), folder / "a.parquet", row_group_size=700)
    with (folder / "ticks.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(TICKS.column_names)
        writer.writerows(zip(*(column.to_pylist() for column in TICKS.columns), strict=True))
    return folder


def connection_of(threads: int, **settings: Any) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": threads, **settings})


X = TICKS.column("x").to_numpy()
K = TICKS.column("k").to_numpy()


@pytest.mark.slow
@pytest.mark.thinned(6)
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("read_parquet('{f}/ticks.parquet')", X),
        ("'{f}/ticks.parquet'", X),
        ("'{f}/ticks.csv'", X),
        ("read_csv('{f}/ticks.csv')", X),
        ("(SELECT ts, x FROM '{f}/ticks.parquet' WHERE k = 3)", X[K == 3]),
        ("(SELECT x, ts FROM read_csv('{f}/ticks.csv') WHERE k IN (1, 5))", X[(K == 1) | (K == 5)]),
        ("(WITH own AS (SELECT * FROM '{f}/ticks.parquet') SELECT * FROM own WHERE k <> 0)", X[K != 0]),
        ("(SELECT * FROM '{f}/ticks.parquet' LIMIT 25000)", X[:25_000]),
        ("loaded", X),
        ("seen", X[K > 4]),
    ],
)
def test_a_file_is_read_in_its_order(files: Path, threads: int, source: str, expected: np.ndarray) -> None:
    with connection_of(threads) as connection:
        connection.execute(f"CREATE TABLE loaded AS FROM '{files}/ticks.parquet'")
        connection.execute("CREATE VIEW seen AS SELECT * FROM loaded WHERE k > 4")
        ((found,),) = rows(IN_ORDER.format(source.format(f=files)), connection)
    assert found == expected.tolist()


@pytest.mark.slow
def test_files_in_the_order_given(files: Path) -> None:
    both = pa.concat_tables([TICKS.slice(N // 2), TICKS.slice(0, N // 2)]).column("x").to_pylist()
    text = f"SELECT v FROM read_parquet(['{files}/b.parquet', '{files}/a.parquet']) MATCH_RECOGNIZE "
    assert rows(text + "(MEASURES list(x) AS v PATTERN (A+))") == [(both,)]


@pytest.mark.slow
def test_a_path_given_as_a_table(files: Path) -> None:
    for name in ("ticks.parquet", "ticks.csv"):
        assert rows(IN_ORDER.format("t"), t=files / name) == [(X.tolist(),)]


@pytest.mark.slow
def test_hybrid_sql_over_a_file(files: Path) -> None:
    text = f"SELECT md5(v::VARCHAR) AS v FROM '{files}/ticks.csv' MATCH_RECOGNIZE "
    text += "(ORDER BY ts MEASURES list(x) AS v PATTERN (A+))"
    result = CliRunner().invoke(app, ["sql", text, "--format", "csv"])
    ((wanted,),) = duckdb.sql(f"SELECT md5(v::VARCHAR) FROM (SELECT list(x) AS v FROM '{files}/ticks.csv')").fetchall()
    assert result.exit_code == 0, result.output
    assert wanted in result.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "(SELECT DISTINCT ts, x FROM t)",
        "(SELECT a.ts, a.x FROM t a JOIN u USING (x))",
        "(SELECT ts, x FROM t GROUP BY ALL)",
        "(SELECT ts, x, lag(x) OVER (PARTITION BY ts ORDER BY x) AS before FROM t)",
        "(SELECT ts, x FROM t ORDER BY x DESC)",
        "joined",
    ],
)
def test_derived_relations_go_by_content(source: str) -> None:
    t = pa.table({"ts": [NOON] * 5, "x": [4, 2, 5, 1, 3]})
    with duckdb.connect() as connection:
        connection.register("u", pa.table({"x": [1, 2, 3, 4, 5]}))
        connection.register("t", t)
        connection.execute("CREATE VIEW joined AS SELECT t.* FROM t JOIN u USING (x)")
        assert rows(VALUES.format(source, "ORDER BY ts"), connection) == [([1, 2, 3, 4, 5],)]


@pytest.mark.slow
def test_a_long_list_behind_in_is_told() -> None:
    """DuckDB makes a join of it, which gives rows in no order."""
    t = pa.table({"ts": [NOON] * 4, "x": [4, 2, 3, 1]})
    some, many = ("(SELECT * FROM t WHERE x IN (1, 2, {}))".format(", ".join(map(str, range(3, n)))) for n in (5, 50))
    assert rows(VALUES.format(some, "ORDER BY ts"), t=t) == [([4, 2, 3, 1],)]
    with pytest.warns(hybrid.HybridWarning, match="after a long IN list"):
        assert rows(VALUES.format(many, "ORDER BY ts"), t=t) == [([1, 2, 3, 4],)]
    assert rows(VALUES.format(many, "ORDER BY ts, x DESC"), t=t) == [([4, 3, 2, 1],)], "nothing to tell"


@pytest.mark.slow
def test_derived_relations_that_are_given_go_by_content() -> None:
    with duckdb.connect() as connection:
        connection.register("u", pa.table({"ts": [NOON] * 3, "x": [3, 1, 2]}))
        text = VALUES.format("t", "ORDER BY ts")
        assert rows(text, t=connection.sql("FROM u")) == [([3, 1, 2],)]
        assert rows(text, t=connection.sql("FROM u WHERE x > 1")) == [([3, 2],)]
        assert rows(text, t=connection.sql("SELECT DISTINCT ts, x FROM u")) == [([1, 2, 3],)]
        assert rows(text, t=connection.table("u").order("x DESC")) == [([1, 2, 3],)]


def test_a_connection_that_keeps_no_order_has_no_positions() -> None:
    with connection_of(2, preserve_insertion_order=False) as connection:
        connection.execute("CREATE TABLE t AS SELECT unnest([3, 1, 2]) AS x")
        assert rows(VALUES.format("t", ""), connection) == [([1, 2, 3],)]


def test_rows_of_a_pattern_go_by_content() -> None:
    inner = "(SELECT ts, x FROM t MATCH_RECOGNIZE (MEASURES A.ts AS ts, A.x AS x PATTERN (A)))"
    t = pa.table({"ts": [NOON] * 3, "x": [3, 1, 2]})
    assert rows(VALUES.format(inner, "ORDER BY ts"), t=t) == [([1, 2, 3],)]


def test_events_of_a_stream_go_by_offset_and_a_select_of_them_by_content() -> None:
    with hybrid.connect() as db:
        db.create_stream("t", {"ts": "TIMESTAMP", "x": "INTEGER"}, time="ts")
        db.push("t", [{"ts": NOON, "x": x} for x in (3, 1, 2)])
        db.advance("t", None)
        assert db.sql(VALUES.format("t", "ORDER BY ts")).arrow().column(0).to_pylist() == [[3, 1, 2]]
        selected = VALUES.format("(SELECT * FROM t WHERE x > 0)", "ORDER BY ts")
        assert db.sql(selected).arrow().column(0).to_pylist() == [[1, 2, 3]]


def test_a_plain_history_is_in_its_order() -> None:
    text = """SELECT pl.x, list(pa.v) AS v
    FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS ts, A.x AS x PATTERN (A)) AS pl
    JOIN HISTORY OF t FROM pl.ts - INTERVAL '1' HOUR TO pl.ts
      MATCH_RECOGNIZE (ORDER BY ts MEASURES list(x) AS v PATTERN (B+)) AS pa ON true
    WHERE pl.x = 0 GROUP BY ALL"""
    t = pa.table({"ts": [NOON] * 3 + [NOON + timedelta(seconds=1)], "x": [3, 1, 2, 0]})
    assert rows(text, t=t) == [(0, [[3, 1, 2]])]


# ---- what has a position ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM t", True),
        ("FROM main.t", True),
        ("FROM kept", True),
        ("FROM frame", True),
        ('FROM "kept AS it is"', True),
        ("SELECT x + 1 FROM t WHERE x > 1 LIMIT 3 OFFSET 1", True),
        ("SELECT x FROM t UNION ALL SELECT x FROM t", True),
        ("SELECT x FROM (SELECT x FROM t WHERE x < 3)", True),
        ("WITH q AS (SELECT * FROM t) SELECT * FROM q", True),
        ("VALUES (1), (2)", True),
        ("SELECT x FROM t WHERE x IN (1, 2, 3)", True),
        ("SELECT x FROM t WHERE x IN (1, 2, 3, 4, 5, 6)", False),  # which DuckDB answers by a join
        ("SELECT x FROM t WHERE x IN (SELECT x FROM t)", False),
        ("FROM grouped", False),
        ("FROM other.grouped", False),
        ("FROM other.t", True),
        ("FROM own_macro()", False),
        ("FROM query('FROM t')", False),
        ("WITH q AS (SELECT DISTINCT * FROM t) SELECT * FROM q", False),
        ("WITH q AS MATERIALIZED (SELECT * FROM t) SELECT * FROM q", False),
        ("WITH q AS (SELECT * FROM t) SELECT * FROM q UNION ALL SELECT * FROM q", False),
        ("SELECT x FROM t UNION SELECT x FROM t", False),
        ("SELECT x FROM t USING SAMPLE 50%", False),
        ("SELECT x FROM t QUALIFY row_number() OVER (PARTITION BY x) = 1", False),
        ("SELECT x FROM t ORDER BY x", False),
        ("SELECT t.x FROM t, t AS u", False),
        ("SELECT x FROM t WHERE x = (SELECT max(x) FROM t)", False),
    ],
)
def test_what_keeps_the_order_of_a_table(text: str, expected: bool) -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT range AS x FROM range(5); CREATE SCHEMA other")
        connection.execute("CREATE VIEW kept AS SELECT * FROM t WHERE x > 1")
        connection.execute('CREATE VIEW "kept AS it is" AS SELECT * FROM kept')
        connection.execute("CREATE VIEW grouped AS SELECT x, count(*) AS n FROM t GROUP BY x")
        connection.execute("CREATE VIEW other.grouped AS FROM main.grouped")
        connection.execute("CREATE VIEW other.t AS FROM main.t")
        connection.execute("CREATE MACRO own_macro() AS TABLE SELECT * FROM t ORDER BY x")
        connection.register("frame", pd.DataFrame({"x": [1]}))
        assert of_select(text, lambda sql: connection.execute(sql).fetchall()) is expected
        assert of_relation(connection.sql(text)) is expected or "UNION ALL" in text


# ---- tables that stand by key ----------------------------------------------------------------------------------------

BY_KEY = """SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
    MEASURES MATCH_NUMBER() AS n, FIRST(ts) AS first_ts, LAST(ts) AS last_ts, list(x) AS v {}
    PATTERN (A F{{1,3}}) {} DEFINE F AS x < PREV(x))"""


def standing_by_key(seed: int, n: int = 3_000) -> pa.Table:
    """Rows by key, in no order of keys, and by time: with nulls among the keys, and equal times."""
    random = np.random.default_rng(seed)
    key = np.sort(random.integers(0, 40, n))
    ts = random.integers(0, 600, n) * 1_000_000
    order = np.lexsort((ts, key))
    names = pa.array([None, *(f"{i * 7919 % 41}" for i in range(1, 40))])
    return pa.table({
        "ts": pa.array(ts[order], pa.timestamp("us")), "k": names.take(pa.array(key)), "x": random.integers(0, 9, n),
    })  # fmt: skip


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("within", ["", "WITHIN INTERVAL '5' SECOND", "WITHIN 3 ROWS"])
@pytest.mark.parametrize("rows_per_match", ["", "ALL ROWS PER MATCH WITH UNMATCHED ROWS", "AFTER MATCH NO SKIP"])
def test_a_table_by_key_is_matched_as_it_stands(
    monkeypatch: pytest.MonkeyPatch, within: str, rows_per_match: str
) -> None:
    for seed in range(3):
        table = standing_by_key(seed)
        text = BY_KEY.format(rows_per_match, within)
        sorted_ = hybrid.sql(text, t=table)
        by_time = sorted_.arrow().to_pylist()
        assert by_time
        with monkeypatch.context() as patch:
            patch.setattr(by_key, "ROWS_MIN", 0)
            patch.setattr("hybrid.rows.inputs.sorting_order", None)  # nothing is sorted
            result = hybrid.sql(text, t=table)
            found = result.arrow().to_pylist()
            evidence = result.evidence()
        assert found != by_time, "matches come partition by partition"
        assert sorted(map(repr, found)) == sorted(map(repr, by_time))
        columns = ["match_id", "variable", "event_time", "source", "offset", "ts", "k", "x"]
        assert by_evidence(evidence.select(columns)) == by_evidence(sorted_.evidence().select(columns))
        for row, line in enumerate(found):
            events = evidence.filter(pa.compute.equal(evidence.column("row"), row))
            if "AFTER" in rows_per_match or not rows_per_match:
                assert events.column("x").to_pylist() == line["v"]


def by_evidence(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def test_a_table_stands_by_key_only_if_no_key_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_key, "ROWS_MIN", 0)
    times = [NOON + timedelta(seconds=s) for s in (5, 6, 7, 1, 2, 3, 8, 9, 10)]
    table = pa.table({"ts": times, "k": list("aaabbbaaa"), "x": [9, 8, 7, 6, 5, 4, 3, 2, 1]})
    assert rows(BY_KEY.format("", "").replace("{1,3}", "+"), t=table)[1][4] == [9, 8, 7, 3, 2, 1]


def test_strict_sees_the_rows_of_all_keys_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_key, "ROWS_MIN", 0)
    table = standing_by_key(1)
    text = BY_KEY.format("", "SELECTION STRICT")
    found = rows(text, t=table)
    monkeypatch.setattr(by_key, "ROWS_MIN", 1 << 17)
    assert rows(text, t=table) == found


def test_matches_of_a_table_by_key_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    table = standing_by_key(2)
    text = """SELECT k, count(*) AS n
              FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts PATTERN (A B) DEFINE B AS x < 3)
              GROUP BY k ORDER BY k NULLS FIRST"""
    expected = rows(text, t=table)
    monkeypatch.setattr(by_key, "ROWS_MIN", 0)
    assert rows(text, t=table) == expected
    assert sum(n for _, n in expected) > 100
