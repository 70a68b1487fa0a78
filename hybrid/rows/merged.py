"""MERGE: several inputs as one in time order, in the columns of all, and a reader of them."""

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
from query.plan.merge import MergedInput, positions
from query.schema import Schema


@dataclass(frozen=True, slots=True)
class Merged:
    """The inputs of one `MERGE(a, b)`. schema: the columns of all inputs."""

    schema: Schema
    members: tuple[MergedInput, ...]

    def events(self, k: int, batch: EventBatch) -> EventBatch:
        """Returns events of member k as events of the merged input, in the same order.

        Sources are named `stream/source`. The ingest sequence is seq * members + k, so it stays unique. Columns of
        equal type are not copied, others are cast."""
        member, n = self.members[k], len(batch)
        columns: list[pa.Array] = []
        for field, at in zip(arrow_schema(self.schema), member.places or positions(self.schema, member.schema)):
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
    """Reads the merged inputs by time. readers: one per input, with what is read of it in batches: its range, and late
    events or not."""

    merged: Merged
    readers: Sequence[tuple[HistoryReader, RangeRequest]]

    def read(self, request: RangeRequest) -> EventBatch:
        """Returns the events of a range, in the total order. The request has no keys, as merged inputs are not a
        history; `late` comes from `readers`."""
        assert not request.keys
        parts = [
            self.merged.events(k, reader.read(replace(request, late=own.late, columns=None)))
            for k, (reader, own) in enumerate(self.readers)
        ]
        return self._together(parts, _names(parts))

    def batches(self) -> Iterator[EventBatch]:
        """Yields all events in the total order, a few batches in memory at a time. No batch splits an instant."""
        inputs = [self._member(k) for k in range(len(self.readers))]
        rest = [next(events, None) for events in inputs]
        sources = _names([part for part in rest if part is not None])  # of all inputs, so that indices stay valid
        while ahead := [part for part in rest if part is not None]:
            last_us = min(int(part.ts_us[-1]) for part in ahead)  # all events up to here are read
            ready = []
            for k, part in enumerate(rest):
                if part is not None:
                    cut = int(np.searchsorted(part.ts_us, last_us, "right"))
                    ready.append(part.slice(0, cut))
                    rest[k] = part.slice(cut, len(part)) if cut < len(part) else next(inputs[k], None)
            yield self._together(ready, sources)

    def _member(self, k: int) -> Iterator[EventBatch]:
        """Yields the events of one input, in non-empty batches."""
        reader, request = self.readers[k]
        if isinstance(reader, HistorySnapshot):
            parts: Iterator[EventBatch] = reader.batches(request)
        else:
            parts = iter([reader.read(request)])
        yield from (self.merged.events(k, part) for part in parts if len(part))

    def _together(self, parts: Sequence[EventBatch], sources: tuple[str, ...]) -> EventBatch:
        """Returns events of several inputs in the total order."""
        return sort_events(EventBatch.concat(parts, sources), self.merged.schema)


def _names(parts: Sequence[EventBatch]) -> tuple[str, ...]:
    """Returns the source names of several batches, each once."""
    return tuple(dict.fromkeys(name for part in parts for name in part.sources))
