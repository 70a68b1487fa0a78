"""A slow archive: live detection goes on, and the rows come later, in order, all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hybrid
from archive.snapshot import HistorySnapshot
from hybrid.join.daemons import Daemons
from tests.waiting import GUARD_S, until

QUERY = (
    "SELECT pl.n, pa.m FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES P.n AS n, P.ts AS at PATTERN (P) "
    "DEFINE P AS s = 'p') AS pl LEFT JOIN HISTORY OF e FROM pl.at - INTERVAL 1 HOUR TO pl.at MATCH_RECOGNIZE "
    "(PARTITION BY k ORDER BY ts MEASURES LAST(B.n) AS m PATTERN (A B) DEFINE A AS s = 'a', B AS s = 'b') AS pa "
    "ON pa.k = pl.k"
)
COLUMNS = {"ts": "TIMESTAMP", "n": "BIGINT", "k": "VARCHAR", "s": "VARCHAR"}


def events(first: int, count: int) -> pa.Table:
    """Of two keys in turn; every tenth pair completes PL, the others are one half of PA."""
    n = range(first, first + count)
    return pa.table({
        "ts": pa.array([1_000_000 * i for i in n], pa.timestamp("us")), "n": list(n), "k": ["xy"[i % 2] for i in n],
        "s": ["p" if i // 2 % 10 == 9 else "ab"[i // 2 % 2] for i in n],
    })  # fmt: skip


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[threading.Event], threading.Event]:
    """Lets every read of history from now on wait for an event; says when one has begun."""

    def slowed(done: threading.Event) -> threading.Event:
        begun = threading.Event()

        def wait_first(read: Callable[..., Any]) -> Callable[..., Any]:
            def reading(*arguments: Any, **more: Any) -> Any:
                begun.set()
                assert done.wait(GUARD_S)
                return read(*arguments, **more)

            return reading

        for name in ("read", "batches"):
            monkeypatch.setattr(HistorySnapshot, name, wait_first(getattr(HistorySnapshot, name)))
        return begun

    return slowed


def rows(found: list[pa.Table]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for table in found for row in table.to_pylist()]


def quick_rows(pushes: int, size: int) -> list[tuple[Any, ...]]:
    with hybrid.connect() as db:
        db.create_stream("e", COLUMNS, time="ts", key="k")
        alerts = db.watch(QUERY)
        for i in range(pushes):
            db.push("e", events(i * size, size))
        db.advance("e", None)
        return rows([alerts.take()])


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "pushes"), [("auto", 30), ("llaa", 8)])
def test_pushes_do_not_wait_for_a_slow_read_and_rows_come_in_order(strategy: str, pushes: int, slow: Any) -> None:
    expected = quick_rows(pushes, 20)
    assert len({n for n, _ in expected}) == 2 * pushes
    with hybrid.connect() as db:
        db.create_stream("e", COLUMNS, time="ts", key="k")
        alerts = db.watch(QUERY, strategy=strategy)
        alerts.fetch()  # when history has been looked at
        done = threading.Event()
        begun = slow(done)
        db.push("e", events(0, 20))
        assert begun.wait(GUARD_S)
        found = []
        for i in range(1, pushes):
            db.push("e", events(i * 20, 20))
            if i == pushes // 2:
                found.append(alerts.take(wait=False))
                assert alerts.stats()["waiting_for_history"] > 0
        done.set()  # no read has ended before the last push
        db.advance("e", None)
        assert rows([*found, *(table.arrow() for table in alerts)]) == expected
        assert alerts.stats()["state"] == "ended"


@pytest.mark.slow
def test_a_slow_answer_reaches_whoever_waits_for_rows(slow: Any) -> None:
    expected = quick_rows(2, 40)
    with hybrid.connect() as db:
        db.create_stream("e", COLUMNS, time="ts", key="k")
        alerts = db.watch(QUERY)
        found: list[pa.Table] = []
        reader = threading.Thread(target=lambda: found.extend(table.arrow() for table in alerts))
        done = threading.Event()
        slow(done)
        db.push("e", events(0, 40))
        reader.start()
        db.push("e", events(40, 40))
        done.set()
        db.advance("e", None)
        reader.join(GUARD_S)
        assert rows(found) == expected


@pytest.mark.slow
def test_a_read_that_fails_fails_its_query_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: HistorySnapshot, *arguments: Any, **more: Any) -> Any:
        time.sleep(1.5)
        raise hybrid.DataError("the disk is on fire")

    with hybrid.connect() as db:
        db.create_stream("e", COLUMNS, time="ts", key="k")
        alerts, other = db.watch(QUERY), db.watch(QUERY.split(" LEFT JOIN")[0].replace(", pa.m", ""))
        monkeypatch.setattr(HistorySnapshot, "read", broken)
        monkeypatch.setattr(HistorySnapshot, "batches", broken)
        db.push("e", events(0, 40))
        db.push("e", events(40, 40))
        with pytest.raises(hybrid.DataError, match="on fire"):
            alerts.fetch()
        assert other.fetch().num_rows == 8
        assert alerts.stats()["state"] == "failed"


@pytest.mark.slow
def test_a_first_look_that_fails_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, read = [], HistorySnapshot.read

    def broken_at_first(self: HistorySnapshot, *arguments: Any, **more: Any) -> Any:
        looked.append(arguments)
        if len(looked) == 1:
            raise hybrid.DataError("the disk is on fire")
        return read(self, *arguments, **more)

    with hybrid.connect() as db:
        db.create_stream("e", COLUMNS, time="ts", key="k")
        db.push("e", events(0, 20))
        monkeypatch.setattr(HistorySnapshot, "read", broken_at_first)
        alerts = db.watch(QUERY, strategy="llaa")
        assert alerts.fetch().num_rows == 0
        assert len(looked) == 1
        db.push("e", events(20, 20))
        db.advance("e", None)
        assert rows([alerts.take()]) == [row for row in quick_rows(2, 20) if row[0] >= 20] != []


@pytest.mark.slow
def test_a_checkpoint_holds_what_is_being_answered(tmp_path: Path, slow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = quick_rows(4, 20)
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("e", COLUMNS, time="ts", key="k")
        alerts = db.watch(QUERY, name="q")
        db.push("e", events(0, 20))
        found = [alerts.take()]
        done = threading.Event()
        slow(done)
        db.push("e", events(20, 20))
        waiting = alerts.stats()["waiting_for_history"]
        db.checkpoint()
        state = {p.name: p.read_bytes() for p in (tmp_path / "db" / "_checkpoint").iterdir()}
        monkeypatch.undo()
        done.set()
    assert waiting == 2
    for path in (tmp_path / "db" / "_checkpoint").iterdir():  # as if it had been killed then
        path.unlink()
    for name, content in state.items():
        (tmp_path / "db" / "_checkpoint" / name).write_bytes(content)
    with hybrid.connect(tmp_path / "db") as db:
        alerts = db.watch(QUERY, name="q")
        found.append(alerts.take())
        for i in (2, 3):
            db.push("e", events(i * 20, 20))
        db.advance("e", None)
        found.append(alerts.take())
        assert rows(found) == expected


@pytest.mark.slow
def test_closing_waits_for_what_is_being_answered(slow: Any) -> None:
    expected = quick_rows(1, 40)
    db = hybrid.connect()
    db.create_stream("e", COLUMNS, time="ts", key="k")
    alerts = db.watch(QUERY)
    done = threading.Event()
    slow(done)
    db.push("e", events(0, 40))
    threading.Timer(0.5, done.set).start()
    db.close()
    assert done.is_set()
    assert rows([alerts.take()]) == expected


def test_threads_end_with_their_pool_behind_what_was_submitted() -> None:
    # Before: they stayed, and a later iteration over alerts waited for them as for threads that may push.
    pool = Daemons(2, "ended")
    calls = [pool.submit(pow, 2, n) for n in range(5)]
    pool.shutdown(wait=False)
    assert [call.result(GUARD_S) for call in calls] == [1, 2, 4, 8, 16]
    until(lambda: not any(thread.name.startswith("ended") for thread in threading.enumerate()))
