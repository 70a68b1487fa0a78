"""What a data file looks like: stored types, hidden columns, how rows are cut into files and sorted, statistics.

The parts that cannot be changed once there are tables:

* Four hidden columns stand behind the declared ones: `_source` (string) and `_offset` (int64), with the stream the
  identity of an event; `_seq` (int64), its ingest sequence, the seam between memory and files; `_late` (bool), whether
  it came behind the watermark. Tie columns are declared columns, so they are there anyway.
* Every TIMESTAMP is stored as timestamp[us, UTC], because a naive one would ask readers for a newer Delta protocol, and
  is handed back naive. The time column is written from `ts_us`, whatever its declared type. Strings are plain, never
  Arrow dictionaries (Parquet makes its own dictionary; the Arrow one costs readers their statistics). Types that Delta
  lacks are stored in the next wider one that holds every value (STORED_AS).

The parts that may change from file to file, because readers look at statistics only: directories, sort order and
encodings. The table has no Delta partition column: one would fix a single width for ever, and a day is right for ticks
but gives thousands of tiny files for daily prices. Instead rows are cut by hour, day, month or year, the finest that
still leaves files of one row group on average, into directories of that name; the statistics of each file prune just
as well.

Inside a file that was flushed rows stand by (time bucket, key, time): nearly as good as time order for a time range,
several times better for one key. When their period is over, `upkeep` rewrites them by (key, time): one key over many
days then takes a few row groups a day. Such files have names with BY_KEY in front.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import uuid
from collections.abc import Iterable, Iterator
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

#: Version of everything this file and `table` write. A table with a higher one is refused.
FORMAT_VERSION = 1

SOURCE, OFFSET, SEQ, LATE = "_source", "_offset", "_seq", "_late"
HIDDEN: tuple[tuple[str, pa.DataType], ...] = (
    (SOURCE, pa.string()),
    (OFFSET, pa.int64()),
    (SEQ, pa.int64()),
    (LATE, pa.bool_()),
)

#: 16k rows: smaller groups cost more metadata than they save, larger ones prune worse. A column of one is a page: with
#: pages of 16 kB a read of a few keys takes 3 to 16 % less, and one of whole files a quarter more.
ROW_GROUP_ROWS = 16_384
#: Rows of a file at most. One by key covers a range of keys then, which its statistics say, and its footer stays small.
FILE_ROWS_MAX = 64 * ROW_GROUP_ROWS
#: A day of more rows is cut into hours.
DAY_ROWS_MAX = 50_000_000
#: What the name of a file begins with whose rows stand by (key, time).
BY_KEY = "k-"
DAY_US = 86_400_000_000
#: Lengths of the periods that rows are cut into.
Unit = Literal["h", "D", "M", "Y", "all"]
#: Rows that a period must have on average.
_ENOUGH: dict[Unit, int] = {"h": DAY_ROWS_MAX // 24, "D": ROW_GROUP_ROWS, "M": ROW_GROUP_ROWS, "Y": ROW_GROUP_ROWS}
#: Widths of a time bucket; the first that holds _BUCKET_ROWS on average is taken, otherwise the file is one bucket.
#: With fewer rows a key would stand in most row groups; with more, a short range would read many.
_BUCKET_ROWS = 4 * ROW_GROUP_ROWS
_BUCKETS_US = (300_000_000, 3_600_000_000, DAY_US)
#: Longer strings are left out of the statistics of a file; the row groups have their own.
_STATISTICS_STRING_LENGTH_MAX = 256

_UTC_US = pa.timestamp("us", "UTC")
_AS_IS = frozenset(
    (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
        pa.date32(), _UTC_US,
    )
)  # fmt: skip
#: Types that Delta lacks -> the type that holds every value of them.
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
    """The time column's name as declared; names compare without case."""
    return schema.column(schema.time or "").name


