"""The write-ahead log of one stream: what is in memory and in no file yet, on disk before a push returns.

A directory of segments (archive.log_frames says what one looks like). A segment begins when events are sealed to be
written to the table, and those before it go once the commit that has them is made: the log is as long as memory. The
newest one stays, so that a log that somebody has removed is told from one that is empty.

Nothing is ever cut off. What a crash has left half written at the end is passed over, for nobody was answered for it;
whatever else does not fit its checksums, its numbers or the archive is a fault (`Contents.faults`), for events would be
missed in silence; `archive.log_repair` sets it aside.
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
    Rows,
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

#: When a log is forced to disk. fsync: before a push returns, so that it survives a loss of power; os: it survives the
#: end of the process, and of the machine what the operating system has written by then.
Policy = Literal["fsync", "os"]
POLICIES: tuple[Policy, ...] = ("fsync", "os")
#: What is set aside.
TORN, DAMAGED = ".torn", ".damaged"
REPAIR = "hybrid archive repair sets what is damaged aside and keeps every other event; or restore it from a copy"


class Log:
    """Appends to the newest segment. Not thread safe.

    Raises NotKept where it cannot be written; what was being appended is then not in it."""

    __slots__ = (
        "_begun", "_directory", "_file", "_first", "_length", "_next", "_policy", "_schema", "_segment", "_seq",
        "_skipped", "_timed", "_used", "_watermark_us",
    )  # fmt: skip

    def __init__(
        self, directory: Path, schema: Schema, policy: Policy, segment: int = 0, next_frame: int = 0,
        watermark_us: int | None = None, seq: int | None = None, skipped: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """Goes on after what is there, in a segment of its own. segment: the number of the last one; next_frame: that
        of the frame expected next; watermark_us: the last that was logged; seq: the ingest sequence of the next
        event, if that is to be held against the archive; skipped: see Contents."""
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
        self._used = False  # whether the segment has more than it began with
        self._begun = 0, next_frame  # its length and the number of the frame expected next, when it began
        with self._told():
            self._begin()

    def append(self, batch: EventBatch, late: BoolArray) -> None:
        """Rows in the order in which they came. late: bool (n,)."""
        file = self._ready()
        self._write(file, rows_frame(self._next, batch, late, self._timed))
        for code in np.unique(batch.source) if self._skipped else ():
            self._skipped.pop(batch.sources[code], None)  # the events themselves say how far it has come

    def skip(self, source: str, offset: int) -> None:
        """A source has sent nothing up to an offset that is an event, since the last one that was."""
        file = self._ready()
        self._write(file, skip_frame(self._next, source, offset))
        self._skipped[source] = offset

    def reach(self, watermark_us: int) -> None:
        """The watermark was raised without events."""
        file = self._ready()
        self._write(file, mark_frame(self._next, watermark_us))
        self._watermark_us = watermark_us

    def rotate(self, seq: int | None = None, schema: Schema | None = None) -> list[Path]:
        """Goes on in a new segment; gives the older ones. seq: as in `__init__`; schema: of the rows from now on, if it
        is another. Where no segment can be begun, what is appended goes into the one that there is, which is not among
        those given then."""
        self._seq = seq
        if schema is not None:
            self._schema, self._timed = schema, tells_time(schema)
        if self._used or schema is not None or self._file is None:
            try:
                self._begin()
            except OSError:
                if schema is not None:
                    self.close()  # it has the columns of before: the next append begins one
        return [path for path in segments(self._directory) if number_of(path) < self._segment]

    def forget_watermark(self, seq: int | None) -> list[Path]:
        """Goes on in a new segment that knows of no watermark, with all events in files; gives the older ones. seq: as
        in `__init__`. Raises NotKept where none can be begun."""
        self._seq, self._watermark_us = seq, None
        with self._told():
            self._begin()
        return [path for path in segments(self._directory) if number_of(path) < self._segment]

    def writes(self, path: Path) -> bool:
        """Whether it is the segment that is written to."""
        return number_of(path) == self._segment

    def is_gone(self) -> bool:
        """Whether somebody has removed the file that is written to."""
        return self._file is not None and os.fstat(self._file).st_nlink == 0

    def mark(self) -> tuple[int, int, int] | None:
        """Where the next frame will stand, for `rewind`: segment, position, number; None where a segment must begin."""
        return None if self._file is None else (self._segment, self._length, self._next)

    def rewind(self, mark: tuple[int, int, int] | None) -> None:
        """Takes back what was appended since the mark, none of which anybody has been told of."""
        if self._file is None:
            return
        length, number = self._begun if mark is None or mark[0] != self._segment else mark[1:]
        self._cut(self._file, length, number)

    def _cut(self, file: int, length: int, number: int) -> None:
        """Ends the segment there, before the frame of that number. If that fails, the next segment begins with it."""
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
        """The file to append to: after an append that could not be taken back a new segment."""
        if self._file is None:
            with self._told():
                self._begin()
        assert self._file is not None
        return self._file

    def _write(self, file: int, parts: list[Buffer]) -> None:
        with self._told():
            try:
                length = _write_all(file, parts)
                if self._policy == "fsync":
                    os.fsync(file)
            except BaseException:
                self._cut(file, self._length, self._next)  # what is half written goes
                raise
            self._length += length
            self._next += 1
            self._used = True
            try:
                os.pwrite(file, count(self._next), COUNT_AT)
            except OSError:
                pass  # it is in place already, and only finds damage

    def _begin(self) -> None:
        """Begins a segment, whole or not at all, and says in the one before where it goes on."""
        self._directory.mkdir(parents=True, exist_ok=True)
        number, first = self._segment + 1, self._next
        parts: list[Buffer] = [*schema_frame(first, self._schema, self._seq)]
        following = first + 1
        if self._watermark_us is not None:  # the segment that had it may go
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
                    _write_all(before, next_frame(first, number))
            except OSError:
                pass  # it can be done without: what is there is in order
            self._segment, self._first, self._next, self._file, self._length, self._used, self._begun = (
                number, first, following, file, length, False, (length, following)
            )  # fmt: skip
        except FileExistsError:
            raise  # another process has taken the log for its own
        except BaseException:
            path.unlink(missing_ok=True)
            if before is not None:
                self._cut(before, self._length, first)  # it may say already where it goes on
            raise
        if before is not None:
            os.close(before)

    def _told(self) -> _Told:
        return _Told(self._schema.name, self._directory)


@dataclass(frozen=True, slots=True)
class _Told:
    """Makes NotKept of an OSError."""

    stream: str
    directory: Path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise NotKept(
                f"the log of {self.stream} in {self.directory} cannot be written: {first_line(error)}",
                "nothing was taken: make room or give permission, and push it again",
            ) from error


def write_segment(path: Path, number: int, first: int, following: int, parts: list[Buffer]) -> tuple[int, int]:
    """A segment with frames, in place whole or not at all: its descriptor, for appending, and its length. first,
    following: the numbers of its first frame and of the one after its last."""
    part = path.with_suffix(f".{os.getpid()}.part")
    file = open_private(part, os.O_WRONLY | os.O_TRUNC)
    try:
        begun = head(number, first)
        length = _write_all(file, [begun[:COUNT_AT], count(following), *parts])
        os.fsync(file)  # a segment without a head would be one that somebody has emptied
        _name(part, path)
    except BaseException:
        os.close(file)
        raise
    finally:
        part.unlink(missing_ok=True)
    return file, length


def _name(part: Path, path: Path) -> None:
    """Gives a file its name, which no other has: another process may take this log for its own."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.rename(part, path)


