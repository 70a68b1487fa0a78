"""One live query from its start on: events in, matches found, history joined, alerts out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from typing import Any, Protocol, TypeAlias

from archive.reader import HistoryReader
from archive.snapshot import HistorySnapshot
from hybrid.join.driver import Driver
from hybrid.join.pattern_history import views
from hybrid.join.requests import Asking
from hybrid.join.spark_ranges import LargeRanges
from hybrid.join.strategies.base import Strategy
from hybrid.rows.answer import count_matches
from hybrid.rows.faults import placed_live
from hybrid.rows.lookup import lookup_in
from hybrid.rows.result import Lookups
from hybrid.statement.statement import live_matcher
from hybrid.watch.alerts import Alerts
from hybrid.watch.begun import Begun
from hybrid.watch.found_again import with_events
from hybrid.watch.held_rows import HeldRows
from hybrid.watch.memory import Holder, stats_of
from hybrid.watch.query_spec import SHARING, Asked
from hybrid.watch.shedding import Shed, Shedding
from hybrid.watch.stream import Stream
from hybrid.watch.waits import endless_of
from matching.batch import EventBatch, Matches
from matching.feed import Member, Unread
from matching.spill import SpillStats
from query.errors import QueryError
from query.language import ast
from query.plan.plan import FactorPlan, QueryPlan
from query.schema import Schema

#: Events of a stream, or None; and its watermark after them, or None.
Step: TypeAlias = tuple[str, EventBatch | None, int | None]


class Events(Protocol):
    """The path of events to the last pattern of a live query, and its state.

    `hybrid.watch.in_feed.InFeed` has one pattern over one stream, `hybrid.watch.in_merged.InMerged` one with boxes over
    several streams, each in a feed that it shares with other queries; `hybrid.watch.in_chain.InChain` has several
    streams or patterns, for one query alone."""

    @property
    def streams(self) -> Mapping[str, Stream]:
        """Returns the streams that it reads, by name in lower case."""

    @property
    def begun(self) -> Begun:
        """Returns the part of their events that the query reads."""

    @property
    def factors(self) -> Sequence[FactorPlan]:
        """Returns the patterns."""

    @property
    def watermark_us(self) -> int | None:
        """Returns the watermark of the last pattern's input: END_US if it has ended, None without one."""

    @property
    def ended(self) -> bool:
        """True if no more matches can come."""

    @property
    def left(self) -> bool:
        """True if no more matches can come because the query reads no more events."""

    @property
    def accepted(self) -> int:
        """Returns the approximate number of on-time events that it has read."""

    # ---- on the way

    def begin(self, shed: Shed | None) -> None:
        """Begins to read: later events; with a time, also the kept ones since then, which are to be pushed before
        `enter`. shed: the load shedding of a query that hybrid.watch.shedding does not refuse."""

    def push(self, stream: str, batch: EventBatch | None, watermark_us: int | None) -> list[Matches]:
        """Takes on-time events of a stream, or None, and its watermark after them (END_US: it has ended, None: none
        yet). Returns the matches decided by now, in order of emission. A feed has taken them for its members."""

    @property
    def failure(self) -> Exception | None:
        """Returns the error that ended it, after its last matches."""

    @property
    def failed_us(self) -> int | None:
        """Returns the time of the event at which it has failed: all matches decided by then have come. None if that is
        not known."""

    def columns(self, stream: str) -> Collection[str] | None:
        """Returns the columns that it reads of kept events of a stream (None: all)."""

    def enter(self, snapshots: Mapping[str, HistorySnapshot], low_us: Mapping[str, int]) -> Iterator[Step]:
        """Continues with pushed events after kept ones, between two pushes. Yields the kept events that are still to
        be pushed to it. low_us: by stream, the time before which all have been pushed."""

    def leave(self) -> None:
        """Stops reading events."""

    def declare(self, schema: Schema) -> None:
        """Continues with another lateness of a stream; nothing else may differ."""

    # ---- once more

    def replay(self) -> bool:
        """Replays the kept events since it began; their matches do not come out again. Returns False if some events
        since then may be lost: it has then read the others. Raises the error of the query."""

    def succeed(self, old: Events, fresh: bool) -> bool:
        """Begins with a replay of the kept events since another query over the same streams began; their matches do not
        come out again. fresh: begins without a replay if some of these events are lost, and returns False; otherwise
        raises DataError, without any change. Raises the error of the query."""

    @property
    def names_sequences(self) -> bool:
        """True if its matches name events by the ingest sequences of its stream."""

    # ---- overload

    @property
    def shedding(self) -> Shedding | None:
        """Returns its load shedding, or None."""

    def allow(self, shed: Shed | None) -> None:
        """Changes the load shedding from now on; None: ends it, and includes all keys again. Raises DataError, without
        any change, if that needs events that are not kept."""

    def look(self, now_s: float, wall_us: int, name: str) -> list[str]:
        """Leaves out keys, or includes them again, by the load. Returns the messages about it.
        now_s, wall_us: see Database.tick; name: of the query."""

    # ---- memory and checkpoints

    @property
    def drivers(self) -> Sequence[Driver]:
        """Returns those that join the rows of inner patterns with history."""

    @property
    def member(self) -> Member | None:
        """Returns its member in a feed that it shares with other queries, or None. The state of a member is in that of
        the feed."""

    @property
    def holders(self) -> Sequence[Holder]:
        """Returns the holders of partial matches of this query alone."""

    @property
    def spill(self) -> Sequence[SpillStats]:
        """Returns, for each pattern, the number of partial matches in memory and on disk."""

    @property
    def patterns(self) -> Mapping[str, Mapping[str, int]]:
        """Returns the result of matching.feed.Feed.patterns for the last pattern."""

    def take_trouble(self) -> list[str]:
        """Returns the new warnings about `holders`."""

    def save(self) -> dict[str, Any]:
        """Returns its state, for hybrid.watch.saved."""

    def restore(self, saved: Mapping[str, Any], member: Member | Unread | None) -> bool:
        """Restores the result of `save`, and the member of a feed if it was one. Returns False if the state is of a
        release in which it has another meaning: the query must be replayed."""

    # ---- for the user

    def reader(self) -> HistoryReader:
        """Returns the reader of the events of matches."""

    def stats(self) -> dict[str, Any]:
        """Returns the figures of its streams, for Alerts.stats."""

    @property
    def stuck(self) -> int:
        """Returns the number of matches from which AFTER MATCH SKIP TO would not have moved on."""


