"""What a source of events is: pieces with positions, payloads that are no events, and the six things it can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from matching.batch import Int64Array


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one partition of a source, in the order in which they stand there.

    source: the partition, as EventBatch.sources names it: `ticks/3` (topic and partition), the path of a file.
    rows: what live.incoming.Incoming reads; from our sources a pa.RecordBatch of the declared columns and types.
    offsets: int64 (n,), ascending, the position of each row in its partition; None where the source has no positions:
    then rows are counted by whoever takes them.
    next: the position behind all that was read, bad payloads and gaps included; None as above.
    last: nothing more will come from this partition; such a piece may be without rows.
    """

    source: str
    rows: Any
    offsets: Int64Array | None
    next: int | None
    last: bool = False


@dataclass(frozen=True, slots=True)
class Bad:
    """A payload, or a row of one, that is no event of the stream.

    source, offset: where it stood, offset None where the source has no positions. raw: what stood there. reason: why
    it is no event. It counts as read: `Piece.next` goes past it.
    """

    source: str
    offset: int | None
    raw: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Place:
    """How far a partition is read, in the numbers of its server.

    position: of what is read next; None: its beginning. end: behind the last that it has, None where that is not known.
    lost: how many were gone before they could be read, in this process.
    """

    position: int | None
    end: int | None
    lost: int = 0

    @property
    def lag(self) -> int | None:
        return None if self.end is None else max(self.end - (self.position or 0), 0)


class Source(Protocol):
    """Where the events of one stream come from.

    All calls come from one thread, in this order: `open` once, then `poll`, `kept` and `trouble` in any order, then
    `close` once. A client may have threads of its own; they never call back into ours.

    A source that knows where its partitions end has besides `places`, which gives a Place for each by its name.
    """

    #: Whether it can give events again from a position. Where not, what was handed out and is not yet durable is
    #: lost with the process, unless the source holds it back until `kept` (MQTT).
    resumes: bool

    @property
    def ended(self) -> bool:
        """Nothing more will come: the files that are not followed are read, the simulation is over."""
        ...

    @property
    def partitions(self) -> tuple[str, ...]:
        """Partitions that have been given out to us, from which events may come at any time, whether or not any have.
        A watermark that does not wait for them finds the first events of the others late. They are complete before
        `poll` gives the first events of any of them. () where partitions are read one after the other."""
        ...

    def open(self, positions: Mapping[str, int]) -> None:
        """Begins. positions: for partitions read before, the offset expected next; others are read from their start,
        or as configured. A server that is away is no error here. Raises DataError for what will not mend itself: a
        client that is not installed, settings that contradict each other, a file that is not there."""
        ...

    def poll(self, seconds: float) -> list[Piece | Bad]:
        """What has come, waiting at most about so long for something; [] where nothing came.

        A Bad stands before the piece that passes it. Raises DataError for what will not mend itself: events that are
        gone, a file that was replaced. Nothing is handed out in the same call, and the next call raises again. What
        may mend itself, such as a broker that is away, is tried again without end, and `trouble` says so."""
        ...

    def kept(self, positions: Mapping[str, int]) -> None:
        """All rows below these offsets are durable here: the source may acknowledge them. Never waits."""
        ...

    def trouble(self) -> str | None:
        """What keeps events from coming now, in one line, or None."""
        ...

    def close(self) -> None:
        """Lets go of files and connections. Without effect where `open` failed or was not called."""
        ...
