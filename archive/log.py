"""The write-ahead log of one stream: buffered events, on disk before a push returns.

A directory of segments (format: archive.log_frames). A flush begins a new segment and deletes the older ones after its
commit: the log is as long as the buffer. The newest segment is kept, to tell an empty log from a removed one.

Reading never truncates a segment. A frame that a crash left unfinished at the end is skipped: its push has not
returned. Any other mismatch with checksums, frame numbers or the archive is a fault (`Contents.faults`), because events
would be lost silently; `archive.log_repair` sets damaged segments aside.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from archive.log_frames import (
    COUNT_AT,
    LOST,
    MARK,
    NEXT,
    ROWS,
    SCHEMA,
    SKIP,
    SUFFIX,
    Buffer,
    Frame,
    LoggedRows,
    Segment,
    count,
    head,
    is_unfinished_0,
    mark_frame,
    next_frame,
    number_of,
    read_segment,
    rows_frame,
    rows_of,
    schema_frame,
    segments,
    seq_of,
    skip_frame,
    tells_time,
)
from archive.place import open_private, place_of
from archive.recent import BoolArray, next_offsets
from matching.batch import EventBatch
from matching.types import arrow_schema
from query.errors import DataError, NotKept, first_line
from query.schema import Schema

#: fsync: the log is forced to disk before a push returns, and survives a power failure. os: it survives the end of the
#: process; after a power failure, as far as the operating system has written it.
Policy = Literal["fsync", "os"]
#: Suffixes of files set aside: an unreadable end of a log, and damaged segments.
TORN, DAMAGED = ".torn", ".damaged"
REPAIR = "hybrid archive repair sets damaged segments aside and keeps all readable events; or restore from a copy"


class Log:
    """Appends to the newest segment. Not thread safe.

    Raises NotKept if it cannot be written; the appended entry is then not in the log."""

    __slots__ = (
        "_begun", "_directory", "_file", "_first", "_length", "_next", "_policy", "_schema", "_segment", "_seq",
        "_skipped", "_timed", "_used", "_watermark_us",
    )  # fmt: skip

    def __init__(
        self, directory: Path, schema: Schema, policy: Policy, segment: int = 0, next_frame: int = 0,
        watermark_us: int | None = None, seq: int | None = None, skipped: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """Begins a new segment after the existing ones.

        segment: number of the last segment. next_frame: number of the next frame. watermark_us: the last logged
        watermark. seq: ingest sequence of the next event, to be checked against the archive when the log is read; None:
        no check. skipped: as in Contents."""
        self._directory = directory
        self._schema, self._timed = schema, tells_time(schema)
        self._policy = policy
        self._file: int | None = None  # its descriptor
        self._length = 0
        self._watermark_us = watermark_us
        self._skipped = dict(skipped or {})
        self._seq = seq
        self._segment = segment
        self._first = self._next = next_frame
        self._used = False  # True after the first append to the segment
        self._begun = 0, next_frame  # length and next frame number when the segment was begun
        with self._told():
            self._begin()

    def append(self, batch: EventBatch, late: BoolArray) -> None:
        """Appends events in order of arrival. late: bool (n,)."""
        file = self._ready()
        self._write(file, rows_frame(self._next, batch, late, self._timed))
        for code in np.unique(batch.source) if self._skipped else ():
            self._skipped.pop(batch.sources[code], None)  # the offsets of the events replace it

    def skip(self, source: str, offset: int) -> None:
        """Appends that a source had no events after its last one, up to an offset."""
        file = self._ready()
        self._write(file, skip_frame(self._next, source, offset))
        self._skipped[source] = offset

    def reach(self, watermark_us: int) -> None:
        """Appends a watermark that was raised without events."""
        file = self._ready()
        self._write(file, mark_frame(self._next, watermark_us))
        self._watermark_us = watermark_us

    def rotate(self, seq: int | None = None, schema: Schema | None = None) -> list[Path]:
        """Begins a new segment; returns the paths of the older ones. seq: as in `__init__`. schema: the schema of the
        following rows, if it changes. If no segment can be begun, the current one stays in use and is not returned."""
        self._seq = seq
        if schema is not None:
            self._schema, self._timed = schema, tells_time(schema)
        if self._used or schema is not None or self._file is None:
            try:
                self._begin()
            except OSError:
                if schema is not None:
                    self.close()  # it has the old columns: the next append begins a segment
        return [path for path in segments(self._directory) if number_of(path) < self._segment]

    def forget_watermark(self, seq: int | None) -> list[Path]:
        """Begins a new segment without a watermark, after all events are in files; returns the paths of the older ones.
        seq: as in `__init__`. Raises NotKept if no segment can be begun."""
        self._seq, self._watermark_us = seq, None
        with self._told():
            self._begin()
        return [path for path in segments(self._directory) if number_of(path) < self._segment]

    def writes(self, path: Path) -> bool:
        """Returns True if the path is the current segment."""
        return number_of(path) == self._segment

    def is_gone(self) -> bool:
        """Returns True if the file of the current segment was removed."""
        return self._file is not None and os.fstat(self._file).st_nlink == 0

    def mark(self) -> tuple[int, int, int] | None:
        """Returns the position of the next frame for `rewind`: segment, byte, frame number; None without a segment."""
        return None if self._file is None else (self._segment, self._length, self._next)

    def rewind(self, mark: tuple[int, int, int] | None) -> None:
        """Removes the entries appended since the mark, none of which was acknowledged."""
        if self._file is None:
            return
        length, number = self._begun if mark is None or mark[0] != self._segment else mark[1:]
        self._cut(self._file, length, number)

    def _cut(self, file: int, length: int, number: int) -> None:
        """Truncates the segment to `length` bytes, before the frame `number`. If that fails, the next segment begins
        with that frame number, which supersedes the rest."""
        self._next = number
        try:
            os.pwrite(file, count(number), COUNT_AT)
            os.ftruncate(file, length)
            os.lseek(file, length, os.SEEK_SET)
            self._length = length
        except OSError:
            self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _ready(self) -> int:
        """Returns the file descriptor to append to; begins a new segment if the current one could not be truncated."""
        if self._file is None:
            with self._told():
                self._begin()
        assert self._file is not None
        return self._file

    def _write(self, file: int, parts: list[Buffer]) -> None:
        with self._told():
            try:
                length = write_all(file, parts)
                if self._policy == "fsync":
                    os.fsync(file)
            except BaseException:
                self._cut(file, self._length, self._next)  # removes a partial frame
                raise
            self._length += length
            self._next += 1
            self._used = True
            try:
                os.pwrite(file, count(self._next), COUNT_AT)
            except OSError:
                pass  # the frame is complete; the count only helps to detect damage

    def _begin(self) -> None:
        """Begins a segment atomically, and appends its number to the one before."""
        self._directory.mkdir(parents=True, exist_ok=True)
        number, first = self._segment + 1, self._next
        parts: list[Buffer] = [*schema_frame(first, self._schema, self._seq)]
        following = first + 1
        if self._watermark_us is not None:  # the segment with it may be deleted
            parts += mark_frame(following, self._watermark_us)
            following += 1
        for source, offset in self._skipped.items():
            parts += skip_frame(following, source, offset)
            following += 1
        path = self._directory / f"{number:020d}{SUFFIX}"
        before = self._file
        try:
            file, length = write_segment(path, number, first, following, parts)
            try:
                if self._policy == "fsync":
                    place_of(self._directory).sync()
                if before is not None:
                    write_all(before, next_frame(first, number))
            except OSError:
                pass  # optional: the log is valid without it
            self._segment, self._first, self._next, self._file, self._length, self._used, self._begun = (
                number, first, following, file, length, False, (length, following)
            )  # fmt: skip
        except FileExistsError:
            raise  # another process writes to this log
        except BaseException:
            path.unlink(missing_ok=True)
            if before is not None:
                self._cut(before, self._length, first)  # it may have the number of this segment already
            raise
        if before is not None:
            os.close(before)

    def _told(self) -> _Told:
        return _Told(self._schema.name, self._directory)


@dataclass(frozen=True, slots=True)
class _Told:
    """Context manager that turns an OSError into NotKept."""

    stream: str
    directory: Path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise NotKept(
                f"the log of {self.stream} in {self.directory} cannot be written: {first_line(error)}",
                "nothing was stored: make room or give permission, and push it again",
            ) from error


def write_segment(path: Path, number: int, first: int, following: int, parts: list[Buffer]) -> tuple[int, int]:
    """Writes a segment atomically; returns its file descriptor, for appending, and its length. first, following:
    numbers of its first frame and of the one after its last."""
    part = path.with_suffix(f".{os.getpid()}.part")
    file = open_private(part, os.O_WRONLY | os.O_TRUNC)
    try:
        begun = head(number, first)
        length = write_all(file, [begun[:COUNT_AT], count(following), *parts])
        os.fsync(file)  # a segment without a head counts as emptied, a fault
        _name(part, path)
    except BaseException:
        os.close(file)
        raise
    finally:
        part.unlink(missing_ok=True)
    return file, length


def _name(part: Path, path: Path) -> None:
    """Renames a file; raises FileExistsError if the name is taken by another process that writes to this log."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.rename(part, path)


