"""Format of the data files: stored types, hidden columns, cutting of rows into files, sort order, statistics.

Fixed once there are tables:

* Four hidden columns follow the declared ones: `_source` (string) and `_offset` (int64), which identify an event of a
  stream; `_seq` (int64), its ingest sequence, which separates memory from files; `_late` (bool), True if it arrived
  after the watermark had passed it. Tie columns are declared columns and need no hidden one.
* Every TIMESTAMP is stored as timestamp[us, UTC] and returned without time zone: a naive stored type would require a
  newer Delta protocol of readers. The time column is written from `ts_us` for any declared type. Strings are plain,
  never Arrow dictionaries, which cost readers their statistics; Parquet makes its own dictionary. Types that Delta
  lacks are stored as the next wider type that holds every value (STORED_AS).

Free to change per file, because readers use statistics only: directories, sort order and encodings. The table has no
Delta partition column, because it would fix one period: a day suits ticks but gives thousands of tiny files for daily
prices. Instead rows are cut by hour, day, month or year into directories of that name: the finest period whose files
have a row group on average. The statistics of each file prune as well as a partition column.

A flushed file is sorted by (time bucket, key, time): nearly as good as time order for a time range, and several times
better for one key. When its period is over, `upkeep` rewrites it by (key, time): one key over many days then takes a
few row groups a day. Names of such files begin with BY_KEY.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from os import PathLike
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archive.place import Place, place_of
from archive.sums import SUMS, digest_of, sums_text
from matching.batch import EventBatch, Int64Array
from matching.types import arrow_schema
from query.errors import DataError
from query.schema import Schema

#: Version of the format of this module and of `table`. A table with a higher version is refused.
FORMAT_VERSION = 1

SOURCE, OFFSET, SEQ, LATE = "_source", "_offset", "_seq", "_late"
HIDDEN: tuple[tuple[str, pa.DataType], ...] = (
    (SOURCE, pa.string()),
    (OFFSET, pa.int64()),
    (SEQ, pa.int64()),
    (LATE, pa.bool_()),
)

#: 16k rows: smaller groups cost more metadata than they save, larger ones prune worse. Each column of a group is one
#: page: pages of 16 kB would make a read of a few keys 3 to 16 % faster and one of whole files a quarter slower.
ROW_GROUP_ROWS = 16_384
#: Limit of rows per file: statistics of a file by key then bound a range of keys, and its footer stays small.
FILE_ROWS_MAX = 64 * ROW_GROUP_ROWS
#: A day with more rows is cut into hours.
DAY_ROWS_MAX = 50_000_000
#: Prefix of the names of files sorted by (key, time).
BY_KEY = "k-"
DAY_US = 86_400_000_000
#: Periods that rows are cut into: hours, days, months, years, or all of time.
Unit = Literal["h", "D", "M", "Y", "all"]
#: Minimum of rows per period, on average.
_ENOUGH: dict[Unit, int] = {"h": DAY_ROWS_MAX // 24, "D": ROW_GROUP_ROWS, "M": ROW_GROUP_ROWS, "Y": ROW_GROUP_ROWS}
#: Widths of a time bucket: the first with _BUCKET_ROWS on average is used, else the file is one bucket.
#: With fewer rows per bucket a key would be in most row groups; with more, a short time range would read many.
_BUCKET_ROWS = 4 * ROW_GROUP_ROWS
_BUCKETS_US = (300_000_000, 3_600_000_000, DAY_US)
#: A column with longer bounds has no file statistics; row groups have their own.
_STATISTICS_STRING_LENGTH_MAX = 256

_UTC_US = pa.timestamp("us", "UTC")
_AS_IS = frozenset(
    (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
        pa.date32(), _UTC_US,
    )
)  # fmt: skip
#: Types that Delta lacks -> the stored type, which holds every value.
STORED_AS: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.time64("us"): pa.int64(),
    pa.timestamp("s"): _UTC_US,
    pa.timestamp("ms"): _UTC_US,
    pa.timestamp("us"): _UTC_US,
}


def time_name(schema: Schema) -> str:
    """Returns the declared name of the time column; names compare without case."""
    return schema.column(schema.time or "").name


@cache
def stored_schema(schema: Schema) -> pa.Schema:
    """Returns the Arrow schema of the stream's files: declared columns in stored types, then the hidden ones.

    Raises DataError if the stream cannot be archived: no time column, the name of a hidden column, or a type without a
    stored form."""
    hidden = {name for name, _ in HIDDEN}
    for field in schema.fields:
        if field.name.lower() in hidden:
            raise DataError(
                f"stream {schema.name}: column {field.name} has the name of a hidden column of the archive",
                f"rename it; reserved: {', '.join(sorted(hidden))}",
            )
    if schema.time is None:
        raise DataError(f"stream {schema.name} has no time column", "an archived stream needs one: time='ts'")
    time = schema.field(schema.time)
    columns: list[tuple[str, pa.DataType]] = []
    for field, plain in zip(schema.fields, arrow_schema(schema)):
        stored = _UTC_US if field is time else _stored_type(plain.type)
        if stored is None:
            nanoseconds = plain.type == pa.timestamp("ns")
            raise DataError(
                f"stream {schema.name}: column {field.name} of type {field.type} cannot be archived",
                "declare it TIMESTAMP (microseconds)" if nanoseconds else "declare it VARCHAR or BLOB",
            )
        columns.append((field.name, stored))
    return pa.schema([*columns, *HIDDEN])


def _stored_type(type: pa.DataType) -> pa.DataType | None:
    """Returns the stored form of a declared type, or None. Inner types of a nested type must be stored unchanged."""
    if type in _AS_IS or pa.types.is_decimal128(type):
        return type
    if pa.types.is_list(type):
        inner = [type.value_type]
    elif pa.types.is_struct(type):
        inner = [type.field(i).type for i in range(type.num_fields)]
    elif pa.types.is_map(type):
        inner = [type.key_type, type.item_type]
    else:
        return STORED_AS.get(type)
    return type if all(_stored_type(t) == t for t in inner) else None


def storable(type: pa.DataType) -> bool:
    """Returns True if a column of that type can be archived."""
    return _stored_type(type) is not None


def to_stored(batch: EventBatch, late: np.ndarray, schema: Schema) -> pa.Table:
    """Returns the rows of a batch in stored form, in the batch's order. late: bool (n,)."""
    stored = stored_schema(schema)
    columns: list[pa.Array] = []
    time = time_name(schema)
    for column, target in zip(batch.columns.columns, stored):
        if target.name == time:
            columns.append(pa.array(batch.ts_us).view(_UTC_US))
        else:
            columns.append(column if column.type == target.type else column.cast(target.type))
    sources = pa.DictionaryArray.from_arrays(pa.array(batch.source), pa.array(batch.sources, pa.string()))
    columns += [sources.cast(pa.string()), pa.array(batch.offset), pa.array(batch.seq), pa.array(late, pa.bool_())]
    return pa.Table.from_arrays(columns, schema=stored)


