"""`hybrid run`: the loop between sources, a database and sinks, with its checkpoints, its reloads and its account.

One thread, that of `run`, does everything with the database. Each source is read and each sink is written by a thread
of its own (hybrid.reader, hybrid.outlet), so that none of them holds up the others.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa

from hybrid import account, dead_letters
from hybrid.alerts import Alerts
from hybrid.app import App, AppError, Query, declare, lacks, late_rows, load
from hybrid.app_tables import SinkTable, SourceTable
from hybrid.changes import check_change, stamps
from hybrid.client_log import ClientLog
from hybrid.connectors import TOPICS, make_sink, make_source, marks_of, target_of
from hybrid.delivery import Delivery
from hybrid.engine import Database
from hybrid.outlet import Outlet
from hybrid.passed import PassedPayloads, last_lines
from hybrid.reader import Reader, line_of
from hybrid.refused import Refused
from hybrid.status import VERSION, write_status
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
STATUS_EVERY_S, SETTLE_S, DRAIN_S, CLOSE_S = 1.0, 5.0, 5.0, 5.0
#: How often the database looks at the clock, and what could not be opened is tried again, in seconds.
TICK_EVERY_S, OPEN_EVERY_S = 0.25, 5.0
#: For how long it is a trouble that an event was too far ahead of the clock, in seconds.
AHEAD_S = 60.0
#: How long a watermark may stand while events arrive, in seconds, before that is a trouble.
STANDS_S = 10.0
#: How many pieces of one source are taken before the next one has its turn.
TURN_PIECES = 16
#: The note of a checkpoint that names what the sinks had by then.
DELIVERY = "delivery"


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
    """A query that runs. before: alerts of versions it has replaced, which may still have something to say."""

    query: Query
    alerts: Alerts
    before: list[Alerts] = field(default_factory=list)
    rows: int = 0
    failure: str | None = None


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
        self._readers: dict[str, Reader] = {}
        self._outlets: dict[str, Outlet] = {}
        self._leaving: list[Outlet] = []
        self._ended: set[str] = set()
        self._owners: dict[tuple[str, str], str] = {}
        # By stream when an event was last refused as too far ahead; by partition the last such event that is told.
        self._ahead_s: dict[str, float] = {}
        self._ahead_told: dict[tuple[str, str], int] = {}
        self._bad: Counter[str] = Counter()
        self._refused = Refused(say)
        self._rows_in: Counter[str] = Counter()
        self._passed: dict[str, PassedPayloads] = {}
        self._told_before: dict[Path, frozenset[str]] = {}
        self._trouble: dict[str, str] = {}
        self._stood: dict[str, tuple[str | None, int, float]] = {}
        self._retry_s: dict[str, float] = {}
        self._delayed: dict[str, tuple[str, ...]] = {}  # queries that cannot begin now, and the streams they read
        self._settle_by: float | None = None  # when the checkpoint that is due waits for sinks no more
        self._status: dict[str, Any] = {}
        self._metrics: Any = None
        self._client_log = ClientLog(say)

    # ---- life

    def start(self) -> None:
        """Opens the database, declares the streams, and lets queries, sinks and sources begin."""
        app = self.app
        self._delivery = Delivery(app.state)
        given = app.database
        self.db = Database(
            None if given.path is None else app.place(given.path), given.memory_limit, dict(given.options) or None,
            log=None if given.log == "none" else given.log, ticking=False, spark=given.spark,
            spark_events=given.spark_events, access=app.access,
            columns={name: stream.columns for name, stream in app.streams.items()},
        )  # fmt: skip
        try:
            self._delivery.read(self.db.notes.get(DELIVERY))
        except DataError:
            self._delivery.close()
            self.db.close()
            raise
        if given.path is None:  # what is known of topics goes with the events
            for file in app.state.glob(f"{TOPICS}*.json"):
                file.unlink()
        self._declare()
        if app.metrics is not None:
            from hybrid.metrics import serve

            self._metrics = serve(app.metrics.host, app.metrics.port, self.status)
        now = self._clock.ticks()
        self._started, self._written_s, self._checkpoint_s, self._ticked_s = self._clock.now(), -1e9, now, now
        self._rates = account.Rates()
        self._files = stamps(app.files)
        self._looked_s = self._opened_s = now
        for name, table in app.sinks.items():
            self._open_sink(name, table)
        for name, alerts in self.db.watching().items():
            if name not in app.queries:
                self._say(f"query {name}: it is no longer in the file, and ends")
                alerts.close()
        for name, query in app.queries.items():
            self._watch(name, query)
        for name, source in app.sources.items():
            self._open_source(name, source)
        self._tell_kept()
        self._say(f"running {app.path.name}: {len(self._readers)} sources, {len(self._queries)} queries, "
                  f"{len(self._outlets)} sinks")  # fmt: skip

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
        try:
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
        over = self._readers and all(r.ended or r.failure is not None for r in self._readers.values())
        return bool(over) and not any(o.waiting for o in self._all_outlets()) and not any(
            name not in self._ended and self._all_ended(name) for name in self._streams_read()
        )

    def step(self) -> bool:
        """One round: what has come is pushed, what was found is handed out, what is due is done. Whether there was
        anything to do."""
        if self._reloading or self._changed():
            self._reloading = False
            self.reload()
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
        now = self._clock.ticks()
        if now - self._checkpoint_s >= self.app.database.checkpoint.total_seconds() and self._settled(now):
            self.checkpoint()
        if now - self._opened_s >= OPEN_EVERY_S:
            self._open_rest()
        if now - self._written_s >= STATUS_EVERY_S:
            self._write_status("running")
            self._refused.tell(now)
        return busy

    def finish(self) -> int:
        """Pushes and delivers what was read, takes a checkpoint, and closes everything; the exit code."""
        over = not self._stopping
        for reader in self._readers.values():
            reader.pause()
        self._say("stopping" if not over else "every source has ended")
        until = self._clock.ticks() + DRAIN_S
        # What still waits for history when it is stopped is in the checkpoint.
        wait = True if over or self.app.database.path is None else DRAIN_S
        while self._push({}) and self._clock.ticks() < until:
            self._fetch(wait)
        self._fetch(wait)
        while any(o.waiting and not o.failures for o in self._all_outlets()) and self._clock.ticks() < until:
            if not self._threads:
                for outlet in self._all_outlets():
                    outlet.turn()
            else:
                self._clock.wait(self._wake, 0.02)
        for outlet in self._all_outlets():
            outlet.ask()
        until = self._clock.ticks() + SETTLE_S
        for outlet in self._all_outlets():
            outlet.settle(max(0.0, until - self._clock.ticks()))
        self.checkpoint()
        self._write_status("running")
        self._refused.tell(self._clock.ticks(), all=True)
        for reader in self._readers.values():
            reader.close()
        for outlet in self._all_outlets():
            outlet.close(0.0)
        until = self._clock.ticks() + CLOSE_S
        for outlet in self._all_outlets():
            outlet.close(max(0.0, until - self._clock.ticks()))
        undelivered = sum(p.rows.num_rows for o in self._all_outlets() for p in o.undelivered())
        if undelivered:
            self._say(f"{undelivered:,} rows are not delivered; they are kept in {self.app.state} for the next start")
        failed = [r.name for r in self._readers.values() if r.failure is not None]
        failed += [name for name, running in self._queries.items() if running.failure is not None]
        try:
            self.db.close(wait is True)
        except (DataError, OSError) as error:
            self._say(f"the database was not closed well: {error}")
            failed.append("database")
            over = True
        if self._metrics is not None:
            self._metrics.close()
        self._write_status("stopped")
        self._delivery.close()
        self._say("stopped")
        return 1 if over and failed else 0

    # ---- events in

    def _push(self, blocked: Mapping[str, str]) -> bool:
        """Takes what sources have read, some of each in turn, except for blocked streams."""
        busy = False
        for reader in self._readers.values():
            stream = reader.stream.lower()
            if reader.failure is not None:
                self._fault(f"source {reader.name}", reader.failure)
            elif reader.trouble is not None:
                self._fault(f"source {reader.name}", reader.trouble)
            elif stream in blocked:
                self._fault(f"source {reader.name}", f"waits: {blocked[stream]}")
            elif self._clock.ticks() >= self._retry_s.get(f"stream {stream}", 0.0):
                self._well(f"source {reader.name}")
            if stream in blocked or self._clock.ticks() < self._retry_s.get(f"stream {stream}", 0.0):
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
            self.db.expect(reader.stream, new)
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
        owner = self._owners.setdefault((reader.stream.lower(), piece.source), reader.name)
        if owner != reader.name:
            # Events are told apart by their partition: the second one's would be taken for those of the first.
            reader.fail(f"it reads {piece.source}, which source {owner} reads into the same stream")
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
            self._retry_s[f"stream {reader.stream.lower()}"] = self._clock.ticks() + 1.0
            self._fault(f"source {reader.name}", f"its events cannot be kept: {error}")
            return False
        return True

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
        self._refused.add(stream, where, bad.reason, self._clock.ticks())
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
            self._ended.add(name)
            try:
                with self._warned(f"stream {name}"):
                    self.db.advance(name, None)
            except DataError as error:
                self._fault(f"stream {name}", str(error))
        return bool(over)

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
        limit = self.app.limits.unread_rows
        readers = {name: running.query.reads for name, running in self._queries.items()}
        readers |= {_late(name): (name.lower(),) for name, stream in self.app.streams.items() if stream.late}
        for name, reads in readers.items():
            for outlet in self._all_outlets():
                if outlet.unread(name) >= limit:
                    why = f"sink {outlet.name} has {outlet.unread(name):,} unread rows of {name}"
                    blocked |= dict.fromkeys(reads, why)
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
                except Exception as error:  # noqa: BLE001  (whatever it is, it is the query's; the others go on)
                    running.failure = _said(error)
                    self._fault(f"query {name}", running.failure)
                    break
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
        stream = table.stream
        try:
            schema = self.db.schema(stream)
            lacking = lacks(schema, next(t for n, t in self.app.streams.items() if n.lower() == stream.lower()))
            read = replace(schema, fields=tuple(f for f in schema.fields if f.name not in lacking))
            source = self._make_source(table, read, self.app)
            passed = self._passed.setdefault(stream.lower(), PassedPayloads(marks_of(self.app, stream)))
            positions = passed.positions(self.db.reached(stream).positions)
        except (DataError, OSError) as error:
            self._fault(f"source {name}", str(error))
            return
        reader = Reader(name, stream, source, positions, self.app.limits.queue_rows, self._wake)
        self._readers[name] = reader
        if self._threads:
            reader.start()

    def _open_sink(self, name: str, table: SinkTable) -> None:
        """Its outlet is there from now on, and takes rows whether or not the sink can be made and opened yet."""
        outlet = Outlet(
            name, partial(self._make_sink, table, self.app), self._delivery.cursor(name, target_of(table)),
            self._delivery.backlog.pop(name, ()), self.app.limits.unread_rows, self._clock.ticks, self._clock.now,
        )  # fmt: skip
        self._outlets[name] = outlet
        if self._threads:
            outlet.start()

    def _open_rest(self) -> None:
        """Opens the sources, and begins the queries, that could not before, for the disk was full, say."""
        self._opened_s = self._clock.ticks()
        for name, query in self.app.queries.items():
            if name not in self._queries:
                self._watch(name, query)
        for name, source in self.app.sources.items():
            if name not in self._readers:
                self._open_source(name, source)

    def _close_source(self, name: str) -> None:
        """Reads no more of a source, pushes what was read, and lets it go. What cannot be pushed now is read again by
        a source that can resume."""
        reader = self._readers[name]
        reader.pause()
        while (item := reader.take()) is not None:
            if isinstance(item, Bad):
                self._quarantine(reader.stream.lower(), item)
            elif not self._piece(reader, item):
                break
        reader.close()
        del self._readers[name]
        self._owners = {partition: owner for partition, owner in self._owners.items() if owner != name}
        self._well(f"source {name}")

    def _close_query(self, name: str) -> None:
        running = self._queries[name]
        self._fetch()
        self._rows_kept()
        running.alerts.close()
        self._fetch()
        del self._queries[name]
        self._well(f"query {name}")

    # ---- checkpoints

    def checkpoint(self) -> None:
        """Makes durable what was pushed, writes down what was delivered, and tells the sources."""
        self._checkpoint_s = self._clock.ticks()
        try:
            self._keep_rows()
            self._well("outbox")
            archived = {name: self.db.reached(name).positions for name in self._streams_read()}
            positions = {name: self._passed[name].begin_checkpoint(at) for name, at in archived.items()}
            if self.app.database.path is not None:
                self.db.checkpoint()
            self._delivery.forget()
            for name in positions:
                self._passed[name].end_checkpoint()
        except (DataError, OSError) as error:
            self._fault("checkpoint", str(error))
            return
        self._well("checkpoint")
        for reader in self._readers.values():
            reader.kept(positions[reader.stream.lower()])

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
        self.db.notes = {DELIVERY: self._delivery.write(cursors, targets, kept)}

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
        """Whether a file of the app has changed since it was last looked at, a second ago or more."""
        if self._clock.ticks() - self._looked_s < STATUS_EVERY_S:
            return False
        self._looked_s = self._clock.ticks()
        now = stamps(self.app.files)
        changed, self._files = now != self._files, now
        return changed

    def reload(self) -> None:
        """Takes over what has changed in the app file. With a fault in it, or a change that needs a new start,
        everything goes on as it was."""
        try:
            app = load(self.app.path)
            reads = {name: running.query.reads for name, running in self._queries.items()}
            check_change(self.app, app, reads)
        except (AppError, DataError) as error:
            self._fault("app", f"not reloaded: {error.render() if isinstance(error, AppError) else error}")
            return
        was, self.app = self.app, app
        self._files = stamps(app.files)
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
        for name in [n for n, t in was.sources.items() if n in self._readers]:
            if app.sources.get(name) != was.sources[name] or was.sources[name].stream.lower() in columns:
                self._close_source(name)
        for name in [n for n in self._queries if n not in app.queries]:
            self._close_query(name)
        self._rows_kept()
        self._declare()
        for name, query in app.queries.items():
            running = self._queries.get(name)
            if running is None:
                self._watch(name, query)
            elif running.query.text == query.text and running.failure is None:
                running.query = query
                self._shed(name, running)
            else:
                self._replace(name, running, query)
        for name in [n for n in was.sinks if n not in app.sinks]:
            self._leaving.append(self._outlets.pop(name))
            self._well(f"sink {name}")
        for name, source in app.sources.items():
            if name not in self._readers:
                self._open_source(name, source)
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
        """Everything that the status file says; see hybrid.status."""
        return self._status

    def _write_status(self, state: str) -> None:
        now, self._written_s = self._clock.now(), self._clock.ticks()
        if state == "running":
            self._take_account(now)
        self._status = {**self._status, "state": state, "written": now}
        try:
            write_status(self.app.state, self._status)
        except OSError as error:
            self._fault("status", str(error))
        else:
            self._well("status")

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
            "version": VERSION, "pid": os.getpid(), "app": str(self.app.path), "state": "running",
            "started": self._started, "written": now, "streams": streams, "queries": queries,
            "sources": {name: account.of_source(reader) for name, reader in self._readers.items()},
            "sinks": sinks, "trouble": dict(self._trouble),
        }  # fmt: skip

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


def _late(stream: str) -> str:
    """What the late events of a stream are called among queries; no query is called so."""
    return f"late events of {stream}"


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, (QueryError, DataError)) else f"{type(error).__name__}: {error}"


def _shown(rows: Any) -> str:
    """The only one of some rows, as JSON."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    # Arrow's to_pylist() raises for times that Python has no room for.
    return shown_rows(rows, [0])[0] if isinstance(rows, pa.Table) else json.dumps(next(iter(rows)), default=str)