@cache
def stored_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of the stream's files: declared columns in stored types, then the hidden ones.

    Raises DataError for a stream that cannot be archived: no time, a hidden name, a type without a stored form."""
    hidden = {name for name, _ in HIDDEN}
    for field in schema.fields:
        if field.name.lower() in hidden:
            raise DataError(
                f"stream {schema.name}: column {field.name} has the name of a hidden column of the archive",
                f"rename it; {', '.join(sorted(hidden))} are taken",
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
                "declare it TIMESTAMP (microseconds)" if nanoseconds else "keep it as VARCHAR or BLOB",
            )
        columns.append((field.name, stored))
    return pa.schema([*columns, *HIDDEN])


def _stored_type(type: pa.DataType) -> pa.DataType | None:
    """The stored form of a declared type, or None. What is nested must be stored as it is."""
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
    """Whether a column of that type can be archived."""
    return _stored_type(type) is not None


def to_stored(batch: EventBatch, late: np.ndarray, schema: Schema) -> pa.Table:
    """The rows of a batch as they stand in files, in the batch's order. late: bool (n,)."""
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
    """A stored column in its declared type."""
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if array.type == _UTC_US and pa.types.is_timestamp(type) and type.tz is None:
        array = array.view(pa.timestamp("us"))
    return array if array.type == type else array.cast(type)


def from_stored_rows(
    rows: pa.Table, columns: pa.Schema, time: str, sources: tuple[str, ...], source: str | None = None
) -> EventBatch:
    """Stored rows as events, in their order. columns: which of the declared columns, in their declared types; time: the
    name of the time column, which is among the rows. sources: names that `source` of the result points into. source:
    the one that all rows are of, if that is known; then the rows need not say it.

    Raises DataError for a row of a source that is not among them."""
    if source is None:
        index = pc.index_in(rows.column(SOURCE), value_set=pa.array(sources, pa.string()))
        unknown = index.null_count > 0
        codes = np.array(index.fill_null(0)).astype(np.int32, copy=False)
    else:
        unknown = source not in sources
        codes = np.full(rows.num_rows, 0 if unknown else sources.index(source), np.int32)
    if unknown:
        raise DataError(
            "there are rows of sources that the archive does not name",
            "they were added by another program; its rows need `_source` values of the list `hybrid.sources`",
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
    """A written file that no commit names yet. path: below the table's directory; statistics: Delta's JSON."""

    path: str
    size: int
    rows: int
    statistics: str


def is_by_key(path: str) -> bool:
    """Whether the rows of a file, given by its path below the table, stand by (key, time)."""
    return path.rsplit("/", 1)[-1].startswith(BY_KEY)


def key_names(schema: Schema) -> tuple[str, ...]:
    """The key columns' names as declared; names compare without case."""
    wanted = {key.lower() for key in schema.keys}
    return tuple(field.name for field in schema.fields if field.name.lower() in wanted)


def write_files(rows: pa.Table, where: str | PathLike[str] | Place, schema: Schema) -> list[DataFile]:
    """Cuts stored rows into files, sorts and writes each, and forces it to disk. Nobody sees them before a commit.

    100k rows in one file take about 30 ms, most of it compression and fsync."""
    directory = place_of(where)
    ts_us = rows.column(time_name(schema)).combine_chunks().view(pa.int64()).to_numpy()
    files: list[DataFile] = []
    for period, index in cut_periods(ts_us):
        part = rows if index is None else rows.take(pa.array(index))
        order = sort_order(part, ts_us if index is None else ts_us[index], key_names(schema))
        files += _written(part.take(pa.array(order)), directory, schema, period)
    return files


def write_sorted(
    batches: Iterable[pa.RecordBatch], where: str | PathLike[str] | Place, schema: Schema, unit: Unit
) -> Iterator[DataFile]:
    """Writes stored rows that stand by (period, key, time) already, each file once it is full or its period is over.

    unit: of the periods, see `unit_of`. Holds no more than a file of rows. A consumer that stops early leaves files
    that no commit names."""
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
    """(directory name, first row, row behind the last) for each run of rows in one period."""
    if not len(ts_us):
        return
    codes = period_codes(ts_us, unit)
    edges = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), len(codes)]
    for start, stop in itertools.pairwise(edges):
        yield period_name(int(codes[start]), unit), start, stop


def period_codes(ts_us: Int64Array, unit: Unit) -> Int64Array:
    """For each time the number of its period: hours ("h"), days ("D"), months ("M") or years ("Y") since 1970; 0 for
    all of time ("all")."""
    if unit == "all":
        return np.zeros(len(ts_us), np.int64)
    return ts_us.view("datetime64[us]").astype(f"datetime64[{unit}]").view(np.int64)


