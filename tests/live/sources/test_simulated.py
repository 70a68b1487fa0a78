"""Batches as a source: everything from any position, at a rate where one is asked for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from live.sources import simulated
from live.sources.base import Piece
from live.sources.simulated import SimulatedSource
from query.errors import DataError
from query.schema import Field, Schema
from simulator.rfid import shop

NUMBERS = Schema("numbers", (Field("ts", "TIMESTAMP"), Field("n", "BIGINT")), "ts")


def batch(*numbers: int) -> pa.RecordBatch:
    ts = pa.array([dt.datetime(2024, 1, 2, 12)] * len(numbers), pa.timestamp("us"))
    return pa.record_batch({"n": pa.array(numbers, pa.int64()), "ts": ts})


def counted(name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Yields (name, position of the first row, batch) for the batches of one partition."""
    first = 0
    for batch in batches:
        yield name, first, batch
        first += batch.num_rows


def drained(source: SimulatedSource) -> list[tuple[str, int, int]]:
    out = []
    while not source.ended:
        for piece in source.poll(1):
            assert isinstance(piece, Piece)
            assert piece.offsets is not None
            out += [(piece.source, o, n) for o, n in zip(piece.offsets.tolist(), piece.rows.column(1).to_pylist())]
            assert piece.next is not None
            assert piece.next > out[-1][1]
    assert source.poll(0) == []
    return out


@pytest.mark.slow
@given(st.lists(st.integers(0, 5), max_size=8), st.integers(0, 30), st.integers(1, 4))
def test_from_any_position(sizes, position, rows_max):
    numbers = iter(range(100))
    batches = [batch(*(next(numbers) for _ in range(size))) for size in sizes]
    source = SimulatedSource(NUMBERS, lambda: counted("a", batches))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated, "ROWS_MAX", rows_max)
        source.open({"a": position, "b": 7})
        assert drained(source) == [("a", n, n) for n in range(position, sum(sizes))]
        source.open({})
        assert len(drained(source)) == sum(sizes)


def test_partitions_and_redelivered_rows():
    arrivals = [("a", 0, batch(1, 2)), ("b", 0, batch(3)), ("a", 1, batch(2)), ("a", 2, batch(4))]
    source = SimulatedSource(NUMBERS, lambda: arrivals)
    source.open({})
    expected = [("a", 0, 1), ("a", 1, 2), ("b", 0, 3), ("a", 1, 2), ("a", 2, 4)]
    next_of = []
    for _ in arrivals:
        (piece,) = source.poll(0)
        assert isinstance(piece, Piece)
        next_of.append((piece.source, piece.next))
    assert next_of == [("a", 2), ("b", 1), ("a", 2), ("a", 3)]
    source.open({"a": 2})
    assert drained(source) == [expected[2], expected[4]]


def test_at_a_rate():
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    source = SimulatedSource(
        NUMBERS, lambda: counted("a", [batch(*range(100))]), 10, clock=lambda: now[0], sleep=sleep
    )
    source.open({})
    times = {}
    while not source.ended:
        for piece in source.poll(0.03):
            times.update(dict.fromkeys(piece.offsets.tolist(), now[0] - 100))
        now[0] += 0.25 if now[0] > 105 else 0
    assert sorted(times) == list(range(100))
    assert all(times[i] >= (i + 1) / 10 - 1e-9 for i in range(100))
    assert all(times[i] <= (i + 1) / 10 + 0.3 for i in range(100))
    with pytest.raises(DataError, match="invalid rate 0"):
        SimulatedSource(NUMBERS, lambda: [], 0)


def test_a_scenario():
    scenario = shop(1, items=20)
    (schema,) = scenario.schemas
    source = SimulatedSource(schema, lambda: ((a.source, a.offset, a.batch) for a in scenario.arrivals))
    source.open({})
    rows: dict[tuple[str, int], dict[str, object]] = {}
    while not source.ended:
        for piece in source.poll(0):
            assert isinstance(piece, Piece)
            assert piece.offsets is not None
            rows |= zip([(piece.source, o) for o in piece.offsets.tolist()], piece.rows.to_pylist())
    events = scenario.events(schema.name).to_pylist()
    assert sorted(map(str, rows.values())) == sorted(map(str, events))


def test_rows_of_another_shape():
    source = SimulatedSource(NUMBERS, lambda: counted("a", [pa.record_batch({"x": [1]})]))
    source.open({})
    with pytest.raises(DataError, match="stream numbers has no column x"):
        source.poll(0)
