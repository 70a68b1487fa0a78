"""One live query, from the moment it was asked: events in, matches found, history joined, alerts out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from archive.reader import HistoryReader
from archive.snapshot import HistorySnapshot
from hybrid.join.driver import Driver
from hybrid.join.requests import Asking
from hybrid.join.spark_ranges import LargeRanges
from hybrid.join.strategies.base import Strategy
from hybrid.rows.answer import count_matches
from hybrid.rows.lookup import lookup_in
from hybrid.rows.result import Lookups
from hybrid.statement.statement import live_matcher
from hybrid.watch.alerts import Alerts
from hybrid.watch.begun import Begun
from hybrid.watch.found_again import with_events
from hybrid.watch.memory import Holder, stats_of
from hybrid.watch.query_spec import Asked
from hybrid.watch.shedding import Shed, Shedding
from hybrid.watch.stream import Stream
from hybrid.watch.waits import endless_of
from matching.batch import EventBatch, Matches
from matching.feed import Member, Unread
from matching.spill import SpillStats
from query.plan.plan import FactorPlan, QueryPlan
from query.schema import Schema

#: Events of a stream, or None, and its watermark after them, or None.
Step: TypeAlias = tuple[str, EventBatch | None, int | None]


class Events(Protocol):
    """How events reach the last pattern of a live query, and what has become of them on the way.

    `hybrid.watch.in_feed.InFeed` has one pattern over one stream, in a feed that it shares with other queries;
    `hybrid.watch.in_chain.InChain` has several streams or patterns, for one query alone."""

    @property
    def streams(self) -> Mapping[str, Stream]:
        """Returns the streams that it reads, by name in lower case."""

    @property
    def begun(self) -> Begun:
        """Returns which of their events are for the query."""

    @property
    def factors(self) -> Sequence[FactorPlan]:
        """Returns the patterns."""

    @property
    def watermark_us(self) -> int | None:
        """Returns how far the input of the last pattern has come: END_US if it has ended, None without a watermark."""

    @property
    def ended(self) -> bool:
        """Returns whether no more matches can come."""

    @property
    def left(self) -> bool:
        """Returns whether that is so because no more events are for the query."""

    @property
    def accepted(self) -> int:
        """Returns how many on-time events there were for it, about."""

    # ---- on the way

    def begin(self, shed: Shed | None) -> None:
        """Sees the events from where it has begun: those to come; with a time, those that are kept too, which are then
        to be pushed and followed by `enter`. shed: how keys may be left out, for a query that hybrid.watch.shedding
        does not refuse."""

    def push(self, stream: str, batch: EventBatch | None, watermark_us: int | None) -> list[Matches]:
        """Takes on-time events of a stream, or None, and its watermark after them (END_US: it has ended, None: none
        yet). Returns the matches decided by now, in order of emission. A feed has taken them for its members."""

    @property
    def failure(self) -> Exception | None:
        """Returns what ended it, after the matches that came before."""

    def columns(self, stream: str) -> Collection[str] | None:
        """Returns the columns that must be read of the past of a stream (None: all)."""

    def enter(self, snapshots: Mapping[str, HistorySnapshot], low_us: Mapping[str, int]) -> Iterator[Step]:
        """Goes on from the past to what is pushed, between two pushes: gives what is left to be pushed to it. low_us:
        by stream, what lies before that has been."""

    def leave(self) -> None:
        """Takes no more events."""

    def declare(self, schema: Schema) -> None:
        """Goes on with another lateness of a stream; nothing else may differ."""

    # ---- once more

    def replay(self) -> bool:
        """Goes on as if it had run from where it has begun until now; what it found by now has come out. Returns False
        if not all events since then are known to be kept: it has seen those that are. Raises what the query fails
        of."""

    def succeed(self, old: Events, fresh: bool) -> bool:
        """Begins as if it had run since another one over the same streams began; what it found by now has come out.
        Returns False if it has begun afresh, which it may if `fresh` and not all events since then are kept. Raises
        DataError, and nothing has changed, if it may not; and what the query fails of."""

    @property
    def names_sequences(self) -> bool:
        """Returns whether its matches name events by the ingest sequences of its stream."""

    # ---- overload

    @property
    def shedding(self) -> Shedding | None:
        """Returns how keys are left out, if they may be."""

    def allow(self, shed: Shed | None) -> None:
        """Lets keys be left out in another way from now on; None: not at all, all are taken in again. Raises DataError,
        and nothing has changed, where that needs events that are not kept."""

    def look(self, now_s: float, wall_us: int, name: str) -> list[str]:
        """Leaves out keys, or takes them in again, depending on the load. Returns what is to be said of that.
        now_s, wall_us: see Database.tick; name: of the query."""

    # ---- memory and checkpoints

    @property
    def member(self) -> Member | None:
        """Returns its place in the feed of its stream, if it has one: the state is then in that of the feed."""

    @property
    def holders(self) -> Sequence[Holder]:
        """Returns what holds partial matches of this query alone."""

    @property
    def spill(self) -> Sequence[SpillStats]:
        """Returns for each pattern how much of it is in memory."""

    def take_trouble(self) -> list[str]:
        """Returns what has gone wrong with `holders` since this was last asked."""

    def save(self) -> dict[str, Any]:
        """Returns what it has become, for hybrid.watch.saved."""

    def restore(self, saved: Mapping[str, Any], member: Member | Unread | None) -> bool:
        """Goes on from what `save` gave, and from the place in a feed if it had one. Returns False if that is of a
        release to which it meant something else: it must be replayed."""

    # ---- for the user

    def reader(self) -> HistoryReader:
        """Returns what finds the events of matches again."""

    def stats(self) -> dict[str, Any]:
        """Returns how its streams stand, for Alerts.stats."""

    @property
    def stuck(self) -> int:
        """Returns the number of matches from which AFTER MATCH SKIP TO would not have moved on."""


class LiveQuery:
    """One live query. plan: all of it; factor: its last pattern; reads: the streams whose changes may decide something,
    those of its histories too, by name in lower case; driver: what joins history, if it does; asked: how it was asked,
    if it has a name."""

    __slots__ = ("alerts", "asked", "asking", "driver", "events", "factor", "histories", "plan", "reads")

    def __init__(
        self, plan: QueryPlan, events: Events, histories: Mapping[str, Stream], strategy: Strategy,
        spark: LargeRanges | None = None,
    ) -> None:  # fmt: skip
        """histories: the streams that it joins. strategy, spark: see Driver."""
        self.plan = plan
        self.factor = factor = plan.factors[-1]
        self.events = events
        self.histories = dict(histories)
        self.reads = frozenset((*events.streams, *histories))
        self.driver = None
        if factor.histories:
            self.driver = Driver(factor, strategy, live_matcher, plan.alert is not None, spark=spark)
        self.alerts: Alerts
        self.asked: Asked | None = None
        self.asking: Asking | None = None

    @property
    def name(self) -> str:
        """Returns what to call it in a sentence."""
        return "a live query" if self.asked is None else f"query {self.asked.name}"

    def push(self, stream: str, batch: EventBatch | None, watermark_us: int | None) -> None:
        """Takes events as `Events.push` does, and hands on what they decide. Raises what the query failed of, after
        what came before."""
        found = self.events.push(stream, batch, watermark_us)
        if found:
            self.take(found)
        failure = self.events.failure
        if failure is not None:
            raise failure

    def take(self, found: list[Matches]) -> None:
        """Hands on matches: to the driver, or as alerts."""
        if self.driver is None:
            self.alerts.add(found)
        else:
            self.driver.take(found)
            self.alerts.count(count_matches(found))

    def settle(self) -> None:
        """Answers matches whose history is complete by now; ends the alerts when nothing more can come."""
        events = self.events
        if self.asking is not None:
            reached_us = events.watermark_us
            for answer in self.asking.settle(self.histories, reached_us, events.ended, events.accepted):
                self.alerts.add_answer(answer)
        if events.ended and (self.driver is None or not self.driver.waiting_count):
            self.alerts.finish("replaced" if events.left else "ended")

    def forget_from(self, seq: int) -> None:
        """Forgets the matches that wait for history and have an event from that ingest sequence of its stream on: they
        are found again."""
        if self.driver is not None and self.events.names_sequences:
            self.driver.forget_from(seq)

    def rows_from(self) -> int | None:
        """Returns the time below which no row's last event can be that still comes, for ALERT ONCE; None: any may."""
        lag_us = None if self.plan.alert is None else self.plan.alert.lag_us
        watermark_us = self.events.watermark_us
        if lag_us is None or watermark_us is None:
            return None
        waiting_us = None if self.driver is None else self.driver.waiting_from_us()
        return watermark_us - lag_us if waiting_us is None else min(watermark_us - lag_us, waiting_us)

    def whole(self, found: list[Matches]) -> Iterable[Matches]:
        """Returns matches with their events, in parts if they are found again."""
        if all(m.ends is None for m in found):
            return found
        (stream,) = self.events.streams
        begun = self.events.begun
        return with_events(self.factor.plan, found, self.events.reader(), begun.seq(stream), begun.from_us)

    def lookups(self) -> Lookups:
        """Returns where the events of its matches are found again."""
        sides = tuple(lookup_in(self.histories[h.schema.name.lower()].reader()) for h in self.factor.histories)
        return lookup_in(self.events.reader()), sides

    def stats(self) -> dict[str, Any]:
        """Returns its part of Alerts.stats."""
        events, found = self.events, self.events.stats()
        stuck = events.stuck + (0 if self.driver is None else self.driver.stuck_count)
        if stuck:
            found["skips_stuck"] = stuck
        if events.shedding is not None and events.shedding.shedder is not None:
            found |= events.shedding.stats()
        found |= stats_of(events.spill) | endless_of(events.factors)
        return found if self.driver is None else found | self.driver.stats()


def guarded(query: LiveQuery, act: Callable[[LiveQuery], None]) -> None:
    """Acts, unless the query has failed. If it fails by that, it is marked and left out from then on; the stream and
    the others go on."""
    if query.alerts.failed:
        return
    try:
        act(query)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the query's: its alerts raise it)
        query.alerts.fail(error)
