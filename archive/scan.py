"""Reads archived events: pruned files through DuckDB with time range and keys pushed down; files that are wanted as a
whole through Arrow."""

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
from archive.head import LOG
from archive.layout import LATE, OFFSET, SEQ, SOURCE, from_stored_rows, stored_schema, time_name
from archive.place import SCHEME, Place
from archive.recent import TIME_MAX_US, TIME_MIN_US, BoolArray, KeyRange, ResolvedRequest, columns_schema
from archive.table_snapshot import TableSnapshot
from matching.batch import EventBatch, Int64Array
from matching.types import arrow_schema, duckdb_type
from query.errors import DataError, first_line
from query.extras import not_installed
from query.language.duck import connect, ctrl_c, hide_progress, lent
from query.plan.expression import Column, Expression, quote, to_sql, walk
from query.schema import Schema

_INT64 = np.iinfo(np.int64)
#: Errors of reads through DuckDB; Arrow raises some of them as its own.
_ERRORS = (duckdb.Error, pa.ArrowException, OSError)
#: Memory limit of DuckDB for sorting; the rest is spilled to disk.
SORT_MEMORY = "192MB"
#: Up to this many key values are parameters of the query text, which prune row groups; more are joined.
_VALUES_IN_TEXT_MAX = 64
#: Idle cursors for reads from disk, see `query.language.duck.lent`.
_idle: list[duckdb.DuckDBPyConnection] = []
#: Parquet with verified page checksums, the only check of files in a store.
CHECKED = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)


@cache
def database_of(store: Place | None) -> duckdb.DuckDBPyConnection:
    """Returns the DuckDB database for reads from disk or from a store, one each per process. Each read uses its own
    cursor, because threads that share a connection get each other's rows. Files never change, so cached footers stay
    valid."""
    database = _connect(store)
    if store is not None:
        atexit.register(_let_go, database)
    return database


def _connect(
    store: Place | None, memory_limit: str | None = None, spill: str | None = None
) -> duckdb.DuckDBPyConnection:
    """Opens a new DuckDB database that reads from disk or from a store."""
    database = connect(memory_limit=memory_limit, spill=spill)
    database.execute("SET GLOBAL parquet_metadata_cache=true")
    if store is not None:
        database.register_filesystem(_readable(store))
    return database


def _cursor(directory: Place | None) -> duckdb.DuckDBPyConnection:
    cursor = database_of(None if directory is None or directory.on_disk else Place(SCHEME, directory.options)).cursor()
    hide_progress(cursor)
    return cursor


def _readable(store: Place) -> Any:
    """Returns the store as a file system for DuckDB, whose own s3:// reader is an extension that must be downloaded."""
    try:
        from fsspec.implementations.arrow import ArrowFSWrapper
    except ImportError:
        raise not_installed("reading archives in S3 needs fsspec", "s3") from None

    class Store(ArrowFSWrapper):
        protocol = "s3"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.removeprefix(SCHEME)

    return Store(store.filesystem)


def _let_go(database: duckdb.DuckDBPyConnection) -> None:
    """Closes a database of a store. Database and file system refer to each other, which fails at interpreter exit."""
    database.unregister_filesystem("s3")
    database.close()


@ctrl_c()
def scan(
    directory: Place, table: TableSnapshot, schema: Schema, wanted: ResolvedRequest, sources: tuple[str, ...]
) -> tuple[EventBatch | None, int]:
    """Returns the wanted archived events in undefined order, or None; and the number of late ones left out.

    sources: the `sources` of the result; must contain all sources in the files. Raises DataError if a file was removed
    or cannot be read."""
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


def _read_whole(directory: Place, table: TableSnapshot, index: Int64Array, wanted: ResolvedRequest) -> BoolArray:
    """Returns for each file at `index` True if all its events are in the wanted range: Arrow reads these in half the
    time of DuckDB."""
    if wanted.filtered or table.added or not directory.on_disk:
        return np.zeros(len(index), np.bool_)
    return _inside(table.min_us[index], table.max_us[index], wanted)


def _inside(first_us: Int64Array, last_us: Int64Array, wanted: ResolvedRequest) -> BoolArray:
    """Returns for each time range [first, last] True if it is inside the wanted range."""
    inside = np.ones(len(first_us), np.bool_)
    if wanted.low_us is not None:
        inside &= first_us >= wanted.low_us
    if wanted.end_us is not None:
        inside &= last_us < wanted.end_us
    return inside


