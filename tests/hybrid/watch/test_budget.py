"""Live queries keep to the memory that they may take: one that needs more fails, alone, and events are kept."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hybrid
from hybrid.database.database import Database
from matching.budget import Budget
from query.errors import QueryError
from tests.hybrid.inside import flow_of

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
#: Every row begins a run that never ends and keeps each of its rows. 4,000 rows take 144 MB.
GROWS = """SELECT * FROM ticks MATCH_RECOGNIZE ({} MEASURES FIRST(A.p) AS p
    PATTERN ((A C)+ B) DEFINE A AS p >= 0, B AS p > 1000.0 + FIRST(A.p) * FIRST(A.p)) AS m"""
SMALL = "SELECT * FROM ticks MATCH_RECOGNIZE (MEASURES LAST(p) AS p PATTERN (A B) DEFINE B AS p < A.p) AS m"
LIMIT = "64MB"


def ticks(begin: int, end: int, keys: int = 1) -> pa.Table:
    """Returns rows of which no two have one price: partial matches that read equal ones would be one."""
    at = np.arange(begin, end)
    return pa.table({
        "ts": at.astype("datetime64[s]").astype("datetime64[us]"), "k": at % keys, "p": at % 1000 / 10.0 + at * 1e-6,
    })  # fmt: skip


def opened(path: Path | None, limit: str | None = LIMIT) -> Database:
    db = hybrid.connect(path, memory_limit=limit)
    if not db.streams():
        db.create_stream("ticks", {"ts": "TIMESTAMP", "k": "BIGINT", "p": "DOUBLE"}, time="ts")
    return db


def failure_of(alerts: Any) -> str:
    try:
        while alerts.fetch().num_rows:
            pass
    except QueryError as error:
        return str(error)
    raise AssertionError("it has not failed")


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("step", [4_000, 100])
def test_a_live_query_that_takes_too_much_memory_fails_alone(step: int, tmp_path: Path) -> None:
    # Before: it took all the memory there was.
    with opened(tmp_path / "db") as db, opened(None, None) as alone:
        grows, small, expected = db.watch(GROWS.format("")), db.watch(SMALL), alone.watch(SMALL)
        for begin in range(0, 4_000, step):
            for one in (db, alone):
                one.push("ticks", ticks(begin, begin + step))
        message = failure_of(grows)
        assert "HQ600" in message
        assert "take more than" in message
        assert "PATTERN ((A C)+ B) DEFINE" in message
        assert "^^^" in message
        assert "raise memory_limit" in message
        assert small.fetch() == expected.fetch()
        assert db.sql("SELECT count(*) FROM ticks").fetchall() == [(4_000,)]
        assert len(flow_of(db).queries) == 1


@pytest.mark.slow
def test_a_query_may_take_four_fifths_of_the_limit() -> None:
    # Before: it failed as soon as its nodes had to be copied, at 38 of 64 MB.
    with opened(None) as db:
        grows = db.watch(GROWS.format(""))
        for begin in range(0, 2_400, 400):
            db.push("ticks", ticks(begin, begin + 400))  # 52 MB
        assert grows.fetch().num_rows == 0
        assert grows.stats()["state"] == "running"
        db.push("ticks", ticks(2_400, 4_000))
        assert "HQ600" in failure_of(grows)


@pytest.mark.slow
@pytest.mark.nightly
def test_it_fails_again_after_a_restart_and_with_more_memory_goes_on(tmp_path: Path) -> None:
    db = opened(tmp_path / "db")
    db.watch(GROWS.format(""), name="grows")
    db.checkpoint()
    db.push("ticks", ticks(0, 4_000))
    del db  # as in a crash: the failure is not in the checkpoint
    with opened(tmp_path / "db") as db:
        assert "HQ600" in failure_of(db.watching()["grows"])
        assert db.sql("SELECT count(*) FROM ticks").fetchall() == [(4_000,)]
        db.push("ticks", ticks(4_000, 4_100))
        assert db.sql("SELECT count(*) FROM ticks").fetchall() == [(4_100,)]
        again = db.watch(GROWS.format(""), start="1970-01-01")
        assert "HQ600" in failure_of(again)
    with opened(tmp_path / "db", "1GB") as db:
        again = db.watch(GROWS.format(""), start="1970-01-01")
        db.advance("ticks", None)
        assert again.fetch().num_rows == 0


@pytest.mark.slow
@pytest.mark.parametrize("keys", [1, 4])
def test_partitions_leave_memory_and_one_that_does_not_fit_fails(keys: int, tmp_path: Path) -> None:
    with opened(tmp_path / "db") as db:
        alerts = db.watch(GROWS.format("PARTITION BY k"))
        for begin in range(0, 4_000, 250):
            db.push("ticks", ticks(begin, begin + 250, keys))
        if keys == 1:
            assert "HQ600" in failure_of(alerts)
        else:
            assert alerts.fetch().num_rows == 0
            assert alerts.stats()["state"] == "running"
            assert alerts.stats()["runs"] + alerts.stats()["spilled"] == keys


#: Takes few runs, but all rows: they are kept for the match that may end at any time.
ROWS = """SELECT * FROM ticks MATCH_RECOGNIZE ({} MEASURES FIRST(A.p) AS p, count(*) AS n
    PATTERN (A+ B) DEFINE A AS p >= 0, B AS p < 0) AS m"""


@pytest.mark.slow
def test_rows_that_are_kept_count(tmp_path: Path) -> None:
    with opened(None) as db:
        rows, small = db.watch(ROWS.format("")), db.watch(SMALL)
        for begin in range(0, 2_000_000, 250_000):
            db.push("ticks", ticks(begin, begin + 250_000))
            small.fetch()
            if rows.stats()["state"] != "running":
                break
        message = failure_of(rows)
        assert "HQ600" in message
        assert small.stats()["state"] == "running"


def two_streams() -> Database:
    db = hybrid.connect(None, memory_limit=LIMIT)
    for name in ("ticks", "others"):
        db.create_stream(name, {"ts": "TIMESTAMP", "k": "BIGINT", "p": "DOUBLE"}, time="ts")
    return db


def taken(db: Database) -> list[int]:
    found = flow_of(db).budget
    assert found is not None
    return list(found.taken.values())


@pytest.mark.slow
def test_what_a_match_has_let_go_does_not_count_against_others() -> None:
    # Before: the rows of the first query, which nothing needed any more, let the second one fail.
    with two_streams() as db:
        live = [db.watch(text) for text in (ROWS.format(""), ROWS.format("").replace("ticks", "others"))]
        db.push("ticks", ticks(0, 900_000))
        assert sum(taken(db)) > 60_000_000
        end = ticks(900_000, 900_002).set_column(2, "p", pa.array([-1.0, 1.0]))
        db.push("ticks", end)
        assert live[0].fetch().num_rows == 1
        db.push("others", ticks(0, 900_000))
        assert [alerts.stats()["state"] for alerts in live] == ["running", "running"]


BIG = """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES FIRST(A.p) AS fp AFTER MATCH NO SKIP
    PATTERN ((A C)+ B) DEFINE A AS p >= 0, B AS p > 1000.0 + FIRST(A.p) * FIRST(A.p))"""
WITH_BIG = """SELECT k, fp FROM {} MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES V.fp AS fp AFTER MATCH NO SKIP
    PATTERN (V O) WITHIN INTERVAL 600 SECOND SELECTION SKIP TILL NEXT MATCH DEFINE V AS PATTERN big, O AS p > 2)"""


@pytest.mark.slow
def test_a_search_that_queries_over_different_streams_share_counts_once() -> None:
    # Before: once for each set of streams, so queries failed that take a fraction of the limit together; and what a
    # closed query had taken counted until Python looked for cycles.
    with hybrid.connect(None, memory_limit=LIMIT) as db:
        streams = [f"beside{i}" for i in range(9)]
        for name in ("ticks", *streams):
            db.create_stream(name, {"ts": "TIMESTAMP", "k": "BIGINT", "p": "DOUBLE"}, time="ts")
        db.create_pattern("big", BIG)
        live = [db.watch(WITH_BIG.format(name)) for name in streams]
        for begin in range(0, 1_600, 100):
            for name in ("ticks", *streams):
                db.push(name, ticks(begin, begin + 100))
        assert [alerts.stats()["state"] for alerts in live] == ["running"] * len(live)
        assert 8_000_000 < sum(taken(db)) < 16_000_000
        for alerts in live:
            alerts.close()
        assert taken(db) == []


@pytest.mark.slow
def test_a_query_that_reads_the_archive_looks_at_memory_beside_pushes() -> None:
    # Before: "dictionary changed size during iteration", and the query that a push had reached failed.
    class Holder:
        pass

    budget, ended, faults = Budget(1_000_000), threading.Event(), list[Exception]()
    some = [Holder() for _ in range(300)]

    def push() -> None:
        while not ended.is_set():
            new = [Holder() for _ in range(20)]
            for one in new:
                budget.is_due(one, 100)
                budget.look(one, 1, dict)

    def read() -> None:
        try:
            for _ in range(300):
                for one in some[:10]:
                    budget.look(one, 1, dict)
                    budget.left(one)
        except Exception as error:  # noqa: BLE001  (what the test is about)
            faults.append(error)

    for one in some:
        budget.look(one, 1, dict)
    every_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    beside = threading.Thread(target=push)
    try:
        beside.start()
        read()
    finally:
        ended.set()
        beside.join()
        sys.setswitchinterval(every_s)
    assert faults == []