def period_name(code: int, unit: Unit) -> str:
    """The directory of a period."""
    return "all" if unit == "all" else str(np.datetime64(code, unit))


def unit_of(rows: int, first_us: Int64Array, last_us: Int64Array) -> Unit:
    """The periods that so many rows are cut into, of which stretches of time are known, from first to last: the finest
    unit that leaves a row group for each of the periods on average; hours only for days of more than DAY_ROWS_MAX."""
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
    """(directory name, index of its rows) per file to write; index None for all rows.

    By day, month or year, whichever is the finest that leaves one row group per file on average; else all in one."""
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
    """The order in which rows stand in their file: (time bucket, keys, time); as they came where these are equal."""
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
    # A stable sort of 16-bit digits is a radix sort in numpy, ten times faster than one of int64.
    for shift in range(0, int(cardinality - 1).bit_length(), 16):
        digit = ((code[order] >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit, kind="stable")]
    return order


def _rank(column: pa.ChunkedArray) -> tuple[Int64Array, int]:
    """For each row the rank of its value, nulls last, and the number of ranks; a nested column has one rank for all."""
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
    """Writes sorted rows as files of at most FILE_ROWS_MAX rows; mark: what their names begin with."""
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
        # Only encodings that every Parquet reader knows; dictionaries of numbers cost more time than they save bytes.
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
    _put(path, data)
    folder.sync()
    if created:
        directory.sync()
    return DataFile(f"{period}/{path.name}", len(data), rows.num_rows, file_statistics(rows))


def _put(path: Place, data: memoryview) -> None:
    with path.filesystem.open_output_stream(path.key) as out:
        out.write(data)
    path.sync()


def with_statistics(rows: pa.Table) -> list[str]:
    """The columns whose row groups get statistics: flat ones without NaN. Parquet leaves NaN out of them, Arrow writes
    them all the same, and DuckDB, where NaN is the largest number, would skip a row group with the row it looks for
    (its issue 25521)."""
    return [
        name
        for name, column in zip(rows.column_names, rows.columns)
        if not pa.types.is_nested(column.type)
        and not (pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py())
    ]


def file_statistics(rows: pa.Table) -> str:
    """Delta's statistics of a file: row count, nulls of flat columns, bounds of times, numbers and strings."""
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
    """Least and greatest value as Delta writes them in JSON; None where there is none or JSON cannot say it."""
    type = column.type
    if column.null_count == len(column):
        return None
    if pa.types.is_timestamp(type) or pa.types.is_date(type):
        unit, number = ("us", pa.int64()) if pa.types.is_timestamp(type) else ("D", pa.int32())
        both = pc.min_max(column.cast(number)).as_py()
        low, high = np.array([both["min"], both["max"]], f"datetime64[{unit}]")
        # Delta's text form of a time has years of four digits; a file without these statistics is always read.
        if low < np.datetime64("0001-01-01") or high >= np.datetime64("10000-01-01"):
            return None
        suffix = "Z" if unit == "us" else ""
        return str(low) + suffix, str(high) + suffix
    if pa.types.is_integer(type):
        both = pc.min_max(column).as_py()
        return both["min"], both["max"]
    if pa.types.is_floating(type):
        both = pc.min_max(column).as_py()
        # NaN sorts above all numbers and stands in no statistics; JSON has no infinities.
        nan = pc.any(pc.is_nan(column)).as_py()
        finite = all(value is not None and math.isfinite(value) for value in both.values())
        return (both["min"], both["max"]) if finite and not nan else None
    if pa.types.is_string(type):
        both = pc.min_max(column).as_py()
        return (both["min"], both["max"]) if max(map(len, both.values())) <= _STATISTICS_STRING_LENGTH_MAX else None
    return None


def events_in_words(rows: int, first: str | None, last: str | None, low: int | None, high: int | None) -> str:
    """So many events of sources from first to last, with offsets from low to high."""
    said = f"{rows:,} event{'s' * (rows != 1)}"
    if first is None or low is None:
        return said
    return f"{said} of {f'source {first}' if first == last else f'sources {first} to {last}'}, offsets {low} to {high}"