def _whole_file(path: Place, schema: Schema, wanted: ResolvedRequest, with_source: bool) -> pa.Table | None:
    """Returns the rows of a file; None if its columns differ from the stored types, which DuckDB converts."""
    stored, names = stored_schema(schema), _read_columns(wanted, with_source)
    with pq.ParquetFile(path.key) as file:
        types = file.schema_arrow
        if any(types.get_field_index(n) < 0 or types.field(n).type != stored.field(n).type for n in names):
            return None
        needed = [name for name in names if name != LATE or not _none_late(file.metadata)]
        return file.read(needed, use_threads=_cores() > 1)


def _none_late(footer: pq.FileMetaData) -> bool:
    """Returns True if the statistics of a file show that no row is late."""
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        late = group.column(group.num_columns - 1)
        if late.path_in_schema != LATE or late.statistics is None or late.statistics.max is not False:
            return False
    return True


def _cores() -> int:
    """Returns the number of cores. With a single one Arrow's threads slow each other down."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read_columns(wanted: ResolvedRequest, with_source: bool) -> tuple[str, ...]:
    return (*wanted.columns, *([SOURCE] if with_source else []), OFFSET, SEQ, *([] if wanted.late else [LATE]))


def _asked(
    directory: Place, table: TableSnapshot, index: Int64Array, schema: Schema, wanted: ResolvedRequest,
    source: str | None, sources: tuple[str, ...],
) -> tuple[EventBatch | None, int]:  # fmt: skip
    """Reads the wanted events of the files at `index` through DuckDB; see `scan`."""
    registers = wanted.windows is not None or any(len(v) > _VALUES_IN_TEXT_MAX for v in wanted.keys.values())
    pushed = _by_hand(table, index, wanted)
    # Making a cursor costs half a millisecond, so cursors without registered tables are reused.
    alone = registers or not directory.on_disk
    with nullcontext(_cursor(directory)) if alone else lent(_idle, lambda: _cursor(None)) as cursor:
        rows = pa.table(_query(cursor, directory, table, index, schema, pushed, source is None))
    if pushed is not wanted and rows.num_rows:
        ts_us = np.array(rows.column(time_name(schema)).cast(pa.int64()))
        held = _inside(ts_us, ts_us, wanted)
        rows = rows if held.all() else rows.filter(pa.array(held))
    return _events(directory, schema, wanted, rows, source, sources)


def scan_in_order(
    directory: Place, table: TableSnapshot, schema: Schema, wanted: ResolvedRequest, sources: tuple[str, ...], rows: int
) -> Iterator[tuple[EventBatch | None, int]]:
    """Yields the result of `scan` in the total order, in batches of about `rows` rows. DuckDB sorts any number of rows
    within SORT_MEMORY and spills to the directory for temporary files."""
    index = table.select(wanted.low_us, wanted.end_us, wanted.keys, wanted.span)
    if not len(index):
        return
    source = table.only_source(index)
    with tempfile.TemporaryDirectory(prefix="hybrid-sort-") as spill, ctrl_c():
        store = None if directory.on_disk else Place(SCHEME, directory.options)
        database = _connect(store, SORT_MEMORY, spill)
        try:
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
    directory: Place, schema: Schema, wanted: ResolvedRequest, rows: pa.Table, source: str | None,
    sources: tuple[str, ...],
) -> tuple[EventBatch | None, int]:
    """Returns stored rows as events, without late ones unless wanted, and the number of late ones left out. source: the
    source of all rows, if known."""
    left_out = 0
    if not wanted.late and LATE in rows.column_names:  # without the column no row is late
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


def _by_hand(table: TableSnapshot, index: Int64Array, wanted: ResolvedRequest) -> ResolvedRequest:
    """Returns the request without its time range if that is cheaper to apply to the result: DuckDB's comparison of
    times takes a quarter of a read of few keys, and saves little if most rows read are in the range."""
    if not wanted.keys or (wanted.low_us is None and wanted.end_us is None):
        return wanted
    inside, rows = _inside(table.min_us[index], table.max_us[index], wanted), table.rows[index]
    return wanted.between(None, None) if 2 * int(rows[inside].sum()) >= int(rows.sum()) else wanted


@ctrl_c()
def first_time_us(directory: Place, table: TableSnapshot, schema: Schema) -> int | None:
    """Returns the time of the first event in the files that is not late, or None. Reads a file or two. Raises DataError
    as scan does."""
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
    """Row groups of files: numbers of rows, bounds of times, and least and greatest value of one column (object arrays;
    known: True if both are)."""

    rows: Int64Array
    min_us: Int64Array
    max_us: Int64Array
    least: np.ndarray
    greatest: np.ndarray
    known: BoolArray

    def touched(self, span: KeyRange) -> BoolArray:
        """Returns for each row group True if it may hold a value of the range."""
        found = np.ones(len(self.rows), np.bool_)
        if span.end is not None:
            found[self.known] &= (self.least[self.known] < span.end).astype(np.bool_)
        if span.low is not None:
            found[self.known] &= (self.greatest[self.known] >= span.low).astype(np.bool_)
        return found


@ctrl_c()
def row_groups(
    directory: Place, table: TableSnapshot, index: Int64Array, schema: Schema, column: str
) -> RowGroups:
    """Reads the row groups of the files at `index` from their footers. column: of strings or integers."""
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
    if len(bounds[0]) != times.num_rows:  # some files lack the column: treat all bounds as unknown
        bounds = [np.full(times.num_rows, None), np.full(times.num_rows, None)]
    known = np.array([a is not None and b is not None for a, b in zip(*bounds)], np.bool_)
    if pa.types.is_integer(arrow_schema(schema).field(column).type):
        bounds = [np.array([None if v is None else int(v) for v in bound], object) for bound in bounds]
    low, high = (
        np.asarray(times.column(i).fill_null(unknown).to_numpy(), np.int64)
        for i, unknown in ((4, _INT64.min), (5, _INT64.max))
    )
    return RowGroups(np.asarray(times.column(0).to_numpy(), np.int64), low, high, bounds[0], bounds[1], known)


@ctrl_c()
def count(
    directory: Place, table: TableSnapshot, index: Int64Array, schema: Schema, wanted: ResolvedRequest,
    conditions: list[Expression],
) -> list[int]:  # fmt: skip
    """Returns the number of wanted events in the files at `index`, then the numbers that meet each condition."""
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
    directory: Place | None, table: TableSnapshot | None, schema: Schema, wanted: ResolvedRequest, recent: pa.Array,
    parts: int
) -> list[Any]:
    """Returns ascending values that cut a column into at most `parts` ranges with about equally many rows.

    wanted: the rows, and the column as its only one. recent: the column of the buffered rows. Reads only that column: a
    tenth of a second for 10 M rows."""
    # A range begins with the first value whose rows begin in it.
    text = (
        "SELECT min(value) FROM "
        "(SELECT value, sum(n) OVER (ORDER BY value) - n AS start, sum(n) OVER () AS total "
        "FROM (SELECT value, count(*) AS n FROM ({rows}) WHERE value IS NOT NULL GROUP BY value)) "
        f"GROUP BY (start * {int(parts)}) // total ORDER BY 1"
    )
    found = _of_values(directory, table, schema, wanted, recent, text)
    return [value for (value,) in found[1:]]


def distinct(
    directory: Place | None, table: TableSnapshot | None, schema: Schema, wanted: ResolvedRequest, recent: pa.Array
) -> int:
    """Returns the approximate number of distinct values of a column. wanted, recent: as in key_cuts."""
    text = "SELECT approx_count_distinct(value) FROM ({rows})"
    return int(_of_values(directory, table, schema, wanted, recent, text)[0][0])


@ctrl_c()
def _of_values(
    directory: Place | None, table: TableSnapshot | None, schema: Schema, wanted: ResolvedRequest, recent: pa.Array,
    text: str
) -> list[tuple[Any, ...]]:
    """Returns the rows of a SELECT over the values of a column. text: SQL with {rows} in the place of their SQL."""
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
    wanted: ResolvedRequest, with_source: bool, in_order: bool = False,
) -> duckdb.DuckDBPyRelation:  # fmt: skip
    """Returns a DuckDB relation of the wanted rows of the files at `index`, in stored types."""
    checked(directory, table, index, schema, wanted)
    stored = stored_schema(schema)
    values: dict[str, object] = {"files": table.uris(directory, index)}
    where: list[str] = []
    time = quote(time_name(schema))
    # DuckDB folds make_timestamptz of a constant, so the bound is pushed down, for any year.
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
        # Conditions use declared types: columns with another stored type are converted.
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
        # The total order of matching.ordering: strings by bytes, -0 = 0, NaN last.
        ties = [f"{quote(schema.column(column).name)} ASC NULLS FIRST" for column in schema.order]
        text += " ORDER BY " + ", ".join([time, *ties, *([SOURCE] if with_source else []), OFFSET])
    return cursor.sql(text, params=values)


def select_sql(directory: Place, table: TableSnapshot, schema: Schema, late: bool) -> str:
    """Returns SQL of all archived events with their declared columns, for a connection in UTC. late: includes late
    ones."""
    index = np.argsort(table.min_us, kind="stable")
    checked(directory, table, index, schema, None)
    uris = table.uris(directory, index)
    files = ", ".join("'" + uri.replace("'", "''") + "'" for uri in uris)
    columns = ", ".join(f"{declared_sql(schema, name)} AS {quote(name)}" for name in schema.names)
    text = f"SELECT {columns} FROM {_files_sql(f'[{files}]', table, schema)}"
    return text if late else f"{text} WHERE NOT {LATE}"


def _files_sql(files: str, table: TableSnapshot, schema: Schema) -> str:
    """Returns SQL of the rows of files, with nulls in their missing columns. files: SQL of the list of files."""
    if not table.added:
        return f"read_parquet({files}, hive_partitioning=false)"
    stored = stored_schema(schema)
    types = {name: duckdb_type(stored.field(name).type) for name in table.added}
    added = ", ".join(f"CAST(NULL AS {type}) AS {quote(name)}" for name, type in types.items())
    there = f"SELECT * FROM read_parquet({files}, hive_partitioning=false, union_by_name=true)"
    return f"({there} UNION ALL BY NAME SELECT {added} WHERE false)"


def declared_sql(schema: Schema, name: str) -> str:
    """Returns SQL of a stored column in its declared type, for a connection in UTC."""
    field = schema.column(name)
    stored, declared = stored_schema(schema).field(field.name).type, arrow_schema(schema).field(field.name).type
    column = quote(field.name)
    if stored == declared:
        return column
    if declared == pa.time64("us"):
        midnight = 86_400_000_000  # 24:00, which DuckDB's TIME allows but make_timestamp maps to 00:00
        return f"CASE {column} WHEN {midnight} THEN TIME '24:00:00' ELSE CAST(make_timestamp({column}) AS TIME) END"
    if field.name == time_name(schema):
        # DuckDB prunes row groups through these two functions, but not through a cast; no event is at infinity.
        column = f"make_timestamp(epoch_us({column}))"
    return f"CAST({column} AS {field.type})"


def checked(
    directory: Place, table: TableSnapshot, index: Int64Array, schema: Schema, wanted: ResolvedRequest | None
) -> None:
    """Raises DataError, with the missing events, if a file was removed or is damaged in row groups that the request may
    touch (None: in any). Each row group is checked once per process, at about 3 GB/s."""
    try:
        sums.check(directory, ((table.paths[i], int(table.sizes[i])) for i in index), wanted, time_name(schema))
    except sums.Damaged as error:
        if error.gone and not (directory / LOG).exists():
            raise DataError(
                f"the archive of {schema.name} in {directory} does not exist any more",
                "the stream was dropped, or its directory removed: read evidence before that",
            ) from None
        if error.gone and not _is_listed(directory, error.path):
            raise DataError(
                f"events of {schema.name} that were read before are not in the archive any more",
                "its retention has removed them, or the stream was dropped and created again: run the query again",
            ) from None
        raise DataError(
            f"the archive of {schema.name} in {directory} cannot be read: {error}; missing: {table.missing(error)}",
            "restore the file from a copy, or run hybrid archive repair, which sets it aside",
        ) from None


def _is_listed(directory: Place, path: str) -> bool:
    """True if the newest version of the table has a file."""
    from archive.table import Table  # loads deltalake

    try:
        return path in Table.open(directory).snapshot().paths
    except DataError:
        return True  # the damage is told


def _unreadable(directory: Place | None, schema: Schema, error: Exception) -> DataError:
    hint = "a file was removed or changed"
    if isinstance(error, (duckdb.OutOfMemoryException, MemoryError)):
        hint = "it needs more memory, or disk space for sorting in TMPDIR"
    return DataError(f"the archive of {schema.name} in {directory} cannot be read: {first_line(error)}", hint)


def scan_since(
    directory: Place, table: TableSnapshot, schema: Schema, index: Int64Array, low: int, end: int,
    sources: tuple[str, ...],
) -> tuple[EventBatch, BoolArray]:
    """Returns the events in the files at `index` with low <= ingest sequence < end, sorted by it, and for each True if
    it is late."""
    stored = stored_schema(schema)
    columns = ResolvedRequest(None, None, {}, True, (), span=KeyRange(SEQ, low, end))
    checked(directory, table, index, schema, columns)
    try:
        keys = [(directory / table.paths[i]).key for i in index]
        files = ds.dataset(keys, schema=stored, format=CHECKED, filesystem=directory.filesystem)
        rows = files.to_table(filter=(ds.field(SEQ) >= low) & (ds.field(SEQ) < end)).sort_by(SEQ)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(directory, schema, error) from error
    batch = from_stored_rows(rows, arrow_schema(schema), time_name(schema), sources)
    return batch, np.asarray(rows.column(LATE).to_numpy(), np.bool_)
