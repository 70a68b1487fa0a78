"""What finding PA ahead is expected to take."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from archive.history import History
from archive.snapshot import HistorySnapshot
from hybrid.join.history_cache import BEGIN_S, FAR_US, GO_ON_S, LOOK_S, MATCH_S, SAMPLE_EVENTS, HistoryCache
from matching.batch import EventBatch, Matcher
from matching.matcher import make_matcher
from matching.sharing import widened
from matching.types import arrow_schema
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import HistoryPlan
from tests.archive.events import START_US, TICKS

SECOND = 1_000_000
TEXT = (
    "SELECT pl.symbol, pa.price FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts MEASURES M.ts AS at "
    "PATTERN (M) DEFINE M AS rank < 0) AS pl JOIN HISTORY OF ticks FROM pl.at - INTERVAL 1 DAY TO pl.at "
    "MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts MEASURES B.price AS price PATTERN (A B) DEFINE A AS price < 1) "
    "AS pa ON pa.symbol = pl.symbol"
)


def history_plan() -> HistoryPlan:
    return bind(parse(TEXT), lambda _: TICKS, live=True).factors[0].histories[0]


def cache_of(history: HistoryPlan) -> HistoryCache:
    assert history.plan is not None
    plan = widened(history.plan)

    def matcher(state: bytes | None = None) -> Matcher:
        made = make_matcher(plan)
        if state is not None:
            made.restore(state)
        return made

    return HistoryCache(history, matcher, matcher)


def snapshot_of(events: int) -> HistorySnapshot:
    """An event a second, in memory."""
    ts_us = START_US + SECOND * np.arange(events)
    numbers = np.arange(events)
    columns = [
        pa.array(ts_us).view(pa.timestamp("us")), pa.array(["A", "B"] * (events // 2)),
        pa.array((numbers % 100).astype(np.float64)), pa.array(numbers.astype(np.int32)),
    ]  # fmt: skip
    rows = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(TICKS))
    history = History(TICKS, None)
    batch = EventBatch(rows, ts_us, np.zeros(events, np.int32), numbers, numbers, ("default",))
    history.append(batch, np.zeros(events, np.bool_))
    return history.snapshot()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every second look at it shows as many seconds more as it holds."""
    took, looks = [0.0], iter(range(1 << 30))
    seen = [0.0]

    def look() -> float:
        seen[0] += took[0] if next(looks) % 2 else 0.0
        return seen[0]

    monkeypatch.setattr("hybrid.join.history_cache.time", SimpleNamespace(perf_counter=look))
    return took


def expected(events: int) -> float:
    return events * (LOOK_S + MATCH_S)


def test_what_a_sample_took_says_how_long_the_rest_takes(clock: list[float]) -> None:
    events, slow = 4 * SAMPLE_EVENTS, 3.0
    history = history_plan()
    snapshot, cache = snapshot_of(events), cache_of(history)
    last_us = START_US + SECOND * (events - 1)

    def seconds(low_us: int = START_US) -> float:
        estimate = cache.estimate(low_us, last_us, snapshot)
        assert estimate is not None
        return estimate.seconds

    assert seconds() == pytest.approx(BEGIN_S + expected(events), rel=0.01)
    assert cache.go_on_s == GO_ON_S
    # A sample is read where it is worth it only.
    cache.learn(START_US, last_us, snapshot, False, 1.0, 1.0)
    cache.learn(START_US, last_us, snapshot, False, 0.04, 0.0)
    assert seconds() == pytest.approx(BEGIN_S + expected(events), rel=0.01)
    clock[0] = slow * (BEGIN_S + expected(SAMPLE_EVENTS))
    cache.learn(START_US, last_us, snapshot, False, 1.0, 0.0)
    assert seconds() == pytest.approx(slow * (BEGIN_S + expected(events)), rel=0.01)
    assert cache.go_on_s == pytest.approx(slow * GO_ON_S, rel=0.01)
    # What was found ahead is known better than the sample.
    half_us = START_US + SECOND * (events // 2)
    clock[0] = 2 * slow * (BEGIN_S + expected(events // 2))
    cache.detect(START_US, half_us, snapshot, False)
    assert cache.covers(START_US)
    assert slow * expected(events // 2) < seconds() < 2 * slow * expected(events // 2) + cache.go_on_s
    # So is what going on takes, once it went on with few events.
    clock[0] = 0.7
    cache.detect(START_US, half_us + 10 * SECOND, snapshot, False)
    assert cache.go_on_s == pytest.approx(0.7, rel=0.01)


def test_a_sample_of_less_than_that_is_all_there_is(clock: list[float]) -> None:
    events = SAMPLE_EVENTS // 2
    cache, snapshot = cache_of(history_plan()), snapshot_of(events)
    clock[0] = 2 * (BEGIN_S + expected(events))
    cache.learn(-FAR_US, FAR_US - 1, snapshot, False, 1.0, 0.0)
    assert cache.go_on_s == pytest.approx(2 * GO_ON_S, rel=0.01)