def from_stored(column: pa.ChunkedArray, type: pa.DataType) -> pa.Array:
    """Returns a stored column in its declared type."""
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if array.type == _UTC_US and pa.types.is_timestamp(type) and type.tz is None:
        array = array.view(pa.timestamp("us"))
    return array if array.type == type else array.cast(type)


def from_stored_rows(
    rows: pa.Table, columns: pa.Schema, time: str, sources: tuple[str, ...], source: str | None = None
) -> EventBatch:
    """Returns stored rows as events, in the same order. columns: the declared columns to return, in their declared
    types. time: the name of the time column, which the rows must have. sources: the `sources` of the result. source:
    the source of all rows, if known; the rows then need no source column.

    Raises DataError if the source of a row is not among `sources`."""
    if source is None:
        index = pc.index_in(rows.column(SOURCE), value_set=pa.array(sources, pa.string()))
        unknown = index.null_count > 0
        codes = np.array(index.fill_null(0)).astype(np.int32, copy=False)
    else:
        unknown = source not in sources
        codes = np.full(rows.num_rows, 0 if unknown else sources.index(source), np.int32)
    if unknown:
        raise DataError(
            "some rows have a source that the archive does not list",
            "another program added them; their `_source` must be in the table property `hybrid.sources`",
        )
    return EventBatch(
        pa.RecordBatch.from_arrays([from_stored(rows.column(f.name), f.type) for f in columns], schema=columns),
        np.array(rows.column(time).cast(pa.int64())),
        codes,
        np.array(rows.column(OFFSET)),
        np.array(rows.column(SEQ)),
        sources,
    )


