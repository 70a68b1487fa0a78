"""Input files of the archive: finds them, fingerprints their contents, and reads their records in batches.

A file is identified by its contents, not by its name: its fingerprint is a hash over the hashes of its chunks, so that
several tasks can share the work. A record is identified by its number in the file, counted from 0 with the header and
empty lines of CSV. For CSV and NDJSON this is the line number minus one, unless a quoted value contains a line end.

Parts of a file are chunks of CSV and NDJSON, and row groups of Parquet. The parts together have the records of the
file, with the same numbers (tests/archive/test_ingest.py). A CSV record does not end at a line end within quotes: the
number of preceding quotes tells, provided that every quote begins or ends a quoted value or doubles another quote.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from archive.delta_inputs import DeltaInput, delta_inputs
from archive.place import SCHEME, Place
from archive.place import Options as StoreOptions
from matching import csv_records
from matching.batch import Int64Array
from matching.csv_records import EXCERPT_BYTES, RECORD_BYTES_MAX, TOO_LONG, cut, without_long
from query.errors import DataError, first_line, nearest

#: Size of the chunks in which files are hashed and cut. Part of the definition of a fingerprint: never change it.
CHUNK_BYTES = 1 << 26
#: Size of the blocks in which CSV and NDJSON are read.
BLOCK_BYTES = 1 << 24
_MARK = b"\xef\xbb\xbf"
_PARQUET_BATCH_ROWS = 1 << 16


class InputFormat(StrEnum):
    """Format of an input file."""

    csv = "csv"
    ndjson = "ndjson"
    parquet = "parquet"


_SUFFIXES = {
    ".csv": InputFormat.csv, ".tsv": InputFormat.csv, ".ndjson": InputFormat.ndjson, ".jsonl": InputFormat.ndjson,
    ".json": InputFormat.ndjson, ".parquet": InputFormat.parquet, ".pq": InputFormat.parquet,
}  # fmt: skip
_COMPRESSED = (".gz", ".zst", ".bz2", ".lz4")


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input file. path: absolute, or a URL. size: bytes. modified_us: time of the last change, 0 if unknown. hive:
    (name, value) of directories `name=value` in the path. store: options of an S3-compatible store (archive.place)."""

    path: str
    size: int
    modified_us: int
    format: InputFormat
    compressed: bool
    hive: tuple[tuple[str, str], ...]
    store: StoreOptions = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Scan result of one chunk. Pairs hold the value if the chunk begins outside of quotes, and if it begins inside.

    quotes: number of quotes. record_ends: number of line ends outside of quotes. exact: True if each quote begins, ends
    or doubles another, and carriage returns occur only before line ends; then counting quotes is reliable."""

    digest: bytes
    quotes: int = 0
    record_ends: tuple[int, int] = (0, 0)
    exact: tuple[bool, bool] = (False, False)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file. CSV and NDJSON: the records whose first byte is in [start, end). first: number of the record at
    `start`; if `start` is inside a record, of that one, which belongs to the part before. quoted: `start` is inside
    quotes. Parquet: the row groups [start, end). end: None for the rest of the file."""

    start: int = 0
    end: int | None = None
    first: int = 0
    quoted: bool = False


WHOLE = Part()


@dataclass(frozen=True, slots=True)
class InputRecords:
    """A batch of n records, and the unreadable ones.

    columns: CSV fields as texts, null for an unquoted null text; one binary column `line` for NDJSON; typed columns for
    Parquet. numbers: int64 (n,). broken: (number, reason, text) of unreadable records. blank: number of skipped empty
    CSV records.
    """

    columns: pa.Table
    numbers: Int64Array
    broken: tuple[tuple[int, str, str], ...] = ()
    blank: int = 0


# ---- which files


