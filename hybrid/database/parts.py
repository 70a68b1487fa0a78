"""The parts of an open database, and what they ask of each other: how it opens, winds its clock, waits, and closes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from archive.interrupts import Deferred
from archive.place import Place
from hybrid.database import streams
from hybrid.database.checkpoints import Checkpoints
from hybrid.database.clocks import Clocks
from hybrid.database.leaving import Left, owned, watch_over, weakly, writer_of
from hybrid.database.opened import Opened
from hybrid.database.queries import Queries
from hybrid.database.resume import resume
from hybrid.database.threads import may_push
from hybrid.rows.duck import check_memory_limit, interruptible
from hybrid.watch.declaration import TABLE, Pace, declared, finish_drops, pace_of, with_columns
from hybrid.watch.derived_stream import DerivedDeclaration
from hybrid.watch.flow import Flow
from hybrid.watch.live_query import LiveQuery
from hybrid.watch.memory import Memory
from query.errors import DataError, first_line, warn
from query.schema import Schema

if TYPE_CHECKING:
    from archive.keeper import Keeper


class DatabaseParts:
    """An open database without its public face. Alerts refer to it, so that it lives as long as its Database and any of
    them; then its events are written (hybrid.database.leaving).

    memory_limit: as the user gave it. every_us: the interval between checkpoints. pushers: the threads that push."""

    checkpoints: Checkpoints
    queries: Queries

    def __init__(
        self, opened: Opened, flow: Flow, memory_limit: str | None, ticking: bool, every_us: int | None
    ) -> None:
        self.opened = opened
        self.flow = flow
        self.memory_limit = memory_limit
        self.pushers: set[int] = set()
        self.keeper: Keeper | None = None
        self.memory = Memory(None, None)
        self._every_us = every_us
        self._left = Left(flow.streams)
        self._when_left: weakref.finalize[..., Any] | None = None
        self._ends = False  # a close has begun to write what is left
        if memory_limit is not None:
            check_memory_limit(memory_limit)
            self.memory = Memory(memory_limit, None)
        if opened.path is None and opened.read_only:
            raise DataError("a database in memory cannot be read-only", "hybrid.connect(path, read_only=True)")
        self.clocks = Clocks(flow, weakly(self.tick) if ticking else None, every_us is not None)

    # ---- open and close

    def open(self, path: str, maintenance: bool, columns: Mapping[str, Mapping[str, str]], beside: bool) -> None:
        """Opens the streams and resumes the queries; closes everything if that fails. path: as the user gave it;
        columns, beside: see Database. Raises DataError."""
        owned(self)
        try:
            if self.opened.path is None:
                self._set_up()
            else:
                self._open(self.opened.path, path, maintenance, columns, beside)
        except BaseException:
            self.clocks.stop()
            self._release()
            raise

    def _set_up(self) -> None:
        """Creates the checkpoints and the live queries."""
        self.checkpoints = Checkpoints(self.opened, self.flow, self.memory, self._every_us)
        self.queries = Queries(
            self.opened, self.flow, self.memory, self.may_wait, self.catch_up, self._keep_names, self._declare_rows
        )

    def _open(
        self, place: Place, path: str, maintenance: bool, columns: Mapping[str, Mapping[str, str]], beside: bool
    ) -> None:
        opened, flow = self.opened, self.flow
        names = opened.find(path)
        if opened.log is not None and (opened.log not in ("fsync", "os") or not place.on_disk):
            message = f"a log {opened.log!r} cannot be kept in {path}"
            raise DataError(message, "open a database on disk with log='fsync' or 'os'")
        if not opened.read_only:
            opened.writer = self._left.writer = writer_of(place, [place / name / TABLE for name in names])
        if not opened.read_only:
            finish_drops(place)
        opened.reopen(path)  # other processes may have created streams
        if opened.read_only:
            self._set_up()
            return
        self.memory = Memory(self.memory_limit, place)
        self._set_up()
        wider = False
        for name, types in columns.items():
            state = flow.streams.get(name.lower())
            more = None if state is None else with_columns(state.schema, types)
            if state is not None and more is not None:
                streams.add_columns(flow, state, more)
                wider = True
        with opened.lock:  # queries read history in other threads as soon as they start
            resume(opened, flow, self.queries, self.checkpoints, wider)
        self.wind()
        if maintenance:
            self._maintain(beside)
        self._when_left = watch_over(self, self._left)

    def _maintain(self, beside: bool) -> None:
        """Starts the thread that maintains the tables, and with `beside` writes files."""
        from archive.keeper import Keeper

        kept = self.flow.streams
        self.keeper = self._left.keeper = Keeper(lambda: [s.kept for s in list(kept.values())])
        if beside:
            self.opened.wake = self.keeper.wake
            for state in kept.values():
                state.kept.beside = self.opened.wake
        self.keeper.start()

    def flush(self) -> None:
        """Writes all events that are only in memory to the archive."""
        with self.opened.lock, Deferred():
            self.opened.check_writes("flush")
            for stream in self.flow.streams.values():
                try:
                    stream.kept.flush()
                    stream.save()
                except OSError as error:
                    message = f"events of {stream.schema.name} cannot be written to the archive: {first_line(error)}"
                    hint = "none is lost while the database is open: free disk space or grant write permission"
                    raise DataError(message, hint) from error

    def close(self, wait: bool | float, checkpoint: bool) -> None:
        """See Database.close."""
        self.clocks.stop()  # before taking the lock, for which its thread may wait
        with self.opened.lock:
            if self.opened.closed:
                if self._ends:  # what an error has cut short
                    self._release()
                return
            try:
                if self.keeper is not None:
                    self.keeper.stop()
                for query in self.flow.queries if wait else ():
                    self.catch_up(query, None if wait is True else wait)
            finally:  # an interrupt ends only the wait
                with Deferred():
                    self._finish(checkpoint)

    def _finish(self, checkpoint: bool) -> None:
        """Writes events and a last checkpoint, and closes."""
        self._ends = True
        try:
            self.checkpoints.wait()
            if not self.opened.read_only:
                for query in [q for q in self.flow.queries if q.asked is None]:  # others have them in the checkpoint
                    self.flow.give_held(query)
                self.flush()
            if checkpoint and self.flow.named and not self.flow.interrupted():
                self.checkpoints.take()
        finally:
            self.opened.closed = True
            try:
                for query in self.flow.queries:
                    query.alerts.finish()
            finally:
                self._release()

    def _release(self) -> None:
        """Closes files and releases the write lock, as far as that has not been done."""
        try:
            if self.keeper is not None:
                self.keeper.stop()
            self.memory.close()
        finally:
            if self._when_left is not None:
                self._when_left.detach()
            self.opened.release()

    def abandon(self) -> None:
        """Leaves the database as a crash would: writes nothing more, not even at the end of the process."""
        self.opened.closed = True
        if self._when_left is not None:
            self._when_left.detach()

    def end_with_process(self, patience_s: float) -> None:
        """Writes events in memory to files at the end of the process (hybrid.database.leaving). Raises DataError if
        another thread holds the database for longer than patience_s."""
        if self._when_left is None:
            return
        if not self.opened.lock.acquire(timeout=patience_s):
            raise DataError(f"another thread uses {self.opened.path}", "close databases before the process ends")
        closed, self.opened.closed = self.opened.closed, True
        self.opened.lock.release()
        if not closed:
            self._when_left.detach()
            self._left.finish()  # without the lock, so that threads waiting for it can end

    def disown(self) -> None:
        """Closes the database in a child after a fork without writing: the parent owns it (hybrid.database.leaving)."""
        self.opened.lock = threading.RLock()
        self.abandon()
        self.opened.release()  # else the child would keep the parent's write lock after the parent's end

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Holds the lock, after the queries have got what pushes owe them. Raises KeyboardInterrupt, before the block,
        if a Ctrl-C ends that."""
        with self.opened.lock:
            with Deferred():
                self.flow.settle()
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Like `settled`, and defers Ctrl-C to the end of the block."""
        with self.settled(), Deferred():
            yield

    # ---- streams

    def create_stream(self, schema: Schema, pace: Pace, given: Mapping[str, Any]) -> list[str]:
        """Creates a stream, or changes one that exists: adds columns and applies the settings of `alter_stream` that
        are given. Returns a description of each changed setting. Raises DataError."""
        with self.changing():
            self.opened.check_writes("create a stream")
            existing = self.flow.streams.get(schema.name.lower())
            if existing is None and (pattern := self.opened.patterns.get(schema.name.lower())) is not None:
                raise DataError(f"{pattern.name} is a pattern, and cannot name a stream too", "choose another name")
            if existing is None:
                streams.create(self.opened, schema, pace)
                self.wind()
                return []
            was = existing.schema
            again = replace(schema, lateness_us=was.lateness_us, retention_us=was.retention_us)
            streams.declare_again(self.flow, existing, again)
            return [f"stream {was.name}: {message}" for message in self.alter_stream(was.name, given)]

    def drop_stream(self, name: str) -> None:
        """Removes a stream; see Database.drop_stream."""
        with self.changing():
            self.opened.check_writes("drop a stream")
            stream = self.opened.stream(name)
            streams.check_drop(self.opened, self.flow, stream)
            self.checkpoints.wait()
            keeps = self.keeper is not None
            if self.keeper is not None:
                self.keeper.stop()  # it may be writing files of the stream
            del self.flow.streams[stream.schema.name.lower()]
            try:
                if self.checkpoints.number:  # the last one names the stream
                    self.checkpoints.take()
            except BaseException:
                self.flow.streams[stream.schema.name.lower()] = stream
                raise
            finally:
                if keeps:
                    self._maintain(self.opened.wake is not None)
            streams.forget(self.opened, stream)

    def alter_stream(self, name: str, changed: Mapping[str, Any]) -> list[str]:
        """Changes settings of a stream; see Database.alter_stream."""
        with self.changing():
            self.opened.check_writes("change a stream")
            said = streams.alter(self.flow, self.opened.stream(name), changed)
            self.wind()
        if said and self.flow.named:  # a replay from a checkpoint uses the lateness stored in it
            self.checkpoints.keep_names()
        return said

    def _declare_rows(
        self, name: str, rows: DerivedDeclaration, keys: Sequence[str], retention: timedelta | None
    ) -> None:
        with interruptible():
            schema = declared(name, rows.columns, rows.time, keys, rows.order, rows.lateness, retention)
        settings = {"lateness": rows.lateness, "retention": retention}
        given = {key: value for key, value in settings.items() if value is not None}
        for message in self.create_stream(schema, pace_of(None, None, None), given):
            warn(message)

    # ---- time and threads

    def wind(self) -> None:
        """Starts the thread of the clock if it is needed."""
        self._left.ticker = self.clocks.wind()

    def tick(self, now_s: float | None = None, wall_us: int | None = None) -> None:
        """Applies the clock; see Database.tick."""
        with self.opened.lock, Deferred():
            if self.opened.closed:
                return
            trouble = self.flow.settle_some()
            trouble += self.clocks.look(now_s, wall_us)
            trouble += self.warned_beside() + self.checkpoints.take_if_due()
        for message in trouble:
            warn(message)

    def catch_up(self, query: LiveQuery, seconds: float | None = None) -> None:
        """Waits until no history is being read for a query, at most `seconds`."""
        self.queries.catch_up(query, seconds)
        self.say_beside()

    def may_wait(self) -> bool:
        """Returns whether an iteration over alerts should wait for another thread."""
        return not self.opened.closed and may_push(self.pushers, self.clocks.paced)

    def warned_beside(self) -> list[str]:
        """Returns new warnings of the background threads: table maintenance and Spark searches."""
        found = [] if self.keeper is None else self.keeper.take_trouble()
        return found if self.opened.large is None else found + self.opened.large.take_trouble()

    def say_beside(self) -> None:
        """Issues the new warnings of the background threads."""
        for message in self.warned_beside():
            warn(message)

    def _keep_names(self) -> None:
        if not self.opened.closed:
            self.checkpoints.keep_names()