def _write_all(file: int, parts: list[Buffer]) -> int:
    """Writes all parts, without copying them; how many bytes that were."""
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
    """Something that is wrong with a log. path, at, size: the file, the byte, and how many it has. events: the ingest
    sequence of the first one that is missing, and of the first after it; None where that is not known. sources: for
    each the offset of the first one that is missing, and of the first after it that there is."""

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
        """The missing events, in words."""
        if self.events is None:
            return ""
        number = self.events[1] - self.events[0]
        text = f"; {number:,} event{'s are' if number > 1 else ' is'} missing, number {self.events[0]:,} on"
        where = [f"{name} {low:,} to {end - 1:,}" for name, (low, end) in self.sources.items()]
        return text + (f" (offsets of {', '.join(where)})" if where else "")


@dataclass(slots=True)
class Contents:
    """The contents of a log. entries: events and watermarks in the order in which they came; a fault stands where
    something is missing. skipped: of sources whose last word was no event the offset of that. dropped: what is to be
    said of its end; torn: the file and the byte from which on nothing could be read, or None. segment: the number of
    the last; next_frame: that of the frame expected next."""

    entries: list[Rows | int | Fault] = field(default_factory=list)
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
        """Raises DataError if something is missing that was answered for."""
        found = self.faults
        if found:
            more = f"; and {len(found) - 1:,} more faults" if len(found) > 1 else ""
            raise DataError(f"{found[0]}{more}", REPAIR)

    def set_aside(self) -> None:
        """Keeps a copy of an end that could not be read: the segment goes with the next flush."""
        if self.torn is not None:
            path, at = self.torn
            Path(f"{path}{TORN}").write_bytes(path.read_bytes()[at:])
            self.dropped[-1] += f"; what stands there is kept in {path}{TORN}"


