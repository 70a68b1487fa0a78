"""The content of a checkpoint, and recovery of live queries from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hybrid.watch.query_spec import ASKED_TAGS
from query.errors import DataError

if TYPE_CHECKING:
    from hybrid.watch.live_query import LiveQuery
    from hybrid.watch.merged_feed import MergedFeed
    from hybrid.watch.stream import Stream


def state_of(
    streams: Mapping[str, Stream], merged: Sequence[MergedFeed], named: Mapping[str, LiveQuery],
    notes: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Returns the state that named queries need to resume: their own, that of the feeds that merge streams for them,
    and the progress of each stream."""
    queries = {name: _query(query) for name, query in named.items()}
    members = {name: m for name, query in named.items() if (m := query.events.member) is not None}
    feeds = [saved for feed in merged if (saved := feed.save(members)) is not None]
    return {
        "notes": dict(notes), "queries": queries, "merged": feeds,
        "streams": {n: _stream(s, named) for n, s in streams.items()},
    }


def _query(query: LiveQuery) -> dict[str, Any]:
    asked = query.asked
    assert asked is not None
    own = {tag: getattr(asked, name) for name, (tag, _) in ASKED_TAGS.items()}
    given = {"tables": dict(asked.tables), "patterns": dict(asked.patterns)}
    return {
        "asked": own | given, "alerts": query.alerts.save(), "own": query.events.save(),
        "driver": None if query.driver is None else query.driver.save(),
        "held": None if query.held is None else list(query.held.content),
    }  # fmt: skip


def _stream(stream: Stream, named: Mapping[str, LiveQuery]) -> dict[str, Any]:
    """Returns the state of a stream. members: the names of the queries in its feed's state, in that order."""
    members = {id(m): (name, m) for name, query in named.items() if (m := query.events.member) is not None}
    saved: dict[str, Any] = {
        "live": stream.live.to_dict(), "feed": None, "members": [], "late": stream.late_mark(),
    }  # fmt: skip
    if stream.feed is not None:
        state, kept = stream.feed.snapshot([m for _, m in members.values()])
        saved |= {"feed": state, "members": [members[id(m)][0] for m in kept]}
    return saved


def check_ahead(stream: Stream, next_seq: int) -> None:
    """Raises DataError if a checkpoint has matched events that the archive lacks."""
    missing = next_seq - 1 - stream.kept.last_seq
    if missing > 0:
        raise DataError(
            f"the checkpoint has matched {missing:,} events of {stream.schema.name} that are not in its archive",
            "restore the archive, or remove the directory _checkpoint: all queries then start empty",
        )
