"""The events of a live query with one pattern over one stream: a member of the feed that such queries share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from archive.interrupts import Deferred
from archive.reader import HistoryReader, RangeRequest
from archive.snapshot import HistorySnapshot
from hybrid.join.joined_matcher import JoinedMatcher
from hybrid.join.pattern_history import views
from hybrid.rows.times import show_us
from hybrid.statement.statement import live_matcher, may_be_wide
from hybrid.watch.as_member import AsMember
from hybrid.watch.backfill import Filling
from hybrid.watch.begun import EVER, Begun, cannot_go_on, events_had
from hybrid.watch.live_query import Events, Step
from hybrid.watch.query_spec import END_US
from hybrid.watch.saved import load, save
from hybrid.watch.shedding import REPLAY_EVENTS_MAX, Shed, Shedding, shedding_of
from hybrid.watch.stream import Stream
from matching.batch import EventBatch, Matcher, Matches
from matching.feed import Feed, Member, Unread, shares_trends
from matching.hierarchy.searches import Origin, Searches
from matching.needed import needed_from
from matching.purpose import Purpose
from matching.shedding import Shedder
from matching.spill import Spill
from matching.workload.sharing_mode import SharingMode
from query.errors import DataError, Overflows, QueryError, warn
from query.plan.joined_rows import joins_of
from query.plan.plan import FactorPlan, Plan
from query.schema import Schema

if TYPE_CHECKING:
    from matching.hierarchy.modules import Join


def new_feed(stream: Stream, spill: Spill | None, searches: Searches) -> Feed:
    """Returns a feed for a stream. spill: where partial matches go that do not fit in memory. searches: those that it
    shares with other feeds."""
    with Deferred():  # an interrupted import leaves an unusable module
        from hybrid.statement.background_compile import builder  # loads the kernels
    name = stream.schema.name.lower()
    origin = Origin(searches, {name: name}, lambda _: stream.on_time_count)
    return Feed(stream.schema, builder(), spill, join_of(stream), origin)


def join_of(*streams: Stream) -> Join:
    """Returns the join of boxes with the histories of streams."""
    kept = {stream.schema.name.lower(): stream for stream in streams}

    def joined(plan: Plan, matcher: Matcher) -> JoinedMatcher:
        return JoinedMatcher(plan, matcher, views(joins_of(plan), kept), live_matcher, save=save, load=load)

    return joined


def feed_of(stream: Stream, spill: Spill | None, searches: Searches) -> Feed:
    """Returns the feed of a stream. Creates it if there is none."""
    if stream.feed is None:
        stream.feed = new_feed(stream, spill, searches)
    return stream.feed


def _so_far(feed: Feed, member: Member) -> Member:
    """Returns the member without its pending matches. Removes the member and raises if it has failed."""
    if member.failure is not None:
        feed.remove(member)
        raise member.failure
    member.found = []
    return member


def _kept_long_enough(plan: Plan, schema: Schema) -> bool:
    """True if the retention of a stream covers WITHIN, so that partial matches can be rebuilt."""
    within_us = needed_from(plan, 0)
    return schema.retention_us is None or (within_us is not None and -within_us <= schema.retention_us)


class InFeed(AsMember):
    """See hybrid.watch.live_query.Events. member: not in the feed during backfill, see
    hybrid.watch.backfill.Filling."""

    __slots__ = (
        "_accepted_before", "_filling", "_purpose", "_searches", "_sharing", "_spill", "begun", "factor", "left",
        "shedding", "stream", "streams",
    )  # fmt: skip

    def __init__(
        self, factor: FactorPlan, stream: Stream, spill: Spill | None, searches: Searches, from_us: int | None = None,
        purpose: Purpose = Purpose.LIVE, sharing: SharingMode | None = None,
    ) -> None:  # fmt: skip
        """spill, searches: see `new_feed`. from_us: the query also reads the kept events from then on. purpose: of
        its matches. sharing: see matching.feed.Feed.add."""
        super().__init__()
        self.factor = factor
        self.stream = stream
        self.streams: Mapping[str, Stream] = {stream.schema.name.lower(): stream}
        self.begun = Begun.now(self.streams, from_us)
        self.shedding: Shedding | None = None
        self.left = False
        self._spill = spill
        self._searches = searches
        self._sharing = sharing
        self._purpose = purpose if _kept_long_enough(factor.plan, stream.schema) else Purpose.LIVE
        self._filling: Filling | None = None
        self._accepted_before = stream.on_time_count  # count of the stream when the query began

    @property
    def _feed_now(self) -> Feed | None:
        return self.stream.feed

    @property
    def factors(self) -> Sequence[FactorPlan]:
        return (self.factor,)

    @property
    def watermark_us(self) -> int | None:
        return END_US if self.stream.ended else self.stream.watermark_us

    @property
    def ended(self) -> bool:
        return self.left or self.stream.ended

    @property
    def accepted(self) -> int:
        return self.stream.on_time_count - self._accepted_before

    @property
    def _since_seq(self) -> int:
        return self.begun.seq(self.stream.schema.name.lower())

    # ---- live

    def begin(self, shed: Shed | None) -> None:
        self.shedding = None if shed is None else Shedding(shed)
        plan, from_us, shedder = self.factor.plan, self.begun.from_us, self._new_shedder()
        if from_us is not None:
            self._filling = Filling(
                plan, from_us, shedder, purpose=self._purpose, sharing=self._sharing, join=join_of(self.stream)
            )
            self.member = self._filling.member
        else:
            self._take_place(self._feed().add(plan, self._since_seq, shedder, self._purpose, self._sharing))

    def _feed(self) -> Feed:
        return feed_of(self.stream, self._spill, self._searches)

    def _take_place(self, member: Member) -> None:
        self.member = member
        if self.shedding is not None:
            self.shedding.shedder = member.shedder
            self.shedding.looked_count = self.stream.live.accepted_count

    def push(self, stream: str, batch: EventBatch | None, watermark_us: int | None) -> list[Matches]:
        if self._filling is not None and batch is not None:
            self._filling.take(batch)
        if self.member is None:
            return []
        found = self.member.take_found()
        if isinstance(self.member.failure, Overflows) and self._filling is None:
            found += self._widened(self.member, self.member.failure)
        return found

    def _widened(self, old: Member, overflow: Overflows) -> list[Matches]:
        """Lets the reference go on where numbers are beyond 64 bits, if the events are kept. Returns the matches since
        the failure."""
        plan, feed = self.factor.plan, self.stream.feed
        if old.kernel is None or old.shedder is not None or feed is None or not may_be_wide(plan):
            return []
        events, whole = events_had(self.stream, self.begun)
        if not whole:
            return []
        try:
            member = feed.replay(
                plan, self._since_seq, events, None, self.begun.from_us, Purpose.LIVE, wide=True, instead=old
            )
        except (DataError, QueryError) as error:
            old.failure = error
            return []
        warn(f"{overflow.message.partition(' at ')[0]} in 64 bits: the query goes on by the reference matcher: exact, "
             "but slow and with all rows kept in memory")  # fmt: skip
        feed.remove(old)
        self.member = member
        return member.take_found()

    def columns(self, stream: str) -> Collection[str] | None:
        return self.factor.plan.columns

    def enter(self, snapshots: Mapping[str, HistorySnapshot], low_us: Mapping[str, int]) -> Iterator[Step]:
        assert self._filling is not None
        ((name, snapshot),) = snapshots.items()
        filling = self._filling
        filling.reached_us = low_us[name]
        self._take_place(filling.enter(self._feed(), snapshot, self.stream.live))
        self._filling, self._accepted_before = None, self.stream.on_time_count - filling.count
        yield name, None, None

    def leave(self) -> None:
        feed, member = self.stream.feed, self.member
        if feed is None or member is None:
            return
        self._note_end(member)
        self.member, self.left = None, True
        feed.remove(member)
        if not len(feed):
            self.stream.feed = None

    def declare(self, schema: Schema) -> None:
        """Nothing to do: the feed is declared with its stream."""

    # ---- replay

    def replay(self) -> bool:
        plan, feed = self.factor.plan, self.stream.feed
        assert feed is not None
        if self._since_seq >= self.stream.live.next_seq:
            self._accepted_before = self.stream.on_time_count
        shedder = None
        if self.shedding is not None:
            old = self.shedding.shedder or Shedder(plan.partition_by)
            shedder = self.shedding.shedder = old.anew(plan.partition_by)
            self._note_all_keys()
        events, whole = events_had(self.stream, self.begun, needed_from(plan, feed.advanced_us))
        since_seq, from_us = self._since_seq, self.begun.from_us
        self.left = False
        try:
            self.member = feed.replay(plan, since_seq, events, shedder, from_us, self._purpose, self._sharing)
        except Overflows:
            if shedder is not None or not may_be_wide(plan) or plan.trends is not None or plan.boxes:
                raise
            self.member = feed.replay(plan, since_seq, events, None, from_us, Purpose.LIVE, wide=True)
        return whole

    def succeed(self, old: Events, fresh: bool) -> bool:
        plan, feed = self.factor.plan, self._feed()
        self.shedding = old.shedding
        if isinstance(old, InFeed) and old.member is not None:
            accepted_before, reader = old._accepted_before, self.stream.reader()

            def read(low_us: int, high_us: int) -> EventBatch:
                return reader.read(RangeRequest(low_us, high_us, closed=True))

            if old._sharing is self._sharing or old.member.shedder is not None or not shares_trends(plan):
                member = feed.succeed(old.member, plan, read, self._purpose)
            else:
                member = feed.in_mode(old.member, plan, self._purpose, self._sharing)
            if member is None:
                old_shedder = old.member.shedder
                shedder = None if old_shedder is None else old_shedder.anew(plan.partition_by)
                member = old._replayed(plan, shedder, self._sharing, purpose=self._purpose)
        else:
            events, whole = events_had(self.stream, old.begun)
            accepted_before = self.stream.on_time_count - len(events)
            member = self._in_place_of_chain(old.begun, events) if whole else None
        if member is None and not fresh:
            raise cannot_go_on()
        if member is not None:
            self.begun, self._accepted_before = old.begun, accepted_before
        anew = feed.add_anew(old.member, plan) if member is None and isinstance(old, InFeed) and old.member else None
        self._take_place(member or anew or feed.add(
            plan, self._since_seq, self._new_shedder(), self._purpose, self._sharing
        ))
        assert self.member is not None
        if self.member.shedder is not None and self.member.shedder.keeps_all:
            self._note_all_keys()
        return member is not None

    def _in_place_of_chain(self, begun: Begun, events: EventBatch) -> Member:
        """Returns a member that has seen these events, outside of the stream's feed."""
        live, name = self.stream.live, self.stream.schema.name.lower()
        passed = 0 if live.watermark_us is None else int(np.searchsorted(events.ts_us, live.watermark_us))
        from_us = EVER if begun.from_us is None else begun.from_us
        filling = Filling(
            self.factor.plan, from_us, purpose=self._purpose, sharing=self._sharing, join=join_of(self.stream)
        )
        filling.take(events.slice(0, passed))
        feed, ahead = self._feed(), events.slice(passed, len(events))
        return _so_far(feed, filling.join(feed, ahead, live, begun.seq(name)))

    def _note_all_keys(self) -> None:
        if self.shedding is not None and self.shedding.pressure.share < 1:
            self.shedding.decided(self.stream.live.newest_us, 1.0, "a new version")

    def _new_shedder(self) -> Shedder | None:
        return None if self.shedding is None else Shedder(self.factor.plan.partition_by)

    def _replayed(
        self, plan: Plan, shedder: Shedder | None, sharing: SharingMode | None, events_max: int | None = None,
        purpose: Purpose = Purpose.LIVE,
    ) -> Member | None:  # fmt: skip
        """Returns a member in the state of the plan having run from the query's beginning, replayed from the kept
        events; None if they are incomplete, or more than `events_max`. Raises the failure of the query, and DataError
        for missing files."""
        stream, feed, from_us = self.stream, self.stream.feed, self.begun.from_us
        assert feed is not None
        reader = stream.kept.snapshot()
        low_us = needed_from(plan, feed.advanced_us)
        dropped_us = stream.dropped_us
        if from_us is not None:
            filling = Filling(plan, from_us, shedder, low_us, purpose, sharing, join_of(stream))
            few = events_max is None or reader.stretch_rows(filling.reached_us)[0] <= events_max
            if not few or (dropped_us is not None and dropped_us > filling.reached_us):
                return None
            return _so_far(feed, filling.enter(feed, reader, stream.live))
        whole = low_us is None or (dropped_us is not None and dropped_us > low_us)
        if events_max is not None and reader.stretch_rows(None if whole else low_us)[0] > events_max:
            return None
        events = reader.read(RangeRequest(None if whole else low_us))
        mine = np.flatnonzero(events.seq >= self._since_seq)
        if whole and len(mine) != self.accepted:
            return None
        return feed.replay(
            plan, self._since_seq, events.take(mine), shedder, purpose=purpose, sharing=sharing
        )

    @property
    def names_sequences(self) -> bool:
        return True

    # ---- overload

    def allow(self, shed: Shed | None) -> None:
        assert self.member is not None
        was, out = self.shedding, self.shedding is not None and self.shedding.pressure.share < 1
        self.shedding = None if shed is None else Shedding(shed)
        if was is not None and self.shedding is not None:
            self.shedding.pressure.share, self.shedding.decisions = was.pressure.share, was.decisions
            self.shedding.shedder = was.shedder
        elif not out and shed is None:
            self.member.shedder = None
        else:
            try:
                self._take_all_keys()
            except DataError:
                self.shedding = was
                raise

    def look(self, now_s: float, wall_us: int, name: str) -> list[str]:
        shedding, live, member = self.shedding, self.stream.live, self.member
        if shedding is None or member is None:
            return []
        came = live.accepted_count != shedding.looked_count and live.newest_us is not None
        shedding.looked_count = live.accepted_count
        lag_us = wall_us - live.newest_us if came and live.newest_us is not None else None
        share = shedding.pressure.look(now_s, lag_us)
        if share == shedding.pressure.share:
            return []
        if share == 1:
            try:
                self._take_all_keys()
            except DataError as error:
                return [f"{name} cannot include all keys again: {error}"]
        else:
            assert member.shedder is not None
            member.shedder.keep(share)
        late = "overload has ended" if lag_us is None or share == 1 else f"{lag_us / 1e6:.1f} s late"
        shedding.decided(live.newest_us, share, late)
        return [f"{name} keeps {share:.3g} of its keys: {late}"]

    def _take_all_keys(self) -> None:
        """Continues as if no key had been left out, replaying the kept events. Raises DataError, without any change, if
        they are incomplete or too many."""
        old = self.member
        assert old is not None
        shedder = (old.shedder or self._new_shedder()) if self.shedding is not None else None
        member = self._replayed(self.factor.plan, shedder, self._sharing, REPLAY_EVENTS_MAX)
        if member is None:
            raise DataError(
                "events since the query began are no longer kept, or are too many", "close it, and watch it again"
            )
        member.found = [*old.take_found(), *member.found]
        member.failure = old.failure
        self._feed().remove(old)
        self.member = member
        if self.shedding is not None and shedder is not None:
            self.shedding.shedder = shedder
            shedder.keep(1.0)

    # ---- memory and checkpoints

    def save(self) -> dict[str, Any]:
        stuck_before, shedding = self._stuck_before, self.shedding
        return {
            "since_seq": self._since_seq, "accepted_before": self._accepted_before, "stuck_before": stuck_before,
            "from_us": self.begun.from_us, "shedding": None if shedding is None else shedding.save(),
        }  # fmt: skip

    def restore(self, saved: Mapping[str, Any], member: Member | Unread | None) -> bool:
        since_seq, from_us = saved["since_seq"], saved.get("from_us")
        self.begun = Begun({} if since_seq == EVER else dict.fromkeys(self.streams, since_seq), from_us)
        self._accepted_before, self._stuck_before = saved["accepted_before"], saved["stuck_before"]
        self.shedding = shedding_of(saved.get("shedding"))
        if member is None:
            return True
        if self.shedding is not None:
            self.shedding.shedder = member.shedder
        if isinstance(member, Member):
            self.member = member
        return isinstance(member, Member)

    # ---- for the user

    def reader(self) -> HistoryReader:
        return self.stream.reader()

    def stats(self) -> dict[str, Any]:
        stream = self.stream
        held = 0 if stream.feed is None or self.member is None else stream.feed.held_count(self.member, self._since_seq)
        events, late = stream.lately.counts
        return {
            "late": stream.live.late_count,
            "late_share": late / events if events else 0.0,
            "held_back": held,
            "watermark": show_us(stream.live.watermark_us),
            "held_by": stream.held_by(),
        }
