"""What is pushed to a stream, on its way to all that watches it, and what they find, into the streams that it feeds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hybrid.chain import END_US, ChainWatch
from hybrid.pour import Pour
from hybrid.stream import Stream
from hybrid.watched import Watch
from live.stream import Arrival, LiveStream
from matching.batch import EventBatch, Int64Array
from query.errors import DataError


class Flow:
    """The streams of a database, by name in lower case, and what reads them: queries over one stream and pattern,
    those over several, and those whose rows are the events of a stream. Whoever calls holds the database's lock.

    logged: an event is taken when it is in a log, and not before. What could not be archived is given as text."""

    __slots__ = ("_logged", "chains", "pours", "streams", "watches")

    def __init__(self, logged: bool) -> None:
        self._logged = logged
        self.streams: dict[str, Stream] = {}
        self.watches: list[Watch] = []
        self.chains: list[ChainWatch] = []
        self.pours: list[Pour] = []

    @property
    def running(self) -> list[Watch | ChainWatch]:
        return [*self.watches, *self.chains]

    def reads(self, stream: Stream) -> bool:
        """Whether a live query reads or feeds a stream."""
        name = stream.schema.name.lower()
        if any(w.takes(stream) for w in self.watches) or any(p.target == name for p in self.pours):
            return True
        return any(name in c.streams or name in c.histories for c in self.chains)

    def take(
        self, state: Stream, data: Any, source: str = "default", offset: int | Int64Array | None = None
    ) -> tuple[int, list[str]]:
        """Takes events into a stream and all that watches it. How many were new, and what could not be archived.
        Raises DataError for what is no such event, and for a log that cannot be written; nothing has changed then."""
        before = state.live.to_dict() if self._logged else None
        arrival = state.live.accept(data, source, offset)
        state.hear(source, time.monotonic())
        trouble: list[str] = []
        if len(arrival.batch):
            try:
                state.kept.append(arrival.batch, arrival.late)
                state.forget()
            except (DataError, OSError) as error:
                if before is not None and state.kept.last_seq < int(arrival.batch.seq[-1]):
                    state.live = LiveStream.from_dict(state.schema, before)  # they are not in the log: none was taken
                    raise
                # the events are in memory; only the files could not be written
                trouble.append(f"{state.schema.name}: events stay in memory, they cannot be archived: {error}")
        if state.late is not None and arrival.late.any():
            state.late.add(arrival.batch, arrival.late)
        return len(arrival.batch), trouble + self.give(state, arrival)

    def give(self, state: Stream, arrival: Arrival) -> list[str]:
        """Hands events on to all that watches their stream; what could not be archived by that."""
        on_time = arrival.on_time
        if state.feed is not None:
            state.feed.push(on_time, arrival.watermark_us)
            self._collect(state)
        trouble = self._spill_trouble(state)
        self.settle(state)
        self._chain(state, on_time)
        return trouble + self._pour(state)

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
        if state.feed is not None:
            state.feed.advance(watermark_us)
            self._collect(state)
        self.settle(state)
        self._chain(state, None)
        return self._pour(state)

    def settle(self, state: Stream) -> None:
        """Lets queries over one stream answer what a change of a stream has decided, and go where they are over."""
        for watch in self.watches:
            if (watch.driver is not None or state.ended or watch.member is None) and watch.takes(state):
                guarded(watch, Watch.settle)
        over = [w for w in self.watches if w.alerts.failed or w.alerts.done]
        for watch in over:
            watch.leave()
        if over:
            self.watches = [w for w in self.watches if w not in over]

    def remove(self, watch: Watch | ChainWatch) -> None:
        """Nothing comes to a query any more, nor from it."""
        self.watches = [w for w in self.watches if w is not watch]
        self.chains = [w for w in self.chains if w is not watch]
        for pour in [p for p in self.pours if p.alerts is watch.alerts]:
            self._close(pour)

    def _close(self, pour: Pour) -> None:
        self.pours.remove(pour)
        self.streams[pour.target].live.driven = False

    def _collect(self, state: Stream) -> None:
        for watch in self.watches:
            member = watch.member
            if watch.stream is state and member is not None and (member.found or member.failure is not None):
                guarded(watch, Watch.collect)

    def _spill_trouble(self, state: Stream) -> list[str]:
        """What has gone wrong lately when partial matches were to leave memory."""
        holders = [p for c in self.chains for p in c.chain.patterns]
        feed = state.feed.take_trouble() if state.feed is not None else []
        return feed + [trouble for pattern in holders for trouble in pattern.take_trouble()]

    def _chain(self, state: Stream, batch: EventBatch | None) -> None:
        """Hands new on-time events, or a new watermark, to the queries that read several streams or patterns."""
        name, watermark_us = state.schema.name.lower(), END_US if state.ended else state.watermark_us
        for watch in self.chains:
            if name in watch.streams:
                guarded(watch, lambda w: w.push(name, batch, watermark_us))
            if name in watch.streams or name in watch.histories:
                guarded(watch, ChainWatch.settle)
        self.chains = [w for w in self.chains if not (w.alerts.failed or w.alerts.done)]

    def _pour(self, state: Stream) -> list[str]:
        """Lets the rows that have come of a change of a stream into the streams they are to go to; what could not be
        archived."""
        trouble: list[str] = []
        for pour in [p for p in self.pours if state.schema.name.lower() in p.reads]:
            target = self.streams[pour.target]
            try:
                rows = pour.alerts.fetch()
                if rows.num_rows:
                    trouble += self.take(target, rows)[1]
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
        return trouble


def guarded(watch: Watch | ChainWatch, act: Callable[[Any], None]) -> None:
    """A query that fails is marked and left out from then on; the stream and the others go on."""
    if watch.alerts.failed:
        return
    try:
        act(watch)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the query's: its alerts raise it)
        watch.alerts.fail(error)
