"""Inputs of a bounded query: named tables as Arrow, sorted in the total order, cut into event batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from archive.reader import RangeRequest, positions_in
from hybrid.rows import duck
from hybrid.rows.frames import ordered_texts
from hybrid.rows.mixed_columns import MIXED, by_column, with_texts
from hybrid.rows.neighbours import Key, bools_of, compare, compare_neighbours, integers_of, is_whole
from hybrid.rows.session import arrow_of, as_texts, enum_type, has_enum, is_lacking
from hybrid.rows.taking import Chunks, long_batches, one_batch, taken
from hybrid.rows.words import counted
from matching.batch import EventBatch
from matching.ordering import sorting_order
from matching.types import arrow_type, contains, duckdb_type
from matching.values import has_list_view
from query.errors import DataError, first_line
from query.plan.expression import quote
from query.plan.plan import Order
from query.plan.statement import NO_ACCESS
from query.plan.trends import BIGNUM
from query.schema import Field, is_unfaithful
from query.stopping import heed

BATCH_ROWS = 65_536
#: Most archived events of overlapping files that are sorted in memory: a day of a busy stream that is stored by key.
SORTED_MAX = 1 << 21
#: The first rows, which mostly show that a table is in no order.
FIRST_ROWS = 1 << 16
#: Returns what raises our error for one of DuckDB or Arrow.
Faults = Callable[[], AbstractContextManager[None]]
TIME_TYPES = ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE")


# ---- anything to Arrow -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A named table, whose columns are read when they are asked for. empty: its columns without rows. rereads: its rows
    are read from their source each time, and may be others by then. enums: the ENUM types of text columns with an
    order of their own. refused: the errors of columns of mixed values, and of types that patterns cannot read, which
    are text here: a statement that reads one raises its error."""

    name: str
    source: Any
    empty: pa.Table
    enums: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, DataError] = field(default_factory=dict)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Returns the column names with their DuckDB types."""
        types = dict(self.enums)
        if isinstance(self.source, duckdb.DuckDBPyRelation):
            types |= types_not_in_arrow(self.source, enums=False)
        elif isinstance(self.source, pa.Table) or hasattr(self.source, "to_table"):  # Arrow's
            types |= {f.name: "UUID" for f in self.source.schema if isinstance(f.type, pa.UuidType)}
        return tuple(Field(f.name, types.get(f.name, f.type)) for f in fields_of(self.empty))

    @property
    def rereads(self) -> bool:
        return not isinstance(self.source, pa.Table)

    def table(self, columns: Collection[str] | None = None) -> pa.Table:
        """Returns the rows with these columns, or with the first one if there are none of them; None: all. Raises
        DataError."""
        names = self.empty.column_names if columns is None else some_columns(self.empty, columns).column_names
        with _faults_of(self.name):
            if isinstance(self.source, duckdb.DuckDBPyRelation):
                return table_of(self.source.project(", ".join(map(quote, names))), self.name)
            if isinstance(self.source, pa.Table):
                found = self.source.select(names)
            elif hasattr(self.source, "to_table"):
                found = self.source.to_table(columns=names)
            else:
                found = pa.table(self.source.select(names).collect())
            return conform(with_texts(found, self.refused), self.name)

    def tables(self, columns: Collection[str]) -> Generator[pa.Table] | None:
        """Yields the rows with these columns as they are read, in tables of about BATCH_ROWS rows. Raises DataError.
        None: they are read at once, or are there already."""
        names = some_columns(self.empty, columns).column_names
        with _faults_of(self.name):
            if isinstance(self.source, duckdb.DuckDBPyRelation):
                return tables_of(self.source.project(", ".join(map(quote, names))), self.name)
            if self.refused.keys() & set(names):
                return None
            if not isinstance(self.source, pa.Table) and hasattr(self.source, "scanner"):
                return _conformed(self.source.scanner(columns=names, batch_size=BATCH_ROWS).to_reader(), self.name)
        return None


def named_table(data: Any, name: str, access: duck.Access = duck.ANYTHING) -> NamedTable:
    """Returns a named table; see `to_arrow`."""
    hint = "a string is read as the path of a file" if isinstance(data, str) else ""
    refused: dict[str, DataError] = {}
    with _faults_of(name, hint):
        source = _source(data, name, access, refused)
        if source is None:
            raise DataError(
                f"table {name}: {type(data).__module__}.{type(data).__name__} is not a table",
                "pass a pandas or polars frame, an Arrow table, a DuckDB relation, a list of dicts or the path of a "
                "file",
            )
        enums = {column: enum_type(values) for column, values in ordered_texts(data)}
        if isinstance(source, duckdb.DuckDBPyRelation):
            source = readable(source, name, refused)
            enums = {c: type for c, type in types_not_in_arrow(source, enums=True).items() if has_enum(type)}
            return NamedTable(name, source, table_of(source.limit(0), name), enums, refused)
        arrows = isinstance(source, pa.Table) or hasattr(source, "to_table")
        fields = list(source.schema if arrows else pa.table(source.limit(0).collect()).schema)
        for i, own in enumerate(fields):
            try:
                _plain(own.type, f"{name}.{own.name}")
            except DataError as error:
                refused.setdefault(own.name, error)
                fields[i] = own.with_type(pa.string())
        return NamedTable(name, source, conform(pa.schema(fields).empty_table(), name), enums, refused)


def types_not_in_arrow(relation: duckdb.DuckDBPyRelation, enums: bool) -> dict[str, str]:
    """Returns the columns of types that Arrow lacks, with these; ENUMs with `enums`."""
    types = zip(relation.columns, map(str, relation.types))
    return {column: type for column, type in types if is_lacking(type, enums)}


def to_arrow(data: Any, name: str, access: duck.Access = duck.ANYTHING) -> pa.Table:
    """Returns a named table as Arrow, in the types that DuckDB returns: plain strings, microseconds, no dictionaries.

    data: an Arrow table, batch, reader or dataset, a pandas or polars frame, a DuckDB relation, anything with the
    PyCapsule protocol, a list of dicts, a dict of columns, or the path of a file that DuckDB reads by its name (CSV,
    JSON, Parquet) and `access` allows. NaN in a pandas frame becomes null, as in pandas; elsewhere it stays NaN. A key
    missing in a dict becomes null. Raises DataError, also for times that are not whole microseconds.
    """
    found = named_table(data, name, access)
    for error in found.refused.values():
        raise error
    return found.table()


@contextmanager
def _faults_of(name: str, hint: str = "") -> Iterator[None]:
    """Raises DataError for what Arrow or DuckDB cannot read of a named table. hint: to an error of DuckDB."""
    try:
        yield
    except DataError:
        raise
    except duckdb.PermissionException as error:
        raise DataError(f"table {name}: {first_line(error)}", NO_ACCESS) from None
    except (duckdb.Error, OSError) as error:  # OSError: of DuckDB, while Arrow reads from it
        raise DataError(f"table {name}: {first_line(error)}", hint) from None
    except MIXED as error:
        raise DataError(f"table {name}: {error}", "give each column one type") from None


def _source(data: Any, name: str, access: duck.Access, refused: dict[str, DataError]) -> Any:
    """Returns what rows are read from: an Arrow table, a dataset, a DuckDB relation or a lazy frame. None: not a table.
    refused: gets the errors of columns of mixed values."""
    if isinstance(data, str | os.PathLike):
        data = duck.cursor(access=access).sql(f"SELECT * FROM '{str(os.fspath(data)).replace(chr(39), chr(39) * 2)}'")
    if isinstance(data, duckdb.DuckDBPyRelation):
        return data
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    module = type(data).__module__.split(".")[0]
    if module == "pandas":  # a Series is a column, not a table
        if not hasattr(data, "columns"):
            return None
        _check_names(list(map(str, data.columns)), name)
        data = _without_periods(data, name, refused)
        with suppress(*MIXED):
            return pa.Table.from_pandas(data, preserve_index=False)
        columns = {str(column): data.iloc[:, i] for i, column in enumerate(data.columns)}
        hint = "{}['{}'].astype(str), pd.to_numeric(...) or pd.to_datetime(...)"
        return by_column(columns, name, hint, refused)
    if module == "polars" and hasattr(data, "collect"):
        if not any(str(kind) == "Object" for kind in data.collect_schema().values()):
            return data
        data = data.collect()
    if module == "pyarrow" and hasattr(data, "to_table"):  # a dataset, or a scanner, which has only a part of one
        return data if hasattr(data, "schema") else data.to_table()
    if module == "polars" and any(str(kind) == "Object" for kind in getattr(data, "schema", {}).values()):
        # of objects polars would export addresses
        columns = {c.name: c.to_list() if str(c.dtype) == "Object" else c.to_arrow() for c in data}
        return by_column(columns, name, "{}['{}'].map_elements(str, return_dtype=pl.String)", refused)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return pa.table(data)
    if isinstance(data, Mapping):
        _check_names(list(map(str, data)), name)
        return by_column(data, name, "", refused)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes) and all(isinstance(r, Mapping) for r in data):
        names = dict.fromkeys(name for row in data for name in row)  # all rows: the first may lack some names
        _check_names(list(map(str, names)), name)
        return by_column({name: [row.get(name) for row in data] for name in names}, name, "", refused)
    return None


def _without_periods(frame: Any, name: str, refused: dict[str, DataError]) -> Any:
    """Returns a frame of pandas with its columns of periods as text: in Arrow they are bare numbers. refused: gets the
    errors of these."""
    periods = [i for i, kind in enumerate(frame.dtypes) if str(kind).startswith("period[")]
    frame = frame.copy(deep=False) if periods else frame
    for i in periods:
        column = str(frame.columns[i])
        hint = f"convert the column: {name}['{column}'].dt.to_timestamp(), or .astype(str)"
        refused[column] = DataError(f"table {name}, column {column}: periods of pandas are no type of DuckDB", hint)
        frame.isetitem(i, frame.iloc[:, i].astype("string"))
    return frame


def table_of(relation: Any, name: str) -> pa.Table:
    """Returns all rows of a DuckDB relation, conformed. Raises DataError for types that Arrow cannot hold exactly."""
    _refuse_unfaithful(relation, name)
    return conform(arrow_of(relation), name)


def tables_of(relation: Any, name: str, faults: Faults | None = None) -> Generator[pa.Table]:
    """Yields the rows of a DuckDB relation as they are read, conformed, in tables of about BATCH_ROWS rows. Nothing
    else may run on its connection meanwhile. faults: around each read; None: raises DataError as `table_of` does."""
    _refuse_unfaithful(relation, name)
    return _conformed(relation.to_arrow_reader(BATCH_ROWS), name, faults)


def _conformed(reader: pa.RecordBatchReader, name: str, faults: Faults | None = None) -> Generator[pa.Table]:
    """Yields the batches of a reader as tables, one without rows if there is none. Closed early, it closes the reader:
    DuckDB refuses other statements on a connection with an open result. faults: see `tables_of`."""
    faults = faults or partial(_faults_of, name)
    came = False
    with reader:
        while True:
            heed()
            with faults():
                try:
                    table = pa.Table.from_batches([reader.read_next_batch()])
                except StopIteration:
                    if came:
                        return
                    table = reader.schema.empty_table()
                table = conform(table, name)
            came = True
            yield table


def _refuse_unfaithful(relation: Any, name: str) -> None:
    """Raises DataError for a relation with types that Arrow cannot hold exactly."""
    for _, error in _unfaithful(relation, name):
        raise error


def _unfaithful(relation: Any, name: str) -> Iterator[tuple[str, DataError]]:
    """Yields the columns of a relation whose types Arrow cannot hold exactly, with the error of one that reads them."""
    for column, type in zip(relation.columns, relation.types):
        own = quote(column)
        if str(type) == BIGNUM:
            hint = f"cast it in the input: SELECT * REPLACE (CAST({own} AS DOUBLE) AS {own}) FROM ..., or AS BIGINT"
            what = f"{name}.{column} is a BIGNUM, a number of any size, which patterns do not read yet"
            yield column, DataError(what, hint)
        elif is_unfaithful(str(type)):
            hint = f"cast it in the input: SELECT * REPLACE (CAST({own} AS VARCHAR) AS {own}) FROM ..."
            yield column, DataError(f"{name}.{column} is {type}, which DuckDB cannot export exactly", hint)


def readable(relation: duckdb.DuckDBPyRelation, name: str, refused: dict[str, DataError]) -> duckdb.DuckDBPyRelation:
    """Returns a relation with its columns of types that Arrow cannot hold exactly as text; itself if it has none.
    refused: gets the errors of these."""
    found = dict(_unfaithful(relation, name))
    refused.update(found)
    return as_texts(relation, [i for i, column in enumerate(relation.columns) if column in found])


def _check_names(columns: Sequence[str], name: str) -> None:
    lowered = [c.lower() for c in columns]
    if len(set(lowered)) < len(lowered):
        twice = next(c for c in columns if lowered.count(c.lower()) > 1)
        raise DataError(f"{name} has two columns {twice}", "names are case-insensitive: rename one of them")
    if "" in columns:
        raise DataError(f"{name} has a column without a name, number {lowered.index('') + 1}", "name it")


#: How nanoseconds are truncated, by the kind of table.
TRUNCATED = (
    'truncate them: {0}["{1}"] = {0}["{1}"].dt.floor("us") in pandas, '
    '{0}.with_columns(pl.col("{1}").dt.truncate("1us")) in Polars, or pass '
    'duckdb.sql("SELECT * REPLACE (make_timestamp(epoch_ns({1}) // 1000) AS {1}) FROM {0}")'
)


def conform(table: pa.Table, name: str) -> pa.Table:
    """Returns the table in the column types that DuckDB returns. Columns of these types are not copied."""
    if not table.num_columns:
        raise DataError(f"{name} has no columns", "pass a table with columns, even if it has no rows")
    _check_names(table.column_names, name)
    columns: list[pa.ChunkedArray] = []
    for own, column in zip(table.schema, table.columns):
        what = f"{name}.{own.name}"
        target = _plain(own.type, what)
        if target != own.type:
            try:
                column = _cast(column, target)
            except pa.ArrowInvalid as error:
                finer = pa.types.is_timestamp(own.type) and own.type.unit == "ns"
                hint = TRUNCATED.format(name, own.name) if finer else "times must be exact microseconds"
                message = f"{what} has times that are finer than a microsecond" if finer else f"{what}: {error}"
                raise DataError(message, hint) from None
            except (pa.ArrowNotImplementedError, duckdb.Error) as error:
                raise DataError(f"{what}: {error}", "cast the column") from None
        columns.append(column)
    return pa.table(columns, names=table.column_names)


def _cast(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Casts a column by Arrow, or by DuckDB where Arrow has no cast or a wrong one."""
    extended = contains(column.type, lambda t: isinstance(t, pa.BaseExtensionType))
    if pa.types.is_fixed_size_list(column.type) and pa.types.is_dictionary(column.type.value_type):
        return pa.chunked_array([_decoded(chunk) for chunk in column.chunks], target)
    if not (extended or has_list_view(column.type)):
        try:
            return column.cast(target)
        except pa.ArrowNotImplementedError:
            pass
    if pa.types.is_duration(column.type) and column.type.unit in ("s", "ms"):
        column = column.cast(pa.duration("us"))  # DuckDB converts what stands where a null is, too
    connection = duck.cursor()
    connection.register("__hybrid_column", pa.table({"x": column}))
    read = connection.sql("SELECT x FROM __hybrid_column").to_arrow_table().column(0)
    return read if read.type == target else read.cast(target)