def write_all(file: int, parts: list[Buffer]) -> int:
    """Writes all parts without copying them; returns the number of bytes."""
    left = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
    length = sum(part.nbytes for part in left)
    while left:
        done = os.writev(file, left[:512])
        while left and done >= left[0].nbytes:
            done -= left.pop(0).nbytes
        if done:
            left[0] = left[0][done:]
    return length


# ---- reading


@dataclass(slots=True)
class Fault:
    """A fault of a log. path, at, size: the file, the byte of the fault, and the file's size. events: ingest sequence
    of the first missing event, and of the first one after the gap; None if unknown. sources: source -> the offsets of
    these two events."""

    path: Path
    at: int
    size: int
    what: str
    events: tuple[int, int] | None = None
    sources: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.path} is broken at byte {self.at:,} of {self.size:,}: {self.what}{self.missing}"

    @property
    def missing(self) -> str:
        """Text about the missing events, or an empty string."""
        if self.events is None:
            return ""
        number = self.events[1] - self.events[0]
        text = f"; {number:,} event{'s are' if number > 1 else ' is'} missing, number {self.events[0]:,} on"
        where = [f"{name} {low:,} to {end - 1:,}" for name, (low, end) in self.sources.items()]
        return text + (f" (offsets of {', '.join(where)})" if where else "")


