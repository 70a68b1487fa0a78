"""Results as pandas and polars frames, with the time zones and categories of the frames they were made of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hybrid.rows import duck
from matching.types import contains, holds_digits
from query.errors import DataError
from query.extras import not_installed

if TYPE_CHECKING:
    import pandas
    import polars

#: DuckDB's HUGEINT, the type of a sum of integers, in Arrow.
HUGEINT = pa.decimal128(38, 0)
#: Arrow's intervals in memory.
INTERVAL = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Category:
    """A text column of few values: these, in their order. ordered: they are compared by it."""

    values: tuple[str, ...]
    ordered: bool


@dataclass(frozen=True, slots=True)
class Given:
    """The time zone and the categories of the frames of a statement, which DuckDB's types lack.

    zone: the time zone of all their columns that have one, None if there are several. categories: by the name of the
    column, in lower case."""

    zone: str | None = None
    categories: Mapping[str, Category] = field(default_factory=dict)


def in_zone(table: pa.Table, given: Given) -> pa.Table:
    """Returns rows with their times in the time zone of the frames given."""
    zone = _arrow_zone(given.zone)
    if zone is None:
        return table
    for i, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type) and column.type.tz is not None:
            zoned = pa.timestamp(column.type.unit, zone)
            table = table.set_column(i, column.with_type(zoned), table.column(i).cast(zoned))
    return table


def given_by(tables: Mapping[str, Any]) -> Given:
    """Returns the time zone and the categories of the pandas, polars and Arrow tables of a statement."""
    zones: set[str] = set()
    categories: dict[str, Category | None] = {}
    for name, zone, category in (column for table in tables.values() for column in _columns(table)):
        if zone is not None:
            zones.add(zone)
        if category is not None:
            key = name.lower()
            categories[key] = category if categories.get(key, category) == category else None
    zone = zones.pop() if len(zones) == 1 else None
    return Given(zone, {name: category for name, category in categories.items() if category is not None})


def _arrow_zone(zone: str | None) -> str | None:
    """Returns a time zone as Arrow names it, None for one that it does not know; pandas has others."""
    if zone is None:
        return None
    zone = re.sub(r"^UTC(?=[+-]\d\d:\d\d$)", "", zone)
    try:
        pa.scalar(0, pa.timestamp("us", zone)).as_py()
    except (ValueError, LookupError, pa.ArrowException):
        return None
    return zone


def _columns(table: Any) -> Iterator[tuple[str, str | None, Category | None]]:
    """Yields the columns of a table that have a time zone or categories."""
    module = type(table).__module__.split(".")[0]
    if module == "pandas" and hasattr(table, "columns"):
        for name, dtype in zip(table.columns, table.dtypes):
            categories = getattr(dtype, "categories", None)
            if categories is not None and all(isinstance(v, str) for v in categories):
                yield str(name), None, Category(tuple(categories), bool(dtype.ordered))
            elif (zone := getattr(dtype, "tz", None)) is not None:
                yield str(name), str(zone), None
    elif module == "polars" and hasattr(table, "collect_schema"):
        for name, dtype in table.collect_schema().items():
            if (zone := getattr(dtype, "time_zone", None)) is not None:
                yield name, zone, None
            elif str(dtype).startswith("Enum"):
                yield name, None, Category(tuple(dtype.categories), True)
    elif isinstance(table, pa.Table | pa.RecordBatch):
        for arrow in table.schema:
            if pa.types.is_timestamp(arrow.type) and arrow.type.tz is not None:
                yield arrow.name, arrow.type.tz, None


def ordered_texts(table: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the text columns of a table that have an order of their own, with their values in that order: ordered
    categories of pandas, and Enums of polars."""
    for name, _, category in _columns(table):
        if category is not None and category.ordered and category.values:
            yield name, category.values


def distinct_names(names: Sequence[str]) -> list[str]:
    """Returns the names of columns, in which the second x is x_1, as in DuckDB's frames."""
    found: dict[str, None] = {}
    for i, name in enumerate(names):
        before = names[:i].count(name)
        name = f"{name}_{before}" if before else name
        while name in found:
            name += "_1"
        found[name] = None
    return list(found)