def _decoded(arrays: pa.FixedSizeListArray) -> pa.FixedSizeListArray:
    """Returns arrays of an ENUM as arrays of text. Arrow and DuckDB read numbers there."""
    size = arrays.type.list_size
    values = arrays.values.slice(arrays.offset * size, len(arrays) * size).dictionary_decode()
    return pa.FixedSizeListArray.from_arrays(values, size, mask=arrays.is_null())


def _plain(type: pa.DataType, what: str) -> pa.DataType:
    if pa.types.is_dictionary(type):
        return _plain(type.value_type, what)
    if pa.types.is_timestamp(type):
        return pa.timestamp("us", "UTC" if type.tz else None)
    if pa.types.is_float16(type):
        return pa.float32()
    try:
        return arrow_type(duckdb_type(type))
    except Exception as error:  # noqa: BLE001  (DuckDB, Arrow or ours: any error here means an unknown type)
        raise DataError(f"{what}: DuckDB has no type for {type}: {error}", "cast the column") from None


def plain_type(type: str) -> str:
    """Returns the DuckDB type that `conform` gives a column of this type, for example VARCHAR for an ENUM. A type that
    Arrow lacks is returned unchanged, as is BIGNUM."""
    if type == BIGNUM:
        return type
    try:
        return duckdb_type(_plain(arrow_type(type), type))
    except (DataError, ValueError):
        return type


