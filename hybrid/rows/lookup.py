"""Reads the columns of matched events again, by time and ingest sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from archive.reader import HistoryReader, RangeRequest
from archive.snapshot import HistorySnapshot
from matching.batch import EventBatch
from query.errors import DataError


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
            batch = self.reader.read_times(ts_us, late=self.late)
        else:
            batch = self.between(int(ts_us.min()), int(ts_us.max()))
        order = np.argsort(batch.seq, kind="stable")
        have = batch.seq[order]
        at = np.searchsorted(have, seq)
        if not len(have) or (have[np.minimum(at, len(have) - 1)] != seq).any():
            raise DataError("some matched events are no longer in the archive", "set a longer retention=")
        return pa.Table.from_batches([batch.columns]).take(pa.array(order[at]))

    def between(self, low_us: int, high_us: int) -> EventBatch:
        """Returns all events of [low_us, high_us], in the total order."""
        return self.reader.read(RangeRequest(low_us, high_us, closed=True, late=self.late))


def lookup_in(reader: HistoryReader, late: bool = False) -> ReaderLookup:
    """Returns the lookup of a snapshot or a bounded input."""
    return ReaderLookup(reader, late)
