"""An archive in an S3-compatible store behaves as one on disk does, also when the store is gone for a while."""

from __future__ import annotations

from datetime import datetime

import polars as pl
import pytest
from deltalake import DeltaTable

import hybrid
from archive.history import History
from archive.place import place_of
from archive.reader import RangeRequest
from archive.recent import KeyRange
from archive.search.search import search
from archive.table import Table
from query.errors import DataError
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.expression import Call, Column, Constant
from tests.archive.events import TICKS, batch_of, events_of, run_of
from tests.archive.store import s3_server

IMPATIENT = {"max_retries": "1", "retry_timeout": "1s", "timeout": "2s", "connect_timeout": "1s"}


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def test_history_in_a_store(server):
    where = place_of("s3://bucket/history/ticks", server.options)
    history = History(TICKS, where, memory_rows_max=50)
    history.append(*batch_of(run_of(60)))
    history.append(*batch_of(run_of(80, first=60)[:20]))
    assert events_of(history.snapshot().read(RangeRequest())) == run_of(80)
    start_us = run_of(1)[0].ts_us
    some = history.snapshot().read(RangeRequest(start_us + 10_000_000, start_us + 70_000_000, keys={"symbol": ["B"]}))
    assert events_of(some) == [event for event in run_of(80)[10:70] if event.symbol == "B"]
    again = History(TICKS, where)
    assert (again.offsets, again.last_seq) == ({"default": 60}, 59)
    history.flush()
    again = History(TICKS, where)
    assert events_of(again.snapshot().read(RangeRequest())) == run_of(80)
    assert DeltaTable("s3://bucket/history/ticks", storage_options=server.options).count() == 80
    frame = pl.scan_delta("s3://bucket/history/ticks", storage_options=server.options).collect()
    assert sorted(frame["_offset"].to_list()) == list(range(80))


def test_a_store_is_read_in_parts(server):
    """Files that overlap in time are sorted, ranges of keys are pruned by footers, conditions are pushed down."""
    where = place_of("s3://bucket/parts/ticks", server.options)
    history = History(TICKS, where, memory_rows_max=10**6)
    events = run_of(90)
    for part in (events[0:90:2], events[1:90:2]):
        renumbered = [event._replace(source=part[0].symbol or "", offset=i) for i, event in enumerate(part)]
        history.append(*batch_of(renumbered))
        history.flush()
    snapshot = history.snapshot()
    parts = list(snapshot.batches(rows_max=7))
    assert [t for part in parts for t in part.ts_us.tolist()] == [event.ts_us for event in events]
    assert max(map(len, parts)) <= 7
    span = KeyRange("symbol", "B", None)
    found = snapshot.batches(RangeRequest(columns=["symbol"]), span=span, rows_max=7)
    assert {s for part in found for s in part.columns.column("symbol").to_pylist()} == {"B", "C"}
    assert snapshot.key_cuts("symbol", 3) == ["B", "C"]
    condition = Call("<", (Column("price", "DOUBLE"), Constant(9, "INTEGER")), "BOOLEAN")
    assert len(snapshot.read(RangeRequest(), where=condition)) == 9
    text = """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol MEASURES count(*) AS n
              PATTERN (A B+) DEFINE B AS price > LAST(A.price))"""
    plan = bind(parse(text, ["ticks"]), lambda _: TICKS).factors[0].plan
    assert [part.rows.to_pylist() for part in search(snapshot, plan, workers=2, rows_max=7)] == [
        [{"symbol": symbol, "n": 30}] for symbol in "ABC"
    ]


def test_the_loser_of_a_race_in_a_store_is_refused(server):
    where = place_of("s3://bucket/race/ticks", server.options)
    one, other = Table.create(where, TICKS), Table.open(where)
    one.append(*batch_of(run_of(10)))
    other.append(*batch_of(run_of(15)))
    assert sum(Table.open(where).snapshot().rows.tolist()) == 15


def test_a_database_in_a_store(server):
    columns = {"ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE"}
    rows = [{"ts": datetime(2024, 1, 1, 0, 0, i), "symbol": "AB"[i % 2], "price": float(i)} for i in range(40)]
    query = """SELECT symbol, n FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts
               MEASURES count(*) AS n PATTERN (A+) DEFINE A AS price >= 0)"""
    with hybrid.connect("s3://bucket/db", storage_options=server.options) as db:
        db.create_stream("ticks", columns, time="ts", key="symbol")
        db.push("ticks", rows[:30])
        db.flush()
        db.push("ticks", rows[30:])
        assert sorted(db.sql(query).df().itertuples(index=False, name=None)) == [("A", 20), ("B", 20)]
    with hybrid.connect("s3://bucket/db", storage_options=server.options) as db:
        assert db.streams()["ticks"]["events"] == 40
        assert sorted(db.sql(query).df().itertuples(index=False, name=None)) == [("A", 20), ("B", 20)]


def test_a_store_that_goes_away_and_comes_back(server):
    where = place_of("s3://bucket/away/ticks", {**server.options, **IMPATIENT})
    history = History(TICKS, where, memory_rows_max=10**9)
    history.append(*batch_of(run_of(10)))
    history.flush()
    snapshot = history.snapshot()
    history.append(*batch_of(run_of(20, first=10)[:10]))
    server.stop()
    with pytest.raises(DataError, match="cannot be written"):
        history.flush()
    with pytest.raises(DataError, match="cannot be read"):
        snapshot.read(RangeRequest())
    server.start()
    assert events_of(history.snapshot().read(RangeRequest())) == run_of(20)
    history.flush()
    assert events_of(History(TICKS, where).snapshot().read(RangeRequest())) == run_of(20)


def test_places_that_cannot_be(tmp_path):
    with pytest.raises(DataError, match="neither a directory nor"):
        hybrid.connect("gs://bucket/x")
    with pytest.raises(DataError, match="cannot be opened"):
        hybrid.connect("s3://bucket/x", storage_options={"aws_endpoint_url": "http://127.0.0.1:1", **IMPATIENT})