def fields_of(table: pa.Table) -> tuple[Field, ...]:
    """Returns the column names with their DuckDB types."""
    return tuple(Field(f.name, duckdb_type(f.type)) for f in table.schema)


# ---- order -----------------------------------------------------------------------------------------------------


def time_of(order_by: tuple[Order, ...]) -> str | None:
    """Returns the event-time column of a plain relation: the first of ORDER BY if an ascending time, else None."""
    if order_by and not order_by[0].descending and order_by[0].column.type in TIME_TYPES:
        return order_by[0].column.name
    return None


def keys_of(order_by: tuple[Order, ...]) -> tuple[Key, ...]:
    return tuple(
        Key(o.column.name, o.descending, o.nulls_first, o.column.type if has_enum(o.column.type) else "")
        for o in order_by
    )


def order_index(table: pa.Table, order_by: tuple[Order, ...], by_content: bool = False) -> np.ndarray | None:
    """Returns the row numbers in the order of ORDER BY, int32 or int64, or None if the rows are already in that order.

    Ties keep their order. With by_content, for rows without positions, ties are ordered by content: columns in schema
    order, nulls first, NaN last. If only ties are out of order, only they are sorted.
    """
    n = table.num_rows
    keys = keys_of(order_by)
    content = tuple(Key(c, nulls_first=True) for c in table.column_names) if by_content else ()
    if n < 2 or not (keys or content):
        return None
    ties = _ties(table, keys)
    if ties is None:
        return _sorted_index(table, keys + content)
    if not content or not len(ties) or _ties(table, content, ties) is not None:
        return None
    group = np.ones(n, np.int64)  # rows of one tie share a number; numbers increase along the table
    group[0] = 0
    group[ties + 1] = 0
    group = np.cumsum(group)
    mask = np.zeros(n, np.bool_)
    mask[ties] = mask[ties + 1] = True
    tied = np.flatnonzero(mask)
    part = table.take(pa.array(tied)).append_column("__hybrid_group", pa.array(group[tied]))
    index = np.arange(n)
    index[tied] = tied[_sorted_index(part, (Key("__hybrid_group"), *content))]
    return index


