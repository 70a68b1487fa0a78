"""Readers of one file of a source: CSV or NDJSON by whole records, Parquet by batches of rows."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from live.sources.base import Bad, Piece
from live.sources.decode import Decoder, concat
from live.sources.known_files import HEAD_BYTES, TAIL_BYTES, Known, Mark, digest
from live.sources.listing import FileFormat, FileSettings, Identity
from matching.batch import Int64Array
from matching.checked import by_name, texts_checked
from matching.csv_records import (
    EXCERPT_BYTES,
    RECORD_BYTES_MAX,
    TOO_LONG,
    column_of,
    cut,
    header_of,
    read_records,
    texts_of,
    without_long,
)
from query.errors import DataError

#: Block size in bytes for CSV and NDJSON; a longer record takes several blocks.
BLOCK_BYTES = 1 << 20
#: Rows of one batch of Parquet.
BATCH_ROWS = 1 << 14
_LIMIT = f"{RECORD_BYTES_MAX >> 20} MB"
_MARK = b"\xef\xbb\xbf"


class OtherFile(Exception):
    """The path has another file than the one that was read. what: the unread rest of the earlier file, or ""."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class Unfit(DataError):
    """A file lacks columns of the stream, or a readable header."""


class SourceFile:
    """One file of a source.

    partition: its name, None until the file is identified; inode: its inode at that time. identity: its state when it
    was last opened for reading. judged: its state when it was found to have nothing to read; copy_of: the partition of
    the same content, if that was the reason. was: the unread rest of the earlier file at this path. weak: the file was
    identified by less than HEAD_BYTES, so it may still turn out to be a copy. stuck: it could not be read in its
    present state; stuck_s: since when, monotonic.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.packed = path.endswith(".gz")
        self.partition: str | None = None
        self.ended = False
        self.identity: Identity | None = None
        self.inode: tuple[int, int] | None = None
        self.judged: Identity | None = None
        self.copy_of: str | None = None
        self.was = ""
        self.weak = self.stuck = False
        self.stuck_s = 0.0
        self.first_us: int | None = None
        self.newest_us: int | None = None
        self.read_s = 0.0

    def bytes(self) -> IO[bytes]:
        """Opens its content, unpacked. Raises OSError."""
        return gzip.open(self.path) if self.packed else open(self.path, "rb")  # type: ignore[return-value]

    def begin(self, partition: str, known: Known | None, position: int) -> None:
        """Assigns the partition; its records below `position` were read before."""
        self.partition = partition
        self.judged = self.copy_of = None
        if known is not None:
            self.first_us, self.newest_us = known.first_us, known.newest_us
            if known.stamp is not None and known.mark.records <= position:
                found = Identity.of(self.path)
                if found.stamp == known.stamp:
                    self.identity, self.ended = found, True


class TextFile(SourceFile):
    """A CSV or NDJSON file."""

    def __init__(self, path: str, decoder: Decoder, settings: FileSettings, format: FileFormat) -> None:
        super().__init__(path)
        self._decoder = decoder
        self._settings = settings
        self._csv = format == "csv"
        self._header = int(self._csv and settings.header)
        self._wanted = 0  # number of the first record not read before
        self._resume: Known | None = None  # the mark to read from, None for the start of the file
        self._next = 0  # number of the next record
        self._at = 0  # bytes read
        self._done = 0  # bytes of whole records among them
        self._rest = b""  # the bytes after them: a torn record
        self._long: bytes | None = None  # the beginning of a record that is too long, until its end is found
        self._passed = 0  # bytes of that record that were read
        self._passed_tail = b""  # the last of these bytes
        self._head, self._head_max = b"", HEAD_BYTES
        self._tail = b""  # the last bytes of the whole records
        self._goal = -1  # byte at which this turn ends, -1 between turns
        self._file: Any = None
        self._fields: list[int | None] | None = None if settings.header else list(range(len(decoder.schema.fields)))
        self._width = len(decoder.schema.fields)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._goal = -1

    @property
    def started(self) -> bool:
        """True after its first record."""
        return self._next > self._header

    @property
    def at_end(self) -> bool:
        return self.identity is not None and self._goal < 0

    @property
    def unread(self) -> str:
        """Report of its unread rest, or ""."""
        if self._rest or self._long is not None:
            return "its last record was torn"
        return "" if self.at_end else "it was not read to its end"

    @property
    def waits(self) -> str | None:
        """The fault that stops it, other than a missing line end of its last record, or None."""
        if self._long is None:
            if self._csv and self.at_end and _has_lines(self._rest):
                why = "is a quote not closed, or do lines end with a carriage return only?"
                return f"{self.path}: record {self._next} has no end yet, and later lines wait: {why}"
            return None
        return f"{self.path}: record {self._next} is longer than {_LIMIT} and has no end yet"

    def begin(self, partition: str, known: Known | None, position: int) -> None:
        super().begin(partition, known, position)
        self._wanted = position
        self._resume = known if known is not None and 0 < known.mark.records <= position else None

    def known(self) -> Known | None:
        """Returns the facts about it; None before its first record."""
        if self.partition is None or not self.started:
            return None
        stamp = self.identity.stamp if self.packed and self.ended and self.identity is not None else None
        return self._fact(stamp)

    def _fact(self, stamp: tuple[int, int] | None = None) -> Known:
        mark = Mark(self._next, self._done, digest(self._tail))
        return Known(
            self.partition or "", self.path, len(self._head), digest(self._head), mark, self.first_us, self.newest_us,
            stamp,
        )  # fmt: skip

    def read(self) -> tuple[list[Piece | Bad] | None, bool]:
        """Reads the next block. Returns its items, None if there is nothing new, and whether this turn continues."""
        if self._goal < 0 and not self._begin():
            return None, False
        data = self._file.read(BLOCK_BYTES if self.packed else min(BLOCK_BYTES, self._goal - self._at))
        self._at += len(data)
        over = not data if self.packed else self._at >= self._goal or not data
        final = over and (self.packed or not self._settings.follow)
        out = self._taken(data, final)
        if over:
            self._over(final)
        return out, not over

    def _begin(self) -> bool:
        """Opens the file for a turn. Returns False if it is unchanged. Raises OtherFile if it is another file."""
        found = Identity.of(self.path)
        if found == self.identity:
            return False
        self.close()
        self._file = self.bytes()
        if not self.packed:
            found = Identity.of(self._file.fileno())
        if self._resume is not None:
            self._go_on(self._resume)
        elif not self._holds(self._file):
            raise OtherFile(self.unread)
        self._file.seek(self._at)
        self.identity, self._goal = found, found.size
        return True

    def _holds(self, file: IO[bytes]) -> bool:
        """True if an open file contains the bytes that were read, as far as its head and tail show."""
        if not self._fact().is_in(file):
            return False
        last = (self._rest if self._long is None else self._passed_tail)[-TAIL_BYTES:]
        file.seek(self._at - len(last))
        return file.read(len(last)) == last

    def _go_on(self, known: Known) -> None:
        """Resumes at the mark of `known`."""
        if self._header:
            data = b""
            while not cut(data, self._settings.delimiter):
                block = self._file.read(1 << 16)
                if not block:
                    raise OtherFile("")
                data = (data + block).removeprefix(_MARK)
                end = data.rfind(b"\n") + 1
                self._file.seek(end - len(data), os.SEEK_CUR)
                data = data[:end]
            self._read_header(data)
            self._head_max = HEAD_BYTES + data.find(b"\n") + 1
        self._file.seek(0)
        self._head = self._file.read(min(self._head_max, known.mark.bytes))
        count = min(TAIL_BYTES, known.mark.bytes)
        self._file.seek(known.mark.bytes - count)
        self._tail = self._file.read(count)
        self._next, self._done = known.mark.records, known.mark.bytes
        self._at, self._resume = self._done, None

    def _over(self, final: bool) -> None:
        self.close()
        self.ended = final
        known = self._next + (bool(self._rest) or self._long is not None)
        if known < self._wanted:
            raise DataError(
                f"{self.path} has {known} records, but {self._wanted} were read before",
                "it was truncated or replaced; write new files under new names",
            )

    def _pass(self, data: bytes) -> None:
        """Counts bytes of whole records, or of the end of one, as read."""
        self._done += len(data)
        self._tail = (self._tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        if len(self._head) < self._head_max:
            self._head = (self._head + data)[: self._head_max]

    def _taken(self, data: bytes, final: bool) -> list[Piece | Bad]:
        """Returns the whole records of the pending rest and the data; keeps the new rest. final: the file ends here."""
        data = self._rest + data
        self._rest = b""
        first, bad = self._next, list[Bad]()
        if self._long is not None:
            end = data.find(b"\n") + 1 or len(data)
            self._passed += end
            self._passed_tail = (self._passed_tail + data[:end])[-TAIL_BYTES:]
            if not data.endswith(b"\n", 0, end) and not final:
                return []
            data = data[end:]
            self._pass_long(bad)
        end = len(data) if final else data.rfind(b"\n") + 1
        lines, behind = data[:end], len(data) - end
        if self._done == 0:
            lines = lines.removeprefix(_MARK)
        if lines and not lines.endswith(b"\n"):
            lines += b"\n"
        rows, numbers, wrong, torn = self._of_csv(lines, final, behind) if self._csv else self._of_lines(lines)
        bad += wrong
        self._pass(data[: end - len(torn)])
        self._rest = data[end - len(torn) :]
        if len(self._rest) > RECORD_BYTES_MAX and not torn:
            self._long, self._passed, self._passed_tail = self._rest, len(self._rest), self._rest[-TAIL_BYTES:]
            self._long, self._rest = self._long[:HEAD_BYTES], b""
        if not final and (self._next == first or self._next <= self._wanted):
            return []
        bad.sort(key=offset_of)
        assert self.partition is not None
        return [*bad, Piece(self.partition, rows, numbers, max(self._next, self._wanted), final)]

    def _pass_long(self, bad: list[Bad]) -> None:
        """Goes past a record that is too long, after its end was found."""
        assert self._long is not None
        if self._next >= self._wanted:
            bad.append(self._too_long(self._next, self._long))
        if len(self._head) < self._head_max:
            self._head = (self._head + self._long)[: self._head_max]
            self._head_max = len(self._head)  # the bytes after it were dropped
        self._done += self._passed
        self._tail = self._passed_tail
        self._next += 1
        self._long, self._passed, self._passed_tail = None, 0, b""

    def _too_long(self, number: int, data: bytes) -> Bad:
        assert self.partition is not None
        return Bad(self.partition, number, data[:EXCERPT_BYTES], TOO_LONG)

    def _of_lines(self, data: bytes) -> tuple[pa.RecordBatch, Int64Array, list[Bad], bytes]:
        lines = data.split(b"\n")[:-1]
        first = self._next
        self._next += len(lines)
        assert self.partition is not None
        wanted = [i for i in range(max(self._wanted - first, 0), len(lines)) if lines[i] and not lines[i].isspace()]
        long = [i for i in wanted if len(lines[i]) > RECORD_BYTES_MAX] if len(data) > RECORD_BYTES_MAX else []
        bad = [self._too_long(first + i, lines[i]) for i in long]
        wanted = [i for i in wanted if i not in long]
        if len(wanted) < len(lines):
            lines = [lines[i] for i in wanted]
        rows, numbers, wrong = self._decoder.decode(self.partition, lines, np.array(wanted, np.int64) + first)
        return rows, numbers, bad + wrong, b""

    def _of_csv(self, data: bytes, final: bool, behind: int) -> tuple[pa.RecordBatch, Int64Array, list[Bad], bytes]:
        """Returns the rows, their numbers, the bad records and the torn rest. behind: number of bytes after `data`, of
        a line without an end."""
        assert self.partition is not None
        if len(data) + behind > RECORD_BYTES_MAX:
            parts, torn = without_long(data, self._settings.delimiter, behind, final, RECORD_BYTES_MAX)
        else:
            end = len(data) if final else cut(data, self._settings.delimiter)
            parts, torn = [(data[:end], False)] if end else [], data[end:]
        found: list[tuple[pa.RecordBatch, Int64Array]] = []
        bad: list[Bad] = []
        for i, (part, long) in enumerate(parts):
            if self._next == 0 and self._settings.header:
                if long:
                    raise DataError(f"{self.path}: the header is longer than {_LIMIT}", "check the file")
                self._read_header(part)
                self._head_max = HEAD_BYTES + data.find(b"\n") + 1
            if not long:
                found.append(self._of_records(part, final and i == len(parts) - 1, bad))
                continue
            if self._next >= self._wanted:
                bad.append(self._too_long(self._next, part))
            self._next += 1
        rows = concat(self._decoder.schema, [rows for rows, _ in found])
        return rows, np.concatenate([np.zeros(0, np.int64), *(numbers for _, numbers in found)]), bad, torn

    def _of_records(self, data: bytes, last: bool, bad: list[Bad]) -> tuple[pa.RecordBatch, Int64Array]:
        """Returns the rows of whole records, and their numbers; appends bad records to `bad`. last: the file ends with
        them."""
        assert self.partition is not None
        assert self._fields is not None
        first, delimiter = self._next, self._settings.delimiter
        records = read_records(data, self._width, delimiter, self._settings.nulls, first, last)
        self._next += records.count
        fields, numbers = records.fields, records.numbers
        low = max(self._wanted, self._header)
        if first < low:
            keep = numbers >= low
            fields, numbers = fields.filter(pa.array(keep)), numbers[keep]
        for number, reason, text in records.broken:
            if number >= low:
                bad.append(Bad(self.partition, number, text.encode(errors="backslashreplace"), reason))
        columns = [None if at is None else column_of(fields, at) for at in self._fields]
        checked = texts_checked(self._decoder.schema, columns, len(numbers), self._decoder.rules)
        texts = texts_of(fields, [i for i, _ in checked.bad], delimiter)
        for (i, reason), text in zip(checked.bad, texts):
            bad.append(Bad(self.partition, int(numbers[i]), text.encode(errors="backslashreplace"), reason))
        return checked.rows, numbers[checked.indices]

    def _read_header(self, data: bytes) -> None:
        try:
            header = header_of(data, self._settings.delimiter)
        except DataError as error:
            raise Unfit(f"{self.path}: {error.message}", error.hint) from None
        # A record has as many fields as the header.
        self._width = len(header)
        try:
            self._fields = by_name([name.strip() for name in header], self._decoder.schema, self._decoder.rules)
        except DataError as error:
            hint = error.hint or f"it has {', '.join(header)}"
            hint += "; check the delimiter, and whether the file has a header"
            raise Unfit(f"{self.path}: {error.message}", hint) from None


def offset_of(bad: Bad) -> int:
    assert bad.offset is not None
    return bad.offset


class ParquetFile(SourceFile):
    """A Parquet file, read when its footer is written."""

    waits = None

    def __init__(self, path: str, decoder: Decoder) -> None:
        super().__init__(path)
        self._decoder = decoder
        self._next = 0  # number of the first row not read before
        self._file: pq.ParquetFile | None = None
        self._parts: Iterator[pa.RecordBatch] = iter(())
        self._first = 0  # number of the first row of the next batch
        self._content: Known | None = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def started(self) -> bool:
        return self._content is not None

    @property
    def at_end(self) -> bool:
        return self.ended

    @property
    def unread(self) -> str:
        return "it was not read to its end" if self._file is not None else ""

    def begin(self, partition: str, known: Known | None, position: int) -> None:
        super().begin(partition, known, position)
        self._next = position

    def known(self) -> Known | None:
        """Returns the facts about it; None until it is complete."""
        if self._content is None or self.partition is None:
            return None
        mark = replace(self._content.mark, records=self._next)
        return replace(
            self._content, partition=self.partition, mark=mark, first_us=self.first_us, newest_us=self.newest_us
        )

    def read(self) -> tuple[list[Piece | Bad] | None, bool]:
        """Reads the next batch. Returns its items, and whether there may be more."""
        assert self.partition is not None
        if self._file is None:
            self._open()
            assert self._file is not None
        elif (found := Identity.of(self.path)) != self.identity:
            with self.bytes() as file:
                if self._content is None or not self._content.is_in(file):
                    raise OtherFile(self.unread)
            self.identity = found
        out: list[Piece | Bad] = []
        batch = next(self._parts, None)
        if batch is None:
            self.ended = True
            self.close()
            return [Piece(self.partition, self._decoder.nothing, np.zeros(0, np.int64), self._next, True)], False
        skip = min(max(self._next - self._first, 0), batch.num_rows)
        first = self._first + skip
        self._first += batch.num_rows
        if skip == batch.num_rows:
            return [], True
        try:
            checked, raws = self._decoder.of_arrow(pa.Table.from_batches([batch.slice(skip)]))
        except DataError as error:
            raise Unfit(f"{self.path}: {error.message}", error.hint) from None
        for (i, reason), raw in zip(checked.bad, raws):
            out.append(Bad(self.partition, first + i, raw, reason))
        self._next = self._first
        return [*out, Piece(self.partition, checked.rows, checked.indices + first, self._next)], True

    def _open(self) -> None:
        self.identity = Identity.of(self.path)
        self._file = pq.ParquetFile(self.path)
        self._parts, self._first = self._file.iter_batches(BATCH_ROWS), 0
        rows = self._file.metadata.num_rows
        if rows < self._next:
            raise DataError(
                f"{self.path} has {rows} rows, but {self._next} were read before",
                "it was replaced; write new files under new names",
            )
        with self.bytes() as file:
            head = file.read(HEAD_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            mark = Mark(0, size, digest(file.read()))
        self._content = Known("", self.path, len(head), digest(head), mark)


def is_shorter(opened: IO[bytes], count: int) -> bool:
    """True if an open file has fewer than `count` bytes."""
    opened.seek(max(count - 1, 0))
    return count > 0 and not opened.read(1)


def _has_lines(torn: bytes) -> bool:
    """True if a torn record contains a line end. A final carriage return may be half of one and does not count."""
    return b"\n" in torn or b"\r" in torn[:-1]
