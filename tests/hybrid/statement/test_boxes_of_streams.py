"""Patterns with boxes over other streams than FROM, on every path."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import hybrid
from hybrid.database.database import Database
from query.errors import QueryError

BEGIN = dt.datetime(2024, 3, 1)
CLICKS = {"ts": "TIMESTAMP", "person": "VARCHAR", "page": "VARCHAR"}
ORDERS = {"paid": "TIMESTAMP", "page": "BIGINT", "person": "VARCHAR"}
VISIT = """SELECT * FROM clicks MATCH_RECOGNIZE (PARTITION BY person ORDER BY ts MEASURES count(*) AS pages
    AFTER MATCH NO SKIP PATTERN (A+ B) WITHIN INTERVAL 30 SECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE A AS page = 'shoes', B AS page = 'bye')"""
ORDER = """SELECT person, pages, nr, stay FROM orders MATCH_RECOGNIZE (PARTITION BY person ORDER BY paid
    MEASURES V.pages AS pages, O.page AS nr, date_diff('second', V.t0, V.t1) AS stay
    AFTER MATCH NO SKIP PATTERN (V ~C O) WITHIN INTERVAL 60 SECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE V AS PATTERN visit ON pages > 1, O AS page > 2, C AS page = 0)"""
TEXT = f"WITH visit AS ({VISIT}) {ORDER}"
#: The same over one table of all events: skip-till strategies pass over what no variable takes.
ALONE = re.sub("FROM (clicks|orders)", "FROM both_", TEXT).replace("paid", "ts").replace("O.page", "O.n")
ALONE = re.sub("([AB]) AS page", r"\1 AS s", re.sub("([OC]) AS page", r"\1 AS n", ALONE))


def drawn(n: int = 900, seed: int = 3) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Returns clicks, orders, and both in one table; no two events have one time."""
    rng = Random(seed)
    clicks, orders, both = [], [], []
    for i in range(n):
        ts, person = BEGIN + dt.timedelta(seconds=i), rng.choice("abcd")
        if rng.random() < 0.7:
            page = rng.choice(["shoes", "shoes", "bye", "home"])
            clicks.append({"ts": ts, "person": person, "page": page})
            both.append({"ts": ts, "person": person, "s": page, "n": None})
        else:
            page = rng.randrange(6)
            orders.append({"paid": ts, "page": page, "person": person})
            both.append({"ts": ts, "person": person, "s": None, "n": page})
    return pa.Table.from_pylist(clicks), pa.Table.from_pylist(orders), pa.Table.from_pylist(both)


SEEN, PAID, BOTH = drawn()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with hybrid.connect(tmp_path / "db") as db:
        declare(db)
        yield db


def declare(db: Database) -> None:
    db.create_stream("clicks", CLICKS, time="ts", key="person")
    db.create_stream("orders", ORDERS, time="paid", key="person")
    db.create_pattern("visit", VISIT)


def rows(table: pa.Table) -> list[str]:
    return list(map(repr, table.to_pylist()))


def expected() -> list[str]:
    found = rows(hybrid.sql(ALONE, both_=BOTH).arrow())
    assert len(found) > 20
    return found


@pytest.mark.slow
def test_tables() -> None:
    assert rows(hybrid.sql(TEXT, clicks=SEEN, orders=PAID).arrow()) == expected()


@pytest.mark.slow
def test_a_database(db: Database) -> None:
    db.push("clicks", SEEN)
    db.push("orders", PAID)
    for name in ("clicks", "orders"):
        db.advance(name, None)
    found = db.sql(ORDER)
    assert rows(found.arrow()) == expected()
    assert rows(db.backtest(ORDER, BEGIN, BEGIN + dt.timedelta(hours=1)).arrow()) == expected()


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", range(3))
def test_live_in_any_interleaving_and_after_restarts(tmp_path: Path, seed: int) -> None:
    rng, found = Random(seed), []
    todo = {"clicks": SEEN, "orders": PAID}
    with hybrid.connect(tmp_path / "db") as db:
        declare(db)
        db.watch(ORDER, name="order")
    while todo:
        with hybrid.connect(tmp_path / "db") as db:
            live = db.watch(ORDER, name="order")
            for _ in range(rng.randrange(1, 6)):
                if todo:
                    name = rng.choice(list(todo))
                    table, n = todo[name], rng.randrange(1, 200)
                    db.push(name, table.slice(0, n))
                    todo[name] = table.slice(n)
                    if not len(todo[name]):
                        todo.pop(name)
                found += rows(live.fetch())
            if not todo:
                for name in ("clicks", "orders"):
                    db.advance(name, BEGIN + dt.timedelta(hours=1))
                found += rows(live.fetch())
    assert found == expected()