@dataclass(slots=True)
class Contents:
    """The contents of a log. entries: events and watermarks in order of arrival, with a fault in the place of missing
    entries. skipped: source -> offset, for sources whose last entry is a skip. dropped: warnings about an unreadable
    end. torn: the file and the byte where the unreadable end begins, or None. segment: number of the last segment.
    next_frame: number of the next frame. watermark_us: the last watermark, or None."""

    entries: list[LoggedRows | int | Fault] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    torn: tuple[Path, int] | None = None
    segment: int = 0
    next_frame: int = 0
    watermark_us: int | None = None

    @property
    def faults(self) -> list[Fault]:
        return [entry for entry in self.entries if isinstance(entry, Fault)]

    def check(self) -> None:
        """Raises DataError if acknowledged entries are missing."""
        found = self.faults
        if found:
            more = f"; and {len(found) - 1:,} more faults" if len(found) > 1 else ""
            raise DataError(f"{found[0]}{more}", REPAIR)

    def set_aside(self) -> None:
        """Copies an unreadable end to a file, because the next flush deletes the segment."""
        if self.torn is not None:
            path, at = self.torn
            Path(f"{path}{TORN}").write_bytes(path.read_bytes()[at:])
            self.dropped[-1] += f"; the rest is kept in {path}{TORN}"


def read(
    found: Path | list[Segment], schema: Schema, next_seq: int | None = None, offsets: Mapping[str, int] | None = None
) -> Contents:
    """Reads a log. found: the directory, or its segments. schema: the current declaration. next_seq, offsets: the next
    ingest sequence and the next offset of each source in the archive; if None, the beginning of the log is not checked.
    Changes nothing. Raises DataError for a newer format, and OSError."""
    whole = [read_segment(path) for path in segments(found)] if isinstance(found, Path) else found
    return _Reading(schema, next_seq, dict(offsets or {})).all(whole)


def read_beside(directory: Path) -> list[Segment]:
    """Returns a consistent view of the segments of a log that another process may be writing. Raises DataError and
    OSError."""
    for _ in range(100):
        paths = segments(directory)
        try:
            found = [read_segment(path) for path in paths]
        except FileNotFoundError:
            continue  # its events are in the table by now
        if segments(directory) == paths:
            return found
    raise DataError(f"the log in {directory} changes faster than it can be read", "try again")


