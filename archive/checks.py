"""Rows of files against the declaration of a stream: what fits becomes an event, what does not is a bad row.

A text means what DuckDB's TRY_CAST says it means, with three differences, each so that no value is lost in silence: a
text that an integer column would round is refused, a nested value is taken whole or not at all, and a time with a zone
is its instant in UTC. JSON values are taken by their text, so "1.5" and 1.5 are one number; numbers of JSON have the
precision of a double.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, assert_never

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archive.inputs import BLOCK_BYTES, WHOLE, File, Format, Part, Records, opened, read_as, read_records, unreadable
from archive.layout import time_name
from matching.batch import TIME_END_US, Int64Array
from matching.json_members import members_twice
from matching.types import arrow_schema, arrow_type, duckdb_type
from query.errors import DataError, first_line, nearest
from query.language.duck import hide_progress
from query.schema import Field, Schema

#: Bad rows of a batch as a table.
BAD = pa.schema([("record", pa.int64()), ("reason", pa.string()), ("raw", pa.string())])
_EPOCHS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DELIMITERS = (",", ";", "\t", "|")
#: A file is looked at so far to find out which members its JSON objects have.
_SAMPLE_LINES = 1000
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Options:
    """How files are to be read.

    delimiter: what stands between the fields of CSV; None: of , ; tab and | the one that makes the declared names of
    the first line. header: whether the first line of CSV has names; otherwise the fields are the declared columns in
    their order. nulls: texts of CSV, without quotes, that are no value. timestamp_format: of times in text as strptime
    has it, or the unit of numbers that count from 1970: s, ms or us. extra: what becomes of columns that are not
    declared. missing: what becomes of declared columns that a file lacks.
    """

    delimiter: str | None = None
    header: bool = True
    nulls: tuple[str, ...] = ("",)
    timestamp_format: str | None = None
    extra: Literal["ignore", "error"] = "ignore"
    missing: Literal["null", "error"] = "error"


@dataclass(frozen=True, slots=True)
class InFile:
    """The column of a field of CSV (`f0`, ...) or of Parquet. type: DuckDB's."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class InJson:
    """The member of that name of each object."""

    name: str


@dataclass(frozen=True, slots=True)
class InPath:
    """One text for all rows of a file: it stands in its path as `name=value`."""

    text: str


@dataclass(frozen=True, slots=True)
class Nowhere:
    """Null for all rows of a file."""


Origin: TypeAlias = InFile | InJson | InPath | Nowhere


@dataclass(frozen=True, slots=True)
class Reading:
    """How one file is read. origins: where the value of each declared column comes from; width, delimiter: of CSV;
    ignored: columns that are not declared."""

    file: File
    origins: tuple[Origin, ...]
    width: int = 0
    delimiter: str = ","
    ignored: tuple[str, ...] = ()

    @property
    def constants(self) -> tuple[tuple[int, str], ...]:
        """What the path says of the rows: with its bytes all that the file is."""
        return tuple((i, origin.text) for i, origin in enumerate(self.origins) if isinstance(origin, InPath))


@dataclass(frozen=True, slots=True)
class Checked:
    """rows: those that fit, in the declared Arrow types; ts_us: int64 (n,), their times; numbers: int64 (n,), of their
    records. bad: a table of BAD. blank: records in which nothing stands."""

    rows: pa.RecordBatch
    ts_us: Int64Array
    numbers: Int64Array
    bad: pa.Table
    blank: int


# ---- how a file is read


def plan_reading(file: File, schema: Schema, options: Options) -> Reading:
    """Looks at the head of a file. Raises DataError for one that cannot be read, that lacks a declared column, has one
    of a type that cannot be cast, or undeclared ones where they are refused."""
    match file.format:
        case Format.csv:
            return _plan_csv(file, schema, options)
        case Format.ndjson:
            return _plan_ndjson(file, schema, options)
        case Format.parquet:
            return _plan_parquet(file, schema, options)
        case _:
            assert_never(file.format)


