"""A stream as the input of one statement."""

from __future__ import annotations

from dataclasses import dataclass

from archive.reader import RangeRequest
from archive.snapshot import HistorySnapshot
from matching.batch import TIME_END_US
from query.schema import Schema


@dataclass(frozen=True, slots=True)
class StreamInput:
    """A stream as the input of a statement: one snapshot of archive and memory. late: includes late rows. low_us,
    high_us: a pattern over the stream itself reads low_us <= time < high_us (None: no bound). watermark_us: the time
    before which live queries have matched its events. at_once: they match each event as it comes, also at that time.
    ended: no more events come."""

    schema: Schema
    snapshot: HistorySnapshot
    begins_us: int | None
    late: bool
    low_us: int | None = None
    high_us: int | None = None
    watermark_us: int = -TIME_END_US
    at_once: bool = False
    ended: bool = True

    @property
    def request(self) -> RangeRequest:
        """The events that a pattern over the stream reads, with all columns."""
        return RangeRequest(self.low_us, self.high_us, late=self.late)
