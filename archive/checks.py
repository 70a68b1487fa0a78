"""Checks files against the declaration of a stream: plans how to read each file, and checks its rows. matching.values
defines the values, for archived files and live sources."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, assert_never

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from archive.inputs import (
    BLOCK_BYTES,
    WHOLE,
    InputFile,
    InputFormat,
    InputRecords,
    Part,
    opened,
    read_as,
    read_records,
    unreadable,
)
from archive.layout import time_name
from matching.batch import Int64Array
from matching.checked import Checked, arrow_checked, shown_rows, texts_checked
from matching.csv_records import texts_of
from matching.json_rows import JsonRows, names_of
from matching.types import arrow_type, duckdb_type
from matching.value_types import UNITS, Finer, Rules
from query.errors import DataError, first_line, nearest
from query.language.duck import quiet_connection
from query.schema import Field, Schema

#: Table of the bad rows of a batch.
BAD = pa.schema([("record", pa.int64()), ("reason", pa.string()), ("raw", pa.string())])
_DELIMITERS = (",", ";", "\t", "|")
#: Lines read to find the members of a file's JSON objects.
_SAMPLE_LINES = 1000
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Options:
    """Options for reading files.

    delimiter: separator of CSV fields; None: the one of comma, semicolon, tab and | by which the first line has most
    declared names. header: True if the first line of CSV has the column names; else the fields are the declared columns
    in order. nulls: unquoted CSV texts that mean null. timestamp_format: a strptime format for times in text, or the
    unit (s, ms, us, ns) of numbers since 1970. extra: undeclared columns are ignored or an error. missing: missing
    declared columns are null or an error. finer: times finer than a microsecond are bad or truncated.
    """

    delimiter: str | None = None
    header: bool = True
    nulls: tuple[str, ...] = ("",)
    timestamp_format: str | None = None
    extra: Literal["ignore", "error"] = "ignore"
    missing: Literal["null", "error"] = "error"
    finer: Finer = "error"


@dataclass(frozen=True, slots=True)
class InFile:
    """A column of the file: a CSV field (`f0`, ...) or a Parquet column."""

    name: str


@dataclass(frozen=True, slots=True)
class InJson:
    """The member of each JSON object with the column's name."""


@dataclass(frozen=True, slots=True)
class InPath:
    """A constant text for all rows of a file, from `name=value` in its path."""

    text: str


@dataclass(frozen=True, slots=True)
class Nowhere:
    """Null for all rows of a file."""


Origin: TypeAlias = InFile | InJson | InPath | Nowhere


@dataclass(frozen=True, slots=True)
class FileReadPlan:
    """Plan for reading one file. origins: the origin of each declared column. width: number of CSV fields. delimiter:
    of CSV. ignored: undeclared columns."""

    file: InputFile
    origins: tuple[Origin, ...]
    width: int = 0
    delimiter: str = ","
    ignored: tuple[str, ...] = ()

    @property
    def constants(self) -> tuple[tuple[int, str], ...]:
        """(column index, text) for the columns from the path; together with the bytes they identify the file."""
        return tuple((i, origin.text) for i, origin in enumerate(self.origins) if isinstance(origin, InPath))


@dataclass(frozen=True, slots=True)
class CheckedRecords:
    """A checked batch. rows: the valid rows, in the declared Arrow types. ts_us: int64 (n,), their times. numbers:
    int64 (n,), their record numbers. bad: the bad rows, as BAD. blank: number of empty records."""

    rows: pa.RecordBatch
    ts_us: Int64Array
    numbers: Int64Array
    bad: pa.Table
    blank: int


# ---- how a file is read


def plan_reading(file: InputFile, schema: Schema, options: Options) -> FileReadPlan:
    """Plans how to read a file from its beginning. Raises DataError if the file cannot be read, lacks a declared
    column, has a column of a type that cannot be cast, or has undeclared columns with extra="error"."""
    match file.format:
        case InputFormat.csv:
            return _plan_csv(file, schema, options)
        case InputFormat.ndjson:
            return _plan_ndjson(file, schema, options)
        case InputFormat.parquet:
            return _plan_parquet(file, schema, options)
        case _:
            assert_never(file.format)