def read(
    found: Path | list[Segment], schema: Schema, next_seq: int | None = None, offsets: Mapping[str, int] | None = None
) -> Contents:
    """All that was appended. found: the directory, or its segments. schema: the stream as declared now. next_seq,
    offsets: the ingest sequence and the offset of each source that the archive expects next; without them the log
    itself says where it begins. Changes nothing. Raises DataError for a newer format, and OSError."""
    whole = [read_segment(path) for path in segments(found)] if isinstance(found, Path) else found
    return _Reading(schema, next_seq, dict(offsets or {})).all(whole)


def read_beside(directory: Path) -> list[Segment]:
    """The segments of a log that another process may be writing, as they stood together at some moment. Raises
    DataError, and OSError."""
    for _ in range(100):
        paths = segments(directory)
        try:
            found = [read_segment(path) for path in paths]
        except FileNotFoundError:
            continue  # it is in the table by now
        if segments(directory) == paths:
            return found
    raise DataError(f"the log in {directory} is written faster than it can be read", "try again")


class _Reading:
    def __init__(self, schema: Schema, next_seq: int | None, offsets: dict[str, int]) -> None:
        self._schema = schema
        self._next_seq = next_seq
        self._offsets = offsets
        self._found = Contents()
        self._expected: int | None = None  # the number of the next frame
        self._columns: pa.Schema | None = None
        # The fault whose missing events the next rows tell; of each source what was expected when it was found.
        self._open: Fault | None = None
        self._before: dict[str, int] = {}
        self._accepted = False  # a repair has said that events are missing here

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
            first = segment.frames[0].number  # its head is damaged, but a segment begins with that
        if before is not None and segment.number != before.number + 1:
            self._fault(before, before.end, f"segments {before.number + 1} to {segment.number - 1} are missing")
            self._expected = first
        elif segment.format and (first is None or not segment.frames or segment.frames[0].number != first):
            self._fault(segment, 0, "its head is damaged")
        elif first is not None and self._expected is not None and before is not None and first > self._expected:
            self._fault(before, before.end, f"{first - self._expected:,} appends are not readable there")
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
                    self._fault(segment, at, f"{frame.number - self._expected:,} appends are not readable there")
                if self._expected is None or frame.number >= self._expected:
                    self._expected = frame.number + 1
                    self._frame(segment, frame)
            end = frame.end
        if after is None:
            if goes_on is not None:
                self._fault(segment, segment.end, f"segment {goes_on}, which goes on there, is missing")
            else:
                self._end(segment)
        elif not segment.format and not after.format and end != len(segment.data):
            self._fault(segment, end, "a frame does not fit its checksum")

    def _end(self, segment: Segment) -> None:
        """The end of the last segment: what a crash leaves half written is no fault."""
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
            self._follows(segment, frame, seq_of(self._columns), "the archive has less than when it was begun")
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
                self._fault(segment, frame.at, f"events are not readable there ({first_line(error)})")
                return
            self._rows(segment, frame, rows)
        else:
            self._fault(segment, frame.at, f"a frame has the unknown tag {frame.tag!r}")

    def _rows(self, segment: Segment, frame: Frame, rows: Rows) -> None:
        batch = rows.batch
        self._follows(segment, frame, int(batch.seq.min()), "its events do not follow on those of the archive")
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
        """Notes that the events before this ingest sequence are missing, if some are."""
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