def check_options(schema: Schema, options: Options) -> None:
    """Raises DataError for options that cannot be followed."""
    if options.delimiter is not None and (len(options.delimiter) != 1 or options.delimiter in '"\r\n'):
        raise DataError(f"{options.delimiter!r} cannot stand between fields", "give one character, for example ';'")
    form = options.timestamp_format
    if form is not None and form not in _EPOCHS:
        try:
            _cursor().execute("SELECT try_strptime('x', ?)", [form]).fetchall()
        except duckdb.Error as error:
            message = first_line(error)
            hint = "for example '%d/%m/%Y', or s, ms, us"
            raise DataError(f"{form!r} is no form of a time: {message}", hint) from None


def _plan_csv(file: File, schema: Schema, options: Options) -> Reading:
    line = _first_record(file)
    if line is None:
        return Reading(file, tuple(Nowhere() for _ in schema.fields), len(schema.fields), options.delimiter or ",")
    if not options.header:
        delimiter = options.delimiter or max(_DELIMITERS, key=line.count)
        width = len(_fields(line, delimiter))
        fields = [f for f in schema.fields if f.name.lower() not in _lowered(file.hive)]
        if width != len(fields):
            raise DataError(
                f"{file.path} has {width} fields a line, and {len(fields)} columns are declared",
                "without a header the fields are the declared columns, in their order",
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
    found: dict[str, Origin] = {name: InFile(f"f{i}", "VARCHAR") for i, name in enumerate(names)}
    _once(file, names, schema)
    origins, ignored = _origins(file, schema, options, found)
    return Reading(file, origins, len(names), delimiter, ignored)


def _first_record(file: File) -> str | None:
    """The first record of a CSV file, or None if there is none."""
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


def _plan_ndjson(file: File, schema: Schema, options: Options) -> Reading:
    first = next(read_records(file, WHOLE), None)
    names: list[str] = []
    if first is not None:
        lines = _decoded(first.columns.slice(0, _SAMPLE_LINES))[0].column(0)
        lines = lines.filter(pc.invert(pa.array(_blank(lines))))
        cursor = _cursor()
        cursor.register("sample", pa.table({"line": lines}))
        text = """SELECT DISTINCT unnest(json_keys(j)) AS name FROM (SELECT TRY_CAST(line AS JSON) AS j FROM sample)
            WHERE json_type(j) = 'OBJECT' ORDER BY name"""
        names = cursor.sql(text).to_arrow_table().column(0).to_pylist()
        start = lines[0].as_py().strip() if len(lines) else ""
        if len(lines) and (not names or start == "["):
            raise DataError(
                f"{file.path} does not begin with JSON objects, one a line: {_cut(start)}",
                "an array of objects must be rewritten, one object a line" if start[:1] == "[" else "check the format",
            )
    if not names:
        return Reading(file, tuple(Nowhere() for _ in schema.fields))
    origins, ignored = _origins(file, schema, options, {name: InJson(name) for name in names})
    return Reading(file, origins, ignored=ignored)


def _plan_parquet(file: File, schema: Schema, options: Options) -> Reading:
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
                f"{file.path}: column {column.name} is {column.type}, and {field.type} is declared",
                "convert it before, or declare it otherwise",
            )
        found[column.name] = InFile(column.name, duckdb_type(type))
    origins, ignored = _origins(file, schema, options, found)
    return Reading(file, origins, ignored=ignored)


def _castable(type: pa.DataType, field: Field, timestamp_format: str | None) -> bool:
    """Whether values of the type may be meant where the field is declared."""
    target = arrow_type(field.type)
    kinds = _kind(type), _kind(target)
    if kinds == ("number", "time"):
        return timestamp_format in _EPOCHS and pa.types.is_integer(type)
    if kinds[0] == kinds[1] != "nested" or "text" in kinds or set(kinds) == {"number", "boolean"}:
        return True
    if kinds != ("nested", "nested"):
        return False
    try:
        _cursor().sql(f"SELECT CAST(NULL::{duckdb_type(type)} AS {field.type})").to_arrow_table()
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


