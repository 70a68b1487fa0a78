"""Operations on the streams of a database: declare, add columns, alter, describe, rewind."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from archive.history import History
from hybrid.database.opened import Opened
from hybrid.database.patterns import readers_of
from hybrid.rows.times import show_us
from hybrid.statement.progress import Far
from hybrid.watch.declaration import (
    TABLE,
    Pace,
    begin_drop,
    differences,
    finish_drops,
    otherwise,
    settings,
    widened,
)  # fmt: skip
from hybrid.watch.flow import Flow
from hybrid.watch.rewind import Rewound, rewound
from hybrid.watch.stream import Stream
from live.stream import LiveStream
from matching.ordering import Ordering
from matching.spill import Spill
from query.errors import DataError
from query.schema import Schema


def create(opened: Opened, schema: Schema, pace: Pace) -> None:
    """Creates a stream."""
    directory = None
    live = LiveStream(schema)
    Ordering(schema)  # raises if a tie column has no order
    if opened.path is not None:
        directory = opened.path / schema.name
        directory.make()
    kept = History(schema, directory / TABLE if directory else None, log=opened.log, epoch=opened.epoch)
    kept.beside = opened.wake
    stream = Stream(schema, live, kept, directory, pace=pace)
    stream.save()
    opened.streams[schema.name.lower()] = stream


def check_drop(opened: Opened, flow: Flow, stream: Stream) -> None:
    """Raises DataError if live queries read or feed a stream, or named patterns read it."""
    name = stream.schema.name
    users = [q.name for q in flow.queries if name.lower() in q.reads and not q.alerts.done]
    users += [q.name for q in flow.queries if (flow.target(q.alerts) or "").lower() == name.lower()]
    users += readers_of(opened, name)
    if users:
        message = f"stream {name} is used by {', '.join(dict.fromkeys(users))}"
        raise DataError(message, "close these queries and drop these patterns first")


def forget(opened: Opened, stream: Stream) -> None:
    """Deletes what is kept of a stream that is none of the database any more. The next opening for writing deletes what
    a crash leaves."""
    stream.kept.release()
    if opened.path is not None:
        begin_drop(opened.path, stream.schema.name)
        finish_drops(opened.path)


def declare_again(flow: Flow, stream: Stream, schema: Schema) -> None:
    """Declares an existing stream again: adds new trailing columns. Raises DataError if the declarations differ
    otherwise, except in lateness and retention."""
    was = stream.schema
    wider = widened(was, schema)
    if wider is not None:
        add_columns(flow, stream, wider)
    elif differences(was, schema):
        raise otherwise(was, schema)


def add_columns(flow: Flow, stream: Stream, schema: Schema) -> None:
    """Adds trailing columns to a stream; older events have nulls there. Raises DataError if a live query uses it."""
    if flow.reads(stream):
        message = f"stream {schema.name} cannot take columns while live queries read or feed it"
        raise DataError(message, "close them, declare it, and watch again")
    stream.kept.add_columns(schema)
    stream.live.declare(schema)
    stream.schema = schema
    stream.save()


def alter(flow: Flow, stream: Stream, changed: Mapping[str, Any]) -> list[str]:
    """Changes settings of a stream and of its running queries. Returns a description of each change."""
    schema, pace, said = settings(stream.schema, stream.pace, changed)
    if schema != stream.schema:
        stream.kept.declare(schema)
        stream.live.declare(schema)
        stream.schema = schema
        if stream.feed is not None:
            stream.feed.declare(schema)
        for query in flow.queries:
            query.events.declare(schema)
    if pace != stream.pace:
        known = (*stream.live.offsets, *stream.live.expected)
        stream.heard_s = dict.fromkeys(known, time.monotonic()) | stream.heard_s
        stream.pace = pace
    if said:
        stream.save()
    return said


def expect(stream: Stream, sources: Any) -> bool:
    """Makes the watermark wait for sources. Returns whether any of them is new."""
    before = set(stream.live.expected)
    stream.live.expect(sources)
    new = set(stream.live.expected) - before
    for source in new:
        stream.hear(source, time.monotonic())
    if new or stream.unsaved:
        stream.save()
    return bool(new)


def leave(flow: Flow, stream: Stream, source: str) -> list[str]:
    """Stops a source from holding the watermark back. Returns warnings of the queries."""
    before = stream.live.watermark_us
    stream.live.idle([source])
    reached_us = stream.live.watermark_us
    return flow.raised(stream, reached_us) if reached_us is not None and reached_us != before else []


def check_rewind(flow: Flow, stream: Stream) -> None:
    """Raises DataError if the watermark of a stream cannot be set back."""
    name = stream.schema.name
    if stream.ended:
        raise DataError(f"stream {name} has ended", "close the database and open it again to resume the stream")
    fed = [p.target for p in flow.pours if name.lower() in p.reads]
    if fed:
        message = f"rows of {name} go into stream {fed[0]}, and would come twice"
        raise DataError(message, "close the query that feeds it, and watch it again into another stream")


def rewind(
    flow: Flow, stream: Stream, to_us: int, spill: Spill | None, trouble: list[str],
    told: Callable[[Far], None], abandon: bool,
) -> Rewound:  # fmt: skip
    """Sets the watermark of a stream back; see hybrid.watch.rewind."""
    done = rewound(flow, stream, to_us, spill, trouble, told, abandon)
    stream.save()
    return done


def described(stream: Stream) -> dict[str, Any]:
    """Returns the entry of a stream in Database.streams."""
    live = stream.live
    return {
        "columns": {f.name: f.type for f in stream.schema.fields},
        "time": stream.schema.time,
        "keys": list(stream.schema.keys),
        "watermark": show_us(live.watermark_us),
        "ended": live.ended,
        "events": stream.kept.last_seq + 1,
        "offsets": stream.offsets,
        "expected": list(live.expected),
        "held_by": stream.held_by(),
        "accepted": live.accepted_count,
        "late": live.late_count,
        "duplicates": live.duplicate_count,
        "lately": dict(zip(("events", "late"), stream.lately.counts, strict=True)),
    }
