"""Records of CSV: their ends, and their fields, each with whether it was quoted.

Fields may be quoted, with "" for a quote and line ends inside. As in Arrow, which reads them, a quote in the middle of
a field is a quote, and text after the closing quote belongs to the field. An empty field without quotes is null; "" is
an empty text.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from matching.batch import Int64Array
from query.errors import DataError, first_line

#: A longer record of CSV or NDJSON is bad, and this many bytes of it are kept.
RECORD_BYTES_MAX, EXCERPT_BYTES = 1 << 24, 1000
_BEGINNING = 1 << 12
TOO_LONG = f"the record is longer than {RECORD_BYTES_MAX >> 20} MB; its beginning"
_OPEN = "a quote is open at the end of the file"
_NO_UTF8 = "the row is not UTF-8"


@dataclass(frozen=True, slots=True)
class CsvRecords:
    """Whole records. fields: a column of texts for each field, null for unquoted null texts; numbers: int64 (n,), of
    these records; broken: (number, reason, text) of invalid ones; blank: number of empty ones, which are left out;
    count: the sum of all three."""

    fields: pa.Table
    numbers: Int64Array
    broken: tuple[tuple[int, str, str], ...]
    blank: int
    count: int


def cut(data: bytes, delimiter: str) -> int:
    """Returns the position after the last whole record of data that begins with one."""
    end = b"\n" if b"\n" in data else b"\r"
    if b'"' not in data:
        at = data.rfind(end) + 1
        return at if end == b"\n" or at < len(data) else data[:-1].rfind(end) + 1  # a line end may go on
    ends = ends_of(data, delimiter, end)
    return int(ends[-1]) if len(ends) else 0


def ends_of(data: bytes, delimiter: str, end: bytes = b"\n") -> Int64Array:
    """Returns the positions after the whole records of data that begins with one. end: the line end in it."""
    if well_quoted(data, delimiter):
        return record_ends(data, end) + 1
    torn = (b"", b"\r") if end == b"\n" else (b"",)
    whole = (m.end() for m in _record(delimiter).finditer(data) if m.end() > m.start() and m[2] not in torn)
    return np.fromiter(whole, np.int64)


def without_long(
    data: bytes, delimiter: str, behind: int, final: bool, bytes_max: int
) -> tuple[list[tuple[bytes, bool]], bytes]:
    """Cuts whole records from data that exceeds the maximum length, and returns them with the rest: an incomplete
    record, with an open quote. Too long records appear among them, marked True: the beginning of the first line, with
    its open quote; the next line is a record again. behind: the number of bytes after the data that belong to an
    unfinished line."""
    parts: list[tuple[bytes, bool]] = []
    while data:
        ends = ends_of(data, delimiter)
        starts = np.concatenate([np.zeros(1, np.int64), ends])
        long = np.flatnonzero(np.diff(starts) - 1 > bytes_max)
        at = int(starts[long[0] if len(long) else -1])
        rest = len(data) - at
        if not len(long) and (not rest or rest + behind <= bytes_max):
            if final:
                at = len(data)
            return [*parts, (data[:at], False)] if at else parts, data[at:]
        if at:
            parts.append((data[:at], False))
        end = data.find(b"\n", at) + 1 or len(data)
        parts.append((data[at:end][:_BEGINNING], True))
        data = data[end:]
    return parts, b""


def record_ends(data: bytes, end: bytes = b"\n", quoted: bool = False) -> Int64Array:
    """Returns positions of the line ends outside of quotes; quoted: True if the data begins within quotes."""
    buffer = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(buffer == end[0])
    if b'"' in data:
        return ends[(np.searchsorted(np.flatnonzero(buffer == 34), ends) + quoted) % 2 == 0]
    return ends[:0] if quoted else ends


def well_quoted(data: bytes, delimiter: str) -> bool:
    """True if all quotes of data that begins with a record begin, end or double a quoted field."""
    buffer = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(buffer == 34)
    edge = np.zeros(256, np.bool_)
    edge[[10, 13, 34, *delimiter.encode()]] = True
    before = buffer[np.maximum(at - 1, 0)]
    behind = buffer[np.minimum(at + 1, len(buffer) - 1)]
    begins = edge[before] | (at == 0)
    ends = edge[behind] | (at == len(buffer) - 1)
    return bool(begins[0::2].all() and ends[1::2].all())


@cache
def _record(delimiter: str) -> re.Pattern[bytes]:
    """Returns the pattern of a record with its line end. Group 1 exists if the data ends within quotes, group 2 is the
    line end, empty at the end of the data."""
    d = re.escape(delimiter.encode())
    field = rb'(?:"(?:[^"]++|"")*+(?:"|(\Z)))?[^' + d + rb"\r\n]*+"
    return re.compile(field + rb"(?:" + d + field.replace(rb"(\Z)", rb"(?P<open>\Z)") + rb")*+(\r\n|\n|\r|\Z)")


def read_records(
    data: bytes, width: int, delimiter: str, nulls: Sequence[str], first: int = 0, last: bool = False
) -> CsvRecords:
    """Returns the records of data that holds whole ones only. first: the number of the first one; last: True if the
    file ends with it, where a quote may be open. Raises DataError if it holds only a line that is too long."""
    open_text = None
    if last and b'"' in data:
        data, open_text = _without_open(data, delimiter)
    ends: Int64Array | None = None
    foul: list[tuple[int, str, str]] = []
    try:
        if not data.isascii():
            data.decode()
    except UnicodeDecodeError:
        data, foul = _without_foul(data, delimiter)
    broken: list[tuple[int, str, str]] = []

    def invalid(row: pa.csv.InvalidRow) -> str:
        kind = "many" if row.actual_columns > row.expected_columns else "few"
        broken.append(
            (row.number - 1, f"too {kind} fields: {row.actual_columns}, not {row.expected_columns}", row.text)
        )
        return "skip"

    names = [f"f{i}" for i in range(width)]
    if data:
        try:
            table = pa.csv.read_csv(
                pa.BufferReader(data),
                # one thread and one block: only then are invalid rows numbered from the first
                read_options=pa.csv.ReadOptions(block_size=len(data) + 1, column_names=names, use_threads=False),
                parse_options=pa.csv.ParseOptions(
                    delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=invalid
                ),
                convert_options=pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), null_values=list(nulls), strings_can_be_null=True,
                    quoted_strings_can_be_null=False, check_utf8=False,
                ),
            )  # fmt: skip
        except pa.ArrowInvalid as error:
            raise DataError(f"invalid CSV: {first_line(error)}", "is a quote unclosed?") from error
    else:
        table = pa.table({name: pa.array([], pa.string()) for name in names})
    # Numbers in the data that Arrow has read, then among all records.
    known = np.array([number for number, _, _ in broken], np.int64)
    numbers = np.setdiff1d(np.arange(table.num_rows + len(known), dtype=np.int64), known, assume_unique=True)
    count = len(numbers) + len(known)
    if foul:
        ends = np.setdiff1d(np.arange(count + len(foul), dtype=np.int64), [number for number, _, _ in foul])
        numbers = ends[numbers]
        broken = sorted([*((int(ends[number]), why, text) for number, why, text in broken), *foul])
        count += len(foul)
    if open_text is not None:
        broken.append((count, _OPEN, open_text))
        count += 1
    empty = _empty(table)
    blank = 0
    if empty is not None:
        blank = int(empty.sum())
        table, numbers = table.filter(pa.array(~empty)), numbers[~empty]
    return CsvRecords(
        table, numbers + first, tuple((number + first, why, text) for number, why, text in broken), blank, count
    )


def header_of(data: bytes, delimiter: str) -> list[str]:
    """Returns the fields of the first record. Raises DataError if it is invalid."""
    first = _record(delimiter).match(data)
    assert first is not None
    try:
        return next(csv.reader(io.StringIO(first[0].decode(errors="replace"), newline=""), delimiter=delimiter), [""])
    except csv.Error as error:
        raise DataError(f"its header cannot be read: {error}", "is a quote unclosed?") from None


def _empty(table: pa.Table) -> np.ndarray | None:
    """Returns which records have no value in any field; None if all have one."""
    empty: np.ndarray | None = None
    for column in table.columns:
        if not column.null_count:
            return None
        null = column.is_null().to_numpy()
        empty = null if empty is None else empty & null
    return empty if empty is not None and empty.any() else None


def _without_open(data: bytes, delimiter: str) -> tuple[bytes, str | None]:
    """Returns the data without a last record whose quote is open; and the text of that record."""
    if well_quoted(data, delimiter):
        if data.count(b'"') % 2 == 0:
            return data, None
        ends = record_ends(data)
        at = int(ends[-1]) + 1 if len(ends) else 0
    else:
        at = -1
        for found in _record(delimiter).finditer(data):
            if found.end() > found.start() and (found[1] is not None or found["open"] is not None):
                at = found.start()
        if at < 0:
            return data, None
    return data[:at], data[at:].decode(errors="backslashreplace").rstrip("\r\n")


def _without_foul(data: bytes, delimiter: str) -> tuple[bytes, list[tuple[int, str, str]]]:
    """Returns the data without the records that are not UTF-8; and these."""
    good: list[bytes] = []
    foul: list[tuple[int, str, str]] = []
    for number, found in enumerate(m for m in _record(delimiter).finditer(data) if m.end() > m.start()):
        record = found[0]
        try:
            record.decode()
            good.append(record)
        except UnicodeDecodeError:
            foul.append((number, _NO_UTF8, record.decode(errors="backslashreplace").rstrip("\r\n")))
    return b"".join(good), foul


def text_of(row: Sequence[str | None], delimiter: str) -> str:
    """Returns a record of these fields in CSV."""
    special = (delimiter, '"', "\n", "\r")

    def field(text: str | None) -> str:
        if text is None:
            return ""
        plain = text and not any(character in text for character in special)
        return text if plain else '"' + text.replace('"', '""') + '"'

    return delimiter.join(map(field, row))


def texts_of(fields: pa.Table, at: Sequence[int], delimiter: str) -> list[str]:
    """Returns the records at some indices in CSV."""
    some = fields.take(pa.array(at, pa.int64()))
    return [text_of(row, delimiter) for row in zip(*(column.to_pylist() for column in some.columns))]


def column_of(fields: pa.Table, i: int) -> pa.Array:
    """Returns one of the fields as one array."""
    return pc.cast(fields.column(i), pa.string()).combine_chunks()
