"""The events of a live query whose pattern has boxes, over several streams, or over one beside the history of others: a
member of the feed that such queries share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from archive.reader import WHOLE, HistoryReader, RangeRequest
from archive.snapshot import HistorySnapshot
from hybrid.rows.merged import Merged, MergedReader
from hybrid.rows.times import show_us
from hybrid.statement.statement import live_matcher
from hybrid.watch.as_member import AsMember
from hybrid.watch.begun import EVER, Begun, cannot_go_on, events_had
from hybrid.watch.in_feed import join_of
from hybrid.watch.live_query import Events, Step
from hybrid.watch.merged_feed import (
    MergedFeed,
    in_fixed_order,
    least_watermark,
    merged_events,
    merged_feed_of,
    shared_input,
    streams_of,
)
from hybrid.watch.query_spec import END_US
from hybrid.watch.shedding import Shed
from hybrid.watch.stream import Stream
from matching.batch import EventBatch, Matcher, Matches
from matching.drive import parts
from matching.feed import Feed, Member, Unread
from matching.hierarchy.searches import Searches
from matching.needed import needed_from
from matching.ordering import Ordering
from matching.spill import Spill
from query.plan.plan import FactorPlan
from query.schema import Schema


class InMerged(AsMember):
    """See hybrid.watch.live_query.Events. member: not in the feed while the query reads the archive."""

    __slots__ = ("_factor", "_feeds", "_filling", "_searches", "_spill", "begun", "feed", "left", "streams")

    #: hybrid.watch.shedding refuses it.
    shedding = None
    names_sequences = False

    def __init__(
        self, factor: FactorPlan, streams: Mapping[str, Stream], feeds: list[MergedFeed], spill: Spill | None,
        searches: Searches, from_us: int | None = None,
    ) -> None:  # fmt: skip
        """feeds, searches: those of the database. spill: where partial matches go that do not fit in memory. from_us:
        the query also reads the kept events from then on."""
        super().__init__()
        self._factor = factor
        read = streams_of(in_fixed_order(factor))
        self.streams = {name: streams[name] for name in dict.fromkeys((*read, *factor.beside))}
        self.begun = Begun.now(self.streams, from_us)
        self.feed: MergedFeed | None = None
        self.left = False
        self._feeds = feeds
        self._spill = spill
        self._searches = searches
        self._filling: _Alone | None = None  # while it reads the archive

    @property
    def _feed_now(self) -> Feed | None:
        return None if self.feed is None else self.feed.feed

    @property
    def factors(self) -> Sequence[FactorPlan]:
        return (self._factor,)

    @property
    def watermark_us(self) -> int | None:
        return least_watermark(self.streams)

    @property
    def ended(self) -> bool:
        return self.left or self.watermark_us == END_US

    @property
    def accepted(self) -> int:
        return sum(s.on_time_count for s in self.streams.values())

    # ---- live

    def begin(self, shed: Shed | None) -> None:
        if self.begun.from_us is not None:
            self._filling = self._alone()
            self.member = self._filling.member
            return
        feed = self._shared_feed()
        self.member = feed.feed.add(self._factor.plan, feed.since(self.begun.since))

    def _shared_feed(self) -> MergedFeed:
        """Returns the feed that it is a member of, or becomes one of."""
        if self.feed is None:
            self.feed = merged_feed_of(self._feeds, self._factor, self.streams, self._spill, self._searches)
        return self.feed

    def _alone(self) -> _Alone:
        matcher = live_matcher(self._factor.plan, self._spill, join=join_of(*self.streams.values()))
        return _Alone(shared_input(self._factor), tuple(self.streams), matcher, self.begun.from_us)

    def push(self, stream: str, batch: EventBatch | None, watermark_us: int | None) -> list[Matches]:
        if self._filling is not None:
            self._filling.push(stream, batch, watermark_us)
        return [] if self.member is None else self.member.take_found()

    @property
    def shares(self) -> bool:
        """True if queries over other streams read the search of one of its patterns."""
        return self.feed is not None and self.member is not None and self.feed.feed.shares

    def columns(self, stream: str) -> Collection[str] | None:
        return None  # later pushes carry all columns

    def enter(self, snapshots: Mapping[str, HistorySnapshot], low_us: Mapping[str, int]) -> Iterator[Step]:
        for name, snapshot in snapshots.items():
            yield name, snapshot.read(RangeRequest(low_us[name])), None
        filling, self._filling = self._filling, None
        assert filling is not None
        self.member = self._entered(filling)
        for name in self.streams:
            yield name, None, None

    def _entered(self, alone: _Alone) -> Member:
        """Returns the member of a matcher that has had all events of the query, but for those that its order holds
        back, in the shared feed."""
        feed, from_us, watermark_us = self._shared_feed(), self.begun.from_us, self.watermark_us
        if watermark_us is not None:
            alone.give(alone.ordering.advance(watermark_us))
        ahead = alone.ordering.known(alone.ordering.held())
        begins_us, since_seq = (EVER, feed.since(self.begun.since)) if from_us is None else (from_us, 0)
        feed.feed.enter(alone.member, ahead, watermark_us, begins_us, ahead.sources, since_seq)
        return alone.member

    def leave(self) -> None:
        feed, member = self.feed, self.member
        self.left, self._filling = True, None
        if member is not None:
            self._note_end(member)
            self.member = None
        if feed is not None:
            self.feed = None
            if member is not None:
                feed.feed.remove(member)
            if not len(feed.feed):
                self._feeds[:] = [one for one in self._feeds if one is not feed]

    def declare(self, schema: Schema) -> None:
        """Nothing to do: merged events wait for the watermarks of their streams."""

    # ---- replay

    def replay(self) -> bool:
        had = self._had(self.begun)
        self.left = False
        if self.member is not None:
            self._shared_feed().feed.remove(self.member)
        self.member = self._replayed({name: events for name, (events, _) in had.items()})
        return all(whole for _, whole in had.values())

    def _had(self, begun: Begun) -> dict[str, tuple[EventBatch, bool]]:
        """Returns the kept events of each stream that a query has seen and that matches to come may need, and True if
        they are known to be all."""
        watermark_us = self.watermark_us
        needed_us = needed_from(self._factor.plan, None if watermark_us == END_US else watermark_us)
        return {name: events_had(stream, begun, needed_us) for name, stream in self.streams.items()}

    def _replayed(self, had: Mapping[str, EventBatch]) -> Member:
        """Returns a member that has seen these events. Their matches do not come out again. Raises the failure of the
        query."""
        alone = self._alone()
        for name, events in had.items():
            alone.push(name, events, None)
        member = self._entered(alone)
        if member.failure is not None:
            self._shared_feed().feed.remove(member)
            raise member.failure
        member.found = []
        return member

    def succeed(self, old: Events, fresh: bool) -> bool:
        plan, feed = self._factor.plan, self._shared_feed()
        was = old.member if isinstance(old, InMerged) and old.feed is feed else None
        self.member = None if was is None else feed.feed.succeed(was, plan, self._between)
        if self.member is None:
            had = self._had(old.begun)
            if not all(whole for _, whole in had.values()):
                if not fresh:
                    raise cannot_go_on()
                self.member = None if was is None else feed.feed.add_anew(was, plan)
                if self.member is None:
                    self.begin(None)
                return False
            self.begun = old.begun
            self.member = self._replayed({name: events for name, (events, _) in had.items()})
        self.begun = old.begun
        return True

    def _between(self, low_us: int, high_us: int) -> EventBatch:
        return self.reader().read(RangeRequest(low_us, high_us, closed=True))

    # ---- overload

    def allow(self, shed: Shed | None) -> None:
        assert shed is None

    def look(self, now_s: float, wall_us: int, name: str) -> list[str]:
        return []

    # ---- memory and checkpoints

    def save(self) -> dict[str, Any]:
        return {
            "since": dict(self.begun.since), "from_us": self.begun.from_us, "stuck_before": self._stuck_before,
        }  # fmt: skip

    def restore(self, saved: Mapping[str, Any], member: Member | Unread | None) -> bool:
        self.begun = Begun(dict(saved.get("since", {})), saved["from_us"])
        self._stuck_before = saved.get("stuck_before", 0)
        if isinstance(member, Member):
            self.member = member
        # earlier releases kept such a query in a chain of its own
        return isinstance(member, Member) or (member is None and "last" not in saved)

    # ---- for the user

    def reader(self) -> HistoryReader:
        merged = in_fixed_order(self._factor)
        readers = [(self.streams[name].reader(), WHOLE) for name in streams_of(merged)]
        return MergedReader(merged, readers) if merged.members else readers[0][0]

    def stats(self) -> dict[str, Any]:
        """Returns the statistics. watermark: the least of `watermarks`."""
        held, watermark_us = 0, self.watermark_us
        if self.feed is not None and self.member is not None:
            held = self.feed.feed.held_count(self.member, self.feed.since(self.begun.since))
        return {
            "late": sum(s.live.late_count for s in self.streams.values()),
            "held_back": held,
            "watermark": None if watermark_us == END_US else show_us(watermark_us),
            "watermarks": {s.schema.name: show_us(s.watermark_us) for s in self.streams.values()},
            "held_by": {s.schema.name: s.held_by() for s in self.streams.values()},
        }


class _Alone:
    """A member of no feed, with an order of its own. from_us: earlier events are not for it."""

    def __init__(self, merged: Merged, streams: Sequence[str], matcher: Matcher, from_us: int | None) -> None:
        self.member = Member(matcher)
        self.ordering = Ordering(merged.schema)
        self._merged = merged
        self._from_us = from_us
        self._reached: dict[str, int | None] = dict.fromkeys(streams)

    def push(self, stream: str, batch: EventBatch | None, watermark_us: int | None) -> None:
        """Takes on-time events of a stream in order of arrival, or None, and a time that all later ones reach."""
        if batch is not None and self._from_us is not None and not bool((batch.ts_us >= self._from_us).all()):
            batch = batch.take(np.flatnonzero(batch.ts_us >= self._from_us))
        for events in () if batch is None else merged_events(self._merged, stream, batch):
            self.give(self.ordering.push(events, None))
        if watermark_us is not None:
            self._reached[stream] = watermark_us
        reached = [t for t in self._reached.values() if t is not None]
        if len(reached) == len(self._reached):
            self.give(self.ordering.advance(min(reached)))
            self.member.guarded(self.member.alone.advance, min(reached))

    def give(self, batch: EventBatch) -> None:
        """Passes on the next events of the total order."""
        for part in parts(batch):
            self.member.push_alone(part)
