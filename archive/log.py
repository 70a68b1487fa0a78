"""The write-ahead log of one stream: what is in memory and in no file yet, on disk before a push returns.

A directory of segments, each a file of frames: length and CRC-32 of the payload (4 bytes each, little-endian), then the
payload: a letter and what it stands for. S: an Arrow schema, the stored columns of the rows that follow; R: an Arrow
record batch of such rows, in the order in which they came; W: a watermark, 8 bytes. A segment begins when events are
sealed to be written to the table, and goes once the commit that has them is made: the log is as long as memory.

A frame that is cut off at the end of the last segment was never answered for, and is dropped. Anything else that does
not fit its CRC is an error: events behind it would be missed in silence.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa

from archive.layout import stored_schema, to_stored
from archive.place import place_of
from archive.recent import BoolArray
from matching.batch import EventBatch
from query.errors import DataError, first_line
from query.schema import Schema

#: When a log is forced to disk. fsync: before a push returns, so that it survives a loss of power; os: it survives the
#: end of the process, and of the machine what the operating system has written by then.
Policy = Literal["fsync", "os"]
POLICIES: tuple[Policy, ...] = ("fsync", "os")

_HEAD = struct.Struct("<II")
_SUFFIX = ".log"
_SCHEMA, _ROWS, _WATERMARK = b"S", b"R", b"W"


class Log:
    """Appends to the newest segment. Not thread safe.

    Raises DataError where it cannot be written; what was being appended is then not in it."""

    __slots__ = ("_directory", "_file", "_head_length", "_length", "_policy", "_schema", "_segment", "_watermark_us")

    def __init__(self, directory: Path, schema: Schema, policy: Policy) -> None:
        """Goes on behind the segments that are there, in one of its own."""
        self._directory = directory
        self._schema = schema
        self._policy = policy
        self._file: int | None = None  # its descriptor
        self._length = self._head_length = 0
        self._watermark_us: int | None = None
        self._segment = max((_number(path) for path in segments(directory)), default=0)

    def append(self, batch: EventBatch, late: BoolArray) -> None:
        """Rows in the order in which they came. late: bool (n,)."""
        rows = to_stored(batch, late, self._schema).combine_chunks().to_batches()
        self._write([_frame(_ROWS, part.serialize()) for part in rows])

    def reach(self, watermark_us: int) -> None:
        """The watermark was raised without events."""
        self._write([_watermark(watermark_us)])
        self._watermark_us = watermark_us

    def rotate(self, schema: Schema) -> list[Path]:
        """Begins a new segment with its next frame; gives the older ones. schema: of the rows from now on."""
        self.close()
        self._schema = schema
        return segments(self._directory)

    def mark(self) -> tuple[int, int]:
        """Where the next frame will stand, for `rewind`: the segment and the position in it (0: after its head)."""
        return (self._segment, self._length) if self._file is not None else (self._segment + 1, 0)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Takes back what was appended since the mark, none of which anybody has been told of. If that fails, the log
        goes on in a new segment."""
        segment, length = mark
        if self._file is None or segment != self._segment:
            return
        self._cut(max(length, self._head_length))

    def _cut(self, length: int) -> None:
        assert self._file is not None
        try:
            os.ftruncate(self._file, length)
            os.lseek(self._file, length, os.SEEK_SET)
            self._length = length
        except OSError:  # the segment is left as it is, with a torn end
            self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, frames: list[bytes]) -> None:
        try:
            if self._file is None:
                self._begin()
            assert self._file is not None
            data = b"".join(frames)
            try:
                _write_all(self._file, data)
                if self._policy == "fsync":
                    os.fsync(self._file)
            except OSError:
                self._cut(self._length)  # what is half written goes
                raise
            self._length += len(data)
        except OSError as error:
            raise DataError(
                f"the log of {self._schema.name} in {self._directory} cannot be written: {first_line(error)}",
                "nothing was taken: make room or give permission, and push it again",
            ) from error

    def _begin(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        head = _frame(_SCHEMA, stored_schema(self._schema).serialize())
        if self._watermark_us is not None:  # the segment that had it may go
            head += _watermark(self._watermark_us)
        path = self._directory / f"{self._segment + 1:020d}{_SUFFIX}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            _write_all(file, head)
            if self._policy == "fsync":
                os.fsync(file)
                place_of(self._directory).sync()
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        self._segment += 1
        self._file, self._length, self._head_length = file, len(head), len(head)


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def segments(directory: Path) -> list[Path]:
    """The segments in a directory, the oldest first."""
    return sorted(directory.glob(f"*{_SUFFIX}"), key=_number) if directory.is_dir() else []


def read(directory: Path) -> Iterator[pa.RecordBatch | int]:
    """What was appended, in order: rows in stored columns (of the time when they were appended), and watermarks. Cuts
    off a torn end. Raises DataError for a log that is broken elsewhere."""
    paths = segments(directory)
    for path in paths:
        data = path.read_bytes()
        schema: pa.Schema | None = None
        at = 0
        while at < len(data):
            payload, end = _payload(data, at)
            if payload is None:
                # a crash leaves a torn end once; whoever opens the log behind it cuts it off before he goes on
                if path is not paths[-1] or not _is_torn(data, end):
                    raise DataError(
                        f"{path} is broken at byte {at:,} of {len(data):,}",
                        "restore it from a copy; without this file the events in it and behind it are lost",
                    )
                os.truncate(path, at)
                break
            at = end
            kind, content = payload[:1], pa.py_buffer(payload[1:])
            if kind == _SCHEMA:
                schema = pa.ipc.read_schema(content)
            elif kind == _ROWS:
                assert schema is not None
                yield pa.ipc.read_record_batch(content, schema)
            elif kind == _WATERMARK:
                yield struct.unpack("<q", payload[1:])[0]


def _frame(kind: bytes, content: pa.Buffer | bytes) -> bytes:
    payload = kind + bytes(content)
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def _watermark(watermark_us: int) -> bytes:
    return _frame(_WATERMARK, struct.pack("<q", watermark_us))


def _payload(data: bytes, at: int) -> tuple[bytes | None, int]:
    """The payload of the frame at a place, None if it is not whole, and where the frame ends by what it says."""
    if at + _HEAD.size > len(data):
        return None, len(data) + 1
    length, crc = _HEAD.unpack_from(data, at)
    end = at + _HEAD.size + length
    payload = data[at + _HEAD.size : end]
    whole = length > 0 and end <= len(data) and zlib.crc32(payload) == crc
    return (payload if whole else None), end


def _is_torn(data: bytes, end: int) -> bool:
    """Whether what stands at a place is a frame that was not written to its end: nothing is behind it but zeros that
    the file system had reserved."""
    return not any(data[end:])


def _number(path: Path) -> int:
    return int(path.stem)
