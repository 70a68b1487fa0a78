"""Settings of a user's DuckDB connection: those that pattern expressions adopt, and those that are refused.

Inputs and the outer SELECT run on the user's connection. Expressions of a pattern run on our own connections, with
adopted settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from hybrid.rows.duck import cursor
from matching.types import digits_field
from query.language.duck import function_names
from query.language.session import FUNCTIONS, Lent, Overload, Session, Settings, collation_key
from query.plan.expression import quote
from query.plan.plan import Order
from query.plan.trends import BIGNUM
from query.schema import Field, is_unfaithful, without_names

#: Temporary names on the user's connection.
_COLLATED, _AS_TEXT = "__hybrid_collated", "__text"
#: No macro has this parameter: DuckDB's message about a call with it shows those that it has.
_NO_PARAMETER = "__hybrid_none"
#: Settings that pattern expressions adopt, with their defaults.
TAKEN_OVER = {
    "TimeZone": "UTC", "integer_division": "false", "default_null_order": "NULLS_LAST", "Calendar": "gregorian",
    "default_collation": "", "default_order": "ASCENDING", "ieee_floating_point_ops": "true",
    "error_on_division_by_zero": "true", "regex_match_operator_semantics": "partial",
    "disable_timestamptz_casts": "false",
}  # fmt: skip
#: Settings that change the meaning of expressions or the parser; they must have DuckDB's defaults.
REFUSED = {
    "legacy_disable_null_type": "false", "dialect_compatibility_mode": "NONE",
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


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of a connection that are not in DuckDB's own. own: macros and functions of the user, and the bodies
    of these; added: scalar functions of extensions; table_macros: all of them. Names are in lower case."""

    own: frozenset[str]
    bodies: tuple[str, ...]
    added: frozenset[str]
    table_macros: frozenset[str]

    @staticmethod
    def of(connection: duckdb.DuckDBPyConnection) -> Functions:
        """Cost: 10 ms, in which DuckDB lists its functions."""
        rows = connection.execute(
            # with its path: a macro may be called `lower`
            "SELECT DISTINCT system.main.lower(function_name), internal, macro_definition, function_type FROM "
            "duckdb_functions() WHERE NOT internal OR function_type = 'table_macro' OR database_name = 'system' AND "
            "function_type = 'scalar'"
        ).fetchall()
        known = function_names()
        return Functions(
            frozenset(name for name, internal, *_ in rows if not internal),
            tuple(body for _, internal, body, _ in rows if body and not internal),
            frozenset(name for name, internal, _, type in rows if internal and type == "scalar" and name not in known),
            frozenset(name for name, _, _, type in rows if type == "table_macro"),
        )


def session_of(
    connection: duckdb.DuckDBPyConnection, settings: Settings, known: Functions, words: Collection[str] = ()
) -> Session:
    """Returns the session of a connection for query.plan.bind: adopted settings, constant values, macros, types, and
    functions. known: its functions. words: of the statement, lower case."""
    lowered = "system.main.lower({})".format
    own = known.own
    functions = known.added & {*words, *(w for body in known.bodies for w in re.findall(r"\w+", body.lower()))}
    named = connection.execute(f"SELECT {lowered('type_name')} FROM duckdb_types() WHERE NOT internal").fetchall()

    @cache  # now() is one time in a statement
    def value(sql: str) -> str | None:
        """Returns the current value of an expression without columns as a SQL literal; None if no literal equals it."""
        try:
            ((type,),) = connection.execute(f"SELECT system.main.typeof({sql})").fetchall()
            same = "x IS NULL" if type == '"NULL"' else f"CAST(CAST(x AS VARCHAR) AS {type}) IS NOT DISTINCT FROM x"
            # in one statement: outside of a transaction now() is another one in the next
            text = f"SELECT CAST(x AS VARCHAR), {same} FROM (SELECT ({sql}) AS x)"
            ((text, kept),) = connection.execute(text).fetchall()
        except duckdb.Error:
            return None
        quoted = "NULL" if text is None else "'" + text.replace("'", "''") + "'"
        if not kept:
            return None
        return quoted if type == '"NULL"' else f"CAST({quoted} AS {type})"

    def type(name: str) -> str:
        """Returns what a type stands for; its own text for one that DuckDB rejects."""
        try:
            ((text,),) = connection.execute(f"SELECT system.main.typeof(CAST(NULL AS {name}))").fetchall()
        except duckdb.Error:
            return name
        return str(text)

    if functions:
        settings = (*settings, (FUNCTIONS, Lent.of(connection, functions)))
    return Session(
        settings, value, own, partial(_overloads, connection), frozenset(name for (name,) in named), type, functions
    )


