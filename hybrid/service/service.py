"""`hybrid run`: the loop between sources, a database and sinks, with checkpoints, reloads and status.

The thread of `run` pushes events, fetches rows and passes them to sinks. Each source and each sink has its own thread
(hybrid.service.source_reader, hybrid.service.sink_writer). Threads of the database write files and checkpoints, and a
heartbeat thread writes the status (hybrid.service.pulse). So none of them blocks the others.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa

from archive.history import KEEPER, MEMORY_BYTES_MAX, MEMORY_ROWS_MAX
from archive.writer import RENEWER
from hybrid.database.database import Database
from hybrid.join.daemons import Daemons
from hybrid.service import account, dead_letters
from hybrid.service.app import App, Query
from hybrid.service.app_file import AppError, load
from hybrid.service.app_tables import SinkTable, SourceTable
from hybrid.service.changes import Settling, check_change, check_not_emptied
from hybrid.service.client_log import ClientLog
from hybrid.service.connectors import TOPICS, make_sink, make_source, marks_of, target_of
from hybrid.service.declare import declare, lacks, late_rows
from hybrid.service.delivery import Delivery
from hybrid.service.passed import PassedPayloads, last_lines
from hybrid.service.pulse import Pulse
from hybrid.service.refused import tell_refused, tell_refused_row
from hybrid.service.repeated import Repeated
from hybrid.service.sink_writer import Outlet
from hybrid.service.source_reader import Reader, line_of
from hybrid.service.status import VERSION, process_began, touch_status, write_status
from hybrid.watch.alerts import Alerts
from hybrid.watch.chain import plan_streams
from live.sinks.base import Sink
from live.sources.base import Bad, Piece, Source
from live.stream import Ahead
from matching.batch import Int64Array
from matching.checked import shown_rows
from matching.types import arrow_schema
from query.errors import DataError, HybridWarning, NotKept, QueryError
from query.schema import Schema

#: Seconds between two writes of the status, for which the app file is checked too; seconds for sinks to make rows
#: durable at a checkpoint; seconds for the last rows, and for closing, at the end.
STATUS_EVERY_S, SETTLE_S, DRAIN_S = 1.0, 5.0, 5.0
#: Longest duration of a stop in seconds, whatever a store does; and more seconds for the process to exit.
STOP_S, STOP_MORE_S = 20.0, 5.0
#: Seconds between two clock ticks of the database, and between two attempts to open or start the rest.
TICK_EVERY_S, OPEN_EVERY_S = 0.25, 5.0
#: First and longest pause in seconds before a failed source is opened again; the pause doubles. Number of consecutive
#: failures after which a source counts as ended if all others have.
SOURCE_RETRY_S, SOURCE_RETRY_MAX_S, SOURCE_TRIES = 1.0, 60.0, 5
#: Seconds for which a changed app file must stay unchanged before it is read; seconds for which a query removed from
#: it is kept.
SETTLED_S, REMOVED_S = 2.0, 600.0
#: Seconds after which a write to the archive, or a turn of the loop, is reported as slow.
SLOW_S = 5.0
#: Seconds for which an event too far ahead of the clock is reported.
AHEAD_S = 60.0
#: Seconds for which it is reported that the directory was removed and created again.
EMPTIED_S = 600.0
#: Seconds for which a watermark may stall while events arrive before it is reported.
STANDS_S = 10.0
#: Pieces of one source that are taken before the next source has its turn.
TURN_PIECES = 16
#: Notes of a checkpoint: the number of the delivery file; and the queries removed from the app file, with the times
#: until which they are kept.
DELIVERY, REMOVED = "delivery", "removed"
#: Prefix of the files with rows that a sink rejected.
REFUSED_ROWS = "refused-"


def _wait(event: threading.Event, seconds: float) -> None:
    event.wait(seconds)


@dataclass(frozen=True, slots=True)
class Clock:
    """now: seconds since 1970; ticks: monotonic seconds; wait: waits until an event is set or seconds have passed."""

    now: Callable[[], float] = time.time
    ticks: Callable[[], float] = time.monotonic
    wait: Callable[[threading.Event, float], None] = _wait


@dataclass(slots=True)
class _Running:
    """A running query. before: alerts of replaced versions, which may still have rows. left_out: it was interrupted,
    and checkpoints exclude it."""

    query: Query
    alerts: Alerts
    before: list[Alerts] = field(default_factory=list)
    rows: int = 0
    failure: str | None = None
    left_out: bool = False


@dataclass(slots=True)
class _Failed:
    """A failed source: the reader of the last failure, the number of consecutive failures, and the time of the next
    attempt."""

    reader: Reader
    tries: int
    at_s: float


class Service:
    """Runs an app file. say: writes a log line. threads: False makes `step` do all work itself, in order.

    Call `start`, then `step` until `done`, then `finish`; or `run`, which does all three. `start` raises DataError if
    the database cannot be opened. Later faults are logged, shown in the status and retried; the rest keeps running.
    """

    def __init__(
        self, app: App, say: Callable[[str], None], clock: Clock | None = None, threads: bool = True,
        sources: Callable[[SourceTable, Schema, App], Source] = make_source,
        sinks: Callable[[SinkTable, App], Sink] = make_sink,
    ) -> None:  # fmt: skip
        self.app = app
        self._say = say
        self._clock = clock or Clock()
        self._threads = threads
        self._make_source, self._make_sink = sources, sinks
        self._wake = threading.Event()
        self._stopping = self._reloading = False
        self._queries: dict[str, _Running] = {}
        self._removed: dict[str, tuple[_Running, float]] = {}
        self._mended: set[str] = set()
        self._readers: dict[str, Reader] = {}
        self._outlets: dict[str, Outlet] = {}
        self._leaving: list[Outlet] = []
        self._ended: set[str] = set()
        self._owners: dict[tuple[str, str], str] = {}
        # The time of the last event rejected as too far ahead, by stream; the last such offset reported, by partition.
        self._ahead_s: dict[str, float] = {}
        self._ahead_told: dict[tuple[str, str], int] = {}
        self._bad: Counter[str] = Counter()
        self._repeated = Repeated(say)
        self._rows_in: Counter[str] = Counter()
        self._passed: dict[str, PassedPayloads] = {}
        self._told_before: dict[Path, frozenset[str]] = {}
        self._trouble: dict[str, str] = {}
        self._stood: dict[str, tuple[str | None, int, float]] = {}
        self._retry_s: dict[str, float] = {}  # time of the next attempt, by source whose events could not be stored
        self._delayed: dict[str, tuple[str, ...]] = {}  # queries that cannot start now, with the streams they read
        #: Started queries that are in no checkpoint yet: after a crash they would start anew and miss events. And
        #: those of them in the checkpoint being written.
        self._unkept: dict[str, tuple[str, ...]] = {}
        self._keeping: frozenset[str] = frozenset()
        self._emptied_s: float | None = None  # time at which its directory was created again
        self._settle_by: float | None = None  # time until which a due checkpoint waits for sinks
        self._status: dict[str, Any] = {}
        self._metrics: Any = None
        self._client_log = ClientLog(self._repeated, self._clock.ticks)
        self._tables: dict[str, SourceTable] = {}
        self._failed: dict[str, _Failed] = {}
        self._writing: Future[int] | None = None
        self._writing_since = 0.0
        #: Of the checkpoint being written: the number of its delivery file, and the positions of its streams.
        self._named: tuple[str, dict[str, dict[str, int]]] = "", {}
        self._state = "starting"
        self._doing = ""
        self._started = self._turned = self._clock.now()
        self._turned_s = self._clock.ticks()
        self._pulse: Pulse | None = None
        #: True if it ended without waiting for a store that does not answer.
        self.abandoned = False

    # ---- life

    def start(self) -> None:
        """Opens the database, declares the streams, and starts sinks, queries and sources. Raises DataError if that is
        impossible."""
        self.app.state.mkdir(parents=True, exist_ok=True)
        self._delivery = Delivery(self.app.state)
        try:
            self._begin_status()
            if self._threads:
                self._pulse = self._pulse or Pulse(self._beat, STOP_S + STOP_MORE_S, self._end_late)
                self._pulse.start()
            if self.app.metrics is not None:
                from hybrid.service.metrics import serve

                self._metrics = serve(self.app.metrics.host, self.app.metrics.port, self.status)
            if self.app.database.path is None:  # the facts about topics are dropped with the events
                for file in self.app.state.glob(f"{TOPICS}*.json"):
                    file.unlink()
            self._begin()
        except OSError as error:
            self._delivery.close()
            hint = "free disk space, check the disk and permissions, and start it again: nothing is lost"
            raise DataError(f"the service cannot start; {self._doing or 'its state'}: {error}", hint) from error
        except BaseException:
            self._delivery.close()
            raise
        self._say(f"running {self.app.path.name}: {len(self._readers)} sources, {len(self._queries)} queries, "
                  f"{len(self._outlets)} sinks")  # fmt: skip

    def _begin(self) -> None:
        """Starts everything from the last checkpoint."""
        app = self.app
        self._doing = "opening the database"
        given = app.database
        self.db = Database(
            None if given.path is None else app.place(given.path), given.memory_limit, dict(given.options) or None,
            log="default" if given.log is None else None if given.log == "none" else given.log, ticking=False,
            spark=given.spark, spark_events=given.spark_events, access=app.access, beside=self._threads,
            columns={name: stream.columns for name, stream in app.streams.items()},
        )  # fmt: skip
        try:
            self._delivery.read(self.db.notes.get(DELIVERY))
        except DataError:
            self._delivery.close()
            self.db.close()
            raise
        self._doing = "declaring streams"
        self._declare()
        now = self._clock.ticks()
        self._written_s, self._checkpoint_s, self._ticked_s = -1e9, now, now
        self._rates = account.Rates()
        self._files = Settling(app.files, SETTLED_S)
        self._looked_s = self._opened_s = now
        for name, table in app.sinks.items():
            self._open_sink(name, table)
        self._go_on_removed()
        with self._warned("queries"), self.db.one_checkpoint():
            for i, (name, query) in enumerate(app.queries.items(), 1):
                self._doing = f"starting query {name}, {i:,} of {len(app.queries):,}"
                self._watch(name, query)
            self._doing = "keeping the queries"
        if not self.db.names_kept:
            self._unkept = {name: running.query.reads for name, running in self._queries.items()}
        self._doing = "opening sources"
        for name, source in app.sources.items():
            self._open_source(name, source)
        self._tell_kept()
        self._state = "running"

    def _tell_kept(self) -> None:
        """Reports faults of the rows that the last run left for sinks."""
        for name, parcels in self._delivery.backlog.items():
            rows = sum(parcel.rows.num_rows for parcel in parcels)
            self._fault(
                f"sink {name}", f"{rows:,} rows for it are pending in {self.app.state}; the app file has no such sink"
            )
        if self._delivery.lost is not None:
            self._fault("delivery", self._delivery.lost)

    def run(self) -> int:
        """Runs until SIGTERM or SIGINT, or until every source has ended. Returns the exit code. Call it in the main
        thread."""
        handlers = {s: signal.signal(s, self._signalled) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        self._client_log.start()
        self._pulse = Pulse(self._beat, STOP_S + STOP_MORE_S, self._end_late) if self._threads else None
        try:
            with nullcontext() if self._pulse is None else self._pulse.signals():
                self.start()
                while not self.done:
                    if not self.step():
                        self._clock.wait(self._wake, 0.1)
                        self._wake.clear()
                return self.finish()
        finally:
            self._client_log.stop()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _end_late(self) -> None:
        self._say(f"ends while still busy with {self._doing}: {_UNKEPT}")

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._reloading = True
        else:
            self.stop()
            for again in (signal.SIGTERM, signal.SIGINT):
                signal.signal(again, signal.SIG_DFL)  # a second one ends the process at once
        self._wake.set()

    def stop(self) -> None:
        """Requests the end: no more is read, and what was read is pushed and delivered."""
        self._stopping = True
        self._wake.set()

    @property
    def done(self) -> bool:
        """True if a stop was requested, or all sources have ended and everything is delivered."""
        if self._stopping:
            return True
        over = self._readers and all(r.ended or self._is_given_up(r) for r in self._readers.values())
        return bool(over) and not any(o.waiting for o in self._all_outlets()) and not any(
            name not in self._ended and self._all_ended(name) for name in self._streams_read()
        )

    def step(self) -> bool:
        """Runs one turn of the loop: pushes events, passes rows to sinks, does what is due. Returns True if there was
        anything to push or to pass."""
        self._turned, self._turned_s, self._doing = self._clock.now(), self._clock.ticks(), "events"
        if self._reloading or self._changed():
            self._doing = "a reload"
            asked, self._reloading = self._reloading, False
            try:
                self.reload(asked)
            except (DataError, QueryError, OSError) as error:
                self._fault("app", f"partly reloaded, and retried: {_said(error)}")
                self._files.forget()
        self._mend()
        if not self._threads:
            for reader in self._readers.values():
                reader.turn()
        blocked = self._blocked()
        busy = self._push(blocked)
        self._tick(blocked)
        busy |= self._end_streams()
        busy |= self._fetch(wait=False)
        if not self._threads:
            for outlet in self._all_outlets():
                busy |= outlet.turn()
        self._let_go()
        self._checkpoint_turn()
        self._retry_sources()
        self._end_removed()
        now = self._clock.ticks()
        if now - self._opened_s >= OPEN_EVERY_S:
            self._open_rest()
        if now - self._written_s >= STATUS_EVERY_S:
            self._write_status()
            self._repeated.tell(now)
        return busy

    def finish(self) -> int:
        """Pushes and delivers what was read, takes a checkpoint, and closes everything. Returns the exit code. Takes
        STOP_S at most after a requested stop."""
        over = not self._stopping
        self._state, self._doing = "stopping", "what was read"
        self._say("stopping" if not over else "every source has ended")
        until = self._clock.ticks() + DRAIN_S
        end = float("inf") if over else self._clock.ticks() + STOP_S
        for reader in self._readers.values():
            reader.pause(until - self._clock.ticks())
        # After a requested stop, matches that wait for history stay in the checkpoint.
        wait = over or self.app.database.path is None
        while self._push({}) and self._clock.ticks() < until:
            self._fetch(wait is True or max(0.0, until - self._clock.ticks()))
        self._fetch(wait is True or max(0.0, until - self._clock.ticks()))
        while any(o.waiting and not o.failures for o in self._all_outlets()) and self._clock.ticks() < until:
            if not self._threads:
                for outlet in self._all_outlets():
                    outlet.turn()
            else:
                self._clock.wait(self._wake, 0.02)
        self._doing = "the last checkpoint"
        checkpointed = self._last_checkpoint(end)
        self._write_status()
        self._repeated.tell(self._clock.ticks(), all=True)
        until = min(end, self._clock.ticks() + DRAIN_S)
        ends: list[Reader | Outlet] = [*self._readers.values(), *self._all_outlets()]
        for one in ends if self._threads else ():
            one.close(0.0)  # requests all to close before waiting for one of them
        for one in ends:
            one.close(max(0.0, until - self._clock.ticks()))
        undelivered = sum(p.rows.num_rows for o in self._all_outlets() for p in o.undelivered())
        if undelivered:
            self._say(f"{undelivered:,} rows are undelivered; they are kept in {self.app.state} for the next start")
        failed = [r.name for r in self._readers.values() if r.failure is not None]
        failed += [name for name, running in self._queries.items() if running.failure is not None]
        self._doing = "closing the database"
        try:
            self._close_database(wait, checkpointed, end)
        except (DataError, OSError, TimeoutError) as error:
            self._say(f"closing the database failed: {error}")
            failed.append("database")
            over = True
        if self._metrics is not None:
            self._metrics.close()
        if self._pulse is not None:
            self._pulse.stop()
        self._state = "stopped"
        self._store_status()
        self._delivery.close()
        self._say("stopped")
        return 1 if over and failed else 0

    # ---- events in

    def _push(self, blocked: Mapping[str, str]) -> bool:
        """Pushes what sources have read, some of each in turn, except for blocked streams. Returns True if there was
        something."""
        busy = False
        for reader in self._readers.values():
            stream = reader.stream.lower()
            if reader.name in self._retry_s and stream not in blocked:
                pass  # its fault remains until its events are stored
            elif reader.failure is not None:
                self._fault(f"source {reader.name}", reader.failure + self._again(reader))
            elif reader.trouble is not None:
                self._fault(f"source {reader.name}", reader.trouble)
            elif stream in blocked:
                self._fault(f"source {reader.name}", f"waits: {blocked[stream]}")
            elif reader.reads:
                self._well(f"source {reader.name}")
            if stream in blocked or self._clock.ticks() < self._retry_s.get(reader.name, 0.0):
                continue
            if not self._expect(reader):
                continue
            for _ in range(TURN_PIECES):
                item = reader.take()
                if item is None:
                    break
                busy = True
                if isinstance(item, Bad):
                    self._quarantine(stream, item)
                elif not self._piece(reader, item):
                    break
        return busy

    def _expect(self, reader: Reader) -> bool:
        """Makes the watermark wait for partitions that have sent nothing yet: otherwise it would advance with the first
        one read, and the others would be late. Returns False if that cannot be stored now."""
        new = [p for p in reader.partitions if (reader.stream.lower(), p) not in self._owners]
        if new:
            if not self._rows_kept():
                return False
            try:
                with self._warned(f"stream {reader.stream}"):
                    self.db.expect(reader.stream, new)
            except (OSError, NotKept) as error:
                self._retry_s[reader.name] = self._clock.ticks() + 1.0
                self._fault(f"source {reader.name}", f"its events cannot be stored: {error}")
                return False
            self._retry_s.pop(reader.name, None)
        for partition in new:
            self._owners[reader.stream.lower(), partition] = reader.name
        return True

    def _tick(self, blocked: Mapping[str, str]) -> None:
        """Passes a clock tick to the database, except while sources wait for the service: these are not silent."""
        now = self._clock.ticks()
        if now - self._ticked_s >= TICK_EVERY_S and not blocked and all(now >= s for s in self._retry_s.values()):
            self._ticked_s = now
            with self._warned("clock"):
                self.db.tick()

    def _piece(self, reader: Reader, piece: Piece) -> bool:
        """Pushes the rows of a piece. Returns False if they cannot be stored now, and are retried, or are refused."""
        self._retry_s.pop(reader.name, None)
        owner = self._owner_of(reader, piece.source)
        if owner != reader.name:
            # Events are identified by their partition: those of the second source would count as redelivered, or,
            # if the sources spell a path in two ways, all events would be stored twice.
            reader.fail(
                f"it reads {reader.path_of(piece.source) or piece.source}, which source {owner} reads into the same "
                "stream\nhint: let one source read it, and start again"
            )
            return False
        if reader.stream.lower() in self._ended:
            reader.fail(f"stream {reader.stream} has ended: restart the service to resume it")
            return False
        try:
            self._rows(reader.stream, piece.source, piece.rows, piece.offsets)
            archived = self.db.reached(reader.stream).positions.get(piece.source)
            self._passed[reader.stream.lower()].note(piece, archived)
            if piece.last:
                with self._warned(f"stream {reader.stream}"):
                    self.db.leave(reader.stream, piece.source)
        except (OSError, NotKept) as error:
            # Rows of it that were accepted already are recognised by their offsets.
            reader.give_back(piece)
            self._retry_s[reader.name] = self._clock.ticks() + 1.0
            self._fault(f"source {reader.name}", f"its events cannot be stored: {error}")
            return False
        return True

    def _owner_of(self, reader: Reader, partition: str) -> str:
        """Returns the source that owns a partition: the first one that read it, or the same file by another path, into
        this stream."""
        stream = reader.stream.lower()
        owner = self._owners.get((stream, partition))
        if owner is not None:
            return owner
        path = reader.path_of(partition)
        for other in self._readers.values():
            if path is not None and other is not reader and other.stream.lower() == stream:
                twin = other.partition_at(path)
                if twin is not None and self._owners.get((stream, twin)) == other.name:
                    return other.name
        self._owners[stream, partition] = reader.name
        return reader.name

    def _rows(self, stream: str, source: str, rows: Any, offsets: Int64Array | None) -> None:
        """Pushes rows. Rows that do not fit are found by bisection and quarantined."""
        n = len(rows)
        if not n:
            return
        if any(a.full for r in self._queries.values() for a in (r.alerts, *r.before)):
            self._fetch(wait=False)  # otherwise the push would be rejected
        try:
            with self._warned(f"stream {stream}"):
                self._rows_in[stream.lower()] += self.db.push(stream, self._whole(stream, rows), source, offsets)
        except NotKept:
            raise  # a fault of the store, not of the rows
        except Ahead as error:
            self._too_far_ahead(stream, source, rows, offsets, error)
        except DataError as error:
            if n == 1:
                raw = _shown(rows).encode(errors="backslashreplace")
                place = None if offsets is None else int(offsets[0])
                self._quarantine(stream.lower(), Bad(source, place, raw, error.message))
                return
            for part in (slice(0, n // 2), slice(n // 2, n)):
                some = rows.slice(part.start, part.stop - part.start)
                self._rows(stream, source, some, None if offsets is None else offsets[part])

    def _whole(self, stream: str, rows: Any) -> Any:
        """Returns rows with nulls in the columns of the stream that the app file no longer has."""
        schema = self.db.schema(stream)
        table = next(t for n, t in self.app.streams.items() if n.lower() == stream.lower())
        for name in lacks(schema, table):
            rows = rows.append_column(name, pa.nulls(len(rows), arrow_schema(schema).field(name).type))
        return rows

    def _too_far_ahead(self, stream: str, source: str, rows: Any, offsets: Int64Array | None, error: Ahead) -> None:
        """Quarantines the events that are too far ahead of the clock, and pushes the others. The source then counts as
        read to the end of these rows, so the quarantined events are not checked again."""
        for row in np.flatnonzero(error.rows).tolist():
            place = None if offsets is None else int(offsets[row])
            raw = _shown(rows.slice(row, 1)).encode(errors="backslashreplace")
            if place is None or place > self._ahead_told.get((stream.lower(), source), -1):
                self._quarantine(stream.lower(), Bad(source, place, raw, error.of(row)))
            if place is not None:  # a retry of these rows does not report it again
                self._ahead_told[stream.lower(), source] = place
        self._ahead_s[stream.lower()] = self._clock.ticks()
        kept = np.flatnonzero(~error.rows)
        self._rows(stream, source, rows.take(pa.array(kept)), None if offsets is None else offsets[kept])
        if offsets is not None:
            self.db.skip(stream, source, int(offsets[-1]))

    def _quarantine(self, stream: str, bad: Bad) -> None:
        """Counts a rejected payload, and adds it to the dead letters of the stream."""
        self._bad[stream] += 1
        where = bad.source if bad.offset is None else f"{bad.source}, {bad.offset}"
        tell_refused(self._repeated, stream, where, bad.reason, self._clock.ticks())
        path = self.app.database.path
        name = next(n for n in self.app.streams if n.lower() == stream)
        local = path is not None and "://" not in path
        file = (Path(self.app.place(str(path))) if local else self.app.state) / name / "bad.ndjson"
        line = line_of(bad)
        if file not in self._told_before:
            self._told_before[file] = last_lines(file)
        if bad.offset is not None and line in self._told_before[file]:
            return  # written before a crash, and read again after it
        try:
            removed = dead_letters.append(file, line, self.app.limits.dead_letter_bytes)
        except OSError as error:
            self._fault(f"dead letters of {name}", f"{file} cannot be written: {error.strerror}; missing there: {line}")
            return
        self._well(f"dead letters of {name}")
        if removed is not None:
            self._say(f"dead letters of {name}: the oldest file, {removed.name}, was deleted for newer ones")

    def _end_streams(self) -> bool:
        """Ends the streams whose sources have all ended, so that matches that wait for more events are emitted.
        Returns True if a stream ended."""
        over = [n for n in self._streams_read() if n not in self._ended and self._all_ended(n)]
        for name in over:
            try:
                with self._warned(f"stream {name}"):
                    self.db.advance(name, None)
            except (OSError, NotKept) as error:  # retried by the next turn
                self._fault(f"stream {name}", f"its end cannot be stored: {_said(error)}")
                continue
            except DataError as error:
                self._fault(f"stream {name}", str(error))
            else:
                self._well(f"stream {name}")
            self._ended.add(name)
        return any(name in self._ended for name in over)

    def _streams_read(self) -> list[str]:
        return list(dict.fromkeys(r.stream.lower() for r in self._readers.values()))

    def _all_ended(self, stream: str) -> bool:
        return all(r.ended for r in self._readers.values() if r.stream.lower() == stream)

    def _blocked(self) -> dict[str, str]:
        """Returns the streams that take no events now, with the reason: a sink has too many pending rows of a query on
        them, a query that reads them cannot start or is in no checkpoint, or memory is full."""
        blocked: dict[str, str] = {}
        for name, reads in self._delayed.items():
            blocked |= dict.fromkeys(reads, f"query {name} cannot start: {self.app.state} cannot be written")
        for name, reads in self._unkept.items():
            blocked |= dict.fromkeys(reads, f"query {name} has started, but no checkpoint with it can be written")
        limit = self.app.limits.unread_rows
        readers = {name: running.query.reads for name, running in self._queries.items()}
        readers |= {_late(name): (name.lower(),) for name, stream in self.app.streams.items() if stream.late}
        for name, reads in readers.items():
            for outlet in self._all_outlets():
                if outlet.unread(name) >= limit:
                    why = f"sink {outlet.name} has {outlet.unread(name):,} unread rows of {name}"
                    blocked |= dict.fromkeys(reads, why)
        for name in self._streams_read():
            held = self.db.held(name)
            if held.writes and (
                held.rows >= MEMORY_ROWS_MAX + self.app.limits.queue_rows or held.nbytes >= 2 * MEMORY_BYTES_MAX
            ):
                blocked[name] = "memory is full of events that are not archived yet"
        return blocked

    # ---- rows out

    def _watch(self, name: str, query: Query, anew: bool = False) -> None:
        """Starts a query, or resumes it from the last checkpoint. The only place that does so.

        A query that had ended or failed starts anew with new events: it does not read the archive again. anew: starts
        without backfill."""
        alerts = self.db.watching().get(name)
        if alerts is not None:
            running = _Running(query, alerts)
            if not (alerts.done or alerts.failed):
                self._queries[name] = running
                if alerts.plan.text != query.text:
                    self._replace(name, running, query)
                else:
                    self._shed(name, running)
                return
            self._queries[name] = running
            self._close_query(name)
            anew = True
        if not self._rows_kept():
            self._delayed[name] = query.reads  # retried by _open_rest
            return
        self._delayed.pop(name, None)
        named = name if self.app.database.path is not None else None  # a database in memory has no checkpoints
        start = None if anew else query.start_us
        try:
            with self._warned(f"query {name}"):
                alerts = self.db.watch(query.text, evidence=True, name=named, shed=query.shed, start=start)
                self._queries[name] = _Running(query, alerts)
                self._well(f"query {name}")
                if self.db.names_kept:
                    self._unkept.clear()
                else:
                    self._unkept[name] = query.reads
        except (QueryError, DataError) as error:
            self._fault(f"query {name}", _said(error))

    def _fetch(self, wait: bool | float = True) -> bool:
        """Passes rows of queries, and late events, to their sinks. wait: for history that is being read, or seconds of
        that. Returns True if there were rows."""
        busy = False
        for name, stream in self.app.streams.items():
            if stream.late is not None and (events := self.db.late(name).fetch()).num_rows:
                busy = True
                self._outlets[stream.late].put(_late(name), late_rows(events, name))
        for name, running in self._queries.items():
            if running.failure is not None:
                continue
            for alerts in (*running.before, running.alerts):
                try:
                    rows = alerts.fetch(wait)
                except MemoryError:
                    self._fault(f"memory of {name}", "out of memory for its rows: they are fetched again")
                    break
                except Exception as error:  # noqa: BLE001  (a fault of this query only; the others continue)
                    running.failure = _said(error)
                    self._fault(f"query {name}", running.failure)
                    break
                self._well(f"memory of {name}")
                busy |= self._hand_out(name, running, rows)
            running.before = [a for a in running.before if not (a.done or a.failed)]
        return busy

    def _hand_out(self, name: str, running: _Running, rows: pa.Table) -> bool:
        if not rows.num_rows:
            return False
        running.rows += rows.num_rows
        for sink in running.query.sinks:
            self._outlets[sink].put(name, rows)
        return True

    def _all_outlets(self) -> list[Outlet]:
        return [*self._outlets.values(), *self._leaving]

    # ---- streams, sources and sinks

    def _declare(self) -> None:
        for name, stream in self.app.streams.items():
            with self._warned(f"stream {name}"):
                for said in declare(self.db, name, self.app.stream(name)):
                    self._say(f"stream {name}: {said}")
            if stream.late is not None:
                self.db.late(name)  # from now on late events are buffered for `_fetch`

    def _open_source(self, name: str, table: SourceTable) -> None:
        source = self._made(name, table, f"source {name}", "")
        if source is not None:
            self._read_source(name, table, source)

    def _made(self, name: str, table: SourceTable, where: str, so: str) -> Source | None:
        """Returns a source, not opened, or None if it cannot be made. Reports the fault at `where`, with the prefix
        `so`."""
        try:
            schema, key = self.db.schema(table.stream), table.stream.lower()
            lacking = lacks(schema, next(t for n, t in self.app.streams.items() if n.lower() == key))
            if key not in self._passed:
                self._passed[key] = PassedPayloads(marks_of(self.app, table.stream))
            self._passed[key].positions(self.db.reached(table.stream).positions)  # before the old one ends
            read = replace(schema, fields=tuple(f for f in schema.fields if f.name not in lacking))
            return self._make_source(table, read, self.app)
        except Exception as error:  # noqa: BLE001  (a fault of this source only; the others continue)
            self._fault(where, so + _said(error))
            return None

    def _read_source(self, name: str, table: SourceTable, source: Source) -> None:
        positions = self._passed[table.stream.lower()].positions(self.db.reached(table.stream).positions)
        reader = Reader(name, table.stream, source, positions, self.app.limits.queue_rows, self._wake)
        self._readers[name], self._tables[name] = reader, table
        if self._threads:
            reader.start()

    def _open_sink(self, name: str, table: SinkTable) -> None:
        """Creates the outlet of a sink. It takes rows from now on, whether or not the sink can be opened yet."""
        outlet = Outlet(
            name, partial(self._make_sink, table, self.app), self._delivery.cursor(name, target_of(table)),
            self._delivery.backlog.pop(name, ()), self.app.limits.unread_rows, self._clock.ticks, self._clock.now,
            getattr(table, "refusals", None), partial(self._set_aside, name),
        )  # fmt: skip
        self._outlets[name] = outlet
        if self._threads:
            outlet.start()

    def _set_aside(self, sink: str, id: str, row: str, reason: str) -> None:
        """Stores a row that a sink rejected. Runs in the sink's thread. Raises OSError."""
        file = self.app.state / f"{REFUSED_ROWS}{sink}.ndjson"
        line = json.dumps({"sink": sink, "id": id, "reason": reason, "row": json.loads(row)}, ensure_ascii=False)
        removed = dead_letters.append(file, line, self.app.limits.dead_letter_bytes)
        tell_refused_row(self._repeated, sink, id, reason, file.name, self._clock.ticks())
        if removed is not None:
            self._say(f"sink {sink}: the oldest file, {removed.name}, was deleted for newer ones")

    def _open_rest(self) -> None:
        """Opens sources and starts queries that could not be before, for example because of a full disk."""
        self._opened_s = self._clock.ticks()
        if self._unkept:
            self._checkpoint_s = -1e9
        for name, query in self.app.queries.items():
            if name not in self._queries:
                self._watch(name, query)
        for name, source in self.app.sources.items():
            if name not in self._readers:
                self._open_source(name, source)
            elif self._tables[name] != source:
                self._change_source(name, source)

    def _change_source(self, name: str, table: SourceTable) -> None:
        """Replaces a source by its changed table. Keeps the old one if the new one cannot be made."""
        where = f"change of source {name}"
        source = self._made(name, table, where, "not applied, the old source keeps running: ")
        if source is not None:
            self._well(where)
            self._close_source(name)
            self._read_source(name, table, source)

    def _retry_sources(self) -> None:
        """Opens failed sources again, with growing pauses, after what they had read is pushed."""
        now = self._clock.ticks()
        for name, reader in list(self._readers.items()):
            if reader.failure is None:
                if reader.reads:
                    self._failed.pop(name, None)
                continue
            if reader.refused:
                continue
            failed = self._failed.get(name)
            if failed is None or failed.reader is not reader:
                tries = 0 if failed is None else failed.tries
                pause_s = min(SOURCE_RETRY_MAX_S, SOURCE_RETRY_S * 2**tries)
                self._failed[name] = _Failed(reader, tries + 1, now + pause_s)
            elif now >= failed.at_s and not reader.queued:
                source = self._made(name, self._tables[name], f"source {name}", "")
                if source is None:
                    failed.at_s = now + SOURCE_RETRY_MAX_S
                    continue
                reader.close(0.0)
                self._read_source(name, self._tables[name], source)

    def _again(self, reader: Reader) -> str:
        """Returns the number of failures of a source and the time until the next attempt, as text, or ""."""
        failed = self._failed.get(reader.name)
        if failed is None or failed.reader is not reader or reader.refused:
            return ""
        return f" (failed {failed.tries} times, again in {max(0.0, failed.at_s - self._clock.ticks()):.0f} s)"

    def _is_given_up(self, reader: Reader) -> bool:
        """True if a failed source counts as ended once all others have: its failure is permanent, it was never read, or
        it failed more than SOURCE_TRIES times in a row."""
        if reader.failure is None:
            return False
        failed = self._failed.get(reader.name)
        # A failure that `_retry_sources` has not seen yet counts too.
        tries = 0 if failed is None else failed.tries + (failed.reader is not reader)
        return reader.refused or tries > SOURCE_TRIES or (tries <= 1 and not reader.reads)

    def _close_source(self, name: str) -> None:
        """Stops reading a source, pushes what was read, and closes it. A source that can resume reads again what cannot
        be pushed now."""
        reader = self._readers[name]
        reader.pause(1.0)
        while (item := reader.take()) is not None:
            if isinstance(item, Bad):
                self._quarantine(reader.stream.lower(), item)
            elif not self._piece(reader, item):
                break
        reader.close(1.0)
        del self._readers[name], self._tables[name]
        self._failed.pop(name, None)
        self._retry_s.pop(name, None)
        self._owners = {partition: owner for partition, owner in self._owners.items() if owner != name}
        self._well(f"source {name}")

    # ---- queries removed from the file

    def _go_on_removed(self) -> None:
        """Keeps running, for a while, the queries of the checkpoint that are not in the file."""
        told = json.loads(self.db.notes.get(REMOVED, "{}"))
        for name, alerts in self.db.watching().items():
            if name in self.app.queries:
                continue
            until = float(told.get(name, self._clock.now() + REMOVED_S))
            query = Query(alerts.plan.text, (), plan_streams(alerts.plan))
            self._removed[name] = _Running(query, alerts), until
            if name not in told:
                self._say(f"query {name}: it is no longer in the file; {_kept_until(until)}")

    def _remove(self, name: str) -> None:
        """Keeps a query that was removed from the file running for a while, as it may return."""
        self._fetch()
        running = self._queries.pop(name)
        self._well(f"query {name}")
        until = self._clock.now() + REMOVED_S
        self._removed[name] = running, until
        self._say(f"query {name}: it is no longer in the file; {_kept_until(until)}")

    def _end_removed(self, at_once: bool = False) -> None:
        """Ends removed queries whose time is over, that have too many pending rows, or that have failed."""
        for name, (running, until) in list(self._removed.items()):
            many = sum(a.unread_count for a in (running.alerts, *running.before)) > self.app.limits.unread_rows
            failed = running.alerts.failed or running.alerts.done
            if not (at_once or many or failed or self._clock.now() >= until):
                continue
            why = "it has too many pending rows" if many else "it has failed" if failed else "its time is over"
            if not self._rows_kept():
                return
            self._say(f"query {name}: it was removed from the file, and ends{'' if at_once else f': {why}'}")
            del self._removed[name]
            running.alerts.close()

    # ---- interrupted queries

    def _mend(self) -> None:
        """Recovers queries that were interrupted in the middle of a batch, for example out of memory. Their state is
        invalid and prevents checkpoints, so the service goes back to the last checkpoint, as after a crash, and matches
        the events since then again. A query interrupted again before the next checkpoint is excluded."""
        broken = [name for name, r in self._queries.items() if r.alerts.interrupted and not r.left_out]
        for name in [n for n in broken if n in self._mended or self.app.database.path is None]:
            broken.remove(name)
            running = self._queries[name]
            self._fetch(wait=False)
            running.failure, running.left_out = f"{running.failure or 'it was interrupted'}: {_LEFT_OUT}", True
            self._fault(f"query {name}", running.failure)
            self._keep_rows()
            running.alerts.close()
        if broken:
            self._mended.update(broken)
            for name in broken:
                self._trouble.pop(f"query {name}", None)
            self._say(f"query {', '.join(broken)}: interrupted in the middle of a batch; all queries go back to the "
                      "last checkpoint, and the events since then are matched again")  # fmt: skip
            self._go_back()

    def _go_back(self) -> None:
        """Restarts from the last checkpoint, as a new process would after a crash."""
        self._doing = "going back to the last checkpoint"
        ends: list[Reader | Outlet] = [*self._readers.values(), *self._all_outlets()]
        for one in ends:
            one.close(2.0)
        try:
            self.db.close(False)  # takes no checkpoint with an interrupted query
        except (DataError, OSError) as error:
            self._say(f"closing the database failed: {error}")
        self._delivery.close()
        self._delivery = Delivery(self.app.state)
        for kept in (self._queries, self._removed, self._readers, self._tables, self._failed, self._outlets,
                     self._owners, self._retry_s, self._leaving, self._ended, self._passed, self._delayed,
                     self._unkept):  # fmt: skip
            kept.clear()
        self._settle_by = self._writing = None
        self._begin()

    def _close_query(self, name: str) -> None:
        running = self._queries[name]
        self._fetch()
        self._rows_kept()
        running.alerts.close()
        self._fetch()
        del self._queries[name]
        self._unkept.pop(name, None)
        self._well(f"query {name}")

    # ---- checkpoints

    def _checkpoint_turn(self) -> None:
        """Advances the periodic checkpoint of events and deliveries, after which sources may acknowledge. In steps
        between which events are taken: sinks make rows durable, the state is copied, a thread of the database writes
        it."""
        now = self._clock.ticks()
        if self._writing is not None:
            if not self._writing.done():
                if self._clock.now() - self._writing_since > SLOW_S and "checkpoint" not in self._trouble:
                    self._fault("checkpoint", _slow(self._writing_since))
                return
            self._end_checkpoint()
        if now - self._checkpoint_s >= self.app.database.checkpoint.total_seconds() and self._settled(now):
            self._begin_checkpoint()
            if self._writing is not None and self._writing.done():
                self._end_checkpoint()

    def _begin_checkpoint(self) -> None:
        """Copies the state, and starts writing it."""
        self._doing, self._checkpoint_s = "a checkpoint", self._clock.ticks()
        future: Future[int] = Future()
        try:
            self._keep_rows()
            self._well("outbox")
            archived = {name: self.db.reached(name).positions for name in self._streams_read()}
            positions = {
                name: self._passed[name].begin_checkpoint(at) if name in self._passed else at
                for name, at in archived.items()
            }
            if self.app.database.path is None:
                future.set_result(0)
            elif self._threads:
                future = self.db.begin_checkpoint()
            else:
                future.set_result(self.db.checkpoint())
        except (DataError, OSError, MemoryError) as error:
            self._fault("checkpoint", _said(error))
            return
        self._writing, self._writing_since = future, self._clock.now()
        self._named = self.db.notes[DELIVERY], positions
        self._keeping = frozenset(self._unkept)

    def checkpoint(self) -> bool:
        """Takes a checkpoint now and waits for it. Returns True if it was written."""
        self._begin_checkpoint()
        return self._writing is not None and self._wait_written(self._clock.ticks() + STOP_S)

    def _end_checkpoint(self) -> bool:
        """Finishes a checkpoint whose write has ended: reports a failure, or forgets older deliveries and lets sources
        acknowledge. Returns True if it was written."""
        assert self._writing is not None
        failure, self._writing = self._writing.exception(), None
        if failure is not None:
            self._fault("checkpoint", str(failure) if isinstance(failure, (DataError, OSError)) else repr(failure))
            return False
        delivered, positions = self._named
        for name in self._keeping:
            self._unkept.pop(name, None)
        try:
            self._delivery.forget(delivered)
            for name in positions.keys() & self._passed.keys():
                self._passed[name].end_checkpoint()
        except OSError as error:
            self._fault("checkpoint", str(error))
        else:
            self._well("checkpoint")
        self._mended.clear()
        for reader in self._readers.values():
            if reader.stream.lower() in positions:
                reader.kept(positions[reader.stream.lower()])
        return True

    def _last_checkpoint(self, end: float) -> bool:
        """Takes the last checkpoint, waiting until `end` at most. Returns True if it was written."""
        if self._writing is not None:  # an earlier checkpoint is being written
            self._wait_written(end)
        if self._writing is not None:
            return False
        for outlet in self._all_outlets():
            outlet.ask()
        until = min(end, self._clock.ticks() + SETTLE_S)
        for outlet in self._all_outlets():
            outlet.settle(max(0.0, until - self._clock.ticks()))
        self._begin_checkpoint()
        return self._writing is not None and self._wait_written(end)

    def _wait_written(self, end: float) -> bool:
        """Waits for the checkpoint, until `end` at most. Returns True if it was written."""
        assert self._writing is not None
        wait_for([self._writing], _seconds(end - self._clock.ticks()))
        return self._writing.done() and self._end_checkpoint()

    def _close_database(self, wait: bool, checkpointed: bool, end: float) -> None:
        """Closes the database. Raises TimeoutError if that takes longer than `end`; the database is then left as after
        a crash."""
        if not self._threads:
            self.db.close(wait, not checkpointed)
            return
        closer = Daemons(1, "hybrid-close")
        closing = closer.submit(self.db.close, wait, not checkpointed)
        closer.shutdown(wait=False)
        try:
            closing.result(_seconds(end - self._clock.ticks()))
        except TimeoutError:
            if closing.done():
                raise
            self.abandoned = True
            self.db.abandon()
            raise TimeoutError(f"the disk or the store does not answer: {_UNKEPT}") from None
        # A thread that a store keeps waiting would keep the process too.
        self.abandoned = any(thread.name in (KEEPER, RENEWER) for thread in threading.enumerate())

    def _settled(self, now: float) -> bool:
        """Asks the sinks to make their rows durable. Returns True once they have, or SETTLE_S have passed; until then
        the loop goes on."""
        if self._settle_by is None:
            self._settle_by = now + SETTLE_S
            for outlet in self._all_outlets():
                outlet.ask()
        if now < self._settle_by and not all(outlet.settled for outlet in self._all_outlets()):
            return False
        self._settle_by = None
        return True

    def _let_go(self) -> None:
        """Closes the sinks removed from the file, once they have taken their rows. If a changed sink fails, its rows go
        to the new sink of its name."""
        for outlet in list(self._leaving):
            follower = self._outlets.get(outlet.name)
            if outlet.failures and follower is not None:
                follower.take_over(outlet.undelivered())
            elif outlet.waiting:
                continue
            else:
                outlet.ask()
                if outlet.undelivered():
                    continue
            outlet.close(0.0)
            self._leaving.remove(outlet)
            self._well(f"old sink {outlet.name}")

    def _keep_rows(self) -> None:
        """Stores the cursors of sinks and their pending rows, and notes the file for the next checkpoint of the
        database. Called before each checkpoint, also before those that the database takes itself when a query starts,
        is replaced or ends: for the database these rows are fetched. After a crash before that checkpoint, the service
        resumes from the earlier one and its file."""
        outlets = [*self._leaving, *self._outlets.values()]
        cursors = {outlet.name: outlet.cursor for outlet in outlets}  # before the rows: later cursors include more
        kept = {name: list(parcels) for name, parcels in self._delivery.backlog.items()}
        for outlet in outlets:
            kept.setdefault(outlet.name, []).extend(outlet.undelivered())
        targets = {name: target_of(self.app.sinks[name]) for name in self._outlets if name in self.app.sinks}
        removed = json.dumps({name: until for name, (_, until) in self._removed.items()})
        self._keep_directory()
        self.db.notes = {DELIVERY: self._delivery.write(cursors, targets, kept), REMOVED: removed}

    def _keep_directory(self) -> None:
        """Creates the directory of the service again if it was removed, and reports what was lost with it."""
        now = self._clock.ticks()
        try:
            if self._delivery.make_again():
                self._emptied_s = now
                self._checkpoint_s = -1e9  # a checkpoint is due at once: it stores the pending rows again
        except OSError as error:
            hint = "create it for the user of the service, or mount its disk; the service then recovers by itself"
            self._fault("state", f"{self.app.state} was removed and cannot be created: {error.strerror}; {hint}")
        else:
            recent = self._emptied_s is not None and now - self._emptied_s < EMPTIED_S
            self._judge("state", _EMPTIED.format(self.app.state) if recent else None)

    def _rows_kept(self) -> bool:
        """Stores pending rows of sinks. Returns False, and reports it, if that fails: a crash before the next
        checkpoint would then lose them."""
        try:
            self._keep_rows()
        except OSError as error:
            self._fault("outbox", f"{self.app.state} cannot be written: {error}")
            return False
        self._well("outbox")
        return True

    # ---- reload

    def _changed(self) -> bool:
        """True if a file of the app has changed and settled. Checks once a second."""
        if self._clock.ticks() - self._looked_s < STATUS_EVERY_S:
            return False
        self._looked_s = self._clock.ticks()
        return self._files.changed(self.app.files, self._looked_s)

    def reload(self, asked: bool = True) -> None:
        """Applies the changes of the app file. If it has a fault, or a change that needs a restart, nothing changes.
        asked: requested by SIGHUP: removed queries end at once."""
        try:
            app = load(self.app.path)
            if asked:
                self._end_removed(at_once=True)
            else:
                check_not_emptied(self.app, app)
            removed = {name: running for name, (running, _) in self._removed.items()}
            reads = {name: running.query.reads for name, running in (removed | self._queries).items()}
            check_change(self.app, app, reads)
        except (AppError, DataError) as error:
            self._fault("app", f"not reloaded: {error.render() if isinstance(error, AppError) else error}")
            return
        was, self.app = self.app, app
        self._files = Settling(app.files, SETTLED_S)
        self._well("app")
        self._delayed = {name: reads for name, reads in self._delayed.items() if name in app.queries}
        # New sinks first, removed ones last: rows fetched meanwhile have their sink.
        for name in [n for n, t in was.sinks.items() if n in app.sinks and app.sinks[n] != t]:
            self._leaving.append(self._outlets.pop(name))
        for name, sink in app.sinks.items():
            if name not in self._outlets:
                self._open_sink(name, sink)
        before = {name: stream.columns for name, stream in was.streams.items()}
        columns = {n.lower() for n, s in app.streams.items() if before.get(n, s.columns) != s.columns}
        for name in [n for n, t in self._tables.items() if n not in app.sources or t.stream.lower() in columns]:
            self._close_source(name)
        for name in [n for n in self._queries if n not in app.queries]:
            if asked:
                self._close_query(name)
            else:
                self._remove(name)
        self._rows_kept()
        self._declare()
        for name in [n for n in self._removed if n in app.queries]:
            self._queries[name], _ = self._removed.pop(name)
            self._say(f"query {name}: it is in the file again, and continues where it was")
        for name, query in app.queries.items():
            running = self._queries.get(name)
            if running is None:
                self._watch(name, query)
            elif running.query.text == query.text and running.failure is None:
                running.query = query
                self._shed(name, running)
            else:
                self._replace(name, running, query)
        for name in [n for n in self._outlets if n not in app.sinks]:
            self._leaving.append(self._outlets.pop(name))
            self._well(f"sink {name}")
        for name, source in app.sources.items():
            if name not in self._readers:
                self._open_source(name, source)
            elif self._tables[name] != source:
                self._change_source(name, source)
        self._say(f"reloaded {app.path.name}: {len(self._readers)} sources, {len(self._queries)} queries, "
                  f"{len(self._outlets)} sinks")  # fmt: skip

    def _replace(self, name: str, running: _Running, query: Query) -> None:
        """Replaces a query by a new version. Keeps the old one if the new one is rejected."""
        if running.failure is not None:
            self._close_query(name)
            self._watch(name, query, anew=True)
            return
        self._fetch()
        self._rows_kept()
        try:
            with self._warned(f"query {name}"):
                alerts = self.db.replace(running.alerts, query.text, evidence=True)
        except (QueryError, DataError) as error:
            self._fault(f"query {name}", f"not replaced, the old version keeps running: {_said(error)}")
            running.query = replace(running.query, sinks=query.sinks)  # its old sinks may be removed
            return
        self._well(f"query {name}")
        running.before.append(running.alerts)
        running.alerts, running.query = alerts, query
        self._shed(name, running)

    def _shed(self, name: str, running: _Running) -> None:
        """Applies the load shedding of the app file to a running query."""
        try:
            with self._warned(f"query {name}"):
                self.db.shed(running.alerts, running.query.shed)
        except (QueryError, DataError) as error:
            self._fault(f"query {name}", f"its `shed` is not applied: {_said(error)}")

    # ---- status

    def status(self) -> dict[str, Any]:
        """Returns the content of the status file; see hybrid.service.status."""
        return self._status

    def _begin_status(self) -> None:
        none: dict[str, Any] = {}
        self._status = {
            "version": VERSION, "pid": os.getpid(), "host": socket.gethostname(), "began": process_began(os.getpid()),
            "app": str(self.app.path), "started": self._started, "streams": none, "queries": none, "sources": none,
            "sinks": none,
        }  # fmt: skip
        self._store_status()

    def _write_status(self) -> None:
        """Collects the figures; writes them if there is no heartbeat thread to do it."""
        self._written_s = self._clock.ticks()
        self._keep_directory()
        self._take_account(self._clock.now())
        if self._pulse is None:
            self._store_status()

    def _store_status(self) -> None:
        """Writes the figures last collected, with the present state, faults and loop. Thread safe."""
        now = self._clock.now()
        self._status = {
            **self._status, "state": self._state, "written": now, "trouble": dict(self._trouble),
            "loop": {"turned": self._turned, "doing": self._doing},
        }  # fmt: skip
        try:
            write_status(self.app.state, self._status)
        except OSError as error:
            touch_status(self.app.state, now)
            self._fault("status", str(error))
        else:
            self._well("status")

    def _beat(self) -> None:
        """Called by the heartbeat thread: reports a loop that does not turn, and writes the status."""
        busy = self._state == "running" and self._clock.ticks() - self._turned_s > SLOW_S
        self._judge("loop", f"busy with {self._doing} since {_clock(self._turned)}" if busy else None)
        self._store_status()

    def _take_account(self, now: float) -> None:
        for what, outlets in (("sink", self._outlets.values()), ("old sink", self._leaving)):
            for outlet in outlets:
                while outlet.notices:
                    self._say(f"{what} {outlet.name}: {outlet.notices.popleft()}")
                self._judge(f"{what} {outlet.name}", outlet.trouble())
        rates = self._rates
        counts = Counter({f"stream {name}": rows for name, rows in self._rows_in.items()})
        counts |= Counter({f"query {name}": running.rows for name, running in self._queries.items()})
        counts |= Counter({f"sink {name}": outlet.rows_written for name, outlet in self._outlets.items()})
        rates.take(self._clock.ticks(), counts)
        blocked, known = self._blocked(), {name.lower(): told for name, told in self.db.streams().items()}
        streams = {}
        for name, table in self.app.streams.items():
            key = name.lower()
            told = known[key]
            self._judge(f"watermark of {name}", self._stands(name, told, table.idle))
            self._judge_archive(name)
            reached = self.db.reached(name)
            self._judge(f"late events of {name}", account.late_trouble(told["lately"], reached.watermark_us, now))
            refused_s = self._ahead_s.get(key)
            ahead = "events too far ahead of the clock are quarantined in bad.ndjson: check the clock of the sender"
            recent = refused_s is not None and self._clock.ticks() - refused_s < AHEAD_S
            self._judge(f"times of {name}", ahead if recent else None)
            figures = account.of_stream(told, reached, now)
            streams[name] = figures | {
                "rate": rates.of(f"stream {key}"), "bad": self._bad[key], "waits": blocked.get(key)
            }  # fmt: skip
        queries = {}
        for name, running in self._queries.items():
            stats = running.alerts.stats()
            share = stats.get("kept_share", 1)
            sheds = f"overload: it sheds keys and keeps {share:.3g} of them"
            self._judge(f"load of {name}", sheds if share < 1 else None)
            queries[name] = account.of_query(stats, running.failure is not None) | {
                "rows": running.rows, "rate": rates.of(f"query {name}"),
                "unread": max((o.unread(name) for o in self._all_outlets()), default=0),
            }  # fmt: skip
        sinks = {
            name: account.of_sink(outlet) | {"rate": rates.of(f"sink {name}")} for name, outlet in self._outlets.items()
        }
        self._status = {
            **self._status, "taken": now, "streams": streams, "queries": queries,
            "sources": {name: account.of_source(reader) for name, reader in self._readers.items()}, "sinks": sinks,
            "removed": {name: until for name, (_, until) in self._removed.items()}, "trouble": dict(self._trouble),
        }  # fmt: skip

    def _judge_archive(self, stream: str) -> None:
        """Reports an archive that does not take events of its stream."""
        held, where = self.db.held(stream), f"archive of {stream}"
        if held.failure is not None:
            self._fault(where, f"events stay in memory and cannot be archived now: {held.failure}")
        elif held.since_s is not None and time.time() - held.since_s > SLOW_S:
            if where not in self._trouble:
                self._fault(where, _slow(held.since_s))
        else:
            self._well(where)

    def _stands(self, name: str, told: Mapping[str, Any], idle: timedelta | None) -> str | None:
        """Returns the report of a watermark that stalls while events arrive, with the source that holds it, or None.
        told: of Database.streams."""
        mark, accepted, now = told["watermark"], told["accepted"], self._clock.ticks()
        if told["expected"] and idle is None:
            return f"waits for {', '.join(told['expected'])}, which sent nothing yet; `idle` limits the wait"
        since = self._stood.get(name)
        if told["held_by"] is None or since is None or since[0] != mark:
            since = self._stood[name] = mark, accepted, now
        patience_s = STANDS_S + (0.0 if idle is None else idle.total_seconds())
        if accepted == since[1] or now - since[2] < patience_s:
            return None
        source, silent = told["held_by"]["source"], told["held_by"]["since"]
        return f"stalls at {mark} while events arrive: it waits for {source}, which has sent nothing since {silent}" + (
            "; `idle` limits the wait" if idle is None else ""
        )

    def _fault(self, where: str, what: str) -> None:
        """Sets the fault of a component, and logs it if it is new."""
        head = what.split(" (failed")[0]
        if self._trouble.get(where, "").split(" (failed")[0] != head:
            self._say(f"{where}: {head}")
        self._trouble[where] = what

    def _judge(self, where: str, what: str | None) -> None:
        if what is None:
            self._well(where)
        else:
            self._fault(where, what)

    def _well(self, where: str) -> None:
        if self._trouble.pop(where, None) is not None:
            self._say(f"{where}: recovered")

    @contextmanager
    def _warned(self, where: str) -> Iterator[None]:
        """Logs the warnings of Hybrid that the block raises."""
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", HybridWarning)
            yield
        for warning in found:
            if issubclass(warning.category, HybridWarning):
                self._say(f"{where}: {warning.message}")


