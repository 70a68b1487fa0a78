"""Rows out of files: the pruned file list through DuckDB's Parquet reader, time range and keys pushed down."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from functools import cache
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from archive.layout import LATE, OFFSET, SEQ, SOURCE, from_stored, stored_schema, time_name
from archive.place import SCHEME, Place
from archive.table import TableSnapshot
from matching.batch import EventBatch
from matching.types import arrow_schema
from query.errors import DataError
from query.schema import Schema

#: DuckDB's finite timestamps; what lies outside bounds nothing.
_TIME_MIN_US, _TIME_MAX_US = -9_223_372_022_400_000_000, 9_223_372_036_854_775_806
#: Up to so many key values stand in the query text, where they prune row groups; more are joined.
_VALUES_IN_TEXT_MAX = 64


@cache
def _database(store: Place | None) -> duckdb.DuckDBPyConnection:
    """One database for all reads of this process from disk, one for each store; each read uses a cursor of its own,
    because a shared connection gives one thread the rows of another. Files never change, so what was read of their
    footers stays good."""
    database = duckdb.connect(":memory:")
    database.execute("SET GLOBAL timezone='UTC'; SET GLOBAL parquet_metadata_cache=true")
    if store is not None:
        database.register_filesystem(_readable(store))
        atexit.register(_let_go, database)
    return database


def _cursor(directory: Place) -> duckdb.DuckDBPyConnection:
    cursor = _database(None if directory.on_disk else Place(SCHEME, directory.options)).cursor()
    cursor.execute("SET enable_progress_bar=false")  # a setting of each connection
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
    directory: Place,
    table: TableSnapshot,
    schema: Schema,
    low_us: int | None,
    end_us: int | None,
    keys: Mapping[str, pa.Array],
    late: bool,
    sources: tuple[str, ...],
) -> tuple[EventBatch | None, int]:
    """The archived events with low_us <= time < end_us and one of the values in each key column (null matches a null
    value), in no order; or None. Late ones only if asked; the second result counts those left out.

    sources: names that `source` of the result points into; all sources in the files are among them.
    Raises DataError if a file is gone or cannot be read."""
    paths = table.files(low_us, end_us, keys)
    if not paths:
        return None, 0
    try:
        rows = _query(directory, [str(directory / path) for path in paths], schema, low_us, end_us, keys)
    except duckdb.Error as error:
        raise _unreadable(directory, schema, error) from error
    marked = rows.column(LATE)
    left_out = 0
    if not late and pc.any(marked).as_py():
        left_out = pc.sum(marked).as_py()
        rows = rows.filter(pc.invert(marked))
    if rows.num_rows == 0:
        return None, left_out
    declared = arrow_schema(schema)
    time = rows.column(time_name(schema))
    index = pc.index_in(rows.column(SOURCE), value_set=pa.array(sources, pa.string()))
    if index.null_count:
        raise DataError(
            f"the archive of {schema.name} in {directory} has rows of sources that it does not name",
            "they were added by another program; its rows need `_source` values of the list `hybrid.sources`",
        )
    batch = EventBatch(
        pa.RecordBatch.from_arrays([from_stored(rows.column(f.name), f.type) for f in declared], schema=declared),
        np.array(time.cast(pa.int64())),
        np.array(index).astype(np.int32, copy=False),
        np.array(rows.column(OFFSET)),
        np.array(rows.column(SEQ)),
        sources,
    )
    return batch, left_out


def first_time_us(directory: Place, table: TableSnapshot, schema: Schema) -> int | None:
    """Time of the first on-time event in the files, or None. Reads a file or two. Raises DataError as scan does."""
    first: int | None = None
    name = _quoted(time_name(schema))
    for i in np.argsort(table.min_us, kind="stable"):
        if first is not None and table.min_us[i] >= first:
            break
        text = f"SELECT min(epoch_us({name})) FROM read_parquet($files, hive_partitioning=false) WHERE NOT {LATE}"
        try:
            found = _cursor(directory).execute(text, {"files": [str(directory / table.paths[i])]}).fetchone()
        except duckdb.Error as error:
            raise _unreadable(directory, schema, error) from error
        if found is not None and found[0] is not None:
            first = found[0] if first is None else min(first, found[0])
    return first


def _query(
    directory: Place, files: list[str], schema: Schema, low_us: int | None, end_us: int | None,
    keys: Mapping[str, pa.Array],
) -> pa.Table:  # fmt: skip
    stored = stored_schema(schema)
    cursor = _cursor(directory)
    values: dict[str, object] = {"files": files}
    where: list[str] = []
    time = _quoted(time_name(schema))
    # make_timestamptz of a constant is a constant to DuckDB, so the bound is pushed down, whatever the year.
    if low_us is not None and low_us > _TIME_MIN_US:
        where.append(f"{time} >= make_timestamptz($low::BIGINT)")
        values["low"] = min(low_us, _TIME_MAX_US)
    if end_us is not None and end_us <= _TIME_MAX_US:
        where.append(f"{time} < make_timestamptz($end::BIGINT)")
        values["end"] = max(end_us, _TIME_MIN_US)
    for number, (name, wanted) in enumerate(keys.items()):
        some = wanted.drop_null()
        tests = [f"{_quoted(name)} IS NULL"] if wanted.null_count else []
        if len(some) > _VALUES_IN_TEXT_MAX:
            cursor.register(f"wanted{number}", pa.table({"value": some.cast(stored.field(name).type)}))
            tests.append(f"{_quoted(name)} IN (SELECT value FROM wanted{number})")
        elif len(some):
            names = [f"key{number}_{i}" for i in range(len(some))]
            values.update(zip(names, some.cast(stored.field(name).type).to_pylist()))
            tests.append(f"{_quoted(name)} IN ({', '.join('$' + n for n in names)})")
        where.append("(" + (" OR ".join(tests) or "false") + ")")
    columns = ", ".join(_quoted(name) for name in stored.names)
    text = f"SELECT {columns} FROM read_parquet($files, hive_partitioning=false)"
    if where:
        text += " WHERE " + " AND ".join(where)
    return cursor.sql(text, params=values).to_arrow_table()


def _unreadable(directory: Place, schema: Schema, error: duckdb.Error) -> DataError:
    return DataError(
        f"the archive of {schema.name} in {directory} cannot be read: {str(error).splitlines()[0]}",
        "a file of it was removed or changed",
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
