"""Rows out of files: the pruned file list through DuckDB's Parquet reader, time range and keys pushed down; files of
which nothing is left out through Arrow's."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from archive import sums
from archive.layout import LATE, OFFSET, SEQ, SOURCE, from_stored_rows, stored_schema, time_name
from archive.place import SCHEME, Place
from archive.recent import TIME_MAX_US, TIME_MIN_US, BoolArray, KeyRange, Wanted, columns_schema
from archive.table import TableSnapshot
from matching.batch import EventBatch, Int64Array
from matching.types import arrow_schema, duckdb_type
from query.errors import DataError, first_line
from query.language.duck import hide_progress, lent
from query.plan.expression import Column, Expression, quote, to_sql, walk
from query.schema import Schema

_INT64 = np.iinfo(np.int64)
#: What reading through DuckDB raises: Arrow hands its errors on as its own.
_ERRORS = (duckdb.Error, pa.ArrowException, OSError)
#: Memory of DuckDB when it sorts more rows than it is handed out at a time; it keeps the rest on disk.
SORT_MEMORY = "192MB"
#: Up to so many key values stand in the query text, where they prune row groups; more are joined.
_VALUES_IN_TEXT_MAX = 64
#: Cursors for reads from disk that wait for their next read, see `query.language.duck.lent`.
_idle: list[duckdb.DuckDBPyConnection] = []
#: Parquet, the checksums of its pages looked at: all that is done for files in a store.
CHECKED = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)


@cache
def _database(store: Place | None) -> duckdb.DuckDBPyConnection:
    """One database for all reads of this process from disk, one for each store; each read uses a cursor of its own,
    because a shared connection gives one thread the rows of another. Files never change, so what was read of their
    footers stays good."""
    database = _connect(store)
    if store is not None:
        atexit.register(_let_go, database)
    return database


def _connect(store: Place | None) -> duckdb.DuckDBPyConnection:
    """A database of its own that reads from disk or from a store."""
    database = duckdb.connect(":memory:")
    database.execute("SET GLOBAL timezone='UTC'; SET GLOBAL parquet_metadata_cache=true")
    hide_progress(database)
    if store is not None:
        database.register_filesystem(_readable(store))
    return database


def _cursor(directory: Place | None) -> duckdb.DuckDBPyConnection:
    cursor = _database(None if directory is None or directory.on_disk else Place(SCHEME, directory.options)).cursor()
    hide_progress(cursor)
    return cursor


def _readable(store: Place) -> Any:
    """The store as DuckDB takes one: its own reader of s3:// is an extension that has to be fetched."""
    try:
        from fsspec.implementations.arrow import ArrowFSWrapper
    except ImportError:
        raise DataError("archives in S3 are read through fsspec, which is missing", "pip install -e '.[s3]'") from None

    class Store(ArrowFSWrapper):
        protocol = "s3"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.removeprefix(SCHEME)

    return Store(store.filesystem)


def _let_go(database: duckdb.DuckDBPyConnection) -> None:
    """Database and file system hold each other, which the interpreter would complain of when it ends."""
    database.unregister_filesystem("s3")
    database.close()


def scan(
    directory: Place, table: TableSnapshot, schema: Schema, wanted: Wanted, sources: tuple[str, ...]
) -> tuple[EventBatch | None, int]:
    """The archived events that are wanted, in no order; or None. The second result counts the late ones left out.

    sources: names that `source` of the result points into; all sources in the files are among them.
    Raises DataError if a file is gone or cannot be read."""
    index = table.select(wanted.low_us, wanted.end_us, wanted.keys, wanted.span)
    if not len(index):
        return None, 0
    source = table.only_source(index)
    found = []
    whole = _read_whole(directory, table, index, wanted)
    checked(directory, table, index[whole], schema, None)
    try:
        for i in index[whole]:
            rows = _whole_file(directory / table.paths[i], schema, wanted, source is None)
            if rows is None:
                whole[index == i] = False
            else:
                found.append(_events(directory, schema, wanted, rows, source, sources))
        if not whole.all():
            found.append(_asked(directory, table, index[~whole], schema, wanted, source, sources))
    except _ERRORS as error:
        raise _unreadable(directory, schema, error) from error
    events = [part for part, _ in found if part is not None]
    return EventBatch.concat(events, sources) if events else None, sum(left_out for _, left_out in found)


