"""A live stream: positions, redelivery, lateness, sequence numbers, the end; and with Ordering, one order for all."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from live.stream import Ahead, Arrival, LiveStream
from matching.ordering import Ordering
from query.errors import DataError
from query.schema import Field, Schema

FIELDS = (Field("ts", "TIMESTAMP"), Field("tie", "BIGINT"), Field("id", "BIGINT"))


def schema(lateness_us: int = 0, order: tuple[str, ...] = ()) -> Schema:
    return Schema("s", FIELDS, time="ts", lateness_us=lateness_us, order=order)


def events(*times: int, tie: int | None = None, first_id: int = 0) -> pa.RecordBatch:
    n = len(times)
    return pa.record_batch(
        {
            "ts": pa.array(times, pa.timestamp("us")),
            "tie": pa.array([tie] * n, pa.int64()),
            "id": pa.array(range(first_id, first_id + n), pa.int64()),
        }
    )


def test_what_an_arrival_carries() -> None:
    stream = LiveStream(schema(10), first_seq=100)
    arrival = stream.accept(events(50, 30, 60), "a")
    assert arrival.batch.ts_us.tolist() == [50, 30, 60]
    assert arrival.batch.offset.tolist() == [0, 1, 2]
    assert arrival.batch.seq.tolist() == [100, 101, 102]
    assert arrival.batch.source.tolist() == [0, 0, 0]
    assert arrival.batch.sources == ("a",)
    assert arrival.late.tolist() == [False, True, False]
    assert arrival.on_time.ts_us.tolist() == [50, 60]
    assert arrival.on_time.columns["id"].to_pylist() == [0, 2]
    assert arrival.watermark_us == stream.watermark_us == 50
    assert (stream.accepted_count, stream.late_count, stream.next_seq) == (3, 1, 103)


def test_sources_keep_their_index_and_count_on_their_own() -> None:
    stream = LiveStream(schema())
    stream.accept(events(1), "b")
    arrival = stream.accept(events(1, 2), "a")
    assert arrival.batch.sources == ("b", "a")
    assert arrival.batch.source.tolist() == [1, 1]
    assert arrival.batch.offset.tolist() == [0, 1]
    assert stream.accept(events(3), "b").batch.offset.tolist() == [1]
    assert stream.offsets == {"b": 2, "a": 2}


def test_redelivered_rows_are_dropped_and_counted() -> None:
    stream = LiveStream(schema())
    stream.accept(events(1, 2, 3), offset=0)
    again = stream.accept(events(2, 3, 4, first_id=1), offset=1)
    assert again.batch.columns["id"].to_pylist() == [3]
    assert again.batch.offset.tolist() == [3]
    assert again.batch.ts_us.tolist() == [4]
    assert again.batch.seq.tolist() == [3]
    assert not again.late.any(), "the redelivered rows are no late rows"
    whole = stream.accept(events(1, 2, 3), offset=0)
    assert len(whole.batch) == 0
    assert whole.watermark_us == 4
    assert (stream.duplicate_count, stream.accepted_count, stream.late_count) == (5, 4, 0)
    assert stream.next_seq == 4, "redelivered rows take no sequence number"


def test_a_gap_in_the_offsets_is_allowed() -> None:
    stream = LiveStream(schema())
    stream.accept(events(1), offset=7)
    assert stream.accept(events(2)).batch.offset.tolist() == [8]
    assert stream.accept(events(3), offset=20).batch.offset.tolist() == [20]
    assert len(stream.accept(events(3), offset=10).batch) == 0, "below what was expected: a redelivery"


def test_an_empty_push_changes_nothing() -> None:
    stream = LiveStream(schema())
    arrival = stream.accept([], "quiet")
    assert (len(arrival.batch), arrival.watermark_us, stream.offsets) == (0, None, {})
    stream.accept(events(5), "loud")
    assert stream.watermark_us == 5


def test_a_source_that_has_sent_nothing_does_not_hold_back_the_order() -> None:
    stream, ordering = LiveStream(schema()), Ordering(schema())
    for data, source in (([], "quiet"), (events(5), "loud"), ([], "quiet"), (events(6), "loud")):
        arrival = stream.accept(data, source)
        assert len(ordering.push(arrival.on_time, arrival.watermark_us)) == len(data)


@pytest.mark.parametrize("offset", [-1, 1.0, "0", True, 2**62])
def test_an_offset_that_is_none(offset: object) -> None:
    stream = LiveStream(schema())
    with pytest.raises(DataError, match="invalid offset of a push to s"):
        stream.accept(events(1), offset=offset)  # type: ignore[arg-type]
    assert stream.accepted_count == 0


def test_rows_beyond_a_ceiling_are_refused_and_redelivered_ones_are_not_judged_again() -> None:
    stream = LiveStream(schema())
    stream.accept(events(1, 500, 2), "a", ceiling_us=500)
    before = stream.to_dict()
    says = r"row 3: the time 1970-01-01T00:00:00.000101 .* \(and 1 more rows\)"
    with pytest.raises(Ahead, match=says) as said:
        stream.accept(events(1, 500, 2, 101, 7, 102), "a", 0, ceiling_us=100)
    assert said.value.rows.tolist() == [False, False, False, True, False, True]
    assert "000102 is too far ahead" in said.value.of(5)
    assert stream.to_dict() == before
    stream.skip("a", 5)
    assert len(stream.accept(events(101, 7, 102, 8), "a", 3, ceiling_us=100).batch) == 1
    stream.skip("a", 2)
    assert stream.offsets == {"a": 7}, "it never goes back"


@pytest.mark.slow
@given(st.lists(st.one_of(st.integers(0, 40), st.sampled_from(["0", "5", "12"])), max_size=40), st.booleans())
def test_a_lateness_that_changes_loses_and_disorders_nothing(steps: list[int | str], two: bool) -> None:
    """Each event on time comes out, once, in the total order; the watermark never goes back."""
    shape = schema(5)
    stream, ordering = LiveStream(shape), Ordering(shape)
    out: list[tuple[int, str, int]] = []
    on_time: list[tuple[int, str, int]] = []
    reached = -(2**62)

    def shown(batch: object) -> list[tuple[int, str, int]]:
        names = [batch.sources[i] for i in batch.source]  # type: ignore[attr-defined]
        return list(zip(batch.ts_us.tolist(), names, batch.offset.tolist(), strict=True))  # type: ignore[attr-defined]

    for i, step in enumerate(steps):
        if isinstance(step, str):
            shape = schema(int(step))
            stream.declare(shape)
            ordering.declare(shape)
            continue
        arrival = stream.accept(events(step), "ab"[two and i % 2])
        assert arrival.watermark_us is not None
        assert arrival.watermark_us >= reached
        reached = arrival.watermark_us
        on_time += shown(arrival.on_time)
        out += shown(ordering.push(arrival.on_time, arrival.watermark_us))
    out += shown(ordering.advance(None))
    assert sorted(out) == sorted(on_time)
    times = [time for time, _, _ in out]
    assert times == sorted(times)
    assert two or out == sorted(on_time)


def test_a_source_has_a_name() -> None:
    with pytest.raises(DataError, match="source"):
        LiveStream(schema()).accept(events(1), 3)  # type: ignore[arg-type]


def test_advance_makes_older_events_late_and_equal_ones_not() -> None:
    stream = LiveStream(schema())
    stream.advance(10)
    assert stream.watermark_us == 10
    assert stream.accept(events(9, 10)).late.tolist() == [True, False]
    stream.advance(5)
    assert stream.watermark_us == 10


def test_after_the_end_nothing_is_taken() -> None:
    stream = LiveStream(schema())
    stream.accept(events(1))
    assert not stream.ended
    stream.advance(None)
    assert stream.ended
    with pytest.raises(DataError, match="stream s has ended"):
        stream.accept(events(2))
    assert (stream.accepted_count, stream.watermark_us) == (1, 1)


def test_going_on_after_a_restart() -> None:
    stream = LiveStream(schema(10), first_seq=50, offsets={"a": 5, "b": 2}, watermark_us=100)
    arrival = stream.accept(events(99, 300), "b", offset=1)
    assert arrival.batch.offset.tolist() == [2]
    assert arrival.batch.seq.tolist() == [50]
    assert arrival.batch.sources == ("a", "b")
    assert stream.duplicate_count == 1
    assert arrival.watermark_us == 100, "a has not gone on yet"
    assert stream.accept(events(99, 200), "a").late.tolist() == [True, False]
    assert stream.watermark_us == 190


# One order, whatever the interleaving, the delays within the lateness and the cutting.


def deliveries(rng: random.Random, by_source: dict[str, list[int]], lateness_us: int) -> list[tuple[str, int]]:
    """An order of arrival of all events, (source, position in its source), with no delay above the lateness: each
    source keeps its own order, and an event of time t arrives in [t, t + lateness]."""
    arrivals = []
    for source, times in by_source.items():
        due = 0.0
        for position in range(len(times)):
            earliest = max(times[: position + 1])
            latest = min(times[position:]) + lateness_us
            due = max(due, rng.uniform(earliest, latest))
            arrivals.append((due, rng.random(), source, position))
    # Positions of one source stay in order where they are due together.
    arrivals.sort(key=lambda a: a[0])
    out: list[tuple[str, int]] = []
    next_position = dict.fromkeys(by_source, 0)
    for _, _, source, _ in arrivals:
        out.append((source, next_position[source]))
        next_position[source] += 1
    return out


def times_of_a_source(rng: random.Random, n: int, lateness_us: int, start: int) -> list[int]:
    """Event times in the order their source sends them: delayed within the lateness."""
    t, sent = start, []
    for _ in range(n):
        t += rng.choice([0, 0, 1, 2, 5])
        sent.append((t + rng.randint(0, lateness_us), t))
    return [t for _, t in sorted(sent, key=lambda pair: pair[0])]


def pieces(rng: random.Random, order: list[tuple[str, int]]) -> Iterator[tuple[str, int, int]]:
    """Cuts an order of arrival into pushes, each of one source: (source, from, to)."""
    start = 0
    while start < len(order):
        source, position = order[start]
        stop = start + 1
        while stop < len(order) and order[stop][0] == source and rng.random() < 0.7:
            stop += 1
        yield source, position, position + stop - start
        start = stop


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    sources=st.sampled_from([["a"], ["a", "b"], ["a", "b", "c"]]),
    n=st.integers(1, 15),
    lateness_us=st.sampled_from([0, 0, 3, 20]),
    tie=st.booleans(),
)
def test_interleaving_delays_and_cutting_do_not_change_the_order(
    seed: int, sources: list[str], n: int, lateness_us: int, tie: bool
) -> None:
    rng = random.Random(seed)
    declared = schema(lateness_us, ("tie",) if tie else ())
    by_source = {source: times_of_a_source(rng, n, lateness_us, 100) for source in sources}
    ties = {source: [rng.choice([None, 1, 2]) for _ in range(n)] for source in sources}
    expected = sorted(
        (t, (-1 if ties[source][i] is None else ties[source][i]) if tie else 0, source, i)
        for source, times in by_source.items()
        for i, t in enumerate(times)
    )
    for _ in range(2):
        stream, ordering = LiveStream(declared), Ordering(declared)
        got: list[tuple[int, str, int]] = []

        def take(
            source: str, times: list[int], values: list[int | None], offset: int,
            stream: LiveStream = stream, ordering: Ordering = ordering, got: list[tuple[int, str, int]] = got,
        ) -> None:  # fmt: skip
            batch = pa.record_batch(
                {
                    "ts": pa.array(times, pa.timestamp("us")),
                    "tie": pa.array(values, pa.int64()),
                    "id": pa.nulls(len(times), pa.int64()),
                }
            )
            arrival = stream.accept(batch, source, offset)
            assert not arrival.late.any()
            out = ordering.push(arrival.on_time, arrival.watermark_us)
            got += identities(out.ts_us, out.sources, out.source, out.offset)

        # All sources are there from the start: an event that has passed through alone stays where it was.
        for source in sources:
            take(source, [0], [None], 0)
        for source, start, stop in pieces(rng, deliveries(rng, by_source, lateness_us)):
            take(source, by_source[source][start:stop], ties[source][start:stop], start + 1)
        rest = ordering.advance(None)
        got += identities(rest.ts_us, rest.sources, rest.source, rest.offset)
        assert got[: len(sources)] == [(0, source, 0) for source in sources]
        assert got[len(sources) :] == [(t, source, i + 1) for t, _, source, i in expected]


def identities(ts_us: np.ndarray, sources: tuple[str, ...], source: np.ndarray, offset: np.ndarray) -> list:
    return [(t, sources[s], o) for t, s, o in zip(ts_us.tolist(), source.tolist(), offset.tolist())]


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), lateness_us=st.sampled_from([0, 2, 10]), n=st.integers(1, 40))
def test_the_late_rows_are_a_function_of_the_order_of_arrival(seed: int, lateness_us: int, n: int) -> None:
    """One order of arrival, cut twice into pushes, with redeliveries in the second: the same late rows, and the same
    on-time rows in the same order."""
    rng = random.Random(seed)
    order = [(rng.choice("ab"), rng.randint(0, 30)) for _ in range(n)]
    positions = {"a": 0, "b": 0}
    arrivals = []
    for source, _ in order:
        arrivals.append((source, positions[source]))
        positions[source] += 1
    times = {s: [t for source, t in order if source == s] for s in "ab"}

    def play(redeliver: bool) -> tuple[list, list, int | None, int]:
        stream, ordering = LiveStream(schema(lateness_us)), Ordering(schema(lateness_us))
        late, out, again = [], [], 0

        def use(arrival: Arrival) -> None:
            batch = arrival.batch.take(np.flatnonzero(arrival.late))
            late.extend(identities(batch.ts_us, batch.sources, batch.source, batch.offset))
            ready = ordering.push(arrival.on_time, arrival.watermark_us)
            out.extend(identities(ready.ts_us, ready.sources, ready.source, ready.offset))

        for source, start, stop in pieces(rng, arrivals):
            back = rng.randint(0, start) if redeliver else 0
            again += back
            use(stream.accept(events(*times[source][start - back : stop]), source, start - back))
        assert stream.duplicate_count == again
        assert (stream.late_count, stream.accepted_count) == (len(late), n)
        rest = ordering.advance(None)
        out.extend(identities(rest.ts_us, rest.sources, rest.source, rest.offset))
        return late, out, stream.watermark_us, len(late) + len(out)

    once, twice = play(False), play(True)
    assert once == twice
    assert once[3] == n, "no event is lost"
