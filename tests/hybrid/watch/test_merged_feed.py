"""Live queries with boxes over the same streams: each pattern is searched once, and each query gets its own rows."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import hybrid
from hybrid.database import queries as database_queries
from hybrid.database.database import Database
from hybrid.watch.alerts import Alerts
from query.errors import HybridWarning
from tests.hybrid.inside import flow_of
from tests.hybrid.statement.test_boxes_of_streams import (
    BEGIN,
    BOTH,
    CLICKS,
    ORDER,
    ORDERS,
    PAID,
    SEEN,
    VISIT,
    declare,
    expected,
    rows,
)

#: Two streams with the same columns, a pattern over the first, and queries that begin with either.
BOTH_ALIKE = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}
RISE = """SELECT * FROM a MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES Y.v AS v AFTER MATCH NO SKIP
    PATTERN (X Y) WITHIN INTERVAL 20 SECOND SELECTION SKIP TILL NEXT MATCH DEFINE Y AS v > X.v)"""
LOW = RISE.replace("FROM a", "FROM b").replace("PATTERN (X Y)", "PATTERN (X)").replace("Y.v", "X.v")
LOW = LOW.replace("Y AS v > X.v", "X AS v < 3")
RISE_LOW = """SELECT k, v, low FROM b MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES R.v AS v, L.v AS low
    AFTER MATCH NO SKIP PATTERN (R L) WITHIN INTERVAL 40 SECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE R AS PATTERN rise, L AS v < 3)"""
LOW_RISE = """SELECT k, v, low FROM a MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES R.v AS v, L.v AS low
    AFTER MATCH NO SKIP PATTERN (L R) WITHIN INTERVAL 40 SECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE R AS PATTERN rise, L AS PATTERN low)"""


def order(pages: int, nr: int = 2) -> str:
    return ORDER.replace("pages > 1", f"pages > {pages}").replace("O AS page > 2", f"O AS page > {nr}")


TEXTS = [order(pages, nr) for pages in range(1, 6) for nr in (1, 2)]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with hybrid.connect(tmp_path / "db") as db:
        declare(db)
        yield db


def wanted(text: str) -> list[str]:
    """Returns the rows of a query over all events, from one statement."""
    found = rows(hybrid.sql(f"WITH visit AS ({VISIT}) {text}", clicks=SEEN, orders=PAID).arrow())
    assert found
    return found


def push_all(db: Database, seed: int = 1, clicks: pa.Table = SEEN, orders: pa.Table = PAID) -> Iterator[None]:
    """Pushes both streams in parts, in some interleaving. Yields after each part."""
    yield from push_parts(db, {"clicks": clicks, "orders": orders}, seed)


def push_parts(db: Database, tables: dict[str, pa.Table], seed: int) -> Iterator[None]:
    """Pushes streams in parts, in some interleaving, and ends them. Yields after each part."""
    rng, todo = Random(seed), tables
    while todo:
        name = rng.choice(list(todo))
        n = rng.randrange(1, 60)
        db.push(name, todo[name].slice(0, n))
        todo = {of: left for of, left in (todo | {name: todo[name].slice(n)}).items() if len(left)}
        yield
    end(db, tables)


def end(db: Database, names: Iterable[str] = ("clicks", "orders")) -> None:
    for name in names:
        db.advance(name, BEGIN + dt.timedelta(hours=1))


def visits(alerts: Alerts) -> dict[str, int]:
    """Returns the figures of the pattern visit."""
    found: dict[str, int] = alerts.stats()["patterns"]["visit"]
    return found


@pytest.mark.slow
def test_ten_queries_search_a_pattern_once(db: Database) -> None:
    # Before: each of them searched it.
    live = [db.watch(text) for text in TEXTS]
    for _ in push_all(db):
        pass
    for text, alerts in zip(TEXTS, live, strict=True):
        assert rows(alerts.fetch()) == wanted(text)
        assert visits(alerts) == {"events": len(SEEN), "queries": 10}


@pytest.mark.slow
def test_queries_that_name_the_streams_in_another_order(db: Database) -> None:
    rng = Random(5)
    drawn = [{"ts": BEGIN + dt.timedelta(seconds=i), "k": rng.choice("pq"), "v": rng.randrange(9)} for i in range(400)]
    tables = {"a": pa.Table.from_pylist(drawn[::2]), "b": pa.Table.from_pylist(drawn[1::2])}
    for name in tables:
        db.create_stream(name, BOTH_ALIKE, time="ts")
    db.create_patterns({"rise": RISE, "low": LOW})
    live = {text: db.watch(text) for text in (RISE_LOW, LOW_RISE)}
    for name, table in tables.items():
        db.push(name, table)
        db.advance(name, BEGIN + dt.timedelta(hours=1))
    for text, alerts in live.items():
        alone = rows(hybrid.sql(f"WITH rise AS ({RISE}), low AS ({LOW}) {text}", **tables).arrow())
        assert len(alone) > 20
        assert rows(alerts.fetch()) == alone
        assert alerts.stats()["patterns"]["rise"] == {"events": 200, "queries": 2}


def of_part(text: str, seen: dict[str, int]) -> list[str]:
    """Returns the rows of a query over the events behind so many of each stream."""
    clicks, orders = SEEN.slice(seen["clicks"]), PAID.slice(seen["orders"])
    return rows(hybrid.sql(f"WITH visit AS ({VISIT}) {text}", clicks=clicks, orders=orders).arrow())


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.thinned(2, 1)
@pytest.mark.parametrize(("seed", "limit"), [(0, None), (1, "20KB")])
def test_queries_come_and_go_with_restarts_between(tmp_path: Path, seed: int, limit: str | None) -> None:
    """Each has the rows of the events pushed since it came, in their order, and in the end all read one pattern."""
    rng, todo, pushed = Random(seed), {"clicks": SEEN, "orders": PAID}, {"clicks": 0, "orders": 0}
    running: dict[str, tuple[str, dict[str, int]]] = {}
    found: dict[str, list[str]] = {}
    with hybrid.connect(tmp_path / "db", memory_limit=limit) as db:
        declare(db)
    while todo:
        with hybrid.connect(tmp_path / "db", memory_limit=limit) as db:
            live = {name: db.watch(text, name=name) for name, (text, _) in running.items()}
            for _ in range(rng.randrange(3, 8)):
                if len(TEXTS) > len(found) and len(todo.get("orders", ())) > 90 and rng.random() < 0.5:
                    name = f"q{len(found)}"
                    running[name], found[name] = (TEXTS[len(found)], dict(pushed)), []
                    live[name] = db.watch(running[name][0], name=name)
                if len(running) > 4 and rng.random() < 0.1:
                    gone = rng.choice(list(running))
                    live.pop(gone).close()
                    running.pop(gone)
                name = rng.choice(list(todo))
                n = rng.randrange(1, 40)
                db.push(name, todo[name].slice(0, n))
                pushed[name] += min(n, len(todo[name]))
                todo[name] = todo[name].slice(n)
                for name, alerts in live.items():
                    found[name] += rows(alerts.fetch())
                todo = {name: table for name, table in todo.items() if len(table)}
                if not todo:
                    break
            if not todo:
                assert {visits(alerts)["queries"] for alerts in live.values()} == {len(live)}
                end(db)
                for name, alerts in live.items():
                    found[name] += rows(alerts.fetch())
    assert len(running) > 3
    assert sum(bool(seen["clicks"]) for _, seen in running.values()) > 2
    for name, (text, seen) in running.items():
        assert found[name] == of_part(text, seen)


@pytest.mark.slow
def test_a_query_that_comes_while_events_wait_reads_the_pattern_of_others_once_they_are_through(db: Database) -> None:
    first = db.watch(ORDER)
    parts = push_all(db)
    for _ in range(12):
        next(parts)
    assert first.stats()["held_back"] > 0
    second = db.watch(order(2))
    assert visits(second)["queries"] == 1  # it does not see the events that wait
    for _ in parts:
        pass
    assert visits(second) == visits(first)
    assert visits(first)["queries"] == 2


@pytest.mark.slow
def test_a_new_version_goes_on(db: Database) -> None:
    live, beside = db.watch(ORDER), db.watch(order(2))
    parts = push_all(db)
    for _ in range(8):
        next(parts)
    found = rows(live.fetch())
    measures = db.replace(live, ORDER.replace("O.page AS nr", "O.page + 1 AS nr"))
    assert visits(measures)["queries"] == 2
    for _ in range(4):
        next(parts)
    changed = rows(measures.fetch())
    other = db.replace(measures, order(1, 3))
    for _ in parts:
        pass
    left = wanted(order(1, 3))[-20:]
    assert rows(other.fetch())[-20:] == left
    raised = [dict(row, nr=row["nr"] + 1) for row in map(eval_row, wanted(ORDER))]  # the measure of the new version
    assert [eval_row(row) for row in changed] == raised[len(found) : len(found) + len(changed)]
    assert rows(beside.fetch()) == wanted(order(2))
    assert visits(other)["queries"] == 2


def eval_row(text: str) -> dict[str, Any]:
    found: dict[str, Any] = eval(text)
    return found


@pytest.mark.slow
def test_a_fresh_version_goes_on_with_the_pattern(tmp_path: Path) -> None:
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("clicks", {"ts": "TIMESTAMP", "person": "VARCHAR", "page": "VARCHAR"}, time="ts",
                         retention=dt.timedelta(seconds=10))  # fmt: skip
        db.create_stream("orders", {"paid": "TIMESTAMP", "page": "BIGINT", "person": "VARCHAR"}, time="paid",
                         retention=dt.timedelta(seconds=10))  # fmt: skip
        db.create_pattern("visit", VISIT)
        live = db.watch(ORDER)
        parts = push_all(db)
        for _ in range(12):
            next(parts)
        with pytest.raises(hybrid.DataError, match="cannot continue"):
            db.replace(live, order(1, 3))
        with pytest.warns(HybridWarning, match="starts with an empty state"):
            new = db.replace(live, order(1, 3), fresh=True)
        for _ in parts:
            pass
        assert set(rows(new.fetch())) <= set(wanted(order(1, 3)))
        assert visits(new)["events"] > len(SEEN) // 2


@pytest.mark.slow
def test_a_query_that_begins_in_the_past_reads_the_pattern_of_others_later(db: Database) -> None:
    first, parts = db.watch(ORDER), push_all(db)
    for _ in range(8):
        next(parts)
    second = db.watch(order(1, 3), start=BEGIN)
    for _ in parts:
        pass
    assert rows(second.fetch()) == wanted(order(1, 3))
    assert rows(first.fetch()) == expected()
    assert visits(second)["queries"] == 2


@pytest.mark.slow
def test_a_wrong_time_is_taken_back(db: Database) -> None:
    first, second = db.watch(ORDER), db.watch(order(2))
    parts = push_all(db)
    for _ in range(8):
        next(parts)
    db.push("clicks", [{"ts": BEGIN + dt.timedelta(days=3), "person": "a", "page": "bye"}], source="wrong")
    db.rewind("clicks", BEGIN + dt.timedelta(days=1))
    for alerts in (first, second):
        alerts.fetch()
        assert alerts.stats()["state"] == "running"
    for _ in parts:
        pass
    assert rows(first.fetch())[-20:] == expected()[-20:]
    assert rows(second.fetch())[-20:] == wanted(order(2))[-20:]


@pytest.mark.slow
def test_a_checkpoint_with_chains_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release before this one kept such a query in a chain of its own: it goes through its events once more."""
    found: list[str] = []
    with monkeypatch.context() as earlier, hybrid.connect(tmp_path / "db") as db:
        earlier.setattr(database_queries, "over_merged", lambda plan: False)
        declare(db)
        live, parts = db.watch(ORDER, name="order"), push_all(db)
        for _ in range(10):
            next(parts)
        found += rows(live.fetch())
        at = {name: len(db.sql(f"SELECT person FROM {name}").arrow()) for name in ("clicks", "orders")}
        db.checkpoint()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", HybridWarning)
        db = hybrid.connect(tmp_path / "db")
    assert "order replayed the kept events" in str(told[0].message)
    with db:
        live = db.watch(ORDER, name="order")
        for _ in push_all(db, 2, SEEN.slice(at["clicks"]), PAID.slice(at["orders"])):
            pass
        assert found + rows(live.fetch()) == expected()
        assert visits(live)["queries"] == 1


