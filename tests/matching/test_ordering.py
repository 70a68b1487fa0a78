"""Sorting by the total order, against DuckDB; and releasing by the watermark, against a list."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.batch import EventBatch
from matching.kernels.radix import radix_argsort
from matching.ordering import RADIX_ROWS_MIN, Ordering, sort_events, total_order
from query.errors import DataError
from query.schema import Field, Schema


def schema(lateness_us: int = 0, order: tuple[str, ...] = (), tie_type: str = "BIGINT") -> Schema:
    fields = (Field("ts", "TIMESTAMP"), Field("tie", tie_type), Field("name", "VARCHAR"))
    return Schema("s", fields, time="ts", lateness_us=lateness_us, order=order)


def batch(
    rows: list[tuple[Any, ...]], sources: tuple[str, ...] = ("default",), tie_type: pa.DataType | None = None
) -> EventBatch:
    """Events (time, source, offset, tie, name); tie and name may be left out."""
    full = [row + (None,) * (5 - len(row)) for row in rows]
    n = len(full)
    columns = pa.record_batch(
        {
            "ts": pa.array([r[0] for r in full], pa.timestamp("us")),
            "tie": pa.array([r[3] for r in full], tie_type or pa.int64()),
            "name": pa.array([r[4] for r in full], pa.string()),
        }
    )
    return EventBatch(
        columns,
        np.array([r[0] for r in full], np.int64),
        np.array([sources.index(r[1]) for r in full], np.int32),
        np.array([r[2] for r in full], np.int64),
        np.arange(n, dtype=np.int64),
        sources,
    )


def shown(events: EventBatch) -> list[tuple[int, str, int]]:
    assert events.columns["ts"].cast(pa.int64()).to_pylist() == events.ts_us.tolist()
    names = [events.sources[i] for i in events.source]
    return list(zip(events.ts_us.tolist(), names, events.offset.tolist()))


# Sorting


TIES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "BIGINT": (pa.int64(), [None, -(2**63), 2**63 - 1, 0]),
    "UBIGINT": (pa.uint64(), [None, 0, 2**64 - 1, 2**63]),
    "DOUBLE": (pa.float64(), [None, float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5]),
    "FLOAT": (pa.float32(), [None, float("nan"), 0.0, -0.0, -1.5]),
    "VARCHAR": (pa.string(), [None, "", "a", "B", "ab", "é", "\U0001f600", "\uffff"]),
    "BLOB": (pa.binary(), [None, b"", b"\x00", b"\xff", b"a"]),
    "BOOLEAN": (pa.bool_(), [None, True, False]),
    "DECIMAL(9,2)": (pa.decimal128(9, 2), [None, -1, 0, 5]),
    "DATE": (pa.date32(), [None, 0, 5, -5]),
    "TIMESTAMP": (pa.timestamp("us"), [None, 0, 5, -5]),
    "TIME": (pa.time64("us"), [None, 0, 5]),
}


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize("tie_type", TIES)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_the_order_is_that_of_duckdb(tie_type: str, seed: int, connection: duckdb.DuckDBPyConnection) -> None:
    arrow, values = TIES[tie_type]
    rng = random.Random(seed)
    sources = tuple(rng.sample(["b", "a", "B", "é", ""], 3))
    n = rng.randint(0, 30)
    wide = rng.choice([0, 2**60])  # far apart, the keys do not fit into one number
    rows = [
        (rng.choice([1, 2, 3]), rng.choice(sources), i + wide * (i % 2), rng.choice(values), rng.choice("xy"))
        for i in range(n)
    ]
    rng.shuffle(rows)
    events = batch(rows, sources, arrow)
    table = pa.table(
        {
            "ts": events.ts_us,
            "tie": events.columns["tie"],
            "name": events.columns["name"],
            "source": [row[1] for row in rows],
            "offset_": events.offset,
            "row": pa.array(range(n), pa.int64()),
        }
    )
    for order in ((), ("tie",), ("name", "tie")):
        ties = "".join(f"{name} NULLS FIRST, " for name in order)
        query = f"SELECT row FROM events ORDER BY ts, {ties} source, offset_"
        expected = [row for (row,) in connection.register("events", table).execute(query).fetchall()]
        declared = schema(order=order, tie_type=tie_type)
        assert total_order(events, declared).tolist() == expected
        assert sort_events(events, declared).offset.tolist() == events.offset[expected].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 1), (-5, 3), (-(2**40), 2**40), (10**15, 10**15 + 86_400_000_000), (-(2**62), 2**62 - 1),
        (-(2**63), 2**63 - 2),
    ],
)  # fmt: skip
def test_many_rows_in_no_order_are_sorted_as_few_are(low: int, high: int) -> None:
    """From RADIX_ROWS_MIN rows on it is another sort, whatever range the times have."""
    rng = np.random.default_rng(high % 1000)
    times = rng.integers(low, high, RADIX_ROWS_MIN, endpoint=True)
    times[7] = min(high * 2 + 1, 2**62)  # most times are near each other
    assert (radix_argsort(times) == np.argsort(times, kind="stable")).all()
    offsets = rng.permutation(len(times))
    nothing = pa.RecordBatch.from_arrays([pa.nulls(len(times), pa.int64())], ["tie"])
    events = EventBatch(nothing, times, np.zeros(len(times), np.int32), offsets, offsets)
    assert (total_order(events, schema()) == np.lexsort([offsets, times])).all()


def test_sorted_events_are_handed_on_as_they_are() -> None:
    ordered = batch([(1, "a", 5), (1, "a", 6), (1, "b", 0), (2, "a", 7)], ("b", "a"))
    assert sort_events(ordered, schema()) is ordered
    apart = batch([(1, "a", 0, 9), (2, "a", 1, 3)], ("a",))
    assert sort_events(apart, schema(order=("tie",))) is apart


def test_ties_go_by_columns_then_source_name_then_offset() -> None:
    events = batch(
        [(5, "a", 1, 1), (5, "z", 0, None), (5, "a", 0, 1), (4, "z", 9, 7), (5, "m", 3, 1), (5, "a", 2, 0)],
        ("z", "m", "a"),
    )
    assert shown(sort_events(events, schema(order=("TIE",)))) == [
        (4, "z", 9), (5, "z", 0), (5, "a", 2), (5, "a", 0), (5, "a", 1), (5, "m", 3),
    ]  # fmt: skip
    assert shown(sort_events(events, schema())) == [
        (4, "z", 9), (5, "a", 0), (5, "a", 1), (5, "a", 2), (5, "m", 3), (5, "z", 0),
    ]  # fmt: skip


@pytest.mark.parametrize("type", ["BIGINT[]", "STRUCT(a INTEGER)", "INTERVAL", "ENUM('a', 'b')"])
def test_a_tie_column_has_an_order(type: str) -> None:
    with pytest.raises(DataError, match=r"tie column tie is .* which has no order"):
        Ordering(schema(order=("tie",), tie_type=type))
    with pytest.raises(DataError, match="tie column nope is not a column"):
        Ordering(schema(order=("nope",)))


# Releasing


def test_one_source_in_order_passes_at_once_without_a_copy() -> None:
    ordering = Ordering(schema())
    first = batch([(1, "default", 0), (1, "default", 1), (5, "default", 2)])
    out = ordering.push(first, 5)
    assert out.columns is first.columns
    assert out.ts_us is first.ts_us
    assert shown(ordering.push(batch([(5, "default", 3)]), 5)) == [(5, "default", 3)]
    assert shown(ordering.advance(9)) == []
    assert len(ordering) == 0


def test_released_when_the_watermark_is_greater_than_the_time_not_at_it() -> None:
    ordering = Ordering(schema(lateness_us=10))
    assert shown(ordering.push(batch([(10, "default", 0), (5, "default", 1), (15, "default", 2)]), 5)) == []
    assert shown(ordering.advance(10)) == [(5, "default", 1)]
    assert shown(ordering.advance(11)) == [(10, "default", 0)]
    assert shown(ordering.push(batch([(12, "default", 3), (40, "default", 4)]), 30)) == [
        (12, "default", 3), (15, "default", 2),
    ]  # fmt: skip
    assert len(ordering) == 1
    assert shown(ordering.advance(30)) == []
    assert shown(ordering.advance(None)) == [(40, "default", 4)]
    assert len(ordering) == 0


def test_tie_columns_hold_back_even_one_source() -> None:
    ordering = Ordering(schema(order=("tie",)))
    assert shown(ordering.push(batch([(1, "default", 0, 2)]), 1)) == []
    assert shown(ordering.push(batch([(1, "default", 1, 1), (2, "default", 2, 0)]), 2)) == [
        (1, "default", 1), (1, "default", 0),
    ]  # fmt: skip


def test_equal_times_of_two_sources_come_in_one_order_whichever_arrives_first() -> None:
    """b1 of source 1 and c1 of source 2 at one time: c1 waits until nothing of source 1 at that time can come."""
    for first, second in (("source 1", "source 2"), ("source 2", "source 1")):
        ordering = Ordering(schema())
        names = ("source 1", "source 2")
        out = shown(ordering.push(batch([(1, first, 0)], names), None))
        out += shown(ordering.push(batch([(2, first, 1)], names), None))
        out += shown(ordering.push(batch([(1, second, 0)], names), 1))
        assert out == []
        out += shown(ordering.push(batch([(2, second, 1)], names), 2))
        assert out == [(1, "source 1", 0), (1, "source 2", 0)]
        out += shown(ordering.advance(3))
        assert out[2:] == [(2, "source 1", 1), (2, "source 2", 1)]


def test_a_second_source_starts_the_holding_back() -> None:
    ordering = Ordering(schema())
    assert shown(ordering.push(batch([(10, "m", 0)], ("m",)), 10)) == [(10, "m", 0)]
    # On time, as 10 is not below the watermark; it sorts first, but m's event has gone. Both are there, times rise.
    assert shown(ordering.push(batch([(10, "a", 0)], ("m", "a")), 10)) == []
    assert shown(ordering.push(batch([(10, "m", 1), (12, "m", 2)], ("m", "a")), 10)) == []
    assert shown(ordering.push(batch([(13, "a", 1)], ("m", "a")), 12)) == [(10, "a", 0), (10, "m", 1)]
    assert shown(ordering.advance(None)) == [(12, "m", 2), (13, "a", 1)]


def test_source_indices_keep_their_meaning_from_batch_to_batch() -> None:
    ordering = Ordering(schema())
    ordering.push(batch([(1, "b", 0)], ("b",)), None)
    ordering.push(batch([(1, "a", 0), (2, "b", 1)], ("a", "b")), None)
    out = ordering.advance(None)
    assert out.sources == ("b", "a")
    assert shown(out) == [(1, "a", 0), (2, "b", 1)]


def test_without_a_watermark_nothing_is_released() -> None:
    ordering = Ordering(schema(lateness_us=5))
    assert shown(ordering.push(batch([(-(10**15), "default", 0)]), None)) == []
    assert shown(ordering.advance(None)) == [(-(10**15), "default", 0)]


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), n=st.integers(1, 120), rows_max=st.sampled_from([1, 1, 3, 40]))
def test_released_as_soon_as_possible_and_in_order_over_snapshots(seed: int, n: int, rows_max: int) -> None:
    """After each push exactly the events before the watermark are out, in the total order; a snapshot and restore
    at any point changes nothing."""
    rng = random.Random(seed)
    declared = schema(lateness_us=1, order=("tie",))
    ordering = Ordering(declared)
    sent: list[tuple[int, int, str, int]] = []
    out: list[tuple[int, str, int]] = []
    w, offset = 0, 0
    while offset < n:
        rows = []
        for _ in range(rng.randint(1, rows_max)):
            rows.append((w + rng.randint(0, 30), rng.choice("ab"), offset, rng.choice([None, 0, 1])))
            offset += 1
        sent += [(t, -1 if tie is None else tie, source, o) for t, source, o, tie in rows]
        w += rng.choice([0, 0, 1, 4])
        out += shown(ordering.push(batch(rows, ("b", "a")), w))
        assert out == [(t, s, o) for t, _, s, o in sorted(sent) if t < w]
        assert len(ordering) == len(sent) - len(out)
        if rng.random() < 0.2:
            state = ordering.snapshot()
            ordering = Ordering(declared)
            ordering.restore(state)
            assert ordering.snapshot() == state
    out += shown(ordering.advance(None))
    assert out == [(t, s, o) for t, _, s, o in sorted(sent)]


@pytest.mark.slow
def test_many_small_pushes_are_held_in_few_runs() -> None:
    ordering = Ordering(schema(lateness_us=1))
    rng = random.Random(1)
    times = [rng.randint(0, 10**6) for _ in range(3000)]
    for offset, t in enumerate(times):
        assert len(ordering.push(batch([(t, "default", offset)]), 0)) == 0
        assert len(ordering._runs) < 64
    out = ordering.advance(None)
    assert shown(out) == [(t, "default", o) for t, o in sorted(zip(times, range(3000)))]


def test_a_restored_order_knows_its_sources() -> None:
    ordering = Ordering(schema())
    ordering.push(batch([(1, "a", 0)], ("a", "b")), None)
    other = Ordering(schema())
    other.restore(ordering.snapshot())
    assert shown(other.push(batch([(1, "a", 1)], ("a",)), None)) == [], "it knows of a second source"
    assert shown(other.advance(None)) == [(1, "a", 0), (1, "a", 1)]


def test_a_state_that_does_not_fit_is_refused() -> None:
    ordering = Ordering(schema())
    with pytest.raises(DataError, match="the saved order of s is invalid"):
        ordering.restore(b"nonsense")
    with pytest.raises(DataError, match="or other columns"):
        ordering.restore(Ordering(schema(tie_type="DOUBLE")).snapshot())
