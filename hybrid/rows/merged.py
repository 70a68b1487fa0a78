"""Several inputs as one by time: events of each in the columns of all, and a reader over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from archive.reader import HistoryReader, RangeRequest
from archive.snapshot import HistorySnapshot
from matching.batch import EventBatch
from matching.ordering import sort_events
from matching.types import arrow_schema
from query.plan.merge import Member, positions
from query.schema import Schema


@dataclass(frozen=True, slots=True)
class Merged:
    """The inputs of one `MERGE(a, b)`. schema: the columns of all of them."""

    schema: Schema
    members: tuple[Member, ...]

    def events(self, k: int, batch: EventBatch) -> EventBatch:
        """Events of member k as events of the merged input, in the order given.

        A source is called `stream/source`; the ingest sequence is seq * members + k, so it stays the name of one event.
        Cost: nothing for columns of one type, a pass for others."""
        member, n = self.members[k], len(batch)
        columns: list[pa.Array] = []
        for field, at in zip(arrow_schema(self.schema), positions(self.schema, member.schema)):
            if at is None:
                columns.append(pa.nulls(n, field.type))
            else:
                column = batch.columns.column(at)
                columns.append(column if column.type == field.type else column.cast(field.type))
        columns[0] = pa.repeat(pa.scalar(member.name, columns[0].type), n)
        return EventBatch(
            pa.RecordBatch.from_arrays(columns, schema=arrow_schema(self.schema)), batch.ts_us, batch.source,
            batch.offset, batch.seq * len(self.members) + k, tuple(f"{member.name}/{s}" for s in batch.sources),
        )


@dataclass(frozen=True, slots=True)
class MergedReader:
    """The inputs as one, to be read by time. readers: each with whether its late events are seen."""

    merged: Merged
    readers: Sequence[tuple[HistoryReader, bool]]

    def read(self, request: RangeRequest) -> EventBatch:
        """The events of a range, in the total order. It is no history, so it is never asked for keys; `late` is what
        `readers` says."""
        assert not request.keys
        parts = [
            self.merged.events(k, reader.read(replace(request, late=seen, columns=None)))
            for k, (reader, seen) in enumerate(self.readers)
        ]
        return self._together(parts, _names(parts))

    def batches(self) -> Iterator[EventBatch]:
        """All events in the total order, in batches in which instants are whole, and not all of them in memory."""
        inputs = [self._member(k) for k in range(len(self.readers))]
        rest = [next(events, None) for events in inputs]
        sources = _names([part for part in rest if part is not None])  # of all, so that an index keeps its meaning
        while ahead := [part for part in rest if part is not None]:
            last_us = min(int(part.ts_us[-1]) for part in ahead)  # nothing up to here is still to come
            ready = []
            for k, part in enumerate(rest):
                if part is not None:
                    cut = int(np.searchsorted(part.ts_us, last_us, "right"))
                    ready.append(part.slice(0, cut))
                    rest[k] = part.slice(cut, len(part)) if cut < len(part) else next(inputs[k], None)
            yield self._together(ready, sources)

    def _member(self, k: int) -> Iterator[EventBatch]:
        """The events of one input, in batches that are not empty."""
        reader, late = self.readers[k]
        if isinstance(reader, HistorySnapshot):
            parts: Iterator[EventBatch] = reader.batches(None, None, late=late)
        else:
            parts = iter([reader.read(RangeRequest(late=late))])
        yield from (self.merged.events(k, part) for part in parts if len(part))

    def _together(self, parts: Sequence[EventBatch], sources: tuple[str, ...]) -> EventBatch:
        """Events of several inputs in the total order."""
        return sort_events(EventBatch.concat(parts, sources), self.merged.schema)


def _names(parts: Sequence[EventBatch]) -> tuple[str, ...]:
    """All sources of several batches."""
    return tuple(dict.fromkeys(name for part in parts for name in part.sources))
