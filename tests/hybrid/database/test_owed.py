"""A push that a Ctrl-C has ended owes its queries events: they come before anything else that happens."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybrid
from hybrid.database.database import Database
from tests.hybrid.ends import opened_again
from tests.hybrid.interrupted import interrupted_between_parts

START = dt.datetime(2024, 1, 1)
COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}
RISES = """SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k MEASURES FIRST(v) AS a, LAST(v) AS b
    PATTERN (A B) DEFINE B AS v > PREV(v))"""
#: The same matches.
AGAIN = RISES.replace("LAST(v) AS b", "max(v) AS b")
ROWS = [{"ts": START + dt.timedelta(seconds=i), "k": "xy"[i % 2], "v": i * 37 % 100} for i in range(40)]


class Session:
    """A database with a query. rows: what has been fetched of it, and of others."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.rows: list[str] = []
        self.open()

    def open(self) -> None:
        self.db: Database = opened_again(self.place, maintenance=False, ticking=False, log="os")
        self.db.create_stream("t", COLUMNS, "ts", "k", idle="20s")
        self.alerts = {"rises": self.db.watch(RISES, name="rises", evidence=True)}

    def fetch(self) -> None:
        for name, alerts in self.alerts.items():
            for row in alerts.fetch().to_pylist():
                if repr((name, row)) not in self.rows:  # after a restart rows may come again
                    self.rows.append(repr((name, row)))

    def watch(self) -> None:
        self.alerts["more"] = self.db.watch(RISES, evidence=True)

    def watch_since(self) -> None:
        self.alerts["past"] = self.db.watch(RISES, start=START, evidence=True)

    def replace(self) -> None:
        before = self.alerts["rises"]
        self.alerts["after"] = self.db.replace("rises", AGAIN, evidence=True)
        self.alerts["rises"] = before

    def restart(self) -> None:
        self.db.close(wait=False)
        self.open()


OPERATIONS: dict[str, Callable[[Session], Any]] = {
    "push": lambda s: s.db.push("t", [{**ROWS[-1], "ts": START + dt.timedelta(seconds=40)}]),
    "of another source": lambda s: s.db.push("t", [{**ROWS[-1], "ts": START + dt.timedelta(seconds=30)}], "other"),
    "advance": lambda s: s.db.advance("t", START + dt.timedelta(seconds=90)),
    "end": lambda s: s.db.advance("t", None),
    "skip": lambda s: s.db.skip("t", "default", 50),
    "expect": lambda s: s.db.expect("t", ["third"]),
    "leave": lambda s: s.db.leave("t", "default"),
    "alter": lambda s: s.db.alter_stream("t", lateness="5s"),
    "rewind": lambda s: s.db.rewind("t", START + dt.timedelta(seconds=20)),
    "watch": Session.watch,
    "watch since": Session.watch_since,
    "replace": Session.replace,
    "close a query": lambda s: s.alerts["rises"].close(),
    "fetch": Session.fetch,
    "flush": lambda s: s.db.flush(),
    "checkpoint": lambda s: s.db.checkpoint(),
    "restart": Session.restart,
    "crash": Session.open,
}


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A push reaches the queries four rows at a time; the parts until a Ctrl-C comes."""
    monkeypatch.setattr("hybrid.watch.flow.PART_SECONDS", 0)
    return interrupted_between_parts(monkeypatch, 4)


def owes(db: Database) -> int:
    owed = db._flow.streams["t"].owed
    return 0 if owed is None else len(owed.batch)


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.filterwarnings("ignore::hybrid.HybridWarning")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_comes_next_comes_after_it(tmp_path: Path, ends: list[int], operation: str) -> None:
    # Before: a push to a slow query could not be interrupted once its events were in the log.
    sessions = []
    for parts in (0, 3):
        session = Session(tmp_path / str(parts))
        ends[0] = parts
        if parts:
            with pytest.raises(KeyboardInterrupt):
                session.db.push("t", ROWS)
            assert owes(session.db) == len(ROWS) - 4 * parts
        else:
            session.db.push("t", ROWS)
        assert session.db.streams()["t"]["offsets"] == {"default": len(ROWS)}
        OPERATIONS[operation](session)
        session.fetch()
        assert not owes(session.db)
        if operation != "end":
            session.db.push("t", [{**ROWS[0], "ts": START + dt.timedelta(seconds=100 + i), "v": i} for i in range(2)])
            session.db.advance("t", None)
        session.fetch()
        session.db.close()
        sessions.append(session)
    whole, cut = sessions
    assert len(whole.rows) >= 10
    assert sorted(cut.rows) == sorted(whole.rows)


def test_a_second_ctrl_c_ends_the_next_push_before_it_takes_anything(tmp_path: Path, ends: list[int]) -> None:
    session = Session(tmp_path)
    for rows in (ROWS[:20], ROWS[20:]):
        ends[0] = 2
        with pytest.raises(KeyboardInterrupt):
            session.db.push("t", rows)
    assert session.db.streams()["t"]["offsets"] == {"default": 20}
    assert owes(session.db) == 4
    assert session.db.sql("SELECT count(*) FROM t").fetchall() == [(20,)]
    session.db.close()


def test_the_clock_goes_on_with_it_and_raises_no_watermark_before(tmp_path: Path, ends: list[int]) -> None:
    session = Session(tmp_path)
    ends[0] = 1
    with pytest.raises(KeyboardInterrupt):
        session.db.push("t", ROWS[:16])
    session.db.push("t", ROWS[16:20], "other")
    ends[0] = 1
    with pytest.raises(KeyboardInterrupt):
        session.db.push("t", ROWS[20:])
    assert owes(session.db) == 16
    for left in (12, 8, 4):
        session.db.tick(now_s=1e9)
        assert owes(session.db) == left
        assert session.db.streams()["t"]["watermark"] == "2024-01-01 00:00:19"  # that of the other source
    session.db.tick(now_s=1e9)  # all sources are silent
    assert owes(session.db) == 0
    assert session.db.streams()["t"]["watermark"] == "2024-01-01 00:00:39"
    session.db.close()


def test_a_bad_batch_is_refused_whole(tmp_path: Path, ends: list[int]) -> None:
    session = Session(tmp_path)
    with pytest.raises(hybrid.DataError, match="row 39"):
        session.db.push("t", [*ROWS[:-1], {**ROWS[-1], "v": "much"}])
    assert session.db.streams()["t"]["offsets"] == {}
    session.db.close()
