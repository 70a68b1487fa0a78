"""The feed of live queries with boxes over the same streams, merged by time: one order for all of them, and each
pattern of their boxes is searched once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from archive.interrupts import Deferred
from hybrid.rows.merged import Merged
from hybrid.rows.times import show_us
from hybrid.watch.in_feed import join_of
from hybrid.watch.query_spec import END_US
from hybrid.watch.stream import Stream
from matching.batch import EventBatch
from matching.feed import Feed, Member, Unread
from matching.hierarchy.searches import Origin, Searches
from matching.spill import Spill
from query.errors import DataError, warn
from query.plan.merge import MergedInput, positions
from query.plan.plan import FactorPlan, Plan, QueryPlan
from query.plan.statement import same_input
from query.schema import Schema

#: Number of held-back events at which a warning is issued.
HELD_BACK_WARNED = 1_000_000


def over_merged(plan: QueryPlan) -> bool:
    """True if a live query is one pattern with boxes over several streams, or over one beside the history of others."""
    (factor, *others) = plan.factors
    return not others and bool(factor.members or factor.beside) and bool(factor.plan.boxes)


def streams_of(merged: Merged) -> tuple[str, ...]:
    """Returns the stream of each merged input, by name in lower case."""
    return tuple(same_input(m.input_sql) for m in merged.members) or (merged.schema.name.lower(),)


def in_fixed_order(factor: FactorPlan) -> Merged:
    """Returns the merged input of a pattern, with its members in an order that does not depend on the text. A pattern
    over one stream has no members."""
    placed = [replace(m, places=m.places or positions(factor.schema, m.schema)) for m in factor.members]
    return Merged(factor.schema, tuple(sorted(placed, key=lambda m: (m.name.lower(), same_input(m.input_sql)))))


def shared_input(factor: FactorPlan) -> Merged:
    """Returns the merged input that a pattern may share with others: equal ones if these have the same streams, in any
    order, and find their columns under the same names."""
    merged = in_fixed_order(factor)
    if not merged.members:
        return replace(merged, schema=held_back(merged.schema))
    fields = merged.schema.fields
    order = [0, *sorted(range(1, len(fields)), key=lambda i: fields[i].name)]  # the first one names the stream
    members = tuple(
        MergedInput(m.name, stream, Schema(m.name, ()), tuple(m.places[i] for i in order))
        for m, stream in zip(merged.members, streams_of(merged), strict=True)
    )
    name = ", ".join(m.name for m in members)
    return Merged(replace(merged.schema, name=name, fields=tuple(fields[i] for i in order)), members)


def held_back(schema: Schema) -> Schema:
    """Returns a stream whose events wait for another one: in order of arrival they would pass through at once."""
    return replace(schema, lateness_us=1)


class MergedFeed:
    """The feed of a merged input, and its streams, by name in lower case, with those whose history alone its queries
    read. Not thread safe.

    The ingest sequences of its events are those of Merged.events."""

    __slots__ = ("_ended", "_read", "_searches", "_spill", "_warned", "beside", "feed", "merged", "streams")

    def __init__(
        self, merged: Merged, beside: tuple[str, ...], streams: Mapping[str, Stream], spill: Spill | None,
        searches: Searches,
    ) -> None:  # fmt: skip
        """beside: see query.plan.plan.FactorPlan. spill: where partial matches go that do not fit in memory. searches:
        those that it shares with other feeds."""
        self.merged = merged
        self.beside = beside
        self._read = streams_of(merged)
        self.streams = {name: streams[name] for name in (*self._read, *beside)}
        self._spill = spill
        self._searches = searches
        self._ended = self._warned = False
        self.feed = self._new_feed()

    def _new_feed(self) -> Feed:
        with Deferred():  # an interrupted import leaves an unusable module
            from hybrid.statement.background_compile import builder  # loads the kernels
        shown = [m.name.lower() for m in self.merged.members] or self._read
        names = dict(zip(shown, self._read, strict=True))
        origin = Origin(self._searches, names, lambda name: self.streams[name].on_time_count)
        return Feed(self.merged.schema, builder(), self._spill, join_of(*self.streams.values()), origin)

    def _begin_anew(self) -> None:
        self.feed.keep_only(())  # what it shares with other feeds is theirs
        self.feed = self._new_feed()

    @property
    def watermark_us(self) -> int | None:
        """Returns the least watermark of the streams: END_US if all have ended, None while one has none."""
        return least_watermark(self.streams)

    def since(self, begun: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the ingest sequences of the first events of each stream as those of merged events."""
        n = len(self._read)
        return tuple(begun.get(name, 0) * n + k for k, name in enumerate(self._read))

    def push(self, stream: str, batch: EventBatch | None) -> None:
        """Takes on-time events of a stream in order of arrival, or None, after its watermark has been raised. Warns,
        once, if a slow stream holds back many events of the others."""
        for events in () if batch is None else merged_events(self.merged, stream, batch):
            self.feed.push(events, None)
        watermark_us = self.watermark_us
        if watermark_us != END_US:
            if watermark_us is not None:
                self.feed.advance(watermark_us)
        elif not self._ended:
            self._ended = True
            self.feed.advance(None)
        if not self._warned and len(self.feed.ordering) > HELD_BACK_WARNED:
            self._warned = True
            warn_of_held_back(len(self.feed.ordering), self.streams)

    def save(self, members: Mapping[str, Member]) -> dict[str, Any] | None:
        """Returns its state with that of some members, given by the names of their queries; None without any of them.
        members: the names of its queries, in the order of the state."""
        names = {id(member): name for name, member in members.items()}
        state, kept = self.feed.snapshot(list(members.values()))
        return {"feed": state, "members": [names[id(member)] for member in kept]} if kept else None

    def restore(self, saved: Mapping[str, Any], plans: Mapping[str, Plan]) -> dict[str, Member | Unread]:
        """Restores a state; all members that it had are gone then. plans: of the queries, by name. Returns the members
        by name; Unread: the query must be replayed."""
        names = saved["members"]
        self._begin_anew()
        try:
            members = self.feed.restore(saved["feed"], [plans[name] for name in names])
        except DataError:  # a stream has got more columns since, for example
            self._begin_anew()
            members = [Unread(None)] * len(names)
        return dict(zip(names, members, strict=True))