def find_files(
    inputs: Sequence[str], format: InputFormat | None, store: StoreOptions = ()
) -> tuple[list[InputFile], int, tuple[DeltaInput, ...]]:
    """Returns the files named by inputs, sorted by path without duplicates, the number of files skipped for their
    suffix, and the Delta tables that files are of: of these only the files of their newest version are found. inputs:
    files, directories (recursive) and globs, as local paths or URLs.

    format: None: by suffix, .csv .tsv .ndjson .jsonl .json .parquet .pq, each optionally followed by .gz .zst .bz2
    .lz4. Skips names that begin with a dot or an underscore below directories and globs. Raises DataError if an input
    does not exist or no file is found."""
    found: dict[str, InputFile] = {}
    tables: dict[str, DeltaInput] = {}
    left_out = 0
    for text in inputs:
        listed = list(_listed(str(text), store))
        of = delta_inputs((path for path, _, _ in listed), opened, store)
        tables |= {table.root: table for table in of.values()}
        for path, info, named in listed:
            hive = _hive(path)
            if path in of:
                if path not in of[path].partitions:
                    if named:
                        message = f"{path} is not part of its Delta table at version {of[path].version}"
                        raise DataError(message, f"its rows were deleted or rewritten: archive {of[path].root}")
                    continue
                hive = tuple((dict(hive) | dict(of[path].partitions[path])).items())
            known = _format_of(path)
            if known is None and format is None:
                if named:
                    raise DataError(f"{path}: the suffix does not say the format", "give --format")
                left_out += 1
                continue
            modified = 0 if info.mtime_ns is None else info.mtime_ns // 1000
            compressed = os.path.splitext(path)[1].lower() in _COMPRESSED
            one = format or known
            assert one is not None
            if compressed and one is InputFormat.parquet:
                raise DataError(f"{path} is compressed as a whole", "Parquet is compressed internally: unpack the file")
            found[path] = InputFile(path, info.size, modified, one, compressed, hive, store)
    if not found:
        what = ", ".join(map(str, inputs)) or "nothing"
        hint = f"files end in {', '.join(_SUFFIXES)}; for others give --format" if left_out else "check the path"
        raise DataError(f"no file to archive in {what}", hint)
    return [found[path] for path in sorted(found)], left_out, tuple(tables.values())


def opened(path: str, store: StoreOptions) -> tuple[fs.FileSystem, str]:
    """Returns the file system of a path or URL, and the path in it. Raises DataError."""
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path):
        return fs.LocalFileSystem(), path
    url = re.sub(r"^s3[an]://", SCHEME, path)
    try:
        if url.startswith(SCHEME):
            place = Place(url, store)
            return place.filesystem, place.key
        return fs.FileSystem.from_uri(url)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be reached: {first_line(error)}", "check the URL") from error


def _listed(text: str, store: StoreOptions) -> Iterator[tuple[str, fs.FileInfo, bool]]:
    """Yields (path, info, True if the input names the file itself) for the files of one input."""
    url = re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text)
    base = text if url else os.path.abspath(os.path.expanduser(text))
    system, inner = opened(base, store)
    prefix = base[: len(base) - len(inner)] if base.endswith(inner) else ""
    try:
        info = system.get_file_info(inner)
        if info.type is fs.FileType.File:
            yield base, info, True
            return
        if info.type is fs.FileType.Directory:
            for one in system.get_file_info(fs.FileSelector(inner, recursive=True)):
                if one.type is fs.FileType.File and not _hidden(one.path[len(inner) :]):
                    yield prefix + one.path, one, False
            return
        if not glob.has_magic(inner):
            raise DataError(f"there is no file {text}", "check the URL" if url else _near(inner))
        root = re.split(r"[*?[]", inner)[0].rpartition("/")[0]
        if url:
            below = system.get_file_info(fs.FileSelector(root, recursive=True))
            matching = [one for one in below if fnmatchcase(one.path, inner)]
        else:
            matching = system.get_file_info(sorted(glob.glob(inner, recursive=True)))
        hidden = _hidden(inner[len(root) :])
        for one in matching:
            if one.type is fs.FileType.File and (hidden or not _hidden(one.path[len(root) :])):
                yield prefix + one.path, one, False
    except (pa.ArrowException, OSError) as error:
        message = f"{text} cannot be listed: {first_line(error)}"
        raise DataError(message, "check the path and its permissions") from error


def _hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) and "=" not in part for part in path.split("/") if part)


def _near(path: str) -> str:
    folder, name = os.path.split(path)
    return nearest(name, os.listdir(folder)) if os.path.isdir(folder) else "check the path"


def _format_of(path: str) -> InputFormat | None:
    stem, suffix = os.path.splitext(path.lower())
    return _SUFFIXES.get(os.path.splitext(stem)[1] if suffix in _COMPRESSED else suffix)


def _hive(path: str) -> tuple[tuple[str, str], ...]:
    parts = (part.partition("=") for part in path.split("/")[:-1])
    return tuple((name, urllib.parse.unquote(value)) for name, sign, value in parts if sign and name)


# ---- what is in them


def chunks_of(file: InputFile) -> list[tuple[int, int]]:
    """Returns the chunks of a file as [start, end) in bytes."""
    return [(start, min(start + CHUNK_BYTES, file.size)) for start in range(0, file.size, CHUNK_BYTES)]