@dataclass(frozen=True, slots=True)
class DataFile:
    """A written file that is not committed yet. path: relative to the table's directory. size: bytes. statistics:
    Delta's JSON."""

    path: str
    size: int
    rows: int
    statistics: str


def is_by_key(path: str) -> bool:
    """Returns True if a file is sorted by (key, time). path: relative to the table's directory."""
    return path.rsplit("/", 1)[-1].startswith(BY_KEY)


def key_names(schema: Schema) -> tuple[str, ...]:
    """Returns the declared names of the key columns; names compare without case."""
    wanted = {key.lower() for key in schema.keys}
    return tuple(field.name for field in schema.fields if field.name.lower() in wanted)


def write_files(
    rows: pa.Table, where: str | PathLike[str] | Place, schema: Schema, go_on: Callable[[], None] = lambda: None
) -> list[DataFile]:
    """Cuts stored rows into files, sorts and writes each, and forces it to disk. Readers see the files after a commit.

    100k rows in one file take about 30 ms, mostly compression and fsync. go_on: called between pieces of the work; what
    it raises leaves files that nobody reads."""
    directory = place_of(where)
    ts_us = rows.column(time_name(schema)).combine_chunks().view(pa.int64()).to_numpy()
    files: list[DataFile] = []
    for period, index in cut_periods(ts_us):
        part = rows if index is None else rows.take(pa.array(index))
        order = sort_order(part, ts_us if index is None else ts_us[index], key_names(schema))
        pieces = []
        for start in range(0, len(order), FILE_ROWS_MAX):
            go_on()
            pieces.append(part.take(pa.array(order[start : start + FILE_ROWS_MAX])))
        for file in _written(pa.concat_tables(pieces), directory, schema, period):
            files.append(file)
            go_on()
    return files


def write_sorted(
    batches: Iterable[pa.RecordBatch], where: str | PathLike[str] | Place, schema: Schema, unit: Unit
) -> Iterator[DataFile]:
    """Writes stored rows that are sorted by (period, key, time); yields each file when it is full or its period ends.

    unit: the period, see `unit_of`. Holds at most the rows of one file. A consumer that stops early leaves uncommitted
    files."""
    directory = place_of(where)
    open_period: str | None = None
    held: list[pa.RecordBatch] = []
    for batch in batches:
        ts_us = batch.column(time_name(schema)).view(pa.int64()).to_numpy()
        for period, start, stop in _period_runs(ts_us, unit):
            if held and period != open_period:
                assert open_period is not None
                yield from _written(pa.Table.from_batches(held), directory, schema, open_period, BY_KEY)
                held = []
            open_period = period
            while start < stop:
                room = FILE_ROWS_MAX - sum(map(len, held))
                taken = min(room, stop - start)
                held.append(batch.slice(start, taken))
                start += taken
                if taken == room:
                    yield from _written(pa.Table.from_batches(held), directory, schema, period, BY_KEY)
                    held = []
    if held and open_period is not None:
        yield from _written(pa.Table.from_batches(held), directory, schema, open_period, BY_KEY)


def _period_runs(ts_us: Int64Array, unit: Unit) -> Iterator[tuple[str, int, int]]:
    """Yields (directory name, start, stop) for each run of rows in one period."""
    if not len(ts_us):
        return
    codes = period_codes(ts_us, unit)
    edges = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), len(codes)]
    for start, stop in itertools.pairwise(edges):
        yield period_name(int(codes[start]), unit), start, stop


def period_codes(ts_us: Int64Array, unit: Unit) -> Int64Array:
    """Returns the period number of each time, int64 (n,): hours ("h"), days ("D"), months ("M") or years ("Y") since
    1970; 0 for "all"."""
    if unit == "all":
        return np.zeros(len(ts_us), np.int64)
    return ts_us.view("datetime64[us]").astype(f"datetime64[{unit}]").view(np.int64)


def period_name(code: int, unit: Unit) -> str:
    """Returns the directory name of a period."""
    return "all" if unit == "all" else str(np.datetime64(code, unit))


