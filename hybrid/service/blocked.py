"""Back pressure: the streams of a service that take no events now, and why."""

from __future__ import annotations

from archive.history import MEMORY_BYTES_MAX, MEMORY_ROWS_MAX
from hybrid.service.context import Context
from hybrid.service.outlets import Outlets
from hybrid.service.queries import ServiceQueries, late_name
from hybrid.service.sources import Sources


def blocked_streams(context: Context, sources: Sources, queries: ServiceQueries, outlets: Outlets) -> dict[str, str]:
    """Returns the streams that take no events now, in lower case, with the reason: a sink has too many pending rows of
    a query on them, a query that reads them cannot start or is in no checkpoint, or memory is full."""
    app = context.app
    blocked: dict[str, str] = {}
    for name, reads in queries.delayed.items():
        blocked |= dict.fromkeys(reads, f"query {name} cannot start: {app.state} cannot be written")
    for name, reads in queries.unkept.items():
        blocked |= dict.fromkeys(reads, f"query {name} has started, but no checkpoint with it can be written")
    limit = app.limits.unread_rows
    readers = {name: running.query.reads for name, running in queries.running.items()}
    readers |= {late_name(name): (name.lower(),) for name, stream in app.streams.items() if stream.late}
    for name, reads in readers.items():
        for outlet in outlets.all():
            if outlet.unread(name) >= limit:
                why = f"sink {outlet.name} has {outlet.unread(name):,} unread rows of {name}"
                blocked |= dict.fromkeys(reads, why)
    for name in sources.streams():
        held = context.db.held(name)
        if held.writes and (
            held.rows >= MEMORY_ROWS_MAX + app.limits.queue_rows or held.nbytes >= 2 * MEMORY_BYTES_MAX
        ):
            blocked[name] = "memory is full of events that are not archived yet"
    return blocked
