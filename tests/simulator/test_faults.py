"""Faults of delivery: they lose nothing, make nothing late, and leave each source its offsets."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest

from query.schema import Field, Schema
from simulator.faults import deliver, redelivered
from simulator.highway import highway
from simulator.rfid import shop
from simulator.scenario import ArrivingBatch, Scenario, generator, in_batches
from simulator.stock import walk

SCHEMA = Schema("s", (Field("ts", "TIMESTAMP"), Field("x", "BIGINT")), time="ts", lateness_us=1000)


def sources(n: int = 300, count: int = 3) -> dict[str, pa.Table]:
    """Rows at irregular times, a number of its own in each."""
    rng = generator(1)
    result = {}
    for i in range(count):
        ts = rng.integers(0, 20_000, n)
        ts.sort()
        result[f"source-{i}"] = pa.table({"ts": pa.array(ts).view(pa.timestamp("us")), "x": range(i * n, i * n + n)})
    return result


def events(arrivals) -> dict[tuple[str, int], tuple]:
    """(source, offset) -> row; fails if one identity has two rows, or if a source leaves a gap."""
    seen: dict[tuple[str, int], tuple] = {}
    following: dict[str, int] = defaultdict(int)
    for _, source, offset, batch in arrivals:
        assert offset <= following[source], "an offset was left out"
        for i, row in enumerate(batch.to_pylist()):
            assert seen.setdefault((source, offset + i), tuple(row.values())) == tuple(row.values())
        following[source] = max(following[source], offset + batch.num_rows)
    return seen


def late(arrivals, time: str, lateness_us: int) -> int:
    """Rows, not redelivered, that are older than the newest row before them by more than the lateness. All sources."""
    top, count = None, 0
    known: set[tuple[str, int]] = set()
    for _, source, offset, batch in arrivals:
        for i, ts in enumerate(batch[time].cast("int64").to_pylist()):
            if (source, offset + i) not in known:
                known.add((source, offset + i))
                count += top is not None and ts < top - lateness_us
                top = ts if top is None else max(top, ts)
    return count


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [1, 3])
def test_every_row_comes_in_time_under_its_offset(seed, count):
    given = sources(count=count)
    arrivals = deliver(SCHEMA, given, seed, p_delay=0.5, p_redelivery=0.2)
    found = events(arrivals)
    for source, table in given.items():
        rows = [found[source, i] for i in range(table.num_rows)]
        assert sorted(rows) == sorted(tuple(row.values()) for row in table.to_pylist())
        assert rows != [tuple(row.values()) for row in table.to_pylist()], "nothing was delayed"
    assert len(found) == 300 * count
    assert late(arrivals, "ts", SCHEMA.lateness_us) == 0
    assert late(arrivals, "ts", SCHEMA.lateness_us // 3) > 0, "the delays are too small to test anything"


def test_another_interleaving_has_the_same_events_in_another_order():
    one, other = (deliver(SCHEMA, sources(), 3, interleaving=i) for i in (0, 1))
    assert events(one) == events(other)
    assert [a[:3] for a in one] != [a[:3] for a in other]


def test_lateness_zero_delays_nothing():
    schema = Schema("s", SCHEMA.fields, time="ts", lateness_us=0)
    arrivals = deliver(schema, sources(), 3)
    assert late(arrivals, "ts", 0) == 0
    for source, table in sources().items():
        found = events(arrivals)
        assert [found[source, i] for i in range(table.num_rows)] == [tuple(r.values()) for r in table.to_pylist()]


def test_redeliveries_repeat_whole_and_part_batches():
    arrivals = in_batches("ticks", "one", walk(1, 4000), 50)
    twice = redelivered(arrivals, 0.3, generator(2))
    assert events(twice) == events(arrivals)
    following, whole, part = 0, 0, 0
    for _, _, offset, batch in twice:
        stop = offset + batch.num_rows
        whole += stop <= following
        part += offset < following < stop
        following = max(following, stop)
    assert whole > 5
    assert part > 5


def test_nothing_is_sent_again_with_probability_zero():
    arrivals = in_batches("ticks", "one", walk(1, 400), 50)
    assert [a[:3] for a in redelivered(arrivals, 0.0, generator(2))] == [a[:3] for a in arrivals]


@pytest.mark.slow
@pytest.mark.parametrize("make", [shop, highway])
@pytest.mark.parametrize("seed", [0, 9])
def test_scenarios_are_delivered_within_their_lateness(make, seed):
    scenario = make(seed)
    (schema,) = scenario.schemas
    assert late(scenario.arrivals, "ts", schema.lateness_us) == 0
    assert late(scenario.arrivals, "ts", 0) > 50
    assert len({a.source for a in scenario.arrivals}) == 3
    switches = sum(a.source != b.source for a, b in zip(scenario.arrivals, scenario.arrivals[1:]))
    assert switches > len(scenario.arrivals) / 3
    offsets = [(a.source, a.offset) for a in scenario.arrivals]
    assert len(set(offsets)) < len(offsets), "nothing was redelivered"
    again = make(seed, interleaving=1)
    assert events(again.arrivals) == events(scenario.arrivals)
    assert again.truth.equals(scenario.truth)


def test_events_are_each_there_once_and_in_total_order():
    batch = pa.record_batch({"ts": pa.array([5, 5], pa.timestamp("us")), "x": [1, 2]})
    early = pa.record_batch({"ts": pa.array([4, 5], pa.timestamp("us")), "x": [3, 4]})
    arrivals = (ArrivingBatch("s", "b", 0, batch), ArrivingBatch("s", "a", 0, early), ArrivingBatch("s", "b", 0, batch))
    scenario = Scenario("", 0, (SCHEMA,), arrivals, "", pa.table({}), pa.table({"kind": pa.array([], pa.string())}))
    assert scenario.events("s")["x"].to_pylist() == [3, 4, 1, 2]
    assert scenario.kinds == {}
