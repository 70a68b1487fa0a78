"""Callbacks of live queries: all rows once and in order, whatever the function does."""

from __future__ import annotations

import datetime as dt
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hybrid
from query.errors import DataError
from tests.waiting import GUARD_S, until

RISES = """SELECT * FROM ticks MATCH_RECOGNIZE (ORDER BY ts MEASURES LAST(v) AS hi, LAST(ts) AS at
    PATTERN (A B) DEFINE B AS v > PREV(v)) AS m"""

LARGEST = "SELECT max(v) AS v FROM highs"
START = dt.datetime(2024, 1, 1)


def opened(path: Path | None = None) -> hybrid.Database:
    db = hybrid.connect(path)
    db.create_stream("ticks", {"ts": "TIMESTAMP", "v": "BIGINT"}, time="ts", key=None, order=None)
    return db


def push(db: hybrid.Database, *values: int, at: int = 0) -> None:
    db.push("ticks", [{"ts": START + dt.timedelta(seconds=at + i), "v": v} for i, v in enumerate(values)])


def test_all_rows_come_in_order_while_the_stream_runs_and_at_its_end() -> None:
    found: list[int] = []
    with opened() as db:
        db.watch(RISES, on_match=lambda rows: found.extend(rows["hi"].to_pylist()))
        for i in range(20):
            push(db, 0, i + 1, at=2 * i)
        until(lambda: len(found) >= 19)
        assert found[:19] == [*range(1, 20)]  # the last row may wait for others of its time
        db.advance("ticks", None)
    assert found == [*range(1, 21)]


def test_close_waits_for_a_slow_function() -> None:
    found: list[int] = []

    def slow(rows: pa.Table) -> None:
        time.sleep(0.2)
        found.extend(rows["hi"].to_pylist())

    with opened() as db:
        db.watch(RISES, on_match=slow)
        push(db, 0, 1, 2, 3, 4, 5, 6)
        db.advance("ticks", None)
    assert found == [1, 3, 5]


def test_rows_of_a_function_that_raises_can_be_fetched() -> None:
    called = threading.Event()

    def wrong(rows: pa.Table) -> None:
        called.set()
        raise ValueError("no such address")

    message = r"not called any more \(ValueError: no such address\)"
    with pytest.warns(hybrid.HybridWarning, match=message), opened() as db:  # noqa: PT031
        alerts = db.watch(RISES, on_match=wrong)
        push(db, 0, 1, 0, 2, 3)
        assert called.wait(GUARD_S)
        until(lambda: alerts.unread_count == 2)
        push(db, 0, 4, at=9)
        db.advance("ticks", None)
        assert alerts.fetch()["hi"].to_pylist() == [1, 2, 4]


def test_functions_may_use_the_database_until_they_have_all_rows() -> None:
    """Before: where the block ended, rows that were not handed on yet found a closed database, and were lost."""
    found: list[int] = []

    def slow(rows: pa.Table) -> None:
        time.sleep(0.1)
        db.push("highs", [{"ts": row["at"], "v": row["hi"]} for row in rows.to_pylist()])

    with opened() as db:
        db.create_stream("highs", {"ts": "TIMESTAMP", "v": "BIGINT"}, time="ts", key=None, order=None)
        over = RISES.replace("ticks", "highs")
        db.watch(over, on_match=lambda _: found.extend(db.sql(LARGEST).arrow()["v"].to_pylist()))
        db.watch(RISES, on_match=slow)
        for i in range(5):
            push(db, 0, i + 1, 0, at=3 * i)
    assert found[-1] >= 4


def test_close_does_not_wait_for_pushes_without_end() -> None:
    ended = threading.Event()
    db = opened()

    def more(rows: pa.Table) -> None:
        if not ended.is_set():
            push(db, 0, 1, 0, at=1 + int(rows["at"][-1].as_py().timestamp() - START.timestamp()))

    def push_on() -> None:
        try:
            while not ended.is_set():
                push(db, 0, 1, 0, at=1)
        except hybrid.DataError:
            ended.set()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        db.watch(RISES, on_match=more)
        pushing = threading.Thread(target=push_on)
        pushing.start()
        until(lambda: db.streams()["ticks"]["events"] > 100)
        db.close()
        assert ended.wait(GUARD_S)
        pushing.join()