def _sorted_index(table: pa.Table, keys: tuple[Key, ...]) -> np.ndarray:
    """Returns row numbers ordered by the keys, then by row number."""
    if len(keys) == 1 and not keys[0].descending:
        column = table.column(keys[0].column)
        if is_whole(column.type) and not column.null_count:
            return sorting_order(integers_of(column))
    connection = duck.cursor()
    numbered = table.select(list(dict.fromkeys(k.column for k in keys)))
    numbered = numbered.append_column("__hybrid_row", pa.array(np.arange(table.num_rows)))
    connection.register("__hybrid_rows", numbered)
    order = ", ".join([k.sql for k in keys] + ["__hybrid_row"])
    result = connection.sql(f"SELECT __hybrid_row FROM __hybrid_rows ORDER BY {order}").to_arrow_table()
    return np.asarray(result.column(0).to_numpy(), np.int64)


def stands_in_order(table: pa.Table, order_by: tuple[Order, ...]) -> bool:
    """True if the rows are in the order of ORDER BY. False also if only a sort could decide it."""
    return table.num_rows < 2 or _ties(table, keys_of(order_by)) is not None


def has_ties(table: pa.Table, order_by: tuple[Order, ...]) -> bool:
    """True if the rows are in the order of ORDER BY and some different rows are equal in it."""
    ties = _ties(table, keys_of(order_by))
    if ties is None or not len(ties):
        return False
    same = _ties(table, tuple(Key(c, nulls_first=True) for c in table.column_names), ties)
    return same is None or len(same) < len(ties)