@pytest.mark.slow
def test_a_query_ends_with_its_streams(db: Database) -> None:
    first, second = db.watch(ORDER), db.watch(order(2))
    for _ in push_all(db):
        pass
    db.advance("clicks", None)
    assert first.stats()["state"] == "running"
    db.advance("orders", None)
    assert (first.stats()["state"], second.stats()["state"]) == ("ended", "ended")
    assert rows(first.fetch()) == expected()
    assert len(BOTH) == len(SEEN) + len(PAID)


@pytest.mark.slow
def test_one_that_fails_leaves_the_others(db: Database) -> None:
    bad = ORDER.replace("O AS page > 2", "O AS CAST(person AS BIGINT) > 2")
    first, failing = db.watch(ORDER), db.watch(bad)
    for _ in push_all(db):
        pass
    assert rows(first.fetch()) == expected()
    with pytest.raises(hybrid.Error):
        failing.fetch()
    assert visits(first)["queries"] == 1


@pytest.mark.slow
def test_one_that_fails_while_it_reads_the_archive_fails(db: Database) -> None:
    # Before: it went on as if nothing had happened, without the matches of that time.
    db.push("clicks", SEEN)
    db.push("orders", PAID)
    end(db)
    failing = db.watch(ORDER.replace("O AS page > 2", "O AS page > 2 AND CAST(person AS BIGINT) > 2"), start=BEGIN)
    with pytest.raises(hybrid.DataError, match="cannot be computed"):
        failing.fetch()