def test_the_function_goes_on_with_a_new_version_of_its_query() -> None:
    """Before: it had no rows of the new version, and nobody was told."""
    found: list[int] = []

    def slow(rows: pa.Table) -> None:
        time.sleep(0.1)
        found.extend(rows["hi"].to_pylist())

    with opened() as db:
        alerts = db.watch(RISES, on_match=slow)
        push(db, 0, 1, 0, 2, 0)
        alerts = db.replace(alerts, RISES.replace("v > PREV(v)", "v > PREV(v) + 1"))
        push(db, 1, 3, 4, 0, at=5)
        alerts = db.replace(alerts, RISES)
        push(db, 1, 2, 5, 7, 0, at=9)
    assert found == [1, 2, 3, 1, 5]


def test_the_last_function_of_a_named_query_has_its_rows(tmp_path: Path) -> None:
    """Before: a second one shared them with the first, at random."""
    first: list[int] = []
    second: list[int] = []
    with opened(tmp_path) as db:
        db.watch(RISES, name="rises", on_match=lambda rows: first.extend(rows["hi"].to_pylist()))
        db.watch(RISES, name="rises", on_match=lambda rows: second.extend(rows["hi"].to_pylist()))
        push(db, 0, 1, 0, 2, 0)
    assert (first, second) == ([], [1, 2])


def test_a_callback_that_is_no_function_is_refused() -> None:
    # Before: the first rows said so, in a warning.
    with opened() as db, pytest.raises(hybrid.DataError, match="on_match is 'print', no function"):
        db.watch(RISES, on_match="print")  # type: ignore[arg-type]


def test_a_function_may_close_the_database() -> None:
    found: list[int] = []
    closed = threading.Event()
    db = opened()

    def closing(rows: pa.Table) -> None:
        found.extend(rows["hi"].to_pylist())
        db.close()
        closed.set()

    db.watch(RISES, on_match=closing)
    push(db, 0, 1, 0)
    assert closed.wait(GUARD_S)
    assert found == [1]


def test_a_query_that_fails_says_so_after_its_rows() -> None:
    found: list[int] = []
    failing = RISES.replace("v > PREV(v)", "v > PREV(v) AND v + 9223372036854775800 > PREV(v)")
    with pytest.warns(hybrid.HybridWarning, match="a query has ended: "), opened() as db:  # noqa: PT031
        db.watch(failing, on_match=lambda rows: found.extend(rows["hi"].to_pylist()))
        push(db, 0, 1, 0)
        push(db, 100, 0, at=3)
        until(lambda: not any(t.name.startswith("hybrid callback") for t in threading.enumerate()))
    assert found == [1]


def test_the_warning_points_at_the_function_or_at_the_watch() -> None:
    def raises(rows: pa.Table) -> None:
        raise ValueError("full")  # the line of the first warning

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", hybrid.HybridWarning)
        for function in (raises, lambda: None):
            with opened() as db:
                db.watch(RISES, on_match=function)  # the line of the second warning  # type: ignore[arg-type]
                push(db, 0, 1)
                db.advance("ticks", None)
    lines = Path(__file__).read_text().splitlines()
    # Before: line 982 of threading.py.
    assert [one.filename for one in told] == [__file__, __file__]
    assert "the line of the first warning" in lines[told[0].lineno - 1]
    assert "the line of the second warning" in lines[told[1].lineno - 1]


def test_a_callback_that_cannot_be_called() -> None:
    wrong: Any = 5
    # Before: a warning when the first row came.
    with opened() as db, pytest.raises(hybrid.DataError, match="on_match is 5, no function"):
        db.watch(RISES, on_match=wrong)


def test_join_waits_for_the_rows_of_all_that_was_pushed() -> None:
    # Before: counts right after a push were those of the calls until then, and only close waited.
    found: list[int] = []
    let = threading.Event()

    def held(rows: pa.Table) -> None:
        let.wait(120)
        found.extend(rows["hi"].to_pylist())

    with opened() as db:
        alerts = db.watch(RISES, on_match=held)
        push(db, *(v for i in range(1, 6) for v in (0, i)))
        push(db, 0, at=20)
        assert not alerts.join(0.01)
        assert found == []
        let.set()
        assert alerts.join()
        assert found == [1, 2, 3, 4, 5]
        assert alerts.join()  # nothing to wait for
        with pytest.raises(DataError, match="no function to wait for"):
            db.watch(RISES).join()


def test_join_returns_after_the_function_has_failed_and_in_the_function() -> None:
    inside: list[bool] = []

    def wrong(rows: pa.Table) -> None:
        inside.append(alerts.join())
        raise ValueError("of the user's own")

    with opened() as db, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        alerts = db.watch(RISES, on_match=wrong)
        push(db, 0, 1, 0, at=0)
        assert not alerts.join()
        assert alerts.fetch()["hi"].to_pylist() == [1]
    assert inside == [False]
    assert "of the user's own" in str(caught[0].message)
