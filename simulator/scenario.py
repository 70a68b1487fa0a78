"""A scenario: events in order of arrival, a query, its exact answer, and the planted cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from query.schema import Schema

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US

#: 2024-03-01 00:00 UTC, the beginning of all scenarios.
START_US = 1_709_251_200 * SECOND_US

TIMESTAMP = pa.timestamp("us")


class ArrivingBatch(NamedTuple):
    """An arriving batch: row i is the event (stream, source, offset + i). Offsets of a source begin at 0."""

    stream: str
    source: str
    offset: int
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Scenario:
    """Events with a known answer.

    arrivals: in order of arrival; no row is late under the lateness of its schema, and redelivered rows keep their
    offsets. query: the text of the query. truth: its exact answer, one row per output row, with the columns of `query`,
    sorted. cases: the planted cases, one row each: `kind`, the columns that identify the case, and `expected`, True if
    it is in the answer.
    """

    name: str
    seed: int
    schemas: tuple[Schema, ...]
    arrivals: tuple[ArrivingBatch, ...]
    query: str
    truth: pa.Table
    cases: pa.Table

    @property
    def kinds(self) -> dict[str, int]:
        """Kind -> number of planted cases, sorted by name."""
        return dict(sorted(Counter(self.cases["kind"].to_pylist()).items()))

    def events(self, stream: str) -> pa.Table:
        """Returns every event once, with the declared columns, in total order: (time, tie columns, source, offset)."""
        schema = next(s for s in self.schemas if s.name == stream)
        rows = pa.concat_tables(_identified(a) for a in self.arrivals if a.stream == stream)
        numbered_rows = rows.append_column("_row", pa.array(np.arange(rows.num_rows)))
        first = numbered_rows.group_by(["_source", "_offset"]).aggregate([("_row", "min")])  # drops redeliveries
        rows = rows.take(first["_row_min"])
        order = [(name, "ascending") for name in (schema.time, *schema.order, "_source", "_offset") if name]
        return rows.sort_by(order).select(list(schema.names))


def _identified(arrival: ArrivingBatch) -> pa.Table:
    """Returns the rows of an arrival with their source and offset."""
    n = arrival.batch.num_rows
    return (
        pa.Table.from_batches([arrival.batch])
        .append_column("_source", pa.array([arrival.source] * n, pa.string()))
        .append_column("_offset", pa.array(np.arange(arrival.offset, arrival.offset + n)))
    )


def generator(seed: int) -> np.random.Generator:
    """Returns the random generator of a seed, the only source of randomness in this package."""
    return np.random.Generator(np.random.PCG64(seed))


def numbered(prefix: str, numbers: Sequence[int] | np.ndarray, digits: int) -> pa.Array:
    """Returns names such as `tag00042`, one per number."""
    text = pc.utf8_lpad(pa.array(numbers, pa.int64()).cast(pa.string()), digits, "0")
    return pc.binary_join_element_wise(pa.scalar(prefix), text, "")


def in_batches(stream: str, source: str, table: pa.Table, rows_max: int) -> tuple[ArrivingBatch, ...]:
    """Returns a table as arrivals of one source that sends its rows in order, without a copy."""
    arrivals = []
    offset = 0
    for batch in table.to_batches(max_chunksize=rows_max):
        arrivals.append(ArrivingBatch(stream, source, offset, batch))
        offset += batch.num_rows
    return tuple(arrivals)
