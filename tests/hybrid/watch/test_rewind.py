"""A watermark that is set back: what lies beyond is set aside, and live queries go on with the rows they would have."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archive import upkeep
from hybrid.database.database import Database
from hybrid.watch import rewind
from query.errors import DataError, HybridWarning
from tests.hybrid.cli.test_cli import run
from tests.hybrid.ends import killed, opened_again
from tests.properties.comparing import is_nightly

COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}
START = dt.datetime(2026, 1, 1)
FAR = 10**9
FALLS = """SELECT * FROM {t} MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.v AS a, LAST(B.v) AS b
    PATTERN (A B+ C) DEFINE B AS v < PREV(v), C AS v > PREV(v))"""
JOINED = """SELECT p.*, h.v AS before FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
    MEASURES A.v AS a, LAST(B.v) AS b, LAST(B.ts) AS at PATTERN (A B+ C) DEFINE B AS v < PREV(v), C AS v > PREV(v)) AS p
    JOIN HISTORY OF t FROM p.at - INTERVAL '10' SECOND TO p.at AS h ON h.k = p.k"""
MERGED = FALLS.format(t="MERGE(t, u)")


def at(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def opened(path: Any = None, **options: Any) -> Database:
    db = opened_again(path, maintenance=False, ticking=False, **options)
    for name in "tu":
        db.create_stream(name, COLUMNS, time="ts", key="k", lateness="2s")
    return db


@pytest.mark.slow
def test_one_event_in_2099(tmp_path: Path) -> None:
    """Before: there was no way back (no rewind): 19 of 19 late, also after a restart."""
    db = opened(tmp_path, log="os")
    alerts = db.watch(FALLS.format(t="t"), name="q", evidence=True)
    for i in range(30):
        db.push("t", [{"ts": at(i), "k": "a", "v": i * 7 % 10}], "x", 2 * i)
        if i == 10:
            db.push("t", [{"ts": at(FAR), "k": "a", "v": 99}], "x", 21)
    found = alerts.fetch().to_pylist()
    killed(db)
    with opened(tmp_path, log="os") as db:
        assert db.streams()["t"]["late"] == 19
        alerts = db.watching()["q"]
        done = db.rewind("t", at(1000))
        assert (done.aside.num_rows, done.on_time, done.late, done.replayed) == (1, 19, 0, 20)
        assert done.aside.to_pylist() == [{"ts": at(FAR), "k": "a", "v": 99, "_source": "x", "_offset": 21}]
        assert (db.streams()["t"]["watermark"], db.streams()["t"]["lately"]["events"]) == ("2026-01-01 00:00:27", 0)
        found += alerts.fetch().to_pylist()
        db.push("t", [{"ts": at(30), "k": "a", "v": 0}], "x", 60)
        db.advance("t", at(60))
        found += alerts.fetch().to_pylist()
        whole = db.backtest(FALLS.format(t="t"), at(0), at(60)).evidence().column("match_id").to_pylist()
        assert set(whole) <= {row["match_id"] for row in found}
        kept = db.sql("SELECT count(*) AS n FROM t WHERE ts > '2027-01-01'").arrow().column("n").to_pylist()
        assert kept == [1], "nothing is removed"
        assert db.sql("SELECT * FROM t WHERE ts > '2027-01-01'", late=False).arrow().num_rows == 0
    with opened(tmp_path, log="os") as db:
        assert db.streams()["t"]["watermark"] == "2026-01-01 00:01:00"
        assert not (tmp_path / "t" / "rewind.json").exists()


@pytest.mark.slow
def test_a_source_that_had_fallen_silent_holds_nothing_back(tmp_path: Path) -> None:
    """A file that was finished, say. Before: the watermark stood at its last event, all rows since then came again, and
    what was late was on time."""
    with opened(tmp_path) as db:
        alerts = db.watch(FALLS.format(t="t"), name="q", evidence=True)
        for i in range(10):
            db.push("t", [{"ts": at(i), "k": "a", "v": i * 7 % 10}], "old")
        db.expect("t", ["new"])
        db.leave("t", "old")
        for i in range(10, 40):
            db.push("t", [{"ts": at(i), "k": "a", "v": i * 7 % 10}], "new")
        before = alerts.fetch().to_pylist()
        db.push("t", [{"ts": at(FAR), "k": "a", "v": 99}], "new")
        db.push("t", [{"ts": at(5), "k": "a", "v": 1}], "new")
        db.push("t", [{"ts": at(i), "k": "a", "v": i * 7 % 10} for i in range(40, 50)], "new")
        done = db.rewind("t", at(1000))
        assert (done.aside.num_rows, done.on_time, done.late, done.replayed) == (1, 10, 0, 12)
        assert (db.streams()["t"]["watermark"], db.streams()["t"]["late"]) == ("2026-01-01 00:00:47", 2)
        again = alerts.fetch().to_pylist()
        twice = {row["match_id"] for row in before} & {row["match_id"] for row in again}
        assert len(twice) <= 2, "only what was not decided before comes again"
        whole = db.backtest(FALLS.format(t="t"), at(0), at(47)).evidence().column("match_id").to_pylist()
        assert set(whole) <= {row["match_id"] for row in [*before, *again]}


@pytest.mark.slow
def test_a_watermark_that_the_clock_has_raised(tmp_path: Path) -> None:
    # Before: there was no rewind.
    with opened(tmp_path) as db:
        alerts = db.watch(FALLS.format(t="t"), name="q")
        db.push("t", [{"ts": at(0), "k": "a", "v": 5}])
        db.advance("t", "2027-01-01")
        db.push("t", [{"ts": at(1 + i), "k": "a", "v": v} for i, v in enumerate((4, 6, 7, 8, 9))])
        assert (db.streams()["t"]["late"], alerts.fetch().num_rows) == (5, 0)
        done = db.rewind("t")
        assert (done.aside.num_rows, done.on_time, done.queries) == (0, 5, ("q",))
        assert [(r["a"], r["b"]) for r in alerts.fetch().to_pylist()] == [(5, 4)]
    with opened(tmp_path) as db:
        assert (db.streams()["t"]["watermark"], db.streams()["t"]["late"]) == ("2026-01-01 00:00:03", 0)


@pytest.mark.slow
def test_a_rewind_that_did_not_come_to_its_end_is_said_and_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the marks are made and before queries have gone on: they do so the second time."""
    # Before: there was no rewind.
    db = opened(tmp_path, log="os")
    db.watch(FALLS.format(t="t"), name="q")
    db.push("t", [{"ts": at(0), "k": "a", "v": 5}, {"ts": at(FAR), "k": "a", "v": 9}])
    db.push("t", [{"ts": at(1 + i), "k": "a", "v": v} for i, v in enumerate((4, 6, 7, 8, 9))])
    with monkeypatch.context() as patch:
        patch.setattr("hybrid.watch.rewind._standing", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            db.rewind("t", at(100))
    killed(db)
    with pytest.warns(HybridWarning, match="a rewind of its watermark was interrupted"):
        db = opened(tmp_path, log="os")
    db.rewind("t", at(100))
    assert {(r["a"], r["b"]) for r in db.watching()["q"].fetch().to_pylist()} == {(5, 4)}
    assert db.streams()["t"]["watermark"] == "2026-01-01 00:00:03"
    db.close()


def test_what_cannot_be_rewound() -> None:
    # Before: there was no rewind.
    with opened() as db:
        high = "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS at PATTERN (A) DEFINE A AS v > 3)"
        db.watch(high, into="falls")
        with pytest.raises(DataError, match="rows of t go into stream falls, and would come twice"):
            db.rewind("t")
        with pytest.raises(DataError, match="fed by a live query"):
            db.rewind("falls")
        db.advance("u", None)
        with pytest.raises(DataError, match="u has ended"):
            db.rewind("u")


@pytest.mark.slow
def test_on_the_command_line(tmp_path: Path) -> None:
    # Before: run as it is: "No such command 'rewind'".
    with opened(tmp_path / "db") as db:
        db.watch(FALLS.format(t="t"), name="q")
        db.push("t", [{"ts": at(0), "k": "a", "v": 5}, {"ts": at(FAR), "k": "a", "v": 9}], "x", 0)
        db.push("t", [{"ts": at(1 + i), "k": "a", "v": v} for i, v in enumerate((4, 6, 7, 8, 9))], "x", 2)
    done = run("archive", "rewind", "-d", str(tmp_path / "db"), "t", "--to", "2026-06-01")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.splitlines() == [
        "t: 1 event is set aside", "of 6 later events, 5 late ones are now on time, 0 are now late",
        "the watermark is 2026-01-01 00:00:03", "queries that replayed these events: q",
    ]  # fmt: skip
    (line,) = (tmp_path / "db/t/bad.ndjson").read_text().splitlines()
    told = json.loads(line)
    assert (told["source"], told["offset"], json.loads(told["raw"])["v"]) == ("x", 1, 9)
    done = run("archive", "rewind", "-d", str(tmp_path / "db"), "nothing")
    assert (done.returncode, "has no stream nothing" in done.stderr) == (1, True)
    with opened(tmp_path / "db") as db:
        assert [(r["a"], r["b"]) for r in db.watching()["q"].fetch().to_pylist()] == [(5, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("abandon", [False, True])
def test_ctrl_c_changes_nothing_or_leaves_the_rest_to_the_next_rewind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abandon: bool
) -> None:
    """Before: a rewind of 5 million events went on to its end, for 13 s."""
    def filled(place: Path) -> Database:
        db = opened(place, log="os")
        db.watch(FALLS.format(t="t"), name="q", evidence=True)
        for i in range(30):
            db.push("t", [{"ts": at(i), "k": "a", "v": i * 7 % 10}], "x", 2 * i)
            if i in (10, 20):
                db.push("t", [{"ts": at(FAR + i), "k": "a", "v": 99}], "x", 2 * i + 1)
                db.flush()
        return db

    def kept(db: Database) -> list[Any]:
        """The ids of the rows that have come and are right, the stream, and its events."""
        right = set(db.sql(FALLS.format(t="t"), late=False).evidence()["match_id"].to_pylist())
        found = {row["match_id"] for row in db.watching()["q"].fetch().to_pylist()}
        return [right & found, db.streams()["t"], db.sql("SELECT * FROM t ORDER BY ts", late=False).fetchall()]

    with filled(tmp_path / "whole") as db:
        db.rewind("t", at(1000))
        wanted = kept(db)
        assert len(wanted[0]) > 5
    until, closed = 0, 0
    while True:
        db, left = filled(tmp_path / f"at {until}"), until

        def pressed() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(rewind, "handle_waiting", pressed)
            patch.setattr(upkeep, "handle_waiting", pressed)
            try:
                db.rewind("t", at(1000), abandon=abandon)
                break
            except KeyboardInterrupt:
                pass
        if (tmp_path / f"at {until}" / "t" / "rewind.json").exists():
            closed += 1
            db.close()  # does nothing
            killed(db)
            with pytest.warns(HybridWarning, match="a rewind of its watermark was interrupted: run it again"):
                db = opened(tmp_path / f"at {until}", log="os")
        db.rewind("t", at(1000))
        right, *rest = kept(db)
        assert rest == wanted[1:], until
        assert right >= wanted[0], until  # with more, of the time when the watermark was ahead
        db.close()
        until += 1 if abandon or is_nightly() else 5
    assert kept(db) == wanted
    db.close()
    assert until > 5
    assert (closed > 1) == abandon


def played(
    path: Path | None, text: str, steps: list[Any], rewinds: bool, start_at: int
) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """The rows by their ids, and the on-time events. Without rewinds the far events never come."""
    db = opened(path, log=None if path is None else "os")
    named: dict[str, Any] = {} if path is None else {"name": "q"}
    alerts = None
    rows: dict[str, Any] = {}

    def take() -> None:
        if alerts is not None:
            fetched = alerts.fetch().to_pylist()
            rows.update({row.get("join_id", row["match_id"]): row for row in fetched})

    for i, step in enumerate([*steps, "rewind"]):
        if i == min(start_at, len(steps)):
            alerts = db.watch(text, evidence=True, **named)
        match step:
            case (stream, source, second, value):
                db.push(stream, [{"ts": at(second), "k": "a", "v": value}], source, i)
            case "far":
                if rewinds:
                    db.push("t", [{"ts": at(FAR + i), "k": "a", "v": i}], "x", i)
            case "killed" if path is not None and alerts is not None and rewinds:
                take()
                killed(db)
                db = opened(path, log="os")
                alerts = db.watching()["q"]
            case "rewind" if rewinds:
                take()
                db.rewind("t", at(1000))
    for stream in "tu":
        db.advance(stream, None)
    take()
    on_time = db.sql("SELECT ts, v FROM t ORDER BY ALL", late=False).arrow().to_pylist()
    db.close()
    return rows, on_time


#: Patterns over two streams, and over matches of one among the events of the other, whose rows wait for the history of
#: the other.
WAITS = """SELECT p.*, h.v AS after FROM {of} MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
    MEASURES A.v AS a, B.v AS b, B.ts AS at AFTER MATCH NO SKIP PATTERN (A B) {rest}) AS p
    JOIN HISTORY OF u FROM p.at TO p.at + INTERVAL '6' SECOND AS h ON h.k = p.k"""
HIGH = """WITH high AS (SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES X.v AS v
    AFTER MATCH NO SKIP PATTERN (X) DEFINE X AS v > 2)) """
WAITING = {
    "merged": WAITS.format(of="MERGE(t, u)", rest="DEFINE B AS v <> A.v"),
    "boxes": HIGH + WAITS.format(of="u", rest="""WITHIN INTERVAL '5' SECOND SELECTION SKIP TILL NEXT MATCH
        DEFINE A AS PATTERN high"""),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", WAITING)
def test_rows_that_wait_for_a_history_come_once_after_a_rewind(name: str) -> None:
    """Whenever the watermark is set back. Before: rows that were waiting and were found again came twice."""
    waited = 0
    _, whole = rows_before_and_after(WAITING[name], None, None)
    assert len(whole) > 10
    for far_at, rewind_at in [(3, 5), (3, 8), (4, 9), (10, 12), (10, 15), (11, 13)]:
        (waiting, before), after = rows_before_and_after(WAITING[name], far_at, rewind_at)
        waited += waiting
        assert len(after) == len(set(after))
        assert set(whole) <= {*before, *after}
    assert waited


def rows_before_and_after(
    text: str, far_at: int | None, rewind_at: int | None
) -> tuple[tuple[int, list[str]], list[str]]:
    """The number of rows that wait at a rewind and the ids of those before it, and the ids of those after it."""
    waiting: tuple[int, list[str]] = 0, []
    with opened() as db:
        alerts = db.watch(text, evidence=True)
        for i in range(20):
            if i == far_at:
                db.push("t", [{"ts": at(FAR), "k": "a", "v": 9}], "x", 2 * i - 1)
            if i == rewind_at:
                before = [row["join_id"] for row in alerts.fetch().to_pylist()]
                waiting = alerts.stats()["waiting_for_history"], before
                db.rewind("t", at(1000))
            db.push("tu"[i % 2], [{"ts": at(i), "k": "a", "v": i * 7 % 10}], "x", 2 * i)
        for stream in "tu":
            db.advance(stream, None)
        return waiting, [row["join_id"] for row in alerts.fetch().to_pylist()]


EVENTS = st.tuples(st.sampled_from(["t", "t", "t", "u"]), st.sampled_from("xy"), st.integers(0, 25), st.integers(0, 5))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.one_of(EVENTS, EVENTS, EVENTS, st.sampled_from(["far", "killed", "rewind"])), max_size=20),
    st.sampled_from([FALLS.format(t="t"), JOINED, MERGED]), st.booleans(), st.integers(0, 8),
)  # fmt: skip
def test_after_a_rewind_all_rows_are_there_that_there_would_be_without_what_was_set_aside(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], text: str, on_disk: bool, start_at: int
) -> None:
    """Rows that were wrong, since something came too late to be in them, may be there beside."""
    # Before: there was no rewind.
    path = tmp_path_factory.mktemp("db") if on_disk else None
    wanted, events = played(None, text, steps, False, start_at)
    rows, on_time = played(path, text, steps, True, start_at)
    assert on_time == events
    assert {key: rows.get(key) for key in wanted} == wanted