def check_options(schema: Schema, options: Options) -> None:
    """Raises DataError for invalid options."""
    if options.delimiter is not None and (len(options.delimiter) != 1 or options.delimiter in '"\r\n'):
        raise DataError(f"invalid delimiter {options.delimiter!r}", "give one character, for example ';'")
    form = options.timestamp_format
    if form is not None and form not in UNITS:
        try:
            quiet_connection().execute("SELECT try_strptime('x', ?)", [form]).fetchall()
        except duckdb.Error as error:
            message = first_line(error)
            hint = "for example '%d/%m/%Y', or s, ms, us, ns"
            raise DataError(f"invalid timestamp format {form!r}: {message}", hint) from None


def _plan_csv(file: InputFile, schema: Schema, options: Options) -> FileReadPlan:
    line = _first_record(file)
    if line is None:
        return FileReadPlan(file, tuple(Nowhere() for _ in schema.fields), len(schema.fields), options.delimiter or ",")
    if not options.header:
        delimiter = options.delimiter or max(_DELIMITERS, key=line.count)
        width = len(_fields(line, delimiter))
        fields = [f for f in schema.fields if f.name.lower() not in _lowered(file.hive)]
        if width != len(fields):
            raise DataError(
                f"{file.path} has {width} fields per line, but {len(fields)} columns are declared",
                "without a header the fields are the declared columns, in order",
            )
        names = [f.name for f in fields]
    else:
        given = [options.delimiter] if options.delimiter else _DELIMITERS
        declared = {name.lower() for name in schema.names}

        def known(delimiter: str) -> tuple[int, int]:
            fields = _fields(line, delimiter)
            return len(declared & {f.strip().lower() for f in fields}), len(fields)

        delimiter = max(given, key=known)
        names = [name.strip() for name in _fields(line, delimiter)]
    found: dict[str, Origin] = {name: InFile(f"f{i}") for i, name in enumerate(names)}
    _once(file, names, schema)
    origins, ignored = _origins(file, schema, options, found)
    return FileReadPlan(file, origins, len(names), delimiter, ignored)


def _first_record(file: InputFile) -> str | None:
    """Returns the first record of a CSV file, or None if it is empty."""
    system, inner = opened(file.path, file.store)
    try:
        with system.open_input_stream(inner, compression="detect") as stream:
            data = bytes(stream.read(1 << 16))
            while data.count(b'"') % 2 or b"\n" not in data:
                more = bytes(stream.read(1 << 16))
                if not more or len(data) > BLOCK_BYTES:
                    break
                data += more
    except (pa.ArrowException, OSError, EOFError) as error:
        raise unreadable(file, error) from error
    if not data.strip(b"\xef\xbb\xbf\r\n"):
        return None
    try:
        text = data.decode("utf-8-sig", errors="replace")
        end, quotes = 0, 0
        for line in io.StringIO(text, newline=None):
            end += len(line)
            quotes += line.count('"')
            if quotes % 2 == 0:
                break
        return io.StringIO(text, newline=None).read(end).rstrip("\n")
    except csv.Error as error:
        raise unreadable(file, error) from error


def _fields(line: str, delimiter: str) -> list[str]:
    return next(csv.reader(io.StringIO(line, newline=""), delimiter=delimiter), [""])


def _plan_ndjson(file: InputFile, schema: Schema, options: Options) -> FileReadPlan:
    first = next(read_records(file, WHOLE), None)
    lines: list[bytes] = [] if first is None else first.columns.column(0).slice(0, _SAMPLE_LINES).to_pylist()
    lines = [line for line in lines if not line.isspace()]
    found: dict[str, Origin] = {}
    for line in lines:
        found |= dict.fromkeys(names_of(line), InJson())
    start = lines[0].decode(errors="replace").strip() if lines else ""
    if lines and (not found or start[:1] == "["):
        raise DataError(
            f"{file.path} does not begin with JSON objects, one per line: {_cut(start)}",
            "rewrite the array with one object per line" if start[:1] == "[" else "check the format",
        )
    if not lines:
        return FileReadPlan(file, tuple(InJson() for _ in schema.fields))
    origins, ignored = _origins(file, schema, options, dict(sorted(found.items())))
    return FileReadPlan(file, origins, ignored=ignored)


