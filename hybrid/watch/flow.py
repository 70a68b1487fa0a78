"""What is pushed to a stream, on its way to all that watches it, and what they find, into the streams that it feeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hybrid.rows.faults import Interrupted
from hybrid.watch.chain import ChainWatch
from hybrid.watch.derived_stream import Pour
from hybrid.watch.query_spec import END_US
from hybrid.watch.stream import Stream
from hybrid.watch.watched import Watch
from live.stream import Arrival, LiveStream
from matching.batch import EventBatch, Int64Array
from query.errors import DataError, first_line


class Flow:
    """The streams of a database, by name in lower case, and what reads them: queries over one stream and pattern,
    those over several, and those whose rows are the events of a stream. The caller holds the database's lock.

    An event is taken when history has it (History.append), and not before. What could not be archived is given as
    text."""

    __slots__ = ("chains", "pours", "streams", "watches")

    def __init__(self) -> None:
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
                self._collect(state)
            trouble += self._spill_trouble(state)
            self.settle(state)
            self._chain(state, on_time)
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
        for watch in affected:
            watch.alerts.fail(Interrupted.by(error))
            if isinstance(watch, Watch):
                watch.leave()
            self.remove(watch)
        return len(affected)

    def _downstream(self, state: Stream) -> list[Watch | ChainWatch]:
        """The live queries that a change of a stream may reach, through streams that it feeds too."""
        reached = {state.schema.name.lower()}
        while more := {p.target for p in self.pours if p.reads & reached} - reached:
            reached |= more
        names = {id(s): name for name, s in self.streams.items()}
        found: list[Watch | ChainWatch] = []
        for watch in self.running:
            if isinstance(watch, Watch):
                reads = {names.get(id(s), "") for s in (watch.stream, *watch.histories.values())}
            else:
                reads = {*watch.streams, *watch.histories}
            if reads & reached and not watch.alerts.done:
                found.append(watch)
        return found

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
                self._collect(state)
            self.settle(state)
            self._chain(state, None)
            trouble += self._pour(state)
        return trouble

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
                for watch in self._downstream(target):
                    watch.alerts.fail(
                        DataError(
                            f"stream {target.schema.name} gets no more rows: the query that feeds it has failed",
                            "its own alerts say why",
                        )
                    )
        return trouble


def guarded(watch: Watch | ChainWatch, act: Callable[[Any], None]) -> None:
    """A query that fails is marked and left out from then on; the stream and the others go on."""
    if watch.alerts.failed:
        return
    try:
        act(watch)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the query's: its alerts raise it)
        watch.alerts.fail(error)
