"""Streams that get columns while the database is closed, and queries with names that go on all the same."""

from __future__ import annotations

import datetime as dt
import warnings
from pathlib import Path
from typing import Any

import pytest

import hybrid
from hybrid.database.database import Database
from query.errors import HybridWarning
from tests.hybrid.ends import killed

COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}
WIDER = {**COLUMNS, "w": "VARCHAR"}
DEFINED = "PATTERN (A B+ C) DEFINE B AS v < PREV(v), C AS v > PREV(v))"
ONE = f"SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.v AS a, LAST(B.v) AS b {DEFINED}"
ALL = f"SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.v AS a ALL ROWS PER MATCH {DEFINED}"
JOINED = f"""SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.ts AS at, A.v AS a {DEFINED} AS p
    JOIN HISTORY OF t FROM p.at - INTERVAL '10' SECOND TO p.at + INTERVAL '15' SECOND AS h ON h.k = p.k"""


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize("log", ["os", None])
@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize(
    "text",
    [
        ONE, ALL, JOINED, ONE.replace("FROM t", "FROM MERGE(t, u)"), ALL.replace("FROM t", "FROM MERGE(t, u)"),
        ALL.replace("(A B+ C)", "(A B+ C) WITHIN INTERVAL '1' HOUR") + " ALERT ONCE PER k WITHIN INTERVAL '1' SECOND",
    ],
)  # fmt: skip
def test_queries_go_on_with_more_columns(tmp_path: Path, text: str, end: str, log: Any) -> None:
    """The rows are those of a stream that had the column from the beginning, with nulls there: what waits to be
    fetched, what is held back, what is in progress, what waits for history. Before: `cannot take columns while live
    queries read or feed it`, so that a column could not be added without ending them."""

    def push(db: Database, values: tuple[int, ...], first: int, more: dict[str, Any]) -> None:
        for i, v in enumerate(values, first):
            event = {"ts": dt.datetime(2026, 1, 1) + dt.timedelta(seconds=i), "v": v}
            db.push("t", [event | {"k": "a"} | more])
            db.push("u", [event | {"k": "b"}])

    def rows(path: Path, columns: dict[str, str], restarts: bool) -> list[Any]:
        db = Database(path, maintenance=False, ticking=False, log=log)
        for name, types in (("t", columns), ("u", COLUMNS)):
            db.create_stream(name, types, time="ts", key="k", lateness="2s")
        alerts = db.watch(text, name="q")
        push(db, (5, 4, 6, 3, 2, 1), 0, {} if restarts else {"w": None})
        if restarts:
            db.checkpoint()
            db.close() if end == "closed" else killed(db)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", HybridWarning)
                db = Database(path, maintenance=False, ticking=False, log=log, columns={"T": WIDER})
            assert all("for streams with fewer columns: q replayed" in str(w.message) for w in said), said
            alerts = db.watching()["q"]
        push(db, (7, 4, 9, 9), 6, {"w": "new"})
        for name in "tu":
            db.advance(name, None)
        found = alerts.fetch().to_pylist()
        db.close()
        return found

    expected = rows(tmp_path / "whole", WIDER, restarts=False)
    assert expected
    assert rows(tmp_path / "db", COLUMNS, restarts=True) == expected


@pytest.mark.parametrize("type", ["UNION(a INTEGER, b VARCHAR)", "UNION(a INTEGER)[]", "STRUCT(u UNION(a INTEGER))"])
def test_a_union_is_no_type_of_a_stream(type: str) -> None:
    with hybrid.connect() as db:
        with pytest.raises(hybrid.DataError, match=r"s\.x: .* is no type of a stream: Parquet has no UNION"):
            db.create_stream("s", {"ts": "TIMESTAMP", "x": type}, time="ts")
        assert db.streams() == {}


def test_the_limit_of_a_uhugeint() -> None:
    at = dt.datetime(2024, 1, 1)
    with hybrid.connect() as db:
        db.create_stream("s", {"ts": "TIMESTAMP", "x": "UHUGEINT"}, time="ts")
        assert db.push("s", [{"ts": at, "x": 10**38 - 1}]) == 1
        with pytest.raises(hybrid.DataError, match="of type UHUGEINT in a stream, which keeps 38 digits"):
            db.push("s", [{"ts": at, "x": 2**127 + 5}])
