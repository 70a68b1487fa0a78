"""Events and clocks that are far ahead: what is refused, what a jump of the clock does, and what is said of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybrid.database.database import Database
from hybrid.watch.ticker import SteadyClock
from live.stream import Ahead
from query.errors import DataError, HybridWarning
from tests.hybrid.ends import killed, opened_again
from tests.hybrid.inside import clocks_of, flow_of, opened_of

COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}
START_US = 1_767_225_600_000_000  # 2026-01-01
HOUR_US = 3_600_000_000
FALLS = """SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.v AS a, LAST(B.v) AS b
    PATTERN (A B+ C) DEFINE B AS v < PREV(v), C AS v > PREV(v))"""


@pytest.fixture
def now_us(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the clock of the machine shows, and, as the second, what has gone by since it was started."""
    now = [START_US, 0]
    monkeypatch.setattr("hybrid.database.database.clock.time_ns", lambda: now[0] * 1000)
    monkeypatch.setattr("hybrid.database.database.clock.monotonic", lambda: now[1] / 1e6)
    monkeypatch.setattr("hybrid.database.clocks.since_boot_s", lambda: now[1] / 1e6)
    return now


def opened(path: Any = None, **options: Any) -> Database:
    given = {key: options.pop(key) for key in ("log", "checkpoint") if key in options}
    db = opened_again(path, maintenance=False, ticking=False, **given)
    db.create_stream("t", COLUMNS, time="ts", key="k", **options)
    return db


def event(after_s: float, value: int = 0, key: str = "a") -> dict[str, Any]:
    return {"ts": dt.datetime(2026, 1, 1) + dt.timedelta(seconds=after_s), "k": key, "v": value}


def watermark(db: Database) -> Any:
    return db.streams()["t"]["watermark"]


def passed(now: list[int], seconds: float) -> None:
    now[0] += round(seconds * 1e6)
    now[1] += round(seconds * 1e6)


# ---- events


def test_an_event_far_in_the_future_is_refused_and_makes_nothing_late(now_us: list[int]) -> None:
    """Before: there was no max_ahead (TypeError); without it 100 of 100 later events are late, as the second half
    shows."""
    with opened(max_ahead="1 hour") as db:
        with pytest.raises(Ahead, match=r"row 1: the time 2098-.* is too far ahead of the clock.* 2026-01-01T01:00:00"):
            db.push("t", [event(0), event(73 * 365 * 86400), event(1)])
        assert db.streams()["t"]["accepted"] == 0, "all or nothing"
        db.push("t", [event(i) for i in range(100)])
        assert db.streams()["t"]["late"] == 0
        with pytest.raises(DataError):
            db.push("t", [event(3600.000001)])
        db.push("t", [event(3600)])
    with opened() as db:
        db.push("t", [event(73 * 365 * 86400)])
        db.push("t", [event(i) for i in range(100)])
        assert db.streams()["t"]["late"] == 100


def test_old_events_and_fixed_dates_are_taken(now_us: list[int]) -> None:
    """Backfills by push, and times far ahead where nobody has asked for a limit."""
    # Before: there was no max_ahead (TypeError): it guards what held.
    with opened(max_ahead="1 hour") as db:
        assert db.push("t", [event(-20 * 365 * 86400), event(-1), event(0)]) == 3
        assert db.streams()["t"]["late"] == 0
    with opened() as db:
        assert db.push("t", [event(365 * 86400)]) == 1


def test_the_ceiling_follows_the_clock_and_a_jump_back_refuses_nothing(now_us: list[int]) -> None:
    # Before: there was no max_ahead (TypeError).
    with opened(max_ahead="1 hour") as db:
        db.push("t", [event(0)])
        with pytest.raises(Ahead):
            db.push("t", [event(3601)], offset=1)
        passed(now_us, 2)
        db.push("t", [event(3601)], offset=1)
        now_us[0] -= 365 * 86400 * 1_000_000
        with pytest.warns(HybridWarning, match="has jumped back by 365 d"):
            db.push("t", [event(3602)], offset=2)
        assert db.push("t", [event(3602)], offset=3) == 1, "it is said once"