def _read_whole(directory: Place, table: TableSnapshot, index: Int64Array, wanted: Wanted) -> BoolArray:
    """Which of the files at `index` are wanted with all their events: Arrow reads those in half the time of DuckDB,
    which is there to leave events out."""
    if wanted.filtered or table.added or not directory.on_disk:
        return np.zeros(len(index), np.bool_)
    return _inside(table.min_us[index], table.max_us[index], wanted)


def _inside(first_us: Int64Array, last_us: Int64Array, wanted: Wanted) -> BoolArray:
    """Which stretches of time, from first to last, lie in the wanted range."""
    inside = np.ones(len(first_us), np.bool_)
    if wanted.low_us is not None:
        inside &= first_us >= wanted.low_us
    if wanted.end_us is not None:
        inside &= last_us < wanted.end_us
    return inside


def _whole_file(path: Place, schema: Schema, wanted: Wanted, with_source: bool) -> pa.Table | None:
    """The rows of a file in stored types; None where it has others, which DuckDB converts."""
    stored, names = stored_schema(schema), _read_columns(wanted, with_source)
    with pq.ParquetFile(path.key) as file:
        types = file.schema_arrow
        if any(types.get_field_index(n) < 0 or types.field(n).type != stored.field(n).type for n in names):
            return None
        needed = [name for name in names if name != LATE or not _none_late(file.metadata)]
        return file.read(needed, use_threads=_cores() > 1)


def _none_late(footer: pq.FileMetaData) -> bool:
    """Whether statistics say that no row of a file is late."""
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        late = group.column(group.num_columns - 1)
        if late.path_in_schema != LATE or late.statistics is None or late.statistics.max is not False:
            return False
    return True


