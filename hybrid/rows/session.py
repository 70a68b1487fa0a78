"""Settings of a user's DuckDB connection: those that pattern expressions adopt, and those that are refused.

Inputs and the outer SELECT run on the user's connection. Expressions of a pattern run on our own connections, with
adopted settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import duckdb
import pyarrow as pa

from matching.types import digits_field
from query.language.duck import Session, Settings
from query.plan.expression import quote
from query.plan.trends import BIGNUM
from query.schema import Field

#: Temporary names on the user's connection.
_COLLATED, _AS_TEXT = "__hybrid_collated", "__text"
#: Settings that pattern expressions adopt, with their defaults.
TAKEN_OVER = {"TimeZone": "UTC", "integer_division": "false", "default_null_order": "NULLS_LAST"}
#: Settings that change the meaning of expressions or the parser; they must have DuckDB's defaults.
REFUSED = {
    "Calendar": "gregorian", "default_collation": "", "default_order": "ASCENDING", "ieee_floating_point_ops": "true",
    "error_on_division_by_zero": "true", "regex_match_operator_semantics": "partial",
    "disable_timestamptz_casts": "false", "legacy_disable_null_type": "false", "dialect_compatibility_mode": "NONE",
    "current_dialect": None, "active_grammar_extensions": "[]", "order_by_non_integer_literal": "false",
    "json_geometry_format": "wkt", "preserve_identifier_case": "preserve_case", "arrow_lossless_conversion": "false",
}  # fmt: skip


def settings_of(connection: duckdb.DuckDBPyConnection) -> tuple[Settings, tuple[tuple[str, str], ...]]:
    """Returns the settings of a connection that differ from our defaults: the adopted ones, and the refused ones."""
    names = sorted((*TAKEN_OVER, *REFUSED))
    # duckdb_settings() does not list all settings.
    values = ", ".join(f"CAST(current_setting('{name}') AS VARCHAR)" for name in names)
    (found,) = connection.execute(f"SELECT {values}").fetchall()
    other = [(n, v) for n, v in zip(names, found) if v != TAKEN_OVER.get(n, REFUSED.get(n))]
    taken = tuple((n, v) for n, v in other if n in TAKEN_OVER)
    return taken, tuple((n, str(v)) for n, v in other if n in REFUSED)


def session_of(connection: duckdb.DuckDBPyConnection, settings: Settings) -> Session:
    """Returns the session of a connection for query.plan.bind: adopted settings, constant values, and own macros."""
    macros = connection.execute("SELECT DISTINCT function_name FROM duckdb_functions() WHERE NOT internal")
    own = frozenset(str(name).lower() for (name,) in macros.fetchall())

    def value(sql: str) -> str | None:
        """Returns the current value of an expression without columns as a SQL literal; None if no literal equals it."""
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


def texts_of(fields: Sequence[Field], enums: bool = True) -> dict[str, str]:
    """Returns the columns that are text in Arrow and another type in SQL, with that type: BIGNUMs, and with `enums`
    ENUMs."""
    return {f.name: f.type for f in fields if f.type == BIGNUM or (enums and is_enum(f.type))}


def arrow_of(relation: duckdb.DuckDBPyRelation) -> pa.Table:
    """Returns the rows of a relation, BIGNUMs as the text of their digits."""
    types = list(map(str, relation.types))
    if BIGNUM not in types:
        return relation.to_arrow_table()
    names = map(quote, relation.columns)
    shown = (f"CAST({n} AS VARCHAR) AS {n}" if t == BIGNUM else n for n, t in zip(names, types))
    found = relation.project(", ".join(shown)).to_arrow_table()
    fields = [digits_field(f.name) if t == BIGNUM else f for f, t in zip(found.schema, types)]
    return found.cast(pa.schema(fields))


def register(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table, texts: Mapping[str, str]) -> None:
    """Registers a table on a connection. texts: columns to be cast from text in Arrow to their type."""
    casts = [f"CAST({quote(c)} AS {type}) AS {quote(c)}" for c, type in texts.items() if c in table.column_names]
    if not casts:
        connection.register(name, table)
        return
    connection.register(name + _AS_TEXT, table)
    text = f"SELECT * REPLACE ({', '.join(casts)}) FROM {quote(name + _AS_TEXT)}"
    connection.execute(f"CREATE OR REPLACE TEMP VIEW {quote(name)} AS {text}")


def unregister(connection: duckdb.DuckDBPyConnection, name: str, texts: Mapping[str, str]) -> None:
    """Removes a table that `register` added."""
    with suppress(duckdb.TransactionException):  # an aborted transaction removes it itself
        if texts:
            connection.execute(f"DROP VIEW IF EXISTS temp.{quote(name)}")
            connection.unregister(name + _AS_TEXT)
        connection.unregister(name)


def collated(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, str]:
    """Returns the columns of a SELECT that have a collation, with its name."""
    tables = "SELECT sql FROM duckdb_tables() UNION ALL SELECT sql FROM duckdb_views() WHERE NOT internal"
    there = connection.execute(f"SELECT count(*) FROM ({tables}) WHERE sql ILIKE '%collate%'").fetchall()
    if there == [(0,)] and "collate" not in sql.lower():
        return {}
    plan = _plan(connection, f"SELECT * FROM ({sql})")
    if plan is None:  # a frame, for example, cannot be serialized: an empty table has the same types
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {_COLLATED} AS SELECT * FROM ({sql}) LIMIT 0")
        try:
            plan = _plan(connection, f"SELECT * FROM {_COLLATED}")
        finally:
            connection.execute(f"DROP TABLE temp.{_COLLATED}")
    return {} if plan is None else dict(_collations(plan))


def _plan(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any] | None:
    """Returns the outermost step of DuckDB's plan of a SELECT; None if DuckDB cannot serialize it."""
    ((text,),) = connection.execute("SELECT json_serialize_plan(?, optimize := false)", [sql]).fetchall()
    found: dict[str, Any] = json.loads(text)
    plans: list[dict[str, Any]] = found.get("plans", [])
    return plans[-1] if plans else None


def _collations(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (column, collation) of a projection."""
    for column in plan.get("expressions", ()):
        for collation in _named(column.get("return_type", {})):
            yield str(column.get("alias", "")), collation


def _named(type: Any) -> Iterator[str]:
    """Yields the collations in a type that differ from byte order."""
    if isinstance(type, dict):
        collation = str(type.get("collation", ""))
        if collation.lower() not in ("", "binary", "c", "posix"):
            yield collation
        for part in type.values():
            yield from _named(part)
    elif isinstance(type, list):
        for part in type:
            yield from _named(part)
