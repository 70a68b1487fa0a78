"""Plans statements from the columns of their inputs, without rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pyarrow as pa

from archive.history import History
from hybrid.rows.duck import ANYTHING, binder
from hybrid.statement.relations import Relations
from hybrid.statement.stream_input import StreamInput
from matching.types import arrow_schema
from query.errors import DataError, nearest
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import QueryPlan
from query.schema import Field, Schema


def plan(text: str, schemas: Mapping[str, Schema | Mapping[str, str]], live: bool = False) -> QueryPlan:
    """Plans a statement over the columns of its inputs; see hybrid.plan."""
    streams = {name.lower(): schema for name, schema in schemas.items() if isinstance(schema, Schema)}
    tables = {name: columns for name, columns in schemas.items() if not isinstance(columns, Schema)}
    if live:
        if tables:
            message = f"{next(iter(tables))} is a table: a live query reads streams"
            raise DataError(message, "pass the stream's Schema, as Database.schema returns it")
        query = parse(text, tuple(s.name for s in streams.values()))
        return bind(query, partial(_declared, streams), live=True, describe=binder(ANYTHING))
    empty = {name: _empty(name, columns) for name, columns in tables.items()}
    inputs = {name: StreamInput(s, History(s, None).snapshot(), None, late=True) for name, s in streams.items()}
    relations = Relations(text, empty, inputs, access=ANYTHING)
    with relations.open():
        return relations.bind(parse(text, relations.names()))


def _empty(name: str, columns: Mapping[str, str]) -> pa.Table:
    """Returns a table without rows. Raises DataError for what are no columns."""
    if not isinstance(columns, Mapping) or not all(isinstance(x, str) for pair in columns.items() for x in pair):
        message = f"the columns of {name} are types by name, not {type(columns).__name__}"
        raise DataError(message, f'{{"{name}": {{"ts": "TIMESTAMP"}}}}')
    try:
        return arrow_schema(Schema(name, tuple(Field(c, t) for c, t in columns.items()))).empty_table()
    except ValueError as error:
        raise DataError(f"{name}: {error}", "use a DuckDB type, such as TIMESTAMP, VARCHAR or DOUBLE") from None


def _declared(streams: Mapping[str, Schema], name: str) -> Schema:
    found = streams.get(name.strip().strip('"').lower())
    if found is None:
        raise LookupError(nearest(name.strip(), [s.name for s in streams.values()]))
    return found
