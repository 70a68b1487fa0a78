"""The way of a pushed event: from its stream to the live queries that read it, and of their rows to the streams they
feed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from archive.interrupts import handle_waiting, is_interrupted
from hybrid.rows.faults import Interrupted
from hybrid.rows.words import counted
from hybrid.watch.alerts import Alerts
from hybrid.watch.derived_stream import Pour
from hybrid.watch.in_merged import InMerged
from hybrid.watch.late import why_not_seen
from hybrid.watch.live_query import LiveQuery, guarded
from hybrid.watch.merged_feed import MergedFeed
from hybrid.watch.pushed import Pushed
from hybrid.watch.query_spec import END_US
from hybrid.watch.stream import Stream
from live.stream import Arrival, LiveStream
from matching.batch import EventBatch, Int64Array
from matching.budget import Budget
from matching.hierarchy.searches import Searches
from query.errors import DataError, first_line, warn

#: A push of more events, or more than its queries have taken in that time lately, reaches the queries in parts, of at
#: least so many and about so many seconds: a Ctrl-C comes through between two of them.
PART_ROWS = 16_384
PART_LEAST = 64
PART_SECONDS = 0.25


class Flow:
    """The streams of a database (by name in lower case), the live queries, the named ones among them (finished ones
    included), and the derived streams. The caller holds the database's lock.

    An event is accepted once history has it (History.append), and not before. Archive failures are returned as
    texts."""

    __slots__ = ("budget", "merged", "named", "pours", "queries", "searches", "streams")

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.queries: list[LiveQuery] = []
        #: The feeds of queries over several streams.
        self.merged: list[MergedFeed] = []
        #: The searches of patterns of boxes that feeds share.
        self.searches = Searches()
        self.named: dict[str, LiveQuery] = {}
        self.pours: list[Pour] = []
        #: What partial matches may take; None: there has been no live query.
        self.budget: Budget | None = None

    def within_budget(self) -> AbstractContextManager[None]:
        """Within, live queries that take too much memory fail."""
        return nullcontext() if self.budget is None else self.budget.open()

    def reads(self, stream: Stream) -> bool:
        """True if a live query reads or feeds a stream."""
        name = stream.schema.name.lower()
        return any(name in query.reads for query in self.queries) or any(p.target == name for p in self.pours)

    def running(self, alerts: Alerts) -> LiveQuery | None:
        """Returns the query of some alerts while it may still find matches, else None."""
        return next((q for q in self.queries if q.alerts is alerts and not q.events.left), None)

    def target(self, alerts: Alerts) -> str | None:
        """Returns the stream that the rows of a query feed, by name in lower case, or None."""
        return next((p.target for p in self.pours if p.alerts is alerts), None)

    def interrupted(self) -> list[str]:
        """Returns the names of the queries that an interrupt ended in the middle of a batch."""
        return [name for name, query in self.named.items() if query.alerts.interrupted]

    def take(
        self, state: Stream, data: Any, source: str = "default", offset: int | Int64Array | None = None,
        ceiling_us: int | None = None, in_parts: bool = False,
    ) -> tuple[Pushed, list[str]]:
        """Accepts events into a stream and passes them to the queries that read it. Returns the numbers of events, and
        warnings. ceiling_us: later events are refused. in_parts: a Ctrl-C ends it between two parts of many
        events, and the stream owes the queries the rest. Raises DataError for invalid events and for a log that cannot
        be written; nothing has changed then."""
        before, last_seq = state.live.to_dict(), state.kept.last_seq
        trouble: list[str] = []
        try:
            known = -state.live.duplicate_count
            arrival = state.live.accept(data, source, offset, ceiling_us)
            done = Pushed(len(arrival.batch), int(arrival.late.sum()), known + state.live.duplicate_count)
            handle_waiting()  # nothing is accepted yet
            try:
                if len(arrival.batch):
                    state.kept.append(arrival.batch, arrival.late)
            except (DataError, OSError, MemoryError) as error:
                if state.kept.last_seq == last_seq:
                    raise
                # the events are in memory; only the files could not be written
                trouble.append(f"{state.schema.name}: events stay in memory, archiving failed: {error}")
            if in_parts and len(arrival.batch) > min(PART_ROWS, state.part_rows):
                state.owe(arrival, source, time.monotonic(), before)
                return done, trouble + self._give_owed(state)
            return done, trouble + self._given(state, arrival, source, time.monotonic())
        except BaseException as error:
            if state.kept.last_seq == last_seq:
                state.live = LiveStream.from_dict(state.schema, before)  # nothing was accepted
            else:
                self._interrupt(state, error)
            raise

    def settle(self, until_s: float | None = None) -> None:
        """Passes on what pushes owe that a Ctrl-C has ended; before anything else happens to a stream or its queries.
        until_s: by time.monotonic, when it stops between two parts. Calls the handler of a Ctrl-C that waits."""
        for state in [s for s in self.streams.values() if s.owed is not None]:
            while state.owed is not None:
                for message in self._give_owed(state, until_s):
                    warn(message)
                handle_waiting()  # if that raises nothing, the rest follows
                if until_s is not None and time.monotonic() >= until_s:
                    break

    def settle_some(self) -> list[str]:
        """Passes on one part of what each stream owes. Returns warnings."""
        return [said for s in self.streams.values() if s.owed is not None for said in self._give_owed(s, 0.0)]

    def _give_owed(self, state: Stream, until_s: float | None = None) -> list[str]:
        """Passes on owed events in parts until a Ctrl-C waits, or until_s. Returns warnings."""
        trouble: list[str] = []
        rows = min(PART_ROWS, state.part_rows)
        while state.owed is not None and not is_interrupted():
            begun_s = time.monotonic()
            owed = state.owed
            try:
                trouble += self._given(state, state.pay(rows), owed.source, owed.heard_s)
            except BaseException as error:
                self._interrupt(state, error)
                raise
            now_s = time.monotonic()
            share = PART_SECONDS / max(now_s - begun_s, 1e-3)
            state.part_rows = rows = max(PART_LEAST, min(2 * rows, int(rows * share)))
            if until_s is not None and now_s >= until_s:
                break
        return trouble

    def _given(self, state: Stream, arrival: Arrival, source: str, heard_s: float) -> list[str]:
        """Passes newly accepted events on. heard_s: when they came, by time.monotonic. Returns warnings."""
        trouble: list[str] = []
        with self._whole(state, trouble):
            state.hear(source, heard_s)
            state.lately.add(len(arrival.batch), int(arrival.late.sum()))
            try:
                if len(arrival.batch):
                    state.forget()
            except (DataError, OSError, MemoryError) as error:
                trouble.append(f"{state.schema.name}: events older than its retention were not removed: {error}")
            if arrival.late.any():
                if state.late is not None:
                    state.late.add(arrival.batch, arrival.late)
                elif not state.late_said and self.reads(state):
                    state.late_said = True
                    trouble.append(why_not_seen(state.schema, arrival))
            trouble += self.give(state, arrival)
        return trouble

    def give(self, state: Stream, arrival: Arrival) -> list[str]:
        """Passes events to the queries that read their stream. Returns warnings."""
        trouble: list[str] = []
        with self._whole(state, trouble), self.within_budget():
            on_time = arrival.on_time
            strays = state.feed is not None and state.feed.strays(on_time)
            if state.feed is not None:
                state.feed.push(on_time, arrival.watermark_us)
            self._give_merged(state, on_time)
            trouble += self._hand_on(state, on_time)
            trouble += self._search_apart(state) if strays else []
            trouble += self._pour(state)
        return trouble

    @contextmanager
    def _whole(self, state: Stream, trouble: list[str]) -> Iterator[None]:
        """A change of a stream that reaches all of its queries. If an exception interrupts it, some queries may lack an
        event: all queries affected fail by name, so that none continues without it.

        An Exception is added to `trouble`, since the events are accepted; any other one is raised."""
        try:
            yield
        except BaseException as error:
            count = self._interrupt(state, error)
            if not isinstance(error, Exception):
                raise
            trouble.append(f"{state.schema.name}: {counted(count, 'live query')} failed: {first_line(error)}")

    def _interrupt(self, state: Stream, error: BaseException) -> int:
        """Fails the queries that a change of a stream may not have reached completely. Returns their number."""
        affected = self._downstream(state)
        for query in affected:
            query.alerts.fail(Interrupted.by(error))
            query.events.leave()
            self.remove(query)
        return len(affected)

    def _downstream(self, state: Stream) -> list[LiveQuery]:
        """Returns the live queries that a change of a stream may reach, including those of the streams it feeds."""
        reached = {state.schema.name.lower()}
        while more := {p.target for p in self.pours if p.reads & reached} - reached:
            reached |= more
        return [query for query in self.queries if query.reads & reached and not query.alerts.done]

    def raised(self, state: Stream, t_us: int) -> list[str]:
        """Propagates an idle-timeout or heartbeat watermark to the live queries and the log. Returns warnings. A log
        that cannot be written is one of them: after a restart the stream waits for the clock again."""
        trouble: list[str] = []
        try:
            state.kept.reach(t_us)
        except DataError as error:
            trouble.append(str(error))
        return trouble + self.reach(state, t_us)

    def reach(self, state: Stream, t_us: int | None) -> list[str]:
        """Raises the watermark of a stream for its queries (None: the stream ends). Returns archive failures."""
        state.live.advance(t_us)
        watermark_us = None if t_us is None else state.live.watermark_us
        trouble: list[str] = []
        with self._whole(state, trouble), self.within_budget():
            if state.feed is not None:
                state.feed.advance(watermark_us)
            self._give_merged(state, None)
            trouble += self._hand_on(state, None)
            trouble += self._pour(state)
        return trouble

    def _give_merged(self, state: Stream, batch: EventBatch | None) -> None:
        """Passes on-time events, or None, and the watermark after them to the feeds that merge a stream with others."""
        name = state.schema.name.lower()
        for feed in self.merged:
            if name in feed.streams:
                feed.push(name, batch)

    def _search_apart(self, state: Stream) -> list[str]:
        """Lets queries that merge a stream with others search alone: the feed of the stream has passed on an event that
        comes behind one which has arrived later. Returns warnings."""
        name, trouble = state.schema.name.lower(), []
        for query in self.queries:
            if name not in query.events.streams or not isinstance(query.events, InMerged) or not query.events.shares:
                continue
            whole = True

            def replay(one: LiveQuery) -> None:
                nonlocal whole
                whole = one.events.replay()

            guarded(query, replay)
            if not whole:
                trouble.append(f"{state.schema.name}: events that a query has read are no longer kept: a match that "
                               "depends on them may be missing or superfluous")
        return trouble

    def _hand_on(self, state: Stream, batch: EventBatch | None) -> list[str]:
        """Passes new on-time events or a new watermark to the queries of a stream, whose feed has them already, and
        joins the decided matches with history. Returns warnings about partial matches that could not be spilled."""
        name, ended = state.schema.name.lower(), state.ended
        watermark_us = END_US if ended else state.watermark_us
        trouble = [] if state.feed is None else state.feed.take_trouble()
        trouble += [one for feed in self.merged if name in feed.streams for one in feed.feed.take_trouble()]
        for query in self.queries:
            if name not in query.reads:
                continue
            events, member = query.events, query.events.member
            found = member is None or member.found or member.failure is not None  # else the feed holds everything
            if found and name in events.streams:
                guarded(query, lambda q: q.push(name, batch, watermark_us))
                trouble += events.take_trouble()
            if ended or events.left or query.driver is not None:
                guarded(query, LiveQuery.settle)
            trouble += query.alerts.take_trouble()
        self.drop_over()
        return trouble

    def drop_over(self) -> None:
        """Removes the queries that are finished."""
        over = [query for query in self.queries if query.alerts.over]
        for query in over:
            query.events.leave()
        if over:
            self.queries = [query for query in self.queries if query not in over]

    def remove(self, query: LiveQuery) -> None:
        """Removes a query, and its derived stream's link."""
        self.queries = [q for q in self.queries if q is not query]
        for pour in [p for p in self.pours if p.alerts is query.alerts]:
            self._close(pour)

    def _close(self, pour: Pour) -> None:
        self.pours.remove(pour)
        self.streams[pour.target].live.driven = False

    def give_held(self, query: LiveQuery) -> None:
        """Passes on the rows of a query that ends which are held back from the stream that it feeds. Raises DataError,
        and keeps them, if they cannot be written."""
        pours = [p for p in self.pours if p.alerts is query.alerts and p.held is not None]
        for pour in pours if not query.alerts.over else ():
            rows = pour.fetch(whole=True)
            try:
                if rows.num_rows:
                    self.take(self.streams[pour.target], rows)
            except DataError:
                pour.put_back(rows)
                raise

    def _pour(self, state: Stream) -> list[str]:
        """Passes the rows that a change of a stream has produced to the streams they feed. Returns archive failures."""
        trouble: list[str] = []
        for pour in [p for p in self.pours if state.schema.name.lower() in p.reads]:
            target = self.streams[pour.target]
            try:
                rows = pour.fetch()
                if rows.num_rows:
                    try:
                        trouble += self.take(target, rows)[1]
                    except DataError as error:
                        if not isinstance(error.__cause__, OSError):
                            raise
                        pour.put_back(rows)  # a full disk, for example: retried with the next change
                        trouble.append(str(error))
                        continue
                before_us = pour.before_us
                if before_us == END_US:
                    trouble += self.reach(target, None)
                elif before_us is not None and (target.watermark_us is None or before_us > target.watermark_us):
                    trouble += self.reach(target, before_us)
            except Exception as error:  # noqa: BLE001  (any failure is the query's own: its alerts raise it)
                pour.alerts.fail(error)
            if pour.alerts.failed or target.ended:
                self._close(pour)
            if pour.alerts.failed:
                trouble.append(f"stream {target.schema.name} receives no more rows: the query that feeds it has failed")
                for query in self._downstream(target):
                    query.alerts.fail(
                        DataError(
                            f"stream {target.schema.name} receives no more rows: the query that feeds it has failed",
                            "fetch the alerts of that query for the reason",
                        )
                    )
        return trouble
