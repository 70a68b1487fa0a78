"""Several inputs as one by time: events of each in the columns of all, and a reader over all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from archive.snapshot import HistorySnapshot
from hybrid.rows.reader import Reader
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
    readers: Sequence[tuple[Reader, bool]]

    def read(
        self,
        low_us: int | None,
        high_us: int | None,
        *,
        closed: bool = False,
        keys: Mapping[str, Sequence[Any]] | None = None,
        late: bool = False,
        columns: Collection[str] | None = None,
    ) -> EventBatch:
        """The events with low <= time < high (<= high if closed), in the total order. It is no history, so it is never
        asked for keys; `late` is what `readers` says."""
        assert not keys
        parts = [
            self.merged.events(k, reader.read(low_us, high_us, closed=closed, late=seen))
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
            parts = iter([reader.read(None, None, late=late)])
        yield from (self.merged.events(k, part) for part in parts if len(part))

    def _together(self, parts: Sequence[EventBatch], sources: tuple[str, ...]) -> EventBatch:
        """Events of several inputs in the total order."""
        named = [np.array([sources.index(name) for name in part.sources], np.int32) for part in parts]
        together = EventBatch(
            pa.concat_batches([part.columns for part in parts]),
            np.concatenate([part.ts_us for part in parts]),
            np.concatenate([name[part.source] if len(part) else part.source for name, part in zip(named, parts)]),
            np.concatenate([part.offset for part in parts]),
            np.concatenate([part.seq for part in parts]),
            sources,
        )
        return sort_events(together, self.merged.schema)


def _names(parts: Sequence[EventBatch]) -> tuple[str, ...]:
    """All sources of several batches."""
    return tuple(dict.fromkeys(name for part in parts for name in part.sources))