class LiveQuery:
    """One live query. syntax, plan: of the whole text; factor: its last pattern; reads: the streams that it depends on,
    those of its histories included, by name in lower case; driver: joins the history, or None; asked: the text and
    arguments of a query with a name. sharing: how its trends are counted together with others. held: its rows that are
    held back from the stream that they feed, or None."""

    __slots__ = (
        "alerts", "asked", "asking", "driver", "events", "factor", "held", "histories", "plan", "reads", "sharing",
        "syntax",
    )  # fmt: skip

    def __init__(
        self, syntax: ast.QuerySyntax, plan: QueryPlan, events: Events, histories: Mapping[str, Stream],
        strategy: Strategy, spark: LargeRanges | None = None, sharing: str = SHARING, in_order: bool = False,
    ) -> None:  # fmt: skip
        """histories: the streams that its history joins read. strategy, spark, in_order: see Driver."""
        self.syntax, self.plan = syntax, plan
        self.factor = factor = plan.factors[-1]
        self.events = events
        self.histories = views(factor.histories, histories)
        self.reads = frozenset((*events.streams, *histories))
        self.driver = None
        if factor.histories:
            self.driver = Driver(factor, strategy, live_matcher, in_order or plan.alert is not None, spark=spark)
        self.alerts: Alerts
        self.asked: Asked | None = None
        self.sharing = sharing
        self.asking: Asking | None = None
        self.held: HeldRows | None = None

    @property
    def name(self) -> str:
        """Returns its name for messages."""
        return "a live query" if self.asked is None else f"query {self.asked.name}"

    def push(self, stream: str, batch: EventBatch | None, watermark_us: int | None) -> None:
        """Takes events as `Events.push` does, and passes on the decided matches. Raises the error of the query, after
        its earlier matches."""
        found = self.events.push(stream, batch, watermark_us)
        if found:
            self.take(found)
        failure = self.events.failure
        if failure is not None:
            self._answer_all()
            raise failure

    def fail(self, error: Exception) -> None:
        """Marks it as failed, with the place of the error in its text."""
        self.alerts.fail(placed_live(error, self.syntax, self.plan))

    def take(self, found: list[Matches]) -> None:
        """Passes on matches: to the driver, or as alerts."""
        if self.driver is None:
            self.alerts.add(found)
        else:
            self.alerts.count(count_matches(found))
            try:
                self.driver.take(found)
            except QueryError:
                self._answer_all()
                raise

    def _answer(self) -> None:
        """Answers matches whose history is complete."""
        events = self.events
        if self.asking is not None:
            reached_us = events.watermark_us
            for answer in self.asking.settle(self.histories, reached_us, events.ended, events.accepted):
                self.alerts.add_answer(answer)

    def _answer_all(self) -> None:
        """Answers matches whose history is complete, and waits until it is read."""
        self._answer()
        while self.asking is not None and self.asking.running is not None:
            wait([self.asking.running])
            self._answer()

    def settle(self) -> None:
        """Answers matches whose history is complete; ends the alerts when no more rows can come."""
        events = self.events
        self._answer()
        if events.ended and (self.driver is None or not self.driver.waiting_count):
            self.alerts.finish("replaced" if events.left else "ended")

    def forget_from(self, seq: int, watermark_us: int | None) -> None:
        """Forgets pending matches with an event of that ingest sequence of its stream or a later one, and windows that
        were open before it: they are found again. Of several streams those that the watermark has not reached.
        watermark_us: the least of its streams before that event."""
        if self.driver is not None:
            self.driver.forget_from(seq if self.events.names_sequences else None, watermark_us)

    @property
    def reached_us(self) -> int | None:
        """Returns the watermark of the last pattern's input, held back by the last events of rows that wait for their
        history: END_US if no row can come, None without one. Of a query that has failed it does not pass the event at
        which it has: rows from then on are missing, not absent."""
        watermark_us = self.events.failed_us if self.alerts.failed else self.events.watermark_us
        waiting_us = None if self.driver is None else self.driver.waiting_from_us()
        return watermark_us if watermark_us is None or waiting_us is None else min(watermark_us, waiting_us)

    def rows_from(self) -> int | None:
        """Returns the least time of the last event of a later row, for ALERT ONCE; None: any."""
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
        """Returns the search for the events of its matches."""
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
        if self.factor.plan.trends is not None:
            found |= {"sharing": self.sharing, "counted_with": 0 if events.member is None else events.member.others}
        if self.factor.plan.boxes:
            found["patterns"] = events.patterns
        found |= stats_of(events.spill) | endless_of(events.factors)
        return found if self.driver is None else found | self.driver.stats()


def guarded(query: LiveQuery, act: Callable[[LiveQuery], None]) -> None:
    """Acts, unless the query has failed. An error marks the query as failed; the stream and the other queries
    continue."""
    if query.alerts.failed:
        return
    try:
        act(query)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the query's: its alerts raise it)
        query.fail(error)
