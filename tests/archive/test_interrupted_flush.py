"""Ctrl-C in a push: before the events are taken it takes nothing, and afterwards it leaves files to the next flush."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hybrid
from archive import layout
from archive.interrupts import Abandoned, Deferred, go_on, is_interrupted
from live.stream import LiveStream

ROWS = 150_000
EVENTS = pa.table({"ts": pa.array(range(ROWS), pa.timestamp("us")), "v": range(ROWS)})
FALLS = """SELECT * FROM ticks MATCH_RECOGNIZE (ORDER BY ts MEASURES B.v AS v
    PATTERN (A B) DEFINE A AS v % 1000 = 1, B AS v > A.v)"""


def opened(place: Path) -> Any:
    db = hybrid.connect(place, maintenance=False)
    db.create_stream("ticks", {"ts": "TIMESTAMP", "v": "BIGINT"}, time="ts")
    return db


def rows(db: Any) -> int:
    (row,) = db.sql("SELECT count(*) AS n FROM ticks").fetchall()
    return int(row[0])


def pressing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Presses Ctrl-C once, at the end of the next call of a function."""
    plain = getattr(owner, name)

    def pressed(*arguments: Any, **more: Any) -> Any:
        found = plain(*arguments, **more)
        monkeypatch.setattr(owner, name, plain)
        signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(owner, name, pressed)


@pytest.mark.slow
def test_before_the_events_are_taken_nothing_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: the push ran to its end, whatever its size.
    with opened(tmp_path) as db:
        alerts = db.watch(FALLS)
        pressing(monkeypatch, LiveStream, "accept")
        with pytest.raises(KeyboardInterrupt):
            db.push("ticks", EVENTS)
        assert rows(db) == 0
        assert db.streams()["ticks"]["offsets"] == {}
        assert alerts.fetch().num_rows == 0
        assert db.push("ticks", EVENTS) == ROWS
        assert alerts.fetch().num_rows == ROWS // 1000


@pytest.mark.parametrize("after", ["the same handler", "another handler"])
def test_a_handler_that_only_notes_it_lets_the_push_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    # Before: KeyboardInterrupt from the push, so that `hybrid run` ended at once, with 130, without its checkpoint.
    noted: list[int] = []

    def handler(number: int, frame: Any) -> None:
        noted.append(number)
        if after == "another handler":
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    with opened(tmp_path) as db:
        alerts = db.watch(FALLS)
        pressing(monkeypatch, LiveStream, "accept")
        before = signal.signal(signal.SIGINT, handler)
        try:
            assert db.push("ticks", EVENTS) == ROWS
            left = signal.getsignal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, before)
        assert noted == [signal.SIGINT]
        assert left is (handler if after == "the same handler" else signal.SIG_IGN)
        assert rows(db) == ROWS
        assert alerts.fetch().num_rows == ROWS // 1000


@pytest.mark.slow
def test_afterwards_files_are_left_to_the_next_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: all files were written first, which takes seconds for millions of events.
    with opened(tmp_path) as db:
        alerts = db.watch(FALLS)
        pressing(monkeypatch, layout, "sort_order")
        with pytest.raises(KeyboardInterrupt):
            db.push("ticks", EVENTS)
        assert list(tmp_path.rglob("*.parquet")) == [], "none of the events is in a file"
        assert rows(db) == ROWS
        assert alerts.fetch().num_rows == ROWS // 1000, "the query has got them"
        assert db.streams()["ticks"]["offsets"] == {"default": ROWS}
        db.flush()
        assert list(tmp_path.rglob("*.parquet")) != []
        assert rows(db) == ROWS
    with hybrid.connect(tmp_path, read_only=True) as db:
        assert rows(db) == ROWS


def test_a_flush_of_the_user_ends_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as db:
        db.push("ticks", EVENTS.slice(0, 100))
        pressing(monkeypatch, layout, "sort_order")
        with pytest.raises(KeyboardInterrupt):
            db.flush()
        assert list(tmp_path.rglob("*.parquet")) != []


def test_a_deferred_ctrl_c_is_known_inside() -> None:
    seen = [is_interrupted()]

    def change() -> None:
        with Deferred():
            seen.append(is_interrupted())
            go_on()
            signal.raise_signal(signal.SIGINT)
            with Deferred():
                seen.append(is_interrupted())
                with pytest.raises(Abandoned):
                    go_on()

    with pytest.raises(KeyboardInterrupt):
        change()
    assert [*seen, is_interrupted()] == [False, False, True, False]
