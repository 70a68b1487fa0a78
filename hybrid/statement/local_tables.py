"""Frames and tables of the caller, found by their Python names as DuckDB finds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from query.errors import QueryError

T = TypeVar("T")
_UNKNOWN = re.compile(r'(?:unknown table(?: or stream)?|with name) (?:"([^"]+)"|(\w+))')


def with_local_tables(
    run: Callable[[Mapping[str, Any]], T], tables: Mapping[str, Any], caller: FrameType,
    connection: duckdb.DuckDBPyConnection | None = None,
) -> T:  # fmt: skip
    """Runs a statement over named tables, and again with each table that it does not know and that is a local or global
    variable of the caller. Names that are given, streams, and tables of the connection come first. A connection without
    external access, or without replacements, sees no variables, as in DuckDB.

    run: raises QueryError for unknown tables before it does anything."""
    found = dict(tables)
    while True:
        try:
            return run(found)
        except QueryError as error:
            here = {name: caller.f_locals.get(name, caller.f_globals.get(name)) for name in _unknown(error)}
            new = {name: data for name, data in here.items() if is_table(data) and name not in found}
            if not new or (connection is not None and not _sees_variables(connection)):
                raise _with_index(error, found) from None
            found |= new


def _sees_variables(connection: duckdb.DuckDBPyConnection) -> bool:
    names = ("enable_external_access", "python_enable_replacements")
    (row,) = connection.execute("SELECT " + ", ".join(f"current_setting('{name}')" for name in names)).fetchall()
    return all(row)


def _unknown(error: QueryError) -> list[str]:
    """Returns the names of tables that an error says are unknown."""
    said = [_UNKNOWN.search(d.message) for d in error.diagnostics if d.code == "HQ200"]
    return [match[1] or match[2] for match in said if match]


def _with_index(error: QueryError, tables: Mapping[str, Any]) -> QueryError:
    """Returns an error about a missing column with the hint that it is the index of a pandas frame, if it is."""
    hints = {
        f"{name} has no column {index}": f"it is the index of {name}: pass {name}.reset_index()"
        for name, data in tables.items()
        for index in getattr(getattr(data, "index", None), "names", ())
        if index is not None
    }
    if not any(d.message in hints for d in error.diagnostics):
        return error
    return QueryError([replace(d, hint=hints.get(d.message, d.hint)) for d in error.diagnostics], error.text)


def is_table(data: object) -> bool:
    """True for frames, Arrow tables and datasets, DuckDB relations, and what else gives Arrow; not for texts, lists and
    dicts, which are seldom meant."""
    if isinstance(data, duckdb.DuckDBPyRelation | pa.Table | pa.RecordBatch):
        return True
    module = type(data).__module__.split(".")[0]
    if module in ("pandas", "polars"):
        return type(data).__name__ in ("DataFrame", "LazyFrame", "GeoDataFrame")
    return hasattr(type(data), "__arrow_c_stream__") or (module == "pyarrow" and hasattr(data, "to_table"))
