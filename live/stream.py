"""One live stream as it is taken in: checked rows, places in their sources, sequence numbers, lateness, watermark."""

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

#: Offsets stay below it, so that counting on from one never overflows.
OFFSET_END = 2**62


class Ahead(DataError):
    """Events that are too far ahead of the clock; nothing of the batch was taken. rows: bool (n,), which of its rows
    they are."""

    def __init__(self, message: str, hint: str, rows: BoolArray, reasons: Callable[[int], str]) -> None:
        super().__init__(message, hint)
        self.rows = rows
        #: Of one of them, what is wrong with it.
        self.of = reasons


@dataclass(frozen=True, slots=True)
class Arrival:
    """What one `accept` took.

    batch: the rows in arrival order, without redelivered ones. late: bool (n,), time < watermark on arrival.
    watermark_us: the stream's watermark after these rows, or None as long as it has none.
    """

    batch: EventBatch
    late: BoolArray
    watermark_us: int | None

    @property
    def on_time(self) -> EventBatch:
        """The rows that are not late, in arrival order; the batch itself where all are."""
        return self.batch.take(np.flatnonzero(~self.late)) if self.late.any() else self.batch


class LiveStream:
    """Takes the events of one stream. All or nothing: a batch is accepted whole, or DataError and nothing changed.

    Not thread safe. Nothing is kept of an event once it is handed on.
    first_seq: ingest sequence of the next event. offsets: for sources seen before, the offset expected next.
    watermark_us: where the watermark stood; those sources then hold it until they have gone on (live.watermark).
    driven: only `advance` raises the watermark, as whoever feeds the stream knows what can still come.
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
        # Index of a source in EventBatch.sources; it only grows, so an index given out once keeps its meaning.
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
        """The largest event time of all sources."""
        return self._watermark.newest_us

    def declare(self, schema: Schema) -> None:
        """Takes events of more columns, or with another lateness, from now on; nothing else may differ. The watermark
        stays where it is: a longer lateness lets it wait, a shorter one raises it with the next event."""
        self._incoming = Incoming(schema)
        self.schema = schema
        self._watermark.lateness_us = schema.lateness_us

    @property
    def offsets(self) -> dict[str, int]:
        """For each source the offset expected next."""
        return dict(self._next_offset)

    def accept(
        self, data: object, source: str = "default", offset: int | Int64Array | None = None,
        ceiling_us: int | None = None,
    ) -> Arrival:  # fmt: skip
        """Takes rows (see live.incoming for what they may be) sent by one source, in the order it sent them.

        offset: the position of the first row in its source, or int64 (n,) the position of each, ascending; None goes
        on counting. Rows below the expected offset are a redelivery: dropped and counted (`duplicate_count`). A gap is
        allowed. Late rows are accepted, flagged and counted (`late_count`); `accepted_count` counts all rows taken,
        late ones too. ceiling_us: a row with a later time is refused, by an `Ahead` that says which rows are; one that
        is redelivered has had its verdict.
        Cost: no copy where the columns have the declared types already, otherwise one pass per column.
        """
        if self.ended:
            raise DataError(
                f"stream {self.schema.name} has ended and takes no more events",
                "it was ended by advance(None); create another stream, or leave out that call",
            )
        if not isinstance(source, str) or not _is_text(source):
            raise DataError(f"the source of a push to {self.schema.name} is {source!r}, not a name", "give it as str")
        if offset is not None and not isinstance(offset, np.ndarray) and not _is_offset(offset):
            raise DataError(
                f"the offset of a push to {self.schema.name} is {offset!r}",
                "give the position of the first row in its source, a whole number from 0, or None to go on counting",
            )
        columns, ts_us = self._incoming.read(data)
        if isinstance(offset, np.ndarray) and not _are_offsets(offset, len(ts_us)):
            raise DataError(
                f"the offsets of a push to {self.schema.name} are not {len(ts_us)} ascending whole numbers from 0",
                "give each row its position in its source as int64",
            )

        expected = self._next_offset.get(source, 0)
        if not isinstance(offset, np.ndarray):
            first = expected if offset is None else int(offset)
            offset = np.arange(first, first + len(ts_us), dtype=np.int64)
        repeated = int(np.searchsorted(offset, expected))
        if ceiling_us is not None and repeated < len(ts_us) and int(ts_us[repeated:].max()) > ceiling_us:
            self._refuse(ts_us, repeated, ceiling_us)

        # Nothing from here on may raise: state changes.
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
        """Raises Ahead for the rows beyond the ceiling, from the first one on that is no redelivery."""
        rows = ts_us > ceiling_us
        rows[:repeated] = False
        first, more = int(np.flatnonzero(rows)[0]), int(np.count_nonzero(rows)) - 1

        def reason(row: int) -> str:
            shown, last = (np.datetime_as_string(np.datetime64(int(us), "us")) for us in (ts_us[row], ceiling_us))
            return f"the time {shown} is too far ahead of the clock: max_ahead allows up to {last}"

        raise Ahead(
            f"column {self.schema.time}, row {first}: {reason(first)}"
            + (f"; and so are those of {more:,} more rows" if more else ""),
            "look at the clock and the time zone of whoever sent it: times without a zone are UTC; or allow more",
            rows, reason,
        )  # fmt: skip

    def skip(self, source: str, offset: int) -> None:
        """What a source has sent up to an offset, and is no event of the stream, is behind us: it is not expected
        again."""
        if offset >= self._next_offset.get(source, 0):
            self._next_offset[source] = offset + 1
            if source not in self._source_names:
                self._source_names = (*self._source_names, source)

    def replay(self, batch: EventBatch, late: BoolArray, aside: BoolArray | None = None) -> Arrival:
        """Takes events that were accepted before, with the marks they got, in the order in which they came; they keep
        their places. late: bool (n,). aside: bool (n,), those of them whose times count for nothing."""
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
        """The source that the watermark waits for; None where none counts, or it does not come from the sources."""
        return None if self.driven or self.ended else self._watermark.holder

    @property
    def expected(self) -> tuple[str, ...]:
        """The sources that the watermark waits for because they have sent nothing yet."""
        return self._watermark.expected

    def expect(self, sources: Collection[str]) -> None:
        """These sources will send events: the watermark waits until each has begun, or is called idle."""
        new = [source for source in dict.fromkeys(sources) if source not in self._next_offset]
        self._watermark.expect(new)
        # From now on batches name them: who orders events must not take the first source for the only one.
        self._source_names += tuple(name for name in new if name not in self._source_names)

    def idle(self, sources: Collection[str]) -> None:
        """These sources have been silent for so long that the watermark no longer waits for them."""
        self._watermark.idle(sources)

    def to_dict(self) -> dict[str, Any]:
        """Where it stands, in what JSON can say."""
        return {
            "next_seq": self.next_seq, "offsets": dict(self._next_offset), "sources": self._source_names,
            "watermark": self._watermark.to_dict(),
            "driven": self.driven, "ended": self.ended, "accepted": self.accepted_count, "late": self.late_count,
            "duplicates": self.duplicate_count, "lateness_us": self.schema.lateness_us,
        }  # fmt: skip

    @staticmethod
    def from_dict(schema: Schema, kept: Mapping[str, Any]) -> LiveStream:
        """One that stands where `to_dict` says."""
        found = LiveStream(schema, kept["next_seq"], kept["offsets"])
        found._source_names = tuple(kept["sources"])
        found._watermark = Watermark.from_dict(schema.lateness_us, kept["watermark"])
        found.driven, found.ended = kept["driven"], kept["ended"]
        found.accepted_count, found.late_count = kept["accepted"], kept["late"]
        found.duplicate_count = kept["duplicates"]
        return found

    def advance(self, t_us: int | None) -> None:
        """Raises the watermark to t_us (a lower one changes nothing); None ends the stream: it takes no more events."""
        if t_us is None:
            self.ended = True
        else:
            self._watermark.raise_to(int(t_us))


def _is_text(name: str) -> bool:
    """Whether a name can be written down: half of a pair of surrogates cannot."""
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
