"""A stream as one statement reads it."""

from __future__ import annotations

from dataclasses import dataclass

from archive.snapshot import HistorySnapshot
from query.schema import Schema


@dataclass(frozen=True, slots=True)
class StreamInput:
    """A stream as a statement sees it: one snapshot of its archive and memory, of which patterns over it alone see
    low_us <= time < high_us. late: late rows are seen too."""

    schema: Schema
    snapshot: HistorySnapshot
    begins_us: int | None
    late: bool
    low_us: int | None = None
    high_us: int | None = None
