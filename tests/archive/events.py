"""A small stream for the archive's tests: declared once, events as plain tuples, batches made of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch
from matching.types import arrow_schema
from query.schema import Field, Schema

START_US = 1_704_067_200_000_000  # 2024-01-01

TICKS = Schema(
    "ticks",
    (Field("ts", "TIMESTAMP"), Field("symbol", "VARCHAR"), Field("price", "DOUBLE"), Field("rank", "INTEGER")),
    time="ts",
    keys=("symbol",),
    order=("rank",),
    lateness_us=2_000_000,
)


class Event(NamedTuple):
    ts_us: int
    symbol: str | None
    price: float | None
    rank: int | None
    source: str
    offset: int
    seq: int
    late: bool = False


def batch_of(events: list[Event]) -> tuple[EventBatch, np.ndarray]:
    """The arguments of History.append for these events of TICKS."""
    names = tuple(dict.fromkeys(event.source for event in events)) or ("default",)
    ts_us = np.array([event.ts_us for event in events], np.int64)
    columns = [
        pa.array(ts_us).view(pa.timestamp("us")),
        pa.array([event.symbol for event in events], pa.string()),
        pa.array([event.price for event in events], pa.float64()),
        pa.array([event.rank for event in events], pa.int32()),
    ]
    batch = EventBatch(
        pa.RecordBatch.from_arrays(columns, schema=arrow_schema(TICKS)),
        ts_us,
        np.array([names.index(event.source) for event in events], np.int32),
        np.array([event.offset for event in events], np.int64),
        np.array([event.seq for event in events], np.int64),
        names,
    )
    return batch, np.array([event.late for event in events], np.bool_)


def events_of(batch: EventBatch) -> list[Event]:
    """The events of a read, in its order; whether they are late is not in a batch, so False."""
    rows = batch.columns.to_pydict()
    return [
        Event(ts, symbol, price, rank, batch.sources[source], offset, seq)
        for ts, symbol, price, rank, source, offset, seq in zip(
            batch.ts_us.tolist(), rows["symbol"], rows["price"], rows["rank"], batch.source.tolist(),
            batch.offset.tolist(), batch.seq.tolist(),
        )
    ]  # fmt: skip


def run_of(count: int, source: str = "default", first: int = 0, step_us: int = 1_000_000) -> list[Event]:
    """Events of one source in order of time: a day of three symbols in turn, if there are enough."""
    return [
        Event(START_US + i * step_us, "ABC"[i % 3], float(i), None, source, i, i) for i in range(first, first + count)
    ]
