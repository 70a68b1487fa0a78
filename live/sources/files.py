"""Files as a source: one file, a directory or a glob, read once or followed as they grow.

A partition is a file, named by its absolute path; a position is the number of a record in it, from 0, the header of a
CSV file and blank lines included: for NDJSON the line, for CSV the line unless a quoted value holds a line end, for
Parquet the row. To go on from a position a file is read from its start, and the records before it are passed over.

Files are taken in order of their paths, each up to where it ended when its turn came, so that what is there already
comes in order and no file that grows keeps others waiting. Of CSV and NDJSON only whole records are taken: a torn last
line waits for its line end, unless the file is read once. Parquet is taken when it is complete.

What was read must stay: a file that becomes shorter, is replaced or gets another name is a DataError, for its records
would be taken for others. It is noticed by inode, size, and the first bytes and the last that were read; a file that is
rewritten in place between those is not.
"""

from __future__ import annotations

import glob
import gzip
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from live.sources.base import Bad, Piece
from live.sources.decode import Decoder, Decoding, Times
from matching.batch import Int64Array
from matching.checked import by_name, texts_checked
from matching.csv_records import column_of, cut, header_of, texts_of
from matching.csv_records import read_records as csv_records
from query.errors import DataError, first_line
from query.schema import Schema

FileFormat: TypeAlias = Literal["csv", "ndjson", "parquet"]

#: CSV and NDJSON are read in blocks of so many bytes, or as many as a record needs.
BLOCK_BYTES = 1 << 20
#: No record of CSV or NDJSON is longer.
RECORD_BYTES_MAX = 1 << 24
#: Parquet is handed out in batches of so many rows.
BATCH_ROWS = 1 << 14
#: How long, in seconds, a poll waits before it looks again.
LOOK_S = 0.05
#: How long, in seconds, a poll reads on that waits for nothing but has not met a whole record yet.
READ_S = 0.2
#: So many bytes at the start of a file, and before where it was read to, say whether it is still the same.
_SEEN_BYTES = 64
_MARK = b"\xef\xbb\xbf"

