"""Streams of more events than are held at once: what is asked of them is answered as if they were few."""

from __future__ import annotations

import datetime as dt
import threading

import pytest

import archive.snapshot
import hybrid
import hybrid.rows.duck
import hybrid.statement.relations
from tests.hybrid.inside import opened_of

COLUMNS = {
    "ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE", "day": "DATE", "clock": "TIME", "small": "UTINYINT",
    "large": "UBIGINT", "seconds": "TIMESTAMP_S", "amount": "DECIMAL(9,2)", "list": "INTEGER[]",
    "Mixed Case": "BOOLEAN",
}  # fmt: skip
START = dt.datetime(2024, 1, 1)


def row(i: int) -> dict[str, object]:
    when = START + dt.timedelta(hours=5 * i)
    return {
        "ts": when, "symbol": None if i % 11 == 0 else "ABC"[i % 3], "price": float(i * 7 % 10), "day": when.date(),
        "clock": when.time(), "small": i % 200, "large": 2**64 - 1 - i, "seconds": when, "amount": i, "list": [i, None],
        "Mixed Case": i % 2 == 0,
    }  # fmt: skip


V = """
SELECT * FROM ticks MATCH_RECOGNIZE (
  PARTITION BY symbol {order} MEASURES FIRST(D.ts) AS fell, LAST(U.price) AS price, count(*) AS n
  PATTERN (D+ U+) DEFINE D AS price < 5, U AS price > LAST(D.price)
)
"""
STATEMENTS = (
    "SELECT * FROM ticks ORDER BY ts, price",
    "SELECT count(*) AS n, sum(price) AS total, max(clock) AS evening, typeof(max(seconds)) AS type FROM ticks",
    "SELECT a.price FROM ticks a "
    "JOIN ticks b ON a.large = b.large - 3 WHERE a.ts > TIMESTAMP '2024-01-03' ORDER BY ALL",
    V.format(order="") + "ORDER BY fell, price",
    V.format(order="ORDER BY ts, price DESC") + "ORDER BY fell, price",
    "SELECT count(*) AS n FROM (SELECT * FROM ticks WHERE price > 1) MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS t "
    "PATTERN (A B) DEFINE B AS B.price < A.price)",
    "SELECT * FROM MERGE(ticks, bids) MATCH_RECOGNIZE (MEASURES A.ts AS a, B.ts AS b, CLASSIFIER() AS c "
    "PATTERN (A B) DEFINE A AS stream = 'ticks', B AS stream = 'bids') ORDER BY a, b",
    "SELECT t.symbol, t.n, b.ts FROM ticks "
    "MATCH_RECOGNIZE (PARTITION BY symbol MEASURES count(*) AS n, LAST(ts) AS last "
    "PATTERN (A A) DEFINE A AS price > 3) AS t "
    "JOIN HISTORY OF bids FROM t.last - INTERVAL 1 DAY TO t.last AS b ON b.symbol = t.symbol ORDER BY ALL",
)


@pytest.fixture
def database(tmp_path):
    """Two streams, in files that overlap in time and in memory, with late events."""
    with hybrid.connect(tmp_path / "db") as db:
        for name in ("ticks", "bids"):
            db.create_stream(name, COLUMNS, time="ts", key="symbol", lateness="1h")
            for first in (0, 30, 60):
                source = "one" if first < 60 else "two"
                db.push(name, [row(i) for i in range(first, first + 30)], source)
                if first < 60:
                    db.push(name, [row(first // 2 + 3)], "one")  # far behind the watermark
                    db.flush()
        yield db


@pytest.fixture
def small(monkeypatch):
    """So little is taken at a time that everything is cut."""

    def cut() -> None:
        monkeypatch.setattr(hybrid.statement.relations, "WHOLE_ROWS_MAX", 0)
        monkeypatch.setattr(hybrid.statement.relations, "SEARCH_ROWS_MIN", 0)
        monkeypatch.setattr(archive.snapshot, "BATCH_ROWS_MAX", 3)

    return cut


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_answers_do_not_depend_on_how_much_is_held(database, small, statement, late):
    whole = database.sql(statement, late=late)
    rows, events = whole.arrow(), None
    assert rows.num_rows
    if "MATCH_RECOGNIZE" in statement and "(SELECT" not in statement:
        events = whole.evidence()
        assert events.num_rows
    small()
    cut = database.sql(statement, late=late)
    assert cut.arrow().equals(rows)
    if events is not None:
        assert cut.evidence().equals(events)
    if "FROM ticks MATCH" in statement:
        assert "searched    " in cut.explain("plan")
        assert "units by symbol" in cut.explain("plan")


@pytest.mark.slow
def test_a_backtest_too(database, small):
    text = V.format(order="")
    rows = database.backtest(text, START + dt.timedelta(days=1)).arrow()
    assert rows.num_rows
    small()
    assert database.backtest(text, START + dt.timedelta(days=1)).arrow().equals(rows)


@pytest.mark.slow
def test_a_view_reads_what_it_needs(database, small):
    """A range of time in plain SQL is a range of row groups."""
    small()
    snapshot = opened_of(database).stream("ticks").kept.snapshot()
    view = snapshot.select_sql("memory")
    connection = hybrid.rows.duck.cursor(access=hybrid.rows.duck.ANYTHING)
    connection.register("memory", snapshot.recent().columns)
    query = f"SELECT count(*) FROM ({view}) WHERE ts >= TIMESTAMP '2030-01-01'"
    plan = connection.sql(f"EXPLAIN ANALYZE {query}").fetchall()[0][1]
    assert connection.sql(query).fetchall() == [(0,)]
    assert "Row Groups Scanned: 0 /" in plan


@pytest.mark.slow
def test_plain_statements_in_threads(database, small):
    """Views of one name in several threads do not meet."""
    small()
    statement = "SELECT count(*) AS n, sum(price) AS total FROM ticks"
    expected = database.sql(statement).arrow()
    found = []
    threads = [threading.Thread(target=lambda: found.append(database.sql(statement).arrow())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(table.equals(expected) for table in found)
