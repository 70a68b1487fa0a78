"""Live queries with boxes over different streams: a pattern that several have in common is searched once for all, and
each query gets its own rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import hybrid
from hybrid.database.database import Database
from tests.hybrid.statement.test_boxes_of_streams import ORDER, ORDERS, PAID, SEEN, VISIT, declare, rows
from tests.hybrid.watch.test_merged_feed import end, push_parts, visits
from tests.properties.comparing import is_nightly

TABLES = {"clicks": SEEN, "orders": PAID, "refunds": PAID}
#: Queries over the clicks and another stream, over the clicks alone, and over all three streams.
OF_CLICKS = """SELECT person, pages FROM clicks MATCH_RECOGNIZE (PARTITION BY person ORDER BY ts
    MEASURES V.pages AS pages AFTER MATCH NO SKIP PATTERN (V C+) WITHIN INTERVAL 60 SECOND
    SELECTION SKIP TILL NEXT MATCH DEFINE V AS PATTERN visit ON pages > 1, C AS page = 'shoes')"""
OF_ALL = """SELECT person, pages, nr FROM refunds MATCH_RECOGNIZE (PARTITION BY person ORDER BY paid
    MEASURES V.pages AS pages, O.page AS nr AFTER MATCH NO SKIP PATTERN (V P O) WITHIN INTERVAL 60 SECOND
    SELECTION SKIP TILL NEXT MATCH DEFINE V AS PATTERN visit, P AS PATTERN paid, O AS page > 2)"""
PAID_ONE = """SELECT * FROM orders MATCH_RECOGNIZE (PARTITION BY person ORDER BY paid AFTER MATCH NO SKIP
    PATTERN (X) DEFINE X AS page > 1)"""
TEXTS = [ORDER, ORDER.replace("orders", "refunds"), OF_CLICKS, OF_ALL]


def with_third(db: Database) -> None:
    declare(db)
    db.create_stream("refunds", ORDERS, time="paid")
    db.create_pattern("paid", PAID_ONE)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with hybrid.connect(tmp_path / "db") as db:
        with_third(db)
        yield db


def wanted(text: str, seen: dict[str, int] | None = None) -> list[str]:
    """Returns the rows of a query over the events behind so many of each stream, from one statement."""
    tables = {name: table.slice((seen or {}).get(name, 0)) for name, table in TABLES.items()}
    return rows(hybrid.sql(f"WITH visit AS ({VISIT}), paid AS ({PAID_ONE}) {text}", **tables).arrow())


@pytest.mark.slow
def test_queries_over_different_streams_search_a_pattern_once(db: Database) -> None:
    # Before: each set of streams searched it.
    live = [db.watch(text) for text in TEXTS]
    for _ in push_parts(db, TABLES, 1):
        pass
    for text, alerts in zip(TEXTS, live, strict=True):
        found = rows(alerts.fetch())
        assert len(found) > 10
        assert found == wanted(text)
        assert visits(alerts) == {"events": len(SEEN), "queries": len(TEXTS)}
    live[0].close()
    assert visits(live[1])["queries"] == len(TEXTS) - 1


@pytest.mark.slow
@pytest.mark.thinned(2, 1)
@pytest.mark.parametrize(("seed", "limit"), [(0, None), (1, "20KB")])
def test_they_go_on_after_restarts(tmp_path: Path, seed: int, limit: str | None) -> None:
    rng, todo = Random(seed), dict(TABLES)
    found: dict[str, list[str]] = {f"q{i}": [] for i in range(len(TEXTS))}
    with hybrid.connect(tmp_path / "db", memory_limit=limit) as db:
        with_third(db)
    while todo:
        with hybrid.connect(tmp_path / "db", memory_limit=limit) as db:
            live = {name: db.watch(text, name=name) for name, text in zip(found, TEXTS, strict=True)}
            for _ in range(rng.randrange(3, 12)):
                if not todo:
                    break
                name = rng.choice(list(todo))
                n = rng.randrange(1, 60 if is_nightly() else 180)
                db.push(name, todo[name].slice(0, n))
                todo[name] = todo[name].slice(n)
                todo = {name: table for name, table in todo.items() if len(table)}
                if rng.random() < 0.3:
                    db.checkpoint()
            if not todo:
                end(db, TABLES)
            for name, alerts in live.items():
                found[name] += rows(alerts.fetch())
                assert visits(alerts)["queries"] == len(TEXTS)
    for name, text in zip(found, TEXTS, strict=True):
        assert found[name] == wanted(text)


@pytest.mark.slow
def test_a_query_that_comes_later_reads_the_search_of_another_if_no_event_is_on_its_way(db: Database) -> None:
    first = db.watch(OF_CLICKS)
    beside = db.watch(ORDER)
    db.push("clicks", SEEN.slice(0, 100))  # the second query waits for orders, the first one has them
    later = db.watch(ORDER.replace("orders", "refunds"))
    assert visits(later) == {"events": 100, "queries": 3}
    for name, table, begin in (("orders", PAID, 0), ("refunds", PAID, 0), ("clicks", SEEN, 100)):
        db.push(name, table.slice(begin))
    end(db, TABLES)
    assert rows(first.fetch()) == wanted(OF_CLICKS)
    assert rows(beside.fetch()) == wanted(ORDER)
    assert rows(later.fetch()) == wanted(ORDER.replace("orders", "refunds"), {"clicks": 100})
    assert visits(first) == {"events": len(SEEN), "queries": 3}


@pytest.mark.slow
def test_a_second_source_at_the_very_time_of_the_last_event(tmp_path: Path) -> None:
    """The stream has passed that event on, and the streams merged with others order both by their sources."""
    day = dt.datetime(2024, 1, 1)

    def click(second: int, page: str) -> dict[str, object]:
        return {"ts": day + dt.timedelta(seconds=second), "person": "Ann", "page": page}

    with hybrid.connect(tmp_path / "db") as db:
        with_third(db)
        alone, merged = db.watch(OF_CLICKS), db.watch(ORDER)
        assert visits(alone)["queries"] == 2
        db.push("clicks", [click(0, "shoes"), click(1, "shoes"), click(2, "bye")], source="z")
        db.push("clicks", [click(2, "shoes")], source="a")
        assert visits(alone)["queries"] == 1
        for source in ("a", "z"):
            db.push("clicks", [click(3, "shoes")], source=source)
        db.push("orders", [{"paid": day + dt.timedelta(seconds=4), "page": 3, "person": "Ann"}])
        for name in TABLES:
            db.advance(name, day + dt.timedelta(hours=1))
        # the visit that ends with `bye` has the second `shoes` of second 2 before it in the merged order only
        assert set(merged.fetch().column("pages").to_pylist()) == {2, 3, 4}
        assert set(alone.fetch().column("pages").to_pylist()) == {2, 3}


@pytest.mark.slow
def test_a_pattern_that_fails_fails_for_each_query_at_its_event(db: Database) -> None:
    db.create_pattern("counted", VISIT.replace("page = 'bye'", "CAST(page AS INTEGER) > 0"))
    texts = [text.replace("PATTERN visit", "PATTERN counted") for text in (OF_CLICKS, ORDER)]
    live = [db.watch(text) for text in texts]
    db.push("clicks", SEEN.slice(0, 50))
    with pytest.raises(hybrid.DataError, match="cannot be computed"):
        live[0].fetch()
    assert live[1].fetch().num_rows == 0  # waits for orders
    db.push("orders", PAID.slice(0, 50))
    with pytest.raises(hybrid.DataError, match="cannot be computed"):
        live[1].fetch()


@pytest.mark.slow
def test_a_new_version_and_a_rewind(db: Database) -> None:
    live = [db.watch(text) for text in TEXTS]
    parts = push_parts(db, TABLES, 1)
    for _ in range(8):
        next(parts)
    live[0] = db.replace(live[0], ORDER.replace("O.page AS nr", "O.page + 0 AS nr"))
    assert visits(live[0])["queries"] == len(TEXTS)
    live[1] = db.replace(live[1], TEXTS[1].replace("page > 2", "page > 3"))
    for _ in parts:
        pass
    for text, alerts in zip([ORDER, TEXTS[1].replace("page > 2", "page > 3"), *TEXTS[2:]], live, strict=True):
        assert rows(alerts.fetch())[-10:] == wanted(text)[-10:]
