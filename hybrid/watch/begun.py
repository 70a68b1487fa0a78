"""Which events are for a live query, and which of them are kept for it to go through once more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from archive.reader import RangeRequest
from hybrid.watch.stream import Stream
from matching.batch import EventBatch
from query.errors import DataError

#: Before the ingest sequence of any event, those of archived files too.
EVER = -(2**62)


@dataclass(frozen=True, slots=True)
class Begun:
    """Where a live query has begun. since: by stream, in lower case, the ingest sequence of the first event that is for
    it; from_us: instead of that, the time of it, which may lie in the past."""

    since: Mapping[str, int]
    from_us: int | None = None

    @staticmethod
    def now(streams: Mapping[str, Stream], from_us: int | None) -> Begun:
        """With the next event of each stream; or at a time."""
        return Begun({name: s.live.next_seq for name, s in streams.items()} if from_us is None else {}, from_us)

    def seq(self, stream: str) -> int:
        """The ingest sequence of the first event of a stream that may be for it."""
        return self.since.get(stream, EVER)


def events_had(stream: Stream, begun: Begun, needed_us: int | None = None) -> tuple[EventBatch, bool]:
    """Returns the on-time events of a stream, in the total order, that a query has had by where the stream is now, and
    whether these are known to be all. needed_us: older ones do not matter (None: all do)."""
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
        "the new version cannot go on where the old one is: events since that began are no longer kept",
        "db.replace(..., fresh=True) begins with an empty state; a longer retention keeps them",
    )
