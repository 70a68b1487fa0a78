"""The Source protocol, the rows (Piece) and rejected payloads (Bad) that it returns, and its PartitionProgress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from matching.batch import Int64Array


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one partition of a source, in the order of the partition.

    source: the partition, as EventBatch.sources names it: `ticks/3` (topic and partition), the path of a file.
    rows: data for live.incoming.Incoming; the sources of this package give a pa.RecordBatch of the declared types.
    offsets: int64 (n,), ascending, the position of each row in its partition. None if the source has no positions: the
    receiver then counts the rows.
    next: the position after everything read, bad payloads and gaps included; None as above.
    last: this partition sends nothing more; such a piece may be without rows.
    """

    source: str
    rows: Any
    offsets: Int64Array | None
    next: int | None
    last: bool = False


@dataclass(frozen=True, slots=True)
class Bad:
    """A payload, or a row of one, that is not an event of the stream.

    source, offset: its partition and position; offset is None if the source has no positions. raw: its bytes.
    reason: why it was rejected. It counts as read: `Piece.next` goes past it.
    """

    source: str
    offset: int | None
    raw: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """Progress in a partition, in offsets of its server.

    position: the next offset to read; None for the beginning. end: the offset after the last message, None if unknown.
    lost: messages deleted before they were read, counted in this process.
    """

    position: int | None
    end: int | None
    lost: int = 0

    @property
    def lag(self) -> int | None:
        return None if self.end is None else max(self.end - (self.position or 0), 0)


class Source(Protocol):
    """A source of the events of one stream.

    All calls come from one thread, in this order: `open` once, then `poll`, `kept` and `trouble` in any order, then
    `close` once. A client may have its own threads; they never call the reader.

    A source that knows the ends of its partitions also has `places`, which returns a PartitionProgress by partition
    name.

    If a source cannot send events again from a position, events that were returned and are not yet durable are lost
    with the process, unless it withholds the acknowledgement until `kept` (MQTT).
    """

    @property
    def ended(self) -> bool:
        """True if no more events will come: all files that are not followed are read, or the simulation has ended."""
        ...

    @property
    def partitions(self) -> tuple[str, ...]:
        """The assigned partitions, from which events may come at any time; () if partitions are read one by one.
        A watermark that does not wait for them would make the first events of the others late. Complete before `poll`
        returns the first events of any of them."""
        ...

    def open(self, positions: Mapping[str, int]) -> None:
        """Starts reading. positions: the next expected offset of partitions read before; others are read from their
        start, or as configured. An unreachable server is not an error here. Raises DataError for permanent faults: a
        client that is not installed, contradictory settings, a missing file."""
        ...

    def poll(self, seconds: float) -> list[Piece | Bad]:
        """Returns new pieces and bad payloads, waiting about `seconds` at most; [] if nothing came.

        A Bad precedes the piece that goes past it. Raises DataError for permanent faults: deleted events, a replaced
        file. A call that raises returns nothing, and later calls raise again. Temporary faults, such as an unreachable
        broker, are retried without end and reported by `trouble`."""
        ...

    def kept(self, positions: Mapping[str, int]) -> None:
        """Reports that all rows below these offsets are durable: the source may acknowledge them. Never waits."""
        ...

    def trouble(self) -> str | None:
        """Returns the current fault that keeps events from coming, in one line, or None."""
        ...

    def close(self) -> None:
        """Closes files and connections. Does nothing if `open` failed or was not called."""
        ...
