"""Format of a log segment: a head, then frames, each with a checksum of its header and of its payload.

The head is MAGIC, the format number, the segment number, the number of the first frame, and the CRC-32 of these. Then
follow the number of the next expected frame, overwritten after each append, and its CRC-32: they reveal a truncated
file and tell an unfinished append from damage. A frame is FRAME, a tag, its number, the length of its payload, the
CRC-32 of the payload, the CRC-32 of these fields, and the payload. Numbers are little-endian.
Frames are numbered without a gap through all segments, which reveals missing ones. If a length is damaged, the next
frame is found by its magic. Frames with numbers from the next segment's first one on are ignored: their append failed.

| tag | payload |
|---|---|
| `SCHM` | an Arrow schema: the declared columns of the following rows of this segment; its first frame |
| `ROWS` | length (4 bytes) and text of a JSON object, padded to 8 bytes, then an Arrow record batch of events |
| `MARK` | a watermark, 8 bytes |
| `SKIP` | a JSON object: a `source`, and an `offset` up to which it had no further events |
| `NEXT` | the number of the following segment, 8 bytes; not counted as a frame |
| `LOST` | a JSON object: entries that a repair could not read; replaces their frames |

The optional metadata `seq` of a schema: events before this ingest sequence are in files or in earlier segments. It
reveals events lost from the archive even if the log of a closed database is empty.

The object of `ROWS` has the values common to all rows: `rows` (their number); `seq` and `offset` (of the first row, if
the others count on from it); `source`; `late`. An absent member is a column (`_seq`, `_offset`, `_source`, `_late`)
after the declared ones, listed in `extra`. A column `_ts` has event times that the time column cannot express.

Format 0 (earlier releases) has no head. Its frames are length and CRC-32 of the payload (4 bytes each), then a letter
and its content: S an Arrow schema, R a batch of stored columns, W a watermark.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from archive.layout import LATE, OFFSET, SEQ, SOURCE, from_stored_rows, time_name
from archive.recent import BoolArray
from matching.batch import EventBatch, Int64Array
from matching.types import arrow_schema
from query.errors import DataError
from query.schema import Schema

FORMAT = 1
MAGIC = b"hybrid log\r\n"
FRAME = b"\xf5HL\n"
SUFFIX = ".log"

SCHEMA, ROWS, MARK, SKIP, NEXT, LOST = b"SCHM", b"ROWS", b"MARK", b"SKIP", b"NEXT", b"LOST"
_HEAD = struct.Struct("<12sIQQI4x")
_COUNT = struct.Struct("<QI4x")
_FRAME = struct.Struct("<4s4sQQII")
_FRAME_0 = struct.Struct("<II")
#: Positions of the count and of the first frame in a segment.
COUNT_AT = _HEAD.size
_BEGIN = _HEAD.size + _COUNT.size
_TAGS_0 = {b"S": SCHEMA, b"R": ROWS, b"W": MARK}
#: Possible beginning of a frame of format 0: a header followed by an Arrow message or a watermark.
_LIKE_FRAME_0 = re.compile(rb"(?s)........[SR]\xff\xff\xff\xff|\x09\x00\x00\x00....W")
_TS = "_ts"
_SEQ = b"seq"
_EXTRA = {SEQ: pa.int64(), OFFSET: pa.int64(), SOURCE: pa.string(), LATE: pa.bool_(), _TS: pa.int64()}

#: Any object with the buffer protocol, Arrow's buffers included.
Buffer: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Frame:
    """A complete frame. at, end: its byte range in the segment. number: None in format 0."""

    number: int | None
    tag: bytes
    at: int
    end: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as read. first: number of its first frame, None if the head is damaged. count: number of the next
    expected frame after the last append, None if unknown. frames: the complete ones, in order."""

    path: Path
    number: int
    format: int
    first: int | None
    count: int | None
    frames: tuple[Frame, ...]
    data: bytes

    @property
    def end(self) -> int:
        """End of its last complete frame, in bytes."""
        return self.frames[-1].end if self.frames else min(_BEGIN, len(self.data)) if self.format else 0


@dataclass(frozen=True, slots=True)
class LoggedRows:
    """Events of one frame, in order of arrival. late: bool (n,)."""

    batch: EventBatch
    late: BoolArray


# ---- writing


def head(segment: int, first: int) -> bytes:
    said = _HEAD.pack(MAGIC, FORMAT, segment, first, 0)
    return _HEAD.pack(MAGIC, FORMAT, segment, first, zlib.crc32(said[: _HEAD.size - 8])) + count(first)


def count(expected: int) -> bytes:
    """Returns the bytes at COUNT_AT: the number of the next expected frame, and its CRC-32."""
    return _COUNT.pack(expected, zlib.crc32(expected.to_bytes(8, "little")))