def scan_chunk(file: InputFile, start: int, end: int, delimiter: str = ",") -> Chunk:
    """Scans one chunk, at several 100 MB/s. delimiter: of CSV. Raises DataError if it cannot be read."""
    before = min(start, 1)
    data = read_range(file, start - before, end + 1)
    # Before the first byte and after the last one counts as a line end.
    left, right = data[:before] or b"\n", data[before + end - start :] or b"\n"
    data = data[before : before + end - start]
    if len(data) < end - start:
        raise DataError(f"{file.path} was truncated while it was read", "archive only files that are complete")
    digest = hashlib.blake2b(data, digest_size=32).digest()
    if file.format is InputFormat.parquet or file.compressed:
        return Chunk(digest)
    if file.format is InputFormat.ndjson:
        lines = data.count(b"\n")
        return Chunk(digest, 0, (lines, lines), (True, True))
    carriage = data.count(b"\r") - data.count(b"\r\n") - (data.endswith(b"\r") and right == b"\n")
    quotes = data.count(b'"')
    found = record_ends(data, False), record_ends(data, True)
    ends = len(found[0]), len(found[1])
    if carriage:
        return Chunk(digest, quotes, ends)
    if not start and data.startswith(_MARK):
        left, data = b"\n", data[len(_MARK) :]
    outside, within = _well_quoted(left + data + right, delimiter) if quotes else (True, True)
    # After a record that is too long, the next line begins a record even inside a quote.
    short = [np.diff(at, prepend=-1, append=len(data)).max() <= RECORD_BYTES_MAX // 2 for at in found]
    return Chunk(digest, quotes, ends, (outside and bool(short[0] or not quotes), within and bool(short[1])))


def record_ends(data: bytes, quoted: bool) -> Int64Array:
    """Returns the positions of line ends outside of quotes, int64. quoted: True if the data begins inside quotes."""
    buffer = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(buffer == 10)
    if b'"' in data:
        return ends[(np.searchsorted(np.flatnonzero(buffer == 34), ends) + quoted) % 2 == 0]
    return ends[:0] if quoted else ends


def _well_quoted(data: bytes, delimiter: str) -> tuple[bool, bool]:
    """Returns whether all quotes, except the first and last byte, begin or end a quoted value or double a quote; if the
    data begins outside of quotes, and if it begins inside."""
    buffer = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(buffer[1:-1] == 34) + 1
    edge = np.zeros(256, np.bool_)
    edge[[10, 13, 34, *delimiter.encode()]] = True
    begins, ends = edge[buffer[at - 1]], edge[buffer[at + 1]]
    return (
        bool(begins[0::2].all() and ends[1::2].all()),
        bool(ends[0::2].all() and begins[1::2].all()),
    )


def fingerprint(size: int, digests: Sequence[bytes]) -> str:
    """Returns the fingerprint of a file with these chunk digests: equal for files with equal bytes only."""
    return hashlib.blake2b(b"".join([size.to_bytes(8, "big"), *digests]), digest_size=16).hexdigest()


def read_range(file: InputFile, start: int, end: int) -> bytes:
    """Returns the bytes [start, end) of a file, fewer at its end. Raises DataError."""
    system, inner = opened(file.path, file.store)
    try:
        with system.open_input_file(inner) as source:
            size = source.size()
            return bytes(source.read_at(max(min(end, size) - start, 0), start)) if start < size else b""
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file, error) from error


def is_as_it_was(file: InputFile) -> bool:
    """Returns True if size and time of change are as when the file was found. Raises DataError."""
    system, inner = opened(file.path, file.store)
    try:
        info = system.get_file_info(inner)
    except OSError as error:
        raise unreadable(file, error) from error
    modified_us = 0 if info.mtime_ns is None else info.mtime_ns // 1000
    return (info.size, modified_us) == (file.size, file.modified_us)


def parts_of(file: InputFile, chunks: Sequence[Chunk]) -> list[Part]:
    """Returns the parts of a CSV or NDJSON file; the whole file if it cannot be cut exactly (a compressed file, or CSV
    with quotes in the middle of values). For Parquet see row_groups."""
    parts = []
    records, quoted = 0, False
    for (start, end), chunk in zip(chunks_of(file), chunks):
        if file.compressed or not chunk.exact[quoted]:
            return [WHOLE]
        parts.append(Part(start, end, records, quoted))
        records += chunk.record_ends[quoted]
        quoted ^= bool(chunk.quotes % 2)
    return parts if len(parts) > 1 else [WHOLE]