@pytest.mark.slow
def test_evidence_is_of_both_streams(db: Database) -> None:
    live = db.watch(ORDER)
    db.push("clicks", SEEN)
    db.push("orders", PAID)
    db.advance("clicks", BEGIN + dt.timedelta(hours=1))
    db.advance("orders", BEGIN + dt.timedelta(hours=1))
    live.fetch()
    shown = [(e["variable"], e["source"].split("/")[0]) for e in live.evidence().to_pylist()]
    assert {source for variable, source in shown if variable.startswith("V.")} == {"clicks"}
    assert {source for variable, source in shown if variable == "O"} == {"orders"}
    assert rows(live.evidence()) == rows(db.sql(ORDER).evidence())


@pytest.mark.slow
def test_a_box_over_merged_streams_and_selects() -> None:
    merged = TEXT.replace("FROM clicks", "FROM MERGE(clicks, rest)").replace("FROM orders", "FROM paid_")
    merged = f"WITH paid_ AS (SELECT * FROM orders WHERE page < 9), {merged.removeprefix('WITH ')}"
    first, rest = SEEN.slice(0, 300), SEEN.slice(300)
    assert rows(hybrid.sql(merged, clicks=first, rest=rest, orders=PAID).arrow()) == expected()


@pytest.mark.parametrize(("text", "message"), [
    (TEXT.replace("ORDER BY paid", "ORDER BY paid, page"), "ORDER BY page after the time"),
    (f"WITH visit AS ({VISIT}) SELECT * FROM clicks MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS ts PATTERN (A) "
     "DEFINE A AS page = 'bye') AS pl JOIN HISTORY OF orders FROM pl.ts - INTERVAL 1 HOUR TO pl.ts MATCH_RECOGNIZE ("
     + ORDER.split("MATCH_RECOGNIZE (")[1] + " AS pa ON true", "another stream than HISTORY OF orders"),
])  # fmt: skip
def test_what_is_refused(text: str, message: str) -> None:
    # Before: a history pattern read the boxes' columns in its own stream.
    with pytest.raises(QueryError, match=message):
        hybrid.sql(text, clicks=SEEN, orders=PAID)


#: A visit after the page home.
SEEN_HOME = VISIT.replace("SELECT *", "SELECT pl.person, pages, began")
SEEN_HOME = SEEN_HOME.replace("count(*) AS pages", "count(*) AS pages, FIRST(ts) AS began")
SEEN_HOME += """ AS pl SEMI JOIN HISTORY OF clicks FROM pl.began - INTERVAL 12 SECOND TO pl.began AS pa
    ON pa.person = pl.person AND pa.page = 'home'"""


@pytest.mark.slow
@pytest.mark.parametrize("of_orders", [False, True])
def test_boxes_joined_with_history_over_other_streams(of_orders: bool) -> None:
    text = f"WITH visit AS ({SEEN_HOME}) {ORDER}"
    alone = text.replace("pa.page", "pa.s")
    if of_orders:
        text = text.replace("HISTORY OF clicks", "HISTORY OF orders").replace("pa.page = 'home'", "pa.page > 3")
        alone = alone.replace("pa.s = 'home'", "pa.n > 3")
    alone = re.sub("(FROM|OF) (clicks|orders)", r"\1 both_", alone).replace("paid", "ts").replace("O.page", "O.n")
    alone = re.sub("([AB]) AS page", r"\1 AS s", re.sub("([OC]) AS page", r"\1 AS n", alone))
    found = rows(hybrid.sql(text, clicks=SEEN, orders=PAID).arrow())
    assert 50 < len(found) < len(expected())
    assert found == rows(hybrid.sql(alone, both_=BOTH).arrow())


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("of", ["clicks", "orders", "others"])
def test_live_boxes_joined_with_history_over_other_streams(tmp_path: Path, of: str) -> None:
    # Before: HQ500.
    text = f"WITH visit AS ({SEEN_HOME}) {ORDER}".replace("HISTORY OF clicks", f"HISTORY OF {of}")
    todo = {"clicks": SEEN, "orders": PAID}
    if of == "orders":
        text = text.replace("pa.page = 'home'", "pa.page > 3")
    if of == "others":  # which no layer reads
        todo[of] = drawn(seed=4)[0]
    wanted = rows(hybrid.sql(text, **todo).arrow())
    rng, found, streams = Random(7), [], tuple(todo)
    with hybrid.connect(tmp_path / "db") as db:
        declare(db)
        db.create_stream("others", CLICKS, time="ts")
        db.watch(text, name="order")
    while todo:
        with hybrid.connect(tmp_path / "db") as db:
            live = db.watch(text, name="order")
            other = db.watch(text.replace("pages > 1", "pages > 2"))
            for _ in range(rng.randrange(2, 6)):
                if todo:
                    name, n = rng.choice(list(todo)), rng.randrange(1, 200)
                    db.push(name, todo[name].slice(0, n))
                    todo[name] = todo[name].slice(n)
                    todo = {name: table for name, table in todo.items() if len(table)}
                found += rows(live.fetch())
            if not todo:
                for name in streams:
                    db.advance(name, BEGIN + dt.timedelta(hours=1))
                found += rows(live.fetch())
                assert rows(db.backtest(text, BEGIN, BEGIN + dt.timedelta(hours=1)).arrow()) == wanted
            other.close()
    assert len(wanted) > 50
    assert found == wanted


