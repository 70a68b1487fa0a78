"""Converts pushed data to a RecordBatch of the declared columns and its times; raises DataError if it does not fit."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import TIME_END_US, Int64Array
from matching.checked import BEYOND, shown_value, types_of
from matching.types import arrow_schema, duckdb_type
from matching.value_types import Type
from matching.values import exact_cast, family, is_chosen, not_chosen
from query.errors import DataError, nearest
from query.schema import Schema


class Incoming:
    """Reads data of one stream.

    Data: an Arrow table, batch or reader; an object with `__arrow_c_stream__` or `__arrow_c_array__` (a pandas or
    Polars DataFrame, a DuckDB relation); a list of dicts (rows); a dict of lists or arrays (columns). Column names are
    case-insensitive and in any order; the result has the declared names, order and types.

    A conversion must keep every value exactly: number to number, string to string, time to time (a zoned time becomes
    its instant in UTC, a naive one is read as UTC). Dictionary columns are decoded. A string is never read as a number
    or a time.
    Raises DataError at construction for a schema without a usable time column.
    """

    __slots__ = ("_chosen", "_position", "_time", "arrow_schema", "schema")

    def __init__(self, schema: Schema) -> None:
        declared = schema.field(schema.time) if schema.time is not None else None
        if declared is None:
            raise DataError(
                f"stream {schema.name} has no time column"
                + (f": column {schema.time} does not exist" if schema.time is not None else ""),
                f"choose one of its columns as its time: {', '.join(schema.names)}",
            )
        self.schema = schema
        self.arrow_schema = arrow_schema(schema)
        self._time = schema.fields.index(declared)
        #: Columns whose Arrow type is wider than the declared one: ENUM, UUID and JSON are strings in Arrow.
        self._chosen = [(i, type) for i, type in enumerate(types_of(schema)) if is_chosen(type)]
        self._position = {name.lower(): i for i, name in enumerate(schema.names)}
        if family(self.arrow_schema.field(self._time).type) != "time":
            raise DataError(
                f"the time column {declared.name} of stream {schema.name} is {declared.type}",
                "declare it TIMESTAMP, TIMESTAMPTZ or DATE",
            )

    def read(self, data: object) -> tuple[pa.RecordBatch, Int64Array]:
        """Returns the rows and their times: int64 (n,), microseconds UTC, read-only if it is a view of the column.

        Zero copy for a batch of the declared types, which costs one check for nulls and one of the range.
        """
        if isinstance(data, pa.RecordBatch) and data.schema.equals(self.arrow_schema):
            batch = data
        else:
            batch = self._fit(data)
        for i, type in self._chosen:
            self._check_chosen(batch.column(i), i, type)
        return batch, self._times(batch.column(self._time))

    def _check_chosen(self, column: pa.Array, i: int, type: Type) -> None:
        bad = not_chosen(column, type)
        if bad.any():
            row = int(bad.argmax())
            name = self.schema.fields[i].name
            raise DataError(
                f"column {name}, row {row}: {_show(column[row])} is not a valid {type.name}",
                "give a value of the declared type, or None",
            )

    def _fit(self, data: object) -> pa.RecordBatch:
        if isinstance(data, Mapping):
            columns = self._of_columns(data)
        elif isinstance(data, Sequence) and not isinstance(data, (str, bytes, bytearray)):
            columns = self._of_rows(data)
        else:
            batch = self._arrow(data)
            by_position = self._by_position(batch.schema.names)
            columns = [batch.column(by_position[i]) for i in range(len(self.arrow_schema))]
        return pa.RecordBatch.from_arrays(
            [self._convert(column, i) for i, column in enumerate(columns)], schema=self.arrow_schema
        )

    def _of_columns(self, data: Mapping[Any, Any]) -> list[pa.Array]:
        """Returns the columns of a dict of lists, arrays or series."""
        names = list(data)
        by_position = self._by_position(names)
        columns = []
        for i, name in enumerate(self.schema.names):
            values = data[names[by_position[i]]]
            if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__len__"):
                raise DataError(
                    f"column {name} is a single value, {_show(values)}, not a list of values",
                    "a dict holds columns; push one event as a list with one dict, [{...}]",
                )
            columns.append(self._array(values, i))
        lengths = {len(column) for column in columns}
        if len(lengths) > 1:
            shown = ", ".join(f"{name} {len(column)}" for name, column in zip(self.schema.names, columns))
            raise DataError(f"columns have different lengths: {shown}", "give each row a value or None")
        return columns

    def _of_rows(self, data: Sequence[Any]) -> list[pa.Array]:
        """Returns the columns of a list of dicts."""
        names: tuple[Any, ...] | None = None
        by_position: list[int] = []
        values: list[list[Any]] = [[] for _ in self.schema.fields]
        for row, event in enumerate(data):
            if not isinstance(event, Mapping):
                raise DataError(
                    f"row {row} is {_show(event)}, not a dict of column names and values",
                    "push a list of dicts, a dict of lists, an Arrow table or a DataFrame",
                )
            cells = tuple(event)
            if cells != names:
                by_position = self._by_position(cells, row)
                names = cells
            given = list(event.values())
            for i, column in enumerate(values):
                column.append(given[by_position[i]])
        return [self._array(column, i) for i, column in enumerate(values)]

    def _arrow(self, data: Any) -> pa.RecordBatch:
        """Returns Arrow data as one batch; zero copy if it is in one piece."""
        if isinstance(data, pa.RecordBatch):
            return data
        if isinstance(data, pa.Table):
            table = data
        elif hasattr(data, "iloc"):
            table = self._pandas(data)
        elif hasattr(data, "__arrow_c_stream__"):
            table = _foreign(lambda: pa.table(data), "the data")
        elif hasattr(data, "__arrow_c_array__"):
            return _foreign(lambda: pa.record_batch(data), "the data")
        else:
            raise DataError(
                f"{type(data).__name__} cannot be read as rows of {self.schema.name}",
                "push an Arrow table, a DataFrame, a DuckDB relation, a list of dicts or a dict of lists",
            )
        batches = table.to_batches()
        if len(batches) != 1:
            batches = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        if len(batches) > 1:
            raise DataError("the data is too large for one batch: a column exceeds 2 GB", "push it in parts")
        return batches[0]

    def _pandas(self, frame: Any) -> pa.Table:
        """Returns a pandas DataFrame as a table. A named index is a column. NaN and NaT are null, as in pandas."""
        try:
            table = pa.Table.from_pandas(frame)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            # A column holds Python objects of several types: read column by column, to report the row.
            names = [name for name in frame.columns if self.schema.field(str(name)) is not None]
            values = {name: [None if null else v for v, null in zip(frame[name], frame[name].isna())] for name in names}
            return pa.table(self._of_columns(values), names=list(self.schema.names))
        # The unnamed index of a filtered or sorted frame is not a column of the user.
        return table.drop_columns([name for name in table.column_names if name.startswith("__index_level_")])

    def _by_position(self, names: Sequence[Any], row: int | None = None) -> list[int]:
        """Returns the position in `names` of each declared column. Raises DataError for a missing, unknown or repeated
        column."""
        where = "" if row is None else f"row {row}: "
        found: dict[int, int] = {}
        for i, name in enumerate(names):
            position = self._position.get(name.lower()) if isinstance(name, str) else None
            if position is None:
                raise DataError(
                    f"{where}stream {self.schema.name} has no column {name}",
                    f"{nearest(str(name), self.schema.names)}; leave out columns that the stream does not declare",
                )
            if position in found:
                both = f"{names[found[position]]} and {name}"
                raise DataError(
                    f"{where}column {self.schema.names[position]} is given twice, as {both}",
                    "names are case-insensitive; leave one of them out",
                )
            found[position] = i
        for i, field in enumerate(self.schema.fields):
            if i not in found:
                raise DataError(
                    f"{where}column {field.name} {field.type} is missing",
                    f"stream {self.schema.name} needs {', '.join(self.schema.names)}; "
                    "give a column of nulls (None) if there are no values",
                )
        return [found[i] for i in range(len(self.schema.fields))]

    def _array(self, values: Any, i: int) -> pa.Array:
        """Returns Python values, a numpy array, a series or an Arrow array as an Arrow array of their own type."""
        if isinstance(values, pa.ChunkedArray):
            return values.combine_chunks()
        if isinstance(values, pa.Array):
            return values
        if hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__"):
            return _foreign(lambda: pa.chunked_array(values).combine_chunks(), f"column {self.schema.names[i]}")
        if isinstance(values, np.ndarray) and values.dtype != object:
            return self._checked(values, i, pa.array)
        return self._python(list(values), i)

    def _python(self, values: list[Any], i: int) -> pa.Array:
        """Returns Python values as an Arrow array; rejects values that Arrow's inference would change silently."""
        target = self.arrow_schema.field(i).type
        kinds = set(map(type, values)) - {_NONE}
        missing = {kind for kind in kinds if kind.__name__ in ("NaTType", "NAType")}  # None in pandas
        if missing:
            values = [None if type(value) in missing else value for value in values]
            kinds -= missing
        allowed = _PYTHON_TYPES.get(family(target))
        if allowed is not None and not all(issubclass(kind, allowed) and kind is not bool for kind in kinds):
            for row, value in enumerate(values):
                if value is not None and (not isinstance(value, allowed) or isinstance(value, bool)):
                    self._fail(value, i, row)
        if allowed is _TIMES and not (kinds <= {datetime.datetime} or kinds <= {datetime.date}):
            if pa.types.is_timestamp(target) and target.unit == "ns":
                return self._checked(values, i, lambda part: pa.array(part, type=target))
            values = [self._datetime(value, i, row) for row, value in enumerate(values)]
        if decimal.Decimal in kinds:
            for row, value in enumerate(values):
                if isinstance(value, decimal.Decimal) and not -_DIGITS_MAX < value.adjusted() < _DIGITS_MAX:
                    self._fail(value, i, row)
        if pa.types.is_float32(target) and kinds == {float}:
            return self._checked(values, i, _nearest_float32)
        try:
            return pa.array(values)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            pass
        # Arrow infers no type for these values: integers above 64 bits, or values of several types.
        wide = pa.types.is_decimal(target) or pa.types.is_unsigned_integer(target)
        return self._checked(values, i, lambda part: pa.array(part, type=target if wide else None))

    def _datetime(self, value: Any, i: int, row: int) -> datetime.datetime | None:
        """Returns a date, datetime, pandas Timestamp or numpy datetime64 as a datetime."""
        if isinstance(value, np.datetime64):
            whole = value.astype("datetime64[us]")
            out = None if np.isnat(value) else whole.item()
            if out is not None and (whole != value or not isinstance(out, datetime.datetime)):
                self._fail(value, i, row)
            return out
        if getattr(value, "nanosecond", 0):
            self._fail(value, i, row)
        if type(value) is datetime.date:
            return datetime.datetime(value.year, value.month, value.day)
        return value

    def _convert(self, column: pa.Array, i: int) -> pa.Array:
        target = self.arrow_schema.field(i).type
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        given = column.type
        if given.equals(target):
            return column
        if pa.types.is_null(given):
            return pa.nulls(len(column), target)
        if family(given) != family(target):
            field = self.schema.fields[i]
            example = ""
            if column.null_count < len(column):
                row = pc.index(column.is_valid(), True).as_py()
                example = f" (row {row}: {_show(column[row])})"
            raise DataError(
                f"column {field.name} is {_type_name(given)}{example}; stream {self.schema.name} declares {field.type}",
                f"convert it before the push, for example CAST({field.name} AS {field.type}) in SQL",
            )
        return self._checked(column, i, lambda part: exact_cast(part, target))

    def _checked(self, values: Any, i: int, convert: Callable[[Any], pa.Array]) -> pa.Array:
        """Returns convert(values). Raises DataError for the first value that cannot be converted."""
        try:
            return convert(values)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            pass
        # The shortest prefix that fails ends with the bad value.
        low, high = 0, len(values)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                convert(values[:middle])
                low = middle
            except (pa.ArrowException, ValueError, TypeError, OverflowError):
                high = middle
        self._fail(values[low], i, low)

    def _fail(self, value: object, i: int, row: int) -> NoReturn:
        field, target = self.schema.fields[i], self.arrow_schema.field(i).type
        where = f"column {field.name}, row {row}: {_show(value)}"
        given = _python_value(value) if isinstance(value, pa.Scalar) else value
        if pa.types.is_timestamp(target) and isinstance(value, (pa.TimestampScalar, *_TIMES)):
            raise DataError(
                f"{where} is finer than a microsecond, or out of range",
                "times have microseconds; round it, for example with date_trunc('microseconds', ...) in SQL or "
                '.dt.floor("us") in pandas',
            )
        allowed = _PYTHON_TYPES.get(family(target))
        if allowed is not None and (not isinstance(given, (pa.Scalar, *allowed)) or isinstance(given, bool)):
            hint = "give a datetime" if allowed is _TIMES else "give a value of the declared type"
            raise DataError(f"{where} is of type {type(given).__name__}, not {field.type}", f"{hint}, or None")
        message = f"{where} has no exact value of type {field.type}"
        if field.type == "UHUGEINT" and isinstance(given, int):
            raise DataError(f"{message} in a stream, which keeps 38 digits", "declare it as VARCHAR, or as DOUBLE")
        raise DataError(message, "give a value that fits, or round it before the push")

    def _times(self, column: pa.Array) -> Int64Array:
        name = self.schema.fields[self._time].name
        if column.null_count:
            row = pc.index(column.is_null(), True).as_py()
            raise DataError(
                f"column {name}, row {row}: the time is null",
                "each event needs a time; leave the row out or give it one",
            )
        if not column.type.equals(_MICROSECONDS) and not column.type.equals(_MICROSECONDS_UTC):
            column = self._checked(column, self._time, lambda part: part.cast(_MICROSECONDS))
        n = len(column)
        if n == 0:
            return np.zeros(0, np.int64)
        ts_us: Int64Array = np.frombuffer(column.buffers()[1], np.int64, n, column.offset * 8)
        if ts_us.min() <= -TIME_END_US or ts_us.max() >= TIME_END_US:
            row = int(np.flatnonzero((ts_us <= -TIME_END_US) | (ts_us >= TIME_END_US))[0])
            raise DataError(
                f"column {name}, row {row}: the time is infinite or after the year 148000 ({ts_us[row]} us)",
                "give each event a finite time; check the unit of the times",
            )
        return ts_us