def row_groups(file: InputFile, rows: int) -> list[Part]:
    """Returns the parts of a Parquet file, each with at least `rows` rows but the last. Raises DataError."""
    system, inner = opened(file.path, file.store)
    try:
        metadata = pq.read_metadata(inner, filesystem=system)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file, error) from error
    parts: list[Part] = []
    start = first = number = 0
    for group in range(metadata.num_row_groups):
        number += metadata.row_group(group).num_rows
        if number - first >= rows:
            parts.append(Part(start, group + 1, first))
            start, first = group + 1, number
    if start < metadata.num_row_groups:
        parts.append(Part(start, metadata.num_row_groups, first))
    return parts


# ---- records


def read_records(
    file: InputFile, part: Part, *, width: int = 0, delimiter: str = ",", nulls: Sequence[str] = ("",),
    columns: Sequence[str] = (),
) -> Iterator[InputRecords]:
    """Yields the records of a part in batches, in the order of the file.

    width, delimiter, nulls: of CSV: number of fields, separator, and texts that mean null. A quoted value may contain a
    line end. columns: the Parquet columns to read. Memory: a few blocks; for Parquet a row group. Raises DataError if
    the file cannot be read."""
    try:
        match file.format:
            case InputFormat.csv:
                yield from _csv(file, part, width, delimiter, nulls)
            case InputFormat.ndjson:
                yield from _ndjson(file, part)
            case InputFormat.parquet:
                yield from _parquet(file, part, columns)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise unreadable(file, error) from error


def unreadable(file: InputFile, error: BaseException) -> DataError:
    """Returns the error for a file that cannot be read."""
    message = first_line(error)
    hint = "check that it is complete and has the format of its suffix"
    if isinstance(error, PermissionError):
        hint = "check its permissions"
    return DataError(f"{file.path} cannot be read: {message}", hint)


def _csv(file: InputFile, part: Part, width: int, delimiter: str, nulls: Sequence[str]) -> Iterator[InputRecords]:
    source, number = _source(file, part)
    rest, long = b"", None  # long: the beginning of a line that is too long, until its end is found
    while source is not None:
        block = source.read(BLOCK_BYTES)
        last = len(block) < BLOCK_BYTES
        data, parts = rest + block, list[tuple[bytes, bool]]()
        if long is not None:
            end = data.find(b"\n") + 1
            if not end and not last:
                continue
            parts, long, data = [(long, True)], None, data[end or len(data) :]
        # Only complete lines, unless carriage returns end them: an incomplete line cannot be parsed yet.
        end = len(data) if last or (b"\n" not in data and b"\r" in data) else data.rfind(b"\n") + 1
        torn = b""
        if len(data) > RECORD_BYTES_MAX and (b"\n" in data or b"\r" not in data):
            whole, torn = without_long(data[:end], delimiter, len(data) - end, last, RECORD_BYTES_MAX)
            rest = torn + data[end:]
        else:
            end = end if last else cut(data[:end], delimiter)
            whole, rest = [(data[:end], False)] if end else [], data[end:]
        parts += whole
        if len(rest) > RECORD_BYTES_MAX and not torn:
            long, rest = rest[:EXCERPT_BYTES], b""
        for i, (text, too_long) in enumerate(parts):
            if too_long:
                yield InputRecords(_nothing(width), np.zeros(0, np.int64), (_too_long(number, text),))
                number += 1
                continue
            found = csv_records.read_records(text, width, delimiter, nulls, number, last and i == len(parts) - 1)
            yield InputRecords(found.fields, found.numbers, found.broken, found.blank)
            number += found.count
        if last:
            return


def _nothing(width: int) -> pa.Table:
    return pa.table({f"f{i}": pa.array([], pa.string()) for i in range(width)})


def _too_long(number: int, data: bytes) -> tuple[int, str, str]:
    return number, TOO_LONG, data[:EXCERPT_BYTES].decode(errors="backslashreplace").rstrip("\r\n")


def _ndjson(file: InputFile, part: Part) -> Iterator[InputRecords]:
    source, number = _source(file, part)
    rest, long = b"", None  # long: the beginning of a line that is too long, until its end is found
    while source is not None:
        block = source.read(BLOCK_BYTES)
        data, broken = rest + block, list[tuple[int, str, str]]()
        if long is not None:
            end = data.find(b"\n") + 1
            if not end and block:
                continue
            broken.append(_too_long(number, long))
            number, long, data = number + 1, None, data[end or len(data) :]
        end = len(data) if not block else data.rfind(b"\n") + 1
        data, rest = data[:end], data[end:]
        if len(rest) > RECORD_BYTES_MAX:
            long, rest = rest[:EXCERPT_BYTES], b""
        if data or broken:
            lines = _lines(data)
            numbers = np.arange(number, number + len(lines), dtype=np.int64)
            number += len(lines)
            if len(data) > RECORD_BYTES_MAX:
                whole = pc.less_equal(pc.binary_length(lines), RECORD_BYTES_MAX + 1).to_numpy(zero_copy_only=False)
                broken += [_too_long(int(numbers[i]), lines[int(i)].as_py()) for i in np.flatnonzero(~whole)]
                lines, numbers = lines.filter(pa.array(whole)), numbers[whole]
            yield InputRecords(pa.table({"line": lines}), numbers, tuple(broken))
        if not block:
            return


