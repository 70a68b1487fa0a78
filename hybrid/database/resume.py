"""Recovery of a database from its last checkpoint: restores the live queries and replays the events since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hybrid.database.checkpoints import Checkpoints
from hybrid.database.opened import Opened
from hybrid.database.queries import Queries
from hybrid.join.strategies import strategy_of
from hybrid.watch import checkpoint
from hybrid.watch.flow import Flow
from hybrid.watch.in_feed import new_feed
from hybrid.watch.in_merged import InMerged
from hybrid.watch.live_query import LiveQuery
from hybrid.watch.query_spec import read_asked
from hybrid.watch.recovery import check_ahead
from hybrid.watch.stream import Stream
from live.stream import LiveStream
from matching.feed import Member, Unread
from matching.spill import Spill
from query.errors import DataError, warn


def resume(opened: Opened, flow: Flow, queries: Queries, checkpoints: Checkpoints, wider: bool) -> None:
    """Restores the queries of the last checkpoint, if any. wider: whether columns were added to streams since."""
    assert opened.path is not None
    found = checkpoint.newest(opened.path)
    if found is None:
        queries.memory.begins_anew()
        return
    number, state = found
    checkpoints.resumed(number, state["notes"])
    for name, saved in state["streams"].items():
        _stand_back(opened.streams.get(name), name, saved["live"])
        opened.streams[name].late_since = saved.get("late")  # older states have none
    for name, saved in state["queries"].items():
        flow.named[name] = _begun(queries, saved)
    members: dict[str, Member | Unread] = {}
    for name, saved in state["streams"].items():
        members |= restore_feed(opened.streams[name], saved, flow, queries.memory.spill())
    for saved in state.get("merged", ()):  # older states have none
        members |= _restore_merged(saved, flow.named)
    anew = []
    for name, saved in state["queries"].items():
        query = flow.named[name]
        if not query.events.restore(saved["own"], members.get(name)) and not query.alerts.done:
            anew.append(query)
    queries.share_memory()
    if anew:
        if len(anew) == sum(not query.alerts.done for query in flow.named.values()):
            queries.memory.begins_anew()
        with flow.within_budget():
            told = _make_anew(anew, state["version"], wider)
        for message in told:
            warn(message)
        queries.share_memory()
    for name in state["streams"]:
        _give_since(flow, opened.streams[name])


def _stand_back(stream: Stream | None, name: str, saved: Mapping[str, Any]) -> None:
    """Sets the intake of a stream back to its state at the checkpoint."""
    if stream is None:
        raise DataError(
            f"stream {name} of the checkpoint is missing",
            "restore its directory, or remove the directory _checkpoint: all queries then start empty",
        )
    check_ahead(stream, saved["next_seq"])
    live = {**saved, "ended": False}
    lateness_us = live.get("lateness_us", stream.schema.lateness_us)
    # A crash may have come between a change of the lateness and the next checkpoint. With the longer of both, no
    # event that was on time is late in the replay.
    replayed = replace(stream.schema, lateness_us=max(lateness_us, stream.schema.lateness_us))
    stream.live = LiveStream.from_dict(replayed, live)


def _begun(queries: Queries, saved: Mapping[str, Any]) -> LiveQuery:
    """Returns a query of a checkpoint, started unless it was over. Its matching state is not restored yet."""
    asked = read_asked(saved["asked"])
    strategy = strategy_of(asked.strategy, asked.tolerance_us)
    if saved["alerts"]["over"] is not None:
        query = queries.ask(asked.text, strategy, asked.tables, asked.evidence, sharing=asked.sharing,
                            patterns=asked.patterns)  # fmt: skip
    else:
        query = queries.start(
            asked.text, strategy, asked.tables, asked.evidence, asked.into, asked.time, sharing=asked.sharing,
            patterns=asked.patterns,
        )
    query.asked = asked
    query.alerts.restore(saved["alerts"])
    if query.driver is not None:
        query.driver.restore(saved["driver"])
    if query.held is not None and saved.get("held") is not None:  # older states hold no rows
        query.held.content = saved["held"]
    return query


def restore_feed(
    stream: Stream, saved: Mapping[str, Any], flow: Flow, spill: Spill | None
) -> dict[str, Member | Unread]:
    """Restores the feed of a stream. Returns its members by query name."""
    names = saved["members"]
    if not names:
        return {}
    if stream.feed is not None:
        stream.feed.keep_only(())
    stream.feed = new_feed(stream, spill, flow.searches)
    members = stream.feed.restore(saved["feed"], [flow.named[name].factor.plan for name in names])
    return dict(zip(names, members, strict=True))


def _restore_merged(saved: Mapping[str, Any], named: Mapping[str, LiveQuery]) -> dict[str, Member | Unread]:
    """Restores a feed of merged streams, which its queries have when they are started. Returns its members by query
    name."""
    queries = {name: named[name] for name in saved["members"]}
    feeds = {id(e.feed): e.feed for q in queries.values() if isinstance(e := q.events, InMerged) and e.feed is not None}
    plans = {name: query.factor.plan for name, query in queries.items()}
    if len(feeds) != 1:  # the streams have other declarations now
        return dict.fromkeys(queries, Unread(None))
    (feed,) = feeds.values()
    return feed.restore(saved, plans)


def _make_anew(queries: Sequence[LiveQuery], version: int, wider: bool) -> list[str]:
    """Rebuilds queries whose checkpoint state this release cannot use by replaying their events. Returns warnings."""
    names, lost = [], []
    for query in queries:
        assert query.asked is not None
        names.append(query.asked.name)
        try:
            whole = query.events.replay()
        except Exception as error:  # noqa: BLE001  (any failure is confined to this query)
            query.fail(error)
            whole = True
        lost += [] if whole else [query.asked.name]
    return checkpoint.replaced(names, lost, version, wider)


def _give_since(flow: Flow, stream: Stream) -> None:
    """Replays the events of a stream since the checkpoint."""
    if not stream.live.driven:  # its query emits these rows again
        for batch, late in stream.kept.snapshot().since(stream.live.next_seq):
            flow.give(stream, stream.live.replay(batch, late))
        logged_us = stream.kept.logged_watermark_us
        if logged_us is not None and (stream.watermark_us is None or logged_us > stream.watermark_us):
            flow.reach(stream, logged_us)
        for source, offset in stream.kept.skipped.items():
            stream.live.skip(source, offset)
    stream.live.declare(stream.schema)
