"""One live stream: checks rows, assigns offsets and sequence numbers, flags late rows, keeps the watermark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from live.incoming import Incoming
from live.watermark import BoolArray, Watermark
from matching.batch import EventBatch, Int64Array
from query.errors import DataError
from query.schema import Schema

#: Upper bound of offsets: counting on from a lower one never overflows.
OFFSET_END = 2**62


class Ahead(DataError):
    """Events are too far ahead of the clock; the whole batch was rejected. rows: bool (n,), True for such rows."""

    def __init__(self, message: str, hint: str, rows: BoolArray, reasons: Callable[[int], str]) -> None:
        super().__init__(message, hint)
        self.rows = rows
        #: Returns the reason for the row of that index.
        self.of = reasons


@dataclass(frozen=True, slots=True)
class Arrival:
    """Rows taken by one `accept`.

    batch: the rows in arrival order, without redelivered ones. late: bool (n,), time < watermark on arrival.
    watermark_us: the stream's watermark after these rows, or None if it has none yet.
    """

    batch: EventBatch
    late: BoolArray
    watermark_us: int | None

    @property
    def on_time(self) -> EventBatch:
        """Returns the rows that are not late, in arrival order; the batch itself if no row is late."""
        return self.batch.take(np.flatnonzero(~self.late)) if self.late.any() else self.batch


class LiveStream:
    """Takes the events of one stream. A batch is accepted whole, or DataError is raised and nothing changes.

    Not thread safe. Events are not kept after they are returned.
    first_seq: ingest sequence of the next event. offsets: next expected offset of each source seen before.
    watermark_us: the watermark to resume from; the sources of `offsets` hold it until they send later events
    (live.watermark).
    driven: only `advance` raises the watermark, because the feeder knows which events can still come.
    Raises DataError for a schema without a time column of a time type.
    """

    __slots__ = (
        "_incoming", "_next_offset", "_source_names", "_watermark", "accepted_count", "driven",
        "duplicate_count", "ended", "late_count", "next_seq", "schema",
    )  # fmt: skip

    def __init__(
        self,
        schema: Schema,
        first_seq: int = 0,
        offsets: Mapping[str, int] | None = None,
        watermark_us: int | None = None,
    ) -> None:
        self.schema = schema
        self._incoming = Incoming(schema)
        self._next_offset: dict[str, int] = dict(offsets or {})
        # Position in it: index of the source in EventBatch.sources. It only grows, so an index keeps its meaning.
        self._source_names: tuple[str, ...] = tuple(self._next_offset)
        self._watermark = Watermark(schema.lateness_us, watermark_us, self._source_names)
        self.next_seq = first_seq
        self.driven = False
        self.ended = False
        self.accepted_count = 0
        self.late_count = 0
        self.duplicate_count = 0

    @property
    def watermark_us(self) -> int | None:
        return self._watermark.value_us

    @property
    def columns(self) -> pa.Schema:
        """The declared columns."""
        return self._incoming.arrow_schema

    @property
    def newest_us(self) -> int | None:
        """The largest event time of all sources; None before the first event."""
        return self._watermark.newest_us

    def declare(self, schema: Schema) -> None:
        """Replaces the schema by one with more columns or another lateness; nothing else may differ. The watermark
        keeps its value: a longer lateness makes it wait, a shorter one raises it with the next event."""
        self._incoming = Incoming(schema)
        self.schema = schema
        self._watermark.lateness_us = schema.lateness_us

    @property
    def offsets(self) -> dict[str, int]:
        """Returns the next expected offset of each source."""
        return dict(self._next_offset)

    def accept(
        self, data: object, source: str = "default", offset: int | Int64Array | None = None,
        ceiling_us: int | None = None,
    ) -> Arrival:  # fmt: skip
        """Takes rows sent by one source, in the order of sending (live.incoming lists the forms of data).

        offset: the position of the first row in its source, or int64 (n,) the position of each, ascending; None
        continues the count. Rows below the expected offset are redelivered: dropped and counted (`duplicate_count`).
        Gaps are allowed. Late rows are accepted, flagged and counted (`late_count`); `accepted_count` includes them.
        ceiling_us: the batch is rejected by `Ahead` if a row has a later time; redelivered rows are not checked again.
        Cost: no copy if the columns have the declared types, otherwise one pass per column.
        """
        if self.ended:
            raise DataError(
                f"stream {self.schema.name} has ended and accepts no more events",
                "advance(None) ended it; create another stream, or leave out that call",
            )
        if not isinstance(source, str) or not _is_text(source):
            message = f"invalid source of a push to {self.schema.name}: {source!r}"
            raise DataError(message, "give a name as str, without lone surrogates")
        if offset is not None and not isinstance(offset, np.ndarray) and not _is_offset(offset):
            raise DataError(
                f"invalid offset of a push to {self.schema.name}: {offset!r}",
                "give the position of the first row in its source, an integer from 0, or None to continue the count",
            )
        columns, ts_us = self._incoming.read(data)
        if isinstance(offset, np.ndarray) and not _are_offsets(offset, len(ts_us)):
            raise DataError(
                f"the offsets of a push to {self.schema.name} are not {len(ts_us)} ascending integers from 0",
                "give the position of each row in its source as int64",
            )

        expected = self._next_offset.get(source, 0)
        if not isinstance(offset, np.ndarray):
            first = expected if offset is None else int(offset)
            offset = np.arange(first, first + len(ts_us), dtype=np.int64)
        repeated = int(np.searchsorted(offset, expected))
        if ceiling_us is not None and repeated < len(ts_us) and int(ts_us[repeated:].max()) > ceiling_us:
            self._refuse(ts_us, repeated, ceiling_us)

        # State changes from here on: nothing below may raise.
        if repeated:
            columns, ts_us, offset = columns.slice(repeated), ts_us[repeated:], offset[repeated:]
            self.duplicate_count += repeated
        n = len(ts_us)
        if n and source not in self._source_names:
            self._source_names = (*self._source_names, source)
        index = self._source_names.index(source) if n else 0
        batch = EventBatch(
            columns,
            ts_us,
            np.zeros(n, np.int32) if index == 0 else np.full(n, index, np.int32),
            offset,
            np.arange(self.next_seq, self.next_seq + n, dtype=np.int64),
            self._source_names,
        )
        late = self._watermark.behind(ts_us) if self.driven else self._watermark.observe(source, ts_us)
        if n:
            self._next_offset[source] = int(offset[-1]) + 1
        self.next_seq += n
        self.accepted_count += n
        self.late_count += int(np.count_nonzero(late))
        return Arrival(batch, late, self._watermark.value_us)

    def _refuse(self, ts_us: Int64Array, repeated: int, ceiling_us: int) -> NoReturn:
        """Raises Ahead for the rows after the ceiling. repeated: number of redelivered rows at the front; they pass."""
        rows = ts_us > ceiling_us
        rows[:repeated] = False
        first, more = int(np.flatnonzero(rows)[0]), int(np.count_nonzero(rows)) - 1

        def reason(row: int) -> str:
            shown, last = (np.datetime_as_string(np.datetime64(int(us), "us")) for us in (ts_us[row], ceiling_us))
            return f"the time {shown} is too far ahead of the clock: max_ahead allows up to {last}"

        raise Ahead(
            f"column {self.schema.time}, row {first}: {reason(first)}"
            + (f" (and {more:,} more rows)" if more else ""),
            "check the clock and the time zone of the sender: times without a zone are UTC; or raise max_ahead",
            rows, reason,
        )  # fmt: skip

    def skip(self, source: str, offset: int) -> None:
        """Marks a source's offsets up to and including this one as read, without an event: `offsets` goes past them."""
        if offset >= self._next_offset.get(source, 0):
            self._next_offset[source] = offset + 1
            if source not in self._source_names:
                self._source_names = (*self._source_names, source)

    def replay(self, batch: EventBatch, late: BoolArray, aside: BoolArray | None = None) -> Arrival:
        """Takes events that were accepted before, in arrival order, with their recorded sources, offsets and sequence
        numbers. late: bool (n,), the recorded verdicts. aside: bool (n,), rows that must not raise the watermark."""
        for name in batch.sources:
            if name not in self._source_names:
                self._source_names = (*self._source_names, name)
        cuts = np.flatnonzero(np.diff(batch.source)) + 1
        for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(batch)]):
            if begin < end:
                source = batch.sources[batch.source[begin]]
                if not self.driven:
                    ts_us = batch.ts_us[begin:end]
                    self._watermark.observe(source, ts_us if aside is None else ts_us[~aside[begin:end]])
                self._next_offset[source] = int(batch.offset[end - 1]) + 1
        if len(batch):
            self.next_seq = int(batch.seq[-1]) + 1
        self.accepted_count += len(batch)
        self.late_count += int(np.count_nonzero(late))
        code = np.array([self._source_names.index(name) for name in batch.sources], np.int32)
        named = EventBatch(
            batch.columns, batch.ts_us, code[batch.source], batch.offset, batch.seq, self._source_names
        )
        return Arrival(named, late, self._watermark.value_us)

    @property
    def holder(self) -> str | None:
        """The source that the watermark waits for; None if there is none, or if the stream is driven or has ended."""
        return None if self.driven or self.ended else self._watermark.holder

    @property
    def expected(self) -> tuple[str, ...]:
        """The announced sources that the watermark waits for because they have sent nothing yet."""
        return self._watermark.expected

    def expect(self, sources: Collection[str]) -> None:
        """Announces sources that will send events: the watermark waits until each has sent one or is declared idle."""
        new = [source for source in dict.fromkeys(sources) if source not in self._next_offset]
        self._watermark.expect(new)
        # Batches name them from now on: ordering must not take the first source for the only one.
        self._source_names += tuple(name for name in new if name not in self._source_names)

    def idle(self, sources: Collection[str]) -> None:
        """Declares sources idle: the watermark no longer waits for them until their next event."""
        self._watermark.idle(sources)

    def to_dict(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        return {
            "next_seq": self.next_seq, "offsets": dict(self._next_offset), "sources": self._source_names,
            "watermark": self._watermark.to_dict(),
            "driven": self.driven, "ended": self.ended, "accepted": self.accepted_count, "late": self.late_count,
            "duplicates": self.duplicate_count, "lateness_us": self.schema.lateness_us,
        }  # fmt: skip

    @staticmethod
    def from_dict(schema: Schema, kept: Mapping[str, Any]) -> LiveStream:
        """Restores a stream from the state that `to_dict` returned."""
        found = LiveStream(schema, kept["next_seq"], kept["offsets"])
        found._source_names = tuple(kept["sources"])
        found._watermark = Watermark.from_dict(schema.lateness_us, kept["watermark"])
        found.driven, found.ended = kept["driven"], kept["ended"]
        found.accepted_count, found.late_count = kept["accepted"], kept["late"]
        found.duplicate_count = kept["duplicates"]
        return found

    def advance(self, t_us: int | None) -> None:
        """Raises the watermark to t_us; a lower value changes nothing. None ends the stream for good."""
        if t_us is None:
            self.ended = True
        else:
            self._watermark.raise_to(int(t_us))


def _is_text(name: str) -> bool:
    """True if a name can be encoded as UTF-8: a lone surrogate cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_offset(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= int(value) < OFFSET_END


def _are_offsets(offsets: Int64Array, count: int) -> bool:
    if offsets.shape != (count,) or offsets.dtype != np.int64:
        return False
    return not count or bool(offsets[0] >= 0 and offsets[-1] < OFFSET_END and (offsets[1:] > offsets[:-1]).all())