@pytest.mark.slow
def test_a_new_version_that_fails_leaves_the_old_one_alone(db: Database) -> None:
    first, parts = db.watch(ORDER), push_all(db)
    for _ in range(8):
        next(parts)
    buys = ORDER.replace("FROM orders", "FROM clicks").replace("paid", "ts").replace("O.page AS nr", "7 AS nr")
    buy = """SELECT * FROM orders MATCH_RECOGNIZE (PARTITION BY person ORDER BY paid MEASURES count(*) AS pages
        AFTER MATCH NO SKIP PATTERN (A) WITHIN INTERVAL 30 SECOND DEFINE A AS CAST(person AS BIGINT) > 2)"""
    buys = f"WITH visit AS ({buy}) {buys.replace('page > 2', 'true').replace('page = 0', 'false')}"
    with pytest.raises(hybrid.DataError, match="cannot be computed"):
        db.replace(first, buys)
    # Before: the events of both streams went on being merged for it.
    assert [len(merged.feed) for merged in flow_of(db).merged] == [1]
    for _ in parts:
        pass
    assert rows(first.fetch()) == expected()


@pytest.mark.slow
def test_one_that_begins_while_events_wait_that_are_no_longer_kept_has_them() -> None:
    second = dt.timedelta(seconds=1)
    with hybrid.connect() as db:
        db.create_stream("clicks", CLICKS, time="ts", retention=10 * second)
        db.create_stream("orders", ORDERS, time="paid")
        db.create_pattern("visit", VISIT)
        first = db.watch(ORDER)
        db.advance("orders", BEGIN)
        pages = enumerate(["shoes", "shoes", "bye"], 1)
        db.push("clicks", [{"ts": BEGIN + i * second, "person": "a", "page": page} for i, page in pages])
        db.advance("clicks", BEGIN + 100 * second)
        db.push("clicks", [{"ts": BEGIN + 50 * second, "person": "a", "page": "late"}])
        assert db.sql("SELECT count(*) FROM clicks").fetchall() == [(0,)]
        second_one = db.watch(ORDER, start=BEGIN)  # Before: an IndexError.
        db.push("orders", [{"paid": BEGIN + 10 * second, "page": 5, "person": "a"}])
        db.advance("orders", BEGIN + 100 * second)
        found = rows(first.fetch())
        assert len(found) == 2
        assert rows(second_one.fetch()) == found