def _overloads(connection: duckdb.DuckDBPyConnection, path: tuple[str, ...]) -> tuple[Overload, ...]:
    """Returns the bodies of the macro that a path of names calls: (catalog, schema, name), or the end of it. Empty if
    DuckDB finds none, or where several schemas have one and the path does not tell which."""
    *prefix, name = path
    # as a plan: a statement that fails would end a transaction of the user
    call = f"SELECT {'.'.join(map(quote, path))}({_NO_PARAMETER} := NULL)"
    ((plan,),) = connection.execute("SELECT system.main.json_serialize_plan(?)", [call]).fetchall()
    message = str(json.loads(plan).get("error_message", ""))
    lines = message.partition("Candidate macros:")[2].partition("\n\n")[0].splitlines()
    signatures = [line.strip() for line in lines if line.strip()]
    rows = connection.execute(
        "SELECT database_name, schema_name, parameters, parameter_types, macro_definition FROM duckdb_functions() "
        "WHERE NOT internal AND function_type = 'macro' AND function_name ILIKE ?", [name],
    ).fetchall()  # fmt: skip
    places = list(dict.fromkeys((database, schema) for database, schema, *_ in rows))
    if prefix:
        told = tuple(p.lower() for p in prefix)
        places = [p for p in places if told in ((p[0].lower(), p[1].lower()), (p[1].lower(),), (p[0].lower(),))]
    elif len(places) > 1:
        ((database, schema),) = connection.execute("SELECT current_database(), current_schema()").fetchall()
        places = [p for p in (("temp", "main"), (database, schema)) if p in places][:1]
    if len(places) != 1:
        return ()
    found = [(p, t, str(body)) for *place, p, t, body in rows if tuple(place) == places[0]]
    if len(found) != len(signatures):
        return ()
    return tuple(_overload(name, line, *one) for line, one in zip(signatures, found))


def _overload(
    name: str, line: str, parameters: Sequence[str], types: Sequence[str | None], body: str
) -> Overload:
    """Returns one body of a macro. line: how DuckDB shows its parameters, as `f(x INTEGER, y := 3)`."""
    head = next(h for h in (quote(name), name) if line.lower().startswith(h.lower() + "("))
    shown, rest = line[len(head) + 1 : -1], line[len(head) + 1 : -1]
    signature: list[str] = []
    defaults: dict[str, str] = {}
    for i, (parameter, type) in enumerate(zip(parameters, types)):
        typed = f" {type}" if type else ""
        start = next(h for h in (parameter + typed, quote(parameter) + typed) if rest.startswith(h))
        rest, default = rest[len(start) :], ""
        if rest.startswith(" := "):
            ends = [len(rest)]
            if i + 1 < len(parameters):  # a comma may be part of a text or list as well
                after = f", {parameters[i + 1]}{f' {types[i + 1]}' if types[i + 1] else ''} := "
                quoted = after.replace(parameters[i + 1], quote(parameters[i + 1]), 1)
                ends = [at for h in (after, quoted) if (at := rest.find(h)) >= 0]
            default, rest = rest[4 : ends[0]], rest[ends[0] :]
            defaults[parameter.lower()] = default
        rest = rest.removeprefix(", ")
        signature.append(quote(parameter) + typed + (f" := {default}" if default else ""))
    assert not rest, shown
    return Overload(", ".join(signature), tuple(parameters), tuple(types), defaults, body)


_ENUM = re.compile(r"\bENUM\(")


def has_enum(type: str) -> bool:
    """True for an ENUM, and for a type that has one in it."""
    return "ENUM(" in type and _ENUM.search(without_names(type)) is not None


def is_lacking(type: str, enums: bool) -> bool:
    """True for a type that Arrow lacks: HUGEINT, there DECIMAL(38, 0), UUID, there text, and if `enums` an ENUM, also
    inside a type, there text too."""
    return type in ("HUGEINT", "UUID") or (enums and has_enum(type))


def enum_type(values: Sequence[str]) -> str:
    """Returns the ENUM type of values in their order."""
    return f"ENUM({', '.join(chr(39) + value.replace(chr(39), chr(39) * 2) + chr(39) for value in values)})"


def texts_of(fields: Sequence[Field], enums: bool = True) -> dict[str, str]:
    """Returns the columns of a type that Arrow lacks, with that type, and BIGNUMs, there the text of their digits."""
    return {f.name: f.type for f in fields if f.type == BIGNUM or is_lacking(f.type, enums)}