@pytest.mark.slow
def test_a_verdict_stands_whatever_the_clock_says_later(tmp_path: Path, now_us: list[int]) -> None:
    """What was refused last of its source comes again after a crash, when its time would do. Before: no max_ahead; an
    event that is dropped by whoever reads it is taken after a restart."""
    db = opened(tmp_path, max_ahead="1 hour", log="os")
    db.push("t", [event(0)], "x", 0)
    with pytest.raises(Ahead):
        db.push("t", [event(7200)], "x", 1)
    db.skip("t", "x", 1)
    killed(db)
    passed(now_us, 86400)
    db = Database(tmp_path, maintenance=False, ticking=False, log="os")
    assert db.push("t", [event(7200), event(5)], "x", 1) == 1
    assert (db.streams()["t"]["late"], db.streams()["t"]["offsets"]) == (0, {"x": 3})
    db.skip("t", "x", 9)
    db.flush()
    killed(db)
    with Database(tmp_path, maintenance=False, ticking=False, log="os") as db:
        assert db.streams()["t"]["offsets"] == {"x": 10}, "the segment that had it is gone, and the next one has it"
        db.push("t", [event(6)], "x", 20)
    with Database(tmp_path, maintenance=False, ticking=False, log="os") as db:
        assert db.streams()["t"]["offsets"] == {"x": 21}


def played(
    open_it: Callable[[], Database], steps: list[tuple[str, int, int, str]], now: list[int], ends: bool
) -> tuple[Any, ...]:
    """Sources that give each event again that the stream still expects; what came of it: rows, and all events with
    their marks."""
    now[:] = [START_US, 0]
    db = open_it()
    db.create_stream("t", COLUMNS, time="ts", key="k", lateness="2s", max_ahead="1 hour")
    named = {"name": "q"} if opened_of(db).path is not None else {}
    alerts = db.watch(FALLS, evidence=True, **named)
    sent: dict[str, list[dict[str, Any]]] = {"x": [], "y": []}
    rows: dict[str, Any] = {}
    for source, after_s, value, end in steps:
        passed(now, 1)
        sent[source].append(event(after_s, value))
        _send(db, source, sent[source])
        rows |= {row["match_id"]: row for row in alerts.fetch().to_pylist()}
        if ends and end != "goes on":
            passed(now, 1)
            db.close() if end == "closed" else killed(db)
            now[0] += 2 * HOUR_US  # and what was refused would be taken now
            now[1] += 2 * HOUR_US
            db = open_it()
            alerts = db.watching()["q"]
            for again in ("x", "y"):
                _send(db, again, sent[again])
            now[0] -= 2 * HOUR_US  # so that the events to come get the verdicts of the run without an end
            now[1] -= 2 * HOUR_US
            clocks_of(db).steady = SteadyClock()
    db.advance("t", None)
    rows |= {row["match_id"]: row for row in alerts.fetch().to_pylist()}
    told = (rows, _kept(db), db.streams()["t"]["watermark"], db.streams()["t"]["offsets"])
    db.close()
    return told


def _kept(db: Database) -> list[tuple[int, str, int, bool]]:
    """All events in the order in which they came: time, source, offset, and whether they are late."""
    return [
        (int(batch.ts_us[i]), batch.sources[batch.source[i]], int(batch.offset[i]), bool(late[i]))
        for batch, late in flow_of(db).streams["t"].kept.snapshot().since(0) for i in range(len(batch))
    ]  # fmt: skip


def _send(db: Database, source: str, events: list[dict[str, Any]]) -> None:
    """All that a source has from where it is expected to go on: as a service does it."""
    begin = db.streams()["t"]["offsets"].get(source, 0)
    for offset in range(begin, len(events)):
        try:
            db.push("t", [events[offset]], source, offset)
        except Ahead:
            db.skip("t", source, offset)


@pytest.mark.slow
@settings(
    max_examples=max(8, settings().max_examples // 50), deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    st.lists(
        st.tuples(
            st.sampled_from("xy"), st.sampled_from([*range(0, 12), 3598, 3700, 7000, 10**9]), st.integers(0, 5),
            st.sampled_from(["goes on", "goes on", "closed", "killed"]),
        ),
        min_size=1, max_size=12,
    ),
    st.sampled_from(["log", "checkpoint"]),
)  # fmt: skip
def test_a_run_with_ends_equals_the_undisturbed_one(
    tmp_path_factory: pytest.TempPathFactory, now_us: list[int], steps: list[tuple[str, int, int, str]], kept: str
) -> None:
    """Before: no max_ahead; with verdicts by the clock alone, what was refused would be taken when it comes again.

    kept: with a log, from what is in it; without one, from a checkpoint after each event."""
    path = tmp_path_factory.mktemp("db")

    def on_disk() -> Database:
        log = "os" if kept == "log" else None
        return Database(path, maintenance=False, ticking=False, log=log, checkpoint="1us" if kept != "log" else None)

    undisturbed = played(lambda: Database(ticking=False), steps, now_us, ends=False)
    if kept == "checkpoint":  # what is in no checkpoint is judged anew: skips are in the next one
        steps = [(source, at, value, "closed" if end == "killed" else end) for source, at, value, end in steps]
    assert played(on_disk, steps, now_us, ends=True) == undisturbed


