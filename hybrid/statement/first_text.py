"""The first text of a table that is no number, for errors about a column of text that is taken for numbers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

import duckdb
import pyarrow as pa

from hybrid.rows import duck
from query.errors import Error, NotComputed, QueryError, TextColumn
from query.language import ast
from query.plan.bind import shortened
from query.plan.expression import quote
from query.plan.statement import BARE_NAME, unquoted


class Tables(Protocol):
    """The inputs of a statement; see Relations."""

    def stream(self, text: str) -> object | None: ...

    def has_positions(self, text: str) -> bool: ...

    def rows(self, text: str, name: str, columns: Collection[str] | None = None) -> pa.Table: ...


def with_texts(error: QueryError, query: ast.QuerySyntax, relations: Tables) -> QueryError:
    """Returns a binder's error with the first offending value of each column in question, and its row."""
    if not any(d.about for d in error.diagnostics):
        return error
    known = {str(text): text for d in error.diagnostics if (text := d.about)}
    found = {name: _first(text, query, relations) for name, text in known.items()}
    return QueryError(
        [replace(d, label=found[str(d.about)]) if d.about else d for d in error.diagnostics], error.text
    )


def with_row(error: NotComputed, query: ast.QuerySyntax, table: str, relations: Tables) -> NotComputed:
    """Returns the error of a condition or measure with the first row of the table that has the offending text."""
    found = "" if error.about is None else _first(replace(error.about, table=table), query, relations)
    if not found:
        return error
    return NotComputed(f"{error.message}; {found}", error.hint, error.span, error.label)


def _first(text: TextColumn, query: ast.QuerySyntax, relations: Tables) -> str:
    """Returns the first value of the column that is not of the type, and its row; empty if there is none, or if the
    table cannot be read again."""
    for factor in query.factors:
        entries = {name for scope in factor.scopes for name in scope.names}
        name = unquoted(factor.input.strip())
        if factor.merged or name.lower() in entries or text.table not in (name, shortened(factor.input)):
            continue
        whole = factor.input if BARE_NAME.fullmatch(factor.input) else f"SELECT * FROM {factor.input}"
        if relations.stream(factor.input) is None and relations.has_positions(whole):
            return _first_in(whole, text, relations)
    return ""


def _first_in(input_sql: str, text: TextColumn, relations: Tables) -> str:
    column = quote(text.column)
    wrong = f"{column} IS NOT NULL AND TRY_CAST({column} AS {text.type}) IS NULL"
    value = [] if text.value is None else [text.value]
    try:
        given = relations.rows(input_sql, text.table, {text.column})
        connection = duck.cursor()
        connection.register("given", given)
        rows = f"SELECT {column}, row_number() OVER () AS row FROM given"
        found = connection.execute(
            f"SELECT {column}, row FROM ({rows}) WHERE {f'{column} = ?' if value else wrong} LIMIT 1", value
        ).fetchone()
    except (duckdb.Error, Error):
        return ""  # the error itself says enough
    if found is None:
        return ""
    shown = repr(found[0] if len(found[0]) <= 40 else found[0][:37] + "...")
    return f"{shown} is in row {found[1]} of {text.table}"