def _cores() -> int:
    """Where a process has one, Arrow's threads stand in each other's way."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read_columns(wanted: Wanted, with_source: bool) -> tuple[str, ...]:
    return (*wanted.columns, *([SOURCE] if with_source else []), OFFSET, SEQ, *([] if wanted.late else [LATE]))


def _asked(
    directory: Place, table: TableSnapshot, index: Int64Array, schema: Schema, wanted: Wanted, source: str | None,
    sources: tuple[str, ...],
) -> tuple[EventBatch | None, int]:  # fmt: skip
    """The wanted events of the files at `index`, by DuckDB; see `scan`."""
    registers = wanted.windows is not None or any(len(v) > _VALUES_IN_TEXT_MAX for v in wanted.keys.values())
    pushed = _by_hand(table, index, wanted)
    # To make a cursor costs half a millisecond, so one is kept where all is read at once and nothing is registered.
    alone = registers or not directory.on_disk
    with nullcontext(_cursor(directory)) if alone else lent(_idle, lambda: _cursor(None)) as cursor:
        rows = pa.table(_query(cursor, directory, table, index, schema, pushed, source is None))
    if pushed is not wanted and rows.num_rows:
        ts_us = np.array(rows.column(time_name(schema)).cast(pa.int64()))
        held = _inside(ts_us, ts_us, wanted)
        rows = rows if held.all() else rows.filter(pa.array(held))
    return _events(directory, schema, wanted, rows, source, sources)


def scan_in_order(
    directory: Place, table: TableSnapshot, schema: Schema, wanted: Wanted, sources: tuple[str, ...], rows: int
) -> Iterator[tuple[EventBatch | None, int]]:
    """As `scan`, but in the total order and in batches of about `rows` rows, however many there are: DuckDB sorts them,
    on disk where they are more than SORT_MEMORY (in the directory for temporary files)."""
    index = table.select(wanted.low_us, wanted.end_us, wanted.keys, wanted.span)
    if not len(index):
        return
    source = table.only_source(index)
    with tempfile.TemporaryDirectory(prefix="hybrid-sort-") as spill:
        database = _connect(None if directory.on_disk else Place(SCHEME, directory.options))
        try:
            database.execute(f"SET memory_limit='{SORT_MEMORY}'")
            database.execute("SET temp_directory=$spill", {"spill": spill})
            found = _query(database, directory, table, index, schema, wanted, source is None, in_order=True)
            with found.to_arrow_reader(rows) as reader:
                for batch in reader:
                    part = pa.Table.from_batches([batch])
                    yield _events(directory, schema, wanted, part, source, sources)
        except _ERRORS as error:
            raise _unreadable(directory, schema, error) from error
        finally:
            if not directory.on_disk:
                database.unregister_filesystem("s3")
            database.close()


def _events(
    directory: Place, schema: Schema, wanted: Wanted, rows: pa.Table, source: str | None, sources: tuple[str, ...]
) -> tuple[EventBatch | None, int]:
    """Stored rows as events, without the late ones unless they are wanted, and how many of these there are. source: the
    one that all are of, if that is known."""
    left_out = 0
    if not wanted.late and LATE in rows.column_names:  # else there are none
        marked = rows.column(LATE)
        if pc.any(marked).as_py():
            left_out = pc.sum(marked).as_py()
            rows = rows.filter(pc.invert(marked))
    if rows.num_rows == 0:
        return None, left_out
    declared = columns_schema(schema, wanted.columns)
    try:
        return from_stored_rows(rows, declared, time_name(schema), sources, source), left_out
    except DataError as error:
        raise DataError(f"the archive of {schema.name} in {directory}: {error.message}", error.hint) from None


def _by_hand(table: TableSnapshot, index: Int64Array, wanted: Wanted) -> Wanted:
    """What DuckDB is asked for, the time range being looked at behind it: to compare times costs it a quarter of a read
    of few keys, and saves little where most of what is read lies inside anyway."""
    if not wanted.keys or (wanted.low_us is None and wanted.end_us is None):
        return wanted
    inside, rows = _inside(table.min_us[index], table.max_us[index], wanted), table.rows[index]
    return wanted.between(None, None) if 2 * int(rows[inside].sum()) >= int(rows.sum()) else wanted


def first_time_us(directory: Place, table: TableSnapshot, schema: Schema) -> int | None:
    """Time of the first on-time event in the files, or None. Reads a file or two. Raises DataError as scan does."""
    first: int | None = None
    name = quote(time_name(schema))
    for i in np.argsort(table.min_us, kind="stable"):
        if first is not None and table.min_us[i] >= first:
            break
        checked(directory, table, np.array([i]), schema, None)
        text = f"SELECT min(epoch_us({name})) FROM read_parquet($files, hive_partitioning=false) WHERE NOT {LATE}"
        try:
            found = _cursor(directory).execute(text, {"files": [str(directory / table.paths[i])]}).fetchone()
        except _ERRORS as error:
            raise _unreadable(directory, schema, error) from error
        if found is not None and found[0] is not None:
            first = found[0] if first is None else min(first, found[0])
    return first


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The row groups of some files: how many rows, the bounds of their times, and the least and greatest value of one
    column (objects; whether these are known)."""

    rows: Int64Array
    min_us: Int64Array
    max_us: Int64Array
    least: np.ndarray
    greatest: np.ndarray
    known: BoolArray

    def touched(self, span: KeyRange) -> BoolArray:
        """For each whether it may hold a value of the range."""
        found = np.ones(len(self.rows), np.bool_)
        if span.end is not None:
            found[self.known] &= (self.least[self.known] < span.end).astype(np.bool_)
        if span.low is not None:
            found[self.known] &= (self.greatest[self.known] >= span.low).astype(np.bool_)
        return found