# ---- the clock


def test_a_clock_a_year_ahead_moves_no_watermark(now_us: list[int]) -> None:
    """Before: the watermark was in 2027, and 50 of 50 events late."""
    with opened(heartbeat="5s", lateness="2s") as db:
        db.push("t", [event(0)])
        db.tick()
        passed(now_us, 6)
        now_us[0] += 365 * 86400 * 1_000_000
        with pytest.warns(HybridWarning, match="has jumped forward by 365 d: no watermark moves by that"):
            db.tick()
        assert watermark(db) == "2025-12-31 23:59:59", "by what has gone by, 6 s, less heartbeat and lateness"
        passed(now_us, 10)
        db.tick()
        assert watermark(db) == "2026-01-01 00:00:09"
        now_us[0] -= 365 * 86400 * 1_000_000
        with pytest.warns(HybridWarning, match="has returned to its time before the jump"):
            db.tick()
        db.push("t", [event(16 + i / 10) for i in range(50)])
        assert db.streams()["t"]["late"] == 0


def test_a_clock_that_is_wrong_from_the_start(now_us: list[int]) -> None:
    """Heartbeats go on from the events that have come, not from the time of day. Before: 2027, as soon as it was
    silent."""
    now_us[0] += 365 * 86400 * 1_000_000
    with opened(heartbeat="5s") as db:
        db.push("t", [event(0)])
        for _ in range(20):
            db.tick()
            passed(now_us, 1)
        assert watermark(db) == "2026-01-01 00:00:14"


def test_a_correction_is_believed_once_events_have_its_time(now_us: list[int]) -> None:
    """A machine without a clock of its own begins in 1970, until it has asked."""
    # Before: there was no max_ahead (TypeError).
    right, now_us[0] = now_us[0], 0
    with opened(heartbeat="5s", max_ahead="1 hour") as db:
        db.tick()
        passed(now_us, 1)
        now_us[0] = right
        with pytest.warns(HybridWarning, match="jumped forward"):
            db.push("t", [event(0)])
        with pytest.warns(HybridWarning, match="it is used from now on"):
            db.tick()
        passed(now_us, 20)
        db.tick()
        assert watermark(db) == "2026-01-01 00:00:15"


def test_after_a_restart_a_silent_stream_goes_on_with_the_time_of_day(tmp_path: Path, now_us: list[int]) -> None:
    # Before: run as it is: passes. It guards what held.
    with opened(tmp_path, heartbeat="5s") as db:
        db.push("t", [event(0)])
    passed(now_us, 3 * 86400)
    with opened(tmp_path, heartbeat="5s") as db:
        db.tick()
        passed(now_us, 6)
        db.tick()
        assert watermark(db) == "2026-01-04 00:00:01"


def test_a_suspended_machine(now_us: list[int]) -> None:
    """The time of day and what has gone by since the start go on, the clock of silence does not: when it wakes up,
    nothing is idle, and sources have their time to send."""
    # Before: run as it is: passes. It guards what held.
    boot_s = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hybrid.database.clocks.since_boot_s", lambda: boot_s[0])
        with opened(heartbeat="5s", idle="10s") as db:
            db.push("t", [event(0)], "x")
            db.push("t", [event(1)], "y")
            db.tick()
            now_us[0] += 8 * HOUR_US
            boot_s[0] += 8 * 3600
            db.tick()
            assert watermark(db) == "2026-01-01 00:00:00", "no jump, and nobody was silent"
            passed(now_us, 6)
            boot_s[0] += 6
            db.tick()
            assert watermark(db) == "2026-01-01 08:00:01", "a heartbeat is by the time that has gone by"


def test_small_corrections_are_followed_slowly() -> None:
    # Before: there was no such clock: heartbeats took the time of day as it was.
    clock = SteadyClock()
    assert clock.look(START_US, 0) == []
    assert clock.look(START_US + 1_000_000 + 9_000_000, 1) == []
    assert clock.earliest_us == START_US + 1_050_000
    for second in range(2, 200):
        assert clock.look(START_US + second * 1_000_000 + 9_000_000, second) == []
    assert clock.earliest_us == clock.latest_us == START_US + 199_000_000 + 9_000_000


# ---- settings