def unit_of(rows: int, first_us: Int64Array, last_us: Int64Array) -> Unit:
    """Returns the period to cut so many rows into: the finest with a row group per period on average; hours only for
    days with more than DAY_ROWS_MAX rows. first_us, last_us: int64 (n,), time ranges that contain all rows."""
    for unit, enough in _ENOUGH.items():
        low, high = period_codes(first_us, unit), period_codes(last_us, unit)
        order = np.argsort(low, kind="stable")
        low, reached = low[order], np.maximum.accumulate(high[order])
        fresh = np.concatenate([low[:1], np.maximum(low[1:], reached[:-1] + 1)])
        periods = int(np.maximum(reached - fresh + 1, 0).sum())
        if rows >= periods * enough or (periods == 1 and unit != "h"):
            return unit
    return "all"


def cut_periods(ts_us: Int64Array) -> list[tuple[str, Int64Array | None]]:
    """Returns (directory name, row indexes) per period; None as indexes for all rows.

    Cuts by the finest of day, month and year with a row group per period on average; else does not cut."""
    units: tuple[Unit, ...] = ("D", "M", "Y")
    for unit in units:
        codes = period_codes(ts_us, unit)
        first = int(codes.min())
        if first == int(codes.max()):
            return [(period_name(first, unit), None)]
        distinct, which = np.unique(codes, return_inverse=True)
        if len(ts_us) >= len(distinct) * ROW_GROUP_ROWS:
            return [(period_name(int(c), unit), np.flatnonzero(which == i)) for i, c in enumerate(distinct)]
    return [(period_name(0, "all"), None)]