def row_groups(
    directory: Place, table: TableSnapshot, index: Int64Array, schema: Schema, column: str
) -> RowGroups:
    """The row groups of the files at `index`, from their footers. column: of strings or integers."""
    time = time_name(schema)
    text = (
        "SELECT row_group_num_rows, path_in_schema, stats_min_value, stats_max_value, "
        "epoch_us(TRY_CAST(stats_min_value AS TIMESTAMPTZ)), epoch_us(TRY_CAST(stats_max_value AS TIMESTAMPTZ)) "
        "FROM parquet_metadata($files) WHERE path_in_schema IN ($time, $column) "
        "ORDER BY file_name, row_group_id"
    )
    checked(directory, table, index, schema, sums.FOOTERS)
    try:
        files = table.uris(directory, index)
        given = {"files": files, "time": time, "column": column}
        found = _cursor(directory).sql(text, params=given).to_arrow_table()
    except _ERRORS as error:
        raise _unreadable(directory, schema, error) from error
    which = np.asarray(found.column(1).to_numpy(), object)
    times, values = found.filter(pa.array(which == time)), found.filter(pa.array(which == column))
    bounds = [np.array(values.column(i).to_pylist(), object) for i in (2, 3)]
    if len(bounds[0]) != times.num_rows:  # some files lack the column: nothing is known of any
        bounds = [np.full(times.num_rows, None), np.full(times.num_rows, None)]
    known = np.array([a is not None and b is not None for a, b in zip(*bounds)], np.bool_)
    if pa.types.is_integer(arrow_schema(schema).field(column).type):
        bounds = [np.array([None if v is None else int(v) for v in bound], object) for bound in bounds]
    low, high = (
        np.asarray(times.column(i).fill_null(unknown).to_numpy(), np.int64)
        for i, unknown in ((4, _INT64.min), (5, _INT64.max))
    )
    return RowGroups(np.asarray(times.column(0).to_numpy(), np.int64), low, high, bounds[0], bounds[1], known)


def count(
    directory: Place, table: TableSnapshot, index: Int64Array, schema: Schema, wanted: Wanted,
    conditions: list[Expression],
) -> list[int]:  # fmt: skip
    """How many of the wanted events of the files at `index` there are, and how many meet each of the conditions."""
    read: dict[Expression, str] = {
        e: declared_sql(schema, e.name) for c in conditions for e in walk(c) if isinstance(e, Column)
    }
    counts = ["count(*)", *(f"count(*) FILTER ({to_sql(c, read)})" for c in conditions)]
    try:
        rows = _query(_cursor(directory), directory, table, index, schema, wanted, False)
        found = rows.aggregate(", ".join(counts)).fetchall()
    except _ERRORS as error:
        raise _unreadable(directory, schema, error) from error
    return [int(n) for n in found[0]]


def key_cuts(
    directory: Place | None, table: TableSnapshot | None, schema: Schema, wanted: Wanted, recent: pa.Array, parts: int
) -> list[Any]:
    """Values at which a column is cut into `parts` ranges, or fewer, of about equally many rows; ascending.

    wanted: its column, and which rows count. recent: the column of those that are in no file. Reads that column alone:
    a tenth of a second for 10 M rows."""
    # A range begins with the first value of which the rows begin in it.
    text = (
        "SELECT min(value) FROM "
        "(SELECT value, sum(n) OVER (ORDER BY value) - n AS start, sum(n) OVER () AS total "
        "FROM (SELECT value, count(*) AS n FROM ({rows}) WHERE value IS NOT NULL GROUP BY value)) "
        f"GROUP BY (start * {int(parts)}) // total ORDER BY 1"
    )
    found = _of_values(directory, table, schema, wanted, recent, text)
    return [value for (value,) in found[1:]]


def distinct(
    directory: Place | None, table: TableSnapshot | None, schema: Schema, wanted: Wanted, recent: pa.Array
) -> int:
    """About how many values a column has. wanted, recent: as of key_cuts."""
    text = "SELECT approx_count_distinct(value) FROM ({rows})"
    return int(_of_values(directory, table, schema, wanted, recent, text)[0][0])


