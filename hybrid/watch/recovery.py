"""What of a database goes into a checkpoint, and how live queries go on from one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hybrid.watch.query_spec import ASKED_TAGS
from query.errors import DataError

if TYPE_CHECKING:
    from hybrid.watch.chain import ChainWatch
    from hybrid.watch.stream import Stream
    from hybrid.watch.watched import Watch


def state_of(
    streams: Mapping[str, Stream], named: Mapping[str, Watch | ChainWatch], notes: Mapping[str, str]
) -> dict[str, Any]:
    """All that named queries need to go on: what each of them has become, and how far each stream had come."""
    queries = {name: _query(watch) for name, watch in named.items()}
    return {"notes": dict(notes), "queries": queries, "streams": {n: _stream(s, named) for n, s in streams.items()}}


def _query(watch: Watch | ChainWatch) -> dict[str, Any]:
    asked = watch.asked
    assert asked is not None
    own = {tag: getattr(asked, name) for name, (tag, _) in ASKED_TAGS.items()}
    return {
        "asked": own | {"tables": dict(asked.tables)}, "alerts": watch.alerts.save(), "own": watch.save(),
        "driver": None if watch.driver is None else watch.driver.save(),
    }  # fmt: skip


def _stream(stream: Stream, named: Mapping[str, Watch | ChainWatch]) -> dict[str, Any]:
    """members: the names of the queries whose state is in that of the feed, in its order."""
    of = {id(m): name for name, w in named.items() if (m := getattr(w, "member", None)) is not None}
    saved: dict[str, Any] = {"live": stream.live.to_dict(), "feed": None, "members": []}
    if stream.feed is not None:
        mine = [getattr(w, "member", None) for w in named.values()]
        state, members = stream.feed.snapshot([m for m in mine if m is not None])
        saved |= {"feed": state, "members": [of[id(m)] for m in members]}
    return saved


def check_ahead(stream: Stream, next_seq: int) -> None:
    """Raises DataError where a checkpoint knows of events that the archive has not."""
    missing = next_seq - 1 - stream.kept.last_seq
    if missing > 0:
        raise DataError(
            f"the checkpoint has matched {missing:,} events of {stream.schema.name} that are not in its archive",
            "restore the archive; or remove the directory _checkpoint: queries then begin anew",
        )

