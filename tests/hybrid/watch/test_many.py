"""Many live queries on one stream: added, closed and replaced while events come."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

import hybrid
from hybrid.database.database import Database
from tests.hybrid.database.test_database import COLUMNS, PAIR, rows_of, values
from tests.hybrid.inside import flow_of

RISE = PAIR.replace("v < PREV", "v > PREV")
WITHIN = """SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.v AS a, B.v AS b
AFTER MATCH NO SKIP PATTERN (A B) WITHIN INTERVAL '10' SECOND SELECTION SKIP TILL NEXT MATCH
DEFINE A AS v = 1, B AS v > {}) AS m"""
SAW = [(i, "ab"[i % 2], (i * 7) % 5) for i in range(1, 40)]


@pytest.fixture
def db() -> Iterator[Database]:
    with hybrid.connect() as database:
        database.create_stream("e", COLUMNS, time="ts", key="k")
        yield database


def test_queries_come_and_go_without_touching_the_others(db: Database) -> None:
    steady = db.watch(PAIR)
    other = None
    found = []
    for i, row in enumerate(SAW):
        if i == 5:
            other = db.watch(RISE)
        if i == 20 and other is not None:
            other.close()
        db.push("e", rows_of(row))
        found += values(steady.fetch())
    assert other is not None
    assert found == values(db.backtest(PAIR, 0).arrow())
    assert len(found) > 5
    upto = "1970-01-01 00:00:21"
    assert values(other.fetch()) == values(db.backtest(RISE, "1970-01-01 00:00:06", upto).arrow())
    assert other.stats()["state"] == "closed"
    other.close()
    assert list(other) == []
    assert steady.stats()["state"] == "running"


def test_a_closed_query_leaves_nothing_behind(db: Database) -> None:
    one, two = db.watch(PAIR), db.watch(RISE)
    feed = flow_of(db).streams["e"].feed
    assert feed is not None
    assert len(feed) == 2
    one.close()
    assert len(feed) == 1
    two.close()
    assert flow_of(db).streams["e"].feed is None
    db.push("e", rows_of(*SAW))
    assert one.fetch().num_rows == two.fetch().num_rows == 0


def test_a_later_query_does_not_see_what_is_held_back() -> None:
    with hybrid.connect() as db:
        db.create_stream("e", COLUMNS, time="ts", key="k", lateness="10s")
        first = db.watch(PAIR)
        db.push("e", rows_of((1, "a", 9), (3, "a", 7)))
        second = db.watch(PAIR)
        db.push("e", rows_of((2, "a", 8), (4, "a", 6), (5, "a", 5)))
        assert second.stats()["held_back"] == 3
        db.advance("e", None)
        assert values(first.fetch()) == [("a", 9, 8), ("a", 7, 6)]
        assert values(second.fetch()) == [("a", 8, 6)]


def test_new_measures_go_on_with_what_was_in_progress(db: Database) -> None:
    """Also where they read a column that was not kept for the rows in progress."""
    old = db.watch(PAIR.replace("A.v AS a, B.v AS b", "B.k AS b"))
    db.push("e", rows_of((1, "a", 5), (2, "b", 7)))
    new = db.replace(old, PAIR.replace("SELECT *", "SELECT a, t").replace("B.v AS b", "A.ts AS t, MATCH_NUMBER() AS n"))
    db.push("e", rows_of((3, "a", 4), (4, "b", 6)))
    assert [row["a"] for row in new.fetch().to_pylist()] == [5, 7]
    assert old.fetch().num_rows == 0
    assert old.stats()["state"] == "replaced"
    assert list(old) == []


def test_a_new_condition_holds_for_what_came_before_too(db: Database) -> None:
    old = db.watch(WITHIN.format(5))
    db.push("e", rows_of((1, "a", 1), (2, "a", 4), (3, "b", 1), (4, "b", 6)))
    assert values(old.fetch()) == [("b", 1, 6)]
    new = db.replace(old, WITHIN.format(3))
    db.push("e", rows_of((5, "a", 7), (6, "b", 7), (7, "a", 1), (8, "a", 4)))
    assert values(new.fetch()) == [("a", 1, 4)]  # 1 4 was complete before the switch; the old one did not look for it
    assert old.fetch().num_rows == 0


def test_what_the_old_version_found_is_still_there(db: Database) -> None:
    old = db.watch(PAIR)
    db.push("e", rows_of((1, "a", 5), (2, "a", 4)))
    new = db.replace(old, RISE)
    db.push("e", rows_of((3, "a", 6)))
    assert values(old.fetch()) == [("a", 5, 4)]
    assert values(new.fetch()) == [("a", 4, 6)]
    newer = db.replace(new, PAIR)
    db.push("e", rows_of((4, "a", 5)))
    assert values(newer.fetch()) == [("a", 6, 5)]
    with pytest.raises(hybrid.DataError, match="not running"):
        db.replace(old, PAIR)


def test_history_that_the_old_version_waits_for_comes_to_it(db: Database) -> None:
    text = """SELECT pl.v, pa.v AS h FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES X.v AS v, X.ts AS t PATTERN (X)
    DEFINE X AS v >= 100) AS pl JOIN HISTORY OF e FROM pl.t TO pl.t + INTERVAL 5 SECOND AS pa ON TRUE"""
    old = db.watch(text)
    db.push("e", rows_of((10, "a", 100)))
    new = db.replace(old, text.replace("SELECT pl.v", "SELECT pl.v + 1 AS v"))
    assert old.stats()["state"] == "running"
    db.push("e", rows_of((11, "a", 200)))
    db.advance("e", "1970-01-01 00:00:30")
    assert values(old.fetch()) == [(100, 100), (100, 200)]
    assert values(new.fetch()) == [(201, 200)]
    assert old.stats()["state"] == "replaced"


def test_a_version_that_cannot_be_leaves_the_old_one_running(db: Database) -> None:
    db.create_stream("f", COLUMNS, time="ts", key="k")
    old = db.watch(PAIR)
    db.push("e", rows_of((1, "x", 5)))
    with pytest.raises(hybrid.QueryError, match="the new version reads f"):
        db.replace(old, PAIR.replace("FROM e", "FROM f"))
    with pytest.raises(hybrid.QueryError):
        db.replace(old, PAIR.replace("v < PREV", "w < PREV"))
    with pytest.raises(hybrid.DataError):
        db.replace(old, PAIR.replace("B AS v", "A AS CAST(k AS INTEGER) > 0, B AS v"))
    db.push("e", rows_of((2, "x", 4)))
    assert values(old.fetch()) == [("x", 5, 4)]
    feed = flow_of(db).streams["e"].feed
    assert feed is not None
    assert len(feed) == 1


@pytest.mark.slow
def test_events_that_are_gone_cannot_be_replayed() -> None:
    with hybrid.connect() as db:
        db.create_stream("e", COLUMNS, time="ts", key="k", retention="10s")
        old = db.watch(PAIR)
        for i in range(100):
            db.push("e", rows_of((i, "a", i % 7)))
        with pytest.raises(hybrid.DataError, match="no longer kept"):
            db.replace(old, RISE)
        with pytest.warns(hybrid.HybridWarning, match="empty state"):
            new = db.replace(old, RISE, fresh=True)
        db.push("e", rows_of((100, "a", 8), (101, "a", 9)))
        assert values(new.fetch()) == [("a", 8, 9)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            window = db.replace(new, WITHIN.format(0))  # only what WITHIN reaches counts, and that is kept
            assert db.replace(window, WITHIN.format(1)).stats()["state"] == "running"


def test_a_query_fails_alone(db: Database) -> None:
    """The failing one shares its rows, and a condition, with one that does not read what cannot be computed."""
    reads = PAIR.replace("B AS v < PREV(v)", "A AS CAST(k AS INTEGER) > 0, B AS v < PREV(v)")
    bad, steady = db.watch(reads), db.watch(PAIR)
    db.push("e", rows_of((1, "7", 5), (2, "7", 4)))
    db.push("e", rows_of((3, "x", 1)))
    db.push("e", rows_of((4, "7", 9), (5, "7", 8), (6, "x", 0)))
    assert values(bad.fetch()) == [("7", 5, 4)]
    with pytest.raises(hybrid.DataError):
        bad.fetch()
    assert values(steady.fetch()) == [("7", 5, 4), ("7", 9, 8), ("x", 1, 0)]
    feed = flow_of(db).streams["e"].feed
    assert feed is not None
    assert len(feed) == 1
