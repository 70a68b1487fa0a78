"""Queries with a name go on after the process has ended at any moment: with the same matches, each once by its id."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import hybrid
from hybrid.database import resume
from hybrid.database.database import Database
from hybrid.join.driver import Driver
from hybrid.join.requests import Asking
from hybrid.watch import checkpoint
from query.errors import DataError, HybridWarning
from tests.hybrid.ends import opened_again
from tests.hybrid.inside import opened_of
from tests.in_memory import MEMORY
from tests.properties.comparing import fewer, is_nightly
from tests.waiting import GUARD_S

COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}
START = dt.datetime(2024, 1, 1)
FALLS = """
    SELECT * FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k MEASURES FIRST(ts) AS first_ts, LAST(v) AS bottom, count(*) AS n
        PATTERN (A B+ C) DEFINE B AS v < PREV(v), C AS v > PREV(v))"""
PASSING = """
    SELECT k, b FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k MEASURES LAST(B.v) AS b PATTERN (A B) WITHIN INTERVAL '9' SECOND SELECTION SKIP TILL NEXT MATCH
        DEFINE A AS v < 3, B AS v > FIRST(A.v) + 3)"""
ABSENT = """
    SELECT * FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k MEASURES FIRST(ts) AS since PATTERN (A ~B) WITHIN INTERVAL '5' SECOND
        SELECTION SKIP TILL NEXT MATCH DEFINE A AS v = 1, B AS v = 2)"""
JOINED = """
    SELECT f.k, f.ts, h.v FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k MEASURES LAST(ts) AS ts PATTERN (A B) DEFINE A AS v = 5, B AS v < 5) AS f
    LEFT JOIN HISTORY OF ticks FROM f.ts - INTERVAL 6 SECOND TO f.ts + INTERVAL 3 SECOND AS h
    ON h.k = f.k AND h.v = 7"""
CHAINED = """
    SELECT * FROM (SELECT * FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k MEASURES LAST(ts) AS ts, LAST(v) AS v PATTERN (A B) DEFINE B AS v > A.v))
    MATCH_RECOGNIZE (ORDER BY ts MEASURES A.v AS a, B.v AS b PATTERN (A B) DEFINE B AS B.v < A.v)"""
ONCE = f"{PASSING} ALERT ONCE WITHIN INTERVAL '7' SECOND"
JOINED_ONCE = f"{JOINED} ALERT ONCE PER k WITHIN INTERVAL '4' SECOND"
QUERIES = {
    "falls": FALLS, "passing": PASSING, "absent": ABSENT, "joined": JOINED, "chained": CHAINED, "once": ONCE,
    "joined_once": JOINED_ONCE,
}  # fmt: skip

#: source, seconds, key, value; or the watermark in seconds.
Step = tuple[str, int, str, int] | int


def opened(path: Path, log: Any) -> Database:
    return opened_again(path, maintenance=False, log=log)


def begun(db: Database, queries: dict[str, str], lateness: str = "0s") -> dict[str, Any]:
    if not db.streams():
        db.create_stream("ticks", COLUMNS, time="ts", key="k", lateness=lateness)
    return {name: db.watch(text, name=name, evidence=True) for name, text in queries.items()}


def rows_of(alerts: dict[str, Any], found: dict[str, dict[tuple, dict]]) -> None:
    """Adds what is ready, by identity: what comes again must be what came before."""
    for name, watch in alerts.items():
        seen: dict[str, int] = {}
        for row in watch.fetch().to_pylist():
            key = row.get("join_id") or row["match_id"]
            seen[key] = seen.get(key, -1) + 1
            known = found.setdefault(name, {}).setdefault((key, seen[key]), row)
            assert known == row


def push(db: Database, steps: list[Step], first: int, last: int) -> None:
    """Takes steps [first, last); each row has its number in its source as its offset."""
    counts: dict[str, int] = {}
    for i, step in enumerate(steps[:last]):
        if isinstance(step, int):
            if i >= first:
                db.advance("ticks", START + dt.timedelta(seconds=step))
            continue
        source, at, key, value = step
        offset = counts.get(source, 0)
        counts[source] = offset + 1
        if i >= first:
            db.push("ticks", [{"ts": START + dt.timedelta(seconds=at), "k": key, "v": value}], source, offset)


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    out: list[Step] = []
    at = 0
    for _ in range(draw(st.integers(5, 40))):
        at += draw(st.integers(0, 3))
        if draw(st.integers(0, 9)) == 0:
            out.append(at)
        else:
            back = draw(st.sampled_from((0, 0, 0, 1, 2, 4)))
            key, value = draw(st.sampled_from("ab")), draw(st.integers(0, 8))
            out.append((draw(st.sampled_from("xxy")), max(0, at - back), key, value))
    return out


@pytest.mark.slow
@fewer(10, least=4)
@given(steps=steps(), data=st.data())
@pytest.mark.parametrize("log", ["os", None])
def test_matches_are_those_of_a_run_without_end(log: Any, steps: list[Step], data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(QUERIES)), min_size=1, max_size=3, unique=True))
    queries = {name: QUERIES[name] for name in names}
    wanted: dict[str, dict[tuple, dict]] = {}
    found: dict[str, dict[tuple, dict]] = {}
    root = Path(tempfile.mkdtemp(dir=MEMORY))
    try:
        with opened(root / "whole", log) as db:
            alerts = begun(db, queries, "2s")
            push(db, steps, 0, len(steps))
            db.advance("ticks", None)
            rows_of(alerts, wanted)
        done, ends = 0, sorted(data.draw(st.sets(st.integers(1, len(steps)), max_size=3)))
        for end in [*ends, None]:
            db = opened(root / "db", log)
            alerts = begun(db, queries, "2s")
            push(db, steps, done, len(steps) if end is None else end)
            if end is None:
                db.advance("ticks", None)
                rows_of(alerts, found)
                db.close()
                break
            done = end
            for act in data.draw(st.permutations(("fetch", "checkpoint", "more", "flush"))):
                if act == "fetch" and data.draw(st.booleans()):
                    rows_of(alerts, found)
                elif act == "checkpoint" and data.draw(st.booleans()):
                    db.checkpoint()
                    event("a checkpoint")
                elif act == "flush" and log is None:
                    db.flush()  # without a log what is pushed is safe when it is written
                    done = end
                elif act == "more" and log == "os" and end < len(steps):
                    push(db, steps, end, end + 1)
                    done = end + 1
            if log is None:
                db.flush()
            # the process ends here
        assert found == wanted
        event("a match", any(wanted.values()))
    finally:
        shutil.rmtree(root)


@pytest.mark.slow
def test_a_query_that_goes_on_has_its_name(tmp_path):
    with opened(tmp_path, None) as db:
        alerts = begun(db, {"falls": FALLS})
        push(db, [("x", i, "a", v) for i, v in enumerate((5, 4, 3))], 0, 3)
    with opened(tmp_path, None) as db:
        assert list(db.watching()) == ["falls"]
        alerts = db.watch(FALLS, name="falls", evidence=True)
        assert alerts is db.watching()["falls"]
        with pytest.raises(DataError, match="another query runs under the name falls"):
            db.watch(PASSING, name="falls", evidence=True)
        push(db, [("x", i, "a", v) for i, v in enumerate((5, 4, 3, 6))], 3, 4)
        (row,) = alerts.fetch().to_pylist()
        assert (row["n"], row["bottom"], alerts.cursor) == (4, 6, 1)
        assert alerts.evidence().column("v").to_pylist() == [5, 4, 3, 6]
        alerts.close()
        assert db.watching() == {}
    with opened(tmp_path, None) as db:
        assert db.watching() == {}


@pytest.mark.slow
@pytest.mark.parametrize("log", ["os", None])
def test_events_that_are_matched_again_wait_for_the_sources_that_are_expected(tmp_path, log):
    """The sources were named behind the checkpoint of the query, and only one has sent something when all ends."""
    db = opened(tmp_path, log)
    alerts = begun(db, {"falls": FALLS})
    db.expect("ticks", ["x", "y"])
    push(db, [("x", i, "a", v) for i, v in enumerate((5, 4, 3, 6))], 0, 4)
    db.flush()
    db = opened(tmp_path, log)  # the process has ended
    alerts = begun(db, {"falls": FALLS})
    db.push("ticks", [{"ts": START, "k": "b", "v": 1}], "y", 0)
    assert db.streams()["ticks"]["late"] == 0
    db.advance("ticks", None)
    (row,) = alerts["falls"].fetch().to_pylist()
    assert (row["k"], row["n"]) == ("a", 4)
    db.close()


@pytest.mark.slow
def test_what_was_not_fetched_is_there_after_a_restart(tmp_path):
    with opened(tmp_path, "os") as db:
        begun(db, {"falls": FALLS})
        push(db, [("x", i, "a", v) for i, v in enumerate((5, 4, 3, 6, 2, 9))], 0, 6)
        number = db.checkpoint({"sink": "17"})
    with opened(tmp_path, "os") as db:
        assert db.notes == {"sink": "17"}
        alerts = db.watching()["falls"]
        assert [row["n"] for row in alerts.fetch().to_pylist()] == [4]
        assert db.checkpoint() > number
        assert db.notes == {"sink": "17"}


@pytest.mark.slow
def test_answers_come_when_the_queries_are_restored_and_not_before(tmp_path, monkeypatch):
    settling, restoring = [], threading.Event()
    restore, settle = resume.restore_feed, Asking.settle

    def slowly(*args: Any) -> Any:
        restoring.set()
        time.sleep(0.3)  # what was begun beside it has long come by then
        members = restore(*args)
        restoring.clear()
        return members

    def telling(*args: Any) -> Any:
        settling.append(restoring.is_set())
        return settle(*args)

    with opened(tmp_path / "db", None) as db:
        begun(db, {"joined": JOINED})
        db.checkpoint()
    monkeypatch.setattr(Driver, "warm", lambda *_: restoring.wait(GUARD_S) and None)
    monkeypatch.setattr(resume, "restore_feed", slowly)
    monkeypatch.setattr(Asking, "settle", telling)
    with opened(tmp_path / "db", None) as db:
        db.watching()["joined"].fetch()
        db.advance("ticks", None)
    assert settling
    assert not any(settling)


@pytest.mark.slow
def test_static_tables_and_streams_of_rows_go_on(tmp_path):
    names = [{"k": "a", "name": "Anna"}]
    text = """SELECT m.ts, m.k, names.name FROM ticks MATCH_RECOGNIZE (PARTITION BY k MEASURES LAST(ts) AS ts
              PATTERN (A B) DEFINE B AS v > A.v) AS m JOIN names USING (k)"""
    upon = "SELECT * FROM rises MATCH_RECOGNIZE (MEASURES count(*) AS n, LAST(name) AS name PATTERN (A B))"
    values = [1, 2, 1, 2, 1, 2, 1, 2, 0]
    steps: list[Step] = [("x", i, "a", v) for i, v in enumerate(values)]

    def begin(db: Database) -> Any:
        begun(db, {})
        db.watch(text, tables={"names": names}, into="rises", name="rises")
        return db.watch(upon, name="upon", evidence=True)

    with opened(tmp_path / "whole", "os") as db:
        alerts = begin(db)
        push(db, steps, 0, 9)
        db.advance("ticks", None)
        wanted = alerts.fetch().to_pylist()
    assert [row["n"] for row in wanted] == [2, 2]
    for cut in range(1, 9, 1 if is_nightly() else 3):
        path = tmp_path / str(cut)
        db = opened(path, "os")
        begin(db)
        push(db, steps, 0, cut // 2)
        db.checkpoint()
        push(db, steps, cut // 2, cut)
        db.flush()
        with opened(path, "os") as db:
            alerts = begin(db)
            push(db, steps, cut, 9)
            db.advance("ticks", None)
            assert alerts.fetch().to_pylist() == wanted
            assert db.sql("SELECT count(*) AS n FROM rises").arrow().column("n").to_pylist() == [4]


@pytest.mark.slow
def test_checkpoints_that_are_broken(tmp_path):
    with opened(tmp_path, None) as db:
        begun(db, {"falls": FALLS})
        push(db, [("x", i, "a", v) for i, v in enumerate((5, 4, 3))], 0, 3)
        db.checkpoint()
    newest, older = sorted((tmp_path / checkpoint.CHECKPOINTS).glob("*.state"), reverse=True)
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(HybridWarning, match=f"{newest.name} is damaged: queries resume from the previous one"):
        db = opened(tmp_path, None)
    push(db, [("x", i, "a", v) for i, v in enumerate((5, 4, 3, 6))], 3, 4)
    assert db.watching()["falls"].fetch().num_rows == 1
    older.write_bytes(b"")
    with pytest.raises(DataError, match="all checkpoints are damaged"):
        opened(tmp_path, None)
    shutil.rmtree(tmp_path / checkpoint.CHECKPOINTS)
    with pytest.warns(HybridWarning, match="are missing, and with them the queries falls"):
        db = opened(tmp_path, None)
    with db:
        assert db.watching() == {}
        assert db.streams()["ticks"]["events"] == 3


def test_a_checkpoint_that_cannot_be_written(tmp_path, monkeypatch):
    with opened(tmp_path, None) as db:
        begun(db, {"falls": FALLS})
        push(db, [("x", 0, "a", 5)], 0, 1)
        first = db.checkpoint()
        with monkeypatch.context() as patch:
            patch.setattr("os.replace", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(DataError, match=r"cannot be written: .*No space left"):
                db.checkpoint()
        found = checkpoint.newest(opened_of(db).path)
        assert found is not None
        assert found[0] == first


@pytest.mark.slow
def test_checkpoints_are_taken_as_time_goes(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("hybrid.database.database.clock.monotonic", lambda: now[0])
    with hybrid.connect(tmp_path, maintenance=False, checkpoint="10s") as db:
        begun(db, {"falls": FALLS})
        for i in range(6):
            now[0] += 4
            push(db, [("x", j, "a", 5) for j in range(i + 1)], i, i + 1)
        assert len(list((tmp_path / checkpoint.CHECKPOINTS).glob("*.state"))) == 2


def test_what_cannot_be_kept(tmp_path):
    with hybrid.connect() as db:
        begun(db, {})
        with pytest.raises(DataError, match="a database in memory has no checkpoints"):
            db.watch(FALLS, name="falls")
        with pytest.raises(DataError, match="a database in memory has no checkpoints"):
            db.checkpoint()
    with pytest.raises(DataError, match="a log 'maybe' cannot be kept"):
        hybrid.connect(tmp_path / "db", log="maybe")  # type: ignore[arg-type]


def test_a_push_that_cannot_be_logged_changes_nothing(tmp_path, monkeypatch):
    with opened(tmp_path, "fsync") as db:
        alerts = begun(db, {"falls": FALLS})["falls"]
        push(db, [("x", i, "a", v) for i, v in enumerate((5, 4))], 0, 2)
        before = db.streams()
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(DataError, match="nothing was stored"):
                push(db, [("x", i, "a", v) for i, v in enumerate((5, 4, 6))], 2, 3)
        assert db.streams() == before
        push(db, [("x", i, "a", v) for i, v in enumerate((5, 4, 6))], 2, 3)
        assert alerts.fetch().num_rows == 1


@pytest.mark.slow
def test_queries_that_begin_together_are_kept_by_one_checkpoint(tmp_path):
    def number(db: Database) -> int:
        return db.checkpoint() - 1

    with opened(tmp_path, "os") as db:
        begun(db, {})
        before = number(db)
        with db.one_checkpoint():
            for i in range(20):
                db.watch(PASSING, name=f"q{i}")
        assert number(db) == before + 2  # one of ours, and that of the first look
    again = opened(tmp_path, "os")
    assert len(again.watching()) == 20

    def broken_off() -> None:
        with again.one_checkpoint():
            again.watch(PASSING, name="more")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken_off()
    last = opened(tmp_path, "os")  # the one before is killed: what had begun by then is kept
    assert len(last.watching()) == 21
    last.close()
