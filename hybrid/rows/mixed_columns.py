"""Columns of values that patterns cannot read: text, each with the error of a clause that reads it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from query.errors import DataError

#: The errors of Arrow and Python for values that make no column.
MIXED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError, OverflowError)


def by_column(columns: Mapping[Any, Any], name: str, how: str, refused: dict[str, DataError]) -> pa.Table:
    """Returns columns as a table, those of mixed values as text. how: how to convert one, with places for the table and
    the column. refused: gets the errors of these."""
    arrays = {}
    for key, values in columns.items():
        column = str(key)
        try:
            arrays[column] = values if isinstance(values, pa.ChunkedArray) else pa.array(values)
        except MIXED as error:
            if not hasattr(values, "__iter__"):
                raise
            hint = f"give the column one type: {how.format(name, column)}" if how else "give the column one type"
            if isinstance(error, OverflowError):
                hint = "whole numbers have 64 bits: convert the column to floats, or to text"
            refused[column] = DataError(f"table {name}, column {column}: {error.args[0]}", hint)
            arrays[column] = pa.array([_as_text(v) for v in values], pa.string())
    return pa.table(arrays)


def with_texts(table: pa.Table, names: Collection[str]) -> pa.Table:
    """Returns a table with these of its columns as text, whatever their types. Cost: a call a value."""
    for i, column in enumerate(table.columns):
        if table.column_names[i] in names and not pa.types.is_string(column.type):
            texts = pa.array([_as_text(value) for value in column.to_pylist()], pa.string())
            table = table.set_column(i, table.column_names[i], texts)
    return table


def _as_text(value: Any) -> str | None:
    """Returns a value of a column of mixed ones as text."""
    if value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value):
        return None
    return str(value).encode(errors="replace").decode()