def test_inputs_of_other_times_or_names_are_refused() -> None:
    other = SEEN.set_column(0, "ts", SEEN.column("ts").cast(pa.date32()))
    with pytest.raises(QueryError, match="the time of clicks is DATE, and that of orders TIMESTAMP"):
        hybrid.sql(TEXT, clicks=other, orders=PAID)
    with pytest.raises(QueryError, match="clicks has a column stream"):
        hybrid.sql(TEXT, clicks=SEEN.append_column("stream", SEEN.column("page")), orders=PAID)


def test_matches_need_the_key_in_all_their_events_under_partition() -> None:
    # Before: events between were counted by the key of the first event of the match.
    inner = VISIT.replace("PARTITION BY person", "").replace("AS pages", "AS pages, B.person AS person")
    text = f"WITH visit AS ({inner}) {ORDER.replace('SKIP TILL NEXT MATCH', 'PARTITION')}"
    with pytest.raises(QueryError, match="events of a match of visit may have several values of person"):
        hybrid.sql(text, clicks=SEEN, orders=PAID)


@pytest.mark.slow
def test_boxes_over_entries_of_with() -> None:
    # Before: the pattern of a box saw no entry of WITH.
    entries = "known AS (SELECT * FROM clicks WHERE person <> 'z'), other AS (SELECT 1), few AS (SELECT * FROM known)"
    text = f"WITH {entries}, {TEXT.removeprefix('WITH ')}".replace("FROM clicks MATCH", "FROM few MATCH")
    assert rows(hybrid.sql(text, clicks=SEEN, orders=PAID).arrow()) == expected()
    own = f"visit AS (WITH mine AS (SELECT * FROM few) {VISIT.replace('FROM clicks', 'FROM mine')})"
    text = f"WITH {entries}, {own} {ORDER}"
    assert rows(hybrid.sql(text, clicks=SEEN, orders=PAID).arrow()) == expected()


@pytest.mark.slow
def test_an_entry_that_all_layers_read_is_one_input() -> None:
    text = f"WITH every AS (SELECT * FROM both_), {ALONE.removeprefix('WITH ')}".replace("FROM both_ M", "FROM every M")
    found = hybrid.sql(text, both_=BOTH)
    assert rows(found.arrow()) == expected()
    assert "stream" not in found.evidence().column_names


def test_faults_in_a_pattern_over_an_entry_point_at_the_text() -> None:
    text = f"WITH known AS (SELECT * FROM clicks), {TEXT.removeprefix('WITH ')}".replace("clicks MATCH", "known MATCH")
    with pytest.raises(QueryError, match="known has no column pages_") as caught:
        hybrid.sql(text.replace("count(*) AS pages", "sum(pages_) AS pages"), clicks=SEEN, orders=PAID)
    assert caught.value.text.startswith("WITH known")
    (fault,) = caught.value.diagnostics
    assert caught.value.text[fault.span.start : fault.span.end] == "pages_"


@pytest.mark.slow
def test_a_live_query_may_begin_in_the_past_and_join_history(db: Database) -> None:
    half = len(SEEN) // 2, len(PAID) // 2
    db.push("clicks", SEEN.slice(0, half[0]))
    db.push("orders", PAID.slice(0, half[1]))
    joined = f"{ORDER.replace('O.page AS nr', 'O.page AS nr, O.paid AS paid')} AS pl SEMI JOIN HISTORY OF visit"
    joined += " FROM pl.paid - INTERVAL 90 SECOND TO pl.paid AS pa ON pa.person = pl.person AND pa.pages = pl.pages"
    live, beside = db.watch(ORDER, start=BEGIN), db.watch(joined, start=BEGIN)
    db.push("clicks", SEEN.slice(half[0]))
    db.push("orders", PAID.slice(half[1]))
    for name in ("clicks", "orders"):
        db.advance(name, BEGIN + dt.timedelta(hours=1))
    assert rows(live.fetch()) == expected()
    assert rows(beside.fetch()) == expected()  # the visit of an order is in its history