_UNKEPT = (
    "events that it has not taken are in the log, or are read again at the next start; without a log, those of a "
    "source that cannot resume are lost"
)
_EMPTIED = (
    "{} or its content was removed, and is created again: the next checkpoint stores pending rows and the facts about "
    "files again; the facts about topics, and the dead letters of a store, are lost"
)
_LEFT_OUT = (
    "it is excluded, and its matches in progress are lost; others continue. Change its text or restart to start it anew"
)


def _slow(since: float) -> str:
    return f"a write has been pending since {_clock(since)}: the disk or the store is slow or does not answer"


def _clock(when: float) -> str:
    return f"{datetime.fromtimestamp(when, UTC):%H:%M:%S} UTC"


def _kept_until(until: float) -> str:
    return f"it keeps running until {_clock(until)}, in case it returns; SIGHUP ends it at once"


def _seconds(left: float) -> float | None:
    """Returns seconds as a timeout: at least 0, None for no limit."""
    return None if left == float("inf") else max(0.0, left)


def _late(stream: str) -> str:
    """Returns the name of a stream's late events among the queries; no query can have it."""
    return f"late events of {stream}"


def _said(error: Exception) -> str:
    known = isinstance(error, (QueryError, DataError, OSError))
    return str(error) if known else f"{type(error).__name__}: {error}"


def _shown(rows: Any) -> str:
    """Returns a single row as JSON."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    # Arrow's to_pylist() raises for times that Python cannot represent.
    return shown_rows(rows, [0])[0] if isinstance(rows, pa.Table) else json.dumps(next(iter(rows)), default=str)
