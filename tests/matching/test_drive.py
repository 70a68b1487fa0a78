"""The loop around a Matcher: what it pushes, when it advances, what it hands on, and its saved state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from matching.batch import EventBatch, Matches
from matching.drive import ROWS_MAX, Drive, run
from matching.ordering import Ordering
from query.errors import DataError
from query.schema import Field, Schema

PLAIN = Schema("s", (Field("ts", "TIMESTAMP"),), time="ts")
DELAYED = Schema("s", (Field("ts", "TIMESTAMP"),), time="ts", lateness_us=10)


def events(*times: int, first: int = 0) -> EventBatch:
    ts_us = np.array(times, np.int64)
    offset = np.arange(first, first + len(times), dtype=np.int64)
    columns = pa.record_batch({"ts": pa.array(ts_us).cast(pa.timestamp("us"))})
    return EventBatch(columns, ts_us, np.zeros(len(times), np.int32), offset, offset)


def found(*times: int) -> Matches:
    """One match for each time."""
    n = len(times)
    first = np.array(times, np.int64)
    numbers = np.arange(n, dtype=np.int64)
    none = np.zeros(0, np.int64)
    return Matches(
        pa.table({"t": first}), numbers, numbers + 1, first, first, np.zeros(n + 1, np.int64), none.astype(np.int16),
        none, none.astype(np.int32), none, none, (), ("default",),
    )  # fmt: skip


class Recorder:
    """A Matcher that matches each event of an odd time, and at the end the number -1; it notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.seen = 0

    def push(self, batch: EventBatch) -> Matches:
        self.calls.append(("push", batch.ts_us.tolist()))
        self.seen += len(batch)
        return found(*batch.ts_us[batch.ts_us % 2 == 1].tolist())

    def advance(self, watermark_us: int | None) -> Matches:
        self.calls.append(("advance", watermark_us))
        return found(-1) if watermark_us is None else found()

    def snapshot(self) -> bytes:
        return f"seen {self.seen}".encode()

    def restore(self, state: bytes) -> None:
        self.seen = int(state.split()[1])


def times(out: list[Matches]) -> list[list[int]]:
    return [matches.first_us.tolist() for matches in out]


def test_push_then_advance_and_only_what_is_not_empty_comes_out() -> None:
    matcher = Recorder()
    drive = Drive(Ordering(PLAIN), matcher)
    assert times(drive.push(events(1, 2, 3), 3)) == [[1, 3]]
    assert drive.push(events(4, first=3), 4) == []
    assert times(drive.advance(None)) == [[-1]]
    assert matcher.calls == [
        ("push", [1, 2, 3]), ("advance", 3), ("push", [4]), ("advance", 4), ("advance", None),
    ]  # fmt: skip


def test_an_unchanged_watermark_is_not_passed_on() -> None:
    matcher = Recorder()
    drive = Drive(Ordering(PLAIN), matcher)
    drive.push(events(5), None)
    drive.push(events(5, first=1), 5)
    drive.push(events(5, first=2), 5)
    drive.advance(4)
    assert matcher.calls == [("push", [5]), ("push", [5]), ("advance", 5), ("push", [5])]


def test_events_are_pushed_in_order_and_before_the_watermark_that_released_them() -> None:
    matcher = Recorder()
    drive = Drive(Ordering(DELAYED), matcher)
    drive.push(events(20, 11, 15), 10)
    drive.push(events(30, first=3), 20)
    drive.advance(21)
    drive.advance(None)
    assert matcher.calls == [
        ("advance", 10), ("push", [11, 15]), ("advance", 20), ("push", [20]), ("advance", 21), ("push", [30]),
        ("advance", None),
    ]  # fmt: skip


def test_large_batches_go_in_slices() -> None:
    n = 2 * ROWS_MAX + 5
    matcher = Recorder()
    out = Drive(Ordering(PLAIN), matcher).push(events(*range(n)), n)
    pushed = [value for call, value in matcher.calls if call == "push"]
    assert [len(part) for part in pushed] == [ROWS_MAX, ROWS_MAX, 5]
    assert [t for part in pushed for t in part] == list(range(n))
    assert len(out) == 3
    assert [t for part in times(out) for t in part] == list(range(1, n, 2))


def test_run_pushes_all_and_ends() -> None:
    matcher = Recorder()
    out = run(matcher, iter([events(1, 2), events(), events(4, first=2), events(5, first=3)]))
    assert times([next(out)]) == [[1]]
    assert matcher.calls == [("push", [1, 2])], "matches come as soon as they are decided"
    assert times(list(out)) == [[5], [-1]]
    assert matcher.calls[-1] == ("advance", None)


def test_run_over_nothing_still_ends_the_input() -> None:
    assert times(list(run(Recorder(), []))) == [[-1]]


@pytest.mark.parametrize("watermark_us", [None, -7, 10])
def test_snapshot_and_restore(watermark_us: int | None) -> None:
    drive = Drive(Ordering(DELAYED), Recorder())
    drive.push(events(20, 11), watermark_us)
    state = drive.snapshot()

    matcher = Recorder()
    other = Drive(Ordering(DELAYED), matcher)
    other.restore(state)
    assert matcher.seen == 0
    assert other.snapshot() == state
    if watermark_us is not None:
        other.advance(watermark_us)
        assert matcher.calls == [], "it knows how far it has advanced"
    other.push(events(30, first=2), 20)
    assert matcher.calls == [("push", [11]), ("advance", 20)]


@pytest.mark.parametrize("state", [b"", b"HQD", b"x" * 100])
def test_a_state_of_something_else_is_refused(state: bytes) -> None:
    with pytest.raises(DataError, match="no saved state"):
        Drive(Ordering(PLAIN), Recorder()).restore(state)