_SUFFIXES: dict[str, FileFormat] = {
    ".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileSettings:
    """Which files, and how they are read.

    path: a file, a directory (all files below it), or a glob; names that begin with a dot or an underscore are left out
    below directories. format: None: by suffix, .csv .ndjson .jsonl .json .parquet .pq, and .gz behind it; files with
    another suffix are left out. follow: whether more may come, new files too; otherwise all is read once. Files ending
    in .gz can only be read once.
    times, missing: see Decoding. delimiter, header, nulls: of CSV; without a header the fields are the declared columns
    in their order; a field without quotes that is one of `nulls` is null.
    """

    path: str
    format: FileFormat | None = None
    follow: bool = True
    times: Times = "iso"
    missing: Literal["error", "null"] = "error"
    delimiter: str = ","
    header: bool = True
    nulls: tuple[str, ...] = ("",)


class FileSource:
    """Events from files. Resumes."""

    resumes = True

    def __init__(self, schema: Schema, settings: FileSettings) -> None:
        self._settings = settings
        self._path = os.path.abspath(os.path.expanduser(settings.path))
        self._decoder = Decoder(schema, Decoding("json", settings.times, settings.missing))
        self._positions: dict[str, int] = {}
        self._files: dict[str, _Text | _Parquet] = {}
        self._turns: deque[str] = deque()
        self._waits: dict[str, str] = {}
        self._gone: list[str] = []
        self._failed: DataError | None = None

    @property
    def ended(self) -> bool:
        return not self._settings.follow and all(file.ended for file in self._files.values())

    @property
    def partitions(self) -> tuple[str, ...]:
        return ()

    def open(self, positions: Mapping[str, int]) -> None:
        if len(self._settings.delimiter) != 1 or self._settings.delimiter in '"\r\n':
            raise DataError(f"{self._settings.delimiter!r} cannot stand between fields", "give one character")
        self._positions = dict(positions)
        self._look()
        if not self._files and not self._settings.follow:
            hint = "check the path; the format is known by a suffix, or say it"
            raise DataError(f"there is no file to read in {self._path}", hint)

    def poll(self, seconds: float) -> list[Piece | Bad]:
        if self._failed is not None:
            raise self._failed
        start = time.monotonic()
        until = start + seconds
        try:
            while True:
                began = time.monotonic()
                out, more = self._turn()
                now = time.monotonic()
                if out or self.ended or now >= (max(until, start + READ_S) if more else until):
                    return out
                if not more:
                    # Looking at very many files takes its time: at most a tenth of it goes there.
                    time.sleep(min(until - now, max(LOOK_S, 9 * (now - began))))
        except DataError as error:
            self._failed = error
            raise

    def kept(self, positions: Mapping[str, int]) -> None:
        """Nothing to do: nobody waits to hear it."""

    def trouble(self) -> str | None:
        if not self._files and self._settings.follow:
            return f"there is no file to read in {self._path} yet"
        if self._path in self._gone:
            return f"{self._path} is gone"
        for path in self._gone:
            if self._files[path].torn:
                return f"{path} is gone, and its last record was torn"
        return next(iter(self._waits.values()), None)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _turn(self) -> tuple[list[Piece | Bad], bool]:
        """What the next block says that says something; and whether, where there is none, more may be read at once."""
        if not self._turns:
            if self._settings.follow:
                self._look()
            there = self._files.keys() - set(self._gone)
            self._turns.extend(sorted(path for path in there if not self._files[path].ended))
        moved = False
        while self._turns:
            path = self._turns[0]
            file = self._files[path]
            try:
                out, more = file.read()
                self._waits.pop(path, None)
            except (OSError, EOFError, pa.ArrowException) as error:
                if not self._settings.follow:
                    raise DataError(f"{path} cannot be read: {_said(error)}", "is it complete?") from error
                self._waits[path] = f"{path} cannot be read yet: {_said(error)}"
                if isinstance(file, _Parquet):
                    self._turns.clear()  # what comes behind it in order waits with it
                    break
                out, more = None, False
            if not more:
                self._turns.popleft()
            if out or more:
                return out or [], True
            moved |= out is not None
        return [], moved

    def _look(self) -> None:
        """Finds files that are new, and those that are gone."""
        listed = _listed(self._path)
        self._gone = sorted(self._files.keys() - set(listed))
        for path in listed:
            known = self._files.get(path)
            if known is not None and not known.ended:
                continue
            try:
                found = _Identity.of(path)
            except FileNotFoundError:
                continue
            if known is not None:
                if found.differs(known.identity):
                    raise _replaced(path)
                continue
            stem, suffix = os.path.splitext(path.lower())
            packed = path.endswith(".gz")
            format = self._settings.format or _SUFFIXES.get(os.path.splitext(stem)[1] if packed else suffix)
            if format is None:
                if path == self._path:
                    raise DataError(f"{path}: the suffix does not say what is in it", "say its format")
                continue
            if packed and (self._settings.follow or format == "parquet"):
                hint = "Parquet is compressed inside" if format == "parquet" else "unpack it, or set follow to false"
                raise DataError(f"{path} cannot be followed, as it is compressed", hint)
            for other in self._files.values():
                if other.identity.inode == found.inode and other.is_now(path):
                    raise DataError(
                        f"{path} is {other.path} under another name",
                        "its events would be taken twice: follow files that keep their names",
                    )
            position = self._positions.get(path, 0)
            if format == "parquet":
                self._files[path] = _Parquet(path, found, self._decoder, position)
            else:
                self._files[path] = _Text(path, found, self._decoder, self._settings, format, position)


def _listed(path: str) -> list[str]:
    """The files that a path means, those that are there."""
    if os.path.isdir(path):
        found = []
        for folder, folders, names in os.walk(path):
            folders[:] = [name for name in folders if not name.startswith((".", "_"))]
            found += [os.path.join(folder, name) for name in names if not name.startswith((".", "_"))]
        return sorted(found)
    if glob.has_magic(path) and not os.path.exists(path):
        return sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
    return [path] if os.path.exists(path) else []


def _said(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or first_line(error) or type(error).__name__


@dataclass(frozen=True, slots=True)
class _Identity:
    """What a file is known by."""

    inode: tuple[int, int]
    size: int
    modified_ns: int

    @staticmethod
    def of(file: str | int) -> _Identity:
        """Of a path or an open file. Raises OSError."""
        stat = os.stat(file)
        return _Identity((stat.st_dev, stat.st_ino), stat.st_size, stat.st_mtime_ns)

    def differs(self, other: _Identity) -> bool:
        """Whether it is another file, or one of another size."""
        return (self.inode, self.size) != (other.inode, other.size)


def _replaced(path: str) -> DataError:
    return DataError(
        f"{path} was replaced by another file, or written anew",
        "its records would be taken for those read before; write new files under new names",
    )


class _Text:
    """A CSV or NDJSON file."""

    def __init__(
        self, path: str, identity: _Identity, decoder: Decoder, settings: FileSettings, format: FileFormat,
        position: int,
    ) -> None:
        self.path = path
        self.identity = identity
        self.ended = False
        self._decoder = decoder
        self._settings = settings
        self._csv = format == "csv"
        self._packed = path.endswith(".gz")
        self._wanted = position  # records before it were taken by another process
        self._next = 0  # number of the record that comes next
        self._at = 0  # bytes read
        self._rest = b""  # of these the last ones: a torn record
        self._head = b""  # the first bytes
        self._tail = b""  # the last ones read
        self._goal = -1  # how far this turn goes, -1 between turns
        self._begun = False
        self._file: Any = None
        self._fields: list[int | None] | None = None if settings.header else list(range(len(decoder.schema.fields)))
        self._width = len(decoder.schema.fields)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def torn(self) -> bool:
        """Whether a record waits for its end."""
        return bool(self._rest)

    def is_now(self, path: str) -> bool:
        """Whether what was read of this file stands in that one."""
        with open(path, "rb") as file:
            return self._holds(file)

    def _holds(self, file: Any) -> bool:
        if file.read(len(self._head)) != self._head:
            return False
        file.seek(self._at - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def read(self) -> tuple[list[Piece | Bad] | None, bool]:
        """What the next block says, None where nothing is new; and whether this turn goes on."""
        if self._goal < 0 and not self._begin():
            return None, False
        data = self._file.read(BLOCK_BYTES if self._packed else min(BLOCK_BYTES, self._goal - self._at))
        if len(self._head) < _SEEN_BYTES:
            self._head = (self._head + data)[:_SEEN_BYTES]
        self._tail = (self._tail + data[-_SEEN_BYTES:])[-_SEEN_BYTES:]
        self._at += len(data)
        over = not data if self._packed else self._at >= self._goal or not data
        final = over and not self._settings.follow
        if len(self._rest) > RECORD_BYTES_MAX:
            hint = "is a quote open, or is it one line of JSON?"
            raise DataError(f"{self.path}: record {self._next} is longer than {RECORD_BYTES_MAX >> 20} MB", hint)
        out = self._taken(self._rest + data, final)
        if over:
            self._over(final)
        return out, not over

    def _begin(self) -> bool:
        """Opens the file for a turn, unless nothing is new in it. Raises DataError where it is another one."""
        if self._begun and _Identity.of(self.path) == self.identity:
            return False
        self.close()
        self._file = open(self.path, "rb")  # noqa: SIM115
        found = _Identity.of(self._file.fileno())
        if found.inode != self.identity.inode:
            raise _replaced(self.path)
        if found.size < self._at:
            raise DataError(
                f"{self.path} has become shorter: {found.size} bytes, and {self._at} were read",
                "its records would be taken for those read before; write new files under new names",
            )
        if not self._holds(self._file):
            raise _replaced(self.path)
        if self._packed:
            self._file.close()
            self._file = gzip.open(self.path)  # noqa: SIM115
        self.identity = found
        self._goal = found.size
        self._begun = True
        return True

    def _over(self, final: bool) -> None:
        self.close()
        self._goal = -1
        self.ended = final
        known = self._next + bool(self._rest)
        if known < self._wanted:
            raise DataError(
                f"{self.path} has {known} records, and {self._wanted} of it were read before",
                "it was cut or replaced; write new files under new names",
            )

    def _taken(self, data: bytes, final: bool) -> list[Piece | Bad]:
        """The whole records of the data, in which all that was not taken yet stands; the rest is kept."""
        if self._next == 0:
            data = data.removeprefix(_MARK)
        end = data.rfind(b"\n") + 1
        if final and end < len(data):
            data += b"\n"
            end = len(data)
        data, self._rest = data[:end], data[end:]
        first = self._next
        rows, numbers, bad = self._of_csv(data, final) if self._csv else self._of_lines(data)
        if self._next <= self._wanted and not final:
            return []
        if self._next == first and not final:
            return []
        return [*bad, Piece(self.path, rows, numbers, max(self._next, self._wanted), final)]

    def _of_lines(self, data: bytes) -> tuple[pa.RecordBatch, Int64Array, list[Bad]]:
        lines = data.split(b"\n")[:-1]
        first = self._next
        self._next += len(lines)
        wanted = [i for i in range(max(self._wanted - first, 0), len(lines)) if lines[i] and not lines[i].isspace()]
        if len(wanted) < len(lines):
            lines = [lines[i] for i in wanted]
        return self._decoder.decode(self.path, lines, np.array(wanted, np.int64) + first)

    def _of_csv(self, data: bytes, final: bool) -> tuple[pa.RecordBatch, Int64Array, list[Bad]]:
        end = len(data) if final else cut(data, self._settings.delimiter)
        data, self._rest = data[:end], data[end:] + self._rest
        first = self._next
        if data and first == 0 and self._settings.header:
            # Its width says how many fields a record has.
            header = header_of(data, self._settings.delimiter)
            self._read_header(header)
        found = csv_records(data, self._width, self._settings.delimiter, self._settings.nulls, first, final)
        self._next += found.count
        bad = [Bad(self.path, number, text.encode(), reason) for number, reason, text in found.broken]
        fields, numbers = found.fields, found.numbers
        low = max(self._wanted, int(self._settings.header))
        if first < low:
            bad = [one for one in bad if _offset(one) >= low]
            keep = numbers >= low
            fields, numbers = fields.filter(pa.array(keep)), numbers[keep]
        assert self._fields is not None or not len(numbers)
        columns = [None if at is None else column_of(fields, at) for at in self._fields or ()]
        if not columns:
            return self._decoder.nothing, numbers, bad
        checked = texts_checked(self._decoder.schema, columns, len(numbers), self._decoder.rules)
        texts = texts_of(fields, [i for i, _ in checked.bad], self._settings.delimiter)
        for (i, reason), text in zip(checked.bad, texts):
            bad.append(Bad(self.path, int(numbers[i]), text.encode(), reason))
        bad.sort(key=_offset)
        return checked.rows, numbers[checked.indices], bad

    def _read_header(self, header: list[str]) -> None:
        names = [name.strip() for name in header]
        self._width = len(names)
        try:
            self._fields = by_name(names, self._decoder.schema, self._decoder.rules)
        except DataError as error:
            hint = error.hint or f"it has {', '.join(header)}"
            hint += "; is the delimiter right, is there a header?"
            raise DataError(f"{self.path}: {error.message}", hint) from None


def _offset(bad: Bad) -> int:
    assert bad.offset is not None
    return bad.offset


class _Parquet:
    """A Parquet file, taken when its footer is there."""

    def __init__(self, path: str, identity: _Identity, decoder: Decoder, position: int) -> None:
        self.path = path
        self.identity = identity
        self.ended = False
        self.torn = False
        self._decoder = decoder
        self._next = position  # rows before it were taken
        self._file: pq.ParquetFile | None = None
        self._parts: Iterator[pa.RecordBatch] = iter(())
        self._first = 0  # number of the row that comes next

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def is_now(self, path: str) -> bool:
        """Whether a file of the same inode is this one."""
        return _Identity.of(path) == self.identity

    def read(self) -> tuple[list[Piece | Bad] | None, bool]:
        """The next batch, and whether there may be more."""
        if self._file is None:
            self.identity = _Identity.of(self.path)
            self._file = pq.ParquetFile(self.path)
            self._parts = self._file.iter_batches(BATCH_ROWS)
            rows = self._file.metadata.num_rows
            if rows < self._next:
                raise DataError(
                    f"{self.path} has {rows} rows, and {self._next} of it were read before",
                    "it was replaced; write new files under new names",
                )
        elif _Identity.of(self.path).differs(self.identity):
            raise _replaced(self.path)
        out: list[Piece | Bad] = []
        batch = next(self._parts, None)
        if batch is None:
            self.ended = True
            self.close()
            return [Piece(self.path, self._decoder.nothing, np.zeros(0, np.int64), self._next, True)], False
        skip = min(max(self._next - self._first, 0), batch.num_rows)
        first = self._first + skip
        self._first += batch.num_rows
        if skip == batch.num_rows:
            return [], True
        checked, raws = self._decoder.of_arrow(pa.Table.from_batches([batch.slice(skip)]))
        for (i, reason), raw in zip(checked.bad, raws):
            out.append(Bad(self.path, first + i, raw, reason))
        self._next = self._first
        return [*out, Piece(self.path, checked.rows, checked.indices + first, self._next)], True
