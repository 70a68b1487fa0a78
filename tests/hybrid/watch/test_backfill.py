"""db.watch(start=...): it reads the archive first and goes on live. Random streams: tests/properties."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybrid
from archive.snapshot import HistorySnapshot
from hybrid.database.database import Database
from query.errors import HybridWarning, QueryError
from tests.hybrid.ends import opened_again
from tests.waiting import GUARD_S

COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}
RISE = """SELECT a, b FROM ticks MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.v AS a, B.v AS b
    AFTER MATCH SKIP TO NEXT ROW PATTERN (A B) DEFINE B AS v > A.v)"""


def ticks(first: int, *values: int, k: str = "p") -> pa.Table:
    """A tick a second, from the second `first` on."""
    times = pa.array([(first + i) * 1_000_000 for i in range(len(values))], pa.timestamp("us"))
    return pa.table({"ts": times, "k": [k] * len(values), "v": pa.array(values, pa.int64())})


def pairs(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


def opened(path: Path | None = None, **more: Any) -> Database:
    db = opened_again(path, maintenance=False)
    db.create_stream("ticks", COLUMNS, time="ts", key="k", **more)
    return db


@pytest.mark.slow
def test_what_is_in_files_comes_first(tmp_path: Path) -> None:
    """A stream without other events goes on from the files as if their rows had been pushed."""
    pq.write_table(ticks(0, 1, 2, 3), tmp_path / "old.parquet")
    with opened(tmp_path / "db") as db:
        db.ingest("ticks", tmp_path / "old.parquet")
        alerts = db.watch(RISE, start=0)
        assert pairs(alerts.fetch()) == [(1, 2), (2, 3)]
        assert db.reached("ticks").watermark_us <= 2_000_000
        db.push("ticks", ticks(2, 9))
        db.push("ticks", ticks(3, 4))
        assert pairs(alerts.fetch()) == pairs(db.backtest(RISE, 0).arrow())[2:] == [(3, 9)]


@pytest.mark.slow
def test_files_ahead_of_the_stream_wait_for_it(tmp_path: Path) -> None:
    pq.write_table(ticks(3, 4, 5), tmp_path / "ahead.parquet")
    with opened(tmp_path / "db") as db:
        db.push("ticks", ticks(0, 1, 2))
        db.ingest("ticks", tmp_path / "ahead.parquet")
        other, alerts = db.watch(RISE), db.watch(RISE, start=0)
        db.push("ticks", ticks(2, 3))
        assert pairs(alerts.fetch()) == [(1, 2)]
        db.push("ticks", ticks(5, 6, 7))
        assert pairs(alerts.fetch()) == [(2, 3), (3, 4), (4, 5), (5, 6), (6, 7)]
        db.push("ticks", ticks(7, 8))
        assert pairs(alerts.fetch()) == [(7, 8)]  # at once again: nothing is ahead any more
        assert pairs(other.fetch()) == [(3, 6), (6, 7), (7, 8)]  # what it always saw: rows of files are not for it


def test_a_start_that_lies_ahead() -> None:
    with opened() as db:
        db.push("ticks", ticks(0, 1))
        alerts = db.watch(RISE, start=2_000_000)
        db.push("ticks", ticks(1, 2, 3, 4))
        assert pairs(alerts.fetch()) == [(3, 4)]


def test_a_query_that_fails_in_the_past_says_so_when_it_is_read() -> None:
    failing = RISE.replace("v > A.v", "v // (v - 3) > 0")
    with opened() as db:
        db.push("ticks", ticks(0, 5, 6, 3, 2))
        alerts, other = db.watch(failing, start=0), db.watch(RISE, start=0)
        assert pairs(alerts.fetch()) == [(5, 6)]  # decided before
        with pytest.raises(hybrid.DataError, match="Division by zero"):
            alerts.fetch()
        db.push("ticks", ticks(5, 1, 2))
        assert pairs(other.fetch())[-1] == (1, 2)


@pytest.mark.slow
def test_it_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as db:
        db.push("ticks", ticks(0, 1, 2))
        assert pairs(db.watch(RISE, start=0, name="rise").fetch()) == [(1, 2)]
        with pytest.raises(hybrid.DataError, match="another query runs under the name rise"):
            db.watch(RISE, start=1, name="rise")

    def never(*arguments: Any, **named: Any) -> Iterator[Any]:
        raise AssertionError("it is in the checkpoint")

    with opened(tmp_path) as db:
        monkeypatch.setattr(HistorySnapshot, "batches", never)
        alerts = db.watch(RISE, start=0, name="rise")
        db.push("ticks", ticks(2, 3))
        assert pairs(alerts.fetch()) == [(2, 3)]


def test_others_push_while_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, pushed = threading.Event(), threading.Event()
    batches = HistorySnapshot.batches

    def slow(self: HistorySnapshot, *arguments: Any, **named: Any) -> Iterator[Any]:
        for batch in batches(self, *arguments, **named):
            reading.set()
            assert pushed.wait(GUARD_S)
            yield batch

    with opened(tmp_path, lateness="2s") as db:
        db.push("ticks", ticks(0, 1, 2, 3, 4))
        monkeypatch.setattr(HistorySnapshot, "batches", slow)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(db.watch(RISE, start=0)))
        thread.start()
        assert reading.wait(GUARD_S)
        db.push("ticks", ticks(4, 5, 6, 7))
        db.push("ticks", ticks(5, 9, k="q"))
        pushed.set()
        thread.join(GUARD_S)
        db.push("ticks", ticks(7, 8))
        db.advance("ticks", None)
        assert pairs(found[0].fetch()) == [(i, i + 1) for i in range(1, 8)]


@pytest.mark.parametrize("pattern", ["(A B)", "(A B) WITHIN INTERVAL 2 SECOND"])
def test_a_new_version_knows_the_past_too(pattern: str) -> None:
    """What the old one was in the middle of goes on, also from before either was begun."""
    old = RISE.replace("(A B)", "(A B B)").replace("v > A.v", "v > PREV(v)")
    new = old.replace("(A B B)", pattern.replace("A B", "A B B")).replace("> PREV(v)", ">= PREV(v)")
    with opened(lateness="1s") as db:
        db.push("ticks", ticks(0, 1, 2, 3, 4, 5))
        first = db.watch(old, start=0)
        second = db.replace(first, new)
        assert pairs(first.fetch()) == pairs(db.backtest(old, 0, 3_000_000).arrow()) == [(1, 3)]
        db.push("ticks", ticks(5, 6, 7))
        found = pairs(db.backtest(new, 0, 5_000_000).arrow())
        assert pairs(second.fetch()) == found[1:] == [(2, 4), (3, 5)]


def test_with_shedding_it_begins_whole() -> None:
    with opened() as db:
        db.push("ticks", ticks(0, 1, 2, 3))
        alerts = db.watch(RISE, start=0, shed=hybrid.Shed())
        assert pairs(alerts.fetch()) == [(1, 2), (2, 3)]
        assert alerts.stats()["events_shed"] == 0


def test_what_cannot_be() -> None:
    with opened() as db:
        db.push("ticks", ticks(0, 1, 2))
        with pytest.raises(QueryError, match="into= with start="):
            db.watch(RISE, start=0, into="rises")
        with pytest.raises(hybrid.DataError, match="the start of a watch"):
            db.watch(RISE, start="yesterday")
        db.advance("ticks", None)
        with pytest.raises(QueryError, match="has ended"):
            db.watch(RISE, start=0)


def test_a_pattern_that_waits_warns() -> None:
    with opened() as db:
        db.push("ticks", ticks(0, 1, 2, 3, 0))
        with pytest.warns(HybridWarning, match="greedy"):
            alerts = db.watch(RISE.replace("(A B)", "(A B+)").replace("v > A.v", "v > PREV(v)"), start=0)
        assert pairs(alerts.fetch()) == [(1, 3), (2, 3)]


@pytest.mark.slow
def test_rows_come_in_one_order_whether_other_queries_read_the_same_pattern() -> None:
    """The last of three queries over one pattern reads the archive first, and then the pattern of the others."""
    low = """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES X.v AS x AFTER MATCH NO SKIP
        PATTERN (X Y) WITHIN INTERVAL 30 SECOND SELECTION SKIP TILL NEXT MATCH DEFINE X AS v < 4, Y AS v = 9)"""
    text = """SELECT a, x FROM ticks MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.v AS a, V.x AS x
        AFTER MATCH NO SKIP PATTERN (A V) WITHIN INTERVAL 30 SECOND SELECTION SKIP TILL NEXT MATCH
        DEFINE A AS v BETWEEN 4 AND 8, V AS PATTERN low ON x % 2 = A.v % 2)"""
    found = []
    for others in (0, 2):
        with opened() as db:
            db.create_pattern("low", low)
            for _ in range(others):
                db.watch(text)
            db.push("ticks", ticks(0, 4))
            alerts = db.watch(text, start=0)
            db.push("ticks", ticks(1, 5, 1, 2, 9, 3))
            assert alerts.stats()["patterns"]["low"]["queries"] == others + 1
            found.append(pairs(alerts.fetch()))
    # Before: with other queries the match that began before the last one read their pattern came first.
    assert found == [[(5, 1), (4, 2)]] * 2