def frame(number: int, tag: bytes, *parts: Buffer) -> list[Buffer]:
    """Returns a frame to write: its header and the unchanged parts of its payload."""
    length = crc = 0
    for part in parts:
        length += memoryview(part).nbytes
        crc = zlib.crc32(part, crc)
    said = _FRAME.pack(FRAME, tag, number, length, crc, 0)
    return [_FRAME.pack(FRAME, tag, number, length, crc, zlib.crc32(said[:-4])), *parts]


def schema_frame(number: int, schema: Schema, seq: int | None = None) -> list[Buffer]:
    """Returns a schema frame. seq: its metadata `seq`, or None."""
    columns = arrow_schema(schema)
    return frame(number, SCHEMA, (columns if seq is None else columns.with_metadata({_SEQ: str(seq)})).serialize())


def seq_of(columns: pa.Schema) -> int:
    """Returns the metadata `seq` of a schema frame; -1 without it."""
    return int((columns.metadata or {}).get(_SEQ, -1))


def mark_frame(number: int, watermark_us: int) -> list[Buffer]:
    return frame(number, MARK, struct.pack("<q", watermark_us))


def skip_frame(number: int, source: str, offset: int) -> list[Buffer]:
    return frame(number, SKIP, _padded(json.dumps({"source": source, "offset": offset}).encode()))


def next_frame(number: int, segment: int) -> list[Buffer]:
    return frame(number, NEXT, struct.pack("<q", segment))


def lost_frame(number: int, said: dict[str, Any]) -> list[Buffer]:
    return frame(number, LOST, _padded(json.dumps(said).encode()))


def rows_frame(number: int, batch: EventBatch, late: BoolArray, timed: bool) -> list[Buffer]:
    """Returns a frame of events. late: bool (n,). timed: True if the time column gives the event times
    (`tells_time`)."""
    n = len(batch)
    same: dict[str, Any] = {"rows": n}
    extra: dict[str, pa.Array] = {}
    for key, name, values in (("seq", SEQ, batch.seq), ("offset", OFFSET, batch.offset)):
        if n == 1 or (values[-1] - values[0] == n - 1 and bool((values[1:] - values[:-1] == 1).all())):
            same[key] = int(values[0])
        else:
            extra[name] = pa.array(values)
    code = batch.source
    if n == 1 or not (code != code[0]).any():
        same["source"] = batch.sources[code[0]]
    else:
        extra[SOURCE] = pa.DictionaryArray.from_arrays(pa.array(code), pa.array(batch.sources)).cast(pa.string())
    some = bool(late[0]) if n == 1 else bool(late.any())
    if some == bool(late[0]) and (n == 1 or not some or bool(late.all())):
        same["late"] = some
    else:
        extra[LATE] = pa.array(late, pa.bool_())
    if not timed:
        extra[_TS] = pa.array(batch.ts_us)
    columns = batch.columns
    if extra:
        same["extra"] = list(extra)
        columns = pa.RecordBatch.from_arrays(
            [*columns.columns, *extra.values()],
            schema=pa.schema([*columns.schema, *((name, _EXTRA[name]) for name in extra)]),
        )
    text = json.dumps(same).encode()
    said = _padded(struct.pack("<I", len(text)) + text)
    return frame(number, ROWS, said, columns.serialize())


def _padded(text: bytes) -> bytes:
    return text + b" " * (-len(text) % 8)


def tells_time(schema: Schema) -> bool:
    """Returns True if the time column stores event times exactly, in microseconds."""
    type = arrow_schema(schema).field(time_name(schema)).type
    return bool(pa.types.is_timestamp(type) and type.unit == "us")


# ---- reading


def number_of(path: Path) -> int:
    return int(path.stem)


def segments(directory: Path) -> list[Path]:
    """Returns the paths of the segments in a directory, oldest first."""
    if not directory.is_dir():
        return []
    return sorted((p for p in directory.glob(f"*{SUFFIX}") if p.stem.isdigit()), key=number_of)


def read_segment(path: Path) -> Segment:
    """Reads a segment. Raises DataError for a newer format, and OSError."""
    data = path.read_bytes()
    number = number_of(path)
    if len(data) >= _HEAD.size:
        magic, format, _, first, crc = _HEAD.unpack_from(data)
        if magic == MAGIC and zlib.crc32(data[: _HEAD.size - 8]) == crc:
            if format > FORMAT:
                raise DataError(
                    f"{path} is a log of format {format}; this program reads formats up to {FORMAT}",
                    "open the database with the release that wrote it",
                )
            return Segment(path, number, format, first, _count_of(data), tuple(_frames(data)), data)
    found = tuple(_frames(data))
    older = () if found else tuple(_frames_0(data))
    if older:
        return Segment(path, number, 0, None, None, older, data)
    return Segment(path, number, FORMAT, None, None, found, data)


def _count_of(data: bytes) -> int | None:
    if len(data) < _BEGIN:
        return None
    expected, crc = _COUNT.unpack_from(data, COUNT_AT)
    return expected if zlib.crc32(data[COUNT_AT : COUNT_AT + 8]) == crc else None


