"""Replays on simulated time."""

from __future__ import annotations

import pyarrow as pa
import pytest

from live.sources.replay import STEP_S, replay
from query.errors import DataError


class Clock:
    """Time that passes only by sleeping, and by `work`."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds


def batch(*seconds: float) -> pa.RecordBatch:
    ts = pa.array([round(s * 1e6) for s in seconds], pa.timestamp("us"))
    return pa.record_batch({"ts": ts, "i": pa.array(range(len(seconds)))})


def played(clock: Clock, *args: object, **kwargs: object) -> list[tuple[float, list[float]]]:
    """(when it was handed out, the event times in it in seconds) for each piece."""
    out = []
    for piece in replay(*args, clock=clock, sleep=clock.sleep, **kwargs):  # type: ignore[arg-type]
        out.append((round(clock.now - 1000, 6), [t / 1e6 for t in piece.column(0).cast(pa.int64()).to_pylist()]))
    return out


def test_as_fast_as_possible_hands_out_the_batches_themselves() -> None:
    clock = Clock()
    batches = [batch(1, 100), batch(), batch(5)]
    assert [a is b for a, b in zip(replay(batches, None, clock=clock, sleep=clock.sleep), batches)] == [True] * 3
    assert clock.slept == []


def test_speed_up_of_event_time() -> None:
    batches = [batch(50, 60, 60), batch(80)]
    assert played(Clock(), batches, 10.0, time_column="ts") == [(0, [50]), (1, [60, 60]), (3, [80])]


def test_an_older_event_is_due_with_the_one_before_it() -> None:
    assert played(Clock(), [batch(0, 10, 7), batch(8, 20)], 10.0, time_column="ts") == [
        (0, [0]), (1, [10, 7]), (1, [8]), (2, [20]),
    ]  # fmt: skip


def test_events_close_together_go_together_and_none_too_early() -> None:
    seconds = [i * STEP_S * 1e6 // 10 / 1e6 for i in range(25)]
    pieces = played(Clock(), [batch(*seconds)], 1.0, time_column="ts")
    assert [t for _, events in pieces for t in events] == seconds
    assert len(pieces) == 3
    for when, events in pieces:
        assert when == pytest.approx(max(events))


def test_a_rate() -> None:
    pieces = played(Clock(), [batch(*[0] * 30), batch(*[0] * 30)], rate=20.0)
    assert sum(len(events) for _, events in pieces) == 60
    assert pieces[-1][0] == pytest.approx(59 / 20)


def test_a_slow_taker_is_not_made_to_wait() -> None:
    clock = Clock()
    out = []
    for piece in replay([batch(0, 1, 2, 3)], 1.0, time_column="ts", clock=clock, sleep=clock.sleep):
        out.append((clock.now - 1000, piece.num_rows))
        clock.now += 1.5
    assert out == [(0, 1), (1.5, 1), (3, 1), (4.5, 1)]
    assert clock.slept == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"speed": 0}, "speed is 0"),
        ({"rate": -1.0}, "rate is -1"),
        ({"speed": 1.0, "rate": 1.0}, "not both"),
        ({"speed": 1.0}, "needs the time column"),
        ({"speed": 1.0, "time_column": "nope"}, "column nope to replay by does not exist"),
        ({"speed": 1.0, "time_column": "i"}, "column i is int64"),
    ],
)
def test_what_cannot_be_replayed(arguments: dict, words: str) -> None:
    with pytest.raises(DataError, match=words):
        list(replay([batch(1, 2)], **arguments))
