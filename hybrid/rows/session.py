"""What the expressions of a pattern take over from a user's DuckDB connection, and what is refused by name.

Inputs and the outer SELECT run on that connection; a pattern's own expressions run on connections of ours, under its
settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import duckdb
import pyarrow as pa

from query.language.duck import Session, Settings
from query.plan.expression import quote
from query.schema import Field

#: Names of ours on the user's connection, for a moment.
_COLLATED, _AS_TEXT = "__hybrid_collated", "__text"
#: Settings that the pattern's expressions are computed under.
TAKEN_OVER = {"TimeZone": "UTC", "integer_division": "false", "default_null_order": "NULLS_LAST"}
#: Settings that change what expressions mean, or how a text is read, and have to be what they are in DuckDB by itself.
REFUSED = {
    "Calendar": "gregorian", "default_collation": "", "default_order": "ASCENDING", "ieee_floating_point_ops": "true",
    "error_on_division_by_zero": "true", "regex_match_operator_semantics": "partial",
    "disable_timestamptz_casts": "false", "legacy_disable_null_type": "false", "dialect_compatibility_mode": "NONE",
    "current_dialect": None, "active_grammar_extensions": "[]", "order_by_non_integer_literal": "false",
    "json_geometry_format": "wkt", "preserve_identifier_case": "preserve_case", "arrow_lossless_conversion": "false",
}  # fmt: skip


def settings_of(connection: duckdb.DuckDBPyConnection) -> tuple[Settings, tuple[tuple[str, str], ...]]:
    """Settings of a connection that differ from ours: those that are taken over, and those that are refused."""
    names = sorted((*TAKEN_OVER, *REFUSED))
    # Not duckdb_settings(), which does not list all that can be set.
    values = ", ".join(f"CAST(current_setting('{name}') AS VARCHAR)" for name in names)
    (found,) = connection.execute(f"SELECT {values}").fetchall()
    other = [(n, v) for n, v in zip(names, found) if v != TAKEN_OVER.get(n, REFUSED.get(n))]
    taken = tuple((n, v) for n, v in other if n in TAKEN_OVER)
    return taken, tuple((n, str(v)) for n, v in other if n in REFUSED)


def session_of(connection: duckdb.DuckDBPyConnection, settings: Settings) -> Session:
    """A connection with the settings that are taken over from it, as query.plan.bind wants it."""
    macros = connection.execute("SELECT DISTINCT function_name FROM duckdb_functions() WHERE NOT internal")
    own = frozenset(str(name).lower() for (name,) in macros.fetchall())

    def value(sql: str) -> str | None:
        """SQL of the value that an expression without rows has now; None where its text does not say it."""
        try:
            text = f"SELECT typeof(x), CAST(x AS VARCHAR) FROM (SELECT ({sql}) AS x)"
            ((type, text),) = connection.execute(text).fetchall()
            quoted = "NULL" if text is None else "'" + text.replace("'", "''") + "'"
            literal = quoted if type == '"NULL"' else f"CAST({quoted} AS {type})"
            same = connection.execute(f"SELECT ({literal}) IS NOT DISTINCT FROM ({sql})").fetchall()
        except duckdb.Error:
            return None
        return literal if same == [(True,)] else None

    return Session(settings, value, own)


def is_enum(type: str) -> bool:
    return type.startswith("ENUM(")


def enums_of(fields: Sequence[Field]) -> dict[str, str]:
    """The columns that are ENUMs, with their types."""
    return {field.name: field.type for field in fields if is_enum(field.type)}


def register(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table, enums: Mapping[str, str]) -> None:
    """Lets a connection name a table. enums: its columns that are ENUMs there, and text in Arrow."""
    casts = [f"CAST({quote(c)} AS {type}) AS {quote(c)}" for c, type in enums.items() if c in table.column_names]
    if not casts:
        connection.register(name, table)
        return
    connection.register(name + _AS_TEXT, table)
    text = f"SELECT * REPLACE ({', '.join(casts)}) FROM {quote(name + _AS_TEXT)}"
    connection.execute(f"CREATE OR REPLACE TEMP VIEW {quote(name)} AS {text}")


def unregister(connection: duckdb.DuckDBPyConnection, name: str, enums: Mapping[str, str]) -> None:
    """Takes a table back that `register` has given."""
    with suppress(duckdb.TransactionException):  # aborted: it goes with the transaction
        if enums:
            connection.execute(f"DROP VIEW IF EXISTS temp.{quote(name)}")
            connection.unregister(name + _AS_TEXT)
        connection.unregister(name)


def collated(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, str]:
    """The columns of a SELECT that are compared under a collation, and which."""
    tables = "SELECT sql FROM duckdb_tables() UNION ALL SELECT sql FROM duckdb_views() WHERE NOT internal"
    there = connection.execute(f"SELECT count(*) FROM ({tables}) WHERE sql ILIKE '%collate%'").fetchall()
    if there == [(0,)] and "collate" not in sql.lower():
        return {}
    plan = _plan(connection, f"SELECT * FROM ({sql})")
    if plan is None:  # it reads what DuckDB cannot write down, such as a frame: a table has its types, too
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {_COLLATED} AS SELECT * FROM ({sql}) LIMIT 0")
        try:
            plan = _plan(connection, f"SELECT * FROM {_COLLATED}")
        finally:
            connection.execute(f"DROP TABLE temp.{_COLLATED}")
    return {} if plan is None else dict(_collations(plan))


def _plan(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any] | None:
    """DuckDB's plan of a SELECT, its outermost step; None where it has no text of it."""
    ((text,),) = connection.execute("SELECT json_serialize_plan(?, optimize := false)", [sql]).fetchall()
    found: dict[str, Any] = json.loads(text)
    plans: list[dict[str, Any]] = found.get("plans", [])
    return plans[-1] if plans else None


def _collations(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Of the columns of a projection."""
    for column in plan.get("expressions", ()):
        for collation in _named(column.get("return_type", {})):
            yield str(column.get("alias", "")), collation


def _named(type: Any) -> Iterator[str]:
    """The collations in a type that differ from the order of bytes."""
    if isinstance(type, dict):
        collation = str(type.get("collation", ""))
        if collation.lower() not in ("", "binary", "c", "posix"):
            yield collation
        for part in type.values():
            yield from _named(part)
    elif isinstance(type, list):
        for part in type:
            yield from _named(part)