@pytest.mark.slow
def test_settings_of_a_stream_change_from_now_on(tmp_path: Path, now_us: list[int]) -> None:
    """Before: `stream t already exists with a different declaration: lateness is 10 s, not 0 s`."""
    db = opened(tmp_path, lateness="10s", log="os")
    alerts = db.watch(FALLS, name="q", evidence=True)
    db.push("t", [event(100, 5), event(95, 6), event(101, 4)])
    assert watermark(db) == "2026-01-01 00:01:31"
    assert db.alter_stream("t", lateness=None, retention="30 days") == [
        "lateness is 0 s from now on, it was 10 s", "retention is 30 d from now on, it was none",
    ]  # fmt: skip
    assert watermark(db) == "2026-01-01 00:01:31"
    db.push("t", [event(102, 9)])
    assert watermark(db) == "2026-01-01 00:01:42"
    assert [(row["a"], row["b"]) for row in alerts.fetch().to_pylist()] == [(6, 4)], "nothing that was held is lost"
    db.push("t", [event(101, 9)])
    assert db.streams()["t"]["late"] == 1
    killed(db)
    db = Database(tmp_path, maintenance=False, ticking=False, log="os")
    assert (db.schema("t").lateness_us, db.schema("t").retention_us) == (0, 30 * 24 * HOUR_US)
    assert (watermark(db), db.streams()["t"]["late"]) == ("2026-01-01 00:01:42", 1)
    with pytest.warns(HybridWarning, match="lateness is 5 s from now on, it was 0 s"):
        db.create_stream("t", COLUMNS, time="ts", key="k", lateness="5s")
    db.push("t", [event(105, 3)])
    assert watermark(db) == "2026-01-01 00:01:42", "it never goes back"
    db.push("t", [event(103, 5), event(110, 7)])
    db.close()
    with Database(tmp_path, maintenance=False, ticking=False, log="os") as db:
        db.advance("t", None)
        rows = [(row["a"], row["b"]) for row in db.watching()["q"].fetch().to_pylist()]
        assert rows == [(6, 4), (5, 3)], "the first again, as no checkpoint came after it; 103 sorts before 105"
        with pytest.raises(DataError, match="time of stream t cannot be changed"):
            db.alter_stream("t", time="k")


@pytest.mark.slow
@settings(
    max_examples=max(8, settings().max_examples // 50), deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("xy"), st.integers(0, 30), st.integers(0, 5)),
            st.sampled_from(["0 s", "3s", "10s", "killed", "closed"]),
        ),
        max_size=25,
    )
)
def test_a_change_of_the_lateness_and_a_restart_give_the_rows_without_the_restart(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int] | str]
) -> None:
    # Before: there was no alter_stream (AttributeError).
    def run(path: Path | None) -> tuple[Any, ...]:
        def open_it() -> Database:
            return Database(path, maintenance=False, ticking=False, log=None if path is None else "os")

        db = open_it()
        db.create_stream("t", COLUMNS, time="ts", key="k", lateness="3s")
        alerts = db.watch(FALLS, evidence=True, **({} if path is None else {"name": "q"}))
        rows: dict[str, Any] = {}
        for step in steps:
            if isinstance(step, tuple):
                source, after_s, value = step
                db.push("t", [event(after_s, value)], source)
            elif step in ("killed", "closed"):
                if path is not None:
                    rows |= {row["match_id"]: row for row in alerts.fetch().to_pylist()}
                    killed(db) if step == "killed" else db.close()
                    db = open_it()
                    alerts = db.watching()["q"]
            else:
                db.alter_stream("t", lateness=step)
        db.advance("t", None)
        rows |= {row["match_id"]: row for row in alerts.fetch().to_pylist()}
        late = db.sql("SELECT * FROM t", late=False).arrow().num_rows
        db.close()
        return rows, late

    assert run(tmp_path_factory.mktemp("db")) == run(None)


def test_the_share_of_late_events_is_of_the_last_ones() -> None:
    # Before: run as it is: stats() had no such share (KeyError).
    with opened() as db:
        db.push("t", [event(i) for i in range(1500)])
        assert db.streams()["t"]["lately"] == {"events": 1500, "late": 0}
        for _ in range(15):
            db.push("t", [event(0)] * 100)
        assert db.streams()["t"]["lately"] == {"events": 1000, "late": 1000}


@pytest.mark.slow
def test_more_columns_and_another_lateness_at_once(tmp_path: Path) -> None:
    # Before: run as it is: "stream t already exists with a different declaration".
    with opened(tmp_path) as db:
        db.push("t", [event(0)])
        with pytest.warns(HybridWarning, match="lateness is 1 s"):
            db.create_stream("t", COLUMNS | {"w": "BIGINT"}, time="ts", key="k", lateness="1s")
        db.push("t", pa.table({"ts": [event(1)["ts"]], "k": ["a"], "v": [1], "w": [2]}))
    with Database(tmp_path, maintenance=False, ticking=False) as db:
        assert db.sql("SELECT w FROM t ORDER BY ts").arrow().column("w").to_pylist() == [None, 2]
        assert db.schema("t").lateness_us == 1_000_000
