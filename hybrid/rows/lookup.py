"""Reads the columns of matched events again, by time and ingest sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from archive.reader import HistoryReader, RangeRequest
from archive.snapshot import HistorySnapshot
from matching.batch import EventBatch, Int64Array
from query.errors import DataError


def no_longer_kept() -> DataError:
    """Returns the error for matched events that were read again and are missing."""
    return DataError("some matched events are no longer in the archive", "set a longer retention=")


def positions_of(events: EventBatch, seq: np.ndarray) -> Int64Array:
    """Returns the positions of ingest sequences in a batch, int64 (n,). Raises DataError if one is missing."""
    order = np.argsort(events.seq, kind="stable")
    have = events.seq[order]
    at = np.minimum(np.searchsorted(have, seq), len(have) - 1)
    if len(seq) and (not len(have) or (have[at] != seq).any()):
        raise no_longer_kept()
    return order[at]


@dataclass(frozen=True, slots=True)
class ReaderLookup:
    """Reads events again from a snapshot or a bounded input. late: includes late events."""

    reader: HistoryReader
    late: bool

    def __call__(self, seq: np.ndarray, ts_us: np.ndarray) -> pa.Table:
        """Returns the columns of the events with these sequence numbers and times, in that order. Raises DataError for
        events that are no longer in the archive."""
        if not len(seq):
            return pa.Table.from_batches([self.reader.read(RangeRequest(0, 0)).columns])
        if isinstance(self.reader, HistorySnapshot):
            batch = self.reader.read_times(ts_us, RangeRequest(late=self.late))
        else:
            batch = self.between(int(ts_us.min()), int(ts_us.max()))
        return pa.Table.from_batches([batch.columns]).take(pa.array(positions_of(batch, seq)))

    def between(self, low_us: int, high_us: int) -> EventBatch:
        """Returns all events of [low_us, high_us], in the total order."""
        return self.reader.read(RangeRequest(low_us, high_us, closed=True, late=self.late))


def lookup_in(reader: HistoryReader, late: bool = False) -> ReaderLookup:
    """Returns the lookup of a snapshot or a bounded input."""
    return ReaderLookup(reader, late)