def sort_order(rows: pa.Table, ts_us: Int64Array, keys: tuple[str, ...]) -> Int64Array:
    """Returns the sort order of a file's rows, int64 (n,): by (time bucket, keys, time), ties in order of arrival."""
    first, last = int(ts_us.min()), int(ts_us.max())
    width = next((w for w in _BUCKETS_US if (last - first) // w * _BUCKET_ROWS < len(ts_us)), last - first + 1)
    code = ts_us // width - first // width
    cardinality = (last // width) - first // width + 1
    for key in keys:
        rank, count = _rank(rows.column(key))
        if cardinality * count >= 2**62:
            distinct, code = np.unique(code, return_inverse=True)
            cardinality = len(distinct)
        code = code * count + rank
        cardinality *= count
    order = np.arange(len(ts_us)) if bool((ts_us[1:] >= ts_us[:-1]).all()) else np.argsort(ts_us, kind="stable")
    # numpy sorts 16-bit integers stably by radix sort, ten times faster than int64.
    for shift in range(0, int(cardinality - 1).bit_length(), 16):
        digit = ((code[order] >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit, kind="stable")]
    return order


def _rank(column: pa.ChunkedArray) -> tuple[Int64Array, int]:
    """Returns the rank of each row's value (nulls last) and the number of ranks; one rank for a nested column."""
    array = column.combine_chunks()
    try:
        encoded = array.dictionary_encode()
        order = pc.sort_indices(encoded.dictionary).to_numpy()
    except pa.ArrowNotImplementedError:
        return np.zeros(len(array), np.int64), 1
    rank = np.empty(len(order) + 1, np.int64)
    rank[order] = np.arange(len(order))
    rank[len(order)] = len(order)
    return rank[encoded.indices.fill_null(len(order)).to_numpy(zero_copy_only=False)], len(order) + 1


def _written(rows: pa.Table, directory: Place, schema: Schema, period: str, mark: str = "") -> Iterator[DataFile]:
    """Writes sorted rows as files of at most FILE_ROWS_MAX rows. mark: prefix of their names."""
    bounded = (time_name(schema), *key_names(schema), SOURCE, OFFSET, SEQ)
    for start in range(0, rows.num_rows, FILE_ROWS_MAX):
        yield _write_file(rows.slice(start, FILE_ROWS_MAX), directory, period, mark, bounded)


def _write_file(rows: pa.Table, directory: Place, period: str, mark: str, bounded: tuple[str, ...]) -> DataFile:
    folder = directory / period
    created = folder.on_disk and not folder.exists()
    folder.make()
    dictionaries: list[str] = []
    deltas: dict[str, str] = {}
    for field in rows.schema:
        # Only encodings that every Parquet reader supports. Dictionaries of numbers cost time and save few bytes.
        if pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type) or pa.types.is_date(field.type):
            deltas[field.name] = "DELTA_BINARY_PACKED"
        elif pa.types.is_string(field.type) or pa.types.is_binary(field.type):
            dictionaries.append(field.name)
    sink = io.BytesIO()
    groups = [rows.slice(start, ROW_GROUP_ROWS) for start in range(0, rows.num_rows, ROW_GROUP_ROWS)]
    ends = []
    with pq.ParquetWriter(
        sink, rows.schema, compression="zstd", use_dictionary=dictionaries, column_encoding=deltas,
        write_statistics=with_statistics(rows), write_page_checksum=True,
    ) as writer:  # fmt: skip
        for group in groups:
            writer.write_table(group, ROW_GROUP_ROWS)
            ends.append(sink.tell())
        writer.add_key_value_metadata({SUMS: sums_text(sink.getvalue(), ends, groups, bounded)})
    data = sink.getbuffer()
    path = folder / f"{mark}{uuid.uuid4().hex}.{digest_of(data[ends[-1] :])}.parquet"
    put_file(path, data)
    folder.sync()
    if created:
        directory.sync()
    return DataFile(f"{period}/{path.name}", len(data), rows.num_rows, file_statistics(rows))


def put_file(path: Place, data: memoryview) -> None:
    with path.filesystem.open_output_stream(path.key) as out:
        out.write(data)
    path.sync()


def with_statistics(rows: pa.Table) -> list[str]:
    """Returns the columns whose row groups get statistics: flat ones without NaN. Statistics exclude NaN, but NaN is
    the largest number in DuckDB, so DuckDB would skip row groups with matching NaN rows (its issue 25521)."""
    return [
        name
        for name, column in zip(rows.column_names, rows.columns)
        if not pa.types.is_nested(column.type)
        and not (pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py())
    ]


def file_statistics(rows: pa.Table) -> str:
    """Returns Delta's statistics of a file as JSON: row count, nulls of flat columns, bounds of times, numbers and
    strings."""
    least: dict[str, object] = {}
    greatest: dict[str, object] = {}
    nulls: dict[str, int] = {}
    for name, column in zip(rows.column_names, rows.columns):
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        bounds = _bounds(column)
        if bounds is not None:
            least[name], greatest[name] = bounds
    return json.dumps({"numRecords": rows.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def _bounds(column: pa.ChunkedArray) -> tuple[object, object] | None:
    """Returns the least and greatest value in Delta's JSON form; None without a value, or if JSON cannot express it."""
    type = column.type
    if column.null_count == len(column):
        return None
    if pa.types.is_timestamp(type) or pa.types.is_date(type):
        unit, number = ("us", pa.int64()) if pa.types.is_timestamp(type) else ("D", pa.int32())
        both = pc.min_max(column.cast(number)).as_py()
        low, high = np.array([both["min"], both["max"]], f"datetime64[{unit}]")
        # Delta's text form of a time has a year of four digits; a file without these statistics is always read.
        if low < np.datetime64("0001-01-01") or high >= np.datetime64("10000-01-01"):
            return None
        suffix = "Z" if unit == "us" else ""
        return str(low) + suffix, str(high) + suffix
    if pa.types.is_integer(type):
        both = pc.min_max(column).as_py()
        return both["min"], both["max"]
    if pa.types.is_floating(type):
        both = pc.min_max(column).as_py()
        # NaN sorts above all numbers and is excluded from statistics; JSON has no infinities.
        nan = pc.any(pc.is_nan(column)).as_py()
        finite = all(value is not None and math.isfinite(value) for value in both.values())
        return (both["min"], both["max"]) if finite and not nan else None
    if pa.types.is_string(type):
        both = pc.min_max(column).as_py()
        return (both["min"], both["max"]) if max(map(len, both.values())) <= _STATISTICS_STRING_LENGTH_MAX else None
    return None


def events_in_words(rows: int, first: str | None, last: str | None, low: int | None, high: int | None) -> str:
    """Describes a number of events, with their first and last source and offset if known."""
    said = f"{rows:,} event{'s' * (rows != 1)}"
    if first is None or low is None:
        return said
    return f"{said} of {f'source {first}' if first == last else f'sources {first} to {last}'}, offsets {low} to {high}"
