"""What the clock does to a stream: silent sources, silent streams; and late events for whoever asks."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import hybrid
from hybrid.database.database import Database
from query.errors import DataError, HybridWarning
from tests.hybrid.ends import opened_again
from tests.waiting import until

START = dt.datetime(2024, 1, 1)
COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}
ABSENT = """
    SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k MEASURES FIRST(ts) AS since PATTERN (A ~B)
        WITHIN INTERVAL '10' SECOND SELECTION SKIP TILL NEXT MATCH DEFINE A AS v = 1, B AS v = 2)"""


def at(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def wall_us(seconds: float) -> int:
    return int(at(seconds).replace(tzinfo=dt.UTC).timestamp() * 1_000_000)


def opened(path: Any = None, **pace: Any) -> Database:
    db = opened_again(path, maintenance=False, ticking=False)
    db.create_stream("t", COLUMNS, time="ts", key="k", **pace)
    return db


def push(db: Database, source: str, seconds: float, value: int = 0) -> None:
    db.push("t", [{"ts": at(seconds), "k": "a", "v": value}], source)


def watermark(db: Database) -> Any:
    return db.streams()["t"]["watermark"]


def test_a_silent_source_holds_the_watermark_back_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("hybrid.database.database.clock.monotonic", lambda: now[0])
    with opened(idle="30s") as db:
        alerts = db.watch(ABSENT)
        push(db, "x", 0, 1)
        push(db, "y", 1)
        now[0] += 20
        push(db, "x", 50)
        assert watermark(db) == "2024-01-01 00:00:01"
        now[0] += 9.9
        db.tick()
        assert alerts.fetch().num_rows == 0
        now[0] += 0.2
        db.tick()
        assert watermark(db) == "2024-01-01 00:00:50"
        assert alerts.fetch().column("since").to_pylist() == [at(0)]
        push(db, "y", 49)  # it is back, and late
        push(db, "y", 51)
        push(db, "x", 90)
        assert watermark(db) == "2024-01-01 00:00:51", "it holds it back again"
        assert db.streams()["t"]["late"] == 1
        now[0] += 100
        db.tick()
        assert watermark(db) == "2024-01-01 00:00:51"
        push(db, "x", 95)
        assert watermark(db) == "2024-01-01 00:01:35", "x alone is awake"
        push(db, "y", 95)
        push(db, "x", 99)
        now[0] += 1
        push(db, "y", 97)
        now[0] += 100
        db.tick()
        assert watermark(db) == "2024-01-01 00:01:37", "of those that all fell silent the last one counts"


def test_a_silent_stream_goes_on_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("hybrid.database.database.clock.monotonic", lambda: now[0])
    with opened(heartbeat="5s", lateness="2s") as db:
        alerts = db.watch(ABSENT)
        db.tick(now[0], wall_us(100))
        assert watermark(db) is None, "nothing has come yet"
        push(db, "x", 100, 1)
        db.tick(now[0], wall_us(100))
        db.tick(now[0] + 4.9, wall_us(104.9))
        assert watermark(db) == "2024-01-01 00:01:38"
        db.tick(now[0] + 17, wall_us(117))
        assert (watermark(db), alerts.fetch().num_rows) == ("2024-01-01 00:01:50", 0)
        db.tick(now[0] + 17.1, wall_us(117.1))
        assert alerts.fetch().column("since").to_pylist() == [at(100)]
        with pytest.warns(HybridWarning, match="has jumped back by 28 s"):
            db.tick(now[0] + 18, wall_us(90))
        assert watermark(db) == "2024-01-01 00:01:50.100000"
        push(db, "x", 110.1)
        assert db.streams()["t"]["late"] == 0
        push(db, "x", 110)
        assert db.streams()["t"]["late"] == 1


def test_what_is_declared_of_the_clock_stays(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("hybrid.database.database.clock.monotonic", lambda: now[0])
    with opened(tmp_path, idle="30s") as db:
        push(db, "x", 0)
        push(db, "y", 1)
    with Database(tmp_path, maintenance=False, ticking=False) as db:
        push(db, "x", 60)
        now[0] += 31
        push(db, "x", 61)
        db.tick()
        assert watermark(db) == "2024-01-01 00:01:01", "y has been silent since it was opened"
        with pytest.warns(HybridWarning, match="idle is 1 h from now on, it was 30 s"):
            db.create_stream("t", COLUMNS, time="ts", key="k", idle="1h")
        push(db, "y", 62)
        push(db, "x", 90)
        now[0] += 31
        db.tick()
        assert watermark(db) == "2024-01-01 00:01:02"
    with pytest.raises(DataError, match="idle"):
        opened(idle="soon")


def test_a_thread_looks_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid.watch.ticker.EVERY_S", 0.01)
    with hybrid.connect() as db:
        db.create_stream("t", COLUMNS, time="ts", key="k", idle="50ms")
        push(db, "x", 0)
        push(db, "y", 1)
        push(db, "x", 60)
        until(lambda: watermark(db) == "2024-01-01 00:01:00", seen=lambda: watermark(db))


def test_late_events_are_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid.watch.late.HELD_MAX", 2)
    with opened() as db:
        push(db, "x", 10)
        push(db, "x", 3)
        late = db.late("T")
        assert late is db.late("t")
        push(db, "x", 4, 7)
        push(db, "x", 11)
        (row,) = late.fetch().to_pylist()
        assert row == {"ts": at(4), "k": "a", "v": 7, "_source": "x", "_offset": 2}
        assert late.fetch().num_rows == 0
        for i in range(3):
            push(db, "x", i)
        assert (late.fetch().column("ts").to_pylist(), late.dropped) == ([at(1), at(2)], 1)
        assert db.sql("SELECT count(*) AS n FROM t").arrow().column("n").to_pylist() == [7]
        with pytest.raises(DataError, match="there is no stream u"):
            db.late("u")


@pytest.mark.slow
@pytest.mark.parametrize("flushed", [False, True])
def test_late_events_come_again_that_nobody_had_before_the_last_checkpoint(tmp_path: Path, flushed: bool) -> None:
    """Before: those of the log and of the archive were handed to nobody after the process was killed."""
    db = opened(tmp_path)
    late = db.late("t")
    push(db, "x", 10)
    for i in range(3):
        push(db, "x", i, i)
        if i == 0:
            assert late.fetch().num_rows == 1
    db.checkpoint()
    assert late.fetch().column("v").to_pylist() == [1, 2]
    push(db, "x", 4, 4)
    push(db, "x", 11)
    push(db, "x", 5, 5)
    assert late.fetch().column("v").to_pylist() == [4, 5]
    if flushed:
        db.flush()
    db = opened(tmp_path)
    assert db.late("t").fetch().select(["v", "_offset"]).to_pylist() == [
        {"v": 1, "_offset": 2}, {"v": 2, "_offset": 3}, {"v": 4, "_offset": 4}, {"v": 5, "_offset": 6}
    ]  # fmt: skip
    push(db, "x", 6, 6)
    db.checkpoint()
    with opened(tmp_path) as db:
        assert db.late("t").fetch().column("v").to_pylist() == [6]
        db.checkpoint()
        push(db, "x", 12)
    with opened(tmp_path) as db:
        db.checkpoint()  # before anybody asks
    with opened(tmp_path) as db:
        assert db.late("t").fetch().num_rows == 0
        push(db, "x", 7, 7)
        assert db.late("t").fetch().column("v").to_pylist() == [7]
        push(db, "x", 8, 8)
        db.forget_late("t")
        assert db.late("t").fetch().num_rows == 0
        push(db, "x", 9, 9)
        db.checkpoint()
    with opened(tmp_path) as db:
        db.forget_late("t")
        db.checkpoint()
    with opened(tmp_path) as db:
        assert db.late("t").fetch().num_rows == 0


@pytest.mark.slow
def test_no_event_is_late_because_another_source_was_first(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("hybrid.database.database.clock.monotonic", lambda: now[0])
    with opened(tmp_path, idle="30s") as db:
        db.expect("t", ["x", "y", "z"])
        push(db, "x", 500)
        db.flush()
        assert (watermark(db), db.streams()["t"]["expected"]) == (None, ["y", "z"])
    with Database(tmp_path, maintenance=False, ticking=False) as db:
        db.expect("t", ["x", "y", "z"])
        push(db, "x", 501)
        push(db, "y", 100)
        assert (watermark(db), db.streams()["t"]["expected"]) == (None, ["z"])
        now[0] += 20
        push(db, "y", 101)
        push(db, "x", 502)
        now[0] += 11
        db.tick()
        assert watermark(db) == "2024-01-01 00:01:41", "z has sent nothing for half a minute"
        assert db.streams()["t"]["late"] == 0


def test_a_log_that_cannot_be_written_does_not_stop_the_clock(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("hybrid.database.database.clock.monotonic", lambda: now[0])
    with Database(tmp_path, maintenance=False, ticking=False, log="os") as db:
        db.create_stream("t", COLUMNS, time="ts", key="k", idle="30s")
        push(db, "x", 0)
        push(db, "y", 1)
        now[0] += 20
        push(db, "x", 50)
        now[0] += 11
        with monkeypatch.context() as patch:
            patch.setattr("archive.log.write_all", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left")))
            with pytest.warns(HybridWarning, match=r"log of t .* cannot be written"):
                db.tick()
        assert watermark(db) == "2024-01-01 00:00:50"