def as_texts(relation: duckdb.DuckDBPyRelation, columns: Collection[int]) -> duckdb.DuckDBPyRelation:
    """Returns a relation with some columns, by their numbers, as the text that DuckDB shows; itself without any."""
    if not columns:
        return relation
    # by position: a result may have several columns of one name
    values = [f"CAST(#{i + 1} AS VARCHAR)" if i in columns else f"#{i + 1}" for i in range(len(relation.columns))]
    return relation.project(", ".join(f"{v} AS {quote(c)}" for v, c in zip(values, relation.columns)))


def arrow_of(relation: duckdb.DuckDBPyRelation) -> pa.Table:
    """Returns the rows of a relation, BIGNUMs and what Arrow has no type for as text, as DuckDB shows them."""
    types = list(map(str, relation.types))
    shown = [i for i, type in enumerate(types) if is_unfaithful(type)]
    found = as_texts(relation, shown).to_arrow_table()
    if BIGNUM not in types:
        return found
    return found.cast(pa.schema([digits_field(f.name) if t == BIGNUM else f for f, t in zip(found.schema, types)]))


def register(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table, texts: Mapping[str, str]) -> None:
    """Registers a table on a connection. texts: columns to be cast from their type in Arrow to this one, or that get
    this collation, `COLLATE ...`."""
    if not texts:
        connection.register(name, table)
        return
    cast = {c: f"{quote(c)} {t}" if t.startswith("COLLATE ") else f"CAST({quote(c)} AS {t})" for c, t in texts.items()}
    casts = [f"{value} AS {quote(c)}" for c, value in cast.items() if c in table.column_names]
    connection.register(name + _AS_TEXT, table)
    replaced = f" REPLACE ({', '.join(casts)})" if casts else ""
    text = f"SELECT *{replaced} FROM {quote(name + _AS_TEXT)}"
    connection.execute(f"CREATE OR REPLACE TEMP VIEW {quote(name)} AS {text}")


def unregister(connection: duckdb.DuckDBPyConnection, name: str, texts: Mapping[str, str]) -> None:
    """Removes a table that `register` added."""
    with suppress(duckdb.TransactionException):  # an aborted transaction removes it itself
        if texts:
            connection.execute(f"DROP VIEW IF EXISTS temp.{quote(name)}")
            connection.unregister(name + _AS_TEXT)
        connection.unregister(name)


def collated(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, str]:
    """Returns the columns of a SELECT that name a collation, with it in lower case; empty for byte order."""
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


def comparable(
    table: pa.Table, keys: Sequence[str], order_by: Sequence[Order], collations: Mapping[str, str]
) -> tuple[pa.Table, tuple[Order, ...]]:
    """Returns a table and its ORDER BY such that texts with a collation compare by their bytes: the columns `keys` have
    the first of equal values for each, and those of ORDER BY, columns beside them. collations: by column."""
    with cursor() as connection:

        def of_values(column: str, sql: str) -> pa.ChunkedArray:
            """Returns a column with each value replaced by SQL over its distinct values x, numbered n."""
            values = table.column(column).unique()
            connection.register("u", pa.table({"x": values, "n": pa.array(range(len(values)))}))
            put = connection.sql(f"SELECT {sql} FROM u ORDER BY n ASC").to_arrow_table().column(0)
            return put.take(pc.index_in(table.column(column), values))

        for column in {c for c in keys if collations.get(c)}:
            key = collation_key(collations[column], "x")
            first = f"first_value(x) OVER (PARTITION BY {key} ORDER BY n ASC)"
            table = table.set_column(table.column_names.index(column), column, of_values(column, first))
        orders = list(order_by)
        for i, order in enumerate(order_by):
            if collation := collations.get(order.column.name):
                name = f"{_AS_TEXT}{i}"
                table = table.append_column(name, of_values(order.column.name, collation_key(collation, "x")))
                orders[i] = replace(order, column=replace(order.column, name=name))
    return table, tuple(orders)


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
            yield str(column.get("alias", "")), "" if collation in ("binary", "c", "posix") else collation


def _named(type: Any) -> Iterator[str]:
    """Yields the collations in a type, in lower case."""
    if isinstance(type, dict):
        if collation := str(type.get("collation", "")).lower():
            yield collation
        for part in type.values():
            yield from _named(part)
    elif isinstance(type, list):
        for part in type:
            yield from _named(part)
