"""What is pushed to a stream, on its way to all that watches it, and what they find, into the streams that it feeds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hybrid.rows.faults import Interrupted
from hybrid.watch.alerts import Alerts
from hybrid.watch.derived_stream import Pour
from hybrid.watch.live_query import LiveQuery, guarded
from hybrid.watch.query_spec import END_US
from hybrid.watch.stream import Stream
from live.stream import Arrival, LiveStream
from matching.batch import EventBatch, Int64Array
from query.errors import DataError, first_line


class Flow:
    """The streams of a database, by name in lower case, the live queries, those of them that have a name (also when
    they are over), and the rows that are the events of a stream. The caller holds the database's lock.

    An event is taken when history has it (History.append), and not before. What could not be archived is given as
    text."""

    __slots__ = ("named", "pours", "queries", "streams")

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.queries: list[LiveQuery] = []
        self.named: dict[str, LiveQuery] = {}
        self.pours: list[Pour] = []

    def reads(self, stream: Stream) -> bool:
        """Returns whether a live query reads or feeds a stream."""
        name = stream.schema.name.lower()
        return any(name in query.reads for query in self.queries) or any(p.target == name for p in self.pours)

    def running(self, alerts: Alerts) -> LiveQuery | None:
        """Returns the query of some alerts, if more can come of it."""
        return next((q for q in self.queries if q.alerts is alerts and not q.events.left), None)

    def target(self, alerts: Alerts) -> str | None:
        """Returns the stream that the rows of a query go into, by name in lower case, if they do."""
        return next((p.target for p in self.pours if p.alerts is alerts), None)

    def interrupted(self) -> list[str]:
        """Returns the names of the queries that an interrupt ended in the middle of a batch."""
        return [name for name, query in self.named.items() if query.alerts.interrupted]

    def take(
        self, state: Stream, data: Any, source: str = "default", offset: int | Int64Array | None = None,
        ceiling_us: int | None = None,
    ) -> tuple[int, list[str]]:
        """Takes events into a stream and all that watches it. How many were new, and what could not be archived.
        ceiling_us: later ones are refused. Raises DataError for what is no such event, and for a log that cannot be
        written; nothing has changed then."""
        before, last_seq = state.live.to_dict(), state.kept.last_seq
        trouble: list[str] = []
        try:
            arrival = state.live.accept(data, source, offset, ceiling_us)
            try:
                if len(arrival.batch):
                    state.kept.append(arrival.batch, arrival.late)
            except (DataError, OSError, MemoryError) as error:
                if state.kept.last_seq == last_seq:
                    raise
                # the events are in memory; only the files could not be written
                trouble.append(f"{state.schema.name}: events stay in memory, they cannot be archived: {error}")
            return len(arrival.batch), trouble + self._given(state, arrival, source)
        except BaseException as error:
            if state.kept.last_seq == last_seq:
                state.live = LiveStream.from_dict(state.schema, before)  # nothing was taken
            else:
                self._interrupt(state, error)
            raise

    def _given(self, state: Stream, arrival: Arrival, source: str) -> list[str]:
        """Hands on events that have just been taken; what went wrong."""
        trouble: list[str] = []
        with self._whole(state, trouble):
            state.hear(source, time.monotonic())
            state.lately.add(len(arrival.batch), int(arrival.late.sum()))
            try:
                if len(arrival.batch):
                    state.forget()
            except (DataError, OSError, MemoryError) as error:
                trouble.append(f"{state.schema.name}: events older than its retention stay: {error}")
            if state.late is not None and arrival.late.any():
                state.late.add(arrival.batch, arrival.late)
            trouble += self.give(state, arrival)
        return trouble

    def give(self, state: Stream, arrival: Arrival) -> list[str]:
        """Hands events on to all that watches their stream; what went wrong."""
        trouble: list[str] = []
        with self._whole(state, trouble):
            on_time = arrival.on_time
            if state.feed is not None:
                state.feed.push(on_time, arrival.watermark_us)
            trouble += self._hand_on(state, on_time)
            trouble += self._pour(state)
        return trouble

    @contextmanager
    def _whole(self, state: Stream, trouble: list[str]) -> Iterator[None]:
        """A change of a stream that reaches all of its queries. Where an exception ends it in the middle, nobody knows
        which query has seen what: those that it was for fail by name, so that none goes on without an event.

        An Exception is told in `trouble`, since the events are taken; any other one is raised."""
        try:
            yield
        except BaseException as error:
            count = self._interrupt(state, error)
            if not isinstance(error, Exception):
                raise
            trouble.append(f"{state.schema.name}: {count} live queries were interrupted: {first_line(error)}")

    def _interrupt(self, state: Stream, error: BaseException) -> int:
        """Fails the queries that a change of a stream may not have reached whole; how many there are."""
        affected = self._downstream(state)
        for query in affected:
            query.alerts.fail(Interrupted.by(error))
            query.events.leave()
            self.remove(query)
        return len(affected)

    def _downstream(self, state: Stream) -> list[LiveQuery]:
        """Returns the live queries that a change of a stream may reach, through streams that it feeds too."""
        reached = {state.schema.name.lower()}
        while more := {p.target for p in self.pours if p.reads & reached} - reached:
            reached |= more
        return [query for query in self.queries if query.reads & reached and not query.alerts.done]

    def raised(self, state: Stream, t_us: int) -> list[str]:
        """Says of a watermark that silence has raised to all that watches, and to the log; what went wrong. A log that
        cannot be written is no reason to stop: a replay waits for the clock again."""
        trouble: list[str] = []
        try:
            state.kept.reach(t_us)
        except DataError as error:
            trouble.append(str(error))
        return trouble + self.reach(state, t_us)

    def reach(self, state: Stream, t_us: int | None) -> list[str]:
        """Raises the watermark of a stream, for all that watches it too (None: it ends); what could not be archived by
        that."""
        state.live.advance(t_us)
        watermark_us = None if t_us is None else state.live.watermark_us
        trouble: list[str] = []
        with self._whole(state, trouble):
            if state.feed is not None:
                state.feed.advance(watermark_us)
            trouble += self._hand_on(state, None)
            trouble += self._pour(state)
        return trouble

    def _hand_on(self, state: Stream, batch: EventBatch | None) -> list[str]:
        """Lets the queries take new on-time events of a stream, or a new watermark, and answer what is decided by that.
        Its feed has had them. Returns what has gone wrong when partial matches were to leave memory."""
        name, ended = state.schema.name.lower(), state.ended
        watermark_us = END_US if ended else state.watermark_us
        trouble = [] if state.feed is None else state.feed.take_trouble()
        for query in self.queries:
            if name not in query.reads:
                continue
            events, member = query.events, query.events.member
            found = member is None or member.found or member.failure is not None  # else the feed has all there is
            if found and name in events.streams:
                guarded(query, lambda q: q.push(name, batch, watermark_us))
                trouble += events.take_trouble()
            if ended or events.left or query.driver is not None:
                guarded(query, LiveQuery.settle)
            trouble += query.alerts.take_trouble()
        self.drop_over()
        return trouble

    def drop_over(self) -> None:
        """Forgets the queries that are over."""
        over = [query for query in self.queries if query.alerts.over]
        for query in over:
            query.events.leave()
        if over:
            self.queries = [query for query in self.queries if query not in over]

    def remove(self, query: LiveQuery) -> None:
        """Forgets a query, and that its rows go into a stream."""
        self.queries = [q for q in self.queries if q is not query]
        for pour in [p for p in self.pours if p.alerts is query.alerts]:
            self._close(pour)

    def _close(self, pour: Pour) -> None:
        self.pours.remove(pour)
        self.streams[pour.target].live.driven = False

    def _pour(self, state: Stream) -> list[str]:
        """Lets the rows that have come of a change of a stream into the streams they are to go to; what could not be
        archived."""
        trouble: list[str] = []
        for pour in [p for p in self.pours if state.schema.name.lower() in p.reads]:
            target = self.streams[pour.target]
            try:
                rows = pour.alerts.fetch()
                if rows.num_rows:
                    try:
                        trouble += self.take(target, rows)[1]
                    except DataError as error:
                        if not isinstance(error.__cause__, OSError):
                            raise
                        pour.alerts.put_back()  # the disk was full, say: they are tried again with the next change
                        trouble.append(str(error))
                        continue
                reached_us = pour.reached()
                behind = target.watermark_us is None or (reached_us or 0) - pour.lag_us > target.watermark_us
                if reached_us == END_US:
                    trouble += self.reach(target, None)
                elif reached_us is not None and behind:
                    trouble += self.reach(target, reached_us - pour.lag_us)
            except Exception as error:  # noqa: BLE001  (whatever it is, it is the query's: its alerts raise it)
                pour.alerts.fail(error)
            if pour.alerts.failed or target.ended:
                self._close(pour)
            if pour.alerts.failed:
                trouble.append(f"stream {target.schema.name} gets no more rows: the query that feeds it has failed")
                for query in self._downstream(target):
                    query.alerts.fail(
                        DataError(
                            f"stream {target.schema.name} gets no more rows: the query that feeds it has failed",
                            "its own alerts say why",
                        )
                    )
        return trouble