def _ties(table: pa.Table, keys: tuple[Key, ...], among: np.ndarray | None = None) -> np.ndarray | None:
    """Returns the i, ascending, for which rows i and i + 1 are equal in all keys. None if some row precedes a smaller
    one, or if only a sort could decide it. among: compares only these pairs."""
    if among is None and table.num_rows > 2 * FIRST_ROWS and _ties(table.slice(0, FIRST_ROWS), keys) is None:
        return None
    pairs = among
    for key in keys:
        column = table.column(key.column)
        at = None if pairs is None else (column.take(pa.array(pairs)), column.take(pa.array(pairs + 1)))
        compared = compare_neighbours(column, key) if at is None else compare(*at, key)
        if compared is None:
            return None
        greater, equal = compared
        if greater.any():
            return None
        pairs = np.flatnonzero(equal) if pairs is None else pairs[equal]
        if not len(pairs):
            return pairs
    return np.arange(table.num_rows - 1) if pairs is None else pairs


# ---- events ----------------------------------------------------------------------------------------------------


def times_us(table: pa.Table, column: str, name: str) -> np.ndarray:
    """Returns a time column as int64 microseconds UTC. Raises DataError for nulls."""
    values = table.column(column)
    if values.null_count:
        nulls = counted(values.null_count, "null")
        raise DataError(f"{name}.{column} orders the rows and has {nulls}", f"add WHERE {column} IS NOT NULL")
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("us"))
    return integers_of(values).astype(np.int64, copy=False)