def _frames(data: bytes) -> Iterator[Frame]:
    """Yields the complete frames; after damage continues at the next frame found by its magic."""
    view = memoryview(data)
    at = data.find(FRAME)
    while at >= 0:
        found = _frame_at(view, at)
        if found is None:
            at = data.find(FRAME, at + 1)
            continue
        yield found
        at = data.find(FRAME, found.end)


def _frame_at(data: memoryview, at: int) -> Frame | None:
    if at + _FRAME.size > len(data):
        return None
    magic, tag, number, length, crc, own = _FRAME.unpack_from(data, at)
    if magic != FRAME or zlib.crc32(data[at : at + _FRAME.size - 4]) != own:
        return None
    begin = at + _FRAME.size
    payload = data[begin : begin + length]
    if len(payload) < length or zlib.crc32(payload) != crc:
        return None
    return Frame(number, tag, at, begin + length, payload)


def _frames_0(data: bytes) -> Iterator[Frame]:
    """Yields the complete frames of format 0; after damage searches for bytes like the beginning of a frame, because
    frames have no magic."""
    view = memoryview(data)
    at = 0
    while at >= 0:
        found = _frame_0_at(view, at)
        if found is not None:
            yield found
            at = found.end
        else:
            near = _LIKE_FRAME_0.search(data, at + 1)
            at = -1 if near is None else near.start()


def _frame_0_at(data: memoryview, at: int) -> Frame | None:
    if at + _FRAME_0.size >= len(data):
        return None
    length, crc = _FRAME_0.unpack_from(data, at)
    begin = at + _FRAME_0.size
    tag = _TAGS_0.get(bytes(data[begin : begin + 1]))
    if tag is None or not 0 < length <= len(data) - begin or zlib.crc32(data[begin : begin + length]) != crc:
        return None
    return Frame(None, tag, at, begin + length, data[begin + 1 : begin + length])


def is_unfinished_0(data: bytes, at: int) -> bool:
    """Returns True if the rest of a segment of format 0 is an unfinished frame."""
    if at + _FRAME_0.size > len(data) or not any(data[at:]):
        return True
    length, _ = _FRAME_0.unpack_from(data, at)
    return at + _FRAME_0.size + length > len(data)


def said_of(payload: memoryview) -> tuple[dict[str, Any], int]:
    """Returns the JSON object of a `ROWS` frame, and the position of its record batch."""
    (length,) = struct.unpack_from("<I", payload)
    return json.loads(bytes(payload[4 : 4 + length])), (4 + length + 7) // 8 * 8


def rows_of(found: Frame, columns: pa.Schema, schema: Schema) -> LoggedRows:
    """Returns the events of a frame. columns: the columns of its segment; missing declared columns are null."""
    if found.number is None:
        return _rows_0(found, columns, schema)
    said, begin = said_of(found.payload)
    extra: list[str] = said.get("extra", [])
    whole = pa.schema([*columns, *((name, _EXTRA[name]) for name in extra)])
    batch = pa.ipc.read_record_batch(pa.py_buffer(found.payload[begin:]), whole)
    n, place = said["rows"], {name: len(columns) + i for i, name in enumerate(extra)}

    def numbers(key: str, name: str) -> Int64Array:
        if key in said:
            return np.arange(said[key], said[key] + n, dtype=np.int64)
        return np.asarray(batch.column(place[name]).to_numpy(zero_copy_only=False), np.int64)

    if "source" in said:
        sources, code = (said["source"],), np.zeros(n, np.int32)
    else:
        encoded = batch.column(place[SOURCE]).dictionary_encode()
        sources = tuple(encoded.dictionary.to_pylist())
        code = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int32)
    late = (
        np.full(n, said["late"], np.bool_) if "late" in said
        else np.asarray(batch.column(place[LATE]).to_numpy(zero_copy_only=False), np.bool_)
    )  # fmt: skip
    wanted = arrow_schema(schema)
    arrays = [
        batch.column(i) if (i := columns.get_field_index(field.name)) >= 0 else pa.nulls(n, field.type)
        for field in wanted
    ]
    own = pa.RecordBatch.from_arrays(arrays, schema=wanted)
    if _TS in place:
        ts_us = numbers("", _TS)
    else:
        ts_us = np.asarray(own.column(time_name(schema)).view(pa.int64()).to_numpy(zero_copy_only=False), np.int64)
    return LoggedRows(EventBatch(own, ts_us, code, numbers("offset", OFFSET), numbers("seq", SEQ), sources), late)


def _rows_0(found: Frame, columns: pa.Schema, schema: Schema) -> LoggedRows:
    rows = pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(found.payload), columns)])
    for field in arrow_schema(schema):
        if field.name not in rows.column_names:  # declared later
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    sources = tuple(dict.fromkeys(rows.column(SOURCE).to_pylist()))
    batch = from_stored_rows(rows, arrow_schema(schema), time_name(schema), sources)
    return LoggedRows(batch, np.asarray(rows.column(LATE).to_numpy(), np.bool_))
