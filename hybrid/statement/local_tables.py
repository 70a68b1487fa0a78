"""Frames and tables of the caller, found by their Python names as DuckDB finds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import PurePath
from types import FrameType
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from query.errors import QueryError, nearest

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
            ours = str(caller.f_globals.get("__name__", "")).startswith("hybrid.")  # the command line
            here = {name: caller.f_locals.get(name, caller.f_globals.get(name)) for name in _unknown(error)}
            new = {name: data for name, data in here.items() if is_table(data) and name not in found}
            seen = not ours and (connection is None or _sees_variables(connection))
            if not new or not seen:
                error = _with_variables(error, found, caller) if seen else error
                raise _with_index(error, found) from None
            found |= new


def _sees_variables(connection: duckdb.DuckDBPyConnection) -> bool:
    names = ("enable_external_access", "python_enable_replacements")
    try:
        (row,) = connection.execute("SELECT " + ", ".join(f"current_setting('{name}')" for name in names)).fetchall()
    except duckdb.Error:  # of an aborted transaction
        return False
    return all(row)


def _unknown(error: QueryError) -> list[str]:
    """Returns the names of tables that an error says are unknown."""
    said = [_UNKNOWN.search(d.message) for d in error.diagnostics if d.code == "HQ200"]
    return [match[1] or match[2] for match in said if match]


def _with_index(error: QueryError, tables: Mapping[str, Any]) -> QueryError:
    """Returns an error about a missing column with the hint that it is the index of a pandas frame, if it is."""
    hints: dict[str, str] = {}
    for diagnostic in error.diagnostics:
        table, said, column = diagnostic.message.partition(" has no column ")
        index = getattr(tables.get(table), "index", None) if said else None
        names = getattr(index, "names", ())
        if column in names:
            hints[diagnostic.message] = f"it is the index of {table}: pass {table}.reset_index()"
        elif list(names) == [None] and type(index).__name__ == "DatetimeIndex":
            rest = "" if diagnostic.hint.startswith("available") else f"; {diagnostic.hint}"
            hints[diagnostic.message] = f"for the index of {table} pass {table}.reset_index(names={column!r}){rest}"
    return _hinted(error, hints) if hints else error


def _hinted(error: QueryError, hints: Mapping[str, str]) -> QueryError:
    """Returns an error with other hints, by message."""
    return QueryError([replace(d, hint=hints.get(d.message, d.hint)) for d in error.diagnostics], error.text)


def _with_variables(error: QueryError, tables: Mapping[str, Any], caller: FrameType) -> QueryError:
    """Returns an error about unknown tables with hints: how to pass a variable of that name, or one whose name is
    similar."""
    here = {**caller.f_globals, **caller.f_locals}
    known = [*tables, *(name for name, data in here.items() if is_table(data) and not name.startswith("_"))]
    hints: dict[str, str] = {}
    for diagnostic in error.diagnostics:
        for name in _unknown(QueryError([diagnostic], error.text)):
            owner, dot, column = name.partition(".")
            if name in here:
                hints[diagnostic.message] = _passing(name, here[name])
            elif dot and owner in here and column.isidentifier():
                hints[diagnostic.message] = f"pass it by a name: hybrid.sql(text, {column}={name})"
            elif not diagnostic.hint.startswith("did") and (close := nearest(name, known)).startswith("did"):
                hints[diagnostic.message] = close
    return _hinted(error, hints) if hints else error


def _passing(name: str, data: object) -> str:
    """Returns a hint how to pass a variable that is no table by itself."""
    kind = type(data).__name__
    said = f"{name} is {'an' if kind[:1] in 'aeiou' else 'a'} {kind} here"
    if isinstance(data, list | dict | str | PurePath):
        return f"{said}: pass it by name, hybrid.sql(text, {name}={name})"
    if hasattr(data, "to_frame"):
        return f"{said}, not a table: use {name}.to_frame()"
    return f"{said}, not a table"


def is_table(data: object) -> bool:
    """True for frames, Arrow tables and datasets, DuckDB relations, and what else gives Arrow; not for texts, lists and
    dicts, which are seldom meant."""
    if isinstance(data, duckdb.DuckDBPyRelation | pa.Table | pa.RecordBatch):
        return True
    module = type(data).__module__.split(".")[0]
    if module in ("pandas", "polars"):
        return type(data).__name__ in ("DataFrame", "LazyFrame", "GeoDataFrame")
    return hasattr(type(data), "__arrow_c_stream__") or (module == "pyarrow" and hasattr(data, "to_table"))