class _Reading:
    def __init__(self, schema: Schema, next_seq: int | None, offsets: dict[str, int]) -> None:
        self._schema = schema
        self._next_seq = next_seq
        self._offsets = offsets
        self._found = Contents()
        self._expected: int | None = None  # the number of the next frame
        self._columns: pa.Schema | None = None
        # The fault whose missing events follow from the next rows; next expected offsets when it was found.
        self._open: Fault | None = None
        self._before: dict[str, int] = {}
        self._accepted = False  # a repair has recorded that events are missing here

    def all(self, found: list[Segment]) -> Contents:
        for i, segment in enumerate(found):
            before = found[i - 1] if i else None
            after = found[i + 1] if i + 1 < len(found) else None
            self._segment(segment, before, after)
        self._found.segment = found[-1].number if found else 0
        self._found.next_frame = self._expected or 0
        return self._found

    def _segment(self, segment: Segment, before: Segment | None, after: Segment | None) -> None:
        self._columns = None
        first = segment.first
        if first is None and segment.frames and segment.frames[0].tag == SCHEMA:
            first = segment.frames[0].number  # the head is damaged, but a schema is always the first frame
        if before is not None and segment.number != before.number + 1:
            self._fault(before, before.end, f"segments {before.number + 1} to {segment.number - 1} are missing")
            self._expected = first
        elif segment.format and (first is None or not segment.frames or segment.frames[0].number != first):
            self._fault(segment, 0, "its head is damaged")
        elif first is not None and self._expected is not None and before is not None and first > self._expected:
            self._fault(before, before.end, f"{first - self._expected:,} appends are unreadable")
        if first is not None:
            self._expected = first
        end = 0
        goes_on: int | None = None
        for frame in segment.frames:
            if frame.tag == NEXT:
                goes_on = struct.unpack("<q", frame.payload)[0]
            elif frame.number is None:
                if frame.at != end:
                    self._fault(segment, end, "a frame does not fit its checksum")
                self._frame(segment, frame)
            elif after is None or after.first is None or frame.number < after.first:
                if self._expected is not None and frame.number > self._expected:
                    at = end or frame.at
                    self._fault(segment, at, f"{frame.number - self._expected:,} appends are unreadable")
                if self._expected is None or frame.number >= self._expected:
                    self._expected = frame.number + 1
                    self._frame(segment, frame)
            end = frame.end
        if after is None:
            if goes_on is not None:
                self._fault(segment, segment.end, f"the following segment {goes_on} is missing")
            else:
                self._end(segment)
        elif not segment.format and not after.format and end != len(segment.data):
            self._fault(segment, end, "a frame does not fit its checksum")

    def _end(self, segment: Segment) -> None:
        """Checks the end of the last segment: a frame that a crash left unfinished is not a fault."""
        rest = segment.data[segment.end :].rstrip(b"\0")
        if segment.format == 0:
            lost = bool(rest) and not is_unfinished_0(segment.data, segment.end)
            how_many = ""
        elif segment.count is not None:
            lost = self._expected is not None and self._expected < segment.count
            how_many = f": the last {segment.count - (self._expected or 0):,} appends are missing"
        else:
            lost = bool(rest) and bool(segment.frames)
            how_many = ""
        if not lost:
            return
        if rest:
            self._found.torn = (segment.path, segment.end)
        said = f"the log {segment.path} cannot be read after byte {segment.end:,}{how_many}"
        self._found.dropped.append(f"{self._schema.name}: {said}")

    def _frame(self, segment: Segment, frame: Frame) -> None:
        if frame.tag == SCHEMA:
            self._columns = pa.ipc.read_schema(pa.py_buffer(frame.payload))
            self._follows(segment, frame, seq_of(self._columns), "the archive lacks events that precede the log")
        elif frame.tag == MARK:
            self._found.watermark_us = struct.unpack("<q", frame.payload)[0]
            self._found.entries.append(self._found.watermark_us)
        elif frame.tag == SKIP:
            said = json.loads(bytes(frame.payload))
            self._found.skipped[said["source"]] = said["offset"]
        elif frame.tag == LOST:
            self._accepted = True
        elif frame.tag == ROWS:
            columns = self._columns or arrow_schema(self._schema)
            try:
                rows = rows_of(frame, columns, self._schema)
            except (pa.ArrowException, ValueError, KeyError, IndexError) as error:
                self._fault(segment, frame.at, f"events are unreadable ({first_line(error)})")
                return
            self._rows(segment, frame, rows)
        else:
            self._fault(segment, frame.at, f"unknown frame tag {frame.tag!r}")

    def _rows(self, segment: Segment, frame: Frame, rows: LoggedRows) -> None:
        batch = rows.batch
        self._follows(segment, frame, int(batch.seq.min()), "its events do not follow those of the archive")
        if self._before:
            fault = self._found.faults[-1]
            for code in dict.fromkeys(batch.source.tolist()):
                name, low = batch.sources[code], int(batch.offset[batch.source == code].min())
                expected = self._before.pop(name, low)
                if low > expected and fault.events is not None:
                    fault.sources[name] = (expected, low)
        self._open, self._accepted = None, False
        self._next_seq = max(self._next_seq or 0, int(batch.seq.max()) + 1)
        for name, expected in next_offsets(batch).items():
            self._offsets[name] = max(expected, self._offsets.get(name, 0))
            self._found.skipped.pop(name, None)
        self._found.entries.append(rows)

    def _follows(self, segment: Segment, frame: Frame, seq: int, what: str) -> None:
        """Records a fault if events before this ingest sequence are missing."""
        if self._next_seq is None or seq <= self._next_seq or self._accepted:
            return
        if self._open is None:
            self._fault(segment, frame.at, what)
        assert self._open is not None
        self._open.events = (self._next_seq, seq)

    def _fault(self, segment: Segment, at: int, what: str) -> None:
        if self._open is None:
            self._open = Fault(segment.path, at, len(segment.data), what)
            self._before = dict(self._offsets)
            self._found.entries.append(self._open)
