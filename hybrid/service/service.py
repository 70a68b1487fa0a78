"""`hybrid run`: the loop between sources, a database and sinks, with its checkpoints, its reloads and its account.

One thread, that of `run`, pushes, asks and hands out. Each source is read and each sink is written by a thread of its
own (hybrid.service.source_reader, hybrid.service.sink_writer), files and checkpoints are written by threads of the
database, and the status by one that waits for nobody (hybrid.service.pulse): so none of them holds up the others.
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

#: Seconds: between two writings of the status and looks at the files; what sinks are given at a checkpoint, and at the
#: end, to take what they were handed, and to be closed.
STATUS_EVERY_S, SETTLE_S, DRAIN_S = 1.0, 5.0, 5.0
#: A stop takes no longer than this, in seconds, whatever a store does; and a little more for the process to end.
STOP_S, STOP_MORE_S = 20.0, 5.0
#: How often the database looks at the clock, and what could not be opened is tried again, in seconds.
TICK_EVERY_S, OPEN_EVERY_S = 0.25, 5.0
#: A source that has failed is opened again in this many seconds, then twice as many, up to the last; and one that had
#: been read counts as over, where all others are, when it has failed so many times in a row.
SOURCE_RETRY_S, SOURCE_RETRY_MAX_S, SOURCE_TRIES = 1.0, 60.0, 5
#: A changed app file is read when it has stayed as it is for so many seconds; what a query that is gone from it has
#: become is kept for so many.
SETTLED_S, REMOVED_S = 2.0, 600.0
#: A write to the archive that takes longer, or a loop that is not back after so many seconds, is a trouble.
SLOW_S = 5.0
#: For how long it is a trouble that an event was too far ahead of the clock, in seconds.
AHEAD_S = 60.0
#: For how long it is a trouble that the directory was gone and has been made again, in seconds.
EMPTIED_S = 600.0
#: How long a watermark may stand while events arrive, in seconds, before that is a trouble.
STANDS_S = 10.0
#: How many pieces of one source are taken before the next one has its turn.
TURN_PIECES = 16
#: The notes of a checkpoint: what the sinks had by then; and the queries that are gone from the file, with the time
#: until which they are kept.
DELIVERY, REMOVED = "delivery", "removed"
#: How the names of files begin, in its directory, with rows that a sink has refused.
REFUSED_ROWS = "refused-"


def _wait(event: threading.Event, seconds: float) -> None:
    event.wait(seconds)


@dataclass(frozen=True, slots=True)
class Clock:
    """now: seconds since 1970; ticks: seconds that never go back; wait: until an event is set or seconds are over."""

    now: Callable[[], float] = time.time
    ticks: Callable[[], float] = time.monotonic
    wait: Callable[[threading.Event, float], None] = _wait


@dataclass(slots=True)
class _Running:
    """A query that runs. before: alerts of versions it has replaced, which may still have something to say. left_out:
    it was interrupted, and checkpoints are taken without it."""

    query: Query
    alerts: Alerts
    before: list[Alerts] = field(default_factory=list)
    rows: int = 0
    failure: str | None = None
    left_out: bool = False


@dataclass(slots=True)
class _Failed:
    """A source that has failed so many times in a row, the last time with this reader, and when it is tried again."""

    reader: Reader
    tries: int
    at_s: float


class Service:
    """What an app file says, running. say: tells people; threads: False lets `step` do all work itself, in order.

    start, then step until it is done, then finish; or run, which does all three. Raises DataError where the database
    cannot be opened; what fails later is said, kept in the status and tried again, and the rest goes on.
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
        # By stream when an event was last refused as too far ahead; by partition the last such event that is told.
        self._ahead_s: dict[str, float] = {}
        self._ahead_told: dict[tuple[str, str], int] = {}
        self._bad: Counter[str] = Counter()
        self._repeated = Repeated(say)
        self._rows_in: Counter[str] = Counter()
        self._passed: dict[str, PassedPayloads] = {}
        self._told_before: dict[Path, frozenset[str]] = {}
        self._trouble: dict[str, str] = {}
        self._stood: dict[str, tuple[str | None, int, float]] = {}
        self._retry_s: dict[str, float] = {}  # by source whose events could not be kept, when that is tried again
        self._delayed: dict[str, tuple[str, ...]] = {}  # queries that cannot begin now, and the streams they read
        #: Queries that have begun and are in no checkpoint yet: after a crash they would begin anew, behind what they
        #: have missed. And those of them that are in the one that is being written.
        self._unkept: dict[str, tuple[str, ...]] = {}
        self._keeping: frozenset[str] = frozenset()
        self._emptied_s: float | None = None  # when its directory was made again
        self._settle_by: float | None = None  # when the checkpoint that is due waits for sinks no more
        self._status: dict[str, Any] = {}
        self._metrics: Any = None
        self._client_log = ClientLog(self._repeated, self._clock.ticks)
        self._tables: dict[str, SourceTable] = {}
        self._failed: dict[str, _Failed] = {}
        self._writing: Future[int] | None = None
        self._writing_since = 0.0
        #: Of the checkpoint that is written: the number of what sinks have, and the positions of its streams.
        self._named: tuple[str, dict[str, dict[str, int]]] = "", {}
        self._state = "starting"
        self._doing = ""
        self._started = self._turned = self._clock.now()
        self._turned_s = self._clock.ticks()
        self._pulse: Pulse | None = None
        #: Whether it has ended without its last checkpoint, for a store that does not answer.
        self.abandoned = False

    # ---- life

    def start(self) -> None:
        """Opens the database, declares the streams, and lets queries, sinks and sources begin."""
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
            if self.app.database.path is None:  # what is known of topics goes with the events
                for file in self.app.state.glob(f"{TOPICS}*.json"):
                    file.unlink()
            self._begin()
        except OSError as error:
            self._delivery.close()
            hint = "make room, look at the disk and at rights, and start it again: nothing is lost"
            raise DataError(f"the service cannot start; {self._doing or 'its state'}: {error}", hint) from error
        except BaseException:
            self._delivery.close()
            raise
        self._say(f"running {self.app.path.name}: {len(self._readers)} sources, {len(self._queries)} queries, "
                  f"{len(self._outlets)} sinks")  # fmt: skip

    def _begin(self) -> None:
        """Goes on from the last checkpoint."""
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
        """What is wrong with what the last run has left for sinks."""
        for name, parcels in self._delivery.backlog.items():
            rows = sum(parcel.rows.num_rows for parcel in parcels)
            self._fault(f"sink {name}", f"{rows:,} rows wait for it in {self.app.state}; the app file has no such sink")
        if self._delivery.lost is not None:
            self._fault("delivery", self._delivery.lost)

    def run(self) -> int:
        """Runs until SIGTERM or SIGINT, or until every source has ended; the exit code. Call it in the main thread."""
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
        self._say(f"it is still busy with {self._doing}, and ends without: {_UNKEPT}")

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._reloading = True
        else:
            self.stop()
            for again in (signal.SIGTERM, signal.SIGINT):
                signal.signal(again, signal.SIG_DFL)  # a second one ends the process at once
        self._wake.set()

    def stop(self) -> None:
        """Ends it soon: no more is read, what was read goes its way."""
        self._stopping = True
        self._wake.set()

    @property
    def done(self) -> bool:
        """Whether it is to stop, or has nothing more to do."""
        if self._stopping:
            return True
        over = self._readers and all(r.ended or self._is_given_up(r) for r in self._readers.values())
        return bool(over) and not any(o.waiting for o in self._all_outlets()) and not any(
            name not in self._ended and self._all_ended(name) for name in self._streams_read()
        )

    def step(self) -> bool:
        """One round: what has come is pushed, what was found is handed out, what is due is done. Whether there was
        anything to do."""
        self._turned, self._turned_s, self._doing = self._clock.now(), self._clock.ticks(), "events"
        if self._reloading or self._changed():
            self._doing = "a reload"
            asked, self._reloading = self._reloading, False
            try:
                self.reload(asked)
            except (DataError, QueryError, OSError) as error:
                self._fault("app", f"not all of it is taken over, and it is tried again: {_said(error)}")
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
        """Pushes and delivers what was read, takes a checkpoint, and closes everything; the exit code. It is bounded by
        STOP_S where it was told to stop."""
        over = not self._stopping
        self._state, self._doing = "stopping", "what was read"
        self._say("stopping" if not over else "every source has ended")
        until = self._clock.ticks() + DRAIN_S
        end = float("inf") if over else self._clock.ticks() + STOP_S
        for reader in self._readers.values():
            reader.pause(until - self._clock.ticks())
        # What still waits for history when it is stopped is in the checkpoint.
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
            one.close(0.0)  # all are told before one of them is waited for
        for one in ends:
            one.close(max(0.0, until - self._clock.ticks()))
        undelivered = sum(p.rows.num_rows for o in self._all_outlets() for p in o.undelivered())
        if undelivered:
            self._say(f"{undelivered:,} rows are not delivered; they are kept in {self.app.state} for the next start")
        failed = [r.name for r in self._readers.values() if r.failure is not None]
        failed += [name for name, running in self._queries.items() if running.failure is not None]
        self._doing = "closing the database"
        try:
            self._close_database(wait, checkpointed, end)
        except (DataError, OSError, TimeoutError) as error:
            self._say(f"the database was not closed well: {error}")
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
        """Takes what sources have read, some of each in turn, except for blocked streams."""
        busy = False
        for reader in self._readers.values():
            stream = reader.stream.lower()
            if reader.name in self._retry_s and stream not in blocked:
                pass  # what was said of it holds until its events are kept
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
        """Lets the watermark wait for partitions that have sent nothing yet: else it would go on with the first one
        that is read, and find the others late. False where that cannot be written down now."""
        new = [p for p in reader.partitions if (reader.stream.lower(), p) not in self._owners]
        if new:
            if not self._rows_kept():
                return False
            try:
                with self._warned(f"stream {reader.stream}"):
                    self.db.expect(reader.stream, new)
            except (OSError, NotKept) as error:
                self._retry_s[reader.name] = self._clock.ticks() + 1.0
                self._fault(f"source {reader.name}", f"its events cannot be kept: {error}")
                return False
            self._retry_s.pop(reader.name, None)
        for partition in new:
            self._owners[reader.stream.lower(), partition] = reader.name
        return True

    def _tick(self, blocked: Mapping[str, str]) -> None:
        """Lets the database look at the clock: not while sources wait for us, who are then not silent."""
        now = self._clock.ticks()
        if now - self._ticked_s >= TICK_EVERY_S and not blocked and all(now >= s for s in self._retry_s.values()):
            self._ticked_s = now
            with self._warned("clock"):
                self.db.tick()

    def _piece(self, reader: Reader, piece: Piece) -> bool:
        """Pushes the rows of a piece. False where they cannot be kept now; they are then tried again."""
        self._retry_s.pop(reader.name, None)
        owner = self._owner_of(reader, piece.source)
        if owner != reader.name:
            # Events are told apart by their partition: the second one's would be taken for those of the first, or,
            # where they spell a path in two ways, all of them would be there twice.
            reader.fail(
                f"it reads {reader.path_of(piece.source) or piece.source}, which source {owner} reads into the same "
                "stream\nhint: let one of them read it, and start again"
            )
            return False
        if reader.stream.lower() in self._ended:
            reader.fail(f"stream {reader.stream} has ended: a new start takes it up again")
            return False
        try:
            self._rows(reader.stream, piece.source, piece.rows, piece.offsets)
            archived = self.db.reached(reader.stream).positions.get(piece.source)
            self._passed[reader.stream.lower()].note(piece, archived)
            if piece.last:
                with self._warned(f"stream {reader.stream}"):
                    self.db.leave(reader.stream, piece.source)
        except (OSError, NotKept) as error:
            # What was taken of it already is told by its offsets.
            reader.give_back(piece)
            self._retry_s[reader.name] = self._clock.ticks() + 1.0
            self._fault(f"source {reader.name}", f"its events cannot be kept: {error}")
            return False
        return True

    def _owner_of(self, reader: Reader, partition: str) -> str:
        """The source whose events those of a partition are, which a reader has read: the first one that has read it,
        or the same file by another path, into its stream."""
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
        """Pushes rows; those that do not fit are quarantined, found by halving."""
        n = len(rows)
        if not n:
            return
        if any(a.unread_count >= a.unread_max for r in self._queries.values() for a in (r.alerts, *r.before)):
            self._fetch(wait=False)  # or the push would be refused
        try:
            with self._warned(f"stream {stream}"):
                self._rows_in[stream.lower()] += self.db.push(stream, self._whole(stream, rows), source, offsets)
        except NotKept:
            raise  # nothing is wrong with the rows
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
        """Rows with nulls in the columns that the stream has and its file does not have any more."""
        schema = self.db.schema(stream)
        table = next(t for n, t in self.app.streams.items() if n.lower() == stream.lower())
        for name in lacks(schema, table):
            rows = rows.append_column(name, pa.nulls(len(rows), arrow_schema(schema).field(name).type))
        return rows

    def _too_far_ahead(self, stream: str, source: str, rows: Any, offsets: Int64Array | None, error: Ahead) -> None:
        """Quarantines the events that are too far ahead of the clock, and pushes the others. They are behind their
        source by that: whatever the clock says later, they are not judged again."""
        for row in np.flatnonzero(error.rows).tolist():
            place = None if offsets is None else int(offsets[row])
            raw = _shown(rows.slice(row, 1)).encode(errors="backslashreplace")
            if place is None or place > self._ahead_told.get((stream.lower(), source), -1):
                self._quarantine(stream.lower(), Bad(source, place, raw, error.of(row)))
            if place is not None:  # else they could not be kept, and are tried again
                self._ahead_told[stream.lower(), source] = place
        self._ahead_s[stream.lower()] = self._clock.ticks()
        kept = np.flatnonzero(~error.rows)
        self._rows(stream, source, rows.take(pa.array(kept)), None if offsets is None else offsets[kept])
        if offsets is not None:
            self.db.skip(stream, source, int(offsets[-1]))

    def _quarantine(self, stream: str, bad: Bad) -> None:
        """Keeps a payload that is no event beside the stream, and counts it."""
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
            return  # it is there already, and a crash came before that was durable
        try:
            removed = dead_letters.append(file, line, self.app.limits.dead_letter_bytes)
        except OSError as error:
            self._fault(f"dead letters of {name}", f"{file} cannot be written: {error.strerror}; missing there: {line}")
            return
        self._well(f"dead letters of {name}")
        if removed is not None:
            self._say(f"dead letters of {name}: the oldest {removed.name} made room for newer ones")

    def _end_streams(self) -> bool:
        """Ends the streams all of whose sources have ended, so that what waits for more events comes out."""
        over = [n for n in self._streams_read() if n not in self._ended and self._all_ended(n)]
        for name in over:
            try:
                with self._warned(f"stream {name}"):
                    self.db.advance(name, None)
            except (OSError, NotKept) as error:  # it is tried again
                self._fault(f"stream {name}", f"its end cannot be kept: {_said(error)}")
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
        """The streams that take no more events for now, and why: a sink has too many unread rows of a query on them, or
        a query could not begin yet and would miss them."""
        blocked: dict[str, str] = {}
        for name, reads in self._delayed.items():
            blocked |= dict.fromkeys(reads, f"query {name} cannot begin: {self.app.state} cannot be written")
        for name, reads in self._unkept.items():
            blocked |= dict.fromkeys(reads, f"query {name} has begun, and no checkpoint that says so can be written")
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
                blocked[name] = "memory is full of events that the archive has not taken yet"
        return blocked

    # ---- rows out

    def _watch(self, name: str, query: Query, anew: bool = False) -> None:
        """Starts a query, or goes on with it from the last checkpoint. The one place where that is done.

        One that was over or had failed by then begins anew, behind what it had found: it does not read the archive
        again."""
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
            self._delayed[name] = query.reads  # it is tried again with what could not be opened
            return
        self._delayed.pop(name, None)
        named = name if self.app.database.path is not None else None  # memory has no checkpoints
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
        """Hands what the queries have found, and late events, to their sinks. wait: for history that is being read."""
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
                    self._fault(f"memory of {name}", "there is none for its rows: they are fetched again")
                    break
                except Exception as error:  # noqa: BLE001  (whatever it is, it is the query's; the others go on)
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

    # ---- what is opened

    def _declare(self) -> None:
        for name, stream in self.app.streams.items():
            with self._warned(f"stream {name}"):
                for said in declare(self.db, name, self.app.stream(name)):
                    self._say(f"stream {name}: {said}")
            if stream.late is not None:
                self.db.late(name)  # from now on they are kept for us

    def _open_source(self, name: str, table: SourceTable) -> None:
        source = self._made(name, table, f"source {name}", "")
        if source is not None:
            self._read_source(name, table, source)

    def _made(self, name: str, table: SourceTable, where: str, so: str) -> Source | None:
        """A source, not opened yet; None where it cannot be made, which is said with its consequence."""
        try:
            schema, key = self.db.schema(table.stream), table.stream.lower()
            lacking = lacks(schema, next(t for n, t in self.app.streams.items() if n.lower() == key))
            if key not in self._passed:
                self._passed[key] = PassedPayloads(marks_of(self.app, table.stream))
            self._passed[key].positions(self.db.reached(table.stream).positions)  # while an old source still reads
            read = replace(schema, fields=tuple(f for f in schema.fields if f.name not in lacking))
            return self._make_source(table, read, self.app)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is this source's; the others go on)
            self._fault(where, so + _said(error))
            return None

    def _read_source(self, name: str, table: SourceTable, source: Source) -> None:
        positions = self._passed[table.stream.lower()].positions(self.db.reached(table.stream).positions)
        reader = Reader(name, table.stream, source, positions, self.app.limits.queue_rows, self._wake)
        self._readers[name], self._tables[name] = reader, table
        if self._threads:
            reader.start()

    def _open_sink(self, name: str, table: SinkTable) -> None:
        """Its outlet is there from now on, and takes rows whether or not the sink can be made and opened yet."""
        outlet = Outlet(
            name, partial(self._make_sink, table, self.app), self._delivery.cursor(name, target_of(table)),
            self._delivery.backlog.pop(name, ()), self.app.limits.unread_rows, self._clock.ticks, self._clock.now,
            getattr(table, "refusals", None), partial(self._set_aside, name),
        )  # fmt: skip
        self._outlets[name] = outlet
        if self._threads:
            outlet.start()

    def _set_aside(self, sink: str, id: str, row: str, reason: str) -> None:
        """Keeps a row that a sink refuses. In the sink's thread; raises OSError."""
        file = self.app.state / f"{REFUSED_ROWS}{sink}.ndjson"
        line = json.dumps({"sink": sink, "id": id, "reason": reason, "row": json.loads(row)}, ensure_ascii=False)
        removed = dead_letters.append(file, line, self.app.limits.dead_letter_bytes)
        tell_refused_row(self._repeated, sink, id, reason, file.name, self._clock.ticks())
        if removed is not None:
            self._say(f"sink {sink}: the oldest {removed.name} made room for newer ones")

    def _open_rest(self) -> None:
        """Opens the sources, and begins the queries, that could not before, for the disk was full, say."""
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
        """Reads a source as the file says it now. Where that cannot be made, the old one goes on."""
        where = f"change of source {name}"
        source = self._made(name, table, where, "it is not taken over, the source goes on as it was: ")
        if source is not None:
            self._well(where)
            self._close_source(name)
            self._read_source(name, table, source)

    def _retry_sources(self) -> None:
        """Opens sources again that have failed, in growing pauses, when what they had read is pushed."""
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
        """When a source that has failed is tried again, in words."""
        failed = self._failed.get(reader.name)
        if failed is None or failed.reader is not reader or reader.refused:
            return ""
        return f" (failed {failed.tries} times, again in {max(0.0, failed.at_s - self._clock.ticks()):.0f} s)"

    def _is_given_up(self, reader: Reader) -> bool:
        """Whether a source counts as over where all others are: its failure is for good, it has never been read, or it
        has failed again and again."""
        if reader.failure is None:
            return False
        failed = self._failed.get(reader.name)
        # A failure that `_retry_sources` has not seen yet is one more.
        tries = 0 if failed is None else failed.tries + (failed.reader is not reader)
        return reader.refused or tries > SOURCE_TRIES or (tries <= 1 and not reader.reads)

    def _close_source(self, name: str) -> None:
        """Reads no more of a source, pushes what was read, and lets it go. What cannot be pushed now is read again by
        a source that can resume."""
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

    # ---- queries that are gone from the file

    def _go_on_removed(self) -> None:
        """Lets the queries of the checkpoint that are not in the file go on for a while."""
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
        """A query is gone from the file, perhaps for a moment: what it has become is kept for a while, and goes on."""
        self._fetch()
        running = self._queries.pop(name)
        self._well(f"query {name}")
        until = self._clock.now() + REMOVED_S
        self._removed[name] = running, until
        self._say(f"query {name}: it is no longer in the file; {_kept_until(until)}")

    def _end_removed(self, at_once: bool = False) -> None:
        """Ends those whose time is over, and those that have found more than may wait to be handed out."""
        for name, (running, until) in list(self._removed.items()):
            many = sum(a.unread_count for a in (running.alerts, *running.before)) > self.app.limits.unread_rows
            failed = running.alerts.failed or running.alerts.done
            if not (at_once or many or failed or self._clock.now() >= until):
                continue
            why = "it has found more than can be kept" if many else "it has failed" if failed else "its time is over"
            if not self._rows_kept():
                return
            self._say(f"query {name}: it was removed from the file, and ends{'' if at_once else f': {why}'}")
            del self._removed[name]
            running.alerts.close()

    # ---- queries that were interrupted

    def _mend(self) -> None:
        """A query that was interrupted in the middle of a batch (there was no memory, say) is in no state to be kept,
        and no checkpoint is taken as long as it is there: all goes back to the last one, as after a crash, and lets the
        events since through again. One that is interrupted again before the next checkpoint is left out."""
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
            self._say(f"query {', '.join(broken)}: interrupted in the middle of a batch; everything goes back to the "
                      "last checkpoint, and the events since then are matched again")  # fmt: skip
            self._go_back()

    def _go_back(self) -> None:
        """Goes on from the last checkpoint, as a new process would after a crash."""
        self._doing = "going back to the last checkpoint"
        ends: list[Reader | Outlet] = [*self._readers.values(), *self._all_outlets()]
        for one in ends:
            one.close(2.0)
        try:
            self.db.close(False)  # which takes no checkpoint of a query that was interrupted
        except (DataError, OSError) as error:
            self._say(f"the database was not closed well: {error}")
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
        """Makes durable what was pushed and what was delivered, every so often, and then tells the sources. In steps,
        between which events are taken: sinks settle, the state is copied, a thread of the database writes it."""
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
        """Copies the state, and lets it be written."""
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
        """Takes a checkpoint now, and waits for it; whether it was written."""
        self._begin_checkpoint()
        return self._writing is not None and self._wait_written(self._clock.ticks() + STOP_S)

    def _end_checkpoint(self) -> bool:
        """Takes the end of a checkpoint that has been written, or could not be; whether it was."""
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
        """Takes the last checkpoint, if it can be written by then; whether it was."""
        if self._writing is not None:  # the one under way
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
        """Waits until the checkpoint is written, or so long; whether it was."""
        assert self._writing is not None
        wait_for([self._writing], _seconds(end - self._clock.ticks()))
        return self._writing.done() and self._end_checkpoint()

    def _close_database(self, wait: bool, checkpointed: bool, end: float) -> None:
        """Raises TimeoutError where it is not closed by then: it is left as a crash would leave it."""
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
        # one that a store keeps for longer would keep the process too
        self.abandoned = any(thread.name in (KEEPER, RENEWER) for thread in threading.enumerate())

    def _settled(self, now: float) -> bool:
        """Asks the sinks to make durable what they were handed. Whether they have, or were given long enough to; until
        then the loop goes on."""
        if self._settle_by is None:
            self._settle_by = now + SETTLE_S
            for outlet in self._all_outlets():
                outlet.ask()
        if now < self._settle_by and not all(outlet.settled for outlet in self._all_outlets()):
            return False
        self._settle_by = None
        return True

    def _let_go(self) -> None:
        """Closes the sinks that have left the file, once they have taken what they had. Where a changed one fails, its
        rows go to the one of its name that there is now."""
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
        """Writes down where sinks stand and what they have not taken for good, and lets the next checkpoint of the
        database name it. To be done before each, also before those that it takes itself when a query begins, is
        replaced or ends: to it, these rows are fetched. A crash before that goes on from the checkpoint before, and
        what was written for that one."""
        outlets = [*self._leaving, *self._outlets.values()]
        cursors = {outlet.name: outlet.cursor for outlet in outlets}  # first: what is settled meanwhile stands there
        kept = {name: list(parcels) for name, parcels in self._delivery.backlog.items()}
        for outlet in outlets:
            kept.setdefault(outlet.name, []).extend(outlet.undelivered())
        targets = {name: target_of(self.app.sinks[name]) for name in self._outlets if name in self.app.sinks}
        removed = json.dumps({name: until for name, (_, until) in self._removed.items()})
        self._keep_directory()
        self.db.notes = {DELIVERY: self._delivery.write(cursors, targets, kept), REMOVED: removed}

    def _keep_directory(self) -> None:
        """Makes the directory of the service again where it is gone, and tells what is gone with it."""
        now = self._clock.ticks()
        try:
            if self._delivery.make_again():
                self._emptied_s = now
                self._checkpoint_s = -1e9  # which writes down anew what sinks have not taken
        except OSError as error:
            hint = "make it for the user who runs the service, or bring its disk back; then it goes on by itself"
            self._fault("state", f"{self.app.state} is gone, and cannot be made again: {error.strerror}; {hint}")
        else:
            recent = self._emptied_s is not None and now - self._emptied_s < EMPTIED_S
            self._judge("state", _EMPTIED.format(self.app.state) if recent else None)

    def _rows_kept(self) -> bool:
        """Whether what sinks have not taken could be written down. Where not, it is said, and only a crash before the
        next checkpoint would lose it."""
        try:
            self._keep_rows()
        except OSError as error:
            self._fault("outbox", f"{self.app.state} cannot be written: {error}")
            return False
        self._well("outbox")
        return True

    # ---- reload

    def _changed(self) -> bool:
        """Whether a file of the app has changed, and has settled; looked at once a second."""
        if self._clock.ticks() - self._looked_s < STATUS_EVERY_S:
            return False
        self._looked_s = self._clock.ticks()
        return self._files.changed(self.app.files, self._looked_s)

    def reload(self, asked: bool = True) -> None:
        """Takes over what has changed in the app file. With a fault in it, or a change that needs a new start,
        everything goes on as it was. asked: by SIGHUP: then queries that are gone from it end at once."""
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
        # Sinks first, and the removed ones last: whatever is fetched meanwhile finds its sink.
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
            self._say(f"query {name}: it is in the file again, and goes on where it was")
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
        """Puts a new version of a query in its place; where that is refused, the old one goes on."""
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
            self._fault(f"query {name}", f"not replaced, the old version goes on: {_said(error)}")
            running.query = replace(running.query, sinks=query.sinks)  # the others may be gone
            return
        self._well(f"query {name}")
        running.before.append(running.alerts)
        running.alerts, running.query = alerts, query
        self._shed(name, running)

    def _shed(self, name: str, running: _Running) -> None:
        """Lets a running query leave out keys as its file says."""
        try:
            with self._warned(f"query {name}"):
                self.db.shed(running.alerts, running.query.shed)
        except (QueryError, DataError) as error:
            self._fault(f"query {name}", f"its `shed` is not taken over: {_said(error)}")

    # ---- the account

    def status(self) -> dict[str, Any]:
        """Everything that the status file says; see hybrid.service.status."""
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
        """Takes the figures; the pulse writes them, where there is one."""
        self._written_s = self._clock.ticks()
        self._keep_directory()
        self._take_account(self._clock.now())
        if self._pulse is None:
            self._store_status()

    def _store_status(self) -> None:
        """Writes the figures as they were last taken, and what holds now. From any thread."""
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
        """What the pulse does: it says that the process lives, and whether the loop goes on."""
        busy = self._state == "running" and self._clock.ticks() - self._turned_s > SLOW_S
        self._judge("loop", f"it has been busy with {self._doing} since {_clock(self._turned)}" if busy else None)
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
            ahead = "events are too far ahead of the clock and are quarantined, see bad.ndjson: is their clock right?"
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
            sheds = f"more comes than can be matched: it keeps {share:.3g} of its keys"
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
        """Says whether the archive of a stream takes its events."""
        held, where = self.db.held(stream), f"archive of {stream}"
        if held.failure is not None:
            self._fault(where, f"events stay in memory, they cannot be archived now: {held.failure}")
        elif held.since_s is not None and time.time() - held.since_s > SLOW_S:
            if where not in self._trouble:
                self._fault(where, _slow(held.since_s))
        else:
            self._well(where)

    def _stands(self, name: str, told: Mapping[str, Any], idle: timedelta | None) -> str | None:
        """Who holds back the watermark of a stream, where events arrive and it stands; told: of Database.streams."""
        mark, accepted, now = told["watermark"], told["accepted"], self._clock.ticks()
        if told["expected"] and idle is None:
            return f"waits for {', '.join(told['expected'])}, which sent nothing yet; `idle` gives such up in time"
        since = self._stood.get(name)
        if told["held_by"] is None or since is None or since[0] != mark:
            since = self._stood[name] = mark, accepted, now
        patience_s = STANDS_S + (0.0 if idle is None else idle.total_seconds())
        if accepted == since[1] or now - since[2] < patience_s:
            return None
        source, silent = told["held_by"]["source"], told["held_by"]["since"]
        return f"stands at {mark} while events arrive: it waits for {source}, which has sent nothing since {silent}" + (
            "; `idle` gives such up in time" if idle is None else ""
        )

    def _fault(self, where: str, what: str) -> None:
        """Keeps what is wrong somewhere, and says it where it is new."""
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
            self._say(f"{where}: well again")

    @contextmanager
    def _warned(self, where: str) -> Iterator[None]:
        """Says the warnings of what is done here."""
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", HybridWarning)
            yield
        for warning in found:
            if issubclass(warning.category, HybridWarning):
                self._say(f"{where}: {warning.message}")


