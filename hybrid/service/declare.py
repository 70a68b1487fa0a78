"""Declares the streams of an app in a database, and makes rows of sinks: of queries, and of late events."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hybrid.service.app_tables import StreamTable
from hybrid.service.context import Context
from query.schema import Schema

#: The column with the name of the query that a row in a sink comes from.
QUERY = "query"


def declare_all(context: Context) -> None:
    """Declares the streams of the app in its database, and logs their changes."""
    for name, stream in context.app.streams.items():
        with context.trouble.warned(f"stream {name}"):
            for said in declare(context.db, name, context.app.stream(name)):
                context.say(f"stream {name}: {said}")
        if stream.late is not None:
            context.db.late(name)  # from now on late events are buffered for `ServiceQueries.fetch`
        else:  # a sink named later gets those from then on
            context.db.forget_late(name)


def declare_patterns(context: Context) -> None:
    """Creates the patterns of the app in its database; changed ones replace those before them. Others stay."""
    context.db.create_patterns(context.app.patterns, replace=True, force=True)


def declare(db: Any, name: str, stream: StreamTable) -> list[str]:
    """Declares a stream of an app in a database. Returns its changes, as text."""
    columns, said = dict(stream.columns), []
    settings = {key: getattr(stream, key) for key in ("lateness", "retention", "idle", "heartbeat", "max_ahead")}
    there = next((known for known in db.streams() if known.lower() == name.lower()), None)
    if there is None:
        db.create_stream(name, columns, stream.time, stream.key, stream.order, **settings)
        return []
    lacking = lacks(db.schema(there), stream)
    if lacking:
        given = {column.lower(): type for column, type in columns.items()}
        was = {f.name: given.pop(f.name.lower(), f.type) for f in db.schema(there).fields}
        columns = was | {column: type for column, type in columns.items() if column.lower() in given}
        said.append(
            f"it keeps its columns {', '.join(lacking)}, which the file does not have: new events have nulls there"
        )
    db.create_stream(name, columns, stream.time, stream.key, stream.order)
    return [*said, *db.alter_stream(name, **settings)]


def lacks(was: Schema, stream: StreamTable) -> list[str]:
    """Returns the columns of a stream that the app file no longer has."""
    given = {column.lower() for column in stream.columns}
    return [field.name for field in was.fields if field.name.lower() not in given]


def named_rows(rows: pa.Table, query: str) -> pa.Table:
    """Returns rows of a query with its name in a column `query`, unless they have one of that name."""
    if any(name.lower() == QUERY for name in rows.column_names):
        return rows
    return rows.append_column(QUERY, pa.repeat(query, rows.num_rows))


def late_rows(events: pa.Table, stream: str) -> pa.Table:
    """Returns late events as rows of a sink, with the identity of the event as match_id."""
    names = pc.binary_join_element_wise(
        pa.scalar(stream), events["_source"], events["_offset"].cast(pa.string()), "/"
    )
    return events.append_column("match_id", names)