def merged_feed_of(
    feeds: list[MergedFeed], factor: FactorPlan, streams: Mapping[str, Stream], spill: Spill | None, searches: Searches
) -> MergedFeed:
    """Returns the feed of a pattern's merged input among those of a database. Adds it if there is none."""
    merged, beside = shared_input(factor), factor.beside
    found = next((feed for feed in feeds if feed.merged == merged and feed.beside == beside), None)
    if found is None:
        found = MergedFeed(merged, beside, streams, spill, searches)
        feeds.append(found)
    return found


def merged_events(merged: Merged, stream: str, batch: EventBatch) -> list[EventBatch]:
    """Returns the events of a stream, in lower case, as merged ones, once for each time that it is merged."""
    mine = [k for k, name in enumerate(streams_of(merged)) if name == stream]
    return [merged.events(k, batch) if merged.members else batch for k in mine]


def least_watermark(streams: Mapping[str, Stream]) -> int | None:
    """Returns the least watermark of some streams: END_US if all have ended, None while one has none."""
    least = END_US
    for stream in streams.values():
        if stream.ended:
            continue
        if stream.watermark_us is None:
            return None
        least = min(least, stream.watermark_us)
    return least


def warn_of_held_back(count: int, streams: Mapping[str, Stream]) -> None:
    """Warns of events that wait for the slowest of their streams."""
    slowest = min(streams.values(), key=lambda s: END_US if s.ended else s.watermark_us or -END_US)
    warn(f"{count:,} events wait for stream {slowest.schema.name}, whose watermark is "
         f"{show_us(slowest.watermark_us)}: db.advance raises it without events")


