"""The beginning of a live query: the events it reads, and those of them that are kept for a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from archive.reader import RangeRequest
from hybrid.watch.stream import Stream
from matching.batch import EventBatch
from query.errors import DataError

#: Less than any ingest sequence, including those of archived files.
EVER = -(2**62)


@dataclass(frozen=True, slots=True)
class Begun:
    """The beginning of a live query. since: by stream, in lower case, the ingest sequence of the query's first event;
    from_us: the event time of its first event instead, possibly in the past."""

    since: Mapping[str, int]
    from_us: int | None = None

    @staticmethod
    def now(streams: Mapping[str, Stream], from_us: int | None) -> Begun:
        """Returns the beginning at the next event of each stream, or at from_us."""
        return Begun({name: s.live.next_seq for name, s in streams.items()} if from_us is None else {}, from_us)

    def seq(self, stream: str) -> int:
        """Returns the ingest sequence of the first event of a stream that may belong to the query."""
        return self.since.get(stream, EVER)


def events_had(stream: Stream, begun: Begun, needed_us: int | None = None) -> tuple[EventBatch, bool]:
    """Returns the on-time events of a stream that a query has seen up to now, in the total order, and True if they are
    known to be all. needed_us: older events do not matter (None: all matter)."""
    name, from_us = stream.schema.name.lower(), begun.from_us
    end_seq, retention_us, watermark_us = stream.live.next_seq, stream.schema.retention_us, stream.watermark_us
    since_seq = begun.since.get(name, 0)
    reader = stream.kept.snapshot()
    low_us = max((t for t in (from_us, needed_us) if t is not None), default=None)
    if low_us is None:
        kept = sum(int(np.count_nonzero(batch.seq < end_seq)) for batch, _ in reader.since(since_seq))
        whole = kept == end_seq - since_seq and name in begun.since
    else:
        whole = retention_us is None or watermark_us is None or watermark_us - retention_us <= low_us
    events = reader.read(RangeRequest(low_us))
    mine = events.seq < end_seq
    if from_us is None:
        mine &= events.seq >= since_seq
    return events.take(np.flatnonzero(mine)), whole


def cannot_go_on() -> DataError:
    """Returns the error that refuses a new version of a query."""
    return DataError(
        "the new version cannot continue from the old one: events since the old one began are no longer kept",
        "use db.replace(..., fresh=True) to begin with an empty state; a longer retention would keep the events",
    )