@dataclass(frozen=True)
class OrderedInput:
    """A bounded input in its total order.

    table: the rows as given, or sorted by content if they have no position. order: the row numbers in the total order,
    int32 or int64, None if the rows are already in it. row_us: the times of the table's rows, zeros without a time
    column; time: its name. The offset of an event is its position in the table; its sequence is its place in the order.
    """

    name: str
    table: pa.Table
    order: np.ndarray | None
    row_us: np.ndarray
    time: str | None = None

    @cached_property
    def ts_us(self) -> np.ndarray:
        """Returns the times in the total order; a copy of them if the rows are in another one."""
        return self.row_us if self.order is None else self.row_us[self.order]

    @staticmethod
    def of(
        name: str, table: pa.Table, order_by: tuple[Order, ...], time: str | None, *, by_content: bool = False
    ) -> OrderedInput:
        """Sorts the rows by ORDER BY unless they are in that order. Ties keep their order, or are ordered by content.
        time: the event-time column, or None."""
        if time is not None:
            times_us(table, time, name)
        order = order_index(table, order_by, by_content)
        if order is not None and by_content:
            table, order = taken(table, order), None
        row_us = times_us(table, time, name) if time is not None else np.zeros(table.num_rows, np.int64)
        return OrderedInput(name, table, order, row_us, time)

    def rows(self, columns: Collection[str] | None = None) -> pa.Table:
        """Returns the rows in the total order. columns: the needed ones (None: all)."""
        table = self.table if columns is None else some_columns(self.table, columns)
        return table if self.order is None else taken(table, self.order)

    def batches(self, columns: Collection[str] | None = None, rows: int = BATCH_ROWS) -> Iterator[EventBatch]:
        """Yields batches of at most `rows` rows, zero copy except for a sort and for short chunks. columns: the needed
        ones (None: all)."""
        table = self.table if columns is None else some_columns(self.table, columns)
        if self.order is None:
            start = 0
            for batch in long_batches(table.to_batches(max_chunksize=rows), rows):
                stop = start + batch.num_rows
                yield self._events(batch, start, stop)
                start = stop
            return
        order, count = self.order, table.num_rows
        chunks = Chunks.of(table)
        some, rows = chunks.ahead(count, lambda low, high: order[low:high]), min(rows, chunks.most)
        for start in range(0, count, rows):
            stop = min(start + rows, count)
            yield events_of(*some(start, stop), np.arange(start, stop), self.row_us, self.time)

    def _events(self, columns: pa.RecordBatch, start: int, stop: int) -> EventBatch:
        at = np.arange(start, stop)
        rows = at if self.order is None else self.order[start:stop].astype(np.int64, copy=False)
        return events_of(columns, rows, at, self.row_us, self.time)

    def read(self, request: RangeRequest) -> EventBatch:
        """Returns the rows of a range, as HistorySnapshot.read does. Needs a time order."""
        start, stop = positions_in(self.ts_us, request)
        at = None if self.order is None else pa.array(self.order[start:stop])
        part = self.table.slice(start, stop - start) if at is None else self.table.take(at)
        batch = self._events(one_batch(part), start, stop)
        if not request.keys:
            return batch
        mask = np.ones(len(batch), bool)
        for column, values in request.keys.items():
            wanted = pa.array(list(values), part.schema.field(column).type)
            mask &= bools_of(pc.is_in(part.column(column), value_set=wanted))
        return batch.take(np.flatnonzero(mask))


def events_of(
    columns: pa.RecordBatch, rows: np.ndarray, seq: np.ndarray, row_us: np.ndarray, time: str | None
) -> EventBatch:
    """Returns rows of a table as events. rows: their numbers there; row_us: the times of the table's rows; time: the
    column that they are from, which is read if it is there: that is cheaper."""
    place = columns.schema.get_field_index(time) if time is not None else -1
    if place >= 0 and columns.schema.types[place] == pa.timestamp("us"):
        ts_us = np.asarray(columns.column(place).view(pa.int64()))
    else:
        ts_us = row_us[rows]
    return EventBatch(columns, ts_us, np.zeros(len(rows), np.int32), rows, seq)


def some_columns(table: pa.Table, columns: Collection[str]) -> pa.Table:
    """Returns the table with these columns, or with its first column if none matches, to keep the number of rows."""
    return table.select([c for c in table.column_names if c in columns] or table.column_names[:1])