def _plan_parquet(file: InputFile, schema: Schema, options: Options) -> FileReadPlan:
    system, inner = opened(file.path, file.store)
    try:
        columns = pq.read_schema(inner, filesystem=system)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file, error) from error
    _once(file, columns.names, schema)
    found: dict[str, Origin] = {}
    for column in columns:
        field = schema.field(column.name)
        if field is None:
            found[column.name] = Nowhere()
            continue
        type = read_as(column.type)
        if not _castable(type, field, options.timestamp_format):
            raise DataError(
                f"{file.path}: column {column.name} is {column.type}, but declared {field.type}",
                "convert the column, or declare another type",
            )
        found[column.name] = InFile(column.name)
    origins, ignored = _origins(file, schema, options, found)
    return FileReadPlan(file, origins, ignored=ignored)


def _castable(type: pa.DataType, field: Field, timestamp_format: str | None) -> bool:
    """Returns True if values of the type can be cast to the declared field."""
    target = arrow_type(field.type)
    if pa.types.is_null(type):
        return True
    kinds = _kind(type), _kind(target)
    if kinds == ("number", "time"):
        return timestamp_format in UNITS and pa.types.is_integer(type)
    if kinds[0] == kinds[1] != "nested" or "text" in kinds or set(kinds) == {"number", "boolean"}:
        return True
    if kinds != ("nested", "nested"):
        return False
    try:
        quiet_connection().sql(f"SELECT CAST(NULL::{duckdb_type(type)} AS {field.type})").to_arrow_table()
    except duckdb.Error:
        return False
    return True


def _kind(type: pa.DataType) -> str:
    t = pa.types
    type = type.value_type if t.is_dictionary(type) else type
    if t.is_integer(type) or t.is_floating(type) or t.is_decimal(type):
        return "number"
    if t.is_timestamp(type) or t.is_date(type):
        return "time"
    if t.is_string(type) or t.is_large_string(type) or t.is_string_view(type):
        return "text"
    if t.is_binary(type) or t.is_large_binary(type) or t.is_binary_view(type) or t.is_fixed_size_binary(type):
        return "bytes"
    if t.is_time(type):
        return "time of day"
    return "boolean" if t.is_boolean(type) else "nested" if t.is_nested(type) else str(type)


def _once(file: InputFile, names: Sequence[str], schema: Schema) -> None:
    lowered = [name.lower() for name in names]
    for field in schema.fields:
        if lowered.count(field.name.lower()) > 1:
            raise DataError(f"{file.path} has two columns {field.name}", "names compare without case")


