"""The late events of a stream: archived, and never matched by live queries."""

from __future__ import annotations

import os
import threading
from collections import deque
from datetime import timedelta

import numpy as np
import pyarrow as pa

from archive.forks import check_process
from archive.recent import BoolArray
from hybrid.rows.result import ArrowRows
from hybrid.rows.times import show_duration, show_us
from live.stream import Arrival
from matching.batch import EventBatch
from query.schema import Schema

#: Maximum number of held events that nobody has fetched.
HELD_MAX = 100_000
#: Number of recent events over which the share of late ones is computed, up to a push more or less; fewer than
#: LATELY_MIN give no share.
LATELY, LATELY_MIN = 1000, 20


class LateShare:
    """The share of late events among the last LATELY events of a stream, or among all since it was opened."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: deque[tuple[int, int]] = deque([(0, 0)])

    def add(self, events: int, late: int) -> None:
        """Adds a number of events, and how many of them were late."""
        counts = self._counts
        counts.append((counts[-1][0] + events, counts[-1][1] + late))
        while len(counts) > 2 and counts[-1][0] - counts[1][0] >= LATELY:
            counts.popleft()

    @property
    def counts(self) -> tuple[int, int]:
        """Returns the number of events and the number of late ones among them."""
        (all_before, late_before), (all_now, late_now) = self._counts[0], self._counts[-1]
        return all_now - all_before, late_now - late_before


def late_schema(columns: pa.Schema) -> pa.Schema:
    """Returns the columns of a stream, and those of an event's source and offset."""
    return columns.append(pa.field("_source", pa.string())).append(pa.field("_offset", pa.int64()))


def late_table(batch: EventBatch, late: BoolArray) -> pa.Table:
    """Returns the late events of a batch, with `_source` and `_offset`. late: bool (n,)."""
    events = batch.take(np.flatnonzero(late))
    names = pa.array(events.sources, pa.string()).take(pa.array(events.source))
    columns = [*events.columns.columns, names, pa.array(events.offset)]
    return pa.Table.from_arrays(columns, schema=late_schema(events.columns.schema))


def why_not_seen(schema: Schema, arrival: Arrival) -> str:
    """Returns a warning about late events that only the archive gets."""
    first_us = int(arrival.batch.ts_us[np.argmax(arrival.late)])
    behind = timedelta(microseconds=(arrival.watermark_us or first_us) - first_us)
    return (
        f"stream {schema.name}: an event of {show_us(first_us)} came late, {behind} behind the watermark, with a "
        f"lateness of {show_duration(schema.lateness_us)}: it is archived, and no live query sees it\n"
        f"hint: alter_stream({schema.name!r}, lateness=...) waits longer for later events, "
        f"late({schema.name!r}), called before they come, collects late ones; this is said once"
    )


class LateEvents:
    """Late events since the first request for them, in order of arrival. After a restart those come again that were not
    fetched before the last checkpoint.

    May be read from another thread than the pushing one. dropped: number of events dropped because nobody fetched them;
    they are archived all the same."""

    def __init__(self, columns: pa.Schema) -> None:
        self.schema = late_schema(columns)
        self.dropped = 0
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._held: list[tuple[int, pa.Table]] = []  # with the ingest sequence of the first event
        self._count = 0

    def add(self, batch: EventBatch, late: BoolArray) -> None:
        """Adds the events of a push; called by the flow. late: bool (n,)."""
        events = late_table(batch, late)
        self.schema = events.schema  # the stream may have got columns
        with self._lock:
            self._held.append((int(batch.seq[np.argmax(late)]), events))
            self._count += events.num_rows
            while self._count > HELD_MAX and len(self._held) > 1:
                gone = self._held.pop(0)[1].num_rows
                self._count -= gone
                self.dropped += gone

    def fetch(self) -> ArrowRows:
        """Returns the events since the last fetch: the declared columns, `_source` and `_offset`. Raises DataError in a
        child after a fork."""
        return ArrowRows(self.take())

    def take(self) -> pa.Table:
        """Returns the events of `fetch` as a plain Arrow table, for what goes on with them."""
        check_process("the database of these events", self._process)
        with self._lock:
            held, self._held, self._count = self._held, [], 0
        tables = [events for _, events in held]
        return pa.concat_tables(tables, promote_options="default") if held else self.schema.empty_table()

    def since(self, next_seq: int) -> int:
        """Returns the ingest sequence from which late events are not fetched yet. next_seq: of the next event."""
        with self._lock:
            return self._held[0][0] if self._held else next_seq