_MICROSECONDS = pa.timestamp("us")
_MICROSECONDS_UTC = pa.timestamp("us", "UTC")


def _foreign(read: Callable[[], Any], what: str) -> Any:
    """Returns read(), which runs code of another library: it evaluates a relation or exports a frame. Raises DataError
    for any exception of it."""
    try:
        return read()
    except Exception as error:  # of any type: the data cannot be read
        raise DataError(f"{what} cannot be read: {error}", "see the message of the library that made it") from error


#: Most digits of a Decimal's exponent. Arrow ends the process for a Decimal of 1e-999999999.
_DIGITS_MAX = 400
_NONE = type(None)
_TIMES: tuple[type, ...] = (datetime.date, np.datetime64)  # a datetime and a pandas Timestamp are dates too

#: The Python types that a column accepts, by family; a bool, an int in Python, is accepted by BOOLEAN columns only.
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "number": (int, float, decimal.Decimal, np.number),
    "string": (str,),
    "binary": (bytes, bytearray, memoryview),
    "time": _TIMES,
    "time of day": (datetime.time,),
}


def _nearest_float32(values: list[float | None]) -> pa.Array:
    """Returns the nearest float32 values, as Python has one float type. Raises ArrowInvalid if one becomes infinite."""
    wide, out = pa.array(values), pa.array(values, type=pa.float32())
    if not pc.all(pc.equal(pc.is_inf(wide), pc.is_inf(out)), min_count=0).as_py():
        raise pa.ArrowInvalid("too large")
    return out


def _type_name(type: pa.DataType) -> str:
    try:
        return duckdb_type(type)
    except Exception:  # noqa: BLE001  DuckDB has no name for it: the message shows Arrow's
        return str(type)


def _show(value: object) -> str:
    if isinstance(value, pa.Scalar):
        known = _python_value(value)
        text = shown_value(value) if known is value or pa.types.is_temporal(value.type) else repr(known)
    else:
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _python_value(value: pa.Scalar) -> object:
    """Returns an Arrow scalar as a Python value, or unchanged if Python has no such value."""
    try:
        return value.as_py()
    except BEYOND:
        return value
