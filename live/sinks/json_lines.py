"""Converts rows to JSON by DuckDB, with times in ISO 8601."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from query.errors import DataError, first_line
from query.language.duck import quiet_connection
from query.plan.expression import quote

_ROWS = "__hybrid_rows"


def json_lines(rows: pa.Table) -> list[str]:
    """Returns one JSON object per row, without line breaks.

    Integers and decimals are exact numbers (a reader that parses doubles rounds them; DECIMAL(38,38) is a string).
    Timestamps are ISO 8601 with microseconds (TIMESTAMP_NS: nanoseconds), in UTC with a Z if they have a time zone.
    NaN and infinite numbers are null, as JSON has none. Lists, structs and maps are arrays and objects. Other types
    (dates, times, intervals, blobs, infinite timestamps) are strings in DuckDB's form, which a cast reads back.
    About 0.5 µs per value. Raises DataError for columns without a JSON form.
    """
    found: list[str] = _run(rows).column(0).to_pylist()
    return found


def check_json(schema: pa.Schema) -> None:
    """Raises DataError for columns without a JSON form."""
    lowered = [name.lower() for name in schema.names]
    twice = next((name for name in schema.names if lowered.count(name.lower()) > 1), None)
    if twice is not None:
        raise DataError(f"two columns are named {twice}", "rename one of them with AS in the outer SELECT")
    _run(pa.Table.from_batches([], schema))


def _run(rows: pa.Table) -> pa.Table:
    connection = quiet_connection()
    try:
        connection.register(_ROWS, rows)
        values = ", ".join(
            f"{quote(field.name)} := {_value(quote(field.name), field.type, 0)}" for field in rows.schema
        )
        return connection.sql(f"SELECT to_json(struct_pack({values})) AS row FROM {_ROWS}").to_arrow_table()
    except duckdb.Error as error:
        raise DataError(f"rows cannot be written as JSON: {first_line(error)}", "cast the column to VARCHAR") from None
    finally:
        connection.unregister(_ROWS)


def _value(sql: str, type: pa.DataType, depth: int) -> str:
    """Returns the SQL that prepares a value of a type for JSON, or `sql` itself if DuckDB's JSON is right."""
    if pa.types.is_timestamp(type):
        fraction = "%n" if type.unit == "ns" else "%f"
        return f"strftime({sql}, '%Y-%m-%dT%H:%M:%S.{fraction}{'Z' if type.tz else ''}')"
    if pa.types.is_floating(type):
        return f"CASE WHEN isfinite({sql}) THEN {sql} END"
    if pa.types.is_decimal(type) and type.precision == type.scale:
        # DuckDB writes .5, which is not a JSON number.
        return f"CAST({sql} AS {'VARCHAR' if type.scale == 38 else f'DECIMAL({type.scale + 1}, {type.scale})'})"
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        item = f"x{depth}"
        value = _value(item, type.value_type, depth + 1)
        return sql if value == item else f"list_transform({sql}, lambda {item}: {value})"
    if pa.types.is_struct(type):
        fields = [(f.name, f"struct_extract({sql}, {_text(f.name)})", f.type) for f in type.fields]
        values = [(name, part, _value(part, inner, depth)) for name, part, inner in fields]
        if all(part == value for _, part, value in values):
            return sql
        packed = ", ".join(f"{quote(name)} := {value}" for name, _, value in values)
        return f"CASE WHEN {sql} IS NOT NULL THEN struct_pack({packed}) END"
    if pa.types.is_map(type):
        item = f"x{depth}"
        value = _value(f"{item}.value", type.item_type, depth + 1)
        if value == f"{item}.value":
            return sql
        entries = f"list_transform(map_entries({sql}), lambda {item}: struct_pack(k := {item}.key, v := {value}))"
        return f"map_from_entries({entries})"
    return sql


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