def pandas_frame(table: pa.Table, given: Given) -> pandas.DataFrame:
    """Returns rows as a pandas frame: HUGEINTs as floats, as DuckDB has them; BIGNUMs as Python's ints; intervals
    without months as durations; time zones and categories as given."""
    try:
        import pandas
    except ImportError:
        raise not_installed("df() needs pandas", "pandas", "arrow(), fetchall() and iteration need nothing") from None

    digits = [i for i, column in enumerate(table.schema) if holds_digits(column)]
    try:
        frame = _plain(table).rename_columns(distinct_names(table.column_names)).to_pandas()
    except (OverflowError, ValueError, NotImplementedError) as error:  # infinity, and years before 1 and after 9999
        hint = "cast the column to VARCHAR, or take the rows by arrow() or fetchall()"
        raise DataError(f"a frame of pandas cannot hold a value: {error}", hint) from None
    for i in digits:
        numbers = [None if v is None else int(Decimal(v)) for v in table.column(i).to_pylist()]
        frame.isetitem(i, pandas.Series(numbers, dtype=object))
    for i, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type) and column.type.tz is not None and given.zone is not None:
            frame.isetitem(i, frame.iloc[:, i].dt.tz_convert(given.zone))
        elif (category := _category(table, i, given)) is not None:
            dtype = pandas.CategoricalDtype(category.values, category.ordered)
            frame.isetitem(i, frame.iloc[:, i].astype(dtype))
    return frame


def polars_frame(table: pa.Table, given: Given) -> polars.DataFrame:
    """Returns rows as a polars frame: intervals without months as durations, time zones and enumerations as given.
    Raises DataError for intervals with months."""
    try:
        import polars
    except ImportError:
        raise not_installed("pl() needs polars", "polars", "arrow(), fetchall() and iteration need nothing") from None

    plain = _plain(table, huge=False)
    for column in plain.schema:
        if contains(column.type, pa.types.is_interval):
            of = "intervals of months" if column.type == pa.month_day_nano_interval() else "intervals inside its values"
            message = f"column {column.name} has {of}, which polars has no type for"
            raise DataError(message, f"cast it: CAST({column.name} AS VARCHAR), or take the rows by arrow() or df()")
    names = distinct_names(table.column_names)
    frame = polars.from_arrow(plain.rename_columns(names))
    assert isinstance(frame, polars.DataFrame)
    for i, column in enumerate(table.schema):
        own = polars.col(names[i])
        if pa.types.is_timestamp(column.type) and column.type.tz is not None and given.zone is not None:
            frame = frame.with_columns(own.dt.convert_time_zone(given.zone))
        elif (category := _category(table, i, given)) is not None:
            frame = frame.with_columns(own.cast(polars.Enum(category.values)))
    return frame


def python_columns(table: pa.Table, shown: bool = False) -> list[list[Any]]:
    """Returns the values of each column as Python has them: intervals without months as timedeltas, HUGEINTs as ints.
    shown: as in `python_values`."""
    columns = [python_values(column, shown) for column in _plain(table, huge=False).columns]
    for i, column in enumerate(table.schema):
        if column.type == HUGEINT:
            columns[i] = [None if v is None else int(v) for v in columns[i]]
    return columns


def python_values(column: pa.ChunkedArray, shown: bool) -> list[Any]:
    """Returns values as Python has them; those of a column with times that Python lacks, as DuckDB returns them, or,
    shown, as text."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):  # infinity, and years before 1 and after 9999
        connection = duck.cursor(access=duck.NOTHING)
        connection.register("__hybrid_column", pa.table({"x": column}))
        text = f"SELECT {'CAST(x AS VARCHAR)' if shown else 'x'} FROM __hybrid_column"
        return [value for (value,) in connection.sql(text).fetchall()]


def _category(table: pa.Table, i: int, given: Given) -> Category | None:
    """Returns the category of an output column that has the name and values of a column given."""
    column = table.schema.field(i)
    category = given.categories.get(column.name.lower())
    type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if category is None or not (pa.types.is_string(type) or pa.types.is_large_string(type)):
        return None
    return category if set(table.column(i).unique().to_pylist()) <= {None, *category.values} else None


def with_durations(table: pa.Table) -> pa.Table:
    """Returns rows with durations instead of intervals without months, which not every library has a type for."""
    return _plain(table, huge=False)


def _plain(table: pa.Table, huge: bool = True) -> pa.Table:
    """Returns rows with durations instead of intervals without months and, huge, floats instead of HUGEINTs."""
    for i, column in enumerate(table.schema):
        if column.type == pa.month_day_nano_interval():
            if (durations := _durations(table.column(i))) is not None:
                table = table.set_column(i, column.name, durations)
        elif huge and column.type == HUGEINT:
            table = table.set_column(i, column.name, table.column(i).cast(pa.float64()))
    return table


def _durations(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Returns intervals as durations of microseconds, None if some have months."""
    chunks = []
    for chunk in column.chunks:
        values = np.frombuffer(chunk.buffers()[1], INTERVAL)[chunk.offset : chunk.offset + len(chunk)]
        null = chunk.is_null().to_numpy(zero_copy_only=False)
        if (values["months"] != 0)[~null].any():
            return None
        us = values["days"].astype(np.int64) * DAY_US + values["nanoseconds"] // 1000
        chunks.append(pa.array(us, mask=null).cast(pa.duration("us")))
    return pa.chunked_array(chunks, pa.duration("us"))