def _of_values(
    directory: Place | None, table: TableSnapshot | None, schema: Schema, wanted: Wanted, recent: pa.Array, text: str
) -> list[tuple[Any, ...]]:
    """The rows of a SELECT over the values of a column, {rows} in it."""
    (column,) = (quote(name) for name in wanted.columns)
    cursor = _cursor(directory)
    try:
        cursor.register("recent", pa.table({"value": recent}))
        rows = "SELECT value FROM recent"
        if directory is not None and table is not None:
            index = table.select(wanted.low_us, wanted.end_us, wanted.keys)
            if len(index):
                _query(cursor, directory, table, index, schema, wanted, False).create_view("archived")
                rows += f" UNION ALL SELECT {column} FROM archived"
        return cursor.execute(text.format(rows=rows)).fetchall()
    except _ERRORS as error:
        raise _unreadable(directory, schema, error) from error


def _query(
    cursor: duckdb.DuckDBPyConnection, directory: Place, table: TableSnapshot, index: Int64Array, schema: Schema,
    wanted: Wanted, with_source: bool, in_order: bool = False,
) -> duckdb.DuckDBPyRelation:  # fmt: skip
    """The wanted rows of the files at `index`, in stored types."""
    checked(directory, table, index, schema, wanted)
    stored = stored_schema(schema)
    values: dict[str, object] = {"files": table.uris(directory, index)}
    where: list[str] = []
    time = quote(time_name(schema))
    # make_timestamptz of a constant is a constant to DuckDB, so the bound is pushed down, whatever the year.
    if wanted.low_us is not None and wanted.low_us > TIME_MIN_US:
        where.append(f"{time} >= make_timestamptz($low::BIGINT)")
        values["low"] = min(wanted.low_us, TIME_MAX_US)
    if wanted.end_us is not None and wanted.end_us <= TIME_MAX_US:
        where.append(f"{time} < make_timestamptz($end::BIGINT)")
        values["end"] = max(wanted.end_us, TIME_MIN_US)
    for number, (name, among) in enumerate(wanted.keys.items()):
        some = among.drop_null()
        tests = [f"{quote(name)} IS NULL"] if among.null_count else []
        if len(some) > _VALUES_IN_TEXT_MAX:
            cursor.register(f"wanted{number}", pa.table({"value": some.cast(stored.field(name).type)}))
            tests.append(f"{quote(name)} IN (SELECT value FROM wanted{number})")
        elif len(some):
            names = [f"key{number}_{i}" for i in range(len(some))]
            values.update(zip(names, some.cast(stored.field(name).type).to_pylist()))
            tests.append(f"{quote(name)} IN ({', '.join('$' + n for n in names)})")
        where.append("(" + (" OR ".join(tests) or "false") + ")")
    if wanted.span is not None:
        column = quote(wanted.span.column)
        where.append(f"{column} IS NOT NULL")
        for bound, sign, value in (("first", ">=", wanted.span.low), ("behind", "<", wanted.span.end)):
            if value is not None:
                where.append(f"{column} {sign} ${bound}")
                values[bound] = value
    if wanted.where is not None:
        # Columns are declared ones there: those that are stored otherwise are converted.
        columns = [e for e in walk(wanted.where) if isinstance(e, Column)]
        read: dict[Expression, str] = {e: declared_sql(schema, e.name) for e in columns}
        where.append(f"({to_sql(wanted.where, read)})")
    selected = ", ".join(map(quote, _read_columns(wanted, with_source)))
    text = f"SELECT {selected} FROM {_files_sql('$files', table, schema)}"
    if wanted.windows is not None:
        cursor.register("windows", wanted.windows.table)
        text += f" JOIN windows ON {wanted.windows.condition.format(time=time)}"
    if where:
        text += " WHERE " + " AND ".join(where)
    if in_order:
        # The total order, as matching.ordering has it: bytes for strings, -0 = 0, NaN last.
        ties = [f"{quote(schema.column(column).name)} ASC NULLS FIRST" for column in schema.order]
        text += " ORDER BY " + ", ".join([time, *ties, *([SOURCE] if with_source else []), OFFSET])
    return cursor.sql(text, params=values)