def _lowered(hive: Sequence[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in hive}


def _origins(
    file: InputFile, schema: Schema, options: Options, found: dict[str, Origin]
) -> tuple[tuple[Origin, ...], tuple[str, ...]]:
    """Returns the origin of each declared column, and the names of the ignored ones."""
    declared = {field.name.lower(): field.name for field in schema.fields}
    by_name = {name.lower(): origin for name, origin in found.items()}
    in_path = _lowered(file.hive)
    ignored = tuple(name for name in found if name.lower() not in declared)
    origins: list[Origin] = []
    for field in schema.fields:
        name = field.name.lower()
        if name in by_name:
            origins.append(by_name[name])
        elif name in in_path:
            null = in_path[name] == "__HIVE_DEFAULT_PARTITION__"
            origins.append(Nowhere() if null else InPath(in_path[name]))
        elif options.missing == "null" and field.name != time_name(schema):
            # A later JSON object may have it.
            origins.append(InJson() if file.format is InputFormat.ndjson else Nowhere())
        else:
            near = nearest(field.name, ignored)
            hint = near or f"it has {', '.join(found)}"
            if file.format is InputFormat.csv and not set(by_name) & set(declared):
                hint += "; without a header: --no-header"
            raise DataError(f"{file.path} has no column {field.name}", hint)
    if ignored and options.extra == "error":
        raise DataError(
            f"{file.path} has columns that are not declared: {', '.join(ignored)}", "declare them, or leave them out"
        )
    return tuple(origins), ignored


# ---- the rows of a file


def read_checked(reading: FileReadPlan, part: Part, schema: Schema, options: Options) -> Iterator[CheckedRecords]:
    """Yields the checked rows of a part of a file in batches, in the order of the file. Raises DataError if the file
    cannot be read."""
    file = reading.file
    columns = tuple(dict.fromkeys(o.name for o in reading.origins if isinstance(o, InFile)))
    header = file.format is InputFormat.csv and options.header
    if file.format is InputFormat.csv and all(isinstance(o, Nowhere) for o in reading.origins):
        return  # an empty file
    rules = rules_of(options)
    fixed = {i: None if isinstance(o, Nowhere) else o.text for i, o in enumerate(reading.origins)
             if isinstance(o, InPath | Nowhere)}  # fmt: skip
    objects = JsonRows(schema, rules, fixed) if file.format is InputFormat.ndjson else None
    for records in read_records(
        file, part, width=reading.width, delimiter=reading.delimiter, nulls=options.nulls, columns=columns
    ):
        if header and len(records.numbers) and records.numbers[0] == 0:
            records = replace(records, columns=records.columns.slice(1), numbers=records.numbers[1:])
        if header and records.broken and records.broken[0][0] == 0:
            raise DataError(f"{file.path}: the header is malformed", "check its quotes and its delimiter")
        yield _of_lines(records, objects) if objects is not None else _of_columns(records, reading, schema, rules)


def rules_of(options: Options) -> Rules:
    """Returns the rules for reading values."""
    return Rules(options.timestamp_format or "iso", options.missing, options.finer)


def _of_lines(records: InputRecords, objects: JsonRows) -> CheckedRecords:
    lines: list[bytes] = records.columns.column(0).to_pylist()
    blank = [i for i, line in enumerate(lines) if line.isspace()]
    numbers = records.numbers
    if blank:
        numbers = np.delete(numbers, blank)
        gone = set(blank)
        lines = [line for i, line in enumerate(lines) if i not in gone]
    found = objects.read(lines)
    raw = {i: lines[i].decode(errors="backslashreplace").rstrip("\r\n") for i, _ in found.bad}
    return _checked(found, numbers, records, [raw[i] for i, _ in found.bad], len(blank))


def _of_columns(records: InputRecords, reading: FileReadPlan, schema: Schema, rules: Rules) -> CheckedRecords:
    n = len(records.numbers)
    table = records.columns
    columns: list[pa.Array | None] = []
    for origin in reading.origins:
        match origin:
            case InFile(name):
                columns.append(table.column(name).combine_chunks())
            case InPath(text):
                columns.append(pa.repeat(pa.scalar(text), n))
            case _:
                columns.append(None)
    if reading.file.format is InputFormat.csv:
        found = texts_checked(schema, columns, n, rules)
        raw = texts_of(table, [i for i, _ in found.bad], reading.delimiter)
    else:
        found = arrow_checked(schema, columns, n, rules)
        raw = shown_rows(table, [i for i, _ in found.bad])
    return _checked(found, records.numbers, records, raw, records.blank)


def _checked(found: Checked, numbers: Int64Array, records: InputRecords, raw: list[str], blank: int) -> CheckedRecords:
    bad = [(number, reason, text) for number, reason, text in records.broken]
    bad += [(int(numbers[i]), reason, text) for (i, reason), text in zip(found.bad, raw)]
    at, reasons, texts = zip(*bad) if bad else ((), (), ())
    table = pa.table([list(at), list(reasons), [_encodable(text) for text in texts]], schema=BAD)
    return CheckedRecords(found.rows, found.ts_us, numbers[found.indices], table, blank)


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