def _once(file: File, names: Sequence[str], schema: Schema) -> None:
    lowered = [name.lower() for name in names]
    for field in schema.fields:
        if lowered.count(field.name.lower()) > 1:
            raise DataError(f"{file.path} has two columns {field.name}", "names compare without case")


def _lowered(hive: Sequence[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in hive}


def _origins(
    file: File, schema: Schema, options: Options, found: dict[str, Origin]
) -> tuple[tuple[Origin, ...], tuple[str, ...]]:
    """Where each declared column comes from, and which of the found ones are ignored."""
    declared = {field.name.lower(): field.name for field in schema.fields}
    # An exact name first: JSON objects may have members that differ in case only.
    by_name = {name.lower(): origin for name, origin in found.items()} | {
        name.lower(): origin for name, origin in found.items() if declared.get(name.lower()) == name
    }
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
            origins.append(Nowhere())
        else:
            near = nearest(field.name, ignored)
            hint = near or f"it has {', '.join(found)}"
            if file.format is Format.csv and not set(by_name) & set(declared):
                hint += "; without a header: --no-header"
            raise DataError(f"{file.path} has no column {field.name}", hint)
    if ignored and options.extra == "error":
        raise DataError(
            f"{file.path} has columns that are not declared: {', '.join(ignored)}", "declare them, or leave them out"
        )
    return tuple(origins), ignored


# ---- the rows of a file


def read_checked(reading: Reading, part: Part, schema: Schema, options: Options) -> Iterator[Checked]:
    """The rows of a part of a file, checked, in batches in the order of the file. Raises DataError if it cannot be
    read."""
    file = reading.file
    columns = tuple(dict.fromkeys(o.name for o in reading.origins if isinstance(o, InFile)))
    header = file.format is Format.csv and options.header
    if file.format is Format.csv and all(isinstance(o, Nowhere) for o in reading.origins):
        return  # nothing is in it
    for records in read_records(
        file, part, width=reading.width, delimiter=reading.delimiter, nulls=options.nulls, columns=columns
    ):
        if header and len(records.numbers) and records.numbers[0] == 0:
            records = Records(records.columns.slice(1), records.numbers[1:], records.broken)
        if header and records.broken and records.broken[0][0] == 0:
            raise DataError(f"{file.path}: its header cannot be read", "it has another number of fields than it says")
        yield check(records, reading, schema, options)


def check(records: Records, reading: Reading, schema: Schema, options: Options) -> Checked:
    """Casts the columns of records to the declared types. A few passes over each column."""
    format = reading.file.format
    columns, numbers = records.columns, records.numbers
    bad = [pa.Table.from_pylist([dict(zip(BAD.names, row)) for row in records.broken], schema=BAD)]
    blank = 0
    if format is not Format.parquet and len(numbers):
        # Before texts are looked at, those that are none, and records in which nothing stands.
        columns, encoded = _decoded(columns)
        empty = np.ones(len(numbers), np.bool_)
        for column in columns.columns:
            empty &= column.is_null().to_numpy() if format is Format.csv else _blank(column)
        empty &= encoded
        keep = encoded & ~empty
        if not encoded.all():
            raw = _raw(columns.filter(pa.array(~encoded)), reading)
            bad.append(_bad(numbers[~encoded], "the row is not UTF-8", raw))
        if not keep.all():
            columns, numbers = columns.filter(pa.array(keep)), numbers[keep]
        blank = int(empty.sum())
    declared = arrow_schema(schema)
    if not len(numbers):
        nothing = pa.RecordBatch.from_pylist([], schema=declared)
        return Checked(nothing, np.zeros(0, np.int64), np.zeros(0, np.int64), pa.concat_tables(bad), blank)
    values, reasons = _statements(format, reading.origins, schema, options.timestamp_format)
    cursor = _cursor()
    cursor.register("raw", columns.append_column("__record", pa.array(numbers)))
    cast = cursor.sql(values).to_arrow_table()
    numbers = cast.column("__record").to_numpy()
    wrong = cast.column("__bad").to_numpy()
    if wrong.any():
        some = columns.append_column("__record", pa.array(numbers)).filter(pa.array(wrong))
        cursor.register("raw", some)
        why = cursor.sql(reasons).to_arrow_table()
        at = why.column("__record").to_numpy()
        bad.append(_bad(at, why.column("reason"), _raw(some.drop_columns("__record"), reading)))
        keep = ~wrong
        cast, columns, numbers = cast.filter(pa.array(keep)), columns.filter(pa.array(keep)), numbers[keep]
    twice = _twice(columns.column(0), cast, reading, schema) if format is Format.ndjson and len(numbers) else []
    if twice:
        at, reason = np.array([i for i, _ in twice]), pa.chunked_array([[text for _, text in twice]], pa.string())
        bad.append(_bad(numbers[at], reason, _raw(columns.take(pa.array(at)), reading)))
        keep = np.ones(len(numbers), np.bool_)
        keep[at] = False
        cast, numbers = cast.filter(pa.array(keep)), numbers[keep]
    arrays = []
    for i, field in enumerate(declared):
        array = cast.column(i).combine_chunks()
        array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        arrays.append(array if array.type == field.type else array.cast(field.type))
    rows = pa.RecordBatch.from_arrays(arrays, schema=declared)
    return Checked(rows, cast.column("__ts_us").to_numpy(), numbers, pa.concat_tables(bad), blank)


def _twice(lines: pa.ChunkedArray, cast: pa.Table, reading: Reading, schema: Schema) -> list[tuple[int, str]]:
    """(index, reason) of the objects that have a member twice, of which DuckDB has read the first one. cast: the values
    that were read of them."""
    read = [(i, origin.name) for i, origin in enumerate(reading.origins) if isinstance(origin, InJson)]
    present = {name: cast.num_rows - cast.column(i).null_count for i, name in read}
    nested = [name for i, name in read if _nested(schema.fields[i].type)]
    texts = lines.combine_chunks().cast(pa.binary())
    first, end = np.frombuffer(texts.buffers()[1], np.int32)[[texts.offset, texts.offset + len(texts)]].tolist()
    whole = texts.buffers()[2].slice(first, end - first).to_pybytes()
    found = members_twice(whole, texts.to_pylist, len(texts), present, nested)
    return [(i, f"member {name} is there twice") for i, name in found]


def _bad(numbers: Int64Array, reason: str | pa.ChunkedArray, raw: list[str]) -> pa.Table:
    reasons = pa.repeat(pa.scalar(reason), len(numbers)) if isinstance(reason, str) else reason.cast(pa.string())
    return pa.table([pa.array(numbers), reasons, pa.array(raw, pa.string())], schema=BAD)


def _blank(column: pa.ChunkedArray) -> np.ndarray:
    return pc.equal(pc.utf8_trim_whitespace(column.fill_null("x")), "").to_numpy(zero_copy_only=False)


def _decoded(columns: pa.Table) -> tuple[pa.Table, np.ndarray]:
    """Binary columns as strings, and which rows are UTF-8; in the others what is not is replaced."""
    encoded = np.ones(columns.num_rows, np.bool_)
    arrays = []
    for column in columns.columns:
        try:
            arrays.append(column.cast(pa.string()))
        except pa.ArrowInvalid:
            texts: list[str | None] = []
            for i, value in enumerate(column.to_pylist()):
                try:
                    texts.append(None if value is None else value.decode())
                except UnicodeDecodeError:
                    encoded[i] = False
                    texts.append(value.decode(errors="backslashreplace"))
            arrays.append(pa.chunked_array([pa.array(texts, pa.string())]))
    return pa.table(arrays, names=columns.column_names), encoded


def _raw(columns: pa.Table, reading: Reading) -> list[str]:
    """What stands in the file of each of a few rows: CSV quoted anew, the line of NDJSON, Parquet as JSON."""
    match reading.file.format:
        case Format.ndjson:
            return [line.rstrip("\r\n") for line in columns.column(0).to_pylist()]
        case Format.csv:
            special = (reading.delimiter, '"', "\n", "\r")

            def field(text: str | None) -> str:
                if text is None:
                    return ""
                plain = text and not any(character in text for character in special)
                return text if plain else '"' + text.replace('"', '""') + '"'

            rows = zip(*(column.to_pylist() for column in columns.columns))
            return [reading.delimiter.join(map(field, row)) for row in rows]
        case Format.parquet:
            cursor = _cursor()
            cursor.register("raw", columns)
            return cursor.sql("SELECT CAST(to_json(raw) AS VARCHAR) FROM raw").to_arrow_table().column(0).to_pylist()
        case _:
            assert_never(reading.file.format)


# ---- in SQL


@lru_cache(maxsize=256)
def _statements(
    format: Format, origins: tuple[Origin, ...], schema: Schema, timestamp_format: str | None
) -> tuple[str, str]:
    """Two SELECTs over the table `raw`: the values of all rows in the declared types, with __ts_us, __record and
    whether the row is __bad; and the reasons of rows that are."""
    time = time_name(schema)
    givens, values = [], []
    for field, origin in zip(schema.fields, origins):
        given, value = _expressions(origin, field, timestamp_format)
        givens.append(given)
        values.append(value)
    inner = [f"{given} AS g{i}, {value} AS v{i}" for i, (given, value) in enumerate(zip(givens, values))]
    wrong = [f"(g{i} IS NOT NULL AND v{i} IS NULL)" for i in range(len(values))]
    kinds = [
        f"CASE WHEN {test} THEN {_text(field.name + ': ')} || {_quote(f'g{i}')} || {_text(f' is no {field.type}')} END"
        for i, (test, field) in enumerate(zip(wrong, schema.fields))
    ]
    at = schema.names.index(time)
    ts_us = f"CASE WHEN isfinite(v{at}) THEN TRY(epoch_us(v{at})) END"
    kept = f"COALESCE({ts_us} BETWEEN {1 - TIME_END_US} AND {TIME_END_US - 1}, false)"
    why = [
        f"CASE WHEN g{at} IS NULL THEN {_text(f'{time} is missing')} END",
        f"CASE WHEN v{at} IS NOT NULL AND NOT {kept} THEN "
        f"{_text(f'{time}: ')} || {_quote(f'g{at}')} || ' is no time that can be kept' END",
        *kinds,
    ]
    source = "raw"
    if format is Format.ndjson:
        source = "(SELECT *, TRY_CAST(line AS JSON) AS j FROM raw)"
        inner.append("COALESCE(json_type(j) = 'OBJECT', false) AS whole")
        wrong.append("NOT whole")
        message = "CASE WHEN j IS NULL THEN 'broken JSON' ELSE 'no JSON object' END"
        inner.append(f"{message} AS broken")
    select = f"FROM (SELECT {', '.join(inner)}, __record FROM {source})"
    columns = [
        f"CAST(v{i} AS VARCHAR) AS c{i}" if field.type.startswith("ENUM") else f"v{i} AS c{i}"
        for i, field in enumerate(schema.fields)
    ]
    test = " OR ".join([*wrong, f"NOT {kept}"])
    reason = f"concat_ws('; ', {', '.join(why)})"
    if format is Format.ndjson:
        reason = f"CASE WHEN whole THEN {reason} ELSE broken END"
    return (
        f"SELECT {', '.join(columns)}, {ts_us} AS __ts_us, __record, ({test}) AS __bad {select}",
        f"SELECT __record, {reason} AS reason {select}",
    )


def _expressions(origin: Origin, field: Field, timestamp_format: str | None) -> tuple[str, str]:
    """SQL of what is given, null if nothing is, and of its value in the declared type, null if it has none."""
    match origin:
        case Nowhere():
            return "CAST(NULL AS VARCHAR)", f"CAST(NULL AS {field.type})"
        case InPath(text):
            return _text(text), _cast(_text(text), "VARCHAR", field.type, timestamp_format)
        case InFile(name, type):
            given = _name(name)
            if type == "VARCHAR" and field.type != "VARCHAR":
                given = f"NULLIF({given}, '')"  # an empty text is no number, quoted or not
            return given, _cast(given, type, field.type, timestamp_format)
        case InJson(name):
            path = _text('$."' + name.replace("\\", "\\\\").replace('"', '\\"') + '"')
            given = f"(j ->> {path})"
            if _nested(field.type):
                return given, f"TRY(CAST((j -> {path}) AS {field.type}))"
            return given, _cast(given, "VARCHAR", field.type, timestamp_format)
        case _:
            assert_never(origin)


def _nested(type: str) -> bool:
    return pa.types.is_nested(arrow_type(type))


def _cast(given: str, type: str, target: str, timestamp_format: str | None) -> str:
    """SQL of a value in the declared type, null where it has none."""
    if type == target:
        return given
    wanted = arrow_type(target)
    is_time = pa.types.is_timestamp(wanted) or pa.types.is_date(wanted)
    text = type == "VARCHAR"
    if is_time and timestamp_format is not None and (text or pa.types.is_integer(arrow_type(type))):
        if timestamp_format in _EPOCHS:
            whole = f"TRY_CAST({given} AS DECIMAL(38,9)) * {_EPOCHS[timestamp_format]}"
            return f"TRY(CAST(make_timestamp(CAST(floor({whole}) AS BIGINT)) AS {target}))"
        if text:
            return f"TRY_CAST(try_strptime({given}, {_text(timestamp_format)}) AS {target})"
    if pa.types.is_timestamp(wanted) and text:
        zoned = f"TRY_CAST({given} AS TIMESTAMPTZ)"
        return zoned if target == "TIMESTAMP WITH TIME ZONE" else f"TRY_CAST({zoned} AS {target})"
    if _nested(target):
        return f"TRY(CAST({given} AS {target}))"
    cast = f"TRY_CAST({given} AS {target})"
    if pa.types.is_integer(wanted) or target in ("HUGEINT", "UHUGEINT"):
        if text:
            number = f"TRY_CAST({given} AS DOUBLE)"
            fraction = f"contains({given}, '.') OR contains({given}, 'e') OR contains({given}, 'E')"
            return f"CASE WHEN ({fraction}) AND {number} <> trunc({number}) THEN NULL ELSE {cast} END"
        given_type = arrow_type(type)
        if pa.types.is_floating(given_type) or pa.types.is_decimal(given_type):
            return f"CASE WHEN {given} = trunc({given}) THEN {cast} END"
    return cast


def _quote(value: str) -> str:
    """SQL that shows a value as a short text in quotes."""
    text = f"CAST({value} AS VARCHAR)"
    short = f"CASE WHEN length({text}) > {_SHOWN} THEN left({text}, {_SHOWN - 3}) || '...' ELSE {text} END"
    return f"('''' || {short} || '''')"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@lru_cache(maxsize=1)
def _database() -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(":memory:")
    database.execute("SET GLOBAL timezone='UTC'; SET GLOBAL preserve_insertion_order=true")
    # it would take a failing cast out of the TRY around it
    database.execute("SET GLOBAL disabled_optimizers='common_subexpressions'")
    return database


def _cursor() -> duckdb.DuckDBPyConnection:
    cursor = _database().cursor()
    hide_progress(cursor)
    return cursor