def select_sql(directory: Place, table: TableSnapshot, schema: Schema, late: bool) -> str:
    """SQL of all archived events in their declared columns, for a connection whose time zone is UTC. late: late ones
    too."""
    index = np.argsort(table.min_us, kind="stable")
    checked(directory, table, index, schema, None)
    uris = table.uris(directory, index)
    files = ", ".join("'" + uri.replace("'", "''") + "'" for uri in uris)
    columns = ", ".join(f"{declared_sql(schema, name)} AS {quote(name)}" for name in schema.names)
    text = f"SELECT {columns} FROM {_files_sql(f'[{files}]', table, schema)}"
    return text if late else f"{text} WHERE NOT {LATE}"


def _files_sql(files: str, table: TableSnapshot, schema: Schema) -> str:
    """SQL of the rows of files, with nulls in the columns that they lack. files: SQL of a list of them."""
    if not table.added:
        return f"read_parquet({files}, hive_partitioning=false)"
    stored = stored_schema(schema)
    types = {name: duckdb_type(stored.field(name).type) for name in table.added}
    added = ", ".join(f"CAST(NULL AS {type}) AS {quote(name)}" for name, type in types.items())
    there = f"SELECT * FROM read_parquet({files}, hive_partitioning=false, union_by_name=true)"
    return f"({there} UNION ALL BY NAME SELECT {added} WHERE false)"


def declared_sql(schema: Schema, name: str) -> str:
    """SQL of a stored column in its declared type, for a connection whose time zone is UTC."""
    field = schema.column(name)
    stored, declared = stored_schema(schema).field(field.name).type, arrow_schema(schema).field(field.name).type
    column = quote(field.name)
    if stored == declared:
        return column
    if declared == pa.time64("us"):
        midnight = 86_400_000_000  # the end of a day, which is a TIME but no time of day
        return f"CASE {column} WHEN {midnight} THEN TIME '24:00:00' ELSE CAST(make_timestamp({column}) AS TIME) END"
    if field.name == time_name(schema):
        # DuckDB prunes row groups through these two functions, but not through a cast; no event is at infinity.
        column = f"make_timestamp(epoch_us({column}))"
    return f"CAST({column} AS {field.type})"


def checked(
    directory: Place, table: TableSnapshot, index: Int64Array, schema: Schema, wanted: Wanted | None
) -> None:
    """Raises DataError where a file is gone or damaged whose row groups may hold what is wanted (None: any); it says
    which events are missing. Each row group is looked at once in a process: about 3 GB/s."""
    try:
        sums.check(directory, ((table.paths[i], int(table.sizes[i])) for i in index), wanted, time_name(schema))
    except sums.Damaged as error:
        raise DataError(
            f"the archive of {schema.name} in {directory} cannot be read: {error}; missing: {table.missing(error)}",
            "restore the file from a copy, or let hybrid archive repair set it aside: the rest can be read then",
        ) from None


def _unreadable(directory: Place | None, schema: Schema, error: Exception) -> DataError:
    hint = "a file of it was removed or changed"
    if isinstance(error, (duckdb.OutOfMemoryException, MemoryError)):
        hint = "it needs more memory, or room for what is sorted on disk: TMPDIR says where"
    return DataError(f"the archive of {schema.name} in {directory} cannot be read: {first_line(error)}", hint)


def scan_since(
    directory: Place, table: TableSnapshot, schema: Schema, index: Int64Array, low: int, end: int,
    sources: tuple[str, ...],
) -> tuple[EventBatch, BoolArray]:
    """The events in the files at `index` with low <= ingest sequence < end, by that, and whether they are late."""
    stored = stored_schema(schema)
    columns = Wanted(None, None, {}, True, (), span=KeyRange(SEQ, low, end))
    checked(directory, table, index, schema, columns)
    try:
        keys = [(directory / table.paths[i]).key for i in index]
        files = ds.dataset(keys, schema=stored, format=CHECKED, filesystem=directory.filesystem)
        rows = files.to_table(filter=(ds.field(SEQ) >= low) & (ds.field(SEQ) < end)).sort_by(SEQ)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(directory, schema, error) from error
    batch = from_stored_rows(rows, arrow_schema(schema), time_name(schema), sources)
    return batch, np.asarray(rows.column(LATE).to_numpy(), np.bool_)