def _lines(data: bytes) -> pa.Array:
    """Returns the lines of a text, each with its line end, as a binary array without a copy."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10).astype(np.int64) + 1
    if data and (not len(ends) or ends[-1] != len(data)):
        ends = np.append(ends, len(data))
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _source(file: InputFile, part: Part) -> tuple[Any, int]:
    """Returns a stream of a part without byte order mark, and the number of its first record; None as stream if the
    part is empty."""
    if part.end is None:
        system, inner = opened(file.path, file.store)
        stream = system.open_input_stream(inner, compression="detect", buffer_size=1 << 20)
        return _without_mark(stream), 0
    before = min(part.start, 1)
    data = read_range(file, part.start - before, part.end)
    data, left, number = data[before:], data[:before], part.first
    quoting = file.format is InputFormat.csv
    if part.start and (part.quoted or left != b"\n"):
        # Skips the rest of a record that begins before the part.
        ends = _ends(data, part.quoted, quoting)
        if not len(ends) or ends[0] + 1 == len(data):
            return None, number
        data, number, quoted = data[ends[0] + 1 :], number + 1, False
    else:
        quoted = False
    pieces = [data]
    at = part.end
    while at < file.size:
        # The last record ends after the part, unless it ends exactly with it.
        quoted ^= quoting and bool(pieces[-1].count(b'"') % 2)
        if len(pieces) == 1 and data.endswith(b"\n") and not quoted:
            break
        more = read_range(file, at, at + BLOCK_BYTES)
        ends = _ends(more, quoted, quoting)
        pieces.append(more[: ends[0] + 1] if len(ends) else more)
        at += len(more)
        if len(ends):
            break
    text = b"".join(pieces)
    return _without_mark(pa.BufferReader(text)) if part.start == 0 else pa.BufferReader(text), number


def _ends(data: bytes, quoted: bool, quoting: bool) -> Int64Array:
    return record_ends(data, quoted) if quoting else np.flatnonzero(np.frombuffer(data, np.uint8) == 10)


class _Peeked:
    """A stream that puts its first bytes, which were already read, back in front."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head, self._rest = head, rest
        self.closed = False

    def read(self, n: int = -1) -> bytes:
        """Returns n bytes, fewer only at the end: Arrow takes a short read as the end of the stream."""
        whole = n is None or n < 0
        parts, self._head = [self._head if whole else self._head[:n]], b"" if whole else self._head[n:]
        missing = -1 if whole else n - len(parts[0])
        while missing:
            parts.append(bytes(self._rest.read(None if whole else missing)))
            if not parts[-1] or whole:
                break
            missing -= len(parts[-1])
        return b"".join(parts)

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
        self._rest.close()


def _without_mark(stream: Any) -> Any:
    """Returns the stream as an Arrow file without byte order mark; None if it is empty."""
    head = bytes(stream.read(3))
    if head == _MARK:
        head = bytes(stream.read(1))
    if not head:
        stream.close()
        return None
    return pa.PythonFile(_Peeked(head, stream), mode="r")


def _parquet(file: InputFile, part: Part, columns: Sequence[str]) -> Iterator[InputRecords]:
    system, inner = opened(file.path, file.store)
    number = part.first
    with system.open_input_file(inner) as source:
        reader = pq.ParquetFile(source, page_checksum_verification=True)
        groups = range(part.start, reader.num_row_groups if part.end is None else part.end)
        # One iterator per row group: an iterator keeps all bytes that it has read.
        batches = (reader.iter_batches(_PARQUET_BATCH_ROWS, row_groups=[i], columns=list(columns)) for i in groups)
        for batch in itertools.chain.from_iterable(batches):
            numbers = np.arange(number, number + batch.num_rows, dtype=np.int64)
            yield InputRecords(pa.Table.from_batches([batch]), numbers)
            number += batch.num_rows


def read_as(type: pa.DataType) -> pa.DataType:
    """Returns the type in which a Parquet column is read: nanosecond times become microseconds."""
    return pa.timestamp("us", type.tz) if type == pa.timestamp("ns", getattr(type, "tz", None)) else type