_UNKEPT = (
    "what it has not taken is read again at the next start, or is in the log; a source that cannot give events again, "
    "without a log, has lost those"
)
_EMPTIED = (
    "{} was gone, or what was in it, and is made again: rows for sinks, and what sources know of their files, are "
    "written down anew with the next checkpoint; what they knew of topics is gone, with the refused payloads of a store"
)
_LEFT_OUT = (
    "it is left out, and its matches in progress are lost; others go on. A changed text, or a new start, begins it anew"
)


def _slow(since: float) -> str:
    return f"what is written since {_clock(since)} is not there yet: the disk or the store is slow, or does not answer"


def _clock(when: float) -> str:
    return f"{datetime.fromtimestamp(when, UTC):%H:%M:%S} UTC"


def _kept_until(until: float) -> str:
    return f"what it has become is kept until {_clock(until)}, so that it can come back; SIGHUP ends it at once"


def _seconds(left: float) -> float | None:
    """As time limits are given."""
    return None if left == float("inf") else max(0.0, left)


def _late(stream: str) -> str:
    """What the late events of a stream are called among queries; no query is called so."""
    return f"late events of {stream}"


def _said(error: Exception) -> str:
    known = isinstance(error, (QueryError, DataError, OSError))
    return str(error) if known else f"{type(error).__name__}: {error}"


def _shown(rows: Any) -> str:
    """The only one of some rows, as JSON."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    # Arrow's to_pylist() raises for times that Python has no room for.
    return shown_rows(rows, [0])[0] if isinstance(rows, pa.Table) else json.dumps(next(iter(rows)), default=str)
